//! Finding and counting accounts, for operators.
//!
//! Must not change anything.

use super::{Account, Accounts};
pub use crate::db::search::AccountCounts;
use ledger::StoreError;

impl Accounts {
    /// Returns accounts with `part` in their e-mail or id, or in the id or the shown text of one of
    /// their keys, in pages like [`Accounts::page`]. Upper and lower case are the same.
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
        self.db.people().count_accounts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Actor, NewAccount, Role};
    use base::clock::now_ms;

    #[test]
    fn accounts_are_found_by_any_part_of_what_identifies_them() {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let now = now_ms();
        let open = |email: &str, later_ms: i64| {
            let new = NewAccount {
                email,
                password: None,
                role: Role::Member,
                trial: None,
            };
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
            let found = accounts.search(part, None, 10).unwrap();
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
        let next = accounts.search("lee", Some(&one), 10).unwrap();
        assert_eq!(next[0].id, two);

        let counts = |active, suspended, deleted| AccountCounts {
            active,
            suspended,
            deleted,
        };
        assert_eq!(accounts.count().unwrap(), counts(2, 0, 0));
        let holder = Actor {
            actor: two.clone(),
            address: String::new(),
        };
        accounts.delete(&holder, now_ms()).unwrap();
        let suspended = crate::AccountStatus::Suspended;
        accounts.set_status(&one, suspended).unwrap();
        assert_eq!(accounts.count().unwrap(), counts(0, 1, 1));
    }
}
