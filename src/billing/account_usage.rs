//! Builds an account's usage report, with the names of its keys.
//!
//! This file must not add up debits: `billing/usage_report.rs` does.

use super::views::UsageReports;
use crate::billing::usage_report::UsageReportQuery;
use accounts::Accounts;
use ledger::StoreError;
use serde_json::{Value, json};

impl UsageReports<'_> {
    /// Reports an account's usage. A key that the account no longer lists is shown by its id. If
    /// `key` (by id) belongs to a member of an organisation who sees no others, the report is of
    /// that key alone.
    ///
    /// # Errors
    /// Returns an error if the ledger or the database cannot be read.
    pub fn account_usage(
        &self,
        accounts: &Accounts,
        account: &str,
        key: Option<&str>,
        query: &UsageReportQuery,
    ) -> Result<Value, StoreError> {
        let keys = accounts.api_keys();
        let own = match key {
            Some(key) if keys.sees_only_itself(account, key)? => Some(query.clone().of_key(key)),
            _ => None,
        };
        let query = own.as_ref().unwrap_or(query);
        self.usage_report(account, query, &|id| {
            let found = keys.key(Some(account), id).unwrap_or_else(|error| {
                log::warn!("cannot read the name of the key {id}: {error}");
                None
            });
            let key = found.as_ref().map(|(_, key)| key);
            json!({
                "id": id,
                "name": key.map(|key| &key.name),
                "shown": key.map(|key| &key.shown),
            })
        })
    }
}
