//! Serves the pages on which an account holder buys credits: the form, the payments, a receipt, and
//! the payment provider's webhook.
//!
//! If no credits are sold, these pages do not exist. The form's answer is a page of the gateway
//! that links to the provider, because the content security policy forbids a form to redirect to
//! another site. This file must not decide how many credits a payment buys, and must not post
//! entries; `payments` does both.

use super::blocking::run_blocking;
use super::display::{Credits, Timestamp};
use super::error::PageError;
use super::form::{self, FormStop};
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm};
use super::state::SidecarState;
use crate::payments::provider::EventError;
use crate::payments::{CREDITS_PATH, OrderRow, OrderState, PaymentError};
use accounts::db::payments::InsertOrderOutcome;
use askama::Template;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use config::PaymentSettings;
use config::payments::Currency;
use credits::money::Micro;
use serde::Deserialize;
use std::sync::Arc;

const MAX_PAYMENTS: u32 = 100;
/// Seconds after which a page that waits for a payment reloads, for a new and for an old order.
const WAIT_SECONDS: u32 = 1;
const LONG_WAIT_SECONDS: u32 = 15;
/// Age of an order in ms above which its payment counts as slow.
const LONG_WAIT_MS: i64 = 10 * 60_000;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/credits", get(show).post(order))
        .route("/dashboard/credits/{id}", get(receipt))
        .route("/webhooks/stripe", post(webhook))
}

#[derive(Template)]
#[template(path = "credits.html")]
struct CreditsPage {
    frame: Frame,
    csrf: String,
    fault: Option<String>,
    balance: Credits,
    has_trial: bool,
    currency: String,
    credit_price: String,
    min: String,
    max: String,
    amount: String,
    presets: Vec<PresetView>,
    bonus: Vec<BonusView>,
    payments: Vec<PaymentView>,
    /// Notice about the order that the holder has just placed or paid.
    notice: Option<OrderNotice>,
}

struct PresetView {
    amount: String,
    shown: String,
    credits: Credits,
    bonus: Option<Credits>,
}

/// One step of the bonus scale.
struct BonusView {
    from: String,
    percent: String,
}

/// An order as the list and the receipt show it.
struct PaymentView {
    id: String,
    created: Timestamp,
    paid: Option<Timestamp>,
    amount: String,
    net: String,
    tax: Option<String>,
    refunded: Option<String>,
    credits: Credits,
    bonus: Option<Credits>,
    status: &'static str,
    is_paid: bool,
    /// Address at which the payment can still be made, if it is open.
    checkout_url: Option<String>,
}

/// Message about an order above the list.
struct OrderNotice {
    is_waiting: bool,
    is_paid: bool,
    text: String,
    link: Option<String>,
}

#[derive(Template)]
#[template(path = "payment_receipt.html")]
struct PaymentReceiptPage {
    frame: Frame,
    payment: PaymentView,
    email: String,
    base_url: String,
}

#[derive(Deserialize)]
struct CreditsQuery {
    #[serde(default)]
    amount: String,
    /// Id of the order from whose payment the user returns.
    #[serde(default)]
    order: String,
    #[serde(default)]
    canceled: String,
    /// Id of the order that the user has just placed.
    #[serde(default)]
    pay: String,
}

impl PaymentView {
    fn new(order: &OrderRow) -> Self {
        let currency = Currency::from_code(&order.currency);
        let write = |minor: i64| {
            currency.map_or_else(
                || format!("{minor} {}", order.currency),
                |currency| currency.write(minor),
            )
        };
        let optional = |credits: Micro| credits.is_positive().then_some(Credits(credits));
        Self {
            id: order.id.clone(),
            created: Timestamp(order.created_at_ms),
            paid: order.paid_at_ms.map(Timestamp),
            amount: write(order.amount),
            net: write(order.amount - order.tax.unwrap_or_default()),
            tax: order.tax.filter(|tax| *tax > 0).map(write),
            refunded: (order.refunded > 0).then(|| write(order.refunded)),
            credits: Credits(order.credits),
            bonus: optional(order.bonus),
            status: status_label(order),
            is_paid: order.state == OrderState::Paid,
            checkout_url: (order.state == OrderState::Open).then(|| order.checkout_url.clone()),
        }
    }
}

