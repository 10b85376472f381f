//! Asks for a confirmation between a form and a change that cannot be undone. The page names the
//! consequence and repeats the form, without JavaScript and without a separate route.
//!
//! A handler that finds the form unconfirmed (`SignedForm::is_confirmed`) answers with [`page`].
//! The button of that page sends the same form, confirmed, to the same address. This file must not
//! depend on the kind of change.

use super::page::{Frame, html};
use super::session::SignedForm;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

pub struct Confirmation<'a> {
    pub title: &'static str,
    /// Consequence of the confirmation, as a sentence.
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

/// Asks for a confirmation of a change that must happen once, however often its form is sent. The
/// form's field `once` contains the value by which the handler recognizes a repetition.
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
