//! Debits the account for a response before its last byte leaves, and records the response for a
//! replay.
//!
//! This file must not decide when a response is complete. A response that breaks off is settled in
//! `edge/settlement.rs`.

use crate::edge::intake::KeyEnd;
use crate::edge::settlement::{BilledResponse, settle_response};
use crate::edge::state::admitted::AdmittedRequest;
use credits::money::Micro;
use ledger::RequestOutcome;
use llm_protocol::usage::{MeteredUsage, Usage};

/// The measured size of a response.
pub(super) struct ResponseUsage {
    pub(super) usage: Option<MeteredUsage>,
    /// Usage that the vendor has reported so far.
    pub(super) reported_usage: Option<Usage>,
    pub(super) generated_bytes: u64,
    pub(super) refused_free: bool,
    /// Usage to bill for a response that was ended at its hold.
    pub(super) cut: Option<Usage>,
}

/// Debits the account. The last byte leaves once the journal has the debit, for which
/// `edge/intake/buffered_session.rs` waits. Returns the amount, or `None` for a free request.
pub(super) fn settle(call: &mut AdmittedRequest, counted: ResponseUsage) -> Option<Micro> {
    let ResponseUsage {
        usage,
        reported_usage,
        generated_bytes,
        refused_free,
        cut,
    } = counted;
    let hold = call.hold.take()?;
    let outcome = match (refused_free, call.exchange.progress().has_client_left()) {
        (true, _) => RequestOutcome::RefusedFree,
        (false, true) => RequestOutcome::ClientLeft,
        (false, false) if cut.is_some() => RequestOutcome::GatewayEnded,
        (false, false) => RequestOutcome::Completed,
    };
    let response = BilledResponse {
        outcome,
        metered: usage,
        cut,
        reported: reported_usage,
        generated_bytes,
    };
    Some(settle_response(call, hold, response))
}

/// Records bytes of the response for a replay before they are sent. The last ones commit it, once
/// the journal has the debit.
pub(super) fn record_for_replay(call: &mut AdmittedRequest, bytes: &[u8]) {
    let Some(mut idempotency) = call.exchange.take_idempotency() else {
        return;
    };
    idempotency.push_body(bytes);
    if call.exchange.progress().is_completed() {
        call.exchange.end_key(idempotency, KeyEnd::Complete);
    } else {
        call.exchange.set_idempotency(Some(idempotency));
    }
}
