//! Converts a vendor's stream event by event for a client that streams, or collects it for a client
//! that waits for the whole response.
//!
//! This file must not release the terminal event before the debit.

use super::debit::{ResponseUsage, record_for_replay, settle};
use super::fault::handle_fault;
use super::output_limit::{exceeds_output_limit, usage_at_hold};
use super::whole::{RESPONSE_TOO_LARGE, max_buffered_bytes, release_whole};
use crate::billing::Hold;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::responding::ResponseMode;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::usage::{MeteringTerms, UsageBounds, UsageEstimator};
use llm_protocol::vendor_response::{ResponseStream, UpstreamError};

pub(super) fn process_stream(
    call: &mut AdmittedRequest,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let ResponseMode::Stream(pass, _) = &mut call.response.mode else {
        return Ok(None);
    };
    let pass = pass.as_mut();
    if pass.is_complete() {
        return Ok(None);
    }
    if call.exchange.progress().has_begun() {
        failpoint::hit(Point::MidStream);
        // Once a stream has begun, no other model is tried.
        call.fallbacks = None;
    }
    // The translation of an event may be longer than the event.
    let mut out = Vec::with_capacity(piece.len().saturating_mul(2).saturating_add(256));
    let outcome = convert(pass, piece, end, &mut out);
    let is_opening = !pass.has_content() && !pass.is_complete();
    if pass.generated_bytes() > 0 {
        if let Some(after) = call
            .hold
            .as_mut()
            .and_then(|hold| hold.record_first_token())
            .filter(|_| call.wants_stream)
        {
            METRICS.gen_ai.observe_first_token(&call.model.id, after);
        }
        let hides_output = match &call.model.accepts {
            // A chat vendor that shows reasoning shows all of it; a messages vendor shows a summary
            // or nothing.
            ModelCapabilities::Chat(_) => call.model.hides_reasoning() && !pass.shows_thinking(),
            ModelCapabilities::Messages(_) => pass.shows_thinking(),
            // A responses vendor shows a summary or nothing.
            ModelCapabilities::Responses(_) => call.model.hides_reasoning(),
        };
        call.exchange.set_hidden_reasoning(
            hides_output || call.turn.is_estimate_still_uncertain(pass.usage_so_far()),
        );
    }
    call.exchange
        .set_finishing(pass.is_finishing(), pass.usage().is_some());
    if let Err(fault) = outcome {
        call.response.unsent = out;
        return Err(handle_fault(call, &fault, is_opening));
    }
    let bounds = (call.turn.estimator(), call.usage_bounds);
    let counted = count(pass, &call.model, call.hold.as_ref(), bounds, &mut out);
    if pass.is_complete() {
        let is_cut = counted.cut.is_some();
        settle(call, counted);
        if is_cut {
            call.exchange.complete_and_hang_up()
        } else {
            call.exchange.set_completed()
        }
    }
    let progress = call.exchange.progress();
    if is_opening
        && !progress.is_completed()
        && !progress.has_begun()
        && call.exchange.buffer_opening(&out)
    {
        return Ok(None);
    }
    let opening = call.exchange.take_opening();
    let out = if opening.is_empty() {
        out
    } else {
        [opening, out].concat()
    };
    record_for_replay(call, &out);
    Ok((!out.is_empty()).then(|| out.into()))
}

/// Reads a piece of a stream for a client that waits for the whole response.
pub(super) fn fold_stream(
    call: &mut AdmittedRequest,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let limit = max_buffered_bytes(&call.settings.limits);
    let ResponseMode::Fold { stream, bytes } = &mut call.response.mode else {
        return Ok(None);
    };
    let stream = stream.as_mut();
    *bytes = bytes.saturating_add(piece.len());
    if *bytes > limit {
        // The gateway itself ends the response, so the tokens generated so far are billed.
        return Err(Failure::new(
            Kind::UpstreamEventTooLarge,
            RESPONSE_TOO_LARGE,
        ));
    }
    let mut out = Vec::new();
    let outcome = convert(stream, piece, end, &mut out);
    let has_generated = stream.generated_bytes() > 0;
    call.exchange
        .set_finishing(stream.is_finishing(), stream.usage().is_some());
    if let Err(fault) = outcome {
        return Err(handle_fault(call, &fault, !has_generated));
    }
    let bounds = (call.turn.estimator(), call.usage_bounds);
    let counted = count(stream, &call.model, call.hold.as_ref(), bounds, &mut out);
    if !stream.is_complete() || out.is_empty() {
        return Ok(None);
    }
    let is_cut = counted.cut.is_some();
    let warnings = stream.warnings().to_vec();
    let released = release_whole(call, out.into(), &warnings, counted);
    if is_cut {
        call.exchange.complete_and_hang_up();
    }
    Ok(released)
}

fn convert(
    stream: &mut dyn ResponseStream,
    piece: &[u8],
    end: bool,
    out: &mut Vec<u8>,
) -> Result<(), UpstreamError> {
    stream.push(piece, out)?;
    if end && !stream.is_complete() {
        stream.finish(out)?;
    }
    Ok(())
}

/// Counts the output so far. Ends a response that has exceeded its output limit.
fn count(
    stream: &mut dyn ResponseStream,
    model: &CatalogModel,
    hold: Option<&Hold>,
    (estimator, bounds): (UsageEstimator, UsageBounds),
    out: &mut Vec<u8>,
) -> ResponseUsage {
    let mut counted = ResponseUsage {
        usage: stream.usage(),
        reported_usage: stream.usage_so_far(),
        generated_bytes: stream.generated_bytes(),
        refused_free: stream.refused_free(),
        cut: None,
    };
    let (output, bytes) = (stream.counted_output(), counted.generated_bytes);
    if !stream.is_complete()
        && !stream.is_finishing()
        && exceeds_output_limit(model, &bounds, output, bytes)
    {
        counted.cut = usage_at_hold(hold, &MeteringTerms::new(estimator, bounds), &counted);
    }
    if let Some(usage) = &counted.cut {
        stream.end_at_limit(usage, out);
    }
    counted
}
