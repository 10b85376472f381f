//! What account holders look at: their responses by filter, what was spent when and on what, their
//! conversations.
//!
//! Must not change anything.

use super::{Billing, Receipt, pricing};
use crate::money::Micro;
use crate::store::StoreError;
pub use crate::store::ledger::{Conversation, Filter, HOUR_MS, Outcome, Place, Spent, Sum};

impl Billing {
    /// Ends of requests that fit `filter`, the latest first; `before` is the place of the last one
    /// of the page before.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn activity(
        &self,
        account: &str,
        filter: &Filter,
        before: Option<Place>,
        limit: u32,
    ) -> Result<Vec<Receipt>, StoreError> {
        let entries = self.0.ledger.endings(account, filter, before, limit)?;
        entries
            .into_iter()
            .map(|entry| self.explain(entry))
            .collect()
    }

    /// Debits of any account whose vendor counted more than the request can use, the latest first;
    /// at most `limit` of the last 50 000 entries of the ledger.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn implausible(&self, limit: u32) -> Result<Vec<(String, Receipt)>, StoreError> {
        let entries = self.0.ledger.implausible(limit)?;
        entries
            .into_iter()
            .map(|entry| Ok((entry.account.clone(), self.explain(entry)?)))
            .collect()
    }

    /// The position of the account's last response in the ledger; 0 where there is none.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn last_ending(&self, account: &str) -> Result<i64, StoreError> {
        self.0.ledger.last_ending(account)
    }

    /// What was debited from the hour `from` on, by hour and model, in order of the hours.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn spent(&self, account: &str, from_hour: i64) -> Result<Vec<Spent>, StoreError> {
        self.0.ledger.spent(account, from_hour)
    }

    /// Conversations, the one that was spoken in last first; `before` is when that was in the last
    /// one of the page before, and its id.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn conversations(
        &self,
        account: &str,
        before: Option<(i64, &str)>,
        limit: u32,
    ) -> Result<Vec<Conversation>, StoreError> {
        self.0.ledger.conversations(account, before, limit)
    }

    /// One conversation; `None` where the account has no such one.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn conversation(
        &self,
        account: &str,
        id: &str,
    ) -> Result<Option<Conversation>, StoreError> {
        self.0.ledger.conversation(account, id)
    }

    /// What the account's trial began with.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn trial_granted(&self, account: &str) -> Result<Option<Micro>, StoreError> {
        self.0.ledger.trial_granted(account)
    }
}

impl Receipt {
    /// A row's place in the order of time.
    pub fn place(&self) -> Place {
        Place {
            at_ms: self.at_ms,
            seq: self.seq,
        }
    }

    /// What the input that came from a cache would have cost more at the input's own price. Nothing
    /// where a cache is no cheaper.
    pub fn saved(&self) -> Micro {
        let usage = self.detail.usage.without_passes();
        let input = usage.input.saturating_add(usage.cache_read);
        let uncached = crate::usage::Usage {
            input,
            cache_read: 0,
            ..usage
        };
        pricing::cost(&uncached, &self.price)
            .minus(pricing::cost(&usage, &self.price))
            .or_zero()
    }
}
