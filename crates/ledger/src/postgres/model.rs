//! What is passed to and from PostgreSQL.
//!
//! This file must not call anything.

use crate::LedgerEntry;

/// How a sidecar reaches PostgreSQL.
#[derive(Clone)]
pub struct PostgresSettings {
    /// URL or key-value string, with the password.
    pub url: String,
    /// Whether the server must wait for a synchronous standby with each commit.
    pub require_standby: bool,
    /// Where the sidecar with this data directory listens, as other machines reach it.
    pub address: String,
}

impl std::fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresSettings")
            .field("require_standby", &self.require_standby)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Data with a holder and positions of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// `ledger.db`.
    Ledger,
    /// `app.db`.
    Accounts,
}

impl Domain {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Accounts => "accounts",
        }
    }
}

/// Who holds a domain, and how far its data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub epoch: i64,
    pub holder: String,
    pub address: String,
    /// Whether the lease has not run out.
    pub is_live: bool,
    pub position: Position,
    /// Version of the file of the program that held it last.
    pub format: i32,
}

/// How far the data of a domain is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Last entry of the ledger, and its hash. 0 and zeroes without entries.
    pub seq: i64,
    pub hash: Vec<u8>,
    /// Number of the last change of other rows.
    pub version: i64,
}

/// Balances of an account of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountBalance {
    pub id: String,
    pub paid: i64,
    pub trial: i64,
    pub trial_ends_at_ms: Option<i64>,
    pub credited: i64,
    pub opened_at_ms: i64,
}

/// A row of a table that is copied as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedRow {
    pub table: String,
    /// JSON array of the primary key.
    pub key: String,
    /// JSON object of the columns; `None`: the row was deleted.
    pub row: Option<String>,
}

/// A transaction of the holder.
#[derive(Debug, Clone)]
pub struct HomeCommit {
    pub domain: Domain,
    pub epoch: i64,
    pub before: Position,
    pub after: Position,
    pub entries: Vec<LedgerEntry>,
    pub accounts: Vec<AccountBalance>,
    pub rows: Vec<CopiedRow>,
}
