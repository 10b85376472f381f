//! The vendor's side of a request: which endpoint, how it is reached, and the header it gets.
//!
//! The header is built anew from an allow-list: nothing of the client's own but the version and the preview flags
//! passes, and the vendor's key enters here and nowhere else. Must not touch bodies.

use super::context::{Call, Context, Stage};
use super::intake::Ended;
use super::{Gateway, admit};
use crate::catalog::{Endpoint, Vendor};
use crate::config::Limits;
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::telemetry::METRICS;
use http::{HeaderValue, Method, Version, header};
use pingora::http::RequestHeader;
use pingora::protocols::ALPN;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Vendors close idle connections after about a minute: ours are given up before that.
const POOL_IDLE: Duration = Duration::from_secs(45);
/// How long a resolved name is trusted, and how long a stale one still serves when the resolver fails.
const NAME_FRESH: Duration = Duration::from_secs(30);
const NAME_STALE: Duration = Duration::from_secs(3_600);
const RESOLVE_MOST: Duration = Duration::from_secs(3);
const H2_STREAMS: usize = 100;

/// Whose turn it is among weighted endpoints.
static TURN: AtomicU64 = AtomicU64::new(0);

/// The order in which a vendor's endpoints are tried: by weight in turn for the first, the others after it.
pub fn plan(vendor: &Vendor, attempts: u64) -> Vec<usize> {
    let total: u64 = vendor.endpoints.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
    let mut turn = TURN.fetch_add(1, Ordering::Relaxed) % total.max(1);
    let mut first = 0;
    for (index, endpoint) in vendor.endpoints.iter().enumerate() {
        first = index;
        match turn.checked_sub(endpoint.weight.into()) {
            Some(rest) => turn = rest,
            None => break,
        }
    }
    let count = vendor.endpoints.len();
    let attempts = usize::try_from(attempts).unwrap_or(usize::MAX);
    (0..count).map(|offset| (first + offset) % count).take(attempts).collect()
}

/// The endpoint for the next attempt.
pub async fn peer(gateway: &Gateway, ctx: &mut Context) -> Result<Box<HttpPeer>> {
    let Some(call) = ctx.call() else { return sidecar(gateway) };
    let endpoint = match call.next_endpoint() {
        Some(endpoint) => endpoint.clone(),
        None => return Error::e_explain(ErrorType::InternalError, "no endpoint is left to try"),
    };
    call.upstream.tries += 1;
    let address = gateway.names.resolve(&endpoint).await.map_err(|error| {
        count_attempt(call, 0);
        call.failure = Some(Failure::of(Kind::UpstreamUnreachable));
        let context = format!("resolve {}", endpoint.host);
        let mut error = Error::because(ErrorType::ConnectNoRoute, context, error).into_up();
        error.set_retry(call.may_retry());
        error
    })?;
    let mut peer = HttpPeer::new(address, endpoint.tls, endpoint.host.clone());
    set_times(&mut peer, &call.settings.limits);
    if endpoint.tls {
        peer.options.alpn = ALPN::H2H1;
        peer.options.max_h2_streams = H2_STREAMS;
    }
    Ok(Box::new(peer))
}

fn set_times(peer: &mut HttpPeer, limits: &Limits) {
    let connect = Duration::from_secs(limits.connect_seconds);
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    // A backstop: `intake.rs` watches the two limits apart, which Pingora cannot.
    peer.options.read_timeout = Some(Duration::from_secs(limits.first_byte_seconds.max(limits.idle_seconds)));
    peer.options.write_timeout = Some(Duration::from_secs(limits.idle_seconds));
    peer.options.idle_timeout = Some(POOL_IDLE);
}

fn sidecar(gateway: &Gateway) -> Result<Box<HttpPeer>> {
    let settings = gateway.settings.load();
    let mut peer = HttpPeer::new(settings.sidecar, false, String::new());
    set_times(&mut peer, &settings.limits);
    Ok(Box::new(peer))
}

impl Call {
    fn next_endpoint(&self) -> Option<&Endpoint> {
        self.upstream.plan.get(self.upstream.tries).and_then(|index| self.model.vendor.endpoints.get(*index))
    }

