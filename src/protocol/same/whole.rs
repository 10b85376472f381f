//! A whole JSON answer that came with a 2xx status.
//!
//! It must not touch anything but the model's name. When an answer is complete, `answer/completion.rs` says.
//!
//! Read next: `protocol/failure.rs`, what becomes of an answer that is none.

use super::{chat, messages, responses};
use crate::protocol::Protocol;
use crate::protocol::answer::{Completion, Fault, StopReason, Whole};
use crate::protocol::scan::Span;
use crate::protocol::splice::{self, Splice};
use crate::usage::{ServiceTier, Usage};
use bytes::Bytes;

/// Reads a whole answer and renames its model.
///
/// # Errors
/// It is none, it is an error, or its stop reason is missing.
pub fn whole(protocol: Protocol, public_model: &str, body: Bytes) -> Result<Whole, Fault> {
    let (seen, completeness) = read(protocol, &body)?;
    completeness?;
    let Seen { model, usage, tier, generated_bytes, refused_free } = seen;
    let body = renamed(body, model, public_model);
    let learned = usage.or_else(|| tier.map(Usage::of_tier));
    Ok(Whole { body, usage, learned, generated_bytes, refused_free })
}

/// Reads a token count, which has no stop reason, and renames its model.
///
/// # Errors
/// It is an error, or no JSON.
pub fn count(protocol: Protocol, public_model: &str, body: Bytes) -> Result<Bytes, Fault> {
    let (seen, _) = read(protocol, &body)?;
    Ok(renamed(body, seen.model, public_model))
}

/// What an answer used although it is not complete: the operator pays for it.
pub fn usage_in(protocol: Protocol, body: &[u8]) -> Option<Usage> {
    read(protocol, body).ok()?.0.usage
}

/// What a whole body says.
struct Seen {
    model: Option<Span>,
    usage: Option<Usage>,
    tier: Option<ServiceTier>,
    generated_bytes: u64,
    refused_free: bool,
}

/// A body that is no error, and whether it is a complete answer.
fn read(protocol: Protocol, body: &[u8]) -> Result<(Seen, Result<(), Fault>), Fault> {
    let text = std::str::from_utf8(body).map_err(|_| Fault::NotJson)?;
    let (mut seen, is_error, (is_answer, has_stopped)) = match protocol {
        Protocol::Chat => {
            let answer = chat::read(text).ok_or(Fault::NotJson)?;
            let (usage, generated_bytes) = (answer.counted(), answer.generated_bytes);
            let seen = Seen { model: answer.model, usage, tier: answer.tier, generated_bytes, refused_free: false };
            (seen, answer.is_error, (answer.has_choices(), answer.is_finished()))
        }
        Protocol::Messages => {
            let answer = messages::read(text).ok_or(Fault::NotJson)?;
            let is_error = answer.kind.as_deref() == Some("error") || (answer.kind.is_none() && answer.has_error);
            let (settled, generated_bytes) = (answer.settled(), answer.generated_bytes);
            let refused_free = settled.refused_free(generated_bytes);
            let usage = settled.usage.total();
            let seen = Seen { model: answer.model, usage, tier: None, generated_bytes, refused_free };
            (seen, is_error, (answer.has_content || answer.has_stop_reason, answer.has_stop_reason))
        }
        Protocol::Responses => {
            let answer = responses::read_whole(text).ok_or(Fault::NotJson)?;
            let (usage, generated_bytes) = (answer.counted(), answer.output_bytes);
            let seen = Seen { model: answer.model, usage, tier: answer.tier, generated_bytes, refused_free: false };
            (seen, answer.is_failure(), (answer.has_output, answer.has_ended))
        }
    };
    if is_error {
        return Err(Fault::told(body));
    }
    seen.usage = seen.usage.and_then(|usage| usage.believed(seen.generated_bytes));
    let mut completion = Completion::default();
    completion.set_stop_reason(StopReason::from_bool(has_stopped));
    let is_complete = is_answer && completion.last_event().is_ok();
    Ok((seen, if is_complete { Ok(()) } else { Err(Fault::Empty) }))
}

fn renamed(body: Bytes, model: Option<Span>, public_model: &str) -> Bytes {
    let Some(span) = model else { return body };
    let model_json = splice::json_string(public_model);
    let mut renamed = Vec::with_capacity(body.len().saturating_add(model_json.len()));
    splice::bytes(&body, &mut [Splice::new(span, &model_json)], &mut renamed);
    Bytes::from(renamed)
}
