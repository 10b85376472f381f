//! Changes that an operator posts: grants, top-ups, refunds of a debit, adjustments. A change takes
//! effect once, by its reference.
//!
//! A second change with the same reference and content has no effect. A second change with other
//! content is refused, because one of the two would be lost. Every check runs in the transaction
//! that posts. This file must not change an entry: a mistake is corrected by another entry.

use super::claim::{self, Claim, ClaimsOnAccount};
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::reader::balances::{payment_totals, refunded_total};
use crate::statements::chain::{append, balances};
use crate::statements::lookup::find_entry;
use crate::views::LedgerChanges;
use credits::money::{CreditSplit, MAX_MICRO, Micro};
use rusqlite::{OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};

/// Turns an error of SQLite into one that names the operation.
pub(crate) type SqlFailure = fn(rusqlite::Error) -> StoreError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostingResult {
    pub account: String,
    /// False if the reference had been posted already, so that the call had no effect.
    pub is_new: bool,
    /// Change of the balance by this reference, now or earlier.
    pub change: Micro,
    /// Balance of the account afterwards, including expired trial credits.
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
    /// Account of the administrator who posts the change. `None` for the command line.
    pub actor: Option<&'a str>,
    pub at_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalanceChangeKind<'a> {
    /// Credits given for free.
    Grant,
    /// Bought credits, posted by an operator.
    TopUp,
    /// Credits of a code that the account holder redeemed.
    Code,
    Adjust {
        reason: &'a str,
    },
    /// Credits that an order paid for at the payment provider.
    Purchase {
        order: &'a str,
    },
    /// Extra credits in addition to those that the order paid for.
    Bonus {
        order: &'a str,
    },
    /// The provider has refunded money of the order. The entry takes the paid credits that are
    /// free, and writes off those that were spent. What running requests hold is left for another.
    PaymentRefund {
        /// Reference of the purchase entry.
        payment: &'a str,
    },
    /// The holder's bank has taken money of the order back, which takes credits like a refund. If
    /// the money is returned, a second entry returns the credits.
    Dispute {
        /// Reference of the purchase entry.
        payment: &'a str,
    },
}

impl<'a> BalanceChangeKind<'a> {
    /// Returns the kind of the entry.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::TopUp | Self::Purchase { .. } => "topup",
            Self::Code => "code",
            Self::Adjust { .. } => "adjust",
            Self::Bonus { .. } => "bonus",
            Self::PaymentRefund { .. } => "payment_refund",
            Self::Dispute { .. } => "dispute",
        }
    }

    /// Returns the order to which a purchase or its bonus belongs.
    fn order(self) -> Option<&'a str> {
        match self {
            Self::Purchase { order } | Self::Bonus { order } => Some(order),
            _ => None,
        }
    }

    /// Returns the reference of the purchase to which a refund or a dispute belongs.
    fn payment(self) -> Option<&'a str> {
        match self {
            Self::PaymentRefund { payment } | Self::Dispute { payment } => Some(payment),
            _ => None,
        }
    }
}

impl BalanceChange<'_> {
    /// Returns whether the change takes back credits that a payment bought. See [`split_debit`].
    pub fn is_clawback(&self) -> bool {
        self.amount < Micro::ZERO && self.kind.payment().is_some()
    }

    /// Returns the amount that the entry of a debit of the store writes off, if the account pays
    /// `taken`.
    fn writeoff(&self, taken: Micro) -> Micro {
        match self.is_clawback() {
            true => Micro::ZERO.minus(self.amount).minus(taken),
            false => Micro::ZERO,
        }
    }

    fn detail(&self) -> PostingDetail {
        let reason = match self.kind {
            BalanceChangeKind::Adjust { reason } => Some(reason.into()),
            _ => None,
        };
        PostingDetail {
            reason,
            order: self.kind.order().map(Into::into),
            payment: self.kind.payment().map(Into::into),
            actor: self.actor.map(Into::into),
            ..PostingDetail::default()
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Refund<'a> {
    pub reference: &'a str,
    pub request_id: &'a str,
    /// Amount to refund. `None` refunds the rest of the debit.
    pub amount: Option<Micro>,
    /// Account of the administrator who posts the refund. `None` for the command line.
    pub actor: Option<&'a str>,
    pub at_ms: i64,
}

/// Detail of an entry that no request caused.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PostingDetail {
    /// The request whose debit is refunded. Set on every refund.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The operator's reason. Set on every adjustment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Account of the administrator who posted the change. `None` for the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The end of the trial, in ms since 1970. Set on the grant of a trial and on its extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_ends_at_ms: Option<i64>,
    /// The order. Set on credits that an order paid for, and on their bonus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// The reference of the purchase. Set on refunds and disputes of a payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment: Option<String>,
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
            order,
            payment,
        } = self;
        let texts = [request_id, reason, actor, order, payment];
        if texts.into_iter().all(Option::is_none) && trial_ends_at_ms.is_none() {
            return Ok(String::new());
        }
        serde_json::to_string(self).map_err(|error| {
            StoreError::Unusable(format!("cannot write an entry's detail: {error}"))
        })
    }

    /// Returns whether this change equals the entry, except for the actor.
    fn is_same(&self, entry: &LedgerEntry) -> bool {
        Self::decode(&entry.detail).is_ok_and(|known| {
            known.request_id == self.request_id
                && known.reason == self.reason
                && known.order == self.order
                && known.payment == self.payment
        })
    }
}

