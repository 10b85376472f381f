//! Shows the state of the gateway: endpoints and their health, holds, mail, and the last ledger
//! audit, which `operator/verify.rs` starts.

use super::super::assets::AUDIT_SCRIPT;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::display::{self, Credits, Timestamp};
use super::super::error::PageError;
use super::super::ledger_audit::{LedgerAuditResult, LedgerAuditState};
use super::super::page::{Frame, html};
use super::super::session::CurrentUser;
use super::super::state::SidecarState;
use super::verify::RunningAuditView;
use crate::billing::Receipt;
use crate::notify::mail::{self, MailKind};
use crate::upstreams::{EndpointState, LastFailure};
use accounts::db::mail::QueueMailOutcome;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use config::catalog::VendorEndpoint;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const MAX_IMPLAUSIBLE_ROWS: u32 = 20;

struct EndpointRow {
    vendor: String,
    address: String,
    weight: u32,
    /// Number of running requests; `None` if this process sends no requests.
    running: Option<String>,
    health: String,
    /// Class of the health's badge, after a space.
    badge: &'static str,
    /// Failure ratio such as `2 of 40 failed`; empty if no attempt has ended, or if this process
    /// sends no requests.
    recent: String,
    /// Median and 95th percentile of the time to the first byte, such as `180 ms · 2 400 ms`.
    first_byte: String,
    last_failure: Option<LastFailure>,
}

struct HoldsView {
    requests: u64,
    credits: Credits,
    oldest: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "operator_service.html")]
struct ServicePage {
    frame: Frame,
    csrf: String,
    /// True if the user is an administrator and may make changes.
    may_act: bool,
    endpoints: Vec<EndpointRow>,
    /// True if this process sends requests to vendors, and so knows their outcomes.
    sends_requests: bool,
    holds: Option<HoldsView>,
    /// Debits with their accounts, for which the vendor reported more usage than the request can
    /// have caused.
    implausible: Vec<(String, Receipt)>,
    running: Option<RunningAuditView>,
    last: Option<LedgerAuditResult>,
    mail: MailView,
}

struct MailView {
    /// Address of the mail server; `None` if the gateway sends no mail.
    server: Option<String>,
    from: String,
    queued: u64,
    oldest: Option<Timestamp>,
    last_error: String,
    /// Address to which a test mail was queued.
    tested: Option<String>,
}

fn mail_view(app: &SidecarState) -> Result<MailView, PageError> {
    let settings = app.settings.load();
    let mail = settings.mail.as_ref();
    let queue = app.accounts.mails().mail_queue()?;
    Ok(MailView {
        server: mail.map(|mail| format!("{}:{}", mail.host, mail.port)),
        from: mail.map(|mail| mail.from.to_string()).unwrap_or_default(),
        queued: queue.queued,
        oldest: queue.oldest_at_ms.map(Timestamp),
        last_error: queue.last_error,
        tested: None,
    })
}

fn endpoint_row(vendor: &str, endpoint: &VendorEndpoint, states: &[EndpointState]) -> EndpointRow {
    let label = endpoint.label();
    let state = states
        .iter()
        .find(|state| state.vendor == vendor && state.endpoint == label);
    let scheme = if endpoint.tls { "https" } else { "http" };
    EndpointRow {
        vendor: vendor.to_owned(),
        address: format!("{scheme}://{label}"),
        weight: endpoint.weight,
        running: state.map(|state| match state.max_concurrent {
            Some(max_concurrent) => format!("{} of {max_concurrent}", state.in_flight),
            None => state.in_flight.to_string(),
        }),
        badge: state.map_or("", |state| describe_health(state).1),
        health: state.map_or_else(
            || "Unknown to this process".to_owned(),
            |state| describe_health(state).0,
        ),
        recent: state.map(describe_recent).unwrap_or_default(),
        first_byte: state.map(describe_first_byte).unwrap_or_default(),
        last_failure: state.and_then(|state| state.last_failure.clone()),
    }
}

/// Describes the outcomes of the attempts in the last minutes.
fn describe_recent(state: &EndpointState) -> String {
    let recent = &state.recent;
    match recent.ended {
        0 => "no requests".to_owned(),
        ended => format!(
            "{} of {} failed",
            display::group_digits(recent.failed),
            display::group_digits(ended)
        ),
    }
}

