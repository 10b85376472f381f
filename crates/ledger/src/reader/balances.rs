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

/// Suffix of an entry's reference. The entry returns credits that a dispute took and then lost.
pub const DISPUTE_RETURNED: &str = ":won";

/// The credits that a payment has bought, and the credits that were taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaymentTotals {
    /// Bought credits, including their bonus.
    pub bought: Micro,
    /// Sum of the refunds so far, including written-off credits.
    pub refunded: Micro,
    /// Sum of the disputes whose credits were not returned, including written-off credits.
    pub disputed: Micro,
    /// The part of refunds and disputes that had been spent already.
    pub written_off: Micro,
    pub refunds: u32,
}

impl PaymentTotals {
    /// Returns the credits that can still be taken back.
    pub fn left(&self) -> Micro {
        self.bought.minus(self.refunded).minus(self.disputed)
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
         WHERE kind IN ('payment_refund', 'dispute') AND ref > ?1 || ':' AND ref < ?1 || ';'",
    )?;
    let mut rows = statement.query([payment])?;
    // Credits that each dispute took and wrote off, until they are returned.
    let mut disputes: BTreeMap<String, (Micro, Micro)> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (kind, reference): (String, String) = (row.get(0)?, row.get(1)?);
        let (change, writeoff): (Micro, Micro) = (row.get(2)?, row.get(3)?);
        let requested = writeoff.minus(change);
        if kind == "payment_refund" {
            totals.refunded = totals.refunded.plus(requested);
            totals.written_off = totals.written_off.plus(writeoff);
            totals.refunds += 1;
        } else if let Some(dispute) = reference.strip_suffix(DISPUTE_RETURNED) {
            disputes.insert(dispute.to_owned(), (Micro::ZERO, Micro::ZERO));
        } else {
            disputes.entry(reference).or_insert((requested, writeoff));
        }
    }
    for (requested, writeoff) in disputes.into_values() {
        totals.disputed = totals.disputed.plus(requested);
        totals.written_off = totals.written_off.plus(writeoff);
    }
    Ok(totals)
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
