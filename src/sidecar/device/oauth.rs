//! The endpoints that programs call to sign in: metadata (RFC 8414), a request (RFC 8628), tokens
//! for an answered request or a refresh token (RFC 6749), and the end of a login (RFC 7009).
//!
//! Fields that are not known are ignored, as the RFCs require: programs add some. This file must
//! not log a code or a token.

use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::session::{ClientIp, UNNAMED_CLIENT_HEADER, site_url};
use super::super::state::SidecarState;
use super::super::throttle::{AttemptLimit, ThrottleKey};
use crate::shared_credit::wait_until_published;
use accounts::{
    AccountError, DEVICE_REQUEST_MS, DevicePoll, LOGIN_TOKEN_MS, LoginRefresh, LoginTokens,
};
use axum::Json;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::clock::now_ms;
use config::address::client_prefix;
use ledger::StoreError;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
const REFRESH_GRANT: &str = "refresh_token";

/// Seconds between two polls of a program.
const POLL_SECONDS: i64 = 5;

/// Limit of polls of one request: a second less than `POLL_SECONDS`, because packets take unequal
/// times.
const POLLS: AttemptLimit = AttemptLimit {
    count: 1,
    window_ms: (POLL_SECONDS - 1) * 1_000,
};

/// Limit of requests from one address.
const REQUESTS: AttemptLimit = AttemptLimit {
    count: 30,
    window_ms: DEVICE_REQUEST_MS,
};

/// The same behind a proxy that names no client, where nobody may drive out the sign-ins of all
/// others.
const SHARED_REQUESTS: AttemptLimit = AttemptLimit {
    count: 300,
    window_ms: DEVICE_REQUEST_MS,
};

/// Maximum length of what a program calls itself, and of the name of its machine, in characters.
const MAX_CLIENT_CHARS: usize = 24;
const MAX_HOST_CHARS: usize = 32;

/// Name of the field by which `model-gateway login` reports its machine.
const HOST_FIELD: &str = "client_host";

type Fields = Result<Form<HashMap<String, String>>, FormRejection>;

/// A failure as OAuth writes it.
pub struct OAuthError {
    status: StatusCode,
    error: &'static str,
    description: &'static str,
    retry_after: Option<i64>,
}

impl OAuthError {
    fn new(status: StatusCode, error: &'static str, description: &'static str) -> Self {
        Self {
            status,
            error,
            description,
            retry_after: None,
        }
    }

    fn bad(error: &'static str, description: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, description)
    }

    /// The login does not exist any more: its program must sign in again.
    fn ended() -> Self {
        let description = "This login has ended. Sign in again.";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_grant", description)
    }
}

impl From<AccountError> for OAuthError {
    fn from(error: AccountError) -> Self {
        log::error!("sidecar: cannot sign in a program: {error}");
        let description =
            "The gateway cannot read or write its data at the moment. Try again soon.";
        Self {
            retry_after: Some(POLL_SECONDS),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "temporarily_unavailable",
                description,
            )
        }
    }
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "error_description": self.description});
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

pub async fn metadata(State(app): State<Arc<SidecarState>>, headers: HeaderMap) -> Json<Value> {
    let site = site_url(&headers, &app.settings.load().base_url);
    Json(json!({
        "issuer": site,
        "device_authorization_endpoint": format!("{site}/oauth/device_authorization"),
        "token_endpoint": format!("{site}/oauth/token"),
        "revocation_endpoint": format!("{site}/oauth/revoke"),
        "grant_types_supported": [DEVICE_GRANT, REFRESH_GRANT],
        "response_types_supported": [],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
    }))
}

