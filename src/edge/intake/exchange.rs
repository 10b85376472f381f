//! Holds the state of one exchange, which the response filters and the wrapped session share: the
//! progress of the response, the side that caused a failure, and withheld bytes.
//!
//! This file must not read or write a connection: `intake/buffered_session.rs` does.

use super::tcp_cork::TcpCorkGuard;
use crate::edge::shutdown::{CHECK_INTERVAL, Shutdown};
use crate::edge::silence_timer::wait_until;
use crate::idempotency::{IdempotencyGuard, KeyCommit};
use http::HeaderValue;
use ledger::journal::writer::JournalWrite;
use llm_protocol::failure::Kind;
use llm_protocol::keepalive::KeepAlive;
use llm_protocol::request::RequestBody;
use pingora::protocols::http::ServerSession as HttpSession;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct ExchangeState {
    inner: Mutex<ExchangeInner>,
    /// Shutdown state of the process, which bounds every wait.
    shutdown: Arc<Shutdown>,
}

/// Builds the bytes of a failure when they are needed, because more of the stream is known then.
type TerminalError = Box<dyn FnOnce(Kind) -> Vec<u8> + Send>;

/// The end of a debited request, on its way into the journal.
struct PendingEnding {
    record: JournalWrite,
    key: Option<(Box<IdempotencyGuard>, KeyEnd)>,
}

/// What becomes of an idempotency key once the journal has the debit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// The response is stored for a replay.
    Complete,
    /// The key is spent, but no complete response can be replayed.
    Spent,
}

impl KeyEnd {
    fn apply(self, key: IdempotencyGuard) {
        match self {
            Self::Complete => key.complete(),
            Self::Spent => key.mark_spent(),
        }
    }
}

/// Whether the journal has the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndingOutcome {
    Journalled,
    /// The journal lacks the end, so nothing is debited.
    Failed,
    /// The disk has not confirmed the write, so the end may still reach the journal.
    Unknown,
}

#[derive(Default)]
pub(super) struct ExchangeInner {
    pub(super) deferred_head: DeferredHead,
    /// The failure that ends a stream whose vendor breaks off. The client can read it.
    pub(super) terminal_error: Option<TerminalError>,
    pub(super) progress: ResponseProgress,
    pub(super) returned_session: Option<Box<HttpSession>>,
    /// Claim of the request's idempotency key, until its outcome is decided.
    pub(super) idempotency: Option<Box<IdempotencyGuard>>,
    /// Outcome of the idempotency key, once it is decided. The store may not have written it yet.
    decision: Option<KeyCommit>,
    /// The debit for which the last byte waits.
    ending: Option<PendingEnding>,
    /// True if the journal lacks the debit, so that the client must not get the last byte.
    is_unjournalled: bool,
    /// Cork of the running attempt's connection, until the vendor has the body.
    pub(super) corked: Option<TcpCorkGuard>,
    /// Body that later attempts send instead of the first one.
    pub(super) body: Option<RequestBody>,
    /// Keep-alive for a client that waits too long for the next event. Its bytes are produced when
    /// they are sent, because events may be numbered.
    pub(super) keep_alive: Option<KeepAlive>,
    /// Start of a stream without useful content. The gateway withholds it from the client, so that
    /// another attempt remains possible.
    pub(super) opening: Vec<u8>,
}

/// Maximum size of a withheld stream opening, in bytes. Some vendors repeat the request in it.
const MAX_OPENING_BYTES: usize = 262_144;

/// Parts of the response head that the gateway knows only once it has the body.
#[derive(Default)]
pub struct DeferredHead {
    pub status: Option<u16>,
    pub content_length: Option<usize>,
    pub headers: Vec<(&'static str, HeaderValue)>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseProgress {
    pub(super) phase: ResponsePhase,
    /// True if the model may have produced hidden reasoning, which an estimate would not count.
    pub(super) has_hidden_reasoning: bool,
    pub first_byte: Option<Instant>,
    /// True if a keep-alive went to the client, which fixes the status.
    pub kept_alive: bool,
    pub ended: Option<AbortReason>,
    pub(super) attempt: u32,
    /// True if the running attempt's connection speaks HTTP/2.
    pub(super) is_h2: bool,
    pub(super) attempt_began: Option<Instant>,
    /// Time at which the whole body of the attempt had been handed over.
    sent_at: Option<Instant>,
    pub(super) client_left: Option<Instant>,
    pub(super) blocked_until: Option<Instant>,
    failure_cause: Option<FailureCause>,
}

/// The state of the response between its first byte and its end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum ResponsePhase {
    #[default]
    Incomplete,
    /// The model has finished, but the vendor may still send the usage and the last event.
    Finishing {
        /// Time at which the usage arrived; `None` unless only the last event is missing.
        counted_at: Option<Instant>,
    },
    /// The last bytes, or a failure that ended the response, have passed. Only the end of the
    /// framing is missing.
    Completed {
        at: Instant,
        /// True if the gateway ended the response and does not wait for more bytes from the vendor.
        hung_up: bool,
        /// True if the response completed without the vendor's last event.
        lacked_last_event: bool,
    },
}

