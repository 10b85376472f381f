//! Provides the ledger and the holds of a data directory for commands, pages, operators and upkeep.
//! A serving process and a command beside it both use this type.
//!
//! This file must not reserve or settle.

use super::balance::{Balance, CreditSnapshot, PostedFunds};
use super::holds::HoldRegistry;
use super::shared_balances::SharedBalances;
use crate::replica;
use config::catalog::CatalogModel;
use credits::limits::Period;
use credits::money::CreditSplit;
use credits::trial::Trial;
use ledger::audit::{Audit, AuditProgress, AuditScope, AuditStart, CpuShare, LedgerAuditReport};
use ledger::postgres::PostgresHome;
use ledger::{KeySpend, Ledger, StoreError, sqlite};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time that an audit waits for a running sealing round to end. Sealing ten million entries takes
/// minutes.
const SEALING_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of runs of one audit. An audit runs again if entries were sealed meanwhile,
/// because it may then have missed them.
const MAX_AUDITS: u32 = 3;

/// The ledger and the holds of a data directory, for commands, pages, operators and upkeep. Cloning
/// it is cheap. [`super::CreditService`] serves requests.
#[derive(Clone)]
pub struct Billing(pub(super) Arc<BillingInner>);

pub(super) struct BillingInner {
    pub ledger: Arc<Ledger>,
    pub data_dir: PathBuf,
    /// The holds of this process. Set if it serves requests from `data_dir`.
    pub holds: Option<Arc<HoldRegistry>>,
    /// The store that several edges share. Set if that store decides about spending.
    pub shared: Option<Arc<dyn SharedBalances>>,
}

