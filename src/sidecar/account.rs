//! Sign-up, sign-in and sign-out, and the password check for all other forms (`try_password`).
//!
//! An unknown e-mail and a wrong password get the same response after the same time. Whatever the
//! URL contains, sign-in leads back to the page that needed it (`return_path.rs`), or else to
//! where the role decides. This file must not decide how a password is stored.

use super::authz::may_view;
use super::blocking::run_blocking;
use super::browser;
use super::error::PageError;
use super::form::{self, FormFault, FormStop};
use super::hash_limiter::HashTrust;
use super::menu;
use super::page::{Frame, html};
use super::provider_buttons::{ProviderButton, provider_buttons};
use super::return_path;
use super::session::{
    ClientIp, CurrentUser, SignedForm, UNNAMED_CLIENT_HEADER, is_insecure, is_local,
    session_cookie, session_token, site_url,
};
use super::state::SidecarState;
use super::throttle::{AttemptLimit, ThrottleKey};
use super::verification::queue_verification;
use accounts::{
    Account, AccountError, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS, SessionOrigin, SignUpForm,
    SignUpResult, complete_sign_ups, email_key, open_without_credit,
};
use askama::Template;
use axum::Router;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use config::address::client_prefix;
use config::{SignupMode, SignupSettings};
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Limit per e-mail and client address; `login_backoff.rs` adds further delays.
const SIGN_IN_EMAIL: AttemptLimit = AttemptLimit {
    count: 5,
    window_ms: 60_000,
};
/// Limit per e-mail over all addresses, except those from which the account holder signed in
/// before. An attacker with many networks can use up this limit, but not the holder's.
const SIGN_IN_EMAIL_ANYWHERE: AttemptLimit = AttemptLimit {
    count: 100,
    window_ms: 60_000,
};
const SIGN_IN_ADDRESS: AttemptLimit = AttemptLimit {
    count: 20,
    window_ms: 60_000,
};

/// Lists the routes. All of them are public except sign-out.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/sign-up", get(sign_up_page).post(sign_up))
        .route("/dashboard/sign-in", get(sign_in_page).post(sign_in))
        .route("/dashboard/sign-out", post(sign_out))
}

#[derive(Deserialize)]
struct SignInForm {
    email: String,
    password: String,
    /// Invitation code; sign-up may require one.
    #[serde(default)]
    invite: String,
}

#[derive(Template)]
#[template(path = "sign_up.html")]
struct SignUpPage {
    frame: Frame,
    open: bool,
    invited: bool,
    email: String,
    invite: String,
    providers: Vec<ProviderButton>,
    has_password: bool,
    fault: Option<FormFault>,
    /// Domains whose addresses may sign up, or empty.
    domains: String,
    trial: Option<String>,
    min_chars: usize,
    max_chars: usize,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    email: String,
    providers: Vec<ProviderButton>,
    has_password: bool,
    fault: Option<FormFault>,
    open: bool,
}

fn build_sign_up_page(app: &SidecarState, email: &str, fault: Option<FormFault>) -> SignUpPage {
    let settings = app.settings.load();
    let signup = &settings.signup;
    SignUpPage {
        frame: Frame {
            insecure: is_insecure(&settings.base_url),
            support: settings.support.clone(),
            ..Frame::public("Sign up")
        },
        open: signup.mode != SignupMode::Closed,
        invited: signup.mode == SignupMode::Invite,
        email: email.to_owned(),
        invite: String::new(),
        providers: provider_buttons(&settings.sign_in),
        has_password: settings.sign_in.password,
        fault,
        domains: signup.domains.join(", "),
        trial: describe_trial(signup),
        min_chars: PASSWORD_LEAST_CHARS,
        max_chars: PASSWORD_MOST_CHARS,
    }
}

/// Describes the trial of a new account, if the settings grant one.
pub fn describe_trial(signup: &SignupSettings) -> Option<String> {
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    some.then(|| {
        format!(
            "{} free credits for {}",
            signup.trial_credits,
            format_duration(signup.trial_ms)
        )
    })
}

