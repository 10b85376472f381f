//! Represents the result of a request with an idempotency key, and the retention of its key and
//! response.
//!
//! This file must not depend on a store.

use crate::idempotency::entry::{IdempotencyEntry, StoredResponse};
use config::Limits;
use std::time::Duration;

/// Time added to a request's maximum duration before it is presumed dead.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

/// Limits on the total size of stored responses.
#[derive(Debug, Clone, Copy)]
pub struct SharedRetentionLimits {
    pub of_account: u64,
    /// Maximum size for all accounts together, in bytes. Each partition has a sixteenth.
    pub of_all: u64,
}

/// The retention of a key and its response: a time, and a maximum size.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub(crate) known_for: Duration,
    pub(crate) lease: Duration,
    pub(crate) shared_limits: SharedRetentionLimits,
}

impl Retention {
    pub fn from_limits(limits: &Limits) -> Self {
        Self {
            known_for: Duration::from_secs(limits.idempotency_seconds),
            lease: Duration::from_secs(limits.total_seconds).saturating_add(LEASE_MARGIN),
            shared_limits: SharedRetentionLimits {
                of_account: limits.idempotency_shared_account_bytes,
                of_all: limits.idempotency_shared_bytes,
            },
        }
    }

    pub(crate) fn expires_at_ms(self, now_ms: i64) -> i64 {
        now_ms.saturating_add(i64::try_from(self.known_for.as_millis()).unwrap_or(i64::MAX))
    }
}

#[derive(Debug)]
pub struct IdempotencyCompletion {
    pub entry: IdempotencyEntry,
    /// Retention of the spent key of a debited request. `None` frees the key.
    pub spent: Option<Retention>,
    pub response: Option<StoredResponse>,
}

pub(crate) fn log_lost_response(request_id: &str) {
    log::warn!(
        "request {request_id} was debited, but its response is lost: its idempotency key cannot be used again"
    );
}
