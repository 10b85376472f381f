//! Handles the bodies in both directions. The gateway reads the client's body whole and replays it
//! to the vendor, also on a second attempt. It writes the vendor's body to the client, and reads it
//! to its end even if the client has disconnected.
//!
//! Pingora streams a request body past its filters and keeps at most 64 KiB for a retry; a body
//! that was read in `request_filter` is not sent at all, and the request hangs. So the gateway
//! wraps the downstream session: [`BufferedDownstream`] replaces it, offers the rewritten body as
//! the "retry buffer" of a finished request, and forwards everything else to the session inside.
//! The wrapper also enforces every deadline, because Pingora polls it while no bytes arrive.
//!
//! Only this file and `intake/buffered_session.rs` depend on that. They must not interpret the
//! bytes. Next: `intake/body.rs` (reading), `intake/body_share.rs` (memory for bodies),
//! `intake/exchange.rs` (the state of an exchange), `intake/buffered_session.rs` (the wrapper),
//! `intake/tcp_cork.rs` (one packet to the vendor).

mod body;
mod body_limits;
mod body_share;
mod buffered_session;
mod coding;
mod early_response;
mod exchange;
mod tcp_cork;
#[cfg(test)]
mod tests;

pub use body::{declared_body_bytes, decode_body, read_body, read_page_body};
pub use body_limits::BodyLimits;
pub use body_share::{BodyBytes, BodyHolders, BodyShare};
pub use coding::{ContentCoding, DecodeAttempt, decode};
pub use early_response::{discard_body, discard_refused_body, keep_alive_past_body};
pub use exchange::{AbortReason, Deadlines, DeferredHead, ExchangeState, KeyEnd};

use buffered_session::{BufferedDownstream, RESTORE_SESSION_CODE};
use llm_protocol::request::RequestBody;
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use std::sync::Arc;

/// Replaces the request's body with `body`, for every attempt.
pub fn wrap_session(
    session: &mut Session,
    body: RequestBody,
    share: BodyShare,
    deadlines: Deadlines,
) -> Arc<ExchangeState> {
    let exchange = Arc::new(ExchangeState::new(Arc::clone(&deadlines.shutdown)));
    exchange.set_body(body.clone());
    let placeholder = Box::new(HttpSession::new_custom(Box::new(())));
    let inner = std::mem::replace(&mut session.downstream_session, placeholder);
    let buffered = BufferedDownstream::new(inner, (body, share), Arc::clone(&exchange), deadlines);
    *session.downstream_session = HttpSession::new_custom(Box::new(buffered));
    exchange
}

/// Takes the client's session out of the exchange after a panic has ended the request's task.
pub fn take_session(exchange: &ExchangeState) -> Option<Box<HttpSession>> {
    exchange.lock().returned_session.take()
}

/// Puts the client's session back. Pingora needs the session to keep the connection alive.
pub async fn restore_session(session: &mut Session, exchange: &ExchangeState) {
    if let Some(custom) = session.downstream_session.as_custom_mut() {
        custom.shutdown(RESTORE_SESSION_CODE, "").await;
    }
    if let Some(inner) = exchange.lock().returned_session.take() {
        session.downstream_session = inner;
    }
}
