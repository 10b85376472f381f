//! The attempts of one request: where the next one goes, what the last one tells of its endpoint,
//! and whether there is another.
//!
//! Must not make an attempt after a byte has gone to the client, nor judge a vendor by what a
//! client did. What a vendor's silence is, `intake.rs` decides.

use super::ask_without_thinking;
use super::names::Names;
use super::unprocessed::{is_unprocessed, lost_connection, wants_http1};
use crate::catalog::Endpoint;
use crate::edge::admit;
use crate::edge::context::Call;
use crate::edge::intake::Ended;
use crate::protocol::failure::{self, Failure, Kind};
use crate::telemetry::METRICS;
use crate::upstreams::{Cooling, Fleet, Lease, Unavailable, Wish};
use pingora::{Error, ErrorSource, ErrorType, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Addresses of one endpoint that a request tries before it goes to the next.
pub const ADDRESSES_PER_ENDPOINT: usize = 3;

/// Longest wait of a request that has a fallback model for the first verdict on its vendor's key. A
/// vendor refuses a key within a fraction of that; one that takes it may need longer for a whole
/// answer, and then the request is sent all the same.
const KEY_WAIT: Duration = Duration::from_secs(2);

impl Call {
    /// The endpoint of the running attempt.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        let lease = self.upstream.lease.as_ref()?;
        self.upstream.endpoints.vendor.endpoints.get(lease.index)
    }

    /// The endpoint of the last attempt, whether or not it runs.
    pub fn last_endpoint(&self) -> Option<&Endpoint> {
        self.upstream
            .endpoints
            .vendor
            .endpoints
            .get(*self.upstream.tried.last()?)
    }

    fn wish(&self) -> Wish<'_> {
        let upstream = &self.upstream;
        let model = self.model.upstream_model.as_str();
        let has_instead = self.has_fallback();
        Wish {
            model,
            key: upstream.key,
            has_instead,
            has_waited: false,
            tried: &upstream.tried,
        }
    }

    /// Another model may be asked in this one's place.
    fn has_fallback(&self) -> bool {
        self.fallbacks
            .as_ref()
            .is_some_and(|fallbacks| fallbacks.are_left())
    }

    /// Of the model that is being asked.
    fn has_attempts(&self) -> bool {
        let attempts = usize::try_from(self.settings.limits.attempts).unwrap_or(usize::MAX);
        self.upstream.tried.len() < attempts
    }

    /// Another endpoint of the model's is left.
    fn has_endpoint(&self, now: Instant) -> bool {
        self.has_attempts() && self.upstream.endpoints.has(self.wish(), now)
    }

    /// What the next attempt would repeat at this vendor is within its retry budget.
    fn has_budget(&self, now: Instant) -> bool {
        !self.upstream.repeats
            || self
                .upstream
                .endpoints
                .may_repeat(&self.settings.limits, now)
    }

    /// Another endpoint is left, or another model, and the client is still there without a byte of
    /// an answer.
    fn may_retry(&self) -> bool {
        let now = Instant::now();
        self.is_unanswered()
            && (self.has_fallback() || self.has_endpoint(now) && self.has_budget(now))
    }

    /// The same, counted if so. `was_sent`: the vendor had the request, so that asking another of
    /// its endpoints is a repeat.
    fn goes_on(&mut self, reason: &str, was_sent: bool) -> bool {
        self.upstream.repeats = was_sent;
        let goes_on = self.may_retry();
        if goes_on {
            count_failover(self, reason);
        } else if was_sent && self.is_unanswered() && self.has_endpoint(Instant::now()) {
            count_exhausted(self);
        }
        goes_on
    }

    /// The vendor cannot be long at work on the request: it was not sent whole, or a moment ago.
    /// After that it is not sent again, there or elsewhere, for both would be paid; unless the
    /// vendor has refused it in words.
    pub fn may_be_asked_again(&self) -> bool {
        let within = Duration::from_secs(self.settings.limits.repeat_within_seconds);
        self.shared
            .progress()
            .sent_for()
            .is_none_or(|sent_for| sent_for <= within)
    }

    /// A pooled connection was dead before it was used: the same endpoint gets the request again,
    /// once, on a fresh one.
    fn may_repeat(&mut self) -> bool {
        let may = !self.upstream.repeated && self.is_unanswered();
        if may {
            self.upstream.repeated = true;
            self.repeat();
        }
        may
    }

    /// The request may be repeated within its vendor's retry budget, which is charged for that.
    fn takes_repeat(&self) -> bool {
        if self.upstream.repeated || !self.is_unanswered() {
            return false;
        }
        let takes = self
            .upstream
            .endpoints
            .take_repeat(&self.settings.limits, Instant::now());
        if !takes {
            count_exhausted(self);
        }
        takes
    }

    /// The next attempt is made where the last one was.
    pub fn repeat(&mut self) {
        self.upstream.here = true;
        self.upstream.addresses.pop();
    }

    pub fn is_unanswered(&self) -> bool {
        let progress = self.shared.progress();
        let may_go_on = matches!(
            progress.ended,
            None | Some(Ended::FirstByte | Ended::ErrorBody)
        );
        !progress.has_begun() && may_go_on && !progress.client_left()
    }

    /// The running attempt's endpoint has failed.
    fn blame(&mut self) {
        if let Some(lease) = &mut self.upstream.lease {
            lease.failed(&self.settings.limits, Instant::now());
        }
    }
}

