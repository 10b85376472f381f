//! Sign-up, sign-in and sign-out.
//!
//! An unknown e-mail and a wrong password get the same answer in the same time. Hashes run two at a time, on blocking
//! threads. Must not know how a password is kept.

use super::App;
use super::page::{Frame, html};
use super::problem::Problem;
use super::session::{CallerAddress, SignedForm, Visitor, blocking, insecure, session_cookie, session_token};
use super::throttle::{Rate, Who, one_address};
use crate::account::{self, AccountError, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS, complete_sign_ups};
use crate::clock::now_ms;
use crate::config::SignupMode;
use askama::Template;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Password hashes at one time: each takes 19 MiB and a core.
const HASHES_MAX: usize = 2;

/// Requests that may wait for their hash or have it made; past it, 503.
const HASH_PLACES: usize = 34;

const SIGN_IN_EMAIL: Rate = Rate { count: 5, window_ms: 60_000 };
const SIGN_IN_ADDRESS: Rate = Rate { count: 20, window_ms: 60_000 };

/// What bounds the hashing of passwords.
pub struct Hashing {
    places: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(HASH_PLACES)), running: Arc::new(Semaphore::new(HASHES_MAX)) }
    }
}

impl Hashing {
    /// The permits go with the work: a client that leaves does not make room for a third hash.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Problem::Busy)?;
        let turn = Arc::clone(&self.running).acquire_owned().await.map_err(|_| Problem::Busy)?;
        blocking(move || {
            let value = work();
            drop((turn, place));
            value
        })
        .await
    }
}

#[derive(Deserialize)]
pub struct Credentials {
    email: String,
    password: String,
}

#[derive(Template)]
#[template(path = "sign_up.html")]
struct SignUpPage {
    frame: Frame,
    open: bool,
    email: String,
    fault: Option<String>,
    trial: Option<String>,
    least: usize,
    most: usize,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    email: String,
    fault: Option<String>,
    open: bool,
}

fn sign_up_form(app: &App, email: &str, fault: Option<String>) -> SignUpPage {
    let settings = app.settings.load();
    let signup = settings.signup;
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    SignUpPage {
        frame: Frame { insecure: insecure(&settings.base_url), ..Frame::public("Sign up") },
        open: signup.mode == SignupMode::Open,
        email: email.to_owned(),
        fault,
        trial: some.then(|| format!("{} free credits for {}", signup.trial_credits, span(signup.trial_ms))),
        least: PASSWORD_LEAST_CHARS,
        most: PASSWORD_MOST_CHARS,
    }
}

