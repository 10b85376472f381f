//! The step between a form and a change that cannot be undone: a page that says what will happen
//! and repeats the form. It needs no JavaScript and no route of its own.
//!
//! A handler that finds the form unconfirmed (`SignedForm::is_confirmed`) answers with [`page`].
//! Its button sends the same form to the same address, confirmed. Must not know what is confirmed.

use super::page::{Frame, html};
use super::session::SignedForm;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

/// The question that the page asks.
pub struct Confirmation<'a> {
    pub title: &'static str,
    /// What happens after the confirmation.
    pub consequence: String,
    pub button: &'static str,
    /// Path of the page to which the user returns without the change.
    pub back: &'a str,
}

#[derive(Template)]
#[template(path = "confirm.html")]
struct ConfirmPage<'f> {
    frame: Frame,
    csrf: &'f str,
    fields: Vec<(&'f str, &'f str)>,
    question: Confirmation<'f>,
}

/// Asks for a confirmation. `menu_title` is the title of the page with the form.
pub fn page(menu_title: &'static str, form: &SignedForm, question: Confirmation<'_>) -> Response {
    respond(menu_title, form, question, form.repeatable_fields())
}

/// Asks for a confirmation of what must happen once, however often its form is sent. The form's
/// field `once` has the value by which the handler knows a repetition.
pub fn page_once(
    menu_title: &'static str,
    form: &SignedForm,
    question: Confirmation<'_>,
    once: &str,
) -> Response {
    let mut fields = form.repeatable_fields();
    fields.retain(|(name, _)| *name != "once");
    fields.push(("once", once));
    respond(menu_title, form, question, fields)
}

fn respond<'f>(
    menu_title: &'static str,
    form: &'f SignedForm,
    question: Confirmation<'f>,
    fields: Vec<(&'f str, &'f str)>,
) -> Response {
    let page = ConfirmPage {
        frame: Frame::new(menu_title, &form.user),
        csrf: &form.user.csrf,
        fields,
        question,
    };
    html(StatusCode::OK, &page)
}
