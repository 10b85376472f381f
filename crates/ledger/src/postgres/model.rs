//! Defines the types that are passed to and from PostgreSQL.
//!
//! This file must not contain behaviour.

use crate::LedgerEntry;

/// The settings of a sidecar's connection to PostgreSQL.
#[derive(Clone)]
pub struct PostgresSettings {
    /// URL or key-value string, with the password.
    pub url: String,
    /// True if the server must wait for a synchronous standby with each commit.
    pub require_standby: bool,
    /// Address of the sidecar with this data directory, as seen from other machines.
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

/// A set of data that has its own holder and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// The data of `ledger.db`.
    Ledger,
    /// The data of `app.db`.
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

/// The holder of a domain, and the position of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub epoch: i64,
    pub holder: String,
    pub address: String,
    /// True if the lease has not expired.
    pub is_live: bool,
    pub position: Position,
    /// Schema version of the last holder's file.
    pub format: i32,
}

/// The last changes in the data of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Position and hash of the ledger's last entry. Without entries, 0 and zeroes.
    pub seq: i64,
    pub hash: Vec<u8>,
    /// Number of the last change of other rows.
    pub version: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountBalance {
    pub id: String,
    pub paid: i64,
    pub trial: i64,
    pub trial_ends_at_ms: Option<i64>,
    pub credited: i64,
    pub opened_at_ms: i64,
}

/// A row of a table that is copied unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedRow {
    pub table: String,
    /// Primary key as a JSON array.
    pub key: String,
    /// Columns as a JSON object. `None` if the row was deleted.
    pub row: Option<String>,
}

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
