//! Defines an entry of the ledger, and its conversion from a row of a query.
//!
//! This module must not run a query: `statements.rs` does.

pub(crate) mod account;
pub(crate) mod chain;
pub(crate) mod compact_detail;
pub(crate) mod ending;
pub(crate) mod hex;
pub(crate) mod spend_totals;

use crate::entry::compact_detail::expand;
use crate::entry::ending::{EndingDetail, LATE_SUFFIX};
use credits::money::Micro;
use rusqlite::Row;

/// A stored entry of the ledger. Each field is one column.
#[derive(Debug, Clone)]
pub struct LedgerEntry {
    pub seq: i64,
    pub kind: String,
    pub reference: String,
    pub account: String,
    pub at_ms: i64,
    pub d_paid: Micro,
    pub d_trial: Micro,
    pub bal_paid: Micro,
    pub bal_trial: Micro,
    pub writeoff: Micro,
    /// JSON with [`super::EndingDetail`] on debits and voids, and [`super::PostingDetail`] on
    /// changes that an operator posted. Otherwise empty.
    pub detail: String,
    pub prev: Vec<u8>,
    pub hash: Vec<u8>,
}

impl LedgerEntry {
    /// Creates an entry without a place in the chain and without balances.
    pub(crate) fn new(
        kind: &str,
        reference: &str,
        account: &str,
        at_ms: i64,
        parts: (Micro, Micro),
        detail: String,
    ) -> Self {
        Self {
            seq: 0,
            kind: kind.into(),
            reference: reference.into(),
            account: account.into(),
            at_ms,
            d_paid: parts.0,
            d_trial: parts.1,
            bal_paid: Micro::ZERO,
            bal_trial: Micro::ZERO,
            writeoff: Micro::ZERO,
            detail,
            prev: Vec::new(),
            hash: Vec::new(),
        }
    }

    /// Returns the entry's change of the balance.
    pub fn change(&self) -> Micro {
        self.d_paid.plus(self.d_trial)
    }

    /// Returns the credits that the entry adds, without those of the trial. If an account has ever
    /// received such credits and has used them up, the error does not mention a trial.
    pub fn credited(&self) -> Micro {
        let is_credit = matches!(
            self.kind.as_str(),
            "grant" | "topup" | "bonus" | "code" | "adjust" | "dispute"
        );
        if is_credit {
            self.change().or_zero()
        } else {
            Micro::ZERO
        }
    }

    pub fn is_ending(&self) -> bool {
        matches!(self.kind.as_str(), "debit" | "void")
    }

    /// Returns whether the entry is the end of a request whose debit the ledger decided by itself,
    /// without the shared store.
    pub fn is_late(&self) -> bool {
        self.is_ending() && self.detail.ends_with(LATE_SUFFIX)
    }

    /// Returns the ids of the API key and of the member whose request the entry ends.
    pub fn spenders(&self) -> Vec<String> {
        let detail = serde_json::from_str::<EndingDetail>(&self.detail);
        detail.map_or_else(
            |_| Vec::new(),
            |detail| detail.spenders().map(str::to_owned).collect(),
        )
    }
}

#[derive(Debug, Clone, Default)]
pub struct EntrySelection {
    pub account: Option<String>,
    /// Start of the period in ms since 1970, inclusive.
    pub from_ms: Option<i64>,
    /// End of the period in ms since 1970, exclusive.
    pub to_ms: Option<i64>,
}

pub(crate) const ENTRY_COLUMNS: &str = "seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash";

pub(crate) fn entry(row: &Row<'_>) -> rusqlite::Result<LedgerEntry> {
    let stored = row.get_ref(10)?.as_str()?;
    Ok(LedgerEntry {
        seq: row.get(0)?,
        kind: row.get(1)?,
        reference: row.get(2)?,
        account: row.get(3)?,
        at_ms: row.get(4)?,
        d_paid: row.get(5)?,
        d_trial: row.get(6)?,
        bal_paid: row.get(7)?,
        bal_trial: row.get(8)?,
        writeoff: row.get(9)?,
        detail: expand(stored),
        prev: row.get(11)?,
        hash: row.get(12)?,
    })
}
