//! What a request has become so far. A hook finds only what is there by its phase: the rest is not reachable.

use super::intake::Shared;
use super::reply::Reply;
use crate::billing::Hold;
use crate::catalog::Model;
use crate::config::Settings;
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::request::ConversationKey;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// One request, from its header to its access record.
pub struct Context {
    /// `req_` and 32 hex digits.
    pub request_id: String,
    pub arrived: Instant,
    /// Whose shape a failure takes.
    pub surface: Protocol,
    pub stage: Stage,
    /// Status of the answer, 0 while there is none.
    pub status: u16,
    /// Why it was refused or failed, in one word.
    pub reason: Option<&'static str>,
}

/// What became of it.
pub enum Stage {
    /// Nothing is decided.
    New,
    /// Answered here, without a vendor.
    Answered { what: &'static str },
    /// On its way to the sidecar; with the account whose receipt is asked for, where it is the one that can tell.
    Sidecar { account: Option<Arc<str>> },
    /// On its way to a vendor, with credit held.
    Call(Box<Call>),
}

/// A request that was admitted.
pub struct Call {
    pub settings: Arc<Settings>,
    pub model: Arc<Model>,
    pub upstream: Upstream,
    /// Of which conversation it is a turn.
    pub conversation: ConversationKey,
    /// `None` for what is free, and once it has been ended.
    pub hold: Option<Hold>,
    /// Bytes of the client's body, for estimates.
    pub body_bytes: u64,
    /// Bytes of the body as the vendor gets it.
    pub sent_bytes: usize,
    pub stream: bool,
    /// What was changed on the way, for `x-gateway-warnings`.
    pub warnings: Vec<String>,
    pub reply: Reply,
    pub shared: Arc<Shared>,
    /// What is needed to say a translated request without its reasoning, if the vendor refuses that. Taken when used.
    pub again: Option<Again>,
    /// Why it failed; told to the client when nothing else can be tried.
    pub failure: Option<Failure>,
    /// When it was handed to Pingora's upstream side.
    pub admitted: Instant,
    pub in_flight: InFlight,
}

/// A translated request, to be said again.
pub struct Again {
    pub surface: Protocol,
    /// The client's.
    pub body: Bytes,
    pub output_limit: Option<u64>,
    pub account_id: Arc<str>,
    pub request_id: String,
}

/// How to call the vendor.
pub struct Upstream {
    /// `/v1/messages`, …
    pub path: &'static str,
    /// Value of the version header, where the client gave one.
    pub version: Option<String>,
    /// Preview flags of the messages protocol.
    pub previews: Option<String>,
    /// The vendor is asked for a stream, whether or not the client asked for one.
    pub streams: bool,
    /// Indexes into the vendor's endpoints, in the order of trying.
    pub plan: Vec<usize>,
    /// Attempts begun.
    pub tries: usize,
    /// An attempt was repeated because its pooled connection was dead.
    pub repeated: bool,
    /// The attempt that just broke off is to be made again with another body.
    pub again: bool,
    /// The vendor may have begun to work on it.
    pub sent: bool,
}

impl Upstream {
    /// Nothing was tried yet.
    pub fn to(plan: Vec<usize>) -> Self {
        Self {
            path: "",
            version: None,
            previews: None,
            streams: false,
            plan,
            tries: 0,
            repeated: false,
            again: false,
            sent: false,
        }
    }
}

/// Counts itself among the requests that a drain waits for.
pub struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    pub fn enter(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Context {
    pub fn new() -> Self {
        Self {
            request_id: format!("req_{}", uuid::Uuid::now_v7().simple()),
            arrived: Instant::now(),
            surface: Protocol::Chat,
            stage: Stage::New,
            status: 0,
            reason: None,
        }
    }

    pub fn call(&mut self) -> Option<&mut Call> {
        match &mut self.stage {
            Stage::Call(call) => Some(call),
            _ => None,
        }
    }
}
