//! The store that several edges share, in Redis: keys, credits and idempotency keys. The sidecar
//! has the ledger.
//!
//! Must not decide anything: it passes each question to the part that answers it.

use super::interface::{ClaimError, EdgeStore};
use super::key_completion::{IdempotencyCompletion, KeyWrite, Retention};
use super::redis_idempotency::RedisIdempotency;
use crate::account::{AuthError, Principal, SharedKeys};
use crate::billing::backlog::LedgerBacklog;
use crate::billing::holds::Payer;
use crate::billing::usage_report::UsageReportQuery;
use crate::billing::{
    Balance, Hold, HoldRequest, PendingRequests, Receipt, ReserveError, SharedBilling,
};
use crate::store::idempotency_entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use async_trait::async_trait;
use config::{Limits, Settings};
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;
use serde_json::Value;

/// The store that several edges share, as one edge uses it.
pub struct RedisStore {
    keys: SharedKeys,
    billing: SharedBilling,
    idempotency: RedisIdempotency,
}

impl RedisStore {
    pub fn new(keys: SharedKeys, billing: SharedBilling) -> Self {
        Self {
            idempotency: RedisIdempotency::new(billing.clone()),
            keys,
            billing,
        }
    }
}

#[async_trait]
impl EdgeStore for RedisStore {
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        self.keys.authenticate(key, now_ms).await
    }

    async fn authorize(
        &self,
        payer: &Payer<'_>,
        _: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        _: i64,
    ) -> Result<(), ReserveError> {
        self.billing.authorize(payer, min_cost()).await
    }

    fn authorizes_remotely(&self) -> bool {
        true
    }

    fn backlog(&self) -> Option<&LedgerBacklog> {
        Some(self.billing.backlog())
    }

    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        self.billing.reserve(request, quote, exact, now_ms).await
    }

    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        self.billing.balance(account, now_ms).await
    }

    fn receipt(&self, _: &str, _: &str) -> Result<Option<Receipt>, StoreError> {
        Ok(None)
    }

    fn usage_report(&self, _: &str, _: &UsageReportQuery) -> Result<Option<Value>, StoreError> {
        Ok(None)
    }

    fn has_ledger_in_sidecar(&self) -> bool {
        true
    }

    async fn claim_key(
        &self,
        _: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        retention: Retention,
        _: i64,
    ) -> Result<IdempotencyLookup, ClaimError> {
        self.idempotency
            .claim(entry, retention)
            .await
            .map_err(|source| ClaimError {
                source,
                may_be_entered: true,
            })
    }

    async fn is_known_key(
        &self,
        _: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        _: i64,
    ) -> Result<bool, StoreError> {
        self.idempotency.is_known(entry).await
    }

    fn complete_key(&self, _: &IdempotencyCompletion) -> Result<KeyWrite, StoreError> {
        Ok(KeyWrite::MustBeSent)
    }

    async fn send_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError> {
        self.idempotency.complete_in_time(completion).await
    }

    async fn retry_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError> {
        self.idempotency.complete_later(completion).await
    }

    async fn resolve_orphaned_keys(&self, retention: Retention, _: i64) -> Result<(), StoreError> {
        self.idempotency.resolve_orphaned(retention).await
    }

    async fn clean_keys(&self, _: &Limits, _: i64) -> Result<(), StoreError> {
        self.idempotency.clean().await
    }

    fn checkpoint_keys(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Applies the limits. The sidecar has the ledger; every ending carries its price there.
    fn apply_settings(&self, new: &Settings, _: i64) -> Result<(), StoreError> {
        self.billing.apply_limits(&new.limits);
        self.keys
            .set_lookup_rate(new.limits.unknown_key_lookups_per_second);
        Ok(())
    }

    fn hand_over(&self) -> Result<(), StoreError> {
        self.billing.hand_over()
    }

    fn has_handed_over(&self) -> bool {
        self.billing.has_handed_over()
    }

    fn instance_id(&self) -> &str {
        self.billing.instance_id()
    }

    fn is_healthy(&self) -> bool {
        self.billing.is_healthy()
    }

    fn update_gauges(&self, now_ms: i64) {
        self.billing.update_gauges(now_ms);
    }

    fn shut_down(&self) {
        self.billing.shut_down();
    }
}
