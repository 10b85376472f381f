//! Serves the pages on which an account holder buys credits: the form, the payments, a receipt, and
//! the payment provider's webhook.
//!
//! If no credits are sold, these pages do not exist. The form's answer is a page of the gateway
//! that links to the provider, because the content security policy forbids a form to redirect to
//! another site. This file must not decide how many credits a payment buys, and must not post
//! entries; `payments` does both.

use super::auto_topup::{self, AutoTopUpView, describe_fault, provider_fault};
use super::blocking::run_blocking;
use super::display::{BalanceAmount, Timestamp};
use super::error::PageError;
use super::form::{self, FormFault, FormStop};
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::payments::provider::EventError;
use crate::payments::{CREDITS_PATH, OrderRow, OrderState, PaymentError};
use accounts::db::payments::InsertOrderOutcome;
use accounts::{code_id, hash_code};
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
use config::address::client_prefix;
use config::payments::write_money;
use credits::money::Micro;
use ledger::EntryReference;
use serde::Deserialize;
use std::sync::Arc;

const MAX_PAYMENTS: u32 = 100;
/// Seconds after which a page that waits for a payment reloads, for a new and for an old order.
const WAIT_SECONDS: u32 = 1;
const LONG_WAIT_SECONDS: u32 = 15;
/// Attempts to redeem a code: as for signing in, by account and by address.
const REDEEM_ACCOUNT: AttemptLimit = AttemptLimit {
    count: 5,
    window_ms: 60_000,
};
const REDEEM_ADDRESS: AttemptLimit = AttemptLimit {
    count: 20,
    window_ms: 60_000,
};
/// Limit on an account's calls of the provider for its receipts.
const RECEIPT_LIMIT: AttemptLimit = AttemptLimit {
    count: 30,
    window_ms: 60_000,
};
/// Age of an order in ms above which its payment counts as slow.
const LONG_WAIT_MS: i64 = 10 * 60_000;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/credits", get(show).post(order))
        .route("/dashboard/credits/redeem", post(redeem))
        .route("/dashboard/credits/auto", post(save_auto_topup))
        .route("/dashboard/credits/auto/stop", post(stop_auto_topup))
        .route("/dashboard/credits/{id}", get(receipt))
        .route(
            "/dashboard/credits/{id}/provider-receipt",
            get(provider_receipt),
        )
        .route("/webhooks/stripe", post(webhook))
}

#[derive(Template)]
#[template(path = "credits.html")]
struct CreditsPage {
    frame: Frame,
    csrf: String,
    fault: Option<FormFault>,
    balance: BalanceAmount,
    has_trial: bool,
    /// What is sold, if anything is.
    sale: Option<SaleView>,
    payments: Vec<PaymentView>,
    takes_codes: bool,
    /// The code as it was sent.
    code: String,
    code_fault: Option<FormFault>,
    /// Credits of the code that was just redeemed.
    redeemed: Option<BalanceAmount>,
    /// The order that the page is about, after the holder ordered or paid.
    notice: Option<OrderNotice>,
    /// The automatic top-up, where it is offered or a card is saved.
    auto: Option<AutoTopUpView>,
    /// True if automatic top-ups are offered.
    offers_auto: bool,
    /// What happened to the automatic top-up.
    auto_done: Option<&'static str>,
}

/// What credits cost.
struct SaleView {
    currency: String,
    credit_price: String,
    min: String,
    max: String,
    amount: String,
    presets: Vec<PresetView>,
    bonus: Vec<BonusView>,
}

struct PresetView {
    amount: String,
    shown: String,
    credits: BalanceAmount,
    bonus: Option<BalanceAmount>,
}

/// One step of the bonus scale.
struct BonusView {
    from: String,
    percent: String,
}

/// An order as the list and the receipt show it.
pub(super) struct PaymentView {
    pub(super) id: String,
    pub(super) created: Timestamp,
    pub(super) paid: Option<Timestamp>,
    pub(super) amount: String,
    pub(super) net: String,
    pub(super) tax: Option<String>,
    pub(super) refunded: Option<String>,
    pub(super) credits: BalanceAmount,
    pub(super) bonus: Option<BalanceAmount>,
    pub(super) status: &'static str,
    is_paid: bool,
    /// True if an automatic top-up charged a saved card.
    pub(super) is_auto: bool,
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
    /// Reason for which the provider's receipt cannot be shown.
    fault: Option<FormFault>,
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
    /// Id of the code that the user has just redeemed.
    #[serde(default)]
    redeemed: String,
    /// What the user has just done to the automatic top-up.
    #[serde(default)]
    card: String,
}