    /// The endpoint of the running attempt.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        let begun = self.upstream.tries.checked_sub(1)?;
        self.upstream.plan.get(begun).and_then(|index| self.model.vendor.endpoints.get(*index))
    }

    /// The endpoint's name in metrics.
    pub fn endpoint_label(&self) -> &str {
        self.endpoint().map_or("", |endpoint| endpoint.authority.as_str())
    }

    /// Another endpoint is left, and the client is still there without a byte of an answer.
    pub fn may_retry(&self) -> bool {
        self.next_endpoint().is_some() && self.is_unanswered()
    }

    /// A pooled connection was dead before it was used: the same endpoint gets the request again, once, on a fresh one.
    pub fn may_repeat(&mut self) -> bool {
        let may = !self.upstream.repeated && self.is_unanswered();
        if may {
            self.upstream.repeated = true;
            self.upstream.tries = self.upstream.tries.saturating_sub(1);
        }
        may
    }

    fn is_unanswered(&self) -> bool {
        let progress = self.shared.progress();
        let may_go_on = matches!(progress.ended, None | Some(Ended::FirstByte));
        !progress.has_begun() && may_go_on && !progress.client_left()
    }
}

/// An attempt that nobody answered: the next endpoint is tried, if there is one.
pub fn connect_failed(call: &mut Call, error: &mut Error) {
    count_attempt(call, 0);
    let timed_out = matches!(error.etype(), ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout);
    let kind = if timed_out { Kind::UpstreamTimeout } else { Kind::UpstreamUnreachable };
    call.failure = Some(Failure::of(kind));
    error.set_retry(call.may_retry());
}

/// Whether an attempt that broke off is made again, there or elsewhere.
pub fn retry_broken(call: &mut Call, error: &mut Error, reused: bool) -> bool {
    if std::mem::take(&mut call.upstream.again) {
        return true;
    }
    if *error.esource() == ErrorSource::Upstream {
        call.shared.vendor_failed();
    }
    // The model has finished: what is missing is made here, and nobody is asked twice.
    if call.shared.progress().finishing {
        return false;
    }
    error.retry.decide_reuse(reused);
    let was_dead = error.retry() && reused;
    // A silent vendor is noticed on the client's side, where time is watched.
    let is_silence = call.shared.progress().ended == Some(Ended::FirstByte);
    if *error.esource() != ErrorSource::Upstream && !is_silence {
        return false;
    }
    call.failure = call.failure.take().or_else(|| call.reply.bare_error(&call.model));
    if call.failure.is_none() {
        count_attempt(call, 0);
    }
    let worth_it = call.failure.as_ref().is_none_or(|failure| failure.kind.is_passing());
    (was_dead && call.may_repeat()) || (worth_it && call.may_retry())
}

/// Puts the same request without its reasoning in the place of the one that the vendor refused. False where that cannot
/// be, or was done before.
pub fn ask_without_thinking(call: &mut Call) -> bool {
    let Some(again) = call.again.take() else { return false };
    if !call.is_unanswered() {
        return false;
    }
    let Ok(translated) = admit::without_thinking(&again, &call.model) else { return false };
    call.sent_bytes = translated.body.len();
    call.shared.set_body(translated.body);
    call.reply.begin_again(translated.recall);
    let told = |token: &String| !call.warnings.contains(token);
    let mut more: Vec<_> = translated.warnings.into_iter().filter(told).collect();
    if more.is_empty() {
        // The blocks of earlier turns alone.
        more.push("dropped:thinking".to_owned());
    }
    call.warnings.extend(more);
    call.upstream.tries = call.upstream.tries.saturating_sub(1);
    call.upstream.again = true;
    true
}

