//! The rest of a body whose request was answered before it was read.
//!
//! A connection that is closed while its client still sends is reset, and a reset may destroy the
//! answer before the client has read it; over HTTP/2 some clients take an early end of their stream
//! for a failure. So the rest is read and thrown away, for a bounded time. Must not keep what it
//! reads.

use super::body::announced_bytes;
use http::header;
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use std::time::Duration;

/// How long the rest of a body is read.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest announced body after which an HTTP/1 connection stays open, in bytes.
const KEEP_ALIVE_BODY_BYTES: u64 = 65_536;

/// Lets the connection outlive an answer that comes before the end of a short body. To be called
/// before that answer.
pub fn keep_alive_past_body(session: &mut Session) {
    let waits = session.req_header().headers.contains_key(header::EXPECT);
    let is_short = announced_bytes(session).is_some_and(|bytes| bytes <= KEEP_ALIVE_BODY_BYTES);
    if let HttpSession::H1(h1) = session.downstream_session.as_mut()
        && is_short
        && !waits
    {
        h1.set_close_on_response_before_downstream_finish(false);
    }
}

/// Reads the rest of the body of a request that has been answered. Where it does not end in time,
/// an HTTP/1 connection is closed; HTTP/2 resets the stream by itself.
pub async fn discard_body(session: &mut Session) {
    let downstream = session.downstream_session.as_mut();
    if downstream.is_body_done() {
        return;
    }
    let rest = async { while let Ok(Some(_)) = downstream.read_request_body().await {} };
    let in_time = tokio::time::timeout(DISCARD_TIMEOUT, rest).await.is_ok();
    if !in_time || !downstream.is_body_done() {
        session.set_keepalive(None);
    }
}