/// The side that caused an incomplete response: the one that the gateway saw leave or fail first. A
/// failure of the other side an instant later, while the gateway still reports the first, changes
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureCause {
    Client,
    Vendor,
}

/// The reason why the gateway stopped reading from the vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortReason {
    /// The deadline of the whole request has passed.
    Total,
    /// The vendor sent no header in time. Another endpoint may still answer.
    FirstByte,
    /// The vendor sent nothing for too long.
    Idle,
    /// The vendor answered with an error status and did not finish the error body.
    ErrorBody,
    /// The client has disconnected, and the time to wait for the usage is over.
    Drained,
    /// The response was complete, but the vendor did not end the body in time.
    Tail,
    /// The process shuts down, and the time for its last requests is over.
    Shutdown,
}

impl ResponseProgress {
    /// Returns whether any byte went to the client, so that no other attempt is possible.
    pub fn has_begun(&self) -> bool {
        self.first_byte.is_some() || self.kept_alive
    }

    /// Returns whether the last bytes of the response, or a failure that ended it, have passed.
    pub fn is_completed(&self) -> bool {
        matches!(self.phase, ResponsePhase::Completed { .. })
    }

    pub fn is_finishing(&self) -> bool {
        matches!(self.phase, ResponsePhase::Finishing { .. })
    }

    /// Returns whether the model had finished before the vendor sent the last event. The gateway
    /// then writes that event itself.
    pub fn lacks_last_event(&self) -> bool {
        match self.phase {
            ResponsePhase::Incomplete => false,
            ResponsePhase::Finishing { .. } => true,
            ResponsePhase::Completed {
                lacked_last_event, ..
            } => lacked_last_event,
        }
    }

    pub fn is_h2(&self) -> bool {
        self.is_h2
    }

    pub fn has_client_left(&self) -> bool {
        self.client_left.is_some()
    }

    /// Returns for how long the vendor has had the whole request of the running attempt, or `None`
    /// before that.
    pub fn time_since_sent(&self) -> Option<Duration> {
        self.sent_at.map(|at| at.elapsed())
    }

    /// Returns whether the vendor failed without the client causing it.
    pub fn is_vendor_fault(&self) -> bool {
        self.failure_cause == Some(FailureCause::Vendor)
    }

    /// Returns whether the client disconnected before the vendor failed, or stopped reading and may
    /// have caused the failure.
    pub fn is_client_fault(&self) -> bool {
        self.failure_cause == Some(FailureCause::Client)
    }
}

