//! Sends mail to account holders. It consists of a queue in `app.db` and a task that sends due
//! mail.
//!
//! A row of the queue has a kind and amounts. The text and its link are created when the mail is
//! sent, so that no token is stored. A mail is sent at least once: after a crash during an attempt
//! it is sent again, with the same Message-ID. Next: `mail/kind.rs` (the kinds of mail),
//! `mail/text.rs` (the texts) and `mail/smtp.rs` (one attempt).

mod kind;
mod smtp;
#[cfg(test)]
mod tests;
mod text;

use super::NotifyContext;
use super::id::new_id;
use accounts::db::mail::{MailQueueLimits, OutgoingMailRow, QueueMailOutcome};
use accounts::{AccountError, AccountStatus, Accounts};
use arc_swap::ArcSwap;
use base::clock::{self, rfc3339};
use base::telemetry::METRICS;
use config::{MailSettings, Settings};
pub use kind::MailKind;
use ledger::StoreError;
use serde_json::Value;
use smtp::SendFailure;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use text::MailText;
use tokio::sync::watch;
use tokio::task::JoinSet;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Maximum numbers of waiting mails, in total and for one account.
pub(super) const QUEUE_LIMITS: MailQueueLimits = MailQueueLimits {
    total: 10_000,
    per_account: 20,
};

/// Interval at which the task looks for due mail. It must poll because other processes queue mail
/// too.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of mails sent at the same time.
const MAX_CONCURRENT: usize = 2;

/// Time limit of one attempt, from the connection to the server's last response.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Time in ms for which no other process takes a mail. It is longer than an attempt.
const LEASE_MS: i64 = 2 * MINUTE_MS;

/// Delays in ms after the first failed attempts. Later delays are [`HOUR_MS`].
const RETRY_DELAYS_MS: [i64; 5] = [
    MINUTE_MS,
    5 * MINUTE_MS,
    15 * MINUTE_MS,
    HOUR_MS,
    3 * HOUR_MS,
];

/// Time in ms for which sent and failed mails are kept.
const RETENTION_MS: i64 = 7 * 24 * HOUR_MS;

/// Interval in ms between deletions of old mails, and between warnings about a failing server.
const PURGE_INTERVAL_MS: i64 = HOUR_MS;
const WARNING_INTERVAL_MS: i64 = 10 * MINUTE_MS;

/// Queues a mail to an account holder. `detail` has the values for the text (see [`MailKind`]), but
/// never a link or a token.
///
/// # Errors
/// Returns an error if the system has no randomness, or if the database fails.
pub fn queue(
    accounts: &Accounts,
    account: &str,
    kind: MailKind,
    detail: &Value,
    now_ms: i64,
) -> Result<QueueMailOutcome, AccountError> {
    let row = new_row(account, kind, detail, now_ms)?;
    let outcome = accounts.mails().queue_mail(&row, QUEUE_LIMITS)?;
    let is_full = [QueueMailOutcome::AccountFull, QueueMailOutcome::QueueFull].contains(&outcome);
    if is_full {
        METRICS.count_mail("dropped");
        log::warn!(
            "dropped a mail ({}) to account {account}: {} mails wait, or {} of this account",
            kind.name(),
            QUEUE_LIMITS.total,
            QUEUE_LIMITS.per_account
        );
    }
    Ok(outcome)
}

/// Returns a mail that is due at once, for a transaction that also stores other rows.
pub(super) fn new_row(
    account: &str,
    kind: MailKind,
    detail: &Value,
    now_ms: i64,
) -> Result<OutgoingMailRow, StoreError> {
    Ok(OutgoingMailRow {
        id: new_id("mail_", now_ms)?,
        account: account.to_owned(),
        kind: kind.name().to_owned(),
        detail: detail.to_string(),
        created_at_ms: now_ms,
        attempts: 0,
    })
}

