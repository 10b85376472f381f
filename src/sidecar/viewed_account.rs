//! Represents the account whose responses a page shows: the reader's own, or one that an operator
//! reads.
//!
//! Pages of activity, spending and receipts are the same for both; only their links and the line
//! about the reader differ. This file must not check the right to read, which the handler's
//! `CurrentUser` or `Operator` does.

use super::session::CurrentUser;
use accounts::{Account, Accounts};
use askama::filters::urlencode_strict;
use ledger::StoreError;

pub struct ViewedAccount {
    pub id: String,
    /// What the account is called, if an operator reads it.
    pub read_by_operator: Option<String>,
    /// The member (by id) of an organisation whose responses alone the pages show; `None`: all.
    pub member: Option<String>,
}

impl ViewedAccount {
    /// Returns the account that the reader's pages show.
    pub fn from_user(user: &CurrentUser) -> Self {
        Self {
            member: user.only_member().map(ToOwned::to_owned),
            ..Self::own(&user.account.id)
        }
    }

    /// Returns the reader's own account by its id.
    pub fn own(account: &str) -> Self {
        Self {
            id: account.to_owned(),
            read_by_operator: None,
            member: None,
        }
    }

    /// Returns whether the pages show what the key (by id) was used for.
    pub fn shows_key(&self, accounts: &Accounts, key_id: &str) -> Result<bool, StoreError> {
        let Some(member) = &self.member else {
            return Ok(true);
        };
        let key = accounts.api_keys().key(Some(&self.id), key_id)?;
        Ok(key.is_some_and(|(_, key)| key.member.as_ref() == Some(member)))
    }

    pub fn for_operator(account: &Account) -> Self {
        Self {
            id: account.id.clone(),
            read_by_operator: Some(account.label().to_owned()),
            member: None,
        }
    }

    /// Returns the path of a request's receipt. All pages link to receipts with this path.
    pub fn receipt_url(&self, request_id: &str) -> String {
        let base = match self.read_by_operator {
            Some(_) => "/dashboard/operator/activity",
            None => "/dashboard/activity",
        };
        format!("{base}/{}", encode_segment(request_id))
    }

    /// Returns the path of one of the account's pages: `activity`, `spending` or `conversations`.
    pub fn page_url(&self, page: &str) -> String {
        match self.read_by_operator {
            Some(_) => format!("/dashboard/operator/accounts/{}/{page}", self.id),
            None => format!("/dashboard/{page}"),
        }
    }
}

/// Encodes a text as one segment of a URL path.
pub fn encode_segment(text: &str) -> String {
    urlencode_strict(text).map_or_else(|_| String::new(), |it| it.to_string())
}
