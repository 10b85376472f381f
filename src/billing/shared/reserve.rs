//! Admission by the shared store: it reserves a request's credits, or says why it does not.
//!
//! Must not decide how much an account may spend: the store's script does.

use super::{ADMISSION_TIMEOUT, SEED_POLL_INTERVAL, SharedBilling};
use crate::billing::hold::{Hold, HoldRequest};
use crate::billing::holds::{Payer, ReserveError};
use crate::failpoint::{self, Point};
use crate::store::StoreError;
use crate::store::ledger::RequestOutcome;
use crate::store::redis::{ReserveCommand, ReserveReply};
use crate::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use credits::pricing::Quote;
use credits::rates::{RateLimitKind, RateLimitWait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of retries when the store reports too many concurrent requests while endings are
/// still on their way to it.
const MAX_ENDED_CHECKS: u32 = 5;
/// Time added to a request's maximum duration for its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

impl SharedBilling {
    /// Reserves credits for the worst case of a request, as [`crate::billing::Billing::reserve`]
    /// does.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; nothing is held then.
    pub async fn reserve(
        &self,
        opening: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let inner = &self.0;
        if inner.journal.is_degraded() {
            return Err(ReserveError::Unavailable("the journal has no room".into()));
        }
        // Check this before journalling: without a request to the store, there is nothing to
        // release later.
        if inner.store.is_unavailable() {
            return Err(ReserveError::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        if inner.relay.pending() >= inner.most_pending {
            return Err(ReserveError::Unavailable(
                "the shared store lags behind".into(),
            ));
        }
        if inner.open.load(Ordering::Relaxed) >= inner.most_open {
            return Err(ReserveError::Busy);
        }
        let full = quote.cost(quote.output_limit);
        let most_open = inner.most_open_per_account.load(Ordering::Relaxed);
        let floor = if exact {
            full
        } else {
            quote.cost(quote.output_floor.min(quote.output_limit))
        };
        let asked = ReserveCommand {
            request_id: &opening.request_id,
            account: &opening.account,
            full,
            floor,
            lease: Duration::from_secs(inner.total_seconds.load(Ordering::Relaxed))
                .saturating_add(LEASE_MARGIN),
            most_open,
            within: (!opening.bounds.is_unbounded()).then_some((&*opening.key_id, &opening.bounds)),
        };
        // Journal before the store reserves anything. So this edge knows of every hold in the
        // store, even if it is killed meanwhile.
        let hold = Hold::new(
            Arc::clone(inner) as _,
            opening.clone(),
            quote.service,
            CreditSplit::ZERO,
        )
        .journal_open(&inner.journal, &inner.open, now_ms)
        .map_err(|error| ReserveError::Unavailable(format!("cannot write the journal: {error}")))?;
        let fitted = |parts: CreditSplit| {
            quote
                .max_affordable_output(parts.total())
                .unwrap_or(quote.output_floor)
        };
        let refusal = match self.reserve_in_store(&asked).await {
            Ok(ReserveReply::Held(parts)) => return Ok((hold.with_credit(parts), fitted(parts))),
            Ok(ReserveReply::HeldWithin(parts, meters)) => {
                return Ok((
                    hold.with_credit(parts).with_rate_limits(meters),
                    fitted(parts),
                ));
            }
            Ok(other) => reserve_error(other, floor, most_open),
            // The store may have reserved the credits anyway. An ending without cost releases them
            // as soon as the store is reachable.
            Err(why) => {
                hold.release(RequestOutcome::Interrupted, now_ms);
                return Err(ReserveError::Unavailable(why));
            }
        };
        self.discard(hold);
        Err(refusal)
    }

    /// See [`crate::billing::Billing::authorize`]. Other edges and the store do not know the
    /// account's requests that arrive here.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub async fn authorize(&self, asker: &Payer<'_>, least: Micro) -> Result<(), ReserveError> {
        let inner = &self.0;
        if inner.store.is_unavailable() {
            return Err(ReserveError::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        let most_open = inner.most_open_per_account.load(Ordering::Relaxed);
        let asked = ReserveCommand {
            request_id: "",
            account: asker.account,
            full: least,
            floor: least,
            lease: Duration::ZERO,
            most_open,
            within: (!asker.bounds.is_unbounded()).then_some((&**asker.key, asker.bounds)),
        };
        match self
            .reserve_in_store(&asked)
            .await
            .map_err(ReserveError::Unavailable)?
        {
            ReserveReply::Held(_) | ReserveReply::HeldWithin(..) => Ok(()),
            other => Err(reserve_error(other, least, most_open)),
        }
    }

    /// Retries until the store knows the account, within the admission timeout. Also retries if the
    /// concurrency limit may be reached only because the ending of the client's last request is
    /// still on its way to the store.
    async fn reserve_in_store(&self, asked: &ReserveCommand<'_>) -> Result<ReserveReply, String> {
        let store = &self.0.store;
        let until = Instant::now() + ADMISSION_TIMEOUT;
        let (mut wanted, mut looks) = (false, 0);
        loop {
            let answer = tokio::time::timeout_at(until, store.reserve(asked)).await;
            let answer =
                answer.map_err(|_| "the shared store does not answer in time".to_owned())?;
            failpoint::hit(Point::HeldThere);
            match answer.map_err(count_store_error)? {
                ReserveReply::Unknown => {}
                ReserveReply::Limited(RateLimitWait {
                    limited: RateLimitKind::Concurrent,
                    ..
                }) if looks < MAX_ENDED_CHECKS && self.0.relay.has_unreported() => {
                    looks += 1;
                    tokio::time::sleep(SEED_POLL_INTERVAL).await;
                    continue;
                }
                known => return Ok(known),
            }
            if !std::mem::replace(&mut wanted, true) {
                let asked = tokio::time::timeout_at(until, store.request_seed(asked.account)).await;
                asked
                    .map_err(|_| "the shared store does not answer in time")?
                    .map_err(count_store_error)?;
            }
            if Instant::now() + SEED_POLL_INTERVAL >= until {
                return Ok(ReserveReply::Unknown);
            }
            tokio::time::sleep(SEED_POLL_INTERVAL).await;
        }
    }
}

/// Converts a refusal of the store.
fn reserve_error(said: ReserveReply, needed: Micro, most_open: u64) -> ReserveError {
    match said {
        ReserveReply::Insufficient { available } => {
            ReserveError::Insufficient { available, needed }
        }
        ReserveReply::TrialExpired => ReserveError::TrialExpired,
        ReserveReply::KeySpendLimit { free } => ReserveError::KeySpendLimit { free },
        ReserveReply::Limited(wait) => ReserveError::Limited(wait),
        ReserveReply::TooManyOpen => ReserveError::TooManyOpen { limit: most_open },
        other => {
            ReserveError::Unavailable(format!("unexpected reply of the shared store: {other:?}"))
        }
    }
}

fn count_store_error(error: StoreError) -> String {
    METRICS.ledger_error(error.reason());
    error.to_string()
}
