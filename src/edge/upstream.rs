//! Implements the vendor's side of a request: the selection of an endpoint, the connection, and the
//! request header.
//!
//! The gateway builds the header from an allow-list: of the client's own header only the version
//! and the preview flags pass. This file must not touch bodies. Next: `upstream/target.rs` (path
//! and key), `upstream/attempts.rs` (another endpoint, or none), `upstream/dns.rs` (addresses).

mod attempts;
pub(super) mod dns;
pub(super) mod local_sidecar;
mod next_model;
mod reasoning_retry;
mod refused_member;
mod retry_rules;
pub mod target;
#[cfg(test)]
mod tests;
mod unprocessed;
mod vendor_failure;

pub use attempts::{
    MAX_ADDRESSES_PER_ENDPOINT, finish_attempt, handle_connect_failure, handle_refusal,
    handle_refused_key, record_protocol_switch, record_status, retry_broken_attempt,
};
pub use reasoning_retry::retry_without_reasoning;
pub use refused_member::{leave_out_refused, retry_without_member};
pub use vendor_failure::{note_error_body, note_error_event};

use super::gateway::Gateway;
use super::respond;
use super::silence_timer::BACKSTOP_FACTOR;
use super::state::admitted::AdmittedRequest;
use super::state::record::RequestRecord;
use super::state::sidecar::SidecarRequest;
use super::trace::TRACEPARENT;
use config::Limits;
use config::address::FORWARDING_FIELDS;
use http::{HeaderValue, Method, Version, header};
use llm_protocol::Protocol;
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use std::time::Duration;

/// Time after which the gateway closes an idle connection. Vendors close theirs after about a
/// minute, so the gateway must be earlier.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum number of streams per HTTP/2 connection, if the vendor's
/// `SETTINGS_MAX_CONCURRENT_STREAMS` allows that many.
const MAX_H2_STREAMS: usize = 100;
/// Number of bytes that a vendor may send ahead of a client that reads slowly. Pingora's default is
/// 8 MiB, and as much for all streams of a connection together, so one slow client would block all
/// others.
const H2_STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Window of a whole HTTP/2 connection, in bytes. It is large enough for the windows of all streams
/// at once.
const H2_CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Time without a byte after which the first TCP keepalive probe follows. The probes find a lost
/// host within a minute; `first_byte_seconds` and `idle_seconds` bound how long a vendor may be
/// silent.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which the host counts as lost.
const MAX_KEEPALIVE_PROBES: usize = 3;
/// Time after which unacknowledged data also shows that the host is lost. The kernel sends no
/// probes while data is unacknowledged.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time between two pieces of a page from the sidecar, if the limits for vendors allow that
/// much.
const PAGE_IDLE_TIMEOUT: Duration = Duration::from_secs(120);

pub async fn select_vendor_peer(
    gateway: &Gateway,
    record: &mut RequestRecord,
    call: &mut AdmittedRequest,
) -> Result<Box<HttpPeer>> {
    attempts::begin_attempt(&gateway.endpoint_registry, call).await?;
    let Some(endpoint) = call.endpoint().cloned() else {
        return Error::e_explain(
            ErrorType::InternalError,
            "the endpoint is no longer configured",
        );
    };
    if let Some(trace) = record.trace.as_deref_mut() {
        trace.begin_attempt(&endpoint.authority);
    }
    let request = (&mut *call, record.request_id.as_str());
    let address = attempts::resolve_address(&gateway.resolver, request, &endpoint).await?;
    let mut peer = HttpPeer::new(address, endpoint.tls, endpoint.host.clone());
    let limits = &call.settings.limits;
    set_timeouts(&mut peer, limits);
    // This timeout applies while Pingora waits to send a body and does not watch the client.
    // `intake.rs` enforces the shorter limits on silence, which Pingora does not distinguish, and
    // reads ready data first.
    let silence = limits.first_byte_seconds.max(limits.idle_seconds);
    let backstop = silence.saturating_mul(BACKSTOP_FACTOR);
    peer.options.read_timeout = Some(Duration::from_secs(backstop));
    peer.options.tcp_keepalive = Some(tcp_keepalive_options());
    peer.group_key = call
        .attempt
        .as_mut()
        .map_or(0, |attempt| attempt.lease.choose_connection_group());
    // Pingora remembers vendors with only HTTP/1.1, but may still use a pooled HTTP/2 connection.
    let wants_http1 = call
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.lease.uses_http1());
    let alpn = target::alpn(&endpoint);
    peer.options.alpn = if wants_http1 && alpn == ALPN::H2H1 {
        ALPN::H1
    } else {
        alpn
    };
    peer.options.max_h2_streams = MAX_H2_STREAMS;
    // No HTTP/2 pings: Pingora closes the connection, with all its streams, if an answer takes more
    // than 5 s, and a ping waits behind a large body on a slow link. TCP finds a lost host.
    peer.options.h2_ping_interval = None;
    peer.options.h2_stream_window_size = Some(H2_STREAM_WINDOW_BYTES);
    peer.options.h2_connection_window_size = Some(H2_CONNECTION_WINDOW_BYTES);
    Ok(Box::new(peer))
}

