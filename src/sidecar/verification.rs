//! The mail that verifies an e-mail: a sign-up sends it, and account holders ask for it.
//!
//! Must not know who may ask.

use crate::notify::mail::{self, MailKind};
use accounts::{AccountError, Accounts};
use serde_json::json;

/// Queues the mail with the link that verifies the account's e-mail.
pub fn queue_verification(
    accounts: &Accounts,
    account: &str,
    now_ms: i64,
) -> Result<(), AccountError> {
    mail::queue(accounts, account, MailKind::Verify, &json!({}), now_ms).map(drop)
}
