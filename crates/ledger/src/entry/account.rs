//! Defines an account's row: its balances, and the parts of them that are applied or claimed.
//!
//! This file must not change a balance: `statements/chain.rs` does.

use credits::money::Micro;
use rusqlite::Row;

/// An account's row, with the settled credits of the instance that the row already includes, and
/// the claims of other instances. All values come from one snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerAccount {
    pub paid: Micro,
    pub trial: Micro,
    pub trial_ends_at_ms: Option<i64>,
    /// Sum of all credits that were ever bought or granted, without the trial.
    pub credited: Micro,
    pub applied_paid: Micro,
    pub applied_trial: Micro,
    /// Credits that other instances have claimed.
    pub claimed_paid: Micro,
    pub claimed_trial: Micro,
}

/// The spending of a key or of a member, from one snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeySpend {
    /// Spending since the requested day.
    pub spent: Micro,
    pub total: Micro,
    /// Part of the total that the requested instance has settled.
    pub applied: Micro,
    /// End of the key's last request.
    pub used_at_ms: Option<i64>,
}

/// The columns of an account's row that the audit reads.
#[derive(Debug, Clone)]
pub struct LedgerAccountRow {
    pub id: String,
    pub paid: Micro,
    pub trial: Micro,
    pub credited: Micro,
    pub trial_ends_at_ms: Option<i64>,
}

pub(crate) fn account_row(row: &Row<'_>) -> rusqlite::Result<LedgerAccount> {
    Ok(LedgerAccount {
        paid: row.get(0)?,
        trial: row.get(1)?,
        trial_ends_at_ms: row.get(2)?,
        credited: row.get(3)?,
        applied_paid: row.get(4)?,
        applied_trial: row.get(5)?,
        claimed_paid: row.get(6)?,
        claimed_trial: row.get(7)?,
    })
}
