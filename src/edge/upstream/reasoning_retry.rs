//! Retries without reasoning after a vendor refused the reasoning of a translated request.
//!
//! This file must not decide what the vendor refused: `upstream/attempts.rs` and
//! `response/error.rs` do.

use crate::edge::cpu_pool;
use crate::edge::outbound::reasoning_retry;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::NextAttempt;

/// Replaces the request that the vendor refused with the request without its reasoning. Returns
/// false if that is impossible or was done before.
pub fn retry_without_reasoning(call: &mut AdmittedRequest) -> bool {
    let Some(retry) = call.reasoning_retry.take() else {
        return false;
    };
    if !call.is_unanswered() {
        return false;
    }
    let encoded = call.cpu.run_admitted(cpu_pool::work_of(&retry.body), || {
        reasoning_retry::encode_without_reasoning(&retry, &call.model)
    });
    let Ok(encoded) = encoded else { return false };
    let is_new = |token: &String| !call.warnings.contains(token);
    let mut warnings: Vec<_> = encoded.warnings.into_iter().filter(is_new).collect();
    if retry.strict && !warnings.is_empty() {
        return false;
    }
    call.sent_bytes = encoded.body.len();
    call.exchange.set_body(encoded.body);
    call.response.reset_for_retry(encoded.translation);
    if warnings.is_empty() && !retry.strict {
        // The retry drops only the reasoning blocks of earlier turns.
        warnings.push("dropped:thinking".to_owned());
    }
    call.warnings.extend(warnings);
    call.repeat_at_endpoint(NextAttempt::SameEndpointOtherBody);
    true
}
