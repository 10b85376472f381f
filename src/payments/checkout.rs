//! Creates the checkout of an order at the provider.
//!
//! The order is stored before the request to the provider, and the checkout's address is shown only
//! after it is stored. A checkout that is not stored with its order is expired, because a payment
//! there could not be credited. This file must not post credits.

use super::error::PaymentError;
use super::provider::{CheckoutRequest, ProviderError};
use super::service::{CREDITS_PATH, Payments};
use accounts::db::payments::{
    ClawbackState, InsertOrderOutcome, OrderLimits, OrderRow, OrderState,
};
use base::clock::now_ms;
use base::failpoint::{self, Point};
use config::PaymentSettings;
use credits::money::Micro;
use ledger::StoreError;
use std::collections::BTreeMap;
use std::sync::Arc;

const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Time in ms for which a checkout page accepts a payment. Stripe allows 30 minutes to 24 hours, by
/// its own clock.
pub(super) const CHECKOUT_MS: i64 = 2 * HOUR_MS;
/// Time in ms between an order and its first poll.
pub(super) const FIRST_POLL_MS: i64 = MINUTE_MS;
/// Maximum number of an account's orders in an hour. Each creates a checkout at the provider.
const MAX_ORDERS_PER_HOUR: u64 = 20;

impl Payments {
    /// Orders credits for an amount in minor units. Returns the order with the address of its
    /// checkout page.
    ///
    /// # Errors
    /// Returns an error if the amount is out of bounds, if the account has ordered too much, or if
    /// the provider or the database fails. Then nobody can pay for the order.
    pub async fn order(&self, account: &str, amount: i64) -> Result<OrderRow, PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let currency = settings.currency;
        if !(settings.min..=settings.max).contains(&amount) {
            return Err(PaymentError::Amount(format!(
                "The amount must be from {} to {}.",
                currency.write(settings.min),
                currency.write(settings.max)
            )));
        }
        let order = self.store_order(account, amount, &settings).await?;
        failpoint::hit(Point::OrderStored);
        let created = self.open_checkout(&order, &settings).await;
        if let Err(error) = &created {
            let note = error.to_string();
            // Unless the provider has refused the request, it may have created a checkout, which
            // the poller expires.
            if matches!(error, PaymentError::Provider(ProviderError::Refused { .. })) {
                self.run(move |payments| {
                    let rows = payments.accounts.database().payments();
                    rows.set_order_state(&order.id, OrderState::Failed, &note)
                })
                .await?;
            }
        }
        created
    }

    async fn store_order(
        &self,
        account: &str,
        amount: i64,
        settings: &Arc<PaymentSettings>,
    ) -> Result<OrderRow, PaymentError> {
        let order = new_order(account, amount, settings, now_ms())?;
        let (row, limits) = (order.clone(), order_limits(&order, settings));
        let stored = self.run(move |payments| {
            let rows = payments.accounts.database().payments();
            rows.insert_order(&row, row.created_at_ms + FIRST_POLL_MS, limits)
        });
        match stored.await? {
            InsertOrderOutcome::Done => Ok(order),
            refused => Err(PaymentError::Limit(refused)),
        }
    }

    async fn open_checkout(
        &self,
        order: &OrderRow,
        settings: &Arc<PaymentSettings>,
    ) -> Result<OrderRow, PaymentError> {
        let provider = self.provider(settings);
        let request = self.checkout_request(order);
        let title = order_title(order);
        let checkout = provider
            .create_checkout(&CheckoutRequest {
                title: &title,
                ..request
            })
            .await?;
        failpoint::hit(Point::CheckoutCreated);
        let (id, session) = (order.id.clone(), checkout.id.clone());
        let stored = match checkout.url.clone() {
            Some(url) => {
                self.run(move |payments| {
                    let rows = payments.accounts.database().payments();
                    let is_open = rows.open_checkout(&id, &session, &url)?;
                    Ok::<_, StoreError>(is_open.then_some(url))
                })
                .await
            }
            None => Err(ProviderError::no_page().into()),
        };
        let Ok(Some(url)) = stored else {
            if let Err(error) = provider.expire_checkout(&checkout.id).await {
                log::warn!(
                    "cannot expire the checkout of order {}: {error}; nobody knows its address",
                    order.id
                );
            }
            stored?;
            let message = format!("order {} has ended while its checkout was made", order.id);
            return Err(PaymentError::Internal(message));
        };
        Ok(OrderRow {
            state: OrderState::Open,
            checkout: Some(checkout.id),
            checkout_url: url,
            ..order.clone()
        })
    }

    /// Returns the request for an order's checkout, without its title. It is the same each time.
    pub(super) fn checkout_request<'a>(&self, order: &'a OrderRow) -> CheckoutRequest<'a> {
        let base_url = self.settings.load().base_url.clone();
        let page = format!("{base_url}{CREDITS_PATH}?order={}", order.id);
        CheckoutRequest {
            order: &order.id,
            account: &order.account,
            amount: order.amount,
            currency: &order.currency,
            title: "",
            cancel_url: format!("{page}&canceled=yes"),
            return_url: page,
            expires_at: (order.created_at_ms + CHECKOUT_MS) / SECOND_MS,
        }
    }

    /// Returns the address of the provider's own receipt for a paid order; `None` if the provider
    /// has none.
    ///
    /// # Errors
    /// Returns an error if the provider does not answer.
    pub async fn receipt_url(&self, order: &OrderRow) -> Result<Option<String>, PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let Some(checkout) = &order.checkout else {
            return Ok(None);
        };
        Ok(self
            .provider(&settings)
            .checkout(checkout)
            .await?
            .receipt_url)
    }

    /// Runs database work on a thread that may block.
    pub(super) async fn run<T: Send + 'static, E>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, E> + Send + 'static,
    ) -> Result<T, PaymentError>
    where
        E: Into<PaymentError> + Send + 'static,
    {
        let payments = self.clone();
        tokio::task::spawn_blocking(move || work(&payments))
            .await
            .map_err(|error| PaymentError::Internal(error.to_string()))?
            .map_err(Into::into)
    }
}

