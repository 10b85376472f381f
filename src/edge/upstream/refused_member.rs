//! Repeats a request once without the member that the vendor refused as unknown. The vendor
//! generated nothing, so the first attempt costs nothing.
//!
//! This file must not decide which member was refused, or whether it may be left out:
//! `llm_protocol::failure` does.

use crate::edge::cpu_pool::{self, CpuWorker};
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::NextAttempt;
use crate::upstreams::EndpointPool;
use base::telemetry::METRICS;
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::request::{self, RequestBody};
use std::time::Instant;

/// Leaves out the member that the vendor has refused, and remembers that. Returns false if the
/// request has no such member, may not be changed, or was changed before.
pub fn retry_without_member(call: &mut AdmittedRequest, member: &'static str) -> bool {
    if call.is_strict || call.attempts.has_left_out_member || !call.is_unanswered() {
        return false;
    }
    let Some(body) = call.exchange.body() else {
        return false;
    };
    let Some((without, warnings)) = leave_out(&call.cpu, &body.to_bytes(), &[member]) else {
        return false;
    };
    call.attempts.has_left_out_member = true;
    call.sent_bytes = without.len();
    call.exchange.set_body(without.into());
    call.response
        .reset_for_retry(call.response.translation.clone());
    call.warnings.extend(warnings);
    let (vendor, model) = (&call.model.vendor.name, &call.model.upstream_model);
    METRICS.learned.with_label_values(&[vendor, member]).inc();
    if call
        .vendor_call
        .endpoints
        .learn_refusal(model, member, Instant::now())
    {
        log::warn!(
            "vendor `{vendor}` refuses the member `{member}` of requests to its model `{model}`: the gateway leaves it out for an \
             hour. Add it to `vendors.{vendor}.profile.drop`"
        );
    }
    call.repeat_at_endpoint(NextAttempt::SameEndpointOtherBody);
    true
}

/// Returns the body without the members that the model's server has recently refused, and a warning
/// for each.
pub fn leave_out_refused(
    endpoints: &EndpointPool,
    model: &CatalogModel,
    cpu: &CpuWorker,
    body: RequestBody,
) -> (RequestBody, Vec<String>) {
    let refused = endpoints.learned_refusals(&model.upstream_model, Instant::now());
    if refused.is_empty() {
        return (body, Vec::new());
    }
    match leave_out(cpu, &body.to_bytes(), &refused) {
        Some((without, warnings)) => (without.into(), warnings),
        None => (body, Vec::new()),
    }
}

fn leave_out(cpu: &CpuWorker, body: &Bytes, members: &[&str]) -> Option<(Bytes, Vec<String>)> {
    cpu.run_admitted(cpu_pool::work_of(body), || {
        request::without_members(body, members)
    })
}
