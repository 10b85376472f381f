//! Holds the state of an admitted request, for its attempts, its response and its settlement.
//!
//! This file must not send, bill or log.

use super::attempt::{Attempt, AttemptHistory, VendorCall};
use super::authenticated::Authenticated;
use super::phase_timings::PhaseTimings;
use super::responding::Responding;
use crate::billing::Hold;
use crate::edge::cpu_pool::CpuWorker;
use crate::edge::intake::ExchangeState;
use crate::edge::outbound::fallback::Fallbacks;
use crate::edge::outbound::reasoning_retry::RetryWithoutReasoning;
use crate::edge::turn::MeteredTurn;
use crate::refused_requests::VendorFault;
use config::Settings;
use config::catalog::CatalogModel;
use credits::money::Micro;
use ledger::RequestOutcome;
use llm_protocol::failure::Failure;
use llm_protocol::metered::MeteredTerms;
use llm_protocol::usage::{MeteringTerms, Usage, UsageBounds};
use std::sync::Arc;
use std::time::Instant;

pub struct AdmittedRequest {
    pub authenticated: Authenticated,
    pub settings: Arc<Settings>,
    pub model: Arc<CatalogModel>,
    pub vendor_call: VendorCall,
    pub attempts: AttemptHistory,
    /// The running attempt, if one has a slot at an endpoint.
    pub attempt: Option<Attempt>,
    /// `None` for free requests, and for a request whose hold has ended.
    pub hold: Option<Hold>,
    pub body_bytes: u64,
    /// The turn of the conversation, which estimates the usage.
    pub turn: MeteredTurn,
    /// Maximum usage of the request at the current model.
    pub usage_bounds: UsageBounds,
    /// Size of the body that the vendor gets, in bytes.
    pub sent_bytes: usize,
    pub wants_stream: bool,
    /// True if the client refuses any change of its request.
    pub is_strict: bool,
    /// Changes to the request, for `x-gateway-warnings`.
    pub warnings: Vec<String>,
    pub response: Responding,
    pub exchange: Arc<ExchangeState>,
    /// State for a retry without reasoning, in case the vendor refuses the reasoning of a
    /// translated request. The retry takes it.
    pub reasoning_retry: Option<RetryWithoutReasoning>,
    /// Fallback models. Removed once a model has begun to answer.
    pub fallbacks: Option<Box<Fallbacks>>,
    /// The reason why the request failed. The client gets it when no attempt is left.
    pub failure: Option<Failure>,
    /// How the last failed attempt at a vendor failed.
    pub vendor_fault: Option<Box<VendorFault>>,
    /// Time at which the client's body was complete.
    pub body_read: Instant,
    /// Time at which Pingora's upstream side got the request.
    pub admitted: Instant,
    /// Outcome of the request, and its cost.
    pub billed: Option<(RequestOutcome, Micro)>,
    pub cpu: CpuWorker,
    /// How the request is metered, at an endpoint beyond the three protocols.
    pub metered: Option<MeteredTerms>,
}

impl AdmittedRequest {
    /// Returns how the time of the request was spent so far. `arrived` is when the request arrived.
    pub fn phases(&self, arrived: Instant) -> PhaseTimings {
        let authenticated = self.authenticated.at;
        PhaseTimings {
            auth: authenticated.duration_since(arrived),
            body: self.body_read.duration_since(authenticated),
            admit: self.admitted.duration_since(self.body_read),
            vendor: self
                .response
                .answered_at
                .map(|at| at.duration_since(self.admitted)),
        }
    }

    /// Returns how the usage is metered at the current model.
    pub fn metering_terms(&self) -> MeteringTerms {
        MeteringTerms::new(self.turn.estimator(), self.usage_bounds)
            .with_usage_paths(self.model.vendor.profile.usage.clone())
    }

    /// Returns the seed for repairing the calls of a chat vendor, if the current model's vendor may
    /// need the repair.
    pub fn call_seed(&self) -> Option<&str> {
        let is_exact = self.model.vendor.profile.has_exact_calls;
        self.response.call_seed.as_deref().filter(|_| !is_exact)
    }

    /// Returns the usage to bill if the vendor reported only a part of it, which is `reported`.
    pub fn estimate(&self, reported: Option<Usage>, generated_bytes: u64) -> Usage {
        if let Some(terms) = &self.metered {
            return terms.estimate();
        }
        self.metering_terms()
            .estimator
            .usage(reported, generated_bytes)
    }
}
