//! Reads the client's body whole, within limits on bytes and time, and removes its content coding.
//!
//! This file must not interpret the body. Next: `intake/coding.rs`.

use super::body_limits::BodyLimits;
use super::body_share::BodyShare;
use super::coding::{self, ContentCoding, DecodeAttempt};
use crate::edge::cpu_pool::{self, CpuWorker};
use crate::edge::silence_timer::wait_until;
use bytes::{Bytes, BytesMut};
use http::{Version, header};
use llm_protocol::failure::{Failure, Kind};
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// Reads the request's body whole, within limits on bytes and time.
///
/// # Errors
/// Returns 413 above the size limit; 408 after the time limit or below the minimum rate; 400 if the
/// client broke off, or if the body's coding is unknown or does not match the body; 429 or 503 if
/// too many bytes are held already.
pub async fn read_body(
    session: &mut Session,
    share: &mut BodyShare,
    limits: &BodyLimits,
) -> Result<ReceivedBody, Failure> {
    let coding = session.req_header().headers.get(header::CONTENT_ENCODING);
    let coding = coding.map_or(Ok(None), |name| ContentCoding::parse(name.as_bytes()))?;
    let declared_bytes = declared_body_bytes(session);
    let read = async {
        send_continue(session).await?;
        let mut body = BodyBuffer::new(declared_bytes);
        let mut reader = MinRateReader::new(limits);
        while let Some(piece) = reader.read(session).await? {
            if body.len().saturating_add(piece.len()) as u64 > limits.body_bytes {
                return Err(Failure::body_too_large(limits.body_bytes));
            }
            share.grow(piece.len() as u64)?;
            body.push(piece);
        }
        Ok(body.into_bytes())
    };
    let read = wait_until(Instant::now() + limits.body_read, read).await;
    let bytes = read
        .unwrap_or_else(|| Err(Failure::from_kind(Kind::BodyTimeout)))
        .inspect_err(|_| {
            // The gateway does not know where the body ends, so the next bytes are not a request.
            session.set_keepalive(None);
        })?;
    Ok(ReceivedBody { coding, bytes })
}

/// A received body, before decoding.
pub struct ReceivedBody {
    pub coding: Option<ContentCoding>,
    pub bytes: Bytes,
}

/// Returns a body without its content coding. It is decoded in the pool, however short it is: 255
/// KB of tiny brotli blocks, which decode to 204 KB, take 130 ms. The pool learns only while a job
/// runs that the job is long, so each body is first tried as a short job, which does not wait for
/// long ones.
///
/// # Errors
/// Returns the errors of [`coding::decode`] and of [`CpuWorker::slot`].
pub async fn decode_body(
    (coding, coded): (ContentCoding, &[u8]),
    session: &mut Session,
    cpu: &CpuWorker,
    limits: &BodyLimits,
    share: &mut BodyShare,
) -> Result<Bytes, Failure> {
    let slot = cpu.slot(cpu_pool::MAX_SHORT_WORK, session).await?;
    let short = DecodeAttempt::Short;
    let decoded = slot.run(|| coding::decode(coding, coded, short, limits, share))?;
    if let Some(bytes) = decoded {
        return Ok(bytes);
    }
    let slot = cpu.slot(usize::MAX, session).await?;
    let whole = DecodeAttempt::Whole;
    let decoded = slot.run(|| coding::decode(coding, coded, whole, limits, share))?;
    Ok(decoded.unwrap_or_default())
}

/// Returns the body's length in bytes from the `content-length` header, or `None` without one.
pub fn declared_body_bytes(session: &Session) -> Option<u64> {
    session
        .req_header()
        .headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// A body that is being received. The buffer allocates at most [`DECLARED_CAPACITY`], or twice the
/// received bytes, whatever length is declared.
struct BodyBuffer {
    declared_bytes: Option<u64>,
    /// The first piece. A body that arrives in one piece is not copied.
    first: Bytes,
    all: BytesMut,
}

/// Minimum capacity of a body of several pieces, in bytes.
const MIN_CAPACITY: usize = 16_384;
/// Maximum capacity, in bytes, that a declared length gets before its bytes arrive, so that the
/// received part need not be copied as the buffer grows. The system gives memory to the part that
/// is filled.
const DECLARED_CAPACITY: usize = 2_097_152;

impl BodyBuffer {
    fn new(declared_bytes: Option<u64>) -> Self {
        Self {
            declared_bytes,
            first: Bytes::new(),
            all: BytesMut::new(),
        }
    }

    fn len(&self) -> usize {
        self.first.len().saturating_add(self.all.len())
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        let first = std::mem::take(&mut self.first);
        let total = first.len() + self.all.len() + piece.len();
        if total > self.all.capacity() {
            let doubled = total.saturating_mul(2).max(MIN_CAPACITY);
            let capacity = match self.declared_bytes.map(usize::try_from) {
                Some(Ok(declared)) => doubled.max(DECLARED_CAPACITY).min(declared.max(total)),
                _ => doubled,
            };
            self.all.reserve(capacity - self.all.len());
        }
        self.all.extend_from_slice(&first);
        self.all.extend_from_slice(&piece);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        }
    }
}

