//! The account whose responses a page shows: the reader's own, or one that an operator reads.
//!
//! Pages of activity, spending and receipts are the same for both; only their links and the
//! line about the reader differ. Must not check who may read: the handler's
//! `CurrentUser` or `Operator` does.

use accounts::Account;
use askama::filters::urlencode_strict;

/// The account whose responses a page shows.
pub struct ViewedAccount {
    pub id: String,
    /// E-mail of the holder, if an operator reads it.
    pub read_by_operator: Option<String>,
}

impl ViewedAccount {
    /// The reader's own account, by its id.
    pub fn own(account: &str) -> Self {
        Self {
            id: account.to_owned(),
            read_by_operator: None,
        }
    }

    pub fn for_operator(account: &Account) -> Self {
        Self {
            id: account.id.clone(),
            read_by_operator: Some(account.email.clone()),
        }
    }

    /// Path of the receipt of a request. `Activity` links to it, and so does every other page.
    pub fn receipt_url(&self, request_id: &str) -> String {
        let base = match self.read_by_operator {
            Some(_) => "/dashboard/operator/activity",
            None => "/dashboard/activity",
        };
        format!("{base}/{}", encode_segment(request_id))
    }

    /// Path of a page of the account: `activity`, `spending` or `conversations`.
    pub fn page_url(&self, page: &str) -> String {
        match self.read_by_operator {
            Some(_) => format!("/dashboard/operator/accounts/{}/{page}", self.id),
            None => format!("/dashboard/{page}"),
        }
    }
}

/// Encodes a text as one segment of a path.
pub fn encode_segment(text: &str) -> String {
    urlencode_strict(text).map_or_else(|_| String::new(), |it| it.to_string())
}
