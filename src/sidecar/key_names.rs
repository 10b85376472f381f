//! Reads the names of an account's keys, for pages that have only their ids.
//!
//! This file must not show a key's settings.

use accounts::{Accounts, ApiKey, ApiKeyStatus};
use ledger::StoreError;
use std::collections::{BTreeMap, BTreeSet};

/// A key as a cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyName {
    /// The name that its holder gave it; in an organisation, with the address of its member.
    pub name: String,
    /// The shortened text of the key: `gw-sk-Ab12…wxyz`.
    pub shown: String,
    pub is_revoked: bool,
}

#[derive(Default)]
pub struct KeyNames(BTreeMap<String, KeyName>);

impl KeyNames {
    /// Reads the names of the keys `ids` of an account, each id once.
    pub fn load<'a>(
        accounts: &Accounts,
        account: &str,
        ids: impl Iterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        let ids: BTreeSet<&str> = ids.filter(|id| !id.is_empty()).collect();
        let mut names = BTreeMap::new();
        for id in ids {
            if let Some((_, key)) = accounts.api_keys().key(Some(account), id)? {
                let member = match &key.member {
                    Some(member) => accounts.find(member)?,
                    None => None,
                };
                let (id, name) = name_by_id(key, member.map(|person| person.email));
                names.insert(id, name);
            }
        }
        Ok(Self(names))
    }

    /// Returns a key's name. If the key is not found, the name is `shown`.
    pub fn get(&self, id: &str, shown: &str) -> KeyName {
        self.0.get(id).cloned().unwrap_or_else(|| KeyName {
            name: shown.to_owned(),
            shown: shown.to_owned(),
            is_revoked: false,
        })
    }
}

fn name_by_id(key: ApiKey, member: Option<String>) -> (String, KeyName) {
    let name = KeyName {
        name: match member {
            Some(email) => format!("{} ({email})", key.name),
            None => key.name,
        },
        shown: key.shown,
        is_revoked: key.status == ApiKeyStatus::Revoked,
    };
    (key.id, name)
}