/// Takes a place at the endpoint of the next attempt: one of the model's own, or where none can be
/// had, of the model that may answer instead.
///
/// # Errors
/// There is none to be had; `call.failure` says why.
pub async fn begin(fleet: &Fleet, call: &mut Call) -> Result<()> {
    if std::mem::take(&mut call.upstream.here) && call.upstream.lease.is_some() {
        return Ok(());
    }
    call.upstream.lease = None;
    call.upstream.addresses.clear();
    let mut waits_until = None;
    loop {
        let now = Instant::now();
        let has_waited = waits_until.is_some_and(|until| now >= until);
        let why = match choose(call, has_waited, now) {
            Ok(lease) => {
                call.upstream.tried.push(lease.index);
                call.upstream.lease = Some(lease);
                return Ok(());
            }
            Err(Unavailable::KeyUnconfirmed) => {
                let until = *waits_until.get_or_insert(now + KEY_WAIT);
                Arc::clone(&call.upstream.endpoints)
                    .wait_for_key(until.duration_since(now))
                    .await;
                continue;
            }
            Err(why) => why,
        };
        call.failure = call.failure.take().or(Some(unavailable(why)));
        if !call.is_unanswered() || !admit::ask_next(fleet, call) {
            return Error::e_explain(ErrorType::ConnectNoRoute, "no endpoint can be had");
        }
    }
}

/// A place at another endpoint of the model that is being asked, within its vendor's retry budget.
/// Another model's vendor is asked for the first time: there it is a request and no repeat.
fn choose(
    call: &mut Call,
    has_waited: bool,
    now: Instant,
) -> std::result::Result<Lease, Unavailable> {
    let endpoints = &call.upstream.endpoints;
    let chosen = match call.has_attempts() {
        true => endpoints.choose(
            Wish {
                has_waited,
                ..call.wish()
            },
            now,
        ),
        false => Err(Unavailable::Tried),
    };
    if let Err(Unavailable::KeyUnconfirmed) = chosen {
        return chosen;
    }
    let repeats = std::mem::take(&mut call.upstream.repeats);
    let lease = chosen?;
    if repeats && !endpoints.take_repeat(&call.settings.limits, now) {
        count_exhausted(call);
        return Err(Unavailable::Tried);
    }
    if call.upstream.tried.is_empty() {
        endpoints.add_request(now);
    }
    Ok(lease)
}

/// What the vendor itself would say.
fn unavailable(why: Unavailable) -> Failure {
    match why {
        Unavailable::Tried | Unavailable::KeyUnconfirmed => Failure::of(Kind::UpstreamUnreachable),
        Unavailable::Full => Failure::of(Kind::Overloaded).with_retry_after(1),
        Unavailable::Cooling { why, left } => {
            let kind = match why {
                Cooling::RateLimited => Kind::RateLimited,
                Cooling::Overloaded => Kind::Overloaded,
            };
            let seconds = u32::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
            Failure::of(kind).with_retry_after(seconds)
        }
    }
}

/// The next address of the attempt's endpoint.
///
/// # Errors
/// Its name does not resolve.
pub async fn address(names: &Names, call: &mut Call, endpoint: &Endpoint) -> Result<SocketAddr> {
    let found = names
        .address(endpoint, &call.upstream.addresses, &call.settings.limits)
        .await;
    let address = found.map_err(|error| {
        count(call, 0);
        call.failure = Some(Failure::of(Kind::UpstreamUnreachable));
        call.blame();
        let context = format!("resolve {}", endpoint.host);
        let mut error = Error::because(ErrorType::ConnectNoRoute, context, error).into_up();
        error.set_retry(call.goes_on("name", false));
        error
    })?;
    call.upstream.addresses.push(address);
    Ok(address)
}

