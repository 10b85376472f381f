//! Answers of metered endpoints. A short one is released in one piece, with its length and its
//! cost in the header; a long one, and one that a client plays while it arrives, passes piece by
//! piece. In all cases the last bytes wait for the debit.
//!
//! This file must not look at the bytes: `crates/llm-protocol/src/metered/answer.rs` does.

use super::debit::{ResponseUsage, record_for_replay, settle};
use super::fault::{handle_fault, log_unknown_form};
use super::whole::{RESPONSE_TOO_LARGE, max_buffered_bytes, release_whole};
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::responding::ResponseMode;
use bytes::Bytes;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::vendor_response::UpstreamError;

/// Largest answer that is released in one piece, in bytes. A longer one is not kept in memory.
const MAX_HELD_BYTES: usize = 1_048_576;

/// Reads a piece of the answer. `end`: no more follows.
pub(super) fn process_metered(
    call: &mut AdmittedRequest,
    piece: &[u8],
    end: bool,
) -> Result<Option<Bytes>, Failure> {
    let ResponseMode::Metered { answer, held } = &mut call.response.mode else {
        return Ok(None);
    };
    let passes_at_once = answer.passes_at_once();
    let metered = match answer.push(piece, end, held) {
        Ok(metered) => metered,
        Err(fault) => {
            if matches!(fault, UpstreamError::NotJson | UpstreamError::Empty) {
                log_unknown_form(call, 200, piece);
            }
            return Err(handle_fault(call, &fault, true));
        }
    };
    let Some(metered) = metered else {
        if call.response.needs_length {
            return match held.len() <= max_buffered_bytes(&call.settings.limits) {
                true => Ok(None),
                false => Err(Failure::new(Kind::UpstreamFailed, RESPONSE_TOO_LARGE)),
            };
        }
        if held.len() <= MAX_HELD_BYTES && !call.response.is_passing && !passes_at_once {
            return Ok(None);
        }
        let out = std::mem::take(held);
        call.response.is_passing = true;
        record_for_replay(call, &out);
        return Ok((!out.is_empty()).then(|| out.into()));
    };
    let mut last = std::mem::take(held);
    last.append(&mut answer.take_last());
    let counted = ResponseUsage {
        usage: Some(metered),
        reported_usage: None,
        generated_bytes: 0,
        refused_free: false,
        cut: None,
    };
    if !call.response.is_passing {
        return Ok(release_whole(call, last.into(), &[], counted));
    }
    call.response.mode = ResponseMode::Over;
    settle(call, counted);
    call.exchange.set_completed();
    record_for_replay(call, &last);
    Ok(Some(last.into()))
}
