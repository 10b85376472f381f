//! Tracks the backlog of ended requests that wait for the ledger. It is measured in seconds of work
//! at the measured rate of commits, and slows admission down.
//!
//! Admission slows in steps, so that there is no cliff. Below a quarter of the bound, admission is
//! not affected. Above that, a request waits before it is admitted, longer if more endings of its
//! account wait. Above three quarters, accounts with more than their fair share are refused; at the
//! bound, all accounts are. Bounds on the number of endings in memory and on their bytes work in
//! the same way. The pressure is computed from the counts when it is needed, so it falls by itself
//! as the ledger catches up. This module must not depend on HTTP or count running requests. Read
//! next: `backlog/rate.rs` (the rate of commits), `backlog/shares.rs` (the share of each account).

mod rate;
mod shares;
#[cfg(test)]
mod tests;

use base::telemetry::METRICS;
pub use rate::CommitRate;
use shares::AccountShares;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Pressure, in thousandths of the bound, above which requests wait. The next two constants are the
/// pressures above which accounts with more than their fair share, and then all accounts, are
/// refused.
const SLOW_FROM: u64 = 250;
const REFUSE_SHARE_FROM: u64 = 750;
const REFUSE_ALL_FROM: u64 = 1_000;
/// Pressure, in thousandths of the bound, that a refused client should find when it returns.
const RETRY_AT: u64 = 500;
/// Below this pressure the log reports that the ledger has caught up.
const CAUGHT_UP_BELOW: u64 = 125;
/// Maximum wait of a request, which applies at the bound to an account with at least its fair
/// share.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Minimum wait. A shorter one is not worth a timer.
const MIN_DELAY: Duration = Duration::from_millis(1);
/// Maximum number of requests that wait at one time.
pub const MAX_DELAYED: usize = 4_096;
/// Minimum of `retry-after`, in seconds.
const MIN_RETRY_SECONDS: u64 = 1;
const MAX_RETRY_SECONDS: u64 = 30;

pub struct LedgerBacklog {
    /// Number of endings that the ledger (or on an edge, the shared store) has not accepted.
    waiting: AtomicUsize,
    /// Number of endings in memory, which the ledger may not have yet.
    kept: AtomicUsize,
    max_kept: usize,
    /// Number of bytes of the endings in memory, as far as they are counted.
    kept_bytes: AtomicU64,
    max_bytes: u64,
    /// Maximum duration of the backlog, in seconds.
    max_seconds: AtomicU64,
    /// Measured rate, in endings per second.
    rate: AtomicU64,
    /// Last computed pressure, in thousandths of the bound. It is a hint that decides only whether
    /// to compute the pressure again.
    pressure: AtomicU64,
    shares: AccountShares,
    delayed: AtomicUsize,
    /// The worst stage that was logged since the ledger last caught up.
    reported: AtomicU8,
}

/// A refusal of a request because of the backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BacklogRefusal {
    pub reason: BacklogReason,
    /// Time, in seconds, until the backlog should have fallen to half its bound at the measured
    /// rate.
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BacklogReason {
    /// The account has more than its fair share of the waiting endings.
    Share,
    /// Too many requests wait already, and this account has more than its fair share.
    Delayed,
    /// The backlog has reached its bound.
    Full,
}

/// A waiting request. The count includes it until it is dropped.
#[derive(Debug)]
pub struct DelayedRequest<'a>(&'a AtomicUsize);

