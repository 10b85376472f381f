//! The alerts page shows the alert rules, the webhook, and the delivery log of its messages.
//!
//! For a few minutes, the page shows a new webhook secret to the session that created it
//! (`alerts/fresh_secrets.rs`). This module must not decide when a rule fires, and must not send
//! messages; `notify` does both.

mod form;
pub mod fresh_secrets;

use super::blocking::run_blocking;
use super::confirm::{self, Confirmation};
use super::display::{Timestamp, group_digits};
use super::error::PageError;
use super::form::FormFault;
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::notify::alerts::{AlertRules, FiredAlert, FiredRule, save_rules};
use crate::notify::webhooks::{
    AddressPolicy, DeliveryLogRow, LOG_MS, MAX_LOG_ROWS, MAX_PENDING, MAX_URL_CHARS, OLD_SECRET_MS,
    ResendOutcome, WebhookEvent, WebhookUrl, Webhooks,
};
use accounts::{MemberAction, session_id};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use form::{AlertRulesForm, PERIODS};
use ledger::StoreError;
use serde::Deserialize;
use std::sync::Arc;

/// Limit on the test messages of an account.
const TEST_LIMIT: AttemptLimit = AttemptLimit {
    count: 6,
    window_ms: HOUR_MS,
};
/// Limit on the messages that an account sends again.
const RESEND_LIMIT: AttemptLimit = AttemptLimit {
    count: 60,
    window_ms: HOUR_MS,
};
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/alerts", get(show))
        .route("/dashboard/alerts/rules", post(save))
        .route("/dashboard/alerts/seen", post(dismiss))
        .route("/dashboard/alerts/webhook", post(set_webhook))
        .route("/dashboard/alerts/webhook/rotate", post(rotate))
        .route("/dashboard/alerts/webhook/remove", post(remove))
        .route("/dashboard/alerts/webhook/test", post(send_test))
        .route("/dashboard/alerts/deliveries/{id}/resend", post(resend))
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    csrf: String,
    done: Option<&'static str>,
    /// The submitted form and its fault, if the form was refused.
    fault: Option<(AlertsForm, FormFault)>,
    rules: AlertRulesForm,
    /// Rules that have fired: the time, and the fate of the notices.
    fired: Vec<(FiredAlert, Timestamp, String)>,
    /// True if there are rules but no destination for their alerts.
    has_no_destination: bool,
    mail: AlertMail,
    email: String,
    offers_webhooks: bool,
    has_webhook: bool,
    may_set_webhook: bool,
    /// Time and reason of the webhook's disabling, if it was disabled.
    disabled: Option<(Timestamp, String)>,
    /// Time until which messages are signed with the old secret too.
    old_secret_until: Option<Timestamp>,
    url: String,
    max_url_chars: usize,
    /// The new secret, shown for a short time after its creation.
    secret: Option<String>,
    log: Vec<DeliveryView>,
    log_days: i64,
    max_log_rows: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlertsForm {
    Rules,
    Webhook,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlertMail {
    Ready,
    Unverified,
    /// An organisation has no address.
    NoAddress,
    Off,
}

struct DeliveryView {
    id: String,
    created: Timestamp,
    event: String,
    state: &'static str,
    /// Time of the next attempt, if an attempt failed and another one is due.
    next: Option<Timestamp>,
    attempts: u32,
    status: String,
    took: String,
    error: String,
}

#[derive(Deserialize)]
struct AlertsQuery {
    done: Option<String>,
}

impl AlertsPage {
    fn rules_fault(&self) -> Option<&FormFault> {
        self.fault_of(AlertsForm::Rules)
    }

    fn webhook_fault(&self) -> Option<&FormFault> {
        self.fault_of(AlertsForm::Webhook)
    }

    fn fault_of(&self, form: AlertsForm) -> Option<&FormFault> {
        self.fault
            .as_ref()
            .filter(|(of, _)| *of == form)
            .map(|(_, fault)| fault)
    }

    fn can_mail(&self) -> bool {
        self.mail == AlertMail::Ready
    }

    fn has_no_address(&self) -> bool {
        self.mail == AlertMail::NoAddress
    }

    fn is_unverified(&self) -> bool {
        self.mail == AlertMail::Unverified
    }

    /// Returns the time and the destination of the last low-balance alert.
    fn low_balance_fired(&self) -> Option<(Timestamp, &str)> {
        self.fired_of(FiredRule::LowBalance)
    }

    fn spend_fired(&self) -> Option<(Timestamp, &str)> {
        self.fired_of(FiredRule::Spend)
    }

    fn fired_of(&self, rule: FiredRule) -> Option<(Timestamp, &str)> {
        let of_rule = self.fired.iter().find(|(fired, ..)| fired.rule == rule);
        of_rule.map(|(_, at, notices)| (*at, notices.as_str()))
    }

    /// Returns value, label and selection of each period.
    fn periods(&self) -> Vec<(&'static str, bool)> {
        PERIODS
            .iter()
            .map(|period| (period.name(), period.name() == self.rules.period))
            .collect()
    }
}

impl From<DeliveryLogRow> for DeliveryView {
    fn from(row: DeliveryLogRow) -> Self {
        let is_pending = row.state == "pending";
        let has_failed = !row.last_error.is_empty();
        let mut rules = FiredRule::ALL.iter();
        let event = match rules.find(|rule| rule.event() == row.event) {
            Some(rule) => rule.label().to_owned(),
            None if row.event == WebhookEvent::Test.name() => "Test".to_owned(),
            None => row.event.clone(),
        };
        let none = || "–".to_owned();
        Self {
            id: row.id,
            created: Timestamp(row.created_at_ms),
            event,
            state: match row.state.as_str() {
                "delivered" => "delivered",
                "failed" => "failed",
                _ if has_failed => "retrying",
                _ => "waiting",
            },
            next: (is_pending && has_failed).then_some(Timestamp(row.next_at_ms)),
            attempts: row.attempts,
            status: row.last_status.map_or_else(none, |it| it.to_string()),
            took: row.took_ms.map_or_else(none, |ms| {
                format!("{} ms", group_digits(u64::try_from(ms).unwrap_or_default()))
            }),
            error: row.last_error,
        }
    }
}

/// Maps a known value from the URL to a message, so that text from the URL is never shown.
fn done_message(done: Option<&str>) -> Option<&'static str> {
    match done? {
        "rules" => Some("Your alerts were saved. The gateway checks them every 10 seconds."),
        "seen" => Some("The alert was dismissed. It fires again as the rule says."),
        "webhook" => Some("Your webhook was saved."),
        "rotated" => Some("Your webhook has a new secret."),
        "removed" => Some("Your webhook was removed."),
        "test" => Some("A test message is on its way. Reload this page to see what became of it."),
        "resent" => Some("The message is sent again. Reload this page to see what became of it."),
        _ => None,
    }
}

