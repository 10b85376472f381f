//! Decides about the attempts of one request: the endpoint of the next one, the verdict on the
//! endpoint of the last one, and whether another attempt follows.
//!
//! This file must not start an attempt after a byte has gone to the client, and must not blame a
//! vendor for what a client did. `intake.rs` decides when a vendor counts as silent.

use super::dns::EndpointResolver;
use super::next_model::select_next_fallback;
use super::reasoning_retry::retry_without_reasoning;
use super::retry_rules::{count_budget_exhausted, count_failover};
use super::unprocessed::{is_connection_lost, is_unprocessed, wants_http1};
use super::vendor_failure::{self, NO_RESPONSE};
use crate::edge::intake::AbortReason;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::{Attempt, NextAttempt};
use crate::upstreams::{
    CoolDownReason, EndpointLease, EndpointQuery, EndpointRegistry, EndpointUnavailable,
    VendorFailureCause,
};
use base::telemetry::METRICS;
use config::catalog::VendorEndpoint;
use llm_protocol::failure::{self, Failure, Kind};
use pingora::{Error, ErrorSource, ErrorType, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of addresses of one endpoint that a request tries before the next endpoint.
pub const MAX_ADDRESSES_PER_ENDPOINT: usize = 3;

/// Maximum time that a request with a fallback model waits for the first verdict on its vendor's
/// key. A vendor refuses a key within a fraction of this time. A vendor that accepts the key may
/// need longer for a whole response; the gateway then sends the request all the same.
const KEY_VERDICT_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes a slot at the endpoint of the next attempt: one of the current model's endpoints or, if
/// none is available, one of a fallback model's.
///
/// # Errors
/// Returns an error if no endpoint is available. `call.failure` holds the reason.
pub async fn begin_attempt(
    endpoint_registry: &EndpointRegistry,
    call: &mut AdmittedRequest,
) -> Result<()> {
    let next = std::mem::take(&mut call.attempts.next);
    if next != NextAttempt::OtherEndpoint && call.attempt.is_some() {
        return Ok(());
    }
    // Dropping the last attempt frees its slot.
    call.attempt = None;
    let mut waits_until = None;
    loop {
        let now = Instant::now();
        let has_waited = waits_until.is_some_and(|until| now >= until);
        let why = match choose_endpoint(call, has_waited, now) {
            Ok(lease) => {
                call.attempts.tried.push(lease.index);
                call.attempt = Some(Attempt::new(lease));
                return Ok(());
            }
            Err(EndpointUnavailable::KeyUnconfirmed) => {
                let until = *waits_until.get_or_insert(now + KEY_VERDICT_TIMEOUT);
                Arc::clone(&call.vendor_call.endpoints)
                    .wait_for_key(until.duration_since(now))
                    .await;
                continue;
            }
            Err(why) => why,
        };
        call.failure = call.failure.take().or(Some(unavailable_failure(why)));
        if !call.is_unanswered() || !select_next_fallback(endpoint_registry, call) {
            return Error::e_explain(ErrorType::ConnectNoRoute, "no endpoint is available");
        }
    }
}

/// Takes a slot at another endpoint of the current model, within its vendor's retry budget. The
/// first request to a fallback model's vendor counts as a request and not as a retry.
fn choose_endpoint(
    call: &mut AdmittedRequest,
    has_waited: bool,
    now: Instant,
) -> std::result::Result<EndpointLease, EndpointUnavailable> {
    let endpoints = &call.vendor_call.endpoints;
    let chosen = match call.has_attempts() {
        true => endpoints.choose(
            EndpointQuery {
                has_waited,
                ..call.endpoint_query()
            },
            now,
        ),
        false => Err(EndpointUnavailable::Tried),
    };
    if let Err(EndpointUnavailable::KeyUnconfirmed) = chosen {
        return chosen;
    }
    let is_retry = std::mem::take(&mut call.attempts.counts_as_retry);
    let lease = chosen?;
    if is_retry && !endpoints.take_retry(&call.settings.limits, now) {
        count_budget_exhausted(call);
        return Err(EndpointUnavailable::Tried);
    }
    if call.attempts.tried.is_empty() {
        endpoints.count_request(now);
    }
    Ok(lease)
}

/// Returns the failure that the vendor itself would report.
fn unavailable_failure(why: EndpointUnavailable) -> Failure {
    match why {
        EndpointUnavailable::Tried | EndpointUnavailable::KeyUnconfirmed => {
            Failure::from_kind(Kind::UpstreamUnreachable)
        }
        EndpointUnavailable::Full => Failure::from_kind(Kind::Overloaded).with_retry_after(1),
        EndpointUnavailable::Cooling { why, left } => {
            let kind = match why {
                CoolDownReason::RateLimited => Kind::RateLimited,
                CoolDownReason::Overloaded => Kind::Overloaded,
            };
            let seconds = u32::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
            Failure::from_kind(kind).with_retry_after(seconds)
        }
    }
}

/// Returns the next address of the attempt's endpoint.
///
/// # Errors
/// Returns an error if the endpoint's name does not resolve.
pub async fn resolve_address(
    resolver: &EndpointResolver,
    (call, request_id): (&mut AdmittedRequest, &str),
    endpoint: &VendorEndpoint,
) -> Result<SocketAddr> {
    let found = resolver
        .address(endpoint, call.tried_addresses(), &call.settings.limits)
        .await;
    let address = found.map_err(|error| {
        count_attempt(call, NO_RESPONSE);
        let cause = (VendorFailureCause::NameResolution, None);
        vendor_failure::count(call, request_id, cause, &error.to_string());
        call.failure = Some(Failure::from_kind(Kind::UpstreamUnreachable));
        call.mark_endpoint_failed();
        let context = format!("cannot resolve {}", endpoint.host);
        let mut error = Error::because(ErrorType::ConnectNoRoute, context, error).into_up();
        error.set_retry(call.try_failover("name", false));
        error
    })?;
    if let Some(attempt) = &mut call.attempt {
        attempt.addresses.push(address);
    }
    Ok(address)
}

/// Handles a failed connection: the gateway tries the endpoint's next address, then the next
/// endpoint.
pub fn handle_connect_failure(
    resolver: &EndpointResolver,
    (call, request_id): (&mut AdmittedRequest, &str),
    error: &mut Error,
) {
    if is_connection_lost(error) && call.try_repeat() {
        // The endpoint did not get the request: a pooled connection could not open a stream.
        error.set_retry(true);
        return;
    }
    count_attempt(call, NO_RESPONSE);
    vendor_failure::count_connect_failure(call, request_id, error);
    let timed_out = matches!(
        error.etype(),
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout
    );
    let kind = if timed_out {
        Kind::UpstreamTimeout
    } else {
        Kind::UpstreamUnreachable
    };
    call.failure = Some(Failure::from_kind(kind));
    let tried = call.tried_addresses();
    let has_more = call
        .endpoint()
        .is_some_and(|endpoint| resolver.has_untried(endpoint, tried, &call.settings.limits));
    if has_more && tried.len() < MAX_ADDRESSES_PER_ENDPOINT && call.is_unanswered() {
        call.attempts.next = NextAttempt::SameEndpoint;
        count_failover(call, "address");
        error.set_retry(true);
        return;
    }
    call.mark_endpoint_failed();
    error.set_retry(call.try_failover("connect", false));
}

/// Updates the endpoint's state by the status of its response. Returns true if the gateway tries
/// another endpoint instead of passing the response on.
pub fn record_status(
    (call, request_id): (&mut AdmittedRequest, &str),
    status: u16,
    retry_after: Option<&str>,
) -> bool {
    count_attempt(call, status);
    let (limits, now) = (&call.settings.limits, Instant::now());
    let why = if status == 429 {
        CoolDownReason::RateLimited
    } else {
        CoolDownReason::Overloaded
    };
    let cool_down_seconds = retry_after
        .filter(|_| matches!(status, 408 | 429 | 500..))
        .and_then(failure::retry_after_seconds);
    if let Some(Attempt { lease, .. }) = &mut call.attempt {
        let model = &call.model.upstream_model;
        if let Some(seconds) = cool_down_seconds {
            lease.cool_down(model, why, Duration::from_secs(seconds.into()), limits, now);
        }
        match status {
            // Status 501 is no failure: an endpoint may lack a feature.
            500 | 502.. => lease.record_failure(limits, now),
            // The status counts as a response. The rest of the response may still fail.
            200..300 => lease.record_response(model, now),
            // The body decides whose fault the error is.
            400..500 => {}
            // The endpoint works and rejects only this request.
            _ => lease.record_success(limits, now),
        }
    }
    let reason = match status {
        200..300 => {
            vendor_failure::count_answered(call);
            return false;
        }
        408 => "status_408",
        500..=599 => "status_5xx",
        _ => return false,
    };
    if !call.try_failover(reason, true) {
        return false;
    }
    let model = &call.model;
    let failure = failure::from_vendor_response(
        &model.vendor.profile,
        status,
        retry_after,
        b"",
        &model.upstream_model,
        &model.id,
    );
    vendor_failure::count_refusal(call, request_id, status, &failure);
    // The client gets this failure if no other endpoint turns out to be available.
    call.failure = Some(failure);
    true
}

/// Counts an attempt at which the vendor switched protocols instead of answering.
pub fn record_protocol_switch(call: &AdmittedRequest) {
    count_attempt(call, http::StatusCode::SWITCHING_PROTOCOLS.as_u16());
}

/// Updates the endpoint's state by its error once the body has arrived. Returns true if the gateway
/// tries another endpoint instead of sending the error. If none turns out to be available, the
/// client gets `call.failure`.
pub fn handle_refusal(
    (call, request_id): (&mut AdmittedRequest, &str),
    status: u16,
    failure: &Failure,
    refuses_key: bool,
) -> bool {
    vendor_failure::count_refusal(call, request_id, status, failure);
    if refuses_key {
        handle_refused_key(call, failure.kind);
    } else if let Some(attempt) = call.attempt.as_mut().filter(|_| status < 500) {
        // The endpoint works and rejects only this request.
        attempt
            .lease
            .record_success(&call.settings.limits, Instant::now());
    }
    let is_decided = matches!(status, 408 | 500..);
    if !is_decided
        && is_failover_useful(status, failure.kind)
        && call.try_failover(failover_reason(status, failure.kind), true)
    {
        call.failure = Some(failure.clone());
        return true;
    }
    // A fallback model rejects what the requested model accepts. The client gets the requested
    // model's failure, unless another model is available.
    let is_refusal = matches!(status, 400..=407 | 409..=428 | 430..=499) && call.is_unanswered();
    let original_failure = call
        .fallbacks
        .as_ref()
        .and_then(|fallbacks| fallbacks.original_failure())
        .filter(|_| is_refusal);
    let Some(original_failure) = original_failure.cloned() else {
        return false;
    };
    // The cause may be the reasoning regardless of the error text, because only the previous vendor
    // can read it.
    if status == 400 && retry_without_reasoning(call) {
        return true;
    }
    call.failure = Some(original_failure);
    if call.has_fallback() {
        count_failover(call, "refused");
    }
    true
}

/// Returns whether another endpoint or model may succeed after this error.
fn is_failover_useful(status: u16, kind: Kind) -> bool {
    match status {
        // The error concerns the request, so every vendor would reject it. Errors about the
        // gateway's account or a limit per minute are exceptions.
        400 | 409 | 413 | 422 => matches!(
            kind,
            Kind::VendorQuota | Kind::VendorRefusedUs | Kind::RateLimited
        ),
        _ => kind.is_retryable_elsewhere(),
    }
}

fn failover_reason(status: u16, kind: Kind) -> &'static str {
    match (kind, status) {
        (Kind::VendorRefusedUs | Kind::VendorQuota, _) => "key",
        (Kind::VendorModelMissing, _) => "model",
        (Kind::RateLimited, _) | (_, 429) => "status_429",
        _ => "status_4xx",
    }
}

