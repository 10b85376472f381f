//! Sign-up, sign-in and sign-out, and the password check for all other forms (`try_password`).
//!
//! An unknown e-mail and a wrong password get the same response after the same time. At most two
//! passwords are hashed concurrently, on blocking threads. Sign-in always redirects to the
//! dashboard, whatever the URL contains. Must not know how a password is stored.

use super::App;
use super::browser;
use super::page::{Frame, html};
use super::problem::Problem;
use super::session::{
    CallerAddress, SignedForm, UNNAMED, Visitor, blocking, insecure, session_cookie, session_token,
    site,
};
use super::throttle::{Rate, Who};
use crate::account::{
    self, Account, AccountError, Origin, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS, SignedUp,
    Stranger, complete_sign_ups,
};
use crate::address::one_client;
use crate::clock::now_ms;
use crate::config::{Signup, SignupMode};
use askama::Template;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of concurrent password hashes: each needs 19 MiB and a core.
const HASHES_MAX: usize = 2;

/// Maximum number of requests that wait for a hash or have one computed. Over the limit: 503.
const HASH_PLACES: usize = 34;

/// Limit per e-mail and client address; `login_backoff.rs` adds further delays.
const SIGN_IN_EMAIL: Rate = Rate {
    count: 5,
    window_ms: 60_000,
};
/// Limit per e-mail over all addresses. It is high enough that a single attacker cannot keep the
/// account holder out.
const SIGN_IN_EMAIL_ANYWHERE: Rate = Rate {
    count: 100,
    window_ms: 60_000,
};
const SIGN_IN_ADDRESS: Rate = Rate {
    count: 20,
    window_ms: 60_000,
};

/// Limits the number of concurrent password hashes.
pub struct Hashing {
    places: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(HASH_PLACES)),
            running: Arc::new(Semaphore::new(HASHES_MAX)),
        }
    }
}

impl Hashing {
    /// Runs a hash. The permits move with the work, so a client that disconnects does not make room
    /// for a third hash.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| Problem::Busy)?;
        let turn = Arc::clone(&self.running)
            .acquire_owned()
            .await
            .map_err(|_| Problem::Busy)?;
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
    /// Invitation code, if sign-up requires one.
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
    SignUpPage {
        frame: Frame {
            insecure: insecure(&settings.base_url),
            ..Frame::public("Sign up")
        },
        open: signup.mode != SignupMode::Closed,
        invited: signup.mode == SignupMode::Invite,
        email: email.to_owned(),
        invite: String::new(),
        fault,
        trial: trial_of(&signup),
        least: PASSWORD_LEAST_CHARS,
        most: PASSWORD_MOST_CHARS,
    }
}

/// Describes the trial of a new account, if the settings grant one.
fn trial_of(signup: &Signup) -> Option<String> {
    let some = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    some.then(|| {
        format!(
            "{} free credits for {}",
            signup.trial_credits,
            span(signup.trial_ms)
        )
    })
}

