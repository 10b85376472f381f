//! Decides for a request with an `Idempotency-Key` whether the gateway answers it, replays an
//! earlier response, or refuses it.
//!
//! This file must not store keys, which `idempotency.rs` does.

use super::operation::ApiOperation;
use crate::edge::gateway::Gateway;
use crate::idempotency::{self, BodyHash, IdempotencyGuard, ReplayedResponse};
use accounts::Principal;
use base::clock;
use config::Settings;
use ledger::StoreError;
use llm_protocol::failure::{Failure, Kind};
use pingora::proxy::Session;
use std::borrow::Cow;

pub enum IdempotencyOutcome {
    /// The gateway answers the request, and holds the idempotency key if the request has one.
    Proceed(Option<Box<IdempotencyGuard>>),
    /// The gateway replays the earlier response.
    Replay(ReplayedResponse),
}

/// Claims the request's idempotency key, which is valid only for its account, member and path. Does
/// nothing if the header is missing.
///
/// # Errors
/// Returns an error if the key is invalid, was used with another body, or is in use, or if its
/// response was not kept.
pub async fn claim_key(
    gateway: &Gateway,
    settings: &Settings,
    session: &Session,
    operation: &ApiOperation,
    principal: &Principal,
    body_hash: BodyHash,
    request_id: &str,
) -> Result<IdempotencyOutcome, Failure> {
    let Some(key) = read_key(session, operation)? else {
        return Ok(IdempotencyOutcome::Proceed(None));
    };
    let key = key_of_member(principal, key);
    let scope = (&*principal.account_id, operation.path, &*key);
    let begun = gateway
        .idempotency
        .claim(
            scope,
            &body_hash,
            request_id,
            &settings.limits,
            clock::steady_now_ms(),
        )
        .await;
    let found = begun.map_err(store_failure)?;
    match found {
        idempotency::KeyLookupOutcome::New(running) => {
            Ok(IdempotencyOutcome::Proceed(Some(running)))
        }
        idempotency::KeyLookupOutcome::Done(response) => Ok(IdempotencyOutcome::Replay(response)),
        idempotency::KeyLookupOutcome::Running => Err(Failure::from_kind(Kind::IdempotencyRunning)),
        idempotency::KeyLookupOutcome::OtherBody => {
            Err(Failure::from_kind(Kind::IdempotencyConflict))
        }
        idempotency::KeyLookupOutcome::Unavailable => {
            Err(Failure::from_kind(Kind::IdempotencyResultUnavailable))
        }
    }
}

/// Returns whether the request has a known idempotency key, so that its response may be stored. The
/// check does not read the body.
///
/// # Errors
/// Returns an error if the key is invalid or the store cannot be reached.
pub async fn is_known(
    gateway: &Gateway,
    session: &Session,
    operation: &ApiOperation,
    principal: &Principal,
) -> Result<bool, Failure> {
    let Some(key) = read_key(session, operation)? else {
        return Ok(false);
    };
    let key = key_of_member(principal, key);
    let scope = (&*principal.account_id, operation.path, &*key);
    gateway
        .idempotency
        .is_known(scope, clock::steady_now_ms())
        .await
        .map_err(store_failure)
}

/// Returns the key as it is stored: each member of an organisation has keys of their own. No key of
/// a header has a space.
fn key_of_member<'k>(principal: &Principal, key: &'k str) -> Cow<'k, str> {
    match &principal.member {
        Some(member) => format!("{} {key}", member.id).into(),
        None => key.into(),
    }
}

/// Returns the key of the header, or `None` for free requests, which have no idempotency keys.
fn read_key<'s>(
    session: &'s Session,
    operation: &ApiOperation,
) -> Result<Option<&'s str>, Failure> {
    let mut values = session
        .req_header()
        .headers
        .get_all("idempotency-key")
        .iter();
    match (values.next(), values.next()) {
        _ if operation.free => Ok(None),
        (None, _) => Ok(None),
        (Some(key), None) if idempotency::is_valid_key(key.as_bytes()) => Ok(key.to_str().ok()),
        _ => {
            let message =
                "Idempotency-Key must be one header of 1 to 255 visible ASCII characters.";
            Err(Failure::new(Kind::InvalidRequest, message))
        }
    }
}

fn store_failure(error: StoreError) -> Failure {
    log::error!("{error}");
    Failure::from_kind(Kind::LedgerUnavailable)
}
