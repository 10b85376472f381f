//! Looks up the key of an arriving request, and decides whether the gateway answers the request,
//! replays an earlier response, or refuses it.
//!
//! This file must not depend on HTTP.

use super::guard::IdempotencyGuard;
use super::service::Idempotency;
use crate::idempotency::entry::{
    IdempotencyEntry, IdempotencyLookup, IdempotencyRequest, StoredResponse,
};
use crate::idempotency::{IdempotencyCompletion, Retention};
use config::Limits;
use ledger::StoreError;
use sha2::{Digest, Sha256};

const MAX_KEY_BYTES: usize = 255;

pub enum KeyLookupOutcome {
    /// The key is new, so the gateway must answer the request.
    New(Box<IdempotencyGuard>),
    /// The same request is still being answered.
    Running,
    /// The key was used with a different body.
    OtherBody,
    /// The request was answered with this response.
    Done(ReplayedResponse),
    /// The request was answered, but its response is not stored.
    Unavailable,
}

#[derive(Debug)]
pub struct ReplayedResponse {
    pub request_id: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Returns whether a key is valid, which means 1 to 255 visible ASCII characters.
pub fn is_valid_key(value: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

/// Hash that distinguishes the bodies of requests with the same key.
pub type BodyHash = [u8; 32];

/// Hashes a request body. The CPU time is proportional to the body's length.
pub fn hash_body(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}

impl Idempotency {
    /// Claims the key of a request.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried. The gateway must not answer then.
    pub async fn claim(
        &self,
        (account, path, key): (&str, &str, &str),
        hash: &BodyHash,
        request_id: &str,
        limits: &Limits,
        now_ms: i64,
    ) -> Result<KeyLookupOutcome, StoreError> {
        let store = self.store();
        let request = IdempotencyRequest {
            account,
            path,
            key,
            hash,
            request_id,
            instance_id: store.instance_id(),
        };
        let (entry, retention) = (store_entry(&request), Retention::from_limits(limits));
        let claimed = store.claim(&request, &entry, retention, now_ms).await;
        let found = match claimed {
            Ok(found) => found,
            Err(error) => {
                if error.may_be_entered {
                    let completion = IdempotencyCompletion {
                        entry,
                        spent: None,
                        response: None,
                    };
                    self.queue_retry(&error.source, completion);
                }
                return Err(error.source);
            }
        };
        Ok(match found {
            IdempotencyLookup::Nothing => KeyLookupOutcome::New(Box::new(IdempotencyGuard::new(
                self.clone(),
                entry,
                retention,
                usize::try_from(limits.idempotency_body_bytes).unwrap_or(usize::MAX),
            ))),
            IdempotencyLookup::Running => KeyLookupOutcome::Running,
            IdempotencyLookup::OtherBody => KeyLookupOutcome::OtherBody,
            IdempotencyLookup::Done {
                request_id,
                response: Some(StoredResponse { headers, body }),
            } => KeyLookupOutcome::Done(ReplayedResponse {
                request_id,
                headers,
                body,
            }),
            IdempotencyLookup::Done { response: None, .. } => KeyLookupOutcome::Unavailable,
        })
    }

    /// Returns whether a key is known, with any body.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    pub async fn is_known(
        &self,
        (account, path, key): (&str, &str, &str),
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let store = self.store();
        let request = IdempotencyRequest {
            account,
            path,
            key,
            hash: &[0; 32],
            request_id: "",
            instance_id: store.instance_id(),
        };
        let entry = store_entry(&request);
        store.is_known(&request, &entry, now_ms).await
    }
}

/// Returns the entry for a shared store. The client's key is hashed, because it must not be part of
/// a name in the store.
fn store_entry(request: &IdempotencyRequest<'_>) -> IdempotencyEntry {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let name = Sha256::new()
        .chain_update(request.path)
        .chain_update(" ")
        .chain_update(request.key)
        .finalize();
    IdempotencyEntry {
        account: request.account.to_owned(),
        name: hex(&name),
        hash: hex(request.hash),
        request_id: request.request_id.to_owned(),
        instance_id: request.instance_id.to_owned(),
    }
}