fn page(app: &SidecarState, user: &CurrentUser) -> Result<AlertsPage, PageError> {
    let (account, now_ms) = (&user.account.id, now_ms());
    let settings = app.settings.load();
    let rules = AlertRules::load(&app.accounts, account)?;
    let fired = FiredAlert::load_all(&app.accounts, account)?;
    let mail = match app.accounts.one_time_links().email_verified_at(account)? {
        _ if settings.mail.is_none() => AlertMail::Off,
        _ if user.account.organisation.is_some() => AlertMail::NoAddress,
        Some(_) => AlertMail::Ready,
        None => AlertMail::Unverified,
    };
    let webhooks = Webhooks::new(&app.accounts);
    let webhook = webhooks.find(account)?;
    let log = webhooks.log(account)?;
    let gets_mail = rules.mail && mail == AlertMail::Ready;
    let gets_messages =
        settings.notifications.webhooks && webhook.as_ref().is_some_and(|it| it.disabled.is_none());
    let session = session_id(&user.token);
    Ok(AlertsPage {
        frame: Frame::new("Alerts", user),
        csrf: user.csrf.clone(),
        done: None,
        fault: None,
        rules: AlertRulesForm::from_rules(&rules),
        fired: fired
            .into_iter()
            .map(|fired| {
                let notices = fired.describe_notices();
                (fired.clone(), Timestamp(fired.at_ms), notices)
            })
            .collect(),
        has_no_destination: !rules.is_empty() && !gets_mail && !gets_messages,
        mail,
        email: user.account.email.clone(),
        offers_webhooks: settings.notifications.webhooks,
        has_webhook: webhook.is_some(),
        may_set_webhook: user.role.may(MemberAction::ManageWebhook),
        disabled: webhook
            .as_ref()
            .and_then(|it| it.disabled.clone())
            .map(|(at_ms, because)| (Timestamp(at_ms), because)),
        old_secret_until: webhook
            .as_ref()
            .and_then(|it| it.old_secret_until_ms)
            .filter(|until_ms| now_ms < *until_ms)
            .map(Timestamp),
        url: webhook.map_or_else(String::new, |it| it.url),
        max_url_chars: MAX_URL_CHARS,
        secret: app.fresh_secrets.find(&session, account, now_ms),
        log: log.into_iter().map(DeliveryView::from).collect(),
        log_days: LOG_MS / DAY_MS,
        max_log_rows: MAX_LOG_ROWS,
    })
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<AlertsQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let done = query
        .ok()
        .and_then(|Query(query)| done_message(query.done.as_deref()));
    let page = AlertsPage {
        done,
        ..page(&app, &user)?
    };
    Ok(html(StatusCode::OK, &page))
}

