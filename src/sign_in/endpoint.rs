//! Requests to a provider's endpoints, and their answers as JSON.
//!
//! Must not put a body or a header into an error: they have codes, tokens and people.

use super::error::SignInError;
use crate::provider_client::{self, RequestBounds, encode_form};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use config::ProviderAddress;
use config::sign_in::IdentityProvider;
use http::{Method, Request, StatusCode, header};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum size of an answer, in bytes. Keys and documents of large providers have some 10 KiB.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Maximum length of a provider's error in a message, in characters.
const MAX_ERROR_CHARS: usize = 100;

/// How a request proves who sends it.
pub enum Authorization<'a> {
    None,
    /// The gateway's id and secret in the header.
    Basic,
    /// An access token.
    Bearer(&'a str),
}

/// Gets an endpoint.
pub async fn get<T: DeserializeOwned>(
    provider: &IdentityProvider,
    what: &str,
    url: &str,
    authorization: Authorization<'_>,
) -> Result<T, SignInError> {
    let (status, body) = send(provider, what, (Method::GET, url), "", authorization).await?;
    match status {
        StatusCode::OK => read(what, &body),
        other => Err(failed(what, other)),
    }
}

/// Redeems a code at the token endpoint.
pub async fn redeem<T: DeserializeOwned>(
    provider: &IdentityProvider,
    url: &str,
    fields: &[(&str, &str)],
    is_basic: bool,
) -> Result<T, SignInError> {
    let what = "the token endpoint";
    let own = [
        ("client_id", provider.client_id.as_str()),
        ("client_secret", provider.client_secret.reveal()),
    ];
    let (fields, authorization) = match is_basic {
        true => (fields.to_vec(), Authorization::Basic),
        false => ([fields, &own].concat(), Authorization::None),
    };
    let body = encode_form(&fields);
    let request = (Method::POST, url);
    let (status, body) = send(provider, what, request, &body, authorization).await?;
    // Some report an error with the status 200.
    let error = serde_json::from_slice::<Value>(&body).ok();
    let error = error.as_ref().and_then(|it| it["error"].as_str());
    match (status, error) {
        (status, _) if status.is_server_error() => Err(failed(what, status)),
        (_, Some(error)) => {
            let text: String = error.chars().take(MAX_ERROR_CHARS).collect();
            Err(SignInError::Refused(format!("{text:?}")))
        }
        (StatusCode::OK, None) => read(what, &body),
        (other, None) => Err(SignInError::Refused(format!("{what} answered {other}"))),
    }
}

fn failed(what: &str, status: StatusCode) -> SignInError {
    SignInError::Away(format!("{what} answered {status}"))
}

fn read<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, SignInError> {
    serde_json::from_slice(body).map_err(|error| {
        // The message of a data error may repeat a value.
        let (line, column) = (error.line(), error.column());
        SignInError::invalid(format!(
            "{what} is not the JSON it must be (line {line}, column {column})"
        ))
    })
}

/// Splits a URL into the server and what is requested there. A provider on https leads to no
/// address without it.
fn parse(provider: &IdentityProvider, url: &str) -> Option<(ProviderAddress, String)> {
    let (base, query) = url
        .split_once('?')
        .map_or((url, None), |(base, query)| (base, Some(query)));
    let address = ProviderAddress::parse(base)?;
    let is_safe = address.is_https || provider.issuer.starts_with("http://");
    let path = match base.ends_with('/') || address.path.is_empty() {
        true => format!("{}/", address.path),
        false => address.path.clone(),
    };
    let target = query.map_or(path.clone(), |query| format!("{path}?{query}"));
    is_safe.then_some((address, target))
}

/// Checks the address of an endpoint that browsers go to.
pub fn check(provider: &IdentityProvider, what: &str, url: &str) -> Result<(), SignInError> {
    let is_good = parse(provider, url).is_some() && !url.contains(['#', ';', '"']);
    is_good.then_some(()).ok_or_else(|| bad_address(what))
}

fn bad_address(what: &str) -> SignInError {
    SignInError::invalid(format!("{what} has no https:// address"))
}

async fn send(
    provider: &IdentityProvider,
    what: &str,
    (method, url): (Method, &str),
    body: &str,
    authorization: Authorization<'_>,
) -> Result<(StatusCode, Bytes), SignInError> {
    let (address, target) = parse(provider, url).ok_or_else(|| bad_address(what))?;
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .header(header::ACCEPT, "application/json")
        .header(
            header::USER_AGENT,
            concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::CONNECTION, "close");
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    }
    let authorization = match authorization {
        Authorization::None => None,
        Authorization::Basic => {
            // Each part is encoded by itself (RFC 6749, 2.3.1).
            let id = provider_client::encode(&provider.client_id);
            let secret = provider_client::encode(provider.client_secret.reveal());
            Some(format!(
                "Basic {}",
                STANDARD.encode(format!("{id}:{secret}"))
            ))
        }
        Authorization::Bearer(token) => Some(format!("Bearer {token}")),
    };
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request
        .body(Full::new(Bytes::from(body.to_owned())))
        // The error may name a value of a header.
        .map_err(|_| SignInError::invalid(format!("a request to {what} cannot be written")))?;
    let bounds = RequestBounds {
        timeout: provider.timeout,
        max_answer_bytes: MAX_ANSWER_BYTES,
    };
    provider_client::send(&address, request, bounds)
        .await
        .map_err(|why| SignInError::Away(format!("{what}: {why}")))
}
