//! Holds the claim of an idempotency key while the gateway answers its request, and the wait until
//! the key is committed.
//!
//! This file must not decide whether the request is debited: its caller does.

use super::service::Idempotency;
use crate::idempotency::entry::{IdempotencyEntry, StoredResponse};
use crate::idempotency::{IdempotencyCompletion, Retention};

/// The claim of a request's key while the gateway answers the request. Dropping the guard without
/// completing it frees the key.
pub struct IdempotencyGuard {
    service: Idempotency,
    entry: IdempotencyEntry,
    retention: Retention,
    headers: Vec<(String, String)>,
    /// Response body so far. `None` once it exceeds the maximum size of a stored response.
    body: Option<Vec<u8>>,
    max_body_bytes: usize,
    ended: bool,
}

/// Waits until a request's key is committed as spent or free.
#[derive(Clone)]
pub struct KeyCommit {
    service: Idempotency,
    request_id: String,
}

impl KeyCommit {
    pub async fn wait(&self) {
        self.service.wait_until_committed(&self.request_id).await;
    }
}

impl IdempotencyGuard {
    pub(super) fn new(
        service: Idempotency,
        entry: IdempotencyEntry,
        retention: Retention,
        max_body_bytes: usize,
    ) -> Self {
        Self {
            service,
            entry,
            retention,
            headers: Vec::new(),
            body: Some(Vec::new()),
            max_body_bytes,
            ended: false,
        }
    }

    /// Sets the response headers, and discards those of an earlier attempt.
    pub fn set_headers(&mut self, headers: Vec<(String, String)>) {
        self.headers = headers;
    }

    pub fn add_header(&mut self, name: &str, value: String) {
        self.headers.push((name.to_owned(), value));
    }

    /// Appends bytes that the client is about to receive.
    pub fn push_body(&mut self, piece: &[u8]) {
        let Some(body) = &mut self.body else { return };
        if body.len().saturating_add(piece.len()) > self.max_body_bytes {
            self.body = None;
        } else {
            body.extend_from_slice(piece);
        }
    }

    /// Returns a handle that waits until this request's key is committed.
    pub fn key_commit(&self) -> KeyCommit {
        KeyCommit {
            service: self.service.clone(),
            request_id: self.entry.request_id.clone(),
        }
    }

    /// Stores the complete, debited response. After the commit, a retry gets the response or learns
    /// that it is not stored, so the last byte may be sent.
    pub fn complete(mut self) {
        let headers = std::mem::take(&mut self.headers);
        let response = self
            .body
            .take()
            .map(|body| StoredResponse { headers, body });
        self.finish(Some(self.retention), response);
    }

    /// Marks the key as spent. The request was debited, but no complete response can be replayed.
    pub fn mark_spent(mut self) {
        self.finish(Some(self.retention), None);
    }

    /// Leaves the request as running. The next start decides by the journal.
    pub fn leave_running(mut self) {
        self.ended = true;
    }

    fn finish(&mut self, spent: Option<Retention>, response: Option<StoredResponse>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.service.complete(IdempotencyCompletion {
                entry: self.entry.clone(),
                spent,
                response,
            });
        }
    }
}

impl Drop for IdempotencyGuard {
    fn drop(&mut self) {
        self.finish(None, None);
    }
}
