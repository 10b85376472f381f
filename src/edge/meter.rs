//! The end of a request: whatever was not settled with the answer is settled or released, and the access record is
//! written.
//!
//! Must not write to the client.

use super::context::{Call, Context, Stage};
use super::intake::{self, Ended};
use crate::billing::{Billing, pricing};
use crate::clock;
use crate::store::ledger::Outcome;
use crate::telemetry::METRICS;
use crate::usage::Usage;
use pingora::proxy::Session;
use std::time::Duration;

/// Runs once per request, whatever became of it.
pub async fn end(billing: &Billing, session: &mut Session, ctx: &mut Context) {
    if let Some(call) = ctx.call() {
        intake::restore(session, &call.shared).await;
        resolve(billing, call);
    }
    record(ctx);
}

/// Ends a hold that the answer did not: the vendor failed, or the client or the time ran out.
fn resolve(billing: &Billing, call: &mut Call) {
    let Some(hold) = call.hold.take() else { return };
    let progress = call.shared.progress();
    let (usage, input, generated) = call.reply.learned();
    let now_ms = clock::now_ms();
    let outcome = match progress.ended {
        // A client that left pays for what was generated, whatever became of the vendor afterwards.
        _ if progress.client_is_the_cause() => Outcome::ClientLeft,
        Some(Ended::Total) if generated > 0 => Outcome::GatewayEnded,
        _ if progress.first_byte.is_some() => Outcome::VendorCut,
        _ => Outcome::VendorError,
    };
    let was_called = call.upstream.sent && call.failure.is_none();
    match outcome {
        Outcome::ClientLeft if !was_called && generated == 0 => billing.release(hold, Outcome::ClientLeft, now_ms),
        Outcome::ClientLeft | Outcome::GatewayEnded => {
            let estimate = pricing::estimate(call.body_bytes, generated);
            let output = estimate.output.max(input.map_or(0, |usage| usage.output));
            let partial = input.map_or(estimate, |usage| Usage { output, ..usage });
            let (usage, estimated) = usage.map_or((partial, true), |usage| (usage, false));
            if let Err(error) = billing.settle(hold, usage, outcome, estimated, now_ms) {
                log::error!("journal a debit: {error}");
            }
        }
        _ => billing.release(hold, outcome, now_ms),
    }
}

fn record(ctx: &Context) {
    let took = ctx.arrived.elapsed();
    let surface = ctx.surface.as_str();
    let (model, what) = match &ctx.stage {
        Stage::Call(call) => {
            times(call, ctx, took);
            (call.model.id.as_str(), "call")
        }
        Stage::Answered { what } => ("", *what),
        Stage::Sidecar => ("", "sidecar"),
        Stage::New => ("", "new"),
    };
    let status = if ctx.status == 0 { "499".to_owned() } else { ctx.status.to_string() };
    METRICS.requests.with_label_values(&[surface, model, &status]).inc();
    log::debug!(
        target: "model_gateway::access",
        "{} {what} {surface} {model} {status} {} {} ms",
        ctx.request_id,
        ctx.reason.unwrap_or("-"),
        took.as_millis(),
    );
}

fn times(call: &Call, ctx: &Context, took: Duration) {
    METRICS.request_seconds.with_label_values(&[ctx.surface.as_str(), &call.model.id]).observe(took.as_secs_f64());
    METRICS.overhead_seconds.observe(call.admitted.duration_since(ctx.arrived).as_secs_f64());
    if let Some(first) = call.shared.progress().first_byte {
        METRICS.time_to_first_byte_seconds.observe(first.duration_since(ctx.arrived).as_secs_f64());
    }
}
