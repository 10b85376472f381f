//! The only place where a failure of the sidecar becomes an answer: a page that says what to do, and nothing of the
//! inside. What went wrong inside is logged here, once.

use super::page::{Frame, html};
use crate::account::AccountError;
use crate::store::StoreError;
use askama::Template;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};

#[derive(Debug)]
pub enum Problem {
    /// Nobody is signed in.
    SignIn,
    NotFound,
    MethodNotAllowed,
    /// Another site's page asked for a change.
    CrossSite,
    /// A form without its session's token.
    StaleForm,
    BadForm,
    TooLarge,
    /// Too many at one time.
    Busy,
    /// A viewer who would act.
    ViewerOnly,
    /// An administrator who would lock themselves out.
    OwnDoor,
    /// Something inside failed; `0` is for the log alone.
    Inside(String),
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    heading: &'static str,
    text: &'static str,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, heading, text) = match self {
            Self::SignIn => return Redirect::to("/dashboard/sign-in").into_response(),
            Self::NotFound => (StatusCode::NOT_FOUND, "Not found", "There is no such page."),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "Not possible", "This page cannot be asked for in that way.")
            }
            Self::CrossSite => {
                (StatusCode::FORBIDDEN, "Refused", "This change was asked for by a page of another site.")
            }
            Self::StaleForm => (
                StatusCode::FORBIDDEN,
                "This form is out of date",
                "You signed in again since it was loaded. Go back, reload the page and send it again.",
            ),
            Self::BadForm => {
                (StatusCode::BAD_REQUEST, "Not understood", "The form was not sent as this page sends it.")
            }
            Self::ViewerOnly => {
                (StatusCode::FORBIDDEN, "Refused", "You may look at this, and not act: that is for administrators.")
            }
            Self::OwnDoor => (
                StatusCode::CONFLICT,
                "Refused",
                "You would lock yourself out. Another administrator can suspend this account.",
            ),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "Too large", "A form has at most 64 KiB."),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "Busy", "Too many at one time. Try again in a moment."),
            Self::Inside(what) => {
                log::error!("sidecar: {what}");
                let text = "Something failed on our side. Nothing was changed that is not shown. Try again.";
                (StatusCode::INTERNAL_SERVER_ERROR, "Something failed", text)
            }
        };
        let mut response = html(status, &ProblemPage { frame: Frame::public(heading), heading, text });
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::Inside(error.to_string())
    }
}

impl From<AccountError> for Problem {
    fn from(error: AccountError) -> Self {
        Self::Inside(error.to_string())
    }
}

impl From<FormRejection> for Problem {
    fn from(rejection: FormRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            _ => Self::BadForm,
        }
    }
}

pub async fn not_found() -> Problem {
    Problem::NotFound
}

pub async fn method_not_allowed() -> Problem {
    Problem::MethodNotAllowed
}
