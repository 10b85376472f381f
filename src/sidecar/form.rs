//! Represents the end of a form that changed nothing: its page shows a fault, or another answer is
//! sent.
//!
//! A handler returns early with `?`, and [`respond`] builds the page in one place. This file must
//! not depend on a page.

use super::error::PageError;
use super::page::html;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

/// Reason for which a form changed nothing.
pub enum FormStop {
    /// The page of the form is shown again, with this status and text.
    Fault(StatusCode, String),
    Error(PageError),
}

impl FormStop {
    /// Returns the stop for a form with an unusable value.
    pub fn invalid(fault: impl Into<String>) -> Self {
        Self::Fault(StatusCode::UNPROCESSABLE_ENTITY, fault.into())
    }

    /// Returns the stop for a form that the current state of the gateway forbids.
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