impl LedgerChanges<'_> {
    /// Posts a refund. The part that was paid from paid credits is returned first.
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
        if !rest.is_positive() {
            return Err(StoreError::Refused(format!(
                "all {refunded} credits of request {request_id} are refunded already"
            )));
        }
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
    let mut writeoff = Micro::ZERO;
    if amount < Micro::ZERO {
        check_clawback(transaction, change, sql)?;
        let available =
            available_credit(transaction, account, instance_id, &claims()?, at_ms).map_err(sql)?;
        let debit = split_debit(change, available)?;
        writeoff = debit.writeoff;
        parts = (
            Micro::ZERO.minus(debit.taken.paid),
            Micro::ZERO.minus(debit.taken.trial),
        );
        transaction
            .prepare_cached("DELETE FROM claim WHERE boot = ?1 AND account = ?2")
            .and_then(|mut statement| statement.execute([instance_id, account]))
            .map_err(sql)?;
    }
    let mut entry = LedgerEntry::new(kind, reference, account, at_ms, parts, detail.encode()?);
    entry.writeoff = writeoff;
    let posted = post_entry(transaction, entry, sql)?;
    if amount.is_positive() {
        transaction
            .prepare_cached("UPDATE account SET credited = credited + ?2 WHERE id = ?1")
            .and_then(|mut statement| statement.execute(params![account, amount]))
            .map_err(sql)?;
    }
    Ok(posted)
}

/// Posts a debit that the shared store has already made.
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
    check_clawback(transaction, change, sql)?;
    let (paid, trial) = balances(transaction, account)
        .optional()
        .map_err(sql)?
        .unwrap_or_default();
    // A store that lost its last writes may have debited the other bucket.
    let borne = taken.clamp_to(CreditSplit { paid, trial });
    if borne.total() < taken.total() {
        let requested = taken.total();
        return Err(StoreError::Unusable(format!(
            "cannot deduct {requested} credits from account {account} yet: the shared store has deducted them, but the ledger has only {paid} paid and {trial} trial; run the command again in a moment"
        )));
    }
    let parts = (
        Micro::ZERO.minus(borne.paid),
        Micro::ZERO.minus(borne.trial),
    );
    let mut entry = LedgerEntry::new(kind, reference, account, at_ms, parts, detail.encode()?);
    entry.writeoff = change.writeoff(borne.total());
    post_entry(transaction, entry, sql)
}

/// Checks that the refunds and disputes of a payment together take no more than it has bought.
fn check_clawback(
    transaction: &Transaction<'_>,
    change: &BalanceChange<'_>,
    sql: SqlFailure,
) -> Result<(), StoreError> {
    let Some(payment) = change.kind.payment().filter(|_| change.is_clawback()) else {
        return Ok(());
    };
    let totals = payment_totals(transaction, payment).map_err(sql)?;
    let (left, requested) = (totals.left(), Micro::ZERO.minus(change.amount));
    if requested > left {
        return Err(StoreError::Refused(format!(
            "cannot take back {requested} credits of payment {payment}: it bought {}, of which {left} are left to take back",
            totals.bought
        )));
    }
    Ok(())
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
            let entered = known.change().minus(known.writeoff);
            let is_same = known.account == change.account
                && entered == change.amount
                && detail.is_same(&known);
            existing_posting(transaction, is_same, &known).map_err(sql)?
        })
        .transpose()
}

