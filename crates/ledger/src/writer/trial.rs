//! Changes of a balance that no request caused and nobody ordered: a trial's credits at sign-up,
//! and their expiry. Each counts once by its reference.
//!
//! Must not decide when a trial ends.

use super::posting::{PostingDetail, PostingResult, trial_end, unchanged};
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::sqlite::to_json;
use crate::statements::chain::{append, balances};
use crate::statements::lookup::find_entry;
use crate::views::LedgerRows;
use credits::money::Micro;
use rusqlite::Transaction;

/// A change of a balance that no request caused and nobody ordered: a sign-up's trial, and its
/// expiry.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'a> {
    pub kind: &'static str,
    pub reference: &'a str,
    pub account: &'a str,
    pub d_paid: Micro,
    pub d_trial: Micro,
    pub at_ms: i64,
}

impl LedgerRows<'_> {
    /// Returns the accounts whose trial is over and whose trial credits have not expired yet.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn expired_trials(&self, now_ms: i64) -> Result<Vec<(String, Micro)>, StoreError> {
        self.0.read("look for expired trials", |connection| {
            connection
                .prepare_cached("SELECT id, trial FROM account WHERE trial > 0 AND trial_ends_at <= ?1 LIMIT 100")?
                .query_map([now_ms], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
    }
}

/// Posts an entry and changes the balance, once per kind and reference.
pub(crate) fn insert_posting(
    transaction: &Transaction<'_>,
    post: &Posting<'_>,
) -> rusqlite::Result<PostingResult> {
    if let Some(known) = find_entry(transaction, post.kind, post.reference)? {
        return unchanged(transaction, &known);
    }
    let (paid, trial) = balances(transaction, post.account)?;
    let parts = (post.d_paid, post.d_trial);
    let detail = posting_detail(transaction, post)?;
    let entry = LedgerEntry {
        bal_paid: paid.plus(post.d_paid),
        bal_trial: trial.plus(post.d_trial),
        ..LedgerEntry::new(
            post.kind,
            post.reference,
            post.account,
            post.at_ms,
            parts,
            detail,
        )
    };
    let (change, balance) = (entry.change(), entry.bal_paid.plus(entry.bal_trial));
    append(transaction, entry)?;
    Ok(PostingResult {
        account: post.account.to_owned(),
        is_new: true,
        change,
        balance,
    })
}

/// A trial's grant contains its end, so that the chain of hashes covers it.
fn posting_detail(transaction: &Transaction<'_>, post: &Posting<'_>) -> rusqlite::Result<String> {
    if post.kind != "trial" {
        return Ok(String::new());
    }
    let trial_ends_at_ms = trial_end(transaction, post.account)?;
    let detail = PostingDetail {
        trial_ends_at_ms,
        ..PostingDetail::default()
    };
    to_json(&detail)
}
