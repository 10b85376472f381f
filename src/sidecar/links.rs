//! Serves one-time links for people who cannot sign in. A link sets a password, or proves that an
//! e-mail reaches the account holder.
//!
//! Mail scanners open links too, so opening a link changes nothing; only sending the form uses the
//! link up. Unknown, used, replaced and expired links get the same answer. The first proof of a
//! mailbox requires a new password, unless the holder is signed in. `crates/accounts/src/links.rs`
//! describes the credentials that it ends. This file must not store a token or log it.

use super::account::{start_session, with_retry_after};
use super::blocking::run_blocking;
use super::display::Timestamp;
use super::error::PageError;
use super::form::{self, FormFault};
use super::hash_limiter::HashTrust;
use super::page::{Frame, html};
use super::session::{ClientIp, OptionalUser, SignedForm, is_insecure};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use super::verification::queue_verification;
use crate::notify::mail::{self, MailKind};
use crate::notify::webhooks::Webhooks;
use accounts::{
    Account, AccountError, AccountStatus, Accounts, ApiKey, FirstProofEnds, LinkPurpose,
    OneTimeLink, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS, UnprovenOrganisation,
    complete_sign_ups, email_key,
};
use askama::Template;
use axum::Router;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use config::address::client_prefix;
use ledger::StoreError;
use serde::Deserialize;
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;

/// Limit on the invalid links that one network address may try.
const LINK_ADDRESS: AttemptLimit = AttemptLimit {
    count: 20,
    window_ms: 60_000,
};

/// Limit on the mails with a link that one network address may request. The next constant limits
/// the requests for one e-mail from all addresses.
const FORGOT_ADDRESS: AttemptLimit = AttemptLimit {
    count: 10,
    window_ms: 3_600_000,
};
const FORGOT_EMAIL: AttemptLimit = AttemptLimit {
    count: 3,
    window_ms: 3_600_000,
};

/// Limit on the verification mails that an account may request.
const VERIFICATIONS: AttemptLimit = AttemptLimit {
    count: 3,
    window_ms: 3_600_000,
};

/// Lists the routes. All are public except the request for a verification mail.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/account/verify", post(send_verification))
        .route("/dashboard/forgot", get(forgot_page).post(forgot))
        .route("/dashboard/link/{token}", get(show).post(submit))
}

#[derive(Template)]
#[template(path = "forgot.html")]
struct ForgotPage {
    frame: Frame,
    /// True if the gateway sends mail.
    has_mail: bool,
    email: String,
    /// True if the form was accepted.
    is_done: bool,
    fault: Option<FormFault>,
}

#[derive(Template)]
#[template(path = "link.html")]
struct LinkPage {
    frame: Frame,
    state: LinkState,
    fault: Option<FormFault>,
    min_chars: usize,
    max_chars: usize,
}

enum LinkState {
    /// The link leads to the form for a new password.
    Password {
        email: String,
        is_first: bool,
        confirms_email: bool,
        /// True if [`Credentials`] end unless the holder keeps them.
        ends_credentials: bool,
        credentials: Credentials,
    },
    /// The link leads to the form that verifies the e-mail.
    Verify {
        email: String,
    },
    Verified,
    /// The link cannot be used.
    Gone,
    TooMany,
}

/// Credentials created in the name of an account, as the page of a link lists them.
struct Credentials {
    /// Live keys, newest first, at most [`MAX_LISTED_KEYS`].
    keys: Vec<ApiKey>,
    more_keys: usize,
    /// URL of the webhook, if there is one.
    webhook: Option<String>,
    /// Organisations in which the first proof of the mailbox ends memberships and keys.
    organisations: Vec<UnprovenOrganisation>,
}

const MAX_LISTED_KEYS: usize = 20;

impl Credentials {
    fn read(accounts: &Accounts, link: &OneTimeLink) -> Result<Self, StoreError> {
        let account = &link.account;
        let mut keys = accounts.api_keys().keys_of_person(account)?;
        keys.retain(|key| !key.is_of_playground());
        let more_keys = keys.len().saturating_sub(MAX_LISTED_KEYS);
        keys.truncate(MAX_LISTED_KEYS);
        let webhook = Webhooks::new(accounts).find(account)?;
        let organisations = match link.is_first_proof {
            true => accounts.organisations().unproven(account)?,
            false => Vec::new(),
        };
        Ok(Self {
            keys,
            more_keys,
            webhook: webhook.map(|webhook| webhook.url),
            organisations,
        })
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.webhook.is_none() && self.organisations.is_empty()
    }
}

