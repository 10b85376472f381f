//! What a request has become so far. A hook finds only what is there by its phase: the rest is not
//! reachable.

use super::activity::ReceiptLookup;
use super::admit::Fallbacks;
use super::cors::Cors;
use super::intake::Shared;
use super::pages::PagePermit;
use super::panics;
use super::pool::CpuWorker;
use super::reply::Reply;
use super::trace::Trace;
use super::turn::Turn;
use crate::account::Principal;
use crate::address::Caller;
use crate::billing::Hold;
use crate::catalog::Model;
use crate::config::Settings;
use crate::money::Micro;
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::store::ledger::Outcome;
use crate::upstreams::{Endpoints, Lease};
use crate::usage::{MeteringTerms, Usage, UsageBounds, UsageEstimator};
use bytes::Bytes;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One request, from its header to its access record.
pub struct Context {
    /// `req_` and 32 hex digits.
    pub request_id: String,
    pub arrived: Instant,
    /// From where it comes, once its header is there; unless its peer has left already.
    pub caller: Option<Caller>,
    /// Method and path, as they are logged; only with an access log.
    pub target: Option<Box<(String, String)>>,
    /// Where it is traced.
    pub trace: Option<Box<Trace>>,
    /// Who pays, and when that was known.
    pub principal: Option<(Principal, Instant)>,
    /// What a browser is told with the answer; only on the API's paths, and where some page may
    /// call them.
    pub cors: Option<Cors>,
    /// Whose shape a failure takes.
    pub surface: Protocol,
    /// What the request is counted and logged as.
    pub route: Route,
    pub stage: Stage,
    /// Status of the answer, 0 while there is none.
    pub status: u16,
    /// Why it was refused or failed, in one word.
    pub reason: Option<&'static str>,
}

/// The label that keeps pages and health checks apart from the API: they outnumber it, and would
/// dilute a ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    Api,
    Page,
    Health,
    /// Not a request that could be read in one way.
    Malformed,
}

impl Route {
    /// The label of `gateway_requests_total`, and the member of the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Route::Api => "api",
            Route::Page => "page",
            Route::Health => "health",
            Route::Malformed => "malformed",
        }
    }

    /// The surface's label; pages and health checks have none.
    pub fn surface(self, surface: Protocol) -> &'static str {
        match self {
            Route::Page | Route::Health => "",
            Route::Api | Route::Malformed => surface.as_str(),
        }
    }
}

/// What became of it.
pub enum Stage {
    /// Nothing is decided.
    New,
    /// Answered here, without a vendor.
    Answered { what: &'static str },
    /// On its way to the sidecar; with the account whose receipt is asked for, where it is the one
    /// that can tell; and whether it was asked anew.
    Sidecar {
        account: Option<Arc<str>>,
        again: bool,
        _permit: SidecarPermit,
    },
    /// On its way to a vendor, with credit held.
    Call(Box<Call>),
}

/// What a request to the sidecar is counted by, for as long as it lasts.
pub enum SidecarPermit {
    Page(PagePermit),
    Receipt(ReceiptLookup),
}

/// A request that was admitted.
pub struct Call {
    pub settings: Arc<Settings>,
    pub model: Arc<Model>,
    pub upstream: Upstream,
    /// `None` for what is free, and once it has been ended.
    pub hold: Option<Hold>,
    /// Bytes of the client's body.
    pub body_bytes: u64,
    /// What its usage is estimated by.
    pub turn: Turn,
    /// The most that it can use at the model that is asked.
    pub usage_bounds: UsageBounds,
    /// Bytes of the body as the vendor gets it.
    pub sent_bytes: usize,
    pub stream: bool,
    /// What was changed on the way, for `x-gateway-warnings`.
    pub warnings: Vec<String>,
    pub reply: Reply,
    pub shared: Arc<Shared>,
    /// What is needed to say a translated request without its reasoning, if the vendor refuses
    /// that. Taken when used.
    pub again: Option<Again>,
    /// Models that may answer instead, until one has begun to.
    pub fallbacks: Option<Box<Fallbacks>>,
    /// Why it failed; told to the client when nothing else can be tried.
    pub failure: Option<Failure>,
    /// When the client's body was there.
    pub body_read: Instant,
    /// When it was handed to Pingora's upstream side.
    pub admitted: Instant,
    /// When the vendor's header was there.
    pub vendor_answered: Option<Instant>,
    /// How it ended, and what that cost.
    pub billed: Option<(Outcome, Micro)>,
    /// Where work on large bodies is done.
    pub cpu: CpuWorker,
    pub in_flight: InFlight,
}

impl Call {
    /// What its usage is metered by, at the model that is asked.
    pub fn metering_terms(&self) -> MeteringTerms {
        MeteringTerms::new(self.turn.estimator(), self.usage_bounds)
    }

