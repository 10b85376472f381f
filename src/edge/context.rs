//! The state of a request. The stage limits what a hook can reach: each hook sees only what exists
//! in its phase.

use super::activity::ReceiptLookup;
use super::cors::CorsHeaders;
use super::cpu_pool::CpuWorker;
use super::intake::ExchangeState;
use super::outbound::RetryWithoutReasoning;
use super::outbound::fallback::Fallbacks;
use super::pages::PagePermit;
use super::response::state::UpstreamResponse;
use super::trace::RequestTrace;
use super::turn::MeteredTurn;
use crate::account::Principal;
use crate::address::ClientAddress;
use crate::billing::Hold;
use crate::catalog::CatalogModel;
use crate::config::Settings;
use crate::store::ledger::RequestOutcome;
use crate::upstreams::{EndpointLease, EndpointPool};
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use llm_protocol::usage::{MeteringTerms, Usage, UsageBounds};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One request, from its header to its access record.
pub struct RequestContext {
    /// `req_` and 32 hex digits.
    pub request_id: String,
    pub arrived: Instant,
    /// Origin of the request, known once its header has arrived; unless its peer has disconnected
    /// already.
    pub caller: Option<ClientAddress>,
    /// Method and path for the log. Set only with an access log.
    pub target: Option<Box<(String, String)>>,
    /// Trace of the request, if it is traced.
    pub trace: Option<Box<RequestTrace>>,
    /// The account and key that pay, and when the gateway knew them.
    pub principal: Option<(Principal, Instant)>,
    /// CORS headers for the response. Set only on the API's paths, and if some page may call them.
    pub cors: Option<CorsHeaders>,
    /// Protocol that determines the shape of a failure.
    pub surface: Protocol,
    /// What the request is counted and logged as.
    pub route: RouteLabel,
    pub stage: Stage,
    /// Status of the response, 0 while there is none.
    pub status: u16,
    /// Why the request was refused or failed, in one word.
    pub reason: Option<&'static str>,
}

/// The label that keeps pages and health checks apart from the API: they outnumber it, and would
/// dilute a ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteLabel {
    Api,
    Page,
    Health,
    /// Not a request that could be read in one way.
    Malformed,
}

impl RouteLabel {
    /// The label of `gateway_requests_total`, and the member of the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            RouteLabel::Api => "api",
            RouteLabel::Page => "page",
            RouteLabel::Health => "health",
            RouteLabel::Malformed => "malformed",
        }
    }

    /// The surface's label; pages and health checks have none.
    pub fn surface(self, surface: Protocol) -> &'static str {
        match self {
            RouteLabel::Page | RouteLabel::Health => "",
            RouteLabel::Api | RouteLabel::Malformed => surface.as_str(),
        }
    }
}

/// What became of it.
pub enum Stage {
    /// Nothing is decided yet.
    New,
    /// The gateway has answered the request itself, without a vendor.
    Answered { what: &'static str },
    /// The request is on its way to the sidecar. Holds the account whose receipt is requested, if
    /// only the sidecar can answer, and whether the gateway has retried.
    Sidecar {
        account: Option<Arc<str>>,
        again: bool,
        _permit: SidecarPermit,
    },
    /// The request is on its way to a vendor, with credit reserved.
    Call(Box<AdmittedRequest>),
}

/// Permit that counts a request to the sidecar for as long as the request lasts.
pub enum SidecarPermit {
    Page(PagePermit),
    Receipt(ReceiptLookup),
}

/// A request that was admitted.
pub struct AdmittedRequest {
    pub settings: Arc<Settings>,
    pub model: Arc<CatalogModel>,
    pub upstream: Upstream,
    /// `None` for free requests, and once the hold has ended.
    pub hold: Option<Hold>,
    /// Size of the client's body, in bytes.
    pub body_bytes: u64,
    /// The turn, which provides the usage estimate.
    pub turn: MeteredTurn,
    /// Maximum usage at the current model.
    pub usage_bounds: UsageBounds,
    /// Size of the body that the vendor gets, in bytes.
    pub sent_bytes: usize,
    pub stream: bool,
    /// Changes to the request, for `x-gateway-warnings`.
    pub warnings: Vec<String>,
    pub reply: UpstreamResponse,
    pub shared: Arc<ExchangeState>,
    /// What a retry without reasoning needs, if the vendor refuses the reasoning of a translated
    /// request. Taken when used.
    pub again: Option<RetryWithoutReasoning>,
    /// Models that may answer instead, until one has begun to.
    pub fallbacks: Option<Box<Fallbacks>>,
    /// Why the request failed. The client gets it when no attempt is left.
    pub failure: Option<Failure>,
    /// When the client's body had arrived.
    pub body_read: Instant,
    /// When Pingora's upstream side got the request.
    pub admitted: Instant,
    /// When the vendor's header arrived.
    pub vendor_answered: Option<Instant>,
    /// Outcome of the request, and its cost.
    pub billed: Option<(RequestOutcome, Micro)>,
    /// CPU pool for work on large bodies.
    pub cpu: CpuWorker,
    pub in_flight: InFlightGuard,
}

impl AdmittedRequest {
    /// Returns how the usage is metered at the current model.
    pub fn metering_terms(&self) -> MeteringTerms {
        MeteringTerms::new(self.turn.estimator(), self.usage_bounds)
    }

