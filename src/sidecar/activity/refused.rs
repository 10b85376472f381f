//! Shows a refused request at the address at which an answered request has its receipt. An unknown
//! id has a page here too.
//!
//! This file must not decide why a request is refused.

use super::row::ActivityRow;
use crate::refused_requests::{KEPT_DAYS, MAX_LISTED, RefusedRequest};
use crate::sidecar::display::{Timestamp, group_digits};
use crate::sidecar::error::PageError;
use crate::sidecar::key_names::KeyNames;
use crate::sidecar::page::{Frame, html};
use crate::sidecar::session::CurrentUser;
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use ledger::segment::request_time_ms;

#[derive(Template)]
#[template(path = "refused.html")]
struct RefusedPage<'v> {
    frame: Frame,
    viewed: &'v ViewedAccount,
    row: ActivityRow,
    refused: RefusedRequest,
    kept_days: i64,
}

#[derive(Template)]
#[template(path = "unknown_request.html")]
struct UnknownRequestPage<'v> {
    frame: Frame,
    viewed: &'v ViewedAccount,
    request_id: String,
    sent: Timestamp,
    kept_days: i64,
    max_listed: String,
}

/// Shows the page of a request without a receipt.
///
/// # Errors
/// Returns "not found" if the text is not a request id.
pub fn page(
    app: &SidecarState,
    user: &CurrentUser,
    viewed: &ViewedAccount,
    request_id: &str,
) -> Result<Response, PageError> {
    let account = &viewed.id;
    let found = match &app.refused {
        Some(refused) => refused.find(Some(account), request_id)?,
        None => None,
    };
    if let Some(refused) = found {
        let ids = std::iter::once(&*refused.key_id);
        let names = KeyNames::load(&app.accounts, account, ids)?;
        let page = RefusedPage {
            frame: Frame::new("Activity", user),
            viewed,
            row: ActivityRow::from_refused(viewed, &refused, &names),
            refused,
            kept_days: KEPT_DAYS,
        };
        return Ok(html(StatusCode::OK, &page));
    }
    let sent_ms = request_time_ms(request_id).ok_or(PageError::NotFound)?;
    let page = UnknownRequestPage {
        frame: Frame::new("Activity", user),
        viewed,
        request_id: request_id.to_owned(),
        sent: Timestamp(sent_ms),
        kept_days: KEPT_DAYS,
        max_listed: group_digits(MAX_LISTED.into()),
    };
    Ok(html(StatusCode::NOT_FOUND, &page))
}