/// An attempt that nobody answered: the endpoint's next address is tried, then the next endpoint.
pub fn connect_failed(names: &Names, call: &mut Call, error: &mut Error) {
    if lost_connection(error) && call.may_repeat() {
        // The endpoint was not asked: no stream could be opened on a connection that was kept.
        error.set_retry(true);
        return;
    }
    count(call, 0);
    let timed_out = matches!(
        error.etype(),
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout
    );
    let kind = if timed_out {
        Kind::UpstreamTimeout
    } else {
        Kind::UpstreamUnreachable
    };
    call.failure = Some(Failure::of(kind));
    let tried = &call.upstream.addresses;
    let has_more = call
        .endpoint()
        .is_some_and(|endpoint| names.has_more(endpoint, tried, &call.settings.limits));
    if has_more && tried.len() < ADDRESSES_PER_ENDPOINT && call.is_unanswered() {
        call.upstream.here = true;
        count_failover(call, "address");
        error.set_retry(true);
        return;
    }
    call.blame();
    error.set_retry(call.goes_on("connect", false));
}

/// Judges the endpoint by the status of its answer. Whether another one is asked instead of passing
/// it on.
pub fn answered(call: &mut Call, status: u16, retry_after: Option<&str>) -> bool {
    count(call, status);
    let (limits, now) = (&call.settings.limits, Instant::now());
    let why = if status == 429 {
        Cooling::RateLimited
    } else {
        Cooling::Overloaded
    };
    let wanted = retry_after
        .filter(|_| matches!(status, 408 | 429 | 500..))
        .and_then(failure::retry_after_seconds);
    if let Some(lease) = &mut call.upstream.lease {
        let model = &call.model.upstream_model;
        if let Some(seconds) = wanted {
            lease.cool(model, why, Duration::from_secs(seconds.into()), limits, now);
        }
        match status {
            // What it does not offer it need not do.
            500 | 502.. => lease.failed(limits, now),
            // How the answer goes on is to be seen.
            200..300 => lease.answers(model),
            // Whose fault it is, the body says.
            400..500 => {}
            // It is there, and minds only what it was asked.
            _ => lease.succeeded(limits, now),
        }
    }
    let reason = match status {
        408 => "status_408",
        500..=599 => "status_5xx",
        _ => return false,
    };
    if !call.goes_on(reason, true) {
        return false;
    }
    let model = &call.model;
    let protocol = model.protocol();
    // Should the next one not be had after all.
    call.failure = Some(failure::from_vendor(
        protocol,
        status,
        retry_after,
        b"",
        &model.upstream_model,
        &model.id,
    ));
    true
}

/// Counts an answer that is none: the vendor switched protocols.
pub fn switched(call: &Call) {
    count(call, http::StatusCode::SWITCHING_PROTOCOLS.as_u16());
}

/// Judges the endpoint by its error once the body is there. Whether another one is asked instead of
/// telling it; `call.failure` is told should none be had after all.
pub fn refused(call: &mut Call, status: u16, failure: &Failure, refuses_key: bool) -> bool {
    if refuses_key {
        refused_key(call, failure.kind);
    } else if let Some(lease) = call.upstream.lease.as_mut().filter(|_| status < 500) {
        // It is there, and minds only what it was asked.
        lease.succeeded(&call.settings.limits, Instant::now());
    }
    let is_decided = matches!(status, 408 | 500..);
    if !is_decided
        && may_help(status, failure.kind)
        && call.goes_on(reason(status, failure.kind), true)
    {
        call.failure = Some(failure.clone());
        return true;
    }
    // It does not take what the model that was asked for takes: that one's failure is told, unless
    // another can be had.
    let is_refusal = matches!(status, 400..=407 | 409..=428 | 430..=499) && call.is_unanswered();
    let asked_for = call
        .fallbacks
        .as_ref()
        .and_then(|fallbacks| fallbacks.instead_of())
        .filter(|_| is_refusal);
    let Some(asked_for) = asked_for.cloned() else {
        return false;
    };
    // In whatever words: it may be the reasoning, which only the vendor before can read.
    if status == 400 && ask_without_thinking(call) {
        return true;
    }
    call.failure = Some(asked_for);
    if call.has_fallback() {
        count_failover(call, "refused");
    }
    true
}

/// Another endpoint or model may answer what was answered so.
fn may_help(status: u16, kind: Kind) -> bool {
    match status {
        // It is about the request, whoever is asked; unless it is about our account, or says how
        // much a minute has.
        400 | 409 | 413 | 422 => matches!(
            kind,
            Kind::VendorQuota | Kind::VendorRefusedUs | Kind::RateLimited
        ),
        _ => kind.another_may_answer(),
    }
}

/// What is counted of a failover.
fn reason(status: u16, kind: Kind) -> &'static str {
    match (kind, status) {
        (Kind::VendorRefusedUs | Kind::VendorQuota, _) => "key",
        (Kind::VendorModelMissing, _) => "model",
        (Kind::RateLimited, _) | (_, 429) => "status_429",
        _ => "status_4xx",
    }
}

