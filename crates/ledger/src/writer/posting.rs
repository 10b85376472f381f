//! Changes that an operator posts: grants, top-ups, refunds of a debit, adjustments. Each counts
//! once by its own reference.
//!
//! The same reference with the same content changes nothing. With different content it is refused,
//! because one of the two changes would be lost. Every check runs in the transaction that posts.
//! Must not change an entry: another entry corrects a mistake.

use super::claim::{self, Claim, ClaimsOnAccount};
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::reader::balances::refunded_total;
use crate::statements::chain::{append, balances};
use crate::statements::lookup::find_entry;
use crate::views::LedgerChanges;
use credits::money::{CreditSplit, MAX_MICRO, Micro};
use rusqlite::{OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};

/// Says which operation failed.
pub(crate) type SqlFailure = fn(rusqlite::Error) -> StoreError;

/// The result of a posting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostingResult {
    pub account: String,
    /// False if the reference had been posted before; then nothing was changed.
    pub is_new: bool,
    /// Change of the balance by this reference, now or earlier.
    pub change: Micro,
    /// Balance of the account afterwards, expired trial credits included.
    pub balance: Micro,
}

/// A change of a balance that no response caused.
#[derive(Debug, Clone, Copy)]
pub struct BalanceChange<'a> {
    pub kind: BalanceChangeKind<'a>,
    pub reference: &'a str,
    pub account: &'a str,
    /// Amount to credit; a negative amount is a debit.
    pub amount: Micro,
    /// Account of the administrator who posts the change; `None` for the command line.
    pub actor: Option<&'a str>,
    pub at_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceChangeKind<'a> {
    /// Credits that were given.
    Grant,
    /// Credits that were bought.
    TopUp,
    Adjust {
        reason: &'a str,
    },
}

impl BalanceChangeKind<'_> {
    /// Returns the kind of the entry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::TopUp => "topup",
            Self::Adjust { .. } => "adjust",
        }
    }
}

impl BalanceChange<'_> {
    fn detail(&self) -> PostingDetail {
        let reason = match self.kind {
            BalanceChangeKind::Adjust { reason } => Some(reason.into()),
            BalanceChangeKind::Grant | BalanceChangeKind::TopUp => None,
        };
        PostingDetail {
            reason,
            actor: self.actor.map(Into::into),
            ..PostingDetail::default()
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Refund<'a> {
    pub reference: &'a str,
    pub request_id: &'a str,
    /// Amount to refund; `None` refunds the rest of the debit.
    pub amount: Option<Micro>,
    /// Account of the administrator who posts the refund; `None` for the command line.
    pub actor: Option<&'a str>,
    pub at_ms: i64,
}

/// Detail of an entry that no request caused.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PostingDetail {
    /// On every refund: the request whose debit is refunded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// On every adjustment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Account of the administrator who posted the change; `None` for the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// On a trial's grant, and on its extension: the end of the trial, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_ends_at_ms: Option<i64>,
}

impl PostingDetail {
    /// Parses the detail of an entry.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid detail.
    pub fn decode(text: &str) -> Result<Self, serde_json::Error> {
        if text.is_empty() {
            Ok(Self::default())
        } else {
            serde_json::from_str(text)
        }
    }

    pub(super) fn encode(&self) -> Result<String, StoreError> {
        let Self {
            request_id,
            reason,
            actor,
            trial_ends_at_ms,
        } = self;
        if request_id.is_none() && reason.is_none() && actor.is_none() && trial_ends_at_ms.is_none()
        {
            return Ok(String::new());
        }
        serde_json::to_string(self).map_err(|error| {
            StoreError::Unusable(format!("cannot write an entry's detail: {error}"))
        })
    }

    /// Returns true if the request and the reason are the same; the actor can differ.
    fn is_same(&self, entry: &LedgerEntry) -> bool {
        Self::decode(&entry.detail).is_ok_and(|known| {
            (known.request_id, known.reason) == (self.request_id.clone(), self.reason.clone())
        })
    }
}

