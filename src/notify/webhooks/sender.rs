//! Sends due messages, and decides after an attempt whether to repeat it or to disable the webhook.
//!
//! At most [`MAX_CONCURRENT`] attempts run at a time, one per account, so that a receiver that
//! hangs delays only its own account. This file must not depend on the content of a message.

use super::address::{AddressPolicy, WebhookUrl};
use super::attempt::{ATTEMPT_TIMEOUT, AttemptResult, SignedMessage, WebhookClient};
use super::service::LOG_MS;
use super::signature::sign;
use crate::notify::context::NotifyContext;
use crate::notify::mail::{self, MailKind};
use accounts::Accounts;
use accounts::db::AppDb;
use accounts::db::webhooks::{DeliveryAttempt, DueDelivery, WebhookRow};
use arc_swap::ArcSwap;
use base::clock::now_ms;
use base::telemetry::METRICS;
use config::Settings;
use http::StatusCode;
use ledger::StoreError;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinSet};

/// Maximum number of attempts at a time.
const MAX_CONCURRENT: usize = 8;
/// Interval at which the sender looks for due messages.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delays in ms before the next attempt, by the number of attempts so far. After the last one, the
/// gateway gives the message up.
const RETRY_DELAYS_MS: [i64; 7] = [
    5_000,
    60_000,
    5 * 60_000,
    30 * 60_000,
    2 * 3_600_000,
    6 * 3_600_000,
    12 * 3_600_000,
];
/// Maximum percentage by which each delay is changed at random, so that a receiver that returns
/// does not get all messages at once.
const JITTER_PERCENT: i64 = 10;
/// Maximum wait in ms that a receiver can ask for.
const MAX_RETRY_AFTER_MS: i64 = 3_600_000;
/// Time in ms after the begin of an attempt for which no other process takes the message.
const LEASE_MS: i64 = 15_000;
/// Time in ms without a success after which a failing webhook is disabled.
const MAX_FAILING_MS: i64 = 3 * 86_400_000;
/// Interval in ms at which old messages are deleted, and the gauge is set.
const HOUSEKEEPING_INTERVAL_MS: i64 = 10_000;

const _: () = assert!(LEASE_MS > ATTEMPT_TIMEOUT.as_millis() as i64);

/// Sends messages until the runtime ends.
pub async fn run(context: NotifyContext) {
    WebhookSender::new(
        &context.accounts,
        context.settings,
        WebhookClient::default(),
    )
    .run()
    .await
}

/// The step after an attempt to deliver a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeliveryStep {
    Delivered,
    /// Another attempt follows after this time in ms.
    Retry(i64),
    /// No further attempt follows.
    GiveUp,
    /// The webhook is disabled, because the receiver has refused further messages.
    Disable,
}

pub struct WebhookSender {
    db: Arc<AppDb>,
    settings: Arc<ArcSwap<Settings>>,
    client: Arc<WebhookClient>,
    running: JoinSet<()>,
    /// The accounts of the running attempts.
    busy: HashMap<Id, String>,
    housekeeping_at_ms: i64,
}

impl WebhookSender {
    pub fn new(
        accounts: &Accounts,
        settings: Arc<ArcSwap<Settings>>,
        client: WebhookClient,
    ) -> Self {
        Self {
            db: Arc::clone(accounts.database()),
            settings,
            client: Arc::new(client),
            running: JoinSet::new(),
            busy: HashMap::new(),
            housekeeping_at_ms: 0,
        }
    }

    pub async fn run(mut self) {
        loop {
            if let Err(error) = self.step(now_ms()).await {
                log::warn!("webhooks: {error}; trying again");
            }
            let ended = tokio::select! {
                ended = self.running.join_next_with_id(), if !self.running.is_empty() => ended,
                () = tokio::time::sleep(POLL_INTERVAL) => None,
            };
            self.forget(ended);
        }
    }

    fn forget(&mut self, ended: Option<Result<(Id, ()), tokio::task::JoinError>>) {
        match ended {
            Some(Ok((id, ()))) => drop(self.busy.remove(&id)),
            Some(Err(error)) => {
                log::error!("webhooks: an attempt failed inside the gateway: {error}");
                self.busy.remove(&error.id());
            }
            None => {}
        }
    }