/// Reads the body of a request for a page. Pingora then sends the body to the sidecar from its
/// retry buffer of 64 KiB.
///
/// # Errors
/// Returns the errors of [`read_body`] except those of the coding, which the sidecar refuses
/// itself.
pub async fn read_page_body(
    session: &mut Session,
    share: &mut BodyShare,
    limits: &BodyLimits,
) -> Result<(), Failure> {
    session.downstream_session.enable_retry_buffering();
    if session.as_mut().is_body_empty() {
        return Ok(());
    }
    let read = async {
        if declared_body_bytes(session).is_some_and(|bytes| bytes > limits.body_bytes) {
            return Err(Failure::body_too_large(limits.body_bytes));
        }
        send_continue(session).await?;
        let mut reader = MinRateReader::new(limits);
        let mut total = 0_u64;
        while let Some(piece) = reader.read(session).await? {
            total = total.saturating_add(piece.len() as u64);
            if total > limits.body_bytes {
                return Err(Failure::body_too_large(limits.body_bytes));
            }
            share.grow(piece.len() as u64)?;
        }
        Ok(())
    };
    let read = wait_until(Instant::now() + limits.body_read, read).await;
    read.unwrap_or_else(|| Err(Failure::from_kind(Kind::BodyTimeout)))
        .inspect_err(|_| session.set_keepalive(None))
}

/// Enforces the minimum rate at which a body must arrive.
struct MinRateReader {
    window: Duration,
    /// Minimum number of bytes that must arrive in each window.
    min_bytes: u64,
    received: u64,
    until: Instant,
}

impl MinRateReader {
    fn new(limits: &BodyLimits) -> Self {
        let window = limits.body_rate;
        let min_bytes = limits
            .body_bytes_per_second
            .saturating_mul(window.as_secs());
        Self {
            window,
            min_bytes,
            received: 0,
            until: Instant::now() + window,
        }
    }

    async fn read(&mut self, session: &mut Session) -> Result<Option<Bytes>, Failure> {
        yield_between_pieces().await;
        let mut read = pin!(session.read_request_body());
        loop {
            match wait_until(self.until, &mut read).await {
                Some(piece) => {
                    let piece = piece.map_err(|error| body_failure(&error))?;
                    self.received = self
                        .received
                        .saturating_add(piece.as_ref().map_or(0, Bytes::len) as u64);
                    return Ok(piece);
                }
                None if self.received < self.min_bytes => {
                    return Err(Failure::from_kind(Kind::BodyTimeout));
                }
                None => {
                    self.received = 0;
                    self.until += self.window;
                }
            }
        }
    }
}

/// Lets other tasks run after some pieces. One read from a socket can bring 10 000 pieces of a byte
/// each, and Pingora returns them without a pause.
pub async fn yield_between_pieces() {
    tokio::task::coop::consume_budget().await;
}

/// Sends `100 Continue` to a client that waits for it, and keeps its connection alive. An HTTP/1.0
/// client gets none: it would take the interim response for the final one (RFC 9110 section
/// 10.1.1).
async fn send_continue(session: &mut Session) -> Result<(), Failure> {
    let head = session.req_header_mut();
    if head.remove_header(&header::EXPECT).is_none() || head.version < Version::HTTP_11 {
        return Ok(());
    }
    // Pingora closes a connection whose response began before the end of the body. An interim
    // response must not count as that.
    let close_early = |session: &mut Session, on: bool| {
        if let HttpSession::H1(h1) = session.downstream_session.as_mut() {
            h1.set_close_on_response_before_downstream_finish(on);
        }
    };
    close_early(session, false);
    let written = session.write_continue_response().await;
    close_early(session, true);
    written.map_err(|error| body_failure(&error))
}

fn body_failure(error: &Error) -> Failure {
    match error.etype() {
        ErrorType::ReadTimedout => Failure::from_kind(Kind::BodyTimeout),
        _ => Failure::new(
            Kind::InvalidRequest,
            "The request body ended before it was complete.",
        ),
    }
}
