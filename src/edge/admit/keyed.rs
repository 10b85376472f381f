//! Requests with an `Idempotency-Key`: whether the gateway answers the request, replays an earlier
//! response, or refuses it.
//!
//! This file must not know how keys are stored: `idempotency.rs` does.

use super::call::Asked;
use crate::account::Principal;
use crate::clock;
use crate::config::Settings;
use crate::edge::Gateway;
use crate::idempotency::{self, Answer, BodyHash, Running};
use crate::protocol::failure::{Failure, Kind};
use crate::store::StoreError;
use pingora::proxy::Session;

/// What the gateway does with the request.
pub enum Keyed {
    /// Answer the request. Holds the idempotency key, if the request has one.
    Go(Option<Box<Running>>),
    /// Replay the earlier response.
    Replay(Answer),
}

/// Claims the request's idempotency key, which is valid only for its account and path. Does nothing
/// if the header is missing.
///
/// # Errors
/// Returns an error if the key is invalid, was used with another body, or is in use, or if its
/// response was not kept.
pub async fn begin(
    gateway: &Gateway,
    settings: &Settings,
    session: &Session,
    asked: &Asked,
    principal: &Principal,
    body_hash: BodyHash,
    request_id: &str,
) -> Result<Keyed, Failure> {
    let Some(key) = given_key(session, asked)? else {
        return Ok(Keyed::Go(None));
    };
    let scope = (&*principal.account_id, asked.path, key);
    let begun = gateway
        .idempotency
        .begin(
            scope,
            &body_hash,
            request_id,
            &settings.limits,
            clock::now_ms(),
        )
        .await;
    let found = begun.map_err(unavailable)?;
    match found {
        idempotency::Asked::New(running) => Ok(Keyed::Go(Some(running))),
        idempotency::Asked::Done(answer) => Ok(Keyed::Replay(answer)),
        idempotency::Asked::Running => Err(Failure::of(Kind::IdempotencyRunning)),
        idempotency::Asked::OtherBody => Err(Failure::of(Kind::IdempotencyConflict)),
        idempotency::Asked::Unavailable => Err(Failure::of(Kind::IdempotencyResultUnavailable)),
    }
}

/// Whether the request has a known idempotency key, so that its response may be stored. Does not
/// look at the body.
///
/// # Errors
/// Returns an error if the key is invalid or the store cannot be reached.
pub async fn is_known(
    gateway: &Gateway,
    session: &Session,
    asked: &Asked,
    principal: &Principal,
) -> Result<bool, Failure> {
    let Some(key) = given_key(session, asked)? else {
        return Ok(false);
    };
    let scope = (&*principal.account_id, asked.path, key);
    gateway
        .idempotency
        .is_known(scope, clock::now_ms())
        .await
        .map_err(unavailable)
}

/// Returns the key of the header. Free requests have none, so returns `None` for them.
fn given_key<'s>(session: &'s Session, asked: &Asked) -> Result<Option<&'s str>, Failure> {
    let mut given = session
        .req_header()
        .headers
        .get_all("idempotency-key")
        .iter();
    match (given.next(), given.next()) {
        _ if asked.free => Ok(None),
        (None, _) => Ok(None),
        (Some(key), None) if idempotency::is_key(key.as_bytes()) => Ok(key.to_str().ok()),
        _ => {
            let message = "An Idempotency-Key is one header of 1 to 255 visible ASCII characters.";
            Err(Failure::new(Kind::InvalidRequest, message))
        }
    }
}

fn unavailable(error: StoreError) -> Failure {
    log::error!("{error}");
    Failure::of(Kind::LedgerUnavailable)
}
