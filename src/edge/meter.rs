//! The end of a request: whatever was not settled with the answer is settled or released, and the access record is
//! written.
//!
//! Must not write to the client.

use super::context::{Call, Context, Stage};
use super::intake::{self, Ended};
use super::upstream;
use crate::clock;
use crate::protocol::failure::Kind;
use crate::store::ledger::Outcome;
use crate::telemetry::METRICS;
use crate::usage::Usage;
use pingora::proxy::Session;
use std::time::Duration;

/// Runs once per request, whatever became of it.
pub async fn end(session: &mut Session, ctx: &mut Context) {
    if let Some(call) = ctx.call() {
        intake::restore(session, &call.shared).await;
        resolve(call);
        upstream::end(call);
    }
    record(ctx);
}

/// Ends a hold that the answer did not: the vendor failed, or the client or the time ran out.
pub fn resolve(call: &mut Call) {
    // Dropped, it frees its key.
    let keyed = call.shared.take_keyed();
    let Some(hold) = call.hold.take() else { return };
    let progress = call.shared.progress();
    let (usage, input, generated) = call.reply.learned();
    let now_ms = clock::now_ms();
    let too_large = call.failure.as_ref().is_some_and(|failure| failure.kind == Kind::UpstreamEventTooLarge);
    let ended_here = matches!(progress.ended, Some(Ended::Total | Ended::Drained)) && call.upstream.sent;
    let outcome = if progress.client_is_the_cause() {
        Outcome::ClientLeft
    } else if generated > 0 && (progress.ended == Some(Ended::Total) || too_large) {
        Outcome::GatewayEnded
    } else if progress.has_begun() && call.reply.is_stream() {
        Outcome::VendorCut
    } else {
        Outcome::VendorError
    };
    // A client that left pays for what was generated, and for what the vendor was still at when reading on was given
    // up. A vendor that failed with nothing generated is paid by nobody.
    let billed = match outcome {
        Outcome::ClientLeft => generated > 0 || ended_here,
        Outcome::GatewayEnded => true,
        _ => false,
    };
    if !billed {
        return hold.release(outcome, now_ms);
    }
    let estimated = usage.is_none();
    let usage = usage.unwrap_or_else(|| Usage::estimated(input, call.body_bytes, generated));
    match hold.settle(usage, outcome, estimated, now_ms) {
        Ok(_) => keyed.into_iter().for_each(|keyed| keyed.spend()),
        Err(error) => log::error!("journal a debit: {error}"),
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
        Stage::Sidecar { .. } => ("", "sidecar"),
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
