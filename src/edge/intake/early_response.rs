//! Reads the rest of a body whose request was answered before the body was read.
//!
//! If the gateway closes a connection while the client still sends, the connection is reset, and a
//! reset may destroy the response before the client has read it. Over HTTP/2 some clients treat an
//! early end of their stream as a failure. So the gateway reads and discards the rest for a bounded
//! time. This file must not keep what it reads.

use super::body::{declared_body_bytes, yield_between_pieces};
use http::header;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use std::time::Duration;

/// Maximum time for which the gateway reads the rest of a body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum declared length, in bytes, of an unread body after which an HTTP/1 connection stays
/// open.
const KEEP_ALIVE_BODY_BYTES: u64 = 65_536;

/// Keeps the connection open after a response that precedes the end of a short body. The caller
/// must call this function before it sends the response.
pub fn keep_alive_past_body(session: &mut Session) {
    let waits = session.req_header().headers.contains_key(header::EXPECT);
    let is_short = declared_body_bytes(session).is_some_and(|bytes| bytes <= KEEP_ALIVE_BODY_BYTES);
    if let HttpSession::H1(h1) = session.downstream_session.as_mut()
        && is_short
        && !waits
    {
        h1.set_close_on_response_before_downstream_finish(false);
    }
}

/// Reads and discards the rest of the body of an answered request. If the body does not end in
/// time, an HTTP/1 connection is closed; HTTP/2 resets the stream by itself.
pub async fn discard_body(session: &mut Session) {
    let downstream = session.downstream_session.as_mut();
    if downstream.is_body_done() {
        return;
    }
    let rest = async {
        while let Ok(Some(_)) = downstream.read_request_body().await {
            yield_between_pieces().await;
        }
    };
    let in_time = tokio::time::timeout(DISCARD_TIMEOUT, rest).await.is_ok();
    if !in_time || !downstream.is_body_done() {
        session.set_keepalive(None);
    }
}

/// Does the same after an answer with `failure`, unless the process is short of resources and must
/// not read more, or the client sends too slowly and has used up its time.
pub async fn discard_refused_body(session: &mut Session, failure: &Failure, surface: Protocol) {
    if failure.status(surface) < 500 && failure.kind != Kind::BodyTimeout {
        discard_body(session).await;
    }
}
