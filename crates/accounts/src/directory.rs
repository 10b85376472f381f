//! Lists and counts accounts, for operators and for tasks at the start of a process.
//!
//! This file must not change anything.

use super::Account;
use super::views::AccountDirectory;
pub use crate::db::search::AccountCounts;
use credits::trial::Trial;
use ledger::StoreError;

impl AccountDirectory<'_> {
    /// Returns all accounts, oldest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn list(&self) -> Result<Vec<Account>, StoreError> {
        Ok(self
            .0
            .db
            .people()
            .accounts()?
            .into_iter()
            .map(Account::from)
            .collect())
    }

    /// Returns a page of accounts in the order of their creation, with up to `limit` accounts after
    /// the id `after`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn page(&self, after: Option<&str>, limit: u32) -> Result<Vec<Account>, StoreError> {
        Ok(self
            .0
            .db
            .people()
            .accounts_after(after.unwrap_or_default(), limit)?
            .into_iter()
            .map(Account::from)
            .collect())
    }

    /// Returns organisations that are not deleted, in pages like [`AccountDirectory::page`].
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn organisations(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Account>, StoreError> {
        let people = self.0.db.people();
        let rows = people.organisations_after(after.unwrap_or_default(), limit)?;
        Ok(rows.into_iter().map(Account::from).collect())
    }

    /// Returns accounts with `part` in their e-mail or id, or in the id or the shown text of one of
    /// their keys, in pages like [`AccountDirectory::page`]. Case is ignored.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn search(
        &self,
        part: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Account>, StoreError> {
        let part = part.trim().to_ascii_lowercase();
        let rows = self
            .0
            .db
            .people()
            .search_accounts(&part, after.unwrap_or_default(), limit)?;
        Ok(rows.into_iter().map(Account::from).collect())
    }

    /// Returns the number of accounts by status.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn count(&self) -> Result<AccountCounts, StoreError> {
        self.0.db.people().count_accounts()
    }

    /// Returns the accounts that were deleted since `since_ms`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn deleted_since(&self, since_ms: i64) -> Result<Vec<String>, StoreError> {
        self.0.db.people().accounts_deleted_since(since_ms)
    }

    /// Returns the accounts that the ledger does not have yet according to `app.db`, each with its
    /// promised trial.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub(crate) fn without_grant(&self) -> Result<Vec<(String, Option<Trial>)>, StoreError> {
        let rows = self.0.db.people().accounts_without_grant()?;
        Ok(rows
            .into_iter()
            .map(|row| (row.id.clone(), row.trial()))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accounts, Actor, NewAccount};
    use base::clock::now_ms;

    #[test]
    fn accounts_are_found_by_any_part_of_what_identifies_them() {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let now = now_ms();
        let open = |email: &str, later_ms: i64| {
            let new = NewAccount::new(email);
            accounts.create_account(&new, now + later_ms).unwrap().id
        };
        // Ids are ordered by the time of creation, to the millisecond.
        let [one, two] = [("ann_lee@example.com", 0), ("annxlee@example.org", 1)]
            .map(|(email, ms)| open(email, ms));
        let key = accounts.api_keys().create_key(&one, "k", now_ms()).unwrap();
        let shown = accounts.api_keys().keys(&one).unwrap().remove(0).shown;
        let ends = shown.chars().skip(shown.chars().count() - 4);
        let ends: String = ends.collect();
        let find = |part: &str| -> Vec<String> {
            let found = accounts.directory().search(part, None, 10).unwrap();
            found.into_iter().map(|account| account.id).collect()
        };
        assert_eq!(find("LEE@"), [one.clone(), two.clone()]);
        assert_eq!(find("ann_"), [one.as_str()], "no wildcard");
        assert_eq!(find("example.org"), [two.as_str()]);
        for part in [
            &one[5..],
            &key.key_id,
            &key.key_id[4..],
            &ends,
            &ends.to_ascii_uppercase(),
        ] {
            assert_eq!(find(part), [one.as_str()], "{part}");
        }
        for nothing in ["%", "nobody", "'", &key.key] {
            assert!(find(nothing).is_empty(), "{nothing}");
        }
        let next = accounts.directory().search("lee", Some(&one), 10).unwrap();
        assert_eq!(next[0].id, two);

        let counts = |active, suspended, deleted| AccountCounts {
            active,
            suspended,
            deleted,
        };
        assert_eq!(accounts.directory().count().unwrap(), counts(2, 0, 0));
        let holder = Actor {
            actor: two.clone(),
            address: String::new(),
        };
        accounts.delete(&holder, now_ms()).unwrap();
        let suspended = crate::AccountStatus::Suspended;
        accounts.set_status(&one, suspended).unwrap();
        assert_eq!(accounts.directory().count().unwrap(), counts(0, 1, 1));
    }
}