/// Sends mail until the shutdown, and then finishes the running attempts.
pub(super) async fn run(context: NotifyContext, mut shutdown: watch::Receiver<bool>) {
    let sender = MailDispatcher::new(context.accounts, context.settings, SEND_TIMEOUT);
    let sender = Arc::new(sender);
    let mut sending = JoinSet::new();
    loop {
        let is_full = sending.len() >= MAX_CONCURRENT;
        tokio::select! {
            // An error means that the sender was dropped with the process that it belonged to.
            () = async { drop(shutdown.wait_for(|is_over| *is_over).await) } => break,
            Some(_) = sending.join_next() => {}
            () = tokio::time::sleep(POLL_INTERVAL), if !is_full => {}
        }
        let (task, free) = (Arc::clone(&sender), MAX_CONCURRENT - sending.len());
        let taken = tokio::task::spawn_blocking(move || task.take_due(free, clock::now_ms()));
        for row in taken.await.unwrap_or_default() {
            let sender = Arc::clone(&sender);
            sending.spawn(async move { sender.send(row, clock::now_ms()).await });
        }
    }
    while sending.join_next().await.is_some() {}
}

/// Takes mails from the queue and sends them.
struct MailDispatcher {
    accounts: Accounts,
    settings: Arc<ArcSwap<Settings>>,
    send_timeout: Duration,
    purged_at_ms: AtomicI64,
    warned_at_ms: AtomicI64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SendOutcome {
    Sent,
    /// The next attempt is due at this time.
    Retry(i64),
    Failed,
}

impl MailDispatcher {
    fn new(accounts: Accounts, settings: Arc<ArcSwap<Settings>>, send_timeout: Duration) -> Self {
        Self {
            accounts,
            settings,
            send_timeout,
            purged_at_ms: AtomicI64::new(0),
            warned_at_ms: AtomicI64::new(0),
        }
    }

    /// Takes at most `limit` due mails. An error of the database is logged, and the next poll
    /// retries.
    fn take_due(&self, limit: usize, now_ms: i64) -> Vec<OutgoingMailRow> {
        self.try_take_due(limit, now_ms).unwrap_or_else(|error| {
            self.warn(now_ms, &format!("cannot read the mail queue: {error}"));
            Vec::new()
        })
    }

    fn try_take_due(&self, limit: usize, now_ms: i64) -> Result<Vec<OutgoingMailRow>, StoreError> {
        if now_ms - self.purged_at_ms.load(Ordering::Relaxed) >= PURGE_INTERVAL_MS {
            self.accounts.mails().purge_mail(now_ms - RETENTION_MS)?;
            self.purged_at_ms.store(now_ms, Ordering::Relaxed);
        }
        let summary = self.accounts.mails().mail_queue()?;
        METRICS.set_mail_queue(summary.queued, summary.oldest_at_ms, now_ms);
        let settings = self.settings.load();
        let Some(mail) = settings.mail.as_ref().filter(|_| summary.queued > 0) else {
            return Ok(Vec::new());
        };
        // Mails that are being sent are not counted yet, so the limit may be exceeded by
        // `MAX_CONCURRENT`.
        let sent = self.accounts.mails().mails_sent_since(now_ms - HOUR_MS)?;
        let left = u64::from(mail.per_hour).saturating_sub(sent);
        let limit = u32::try_from(left.min(limit as u64)).unwrap_or_default();
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.accounts.mails().take_due_mail(now_ms, LEASE_MS, limit)
    }

    /// Makes one attempt, and records its result.
    async fn send(self: Arc<Self>, row: OutgoingMailRow, now_ms: i64) -> SendOutcome {
        let result = Arc::clone(&self).try_send(&row, now_ms).await;
        let recorder = Arc::clone(&self);
        let recorded = tokio::task::spawn_blocking(move || recorder.record(&row, result, now_ms));
        match recorded.await {
            Ok(Ok(outcome)) => outcome,
            // The lease ends, after which the mail is sent again.
            Ok(Err(error)) => {
                log::error!("cannot record that a mail was sent: {error}");
                SendOutcome::Retry(now_ms + LEASE_MS)
            }
            Err(error) => {
                log::error!("cannot record that a mail was sent: {error}");
                SendOutcome::Retry(now_ms + LEASE_MS)
            }
        }
    }