    /// Begins the due attempts.
    async fn step(&mut self, now_ms: i64) -> Result<(), StoreError> {
        while let Some(ended) = self.running.try_join_next_with_id() {
            self.forget(Some(ended));
        }
        if now_ms >= self.housekeeping_at_ms {
            self.housekeeping_at_ms = now_ms + HOUSEKEEPING_INTERVAL_MS;
            let db = Arc::clone(&self.db);
            let due = blocking(move || {
                db.webhooks().purge_deliveries(now_ms - LOG_MS)?;
                db.webhooks().due_deliveries(now_ms)
            })
            .await?;
            let due = i64::try_from(due).unwrap_or(i64::MAX);
            METRICS.webhook_pending.set(due);
        }
        let free = MAX_CONCURRENT.saturating_sub(self.running.len());
        let settings = self.settings.load_full();
        if free == 0 || !settings.notifications.webhooks {
            return Ok(());
        }
        let db = Arc::clone(&self.db);
        let busy: Vec<_> = self.busy.values().cloned().collect();
        let free = u32::try_from(free).unwrap_or_default();
        let due = blocking(move || {
            db.webhooks()
                .take_due_deliveries(now_ms, LEASE_MS, &busy, free)
        })
        .await?;
        for delivery in due {
            let account = delivery.account.clone();
            let attempt = deliver(
                Arc::clone(&self.db),
                Arc::clone(&self.client),
                Arc::clone(&settings),
                delivery,
            );
            let handle = self.running.spawn(async move {
                if let Err(error) = attempt.await {
                    // The message is taken again when its lease ends.
                    log::warn!("webhooks: cannot record an attempt: {error}");
                }
            });
            self.busy.insert(handle.id(), account);
        }
        Ok(())
    }

    /// Makes all attempts that are due at a given time, and waits for their ends.
    #[cfg(test)]
    pub async fn send_due(&mut self, now_ms: i64) {
        self.step(now_ms).await.unwrap();
        while let Some(ended) = self.running.join_next_with_id().await {
            self.forget(Some(ended));
        }
    }
}

/// Makes one attempt and records the result.
async fn deliver(
    db: Arc<AppDb>,
    client: Arc<WebhookClient>,
    settings: Arc<Settings>,
    delivery: DueDelivery,
) -> Result<(), StoreError> {
    let (rows, account) = (Arc::clone(&db), delivery.account.clone());
    let webhook = blocking(move || rows.webhooks().webhook(&account)).await?;
    // Removing or disabling a webhook ends its messages, so this message was taken just before
    // that.
    let Some(webhook) = webhook.filter(|webhook| webhook.disabled.is_none()) else {
        return Ok(());
    };
    let policy = AddressPolicy::new(&settings.notifications.private_networks);
    let began_ms = now_ms();
    let result = match WebhookUrl::parse(&webhook.url, &policy) {
        Ok(url) => {
            let message = signed(&delivery, &webhook, began_ms);
            client.post(&url, &policy, &message).await
        }
        // The config file no longer allows the URL, although it did when the URL was set.
        Err(error) => AttemptResult {
            status: None,
            error: error.to_string(),
            retry_after_ms: None,
            took_ms: 0,
        },
    };
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    let step = next_step(&result, delivery.attempts, random);
    let sends_mail = settings.mail.is_some();
    blocking(move || record(&db, &delivery, &webhook.url, &result, step, sends_mail)).await
}

fn signed(delivery: &DueDelivery, webhook: &WebhookRow, now_ms: i64) -> SignedMessage {
    let old = webhook
        .old_secret
        .filter(|(_, until_ms)| now_ms < *until_ms);
    let secrets: Vec<_> = std::iter::once(webhook.secret)
        .chain(old.map(|(secret, _)| secret))
        .collect();
    let timestamp = now_ms.div_euclid(1_000);
    SignedMessage {
        id: delivery.id.clone(),
        timestamp,
        signature: sign(&secrets, &delivery.id, timestamp, &delivery.body),
        body: delivery.body.clone(),
    }
}

/// Decides about the step after attempt number `attempts`.
fn next_step(result: &AttemptResult, attempts: u32, random: u32) -> DeliveryStep {
    if result.error.is_empty() {
        return DeliveryStep::Delivered;
    }
    if result.status == Some(StatusCode::GONE) {
        return DeliveryStep::Disable;
    }
    let made = usize::try_from(attempts).unwrap_or(usize::MAX);
    let Some(delay) = RETRY_DELAYS_MS.get(made.saturating_sub(1)) else {
        return DeliveryStep::GiveUp;
    };
    let spread = i64::from(random) % (2 * JITTER_PERCENT + 1) - JITTER_PERCENT;
    let delay = delay + delay / 100 * spread;
    let asked = result.retry_after_ms.unwrap_or_default();
    DeliveryStep::Retry(delay.max(asked.min(MAX_RETRY_AFTER_MS)))
}