impl Drop for DelayedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LedgerBacklog {
    /// Creates the backlog. `max_kept` is the maximum number of endings in memory, and
    /// `max_seconds` the maximum time that the ledger may need for the waiting ones.
    pub fn new(max_kept: usize, max_seconds: u64) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            max_kept,
            kept_bytes: AtomicU64::new(0),
            max_bytes: u64::MAX,
            max_seconds: AtomicU64::new(max_seconds),
            rate: AtomicU64::new(CommitRate::default().per_second()),
            pressure: AtomicU64::new(0),
            shares: AccountShares::default(),
            delayed: AtomicUsize::new(0),
            reported: AtomicU8::new(0),
        }
    }

    /// Sets the maximum number of bytes of the endings that [`LedgerBacklog::add_bytes`] counts.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// Creates a backlog for a command, which admits no requests.
    pub fn without_limit() -> Self {
        Self::new(usize::MAX, u64::MAX)
    }

    pub fn set_max_seconds(&self, seconds: u64) {
        self.max_seconds.store(seconds, Ordering::Relaxed);
        self.update_pressure();
    }

    /// Counts an ending of this account that begins to wait.
    pub fn add(&self, account: &str) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.shares.add(account);
        self.update_pressure();
    }

    /// Counts the bytes of an ending that begins to wait.
    pub fn add_bytes(&self, bytes: u64) {
        self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.update_pressure();
    }

    /// Counts the bytes of an ending that is no longer in memory.
    pub fn remove_bytes(&self, bytes: u64) {
        self.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.update_pressure();
    }

    /// Subtracts endings that the ledger, or the shared store, has accepted.
    pub fn accept(&self, endings: usize) {
        self.waiting.fetch_sub(endings, Ordering::Relaxed);
        self.update_pressure();
    }

    /// Subtracts endings that are no longer in memory, by their accounts.
    pub fn remove<'a>(&self, accounts: impl IntoIterator<Item = &'a str>) {
        for account in accounts {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            self.shares.remove(account);
        }
        self.report_recovery(self.update_pressure());
    }

    /// Sets the rate of commits, in endings per second.
    pub fn set_rate(&self, per_second: u64) {
        self.rate.store(per_second.max(1), Ordering::Relaxed);
        self.update_pressure();
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Returns the time that the ledger needs for the waiting endings.
    pub fn time(&self) -> Duration {
        let rate = self.rate.load(Ordering::Relaxed).max(1);
        Duration::from_millis(to_u64(self.waiting()).saturating_mul(1_000) / rate)
    }

    /// Returns whether requests are admitted as without a backlog.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) < SLOW_FROM
    }

    /// Checks that the backlog has room for one more request, of any account.
    ///
    /// # Errors
    /// Returns an error if the backlog has reached its bound.
    pub fn check_room(&self) -> Result<(), BacklogRefusal> {
        match self.is_full() {
            true => Err(self.refuse(BacklogReason::Full)),
            false => Ok(()),
        }
    }

    /// Returns whether the backlog has reached its bound, so that all requests are refused.
    pub fn is_full(&self) -> bool {
        !self.is_calm() && self.update_pressure() >= REFUSE_ALL_FROM
    }

    /// Checks whether a request of this account may wait for admission, without counting it.
    ///
    /// # Errors
    /// Returns an error if the backlog has reached its bound, or if the account is above its fair
    /// share.
    pub fn check(&self, account: &str) -> Result<(), BacklogRefusal> {
        if self.is_calm() {
            return Ok(());
        }
        match self.assess(account) {
            Assessment::Refuse(reason) => Err(self.refuse(reason)),
            Assessment::Delay(_) => Ok(()),
        }
    }

    /// Returns the time that a request of this account must wait before it is admitted, or `None`
    /// without a wait. The caller must drop the guard when it has waited.
    ///
    /// # Errors
    /// Returns the errors of [`LedgerBacklog::check`]. Also returns an error if too many requests
    /// wait and the account has its fair share; other accounts are then admitted without a wait.
    pub fn delay(
        &self,
        account: &str,
    ) -> Result<Option<(Duration, DelayedRequest<'_>)>, BacklogRefusal> {
        if self.is_calm() {
            return Ok(None);
        }
        let delay = match self.assess(account) {
            Assessment::Refuse(reason) => return Err(self.refuse(reason)),
            Assessment::Delay(delay) if delay < MIN_DELAY => return Ok(None),
            Assessment::Delay(delay) => delay,
        };
        let guard = DelayedRequest(&self.delayed);
        if self.delayed.fetch_add(1, Ordering::Relaxed) >= MAX_DELAYED {
            let has_share = self.shares.count_for(account) >= self.fair_share();
            return match has_share {
                true => Err(self.refuse(BacklogReason::Delayed)),
                false => Ok(None),
            };
        }
        METRICS.count_backlog("delayed");
        Ok(Some((delay, guard)))
    }

    pub fn update_gauges(&self) {
        METRICS
            .journal_pending
            .set(i64::try_from(self.kept()).unwrap_or(i64::MAX));
        METRICS
            .journal_bytes
            .set(i64::try_from(self.kept_bytes()).unwrap_or(i64::MAX));
        METRICS
            .ledger_backlog_seconds
            .set(self.time().as_secs_f64());
    }

    fn assess(&self, account: &str) -> Assessment {
        let pressure = self.update_pressure();
        self.report(pressure);
        assess(pressure, self.shares.count_for(account), self.fair_share())
    }

    /// Returns the number of waiting endings of each account if all accounts with waiting endings,
    /// and one more, had the same number. The additional account keeps room when a single account
    /// uses the ledger alone.
    fn fair_share(&self) -> u64 {
        let accounts = to_u64(self.shares.accounts()).saturating_add(1);
        (to_u64(self.kept()) / accounts).max(1)
    }

    fn refuse(&self, reason: BacklogReason) -> BacklogRefusal {
        METRICS.count_backlog(match reason {
            BacklogReason::Share => "refused_share",
            BacklogReason::Delayed => "refused_delayed",
            BacklogReason::Full => "refused_full",
        });
        BacklogRefusal {
            reason,
            retry_after_seconds: self.retry_after_seconds(),
        }
    }

    /// Returns the time in seconds until the pressure should have fallen to [`RETRY_AT`].
    fn retry_after_seconds(&self) -> u32 {
        let rate = self.rate.load(Ordering::Relaxed).max(1);
        let limit = |most: u64| most.saturating_mul(RETRY_AT) / REFUSE_ALL_FROM;
        let of_time = to_u64(self.waiting()).saturating_sub(limit(self.max_waiting(rate)));
        let of_memory = to_u64(self.kept()).saturating_sub(limit(to_u64(self.max_kept)));
        let bytes_each = (self.kept_bytes() / to_u64(self.kept()).max(1)).max(1);
        let of_bytes = self.kept_bytes().saturating_sub(limit(self.max_bytes)) / bytes_each;
        let seconds = of_time.max(of_memory).max(of_bytes).div_ceil(rate);
        u32::try_from(seconds.clamp(MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)).unwrap_or(1)
    }

    /// Returns the number of waiting endings at which the maximum time is reached.
    fn max_waiting(&self, rate: u64) -> u64 {
        rate.saturating_mul(self.max_seconds.load(Ordering::Relaxed))
    }

    /// Computes the pressure in thousandths of the closest bound.
    fn update_pressure(&self) -> u64 {
        let rate = self.rate.load(Ordering::Relaxed).max(1);
        let thousandths =
            |part: u64, whole: u64| part.saturating_mul(REFUSE_ALL_FROM) / whole.max(1);
        let pressure = thousandths(to_u64(self.waiting()), self.max_waiting(rate))
            .max(thousandths(to_u64(self.kept()), to_u64(self.max_kept)))
            .max(thousandths(self.kept_bytes(), self.max_bytes));
        self.pressure.store(pressure, Ordering::Relaxed);
        pressure
    }

    /// Logs each worse stage once, until the ledger has caught up.
    fn report(&self, pressure: u64) {
        let (stage, effect) = match pressure {
            REFUSE_ALL_FROM.. => (3, "refuses all requests"),
            REFUSE_SHARE_FROM.. => (2, "refuses accounts that send more than their share"),
            SLOW_FROM.. => (1, "slows new requests"),
            _ => return,
        };
        if self.reported.fetch_max(stage, Ordering::Relaxed) < stage {
            log::warn!(
                "{} ended requests wait for the ledger, {} bytes and {} ms of work: the gateway {effect}. Check the disk, and with a shared store Redis and the sidecar",
                self.kept(),
                self.kept_bytes(),
                self.time().as_millis()
            );
        }
    }

    fn report_recovery(&self, pressure: u64) {
        if pressure < CAUGHT_UP_BELOW && self.reported.load(Ordering::Relaxed) > 0 {
            self.reported.store(0, Ordering::Relaxed);
            log::info!("the ledger has caught up: the gateway no longer slows requests");
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assessment {
    Delay(Duration),
    Refuse(BacklogReason),
}

/// Decides about a request of an account with `count` waiting endings, if its fair share is `fair`.
fn assess(pressure: u64, count: u64, fair: u64) -> Assessment {
    if pressure >= REFUSE_ALL_FROM {
        return Assessment::Refuse(BacklogReason::Full);
    }
    if pressure < SLOW_FROM {
        return Assessment::Delay(Duration::ZERO);
    }
    let of_share = |times: u64| count.saturating_mul(times) / fair.max(1);
    if pressure >= REFUSE_SHARE_FROM {
        // At first an account may have twice its fair share, so that chance does not decide between
        // accounts with equal load. At the bound it may have exactly its fair share.
        let left = REFUSE_ALL_FROM - pressure;
        let allowed = 1_000 + left * 1_000 / (REFUSE_ALL_FROM - REFUSE_SHARE_FROM);
        if of_share(1_000) > allowed {
            return Assessment::Refuse(BacklogReason::Share);
        }
    }
    let rise = (pressure - SLOW_FROM) * 1_000 / (REFUSE_ALL_FROM - SLOW_FROM);
    let thousandths = rise * of_share(1_000).min(1_000) / 1_000;
    let full = u64::try_from(MAX_DELAY.as_micros()).unwrap_or(u64::MAX);
    Assessment::Delay(Duration::from_micros(full * thousandths / 1_000))
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
