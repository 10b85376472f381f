//! Decides whether another attempt is possible, by the attempts and endpoints that are left, the
//! vendor's retry budget, and the data that the client and the vendor have received.
//!
//! This file must not start an attempt: `upstream/attempts.rs` does.

use crate::edge::intake::AbortReason;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::NextAttempt;
use crate::upstreams::EndpointQuery;
use base::telemetry::METRICS;
use config::catalog::VendorEndpoint;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

impl AdmittedRequest {
    pub fn endpoint(&self) -> Option<&VendorEndpoint> {
        let attempt = self.attempt.as_ref()?;
        self.vendor_call
            .endpoints
            .vendor
            .endpoints
            .get(attempt.lease.index)
    }

    /// Returns the endpoint of the last attempt, running or ended.
    pub fn last_endpoint(&self) -> Option<&VendorEndpoint> {
        self.vendor_call
            .endpoints
            .vendor
            .endpoints
            .get(*self.attempts.tried.last()?)
    }

    /// Returns the addresses of the running attempt's endpoint that were tried.
    pub(super) fn tried_addresses(&self) -> &[SocketAddr] {
        self.attempt
            .as_ref()
            .map_or(&[], |attempt| &attempt.addresses)
    }

    pub(super) fn endpoint_query(&self) -> EndpointQuery<'_> {
        let model = self.model.upstream_model.as_str();
        let has_instead = self.has_fallback();
        EndpointQuery {
            model,
            key: self.vendor_call.affinity_key,
            has_instead,
            has_waited: false,
            tried: &self.attempts.tried,
        }
    }

    pub(super) fn has_fallback(&self) -> bool {
        self.fallbacks
            .as_ref()
            .is_some_and(|fallbacks| fallbacks.has_remaining())
    }

    pub(super) fn has_attempts(&self) -> bool {
        let attempts = usize::try_from(self.settings.limits.attempts).unwrap_or(usize::MAX);
        self.attempts.tried.len() < attempts
    }

    fn has_endpoint(&self, now: Instant) -> bool {
        self.has_attempts()
            && self
                .vendor_call
                .endpoints
                .has_available(self.endpoint_query(), now)
    }

    /// Returns whether the next attempt fits into this vendor's retry budget.
    fn has_budget(&self, now: Instant) -> bool {
        !self.attempts.counts_as_retry
            || self
                .vendor_call
                .endpoints
                .has_retry_budget(&self.settings.limits, now)
    }

    /// Returns whether the gateway may try again: another endpoint or another model is left, the
    /// client is connected, and it has received no byte of a response.
    pub(super) fn may_retry(&self) -> bool {
        let now = Instant::now();
        self.is_unanswered()
            && (self.has_fallback() || self.has_endpoint(now) && self.has_budget(now))
    }

    /// Returns [`Self::may_retry`], and counts the failover if the result is true. `was_sent` says
    /// that the vendor had the request, so sending it to another endpoint of this vendor is a
    /// retry.
    pub(super) fn try_failover(&mut self, reason: &str, was_sent: bool) -> bool {
        self.attempts.counts_as_retry = was_sent;
        let may_retry = self.may_retry();
        if may_retry {
            count_failover(self, reason);
        } else if was_sent && self.is_unanswered() && self.has_endpoint(Instant::now()) {
            count_budget_exhausted(self);
        }
        may_retry
    }

    /// Returns whether the vendor cannot have worked on the request for long, because the gateway
    /// sent it incompletely or only a moment ago. A later repeat would make two vendors charge for
    /// the request. The exception is a vendor that refused the request explicitly.
    pub fn may_resend(&self) -> bool {
        let within = Duration::from_secs(self.settings.limits.repeat_within_seconds);
        self.exchange
            .progress()
            .time_since_sent()
            .is_none_or(|sent_for| sent_for <= within)
    }

    /// Handles a pooled connection that was dead before it was used. The gateway sends the request
    /// to the same endpoint once more, on a fresh connection. Returns false if another repeat is
    /// not allowed.
    pub(super) fn try_repeat(&mut self) -> bool {
        let may = !self.attempts.has_replaced_connection && self.is_unanswered();
        if may {
            self.attempts.has_replaced_connection = true;
            if let Some(attempt) = &self.attempt {
                attempt.lease.record_dead_connection();
            }
            self.repeat_at_endpoint(NextAttempt::SameEndpoint);
        }
        may
    }

    /// Returns whether the vendor's retry budget allows a repeat of the request. If so, charges the
    /// budget.
    pub(super) fn charge_retry_budget(&self) -> bool {
        if self.attempts.has_replaced_connection || !self.is_unanswered() {
            return false;
        }
        let is_allowed = self
            .vendor_call
            .endpoints
            .take_retry(&self.settings.limits, Instant::now());
        if !is_allowed {
            count_budget_exhausted(self);
        }
        is_allowed
    }

    /// Makes the next attempt use the endpoint, and possibly the address, of the last one.
    pub(super) fn repeat_at_endpoint(&mut self, next: NextAttempt) {
        self.attempts.next = next;
        if let Some(attempt) = &mut self.attempt {
            attempt.addresses.pop();
        }
    }

    pub fn is_unanswered(&self) -> bool {
        let progress = self.exchange.progress();
        let may_go_on = matches!(
            progress.ended,
            None | Some(AbortReason::FirstByte | AbortReason::ErrorBody)
        );
        !progress.has_begun() && may_go_on && !progress.has_client_left()
    }

    pub(super) fn mark_endpoint_failed(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt
                .lease
                .record_failure(&self.settings.limits, Instant::now());
        }
    }
}

pub(super) fn count_budget_exhausted(call: &AdmittedRequest) {
    METRICS
        .retry_budget_exhausted
        .with_label_values(&[&call.model.vendor.name])
        .inc();
}

pub(super) fn count_failover(call: &AdmittedRequest, reason: &str) {
    let label = call
        .attempt
        .as_ref()
        .map_or("", |attempt| attempt.lease.label());
    METRICS
        .upstream_failovers
        .with_label_values(&[&call.model.vendor.name, label, reason])
        .inc();
}
