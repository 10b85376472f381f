//! Reads the balances of many accounts, and the charge of a request of any account, for operators.
//!
//! The figures lag the running process by the milliseconds of a commit. This file must not write.

use super::chain::EntryReference;
use crate::StoreError;
use crate::statements::lookup::find_entry;
use crate::views::{LedgerChanges, LedgerPages, LedgerRows};
use credits::money::Micro;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;

/// The cost of a request, and its refunds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestCharge {
    pub account: String,
    /// The debit, or 0 for a request that was not charged.
    pub charged: Micro,
    /// Sum of all refunds of the debit.
    pub refunded: Micro,
}

impl RequestCharge {
    /// Returns the maximum amount that can still be refunded.
    pub fn rest(&self) -> Micro {
        self.charged.minus(self.refunded)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundEntry {
    pub at_ms: i64,
    pub credits: Micro,
    /// Reference that the operator gave to the refund.
    pub reference: String,
    /// Account of the administrator who posted the refund. `None` if the command line posted it.
    pub actor: Option<String>,
}

/// The credits that a payment has bought, and the credits that were taken back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PaymentTotals {
    /// Bought credits, including their bonus.
    pub bought: Micro,
    pub refunds: ReversalTotals,
    /// By the provider's id of the dispute.
    pub disputes: BTreeMap<String, ReversalTotals>,
}

/// What the entries of all refunds of a payment, or of one of its disputes, have taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReversalTotals {
    /// Sum of the parts so far, including written-off credits.
    pub requested: Micro,
    /// The part that had been spent already.
    pub written_off: Micro,
    pub entries: u32,
}

impl ReversalTotals {
    /// Adds an entry. One that takes nothing returns what the earlier ones have taken, and what
    /// they wrote off counts no more.
    pub(crate) fn add(&mut self, change: Micro, writeoff: Micro) {
        let requested = writeoff.minus(change);
        self.entries = self.entries.saturating_add(1);
        if requested.is_positive() {
            self.requested = self.requested.plus(requested);
            self.written_off = self.written_off.plus(writeoff);
        } else {
            (self.requested, self.written_off) = (Micro::ZERO, Micro::ZERO);
        }
    }

    /// Returns the credits that were taken from the account.
    pub fn taken(&self) -> Micro {
        self.requested.minus(self.written_off)
    }
}

impl PaymentTotals {
    fn reversals(&self) -> impl Iterator<Item = &ReversalTotals> {
        self.disputes.values().chain([&self.refunds])
    }

    /// Returns the credits that can still be taken back.
    pub fn left(&self) -> Micro {
        let requested = self.reversals().map(|it| it.requested);
        requested.fold(self.bought, Micro::minus)
    }

    /// Returns the part of refunds and disputes that had been spent already.
    pub fn written_off(&self) -> Micro {
        let written_off = self.reversals().map(|it| it.written_off);
        written_off.fold(Micro::ZERO, Micro::plus)
    }
}

/// SQL for the credits of an account at the time ?1. A trial that has ended counts as 0 even before
/// its lapse is entered.
const BALANCE: &str = "paid + iif(ifnull(trial_ends_at, ?1 + 1) > ?1, trial, 0)";

impl LedgerPages<'_> {
    /// Returns the refunds of a request's debit, oldest first.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn refunds_of(
        &self,
        account: &str,
        request_id: &str,
    ) -> Result<Vec<RefundEntry>, StoreError> {
        self.0.read("list the refunds of a request", |connection| {
            connection
                .prepare_cached(
                    "SELECT at, d_paid + d_trial, ref, json_extract(detail, '$.actor') FROM entry
                     WHERE kind = 'refund' AND account = ?1 AND json_extract(detail, '$.request_id') = ?2
                     ORDER BY seq",
                )?
                .query_map([account, request_id], |row| {
                    Ok(RefundEntry {
                        at_ms: row.get(0)?,
                        credits: row.get(1)?,
                        reference: row.get(2)?,
                        actor: row.get(3)?,
                    })
                })?
                .collect()
        })
    }
}