/// Begins the sign-in of a program.
pub async fn authorize(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Json<Value>, OAuthError> {
    // A program needs no field, so a body that is no form says nothing.
    let fields = fields.map(|Form(fields)| fields).unwrap_or_default();
    let now_ms = now_ms();
    let limit = match headers.contains_key(UNNAMED_CLIENT_HEADER) {
        true => SHARED_REQUESTS,
        false => REQUESTS,
    };
    let key = ThrottleKey::AddressAskingLogin(client_prefix(address));
    if let Err(seconds) = app.throttle.try_acquire(&key, limit, now_ms) {
        let description = "Too many sign-ins from this network, which other people may share.";
        return Err(OAuthError {
            retry_after: Some(seconds),
            ..OAuthError::new(StatusCode::TOO_MANY_REQUESTS, "slow_down", description)
        });
    }
    let client = describe_client(&headers, &fields, address);
    let (accounts, address) = (app.accounts.clone(), address.to_canonical().to_string());
    let request = move || accounts.device_logins().request(&client, &address, now_ms);
    let new = run_blocking(request).await.map_err(unavailable)??;
    let page = format!(
        "{}/device",
        site_url(&headers, &app.settings.load().base_url)
    );
    Ok(Json(json!({
        "device_code": new.device_code,
        "user_code": new.user_code,
        "verification_uri": page,
        "verification_uri_complete": format!("{page}?user_code={}", new.user_code),
        "expires_in": DEVICE_REQUEST_MS / 1_000,
        "interval": POLL_SECONDS,
    })))
}

/// Gives tokens for an answered request, or for a refresh token.
pub async fn token(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    fields: Fields,
) -> Result<Json<Value>, OAuthError> {
    let Ok(Form(fields)) = fields else {
        let description = "Send a form: content-type application/x-www-form-urlencoded.";
        return Err(OAuthError::bad("invalid_request", description));
    };
    match field(&fields, "grant_type")? {
        DEVICE_GRANT => poll(&app, field(&fields, "device_code")?.to_owned()).await,
        REFRESH_GRANT => {
            let address = address.to_canonical().to_string();
            refresh(&app, field(&fields, "refresh_token")?.to_owned(), address).await
        }
        _ => {
            let description = "The grants are the device code and refresh_token.";
            Err(OAuthError::bad("unsupported_grant_type", description))
        }
    }
}

async fn poll(app: &SidecarState, device_code: String) -> Result<Json<Value>, OAuthError> {
    let now_ms = now_ms();
    let (accounts, code) = (app.accounts.clone(), device_code.clone());
    let work = move || {
        let polled = accounts.device_logins().poll(&code, now_ms)?;
        if let DevicePoll::Approved(tokens) = &polled {
            wait_until_published(&accounts, &tokens.key_id);
        }
        Ok::<_, AccountError>(polled)
    };
    let polled = run_blocking(work).await.map_err(unavailable)??;
    let (error, description) = match polled {
        DevicePoll::Approved(tokens) => return Ok(tokens_json(&tokens)),
        DevicePoll::Open => {
            let key = ThrottleKey::LoginPolling(device_code);
            match app.throttle.try_acquire(&key, POLLS, now_ms) {
                Ok(()) => ("authorization_pending", "Nobody has answered yet."),
                Err(_) => ("slow_down", "Poll five seconds less often."),
            }
        }
        DevicePoll::Refused => ("access_denied", "The sign-in was refused."),
        DevicePoll::Expired => ("expired_token", "Nobody answered in time."),
        DevicePoll::Unknown => (
            "invalid_grant",
            "This device code is unknown, or its tokens were fetched.",
        ),
    };
    Err(OAuthError::bad(error, description))
}

async fn refresh(
    app: &SidecarState,
    token: String,
    address: String,
) -> Result<Json<Value>, OAuthError> {
    let accounts = app.accounts.clone();
    let work = move || {
        let refreshed = accounts
            .device_logins()
            .refresh(&token, &address, now_ms())?;
        match &refreshed {
            LoginRefresh::Done(tokens) => wait_until_published(&accounts, &tokens.key_id),
            LoginRefresh::Reused(key) => {
                log::warn!("sidecar: the login {key} is revoked: a refresh token of it came twice");
                wait_until_published(&accounts, key)
            }
            LoginRefresh::Invalid | LoginRefresh::TooMany => true,
        };
        Ok::<_, AccountError>(refreshed)
    };
    match run_blocking(work).await.map_err(unavailable)?? {
        LoginRefresh::Done(tokens) => Ok(tokens_json(&tokens)),
        LoginRefresh::Invalid | LoginRefresh::Reused(_) => Err(OAuthError::ended()),
        LoginRefresh::TooMany => {
            let description = "This refresh token was used too often. Use the newest one.";
            let status = StatusCode::TOO_MANY_REQUESTS;
            Err(OAuthError::new(status, "slow_down", description))
        }
    }
}

/// Ends the login that a token is of. As RFC 7009 requires, a token that is not known is no error.
pub async fn revoke(
    State(app): State<Arc<SidecarState>>,
    fields: Fields,
) -> Result<StatusCode, OAuthError> {
    let fields = fields.map(|Form(fields)| fields).unwrap_or_default();
    let (accounts, token) = (app.accounts.clone(), field(&fields, "token")?.to_owned());
    let work = move || {
        if let Some(key) = accounts.device_logins().revoke(&token, now_ms())? {
            wait_until_published(&accounts, &key);
        }
        Ok::<_, AccountError>(())
    };
    run_blocking(work).await.map_err(unavailable)??;
    Ok(StatusCode::OK)
}

fn unavailable(error: PageError) -> OAuthError {
    let what = match error {
        PageError::Storage(what) | PageError::Internal(what) => what,
        _ => "its thread does not answer".to_owned(),
    };
    AccountError::from(StoreError::Unusable(what)).into()
}

fn field<'a>(
    fields: &'a HashMap<String, String>,
    name: &'static str,
) -> Result<&'a str, OAuthError> {
    let value = fields.get(name).map_or("", String::as_str);
    let missing = || OAuthError::bad("invalid_request", "The form lacks a required field.");
    (!value.is_empty()).then_some(value).ok_or_else(missing)
}

fn tokens_json(tokens: &LoginTokens) -> Json<Value> {
    Json(json!({
        "access_token": tokens.access_token,
        "token_type": "Bearer",
        "expires_in": LOGIN_TOKEN_MS / 1_000,
        "refresh_token": tokens.refresh_token,
        "email": tokens.email,
    }))
}

/// Returns what a program calls itself and its machine, such as `claude-code/2.1 (192.0.2.7)`. It
/// may be a lie, so that the page shows the address besides.
fn describe_client(
    headers: &HeaderMap,
    fields: &HashMap<String, String>,
    address: IpAddr,
) -> String {
    let plain = |text: &str, max: usize| -> String {
        let letters = text.chars();
        let letters = letters.take_while(|letter| *letter != ' ');
        let letters = letters.filter(|it| it.is_ascii_alphanumeric() || "._-/".contains(*it));
        letters.take(max).collect()
    };
    let user_agent = headers.get(header::USER_AGENT);
    let user_agent = user_agent.and_then(|value| value.to_str().ok());
    let name = plain(user_agent.unwrap_or_default(), MAX_CLIENT_CHARS);
    let name = if name.is_empty() { "program" } else { &name };
    let host = fields.get(HOST_FIELD).map_or("", String::as_str);
    match plain(host, MAX_HOST_CHARS) {
        host if host.is_empty() => format!("{name} ({})", address.to_canonical()),
        host => format!("{name} ({host})"),
    }
}