/// `7 days`, `36 hours`, `90 seconds`: the largest unit that fits exactly.
fn span(ms: i64) -> String {
    let units = [(86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")];
    let (count, unit) = units
        .into_iter()
        .find(|(unit_ms, _)| ms % unit_ms == 0)
        .map_or((ms / 1_000, "second"), |(unit_ms, name)| (ms / unit_ms, name));
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

pub async fn sign_up_page(State(app): State<Arc<App>>) -> Response {
    html(StatusCode::OK, &sign_up_form(&app, "", None))
}

pub async fn sign_up(
    State(app): State<Arc<App>>,
    CallerAddress(address): CallerAddress,
    headers: HeaderMap,
    form: Result<Form<Credentials>, FormRejection>,
) -> Result<Response, Problem> {
    let Form(Credentials { email, password }) = form?;
    let settings = app.settings.load_full();
    if settings.signup.mode == SignupMode::Closed {
        return Ok(html(StatusCode::FORBIDDEN, &sign_up_form(&app, &email, None)));
    }
    let now_ms = now_ms();
    // Tests and first steps sign up on the machine itself.
    let counted = !address.to_canonical().is_loopback();
    let who = Who::AddressSigningUp(one_address(address));
    let rate = Rate {
        count: i64::try_from(settings.limits.sign_ups_per_address_per_hour).unwrap_or(i64::MAX),
        window_ms: 3_600_000,
    };
    if counted && let Err(seconds) = app.throttle.take(&who, rate, now_ms) {
        let fault = Some("Too many sign-ups from this address. Try again later.".to_owned());
        return Ok(with_retry_after(html(StatusCode::TOO_MANY_REQUESTS, &sign_up_form(&app, &email, fault)), seconds));
    }
    let (accounts, billing, signup) = (app.accounts.clone(), app.billing.clone(), settings.signup);
    let sent = email.clone();
    let made =
        app.hashing.run(move || account::sign_up(&accounts, &billing, &signup, &sent, &password, now_ms)).await?;
    match made {
        Ok(account) => signed_in(&app, &account.id, &headers).await,
        Err(error) => {
            // Only an account that was made counts.
            if counted {
                app.throttle.give_back(&who, rate);
            }
            let (status, fault) = match error {
                AccountError::BadEmail => (StatusCode::UNPROCESSABLE_ENTITY, "That is not an e-mail address.".into()),
                AccountError::BadPassword => (
                    StatusCode::UNPROCESSABLE_ENTITY,
                    format!("A password has {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters."),
                ),
                AccountError::EmailTaken => {
                    (StatusCode::CONFLICT, "This e-mail has an account already. Sign in instead.".into())
                }
                other => return Err(other.into()),
            };
            Ok(html(status, &sign_up_form(&app, &email, Some(fault))))
        }
    }
}

fn sign_in_form(app: &App, email: &str, fault: Option<&str>) -> SignInPage {
    let settings = app.settings.load();
    SignInPage {
        frame: Frame { insecure: insecure(&settings.base_url), ..Frame::public("Sign in") },
        email: email.to_owned(),
        fault: fault.map(ToOwned::to_owned),
        open: settings.signup.mode == SignupMode::Open,
    }
}

pub async fn sign_in_page(State(app): State<Arc<App>>) -> Response {
    html(StatusCode::OK, &sign_in_form(&app, "", None))
}

pub async fn sign_in(
    State(app): State<Arc<App>>,
    CallerAddress(address): CallerAddress,
    headers: HeaderMap,
    form: Result<Form<Credentials>, FormRejection>,
) -> Result<Response, Problem> {
    let Form(Credentials { email, password }) = form?;
    let now_ms = now_ms();
    if let Err(seconds) = count_sign_in(&app, &email, address, now_ms) {
        let page = sign_in_form(&app, &email, Some("Too many tries. Wait a little, then try again."));
        return Ok(with_retry_after(html(StatusCode::TOO_MANY_REQUESTS, &page), seconds));
    }
    let (accounts, sent) = (app.accounts.clone(), email.clone());
    let Some(account) = app.hashing.run(move || accounts.check_password(&sent, &password)).await?? else {
        let page = sign_in_form(&app, &email, Some("E-mail or password is wrong."));
        return Ok(html(StatusCode::UNAUTHORIZED, &page));
    };
    for (who, rate) in sign_in_counts(&email, address) {
        app.throttle.give_back(&who, rate);
    }
    signed_in(&app, &account.id, &headers).await
}

/// What a try at signing in counts against. It is counted before the hash, so that many at once gain nothing.
fn sign_in_counts(email: &str, address: IpAddr) -> [(Who, Rate); 2] {
    // Nobody's e-mail is longer: cut, so that the table's entries have a ceiling too.
    let email = email.trim().chars().take(254).collect::<String>().to_ascii_lowercase();
    [(Who::AddressSigningIn(one_address(address)), SIGN_IN_ADDRESS), (Who::EmailSigningIn(email), SIGN_IN_EMAIL)]
}

fn count_sign_in(app: &App, email: &str, address: IpAddr, now_ms: i64) -> Result<(), i64> {
    for (who, rate) in sign_in_counts(email, address) {
        app.throttle.take(&who, rate, now_ms)?;
    }
    Ok(())
}

fn with_retry_after(mut response: Response, seconds: i64) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// A new session, whoever was signed in before: a token that was known before the sign-in opens nothing after it.
async fn signed_in(app: &App, account: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    let base_url = app.settings.load().base_url.clone();
    let old = session_token(headers, &base_url);
    let (accounts, billing, account) = (app.accounts.clone(), app.billing.clone(), account.to_owned());
    let new = blocking(move || {
        // This may be the account of a sign-up that failed half way.
        complete_sign_ups(&accounts, &billing, now_ms())?;
        if let Some(old) = old {
            accounts.end_session(&old)?;
        }
        accounts.create_session(&account, now_ms())
    })
    .await??;
    let cookie = session_cookie(&new.token, &base_url)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/dashboard")).into_response())
}

pub async fn sign_out(State(app): State<Arc<App>>, form: SignedForm) -> Result<Response, Problem> {
    let (accounts, Visitor { token, .. }) = (app.accounts.clone(), form.visitor);
    blocking(move || accounts.end_session(&token)).await??;
    let cookie = session_cookie("", &app.settings.load().base_url)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to("/dashboard/sign-in")).into_response())
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn a_trial_is_named_in_the_largest_unit_that_fits() {
        assert_eq!(span(7 * 86_400_000), "7 days");
        assert_eq!(span(86_400_000), "1 day");
        assert_eq!(span(129_600_000), "36 hours");
        assert_eq!(span(8_640), "8 seconds");
    }
}
