//! The vendor's side of a request: which endpoint, how it is reached, and the header it gets.
//!
//! The header is built anew from an allow-list: nothing of the client's own but the version and the
//! preview flags passes. Must not touch bodies. Next: `upstream/target.rs` (path and key),
//! `upstream/attempts.rs` (another endpoint, or none), `upstream/names.rs` (where they are).

mod attempts;
mod local_sidecar;
mod names;
pub mod target;
#[cfg(test)]
mod tests;
mod unprocessed;

pub use attempts::{
    ADDRESSES_PER_ENDPOINT, answered, connect_failed, end, refused, refused_key, retry_broken,
    switched,
};
pub use local_sidecar::LocalSidecar;
pub use names::Names;

use super::context::{Call, Context, Stage};
use super::trace::TRACEPARENT;
use super::{Gateway, admit, pool};
use crate::config::Limits;
use crate::protocol::Protocol;
use http::{Method, Version, header};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use std::time::Duration;

/// Vendors close idle connections after about a minute: ours are given up before that.
const POOL_IDLE: Duration = Duration::from_secs(45);
/// Streams of one HTTP/2 connection, where the vendor's `SETTINGS_MAX_CONCURRENT_STREAMS` allows as
/// many.
const MAX_H2_STREAMS: usize = 100;
/// How often an HTTP/2 connection is asked for a sign of life. Pingora closes it where none comes
/// within 5 s, so a vendor that is silent because its host is gone is noticed within 35 s.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// What a vendor may send ahead of a client that reads slowly. Pingora's own is 8 MiB, and as much
/// for all streams of a connection together, so that one such client would hold up all others.
const H2_STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Room for every stream's window at a time.
const H2_CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// A vendor may be silent for as long as `first_byte_seconds` and `idle_seconds` say, and one whose
/// machine is gone is found in a minute: after this long without a byte its system is asked whether
/// it is there,
const SILENT: Duration = Duration::from_secs(30);
/// again at this interval,
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// and this often before it counts as gone.
const PROBES: usize = 3;
/// What was sent and is not acknowledged for this long: gone as well. Probes are not sent
/// meanwhile.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// Between two pieces of a page of the sidecar's, where the limits for vendors allow as much.
const PAGE_SILENT: Duration = Duration::from_secs(120);

/// The endpoint for the next attempt.
pub async fn peer(gateway: &Gateway, ctx: &mut Context) -> Result<Box<HttpPeer>> {
    let Some(call) = ctx.call() else {
        return sidecar(gateway);
    };
    attempts::begin(&gateway.fleet, call).await?;
    let Some(endpoint) = call.endpoint().cloned() else {
        return Error::e_explain(
            ErrorType::InternalError,
            "an endpoint that is no longer configured",
        );
    };
    if let Some(trace) = &mut ctx.trace {
        trace.attempt(&endpoint.authority);
    }
    let Some(call) = ctx.call() else {
        return sidecar(gateway);
    };
    let address = attempts::address(&gateway.names, call, &endpoint).await?;
    let mut peer = HttpPeer::new(address, endpoint.tls, endpoint.host.clone());
    set_times(&mut peer, &call.settings.limits);
    peer.options.tcp_keepalive = Some(keep_alive());
    peer.group_key = call
        .upstream
        .lease
        .as_ref()
        .map_or(0, |lease| lease.connection_group());
    // Pingora's own memory of such vendors does not keep it from a pooled connection of HTTP/2.
    let wants_http1 = call
        .upstream
        .lease
        .as_ref()
        .is_some_and(|lease| lease.uses_http1());
    let alpn = target::alpn(&endpoint);
    peer.options.alpn = if wants_http1 && alpn == ALPN::H2H1 {
        ALPN::H1
    } else {
        alpn
    };
    peer.options.max_h2_streams = MAX_H2_STREAMS;
    peer.options.h2_ping_interval = Some(H2_PING_INTERVAL);
    peer.options.h2_stream_window_size = Some(H2_STREAM_WINDOW_BYTES);
    peer.options.h2_connection_window_size = Some(H2_CONNECTION_WINDOW_BYTES);
    Ok(Box::new(peer))
}

fn set_times(peer: &mut HttpPeer, limits: &Limits) {
    let connect = Duration::from_secs(limits.connect_seconds);
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    // A backstop: `intake.rs` watches the two limits apart, which Pingora cannot.
    peer.options.read_timeout = Some(Duration::from_secs(
        limits.first_byte_seconds.max(limits.idle_seconds),
    ));
    peer.options.write_timeout = Some(Duration::from_secs(limits.vendor_write_seconds));
    peer.options.idle_timeout = Some(POOL_IDLE);
}

fn keep_alive() -> TcpKeepalive {
    TcpKeepalive {
        idle: SILENT,
        interval: PROBE_INTERVAL,
        count: PROBES,
        user_timeout: UNACKNOWLEDGED,
    }
}

/// A page whose sidecar was about to be succeeded when the question came: nothing of an answer is
/// there, and asking again changes nothing. Over connections that were kept as often as they are
/// found dead, over a new one once; and never one that takes its time, for it would take that
/// again.
pub fn may_ask_pages_again(
    session: &Session,
    ctx: &mut Context,
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
        || session.response_written().is_some()
    {
        return false;
    }
    let Stage::Sidecar { again, .. } = &mut ctx.stage else {
        return false;
    };
    reused || !std::mem::replace(again, true)
}

