//! What account holders do with their webhook: set, rotate, remove, test, send again.
//!
//! A secret leaves this file once, when it is made. This file must not send anything: a message is
//! a row, which `webhooks/sender.rs` sends.

use super::address::WebhookUrl;
use super::message::WebhookEvent;
use super::signature::secret_text;
use crate::notify::id::{fill_random, new_id};
use accounts::Accounts;
use accounts::db::AppDb;
pub use accounts::db::webhooks::ResendOutcome;
use accounts::db::webhooks::{DeliveryLogRow, NewDelivery, QueueDeliveryOutcome};
use ledger::StoreError;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Maximum number of messages of an account that wait. The oldest give way.
pub const MAX_PENDING: u32 = 100;
/// How long ended messages stay in the log.
pub const LOG_MS: i64 = 7 * 86_400_000;
/// Maximum number of messages in the log that an account holder sees.
pub const MAX_LOG_ROWS: u32 = 200;
/// After a rotation, messages are signed with the old secret too, for this time.
pub const OLD_SECRET_MS: i64 = 24 * 3_600_000;

/// A webhook without its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookState {
    pub url: String,
    /// Identifies the secret without revealing it: 16 hex digits of its hash.
    pub secret_id: String,
    /// When the URL was set.
    pub created_at_ms: i64,
    /// Until when messages are signed with the old secret too.
    pub old_secret_until_ms: Option<i64>,
    /// When the webhook was disabled, and why.
    pub disabled: Option<(i64, String)>,
}

/// The webhooks of all accounts. Cheap to clone.
#[derive(Clone)]
pub struct Webhooks {
    db: Arc<AppDb>,
}

impl Webhooks {
    pub fn new(accounts: &Accounts) -> Self {
        Self {
            db: Arc::clone(accounts.database()),
        }
    }

    /// # Errors
    /// Returns an error if the database fails.
    pub fn find(&self, account: &str) -> Result<Option<WebhookState>, StoreError> {
        let row = self.db.webhooks().webhook(account)?;
        Ok(row.map(|row| WebhookState {
            url: row.url,
            secret_id: secret_id(&row.secret),
            created_at_ms: row.created_at_ms,
            old_secret_until_ms: row.old_secret.map(|(_, until_ms)| until_ms),
            disabled: row.disabled,
        }))
    }

    /// Sets the URL and enables the webhook. Returns the secret if the webhook is new; one that was
    /// there keeps its secret.
    ///
    /// # Errors
    /// Returns an error if there is no such account, or if the database fails.
    pub fn set(
        &self,
        account: &str,
        url: &WebhookUrl,
        now_ms: i64,
    ) -> Result<Option<String>, StoreError> {
        let secret = new_secret()?;
        if !self
            .db
            .webhooks()
            .set_webhook(account, &url.text, &secret, now_ms)?
        {
            return Err(StoreError::Unusable(format!(
                "there is no account {account}"
            )));
        }
        // Of two forms that were sent at once, one made the webhook.
        let is_new = self
            .db
            .webhooks()
            .webhook(account)?
            .is_some_and(|webhook| webhook.secret == secret);
        Ok(is_new.then(|| secret_text(&secret)))
    }

    /// Replaces the secret that has the id `replaced`, and returns the new one. `None` if the
    /// webhook does not have it: the same request sent twice must not end the secret that the
    /// receiver has.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn rotate(
        &self,
        account: &str,
        replaced: &str,
        now_ms: i64,
    ) -> Result<Option<String>, StoreError> {
        let row = self.db.webhooks().webhook(account)?;
        let Some(row) = row.filter(|row| secret_id(&row.secret) == replaced) else {
            return Ok(None);
        };
        let secret = new_secret()?;
        let until_ms = now_ms + OLD_SECRET_MS;
        let is_rotated =
            self.db
                .webhooks()
                .rotate_webhook_secret(account, &row.secret, &secret, until_ms)?;
        Ok(is_rotated.then(|| secret_text(&secret)))
    }

    /// Removes the webhook and its secrets. Returns false if there is none.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn remove(&self, account: &str, now_ms: i64) -> Result<bool, StoreError> {
        self.db.webhooks().remove_webhook(account, now_ms)
    }

    /// Queues a test message. Returns false if there is no webhook, or a disabled one.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn queue_test(
        &self,
        account: &str,
        base_url: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let event = WebhookEvent::Test;
        let delivery = NewDelivery {
            id: &new_id("msg_", now_ms)?,
            account,
            event: event.name(),
            body: &event.body(account, base_url, now_ms),
            created_at_ms: now_ms,
        };
        let outcome = self.db.webhooks().queue_delivery(&delivery, MAX_PENDING)?;
        Ok(outcome != QueueDeliveryOutcome::NoWebhook)
    }

    /// Makes a message of the log due at once, with its id.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn resend(
        &self,
        account: &str,
        id: &str,
        now_ms: i64,
    ) -> Result<ResendOutcome, StoreError> {
        self.db
            .webhooks()
            .resend_delivery(account, id, MAX_PENDING, now_ms)
    }

    /// Returns the messages of the last days, newest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn log(&self, account: &str) -> Result<Vec<DeliveryLogRow>, StoreError> {
        self.db.webhooks().deliveries(account, MAX_LOG_ROWS)
    }
}

fn secret_id(secret: &[u8; 32]) -> String {
    let hash = Sha256::new()
        .chain_update("id of a webhook secret")
        .chain_update(secret)
        .finalize();
    hash.iter()
        .take(8)
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn new_secret() -> Result<[u8; 32], StoreError> {
    let mut secret = [0; 32];
    fill_random(&mut secret)?;
    Ok(secret)
}
