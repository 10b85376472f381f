//! Reading the client's body whole, under a limit of bytes and of time, and as plain as it was before it was coded.
//!
//! Must not judge what it says. Next: `intake/coding.rs`.

use super::coding::{self, Coding};
use crate::edge::EdgeLimits;
use crate::protocol::failure::{Failure, Kind};
use bytes::{Bytes, BytesMut};
use http::header;
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of request bodies held by the whole process.
#[derive(Default)]
pub struct BodiesInFlight(AtomicU64);

/// A part of [`BodiesInFlight`], given back when dropped.
#[derive(Default)]
pub struct BodyShare {
    of: Arc<BodiesInFlight>,
    bytes: u64,
}

impl BodyShare {
    /// Counts what a request keeps beyond the body that was read: a translation may be longer than its original, and
    /// both may be kept.
    ///
    /// # Errors
    /// The process holds too much.
    pub fn cover(&mut self, bytes: u64, most: u64) -> Result<(), Failure> {
        match bytes.checked_sub(self.bytes) {
            Some(more) if more > 0 => self.grow(more, most),
            _ => Ok(()),
        }
    }

    pub fn grow(&mut self, bytes: u64, most: u64) -> Result<(), Failure> {
        let before = self.of.0.fetch_add(bytes, Ordering::AcqRel);
        self.bytes = self.bytes.saturating_add(bytes);
        if before.saturating_add(bytes) > most {
            return Err(Failure::of(Kind::Overloaded));
        }
        Ok(())
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Reads the request's body whole, under a limit of bytes and of time.
///
/// # Errors
/// 413 past the limit, 408 past the time or below the rate, 400 where the client broke off or the body's coding is
/// unknown, 503 where the process holds too much.
pub async fn read_body(
    session: &mut Session,
    in_flight: &Arc<BodiesInFlight>,
    limits: &EdgeLimits,
) -> Result<(Bytes, BodyShare), Failure> {
    let too_large = || Failure::body_too_large(limits.body_bytes);
    let coding = session.req_header().headers.get(header::CONTENT_ENCODING);
    let coding = coding.map_or(Ok(None), |name| Coding::named(name.as_bytes()))?;
    let length = session.req_header().headers.get(header::CONTENT_LENGTH);
    let announced = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes) {
        session.set_keepalive(None);
        return Err(too_large());
    }
    let mut share = BodyShare { of: Arc::clone(in_flight), bytes: 0 };
    share.grow(announced.unwrap_or(0), limits.bodies_in_flight_bytes)?;
    let read = async {
        accept_expectation(session).await?;
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        let mut pace = Pace::begin(limits);
        while let Some(piece) = pace.read(session).await? {
            let total = (first.len() + rest.len() + piece.len()) as u64;
            if total > limits.body_bytes {
                return Err(too_large());
            }
            if total > share.bytes {
                let more = total - share.bytes;
                share.grow(more, limits.bodies_in_flight_bytes)?;
            }
            if first.is_empty() && rest.is_empty() {
                first = piece;
                continue;
            }
            if rest.is_empty() {
                rest.reserve(usize::try_from(announced.unwrap_or(total * 2)).unwrap_or_default());
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&piece);
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    };
    let read = tokio::time::timeout(limits.body_read, read).await;
    let body = read.unwrap_or_else(|_| Err(Failure::of(Kind::BodyTimeout))).inspect_err(|_| {
        // Where the body ends is not known: what comes next is no request.
        session.set_keepalive(None);
    })?;
    match (coding, body) {
        (None, body) => Ok((body, share)),
        (Some(coding), body) => Ok((coding::decode(coding, body, limits, &mut share).await?, share)),
    }
}

/// The slowest that a body may come.
struct Pace {
    window: Duration,
    /// Bytes that must come in each window.
    least: u64,
    came: u64,
    until: Instant,
}

impl Pace {
    fn begin(limits: &EdgeLimits) -> Self {
        let window = limits.body_rate;
        let least = limits.body_bytes_per_second.saturating_mul(window.as_secs());
        Self { window, least, came: 0, until: Instant::now() + window }
    }

    async fn read(&mut self, session: &mut Session) -> Result<Option<Bytes>, Failure> {
        let mut read = pin!(session.read_request_body());
        loop {
            match tokio::time::timeout_at(self.until, &mut read).await {
                Ok(piece) => {
                    let piece = piece.map_err(|error| broken_body(&error))?;
                    self.came = self.came.saturating_add(piece.as_ref().map_or(0, Bytes::len) as u64);
                    return Ok(piece);
                }
                Err(_) if self.came < self.least => return Err(Failure::of(Kind::BodyTimeout)),
                Err(_) => {
                    self.came = 0;
                    self.until += self.window;
                }
            }
        }
    }
}

/// A client that waits for `100 Continue` gets it, and its connection stays alive.
async fn accept_expectation(session: &mut Session) -> Result<(), Failure> {
    if session.req_header_mut().remove_header(&header::EXPECT).is_none() {
        return Ok(());
    }
    // Pingora closes a connection whose response began before the body's end; an interim one is no such response.
    let close_early = |session: &mut Session, on: bool| {
        if let HttpSession::H1(h1) = session.downstream_session.as_mut() {
            h1.set_close_on_response_before_downstream_finish(on);
        }
    };
    close_early(session, false);
    let written = session.write_continue_response().await;
    close_early(session, true);
    written.map_err(|error| broken_body(&error))
}

fn broken_body(error: &Error) -> Failure {
    match error.etype() {
        ErrorType::ReadTimedout => Failure::of(Kind::BodyTimeout),
        _ => Failure::new(Kind::InvalidRequest, "The request body ended before it was complete."),
    }
}
