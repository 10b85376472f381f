//! Polls the provider about orders, because an event can be lost. An unpaid order is polled after a
//! minute, five minutes, an hour, at the end of its checkout, and then once a day. A paid order is
//! polled about refunds and disputes, at first once a day.
//!
//! The poller runs in the process that keeps the ledger. This file must not decide the effect of an
//! answer.

use super::auto_topup;
use super::checkout::{CHECKOUT_MS, order_title};
use super::error::PaymentError;
use super::provider::{Checkout, CheckoutRequest, ProviderError};
use super::service::Payments;
use accounts::db::payments::{OrderRow, OrderState};
use base::clock::now_ms;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Interval at which the poller looks for due orders.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of orders per round.
const MAX_ORDERS: u32 = 20;
/// Time in ms for which a round owns an order, which exceeds the duration of a request.
const LEASE_MS: i64 = MINUTE_MS;
/// Age of an order in ms at its polls after the first one. Afterwards, the poll is daily. The third
/// age is the end of the checkout, so that a payment in its last minutes does not wait for a day.
const POLL_AGES_MS: [i64; 4] = [5 * MINUTE_MS, HOUR_MS, CHECKOUT_MS + 5 * MINUTE_MS, DAY_MS];
/// Intervals at which the provider is polled about a payment's refunds and disputes, each up to an
/// age of the payment. Older payments are not polled. A holder can dispute a payment for months,
/// and a dispute can take as long.
const PAID_INTERVALS_MS: [(i64, i64); 3] = [
    (7 * DAY_MS, DAY_MS),
    (180 * DAY_MS, 7 * DAY_MS),
    (540 * DAY_MS, 30 * DAY_MS),
];
/// Age in ms at which an order is given up if the provider never answers.
const MAX_AGE_MS: i64 = 30 * DAY_MS;
/// Time in ms for which handled events are remembered, which exceeds the provider's retry period.
const EVENT_RETENTION_MS: i64 = 30 * DAY_MS;
const PURGE_INTERVAL_MS: i64 = HOUR_MS;
/// How often the poller looks whether the daily comparison with the provider is due.
const RECONCILE_INTERVAL_MS: i64 = HOUR_MS;

/// Starts the thread of the poller, which ends at `shutdown`.
///
/// # Errors
/// Returns an error if the thread cannot start.
pub fn start(
    payments: Payments,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("payments".into())
        .spawn(move || {
            runtime.spawn(run(payments.clone()));
            runtime.spawn(auto_topup::run(payments));
            runtime.block_on(shutdown);
            runtime.shutdown_background();
        })?;
    Ok(())
}

async fn run(payments: Payments) {
    let (mut purge_at_ms, mut reconcile_at_ms) = (0, 0);
    // The first round is immediate, because a dead process may have left due orders.
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let now_ms = now_ms();
        if let Err(error) = payments.run(move |it| it.finish_codes(now_ms)).await {
            log::warn!("payments: cannot finish a redemption: {error}; trying again");
        }
        if let Err(error) = payments.run(move |it| it.finish_clawbacks(now_ms)).await {
            log::warn!("payments: cannot look for open clawbacks: {error}; trying again");
        }
        if payments.settings().is_none() {
            continue;
        }
        if now_ms >= purge_at_ms {
            purge_at_ms = now_ms + PURGE_INTERVAL_MS;
            let before_ms = now_ms - EVENT_RETENTION_MS;
            let purged = payments
                .run(move |it| it.accounts.database().payments().events().purge(before_ms))
                .await;
            if let Err(error) = purged {
                log::warn!("payments: {error}; trying again in an hour");
            }
        }
        if let Err(error) = payments.poll_due(now_ms).await {
            log::warn!("payments: {error}; trying again");
        }
        if now_ms >= reconcile_at_ms {
            reconcile_at_ms = now_ms + RECONCILE_INTERVAL_MS;
            if let Err(error) = payments.reconcile_daily(now_ms).await {
                log::warn!(
                    "payments: cannot compare with the provider: {error}; trying again in an hour"
                );
            }
        }
    }
}

