//! Handles one request in hooks, in the order in which Pingora calls them.
//!
//! Each hook is short, takes the stage of the request that it needs (`edge/state.rs`),
//! and names the file that does the work: `edge/admit.rs` → `edge/outbound.rs` → `edge/intake.rs` →
//! `edge/upstream.rs` → `edge/response.rs` → `edge/finish.rs`, and `edge/reject.rs` wherever
//! something fails. This file must not make decisions itself.

mod activity;
mod admit;
mod caught_panic;
mod client_pace;
pub mod connections;
mod cors;
mod cpu_pool;
pub mod descriptors;
mod finish;
mod framing;
mod free_rate_limits;
mod gateway;
mod intake;
pub mod learn;
mod local_api;
mod malformed;
mod model_lookup;
mod outbound;
mod pages;
pub mod panics;
pub mod probe;
mod rate_limits;
mod recorders;
mod reject;
pub mod resource_guard;
mod respond;
mod response;
mod route;
mod settlement;
pub mod shutdown;
mod silence_timer;
mod state;
mod trace;
mod turn;
mod upstream;

pub use gateway::Gateway;
pub use recorders::Recorders;

use async_trait::async_trait;
use base::telemetry::log_path::{loggable_method, loggable_path};
use bytes::Bytes;
use config::{MAX_ATTEMPTS, MAX_FALLBACKS};
use http::HeaderMap;
use intake::AbortReason;
use llm_protocol::failure::{Failure, Kind};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, Result};
use silence_timer::BACKSTOP_FACTOR;
use state::{RequestContext, Stage};
use std::os::fd::RawFd;
use std::time::Duration;
use trace::RequestTrace;

/// Returns the reasons under which the metrics count the sidecar's refusals.
pub fn sidecar_reasons() -> impl Iterator<Item = &'static str> {
    reject::SIDECAR_REASONS.iter().map(|(_, reason)| *reason)
}

