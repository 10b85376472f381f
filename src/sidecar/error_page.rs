//! Turns each failure of the sidecar into a response: a page with advice that reveals no internals.
//! No other file does this. Internal errors are logged here, once.

use super::error::PageError;
use super::form::sentence;
use super::page::{Frame, html};
use super::session::CurrentUser;
use super::state::SidecarState;
use askama::Template;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use base::telemetry::METRICS;
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "problem.html")]
struct ErrorPage {
    frame: Frame,
    heading: &'static str,
    text: String,
    /// Number by which an operator finds the error in the log.
    reference: Option<String>,
}

/// Returns a random number that an error page and the error's log line share.
fn new_reference() -> Option<String> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).ok()?;
    Some(format!("{:08x}", u32::from_be_bytes(bytes)))
}

impl PageError {
    /// Returns the status, the heading and the text of the error's page; `None` for an error that
    /// leads to another page.
    fn page(&self) -> Option<(StatusCode, &'static str, &str)> {
        Some(match self {
            Self::SignIn => return None,
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "Not found",
                "This page does not exist.",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "Not possible",
                "This page does not support this request method.",
            ),
            Self::CrossSite => (
                StatusCode::FORBIDDEN,
                "Refused",
                "A page of another site requested this change. Make it on the dashboard itself.",
            ),
            Self::StaleForm => (
                StatusCode::FORBIDDEN,
                "This form is out of date",
                "You signed in again after it was loaded, or the account that is shown is another one now. Nothing was changed. Go back, reload the page, look which account it shows, and send the form again.",
            ),
            Self::BadForm => (
                StatusCode::BAD_REQUEST,
                "Invalid form",
                "The form lacks a field or has an invalid one. Go back, reload the page and send the form again.",
            ),
            Self::ViewerOnly => (
                StatusCode::FORBIDDEN,
                "Refused",
                "You have read-only access. Ask an administrator to make this change.",
            ),
            Self::RoleForbids => (
                StatusCode::FORBIDDEN,
                "Refused",
                "Your role in this organisation does not allow this. Ask one of its owners, or switch to another account at /dashboard/switch.",
            ),
            Self::OwnAccount => (
                StatusCode::CONFLICT,
                "Refused",
                "You would lock yourself out. Ask another administrator to suspend this account.",
            ),
            Self::Refused(why) => (StatusCode::CONFLICT, "Refused", why),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "Too large",
                "A form may have at most 64 KiB. Shorten it and send it again.",
            ),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Busy",
                "The gateway has too many requests of this kind at the moment. Try again soon.",
            ),
            Self::Archived(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Archived",
                "This request is archived and cannot be read at the moment. Ask the operator of this gateway, with the request's id.",
            ),
            Self::Storage(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The gateway's disk does not answer",
                "The gateway cannot read or write its files at the moment. Try again soon. If you made a change, check whether it was saved.",
            ),
            Self::TooMuch(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "Too much to read",
                "This page would have to read more than a page may. Ask for less, by a filter or a shorter time.",
            ),
            Self::Internal(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Something went wrong",
                "Something went wrong on our side. Check whether your change was saved.",
            ),
        })
    }

    /// Counts and logs an error that an operator must know. Returns its reference.
    fn report(&self) -> Option<String> {
        let what = match self {
            Self::Archived(what) => what,
            Self::Storage(what) | Self::TooMuch(what) | Self::Internal(what) => {
                METRICS.ledger_error("accounts");
                what
            }
            _ => return None,
        };
        let reference = new_reference();
        let shown = reference.as_deref().unwrap_or("none");
        log::error!("sidecar: {what} (reference {shown})");
        reference
    }

    /// Returns the page of the error, in a frame for its title.
    fn respond(self, frame: impl FnOnce(&'static str) -> Frame) -> Response {
        let Some((status, heading, text)) = self.page() else {
            return Redirect::to("/dashboard/sign-in").into_response();
        };
        let page = ErrorPage {
            frame: frame(heading),
            heading,
            text: match &self {
                Self::Refused(why) => sentence(why),
                _ => text.to_owned(),
            },
            reference: self.report(),
        };
        let mut response = html(status, &page);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from_static("2");
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let is_forbidden = matches!(self, Self::RoleForbids);
        let mut response = self.respond(Frame::public);
        if is_forbidden {
            response.extensions_mut().insert(ForbiddenByRole);
        }
        response
    }
}

/// Marks the response to a request that the reader's role forbids.
#[derive(Clone)]
struct ForbiddenByRole;

/// Gives the page of what a role forbids the reader's frame, whose menu has what the role allows.
/// Other errors have the public frame, so that they look alike for everybody.
pub async fn frame_forbidden(
    State(app): State<Arc<SidecarState>>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let mut again = head.clone();
    let response = next.run(Request::from_parts(head, body)).await;
    if response.extensions().get::<ForbiddenByRole>().is_none() {
        return response;
    }
    match CurrentUser::from_request_parts(&mut again, &app).await {
        Ok(user) => PageError::RoleForbids.respond(|title| Frame::new(title, &user)),
        Err(_) => response,
    }
}

/// Returns where a page is that was asked for with a slash at the end of its path.
fn path_without_slash(method: &Method, uri: &Uri) -> Option<String> {
    let path = uri.path();
    let is_page = path.starts_with("/dashboard/") || path.starts_with("/docs/");
    if !is_page || !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let path = path.strip_suffix('/')?;
    Some(match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    })
}

/// Handles unknown paths. An API client with a wrong base URL receives an error in its format.
pub async fn not_found(
    State(app): State<Arc<SidecarState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    if let Some(path) = path_without_slash(&method, &uri) {
        return Redirect::permanent(&path).into_response();
    }
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
    let failure = Failure::unknown_path(method.as_str(), uri.path(), &settings.base_url);
    render_failure(&failure, surface, &headers)
}

/// Returns a failure as the API of a surface writes it.
pub fn render_failure(failure: &Failure, surface: Protocol, headers: &HeaderMap) -> Response {
    let request_id = headers
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
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

/// Returns whether the client is a program. A program sends a key or JSON, or accepts only JSON.
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
