//! Reserves the largest possible cost of a request, before anything is sent to a vendor.
//!
//! This file must not compute a price: `billing/quote.rs` does.

use super::header::refusal_failure;
use crate::billing::{Hold, HoldRequest, ReserveError};
use crate::edge::cpu_pool::{self, CpuSlot, CpuWorker};
use crate::edge::gateway::Gateway;
use crate::edge::intake::BodyShare;
use crate::edge::outbound::fallback::Fallbacks;
use crate::edge::outbound::{OutboundRequest, QuotedRequest, UpstreamRequest};
use crate::edge::rate_limits;
use accounts::Principal;
use base::clock;
use credits::pricing::Quote;
use llm_protocol::failure::Failure;
use llm_protocol::translate;
use llm_protocol::usage::UsageBounds;
use std::sync::Arc;

/// Number of bytes that the CPU copies in the time in which it parses one byte.
const COPIED_BYTES_PER_READ_BYTE: usize = 16;

pub struct ReservedRequest {
    pub hold: Option<Hold>,
    pub encoded: UpstreamRequest,
    pub fallbacks: Option<Box<Fallbacks>>,
    pub usage_bounds: UsageBounds,
}

impl ReservedRequest {
    /// Wraps a free request, which needs no hold.
    pub fn without_hold(encoded: UpstreamRequest) -> Self {
        Self {
            hold: None,
            encoded,
            fallbacks: None,
            usage_bounds: UsageBounds::default(),
        }
    }
}

impl OutboundRequest<'_> {
    /// Reserves the largest possible cost of the request, and lowers the output limit to what the
    /// account can pay. Counts the memory for its bodies before it waits.
    pub(super) async fn reserve_and_clamp(
        &self,
        gateway: &Gateway,
        principal: &Principal,
        share: &mut BodyShare,
        (cpu, slot): (&CpuWorker, CpuSlot),
    ) -> Result<ReservedRequest, Failure> {
        let (quoted, fallbacks) = slot.run(|| {
            let quoted = share.run_with_extra(self.tree_bytes(), || self.encode_and_quote())?;
            let fallbacks = Fallbacks::from_request(self, principal, &quoted.quote);
            Ok::<_, Failure>((quoted, fallbacks))
        })?;
        let clamped = |quoted: QuotedRequest, limit| {
            let work = if quoted.is_lowered_by(limit) {
                self.work()
            } else {
                0
            };
            cpu.run_admitted(work, || self.clamp_output(quoted, limit))
        };
        if let Some((fallbacks, max_quote)) = fallbacks {
            share.grow_to(self.retained_bytes(&quoted.encoded, true, Some(&fallbacks)))?;
            // Reserve the whole output limit: the gateway does not shorten a response for the sake
            // of a fallback model that may never be used.
            match self
                .reserve(gateway, cpu, principal, &max_quote, true)
                .await
            {
                Ok((mut hold, limit)) => {
                    let fallbacks = Some(fallbacks.with_output_limit(limit));
                    let usage_bounds = quoted.quote.usage_bounds(limit);
                    let encoded = clamped(quoted, limit)?;
                    hold.record_cache_marks(encoded.cache_marks);
                    return Ok(ReservedRequest {
                        hold: Some(hold),
                        encoded,
                        fallbacks,
                        usage_bounds,
                    });
                }
                // An account that can pay for the requested model gets that model, without
                // fallbacks.
                Err(
                    ReserveError::Insufficient { .. }
                    | ReserveError::SpendLimit { .. }
                    | ReserveError::TrialExpired,
                ) => {}
                Err(refused) => return Err(self.refusal(&refused, &max_quote)),
            }
        }
        let reserved = self
            .reserve(gateway, cpu, principal, &quoted.quote, self.strict)
            .await;
        let (mut hold, limit) =
            reserved.map_err(|refused| self.refusal(&refused, &quoted.quote))?;
        let usage_bounds = quoted.quote.usage_bounds(limit);
        let encoded = clamped(quoted, limit)?;
        hold.record_cache_marks(encoded.cache_marks);
        Ok(ReservedRequest {
            hold: Some(hold),
            encoded,
            fallbacks: None,
            usage_bounds,
        })
    }

    fn refusal(&self, refused: &ReserveError, quote: &Quote) -> Failure {
        refusal_failure(
            self.surface,
            refused,
            self.settings,
            Some((quote, self.strict)),
        )
    }

    /// Reserves credit. If `exact` is true, the function reserves the whole output limit or
    /// nothing.
    async fn reserve(
        &self,
        gateway: &Gateway,
        cpu: &CpuWorker,
        principal: &Principal,
        quote: &Quote,
        exact: bool,
    ) -> Result<(Hold, u64), ReserveError> {
        let may_use = || {
            let input = cpu
                .run_admitted(self.work(), || {
                    translate::count_tokens(self.surface, &self.body)
                })
                .unwrap_or(self.body.len() as u64);
            input.saturating_add(quote.output_limit.saturating_mul(quote.choices))
        };
        let bounds = rate_limits::bounds(self.settings, principal, may_use);
        let hold_request = HoldRequest {
            request_id: self.request_id.to_owned(),
            account: Arc::clone(&principal.account_id),
            key_id: Arc::clone(&principal.key_id),
            key_shown: Arc::clone(&principal.key_shown),
            member: principal.member_id().cloned(),
            model: Arc::clone(self.model),
            surface: self.surface,
            bounds,
            conversation: Some(self.turn.conversation().to_string()),
        };
        gateway
            .admission
            .reserve(hold_request, quote, exact, clock::now_ms())
            .await
    }

    /// Returns the work of encoding the body, as [`cpu_pool::work`] counts it. A body that passes
    /// unchanged is only copied.
    pub(super) fn encoding_work(&self) -> usize {
        if self.is_unmodified_passthrough() {
            self.body.len() / COPIED_BYTES_PER_READ_BYTE
        } else {
            self.work()
        }
    }

    /// Returns the work of reading the body, as [`cpu_pool::work`] counts it.
    fn work(&self) -> usize {
        let values = usize::try_from(self.summary.values).unwrap_or(usize::MAX);
        cpu_pool::work(self.body.len(), values, self.summary.escape_bytes)
    }

    /// Returns the size of the JSON document of the body in memory, in bytes; 0 if none is built.
    pub(super) fn tree_bytes(&self) -> u64 {
        if self.is_unmodified_passthrough() {
            0
        } else {
            translate::document_bytes(self.summary.values)
        }
    }

    /// Returns the number of bytes that the request keeps until it is answered.
    pub(super) fn retained_bytes(
        &self,
        encoded: &UpstreamRequest,
        has_reasoning_retry: bool,
        fallbacks: Option<&Fallbacks>,
    ) -> u64 {
        // The gateway encodes a retry from the client's body. The encoding for another model has
        // about the same length.
        let client = if has_reasoning_retry || fallbacks.is_some() {
            self.body.len()
        } else {
            0
        };
        let of_fallbacks = fallbacks.map_or(0, |fallbacks| {
            fallbacks.retained_bytes().max(encoded.body.len())
        });
        (encoded.body.len() + client + of_fallbacks) as u64
    }
}