impl LedgerChanges<'_> {
    /// Posts a refund. The part paid from paid credits comes back first.
    pub(super) fn insert_refund(
        &self,
        transaction: &Transaction<'_>,
        refund: &Refund<'_>,
        sql: SqlFailure,
    ) -> Result<PostingResult, StoreError> {
        let Refund {
            reference,
            request_id,
            amount,
            actor,
            at_ms,
        } = *refund;
        let (request, actor) = (Some(request_id.into()), actor.map(Into::into));
        let detail = PostingDetail {
            request_id: request,
            actor,
            ..PostingDetail::default()
        };
        if let Some(known) = find_entry(transaction, "refund", reference).map_err(sql)? {
            let is_same =
                detail.is_same(&known) && amount.is_none_or(|amount| amount == known.change());
            return existing_posting(transaction, is_same, &known).map_err(sql)?;
        }
        let debit = match find_entry(transaction, "debit", request_id).map_err(sql)? {
            Some(debit) => Some(debit),
            None => self
                .0
                .segments()
                .sealed_ending(request_id)?
                .filter(|entry| entry.kind == "debit"),
        };
        let debit = debit.ok_or_else(|| {
            StoreError::Unknown(format!(
                "cannot refund request {request_id}: the ledger has no debit for it"
            ))
        })?;
        let refunded = refunded_total(transaction, &debit.account, request_id).map_err(sql)?;
        let taken = (
            Micro::ZERO.minus(debit.d_paid),
            Micro::ZERO.minus(debit.d_trial),
        );
        let rest = taken.0.plus(taken.1).minus(refunded);
        let amount = amount.unwrap_or(rest);
        if !amount.is_positive() || amount > rest {
            return Err(StoreError::Refused(format!(
                "cannot refund {amount} credits of request {request_id}: its debit was {}, of which {refunded} are already refunded",
                taken.0.plus(taken.1)
            )));
        }
        let from_paid = taken.0.minus(refunded).or_zero().min(amount);
        let from_trial = amount.minus(from_paid);
        let runs = trial_end(transaction, &debit.account)
            .map_err(sql)?
            .is_some_and(|ends| at_ms < ends);
        let parts = match runs {
            true => (from_paid, from_trial),
            false => (amount, Micro::ZERO),
        };
        let detail = detail.encode()?;
        let entry = LedgerEntry::new("refund", reference, &debit.account, at_ms, parts, detail);
        post_entry(transaction, entry, sql)
    }
}

/// Posts a grant, a top-up or an adjustment.
pub(crate) fn insert_change(
    transaction: &Transaction<'_>,
    change: &BalanceChange<'_>,
    instance_id: &str,
    claims: ClaimsOnAccount<'_>,
    sql: SqlFailure,
) -> Result<PostingResult, StoreError> {
    let BalanceChange {
        reference,
        account,
        amount,
        at_ms,
        ..
    } = *change;
    let (kind, detail) = (change.kind.name(), change.detail());
    if let Some(known) = known_change(transaction, change, &detail, sql)? {
        return Ok(known);
    }
    let mut parts = (amount, Micro::ZERO);
    if amount < Micro::ZERO {
        let free =
            free_credit(transaction, account, instance_id, &claims()?, at_ms).map_err(sql)?;
        let CreditSplit { paid, trial } = split_debit(change, free)?;
        parts = (Micro::ZERO.minus(paid), Micro::ZERO.minus(trial));
        transaction
            .prepare_cached("DELETE FROM claim WHERE boot = ?1 AND account = ?2")
            .and_then(|mut statement| statement.execute([instance_id, account]))
            .map_err(sql)?;
    }
    let entry = LedgerEntry::new(kind, reference, account, at_ms, parts, detail.encode()?);
    let posted = post_entry(transaction, entry, sql)?;
    if amount.is_positive() {
        transaction
            .prepare_cached("UPDATE account SET credited = credited + ?2 WHERE id = ?1")
            .and_then(|mut statement| statement.execute(params![account, amount]))
            .map_err(sql)?;
    }
    Ok(posted)
}

/// Posts an adjustment that the shared store has already debited.
pub(crate) fn insert_store_debit(
    transaction: &Transaction<'_>,
    change: &BalanceChange<'_>,
    taken: CreditSplit,
    sql: SqlFailure,
) -> Result<PostingResult, StoreError> {
    let BalanceChange {
        reference,
        account,
        at_ms,
        ..
    } = *change;
    let (kind, detail) = (change.kind.name(), change.detail());
    if let Some(known) = known_change(transaction, change, &detail, sql)? {
        return Ok(known);
    }
    let (paid, trial) = balances(transaction, account)
        .optional()
        .map_err(sql)?
        .unwrap_or_default();
    // A store that lost its last writes may have debited another bucket.
    let borne = taken.clamp_to(CreditSplit { paid, trial });
    if borne.total() < taken.total() {
        let requested = taken.total();
        return Err(StoreError::Refused(format!(
            "cannot deduct {requested} credits from account {account} yet: the shared store has deducted them, but the ledger has only {paid} paid and {trial} trial; run the command again in a moment"
        )));
    }
    let parts = (
        Micro::ZERO.minus(borne.paid),
        Micro::ZERO.minus(borne.trial),
    );
    let entry = LedgerEntry::new(kind, reference, account, at_ms, parts, detail.encode()?);
    post_entry(transaction, entry, sql)
}