fn render_with_fault(
    app: &SidecarState,
    user: &CurrentUser,
    form: AlertsForm,
    status: StatusCode,
    fault: &str,
) -> Result<Response, PageError> {
    let page = AlertsPage {
        fault: Some((form, fault.into())),
        ..page(app, user)?
    };
    Ok(html(status, &page))
}

async fn save(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let typed = AlertRulesForm::from_form(&form);
    let rules = match typed.parse() {
        Ok(rules) => rules,
        Err(fault) => {
            let page = AlertsPage {
                fault: Some((AlertsForm::Rules, fault)),
                rules: typed,
                ..page(&app, &form.user)?
            };
            return Ok(html(StatusCode::UNPROCESSABLE_ENTITY, &page));
        }
    };
    let (accounts, account) = (app.accounts.clone(), form.user.account.id);
    if !run_blocking(move || save_rules(&accounts, &account, &rules)).await?? {
        return Err(PageError::NotFound);
    }
    Ok(Redirect::to("/dashboard/alerts?done=rules").into_response())
}

/// Dismisses the banner of a rule that has fired.
async fn dismiss(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let rule = FiredRule::parse(form.field("rule")).ok_or(PageError::NotFound)?;
    let (accounts, account) = (app.accounts.clone(), form.user.account.id);
    let mark = move || {
        let alerts = accounts.database().alerts();
        alerts.mark_alert_seen(&account, rule.as_str(), now_ms())
    };
    run_blocking(mark).await??;
    Ok(Redirect::to("/dashboard/alerts?done=seen").into_response())
}

/// Refuses the forms of webhooks to a role that may not set them, and if the operator offers none.
fn require_webhooks(app: &SidecarState, user: &CurrentUser) -> Result<Webhooks, PageError> {
    user.require(MemberAction::ManageWebhook)?;
    if app.settings.load().notifications.webhooks {
        Ok(Webhooks::new(&app.accounts))
    } else {
        Err(PageError::NotFound)
    }
}

async fn set_webhook(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let webhooks = require_webhooks(&app, &form.user)?;
    let typed = form.field("url").to_owned();
    let policy = AddressPolicy::new(&app.settings.load().notifications.private_networks);
    let url = match WebhookUrl::parse(&typed, &policy) {
        Ok(url) => url,
        Err(fault) => {
            let page = AlertsPage {
                fault: Some((AlertsForm::Webhook, FormFault::at("url", fault.to_string()))),
                url: typed.chars().take(MAX_URL_CHARS).collect(),
                ..page(&app, &form.user)?
            };
            return Ok(html(StatusCode::UNPROCESSABLE_ENTITY, &page));
        }
    };
    let make = move |account: &str| webhooks.set(account, &url, now_ms());
    make_secret(&app, &form.user, make).await?;
    Ok(Redirect::to("/dashboard/alerts?done=webhook").into_response())
}

fn form_account(user: &CurrentUser) -> String {
    user.account.id.clone()
}

/// Keeps the secret that `make` returns, if any, for the next pages of this session. The work runs
/// to its end even if the client disconnects: when a user clicks twice, the browser drops the first
/// request, and the second one creates no secret.
async fn make_secret(
    app: &Arc<SidecarState>,
    user: &CurrentUser,
    make: impl FnOnce(&str) -> Result<Option<String>, StoreError> + Send + 'static,
) -> Result<(), PageError> {
    let (app, account, session) = (Arc::clone(app), form_account(user), session_id(&user.token));
    let work = move || {
        if let Some(secret) = make(&account)? {
            app.fresh_secrets.put(session, &account, secret, now_ms());
        }
        Ok::<_, StoreError>(())
    };
    Ok(run_blocking(work).await??)
}

