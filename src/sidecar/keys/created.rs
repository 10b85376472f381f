//! Leads from a form to the page of its new key by POST, redirect and GET. A reload of the page, or
//! the same form sent twice, creates no second key. A form that was changed and sent again creates
//! another key with its own page.
//!
//! This file must not store a key; `new_keys.rs` does so while the page shows the key.

use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::new_keys::{self, KeyRequest, TicketedKey, is_nonce, ticket};
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use accounts::AccountError;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

/// Returns a nonce for a form.
///
/// # Errors
/// Returns an error if the system has no randomness.
pub fn new_nonce() -> Result<String, PageError> {
    new_keys::new_nonce().map_err(|error| PageError::Internal(error.to_string()))
}

/// Returns the key request of a form. A form without a nonce gets a new one.
///
/// # Errors
/// Returns an error if the system has no randomness.
pub fn key_request(form: &SignedForm) -> Result<KeyRequest, PageError> {
    let nonce = match form.field("once") {
        nonce if is_nonce(nonce) => nonce.to_owned(),
        _ => new_nonce()?,
    };
    let mut fields = Sha256::new();
    for (name, value) in form.repeatable_fields() {
        for text in [name, value] {
            fields.update(text.len().to_be_bytes());
            fields.update(text);
        }
    }
    Ok(KeyRequest {
        ticket: ticket(&form.user.token, &nonce, &fields.finalize().into()),
        session: Sha256::digest(&form.user.token).into(),
    })
}

/// Creates the key that the form requests, unless the same form did so before. The response
/// redirects to the key's page.
///
/// # Errors
/// Returns the error of `create`.
pub async fn create_once(
    app: &SidecarState,
    request: KeyRequest,
    create: impl FnOnce() -> Result<TicketedKey, AccountError> + Send + 'static,
) -> Result<Result<Response, AccountError>, PageError> {
    let tickets = app.new_keys.clone();
    let creation = tickets.lock_creation().await;
    let runtime = Handle::current();
    // The work runs to its end even if the client disconnects: when a user clicks twice, the
    // browser drops the first request and sends a second one.
    let work = move || {
        let now_ms = now_ms();
        let ticket = request.ticket.clone();
        if tickets.key(&ticket, now_ms).is_none() {
            tickets.insert(request, create()?, now_ms, &runtime);
        }
        drop(creation);
        Ok::<_, AccountError>(ticket)
    };
    Ok(run_blocking(work).await?.map(|ticket| {
        let path = format!("/dashboard/keys/new/{ticket}");
        Redirect::to(&path).into_response()
    }))
}