fn record(
    db: &AppDb,
    delivery: &DueDelivery,
    url: &str,
    result: &AttemptResult,
    step: DeliveryStep,
    sends_mail: bool,
) -> Result<(), StoreError> {
    let now_ms = now_ms();
    let attempt = DeliveryAttempt {
        status: result.status.map(|status| status.as_u16()),
        error: &result.error,
        took_ms: result.took_ms,
    };
    let (label, because) = match step {
        DeliveryStep::Delivered => {
            db.webhooks()
                .end_delivery(&delivery.id, attempt, true, now_ms)?;
            ("delivered", None)
        }
        DeliveryStep::Retry(delay_ms) => {
            db.webhooks()
                .retry_delivery(&delivery.id, attempt, now_ms + delay_ms)?;
            ("retried", None)
        }
        DeliveryStep::GiveUp => {
            db.webhooks()
                .end_delivery(&delivery.id, attempt, false, now_ms)?;
            ("failed", None)
        }
        DeliveryStep::Disable => {
            db.webhooks()
                .end_delivery(&delivery.id, attempt, false, now_ms)?;
            ("failed", Some("the receiver answered 410 (gone)"))
        }
    };
    METRICS.webhook_deliveries.with_label_values(&[label]).inc();
    let because = match because {
        None if step != DeliveryStep::Delivered => db
            .webhooks()
            .failing_since(&delivery.account)?
            .filter(|since_ms| now_ms - since_ms >= MAX_FAILING_MS)
            .map(|_| "all messages of 3 days failed"),
        because => because,
    };
    if let Some(because) = because {
        let detail = json!({"url": url, "because": because});
        let mail = mail::new_row(
            &delivery.account,
            MailKind::WebhookDisabled,
            &detail,
            now_ms,
        )?;
        let mail = sends_mail.then_some((&mail, mail::QUEUE_LIMITS));
        db.webhooks()
            .disable_webhook(&delivery.account, because, now_ms, mail)?;
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(StoreError::Unusable(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: Option<u16>, retry_after_ms: Option<i64>) -> AttemptResult {
        AttemptResult {
            status: status.map(|status| status.try_into().unwrap()),
            error: "failed".into(),
            retry_after_ms,
            took_ms: 1,
        }
    }

    #[test]
    fn a_message_is_tried_eight_times_in_twenty_hours_and_then_given_up() {
        // The random number that leaves a delay as it is.
        let middle = 10;
        for (index, delay) in RETRY_DELAYS_MS.iter().enumerate() {
            let attempts = u32::try_from(index + 1).unwrap();
            let step = next_step(&failure(Some(500), None), attempts, middle);
            assert_eq!(step, DeliveryStep::Retry(*delay));
        }
        assert_eq!(
            next_step(&failure(None, None), 8, middle),
            DeliveryStep::GiveUp
        );
        assert_eq!(
            next_step(&failure(None, None), u32::MAX, middle),
            DeliveryStep::GiveUp
        );
        let delivered = AttemptResult {
            error: String::new(),
            ..failure(Some(204), None)
        };
        assert_eq!(next_step(&delivered, 8, middle), DeliveryStep::Delivered);
    }

    #[test]
    fn delays_differ_by_a_tenth_at_most() {
        let delays: Vec<_> = (0..1_000)
            .map(|random| match next_step(&failure(None, None), 2, random) {
                DeliveryStep::Retry(delay) => delay,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(delays.iter().min(), Some(&54_000));
        assert_eq!(delays.iter().max(), Some(&66_000));
    }

    #[test]
    fn a_receiver_can_ask_for_a_later_attempt_and_for_none() {
        let step = |status, after| next_step(&failure(Some(status), after), 1, 10);
        assert_eq!(step(503, Some(60_000)), DeliveryStep::Retry(60_000));
        assert_eq!(step(503, Some(1_000)), DeliveryStep::Retry(5_000));
        assert_eq!(
            step(429, Some(86_400_000)),
            DeliveryStep::Retry(MAX_RETRY_AFTER_MS)
        );
        assert_eq!(step(410, None), DeliveryStep::Disable);
        assert_eq!(step(404, None), DeliveryStep::Retry(5_000));
        assert_eq!(step(301, None), DeliveryStep::Retry(5_000));
    }
}