impl PaymentView {
    pub(super) fn new(order: &OrderRow) -> Self {
        let write = |minor: i64| write_money(&order.currency, minor);
        let optional = |credits: Micro| credits.is_positive().then_some(BalanceAmount(credits));
        Self {
            id: order.id.clone(),
            created: Timestamp(order.created_at_ms),
            paid: order.paid_at_ms.map(Timestamp),
            amount: write(order.amount),
            net: write(order.amount - order.tax.unwrap_or_default()),
            tax: order.tax.filter(|tax| *tax > 0).map(write),
            refunded: (order.refunded > 0).then(|| write(order.refunded)),
            credits: BalanceAmount(order.credits),
            bonus: optional(order.bonus),
            status: status_label(order),
            is_paid: order.state == OrderState::Paid,
            is_auto: order.method.is_some(),
            checkout_url: Some(order.checkout_url.clone())
                .filter(|url| order.state == OrderState::Open && !url.is_empty()),
        }
    }
}

fn status_label(order: &OrderRow) -> &'static str {
    match order.state {
        OrderState::Created | OrderState::Open if order.method.is_some() => "Being charged",
        OrderState::Expired if order.method.is_some() => "Not charged",
        OrderState::Paid if order.refunded >= order.amount => "Refunded",
        OrderState::Paid if order.refunded > 0 => "Partly refunded",
        state => state.label(),
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

/// How credits are sold; not found if they are not.
pub(super) fn sold(app: &SidecarState) -> Result<Arc<PaymentSettings>, PageError> {
    app.payments.settings().ok_or(PageError::NotFound)
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<CreditsQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let order = match query.order.as_str() {
        "" => None,
        id => app.payments.order_of(&user.account.id, id)?,
    };
    let mut page = credits_page(&app, &user, &query.amount)?;
    page.redeemed = redeemed_credits(&app, &user, &query.redeemed)?;
    page.notice = order.as_ref().map(|order| OrderNotice::new(order, &query));
    page.auto_done = match query.card.as_str() {
        "on" => Some("Automatic top-up was saved."),
        "off" => Some("Automatic top-up is off."),
        _ => None,
    };
    let setup = page.auto.as_ref().and_then(|auto| auto.setup.as_ref());
    let refresh = match (&page.notice, &order) {
        _ if query.card == "enter" => setup.map(|setup| format!("0; url={}", setup.url)),
        _ if query.card == "saved" => setup.map(|setup| wait_seconds(setup.at_ms)),
        // The browser proceeds to the provider by itself; the page also has a link for the user.
        (
            Some(OrderNotice {
                link: Some(url), ..
            }),
            _,
        ) if !query.pay.is_empty() => Some(format!("0; url={url}")),
        (Some(notice), Some(order)) if notice.is_waiting => Some(wait_seconds(order.created_at_ms)),
        _ => None,
    };
    let mut response = html(StatusCode::OK, &page);
    if let Some(refresh) = refresh.and_then(|value| HeaderValue::from_str(&value).ok()) {
        response.headers_mut().insert(header::REFRESH, refresh);
    }
    Ok(response)
}

/// The seconds after which a page reloads that has waited since a time.
fn wait_seconds(since_ms: i64) -> String {
    let seconds = match now_ms() - since_ms > LONG_WAIT_MS {
        true => LONG_WAIT_SECONDS,
        false => WAIT_SECONDS,
    };
    seconds.to_string()
}

/// The credits of a code that the user redeemed.
fn redeemed_credits(
    app: &SidecarState,
    user: &CurrentUser,
    code: &str,
) -> Result<Option<BalanceAmount>, PageError> {
    if code.is_empty() {
        return Ok(None);
    }
    let kind = "code";
    let entry = EntryReference::Posting {
        kind,
        reference: code,
    };
    let found = app.billing.ledger().rows().entry(entry)?;
    Ok(found
        .filter(|entry| entry.account == user.account.id)
        .map(|entry| BalanceAmount(entry.change())))
}

fn credits_page(
    app: &SidecarState,
    user: &CurrentUser,
    amount: &str,
) -> Result<CreditsPage, PageError> {
    let orders = app.payments.orders_of(&user.account.id, MAX_PAYMENTS)?;
    let balance = app.billing.balance(&user.account.id, now_ms())?;
    let settings = app.payments.settings();
    let offers_auto = settings.as_ref().is_some_and(|it| it.auto_top_up);
    let topup = app.payments.auto_topup(&user.account.id, now_ms())?;
    let has_card = topup.as_ref().is_some_and(|it| it.row.method.is_some());
    let auto = settings.as_ref().filter(|_| offers_auto || has_card);
    Ok(CreditsPage {
        frame: Frame::new("Credits", user),
        csrf: user.csrf.clone(),
        fault: None,
        balance: BalanceAmount(balance.available),
        has_trial: balance
            .trial
            .is_some_and(|trial| trial.active && trial.credits_left.is_positive()),
        auto: auto.map(|settings| AutoTopUpView::new(settings, topup)),
        offers_auto,
        auto_done: None,
        sale: settings.map(|settings| SaleView::new(&settings, amount)),
        payments: orders.iter().map(PaymentView::new).collect(),
        notice: None,
        takes_codes: app.payments.takes_codes(),
        code: String::new(),
        code_fault: None,
        redeemed: None,
    })
}

impl SaleView {
    fn new(settings: &PaymentSettings, amount: &str) -> Self {
        let currency = settings.currency;
        Self {
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
                    credits: BalanceAmount(settings.credits_for(*minor)),
                    bonus: Some(settings.bonus_for(*minor))
                        .filter(|bonus| bonus.is_positive())
                        .map(BalanceAmount),
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
        }
    }
}

async fn order(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let settings = sold(&app)?;
    let outcome = place_order(&app, &form, &settings).await;
    form::respond(outcome, |fault| {
        let page = credits_page(&app, &form.user, form.field("amount"))?;
        Ok(CreditsPage {
            fault: Some(fault),
            ..page
        })
    })
}

fn amount_fault(text: String) -> FormFault {
    FormFault::at("amount", text)
}

async fn place_order(
    app: &SidecarState,
    form: &SignedForm,
    settings: &PaymentSettings,
) -> Result<Response, FormStop> {
    let currency = settings.currency;
    let amount = currency
        .parse(form.field("amount"))
        .map_err(|fault| amount_fault(format!("The amount is wrong: {fault}.")))
        .map_err(FormStop::invalid)?;
    match app.payments.order(&form.user.account.id, amount).await {
        Ok(order) => {
            let page = format!("{CREDITS_PATH}?order={}&pay=yes", order.id);
            Ok(Redirect::to(&page).into_response())
        }
        Err(PaymentError::Amount(fault)) => Err(FormStop::invalid(amount_fault(fault))),
        Err(PaymentError::Limit(InsertOrderOutcome::OverAmount { left })) => {
            let left = currency.write(left);
            let fault = format!("You can order {left} more in these 24 hours.");
            Err(FormStop::conflict(amount_fault(fault)))
        }
        Err(PaymentError::Limit(InsertOrderOutcome::Suspended)) => Err(FormStop::conflict(
            "This account is suspended. Ask the operator of this gateway before you pay.",
        )),
        Err(PaymentError::Limit(InsertOrderOutcome::TooMany)) => Err(FormStop::conflict(
            "You have begun many payments. Finish one of them, or wait for an hour.",
        )),
        Err(PaymentError::Provider(error)) => Err(provider_fault("order credits", &error)),
        Err(error) => Err(FormStop::Error(error.into())),
    }
}

async fn save_auto_topup(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let settings = sold(&app)?;
    if !settings.auto_top_up {
        return Err(PageError::NotFound);
    }
    let outcome = auto_topup::save(&app, &form, &settings).await;
    form::respond(outcome, |fault| {
        let mut page = credits_page(&app, &form.user, "")?;
        page.auto = page.auto.map(|auto| auto.with_form(&form, fault));
        Ok(page)
    })
}

async fn stop_auto_topup(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    sold(&app)?;
    auto_topup::stop(&app, &form).await
}

/// One text for all reasons, so that it does not say which codes exist.
const NOT_REDEEMABLE: &str = "This code cannot be redeemed: it is mistyped, used or expired, or \
    your account has redeemed as many of its kind as one account may. Compare it with what you \
    were given, or ask who gave it to you for another one.";

async fn redeem(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    if !app.payments.takes_codes() {
        return Err(PageError::NotFound);
    }
    let outcome = redeem_code(&app, &form).await;
    form::respond(outcome, |fault| {
        Ok(CreditsPage {
            code_fault: Some(fault),
            code: form.field("code").to_owned(),
            ..credits_page(&app, &form.user, "")?
        })
    })
}

async fn redeem_code(app: &SidecarState, form: &SignedForm) -> Result<Response, FormStop> {
    let (account, now_ms) = (form.user.account.id.clone(), now_ms());
    // Counts before it looks the code up, so that attempts at once cannot bypass the limits.
    let mut counted = Vec::new();
    for (key, limit) in [
        (
            ThrottleKey::AddressRedeeming(client_prefix(form.address)),
            REDEEM_ADDRESS,
        ),
        (
            ThrottleKey::AccountRedeeming(account.clone()),
            REDEEM_ACCOUNT,
        ),
    ] {
        if let Err(seconds) = app.throttle.try_acquire(&key, limit, now_ms) {
            let fault = format!("Too many attempts. Try again in {seconds} s.");
            return Err(FormStop::Fault(StatusCode::TOO_MANY_REQUESTS, fault.into()));
        }
        counted.push((key, limit));
    }
    let (payments, text) = (app.payments.clone(), form.field("code").to_owned());
    let id = hash_code(&text).map(|hash| code_id(&hash));
    match run_blocking(move || payments.redeem(&account, &text, now_ms)).await? {
        Ok(_) => {
            for (key, limit) in counted {
                app.throttle.release(&key, limit);
            }
            let id = id.unwrap_or_default();
            let page = format!("{CREDITS_PATH}?redeemed={id}");
            Ok(Redirect::to(&page).into_response())
        }
        Err(PaymentError::Conflict(_)) => {
            Err(FormStop::invalid(FormFault::at("code", NOT_REDEEMABLE)))
        }
        Err(error) => Err(FormStop::Error(error.into())),
    }
}

async fn receipt(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let order = paid_order(&app, &user, &id)?;
    Ok(html(StatusCode::OK, &receipt_page(&app, &user, &order)))
}

fn paid_order(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<OrderRow, PageError> {
    sold(app)?;
    let order = app.payments.order_of(&user.account.id, id)?;
    order
        .filter(|order| order.state == OrderState::Paid)
        .ok_or(PageError::NotFound)
}

fn receipt_page(app: &SidecarState, user: &CurrentUser, order: &OrderRow) -> PaymentReceiptPage {
    PaymentReceiptPage {
        frame: Frame::new("Receipt of a payment", user),
        fault: None,
        payment: PaymentView::new(order),
        email: user.account.label().to_owned(),
        base_url: app.settings.load().base_url.clone(),
    }
}

/// Leads to the provider's own receipt, whose address can change.
async fn provider_receipt(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let order = paid_order(&app, &user, &id)?;
    let key = ThrottleKey::AccountReadingReceipts(user.account.id.clone());
    let fault = match app.throttle.try_acquire(&key, RECEIPT_LIMIT, now_ms()) {
        Err(seconds) => format!("Too many receipts. Try again in {seconds} s."),
        Ok(()) => match app.payments.receipt_url(&order).await {
            Ok(Some(url)) => return Ok(Redirect::to(&url).into_response()),
            Ok(None) => "The payment provider has no receipt for this payment.".to_owned(),
            Err(PaymentError::Provider(error)) => {
                describe_fault(&format!("find the receipt of order {id}"), &error).to_owned()
            }
            Err(error) => return Err(error.into()),
        },
    };
    let page = PaymentReceiptPage {
        fault: Some(fault.into()),
        ..receipt_page(&app, &user, &order)
    };
    Ok(html(StatusCode::BAD_GATEWAY, &page))
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