impl Billing {
    /// Opens the ledger for commands, which read and post while a gateway may be serving from the
    /// same directory.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_store(data_dir, None, None)
    }

    /// Opens the ledger like [`Billing::open`], with the shared store if one decides about
    /// spending. If `home` is set, the ledger is a copy of the data in PostgreSQL.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open_with_store(
        data_dir: &Path,
        shared: Option<Arc<dyn SharedBalances>>,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        let ledger = Ledger::open_with_home(data_dir, home)?;
        Ok(Self::new(Arc::new(ledger), data_dir, None, shared))
    }

    /// Opens the ledger like [`Billing::open_with_store`], without the check against its anchor,
    /// for commands that only read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open_for_audit(
        data_dir: &Path,
        shared: Option<Arc<dyn SharedBalances>>,
    ) -> Result<Self, StoreError> {
        let ledger = Ledger::open_for_audit(data_dir)?;
        Ok(Self::new(Arc::new(ledger), data_dir, None, shared))
    }

    /// Returns the epoch in which this data directory holds the ledger in PostgreSQL, or `None` if
    /// the ledger is not stored there.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn held_epoch(&self) -> Result<Option<i64>, StoreError> {
        let held = self
            .0
            .ledger
            .with_copy(|copy, connection| Ok(copy.held(connection)?.1));
        held.transpose()
    }

    /// Releases the lease of the ledger in PostgreSQL, so that a standby need not wait for its end.
    pub fn give_lease_back(&self) {
        if let Err(error) = replica::give_back(&self.0.ledger) {
            log::warn!("{error}; a standby waits until the lease runs out");
        }
    }

    /// Accepts the ledger in `data_dir` unchecked, after a restore.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn accept_ledger(data_dir: &Path) -> Result<(), StoreError> {
        sqlite::create_dir(data_dir)?;
        Ledger::accept(data_dir)
    }

    /// Stores the prices of `models` durably, before the first request that uses them.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn store_prices(
        &self,
        models: &[Arc<CatalogModel>],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        models
            .iter()
            .try_for_each(|model| self.0.ledger.rows().store_price(&model.price, now_ms))
    }

    pub(super) fn new(
        ledger: Arc<Ledger>,
        data_dir: &Path,
        holds: Option<Arc<HoldRegistry>>,
        shared: Option<Arc<dyn SharedBalances>>,
    ) -> Self {
        Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            holds,
            shared,
        }))
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.0.data_dir
    }

    /// Returns the id of the instance that serves requests in this process, or an empty text
    /// without one.
    pub(super) fn instance_id(&self) -> &str {
        self.0
            .holds
            .as_ref()
            .map_or("", |holds| holds.instance_id())
    }

    /// Returns the ledger, for code that opens accounts in it or reads usage.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Opens the ledger account with its sign-up grant.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account(
        &self,
        account: &str,
        trial: Option<Trial>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .ledger
            .rows()
            .open_account_with_trial(account, trial, now_ms)
    }

    /// Returns the credits that a key, or a member by the id of the membership, has spent in the
    /// period that contains `now_ms` and in total, and the time of its last use. The figures come
    /// from the ledger, which lags by a few milliseconds.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend(
        &self,
        key_id: &str,
        period: Period,
        now_ms: i64,
    ) -> Result<KeySpend, StoreError> {
        self.0
            .ledger
            .rows()
            .key_spend(key_id, period.first_day(now_ms), "")
    }

    /// Returns the account's balance.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or the account is not open.
    pub fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let has_handed_over = self.0.ledger.changes().has_handed_over();
        let credit = match self.0.holds.as_ref().filter(|_| !has_handed_over) {
            Some(holds) => holds.snapshot(&self.0.ledger, account, now_ms)?,
            None => {
                let claims = self.claims_of_others(account)?;
                let held = claims
                    .iter()
                    .fold(CreditSplit::default(), |held, claim| held.plus(claim.held));
                let row = self.0.ledger.rows().account(account, "")?;
                row.map(|row| {
                    CreditSnapshot::from_row(row, held, CreditSplit::default(), 0, now_ms)
                })
            }
        };
        let credit = credit.ok_or_else(|| {
            StoreError::Unusable(format!("account {account} is not in the ledger"))
        })?;
        Ok(credit.balance_at(now_ms))
    }

    /// Returns the balance in the ledger with one read. It may not include the last settled
    /// requests. Returns `None` if the account is not open.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn posted_funds(
        &self,
        account: &str,
        now_ms: i64,
    ) -> Result<Option<PostedFunds>, StoreError> {
        let row = self.0.ledger.rows().account(account, "")?;
        Ok(row.map(|row| PostedFunds::from_row(row, now_ms)))
    }

    /// Recomputes every debit and checks every invariant.
    ///
    /// # Errors
    /// Returns an error if the ledger or the shared store cannot be read. A violated invariant is a
    /// finding, not an error.
    pub fn verify(&self, now_ms: i64) -> Result<LedgerAuditReport, StoreError> {
        self.verify_with_progress(now_ms, AuditScope::Everything, CpuShare::FULL, &mut |_| ())
    }

    /// Does the same as [`Self::verify`] with at most this share of a core, and calls `on_progress`
    /// after each slice of work.
    ///
    /// # Errors
    /// Returns the errors of [`Self::verify`].
    pub fn verify_with_progress(
        &self,
        now_ms: i64,
        scope: AuditScope,
        share: CpuShare,
        on_progress: &mut dyn FnMut(AuditProgress),
    ) -> Result<LedgerAuditReport, StoreError> {
        let (ledger, data_dir) = (&self.0.ledger, &self.0.data_dir);
        let _pause = ledger.segments().pause_sealing(SEALING_TIMEOUT)?;
        let mut attempts = 0;
        let mut report = loop {
            let start = AuditStart::after_segments(ledger)?;
            let audit = Audit {
                ledger,
                data_dir,
                now_ms,
                start: &start,
                scope,
                share,
                // Read the accounts before the ledger, which must then have all of them.
                granted: accounts::db::granted_accounts(data_dir)?,
                shop: &|| accounts::db::payments::shop_rows(data_dir),
            };
            let report = ledger::audit::verify(audit, on_progress)?;
            attempts += 1;
            // The audit may have missed entries that were sealed meanwhile.
            if attempts == MAX_AUDITS || AuditStart::sealed_head(ledger)? == start.head {
                break report;
            }
        };
        if let Some(shared) = &self.0.shared {
            shared.compare(&self.0.ledger, &mut report)?;
        }
        Ok(report)
    }
}
