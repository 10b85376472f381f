//! Builds an account's usage report, with the names of its keys and members.
//!
//! This file must not add up debits: `billing/usage_report.rs` does.

use super::views::UsageReports;
use crate::billing::usage_report::{UsageNames, UsageReportQuery};
use accounts::{Account, AccountStatus, Accounts};
use ledger::StoreError;
use serde_json::{Value, json};

impl UsageReports<'_> {
    /// Reports an account's usage. A key that the account no longer lists is shown by its id, and a
    /// person whose account is deleted by that of the account. If `key` (by id) belongs to a member
    /// of an organisation who sees no others, the report is of what this member spent with that
    /// key alone.
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
            Some(key) => (keys.only_member(account, key)?)
                .map(|member| query.clone().of_member_key(key, &member)),
            None => None,
        };
        let query = own.as_ref().unwrap_or(query);
        let describe_key = |id: &str| {
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
        };
        let describe_member = |membership: &str| {
            let (_, person) = membership.split_once('/').unwrap_or(("", membership));
            let found = accounts.find(person).unwrap_or_else(|error| {
                log::warn!("cannot read the address of the account {person}: {error}");
                None
            });
            let is_there = |found: &Account| found.status != AccountStatus::Deleted;
            let email = found.filter(is_there).map(|found| found.email);
            json!({"account_id": person, "email": email})
        };
        let describe = UsageNames {
            key: &describe_key,
            member: &describe_member,
        };
        self.usage_report(account, query, &describe)
    }
}