impl Payments {
    /// Polls the provider about all due orders.
    pub(super) async fn poll_due(&self, now_ms: i64) -> Result<(), PaymentError> {
        let due = self
            .run(move |payments| {
                let rows = payments.accounts.database().payments();
                rows.take_due_orders(now_ms, LEASE_MS, MAX_ORDERS)
            })
            .await?;
        for order in due {
            let (id, next_ms) = (order.id.clone(), next_poll_ms(&order, now_ms));
            if let Err(error) = self.poll(order, now_ms).await {
                log::warn!("payments: cannot ask about order {id}: {error}");
            }
            self.run(move |payments| {
                let rows = payments.accounts.database().payments();
                rows.poll_again_at(&id, next_ms)
            })
            .await?;
        }
        Ok(())
    }

    /// Polls the provider about one order, and applies the answer.
    pub(super) async fn poll(&self, order: OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let provider = self.provider(&settings);
        let end = |state, note: String| {
            let id = order.id.clone();
            self.run(move |payments| {
                let rows = payments.accounts.database().payments();
                rows.set_order_state(&id, state, &note)
            })
        };
        let answered = match &order.checkout {
            None if order.method.is_some() => return self.resume_charge(&order, now_ms).await,
            Some(checkout) => provider.checkout(checkout).await.map(Some),
            None => self.expire_unknown(&order).await,
        };
        match answered {
            Ok(Some(found)) => {
                self.run(move |payments| {
                    if order.checkout.is_none() {
                        payments.rows().open_checkout(&order.id, &found.id, "")?;
                    }
                    match order.method {
                        Some(_) => payments.apply_charge(&order, &found, &*provider, now_ms),
                        None => payments.apply_checkout(&order.id, &found, &*provider, now_ms),
                    }
                })
                .await
            }
            Ok(None) => end(OrderState::Expired, String::new()).await,
            // Nobody has received the address of the checkout, if there is one.
            Err(ProviderError::Refused { message, .. }) if order.checkout.is_none() => {
                end(OrderState::Failed, message).await
            }
            Err(error) if now_ms - order.created_at_ms > MAX_AGE_MS => {
                end(OrderState::Failed, error.to_string()).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Expires the checkout of an order that has none stored, because of a crash or a lost answer.
    /// The provider returns the checkout that it created, because the request is the same. Returns
    /// the checkout if it cannot be expired, because somebody has paid there.
    async fn expire_unknown(&self, order: &OrderRow) -> Result<Option<Checkout>, ProviderError> {
        let Some(settings) = self.settings() else {
            return Ok(None);
        };
        let provider = self.provider(&settings);
        let title = order_title(order);
        let request = self.checkout_request(order);
        let checkout = provider
            .create_checkout(&CheckoutRequest {
                title: &title,
                ..request
            })
            .await?;
        match provider.expire_checkout(&checkout.id).await {
            Err(ProviderError::Refused { .. }) => provider.checkout(&checkout.id).await.map(Some),
            expired => expired.map(|()| None),
        }
    }
}

fn next_poll_ms(order: &OrderRow, now_ms: i64) -> Option<i64> {
    if let Some(paid_at_ms) = order.paid_at_ms {
        let mut intervals = PAID_INTERVALS_MS.iter();
        let interval = intervals.find(|(age_ms, _)| now_ms - paid_at_ms < *age_ms);
        return interval.map(|(_, interval_ms)| now_ms + interval_ms);
    }
    let index = usize::try_from(order.polls.saturating_sub(1)).unwrap_or(usize::MAX);
    Some(match POLL_AGES_MS.get(index) {
        Some(age) => (order.created_at_ms + age).max(now_ms + MINUTE_MS),
        None => now_ms + DAY_MS,
    })
}
