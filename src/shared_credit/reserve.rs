//! Admits requests by the shared store, which reserves a request's credits or returns the reason
//! why it does not.
//!
//! This file must not decide how much an account may spend: the store's script does.

use crate::billing::holds::{Payer, ReserveError};
use crate::billing::{Hold, HoldRequest};
use crate::shared_credit::billing::{SEED_POLL_INTERVAL, SharedBilling};
use crate::shared_credit::redis::{ReserveCommand, ReserveReply};
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use credits::limits::{Period, RequestLimits, Spender};
use credits::money::{CreditSplit, Micro};
use credits::pricing::Quote;
use credits::rates::{RateLimitKind, RateLimitWait};
use ledger::RequestOutcome;
use ledger::StoreError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of retries when the store reports too many concurrent requests while endings are
/// still on their way to it.
const MAX_ENDED_CHECKS: u32 = 5;
/// Time that is added to a request's maximum duration for its lease.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

impl SharedBilling {
    /// Reserves credits for the worst case of a request, like
    /// [`crate::billing::CreditService::reserve`].
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; no credits are held then.
    pub async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let inner = &self.0;
        let opened_ms = inner.store.clock().to_store_time(now_ms);
        if inner.journal.journal().is_degraded() {
            return Err(ReserveError::Unavailable(
                "the journal cannot be written".into(),
            ));
        }
        // Check this before journalling. Without a call to the store, no hold must be released.
        if inner.store.is_unavailable() {
            return Err(ReserveError::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        inner.relay.backlog().check_room()?;
        if inner.open.load(Ordering::Relaxed) >= inner.max_open {
            return Err(ReserveError::Busy);
        }
        let full = quote.cost(quote.output_limit);
        let max_open = inner.max_open_per_account.load(Ordering::Relaxed);
        let floor = if exact {
            full
        } else {
            quote.cost(quote.output_floor.min(quote.output_limit))
        };
        let command = ReserveCommand {
            request_id: &request.request_id,
            account: &request.account,
            full,
            floor,
            lease: Duration::from_secs(inner.total_seconds.load(Ordering::Relaxed))
                .saturating_add(LEASE_MARGIN),
            max_open,
            within: limits(&request.payer()),
        };
        // Journal the hold before the store reserves credits, so that this edge knows of every hold
        // in the store, even after a crash.
        let hold = Hold::new(
            Arc::clone(inner) as _,
            request.clone(),
            quote.service,
            CreditSplit::ZERO,
        )
        .journal_open(&inner.journal, &inner.open, opened_ms)
        .wait_until_open()
        .await
        .map_err(ReserveError::from_journal)?;
        let affordable_output = |parts: CreditSplit| {
            quote
                .max_affordable_output(parts.total())
                .unwrap_or(quote.output_floor)
        };
        let refusal = match self.reserve_in_store(&command).await {
            Ok(ReserveReply::Held(parts)) => {
                return Ok((hold.with_credit(parts), affordable_output(parts)));
            }
            Ok(ReserveReply::HeldWithin(parts, meters)) => {
                return Ok((
                    hold.with_credit(parts).with_rate_limits(meters),
                    affordable_output(parts),
                ));
            }
            Ok(other) => reserve_error(other, floor, &command),
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

    /// Checks an account like [`crate::billing::CreditService::authorize`]. Other edges and the
    /// store do not know the requests of the account that are arriving at this edge.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub async fn authorize(&self, payer: &Payer<'_>, min_cost: Micro) -> Result<(), ReserveError> {
        let inner = &self.0;
        if inner.store.is_unavailable() {
            return Err(ReserveError::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        let max_open = inner.max_open_per_account.load(Ordering::Relaxed);
        let command = ReserveCommand {
            request_id: "",
            account: payer.account,
            full: min_cost,
            floor: min_cost,
            lease: Duration::ZERO,
            max_open,
            within: limits(payer),
        };
        match self
            .reserve_in_store(&command)
            .await
            .map_err(ReserveError::Unavailable)?
        {
            ReserveReply::Held(_) | ReserveReply::HeldWithin(..) => Ok(()),
            other => Err(reserve_error(other, min_cost, &command)),
        }
    }

    /// Reserves credits in the store. Retries within the admission timeout until the store knows
    /// the account. Also retries if the concurrency limit may only seem reached, because the ending
    /// of the client's last request has not arrived at the store yet.
    async fn reserve_in_store(&self, command: &ReserveCommand<'_>) -> Result<ReserveReply, String> {
        let store = &self.0.store;
        let until = self.admission_deadline();
        let (mut has_requested_seed, mut ended_checks) = (false, 0);
        loop {
            let reply = tokio::time::timeout_at(until, store.holds().reserve(command)).await;
            let reply = reply.map_err(|_| "the shared store does not answer in time".to_owned())?;
            failpoint::hit(Point::HeldThere);
            match reply.map_err(count_store_error)? {
                ReserveReply::Unknown => {}
                ReserveReply::Limited(RateLimitWait {
                    limited: RateLimitKind::Concurrent,
                    ..
                }) if ended_checks < MAX_ENDED_CHECKS && self.0.relay.has_unreported() => {
                    ended_checks += 1;
                    tokio::time::sleep(SEED_POLL_INTERVAL).await;
                    continue;
                }
                known => return Ok(known),
            }
            if !std::mem::replace(&mut has_requested_seed, true) {
                let requested =
                    tokio::time::timeout_at(until, store.ingest().request_seed(command.account))
                        .await;
                requested
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

/// Returns the key, the member and the limits of a request, or `None` without limits.
fn limits<'a>(payer: &Payer<'a>) -> Option<(&'a str, Option<&'a str>, &'a RequestLimits)> {
    let member = payer.member.map(|member| &**member);
    (!payer.bounds.is_unbounded()).then_some((payer.key, member, payer.bounds))
}

fn reserve_error(reply: ReserveReply, needed: Micro, command: &ReserveCommand<'_>) -> ReserveError {
    match reply {
        ReserveReply::Insufficient { available } => {
            ReserveError::Insufficient { available, needed }
        }
        ReserveReply::TrialExpired => ReserveError::TrialExpired,
        ReserveReply::SpendLimit { of, free } => {
            let spend = command
                .within
                .map_or([None; 2], |(.., limits)| limits.spend);
            let limits = Spender::ALL.into_iter().zip(spend);
            let limit = limits
                .filter(|(one, _)| *one == of)
                .find_map(|(_, limit)| limit);
            ReserveError::SpendLimit {
                of,
                period: limit.map_or(Period::Total, |limit| limit.period),
                free,
            }
        }
        ReserveReply::Limited(wait) => ReserveError::Limited(wait),
        ReserveReply::TooManyOpen => ReserveError::TooManyOpen {
            limit: command.max_open,
        },
        ReserveReply::Suspended => ReserveError::Suspended,
        ReserveReply::Ended | ReserveReply::Unknown => ReserveError::Unavailable(
            "the shared store refused the reservation: the account is unknown, or the request has \
             ended"
                .to_owned(),
        ),
        ReserveReply::Held(_) | ReserveReply::HeldWithin(..) => ReserveError::Unavailable(
            "the shared store made a reservation that was not requested".to_owned(),
        ),
    }
}

fn count_store_error(error: StoreError) -> String {
    METRICS.ledger_error(error.reason());
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_was_suspended_meanwhile_is_no_fault_of_the_store() {
        let command = ReserveCommand {
            request_id: "req_1",
            account: "acct_1",
            full: Micro::new(1),
            floor: Micro::new(1),
            lease: Duration::ZERO,
            max_open: 1,
            within: None,
        };
        let error = |reply| reserve_error(reply, Micro::new(1), &command);
        assert!(matches!(
            error(ReserveReply::Suspended),
            ReserveError::Suspended
        ));
        assert!(matches!(
            error(ReserveReply::Unknown),
            ReserveError::Unavailable(_)
        ));
    }
}
