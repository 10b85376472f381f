//! Reserves credits in another process than the one that admits requests: in a command, or in a
//! gateway that has handed over and finishes its work.
//!
//! The admitting process decides in memory, so another process cannot read its holds. The other
//! process therefore works in three steps. It posts a claim in the ledger, where every later
//! admission sees the claim. It waits until the admitting process has published its holds. It
//! checks whether the account covers both. If two processes race, one or both are refused, but
//! credit is never taken twice. Requests must not use this file before a handover.

use super::balance::CreditSnapshot;
use super::data_dir::Billing;
use super::funds::size_hold;
use super::hold::{Hold, HoldRequest};
use super::holds::ReserveError;
use super::service::{CreditService, ServingState};
use credits::money::CreditSplit;
use credits::pricing::Quote;
use ledger::StoreError;
use ledger::instance_lock;
use ledger::journal;
use ledger::journal::InstanceDir;
use ledger::journal::holds_mirror::HoldsMirror;
use ledger::journal::replay::recover_dead_instances;
use ledger::{AvailableCredit, BalanceChange, Claim, LedgerAccount, PostingResult};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum time that the admitting process may take to publish its holds. It does so every 20 ms,
/// but may take some seconds if all CPUs are busy. A request waits at most this long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of claims that a request makes. A retry takes into account the holds that made
/// the previous claim fail.
const MAX_ATTEMPTS: u32 = 3;

impl ServingState {
    /// Releases credits that a hold had claimed after the handover.
    pub(super) fn release_claim(&self, account: &str, parts: CreditSplit) {
        let changes = self.ledger.changes();
        if !changes.has_handed_over() {
            return;
        }
        if let Err(error) =
            changes.release_claim(self.journal.journal().instance_id(), account, parts)
        {
            log::error!("{error}; these credits stay reserved until this process ends");
        }
    }
}

impl CreditService {
    /// Hands admission over to another process: this process's holds become claims, and the waiting
    /// successor gets the right to serve. Running requests finish and settle as before. A new
    /// request that still reaches this process is admitted by a claim.
    ///
    /// # Errors
    /// Returns an error if no successor waits or the ledger cannot be written; this process then
    /// continues as before.
    pub fn hand_over(&self) -> Result<(), StoreError> {
        if self.has_handed_over() {
            return Ok(());
        }
        instance_lock::check_successor(self.billing.data_dir())?;
        let serving = &self.serving;
        serving.holds.hand_over(&serving.ledger)?;
        drop(
            serving
                .owner
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take(),
        );
        Ok(())
    }

    /// Returns whether this process has handed over. Admission may then wait for another process,
    /// so it must not run on a serving thread.
    pub fn has_handed_over(&self) -> bool {
        self.serving.ledger.changes().has_handed_over()
    }

    /// Reserves credits like [`CreditService::reserve`], but in another process than the admitting
    /// one, for which it may wait.
    pub(super) fn reserve_by_claim(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let serving = &self.serving;
        let unavailable = |error: StoreError| ReserveError::Unavailable(error.to_string());
        let (instance_id, account) = (self.instance_id(), &request.account);
        let meters = serving.holds.count_request(&request.payer())?;
        for _ in 0..MAX_ATTEMPTS {
            let mut limit = 0;
            let decide = |row: LedgerAccount| -> Result<CreditSplit, ReserveError> {
                let open = serving.holds.open_requests(account);
                let mut credit = CreditSnapshot::from_row(
                    row,
                    CreditSplit::default(),
                    CreditSplit::default(),
                    open,
                    now_ms,
                );
                credit.spend_left =
                    serving
                        .holds
                        .spend_left(&serving.ledger, &request.payer(), now_ms)?;
                let max_open = serving.max_open_per_account.load(Ordering::Relaxed);
                let (amount, output_limit) = size_hold(&credit, quote, exact, max_open, now_ms)?;
                limit = output_limit;
                Ok(credit.available.draw(amount))
            };
            let claims = self
                .billing
                .claims_of_others(account)
                .map_err(unavailable)?;
            let parts = serving
                .ledger
                .changes()
                .claim(instance_id, account, &claims, decide)?;
            let outcome = self.billing.covers_claims(account);
            if !matches!(outcome, Ok(true)) {
                serving.release_claim(account, parts);
            }
            if outcome.map_err(unavailable)? {
                serving.holds.add_claimed(&request.payer(), parts);
                let hold = Hold::new(Arc::clone(serving) as _, request, quote.service, parts);
                let hold = hold.journal_open(&serving.journal, &serving.open, now_ms);
                let hold = hold.wait_until_open_on_thread();
                let hold = hold.map_err(ReserveError::from_journal)?;
                return Ok((hold.with_rate_limits(meters), limit));
            }
        }
        Err(ReserveError::Unavailable(
            "other processes are reserving the account's credits at the same time".into(),
        ))
    }
}

