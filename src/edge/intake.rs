//! The body, both ways: the client's is read whole and replayed to the vendor, also on a second attempt; the vendor's
//! is written to the client, or read on without it once the client has left.
//!
//! Pingora streams a request body past its filters and keeps at most 64 KiB for a retry; a body that was read in
//! `request_filter` is not sent at all, and the request hangs. So the downstream session is wrapped: [`Replay`] stands
//! in its place, offers the rewritten body as the "retry buffer" of a finished request, and hands everything else on
//! to the session inside. It is also where time passes without bytes: every deadline lives here.
//!
//! The only file that knows this. Must not judge what the bytes say.

use super::EdgeLimits;
use crate::protocol::failure::{Failure, Kind};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session as CustomSession;
use pingora::protocols::http::{HttpTask, ServerSession as HttpSession};
use pingora::protocols::l4::socket::SocketAddr;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

type MessageStream = Box<dyn futures_core::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

/// Asks [`Replay`] through `shutdown`, the one call that reaches it, to hand the session inside back.
const HAND_BACK: u32 = 0x6877_6261;
/// After the answer's last event, how long the vendor may take to end its body.
const TAIL: Duration = Duration::from_secs(1);
/// A write that took longer means that the client does not read.
const BLOCKED: Duration = Duration::from_secs(1);
/// For so long after such a write, a vendor's failure is the client's doing.
const BLOCKED_COUNTS_FOR: Duration = Duration::from_secs(5);

/// Bytes of request bodies held by the whole process.
#[derive(Default)]
pub struct BodiesInFlight(AtomicU64);

/// A part of [`BodiesInFlight`], given back when dropped.
pub struct BodyShare {
    of: Arc<BodiesInFlight>,
    bytes: u64,
}

