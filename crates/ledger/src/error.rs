//! Errors of the databases and of the shared store.

use redis::{ErrorKind, RedisError};
use std::error::Error as _;
use tokio_postgres::error::SqlState;

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
        source: RedisError,
    },
    #[error("cannot {operation}: {}", postgres_cause(source))]
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
    /// What was asked for is sealed in a segment whose file is missing; the text says where it
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

    pub fn redis(operation: &'static str, source: RedisError) -> Self {
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
            Self::Redis { source, .. } => redis_reason(source),
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

/// Label value of an error of the shared store, one of a fixed set.
fn redis_reason(error: &RedisError) -> &'static str {
    match error.code() {
        Some("OOM") => return "store_out_of_memory",
        Some("READONLY") => return "store_read_only",
        Some("LOADING") => return "store_loading",
        Some("BUSY") => return "store_busy",
        Some("MISCONF") => return "store_misconf",
        Some("NOREPLICAS") => return "store_no_replicas",
        Some("CLUSTERDOWN") => return "store_cluster_down",
        Some("MOVED" | "ASK" | "TRYAGAIN") => return "store_moving",
        Some("MASTERDOWN") => return "store_no_primary",
        Some("NOAUTH" | "WRONGPASS") => return "store_auth",
        Some("NOPERM") => return "store_forbidden",
        _ => {}
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => "store_auth",
        ErrorKind::MasterNameNotFoundBySentinel => "store_no_primary",
        ErrorKind::ClusterConnectionNotFound => "store_unreachable",
        ErrorKind::Io if error.is_timeout() => "store_timeout",
        ErrorKind::Io => "store_unreachable",
        _ => "store_error",
    }
}

/// Returns what went wrong, as the server says it, or with its causes.
pub(crate) fn postgres_cause(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        // The server only says that it gave up.
        if said.code() == &SqlState::LOCK_NOT_AVAILABLE {
            return "an earlier transaction has not ended; it may wait for a standby of PostgreSQL, which is away or has no room on its disk".into();
        }
        return said.message().to_owned();
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