/// Handles a vendor that refuses the gateway's key, or whose account is out of credit. Only the
/// operator can fix that.
pub fn handle_refused_key(call: &mut AdmittedRequest, kind: Kind) {
    let reason = if kind == Kind::VendorQuota {
        "quota"
    } else {
        "key"
    };
    let vendor = call.model.vendor.name.as_str();
    METRICS
        .vendor_key_refused
        .with_label_values(&[vendor, reason])
        .inc();
    let Some(Attempt { lease, .. }) = &mut call.attempt else {
        return;
    };
    if lease.record_refused_key(&call.settings.limits, Instant::now()) {
        let what = if reason == "quota" {
            "the gateway's account there has no credit"
        } else {
            "the vendor refuses the gateway's key"
        };
        log::error!(
            "{vendor} does not serve this gateway: {what}. Models with a fallback use it; all others fail"
        );
    }
}

/// Returns whether the gateway repeats an attempt that broke off, at this endpoint or another.
pub fn retry_broken_attempt(
    (call, request_id): (&mut AdmittedRequest, &str),
    error: &mut Error,
    reused: bool,
) -> bool {
    if call.attempts.next == NextAttempt::SameEndpointOtherBody {
        return true;
    }
    if let ErrorType::HTTPStatus(_) = error.etype() {
        // The status has been counted and evaluated already when it arrived.
        return call.may_retry();
    }
    let is_own = |failure: &Failure| failure.kind.is_of_gateway();
    if *error.esource() == ErrorSource::Upstream && !call.failure.as_ref().is_some_and(is_own) {
        call.exchange.mark_vendor_failed();
    }
    // The model has finished. The gateway writes the missing end itself and does not retry.
    if call.exchange.progress().lacks_last_event() {
        return false;
    }
    error.retry.decide_reuse(reused);
    let was_dead = reused && (error.retry() || is_connection_lost(error));
    // The client's side of the exchange enforces the timeouts, so it notices a silent vendor.
    let is_silence = matches!(
        call.exchange.progress().ended,
        Some(AbortReason::FirstByte | AbortReason::ErrorBody)
    );
    if *error.esource() != ErrorSource::Upstream && !is_silence {
        return false;
    }
    // A vendor that has begun to answer has processed the request, regardless of its later reports.
    let is_unprocessed = call.response.answered_at.is_none() && is_unprocessed(error);
    if let Some(Attempt { lease, .. }) = &call.attempt {
        if wants_http1(error) {
            lease.use_http1();
        } else if *error.etype() == ErrorType::InvalidH2 {
            lease.record_h2_violation();
        }
    }
    let error_status = call.response.error_status();
    call.failure = call
        .failure
        .take()
        .or_else(|| call.response.failure_from_status(&call.model));
    if call.failure.is_none() {
        count_attempt(call, NO_RESPONSE);
    }
    // A status or an error event is an explicit refusal, however late it arrives.
    let has_refused = call
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.has_refused);
    let may_repeat = has_refused || error_status.is_some() || call.may_resend();
    // An HTTP/2 connection stays in the pool while requests run on it, so the vendor may have
    // worked on this request before the connection was lost.
    let is_free = is_unprocessed || was_dead && !call.exchange.progress().is_h2();
    if (was_dead && may_repeat || is_unprocessed)
        && (is_free || call.charge_retry_budget())
        && call.try_repeat()
    {
        return true;
    }
    if call.exchange.progress().is_vendor_fault() {
        vendor_failure::count_break(call, request_id);
    }
    let kind = call.failure.as_ref().map(|failure| failure.kind);
    if let (Some(status), Some(kind)) = (error_status, kind)
        && failure::refuses_key(status, b"")
    {
        handle_refused_key(call, kind);
    }
    let is_useful =
        kind.is_none_or(|kind| is_failover_useful(error_status.unwrap_or_default(), kind));
    if is_useful && call.exchange.progress().is_vendor_fault() {
        call.mark_endpoint_failed();
    }
    let reason = if is_silence { "first_byte" } else { "broken" };
    is_useful && (may_repeat || is_unprocessed) && call.try_failover(reason, !is_unprocessed)
}

/// Updates the endpoint's state at the end of the request. A request whose client disconnected
/// shows nothing about the endpoint.
pub fn finish_attempt(call: &mut AdmittedRequest, request_id: &str) {
    let progress = call.exchange.progress();
    let is_success = progress.is_completed() && call.failure.is_none();
    let is_counted = |attempt: &Attempt| attempt.lease.has_failed();
    if !is_success && progress.is_vendor_fault() && !call.attempt.as_ref().is_some_and(is_counted) {
        vendor_failure::count_break(call, request_id);
    }
    let Some(Attempt { mut lease, .. }) = call.attempt.take() else {
        return;
    };
    let (limits, now) = (&call.settings.limits, Instant::now());
    if is_success {
        lease.record_success(limits, now);
    } else if progress.is_vendor_fault() {
        lease.record_failure(limits, now);
    }
}

fn count_attempt(call: &AdmittedRequest, status: u16) {
    let label = call
        .attempt
        .as_ref()
        .map_or("", |attempt| attempt.lease.label());
    METRICS
        .upstream_requests
        .with_label_values(&[&call.model.vendor.name, label, &status.to_string()])
        .inc();
}
