//! The retry without reasoning, after a vendor refused the reasoning of a translated request.
//!
//! This file must not decide what the vendor refused: `upstream/attempts.rs` and
//! `response/error.rs` do.

use crate::edge::context::AdmittedRequest;
use crate::edge::{cpu_pool, outbound};

/// Replaces the request that the vendor refused with the request without its reasoning. Returns
/// false if that is impossible or was done before.
pub fn retry_without_reasoning(call: &mut AdmittedRequest) -> bool {
    let Some(again) = call.again.take() else {
        return false;
    };
    if !call.is_unanswered() {
        return false;
    }
    let said = call.cpu.run_admitted(cpu_pool::work_of(&again.body), || {
        outbound::encode_without_reasoning(&again, &call.model)
    });
    let Ok(said) = said else { return false };
    let told = |token: &String| !call.warnings.contains(token);
    let mut more: Vec<_> = said.warnings.into_iter().filter(told).collect();
    if again.strict && !more.is_empty() {
        return false;
    }
    call.sent_bytes = said.body.len();
    call.shared.set_body(said.body);
    call.reply.reset_for_retry(said.recall);
    if more.is_empty() && !again.strict {
        // Only the reasoning blocks of earlier turns are dropped.
        more.push("dropped:thinking".to_owned());
    }
    call.warnings.extend(more);
    call.repeat_at_endpoint();
    call.upstream.again = true;
    true
}