/// Returns how often Pingora may ask for another peer. The number covers every address of every
/// endpoint, and one repeat on a fresh connection, for each model that may answer.
/// `edge/upstream.rs` decides whether a retry happens.
pub fn max_retries() -> usize {
    let attempts = usize::try_from(MAX_ATTEMPTS).unwrap_or(1);
    let of_one_model = attempts
        .saturating_mul(upstream::MAX_ADDRESSES_PER_ENDPOINT)
        .saturating_add(1);
    of_one_model.saturating_mul(MAX_FALLBACKS + 1)
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext::new()
    }

    /// Adds no modules, because Pingora's own modules would inspect every piece of a response
    /// without compressing any.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// 1. Sets up the client's connection.
    async fn early_request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        let settings = self.settings.load();
        framing::use_origin_form(session.req_header_mut());
        // Read the client's address before the hop-by-hop headers are removed: a client may have
        // listed the headers of its own proxy in `connection`.
        ctx.record.caller = connections::client_address(session, &settings.trust_proxy);
        ctx.record.trace = self
            .recorders
            .traces
            .config()
            .and_then(|plan| RequestTrace::from_header(plan, &session.req_header().headers));
        if self.recorders.access.is_on() {
            let head = session.req_header();
            let method = loggable_method(head.method.as_str().as_bytes());
            ctx.record.target = Some(Box::new((method, loggable_path(head.raw_path()))));
        }
        ctx.record.wants_web_socket = framing::asks_for_web_socket(session.req_header());
        let closes = framing::remove_hop_headers(session);
        // During a handover the client must reconnect, so that it reaches the successor process.
        let keeps_alive =
            !closes && !self.admission.has_handed_over() && !self.shutdown.is_lame_duck();
        session.set_keepalive(keeps_alive.then_some(settings.limits.keepalive_seconds));
        let backstop = settings.limits.body_read_seconds * BACKSTOP_FACTOR;
        session.set_read_timeout(Some(Duration::from_secs(backstop)));
        if let pingora::protocols::http::ServerSession::H1(h1) = session.downstream_session.as_mut()
        {
            // Without this, the bytes of a second request would abort the response to the first.
            h1.set_pipelining_enabled(true);
        } else {
            // An HTTP/1.1 connection limits its writes by itself.
            session.set_write_timeout(Some(Duration::from_secs(
                settings.limits.client_write_seconds,
            )));
        }
        connections::begin_request(session);
        Ok(())
    }

    /// 2. Admits the request: determines the caller, the model and the payer.
    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<bool> {
        match panics::catch_admission(admit::admit(self, session, ctx)).await {
            Ok(admitted) => admitted,
            Err(failure) => {
                panics::log_admission_panic(ctx);
                session.set_keepalive(None);
                ctx.set_answered("rejected");
                respond::send_failure(session, ctx, &failure)
                    .await
                    .map(|()| true)
            }
        }
    }

    /// 3. Selects the upstream for each attempt.
    async fn upstream_peer(
        &self,
        _session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        match &mut ctx.stage {
            Stage::Admitted(call) => {
                upstream::select_vendor_peer(self, &mut ctx.record, call).await
            }
            Stage::Sidecar(_) => upstream::select_sidecar_peer(self),
            _ => Err(upstream::no_upstream()),
        }
    }

    /// 4. Receives the connection that the attempt uses.
    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        _reused: bool,
        _peer: &HttpPeer,
        socket: RawFd,
        _digest: Option<&Digest>,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        if let Some(attempt) = ctx.call().and_then(|call| call.attempt.as_mut()) {
            attempt.socket = Some(socket);
        }
        Ok(())
    }

    /// 5. Begins to send the request, and writes the header that the vendor gets.
    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        header: &mut RequestHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        match &mut ctx.stage {
            Stage::Admitted(call) => upstream::begin_sending(&ctx.record, call, header),
            Stage::Sidecar(request) => {
                upstream::build_sidecar_header(self, &ctx.record, request, header)
            }
            _ => Err(upstream::no_upstream()),
        }
    }

    /// 6. Processes the vendor's header.
    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        header: &mut ResponseHeader,
        ctx: &mut RequestContext,
    ) -> Result<()> {
        let record = &mut ctx.record;
        match &mut ctx.stage {
            Stage::Admitted(call) => response::filter_header(record, call, header),
            Stage::Sidecar(_) => {
                reject::note_sidecar_status(record, header.status.as_u16());
                // `connection` here describes the connection to the sidecar, not the client's.
                header.remove_header(&http::header::CONNECTION);
                header.insert_header("x-request-id", &record.request_id)?;
                if let Some(cors) = &record.cors {
                    cors.apply(header)?;
                }
                header.insert_header("request-id", &record.request_id)
            }
            _ => Err(upstream::no_upstream()),
        }
    }

    /// 7. Processes the vendor's body, and debits the account before the last bytes leave.
    fn upstream_response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut RequestContext,
    ) -> Result<Option<Duration>> {
        if let Stage::Admitted(call) = &mut ctx.stage {
            response::filter_body(&mut ctx.record, call, body, end)?;
        }
        Ok(None)
    }

    /// 6b. Frames the body of a page for the client. For a vendor's response, whose framing is
    /// decided later, `intake/buffered_session.rs` does the framing.
    async fn response_filter(
        &self,
        session: &mut Session,
        header: &mut ResponseHeader,
        _ctx: &mut RequestContext,
    ) -> Result<()> {
        framing::remove_chunks_for_http_1_0(session.req_header().version, header);
        Ok(())
    }

    /// 7b. Drops the vendor's trailers. If trailers arrive instead of the end of the body, the body
    /// ends here.
    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        _trailers: &mut HeaderMap,
        ctx: &mut RequestContext,
    ) -> Result<Option<Bytes>> {
        let mut rest = None;
        if let Stage::Admitted(call) = &mut ctx.stage {
            response::filter_body(&mut ctx.record, call, &mut rest, true)?;
        }
        Ok(rest)
    }

    /// 8a. Handles a failed connection attempt.
    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut RequestContext,
        mut error: Box<Error>,
    ) -> Box<Error> {
        if let Stage::Admitted(call) = &mut ctx.stage {
            let request = (&mut **call, ctx.record.request_id.as_str());
            upstream::handle_connect_failure(&self.resolver, request, &mut error);
        }
        error
    }

    /// 8b. Handles an exchange that broke off.
    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        ctx: &mut RequestContext,
        client_reused: bool,
    ) -> Box<Error> {
        let surface = ctx.record.surface;
        let retry = match &mut ctx.stage {
            Stage::Admitted(call) if call.exchange.is_unjournalled() => {
                call.failure = Some(Failure::from_kind(Kind::LedgerUnavailable));
                false
            }
            Stage::Admitted(call) => {
                response::inspect_broken_response(call, surface);
                let request = (&mut **call, ctx.record.request_id.as_str());
                let retry = upstream::retry_broken_attempt(request, &mut error, client_reused);
                if retry {
                    settlement::count_unbilled_tokens(call);
                    call.response.abandon_attempt();
                }
                retry
            }
            Stage::Sidecar(request) => {
                upstream::may_retry_page(session, request, &error, client_reused)
            }
            _ => false,
        };
        error.set_retry(retry);
        error
    }

    /// 9. Answers the client when no attempt is left.
    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut RequestContext,
    ) -> FailToProxy {
        if let Err(error) = reject::send_error(session, error, ctx).await {
            log::debug!("cannot send an error to the client: {error}");
        }
        FailToProxy {
            error_code: ctx.record.status,
            can_reuse_downstream: false,
        }
    }

    /// 10. Settles and records the request.
    async fn logging(
        &self,
        session: &mut Session,
        _error: Option<&Error>,
        ctx: &mut RequestContext,
    ) {
        finish::finish_request(&self.recorders, session, ctx).await;
        if ctx
            .call()
            .is_some_and(|call| call.exchange.progress().ended == Some(AbortReason::Shutdown))
        {
            self.shutdown.count_cut();
        }
        connections::finish_request(session.digest(), session.is_http2());
    }

    /// Keeps disconnected clients and failed vendors out of the error log, because both are
    /// frequent. The metrics and the access log record them.
    fn suppress_error_log(&self, _session: &Session, _ctx: &RequestContext, error: &Error) -> bool {
        *error.esource() != ErrorSource::Internal
    }
}
