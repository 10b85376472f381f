//! Wraps the client's session. The wrapper replays the body, withholds the head of the response,
//! enforces the deadlines, and continues to read from the vendor after the client has disconnected.
//!
//! The wrapper implements a trait that is internal to Pingora, so Pingora's version is pinned. This
//! file must not interpret the bytes.

use super::body_share::BodyShare;
use super::exchange::{
    AbortReason, Deadlines, EndingOutcome, ExchangeState, ResponsePhase, ResponseProgress,
};
use crate::edge::client_pace::{self, MAX_PIECE_BYTES};
use crate::edge::framing;
use crate::edge::shutdown::CHECK_INTERVAL;
use crate::edge::silence_timer::{SilenceTimer, wait_until};
use async_trait::async_trait;
use base::failpoint::{self, Point};
use bytes::Bytes;
use http::{HeaderMap, header};
use llm_protocol::failure::Kind;
use llm_protocol::keepalive::KeepAlive;
use llm_protocol::request::RequestBody;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session as CustomSession;
use pingora::protocols::http::{HttpTask, ServerSession as HttpSession};
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, Result};
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

type CustomMessageStream =
    Box<dyn futures_util::Stream<Item = Result<Bytes>> + Unpin + Send + Sync + 'static>;

/// Code that asks [`BufferedDownstream`] to return the session inside. The code arrives through
/// `shutdown`, the only call that Pingora forwards to the wrapper.
pub const RESTORE_SESSION_CODE: u32 = 0x6877_6261;
/// Time that the vendor has to end its body after the last event of the response.
const TAIL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which the gateway waits for the rest of a complete response. It starts at the vendor's
/// last byte while the usage is missing, and at the usage while the last event is missing.
const ENDING_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for which the gateway waits for the body of an error response. The status alone carries
/// most of the information.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a withheld stream opening that is sent with a keep-alive, in bytes: both must
/// fit into the connection's buffer.
const MAX_OPENING_WITH_KEEP_ALIVE_BYTES: usize = 16_384;
/// Minimum duration of a write that shows that the client does not read.
const BLOCKED_WRITE_THRESHOLD: Duration = Duration::from_secs(1);
/// Time after a blocked write during which a vendor's failure counts as caused by the client.
const BLOCKED_WRITE_BLAME_INTERVAL: Duration = Duration::from_secs(5);
/// Time that the last bytes wait for the journal before the gateway also watches the client. A disk
/// that answers takes less.
const USUAL_JOURNAL_TIME: Duration = Duration::from_millis(50);
/// Size of the pieces in which a body is sent to an HTTP/2 vendor: the initial window of a stream
/// (RFC 9113, section 6.9.2). Between two pieces Pingora handles the vendor's response, which may
/// arrive before the vendor has read the whole body, and this session checks the deadlines.
const H2_PIECE_BYTES: usize = 65_535;

pub struct BufferedDownstream {
    /// `None` only after the session was handed back. Pingora makes no call after that.
    inner: Option<Box<HttpSession>>,
    /// Body for further attempts. The session drops it once the response has begun.
    body: Option<(RequestBody, BodyShare)>,
    /// Rest of a body that is sent in pieces, and the attempt of that body.
    unsent: Option<(u32, RequestBody)>,
    exchange: Arc<ExchangeState>,
    /// Head of the response, withheld until the first bytes arrive. Until then another attempt,
    /// another status and deferred headers are possible.
    held_head: Option<Box<ResponseHeader>>,
    deadlines: Deadlines,
    last_progress: Instant,
    /// Time at which the gateway last wrote to the client, or at which the vendor's head arrived.
    last_written: Instant,
    /// Number of the attempt whose vendor's head has arrived.
    head_of: Option<u32>,
    /// True if the head of that attempt begins a stream.
    head_begins_stream: bool,
    is_error: bool,
    /// Fires no later than the next deadline. To save work, the session resets the timer only when
    /// it fires.
    timer: SilenceTimer,
}

impl BufferedDownstream {
    pub fn new(
        inner: Box<HttpSession>,
        body: (RequestBody, BodyShare),
        exchange: Arc<ExchangeState>,
        deadlines: Deadlines,
    ) -> Self {
        let wake = deadlines.total.min(Instant::now() + CHECK_INTERVAL);
        let timer = SilenceTimer::new(wake.into());
        Self {
            inner: Some(inner),
            body: Some(body),
            unsent: None,
            exchange,
            held_head: None,
            deadlines,
            last_progress: Instant::now(),
            last_written: Instant::now(),
            head_of: None,
            head_begins_stream: false,
            is_error: false,
            timer,
        }
    }

