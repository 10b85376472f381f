//! The failures that a handler of the sidecar returns. `error_page.rs` turns them into responses.
//!
//! Must not know a page.

use accounts::AccountError;
use axum::extract::rejection::FormRejection;
use axum::http::StatusCode;
use ledger::StoreError;

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
    OwnAccount,
    /// What the page shows is in a segment of the ledger that cannot be read; the text is for the
    /// log only.
    Archived(String),
    /// Internal error; the text is for the log only.
    Internal(String),
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SegmentUnavailable(why) => Self::Archived(why),
            error => Self::Internal(error.to_string()),
        }
    }
}

impl From<AccountError> for PageError {
    fn from(error: AccountError) -> Self {
        Self::Internal(error.to_string())
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