fn describe_first_byte(state: &EndpointState) -> String {
    let recent = &state.recent;
    match (recent.first_byte_p50_ms, recent.first_byte_p95_ms) {
        (Some(median), Some(slow)) => format!(
            "{} ms · {} ms",
            display::group_digits(median),
            display::group_digits(slow)
        ),
        _ => "–".to_owned(),
    }
}

/// Describes whether an endpoint receives requests, and if not, why; and how it has answered
/// lately. Also returns the class of the badge.
fn describe_health(state: &EndpointState) -> (String, &'static str) {
    let mut words = Vec::new();
    match state.breaker {
        "open" if state.opens_in_seconds == 0 => {
            words.push("Circuit open: too many failures; the next request tries it".to_owned())
        }
        "open" => words.push(format!(
            "Circuit open: too many failures; next try in {} s",
            state.opens_in_seconds
        )),
        "half_open" => {
            words.push("Circuit half-open: tested with one request at a time".to_owned())
        }
        _ => {}
    }
    if !state.passes_checks {
        words.push("Circuit open: its health check fails".to_owned());
    }
    if state.key_refused {
        let next = match state.key_tested_in_seconds {
            Some(0) => "the next request tests it".to_owned(),
            Some(seconds) => format!("next test in {seconds} s"),
            None => "a request tests it now".to_owned(),
        };
        words.push(format!("Key refused, or no credit at the vendor; {next}"));
    }
    for (model, seconds) in &state.cooling_seconds {
        words.push(format!(
            "Rate-limited: no requests for {model} for {seconds} s"
        ));
    }
    if !words.is_empty() {
        return (words.join(" · "), " bad");
    }
    let recent = &state.recent;
    let (text, badge) = match (recent.ended, recent.failed) {
        (0, _) => ("No requests in 5 min", ""),
        (ended, failed) if failed >= ended => ("All requests fail", " bad"),
        (_, 0) => ("Healthy", " good"),
        _ => ("Some requests fail", " warn"),
    };
    (text.to_owned(), badge)
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
) -> Result<Response, PageError> {
    let page = build_page(&app, &user).await?;
    Ok(html(StatusCode::OK, &page))
}

/// Queues a test mail to the administrator who requests it.
pub async fn test_mail(
    State(app): State<Arc<SidecarState>>,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let page = build_page(&app, &form.user).await?;
    if page.mail.server.is_none() {
        return Ok(html(StatusCode::CONFLICT, &page));
    }
    let accounts = app.accounts.clone();
    let queued = run_blocking(move || {
        mail::queue(&accounts, &by.actor, MailKind::Test, &json!({}), now_ms())
    });
    if queued.await?? != QueueMailOutcome::Done {
        return Err(PageError::Busy);
    }
    let mail = MailView {
        tested: Some(form.user.person.email.clone()),
        queued: page.mail.queued + 1,
        ..page.mail
    };
    Ok(html(StatusCode::ACCEPTED, &ServicePage { mail, ..page }))
}

async fn build_page(app: &Arc<SidecarState>, user: &CurrentUser) -> Result<ServicePage, PageError> {
    let settings = app.settings.load_full();
    let vendors: BTreeMap<_, _> = settings
        .catalog
        .models()
        .iter()
        .map(|model| (model.vendor.name.as_str(), &model.vendor))
        .collect();
    let states = app
        .endpoint_registry
        .as_ref()
        .map(|registry| registry.states(Instant::now()))
        .unwrap_or_default();
    let endpoints = vendors
        .iter()
        .flat_map(|(name, vendor)| {
            vendor
                .endpoints
                .iter()
                .map(|one| endpoint_row(name, one, &states))
        })
        .collect();
    let billing = app.billing.clone();
    let holds = run_blocking(move || billing.open_holds())
        .await??
        .map(|open| HoldsView {
            requests: open.requests,
            credits: Credits(open.credits),
            oldest: open.oldest_at_ms.map(Timestamp),
        });
    let billing = app.billing.clone();
    let implausible =
        run_blocking(move || billing.pages().implausible_receipts(MAX_IMPLAUSIBLE_ROWS)).await??;
    let LedgerAuditState { running, last } = app.audits.snapshot();
    Ok(ServicePage {
        frame: Frame::new("Service", user)
            .with_script(&AUDIT_SCRIPT)
            .with_index_lag(app.billing.pages().index_lag()),
        csrf: user.csrf.clone(),
        may_act: may_administer(&user.person),
        endpoints,
        sends_requests: app.endpoint_registry.is_some(),
        holds,
        implausible,
        running: running.map(RunningAuditView::new),
        last,
        mail: mail_view(app)?,
    })
}
