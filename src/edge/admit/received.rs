//! Takes the steps that all requests with a body have in common: reads the body, checks the model,
//! claims the idempotency key, and hands the admitted request to its first attempt.
//!
//! This file must not know what a body means: `admit/call.rs` and `admit/metered.rs` do.

use super::header::HeaderAdmission;
use super::idempotency_key::{self, IdempotencyOutcome};
use super::operation::ApiOperation;
use super::pacing;
use crate::billing::Hold;
use crate::edge::cpu_pool::{self, CpuSlot, CpuWorker};
use crate::edge::gateway::Gateway;
use crate::edge::intake::{self, BodyLimits, Deadlines};
use crate::edge::shutdown::Shutdown;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::{AttemptHistory, VendorCall};
use crate::edge::state::authenticated::Authenticated;
use crate::edge::state::record::RequestRecord;
use crate::edge::state::responding::Responding;
use crate::edge::turn::MeteredTurn;
use crate::idempotency::{BodyHash, IdempotencyGuard, ReplayedResponse};
use bytes::Bytes;
use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::request::RequestBody;
use llm_protocol::usage::UsageBounds;
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub enum PreparedRequest {
    Call(Box<AdmittedRequest>),
    Count(u64),
    /// The gateway stored a response to an earlier request with this idempotency key.
    Replay(ReplayedResponse),
}

/// A request whose header has passed.
pub struct AdmissionRequest<'a> {
    pub gateway: &'a Gateway,
    pub settings: &'a Arc<Settings>,
    pub record: &'a RequestRecord,
    pub authenticated: Authenticated,
    pub operation: ApiOperation,
    pub authorized: HeaderAdmission,
    pub cpu: CpuWorker,
}

/// The parts of an admitted request that its endpoint decides.
pub(super) struct AdmittedParts {
    pub model: Arc<CatalogModel>,
    pub vendor_call: VendorCall,
    pub hold: Option<Hold>,
    pub turn: MeteredTurn,
    pub response: Responding,
    pub idempotency: Option<Box<IdempotencyGuard>>,
    /// Time at which the client's body was complete, and its length.
    pub body: (Instant, usize),
    /// The body for the vendor.
    pub sent: RequestBody,
    pub wants_stream: bool,
    pub is_strict: bool,
}

impl AdmissionRequest<'_> {
    /// Returns the body, the time it arrived, and a CPU slot to parse it in.
    pub async fn receive(
        &mut self,
        session: &mut Session,
    ) -> Result<(Bytes, Instant, CpuSlot), Failure> {
        let limits = BodyLimits::from_limits(&self.settings.limits);
        let (share, cpu) = (&mut self.authorized.share, &self.cpu);
        let receive = async {
            let received = intake::read_body(session, share, &limits).await?;
            let body_read = Instant::now();
            let body = match received.coding {
                None => received.bytes,
                Some(coding) => {
                    let coded = (coding, &*received.bytes);
                    let decoded = intake::decode_body(coded, session, cpu, &limits, share);
                    // The future is boxed because few bodies have a coding.
                    Box::pin(decoded).await?
                }
            };
            let slot = cpu.slot(cpu_pool::work_of(&body), session).await?;
            Ok((body, body_read, slot))
        };
        before_cutoff(self.gateway, receive).await
    }

    /// Records the model before any check can refuse the request, so that the account holder sees
    /// it, and checks that the operation can use it.
    pub fn check_model(&self, model: &Arc<CatalogModel>) -> Result<(), Failure> {
        let _ = self.record.model.set(Arc::clone(model));
        self.operation.check_model(model)
    }

    pub async fn claim_key(
        &self,
        session: &Session,
        body_hash: BodyHash,
    ) -> Result<IdempotencyOutcome, Failure> {
        idempotency_key::claim_key(
            self.gateway,
            self.settings,
            session,
            &self.operation,
            &self.authenticated.principal,
            body_hash,
            &self.record.request_id,
        )
        .await
    }

    /// Waits until the request may reserve credit.
    pub async fn wait_for_ledger(&self, session: &mut Session) -> Result<(), Failure> {
        let account = &self.authenticated.principal.account_id;
        pacing::wait_for_ledger(self.gateway, session, account).await
    }

    /// Ends the count of the arrival: from here on, the request's hold counts it.
    pub fn end_arrival(&mut self) {
        self.authorized.arrival = None;
    }

    /// Replaces the client's session with one that offers the body to each attempt.
    pub fn admit(self, session: &mut Session, parts: AdmittedParts) -> Box<AdmittedRequest> {
        // With an idempotency key, the gateway reads the whole response even if the client has
        // disconnected.
        let may_drain = parts.wants_stream && parts.idempotency.is_none();
        let shutdown = Arc::clone(&self.gateway.shutdown);
        let deadlines = deadlines(self.settings, self.record.arrived, may_drain, shutdown);
        let sent_bytes = parts.sent.len();
        let exchange = intake::wrap_session(session, parts.sent, self.authorized.share, deadlines);
        exchange.set_idempotency(parts.idempotency);
        let (body_read, body_bytes) = parts.body;
        Box::new(AdmittedRequest {
            authenticated: self.authenticated,
            settings: Arc::clone(self.settings),
            model: parts.model,
            vendor_call: parts.vendor_call,
            attempts: AttemptHistory::default(),
            attempt: None,
            hold: parts.hold,
            body_bytes: body_bytes as u64,
            turn: parts.turn,
            usage_bounds: UsageBounds::default(),
            sent_bytes,
            wants_stream: parts.wants_stream,
            is_strict: parts.is_strict,
            warnings: Vec::new(),
            response: parts.response,
            exchange,
            reasoning_retry: None,
            fallbacks: None,
            failure: None,
            vendor_fault: None,
            body_read,
            admitted: Instant::now(),
            billed: None,
            cpu: self.cpu,
            metered: None,
        })
    }
}

/// Waits, but not beyond the cutoff of a shutdown.
///
/// # Errors
/// Returns 503 at the cutoff.
pub(super) async fn before_cutoff<T>(
    gateway: &Gateway,
    waiting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        outcome = waiting => outcome,
        () = gateway.shutdown.wait_for_cutoff() => {
            gateway.shutdown.count_cut();
            Err(Failure::from_kind(Kind::Draining))
        }
    }
}

fn deadlines(
    settings: &Settings,
    arrived: Instant,
    may_drain: bool,
    shutdown: Arc<Shutdown>,
) -> Deadlines {
    let limits = &settings.limits;
    let seconds = Duration::from_secs;
    Deadlines {
        total: arrived + seconds(limits.total_seconds),
        first_byte: seconds(limits.first_byte_seconds),
        idle: seconds(limits.idle_seconds),
        client_write: seconds(limits.client_write_seconds),
        drain: seconds(limits.drain_after_client_seconds),
        drain_reasoning: seconds(limits.drain_reasoning_seconds),
        may_drain,
        keep_alive: seconds(limits.stream_keep_alive_seconds),
        shutdown,
    }
}
