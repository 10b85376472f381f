//! Implements the operations of account holders on their webhook: set, rotate, remove, test, and
//! send again.
//!
//! A secret is returned once, when it is created. This file must not send a message: a message is a
//! row, which `webhooks/sender.rs` sends.

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

/// Maximum number of waiting messages of an account. A further one replaces the oldest.
pub const MAX_PENDING: u32 = 100;
/// Time in ms for which delivered and failed messages are kept in the log.
pub const LOG_MS: i64 = 7 * 86_400_000;
/// Maximum number of messages in the log that an account holder sees.
pub const MAX_LOG_ROWS: u32 = 200;
/// Time in ms after a rotation for which messages are also signed with the old secret.
pub const OLD_SECRET_MS: i64 = 24 * 3_600_000;

/// A webhook without its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookState {
    pub url: String,
    /// Identifies the secret without revealing it: 16 hex digits of its hash.
    pub secret_id: String,
    /// Time in ms since 1970 at which the URL was set.
    pub created_at_ms: i64,
    /// Time in ms since 1970 until which messages are also signed with the old secret.
    pub old_secret_until_ms: Option<i64>,
    /// Time and reason, if the webhook is disabled.
    pub disabled: Option<(i64, String)>,
}

/// The webhooks of all accounts. Cloning it is cheap.
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

    /// Returns the webhook of an account.
    ///
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

    /// Sets the URL and enables the webhook. Returns the secret of a new webhook. An existing
    /// webhook keeps its secret.
    ///
    /// # Errors
    /// Returns an error if the account does not exist, or if the database fails.
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
        // If two forms were sent at once, only one of them created the webhook.
        let is_new = self
            .db
            .webhooks()
            .webhook(account)?
            .is_some_and(|webhook| webhook.secret == secret);
        Ok(is_new.then(|| secret_text(&secret)))
    }

    /// Replaces the secret with the id `replaced`, and returns the new one. Returns `None` if the
    /// webhook has another secret, because a request that is sent twice must not invalidate the
    /// receiver's secret.
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

    /// Removes the webhook and its secrets. Returns false without a webhook.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn remove(&self, account: &str, now_ms: i64) -> Result<bool, StoreError> {
        self.db.webhooks().remove_webhook(account, now_ms)
    }

    /// Queues a test message. Returns false if the webhook does not exist or is disabled.
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