#[derive(Deserialize)]
struct LinkForm {
    #[serde(default)]
    password: String,
    /// The holder's choice for keys and webhook: `keep` or `end`; empty if no box is ticked.
    #[serde(default)]
    credentials: String,
}

#[derive(Deserialize)]
struct ForgotForm {
    email: String,
}

fn public_frame(app: &SidecarState, title: &'static str) -> Frame {
    let settings = app.settings.load();
    Frame {
        insecure: is_insecure(&settings.base_url),
        support: settings.support.clone(),
        ..Frame::public(title)
    }
}

fn build_forgot_page(app: &SidecarState) -> ForgotPage {
    ForgotPage {
        frame: public_frame(app, "Forgotten password"),
        has_mail: app.settings.load().mail.is_some(),
        email: String::new(),
        is_done: false,
        fault: None,
    }
}

async fn forgot_page(State(app): State<Arc<SidecarState>>) -> Response {
    if !app.settings.load().sign_in.password {
        return PageError::NotFound.into_response();
    }
    html(StatusCode::OK, &build_forgot_page(&app))
}

/// Sends the same answer after the same work, whether or not the e-mail has an account. The mail is
/// queued after the answer. Requests over the limit of an e-mail are dropped silently, because
/// earlier mails are on their way.
async fn forgot(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    form: Result<Form<ForgotForm>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(ForgotForm { email }) = form?;
    if !app.settings.load().sign_in.password {
        return Err(PageError::NotFound);
    }
    let page = ForgotPage {
        email: email.clone(),
        ..build_forgot_page(&app)
    };
    if !page.has_mail {
        return Ok(html(StatusCode::FORBIDDEN, &page));
    }
    let now_ms = now_ms();
    let key = ThrottleKey::AddressForgot(client_prefix(address));
    if let Err(seconds) = app.throttle.try_acquire(&key, FORGOT_ADDRESS, now_ms) {
        let fault = "Too many attempts from this network address. Try again later.";
        let fault = Some(fault.into());
        let page = html(StatusCode::TOO_MANY_REQUESTS, &ForgotPage { fault, ..page });
        return Ok(with_retry_after(page, seconds));
    }
    let email = email_key(&email);
    let key = ThrottleKey::EmailForgot(email.clone());
    if app.throttle.try_acquire(&key, FORGOT_EMAIL, now_ms).is_ok() {
        let permit = Arc::clone(&app.forgotten).try_acquire_owned();
        let permit = permit.map_err(|_| PageError::Busy)?;
        let accounts = app.accounts.clone();
        tokio::task::spawn_blocking(move || {
            queue_reset_mail(&accounts, &email, now_ms);
            drop(permit);
        });
    }
    let is_done = true;
    Ok(html(StatusCode::OK, &ForgotPage { is_done, ..page }))
}

fn queue_reset_mail(accounts: &Accounts, email: &str, now_ms: i64) {
    let queued = || -> Result<(), AccountError> {
        let found = accounts.find(email)?;
        let active = |account: &Account| account.status == AccountStatus::Active;
        // A form with an id instead of an e-mail finds no account.
        let Some(account) = found.filter(|account| account.email == email && active(account))
        else {
            return Ok(());
        };
        mail::queue(accounts, &account.id, MailKind::Reset, &json!({}), now_ms).map(drop)
    };
    if let Err(error) = queued() {
        log::error!("cannot queue a mail that resets a password: {error}");
    }
}

fn page(
    app: &SidecarState,
    status: StatusCode,
    state: LinkState,
    fault: Option<FormFault>,
) -> Response {
    let title = match state {
        LinkState::Password { .. } => "Set your password",
        LinkState::Verify { .. } | LinkState::Verified => "Confirm your e-mail",
        LinkState::Gone | LinkState::TooMany => "Link",
    };
    let page = LinkPage {
        frame: public_frame(app, title),
        state,
        fault,
        min_chars: PASSWORD_LEAST_CHARS,
        max_chars: PASSWORD_MOST_CHARS,
    };
    html(status, &page)
}

/// Returns the answer to every unusable link.
fn gone(app: &SidecarState) -> Response {
    page(app, StatusCode::GONE, LinkState::Gone, None)
}

struct FoundLink {
    link: OneTimeLink,
    email: String,
    /// True if the form sets a password; otherwise, the form only confirms the e-mail.
    sets_password: bool,
    credentials: Credentials,
}

