//! The state of a request. The stage limits what a hook can reach: each hook sees only what exists
//! in its phase.

pub mod admitted;
pub mod attempt;
pub mod phase_timings;
pub mod record;
pub mod responding;
pub mod sidecar;

use super::cors::CorsHeaders;
use super::trace::RequestTrace;
use crate::account::Principal;
use crate::address::ClientAddress;
use admitted::AdmittedRequest;
use llm_protocol::Protocol;
use phase_timings::PhaseTimings;
use record::RouteLabel;
use sidecar::SidecarPermit;
use std::sync::Arc;
use std::time::Instant;

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
                .response
                .answered_at
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