/// Returns the title of the purchase on the checkout page.
pub(super) fn order_title(order: &OrderRow) -> String {
    let bonus = match order.bonus.is_positive() {
        true => format!(" and {} bonus credits", order.bonus),
        false => String::new(),
    };
    format!("{} credits{bonus}", order.credits)
}

/// Returns the limits on a new order of an account.
pub(super) fn order_limits(order: &OrderRow, settings: &PaymentSettings) -> OrderLimits {
    OrderLimits {
        amount: settings.per_account_per_day,
        since_ms: order.created_at_ms - DAY_MS,
        count: MAX_ORDERS_PER_HOUR,
        count_since_ms: order.created_at_ms - HOUR_MS,
    }
}

/// Returns an order with the credits of the present price, for a checkout page.
pub(super) fn new_order(
    account: &str,
    amount: i64,
    settings: &PaymentSettings,
    now_ms: i64,
) -> Result<OrderRow, PaymentError> {
    Ok(OrderRow {
        id: new_order_id(now_ms)?,
        account: account.to_owned(),
        amount,
        currency: settings.currency.code().to_owned(),
        credits: settings.credits_for(amount),
        bonus: settings.bonus_for(amount),
        state: OrderState::Created,
        checkout: None,
        checkout_url: String::new(),
        payment: None,
        created_at_ms: now_ms,
        paid_at_ms: None,
        polls: 0,
        tax: None,
        refunded: 0,
        disputes: BTreeMap::new(),
        clawback: ClawbackState::None,
        written_off: Micro::ZERO,
        note: String::new(),
        method: None,
    })
}

fn new_order_id(now_ms: i64) -> Result<String, PaymentError> {
    let mut random = [0u8; 10];
    getrandom::fill(&mut random)
        .map_err(|error| PaymentError::Internal(format!("no randomness: {error}")))?;
    let millis = u64::try_from(now_ms).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    Ok(format!("pay_{}", id.simple()))
}