fn sidecar(gateway: &Gateway) -> Result<Box<HttpPeer>> {
    let settings = gateway.settings.load();
    let mut peer = HttpPeer::new(settings.sidecar, false, String::new());
    set_times(&mut peer, &settings.limits);
    peer.options.read_timeout = peer
        .options
        .read_timeout
        .map(|limit| limit.min(PAGE_SILENT));
    // A predecessor's own sidecar has ended; its successor's has the address.
    peer.options.custom_l4 = gateway
        .sidecar
        .as_ref()
        .filter(|sidecar| sidecar.is_open())
        .map(|sidecar| sidecar.connect());
    Ok(Box::new(peer))
}

/// Puts the same request without its reasoning in the place of the one that the vendor refused.
/// False where that cannot be, or was done before.
pub fn ask_without_thinking(call: &mut Call) -> bool {
    let Some(again) = call.again.take() else {
        return false;
    };
    if !call.is_unanswered() {
        return false;
    }
    let said = call.cpu.run_admitted(pool::work_of(&again.body), || {
        admit::without_thinking(&again, &call.model)
    });
    let Ok(said) = said else { return false };
    let told = |token: &String| !call.warnings.contains(token);
    let mut more: Vec<_> = said.warnings.into_iter().filter(told).collect();
    if again.strict && !more.is_empty() {
        return false;
    }
    call.sent_bytes = said.body.len();
    call.shared.set_body(said.body);
    call.reply.begin_again(said.recall);
    if more.is_empty() && !again.strict {
        // The blocks of earlier turns alone.
        more.push("dropped:thinking".to_owned());
    }
    call.warnings.extend(more);
    call.repeat();
    call.upstream.again = true;
    true
}

/// Begins an attempt with the header that the vendor gets.
///
/// # Errors
/// A configured value does not fit into a header.
pub fn vendor_header(ctx: &mut Context, header: &mut RequestHeader) -> Result<()> {
    let request_id = ctx.request_id.clone();
    let traceparent = ctx.trace.as_ref().and_then(|trace| trace.traceparent());
    let Some(call) = ctx.call() else {
        return Ok(());
    };
    call.upstream.sent = true;
    call.upstream.refused = false;
    call.failure = None;
    call.vendor_answered = None;
    // By now Pingora has set the version that the connection speaks; it needs the same one in the
    // header that it gets back.
    let version = header.version;
    call.shared.begin_attempt(version == Version::HTTP_2);
    let Some(endpoint) = call.endpoint() else {
        return Ok(());
    };
    let mut fresh = target::request(Method::POST, endpoint, call.upstream.path)?;
    fresh.set_version(version);
    fresh.insert_header(header::CONTENT_TYPE, "application/json")?;
    fresh.insert_header(header::CONTENT_LENGTH, call.sent_bytes)?;
    fresh.insert_header(
        header::ACCEPT,
        if call.upstream.streams {
            "text/event-stream"
        } else {
            "application/json"
        },
    )?;
    fresh.insert_header(header::ACCEPT_ENCODING, "identity")?;
    fresh.insert_header(
        header::USER_AGENT,
        concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
    )?;
    let vendor = &call.model.vendor;
    match call.model.protocol() {
        Protocol::Chat | Protocol::Responses => {
            fresh.insert_header("x-client-request-id", request_id)?
        }
        Protocol::Messages => {
            if let Some((name, default)) = &vendor.version_header {
                let version = call.upstream.version.as_deref().unwrap_or(default);
                fresh.insert_header(name.clone(), version)?;
            }
            if let Some(previews) = &call.upstream.previews {
                fresh.insert_header("anthropic-beta", previews)?;
            }
        }
    }
    target::authorize(&mut fresh, endpoint, &vendor.api_key)?;
    if let Some(traceparent) = traceparent {
        fresh.insert_header(TRACEPARENT, traceparent)?;
    }
    // Other requests may share a connection of HTTP/2.
    if version != Version::HTTP_2
        && let Some(socket) = call.upstream.socket
    {
        call.shared.cork(socket);
    }
    *header = fresh;
    Ok(())
}

/// Tells the sidecar whose question it is. Nobody but an edge may say it.
const ACCOUNT: &str = "x-gateway-account";
/// Says that the address in `x-forwarded-for` is a proxy's, which named nobody.
const UNNAMED: &str = "x-gateway-unnamed";

/// The header that the sidecar gets: the client's, but for what only we may say.
///
/// # Errors
/// The client's address does not fit into a header.
pub fn sidecar_header(gateway: &Gateway, ctx: &Context, header: &mut RequestHeader) -> Result<()> {
    if gateway.sidecar.is_some() {
        // A connection in memory costs nothing to make, and Pingora's pool knows connections by
        // their descriptor alone.
        header.insert_header(header::CONNECTION, "close")?;
    }
    let claims = [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
    ];
    for name in claims.into_iter().chain([ACCOUNT, UNNAMED]) {
        header.remove_header(name);
    }
    if let Stage::Sidecar {
        account: Some(account),
        ..
    } = &ctx.stage
    {
        // It was seen here; there it is nobody's business.
        for name in ["authorization", "x-api-key"] {
            header.remove_header(name);
        }
        header.insert_header(ACCOUNT, account.to_string())?;
    }
    if let Some(caller) = ctx.caller {
        header.insert_header("x-forwarded-for", caller.address.to_string())?;
        header.insert_header(
            "x-forwarded-proto",
            if caller.is_https { "https" } else { "http" },
        )?;
        if caller.is_unnamed {
            header.insert_header(UNNAMED, "true")?;
        }
    }
    header.insert_header("x-request-id", &ctx.request_id)
}