/// Begins an attempt with the header that the vendor gets.
///
/// # Errors
/// A configured value does not fit into a header.
pub fn vendor_header(ctx: &mut Context, header: &mut RequestHeader) -> Result<()> {
    let request_id = ctx.request_id.clone();
    let Some(call) = ctx.call() else { return Ok(()) };
    call.upstream.sent = true;
    call.failure = None;
    call.shared.begin_attempt();
    let Some(endpoint) = call.endpoint() else { return Ok(()) };
    let path = format!("{}{}", endpoint.prefix, call.upstream.path);
    let mut fresh = RequestHeader::build(Method::POST, path.as_bytes(), Some(12))?;
    fresh.set_version(Version::HTTP_11);
    fresh.insert_header(header::HOST, &endpoint.authority)?;
    fresh.insert_header(header::CONTENT_TYPE, "application/json")?;
    fresh.insert_header(header::CONTENT_LENGTH, call.sent_bytes)?;
    fresh
        .insert_header(header::ACCEPT, if call.upstream.streams { "text/event-stream" } else { "application/json" })?;
    fresh.insert_header(header::ACCEPT_ENCODING, "identity")?;
    fresh.insert_header(header::USER_AGENT, concat!("model-gateway/", env!("CARGO_PKG_VERSION")))?;
    let vendor = &call.model.vendor;
    let key = vendor.api_key.reveal();
    match vendor.protocol {
        Protocol::Chat => {
            fresh.insert_header(header::AUTHORIZATION, secret(&format!("Bearer {key}"))?)?;
            fresh.insert_header("x-client-request-id", request_id)?;
        }
        Protocol::Messages => {
            fresh.insert_header("x-api-key", secret(key)?)?;
            if let Some((name, default)) = &vendor.version_header {
                let version = call.upstream.version.as_deref().unwrap_or(default);
                fresh.insert_header(name.clone(), version)?;
            }
            if let Some(previews) = &call.upstream.previews {
                fresh.insert_header("anthropic-beta", previews)?;
            }
        }
    }
    *header = fresh;
    Ok(())
}

/// A value that whoever prints a header leaves out.
fn secret(value: &str) -> Result<HeaderValue> {
    let invalid = |error| Error::because(ErrorType::InvalidHTTPHeader, "the vendor's key in a header", error);
    let mut value = HeaderValue::from_str(value).map_err(invalid)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Tells the sidecar whose question it is. Nobody but an edge may say it.
const ACCOUNT: &str = "x-gateway-account";

/// The header that the sidecar gets: the client's, but for what only we may say.
///
/// # Errors
/// The client's address does not fit into a header.
pub fn sidecar_header(ctx: &Context, client: Option<String>, header: &mut RequestHeader) -> Result<()> {
    for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", ACCOUNT] {
        header.remove_header(name);
    }
    if let Stage::Sidecar { account: Some(account) } = &ctx.stage {
        // It was seen here; there it is nobody's business.
        for name in ["authorization", "x-api-key"] {
            header.remove_header(name);
        }
        header.insert_header(ACCOUNT, account.to_string())?;
    }
    if let Some(client) = client {
        header.insert_header("x-forwarded-for", client)?;
    }
    header.insert_header("x-request-id", &ctx.request_id)
}

/// Counts an attempt's outcome; 0 where there was no answer.
pub fn count_attempt(call: &Call, status: u16) {
    let labels = [call.model.vendor.name.as_str(), call.endpoint_label()];
    METRICS.upstream_requests.with_label_values(&[labels[0], labels[1], &status.to_string()]).inc();
    METRICS.upstream_healthy.with_label_values(&labels).set(i64::from((1..500).contains(&status)));
}

/// Names of vendors' hosts, resolved without blocking and kept for a while.
#[derive(Default)]
pub struct Names(Mutex<HashMap<HostPort, Resolved>>);

type HostPort = (String, u16);

/// When, and to what.
type Resolved = (Instant, Vec<SocketAddr>);

impl Names {
    async fn resolve(&self, endpoint: &Endpoint) -> std::io::Result<SocketAddr> {
        if let Ok(ip) = endpoint.host.parse() {
            return Ok(SocketAddr::new(ip, endpoint.port));
        }
        let key = (endpoint.host.clone(), endpoint.port);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((at, addresses)) = &known
            && at.elapsed() < NAME_FRESH
        {
            return turn(addresses);
        }
        let looked_up = tokio::time::timeout(RESOLVE_MOST, tokio::net::lookup_host(key.clone())).await;
        match (looked_up, known) {
            (Ok(Ok(found)), _) => {
                let addresses: Vec<_> = found.collect();
                let first = turn(&addresses);
                // Names come from the config alone, so their number is bounded.
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (Instant::now(), addresses));
                first
            }
            (_, Some((at, addresses))) if at.elapsed() < NAME_STALE => turn(&addresses),
            (Ok(Err(error)), _) => Err(error),
            (Err(_), _) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

fn turn(addresses: &[SocketAddr]) -> std::io::Result<SocketAddr> {
    let index = usize::try_from(TURN.load(Ordering::Relaxed)).unwrap_or_default() % addresses.len().max(1);
    addresses.get(index).copied().ok_or_else(|| std::io::ErrorKind::NotFound.into())
}