impl LedgerChanges<'_> {
    /// Returns the credits that a payment has bought, and those that were taken back.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn payment_totals(&self, payment: &str) -> Result<PaymentTotals, StoreError> {
        self.0.read("read the entries of a payment", |connection| {
            payment_totals(connection, payment)
        })
    }
}

impl LedgerRows<'_> {
    /// Returns the balance of each of `accounts`; the result leaves out accounts that the ledger
    /// does not have.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balances(
        &self,
        accounts: &[String],
        now_ms: i64,
    ) -> Result<BTreeMap<String, Micro>, StoreError> {
        let accounts = serde_json::to_string(accounts).unwrap_or_default();
        self.0.read("read the balances of several accounts", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT id, {BALANCE} FROM account WHERE id IN (SELECT value FROM json_each(?2))"
                ))?
                .query_map(params![now_ms, accounts], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
    }

    /// Returns the sum of all balances, at most the largest amount of credits.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balance_total(&self, now_ms: i64) -> Result<Micro, StoreError> {
        self.0.read("add up all balances", |connection| {
            // A sum of integers could overflow, which SQLite refuses. `total` is exact up to the
            // maximum.
            connection
                .prepare_cached(&format!(
                    "SELECT CAST(min(total({BALANCE}), 9007199254740991) AS INTEGER) FROM account"
                ))?
                .query_row([now_ms], |row| row.get(0))
        })
    }

    /// Returns the charge of a request that has ended, or `None` if the ledger does not have it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment is missing that could contain
    /// it.
    pub fn request_charge(&self, request_id: &str) -> Result<Option<RequestCharge>, StoreError> {
        let Some(ending) = self.entry(EntryReference::Ending(request_id))? else {
            return Ok(None);
        };
        let refunded = self.0.read("read the refunds of a request", |connection| {
            refunded_total(connection, &ending.account, request_id)
        })?;
        Ok(Some(RequestCharge {
            charged: Micro::ZERO.minus(ending.change()),
            account: ending.account,
            refunded,
        }))
    }
}

/// Adds up the entries of a payment. The references of its refunds and disputes begin with the
/// purchase's reference, so the index of references finds them.
pub(crate) fn payment_totals(
    connection: &Connection,
    payment: &str,
) -> rusqlite::Result<PaymentTotals> {
    let mut totals = PaymentTotals::default();
    for kind in ["topup", "bonus"] {
        let entry = find_entry(connection, kind, payment)?;
        let change = entry.map_or(Micro::ZERO, |entry| entry.change());
        totals.bought = totals.bought.plus(change);
    }
    let mut statement = connection.prepare_cached(
        "SELECT kind, ref, d_paid + d_trial, writeoff FROM entry
         WHERE kind IN ('payment_refund', 'dispute') AND ref > ?1 || ':' AND ref < ?1 || ';'
         ORDER BY seq",
    )?;
    let mut rows = statement.query([payment])?;
    while let Some(row) = rows.next()? {
        let (kind, reference): (String, String) = (row.get(0)?, row.get(1)?);
        let reversal = match kind.as_str() {
            "dispute" => {
                let dispute = dispute_id(payment, &reference).to_owned();
                totals.disputes.entry(dispute).or_default()
            }
            _ => &mut totals.refunds,
        };
        reversal.add(row.get(2)?, row.get(3)?);
    }
    Ok(totals)
}

/// Returns the dispute that a part belongs to: its reference is the payment's, the dispute's id,
/// and from the second part on a number.
pub(crate) fn dispute_id<'a>(payment: &str, reference: &'a str) -> &'a str {
    let part = reference.get(payment.len() + 1..).unwrap_or_default();
    part.split(':').next().unwrap_or_default()
}

pub(crate) fn refunded_total(
    connection: &Connection,
    account: &str,
    request_id: &str,
) -> rusqlite::Result<Micro> {
    connection
        .prepare_cached(
            "SELECT ifnull(sum(d_paid + d_trial), 0) FROM entry
             WHERE kind = 'refund' AND account = ?1 AND json_extract(detail, '$.request_id') = ?2",
        )?
        .query_row([account, request_id], |row| row.get(0))
}
