//! The names of an account's keys, for pages that know keys by their id.
//!
//! Must not show a key's settings.

use accounts::{Accounts, ApiKey, ApiKeyStatus};
use ledger::StoreError;
use std::collections::{BTreeMap, BTreeSet};

/// A key as a cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName {
    pub name: String,
    /// `gw-sk-Ab12…wxyz`.
    pub shown: String,
    pub is_revoked: bool,
}

/// Names of keys by their ids.
#[derive(Default)]
pub struct KeyNames(BTreeMap<String, KeyName>);

impl KeyNames {
    /// Reads the names of the keys `ids` of an account, each once.
    pub fn load<'a>(
        accounts: &Accounts,
        account: &str,
        ids: impl Iterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        let ids: BTreeSet<&str> = ids.filter(|id| !id.is_empty()).collect();
        let mut names = BTreeMap::new();
        for id in ids {
            if let Some((_, key)) = accounts.api_keys().key(Some(account), id)? {
                let (id, name) = name_by_id(key);
                names.insert(id, name);
            }
        }
        Ok(Self(names))
    }

    /// Returns a key's name; for a key that is not found, `shown` stands for it.
    pub fn get(&self, id: &str, shown: &str) -> KeyName {
        self.0.get(id).cloned().unwrap_or_else(|| KeyName {
            name: shown.to_owned(),
            shown: shown.to_owned(),
            is_revoked: false,
        })
    }
}

fn name_by_id(key: ApiKey) -> (String, KeyName) {
    let name = KeyName {
        name: key.name,
        shown: key.shown,
        is_revoked: key.status == ApiKeyStatus::Revoked,
    };
    (key.id, name)
}
