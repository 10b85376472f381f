//! Returns the spending of accounts by time, model, key and member, from sums in the ledger.
//!
//! This file must not write or add up entries.

use super::views::UsageReports;
use credits::money::Micro;
use ledger::StoreError;
pub use ledger::{
    DailyTotal, HOUR_MS, HourlySpend, SpendTotals, UsageCursor, UsageInterval, UsageQuery,
    UsageRow, UsageSpan,
};
use std::collections::BTreeMap;

impl UsageReports<'_> {
    /// Returns at most `limit` groups of an account's debits, ordered by time, model, key and
    /// member, and starting after the cursor `after`.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usage(
        &self,
        account: &str,
        query: &UsageQuery,
        after: Option<UsageCursor<'_>>,
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
    /// UTC); the result leaves out accounts without debits.
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

    /// Returns the debits of the `limit` accounts that spent most, in descending order, from
    /// `from_day` up to `to_day`, exclusive (days since 1970 UTC).
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

    /// Returns the debits of all accounts by day and model, from `from_day` up to `to_day`,
    /// exclusive.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn daily_totals(&self, from_day: i64, to_day: i64) -> Result<Vec<DailyTotal>, StoreError> {
        self.0.0.ledger.pages().daily_totals(from_day, to_day)
    }
}
