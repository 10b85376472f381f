//! Reads the names of an account's keys, for pages that have only their ids.
//!
//! This file must not show a key's settings.

use accounts::{Accounts, ApiKeyStatus};
use ledger::{EndingDetail, StoreError};
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

/// Keys by their ids, each with the address of its present member.
#[derive(Default)]
pub struct KeyNames {
    keys: BTreeMap<String, (KeyName, Option<String>)>,
    /// Addresses of members, by the ids of their memberships.
    members: BTreeMap<String, String>,
}

impl KeyNames {
    /// Reads the names of the keys `ids` of an account, each id once. An id may be a membership's.
    pub fn load<'a>(
        accounts: &Accounts,
        account: &str,
        ids: impl Iterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        let ids: BTreeSet<&str> = ids.filter(|id| !id.is_empty()).collect();
        let mut names = Self::default();
        for id in ids {
            if let Some((_, person)) = id.split_once('/') {
                let person = accounts.find(person)?;
                let email = person.map(|person| (id.to_owned(), person.email));
                names.members.extend(email);
            } else if let Some((_, key)) = accounts.api_keys().key(Some(account), id)? {
                let member = match &key.member {
                    Some(member) => accounts.find(member)?,
                    None => None,
                };
                let name = KeyName {
                    name: key.name,
                    shown: key.shown,
                    is_revoked: key.status == ApiKeyStatus::Revoked,
                };
                let email = member.map(|person| person.email);
                names.keys.insert(key.id, (name, email));
            }
        }
        Ok(names)
    }

    /// Returns a key's name. If the key is not found, the name is `shown`.
    pub fn get(&self, id: &str, shown: &str) -> KeyName {
        self.with_member(id, shown, None)
    }

    /// Returns the name of a request's key, with the member who sent the request.
    pub fn of_request(&self, detail: &EndingDetail) -> KeyName {
        let member = detail.member.as_ref();
        let email = member.and_then(|member| self.members.get(member));
        self.with_member(&detail.key_id, &detail.key_shown, email)
    }

    fn with_member(&self, id: &str, shown: &str, email: Option<&String>) -> KeyName {
        let Some((key, present)) = self.keys.get(id) else {
            return KeyName {
                name: shown.to_owned(),
                shown: shown.to_owned(),
                is_revoked: false,
            };
        };
        let name = match email.or(present.as_ref()) {
            Some(email) => format!("{} ({email})", key.name),
            None => key.name.clone(),
        };
        KeyName {
            name,
            ..key.clone()
        }
    }
}
