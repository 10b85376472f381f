//! Turns failures of the admin API into responses of the form `{"error":{"code","message"}}`. No
//! other file does so. Internal errors are logged here, once, and not sent to the client.

use accounts::AccountError;
use axum::Json;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledger::StoreError;
use serde_json::json;

#[derive(Debug)]
pub enum AdminError {
    /// The request has no key or no valid one. The response does not say which.
    NoKey,
    Forbidden(&'static str),
    NotFound(String),
    WrongMethod,
    TooLarge,
    /// The request is malformed. The text names the member.
    Invalid(String),
    /// The reference was already used for a different posting.
    ReferenceUsed(String),
    /// The e-mail already has an account.
    EmailTaken,
    /// The ledger's rules forbid the posting.
    Refused(String),
    /// The request is sealed in a segment whose file is missing.
    SegmentUnavailable(String),
    /// The payment provider has refused, or cannot be reached.
    Provider(String),
    /// Too many concurrent writes.
    Busy,
    /// The request timed out, but the change may have been made.
    TimedOut,
    /// The disk has no room or does not answer. The text is for the log only.
    Storage(String),
    /// An internal error. The text is for the log only.
    Internal(String),
}

impl AdminError {
    /// Returns the status, the code and the message of the error's response.
    fn describe(self) -> (StatusCode, &'static str, String) {
        match self {
            Self::NoKey => {
                let message =
                    "send an administrator's gateway key as `Authorization: Bearer`".into();
                (StatusCode::UNAUTHORIZED, "bad_key", message)
            }
            Self::Forbidden(why) => (StatusCode::FORBIDDEN, "forbidden", why.into()),
            Self::NotFound(what) => (StatusCode::NOT_FOUND, "not_found", what),
            Self::WrongMethod => (
                StatusCode::METHOD_NOT_ALLOWED,
                "wrong_method",
                "this path does not support this method".into(),
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                "the body is larger than 64 KiB".into(),
            ),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid", why),
            Self::ReferenceUsed(why) => (StatusCode::CONFLICT, "reference_used", why),
            Self::EmailTaken => (
                StatusCode::CONFLICT,
                "email_taken",
                AccountError::EmailTaken.to_string(),
            ),
            Self::Refused(why) => (StatusCode::UNPROCESSABLE_ENTITY, "refused", why),
            Self::SegmentUnavailable(why) => {
                (StatusCode::SERVICE_UNAVAILABLE, "segment_unavailable", why)
            }
            Self::Provider(why) => (StatusCode::BAD_GATEWAY, "provider", why),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "too many concurrent writes: retry".into(),
            ),
            Self::TimedOut => {
                let message =
                    "the request took too long and may have been completed: look whether it was. What has a reference can be repeated with it"
                        .into();
                (StatusCode::SERVICE_UNAVAILABLE, "timed_out", message)
            }
            Self::Storage(_) => {
                let message =
                    "the gateway cannot read or write its files at the moment: repeat the request, with the same reference if it has one"
                        .into();
                (StatusCode::SERVICE_UNAVAILABLE, "storage", message)
            }
            Self::Internal(_) => {
                let message =
                    "something went wrong on our side: repeat the request, with the same reference if it has one"
                        .into();
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            }
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        if let Self::Storage(what) | Self::Internal(what) = &self {
            log::error!("admin: {what}");
        }
        let (status, code, message) = self.describe();
        let mut response = (
            status,
            Json(json!({"error": {"code": code, "message": message}})),
        )
            .into_response();
        let more: Option<(HeaderName, &str)> = match status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, "1")),
            _ => None,
        };
        if let Some((name, value)) = more {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_storage_failure() => Self::Storage(error.to_string()),
            StoreError::Refused(why) | StoreError::Held(why) => Self::Refused(why),
            StoreError::Unknown(what) => Self::NotFound(what),
            StoreError::ReferenceUsed(why) => Self::ReferenceUsed(why),
            StoreError::SegmentUnavailable(why) => Self::SegmentUnavailable(why),
            StoreError::Sqlite { .. }
            | StoreError::SharedStore { .. }
            | StoreError::Postgres { .. }
            | StoreError::NotHolder(_)
            | StoreError::Io { .. }
            | StoreError::Unusable(_) => Self::Internal(error.to_string()),
        }
    }
}

impl From<AccountError> for AdminError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Store(error) => error.into(),
            AccountError::EmailTaken => Self::EmailTaken,
            AccountError::BadEmail
            | AccountError::BadPassword
            | AccountError::BadKeyName
            | AccountError::HiddenCharInKeyName
            | AccountError::BadOrganisationName
            | AccountError::BadDomain
            | AccountError::BadModels
            | AccountError::BadRate => Self::Invalid(error.to_string()),
            AccountError::NoAccount | AccountError::NoKey | AccountError::NoMember => {
                Self::NotFound(error.to_string())
            }
            AccountError::Random(_) | AccountError::Password(_) => {
                Self::Internal(error.to_string())
            }
            refused => Self::Refused(refused.to_string()),
        }
    }
}

impl From<BytesRejection> for AdminError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            _ => Self::Invalid("the body is incomplete".into()),
        }
    }
}

impl From<PathRejection> for AdminError {
    fn from(rejection: PathRejection) -> Self {
        Self::Invalid(rejection.body_text())
    }
}

impl From<QueryRejection> for AdminError {
    fn from(rejection: QueryRejection) -> Self {
        Self::Invalid(rejection.body_text())
    }
}