fn status_label(order: &OrderRow) -> &'static str {
    match order.state {
        OrderState::Created | OrderState::Open => "Not paid yet",
        OrderState::Processing => "Waiting for the bank",
        OrderState::Paid if order.refunded >= order.amount => "Refunded",
        OrderState::Paid if order.refunded > 0 => "Partly refunded",
        OrderState::Paid => "Paid",
        OrderState::Expired => "Expired",
        OrderState::Failed => "Failed",
        OrderState::Refused => "Being checked",
    }
}

impl OrderNotice {
    fn new(order: &OrderRow, query: &CreditsQuery) -> Self {
        let sum = order.credits.plus(order.bonus);
        let notice = |text: String| Self {
            is_waiting: false,
            is_paid: false,
            text,
            link: None,
        };
        let checkout = Some(order.checkout_url.clone()).filter(|url| !url.is_empty());
        match order.state {
            OrderState::Paid => Self {
                is_paid: true,
                ..notice(format!("{sum} credits were added to your balance."))
            },
            OrderState::Open if !query.canceled.is_empty() => Self {
                link: checkout,
                ..notice("You have not paid.".into())
            },
            OrderState::Open if !query.pay.is_empty() => Self {
                link: checkout,
                ..notice("You are being taken to the payment page.".into())
            },
            OrderState::Created | OrderState::Open => Self {
                is_waiting: true,
                link: checkout,
                ..notice("Waiting for the payment. This page shows the credits once it has arrived.".into())
            },
            OrderState::Processing => Self {
                is_waiting: true,
                ..notice("Waiting for the payment. Your bank has not confirmed it yet, which can take days.".into())
            },
            OrderState::Expired => notice("This payment was not made in time. Nothing was charged.".into()),
            OrderState::Failed => notice("The payment failed. Nothing was charged.".into()),
            OrderState::Refused => notice(
                "The payment does not match the order. The operator of this gateway must check it."
                    .into(),
            ),
        }
    }
}

fn sold(app: &SidecarState) -> Result<Arc<PaymentSettings>, PageError> {
    app.payments.settings().ok_or(PageError::NotFound)
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<CreditsQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let settings = sold(&app)?;
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let order = match query.order.as_str() {
        "" => None,
        id => app.payments.order_of(&user.account.id, id)?,
    };
    let mut page = credits_page(&app, &user, &settings, &query.amount)?;
    page.notice = order.as_ref().map(|order| OrderNotice::new(order, &query));
    let refresh = match (&page.notice, &order) {
        // The browser proceeds to the provider by itself; the page also has a link for the user.
        (
            Some(OrderNotice {
                link: Some(url), ..
            }),
            _,
        ) if !query.pay.is_empty() => Some(format!("0; url={url}")),
        (Some(notice), Some(order)) if notice.is_waiting => {
            let is_long = now_ms() - order.created_at_ms > LONG_WAIT_MS;
            let seconds = if is_long {
                LONG_WAIT_SECONDS
            } else {
                WAIT_SECONDS
            };
            Some(seconds.to_string())
        }
        _ => None,
    };
    let mut response = html(StatusCode::OK, &page);
    if let Some(refresh) = refresh.and_then(|value| HeaderValue::from_str(&value).ok()) {
        response.headers_mut().insert(header::REFRESH, refresh);
    }
    Ok(response)
}

fn credits_page(
    app: &SidecarState,
    user: &CurrentUser,
    settings: &PaymentSettings,
    amount: &str,
) -> Result<CreditsPage, PageError> {
    let currency = settings.currency;
    let orders = app.payments.orders_of(&user.account.id, MAX_PAYMENTS)?;
    let balance = app.billing.balance(&user.account.id, now_ms())?;
    Ok(CreditsPage {
        frame: Frame::new("Credits", user),
        csrf: user.csrf.clone(),
        fault: None,
        balance: Credits(balance.available),
        has_trial: balance
            .trial
            .is_some_and(|trial| trial.active && trial.credits_left.is_positive()),
        currency: currency.code().to_uppercase(),
        credit_price: settings.credit_price.to_string(),
        min: currency.write(settings.min),
        max: currency.write(settings.max),
        amount: amount.chars().take(20).collect(),
        presets: settings
            .amounts
            .iter()
            .map(|minor| PresetView {
                amount: currency.write_number(*minor),
                shown: currency.write(*minor),
                credits: Credits(settings.credits_for(*minor)),
                bonus: Some(settings.bonus_for(*minor))
                    .filter(|bonus| bonus.is_positive())
                    .map(Credits),
            })
            .collect(),
        bonus: settings
            .bonus
            .iter()
            .map(|step| BonusView {
                from: currency.write(step.from),
                percent: Micro::new(step.percent).to_string(),
            })
            .collect(),
        payments: orders.iter().map(PaymentView::new).collect(),
        notice: None,
    })
}

