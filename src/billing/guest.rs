//! Reserving credit next to the process that admits requests: for a command, or for a gateway that
//! has handed over and finishes its work.
//!
//! The admitting process decides in memory, so another process cannot read its holds. It therefore
//! works in three steps. It posts a claim in the ledger, where every later admission sees it. It
//! waits until the admitting process has published its holds. It checks whether the account covers
//! both. If two processes race, one or both are refused; credit is never taken twice. Must not be
//! on the path of requests before a hand-over.

use super::holds::{Refused, Standing};
use super::journal::{self, Place};
use super::pricing::Quote;
use super::{Billing, Hold, Opening, Serving, Till, decide, enter_left_behind, owner};
use crate::money::Parts;
use crate::store::StoreError;
use crate::store::holds::HeldMirror;
use crate::store::ledger::{self, Account, Change, Claim, Posted};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the admitting process may take to publish its holds; it does so every 20 ms.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);
/// Maximum number of claims that a request makes. A retry knows the holds that made the previous
/// claim fail.
const TRIES: u32 = 3;

impl Billing {
    /// Hands admission over to another process: this process's holds become claims, and the waiting
    /// successor gets the right to serve. Running requests finish and settle as before. A new
    /// request that still arrives here is admitted by a claim.
    ///
    /// # Errors
    /// Returns an error if no successor waits or the ledger cannot be written; this process then
    /// continues as before.
    pub fn hand_over(&self) -> Result<(), StoreError> {
        let Some(serving) = &self.0.serving else {
            return Ok(());
        };
        if self.is_guest() {
            return Ok(());
        }
        owner::expect_successor(&self.0.data_dir)?;
        serving.holds.hand_over(&self.0.ledger)?;
        drop(
            serving
                .owner
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .take(),
        );
        Ok(())
    }

    /// Whether this process has handed over. Admission may then wait for another process, so it
    /// must not run on a serving thread.
    pub fn is_guest(&self) -> bool {
        self.0.ledger.is_guest()
    }

    /// Like [`Billing::reserve`], next to the process that admits requests. May wait for it.
    pub(super) fn reserve_as_guest(
        &self,
        serving: &Serving,
        opening: Opening,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), Refused> {
        let unavailable = |error: StoreError| Refused::Unavailable(error.to_string());
        let (boot, account) = (self.boot(), &opening.account);
        let meters = serving.holds.meter(&opening.asker(), now_ms)?;
        for _ in 0..TRIES {
            let mut limit = 0;
            let judge = |row: Account| -> Result<Parts, Refused> {
                let open = serving.holds.open_requests(account);
                let mut standing =
                    Standing::of(row, Parts::default(), Parts::default(), open, now_ms);
                standing.key_free =
                    serving
                        .holds
                        .key_free(&self.0.ledger, &opening.asker(), now_ms)?;
                let most_open = serving.most_open_per_account.load(Ordering::Relaxed);
                let (amount, output_limit) = decide(&standing, quote, exact, most_open, now_ms)?;
                limit = output_limit;
                Ok(standing.available.take(amount))
            };
            let told = self.told_by_others(account).map_err(unavailable)?;
            let parts = self.0.ledger.set_aside(boot, account, &told, judge)?;
            let outcome = self.is_borne(account);
            if !matches!(outcome, Ok(true)) {
                self.give_claim_back(account, parts);
            }
            if outcome.map_err(unavailable)? {
                serving.holds.add(&opening.asker(), parts);
                return Hold::open(
                    Till::Here(self.clone()),
                    opening,
                    quote.service,
                    parts,
                    now_ms,
                )
                .map(|hold| (hold.metered(meters), limit))
                .map_err(|error| Refused::Unavailable(format!("write the journal: {error}")));
            }
        }
        Err(Refused::Unavailable(
            "its credit is being taken by others at this moment".into(),
        ))
    }

    /// Posts a debit from a process that does not admit requests.
    pub(super) fn take_as_guest(&self, change: &Change<'_>) -> Result<Posted, StoreError> {
        let account = change.account;
        let told = || self.told_by_others(account);
        if self.0.ledger.knows(change)? {
            return self.0.ledger.change(change, "", told);
        }
        let told_before = told()?;
        let place = Place::begin(&self.0.data_dir)?;
        let judge = |row: Account| {
            let standing = Standing::of(row, Parts::default(), Parts::default(), 0, change.at_ms);
            ledger::bear(change, standing.available)
        };
        let claimed = self
            .0
            .ledger
            .set_aside(&place.boot, account, &told_before, judge);
        let posted = claimed.and_then(|parts| {
            self.ask()
                .and_then(|()| self.0.ledger.change(change, &place.boot, told))
                .inspect_err(|_| drop(self.0.ledger.release_claim(&place.boot, account, parts)))
        });
        self.0
            .ledger
            .forget_boots(std::slice::from_ref(&place.boot))?;
        place.leave();
        posted
    }

    /// Whether the account covers all claims and the current holds of the admitting process.
    fn is_borne(&self, account: &str) -> Result<bool, StoreError> {
        self.ask()?;
        self.0
            .ledger
            .bears_claims(account, &self.told_by_others(account)?)
    }

    pub(super) fn give_claim_back(&self, account: &str, parts: Parts) {
        if !self.is_guest() {
            return;
        }
        if let Err(error) = self.0.ledger.release_claim(self.boot(), account, parts) {
            log::error!("{error}; it stays set aside until this process ends");
        }
    }

    /// Waits until the admitting process has published its holds. If there is none, enters what the
    /// last one settled, so that nobody can use those credits again.
    fn ask(&self) -> Result<(), StoreError> {
        let (ledger, data_dir) = (&self.0.ledger, &self.0.data_dir);
        let mirror = HeldMirror::open(data_dir)?;
        let question = mirror.ask()?;
        let began = Instant::now();
        loop {
            if !owner::is_taken(data_dir)? {
                return enter_left_behind(ledger, data_dir, &ledger.boots()?);
            }
            if mirror.questions()?.0 >= question {
                return Ok(());
            }
            if began.elapsed() > ANSWER_WITHIN {
                return Err(StoreError::Unusable(
                    "the gateway that serves does not tell what it holds".into(),
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Claims on the account that other living processes have published.
    pub(super) fn told_by_others(&self, account: &str) -> Result<Vec<Claim>, StoreError> {
        let live = journal::live_boots(&self.0.data_dir)?;
        let told = HeldMirror::open(&self.0.data_dir)?.of(account)?;
        Ok(told
            .into_iter()
            .filter(|claim| claim.boot != self.boot() && live.contains(&claim.boot))
            .collect())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}
