//! The settlement of a request whose response did not end by itself: the vendor failed, the client
//! disconnected, or the time ran out.
//!
//! This file must not write to the client. A complete response is debited in
//! `edge/response/debit.rs`.

use super::intake::AbortReason;
use super::state::admitted::AdmittedRequest;
use base::clock;
use base::telemetry::METRICS;
use credits::money::Micro;
use ledger::RequestOutcome;
use llm_protocol::failure::Kind;
use llm_protocol::usage::UsageVerdict;

/// Ends a hold that the response did not end: the vendor failed, the client disconnected, or the
/// time ran out.
pub fn settle_or_release(call: &mut AdmittedRequest) {
    // Dropping it frees the idempotency key.
    let idempotency = call.exchange.take_idempotency();
    let Some(mut hold) = call.hold.take() else {
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
    let is_cut_mid_stream =
        is_cut && progress.has_begun() && call.response.is_stream() && generated > 0;
    let outcome = if progress.is_client_fault() {
        RequestOutcome::ClientLeft
    } else if is_cut_mid_stream {
        RequestOutcome::GatewayEnded
    } else if is_cut {
        RequestOutcome::Interrupted
    } else if generated > 0 && (progress.ended == Some(AbortReason::Total) || too_large) {
        RequestOutcome::GatewayEnded
    } else if progress.has_begun() && call.response.is_stream() {
        RequestOutcome::VendorCut
    } else {
        RequestOutcome::VendorError
    };
    // A client that disconnected pays for what was generated, and for what the vendor was still
    // generating when the gateway stopped reading. If the vendor failed before producing output,
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
    let verdict = usage.map_or(UsageVerdict::Estimated, |metered| metered.verdict);
    if let Some(metered) = usage.filter(|metered| metered.verdict == UsageVerdict::Exact) {
        call.turn.remember(&metered.usage, generated);
    }
    let unknown = usage.map(|metered| metered.unknown).unwrap_or_default();
    let usage = usage.map(|metered| metered.usage);
    let usage = usage.unwrap_or_else(|| call.estimate(input, generated));
    let estimated = hold.record_verdict(verdict, unknown);
    match hold.settle(usage, outcome, estimated, now_ms) {
        Ok(credits) => {
            call.billed = Some((outcome, credits));
            idempotency
                .into_iter()
                .for_each(|idempotency| idempotency.mark_spent());
        }
        Err(error) => log::error!("cannot journal a debit: {error}"),
    }
}

/// Counts the tokens that a vendor generated and nobody is billed for: the vendor broke the
/// response off, so the operator pays.
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
