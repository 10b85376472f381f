//! Stores idempotency keys in the shared store. Each edge uses its own journal to resolve the
//! requests that it left running.
//!
//! This file must not decide the result of a request, and must not depend on HTTP.

use super::billing::SharedBilling;
use crate::idempotency::entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use crate::idempotency::key_completion::log_lost_response;
use crate::idempotency::{ClaimError, IdempotencyCompletion, IdempotencyKeys, Retention};
use crate::shared_credit::redis::{PARTITIONS, SharedStore};
use async_trait::async_trait;
use config::Limits;
use ledger::StoreError;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time that a last byte waits for its key. It is longer than one call to the shared store.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit of a call to the shared store for which no request waits.
const HOUSEKEEPING_TIMEOUT: Duration = Duration::from_secs(2);

pub struct RedisIdempotency {
    /// Connections for the serving threads and for the housekeeping thread. Each runtime needs its
    /// own connection.
    serving: SharedStore,
    housekeeping: SharedStore,
    billing: SharedBilling,
    /// Dead instances of this edge whose idempotency keys are resolved.
    resolved: Mutex<HashSet<String>>,
}

impl RedisIdempotency {
    pub fn new(billing: SharedBilling) -> Self {
        Self {
            serving: billing.serving_store(),
            housekeeping: billing.new_connection(HOUSEKEEPING_TIMEOUT),
            billing,
            resolved: Mutex::default(),
        }
    }
}

#[async_trait]
impl IdempotencyKeys for RedisIdempotency {
    fn instance_id(&self) -> &str {
        self.billing.instance_id()
    }

    async fn claim(
        &self,
        _: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        retention: Retention,
        _: i64,
    ) -> Result<IdempotencyLookup, ClaimError> {
        self.serving
            .idempotency()
            .claim_idempotency_key(entry, retention.lease, retention.known_for)
            .await
            .map_err(|source| ClaimError {
                source,
                may_be_entered: true,
            })
    }

    async fn is_known(
        &self,
        _: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        _: i64,
    ) -> Result<bool, StoreError> {
        self.serving.idempotency().has_idempotency_key(entry).await
    }

    fn commit_timeout(&self) -> Duration {
        COMMIT_TIMEOUT
    }

    async fn send_completion(
        &self,
        completion: &Arc<IdempotencyCompletion>,
    ) -> Result<(), StoreError> {
        send_completion(&self.serving, completion).await
    }

    async fn retry_completion(&self, completion: &IdempotencyCompletion) -> Result<(), StoreError> {
        send_completion(&self.housekeeping, completion).await
    }

    async fn resolve_orphaned(&self, retention: Retention, _: i64) -> Result<(), StoreError> {
        let resolved = self
            .resolved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for instance_id in self
            .billing
            .adopted_instance_ids()
            .into_iter()
            .filter(|instance_id| !resolved.contains(instance_id))
        {
            for entry in self
                .housekeeping
                .idempotency()
                .orphaned_requests(&instance_id)
                .await?
            {
                let debited = match self.billing.was_debited(&entry.request_id) {
                    Some(debited) => Some(debited),
                    // The journal no longer has the request, so the ledger has it. The key is
                    // released, regardless of the request's result.
                    None => {
                        self.housekeeping
                            .idempotency()
                            .has_ended(&entry, retention.lease)
                            .await?
                    }
                };
                // The result is unknown. The entry is past its time limit, and counts as used.
                let Some(debited) = debited else { continue };
                if debited {
                    log_lost_response(&entry.request_id);
                }
                send_completion(
                    &self.housekeeping,
                    &IdempotencyCompletion {
                        entry,
                        spent: debited.then_some(retention),
                        response: None,
                    },
                )
                .await?;
            }
            self.resolved
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(instance_id);
        }
        Ok(())
    }

    /// Recounts the stored responses. The store expires entries by itself and recounts them with
    /// every stored response, so this call matters only while no response is stored.
    async fn clean(&self, _: &Limits, _: i64) -> Result<(), StoreError> {
        for partition in 0..PARTITIONS {
            self.housekeeping
                .idempotency()
                .remove_expired_responses(partition)
                .await?;
        }
        Ok(())
    }
    fn checkpoint(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn send_completion(
    store: &SharedStore,
    completion: &IdempotencyCompletion,
) -> Result<(), StoreError> {
    match completion.spent {
        Some(retention) => {
            store
                .idempotency()
                .complete_idempotency_key(
                    &completion.entry,
                    completion.response.as_ref(),
                    retention.known_for,
                    retention.shared_limits,
                )
                .await
        }
        None => {
            store
                .idempotency()
                .release_idempotency_key(&completion.entry)
                .await
        }
    }
}
