//! How a form ends without its change: with a fault that its page shows, or with another answer.
//!
//! The handler of a form leaves by `?` wherever it stops, and [`respond`] builds the page once.
//! Must not know a page.

use super::error::PageError;
use super::page::html;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

/// Why a form changed nothing.
pub enum FormStop {
    /// The page of the form shows this text.
    Fault(StatusCode, String),
    Error(PageError),
}

impl FormStop {
    /// The form has a value that cannot be used.
    pub fn invalid(fault: impl Into<String>) -> Self {
        Self::Fault(StatusCode::UNPROCESSABLE_ENTITY, fault.into())
    }

    /// The state of the gateway forbids what the form asks for.
    pub fn conflict(fault: impl Into<String>) -> Self {
        Self::Fault(StatusCode::CONFLICT, fault.into())
    }
}

impl<E: Into<PageError>> From<E> for FormStop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Answers a form. If it has a fault, `page` builds the form's page with it.
pub fn respond<P: Template>(
    outcome: Result<Response, FormStop>,
    page: impl FnOnce(String) -> Result<P, PageError>,
) -> Result<Response, PageError> {
    match outcome {
        Ok(response) => Ok(response),
        Err(FormStop::Fault(status, fault)) => Ok(html(status, &page(fault)?)),
        Err(FormStop::Error(error)) => Err(error),
    }
}
