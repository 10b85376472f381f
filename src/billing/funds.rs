//! Decides from an account's credit snapshot whether the account may be served, and how much to
//! hold for a request.
//!
//! This file must not reserve credits.

use super::balance::CreditSnapshot;
use super::holds::{Payer, PendingRequests, ReserveError};
use super::service::CreditService;
use credits::money::Micro;
use credits::pricing::Quote;
use std::sync::atomic::Ordering;

impl CreditService {
    /// Checks whether an account may be served at all, before the gateway reads the request's body:
    /// its limits, and whether it can pay `min_cost`, the minimum cost of a request. No credits are
    /// reserved.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), ReserveError> {
        let serving = &self.serving;
        let max_open = serving.max_open_per_account.load(Ordering::Relaxed);
        let decide = |credit: &CreditSnapshot| check_funds(credit, max_open, min_cost, now_ms);
        serving
            .holds
            .check(&serving.ledger, payer, arriving, now_ms, decide)
    }
}

/// Returns the amount to hold for a request, and the output limit that it covers.
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
    // If both the account and the key fall short, report the account, because a higher limit of the
    // key would not help.
    match affordable_output(available) {
        Some(limit) => match credit.key_free {
            None => Ok((quote.cost(limit), limit)),
            Some(free) => affordable_output(free.or_zero().min(available))
                .map(|limit| (quote.cost(limit), limit))
                .ok_or(ReserveError::KeySpendLimit {
                    free: free.or_zero(),
                }),
        },
        None => Err(insufficient_error(
            credit,
            quote.cost(quote.output_floor.min(quote.output_limit)),
            now_ms,
        )),
    }
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
    let (available, free) = (
        credit.available.total(),
        credit.key_free.map(Micro::or_zero),
    );
    if free.unwrap_or(available).min(available) >= AMPLE_CREDIT {
        return Ok(());
    }
    let min_cost = min_cost();
    match free {
        _ if available < min_cost => Err(insufficient_error(credit, min_cost, now_ms)),
        Some(free) if free < min_cost => Err(ReserveError::KeySpendLimit { free }),
        _ => Ok(()),
    }
}
