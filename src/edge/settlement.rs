//! Settles responses, and decides whether to bill incomplete ones, whose vendor failed, whose
//! client disconnected, or whose time ran out.
//!
//! This file must not write to the client. `edge/response/debit.rs` bills complete responses.

use super::intake::{AbortReason, KeyEnd};
use super::state::admitted::AdmittedRequest;
use crate::billing::{Debit, Hold};
use base::clock;
use base::telemetry::METRICS;
use credits::money::Micro;
use ledger::RequestOutcome;
use llm_protocol::failure::Kind;
use llm_protocol::usage::{MeteredUsage, Usage, UsageVerdict};

/// Ends a hold that the response did not end, because the vendor failed, the client disconnected,
/// or the time ran out.
pub fn settle_or_release(call: &mut AdmittedRequest) {
    // Dropping the claim frees the idempotency key.
    let idempotency = call.exchange.take_idempotency();
    let Some(hold) = call.hold.take() else {
        return;
    };
    let progress = call.exchange.progress();
    let (usage, input, generated) = call.response.partial_usage();
    let now_ms = clock::now_ms();
    let too_large = call
        .failure
        .as_ref()
        .is_some_and(|failure| failure.kind == Kind::UpstreamEventTooLarge);
    let ended_by_gateway = matches!(
        progress.ended,
        Some(AbortReason::Total | AbortReason::Drained | AbortReason::Shutdown)
    ) && call.attempts.was_sent;
    // A client that has received nothing will send the request again, and must not pay twice.
    let is_cut = progress.ended == Some(AbortReason::Shutdown);
    // Media and vectors that pass on are counted by what was asked for, not by their bytes.
    let has_passed = generated > 0 || call.response.is_passing;
    let streams = call.response.is_stream() || call.response.is_passing;
    let is_cut_mid_stream = is_cut && progress.has_begun() && streams && has_passed;
    let outcome = if progress.is_client_fault() {
        RequestOutcome::ClientLeft
    } else if is_cut_mid_stream {
        RequestOutcome::GatewayEnded
    } else if is_cut {
        RequestOutcome::Interrupted
    } else if has_passed && progress.ended == Some(AbortReason::Total) || generated > 0 && too_large
    {
        RequestOutcome::GatewayEnded
    } else if progress.has_begun() && call.response.is_stream() {
        RequestOutcome::VendorCut
    } else {
        RequestOutcome::VendorError
    };
    // A client that disconnected pays for the output generated so far, and for the output in
    // progress when the gateway stopped reading. If the vendor failed before producing output,
    // nothing is billed.
    let billed = match outcome {
        RequestOutcome::ClientLeft => generated > 0 || ended_by_gateway,
        RequestOutcome::GatewayEnded => true,
        _ => false,
    };
    if !billed {
        call.billed = Some((outcome, Micro::ZERO));
        if !matches!(
            outcome,
            RequestOutcome::ClientLeft | RequestOutcome::Interrupted
        ) {
            count_unbilled_tokens(call);
        }
        return hold.release(outcome, now_ms);
    }
    let response = BilledResponse {
        outcome,
        metered: usage,
        cut: None,
        reported: input,
        generated_bytes: generated,
    };
    settle_response(call, hold, response);
    if let Some(idempotency) = idempotency {
        call.exchange.end_key(idempotency, KeyEnd::Spent);
    }
}

/// The measured size of a response, from which the bill is computed.
pub(super) struct BilledResponse {
    pub(super) outcome: RequestOutcome,
    pub(super) metered: Option<MeteredUsage>,
    /// Usage to bill for a response that was ended at its hold.
    pub(super) cut: Option<Usage>,
    /// Usage that the vendor has reported so far.
    pub(super) reported: Option<Usage>,
    pub(super) generated_bytes: u64,
}

/// Debits the account by submitting the end of the hold to the journal. Exact usage is remembered
/// for the next turn of the conversation. Returns the amount.
pub(super) fn settle_response(
    call: &mut AdmittedRequest,
    mut hold: Hold,
    response: BilledResponse,
) -> Micro {
    let BilledResponse {
        outcome,
        metered,
        cut,
        reported,
        generated_bytes,
    } = response;
    let is_free = outcome == RequestOutcome::RefusedFree;
    let verdict = match metered {
        _ if cut.is_some() => UsageVerdict::Estimated,
        Some(metered) => metered.verdict,
        None if is_free => UsageVerdict::Exact,
        None => UsageVerdict::Estimated,
    };
    // A request of a metered endpoint is no turn of a conversation.
    let is_remembered = verdict == UsageVerdict::Exact && !is_free && call.metered.is_none();
    if let Some(metered) = metered.filter(|_| is_remembered) {
        call.turn.remember(&metered.usage, generated_bytes);
    }
    let unknown = metered.map(|metered| metered.unknown).unwrap_or_default();
    let usage = cut.or(metered.map(|metered| metered.usage));
    let usage = usage.unwrap_or_else(|| call.estimate(reported, generated_bytes));
    let estimated = hold.record_verdict(verdict, unknown);
    let Debit {
        credits,
        journalled,
    } = hold.settle(usage, outcome, estimated, clock::now_ms());
    call.billed = Some((outcome, credits));
    call.exchange.set_ending(journalled);
    credits
}

/// Counts the tokens of a response that the vendor generated and then broke off. No account is
/// billed for them, so the operator pays.
pub fn count_unbilled_tokens(call: &mut AdmittedRequest) {
    let terms = call.metering_terms();
    let Some(usage) = call.response.take_unbilled_usage(&terms) else {
        return;
    };
    for (class, tokens) in usage.tokens() {
        if tokens > 0 {
            METRICS
                .vendor_cut_tokens
                .with_label_values(&[&call.model.vendor.name, class])
                .inc_by(tokens);
        }
    }
}
