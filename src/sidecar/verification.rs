//! Queues the mail that verifies an e-mail, for sign-ups and at an account holder's request.
//!
//! This file must not decide who may request the mail.

use crate::notify::mail::{self, MailKind};
use accounts::{AccountError, Accounts};
use serde_json::json;

pub fn queue_verification(
    accounts: &Accounts,
    account: &str,
    now_ms: i64,
) -> Result<(), AccountError> {
    mail::queue(accounts, account, MailKind::Verify, &json!({}), now_ms).map(drop)
}
