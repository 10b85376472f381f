//! Reads of the ledger: accounts, the chain, the spending of keys, and the data of pages (lists of
//! entries, usage by time, statements). This module must not write.

pub(crate) mod accounts;
pub(crate) mod activity;
pub(crate) mod admission_cache;
pub(crate) mod balances;
pub(crate) mod chain;
pub(crate) mod key_spend;
pub(crate) mod statement;
pub(crate) mod usage;

use crate::StoreError;
use crate::index::IndexTables;
use crate::views::LedgerPages;

impl LedgerPages<'_> {
    /// Reads the index for an account, given the account's number in the index. Returns the default
    /// value for an account that the index does not have.
    fn read_account<T: Default>(
        &self,
        operation: &'static str,
        account: &str,
        mut read: impl FnMut(IndexTables<'_>, i64) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.0.index().read_index(operation, |tables| {
            match tables.find_name("account", account)? {
                Some(account) => read(tables, account),
                None => Ok(T::default()),
            }
        })
    }
}
