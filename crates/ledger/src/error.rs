//! Defines the errors of the databases and of the shared store.

use rusqlite::ErrorCode;
use std::error::Error as _;
use std::io;
use tokio_postgres::error::SqlState;

/// An error of a database or of the shared store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {operation}: {source}")]
    Sqlite {
        operation: &'static str,
        source: rusqlite::Error,
    },
    /// The shared store refused the operation or did not answer. `reason` is a label for metrics
    /// from a fixed set.
    #[error("cannot {operation}: {source}")]
    SharedStore {
        operation: &'static str,
        reason: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
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
    #[error("{0}")]
    Unusable(String),
    /// Another data directory holds the ledger in PostgreSQL. No data was changed.
    #[error("{0}")]
    NotHolder(String),
    /// The rules forbid the change. No data was changed.
    #[error("{0}")]
    Refused(String),
    /// Running requests hold the credits that the change takes. No data was changed.
    #[error("{0}")]
    Held(String),
    /// The row to change does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The requested entry is sealed in a segment whose file is missing. The text names the
    /// expected path.
    #[error("{0}")]
    SegmentUnavailable(String),
    /// The reference already belongs to a different change. No data was changed.
    #[error("{0}")]
    ReferenceUsed(String),
}

impl StoreError {
    pub fn sqlite(operation: &'static str, source: rusqlite::Error) -> Self {
        Self::Sqlite { operation, source }
    }

    pub fn postgres(operation: &'static str, source: tokio_postgres::Error) -> Self {
        Self::Postgres { operation, source }
    }

    pub fn io(operation: &'static str, source: std::io::Error) -> Self {
        Self::Io { operation, source }
    }

    /// Returns the label for metrics, from a fixed set.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SharedStore { reason, .. } => reason,
            Self::Refused(_) => "store_refused",
            _ => "store_error",
        }
    }

    /// Returns whether a read was ended because it took too much work. The same call fails again.
    pub fn is_endless_read(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. }
            if source.sqlite_error_code() == Some(ErrorCode::OperationInterrupted))
    }

    /// Returns whether the disk has no room or does not answer, so that the same call may succeed
    /// later.
    pub fn is_storage_failure(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::CannotOpen
                        | ErrorCode::ReadOnly
                        | ErrorCode::DatabaseBusy
                        | ErrorCode::DatabaseLocked
                )
            ),
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::TimedOut
                    | io::ErrorKind::WouldBlock
            ),
            _ => false,
        }
    }

    /// Returns whether a database refused a row because of its content.
    pub fn is_refused_row(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. }
            if source.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation))
    }
}

/// Returns the server's own message, or the error with its causes.
pub(crate) fn postgres_cause(error: &tokio_postgres::Error) -> String {
    if let Some(said) = error.as_db_error() {
        // The server's message only says that it gave up.
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
