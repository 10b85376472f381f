//! What someone does who cannot sign in: a one-time link sets a password, or shows that an e-mail
//! reaches the account holder.
//!
//! Mail scanners open links too, so opening one changes nothing: sending the form uses it up. An
//! unknown, used, replaced or expired link gets one answer. Must not store a token or log it.

use super::account::{start_session, with_retry_after};
use super::blocking::run_blocking;
use super::error::PageError;
use super::page::{Frame, html};
use super::session::{ClientIp, is_insecure};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use crate::account::{
    AccountError, LinkPurpose, OneTimeLink, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS,
};
use crate::address::client_prefix;
use crate::clock::now_ms;
use askama::Template;
use axum::Router;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Links that one network address may try in vain.
const LINK_ADDRESS: AttemptLimit = AttemptLimit {
    count: 20,
    window_ms: 60_000,
};

/// All public.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/forgot", get(forgot_page))
        .route("/dashboard/link/{token}", get(show).post(submit))
}

#[derive(Template)]
#[template(path = "forgot.html")]
struct ForgotPage {
    frame: Frame,
}

#[derive(Template)]
#[template(path = "link.html")]
struct LinkPage {
    frame: Frame,
    state: LinkState,
    fault: Option<String>,
    min_chars: usize,
    max_chars: usize,
}

enum LinkState {
    /// The form for a password.
    Password {
        email: String,
        is_first: bool,
    },
    /// The form that verifies the e-mail.
    Verify {
        email: String,
    },
    Verified,
    /// The link cannot be used.
    Gone,
    TooMany,
}

#[derive(Deserialize)]
struct LinkForm {
    #[serde(default)]
    password: String,
}

fn public_frame(app: &SidecarState, title: &'static str) -> Frame {
    let settings = app.settings.load();
    Frame {
        insecure: is_insecure(&settings.base_url),
        support: settings.support.clone(),
        ..Frame::public(title)
    }
}

async fn forgot_page(State(app): State<Arc<SidecarState>>) -> Response {
    let page = ForgotPage {
        frame: public_frame(&app, "Forgotten password"),
    };
    html(StatusCode::OK, &page)
}

fn page(app: &SidecarState, status: StatusCode, state: LinkState, fault: Option<&str>) -> Response {
    let title = match state {
        LinkState::Password { .. } => "Set your password",
        LinkState::Verify { .. } | LinkState::Verified => "Confirm your e-mail",
        LinkState::Gone | LinkState::TooMany => "Link",
    };
    let page = LinkPage {
        frame: public_frame(app, title),
        state,
        fault: fault.map(ToOwned::to_owned),
        min_chars: PASSWORD_LEAST_CHARS,
        max_chars: PASSWORD_MOST_CHARS,
    };
    html(status, &page)
}

/// The answer to every link that cannot be used.
fn gone(app: &SidecarState) -> Response {
    page(app, StatusCode::GONE, LinkState::Gone, None)
}

/// A link that can be used, with the e-mail of its account; otherwise the answer.
async fn find(
    app: &Arc<SidecarState>,
    token: &str,
    address: IpAddr,
) -> Result<Result<(OneTimeLink, String), Response>, PageError> {
    let key = ThrottleKey::AddressOpeningLink(client_prefix(address));
    if let Err(seconds) = app.throttle.try_acquire(&key, LINK_ADDRESS, now_ms()) {
        let page = page(app, StatusCode::TOO_MANY_REQUESTS, LinkState::TooMany, None);
        return Ok(Err(with_retry_after(page, seconds)));
    }
    let (accounts, token) = (app.accounts.clone(), token.to_owned());
    let found = run_blocking(move || {
        let Some(link) = accounts.one_time_link(&token, now_ms())? else {
            return Ok(None);
        };
        let account = accounts.find(&link.account)?;
        Ok::<_, PageError>(account.map(|account| (link, account.email)))
    });
    let Some(found) = found.await?? else {
        return Ok(Err(gone(app)));
    };
    app.throttle.release(&key, LINK_ADDRESS);
    Ok(Ok(found))
}

/// The form of a link.
fn form_state(link: &OneTimeLink, email: String) -> LinkState {
    match link.purpose {
        LinkPurpose::Verify => LinkState::Verify { email },
        LinkPurpose::Reset | LinkPurpose::Setup => LinkState::Password {
            email,
            is_first: link.purpose == LinkPurpose::Setup,
        },
    }
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    Ok(match find(&app, &token, address).await? {
        Ok((link, email)) => page(&app, StatusCode::OK, form_state(&link, email), None),
        Err(response) => response,
    })
}

async fn submit(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    headers: HeaderMap,
    Path(token): Path<String>,
    form: Result<Form<LinkForm>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(LinkForm { password }) = form?;
    let (link, email) = match find(&app, &token, address).await? {
        Ok(found) => found,
        Err(response) => return Ok(response),
    };
    let accounts = app.accounts.clone();
    if link.purpose == LinkPurpose::Verify {
        let is_done =
            run_blocking(move || accounts.verify_email_by_link(&token, now_ms())).await??;
        return Ok(if is_done {
            page(&app, StatusCode::OK, LinkState::Verified, None)
        } else {
            gone(&app)
        });
    }
    let from = address.to_canonical().to_string();
    let work = move || accounts.set_password_by_link(&token, &password, &from, now_ms());
    match app.hashing.run(work).await? {
        Ok(Some(account)) => {
            // The holder may have tried wrong passwords before.
            app.login_backoff
                .record_success(&email, client_prefix(address));
            start_session(&app, &account, address, &headers, "/dashboard").await
        }
        Ok(None) => Ok(gone(&app)),
        Err(AccountError::BadPassword) => {
            let fault = format!(
                "A password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters \
                 and must not be a common password. The link still works."
            );
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Ok(page(&app, status, form_state(&link, email), Some(&fault)))
        }
        Err(other) => Err(other.into()),
    }
}
