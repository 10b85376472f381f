//! Switches a request to the next fallback model.
//!
//! This file must not decide that a model has failed: `upstream/attempts.rs` does.

use super::leave_out_refused;
use crate::edge::cpu_pool;
use crate::edge::outbound::fallback::{Fallbacks, PendingFallback};
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::VendorCall;
use crate::upstreams::EndpointRegistry;
use base::telemetry::METRICS;
use llm_protocol::translate;
use std::sync::Arc;

/// Replaces the body, the endpoints and the price of the request with those of the next model.
/// Returns false if no model is left.
pub fn select_next_fallback(
    endpoint_registry: &EndpointRegistry,
    call: &mut AdmittedRequest,
) -> bool {
    let Some(mut fallbacks) = call.fallbacks.take() else {
        return false;
    };
    fallbacks.failure = fallbacks.failure.take().or_else(|| call.failure.clone());
    while let Some(next) = fallbacks.remaining.pop_front() {
        if switch_to_fallback(endpoint_registry, call, &fallbacks, next) {
            call.fallbacks = Some(fallbacks);
            return true;
        }
    }
    false
}

fn switch_to_fallback(
    endpoint_registry: &EndpointRegistry,
    call: &mut AdmittedRequest,
    fallbacks: &Fallbacks,
    PendingFallback { model, quoted }: PendingFallback,
) -> bool {
    let settings = Arc::clone(&call.settings);
    let request = fallbacks.outbound_request(&settings, &model);
    // Admission has encoded the request once, so the encoding succeeds.
    let work = cpu_pool::work_of(&fallbacks.body);
    let Ok(quoted) = quoted.map_or_else(
        || call.cpu.run_admitted(work, || request.encode_and_quote()),
        Ok,
    ) else {
        return false;
    };
    let service = quoted.quote.service;
    let limit = fallbacks.limit.min(model.max_output_tokens);
    let usage_bounds = quoted.quote.usage_bounds(limit);
    let Ok(encoded) = call
        .cpu
        .run_admitted(work, || request.clamp_output(quoted, limit))
    else {
        return false;
    };
    call.reasoning_retry = request.retry_without_reasoning(&encoded, true);
    let endpoints = endpoint_registry.pool_for(&model.vendor);
    // Admission gives no fallback to a strict request, so the gateway may leave members out.
    let (body, left_out) = leave_out_refused(&endpoints, &model, &call.cpu, encoded.body);
    let (previews, dropped) = request.filter_preview_flags(&fallbacks.flags);
    let crosses = !model.passes_through(fallbacks.surface);
    call.vendor_call = VendorCall {
        content_type: None,
        path: translate::vendor_path(model.protocol()),
        version: fallbacks.version.clone().filter(|_| !crosses),
        previews,
        asks_for_stream: encoded.asks_for_stream,
        endpoints,
        affinity_key: model
            .vendor
            .sticky
            .then(|| request.turn.conversation().as_u64()),
    };
    call.attempts = call.attempts.for_next_model();
    call.attempt = None;
    let labels = [&call.model.id, &model.id].map(|id| METRICS.models.label(id));
    METRICS.fallbacks.with_label_values(&labels).inc();
    call.warnings = encoded.warnings;
    call.warnings.extend(left_out);
    call.warnings.extend(dropped);
    call.warnings.push(format!("fallback:{}", model.id));
    call.sent_bytes = body.len();
    call.exchange.set_body(body);
    call.response.reset_for_fallback(encoded.translation);
    let sequencer = call
        .response
        .sequencer()
        .cloned()
        .filter(|_| !call.exchange.has_idempotency());
    call.exchange.set_response_expectations(
        model.hides_reasoning() || request.turn.is_estimate_uncertain(),
        request.keep_alive(sequencer),
    );
    call.turn = request.turn.clone();
    if let Some(hold) = &mut call.hold {
        hold.change_model(&model, service);
        hold.record_cache_marks(encoded.cache_marks);
    }
    call.model = model;
    call.usage_bounds = usage_bounds;
    true
}
