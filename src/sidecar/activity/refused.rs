//! The page of a refused or free request, which stands where an answered one has its receipt; and
//! of an id that nothing is known of. An id that a vendor gave leads to the request's own.
//!
//! This file must not decide why a request is refused.

use super::row::ActivityRow;
use crate::refused_requests::{KEPT_DAYS, MAX_LISTED, RefusedRequest, RequestNote};
use crate::sidecar::display::{Timestamp, group_digits};
use crate::sidecar::error::PageError;
use crate::sidecar::key_names::KeyNames;
use crate::sidecar::page::{Frame, html};
use crate::sidecar::session::CurrentUser;
use crate::sidecar::state::SidecarState;
use crate::sidecar::viewed_account::ViewedAccount;
use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
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
#[template(path = "free_request.html")]
struct FreeRequestPage<'v> {
    frame: Frame,
    viewed: &'v ViewedAccount,
    note: RequestNote,
    at: Timestamp,
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
    let (found, note) = match &app.refused {
        Some(refused) => (
            refused.find(Some(account), request_id)?,
            refused.find_note(Some(account), request_id)?,
        ),
        None => (None, None),
    };
    if let Some(refused) = found {
        if !viewed.shows_key(&app.accounts, &refused.key_id)? {
            return Err(PageError::NotFound);
        }
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
    // A note does not say which key it is of.
    if let Some(note) = note.filter(|_| viewed.member.is_none()) {
        if note.request_id != request_id {
            let path = viewed.receipt_url(&note.request_id);
            return Ok(Redirect::to(&path).into_response());
        }
        if !note.asked_for.is_empty() {
            let page = FreeRequestPage {
                frame: Frame::new("Activity", user),
                viewed,
                at: Timestamp(note.at_ms),
                note,
                kept_days: KEPT_DAYS,
            };
            return Ok(html(StatusCode::OK, &page));
        }
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
