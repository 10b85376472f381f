//! Holds the state of a request: the record of every request, and the stage of this one.
//!
//! Each stage owns the data that exists then. A hook gets the record and the stage that it needs.
//! An admitted request makes attempts, and each attempt may get a response, until one response ends
//! the request; Pingora repeats these hooks, so both are parts of the admitted request. This file
//! must not decide which stage comes next. Next, in the order of a request: `state/record.rs`,
//! `state/authenticated.rs`, `state/admitted.rs`, `state/attempt.rs`, `state/responding.rs`;
//! `state/sidecar.rs` (pages and receipts).

pub mod admitted;
pub mod attempt;
pub mod authenticated;
pub mod phase_timings;
pub mod record;
pub mod responding;
pub mod sidecar;

use admitted::AdmittedRequest;
use authenticated::Authenticated;
use record::RequestRecord;
use sidecar::SidecarRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One request, from its header to its access record. Pingora passes it to each hook.
pub struct RequestContext {
    pub record: RequestRecord,
    pub stage: Stage,
    /// Set for requests to the API once their header has arrived. The guard is dropped with the
    /// context, after the last byte has gone to the client, because a drain waits for refusals too.
    pub in_flight: Option<InFlightGuard>,
}

pub enum Stage {
    /// The header has arrived, at least in part.
    Received,
    /// The key is valid.
    Authenticated(Authenticated),
    /// The gateway has answered the request itself, without a vendor.
    Answered {
        handler: &'static str,
        authenticated: Option<Authenticated>,
    },
    /// The request is on its way to the sidecar.
    Sidecar(SidecarRequest),
    /// The request is on its way to a vendor, with credit reserved.
    Admitted(Box<AdmittedRequest>),
}

impl Stage {
    pub fn authenticated(&self) -> Option<&Authenticated> {
        match self {
            Stage::Received => None,
            Stage::Authenticated(authenticated) => Some(authenticated),
            Stage::Answered { authenticated, .. } => authenticated.as_ref(),
            Stage::Sidecar(request) => request.authenticated(),
            Stage::Admitted(call) => Some(&call.authenticated),
        }
    }

    fn into_authenticated(self) -> Option<Authenticated> {
        match self {
            Stage::Received => None,
            Stage::Authenticated(authenticated) => Some(authenticated),
            Stage::Answered { authenticated, .. } => authenticated,
            Stage::Sidecar(request) => request.into_authenticated(),
            Stage::Admitted(call) => Some(call.authenticated),
        }
    }
}

impl RequestContext {
    pub fn new() -> Self {
        Self {
            record: RequestRecord::new(),
            stage: Stage::Received,
            in_flight: None,
        }
    }

    pub fn set_answered(&mut self, handler: &'static str) {
        let stage = std::mem::replace(&mut self.stage, Stage::Received);
        self.stage = Stage::Answered {
            handler,
            authenticated: stage.into_authenticated(),
        };
    }

    pub fn take(&mut self) -> Self {
        Self {
            record: self.record.take(),
            stage: std::mem::replace(&mut self.stage, Stage::Received),
            in_flight: self.in_flight.take(),
        }
    }

    pub fn call(&mut self) -> Option<&mut AdmittedRequest> {
        match &mut self.stage {
            Stage::Admitted(call) => Some(call),
            _ => None,
        }
    }
}

/// Counts the request until the guard is dropped. A drain waits for the count to become 0.
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
