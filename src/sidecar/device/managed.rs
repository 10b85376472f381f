//! Serves the settings that an operator gives to programs that signed in
//! (`sign_in.managed_settings`). A key of the gateway opens them.
//!
//! This file must not read the settings' file, which the config does.

use super::super::error::PageError;
use super::super::error_page::render_failure;
use super::super::state::SidecarState;
use accounts::AuthError;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::clock::now_ms;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use std::sync::Arc;

pub async fn settings(
    State(app): State<Arc<SidecarState>>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let refuse = |kind| {
        let failure = Failure::from_kind(kind);
        render_failure(&failure, Protocol::Messages, &headers)
    };
    let Some(key) = bearer(&headers) else {
        return Ok(refuse(Kind::MissingKey));
    };
    match app.accounts.api_keys().authenticate(key, now_ms()) {
        Ok(_) => {}
        Err(AuthError::Unavailable(error)) => return Err(error.into()),
        Err(AuthError::KeyExpired(_)) => return Ok(refuse(Kind::KeyExpired)),
        Err(AuthError::KeyDisabled(_)) => return Ok(refuse(Kind::KeyDisabled)),
        Err(AuthError::AccountSuspended(_)) => return Ok(refuse(Kind::AccountSuspended)),
        Err(AuthError::BadKey | AuthError::TooManyLookups) => return Ok(refuse(Kind::BadKey)),
    }
    let settings = app.settings.load();
    let Some(managed) = &settings.sign_in.managed_settings else {
        return Ok(refuse(Kind::UnknownPath));
    };
    let etag = format!("\"{}\"", managed.checksum);
    let is_known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (json, managed.document.to_string()).into_response()
        }
    };
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}