impl Billing {
    /// Posts a debit from a process that does not admit requests.
    pub(super) fn post_debit_by_claim(
        &self,
        change: &BalanceChange<'_>,
    ) -> Result<PostingResult, StoreError> {
        let account = change.account;
        let claims = || self.claims_of_others(account);
        if self.0.ledger.changes().has_posted(change)? {
            return self.0.ledger.changes().post_change(change, "", &claims);
        }
        let claims_before = claims()?;
        let instance_dir = InstanceDir::create(&self.0.data_dir)?;
        let decide = |row: LedgerAccount| {
            let credit = CreditSnapshot::from_row(
                row,
                CreditSplit::default(),
                CreditSplit::default(),
                0,
                change.at_ms,
            );
            let available = AvailableCredit {
                free: credit.available,
                held_paid: credit.held.paid,
            };
            ledger::split_debit(change, available).map(|debit| debit.taken)
        };
        let claimed = self.0.ledger.changes().claim(
            &instance_dir.instance_id,
            account,
            &claims_before,
            decide,
        );
        let posted = claimed.and_then(|parts| {
            self.refresh_mirror(account)
                .and_then(|()| {
                    self.0
                        .ledger
                        .changes()
                        .post_change(change, &instance_dir.instance_id, &claims)
                })
                .inspect_err(|_| {
                    drop(self.0.ledger.changes().release_claim(
                        &instance_dir.instance_id,
                        account,
                        parts,
                    ))
                })
        });
        self.0
            .ledger
            .rows()
            .forget_instances(std::slice::from_ref(&instance_dir.instance_id))?;
        instance_dir.remove();
        posted
    }

    /// Returns whether the account covers all claims and the current holds of the admitting
    /// process.
    fn covers_claims(&self, account: &str) -> Result<bool, StoreError> {
        self.refresh_mirror(account)?;
        self.0
            .ledger
            .changes()
            .covers_claims(account, &self.claims_of_others(account)?)
    }

    /// Waits until the admitting process has published its holds. Without an admitting process,
    /// enters the requests that the last one settled, so that their credits cannot be used again.
    ///
    /// # Errors
    /// Returns an error if the process does not answer. Also returns an error without such a
    /// process if requests of the account wait for a segment, because no process holds their costs
    /// then.
    fn refresh_mirror(&self, account: &str) -> Result<(), StoreError> {
        let (ledger, data_dir) = (&self.0.ledger, &self.0.data_dir);
        let mut mirror = HoldsMirror::open(data_dir)?;
        let refresh_id = mirror.request_refresh()?;
        let began = Instant::now();
        loop {
            if !instance_lock::is_held(data_dir)? {
                let known = ledger.rows().instance_ids()?;
                let withheld = recover_dead_instances(ledger, data_dir, &known, None)?;
                if withheld
                    .iter()
                    .any(|withheld| &*withheld.account == account)
                {
                    return Err(StoreError::SegmentUnavailable(format!(
                        "ended requests of {account} wait for a segment that is not at hand: `ledger segments` names it; put it back and repeat"
                    )));
                }
                return Ok(());
            }
            if mirror.refresh_state()?.0 >= refresh_id {
                return Ok(());
            }
            if began.elapsed() > ANSWER_TIMEOUT {
                return Err(StoreError::Unusable(
                    "the running gateway did not report its reservations in time; run the command again".into(),
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the claims on the account that other living processes have published.
    pub(super) fn claims_of_others(&self, account: &str) -> Result<Vec<Claim>, StoreError> {
        let live = journal::live_instance_ids(&self.0.data_dir)?;
        let claims = HoldsMirror::open(&self.0.data_dir)?.claims_of(account)?;
        Ok(claims
            .into_iter()
            .filter(|claim| {
                claim.instance_id != self.instance_id() && live.contains(&claim.instance_id)
            })
            .collect())
    }
}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