async fn order(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let settings = sold(&app)?;
    let outcome = place_order(&app, &form, &settings).await;
    form::respond(outcome, |fault| {
        let page = credits_page(&app, &form.user, &settings, form.field("amount"))?;
        Ok(CreditsPage {
            fault: Some(fault),
            ..page
        })
    })
}

async fn place_order(
    app: &SidecarState,
    form: &SignedForm,
    settings: &PaymentSettings,
) -> Result<Response, FormStop> {
    let currency = settings.currency;
    let amount = currency
        .parse(form.field("amount"))
        .map_err(|fault| FormStop::invalid(format!("The amount is wrong: {fault}.")))?;
    match app.payments.order(&form.user.account.id, amount).await {
        Ok(order) => {
            let page = format!("{CREDITS_PATH}?order={}&pay=yes", order.id);
            Ok(Redirect::to(&page).into_response())
        }
        Err(PaymentError::Amount(fault)) => Err(FormStop::invalid(fault)),
        Err(PaymentError::Limit(InsertOrderOutcome::OverAmount { left })) => {
            Err(FormStop::conflict(format!(
                "You can order {} more in these 24 hours.",
                currency.write(left)
            )))
        }
        Err(PaymentError::Limit(InsertOrderOutcome::Suspended)) => Err(FormStop::conflict(
            "This account is suspended. Ask the operator of this gateway before you pay.",
        )),
        Err(PaymentError::Limit(InsertOrderOutcome::TooMany)) => Err(FormStop::conflict(
            "You have begun many payments. Finish one of them, or wait for an hour.",
        )),
        Err(PaymentError::Provider(error)) => {
            log::error!("payments: cannot order credits: {error}");
            let fault = "The payment provider does not answer. Nothing was charged. Try again in a few minutes.";
            Err(FormStop::Fault(StatusCode::BAD_GATEWAY, fault.to_owned()))
        }
        Err(error) => Err(FormStop::Error(error.into())),
    }
}

async fn receipt(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    sold(&app)?;
    let order = app
        .payments
        .order_of(&user.account.id, &id)?
        .filter(|order| order.state == OrderState::Paid)
        .ok_or(PageError::NotFound)?;
    let page = PaymentReceiptPage {
        frame: Frame::new("Receipt of a payment", &user),
        payment: PaymentView::new(&order),
        email: user.account.email.clone(),
        base_url: app.settings.load().base_url.clone(),
    };
    Ok(html(StatusCode::OK, &page))
}

/// Handles the provider's webhook. It has no session, because the signature authenticates it.
async fn webhook(
    State(app): State<Arc<SidecarState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    sold(&app)?;
    let now_ms = now_ms();
    let event = match app.payments.read_event(&headers, &body, now_ms) {
        Ok(event) => event,
        Err(error) => {
            log::warn!("payments: refused a request to the webhook: {error}");
            let hint = match error {
                EventError::Time(_) => "; check the clock of this machine",
                _ => "",
            };
            return Ok((StatusCode::BAD_REQUEST, format!("{error}{hint}\n")).into_response());
        }
    };
    let payments = app.payments.clone();
    let id = event.id.clone();
    match run_blocking(move || payments.handle_event(&event, now_ms)).await? {
        Ok(_) => Ok((StatusCode::OK, "ok\n").into_response()),
        // An error makes the provider send the event again.
        Err(error) => {
            log::warn!("payments: cannot handle the event {id} yet: {error}");
            Ok((
                StatusCode::INTERNAL_SERVER_ERROR,
                "not handled: send it again\n",
            )
                .into_response())
        }
    }
}

impl From<PaymentError> for PageError {
    fn from(error: PaymentError) -> Self {
        match error {
            PaymentError::Off => Self::NotFound,
            PaymentError::Store(error) => error.into(),
            error => Self::Internal(error.to_string()),
        }
    }
}
