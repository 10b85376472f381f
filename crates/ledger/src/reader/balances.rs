//! Balances of many accounts, and the charge of a request of any account: what operators ask.
//!
//! The figures lag the running process by the milliseconds of a commit. Must not change anything.

use super::chain::EntryReference;
use crate::StoreError;
use crate::views::LedgerRows;
use credits::money::Micro;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;

/// What a request cost and what came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestCharge {
    pub account: String,
    /// The debit; 0 for a request that was not charged.
    pub charged: Micro,
    /// All refunds of the debit together.
    pub refunded: Micro,
}

impl RequestCharge {
    /// The most that can still be refunded.
    pub fn rest(&self) -> Micro {
        self.charged.minus(self.refunded)
    }
}

/// A refund of a debit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundEntry {
    pub at_ms: i64,
    pub credits: Micro,
    /// The operator's reference.
    pub reference: String,
    /// Account of the administrator who posted it; `None` for the command line.
    pub actor: Option<String>,
}

/// The credits of an account at the time ?1: a trial that has ended counts nothing, also before its
/// lapse is entered.
const BALANCE: &str = "paid + iif(ifnull(trial_ends_at, ?1 + 1) > ?1, trial, 0)";

impl LedgerRows<'_> {
    /// Returns the balance of each of `accounts`; an account that the ledger does not have is not
    /// in the result.
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
            // Integers could overflow, which SQLite refuses. `total` is exact up to the maximum.
            connection
                .prepare_cached(&format!(
                    "SELECT CAST(min(total({BALANCE}), 9007199254740991) AS INTEGER) FROM account"
                ))?
                .query_row([now_ms], |row| row.get(0))
        })
    }

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

    /// Returns the charge of a request that has ended; `None` if the ledger does not have it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have it is not at
    /// hand.
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

/// Returns the total refunds of a debit so far.
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
