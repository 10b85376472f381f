//! What accounts spent when, on which model and with which key, from sums that the ledger keeps.
//!
//! This file must not change anything, and must not add up entries.

use super::views::UsageReports;
use credits::money::Micro;
use ledger::StoreError;
pub use ledger::{
    DailyTotal, HOUR_MS, HourlySpend, SpendTotals, UsageInterval, UsageQuery, UsageRow, UsageSpan,
};
use std::collections::BTreeMap;

impl UsageReports<'_> {
    /// Returns an account's debits in groups, ordered by time, model and key: at most `limit`, from
    /// the one after the cursor `after` on.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usage(
        &self,
        account: &str,
        query: &UsageQuery,
        after: Option<(i64, &str, &str)>,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.0.0.ledger.pages().usage(account, query, after, limit)
    }

    /// Returns the debits since the hour `from_hour`, by hour and model, ordered by hour.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn hourly_spend(
        &self,
        account: &str,
        from_hour: i64,
    ) -> Result<Vec<HourlySpend>, StoreError> {
        self.0.0.ledger.pages().hourly_spend(account, from_hour)
    }

    /// Returns the credits that each of `accounts` has spent from `first_day` on (days since 1970
    /// UTC); an account without debits is not in the result.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_since(
        &self,
        accounts: &[String],
        first_day: i64,
    ) -> Result<BTreeMap<String, Micro>, StoreError> {
        self.0.0.ledger.pages().spend_since(accounts, first_day)
    }

    /// Returns the debits of each account on the days from `from_day` up to, and without, `to_day`
    /// (days since 1970 UTC): the `limit` accounts that spent most, in this order.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_by_account(
        &self,
        from_day: i64,
        to_day: i64,
        limit: u32,
    ) -> Result<Vec<(String, SpendTotals)>, StoreError> {
        let pages = self.0.0.ledger.pages();
        pages.spend_by_account(from_day, to_day, limit)
    }

    /// Returns the debits of all accounts on the days from `from_day` up to, and without, `to_day`,
    /// by day and model.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn daily_totals(&self, from_day: i64, to_day: i64) -> Result<Vec<DailyTotal>, StoreError> {
        self.0.0.ledger.pages().daily_totals(from_day, to_day)
    }
}