/// Formats a duration as `7 days`, `36 hours` or `90 seconds`: in the largest unit that fits
/// exactly.
fn span(ms: i64) -> String {
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

pub async fn sign_up_page(State(app): State<Arc<App>>) -> Response {
    html(StatusCode::OK, &sign_up_form(&app, "", None))
}

pub async fn sign_up(
    State(app): State<Arc<App>>,
    CallerAddress(address): CallerAddress,
    headers: HeaderMap,
    form: Result<Form<Credentials>, FormRejection>,
) -> Result<Response, Problem> {
    let Form(Credentials {
        email,
        password,
        invite,
    }) = form?;
    let settings = app.settings.load_full();
    if settings.signup.mode == SignupMode::Closed {
        return Ok(html(
            StatusCode::FORBIDDEN,
            &sign_up_form(&app, &email, None),
        ));
    }
    let now_ms = now_ms();
    // Tests and first trials sign up from the machine itself, so loopback does not count. It does
    // count if it is a proxy that does not name its client: anyone may be behind it.
    let counted = !address.to_canonical().is_loopback() || headers.contains_key(UNNAMED);
    let who = Who::AddressSigningUp(one_client(address));
    let rate = Rate {
        count: i64::try_from(settings.limits.sign_ups_per_address_per_hour).unwrap_or(i64::MAX),
        window_ms: 3_600_000,
    };
    if counted && let Err(seconds) = app.throttle.take(&who, rate, now_ms) {
        let fault = Some("Too many sign-ups from this address. Try again later.".to_owned());
        return Ok(with_retry_after(
            html(
                StatusCode::TOO_MANY_REQUESTS,
                &sign_up_form(&app, &email, fault),
            ),
            seconds,
        ));
    }
    let (accounts, billing, signup) = (app.accounts.clone(), app.billing.clone(), settings.signup);
    let (sent, code) = (email.clone(), invite.clone());
    let made = app.hashing.run(move || {
        let stranger = Stranger {
            email: &sent,
            password: &password,
            invite: &code,
        };
        account::sign_up(&accounts, &billing, &signup, &stranger, now_ms)
    });
    match made.await? {
        Ok(SignedUp { account, trial }) => {
            let had_one = trial.is_none() && trial_of(&settings.signup).is_some();
            let to = if had_one {
                "/dashboard?trial=had"
            } else {
                "/dashboard"
            };
            signed_in(&app, &account.id, address, &headers, to).await
        }
        Err(error) => {
            // An attempt counts if it created an account, or if its error reveals something:
            // whether an invitation code is valid or an e-mail has an account. Otherwise an
            // attacker could try addresses without limit.
            if counted && !matches!(error, AccountError::NoInvite | AccountError::EmailTaken) {
                app.throttle.give_back(&who, rate);
            }
            let (status, fault) = not_signed_up(error)?;
            let response = html(
                status,
                &SignUpPage {
                    invite,
                    ..sign_up_form(&app, &email, Some(fault))
                },
            );
            Ok(if status == StatusCode::TOO_MANY_REQUESTS {
                with_retry_after(response, to_midnight(now_ms))
            } else {
                response
            })
        }
    }
}

/// Describes an error for the person who signs up. Internal errors become a page error.
fn not_signed_up(error: AccountError) -> Result<(StatusCode, String), Problem> {
    Ok(match error {
        AccountError::BadEmail => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "That is not an e-mail address.".into(),
        ),
        AccountError::BadPassword => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!(
                "A password has {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters, and is none that everybody uses."
            ),
        ),
        AccountError::EmailTaken => (
            StatusCode::CONFLICT,
            "This e-mail has an account already. Sign in instead.".into(),
        ),
        AccountError::NoInvite => (
            StatusCode::FORBIDDEN,
            "This invite code is not known, or it is used or expired.".into(),
        ),
        AccountError::TrialsSpent => {
            let text = "The trials of today are all given. Come back after midnight UTC.";
            (StatusCode::TOO_MANY_REQUESTS, text.into())
        }
        other => return Err(other.into()),
    })
}

/// Seconds until the trial budget of the next day.
fn to_midnight(now_ms: i64) -> i64 {
    (86_400_000 - now_ms.rem_euclid(86_400_000)) / 1_000 + 1
}

