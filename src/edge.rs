//! The core of the gateway: the life of one request, in the order in which Pingora calls its hooks.
//!
//! Each hook is a few lines long and names the file that does the work: `edge/admit.rs` →
//! `edge/intake.rs` → `edge/upstream.rs` → `edge/response.rs` → `edge/finish.rs`, and
//! `edge/reject.rs` wherever something fails. This file must not make decisions itself.

mod activity;
mod admit;
mod client_counts;
pub mod connections;
mod context;
mod cors;
pub mod descriptors;
mod framing;
mod free_rates;
mod intake;
mod meter;
mod own;
mod pages;
pub mod panics;
mod pool;
pub mod pressure;
pub mod probe;
mod rates;
mod reject;
mod reply;
pub mod shutdown;
mod trace;
mod turn;
mod upstream;

use crate::account::Keys;
use crate::billing::Till;
use crate::billing::turns::ReportedTurns;
use crate::config::{ATTEMPTS_MAX, FALLBACKS_MAX, Limits, Settings};
use crate::idempotency::Idempotency;
use crate::local_link::LocalConnector;
use crate::telemetry::access::AccessLog;
use crate::telemetry::log_path::{loggable_method, loggable_path};
use crate::telemetry::traces::Traces;
use crate::upstreams::Fleet;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use connections::Connections;
use context::{Context, Stage};
use http::HeaderMap;
use intake::{BodyBytes, Ended};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, Result};
use pool::CpuPool;
use shutdown::Shutdown;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use trace::Trace;

/// State that all requests share.
pub struct Gateway {
    pub settings: Arc<ArcSwap<Settings>>,
    pub keys: Keys,
    pub billing: Till,
    pub idempotency: Idempotency,
    pub recorders: Recorders,
    /// True once the process accepts no new requests.
    pub draining: Arc<AtomicBool>,
    pub shutdown: Arc<Shutdown>,
    /// Number of requests that are on their way to a vendor or back.
    pub in_flight: Arc<AtomicUsize>,
    /// Bytes of request bodies that this process holds.
    body_bytes: BodyBytes,
    activity: activity::ActivityRegistry,
    pages: pages::OpenPages,
    /// Connector to the sidecar, if the sidecar runs in this process.
    sidecar: Option<upstream::LocalSidecar>,
    cpu: Arc<CpuPool>,
    pub pressure: Arc<pressure::Pressure>,
    /// State of the vendors' endpoints.
    pub fleet: Arc<Fleet>,
    /// Token counts that vendors reported for earlier turns. The gateway uses them to estimate
    /// turns for which the vendor has not reported usage.
    turns: ReportedTurns,
    names: Arc<upstream::Names>,
}

/// Where the gateway records the outcome of each request, in addition to the metrics.
#[derive(Clone)]
pub struct Recorders {
    pub access: AccessLog,
    pub traces: Traces,
}

impl Gateway {
    pub fn new(
        settings: Arc<ArcSwap<Settings>>,
        keys: Keys,
        billing: Till,
        idempotency: Idempotency,
        recorders: Recorders,
    ) -> Self {
        let cpu = Arc::new(CpuPool::new(settings.load().limits.cpu_threads));
        Self {
            settings,
            keys,
            billing,
            idempotency,
            recorders,
            draining: Arc::default(),
            shutdown: Arc::default(),
            in_flight: Arc::default(),
            body_bytes: BodyBytes::default(),
            activity: activity::ActivityRegistry::default(),
            pages: pages::OpenPages::default(),
            sidecar: None,
            cpu,
            pressure: Arc::default(),
            fleet: Arc::default(),
            turns: ReportedTurns::default(),
            names: Arc::default(),
        }
    }

    /// Makes the gateway reach the sidecar in memory while the sidecar accepts connections, and at
    /// `listen.sidecar` after that.
    #[must_use]
    pub fn beside(self, sidecar: LocalConnector) -> Self {
        Self {
            sidecar: Some(upstream::LocalSidecar::new(sidecar)),
            ..self
        }
    }

