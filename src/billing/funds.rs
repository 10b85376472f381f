//! Decides from an account's credit snapshot whether the account may be served, and how much to
//! hold for a request.
//!
//! This file must not reserve credits.

use super::balance::{CreditSnapshot, SpendLeft};
use super::holds::{InMemory, Payer, PendingRequests, ReserveError};
use super::service::CreditService;
use credits::money::Micro;
use credits::pricing::Quote;
use std::sync::atomic::Ordering;

impl CreditService {
    /// Checks whether an account may be served at all, before the gateway reads the request's body:
    /// its limits, and whether it can pay `min_cost`, the minimum cost of a request. No credits are
    /// reserved. Never waits for the disk.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<InMemory<()>, ReserveError> {
        let serving = &self.serving;
        let max_open = serving.max_open_per_account.load(Ordering::Relaxed);
        let decide = |credit: &CreditSnapshot| check_funds(credit, max_open, min_cost, now_ms);
        serving
            .holds
            .check(&serving.ledger, payer, arriving, now_ms, decide)
    }
}

/// Returns the amount to hold for a request, and the output limit that it covers. Judges the key,
/// its member and then the account, each by itself, and returns the error of the first that cannot
/// pay.
pub(super) fn size_hold(
    credit: &CreditSnapshot,
    quote: &Quote,
    exact: bool,
    max_open: u64,
    now_ms: i64,
) -> Result<(Micro, u64), ReserveError> {
    if credit.open_requests >= max_open {
        return Err(ReserveError::TooManyOpen { limit: max_open });
    }
    let available = credit.available.total();
    let affordable_output = |budget| {
        quote
            .max_affordable_output(budget)
            .filter(|limit| !exact || *limit == quote.output_limit)
    };
    let mut budget = available;
    for left in credit.spend_left.iter().flatten() {
        affordable_output(left.free).ok_or_else(|| spend_limit_error(left))?;
        budget = budget.min(left.free);
    }
    // Each spend limit alone pays for the request.
    let limit = affordable_output(budget).ok_or_else(|| {
        let needed = quote.cost(quote.output_floor.min(quote.output_limit));
        insufficient_error(credit, needed, now_ms)
    })?;
    Ok((quote.cost(limit), limit))
}

fn spend_limit_error(left: &SpendLeft) -> ReserveError {
    let SpendLeft { of, period, free } = *left;
    ReserveError::SpendLimit { of, period, free }
}

fn insufficient_error(credit: &CreditSnapshot, needed: Micro, now_ms: i64) -> ReserveError {
    if credit.trial_ends_at_ms.is_some_and(|ends| now_ms >= ends) && !credit.ever_credited {
        return ReserveError::TrialExpired;
    }
    ReserveError::Insufficient {
        available: credit.available.total(),
        needed,
    }
}

/// Credit from which on the cost of the cheapest request need not be computed.
const AMPLE_CREDIT: Micro = Micro::new(1_000_000);

/// Checks that the account may open one more request and can pay for the cheapest one.
fn check_funds(
    credit: &CreditSnapshot,
    max_open: u64,
    min_cost: &(dyn Fn() -> Micro + Sync),
    now_ms: i64,
) -> Result<(), ReserveError> {
    if credit.open_requests >= max_open {
        return Err(ReserveError::TooManyOpen { limit: max_open });
    }
    let available = credit.available.total();
    let limits = || credit.spend_left.iter().flatten();
    if limits().fold(available, |least, left| least.min(left.free)) >= AMPLE_CREDIT {
        return Ok(());
    }
    let min_cost = min_cost();
    match limits().find(|left| left.free < min_cost) {
        Some(left) => Err(spend_limit_error(left)),
        None if available < min_cost => Err(insufficient_error(credit, min_cost, now_ms)),
        None => Ok(()),
    }
}
