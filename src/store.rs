//! What is kept, and the contract of keeping it.
//!
//! * [`app`]: accounts, keys, sessions (`app.db`).
//! * [`ledger`]: balances and immutable entries (`ledger.db`), the truth about money.
//! * [`holds`]: a view of the open holds of running processes for other processes (`holds.db`);
//!   dies with them.
//! * [`idempotency`]: what was asked and answered under idempotency keys (`idempotency.db`).
//! * [`redis`]: keys, balances and holds that many edges share.
//!
//! The contract of the ledger, whichever database keeps it: an entry with the same kind and
//! reference counts once; a request ends at most once; a balance never goes below zero; entries are
//! never changed; what a call reports as done is on disk. Must not decide prices, rules or
//! statuses.

pub mod app;
mod damage;
pub mod holds;
pub mod idempotency;
mod lately;
pub mod ledger;
pub mod missing;
pub mod redis;
pub mod sqlite;

#[cfg(test)]
pub use lately::LOOK;

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{operation}: {source}")]
    Sqlite {
        operation: &'static str,
        source: rusqlite::Error,
    },
    #[error("{operation}: {source}")]
    Redis {
        operation: &'static str,
        source: ::redis::RedisError,
    },
    #[error("{operation}: {source}")]
    Io {
        operation: &'static str,
        source: std::io::Error,
    },
    /// Not asked: it did not answer those who asked before.
    #[error("{0}: the shared store does not answer; it is probed until it does")]
    Away(&'static str),
    #[error("{0}")]
    Unusable(String),
    /// The rules forbid what was asked for; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// What was to be changed is not there.
    #[error("{0}")]
    Unknown(String),
    /// The reference was counted for something else; nothing was changed.
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

    pub fn io(operation: &'static str, source: std::io::Error) -> Self {
        Self::Io { operation, source }
    }

    /// One of a fixed set of words, for a metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Redis { source, .. } => redis::reason(source),
            Self::Away(_) => "store_away",
            Self::Refused(_) => "store_refused",
            _ => "store_error",
        }
    }

    /// The shared store has answered, although with a failure.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Redis { source, .. } if source.code().is_some())
    }
}
