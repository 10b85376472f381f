//! The body, both ways: the client's is read whole and replayed to the vendor, also on a second
//! attempt; the vendor's is written to the client, or read on without it once the client has left.
//!
//! Pingora streams a request body past its filters and keeps at most 64 KiB for a retry; a body
//! that was read in `request_filter` is not sent at all, and the request hangs. So the downstream
//! session is wrapped: [`Replay`] stands in its place, offers the rewritten body as the "retry
//! buffer" of a finished request, and hands everything else on to the session inside. It is also
//! where time passes without bytes: every deadline lives here.
//!
//! This file and `intake/replay.rs` are the only ones that know this. Must not judge what the bytes
//! say. Next: `intake/body.rs` (reading), `intake/body_share.rs` (the memory that bodies take),
//! `intake/replay.rs` (the wrapper), `intake/together.rs` (one packet to the vendor).

mod body;
mod body_share;
mod coding;
mod early_answer;
mod replay;
#[cfg(test)]
mod tests;
mod together;

pub use body::{ReceivedBody, announced_bytes, read_body, read_page_body};
pub use body_share::{BodyBytes, BodyHolders, BodyShare};
pub use early_answer::{discard_body, keep_alive_past_body};

use super::shutdown::Shutdown;
use crate::idempotency::{Decision, Running};
use crate::protocol::aside::SignOfLife;
use bytes::Bytes;
use http::HeaderValue;
use pingora::protocols::http::ServerSession as HttpSession;
use pingora::proxy::Session;
use replay::{HAND_BACK, Replay};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use together::Corked;

/// What the vendor's answer and the wrapped session tell each other.
#[derive(Default)]
pub struct Shared(Mutex<State>);

/// Written when it is needed: by then more of the stream is known.
type Epitaph = Box<dyn FnOnce() -> Vec<u8> + Send>;

#[derive(Default)]
struct State {
    late: Late,
    /// What ends a stream whose vendor breaks off: a failure that the client can read.
    epitaph: Option<Epitaph>,
    progress: Progress,
    handed_back: Option<Box<HttpSession>>,
    /// Of a request under an idempotency key, until it is decided what becomes of that.
    keyed: Option<Box<Running>>,
    /// Of the same request: once that is decided, it may not have been written yet.
    decision: Option<Decision>,
    /// The running attempt's connection, until the body is with it.
    corked: Option<Corked>,
    /// Sent at further attempts instead of the first body.
    body: Option<Bytes>,
    /// Written to a client that waits too long for the next event; its bytes are made then, for
    /// events may be numbered.
    keep_alive: Option<SignOfLife>,
    /// The opening of a stream, before anything useful: kept from the client, so that until then
    /// another attempt is possible.
    opening: Vec<u8>,
}

/// The largest opening of a stream that is kept from the client, in bytes. Some vendors repeat the
/// whole request in it.
const OPENING_BYTES_MAX: usize = 262_144;

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
    /// When they had.
    completed_at: Option<Instant>,
    /// What the vendor may still send is not waited for: this side ended the answer.
    hung_up: bool,
    /// The model may have reasoned out of sight, which an estimate would not count.
    unseen: bool,
    /// The answer is complete, and its vendor may still send the usage and the last event.
    pub finishing: bool,
    /// Since when the usage has come too, and only the last event is missing.
    counted_at: Option<Instant>,
    /// When the first byte went to the client.
    pub first_byte: Option<Instant>,
    /// A sign of life went to the client, so its status stands.
    pub kept_alive: bool,
    pub ended: Option<Ended>,
    /// How many were begun.
    attempt: u32,
    /// The running attempt's connection speaks HTTP/2.
    is_h2: bool,
    attempt_began: Option<Instant>,
    /// When its body had been handed over whole.
    sent_at: Option<Instant>,
    client_left: Option<Instant>,
    blocked_until: Option<Instant>,
    blame: Option<Blame>,
}

/// Whose doing it is that an answer is not whole: whoever was seen to leave or to fail first. The
/// other may do the same an instant later, while the first is still being told; that changes
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    Client,
    Vendor,
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
    /// The vendor answered with an error status, and did not finish saying why.
    ErrorBody,
    /// The client has left, and so has the time to learn the usage.
    Drained,
    /// The answer was complete, the vendor's body was not.
    Tail,
    /// The process ends, and so has the time for its last requests.
    Shutdown,
}

impl Progress {
    /// Something went to the client: no other attempt is possible.
    pub fn has_begun(&self) -> bool {
        self.first_byte.is_some() || self.kept_alive
    }

    /// The running attempt's connection speaks HTTP/2.
    pub fn is_h2(&self) -> bool {
        self.is_h2
    }

    /// The client is gone.
    pub fn client_left(&self) -> bool {
        self.client_left.is_some()
    }

    /// For how long the vendor has had the running attempt's whole request; `None`: it does not
    /// have it.
    pub fn sent_for(&self) -> Option<Duration> {
        self.sent_at.map(|at| at.elapsed())
    }

    /// The vendor failed, and not because of the client.
    pub fn vendor_is_the_cause(&self) -> bool {
        self.blame == Some(Blame::Vendor)
    }