    async fn try_send(
        self: Arc<Self>,
        row: &OutgoingMailRow,
        now_ms: i64,
    ) -> Result<(), SendFailure> {
        let settings = self.settings.load_full();
        let Some(mail) = settings.mail.clone() else {
            return Err(SendFailure::later("`mail` is not in the config any more"));
        };
        let (composer, row, settings) = (Arc::clone(&self), row.clone(), Arc::clone(&settings));
        let from = mail.clone();
        let composed =
            tokio::task::spawn_blocking(move || composer.compose(&row, &from, &settings, now_ms));
        let message = composed
            .await
            .map_err(|error| SendFailure::later(&error.to_string()))??;
        smtp::send(&mail, message, self.send_timeout).await
    }

    /// Builds the mail, with a new link if it needs one.
    fn compose(
        &self,
        row: &OutgoingMailRow,
        mail: &MailSettings,
        settings: &Settings,
        now_ms: i64,
    ) -> Result<lettre::Message, SendFailure> {
        let base_url = &settings.base_url;
        let kind = MailKind::from_name(&row.kind)
            .ok_or_else(|| SendFailure::never("this program does not know this kind of mail"))?;
        if now_ms - row.created_at_ms > kind.lifetime_ms() {
            return Err(SendFailure::never("the mail waited for too long"));
        }
        let account = self
            .accounts
            .find(&row.account)
            .map_err(|error| SendFailure::later(&error.to_string()))?
            .filter(|account| account.status != AccountStatus::Deleted)
            .ok_or_else(|| SendFailure::never("the account is deleted"))?;
        let link = match kind.link_purpose() {
            None => None,
            Some(purpose) => Some(
                self.accounts
                    .one_time_links()
                    .create_own_link(&account.id, purpose, now_ms)
                    .map_err(|error| match error {
                        AccountError::NoAccount => {
                            SendFailure::never("the account is suspended or deleted")
                        }
                        other => SendFailure::later(&other.to_string()),
                    })?
                    .url(base_url),
            ),
        };
        let product = &settings.brand.name;
        let text = MailText::new(kind, &row.detail, link.as_deref(), base_url, product);
        smtp::build(mail, &row.id, &account.email, text)
    }

    fn record(
        &self,
        row: &OutgoingMailRow,
        result: Result<(), SendFailure>,
        now_ms: i64,
    ) -> Result<SendOutcome, StoreError> {
        let Err(failure) = result else {
            METRICS.count_mail("sent");
            self.accounts.mails().end_mail(&row.id, None, now_ms)?;
            return Ok(SendOutcome::Sent);
        };
        let lifetime_ms = MailKind::from_name(&row.kind).map_or(0, MailKind::lifetime_ms);
        let next_at_ms = now_ms + retry_delay_ms(row.attempts);
        if failure.is_permanent || next_at_ms - row.created_at_ms > lifetime_ms {
            METRICS.count_mail("failed");
            log::warn!(
                "cannot send a mail ({}) to account {}: {}",
                row.kind,
                row.account,
                failure.text
            );
            self.accounts
                .mails()
                .end_mail(&row.id, Some(&failure.text), now_ms)?;
            return Ok(SendOutcome::Failed);
        }
        METRICS.count_mail("retried");
        self.warn(
            now_ms,
            &format!(
                "cannot send mail: {}; the gateway tries again until {}",
                failure.text,
                rfc3339(row.created_at_ms + lifetime_ms)
            ),
        );
        self.accounts
            .mails()
            .retry_mail(&row.id, next_at_ms, &failure.text)?;
        Ok(SendOutcome::Retry(next_at_ms))
    }

    /// Logs a warning, unless one was logged a short while ago.
    fn warn(&self, now_ms: i64, text: &str) {
        let last = self.warned_at_ms.load(Ordering::Relaxed);
        if now_ms - last >= WARNING_INTERVAL_MS {
            self.warned_at_ms.store(now_ms, Ordering::Relaxed);
            log::warn!("{text}");
        }
    }
}

/// Returns the delay after a failed attempt. `attempts` is the number of attempts so far.
fn retry_delay_ms(attempts: u32) -> i64 {
    let index = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    RETRY_DELAYS_MS.get(index).copied().unwrap_or(HOUR_MS)
}