impl ExchangeState {
    pub fn new(shutdown: Arc<Shutdown>) -> Self {
        Self {
            inner: Mutex::default(),
            shutdown,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ExchangeInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the debit for which the last byte waits.
    pub fn set_ending(&self, record: Option<JournalWrite>) {
        self.lock().ending = record.map(|record| PendingEnding { record, key: None });
    }

    /// Ends the idempotency key once the journal has the debit; at once if there is none.
    pub fn end_key(&self, key: Box<IdempotencyGuard>, end: KeyEnd) {
        let mut state = self.lock();
        match &mut state.ending {
            Some(ending) => ending.key = Some((key, end)),
            None => {
                drop(state);
                end.apply(*key);
            }
        }
    }

    /// Returns the debit for which the last byte waits.
    pub(super) fn pending_ending(&self) -> Option<JournalWrite> {
        let state = self.lock();
        state.ending.as_ref().map(|ending| ending.record.clone())
    }

    /// Ends the wait for the debit.
    pub(super) fn conclude_ending(&self, outcome: EndingOutcome) {
        let Some(ending) = self.lock().ending.take() else {
            return;
        };
        if outcome != EndingOutcome::Journalled {
            let mut state = self.lock();
            state.is_unjournalled = true;
            state.progress.phase = ResponsePhase::Incomplete;
        }
        match (ending.key, outcome) {
            (Some((key, end)), EndingOutcome::Journalled) => end.apply(*key),
            // The next start decides by the journal.
            (Some((key, _)), EndingOutcome::Unknown) => key.leave_running(),
            // Dropping the claim frees the key.
            (_, _) => {}
        }
    }

    /// Gives up the wait for a debit, which is withdrawn if it does not reach the journal yet.
    pub(super) fn give_up_ending(&self, record: &JournalWrite) -> EndingOutcome {
        record.withdraw();
        if record.segment().is_some() {
            EndingOutcome::Journalled
        } else if record.has_failed() {
            EndingOutcome::Failed
        } else {
            EndingOutcome::Unknown
        }
    }

    /// Waits until the journal has the debit, at most until the process must end. Returns whether
    /// the client may get the last byte.
    pub async fn wait_for_ending(&self) -> bool {
        if let Some(record) = self.pending_ending() {
            let outcome = loop {
                let next = Instant::now() + CHECK_INTERVAL;
                match wait_until(next.into(), record.wait()).await {
                    Some(Ok(_)) => break EndingOutcome::Journalled,
                    Some(Err(_)) => break EndingOutcome::Failed,
                    None if self.is_past_cutoff() => break self.give_up_ending(&record),
                    None => {}
                }
            };
            self.conclude_ending(outcome);
        }
        !self.is_unjournalled()
    }

    fn is_past_cutoff(&self) -> bool {
        let cutoff = self.shutdown.cutoff();
        cutoff.is_some_and(|cutoff| cutoff <= Instant::now())
    }

    /// Returns whether the journal lacks the debit, so that the client must not get the last byte.
    pub fn is_unjournalled(&self) -> bool {
        self.lock().is_unjournalled
    }

    pub fn progress(&self) -> ResponseProgress {
        self.lock().progress
    }

    /// Records that a request is being sent to an endpoint, and clears the reason why the previous
    /// attempt ended.
    pub fn begin_attempt(&self, is_h2: bool) {
        let mut state = self.lock();
        state.progress.is_h2 = is_h2;
        state.progress.attempt = state.progress.attempt.saturating_add(1);
        state.progress.attempt_began = Some(Instant::now());
        state.progress.sent_at = None;
        state.opening = Vec::new();
        state.progress.ended = None;
        if !state.progress.is_completed() {
            state.progress.phase = ResponsePhase::Incomplete;
        }
        state.progress.failure_cause = state.progress.client_left.map(|_| FailureCause::Client);
    }

    pub(super) fn mark_sent(&self) {
        self.lock()
            .progress
            .sent_at
            .get_or_insert_with(Instant::now);
    }

    /// Withholds a piece of a stream's opening from the client. Returns `false` if the opening
    /// would become too large; the piece must then be sent.
    pub fn buffer_opening(&self, piece: &[u8]) -> bool {
        let opening = &mut self.lock().opening;
        let fits = opening.len().saturating_add(piece.len()) <= MAX_OPENING_BYTES;
        if fits {
            opening.extend_from_slice(piece);
        }
        fits
    }

    /// Takes the withheld opening, which the caller must send before anything else.
    pub fn take_opening(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().opening)
    }

    /// Makes the head and the body of the running attempt leave together over this connection,
    /// which no other request shares.
    pub fn cork(&self, socket: RawFd) {
        self.lock().corked = TcpCorkGuard::new(socket);
    }

    pub(super) fn mark_client_left(&self) {
        let progress = &mut self.lock().progress;
        progress.client_left.get_or_insert_with(Instant::now);
        progress.failure_cause.get_or_insert(FailureCause::Client);
    }

    /// Records that the vendor broke off, reported an error, or was silent for too long. For a
    /// while after a write that the client blocked, the failure counts as caused by the client.
    pub fn mark_vendor_failed(&self) {
        let progress = &mut self.lock().progress;
        let held_up = progress
            .blocked_until
            .is_some_and(|until| Instant::now() < until);
        progress.failure_cause.get_or_insert(if held_up {
            FailureCause::Client
        } else {
            FailureCause::Vendor
        });
    }

    /// Sets what the gateway knows of a response before it begins: whether it may contain hidden
    /// reasoning, and the keep-alive for a waiting client.
    pub fn set_response_expectations(
        &self,
        has_hidden_reasoning: bool,
        keep_alive: Option<KeepAlive>,
    ) {
        let mut state = self.lock();
        state.progress.has_hidden_reasoning = has_hidden_reasoning;
        state.keep_alive = keep_alive;
    }

    pub fn set_idempotency(&self, idempotency: Option<Box<IdempotencyGuard>>) {
        let mut state = self.lock();
        if state.decision.is_none() {
            state.decision = idempotency
                .as_ref()
                .map(|idempotency| idempotency.key_commit());
        }
        state.idempotency = idempotency;
    }

    /// Returns once the store has written the outcome of the request's idempotency key. Returns at
    /// once without a key or an outcome.
    pub async fn wait_for_decision(&self) {
        let decision = self.lock().decision.clone();
        if let Some(decision) = decision {
            decision.wait().await;
        }
    }

    /// Takes the claim of the idempotency key. Dropping the claim frees the key.
    pub fn take_idempotency(&self) -> Option<Box<IdempotencyGuard>> {
        self.lock().idempotency.take()
    }

    pub fn has_idempotency(&self) -> bool {
        self.lock().idempotency.is_some()
    }

    pub fn set_deferred_head(&self, deferred_head: DeferredHead) {
        self.lock().deferred_head = deferred_head;
    }

    pub fn body(&self) -> Option<RequestBody> {
        self.lock().body.clone()
    }

    /// Sets the body that the next attempts send.
    pub fn set_body(&self, body: RequestBody) {
        self.lock().body = Some(body);
    }

    pub fn set_terminal_error(
        &self,
        terminal_error: impl FnOnce(Kind) -> Vec<u8> + Send + 'static,
    ) {
        self.lock().terminal_error = Some(Box::new(terminal_error));
    }

    /// Records that nothing more will be sent to the client, because it has the whole response or a
    /// failure that ended it.
    pub fn set_completed(&self) {
        self.complete(false);
    }

    /// Calls [`Self::set_completed`] and stops waiting for the vendor, which might send more.
    pub fn complete_and_hang_up(&self) {
        self.complete(true);
    }

    fn complete(&self, hang_up: bool) {
        let progress = &mut self.lock().progress;
        if let ResponsePhase::Completed { hung_up, .. } = &mut progress.phase {
            *hung_up |= hang_up;
            return;
        }
        progress.phase = ResponsePhase::Completed {
            at: Instant::now(),
            hung_up: hang_up,
            lacked_last_event: progress.is_finishing(),
        };
    }

    /// Sets whether the response lacks only its last event. `has_usage` says whether the usage has
    /// arrived.
    pub fn set_finishing(&self, is_finishing: bool, has_usage: bool) {
        let phase = &mut self.lock().progress.phase;
        let counted_at = match *phase {
            ResponsePhase::Completed { .. } => return,
            ResponsePhase::Finishing { counted_at } => counted_at,
            ResponsePhase::Incomplete => None,
        };
        *phase = if is_finishing {
            let counted_at = has_usage.then(|| counted_at.unwrap_or_else(Instant::now));
            ResponsePhase::Finishing { counted_at }
        } else {
            ResponsePhase::Incomplete
        };
    }

    pub fn set_hidden_reasoning(&self, has_hidden_reasoning: bool) {
        self.lock().progress.has_hidden_reasoning = has_hidden_reasoning;
    }
}

#[derive(Debug, Clone)]
pub struct Deadlines {
    pub total: Instant,
    /// Time from the start of each attempt to the vendor's header.
    pub first_byte: Duration,
    pub idle: Duration,
    pub client_write: Duration,
    /// Time to wait for a stream's usage after the client disconnected. The second field applies if
    /// the model may have produced hidden reasoning.
    pub drain: Duration,
    pub drain_reasoning: Duration,
    /// True if the client wants a stream and sent no idempotency key: once it has left, the gateway
    /// reads on only for a limited time. Otherwise it reads on until the request's own deadline.
    pub may_drain: bool,
    /// Time without a byte after which a waiting client gets a keep-alive.
    pub keep_alive: Duration,
    /// Shutdown state of the process, whose cutoff bounds the request too.
    pub shutdown: Arc<Shutdown>,
}