/// Finds a usable link. Otherwise, the error is the answer to send.
async fn find(
    app: &Arc<SidecarState>,
    token: &str,
    OptionalUser(user): OptionalUser,
    address: IpAddr,
) -> Result<Result<FoundLink, Response>, PageError> {
    let key = ThrottleKey::AddressOpeningLink(client_prefix(address));
    if let Err(seconds) = app.throttle.try_acquire(&key, LINK_ADDRESS, now_ms()) {
        let page = page(app, StatusCode::TOO_MANY_REQUESTS, LinkState::TooMany, None);
        return Ok(Err(with_retry_after(page, seconds)));
    }
    let (accounts, token) = (app.accounts.clone(), token.to_owned());
    let found = run_blocking(move || {
        let Some(link) = accounts.one_time_links().one_time_link(&token, now_ms())? else {
            return Ok(None);
        };
        let Some(account) = accounts.find(&link.account)? else {
            return Ok(None);
        };
        let is_own = user.is_some_and(|user| user.person.id == link.account);
        Ok::<_, PageError>(Some(FoundLink {
            sets_password: link.purpose != LinkPurpose::Verify || link.is_first_proof && !is_own,
            email: account.email,
            credentials: Credentials::read(&accounts, &link)?,
            link,
        }))
    });
    let Some(found) = found.await?? else {
        return Ok(Err(gone(app)));
    };
    app.throttle.release(&key, LINK_ADDRESS);
    Ok(Ok(found))
}

fn form_state(found: FoundLink) -> LinkState {
    let FoundLink { link, email, .. } = found;
    if found.sets_password {
        LinkState::Password {
            email,
            is_first: link.purpose == LinkPurpose::Setup,
            confirms_email: link.purpose == LinkPurpose::Verify,
            ends_credentials: link.is_first_proof,
            credentials: found.credentials,
        }
    } else {
        LinkState::Verify { email }
    }
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    user: OptionalUser,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    Ok(match find(&app, &token, user, address).await? {
        Ok(found) => page(&app, StatusCode::OK, form_state(found), None),
        Err(response) => response,
    })
}

async fn submit(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    user: OptionalUser,
    headers: HeaderMap,
    Path(token): Path<String>,
    form: Result<Form<LinkForm>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(LinkForm {
        password,
        credentials,
    }) = form?;
    let found = match find(&app, &token, user, address).await? {
        Ok(found) => found,
        Err(response) => return Ok(response),
    };
    let accounts = app.accounts.clone();
    if !found.sets_password {
        let billing = app.billing.clone();
        let verified = run_blocking(move || {
            let is_done = accounts
                .one_time_links()
                .verify_email_by_link(&token, now_ms())?;
            // The trial of this account may have waited for the verified e-mail.
            complete_sign_ups(&accounts, billing.ledger(), now_ms())?;
            Ok::<_, StoreError>(is_done)
        });
        let is_done = verified.await??;
        return Ok(if is_done {
            page(&app, StatusCode::OK, LinkState::Verified, None)
        } else {
            gone(&app)
        });
    }
    let from = address.to_canonical().to_string();
    let ends_credentials = match credentials.as_str() {
        "keep" => Some(false),
        "end" => Some(true),
        _ => None,
    };
    let work = move || {
        accounts.one_time_links().set_password_by_link(
            &token,
            &password,
            ends_credentials,
            &from,
            now_ms(),
        )
    };
    match app.hashing.run(address, HashTrust::Stranger, work).await? {
        Ok(Some(account)) => {
            // The holder may have tried wrong passwords before, so their count is cleared.
            let prefix = client_prefix(address);
            app.login_backoff.record_success(&found.email, prefix);
            start_session(&app, &account, address, &headers, "/dashboard").await
        }
        Ok(None) => Ok(gone(&app)),
        Err(AccountError::BadPassword) => {
            let fault = format!(
                "A password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters \
                 and must not be a common password or your e-mail. The link still works."
            );
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            Ok(page(
                &app,
                status,
                form_state(found),
                Some(FormFault::at("password", fault)),
            ))
        }
        Err(other) => Err(other.into()),
    }
}

/// Sends the account holder a verification link, unless the e-mail is already verified.
async fn send_verification(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let account = form.user.person;
    if app.settings.load().mail.is_none() {
        return Err(PageError::NotFound);
    }
    let key = ThrottleKey::AccountVerifying(account.id.clone());
    let attempt = app.throttle.try_acquire(&key, VERIFICATIONS, now_ms());
    let done = if attempt.is_err() {
        "mail-limit"
    } else {
        let accounts = app.accounts.clone();
        let queued = run_blocking(move || {
            if accounts
                .one_time_links()
                .email_verified_at(&account.id)?
                .is_none()
            {
                queue_verification(&accounts, &account.id, now_ms())?;
            }
            Ok::<_, AccountError>(())
        });
        queued.await??;
        "mail"
    };
    Ok(Redirect::to(&format!("/dashboard/account?done={done}")).into_response())
}
