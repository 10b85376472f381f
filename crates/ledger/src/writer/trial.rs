//! Automatic changes of a balance: a trial's credits at sign-up, and their expiry. A change takes
//! effect once, by its reference. The extension of a running trial, which changes no balance, is
//! also entered here.
//!
//! This file must not decide when a trial ends.

use super::posting::{PostingDetail, PostingResult, SqlFailure, post_entry, trial_end, unchanged};
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::sqlite::to_json;
use crate::statements::chain::{append, balances};
use crate::statements::lookup::find_entry;
use crate::views::LedgerRows;
use credits::money::Micro;
use rusqlite::{Transaction, params};

/// An automatic change of a balance: a sign-up's trial, or its expiry.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'a> {
    pub kind: &'static str,
    pub reference: &'a str,
    pub account: &'a str,
    pub d_paid: Micro,
    pub d_trial: Micro,
    pub at_ms: i64,
}

#[derive(Debug, Clone, Copy)]
pub struct TrialExtension<'a> {
    pub account: &'a str,
    /// The new end, in ms since 1970.
    pub ends_at_ms: i64,
    /// Account of the administrator who extends the trial.
    pub actor: Option<&'a str>,
    pub at_ms: i64,
}

/// Moves the end of a running trial, and appends an entry for that.
pub(super) fn insert_extension(
    transaction: &Transaction<'_>,
    extension: &TrialExtension<'_>,
    sql: SqlFailure,
) -> Result<PostingResult, StoreError> {
    let TrialExtension {
        account,
        ends_at_ms,
        actor,
        at_ms,
    } = *extension;
    // A trial that has ended cannot be extended, because its credits expire.
    let Some(old) = trial_end(transaction, account)
        .map_err(sql)?
        .filter(|old| *old > at_ms)
    else {
        let why = format!("account {account} has no running trial: grant credits instead");
        return Err(StoreError::Refused(why));
    };
    if ends_at_ms <= old {
        let why = format!("the trial of account {account} does not end before that");
        return Err(StoreError::Refused(why));
    }
    transaction
        .execute(
            "UPDATE account SET trial_ends_at = ?2 WHERE id = ?1",
            params![account, ends_at_ms],
        )
        .map_err(sql)?;
    let detail = PostingDetail {
        trial_ends_at_ms: Some(ends_at_ms),
        actor: actor.map(ToOwned::to_owned),
        ..PostingDetail::default()
    };
    let reference = format!("trial:{account}:{ends_at_ms}");
    let parts = (Micro::ZERO, Micro::ZERO);
    let entry = LedgerEntry::new("trial", &reference, account, at_ms, parts, detail.encode()?);
    post_entry(transaction, entry, sql)
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

/// Posts an entry and changes the balance. A second posting of the same kind and reference has no
/// effect.
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

/// Returns the detail. A trial's grant contains its end, so that the chain of hashes covers it.
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