fn set_timeouts(peer: &mut HttpPeer, limits: &Limits) {
    let connect = Duration::from_secs(limits.connect_seconds);
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    peer.options.write_timeout = Some(Duration::from_secs(limits.vendor_write_seconds));
    peer.options.idle_timeout = Some(POOL_IDLE_TIMEOUT);
}

fn tcp_keepalive_options() -> TcpKeepalive {
    TcpKeepalive {
        idle: KEEPALIVE_IDLE_TIMEOUT,
        interval: KEEPALIVE_PROBE_INTERVAL,
        count: MAX_KEEPALIVE_PROBES,
        user_timeout: UNACKNOWLEDGED_TIMEOUT,
    }
}

/// Returns whether the gateway may retry the request for a page whose sidecar was about to be
/// replaced. That requires that no part of a response has arrived and that the request changes
/// nothing. Dead pooled connections do not count as retries; only one new connection is tried. A
/// timeout is not retried, because the retry would take as long again.
pub fn may_retry_page(
    session: &Session,
    request: &mut SidecarRequest,
    error: &Error,
    reused: bool,
) -> bool {
    let is_safe = matches!(session.req_header().method, Method::GET | Method::HEAD);
    let is_slow = matches!(
        error.etype(),
        ErrorType::ReadTimedout | ErrorType::WriteTimedout
    );
    if !is_safe
        || is_slow
        || *error.esource() != ErrorSource::Upstream
        || respond::has_begun(session)
    {
        return false;
    }
    reused || !std::mem::replace(&mut request.has_retried, true)
}

pub fn select_sidecar_peer(gateway: &Gateway) -> Result<Box<HttpPeer>> {
    let settings = gateway.settings.load();
    let announced = gateway
        .store_health
        .as_ref()
        .and_then(|health| health.sidecar());
    let address = announced.unwrap_or(settings.sidecar);
    let mut peer = HttpPeer::new(address, false, String::new());
    set_timeouts(&mut peer, &settings.limits);
    let limits = &settings.limits;
    let silence = Duration::from_secs(limits.first_byte_seconds.max(limits.idle_seconds));
    peer.options.read_timeout = Some(silence.min(PAGE_IDLE_TIMEOUT));
    // The sidecar of a predecessor process has ended. The successor's sidecar has the address.
    peer.options.custom_l4 = gateway
        .sidecar
        .as_ref()
        .filter(|sidecar| sidecar.is_open())
        .map(|sidecar| sidecar.connect());
    Ok(Box::new(peer))
}

/// Begins to send a request to its vendor. `header` is the client's, with the gateway's key, and
/// becomes the vendor's.
///
/// # Errors
/// Returns the errors of [`build_vendor_header`]. Pingora then sends nothing.
pub fn begin_sending(
    record: &RequestRecord,
    call: &mut AdmittedRequest,
    header: &mut RequestHeader,
) -> Result<()> {
    // Pingora has set the version of the connection at this point, and expects the same version in
    // the header that it gets back.
    let version = header.version;
    call.attempts.was_sent = true;
    if let Some(attempt) = &mut call.attempt {
        attempt.has_refused = false;
        attempt.words.clear();
    }
    call.failure = None;
    call.response.answered_at = None;
    call.exchange.begin_attempt(version == Version::HTTP_2);
    *header = build_vendor_header(record, call, version)?;
    // Cork only an HTTP/1 connection: other requests may share an HTTP/2 connection.
    if version != Version::HTTP_2
        && let Some(socket) = call.attempt.as_ref().and_then(|attempt| attempt.socket)
    {
        call.exchange.cork(socket);
    }
    Ok(())
}