/// Returns the result of a change whose reference has been posted before.
fn known_change(
    transaction: &Transaction<'_>,
    change: &BalanceChange<'_>,
    detail: &PostingDetail,
    sql: SqlFailure,
) -> Result<Option<PostingResult>, StoreError> {
    let known = find_entry(transaction, change.kind.name(), change.reference).map_err(sql)?;
    known
        .map(|known| {
            let is_same = known.account == change.account
                && known.change() == change.amount
                && detail.is_same(&known);
            existing_posting(transaction, is_same, &known).map_err(sql)?
        })
        .transpose()
}

/// Returns the result for a reference that has been posted before.
fn existing_posting(
    transaction: &Transaction<'_>,
    is_same: bool,
    known: &LedgerEntry,
) -> rusqlite::Result<Result<PostingResult, StoreError>> {
    if !is_same {
        let reference = &known.reference;
        return Ok(Err(StoreError::ReferenceUsed(format!(
            "reference {reference:?} is already used for something else: entry {}, a {} of {} for account {} {}",
            known.seq,
            known.kind,
            known.change(),
            known.account,
            known.detail,
        ))));
    }
    unchanged(transaction, known).map(Ok)
}

/// Returns the result of a posting that was made before.
pub(super) fn unchanged(
    transaction: &Transaction<'_>,
    known: &LedgerEntry,
) -> rusqlite::Result<PostingResult> {
    let (paid, trial) = balances(transaction, &known.account)?;
    Ok(PostingResult {
        account: known.account.clone(),
        is_new: false,
        change: known.change(),
        balance: paid.plus(trial),
    })
}

/// Posts `entry` and fills in its balances.
pub(super) fn post_entry(
    transaction: &Transaction<'_>,
    mut entry: LedgerEntry,
    sql: SqlFailure,
) -> Result<PostingResult, StoreError> {
    let known = balances(transaction, &entry.account)
        .optional()
        .map_err(sql)?;
    let (paid, trial) = known.ok_or_else(|| {
        StoreError::Unknown(format!("account {} is not in the ledger", entry.account))
    })?;
    // Amounts saturate at their bounds; here that would lose money without notice.
    if paid.get().saturating_add(entry.d_paid.get()) > MAX_MICRO {
        let (largest, change) = (Micro::new(MAX_MICRO), entry.change());
        let message = format!(
            "cannot add {change} credits to account {}: a balance is at most {largest}",
            entry.account
        );
        return Err(StoreError::Refused(message));
    }
    (entry.bal_paid, entry.bal_trial) = (paid.plus(entry.d_paid), trial.plus(entry.d_trial));
    let (account, change) = (entry.account.clone(), entry.change());
    let balance = entry.bal_paid.plus(entry.bal_trial);
    append(transaction, entry).map_err(sql)?;
    Ok(PostingResult {
        account,
        is_new: true,
        change,
        balance,
    })
}

pub(crate) fn trial_end(
    transaction: &Transaction<'_>,
    account: &str,
) -> rusqlite::Result<Option<i64>> {
    transaction
        .prepare_cached("SELECT trial_ends_at FROM account WHERE id = ?1")?
        .query_row([account], |row| row.get(0))
        .optional()
        .map(Option::flatten)
}

/// Returns the credits of each bucket that are neither held, nor settled without being in the
/// ledger yet.
fn free_credit(
    transaction: &Transaction<'_>,
    account: &str,
    instance_id: &str,
    claims: &[Claim],
    at_ms: i64,
) -> rusqlite::Result<CreditSplit> {
    let (paid, trial) = balances(transaction, account)
        .optional()?
        .unwrap_or_default();
    let mut free = CreditSplit { paid, trial }.minus(claim::claimed_by_others(
        transaction,
        account,
        instance_id,
    )?);
    for claim in claims {
        free = free
            .minus(claim.held)
            .minus(claim::unapplied_parts(transaction, account, claim)?);
    }
    let runs = trial_end(transaction, account)?.is_some_and(|ends| at_ms < ends);
    Ok(CreditSplit {
        trial: if runs { free.trial } else { Micro::ZERO },
        ..free
    }
    .or_zero())
}

/// Splits a debit between the buckets of `free`.
///
/// # Errors
/// Returns an error if they do not cover it.
pub fn split_debit(
    change: &BalanceChange<'_>,
    free: CreditSplit,
) -> Result<CreditSplit, StoreError> {
    let requested = Micro::ZERO.minus(change.amount);
    let paid = requested.min(free.paid);
    let trial = requested.minus(paid);
    if trial > free.trial {
        let free = free.total();
        return Err(StoreError::Refused(format!(
            "cannot deduct {requested} credits: only {free} are available"
        )));
    }
    Ok(CreditSplit { paid, trial })
}
