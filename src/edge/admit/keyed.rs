//! A request under an `Idempotency-Key`: whether it is to be answered, was answered before, or must
//! wait.
//!
//! Must not know how keys are kept: that is `idempotency.rs`.

use super::call::Asked;
use crate::account::Principal;
use crate::clock;
use crate::config::Settings;
use crate::edge::Gateway;
use crate::idempotency::{self, Answer, BodyHash, Running};
use crate::protocol::failure::{Failure, Kind};
use crate::store::StoreError;
use pingora::proxy::Session;

/// What becomes of the request.
pub enum Keyed {
    /// It is to be answered; under a key, if it has one.
    Go(Option<Box<Running>>),
    /// It was answered before.
    Replay(Answer),
}

/// Enters the request under its key, which counts for its account and path alone. Without the
/// header nothing is done.
///
/// # Errors
/// The key is no key, was used for another body, is in use, or its answer is not kept.
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

/// Whether the request names a key that is known, so that its answer may be stored; whatever its
/// body says.
///
/// # Errors
/// The key is no key, or the store cannot be asked.
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

/// The key that the header gives; `None` for what is free, which has none.
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
