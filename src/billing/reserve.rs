//! Reserves credits for one request from this process's own ledger.
//!
//! This file must not decide how much to hold: `billing/funds.rs` does.

use super::balance::CreditSnapshot;
use super::funds::size_hold;
use super::hold::{Hold, HoldRequest};
use super::holds::{InMemory, Payer, ReserveError};
use super::service::CreditService;
use credits::limits::{Period, SpendLimit};
use credits::pricing::Quote;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a reservation has come to before the journal has it.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for a moment, and a box would be an allocation for each request"
)]
pub(super) enum Reservation {
    /// A hold, and the output limit that it covers.
    Held(Hold, u64),
    /// This process no longer admits requests, so the request needs a claim in the ledger.
    HandedOver(HoldRequest),
    /// A row of the ledger is not in memory: see [`CreditService::rows_of`].
    Unread(HoldRequest),
}

/// Maximum number of times that a request reads its rows, because the ledger changes meanwhile.
/// Debits of requests leave the rows in memory.
pub(super) const MAX_ROW_READS: u32 = 16;

/// The rows of the ledger that decide about an account's requests.
pub(super) struct NeededRows {
    credit: CreditService,
    account: Arc<str>,
    spending: Vec<(Arc<str>, Period)>,
    now_ms: i64,
}

impl NeededRows {
    /// Reads the rows into memory. A thread that serves requests must not call this.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read or does not have the account.
    pub(super) fn load(&self) -> Result<(), ReserveError> {
        let serving = &self.credit.serving;
        let holds = &serving.holds;
        holds.load_rows(&serving.ledger, &self.account, &self.spending, self.now_ms)
    }
}

/// Returns the refusal of a request that has read its rows [`MAX_ROW_READS`] times.
pub(super) fn changes_too_often() -> ReserveError {
    ReserveError::Unavailable("the ledger changes too often".into())
}

impl CreditService {
    /// Reserves credits for the worst case of a request. Lowers the output limit to what the
    /// account can pay, unless `exact`. Returns the hold, once the journal has it, and the output
    /// limit that it covers. A thread that serves requests must use
    /// [`CreditService::begin_reservation`].
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; no credits are held then.
    pub fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let mut request = request;
        for _ in 0..MAX_ROW_READS {
            request = match self.begin_reservation(request, quote, exact, now_ms)? {
                Reservation::Held(hold, limit) => {
                    let hold = hold.wait_until_open_on_thread();
                    return Ok((hold.map_err(ReserveError::from_journal)?, limit));
                }
                Reservation::HandedOver(request) => {
                    return self.reserve_by_claim(request, quote, exact, now_ms);
                }
                Reservation::Unread(request) => request,
            };
            self.rows_of(&request.payer(), now_ms).load()?;
        }
        Err(changes_too_often())
    }

    pub(super) fn rows_of(&self, payer: &Payer<'_>, now_ms: i64) -> NeededRows {
        let spending = payer.spend_limits();
        let of = |(_, (spender, limit)): (usize, (&Arc<str>, SpendLimit))| {
            (Arc::clone(spender), limit.period)
        };
        NeededRows {
            credit: self.clone(),
            account: Arc::clone(payer.account),
            spending: spending.map(of).collect(),
            now_ms,
        }
    }

    /// Reserves credits like [`CreditService::reserve`], but never waits for the disk.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; no credits are held then.
    pub(super) fn begin_reservation(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<Reservation, ReserveError> {
        let serving = &self.serving;
        if serving.writer.state.closing.load(Ordering::Acquire) {
            return Err(ReserveError::Unavailable(
                "the gateway is shutting down".into(),
            ));
        }
        if serving.writer.state.failing.load(Ordering::Relaxed) {
            return Err(ReserveError::Unavailable(
                "the ledger cannot be written".into(),
            ));
        }
        serving.writer.state.backlog.check_room()?;
        if serving.journal.journal().is_degraded() {
            return Err(ReserveError::Unavailable(
                "the journal cannot be written".into(),
            ));
        }
        if serving.open.load(Ordering::Relaxed) >= serving.max_open {
            return Err(ReserveError::Busy);
        }
        let max_open = serving.max_open_per_account.load(Ordering::Relaxed);
        let decide = |credit: &CreditSnapshot| size_hold(credit, quote, exact, max_open, now_ms);
        let reserved = serving
            .holds
            .reserve(&serving.ledger, &request.payer(), now_ms, decide)?;
        let (parts, limit, meters) = match reserved {
            InMemory::Decided(Some(reserved)) => reserved,
            InMemory::Decided(None) => return Ok(Reservation::HandedOver(request)),
            InMemory::Unread => return Ok(Reservation::Unread(request)),
        };
        let hold = Hold::new(Arc::clone(serving) as _, request, quote.service, parts);
        let hold = hold.journal_open(&serving.journal, &serving.open, now_ms);
        Ok(Reservation::Held(hold.with_rate_limits(meters), limit))
    }
}