    /// Starts a thread that monitors the memory and the open files of this process. When file
    /// descriptors run short, the thread closes idle connections of `connections`.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch_pressure(&self, connections: Arc<Connections>) -> std::io::Result<()> {
        Arc::clone(&self.pressure).watch(Arc::clone(&self.settings), connections)
    }

    /// Starts a thread that resolves and health-checks the vendors' endpoints.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch_upstreams(&self) -> std::io::Result<()> {
        Arc::clone(&self.names).watch(Arc::clone(&self.settings), Arc::clone(&self.fleet))
    }
}

/// The reasons under which refusals of the sidecar are counted.
pub fn sidecar_reasons() -> impl Iterator<Item = &'static str> {
    reject::SIDECAR_REASONS.iter().map(|(_, reason)| *reason)
}

/// How often Pingora may ask for another peer: every address of every endpoint, and one repeat on a
/// fresh connection, for each model that may answer. Whether it does, `edge/upstream.rs` decides.
pub fn retries_max() -> usize {
    let attempts = usize::try_from(ATTEMPTS_MAX).unwrap_or(1);
    let of_one_model = attempts
        .saturating_mul(upstream::ADDRESSES_PER_ENDPOINT)
        .saturating_add(1);
    of_one_model.saturating_mul(FALLBACKS_MAX + 1)
}

/// Limits that apply while the gateway reads a request body.
#[derive(Debug, Clone, Copy)]
pub struct EdgeLimits {
    pub body_bytes: u64,
    pub bodies_in_flight_bytes: u64,
    /// Share of `bodies_in_flight_bytes`, in percent, that one account or one client connection may
    /// hold.
    pub account_bodies_percent: u64,
    pub connection_bodies_percent: u64,
    pub body_read: Duration,
    /// Minimum rate at which a body must arrive, and the window over which the gateway measures it.
    pub body_bytes_per_second: u64,
    pub body_rate: Duration,
}

impl EdgeLimits {
    fn of(limits: &Limits) -> Self {
        Self {
            body_bytes: limits.body_bytes,
            bodies_in_flight_bytes: limits.bodies_in_flight_bytes,
            account_bodies_percent: limits.account_bodies_percent,
            connection_bodies_percent: limits.connection_bodies_percent,
            body_read: Duration::from_secs(limits.body_read_seconds),
            body_bytes_per_second: limits.body_bytes_per_second,
            body_rate: Duration::from_secs(limits.body_rate_seconds),
        }
    }

    /// Limits for the forms that pages submit.
    fn for_pages(limits: &Limits) -> Self {
        Self {
            body_bytes: limits.page_body_bytes,
            body_read: Duration::from_secs(limits.page_body_read_seconds),
            ..Self::of(limits)
        }
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new()
    }

