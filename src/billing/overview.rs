//! Reads balances of many accounts, and the charge of any request, for operators.
//!
//! This file must not write. The caller must check permissions.

use super::views::BillingPages;
use credits::money::Micro;
use credits::price_list::PriceList;
pub use ledger::RequestCharge;
use ledger::StoreError;
use std::collections::BTreeMap;

impl BillingPages<'_> {
    /// Returns the balance of each of `accounts` in the ledger. The result leaves out accounts that
    /// the ledger does not have.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balances(
        &self,
        accounts: &[String],
        now_ms: i64,
    ) -> Result<BTreeMap<String, Micro>, StoreError> {
        self.0.0.ledger.rows().balances(accounts, now_ms)
    }

    /// Returns the sum of all balances, which is the amount that the gateway owes its account
    /// holders.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balance_total(&self, now_ms: i64) -> Result<Micro, StoreError> {
        self.0.0.ledger.rows().balance_total(now_ms)
    }

    /// Returns the price list with this id, and the time at which it was stored, in ms since 1970.
    /// Returns `None` if the ledger does not have it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn price_list(&self, version: &str) -> Result<Option<(PriceList, i64)>, StoreError> {
        let ledger = &self.0.0.ledger;
        let list = ledger.rows().price(version)?;
        Ok(list.zip(ledger.pages().price_stored_at(version)?))
    }

    /// Returns the charge of an ended request of any account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn request_charge(&self, request_id: &str) -> Result<Option<RequestCharge>, StoreError> {
        self.0.0.ledger.rows().request_charge(request_id)
    }
}
