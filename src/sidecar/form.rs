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
use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

/// What is wrong with a form, for its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFault {
    text: String,
    /// Name of the field that the text is about, if it is about one.
    field: Option<Cow<'static, str>>,
}

impl FormFault {
    /// Creates the fault of one field, by its name in the form.
    pub fn at(field: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Self {
        let text = text.into();
        let field = Some(field.into());
        Self { text, field }
    }

    /// Returns whether the fault is about the field of this name.
    pub fn is_at(&self, field: &str) -> bool {
        self.field.as_deref() == Some(field)
    }
}

impl From<String> for FormFault {
    fn from(text: String) -> Self {
        Self { text, field: None }
    }
}

impl From<&str> for FormFault {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for FormFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// The paragraph of a fault, or nothing.
#[derive(Template)]
#[template(
    source = r#"{% if let Some(fault) = fault %}<p class="fault" role="alert" id="fault">{{ fault }}</p>{% endif %}"#,
    ext = "html"
)]
pub struct FaultParagraph<'f> {
    fault: Option<&'f FormFault>,
}

/// Returns what stands above a form: a fault that is about none of its fields.
pub fn above(fault: Option<&FormFault>) -> FaultParagraph<'_> {
    let fault = fault.filter(|fault| fault.field.is_none());
    FaultParagraph { fault }
}

/// Returns what stands beside the field of this name: a fault that is about it.
pub fn beside<'f>(fault: Option<&'f FormFault>, field: &str) -> FaultParagraph<'f> {
    let fault = fault.filter(|fault| fault.is_at(field));
    FaultParagraph { fault }
}

/// Returns the further attributes of the field of this name: what describes it, which is the
/// element with the id `hint`, if there is one, and the marks of a fault that is about it.
pub fn marks(fault: Option<&FormFault>, field: &str, hint: &str) -> String {
    let is_marked = beside(fault, field).fault.is_some();
    let described = match (is_marked, hint) {
        (false, "") => return String::new(),
        (false, hint) => return format!(r#" aria-describedby="{hint}""#),
        (true, "") => "fault".to_owned(),
        (true, hint) => format!("fault {hint}"),
    };
    format!(r#" aria-describedby="{described}" aria-invalid="true" autofocus"#)
}

/// Reads a field whose value is a whole number of a range.
pub fn parse_whole(
    field: &'static str,
    text: &str,
    range: RangeInclusive<i64>,
) -> Result<i64, FormFault> {
    let number = text.trim().parse().ok();
    let number = number.filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (min, max) = range.into_inner();
        FormFault::at(field, format!("Write a whole number from {min} to {max}."))
    })
}

/// Returns the text of an error as a sentence.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    format!("{}{}.", first.collect::<String>(), letters.as_str())
}

/// Reason why a form changed nothing.
pub enum FormStop {
    /// The page of the form is shown again, with this status and text.
    Fault(StatusCode, FormFault),
    Error(PageError),
}

impl FormStop {
    /// Returns the stop for a form with an unusable value.
    pub fn invalid(fault: impl Into<FormFault>) -> Self {
        Self::Fault(StatusCode::UNPROCESSABLE_ENTITY, fault.into())
    }

    /// Returns the stop for a form that the current state of the gateway forbids.
    pub fn conflict(fault: impl Into<FormFault>) -> Self {
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
    page: impl FnOnce(FormFault) -> Result<P, PageError>,
) -> Result<Response, PageError> {
    match outcome {
        Ok(response) => Ok(response),
        Err(FormStop::Fault(status, fault)) => Ok(html(status, &page(fault)?)),
        Err(FormStop::Error(error)) => Err(error),
    }
}