fn sign_in_form(app: &App, email: &str, fault: Option<&str>) -> SignInPage {
    let settings = app.settings.load();
    SignInPage {
        frame: Frame {
            insecure: insecure(&settings.base_url),
            ..Frame::public("Sign in")
        },
        email: email.to_owned(),
        fault: fault.map(ToOwned::to_owned),
        open: settings.signup.mode != SignupMode::Closed,
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
    let Form(Credentials {
        email, password, ..
    }) = form?;
    match try_password(&app, &email, password, address).await? {
        Tried::Right(account) => {
            signed_in(&app, &account.id, address, &headers, "/dashboard").await
        }
        Tried::Wrong => {
            let page = sign_in_form(&app, &email, Some("E-mail or password is wrong."));
            Ok(html(StatusCode::UNAUTHORIZED, &page))
        }
        Tried::TooOften { seconds } => {
            let page = sign_in_form(&app, &email, Some(TOO_OFTEN));
            Ok(with_retry_after(
                html(StatusCode::TOO_MANY_REQUESTS, &page),
                seconds,
            ))
        }
    }
}

const TOO_OFTEN: &str = "Too many tries. Wait a little, then try again.";

/// Result of a password check.
pub enum Tried {
    Right(Account),
    Wrong,
    /// The password was not checked.
    TooOften {
        seconds: i64,
    },
}

/// Checks a password, within the limits on attempts.
async fn try_password(
    app: &App,
    email: &str,
    password: String,
    address: IpAddr,
) -> Result<Tried, Problem> {
    let now_ms = now_ms();
    let email = throttled_email(email);
    let (place, account) = (one_client(address), email.clone());
    if let Err(seconds) = app.patience.may(&email, place, now_ms) {
        return Ok(Tried::TooOften { seconds });
    }
    if let Err(seconds) = count_sign_in(app, &email, address, now_ms) {
        return Ok(Tried::TooOften { seconds });
    }
    let accounts = app.accounts.clone();
    let Some(account) = app
        .hashing
        .run(move || accounts.check_password(&account, &password))
        .await??
    else {
        app.patience.failed(&email, place, now_ms);
        return Ok(Tried::Wrong);
    };
    app.patience.succeeded(&email, place);
    for (who, rate) in sign_in_counts(&email, address) {
        app.throttle.give_back(&who, rate);
    }
    Ok(Tried::Right(account))
}

/// Why the check of a repeated password failed.
pub struct Unconfirmed {
    pub status: StatusCode,
    pub fault: &'static str,
}

/// Confirms the user's identity by a password typed in the same form.
pub async fn confirm(
    app: &App,
    visitor: &Visitor,
    password: &str,
    address: IpAddr,
) -> Result<Result<(), Unconfirmed>, Problem> {
    let unconfirmed = |status, fault| Ok(Err(Unconfirmed { status, fault }));
    if password.is_empty() {
        return unconfirmed(StatusCode::FORBIDDEN, "Your password is needed for this.");
    }
    match try_password(app, &visitor.account.email, password.to_owned(), address).await? {
        Tried::Right(account) if account.id == visitor.account.id => {
            let (accounts, token) = (app.accounts.clone(), visitor.token.clone());
            blocking(move || accounts.confirm_session(&token, now_ms())).await??;
            Ok(Ok(()))
        }
        Tried::Right(_) | Tried::Wrong => {
            unconfirmed(StatusCode::FORBIDDEN, "The password is wrong.")
        }
        Tried::TooOften { .. } => unconfirmed(StatusCode::TOO_MANY_REQUESTS, TOO_OFTEN),
    }
}

/// Confirms the user's identity like [`confirm_password`], but also accepts a password typed within
/// the last minutes.
pub async fn confirm_again(
    app: &App,
    form: &SignedForm,
    address: IpAddr,
) -> Result<Result<(), Unconfirmed>, Problem> {
    if form.visitor.confirmed {
        return Ok(Ok(()));
    }
    confirm(app, &form.visitor, form.field("password"), address).await
}

/// Normalizes an e-mail as a key for counting. It is cut at the maximum length of an e-mail, which
/// bounds the size of the tables' entries too.
fn throttled_email(email: &str) -> String {
    email
        .trim()
        .chars()
        .take(254)
        .collect::<String>()
        .to_ascii_lowercase()
}

/// Limits that an attempt to sign in counts against. It counts before the hash, so that concurrent
/// attempts cannot bypass the limits.
fn sign_in_counts(email: &str, address: IpAddr) -> [(Who, Rate); 3] {
    let place = one_client(address);
    [
        (Who::AddressSigningIn(place), SIGN_IN_ADDRESS),
        (
            Who::EmailSigningInFrom(email.to_owned(), place),
            SIGN_IN_EMAIL,
        ),
        (
            Who::EmailSigningIn(email.to_owned()),
            SIGN_IN_EMAIL_ANYWHERE,
        ),
    ]
}

fn count_sign_in(app: &App, email: &str, address: IpAddr, now_ms: i64) -> Result<(), i64> {
    for (who, rate) in sign_in_counts(email, address) {
        app.throttle.take(&who, rate, now_ms)?;
    }
    Ok(())
}

pub fn with_retry_after(mut response: Response, seconds: i64) -> Response {
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// Starts a new session, even if there was one. A token that was known before the sign-in is not
/// valid after it.
async fn signed_in(
    app: &App,
    account: &str,
    address: IpAddr,
    headers: &HeaderMap,
    to: &'static str,
) -> Result<Response, Problem> {
    let site = site(headers, &app.settings.load().base_url);
    let old = session_token(headers, &site);
    let (accounts, billing, account) = (
        app.accounts.clone(),
        app.billing.clone(),
        account.to_owned(),
    );
    let (address, browser) = (address.to_canonical().to_string(), browser::name(headers));
    let new = blocking(move || {
        // This may be the account of a sign-up that failed half way.
        complete_sign_ups(&accounts, &billing, now_ms())?;
        if let Some(old) = old {
            accounts.end_session(&old)?;
        }
        accounts.create_session_from(
            &account,
            Origin {
                address: &address,
                browser: &browser,
            },
            now_ms(),
        )
    })
    .await??;
    let cookie = session_cookie(&new.token, &site)?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(to)).into_response())
}