    #[expect(
        clippy::expect_used,
        reason = "handed back only in `logging`, after which Pingora calls nothing here"
    )]
    fn inner(&self) -> &HttpSession {
        self.inner.as_deref().expect("the session inside")
    }

    #[expect(clippy::expect_used, reason = "as above")]
    fn inner_mut(&mut self) -> &mut HttpSession {
        self.inner.as_deref_mut().expect("the session inside")
    }

    /// Returns whether the vendor of the running attempt has begun to answer.
    fn has_head(&self, progress: &ResponseProgress) -> bool {
        self.head_of == Some(progress.attempt)
    }

    fn deadline(&self) -> (Instant, AbortReason) {
        let progress = self.exchange.lock().progress;
        let head_seen = self.has_head(&progress);
        let total = match self.deadlines.shutdown.cutoff() {
            Some(cutoff) if cutoff < self.deadlines.total => (cutoff, AbortReason::Shutdown),
            _ => (self.deadlines.total, AbortReason::Total),
        };
        if let ResponsePhase::Completed { at, hung_up, .. } = progress.phase {
            // The time counts from the completed response, not from the vendor's last byte: a
            // vendor that never ends its body must not withhold the end from the client.
            let tail = if hung_up {
                Duration::ZERO
            } else {
                TAIL_TIMEOUT
            };
            return (at.max(self.last_written) + tail, AbortReason::Tail);
        }
        if let Some(left) = progress.client_left {
            let drain = if progress.has_hidden_reasoning {
                self.deadlines.drain_reasoning
            } else {
                self.deadlines.drain
            };
            let drained = left + drain;
            return if self.deadlines.may_drain && drained < total.0 {
                (drained, AbortReason::Drained)
            } else {
                total
            };
        }
        let silent = match (progress.phase, progress.attempt_began) {
            (ResponsePhase::Finishing { counted_at }, _) => (
                counted_at.unwrap_or(self.last_progress) + ENDING_TIMEOUT,
                AbortReason::Idle,
            ),
            _ if head_seen && self.is_error => (
                self.last_progress + ERROR_BODY_TIMEOUT.min(self.deadlines.idle),
                AbortReason::ErrorBody,
            ),
            _ if head_seen => (self.last_progress + self.deadlines.idle, AbortReason::Idle),
            (_, Some(began)) => (began + self.deadlines.first_byte, AbortReason::FirstByte),
            (_, None) => return total,
        };
        if silent.0 < total.0 { silent } else { total }
    }

    /// Returns when the client is due a keep-alive, or `None` if it does not wait for an event.
    fn keep_alive_at(&self) -> Option<Instant> {
        let (progress, has_sign) = {
            let state = self.exchange.lock();
            (state.progress, state.keep_alive.is_some())
        };
        let begun = self.head_begins_stream && self.has_head(&progress);
        let waits = has_sign && begun && !progress.is_completed() && !progress.has_client_left();
        waits.then_some(self.last_written + self.deadlines.keep_alive)
    }

    /// Returns when the timer must fire: for a deadline or for a keep-alive, whichever comes first.
    fn next_wake(&self) -> Instant {
        let deadline = self.deadline().0;
        self.keep_alive_at().map_or(deadline, |at| at.min(deadline))
    }

    /// Returns the bytes of a keep-alive. They fix the status, so the withheld opening of the
    /// stream is sent first, unless it is too long for one write or is recorded for an idempotency
    /// key.
    fn keep_alive_bytes(&self) -> Option<Bytes> {
        let mut state = self.exchange.lock();
        if !state.opening.is_empty()
            && (state.opening.len() > MAX_OPENING_WITH_KEEP_ALIVE_BYTES
                || state.idempotency.is_some())
        {
            // A numbered event would precede events with lower numbers.
            return state.keep_alive.as_ref().map(KeepAlive::unnumbered_bytes);
        }
        let sign = state.keep_alive.as_ref().map(KeepAlive::bytes)?;
        let opening = std::mem::take(&mut state.opening);
        Some(if opening.is_empty() {
            sign
        } else {
            [opening, sign.to_vec()].concat().into()
        })
    }

    /// Sends the client a keep-alive. The write is polled once and never awaited, because Pingora
    /// drops this future whenever the vendor's next bytes arrive. The few bytes fit into the
    /// connection's own buffer, which every other write has left empty.
    async fn send_keep_alive(&mut self) {
        let Some(sign) = self.keep_alive_bytes() else {
            return;
        };
        let head = self.release_head();
        let tasks = head
            .into_iter()
            .chain([HttpTask::Body(Some(sign), false)])
            .collect();
        self.last_written = Instant::now();
        self.exchange.lock().progress.kept_alive = true;
        self.release_bodies();
        let polled = {
            let mut write = std::pin::pin!(self.inner_mut().response_duplex_vec(tasks));
            std::future::poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await
        };
        if let Poll::Ready(Err(_)) = polled {
            self.handle_client_left();
        }
    }

    /// Ends the request if a deadline has passed. Otherwise sends a due keep-alive and resets the
    /// timer.
    async fn handle_timer(&mut self) -> Option<Box<Error>> {
        let (deadline, ended) = self.deadline();
        let now = Instant::now();
        if now < deadline {
            if self.keep_alive_at().is_some_and(|at| at <= now) {
                self.send_keep_alive().await;
            }
            let wake = self.next_wake().min(now + CHECK_INTERVAL);
            self.timer.reset(wake.into());
            return None;
        }
        self.exchange.lock().progress.ended = Some(ended);
        if matches!(
            ended,
            AbortReason::FirstByte | AbortReason::Idle | AbortReason::ErrorBody
        ) {
            self.exchange.mark_vendor_failed();
        }
        if ended == AbortReason::Tail && !self.has_client_left() {
            let _ = self.inner_mut().finish_body().await;
        }
        Some(Error::explain(
            ErrorType::ReadTimedout,
            "a deadline of the request",
        ))
    }

    fn has_client_left(&self) -> bool {
        self.exchange.lock().progress.has_client_left()
    }

    fn handle_client_left(&mut self) {
        self.exchange.mark_client_left();
        self.inner_mut().set_keepalive(None);
    }

    /// Moves the timer forward if the next deadline is now earlier. A later deadline is set when
    /// the timer fires.
    fn advance_timer(&mut self) {
        let wake = self.next_wake().into();
        if self.timer.deadline() > wake {
            self.timer.reset(wake);
        }
    }

    /// Records the vendor's head of this attempt.
    fn begin_response(&mut self, head: &ResponseHeader) {
        let kind = head.headers.get(header::CONTENT_TYPE);
        self.head_begins_stream = head.status == 200
            && kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        self.is_error = !head.status.is_success();
        self.head_of = Some(self.exchange.lock().progress.attempt);
        self.last_written = Instant::now();
    }

    /// Returns the body for the next attempts, until the response has begun.
    fn attempt_body(&self) -> Option<RequestBody> {
        let replaced = self.exchange.lock().body.clone();
        replaced.or_else(|| self.body.as_ref().map(|(body, _)| body.clone()))
    }

    /// Returns what the running attempt's vendor has not received yet.
    fn unsent_body(&mut self) -> Option<&mut RequestBody> {
        let progress = self.exchange.lock().progress;
        if self
            .unsent
            .as_ref()
            .is_none_or(|(attempt, _)| *attempt != progress.attempt)
        {
            let mut rest = self.attempt_body()?;
            if !progress.is_h2 {
                // Pingora sends it on its own: see `get_retry_buffer`.
                rest.take_piece(usize::MAX);
            }
            self.unsent = Some((progress.attempt, rest));
        }
        self.unsent
            .as_mut()
            .map(|(_, rest)| rest)
            .filter(|rest| !rest.is_empty())
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        let is_h2 = self.exchange.lock().progress.is_h2;
        let max_bytes = if is_h2 { H2_PIECE_BYTES } else { usize::MAX };
        self.unsent_body()?.take_piece(max_bytes)
    }

    /// Drops the bodies, because no further attempt follows.
    fn release_bodies(&mut self) {
        self.body = None;
        self.exchange.lock().body = None;
    }

    /// Returns the tasks to forward to the client now, and the error that prevents further ones.
    /// The head is withheld until the first bytes arrive.
    fn filter_tasks(&mut self, tasks: Vec<HttpTask>) -> (Vec<HttpTask>, Option<Box<Error>>) {
        let mut out = Vec::with_capacity(tasks.len() + 1);
        for task in tasks {
            match task {
                HttpTask::Header(head, end) if !head.status.is_informational() => {
                    let is_completed = self.is_completed();
                    if end && !is_completed {
                        // Pingora does not call the body filters in this case, and no model answers
                        // with an empty body.
                        let error = Error::explain(
                            ErrorType::InvalidHTTPHeader,
                            "an answer without a body",
                        );
                        return (out, Some(error.into_up()));
                    }
                    self.begin_response(&head);
                    self.held_head = Some(head);
                    if is_completed {
                        out.extend(self.release_head());
                        out.push(HttpTask::Body(None, true));
                    }
                }
                HttpTask::Header(..) => {}
                HttpTask::Body(data, false) if data.as_ref().is_none_or(Bytes::is_empty) => {}
                // The body filters saw no end, so the gateway never parsed a complete response.
                HttpTask::Trailer(_) | HttpTask::Done if !self.is_completed() => {
                    let error = Error::explain(
                        ErrorType::ConnectionClosed,
                        "an end without the end of the answer",
                    );
                    match self.end_broken_response(!out.is_empty()) {
                        Some(last) => out.push(last),
                        None => return (out, Some(error.into_up())),
                    }
                }
                // A vendor's trailers are not passed on.
                HttpTask::Trailer(_) => out.push(HttpTask::Done),
                HttpTask::Failed(error) => match self.end_broken_response(!out.is_empty()) {
                    Some(last) => out.push(last),
                    None => return (out, Some(error)),
                },
                task => {
                    out.extend(self.release_head());
                    out.push(task);
                }
            }
        }
        (out, None)
    }

    /// Returns the end of a stream whose vendor has broken off: a clean end if the response was
    /// complete, otherwise a failure that the client can read. A body that just ends would look
    /// like a complete response. Returns `None` if nothing was sent, if the response is not a
    /// stream, or if the model has finished, because the gateway then writes the end that the
    /// model's protocol requires.
    fn end_broken_response(&mut self, goes_out: bool) -> Option<HttpTask> {
        self.exchange.mark_vendor_failed();
        let mut state = self.exchange.lock();
        let progress = state.progress;
        if !progress.has_begun() && !goes_out || progress.is_finishing() {
            return None;
        }
        let last = match progress.is_completed() {
            true => None,
            false => {
                let end = state.terminal_error.take()?(Kind::UpstreamClosed);
                Some(Bytes::from(
                    [std::mem::take(&mut state.opening), end].concat(),
                ))
            }
        };
        // A client that reads the vendor's failure must find its idempotency key free.
        let freed = if state.progress.is_client_fault() {
            None
        } else {
            state.idempotency.take()
        };
        drop((state, freed));
        Some(HttpTask::Body(last, true))
    }

    /// Returns whether the client has the whole response, or a failure.
    fn is_completed(&self) -> bool {
        self.exchange.lock().progress.is_completed()
    }

    fn release_head(&mut self) -> Option<HttpTask> {
        let mut head = self.held_head.take()?;
        let deferred_head = std::mem::take(&mut self.exchange.lock().deferred_head);
        if let Some(status) = deferred_head.status {
            let _ = head.set_status(status);
        }
        if let Some(bytes) = deferred_head.content_length {
            head.remove_header(&header::TRANSFER_ENCODING);
            let _ = head.insert_header(header::CONTENT_LENGTH, bytes);
        }
        for (name, value) in deferred_head.headers {
            let _ = head.insert_header(name, value);
        }
        framing::remove_chunks_for_http_1_0(self.inner().req_header().version, &mut head);
        Some(HttpTask::Header(head, false))
    }

    /// Waits until the journal has the debit of a complete response. Returns whether the client may
    /// get the last byte: not if the journal lacks the debit. A debit that still waits for the disk
    /// is withdrawn if the client leaves or the time of the request is over.
    async fn wait_for_ending(&mut self) -> bool {
        let Some(record) = self.exchange.pending_ending() else {
            return true;
        };
        let usual = Instant::now() + USUAL_JOURNAL_TIME;
        let mut written = wait_until(usual.into(), record.wait()).await;
        let mut watches_client = true;
        let outcome = loop {
            match written {
                Some(Ok(_)) => break EndingOutcome::Journalled,
                Some(Err(_)) => break EndingOutcome::Failed,
                None => {}
            }
            let cutoff = self.deadlines.shutdown.cutoff();
            let end = cutoff.map_or(self.deadlines.total, |at| at.min(self.deadlines.total));
            let now = Instant::now();
            if self.has_client_left() || now >= end {
                break self.exchange.give_up_ending(&record);
            }
            let next = end.min(now + CHECK_INTERVAL);
            tokio::select! {
                biased;
                outcome = record.wait() => written = Some(outcome),
                outcome = self.inner_mut().read_body_or_idle(true), if watches_client => {
                    match outcome {
                        Ok(_) => watches_client = false,
                        Err(_) => self.handle_client_left(),
                    }
                }
                () = SilenceTimer::new(next.into()) => {}
            }
        };
        self.exchange.conclude_ending(outcome);
        outcome == EndingOutcome::Journalled
    }

    /// Withholds the end of a response whose debit the journal lacks. A stream that has begun ends
    /// with a failure.
    async fn withhold_end(&mut self) -> Result<bool> {
        let last = {
            let mut state = self.exchange.lock();
            let may_write = state.progress.has_begun() && !state.progress.has_client_left();
            let failure = state.terminal_error.take().filter(|_| may_write);
            failure.map(|failure| failure(Kind::LedgerUnavailable))
        };
        let Some(last) = last else {
            return Err(Error::explain(
                ErrorType::InternalError,
                "the journal lacks the debit",
            ));
        };
        self.exchange.set_completed();
        self.write(vec![HttpTask::Body(Some(last.into()), true)])
            .await
    }

    async fn write(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        // The last byte leaves once the response is stored for a client that repeats the request.
        self.exchange.wait_for_decision().await;
        let end = tasks.iter().any(HttpTask::is_end);
        let began = Instant::now();
        self.release_bodies();
        self.exchange
            .lock()
            .progress
            .first_byte
            .get_or_insert(began);
        let written = self.write_in_pieces(tasks).await;
        let now = Instant::now();
        self.last_progress = now;
        self.last_written = now;
        if now.duration_since(began) > BLOCKED_WRITE_THRESHOLD {
            self.exchange.lock().progress.blocked_until = Some(now + BLOCKED_WRITE_BLAME_INTERVAL);
        }
        if self.is_completed() {
            failpoint::hit(Point::LastByteSent);
        }
        match written {
            // A body with a known length ends with its last byte. Pingora then checks no deadline
            // and would wait for as long as the vendor keeps its own body open. So the gateway
            // reports the end to Pingora only once the vendor's body has ended.
            Some(is_over) => Ok(is_over && end),
            None => {
                self.handle_client_left();
                Ok(end)
            }
        }
    }

    /// Writes to the client, in pieces if the body is large. Returns `None` in the cases of
    /// [`Self::write_with_timeout`], and if the request's time is over before the last piece.
    async fn write_in_pieces(&mut self, tasks: Vec<HttpTask>) -> Option<bool> {
        let is_small = |task: &HttpTask| match task {
            HttpTask::Body(Some(data), _) => data.len() <= MAX_PIECE_BYTES,
            _ => true,
        };
        if tasks.iter().all(is_small) {
            return self.write_with_timeout(tasks).await;
        }
        let mut is_over = false;
        for task in tasks {
            let HttpTask::Body(Some(data), end) = task else {
                is_over = self.write_with_timeout(vec![task]).await?;
                continue;
            };
            for (piece, is_last) in client_pace::split(data) {
                if Instant::now() >= self.deadlines.total {
                    return None;
                }
                let piece = HttpTask::Body(Some(piece), end && is_last);
                is_over = self.write_with_timeout(vec![piece]).await?;
            }
        }
        Some(is_over)
    }

    /// Writes to the client. Returns `None` if the connection failed, if the client did not read
    /// for too long, or if the process ends while the client does not read.
    async fn write_with_timeout(&mut self, tasks: Vec<HttpTask>) -> Option<bool> {
        let limit = Instant::now() + self.deadlines.client_write;
        // An HTTP/1.1 connection limits its writes by itself. A stream of HTTP/2 may starve beside
        // other streams, so it needs a limit here.
        let until = if self.inner().is_http2() {
            limit
        } else {
            limit.max(self.deadlines.total)
        };
        let shutdown = Arc::clone(&self.deadlines.shutdown);
        let mut write = std::pin::pin!(self.inner_mut().response_duplex_vec(tasks));
        loop {
            let end = shutdown.cutoff().map_or(until, |cutoff| cutoff.min(until));
            let wait = CHECK_INTERVAL.min(end.saturating_duration_since(Instant::now()));
            // Try to write even if no time is left: a client that reads at the cutoff has not left,
            // and must get the last event and the error after it.
            let next = tokio::time::Instant::now() + wait;
            if let Some(written) = wait_until(next, write.as_mut()).await {
                return written.ok();
            }
            let now = Instant::now();
            if now >= until || shutdown.cutoff().is_some_and(|cutoff| cutoff <= now) {
                return None;
            }
        }
    }
}

