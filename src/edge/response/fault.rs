//! Handles a fault in a vendor's response: builds the client's failure, and updates the vendor's
//! state.
//!
//! This file must not write to the client.

use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::upstream;
use llm_protocol::failure::{self, Failure};
use llm_protocol::vendor_response::UpstreamError;
use std::time::Instant;

/// Returns the failure that the client gets for a fault in a response, and updates the vendor's
/// state by the fault. If `nothing_generated` is true, an error of the vendor is an explicit
/// refusal of the request, not a failure in the middle of a response.
pub(super) fn handle_fault(
    call: &mut AdmittedRequest,
    fault: &UpstreamError,
    nothing_generated: bool,
) -> Failure {
    let failure = fault_failure(call, fault);
    if let UpstreamError::Vendor(error) = fault {
        upstream::note_error_event(call, error);
        if let Some(attempt) = &mut call.attempt {
            attempt.has_refused = nothing_generated;
        }
        if error.refuses_key() {
            upstream::handle_refused_key(call, failure.kind);
        }
    }
    failure
}

/// Logs a response of unknown form, by which the operator can recognise a proxy or a new form.
pub(super) fn log_unknown_form(call: &AdmittedRequest, status: u16, body: &[u8]) {
    let model = &call.model;
    let key = model.vendor.api_key.reveal();
    let excerpt = failure::unknown_form_excerpt(body, &model.upstream_model, &model.id, key);
    let Some(excerpt) = excerpt else {
        return;
    };
    if !call.vendor_call.endpoints.logs_unknown_form(Instant::now()) {
        return;
    }
    let (vendor, length) = (&model.vendor.name, body.len());
    log::warn!(
        "vendor `{vendor}` answered a request for `{}` with status {status} in no known form: {length} bytes that begin with \
         `{excerpt}`. Check its `url` and `protocol`",
        model.id
    );
}

/// Returns the failure that the client gets for a fault in a response. The function removes the
/// vendor's key, which a vendor may quote.
fn fault_failure(call: &AdmittedRequest, fault: &UpstreamError) -> Failure {
    let model = &call.model;
    let failure = fault
        .to_failure(&model.vendor.profile, &model.upstream_model, &model.id)
        .redact_secret(model.vendor.api_key.reveal());
    after_own_changes(call, failure)
}

/// Mentions the gateway's own changes of the request in the failure, before the vendor's message.
pub(super) fn after_own_changes(call: &AdmittedRequest, failure: Failure) -> Failure {
    let sent = call.usage_bounds.output / call.response.drafts.max(1);
    let limit = own_limit(sent, call.model.max_output_tokens);
    let why = "what the model takes and the account's credits pay for";
    failure.after_own_changes(&call.warnings, (limit, why))
}

/// The output limit that an error may name: what was sent, `sent`, also counts what the vendor can
/// bill beyond the limit, so it can be more than the model takes.
fn own_limit(sent: u64, model_max: u64) -> u64 {
    sent.min(model_max)
}

#[cfg(test)]
mod tests {
    use super::own_limit;

    #[test]
    fn an_error_names_no_limit_above_the_models_own() {
        assert_eq!(own_limit(214_257, 128_000), 128_000);
        assert_eq!(own_limit(1_000, 128_000), 1_000);
    }
}
