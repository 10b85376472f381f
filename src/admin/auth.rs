//! Authorizes administrators. A request needs a valid key of an active account with the
//! administrator role.
//!
//! This file must not reveal why a key is invalid, and must not store a key.

use super::error::AdminError;
use super::state::AdminState;
use accounts::{Actor, AuthError, KeyScope, Role, parse_key};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use base::clock::now_ms;
use std::net::SocketAddr;
use std::sync::Arc;

/// Authorizes a request before its path, method and body are examined, so that an unauthorized
/// caller learns nothing about them.
pub async fn require_administrator(
    State(app): State<Arc<AdminState>>,
    mut request: Request,
    next: Next,
) -> Result<Response, AdminError> {
    let actor = authenticate(&app, request.headers())?.to_string();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = peer.map_or_else(
        || "unknown".to_owned(),
        |peer| peer.0.ip().to_canonical().to_string(),
    );
    // The audit log and the ledger record this actor.
    request.extensions_mut().insert(Actor { actor, address });
    Ok(next.run(request).await)
}

/// Returns the account id of the administrator who sent the request.
fn authenticate(app: &AdminState, headers: &HeaderMap) -> Result<Arc<str>, AdminError> {
    let key = gateway_key(headers).ok_or(AdminError::NoKey)?;
    let principal = app
        .accounts
        .api_keys()
        .authenticate(key, now_ms())
        .map_err(|refusal| match refusal {
            AuthError::BadKey | AuthError::KeyExpired(_) => AdminError::NoKey,
            AuthError::KeyDisabled(_) => AdminError::Forbidden("this key is disabled"),
            AuthError::AccountSuspended(_) => {
                AdminError::Forbidden("this key's account is suspended")
            }
            AuthError::TooManyLookups => AdminError::Busy,
            AuthError::Unavailable(error) => error.into(),
        })?;
    if principal.settings.scope == Some(KeyScope::Inference) {
        return Err(AdminError::Forbidden(
            "this key is for inference only: use a key of an administrator without that limit",
        ));
    }
    match app.accounts.find(&principal.account_id)? {
        Some(account) if account.role == Role::Admin => Ok(principal.account_id),
        _ => Err(AdminError::Forbidden(
            "this key does not belong to an administrator: use an administrator's key",
        )),
    }
}

/// Returns the gateway key of the request, if it has exactly one.
fn gateway_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let plain = headers
        .get("x-api-key")
        .and_then(|value| value.to_str().ok())
        .map(str::trim);
    let is_ours = |key: &&str| parse_key(key);
    match (bearer.filter(is_ours), plain.filter(is_ours)) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => one.or(other),
    }
}