    /// The client left before the vendor failed, or stopped reading and may thereby have brought
    /// the failure about.
    pub fn client_is_the_cause(&self) -> bool {
        self.blame == Some(Blame::Client)
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
    pub fn begin_attempt(&self, is_h2: bool) {
        let mut state = self.lock();
        state.progress.is_h2 = is_h2;
        state.progress.attempt = state.progress.attempt.saturating_add(1);
        state.progress.attempt_began = Some(Instant::now());
        state.progress.sent_at = None;
        state.opening = Vec::new();
        state.progress.ended = None;
        state.progress.finishing = false;
        state.progress.counted_at = None;
        state.progress.blame = state.progress.client_left.map(|_| Blame::Client);
    }

    /// The running attempt's body has been handed over whole.
    fn set_sent(&self) {
        self.lock()
            .progress
            .sent_at
            .get_or_insert_with(Instant::now);
    }

    /// Keeps a piece of a stream's opening from the client. `false` where that would be too much:
    /// it is to be sent on.
    pub fn keep_opening(&self, piece: &[u8]) -> bool {
        let opening = &mut self.lock().opening;
        let fits = opening.len().saturating_add(piece.len()) <= OPENING_BYTES_MAX;
        if fits {
            opening.extend_from_slice(piece);
        }
        fits
    }

    /// The opening that was kept from the client, to be sent before anything else.
    pub fn take_opening(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().opening)
    }

    /// Head and body of the running attempt are to leave together over this connection, which no
    /// other request shares.
    pub fn cork(&self, socket: RawFd) {
        self.lock().corked = Corked::new(socket);
    }

    /// The client is gone.
    fn client_left(&self) {
        let progress = &mut self.lock().progress;
        progress.client_left.get_or_insert_with(Instant::now);
        progress.blame.get_or_insert(Blame::Client);
    }

    /// The vendor was seen to fail: it broke off, said so, or was silent for too long. Within a
    /// while after a write that the client held up, that is taken for the client's doing.
    pub fn vendor_failed(&self) {
        let progress = &mut self.lock().progress;
        let held_up = progress
            .blocked_until
            .is_some_and(|until| Instant::now() < until);
        progress.blame.get_or_insert(if held_up {
            Blame::Client
        } else {
            Blame::Vendor
        });
    }

    /// What is known of a model's answer before it begins: whether it may reason out of sight, and
    /// what is told to a client that waits for it.
    pub fn expect(&self, unseen: bool, keep_alive: Option<SignOfLife>) {
        let mut state = self.lock();
        state.progress.unseen = unseen;
        state.keep_alive = keep_alive;
    }

    pub fn set_keyed(&self, keyed: Option<Box<Running>>) {
        let mut state = self.lock();
        if state.decision.is_none() {
            state.decision = keyed.as_ref().map(|keyed| keyed.decision());
        }
        state.keyed = keyed;
    }

    /// Returns once what became of the request's key is written, where that was decided and there
    /// is one.
    pub async fn decided(&self) {
        let decision = self.lock().decision.clone();
        if let Some(decision) = decision {
            decision.made().await;
        }
    }

    /// Whoever drops it frees its key.
    pub fn take_keyed(&self) -> Option<Box<Running>> {
        self.lock().keyed.take()
    }

    pub fn is_keyed(&self) -> bool {
        self.lock().keyed.is_some()
    }

    pub fn set_late(&self, late: Late) {
        self.lock().late = late;
    }

    /// Another body for the attempts to come.
    pub fn set_body(&self, body: Bytes) {
        self.lock().body = Some(body);
    }

    pub fn set_epitaph(&self, epitaph: impl FnOnce() -> Vec<u8> + Send + 'static) {
        self.lock().epitaph = Some(Box::new(epitaph));
    }

    /// Nothing more goes to the client: the answer was given whole, or ended by a failure that it
    /// was told.
    pub fn set_completed(&self) {
        let progress = &mut self.lock().progress;
        progress.completed = true;
        progress.completed_at.get_or_insert_with(Instant::now);
    }

    /// The same, and the vendor is not waited for, which would go on.
    pub fn hang_up(&self) {
        self.set_completed();
        self.lock().progress.hung_up = true;
    }

    /// Sets whether the answer is complete although its last event has not come. `has_usage`: its
    /// usage has.
    pub fn set_finishing(&self, is_finishing: bool, has_usage: bool) {
        let progress = &mut self.lock().progress;
        progress.finishing = is_finishing;
        let counted_at = progress.counted_at.unwrap_or_else(Instant::now);
        progress.counted_at = (is_finishing && has_usage).then_some(counted_at);
    }

    /// Whether the model may have reasoned out of sight so far.
    pub fn set_unseen(&self, unseen: bool) {
        self.lock().progress.unseen = unseen;
    }
}

/// The deadlines of one request.
#[derive(Debug, Clone)]
pub struct Deadlines {
    pub total: Instant,
    /// From the sending of the request to the vendor's header, at each attempt.
    pub first_byte: Duration,
    pub idle: Duration,
    pub client_write: Duration,
    /// After the client left: to learn a stream's usage, and where the model may have reasoned out
    /// of sight.
    pub drain: Duration,
    pub drain_hidden: Duration,
    /// A stream is drained; a whole answer is awaited to the request's own deadline.
    pub stream: bool,
    /// After so long without a byte, a client that waits for the next event is told that it will
    /// come.
    pub keep_alive: Duration,
    /// When the process is told to end, that bounds the request too.
    pub shutdown: Arc<Shutdown>,
}

/// Puts `body` in the place of the request's own, for every attempt.
pub fn install(
    session: &mut Session,
    body: Bytes,
    share: BodyShare,
    deadlines: Deadlines,
) -> Arc<Shared> {
    let shared = Arc::new(Shared::default());
    let placeholder = Box::new(HttpSession::new_custom(Box::new(())));
    let inner = std::mem::replace(&mut session.downstream_session, placeholder);
    let replay = Replay::new(inner, (body, share), Arc::clone(&shared), deadlines);
    *session.downstream_session = HttpSession::new_custom(Box::new(replay));
    shared
}

/// The client's session, where a panic has ended the request's task.
pub fn take_session(shared: &Shared) -> Option<Box<HttpSession>> {
    shared.lock().handed_back.take()
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