/// Returns the result for a reference that has been posted already.
fn existing_posting(
    transaction: &Transaction<'_>,
    is_same: bool,
    known: &LedgerEntry,
) -> rusqlite::Result<Result<PostingResult, StoreError>> {
    if !is_same {
        let reference = &known.reference;
        return Ok(Err(StoreError::ReferenceUsed(format!(
            "reference {reference:?} is already used for something else: entry {} of kind {}, {} credits, account {}{}",
            known.seq,
            known.kind,
            known.change(),
            known.account,
            describe_detail(known),
        ))));
    }
    unchanged(transaction, known).map(Ok)
}

/// Describes how a posting differs from others of its kind and amount: by a request, or a reason.
fn describe_detail(entry: &LedgerEntry) -> String {
    let PostingDetail {
        request_id, reason, ..
    } = PostingDetail::decode(&entry.detail).unwrap_or_default();
    let request = request_id.map(|id| format!(", request {id}"));
    let reason = reason.map(|reason| format!(", reason {reason:?}"));
    request.into_iter().chain(reason).collect()
}

/// Returns the result of a posting that was made already.
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
    // Amounts saturate at their bounds, which would lose money without notice in this case.
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

/// The credits of an account that a debit may find.
#[derive(Debug, Clone, Copy)]
pub struct AvailableCredit {
    /// The credits of each bucket that are neither held nor settled.
    pub free: CreditSplit,
    /// Paid credits that running requests hold. They may become free again.
    pub held_paid: Micro,
}

/// The buckets that pay a debit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebitSplit {
    pub taken: CreditSplit,
    /// The part that the account has spent, so that a clawback cannot take it.
    pub writeoff: Micro,
}

/// Returns the credits of an account that are free, and that are held. Settled credits that the
/// ledger has entered are not subtracted twice.
fn available_credit(
    transaction: &Transaction<'_>,
    account: &str,
    instance_id: &str,
    claims: &[Claim],
    at_ms: i64,
) -> rusqlite::Result<AvailableCredit> {
    let (paid, trial) = balances(transaction, account)
        .optional()?
        .unwrap_or_default();
    let mut held = claim::claimed_by_others(transaction, account, instance_id)?;
    let mut unspent = CreditSplit { paid, trial };
    for claim in claims {
        held = held.plus(claim.held);
        unspent = unspent.minus(claim::unapplied_parts(transaction, account, claim)?);
    }
    let mut free = unspent.minus(held).or_zero();
    if let Some(own) = claim::own_claim(transaction, account, instance_id)? {
        // What became free after the claim was made, another process may have reserved since.
        free.paid = free.paid.min(own.paid);
    }
    let runs = trial_end(transaction, account)?.is_some_and(|ends| at_ms < ends);
    Ok(AvailableCredit {
        free: CreditSplit {
            trial: if runs { free.trial } else { Micro::ZERO },
            ..free
        },
        held_paid: unspent.paid.minus(free.paid).or_zero(),
    })
}

/// Splits a debit between the buckets of the free credits. A change that takes a payment back takes
/// paid credits only, and no more than are free. It writes off what the account has spent, and
/// leaves what running requests hold: another change takes that when they have ended.
///
/// # Errors
/// Returns [`StoreError::Held`] if a clawback finds held credits only, and an error if the buckets
/// do not cover another debit.
pub fn split_debit(
    change: &BalanceChange<'_>,
    available: AvailableCredit,
) -> Result<DebitSplit, StoreError> {
    let AvailableCredit { free, held_paid } = available;
    let requested = Micro::ZERO.minus(change.amount);
    let paid = requested.min(free.paid);
    let rest = requested.minus(paid);
    if change.is_clawback() {
        let writeoff = rest.minus(held_paid).or_zero();
        if !paid.plus(writeoff).is_positive() {
            return Err(StoreError::Held(format!(
                "cannot take back {requested} credits from account {} yet: running requests hold them",
                change.account
            )));
        }
        let taken = CreditSplit {
            paid,
            trial: Micro::ZERO,
        };
        return Ok(DebitSplit { taken, writeoff });
    }
    if rest > free.trial {
        let free = free.total();
        return Err(StoreError::Refused(format!(
            "cannot deduct {requested} credits: only {free} are available"
        )));
    }
    Ok(DebitSplit {
        taken: CreditSplit { paid, trial: rest },
        writeoff: Micro::ZERO,
    })
}
