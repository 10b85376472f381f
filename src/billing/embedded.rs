//! Admits requests by the files of this process: the ledger and the accounts in its own data
//! directory.
//!
//! This file must not decide about a request: it passes each call to the responsible part.

use super::admission::{Admission, LedgerLookup};
use crate::billing::backlog::LedgerBacklog;
use crate::billing::file_checks::{READ_TIMEOUT, check_reads, write_counts};
use crate::billing::holds::{InMemory, Payer};
use crate::billing::reserve::{MAX_ROW_READS, NeededRows, Reservation, changes_too_often};
use crate::billing::usage_report::UsageReportQuery;
use crate::billing::{
    Balance, CreditService, Hold, HoldRequest, PendingRequests, Receipt, ReserveError,
};
use accounts::{Accounts, AuthError, Principal};
use async_trait::async_trait;
use base::disk_pool::{DiskError, DiskPool};
use config::Settings;
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;
use ledger::sqlite::writer::WriteCount;
use serde_json::Value;

/// Threads for the calls of requests that read or write the ledger.
pub static LEDGER_CALLS: DiskPool = DiskPool::new("ledger-calls", 4);

/// Threads that read the rows which admission needs, when they are not in memory. Calls that may
/// take longer have threads of their own.
static ROW_READS: DiskPool = DiskPool::new("row-reads", 2);

pub struct EmbeddedAdmission {
    accounts: Accounts,
    credit: CreditService,
}

impl EmbeddedAdmission {
    pub fn new(accounts: Accounts, credit: CreditService) -> Self {
        Self { accounts, credit }
    }
}

#[async_trait]
impl Admission for EmbeddedAdmission {
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        let known = self.accounts.api_keys().authenticate_in_memory(key, now_ms);
        if let Some(known) = known {
            return known;
        }
        let (accounts, key) = (self.accounts.clone(), key.to_owned());
        let failed = |error: DiskError| StoreError::io("look up a key", error.into());
        ROW_READS
            .run(move || accounts.api_keys().authenticate(&key, now_ms))
            .await
            .map_err(|error| AuthError::Unavailable(failed(error)))?
    }

    async fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        _: bool,
        now_ms: i64,
    ) -> Result<(), ReserveError> {
        for _ in 0..MAX_ROW_READS {
            if let InMemory::Decided(()) =
                self.credit.authorize(payer, arriving, min_cost, now_ms)?
            {
                return Ok(());
            }
            load(self.credit.rows_of(payer, now_ms)).await?;
        }
        Err(changes_too_often())
    }

    fn backlog(&self) -> Option<&LedgerBacklog> {
        Some(self.credit.backlog())
    }

    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let mut request = request;
        for _ in 0..MAX_ROW_READS {
            let begun = self.credit.begin_reservation(request, quote, exact, now_ms);
            request = match begun? {
                Reservation::Held(hold, limit) => {
                    let hold = hold.wait_until_open().await;
                    return Ok((hold.map_err(ReserveError::from_journal)?, limit));
                }
                Reservation::HandedOver(request) => {
                    // A claim is written to the ledger, and may wait for another process.
                    let (credit, quote) = (self.credit.clone(), quote.clone());
                    let claim = move || credit.reserve_by_claim(request, &quote, exact, now_ms);
                    return LEDGER_CALLS
                        .run(claim)
                        .await
                        .map_err(|error| ReserveError::Unavailable(error.to_string()))?;
                }
                Reservation::Unread(request) => request,
            };
            load(self.credit.rows_of(&request.payer(), now_ms)).await?;
        }
        Err(changes_too_often())
    }

    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let (credit, account) = (self.credit.clone(), account.to_owned());
        let read = move || credit.billing().balance(&account, now_ms);
        let failed = |error: DiskError| StoreError::io("read a balance", error.into());
        LEDGER_CALLS.run(read).await.map_err(failed)?
    }

    fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError> {
        self.credit
            .billing()
            .store_prices(new.catalog.models(), now_ms)?;
        self.accounts.record_prices(new.catalog.prices(), now_ms)?;
        self.credit.apply_limits(&new.limits);
        Ok(())
    }

    fn hand_over(&self) -> Result<(), StoreError> {
        self.credit.hand_over()
    }

    fn has_handed_over(&self) -> bool {
        self.credit.has_handed_over()
    }

    fn instance_id(&self) -> &str {
        self.credit.instance_id()
    }

    fn is_healthy(&self) -> bool {
        self.credit.is_healthy()
    }

    async fn check_reads(&self) -> Result<(), StoreError> {
        let files = check_reads(self.accounts.clone(), self.credit.billing().clone());
        let accounts = self.accounts.clone();
        let look_up = move || accounts.database().keys().key_owner(&[0; 32]);
        let key = ROW_READS.run_within(READ_TIMEOUT, look_up);
        let (files, key) = tokio::join!(files, key);
        files?;
        key.map_err(|error| StoreError::io("look up a key", error.into()))?
            .map(drop)
    }

    fn write_counts(&self) -> Vec<(&'static str, WriteCount)> {
        write_counts(&self.accounts, self.credit.billing())
    }

    fn update_gauges(&self, now_ms: i64) {
        self.credit.update_gauges(now_ms);
    }

    fn shut_down(&self) {
        self.credit.shut_down();
    }
}

impl LedgerLookup for EmbeddedAdmission {
    fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        self.credit
            .billing()
            .receipts()
            .receipt(account, request_id)
    }

    fn usage_report(
        &self,
        account: &str,
        key: &str,
        query: &UsageReportQuery,
    ) -> Result<Value, StoreError> {
        self.credit
            .billing()
            .reports()
            .account_usage(&self.accounts, account, Some(key), query)
    }
}

async fn load(rows: NeededRows) -> Result<(), ReserveError> {
    ROW_READS
        .run(move || rows.load())
        .await
        .map_err(|error| ReserveError::Unavailable(error.to_string()))?
}