pub async fn sign_out(State(app): State<Arc<App>>, form: SignedForm) -> Result<Response, Problem> {
    let (accounts, Visitor { token, site, .. }) = (app.accounts.clone(), form.visitor);
    blocking(move || accounts.end_session(&token)).await??;
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap_or_else(|_| panic!("{what}"));
    }

    /// Releases all waiting threads when it is dropped, so that a failed test does not leave
    /// threads running forever.
    struct Gate(Arc<AtomicBool>);

    impl Drop for Gate {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_passwords_are_hashed_at_one_time_some_wait_and_the_rest_are_sent_away() {
        let hashing = Arc::new(Hashing::default());
        let (go, running) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let gate = Gate(Arc::clone(&go));
        let work = || {
            let (go, running) = (Arc::clone(&go), Arc::clone(&running));
            move || {
                let beside = running.fetch_add(1, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                running.fetch_sub(1, Ordering::SeqCst);
                beside
            }
        };
        let waiting: Vec<_> = (0..HASH_PLACES)
            .map(|_| {
                let (hashing, work) = (Arc::clone(&hashing), work());
                tokio::spawn(async move { hashing.run(work).await })
            })
            .collect();
        until("every place is taken", || {
            hashing.places.available_permits() == 0
        })
        .await;
        until("two work", || running.load(Ordering::SeqCst) == HASHES_MAX).await;
        assert!(
            matches!(hashing.run(work()).await, Err(Problem::Busy)),
            "one more"
        );
        drop(gate);
        for one in waiting {
            let beside = one.await.unwrap().expect("whoever has a place is served");
            assert!(beside < HASHES_MAX, "{beside} others worked beside it");
        }
        assert!(hashing.run(work()).await.is_ok(), "there is room again");
    }

    #[test]
    fn a_trial_is_named_in_the_largest_unit_that_fits() {
        assert_eq!(span(7 * 86_400_000), "7 days");
        assert_eq!(span(86_400_000), "1 day");
        assert_eq!(span(129_600_000), "36 hours");
        assert_eq!(span(8_640), "8 seconds");
    }
}
