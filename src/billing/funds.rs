//! Decisions from an account's credit snapshot: whether it may be served at all, and how much to
//! hold for a request.
//!
//! Must not reserve anything.

use super::holds::{Asker, Refused, Standing};
use super::pricing::Quote;
use super::{Arriving, Billing, UNBILLED};
use crate::money::Micro;
use std::sync::atomic::Ordering;

impl Billing {
    /// Checks whether an account may be served at all, before the gateway reads the request's body:
    /// its limits, and whether it can pay `least`, the minimum cost of a request. Reserves nothing.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub fn check(
        &self,
        asker: &Asker<'_>,
        arriving: Arriving,
        least: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), Refused> {
        let Some(serving) = self.0.serving.as_ref().filter(|_| !UNBILLED) else {
            return Ok(());
        };
        let most_open = serving.most_open_per_account.load(Ordering::Relaxed);
        let decide = |standing: &Standing| check_funds(standing, most_open, least, now_ms);
        serving
            .holds
            .check(&self.0.ledger, asker, arriving, now_ms, decide)
    }
}

/// Returns the amount to hold for a request, and the output limit that it covers.
pub(super) fn decide(
    standing: &Standing,
    quote: &Quote,
    exact: bool,
    most_open: u64,
    now_ms: i64,
) -> Result<(Micro, u64), Refused> {
    if standing.open_requests >= most_open {
        return Err(Refused::TooManyOpen { limit: most_open });
    }
    let available = standing.available.total();
    let fit = |most| {
        quote
            .fit(most)
            .filter(|limit| !exact || *limit == quote.output_limit)
    };
    // If both the account and the key fall short, report the account: without credits, a higher
    // limit of the key does not help.
    match fit(available) {
        Some(limit) => match standing.key_free {
            None => Ok((quote.cost(limit), limit)),
            Some(free) => fit(free.or_zero().min(available))
                .map(|limit| (quote.cost(limit), limit))
                .ok_or(Refused::KeySpendLimit {
                    free: free.or_zero(),
                }),
        },
        None => Err(insufficient(
            standing,
            quote.cost(quote.output_floor.min(quote.output_limit)),
            now_ms,
        )),
    }
}

fn insufficient(standing: &Standing, needed: Micro, now_ms: i64) -> Refused {
    if standing.trial_ends_at_ms.is_some_and(|ends| now_ms >= ends) && !standing.ever_credited {
        return Refused::TrialExpired;
    }
    Refused::Insufficient {
        available: standing.available.total(),
        needed,
    }
}

/// From this credit on, skip computing the cost of the cheapest request.
const PLENTY: Micro = Micro::new(1_000_000);

/// Checks that the account may open one more request and can pay for the cheapest one.
fn check_funds(
    standing: &Standing,
    most_open: u64,
    least: &(dyn Fn() -> Micro + Sync),
    now_ms: i64,
) -> Result<(), Refused> {
    if standing.open_requests >= most_open {
        return Err(Refused::TooManyOpen { limit: most_open });
    }
    let (available, free) = (
        standing.available.total(),
        standing.key_free.map(Micro::or_zero),
    );
    if free.unwrap_or(available).min(available) >= PLENTY {
        return Ok(());
    }
    let least = least();
    match free {
        _ if available < least => Err(insufficient(standing, least, now_ms)),
        Some(free) if free < least => Err(Refused::KeySpendLimit { free }),
        _ => Ok(()),
    }
}
