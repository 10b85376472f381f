//! The gateway that `benches/money.rs` compares with: it bills nothing, since a null store stands
//! in the place of the ledger. `scripts/bench-money` builds it; no command of the product starts
//! it.
//!
//! `unbilled CONFIG` serves until a signal stops it. Keys, pages and the admin API are as in the
//! product. Must not be used in front of clients that pay: every request is free.
#![allow(clippy::print_stderr)]

use accounts::{AuthError, Principal};
use anyhow::Context as _;
use async_trait::async_trait;
use base::telemetry;
use config::Settings;
use credits::money::{CreditSplit, Micro};
use credits::pricing::{Quote, ServiceTerms};
use ledger::StoreError;
use model_gateway::app::{self, StartMode};
use model_gateway::billing::admission::Admission;
use model_gateway::billing::backlog::LedgerBacklog;
use model_gateway::billing::holds::Payer;
use model_gateway::billing::{
    Balance, Debit, HeldRequest, Hold, HoldEnd, HoldRequest, HoldStore, PendingRequests,
    ReserveError,
};
use std::path::PathBuf;
use std::sync::Arc;

/// As in `main.rs`: the two gateways must differ in billing alone.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> anyhow::Result<()> {
    let config_file = std::env::args_os()
        .skip(1)
        .find(|argument| argument != "--bench")
        .map(PathBuf::from)
        .context("unbilled CONFIG")?;
    telemetry::init_log()?;
    let settings = config::load(&config_file, config::FileChecks::Edge)?;
    anyhow::ensure!(
        settings
            .edge
            .iter()
            .all(|address| address.ip().is_loopback()),
        "cannot listen on listen.edge: a gateway that bills nothing needs loopback addresses"
    );
    let null_holds: Arc<dyn HoldStore> = Arc::new(NullHolds);
    app::run_with_admission(&config_file, settings, StartMode::Fresh, |embedded| {
        Arc::new(NullStore {
            embedded,
            null_holds,
        })
    })
}

/// Admits every request, and reserves and bills nothing. Everything else is as embedded.
struct NullStore {
    embedded: Arc<dyn Admission>,
    null_holds: Arc<dyn HoldStore>,
}

/// Where holds of nothing end.
struct NullHolds;

impl HoldStore for NullHolds {
    fn settle(self: Arc<Self>, _: &mut HeldRequest, _: HoldEnd) -> Debit {
        Debit::default()
    }
}

#[async_trait]
impl Admission for NullStore {
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        self.embedded.authenticate(key, now_ms).await
    }

    async fn authorize(
        &self,
        _: &Payer<'_>,
        _: PendingRequests,
        _: &(dyn Fn() -> Micro + Sync),
        _: bool,
        _: i64,
    ) -> Result<(), ReserveError> {
        Ok(())
    }

    fn backlog(&self) -> Option<&LedgerBacklog> {
        None
    }

    async fn check_reads(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        _: bool,
        _: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let hold = Hold::new(
            Arc::clone(&self.null_holds),
            request,
            ServiceTerms::default(),
            CreditSplit::default(),
        );
        Ok((hold, quote.output_limit))
    }

    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        self.embedded.balance(account, now_ms).await
    }

    fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError> {
        self.embedded.apply_settings(new, now_ms)
    }

    fn hand_over(&self) -> Result<(), StoreError> {
        self.embedded.hand_over()
    }

    fn has_handed_over(&self) -> bool {
        self.embedded.has_handed_over()
    }

    fn instance_id(&self) -> &str {
        self.embedded.instance_id()
    }

    fn is_healthy(&self) -> bool {
        self.embedded.is_healthy()
    }

    fn update_gauges(&self, now_ms: i64) {
        self.embedded.update_gauges(now_ms);
    }

    fn shut_down(&self) {
        self.embedded.shut_down();
    }
}