    /// The usage to bill where the vendor did not report all of it; `reported` is what it did.
    pub fn estimate(&self, reported: Option<Usage>, generated_bytes: u64) -> Usage {
        self.metering_terms()
            .estimator
            .usage(reported, generated_bytes)
    }
}

/// A translated request, to be said again.
pub struct Again {
    pub surface: Protocol,
    /// Not where anything else is lost.
    pub strict: bool,
    /// The client's.
    pub body: Bytes,
    pub output_limit: Option<u64>,
    pub account_id: Arc<str>,
    pub request_id: String,
    /// As it is told to the caller where the vendor reports no usage.
    pub estimator: UsageEstimator,
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
    /// The vendor's endpoints, of which one is chosen for each attempt.
    pub endpoints: Arc<Endpoints>,
    /// Of the conversation, where it is to keep its endpoint.
    pub key: Option<u64>,
    /// Attempts that were begun at other models' endpoints before.
    pub before: usize,
    /// Endpoints that attempts were begun at, by index.
    pub tried: Vec<usize>,
    /// The running attempt's place at its endpoint.
    pub lease: Option<Lease>,
    /// The running attempt's connection.
    pub socket: Option<RawFd>,
    /// Addresses of that endpoint that were tried.
    pub addresses: Vec<SocketAddr>,
    /// The next attempt is made at the same endpoint.
    pub here: bool,
    /// An attempt was repeated because its pooled connection was dead.
    pub repeated: bool,
    /// The attempt that just broke off is to be made again with another body.
    pub again: bool,
    /// The vendor may have begun to work on it.
    pub sent: bool,
    /// The next attempt sends what was sent to this vendor before: the retry budget pays for it.
    pub repeats: bool,
    /// In the running attempt the vendor said that it failed, with nothing generated.
    pub refused: bool,
}

impl Upstream {
    /// Nothing was tried yet.
    pub fn to(endpoints: Arc<Endpoints>) -> Self {
        Self {
            path: "",
            version: None,
            previews: None,
            streams: false,
            endpoints,
            key: None,
            before: 0,
            tried: Vec::new(),
            lease: None,
            socket: None,
            addresses: Vec::new(),
            here: false,
            repeated: false,
            again: false,
            sent: false,
            repeats: false,
            refused: false,
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

/// What an answer's time went into, one after the other, up to the vendor's header.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    /// Whose the key is.
    pub auth: Duration,
    /// Waiting for the client's body.
    pub body: Duration,
    /// Translation, quote and hold.
    pub admit: Duration,
    /// From there to the vendor's header, failed attempts included.
    pub vendor: Option<Duration>,
}

/// As the value of a `server-timing` header, in milliseconds.
impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut part = |name: &str, time: Duration| {
            write!(
                f,
                "{name};dur={}.{:03}",
                time.as_millis(),
                time.subsec_micros() % 1_000
            )
        };
        part("auth", self.auth)?;
        part(", body", self.body)?;
        part(", admit", self.admit)?;
        self.vendor
            .map_or(Ok(()), |vendor| part(", vendor", vendor))
    }
}

/// A panic ends the request's task. What is known of the request outlives it, so that it can be
/// answered and recorded.
impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            panics::keep(self);
        }
    }
}

impl Context {
    pub fn new() -> Self {
        Self {
            request_id: format!("req_{}", uuid::Uuid::now_v7().simple()),
            arrived: Instant::now(),
            caller: None,
            target: None,
            trace: None,
            principal: None,
            cors: None,
            surface: Protocol::Chat,
            route: Route::Api,
            stage: Stage::New,
            status: 0,
            reason: None,
        }
    }

    /// Where the time of a call went so far.
    pub fn phases(&self) -> Option<Phases> {
        let Stage::Call(call) = &self.stage else {
            return None;
        };
        let authenticated = self.principal.as_ref().map_or(self.arrived, |(_, at)| *at);
        Some(Phases {
            auth: authenticated.duration_since(self.arrived),
            body: call.body_read.duration_since(authenticated),
            admit: call.admitted.duration_since(call.body_read),
            vendor: call
                .vendor_answered
                .map(|at| at.duration_since(call.admitted)),
        })
    }

    /// Takes what is known of the request out of this one.
    pub fn take(&mut self) -> Self {
        Self {
            request_id: std::mem::take(&mut self.request_id),
            arrived: self.arrived,
            caller: self.caller.take(),
            target: self.target.take(),
            trace: self.trace.take(),
            principal: self.principal.take(),
            cors: self.cors.take(),
            surface: self.surface,
            route: self.route,
            stage: std::mem::replace(&mut self.stage, Stage::New),
            status: self.status,
            reason: self.reason,
        }
    }

    pub fn call(&mut self) -> Option<&mut Call> {
        match &mut self.stage {
            Stage::Call(call) => Some(call),
            _ => None,
        }
    }
}
