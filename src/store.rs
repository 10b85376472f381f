//! The databases, and the rules that every one of them keeps.
//!
//! * [`app`]: accounts, keys, sessions (`app.db`).
//! * [`ledger`]: balances and immutable entries (`ledger.db`), the truth about money.
//! * [`holds`]: the open holds of running processes, shown to other processes (`holds.db`). They
//!   end with their process.
//! * [`idempotency`]: requests made under idempotency keys, and their responses (`idempotency.db`).
//! * [`idempotency_entry`]: those requests and responses, as callers pass them to either store.
//! * [`redis`]: keys, balances and holds that several edges share.
//! * [`postgres`]: where what sidecars write is first, if several of them share it; their files are
//!   copies then (`store/copy.rs`).
//! * [`key_settings`]: the settings of a key, as `app.db` and the shared store have them.
//!
//! The ledger keeps these rules, whichever database stores it. An entry with the same kind and
//! reference counts once. A request ends at most once. A balance never goes below zero. Entries
//! never change. When a call reports success, its write is on disk. Must not decide prices, rules
//! or statuses.

pub mod app;
pub mod copies;
mod copy;
mod damage;
pub mod holds;
pub mod idempotency;
pub mod idempotency_entry;
pub mod key_settings;
pub mod ledger;
pub mod missing;
pub mod postgres;
pub mod redis;
mod row_cache;
pub mod sqlite;

#[cfg(test)]
pub use row_cache::ROW_CACHE_CHECK_INTERVAL;

/// An error of a database or of the shared store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation}: {source}")]
    Sqlite {
        operation: &'static str,
        source: rusqlite::Error,
    },
    #[error("cannot {operation}: {source}")]
    Redis {
        operation: &'static str,
        source: ::redis::RedisError,
    },
    #[error("cannot {operation}: {}", postgres::cause(source))]
    Postgres {
        operation: &'static str,
        source: tokio_postgres::Error,
    },
    #[error("cannot {operation}: {source}")]
    Io {
        operation: &'static str,
        source: std::io::Error,
    },
    /// The shared store was not called: it did not answer earlier calls, so the breaker is open.
    #[error("cannot {0}: the shared store does not answer; the gateway keeps probing it")]
    CircuitOpen(&'static str),
    #[error("{0}")]
    Unusable(String),
    /// Another data directory holds the ledger in PostgreSQL; nothing was changed.
    #[error("{0}")]
    NotHolder(String),
    /// The rules forbid the change; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The row to change does not exist.
    #[error("{0}")]
    Unknown(String),
    /// What was asked for is sealed in a segment whose file is not at hand; the text says where it
    /// should be.
    #[error("{0}")]
    SegmentUnavailable(String),
    /// The reference already belongs to a different change; nothing was changed.
    #[error("{0}")]
    ReferenceUsed(String),
}

impl StoreError {
    pub fn sqlite(operation: &'static str, source: rusqlite::Error) -> Self {
        Self::Sqlite { operation, source }
    }

    pub fn redis(operation: &'static str, source: ::redis::RedisError) -> Self {
        Self::Redis { operation, source }
    }

    pub fn postgres(operation: &'static str, source: tokio_postgres::Error) -> Self {
        Self::Postgres { operation, source }
    }

    pub fn io(operation: &'static str, source: std::io::Error) -> Self {
        Self::Io { operation, source }
    }

    /// Label value for metrics, one of a fixed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Redis { source, .. } => redis::reason(source),
            Self::CircuitOpen(_) => "store_away",
            Self::Refused(_) => "store_refused",
            _ => "store_error",
        }
    }

    /// True if the shared store replied, even though the reply is an error.
    pub fn is_reply(&self) -> bool {
        matches!(self, Self::Redis { source, .. } if source.code().is_some())
    }

    /// Returns true if a database refused a row because of what it contains.
    pub fn is_refused_row(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. }
            if source.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation))
    }

    /// Returns true if the shared store's user lacks the right to run the command.
    pub fn is_refused_right(&self) -> bool {
        matches!(self, Self::Redis { source, .. } if source.code() == Some("NOPERM"))
    }
}