/// Formats a duration in the largest unit that divides it: `7 days`, `36 hours` or `90 seconds`.
fn format_duration(ms: i64) -> String {
    let units = [
        (86_400_000, "day"),
        (3_600_000, "hour"),
        (60_000, "minute"),
        (1_000, "second"),
    ];
    let (count, unit) = units
        .into_iter()
        .find(|(unit_ms, _)| ms % unit_ms == 0)
        .map_or((ms / 1_000, "second"), |(unit_ms, name)| {
            (ms / unit_ms, name)
        });
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

async fn sign_up_page(State(app): State<Arc<SidecarState>>) -> Response {
    html(StatusCode::OK, &build_sign_up_page(&app, "", None))
}

async fn sign_up(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    headers: HeaderMap,
    form: Result<Form<SignInForm>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(SignInForm {
        email,
        password,
        invite,
    }) = form?;
    let settings = app.settings.load_full();
    if settings.signup.mode == SignupMode::Closed {
        return Ok(html(
            StatusCode::FORBIDDEN,
            &build_sign_up_page(&app, &email, None),
        ));
    }
    if !settings.sign_in.password {
        let page = build_sign_up_page(&app, &email, Some(NO_PASSWORDS.into()));
        return Ok(html(StatusCode::FORBIDDEN, &page));
    }
    let now_ms = now_ms();
    let attempt = match count_sign_up(&app, address, &headers, now_ms) {
        Ok(attempt) => attempt,
        Err(seconds) => {
            let page = build_sign_up_page(&app, &email, Some(TOO_MANY_SIGN_UPS.into()));
            let page = html(StatusCode::TOO_MANY_REQUESTS, &page);
            return Ok(with_retry_after(page, seconds));
        }
    };
    let (accounts, billing) = (app.accounts.clone(), app.billing.clone());
    let signup = settings.signup.clone();
    let (sent, code) = (email.clone(), invite.clone());
    let mail = settings.mail.as_ref();
    let verifies = mail.is_some_and(|mail| mail.verify_sign_ups);
    let created = app.hashing.run(address, HashTrust::Stranger, move || {
        let stranger = SignUpForm {
            email: &sent,
            password: Some(&password),
            invite: &code,
        };
        let open = if verifies {
            accounts::sign_up_unverified
        } else {
            accounts::sign_up
        };
        let opened = open(&accounts, billing.ledger(), &signup, &stranger, now_ms)?;
        if verifies
            && accounts
                .one_time_links()
                .has_waiting_trial(&opened.account.id)?
        {
            queue_verification(&accounts, &opened.account.id, now_ms)?;
        }
        Ok(opened)
    });
    match created.await? {
        Ok(SignUpResult { account, trial }) => {
            let had_one = trial.is_none() && describe_trial(&settings.signup).is_some();
            let to = if had_one {
                "/dashboard?trial=had"
            } else {
                "/dashboard"
            };
            start_session(&app, &account.id, address, &headers, to).await
        }
        Err(error) => {
            attempt.release_unless_telling(&app, &error);
            let (status, fault) = describe_sign_up_error(error)?;
            let response = html(
                status,
                &SignUpPage {
                    invite,
                    ..build_sign_up_page(&app, &email, Some(fault))
                },
            );
            Ok(if status == StatusCode::TOO_MANY_REQUESTS {
                with_retry_after(response, seconds_to_midnight(now_ms))
            } else {
                response
            })
        }
    }
}

const NO_PASSWORDS: &str =
    "This gateway has no sign-in with a password. Sign in with one of the buttons.";
pub const TOO_MANY_SIGN_UPS: &str = "Too many sign-ups from this network address. Try again later.";

/// A sign-up that counts against the limit of its network address, if there is one.
pub struct SignUpAttempt(Option<(ThrottleKey, AttemptLimit)>);

/// Counts a sign-up. If it is over the limit, returns the seconds to wait.
pub fn count_sign_up(
    app: &SidecarState,
    address: IpAddr,
    headers: &HeaderMap,
    now_ms: i64,
) -> Result<SignUpAttempt, i64> {
    let settings = app.settings.load();
    // Tests and first trials sign up from the machine itself, so a loopback address does not count.
    // If the address is known to be a proxy, it counts, because anyone may be behind the proxy.
    let counted = !address.to_canonical().is_loopback()
        || headers.contains_key(UNNAMED_CLIENT_HEADER)
        || !is_local(&settings.base_url);
    if !counted {
        return Ok(SignUpAttempt(None));
    }
    let throttle_key = ThrottleKey::AddressSigningUp(client_prefix(address));
    let rate = AttemptLimit {
        count: i64::try_from(settings.limits.sign_ups_per_address_per_hour).unwrap_or(i64::MAX),
        window_ms: 3_600_000,
    };
    app.throttle.try_acquire(&throttle_key, rate, now_ms)?;
    Ok(SignUpAttempt(Some((throttle_key, rate))))
}

impl SignUpAttempt {
    /// An attempt counts if it created an account, or if its error reveals something: whether an
    /// invitation code is valid or an e-mail has an account. Otherwise an attacker could try
    /// addresses without limit.
    pub fn release_unless_telling(self, app: &SidecarState, error: &AccountError) {
        if let Some((throttle_key, rate)) = self.0
            && !matches!(error, AccountError::NoInvite | AccountError::EmailTaken)
        {
            app.throttle.release(&throttle_key, rate);
        }
    }
}

/// Describes an error for the person who signs up. An internal error becomes an error page.
pub fn describe_sign_up_error(error: AccountError) -> Result<(StatusCode, FormFault), PageError> {
    Ok(match error {
        AccountError::BadEmail => (
            StatusCode::UNPROCESSABLE_ENTITY,
            FormFault::at("email", "This is not a valid e-mail address."),
        ),
        AccountError::BadPassword => (
            StatusCode::UNPROCESSABLE_ENTITY,
            FormFault::at(
                "password",
                format!(
                    "A password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters and must not be a common password or your e-mail."
                ),
            ),
        ),
        AccountError::EmailTaken => (
            StatusCode::CONFLICT,
            FormFault::at(
                "email",
                "This e-mail already has an account. Sign in instead.",
            ),
        ),
        AccountError::NoInvite => (
            StatusCode::FORBIDDEN,
            FormFault::at(
                "invite",
                "This invite code is unknown, used or expired. Ask the operator for a new one.",
            ),
        ),
        AccountError::OtherDomain(domains) => (
            StatusCode::FORBIDDEN,
            FormFault::at(
                "email",
                format!("Only e-mail addresses of these domains can sign up: {domains}."),
            ),
        ),
        AccountError::TrialsSpent => {
            let text = "No trials are left today. Come back after midnight UTC.";
            (StatusCode::TOO_MANY_REQUESTS, text.into())
        }
        other => return Err(other.into()),
    })
}

/// Returns the seconds until midnight UTC, when the trial budget of the next day begins.
pub fn seconds_to_midnight(now_ms: i64) -> i64 {
    (86_400_000 - now_ms.rem_euclid(86_400_000)) / 1_000 + 1
}

/// The page to sign in, with a fault of a sign-in at a provider.
pub fn sign_in_fault(app: &SidecarState, status: StatusCode, fault: &str) -> Response {
    html(status, &build_sign_in_page(app, "", Some(fault.into())))
}

fn build_sign_in_page(app: &SidecarState, email: &str, fault: Option<FormFault>) -> SignInPage {
    let settings = app.settings.load();
    SignInPage {
        frame: Frame {
            insecure: is_insecure(&settings.base_url),
            ..Frame::public("Sign in")
        },
        email: email.to_owned(),
        providers: provider_buttons(&settings.sign_in),
        has_password: settings.sign_in.password,
        fault,
        open: settings.signup.mode != SignupMode::Closed,
    }
}

async fn sign_in_page(State(app): State<Arc<SidecarState>>) -> Response {
    html(StatusCode::OK, &build_sign_in_page(&app, "", None))
}

async fn sign_in(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    headers: HeaderMap,
    form: Result<Form<SignInForm>, FormRejection>,
) -> Result<Response, PageError> {
    let Form(SignInForm {
        email, password, ..
    }) = form?;
    if !app.settings.load().sign_in.password {
        return Ok(sign_in_fault(&app, StatusCode::FORBIDDEN, NO_PASSWORDS));
    }
    match try_password(&app, &email, password, address).await? {
        PasswordOutcome::Right(account) => {
            let to = menu::first_path(may_view(&account));
            start_session(&app, &account.id, address, &headers, to).await
        }
        PasswordOutcome::Wrong => {
            let fault = FormFault::at("password", "The e-mail or the password is wrong.");
            let page = build_sign_in_page(&app, &email, Some(fault));
            Ok(html(StatusCode::UNAUTHORIZED, &page))
        }
        PasswordOutcome::TooOften { seconds } => {
            let page = build_sign_in_page(&app, &email, Some(TOO_MANY_ATTEMPTS.into()));
            Ok(with_retry_after(
                html(StatusCode::TOO_MANY_REQUESTS, &page),
                seconds,
            ))
        }
    }
}

pub const TOO_MANY_ATTEMPTS: &str = "Too many attempts. Wait a moment, then try again.";

pub enum PasswordOutcome {
    Right(Account),
    Wrong,
    /// Too many attempts were made, so the password was not checked.
    TooOften {
        seconds: i64,
    },
}

/// Checks a password, within the limits on attempts.
pub async fn try_password(
    app: &SidecarState,
    email: &str,
    password: String,
    address: IpAddr,
) -> Result<PasswordOutcome, PageError> {
    let now_ms = now_ms();
    let email = email_key(email);
    let (prefix, account) = (client_prefix(address), email.clone());
    if let Err(seconds) = app.login_backoff.check(&email, prefix, now_ms) {
        return Ok(PasswordOutcome::TooOften { seconds });
    }
    let counted = match count_sign_in(app, &email, address, now_ms)? {
        Ok(counted) => counted,
        Err(seconds) => return Ok(PasswordOutcome::TooOften { seconds }),
    };
    let trust = match is_known_network(app, &email, prefix, now_ms)? {
        true => HashTrust::Known,
        false => HashTrust::Stranger,
    };
    let release = |counted: Vec<(ThrottleKey, AttemptLimit)>| {
        for (throttle_key, rate) in counted {
            app.throttle.release(&throttle_key, rate);
        }
    };
    let accounts = app.accounts.clone();
    let check = move || accounts.logins().check_password(&account, &password);
    let checked = match app.hashing.run(address, trust, check).await {
        Ok(checked) => checked?,
        Err(error) => {
            // No password was tried, so the attempt does not count.
            release(counted);
            return Err(error);
        }
    };
    let Some(account) = checked else {
        app.login_backoff.record_failure(&email, prefix, now_ms);
        return Ok(PasswordOutcome::Wrong);
    };
    app.login_backoff.record_success(&email, prefix);
    app.known_networks.record_success(&email, prefix, now_ms);
    release(counted);
    Ok(PasswordOutcome::Right(account))
}

/// Requires the user's password in the same form; of a user without one, a sign-in a short while
/// ago.
pub async fn require_password(app: &SidecarState, form: &SignedForm) -> Result<(), FormStop> {
    let forbidden = |fault: &str| FormStop::Fault(StatusCode::FORBIDDEN, fault.into());
    let wrong = |fault| FormStop::Fault(StatusCode::FORBIDDEN, FormFault::at("password", fault));
    let (user, password) = (&form.user, form.field("password"));
    if !user.has_password {
        return match user.confirmed {
            true => Ok(()),
            false => Err(forbidden(
                "You signed in too long ago for this. Sign out, sign in again, and send it within \
                 10 minutes.",
            )),
        };
    }
    if password.is_empty() {
        return Err(wrong("Enter your password to confirm."));
    }
    match try_password(app, &user.person.email, password.to_owned(), form.address).await? {
        PasswordOutcome::Right(account) if account.id == user.person.id => {
            let (accounts, token) = (app.accounts.clone(), user.token.clone());
            run_blocking(move || accounts.logins().confirm_session(&token, now_ms())).await??;
            Ok(())
        }
        PasswordOutcome::Right(_) | PasswordOutcome::Wrong => Err(wrong("The password is wrong.")),
        PasswordOutcome::TooOften { .. } => Err(FormStop::Fault(
            StatusCode::TOO_MANY_REQUESTS,
            FormFault::at("password", TOO_MANY_ATTEMPTS),
        )),
    }
}

/// Requires the user's password like [`require_password`], unless the user typed it within the last
/// minutes. The pages that follow do not ask for the password again.
pub async fn require_recent_password(
    app: &SidecarState,
    form: &mut SignedForm,
) -> Result<(), FormStop> {
    if !form.user.confirmed {
        require_password(app, form).await?;
        form.user.confirmed = true;
    }
    Ok(())
}

/// Counts an attempt to sign in and returns the limits that it counts against, or the seconds to
/// wait. Counting precedes hashing, so concurrent attempts cannot bypass the limits. Attempts from
/// other networks do not count against a network from which the account holder signed in before.
pub fn count_sign_in(
    app: &SidecarState,
    email: &str,
    address: IpAddr,
    now_ms: i64,
) -> Result<Result<Vec<(ThrottleKey, AttemptLimit)>, i64>, PageError> {
    let prefix = client_prefix(address);
    let email_from = ThrottleKey::EmailSigningInFrom(email.to_owned(), prefix);
    let email_anywhere = ThrottleKey::EmailSigningIn(email.to_owned());
    let mut counted = Vec::new();
    for (throttle_key, rate) in [
        (ThrottleKey::AddressSigningIn(prefix), SIGN_IN_ADDRESS),
        (email_from, SIGN_IN_EMAIL),
        (email_anywhere, SIGN_IN_EMAIL_ANYWHERE),
    ] {
        match app.throttle.try_acquire(&throttle_key, rate, now_ms) {
            Ok(()) => counted.push((throttle_key, rate)),
            Err(_)
                if matches!(throttle_key, ThrottleKey::EmailSigningIn(_))
                    && is_known_network(app, email, prefix, now_ms)? => {}
            Err(seconds) => return Ok(Err(seconds)),
        }
    }
    Ok(Ok(counted))
}

/// Returns whether the account holder signed in from this network before: since this process
/// started, or with a session that is still open.
fn is_known_network(
    app: &SidecarState,
    email: &str,
    prefix: IpAddr,
    now_ms: i64,
) -> Result<bool, PageError> {
    if app.known_networks.contains(email, prefix) {
        return Ok(true);
    }
    let Some(account) = app.accounts.find(email)? else {
        return Ok(false);
    };
    let sessions = app.accounts.logins().sessions(&account.id, now_ms)?;
    let mut addresses = sessions
        .iter()
        .filter_map(|session| session.address.parse().ok());
    Ok(addresses.any(|address| client_prefix(address) == prefix))
}

pub fn with_retry_after(mut response: Response, seconds: i64) -> Response {
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Starts a new session, even if there is one already. Thus a token that was known before the
/// sign-in is not valid afterwards. The browser goes back to the page that needed the sign-in, or
/// else to `to`.
pub async fn start_session(
    app: &SidecarState,
    account: &str,
    address: IpAddr,
    headers: &HeaderMap,
    to: &'static str,
) -> Result<Response, PageError> {
    let site = site_url(headers, &app.settings.load().base_url);
    let old = session_token(headers, &site);
    let (accounts, billing, account) = (
        app.accounts.clone(),
        app.billing.clone(),
        account.to_owned(),
    );
    let (address, browser) = (
        address.to_canonical().to_string(),
        browser::describe(headers),
    );
    let new = run_blocking(move || {
        // This sign-in may belong to an account whose sign-up failed half way, so the sign-up is
        // completed here.
        complete_sign_ups(&accounts, billing.ledger(), now_ms())?;
        open_without_credit(&accounts, billing.ledger(), &account, now_ms())?;
        if let Some(old) = old {
            accounts.logins().end_session(&old)?;
        }
        accounts.logins().create_session_from(
            &account,
            SessionOrigin {
                address: &address,
                browser: &browser,
            },
            now_ms(),
        )
    })
    .await??;
    let cookie = session_cookie(&new.token, &site)?;
    let (to, forget) = match return_path::take(headers, &site)? {
        Some((path, forget)) => (path, Some(forget)),
        None => (to.to_owned(), None),
    };
    let cookies = forget.into_iter().chain([cookie]);
    let cookies = cookies.map(|cookie| (header::SET_COOKIE, cookie));
    Ok((AppendHeaders(cookies), Redirect::to(&to)).into_response())
}

async fn sign_out(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let (accounts, CurrentUser { token, site, .. }) = (app.accounts.clone(), form.user);
    run_blocking(move || accounts.logins().end_session(&token)).await??;
    let cookie = session_cookie("", &site)?;
    Ok((
        [(header::SET_COOKIE, cookie)],
        Redirect::to("/dashboard/sign-in"),
    )
        .into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_named_in_the_largest_unit_that_fits() {
        assert_eq!(format_duration(7 * 86_400_000), "7 days");
        assert_eq!(format_duration(86_400_000), "1 day");
        assert_eq!(format_duration(129_600_000), "36 hours");
        assert_eq!(format_duration(8_640), "8 seconds");
    }
}