/// Hands the client's session over. A panic ends the request's task but must not drop the session,
/// with which the gateway answers the client.
impl Drop for BufferedDownstream {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.exchange.lock().returned_session = self.inner.take();
        }
    }
}

#[async_trait]
impl CustomSession for BufferedDownstream {
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
        self.exchange.wait_for_decision().await;
        if let Some(HttpTask::Header(head, _)) = self.release_head() {
            self.inner_mut().write_response_header(head).await?;
        }
        self.inner_mut().write_response_body(data, end).await
    }
    async fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        self.inner_mut().write_response_trailers(trailers).await
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> Result<bool> {
        self.last_progress = Instant::now();
        if self.has_client_left() {
            let end = tasks.iter().any(HttpTask::is_end);
            for task in tasks {
                match task {
                    HttpTask::Failed(error) => return Err(error),
                    HttpTask::Header(head, _) => self.begin_response(&head),
                    _ => {}
                }
            }
            return Ok(end);
        }
        if !self.wait_for_ending().await {
            return self.withhold_end().await;
        }
        let (out, error) = self.filter_tasks(tasks);
        let end = if out.is_empty() {
            false
        } else {
            self.write(out).await?
        };
        error.map_or(Ok(end), Err)
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
    #[expect(clippy::disallowed_methods, reason = "forwards for those who may ask")]
    fn response_written(&self) -> Option<&ResponseHeader> {
        self.inner().response_written()
    }

    async fn shutdown(&mut self, code: u32, _context: &str) {
        if code == RESTORE_SESSION_CODE {
            self.exchange.lock().returned_session = self.inner.take();
        } else if let Some(inner) = self.inner.as_deref_mut() {
            inner.shutdown().await;
        }
    }

    /// Returns whether the whole body was passed on. The gateway read the client's body whole
    /// before it installed this session; the vendor may get it in pieces.
    fn is_body_done(&mut self) -> bool {
        self.unsent_body().is_none()
    }
    async fn finish(&mut self) -> Result<()> {
        if self.has_client_left() {
            return Ok(());
        }
        self.inner_mut().finish_body().await.map(drop)
    }
    fn is_body_empty(&mut self) -> bool {
        self.body.as_ref().is_none_or(|(body, _)| body.is_empty())
    }

    /// Watches for the client to disconnect while the vendor answers. A disconnect does not end the
    /// request: the gateway reads from the vendor until it knows the usage or the time for that is
    /// over.
    async fn read_body_or_idle(&mut self, _no_body_expected: bool) -> Result<Option<Bytes>> {
        if let Some(piece) = self.next_piece() {
            return self.handle_timer().await.map_or(Ok(Some(piece)), Err);
        }
        // Pingora asks for more of the body only after it has passed on all of it.
        self.exchange.mark_sent();
        let corked = self.exchange.lock().corked.take();
        if let Some(corked) = corked {
            corked.release_after_poll().await;
        }
        loop {
            self.advance_timer();
            let left = self.has_client_left();
            let Self { inner, timer, .. } = self;
            match inner.as_deref_mut() {
                Some(inner) if !left => tokio::select! {
                    biased;
                    outcome = inner.read_body_or_idle(true) => match outcome {
                        Ok(data) => return Ok(data),
                        Err(_) => self.handle_client_left(),
                    },
                    () = timer => {}
                },
                _ => timer.await,
            }
            if let Some(error) = self.handle_timer().await {
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
    /// Returns the bytes that Pingora sends before it waits for anything: the body's first piece
    /// over HTTP/1.1, nothing over HTTP/2. An HTTP/2 vendor may answer and reset the stream before
    /// it reads the body (RFC 9113, section 8.1), and a failed send would lose that response.
    fn get_retry_buffer(&self) -> Option<Bytes> {
        let is_h2 = self.exchange.lock().progress.is_h2;
        let first = |body: RequestBody| body.first().clone();
        if is_h2 {
            None
        } else {
            self.attempt_body().map(first)
        }
    }
    async fn finish_custom(&mut self) -> Result<()> {
        Ok(())
    }
    fn take_custom_message_reader(&mut self) -> Option<CustomMessageStream> {
        None
    }
    fn restore_custom_message_reader(&mut self, _reader: CustomMessageStream) -> Result<()> {
        Ok(())
    }
    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }
    fn restore_custom_message_writer(
        &mut self,
        _writer: Box<dyn CustomMessageWrite>,
    ) -> Result<()> {
        Ok(())
    }
}