async fn rotate(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let webhooks = require_webhooks(&app, &form.user)?;
    let account = form_account(&form.user);
    let webhook = webhooks.find(&account)?.ok_or(PageError::NotFound)?;
    let replaced = form.field("once").to_owned();
    if !form.is_confirmed() || replaced.is_empty() {
        let hours = OLD_SECRET_MS / HOUR_MS;
        let before = match webhook.old_secret_until_ms {
            Some(until_ms) if now_ms() < until_ms => {
                " You rotated the secret a short time ago: the one before that stops working now."
            }
            _ => "",
        };
        let question = Confirmation {
            title: "Replace the secret?",
            consequence: format!(
                "The gateway makes a new secret and shows it to you. For {hours} hours it signs \
                 messages with the old secret too.{before}"
            ),
            button: "Replace secret",
            back: "/dashboard/alerts",
        };
        let once = &webhook.secret_id;
        return Ok(confirm::page_once("Alerts", &form, question, once));
    }
    // If the same form is sent again, its secret is no longer the current one, so nothing changes.
    let make = move |account: &str| webhooks.rotate(account, &replaced, now_ms());
    make_secret(&app, &form.user, make).await?;
    Ok(Redirect::to("/dashboard/alerts?done=rotated").into_response())
}

async fn remove(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    // Also one that the operator offers no more.
    form.user.require(MemberAction::ManageWebhook)?;
    let webhooks = Webhooks::new(&app.accounts);
    let account = form_account(&form.user);
    webhooks.find(&account)?.ok_or(PageError::NotFound)?;
    if !form.is_confirmed() {
        let question = Confirmation {
            title: "Remove the webhook?",
            consequence: "The gateway deletes the URL and the secret, and gives up messages that \
                          wait. A new webhook gets another secret."
                .to_owned(),
            button: "Remove webhook",
            back: "/dashboard/alerts",
        };
        return Ok(confirm::page("Alerts", &form, question));
    }
    app.fresh_secrets.forget(&account);
    run_blocking(move || webhooks.remove(&account, now_ms())).await??;
    Ok(Redirect::to("/dashboard/alerts?done=removed").into_response())
}

const DISABLED_FAULT: &str = "Your webhook is disabled. Save its URL to enable it.";

async fn send_test(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let webhooks = require_webhooks(&app, &form.user)?;
    let account = form_account(&form.user);
    let refuse = |status, fault: &str| {
        render_with_fault(&app, &form.user, AlertsForm::Webhook, status, fault)
    };
    match webhooks.find(&account)? {
        None => return refuse(StatusCode::CONFLICT, "Set the URL of a webhook first."),
        Some(webhook) if webhook.disabled.is_some() => {
            return refuse(StatusCode::CONFLICT, DISABLED_FAULT);
        }
        Some(_) => {}
    }
    let key = ThrottleKey::AccountTestingWebhook(account.clone());
    if let Err(seconds) = app.throttle.try_acquire(&key, TEST_LIMIT, now_ms()) {
        let fault = format!(
            "You can send {} test messages an hour. Try again in {seconds} s.",
            TEST_LIMIT.count
        );
        return refuse(StatusCode::TOO_MANY_REQUESTS, &fault);
    }
    let base_url = app.settings.load().base_url.clone();
    let queue = move || webhooks.queue_test(&account, &base_url, now_ms());
    if !run_blocking(queue).await?? {
        return refuse(StatusCode::CONFLICT, DISABLED_FAULT);
    }
    Ok(Redirect::to("/dashboard/alerts?done=test").into_response())
}

async fn resend(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let webhooks = require_webhooks(&app, &form.user)?;
    let account = form_account(&form.user);
    let refuse = |status, fault: &str| {
        render_with_fault(&app, &form.user, AlertsForm::Webhook, status, fault)
    };
    let key = ThrottleKey::AccountResending(account.clone());
    if let Err(seconds) = app.throttle.try_acquire(&key, RESEND_LIMIT, now_ms()) {
        let fault = format!(
            "You can send {} messages an hour again. Try again in {seconds} s.",
            RESEND_LIMIT.count
        );
        return refuse(StatusCode::TOO_MANY_REQUESTS, &fault);
    }
    match run_blocking(move || webhooks.resend(&account, &id, now_ms())).await?? {
        ResendOutcome::Done => Ok(Redirect::to("/dashboard/alerts?done=resent").into_response()),
        ResendOutcome::NotFound => Err(PageError::NotFound),
        ResendOutcome::NoWebhook => {
            let fault = "You have no enabled webhook. Save a URL first.";
            refuse(StatusCode::CONFLICT, fault)
        }
        ResendOutcome::TooManyPending => {
            let fault = format!("{MAX_PENDING} messages wait. Try again when some were sent.");
            refuse(StatusCode::CONFLICT, &fault)
        }
    }
}
