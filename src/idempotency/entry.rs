//! Defines the types of requests under idempotency keys and their stored responses, which
//! `idempotency.db` and the shared store have in common.
//!
//! This file must not depend on a store.

#[derive(Debug, Clone, Copy)]
pub struct IdempotencyRequest<'a> {
    pub account: &'a str,
    pub path: &'a str,
    pub key: &'a str,
    pub hash: &'a [u8; 32],
    pub request_id: &'a str,
    pub instance_id: &'a str,
}

/// An [`IdempotencyRequest`] for another thread.
#[derive(Debug, Clone)]
pub struct OwnedIdempotencyRequest {
    account: String,
    path: String,
    key: String,
    hash: [u8; 32],
    request_id: String,
    instance_id: String,
}

impl IdempotencyRequest<'_> {
    pub fn to_owned_request(self) -> OwnedIdempotencyRequest {
        OwnedIdempotencyRequest {
            account: self.account.to_owned(),
            path: self.path.to_owned(),
            key: self.key.to_owned(),
            hash: *self.hash,
            request_id: self.request_id.to_owned(),
            instance_id: self.instance_id.to_owned(),
        }
    }
}

impl OwnedIdempotencyRequest {
    pub fn as_request(&self) -> IdempotencyRequest<'_> {
        IdempotencyRequest {
            account: &self.account,
            path: &self.path,
            key: &self.key,
            hash: &self.hash,
            request_id: &self.request_id,
            instance_id: &self.instance_id,
        }
    }
}

/// A stored response, without its request id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredResponse {
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// The result of looking an idempotency key up.
#[derive(Debug, PartialEq, Eq)]
pub enum IdempotencyLookup {
    /// The key was unknown, and the request is now entered as running.
    Nothing,
    Running,
    OtherBody,
    Done {
        request_id: String,
        response: Option<StoredResponse>,
    },
}

/// A request under an idempotency key in the form of the shared store, which contains only hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyEntry {
    pub account: String,
    /// Hash of account, path and key. The name is one word without a colon.
    pub name: String,
    /// Hash of the body in hex. Empty if only the store has it.
    pub hash: String,
    pub request_id: String,
    /// Instance id of the process that serves the request.
    pub instance_id: String,
}