    /// Returns the usage to bill if the vendor did not report all of it. `reported` is what it did
    /// report.
    pub fn estimate(&self, reported: Option<Usage>, generated_bytes: u64) -> Usage {
        self.metering_terms()
            .estimator
            .usage(reported, generated_bytes)
    }
}

/// How to call the vendor.
pub struct Upstream {
    /// `/v1/messages`, …
    pub path: &'static str,
    /// Value of the version header, if the client sent one.
    pub version: Option<String>,
    /// Preview flags of the messages protocol.
    pub previews: Option<String>,
    /// Whether the gateway requests a stream, whether or not the client did.
    pub streams: bool,
    /// The vendor's endpoints. Each attempt uses one of them.
    pub endpoints: Arc<EndpointPool>,
    /// Hash of the conversation, if it should keep its endpoint.
    pub key: Option<u64>,
    /// Number of attempts at endpoints of earlier models.
    pub before: usize,
    /// Indexes of the endpoints at which attempts began.
    pub tried: Vec<usize>,
    /// Slot of the running attempt at its endpoint.
    pub lease: Option<EndpointLease>,
    /// Socket of the running attempt.
    pub socket: Option<RawFd>,
    /// Addresses of that endpoint that were tried.
    pub addresses: Vec<SocketAddr>,
    /// Whether the next attempt uses the same endpoint.
    pub here: bool,
    /// Whether an attempt was repeated because its pooled connection was dead.
    pub repeated: bool,
    /// Whether the attempt that just broke off must be repeated with another body.
    pub again: bool,
    /// Whether the vendor may have begun to work on the request.
    pub sent: bool,
    /// Whether the next attempt sends what this vendor has received before, so that it counts
    /// against the retry budget.
    pub repeats: bool,
    /// Whether the vendor reported in the running attempt that it failed without generating
    /// anything.
    pub refused: bool,
}

impl Upstream {
    /// Returns the state before the first attempt.
    pub fn new(endpoints: Arc<EndpointPool>) -> Self {
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

/// Counts the request among those that a drain waits for.
pub struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightGuard {
    pub fn enter(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How the time of a response is divided, in sequence, up to the vendor's header.
#[derive(Debug, Clone, Copy)]
pub struct PhaseTimings {
    /// Time to authenticate the key.
    pub auth: Duration,
    /// Time to receive the client's body.
    pub body: Duration,
    /// Time for translation, quote and hold.
    pub admit: Duration,
    /// Time from admission to the vendor's header, failed attempts included.
    pub vendor: Option<Duration>,
}

/// Formats the phases as the value of a `server-timing` header, in milliseconds.
impl fmt::Display for PhaseTimings {
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

impl RequestContext {
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
            route: RouteLabel::Api,
            stage: Stage::New,
            status: 0,
            reason: None,
        }
    }

    /// Returns how the time of a request was spent so far.
    pub fn phases(&self) -> Option<PhaseTimings> {
        let Stage::Call(call) = &self.stage else {
            return None;
        };
        let authenticated = self.principal.as_ref().map_or(self.arrived, |(_, at)| *at);
        Some(PhaseTimings {
            auth: authenticated.duration_since(self.arrived),
            body: call.body_read.duration_since(authenticated),
            admit: call.admitted.duration_since(call.body_read),
            vendor: call
                .vendor_answered
                .map(|at| at.duration_since(call.admitted)),
        })
    }

    /// Moves the state of the request out of this context.
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

    pub fn call(&mut self) -> Option<&mut AdmittedRequest> {
        match &mut self.stage {
            Stage::Call(call) => Some(call),
            _ => None,
        }
    }
}