/// Builds the header that the vendor gets.
///
/// # Errors
/// Returns an error if a configured value does not fit into a header, and if no endpoint was
/// chosen.
fn build_vendor_header(
    record: &RequestRecord,
    call: &AdmittedRequest,
    version: Version,
) -> Result<RequestHeader> {
    let Some(endpoint) = call.endpoint() else {
        return Err(no_upstream());
    };
    let mut upstream_header =
        target::build_request_header(Method::POST, endpoint, call.vendor_call.path)?;
    upstream_header.set_version(version);
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    let content_type = call.vendor_call.content_type.clone().unwrap_or(JSON);
    upstream_header.insert_header(header::CONTENT_TYPE, content_type)?;
    upstream_header.insert_header(header::CONTENT_LENGTH, call.sent_bytes)?;
    upstream_header.insert_header(
        header::ACCEPT,
        if call.vendor_call.asks_for_stream {
            "text/event-stream"
        } else if call.metered.is_some_and(|terms| terms.endpoint.has_media()) {
            "*/*"
        } else {
            "application/json"
        },
    )?;
    upstream_header.insert_header(header::ACCEPT_ENCODING, "identity")?;
    upstream_header.insert_header(
        header::USER_AGENT,
        concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
    )?;
    let vendor = &call.model.vendor;
    match call.model.protocol() {
        Protocol::Chat | Protocol::Responses => {
            upstream_header.insert_header("x-client-request-id", &record.request_id)?
        }
        Protocol::Messages => {
            if let Some((name, default)) = &vendor.version_header {
                let version = call.vendor_call.version.as_deref().unwrap_or(default);
                upstream_header.insert_header(name.clone(), version)?;
            }
            if let Some(previews) = &call.vendor_call.previews {
                upstream_header.insert_header("anthropic-beta", previews)?;
            }
        }
    }
    target::add_credentials(&mut upstream_header, endpoint, &vendor.api_key)?;
    let trace = record.trace.as_ref();
    if let Some(traceparent) = trace.and_then(|trace| trace.traceparent()) {
        upstream_header.insert_header(TRACEPARENT, traceparent)?;
    }
    Ok(upstream_header)
}

/// Returns the error for a hook that Pingora calls without an upstream, which does not happen.
pub fn no_upstream() -> Box<Error> {
    Error::explain(ErrorType::InternalError, "the request has no upstream")
}

/// Header that names the account of the request to the sidecar. Only an edge may set it.
const ACCOUNT_HEADER: &str = "x-gateway-account";
/// Header that names the key of the request to the sidecar, by its id. Only an edge may set it.
const KEY_HEADER: &str = "x-gateway-key-id";
/// Header that marks the address in `x-forwarded-for` as that of a proxy that named no client.
const UNNAMED_CLIENT_HEADER: &str = "x-gateway-unnamed";

/// Builds the header that the sidecar gets: the client's header without the fields that only the
/// gateway may set.
///
/// # Errors
/// Returns an error if the client's address does not fit into a header.
pub fn build_sidecar_header(
    gateway: &Gateway,
    record: &RequestRecord,
    request: &SidecarRequest,
    header: &mut RequestHeader,
) -> Result<()> {
    if gateway.sidecar.is_some() {
        // An in-memory connection costs nothing to open, and Pingora's pool would identify it by a
        // descriptor that it does not have.
        header.insert_header(header::CONNECTION, "close")?;
    }
    for name in FORWARDING_FIELDS {
        header.remove_header(&name);
    }
    for name in [ACCOUNT_HEADER, KEY_HEADER, UNNAMED_CLIENT_HEADER] {
        header.remove_header(name);
    }
    if let Some(account) = request.lookup_account() {
        // The edge has checked the key, and the sidecar must not see it.
        for name in ["authorization", "x-api-key"] {
            header.remove_header(name);
        }
        header.insert_header(ACCOUNT_HEADER, account.to_string())?;
        if let Some(key) = request.lookup_key() {
            header.insert_header(KEY_HEADER, key.to_string())?;
        }
        // This API of the sidecar refuses public names, which a browser could be led to.
        header.insert_header(header::HOST, "sidecar")?;
    }
    if let Some(caller) = record.caller {
        header.insert_header("x-forwarded-for", caller.address.to_string())?;
        header.insert_header(
            "x-forwarded-proto",
            if caller.is_https { "https" } else { "http" },
        )?;
        if caller.is_unnamed {
            header.insert_header(UNNAMED_CLIENT_HEADER, "true")?;
        }
    }
    header.insert_header("x-request-id", &record.request_id)
}
