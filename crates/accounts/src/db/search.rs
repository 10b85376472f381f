//! Finds accounts by a part of their e-mail, id or key, and counts accounts.
//!
//! The functions read whole tables, which is fast enough for a page with 100 000 accounts, but not
//! for a request to a model. This file must not change anything.

use super::rows::{ACCOUNT_COLUMNS, AccountRow, account_row};
use super::views::AccountRows;
use ledger::StoreError;
use rusqlite::params;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountCounts {
    pub active: u64,
    pub suspended: u64,
    pub deleted: u64,
}

impl AccountRows<'_> {
    /// Returns at most `limit` accounts in the order of their ids, after `after`. The lower-case
    /// text `part` must occur in an account's e-mail, name or id, or in the id or shortened text of
    /// one of its keys.
    pub fn search_accounts(
        &self,
        part: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<AccountRow>, StoreError> {
        self.0.read("find accounts", |connection| {
            // Unlike LIKE, instr has no wildcards, so `%` and `_` are ordinary characters.
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account
                     WHERE id > ?2 AND (instr(email, ?1) OR instr(lower(ifnull(organisation, '')), ?1) OR instr(id, ?1) OR id IN
                       (SELECT account FROM api_key WHERE instr(id, ?1) OR instr(lower(shown), ?1)))
                     ORDER BY id LIMIT ?3"
                ))?
                .query_map(params![part, after, limit], account_row)?
                .collect()
        })
    }

    pub fn count_accounts(&self) -> Result<AccountCounts, StoreError> {
        self.0.read("count the accounts", |connection| {
            connection
                .prepare_cached(
                    "SELECT count(*) FILTER (WHERE deleted_at_ms IS NULL AND status = 'active'),
                       count(*) FILTER (WHERE deleted_at_ms IS NULL AND status <> 'active'),
                       count(deleted_at_ms)
                     FROM account",
                )?
                .query_row([], |row| {
                    let count = |column| {
                        let count: i64 = row.get(column)?;
                        Ok::<_, rusqlite::Error>(u64::try_from(count).unwrap_or_default())
                    };
                    Ok(AccountCounts {
                        active: count(0)?,
                        suspended: count(1)?,
                        deleted: count(2)?,
                    })
                })
        })
    }
}
