//! Admits requests by the store that several edges share, which has keys and credits. The sidecar
//! has the ledger.
//!
//! This file must not decide about a request: it passes each call to the responsible part.

use super::billing::SharedBilling;
use super::keys::SharedKeys;
use crate::billing::admission::Admission;
use crate::billing::backlog::LedgerBacklog;
use crate::billing::holds::Payer;
use crate::billing::{Balance, Hold, HoldRequest, PendingRequests, ReserveError};
use accounts::{AuthError, Principal};
use async_trait::async_trait;
use config::Settings;
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;

pub struct SharedAdmission {
    keys: SharedKeys,
    billing: SharedBilling,
}

impl SharedAdmission {
    pub fn new(keys: SharedKeys, billing: SharedBilling) -> Self {
        Self { keys, billing }
    }
}

#[async_trait]
impl Admission for SharedAdmission {
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        self.keys.authenticate(key, now_ms).await
    }

    async fn authorize(
        &self,
        payer: &Payer<'_>,
        _: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        reserves_soon: bool,
        _: i64,
    ) -> Result<(), ReserveError> {
        if reserves_soon {
            return Ok(());
        }
        self.billing.authorize(payer, min_cost()).await
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

    /// Applies the limits. Prices need not be stored, because every ending carries its price to the
    /// sidecar's ledger.
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

    async fn check_reads(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn update_gauges(&self, now_ms: i64) {
        self.billing.update_gauges(now_ms);
    }

    fn shut_down(&self) {
        self.billing.shut_down();
    }
}
