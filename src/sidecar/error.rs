//! The only place that turns a failure of the sidecar into a response: a page that says what to do
//! and reveals no internals. Internal errors are logged here, once.

use super::SidecarState;
use super::page::{Frame, html};
use crate::account::AccountError;
use crate::store::StoreError;
use askama::Template;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use std::sync::Arc;

#[derive(Debug)]
pub enum PageError {
    /// No one is signed in.
    SignIn,
    NotFound,
    MethodNotAllowed,
    /// Another site's page requested a change.
    CrossSite,
    /// A form without its session's token.
    StaleForm,
    BadForm,
    TooLarge,
    /// Too many concurrent requests.
    Busy,
    /// A viewer tried to make a change.
    ViewerOnly,
    /// An administrator tried to lock themselves out.
    OwnDoor,
    /// Internal error; the text is for the log only.
    Inside(String),
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ErrorPage {
    frame: Frame,
    heading: &'static str,
    text: &'static str,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let (status, heading, text) = match self {
            Self::SignIn => return Redirect::to("/dashboard/sign-in").into_response(),
            Self::NotFound => (StatusCode::NOT_FOUND, "Not found", "There is no such page."),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "Not possible",
                "This page cannot be asked for in that way.",
            ),
            Self::CrossSite => (
                StatusCode::FORBIDDEN,
                "Refused",
                "This change was asked for by a page of another site.",
            ),
            Self::StaleForm => (
                StatusCode::FORBIDDEN,
                "This form is out of date",
                "You signed in again since it was loaded. Go back, reload the page and send it again.",
            ),
            Self::BadForm => (
                StatusCode::BAD_REQUEST,
                "Not understood",
                "The form was not sent as this page sends it.",
            ),
            Self::ViewerOnly => (
                StatusCode::FORBIDDEN,
                "Refused",
                "You may look at this, and not act: that is for administrators.",
            ),
            Self::OwnDoor => (
                StatusCode::CONFLICT,
                "Refused",
                "You would lock yourself out. Another administrator can suspend this account.",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Too large",
                "A form has at most 64 KiB.",
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Busy",
                "Too many at one time. Try again in a moment.",
            ),
            Self::Inside(what) => {
                log::error!("sidecar: {what}");
                let text = "Something failed on our side. Nothing was changed that is not shown. Try again.";
                (StatusCode::INTERNAL_SERVER_ERROR, "Something failed", text)
            }
        };
        let mut response = html(
            status,
            &ErrorPage {
                frame: Frame::public(heading),
                heading,
                text,
            },
        );
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        Self::Inside(error.to_string())
    }
}

impl From<AccountError> for PageError {
    fn from(error: AccountError) -> Self {
        Self::Inside(error.to_string())
    }
}

impl From<FormRejection> for PageError {
    fn from(rejection: FormRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            _ => Self::BadForm,
        }
    }
}

/// Handles unknown paths. An API client with a wrong base URL gets an error in a format that it can
/// parse.
pub async fn not_found(
    State(app): State<Arc<SidecarState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if !is_api_client(&headers) {
        return PageError::NotFound.into_response();
    }
    let settings = app.settings.load();
    let surface = match settings
        .version_headers
        .iter()
        .any(|name| headers.contains_key(name))
    {
        true => Protocol::Messages,
        false => Protocol::Chat,
    };
    let request_id = headers
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
    let failure = Failure::unknown_path(method.as_str(), uri.path(), &settings.base_url);
    let rendered = failure.render(surface, request_id);
    let mut response = Response::new(rendered.body.into());
    *response.status_mut() = StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::NOT_FOUND);
    for (name, value) in rendered.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Whether the client is a program: it sends a key or JSON, or accepts JSON and no HTML.
fn is_api_client(headers: &HeaderMap) -> bool {
    let says = |name: header::HeaderName, kind: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.contains(kind))
    };
    let wants_json = says(header::ACCEPT, "application/json") && !says(header::ACCEPT, "text/html");
    let has_key = headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key");
    has_key || says(header::CONTENT_TYPE, "application/json") || wants_json
}

pub async fn method_not_allowed() -> PageError {
    PageError::MethodNotAllowed
}