impl BodyShare {
    fn grow(&mut self, bytes: u64, most: u64) -> Result<(), Failure> {
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
/// 413 past the limit, 408 past the time, 400 where the client broke off, 503 where the process holds too much.
pub async fn read_body(
    session: &mut Session,
    in_flight: &Arc<BodiesInFlight>,
    limits: &EdgeLimits,
) -> Result<(Bytes, BodyShare), Failure> {
    let too_large = || Failure::body_too_large(limits.body_bytes);
    let length = session.req_header().headers.get(header::CONTENT_LENGTH);
    let announced = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limits.body_bytes) {
        return Err(too_large());
    }
    let mut share = BodyShare { of: Arc::clone(in_flight), bytes: 0 };
    share.grow(announced.unwrap_or(0), limits.bodies_in_flight_bytes)?;
    let read = async {
        accept_expectation(session).await?;
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(piece) = session.read_request_body().await.map_err(|error| broken_body(&error))? {
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
    match tokio::time::timeout(limits.body_read, read).await {
        Ok(body) => body.map(|body| (body, share)),
        Err(_) => Err(Failure::of(Kind::BodyTimeout)),
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

/// What the vendor's answer and the wrapped session tell each other.
#[derive(Default)]
pub struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    late: Late,
    /// What ends a stream whose vendor breaks off: a failure that the client can read.
    epitaph: Option<Bytes>,
    progress: Progress,
    handed_back: Option<Box<HttpSession>>,
}

/// What is known of the answer's head only once its body is.
#[derive(Default)]
pub struct Late {
    pub status: Option<u16>,
    pub content_length: Option<usize>,
    pub headers: Vec<(&'static str, HeaderValue)>,
}

/// How far the answer is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// The answer's last bytes have passed: only the framing's end is missing.
    pub completed: bool,
    /// Anything that the model generated has passed.
    pub generated: bool,
    /// When the first byte went to the client.
    pub first_byte: Option<Instant>,
    pub ended: Option<Ended>,
    attempt_began: Option<Instant>,
    client_left: Option<Instant>,
    blocked_until: Option<Instant>,
}

/// Why this side stopped reading the vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The time for the whole request is over.
    Total,
    /// The vendor gave no header in time: another endpoint may.
    FirstByte,
    /// The vendor sent nothing for too long.
    Idle,
    /// The client has left, and so has the time to learn the usage.
    Drained,
    /// The answer was complete, the vendor's body was not.
    Tail,
}

impl Progress {
    /// The client is gone.
    pub fn client_left(&self) -> bool {
        self.client_left.is_some()
    }

    /// The client is gone, or stopped reading and may thereby have brought about a vendor's failure.
    pub fn client_is_the_cause(&self) -> bool {
        self.client_left() || self.blocked_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// A request is on its way to an endpoint: what ended the attempt before counts no more.
    pub fn begin_attempt(&self) {
        let mut state = self.lock();
        state.progress.attempt_began = Some(Instant::now());
        state.progress.ended = None;
    }

    pub fn set_late(&self, late: Late) {
        self.lock().late = late;
    }

    /// The status that the answer will have, where that is not the one its head came with.
    pub fn late_status(&self) -> Option<u16> {
        self.lock().late.status
    }

    pub fn set_epitaph(&self, frame: Vec<u8>) {
        self.lock().epitaph = Some(frame.into());
    }

    /// Nothing more goes to the client: the answer was given whole, or ended by a failure that it was told.
    pub fn set_completed(&self) {
        self.lock().progress.completed = true;
    }

    pub fn set_generated(&self) {
        self.lock().progress.generated = true;
    }
}

/// The deadlines of one request.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    pub total: Instant,
    /// From the sending of the request to the vendor's header, at each attempt.
    pub first_byte: Duration,
    pub idle: Duration,
    pub client_write: Duration,
    /// After the client left: to learn a stream's usage, and where nothing visible has come yet.
    pub drain: Duration,
    pub drain_hidden: Duration,
    /// A stream is drained; a whole answer is awaited to the request's own deadline.
    pub stream: bool,
}

/// Puts `body` in the place of the request's own, for every attempt.
pub fn install(session: &mut Session, body: Bytes, share: BodyShare, deadlines: Deadlines) -> Arc<Shared> {
    let shared = Arc::new(Shared::default());
    let placeholder = Box::new(HttpSession::new_custom(Box::new(())));
    let inner = std::mem::replace(&mut session.downstream_session, placeholder);
    let replay = Replay {
        inner: Some(inner),
        body: Some((body, share)),
        shared: Arc::clone(&shared),
        held_head: None,
        deadlines,
        last_progress: Instant::now(),
        head_seen: false,
        timer: Box::pin(tokio::time::sleep_until(deadlines.total.into())),
    };
    *session.downstream_session = HttpSession::new_custom(Box::new(replay));
    shared
}

/// Puts the client's session back, without which its connection could not be kept alive.
pub async fn restore(session: &mut Session, shared: &Shared) {
    if let Some(custom) = session.downstream_session.as_custom_mut() {
        custom.shutdown(HAND_BACK, "").await;
    }
    if let Some(inner) = shared.lock().handed_back.take() {
        session.downstream_session = inner;
    }
}

struct Replay {
    /// `None` only after it was handed back; nothing calls then.
    inner: Option<Box<HttpSession>>,
    /// Let go once the answer has begun: there is no further attempt then.
    body: Option<(Bytes, BodyShare)>,
    shared: Arc<Shared>,
    /// The answer's head waits for the first bytes, so that until then another attempt, another status and late
    /// headers are possible.
    held_head: Option<Box<ResponseHeader>>,
    deadlines: Deadlines,
    last_progress: Instant,
    head_seen: bool,
    /// Never later than the next deadline; set anew only when it fires, not at every event.
    timer: Pin<Box<Sleep>>,
}

impl Replay {
    #[expect(clippy::expect_used, reason = "handed back only in `logging`, after which Pingora calls nothing here")]
    fn inner(&self) -> &HttpSession {
        self.inner.as_deref().expect("the session inside")
    }

    #[expect(clippy::expect_used, reason = "as above")]
    fn inner_mut(&mut self) -> &mut HttpSession {
        self.inner.as_deref_mut().expect("the session inside")
    }

    fn deadline(&self) -> (Instant, Ended) {
        let progress = self.shared.lock().progress;
        let total = (self.deadlines.total, Ended::Total);
        if progress.completed {
            return (self.last_progress + TAIL, Ended::Tail);
        }
        if let Some(left) = progress.client_left {
            let drain = if progress.generated { self.deadlines.drain } else { self.deadlines.drain_hidden };
            let drained = left + if self.head_seen { drain } else { self.deadlines.drain };
            return if self.deadlines.stream && drained < total.0 { (drained, Ended::Drained) } else { total };
        }
        let silent = match progress.attempt_began {
            _ if self.head_seen => (self.last_progress + self.deadlines.idle, Ended::Idle),
            Some(began) => (began + self.deadlines.first_byte, Ended::FirstByte),
            None => return total,
        };
        if silent.0 < total.0 { silent } else { total }
    }

    /// Ends the request where a deadline has passed; else sets the timer to it.
    async fn expired(&mut self) -> Option<Box<Error>> {
        let (deadline, ended) = self.deadline();
        if Instant::now() < deadline {
            self.timer.as_mut().reset(deadline.into());
            return None;
        }
        self.shared.lock().progress.ended = Some(ended);
        if ended == Ended::Tail {
            let _ = self.inner_mut().finish_body().await;
        }
        Some(Error::explain(ErrorType::ReadTimedout, "a deadline of the request"))
    }

    fn client_left(&mut self) {
        self.shared.lock().progress.client_left.get_or_insert_with(Instant::now);
        self.inner_mut().set_keepalive(None);
    }

    /// Brings the timer forward where the next deadline has come nearer; a later one is set when it fires.
    fn advance_timer(&mut self) {
        let deadline = self.deadline().0.into();
        if self.timer.deadline() > deadline {
            self.timer.as_mut().reset(deadline);
        }
    }

    /// The tasks that go to the client now. The head is held until the first bytes are there.
    fn outgoing(&mut self, tasks: Vec<HttpTask>) -> Result<Vec<HttpTask>> {
        let mut out = Vec::with_capacity(tasks.len() + 1);
        for task in tasks {
            match task {
                HttpTask::Header(head, end) if !head.status.is_informational() => {
                    if end {
                        // Pingora shows the body filters nothing then, and no model answers with nothing.
                        let error = Error::explain(ErrorType::InvalidHTTPHeader, "an answer without a body");
                        return Err(error.into_up());
                    }
                    self.head_seen = true;
                    self.held_head = Some(head);
                }
                HttpTask::Header(..) => {}
                HttpTask::Body(data, false) if data.as_ref().is_none_or(Bytes::is_empty) => {}
                HttpTask::Failed(error) => match self.broken_off(!out.is_empty()) {
                    Some(last) => out.push(last),
                    None => return Err(error),
                },
                task => {
                    out.extend(self.release_head());
                    out.push(task);
                }
            }
        }
        Ok(out)
    }

    /// How a stream ends whose vendor has broken off: cleanly where it was over, else with a failure that the client
    /// can read, for a body that just ends passes for a whole answer. `None` where nothing has gone out or is about to,
    /// or it was no stream.
    fn broken_off(&mut self, goes_out: bool) -> Option<HttpTask> {
        let mut state = self.shared.lock();
        if state.progress.first_byte.is_none() && !goes_out {
            return None;
        }
        let last = if state.progress.completed { None } else { Some(state.epitaph.take()?) };
        Some(HttpTask::Body(last, true))
    }

    fn release_head(&mut self) -> Option<HttpTask> {
        let mut head = self.held_head.take()?;
        let late = std::mem::take(&mut self.shared.lock().late);
        if let Some(status) = late.status {
            let _ = head.set_status(status);
        }
        if let Some(bytes) = late.content_length {
            head.remove_header(&header::TRANSFER_ENCODING);
            let _ = head.insert_header(header::CONTENT_LENGTH, bytes);
        }
        for (name, value) in late.headers {
            let _ = head.insert_header(name, value);
        }
        Some(HttpTask::Header(head, false))
    }

    async fn write(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        let end = tasks.iter().any(HttpTask::is_end);
        let began = Instant::now();
        self.body = None;
        self.shared.lock().progress.first_byte.get_or_insert(began);
        let limit = self.deadlines.client_write;
        let written = tokio::time::timeout(limit, self.inner_mut().response_duplex_vec(tasks)).await;
        let now = Instant::now();
        self.last_progress = now;
        if now.duration_since(began) > BLOCKED {
            self.shared.lock().progress.blocked_until = Some(now + BLOCKED_COUNTS_FOR);
        }
        match written {
            Ok(Ok(end)) => Ok(end),
            Ok(Err(_)) | Err(_) => {
                self.client_left();
                Ok(end)
            }
        }
    }
}

#[async_trait]
impl CustomSession for Replay {
    fn req_header(&self) -> &RequestHeader {
        self.inner().req_header()
    }
    fn req_header_mut(&mut self) -> &mut RequestHeader {
        self.inner_mut().req_header_mut()
    }
    async fn read_body_bytes(&mut self) -> Result<Option<Bytes>> {
        Ok(None)
    }
    async fn drain_request_body(&mut self) -> Result<()> {
        self.inner_mut().drain_request_body().await
    }
    async fn write_response_header(&mut self, head: Box<ResponseHeader>, _end: bool) -> Result<()> {
        self.inner_mut().write_response_header(head).await
    }
    async fn write_response_header_ref(&mut self, head: &ResponseHeader, _end: bool) -> Result<()> {
        self.inner_mut().write_response_header_ref(head).await
    }
    async fn write_body(&mut self, data: Bytes, end: bool) -> Result<()> {
        self.inner_mut().write_response_body(data, end).await
    }
    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.inner_mut().write_response_trailers(trailers).await
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.last_progress = Instant::now();
        if self.shared.lock().progress.client_left.is_some() {
            let end = tasks.iter().any(HttpTask::is_end);
            for task in tasks {
                match task {
                    HttpTask::Failed(error) => return Err(error),
                    HttpTask::Header(..) => self.head_seen = true,
                    _ => {}
                }
            }
            return Ok(end);
        }
        let out = self.outgoing(tasks)?;
        if out.is_empty() { Ok(false) } else { self.write(out).await }
    }

    fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.inner_mut().set_read_timeout(timeout);
    }
    fn get_read_timeout(&self) -> Option<Duration> {
        self.inner().get_read_timeout()
    }
    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.inner_mut().set_write_timeout(timeout);
    }
    fn get_write_timeout(&self) -> Option<Duration> {
        self.inner().get_write_timeout()
    }
    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.inner_mut().set_total_drain_timeout(timeout);
    }
    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.inner().get_total_drain_timeout()
    }
    fn request_summary(&self) -> String {
        self.inner().request_summary()
    }
    fn response_written(&self) -> Option<&ResponseHeader> {
        self.inner().response_written()
    }

    async fn shutdown(&mut self, code: u32, _context: &str) {
        if code == HAND_BACK {
            self.shared.lock().handed_back = self.inner.take();
        } else if let Some(inner) = self.inner.as_deref_mut() {
            inner.shutdown().await;
        }
    }

    /// The client's body was read whole before this session was put in place.
    fn is_body_done(&mut self) -> bool {
        true
    }
    async fn finish(&mut self) -> Result<()> {
        if self.shared.lock().progress.client_left.is_some() {
            return Ok(());
        }
        self.inner_mut().finish_body().await.map(drop)
    }
    fn is_body_empty(&mut self) -> bool {
        self.body.as_ref().is_none_or(|(body, _)| body.is_empty())
    }

    /// Watches for the client's leaving while the vendor answers. That does not end the request: the vendor is read
    /// on until its usage is known or the time for it is over.
    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        loop {
            self.advance_timer();
            let left = self.shared.lock().progress.client_left.is_some();
            let Self { inner, timer, .. } = self;
            match inner.as_deref_mut() {
                Some(inner) if !left => tokio::select! {
                    biased;
                    outcome = inner.read_body_or_idle(true) => match outcome {
                        Ok(data) => return Ok(data),
                        Err(_) => self.client_left(),
                    },
                    () = timer.as_mut() => {}
                },
                _ => timer.as_mut().await,
            }
            if let Some(error) = self.expired().await {
                return Err(error);
            }
        }
    }

    fn body_bytes_sent(&self) -> usize {
        self.inner().body_bytes_sent()
    }
    fn body_bytes_read(&self) -> usize {
        self.inner().body_bytes_read()
    }
    fn digest(&self) -> Option<&Digest> {
        self.inner().digest()
    }
    fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.inner_mut().digest_mut()
    }
    fn client_addr(&self) -> Option<&SocketAddr> {
        self.inner().client_addr()
    }
    fn server_addr(&self) -> Option<&SocketAddr> {
        self.inner().server_addr()
    }
    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        self.inner().to_h1_raw()
    }
    fn enable_retry_buffering(&mut self) {}
    fn retry_buffer_truncated(&self) -> bool {
        false
    }
    fn get_retry_buffer(&self) -> Option<Bytes> {
        self.body.as_ref().map(|(body, _)| body.clone())
    }
    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }
    fn take_custom_message_reader(&mut self) -> Option<MessageStream> {
        None
    }
    fn restore_custom_message_reader(&mut self, _reader: MessageStream) -> Result<()> {
        Ok(())
    }
    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }
    fn restore_custom_message_writer(&mut self, _writer: Box<dyn CustomMessageWrite>) -> Result<()> {
        Ok(())
    }
}
