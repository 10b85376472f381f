//! Lists the failures that a handler of the sidecar returns. `error_page.rs` turns them into
//! responses.
//!
//! This file must not depend on a page.

use accounts::AccountError;
use axum::extract::rejection::FormRejection;
use axum::http::StatusCode;
use ledger::StoreError;

#[derive(Debug)]
pub enum PageError {
    SignIn,
    NotFound,
    MethodNotAllowed,
    /// Another site's page requested a change.
    CrossSite,
    /// The form lacks the token of its session.
    StaleForm,
    BadForm,
    TooLarge,
    /// Too many concurrent requests.
    Busy,
    /// A viewer tried to make a change.
    ViewerOnly,
    /// The role of the user in the organisation that is shown does not allow it.
    RoleForbids,
    /// An administrator tried to lock themselves out.
    OwnAccount,
    /// A rule forbids the change, which was not made.
    Refused(String),
    /// The requested data is in a ledger segment that cannot be read. The text is for the log only.
    Archived(String),
    /// The disk has no room or does not answer. The text is for the log only.
    Storage(String),
    /// The page would have to read more than a page may. The text is for the log only.
    TooMuch(String),
    /// An internal error occurred. The text is for the log only.
    Internal(String),
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SegmentUnavailable(why) => Self::Archived(why),
            StoreError::Refused(why) => Self::Refused(why),
            error if error.is_storage_failure() => Self::Storage(error.to_string()),
            error if error.is_endless_read() => Self::TooMuch(error.to_string()),
            error => Self::Internal(error.to_string()),
        }
    }
}

impl From<AccountError> for PageError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Store(error) => error.into(),
            // The role was taken away while the page was open.
            AccountError::NotAllowed => Self::RoleForbids,
            error => Self::Internal(error.to_string()),
        }
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
