//! The store of a single process: the ledger, the accounts and the idempotency keys in its own data
//! directory.
//!
//! Must not decide anything: it passes each question to the part that answers it.

use super::embedded_idempotency::EmbeddedIdempotency;
use super::interface::{ClaimError, EdgeStore};
use super::key_completion::{IdempotencyCompletion, KeyWrite, Retention};
use crate::account::{Accounts, AuthError, Principal};
use crate::billing::backlog::LedgerBacklog;
use crate::billing::holds::Payer;
use crate::billing::usage_report::UsageReportQuery;
use crate::billing::{Balance, Billing, Hold, HoldRequest, PendingRequests, Receipt, ReserveError};
use crate::store::idempotency_entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use async_trait::async_trait;
use base::blocking::may_block;
use base::clock;
use config::{Limits, Settings};
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;
use serde_json::Value;
use std::path::Path;

/// The files of this process as the store of its edge.
pub struct EmbeddedStore {
    accounts: Accounts,
    billing: Billing,
    pub(crate) idempotency: EmbeddedIdempotency,
}

impl EmbeddedStore {
    /// Opens the idempotency keys in `data_dir`, beside the accounts and the ledger.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(data_dir: &Path, accounts: Accounts, billing: Billing) -> Result<Self, StoreError> {
        let idempotency = EmbeddedIdempotency::open(data_dir, billing.clone())?;
        Ok(Self {
            accounts,
            billing,
            idempotency,
        })
    }
}

#[async_trait]
impl EdgeStore for EmbeddedStore {
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        self.accounts.authenticate(key, now_ms)
    }

    async fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), ReserveError> {
        self.billing.authorize(payer, arriving, min_cost, now_ms)
    }

    fn authorizes_remotely(&self) -> bool {
        false
    }

    fn backlog(&self) -> Option<&LedgerBacklog> {
        self.billing.backlog()
    }

    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        if self.billing.has_handed_over() {
            // This may wait for another process, so it must not block a serving thread.
            return tokio::task::block_in_place(|| {
                self.billing.reserve(request, quote, exact, now_ms)
            });
        }
        self.billing.reserve(request, quote, exact, now_ms)
    }

    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        self.billing.balance(account, now_ms)
    }

    fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        self.billing.receipt(account, request_id)
    }

    fn usage_report(
        &self,
        account: &str,
        query: &UsageReportQuery,
    ) -> Result<Option<Value>, StoreError> {
        self.accounts
            .usage_report(&self.billing, account, query)
            .map(Some)
    }

    fn has_ledger_in_sidecar(&self) -> bool {
        false
    }

    async fn claim_key(
        &self,
        request: &IdempotencyRequest<'_>,
        _: &IdempotencyEntry,
        _: Retention,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, ClaimError> {
        may_block(|| self.idempotency.claim(request, now_ms)).map_err(|source| ClaimError {
            source,
            may_be_entered: false,
        })
    }

    async fn is_known_key(
        &self,
        request: &IdempotencyRequest<'_>,
        _: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        may_block(|| self.idempotency.db.is_known(request, now_ms))
    }

    fn complete_key(&self, completion: &IdempotencyCompletion) -> Result<KeyWrite, StoreError> {
        may_block(|| self.idempotency.complete_or_drop_response(completion))?;
        Ok(KeyWrite::Written)
    }

    async fn send_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError> {
        self.idempotency.complete_or_drop_response(completion)
    }

    async fn retry_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError> {
        self.idempotency.complete_or_drop_response(completion)
    }

    async fn resolve_orphaned_keys(
        &self,
        retention: Retention,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.idempotency
            .resolve_orphaned(retention.expires_at_ms(now_ms))
    }

    async fn clean_keys(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError> {
        self.idempotency.clean(limits, &self.accounts, now_ms)
    }

    fn checkpoint_keys(&self) -> Result<(), StoreError> {
        self.idempotency.checkpoint()
    }

    fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError> {
        self.billing.store_prices(new.catalog.models(), now_ms)?;
        self.billing.apply_limits(&new.limits);
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
        // The process may not be started again.
        let removed = self
            .idempotency
            .remove_deleted_accounts(&self.accounts, clock::now_ms());
        if let Err(error) = removed {
            log::warn!("{error}; the next start tries again");
        }
    }
}
