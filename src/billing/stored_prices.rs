//! Reads the price lists that the ledger has stored.
//!
//! This file must not write.

use super::views::BillingPages;
use credits::price_list::PriceList;
use ledger::StoreError;

impl BillingPages<'_> {
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
}