/// The vendor refuses the gateway's key, or its account is out of credit: for the operator to mend.
pub fn refused_key(call: &mut Call, kind: Kind) {
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
    let Some(lease) = &mut call.upstream.lease else {
        return;
    };
    if lease.refused_key(&call.settings.limits, Instant::now()) {
        let what = if reason == "quota" {
            "the account has no credit left"
        } else {
            "the key is refused"
        };
        log::error!(
            "{vendor} does not serve this gateway: {what}. Requests go to fallback models, where there are any"
        );
    }
}

/// Whether an attempt that broke off is made again, there or elsewhere.
pub fn retry_broken(call: &mut Call, error: &mut Error, reused: bool) -> bool {
    if std::mem::take(&mut call.upstream.again) {
        return true;
    }
    if let ErrorType::HTTPStatus(_) = error.etype() {
        // Counted and judged when the status came.
        return call.may_retry();
    }
    if *error.esource() == ErrorSource::Upstream {
        call.shared.vendor_failed();
    }
    // The model has finished: what is missing is made here, and nobody is asked twice.
    if call.shared.progress().finishing {
        return false;
    }
    error.retry.decide_reuse(reused);
    let was_dead = reused && (error.retry() || lost_connection(error));
    // A silent vendor is noticed on the client's side, where time is watched.
    let is_silence = matches!(
        call.shared.progress().ended,
        Some(Ended::FirstByte | Ended::ErrorBody)
    );
    if *error.esource() != ErrorSource::Upstream && !is_silence {
        return false;
    }
    // A vendor that has begun to answer has processed it, whatever it says afterwards.
    let is_unprocessed = call.vendor_answered.is_none() && is_unprocessed(error);
    if let Some(lease) = &call.upstream.lease {
        if wants_http1(error) {
            lease.use_http1();
        } else if *error.etype() == ErrorType::InvalidH2 {
            lease.violated_h2();
        }
    }
    let error_status = call.reply.error_status();
    call.failure = call
        .failure
        .take()
        .or_else(|| call.reply.bare_error(&call.model));
    if call.failure.is_none() {
        count(call, 0);
    }
    // A status or an error event is a refusal in words, however late.
    let may_repeat = call.upstream.refused || error_status.is_some() || call.may_be_asked_again();
    // A connection of HTTP/2 is kept while requests run on it: the vendor may have worked on this
    // one before it was lost.
    let is_free = is_unprocessed || was_dead && !call.shared.progress().is_h2();
    if (was_dead && may_repeat || is_unprocessed)
        && (is_free || call.takes_repeat())
        && call.may_repeat()
    {
        return true;
    }
    let kind = call.failure.as_ref().map(|failure| failure.kind);
    if let (Some(status), Some(kind)) = (error_status, kind)
        && failure::refuses_key(status, b"")
    {
        refused_key(call, kind);
    }
    let worth_it = kind.is_none_or(|kind| may_help(error_status.unwrap_or_default(), kind));
    if worth_it && call.shared.progress().vendor_is_the_cause() {
        call.blame();
    }
    let reason = if is_silence { "first_byte" } else { "broken" };
    worth_it && (may_repeat || is_unprocessed) && call.goes_on(reason, !is_unprocessed)
}

/// The request is over: what its whole answer tells of the endpoint. A client that left tells
/// nothing.
pub fn end(call: &mut Call) {
    let Some(mut lease) = call.upstream.lease.take() else {
        return;
    };
    let progress = call.shared.progress();
    let (limits, now) = (&call.settings.limits, Instant::now());
    if progress.completed && call.failure.is_none() {
        lease.succeeded(limits, now);
    } else if progress.vendor_is_the_cause() {
        lease.failed(limits, now);
    }
}

/// Counts an attempt's outcome; 0 where there was no answer.
fn count(call: &Call, status: u16) {
    let label = call
        .upstream
        .lease
        .as_ref()
        .map_or("", |lease| lease.label());
    METRICS
        .upstream_requests
        .with_label_values(&[&call.model.vendor.name, label, &status.to_string()])
        .inc();
}

fn count_exhausted(call: &Call) {
    METRICS
        .retry_budget_exhausted
        .with_label_values(&[&call.model.vendor.name])
        .inc();
}

fn count_failover(call: &Call, reason: &str) {
    let label = call
        .upstream
        .lease
        .as_ref()
        .map_or("", |lease| lease.label());
    METRICS
        .upstream_failovers
        .with_label_values(&[&call.model.vendor.name, label, reason])
        .inc();
}