    /// 1. Sets up the client's connection.
    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Context) -> Result<()> {
        let settings = self.settings.load();
        // Before the hop-by-hop headers are removed: a client may have listed the headers of its
        // own proxy in `connection`.
        ctx.caller = connections::caller(session, &settings.trust_proxy);
        ctx.trace = self
            .recorders
            .traces
            .plan()
            .and_then(|plan| Trace::begin(plan, &session.req_header().headers));
        if self.recorders.access.is_on() {
            let head = session.req_header();
            let method = loggable_method(head.method.as_str().as_bytes());
            ctx.target = Some(Box::new((method, loggable_path(head.raw_path()))));
        }
        let closes = framing::end_hop(session);
        // During a handover the client must reconnect, so that it reaches the successor process.
        let stays = !closes && !self.billing.is_guest() && !self.shutdown.is_lame_duck();
        session.set_keepalive(stays.then_some(settings.limits.keepalive_seconds));
        session.set_read_timeout(Some(Duration::from_secs(settings.limits.body_read_seconds)));
        session.set_write_timeout(Some(Duration::from_secs(
            settings.limits.client_write_seconds,
        )));
        if let pingora::protocols::http::ServerSession::H1(h1) = session.downstream_session.as_mut()
        {
            // Without this, the bytes of a second request would abort the response to the first.
            h1.set_pipelining_enabled(true);
        }
        connections::begin_request(session);
        Ok(())
    }

    /// 2. Finds out who requests what, and who pays.
    async fn request_filter(&self, session: &mut Session, ctx: &mut Context) -> Result<bool> {
        match panics::catch_admission(admit::admit(self, session, ctx)).await {
            Ok(admitted) => admitted,
            Err(failure) => {
                panics::log_admission(ctx);
                session.set_keepalive(None);
                ctx.stage = Stage::Answered { what: "rejected" };
                reject::answer(session, ctx, &failure).await.map(|()| true)
            }
        }
    }

    /// 3. Selects the upstream for each attempt.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        ctx: &mut Context,
    ) -> Result<Box<HttpPeer>> {
        upstream::peer(self, ctx).await
    }

    /// 4. Receives the connection that the attempt uses.
    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        _reused: bool,
        _peer: &HttpPeer,
        socket: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut Context,
    ) -> Result<()> {
        if let Some(call) = ctx.call() {
            call.upstream.socket = Some(socket);
        }
        Ok(())
    }

    /// 5. Writes the header that the vendor gets.
    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        header: &mut RequestHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        if ctx.call().is_some() {
            return upstream::vendor_header(ctx, header);
        }
        upstream::sidecar_header(self, ctx, header)
    }

    /// 6. Processes the vendor's header.
    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        header: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> Result<()> {
        if matches!(ctx.stage, Stage::Sidecar { .. }) {
            reject::note_sidecar_status(ctx, header.status.as_u16());
            // `connection` here describes the connection to the sidecar, not the client's.
            header.remove_header(&http::header::CONNECTION);
            header.insert_header("x-request-id", &ctx.request_id)?;
            if let Some(cors) = &ctx.cors {
                cors.apply(header)?;
            }
            return header.insert_header("request-id", &ctx.request_id);
        }
        reply::head(ctx, header)
    }

    /// 7. Processes the vendor's body, and debits the account before the last bytes leave.
    fn upstream_response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Context,
    ) -> Result<Option<Duration>> {
        reply::body(ctx, body, end).map(|()| None)
    }

    /// 7b. Drops the vendor's trailers. If trailers arrive instead of the end of the body, the body
    /// ends here.
    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        _trailers: &mut HeaderMap,
        ctx: &mut Context,
    ) -> Result<Option<Bytes>> {
        let mut rest = None;
        reply::body(ctx, &mut rest, true)?;
        Ok(rest)
    }

    /// 8a. Handles a failed connection attempt.
    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        if let Some(call) = ctx.call() {
            upstream::connect_failed(&self.names, call, &mut error);
        }
        error
    }

    /// 8b. Handles an exchange that broke off.
    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut Context,
        client_reused: bool,
    ) -> Box<Error> {
        let surface = ctx.surface;
        let retry = match ctx.call() {
            Some(call) => {
                reply::broken_off(call, surface);
                let retry = upstream::retry_broken(call, &mut error, client_reused);
                if retry {
                    meter::count_lost(call);
                    call.reply.abandon();
                }
                retry
            }
            None => upstream::may_ask_pages_again(session, ctx, &error, client_reused),
        };
        error.set_retry(retry);
        error
    }

    /// 9. Answers the client when no attempt is left.
    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Context,
    ) -> FailToProxy {
        if let Err(error) = reject::tell(session, error, ctx).await {
            log::debug!("tell a client of a failure: {error}");
        }
        FailToProxy {
            error_code: ctx.status,
            can_reuse_downstream: false,
        }
    }

    /// 10. Settles and records the request.
    async fn logging(&self, session: &mut Session, _error: Option<&Error>, ctx: &mut Context) {
        meter::end(&self.recorders, session, ctx).await;
        if ctx
            .call()
            .is_some_and(|call| call.shared.progress().ended == Some(Ended::Shutdown))
        {
            self.shutdown.count_cut();
        }
        connections::request_is_over(session.digest(), session.is_http2());
    }

    /// Clients disconnect and vendors fail all the time. The metrics and the access log record
    /// that, so the error log does not.
    fn suppress_error_log(&self, _session: &Session, _ctx: &Context, error: &Error) -> bool {
        *error.esource() != ErrorSource::Internal
    }
}
