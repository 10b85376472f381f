//! A whole JSON answer that came with a 2xx status.
//!
//! It must not touch anything but the model's name.
//!
//! Read next: `protocol/failure.rs`, what becomes of an answer that is none.

use super::{chat, messages, responses};
use crate::protocol::Protocol;
use crate::protocol::answer::{Fault, Whole};
use crate::protocol::failure::VendorError;
use crate::protocol::splice::{self, Splice};
use crate::usage::Usage;
use bytes::Bytes;

/// Reads a whole answer and renames its model.
pub fn whole(protocol: Protocol, public_model: &str, body: Bytes) -> Result<Whole, Fault> {
    let text = std::str::from_utf8(&body).map_err(|_| Fault::NotJson)?;
    let (model, usage, tier, generated_bytes, refused_free, is_error) = match protocol {
        Protocol::Chat => {
            let answer = chat::read(text).ok_or(Fault::NotJson)?;
            (answer.model, answer.counted(), answer.tier, answer.generated_bytes, false, answer.is_error)
        }
        Protocol::Messages => {
            let answer = messages::read(text).ok_or(Fault::NotJson)?;
            let seen = answer.settled();
            let is_error = answer.kind.as_deref() == Some("error") || (answer.kind.is_none() && answer.has_error);
            let refused_free = seen.refused_free(answer.generated_bytes);
            (answer.model, seen.usage.total(), None, answer.generated_bytes, refused_free, is_error)
        }
        // No vendor speaks it.
        Protocol::Responses => {
            let answer = responses::read_whole(text).ok_or(Fault::NotJson)?;
            let (usage, is_failure) = (answer.counted(), answer.is_failure());
            (answer.model, usage, answer.tier, answer.output_bytes, false, is_failure)
        }
    };
    if is_error {
        let error = VendorError::read(&body).unwrap_or_default();
        return Err(Fault::Vendor(error));
    }
    let body = match model {
        Some(span) => {
            let model_json = splice::json_string(public_model);
            let mut renamed = Vec::with_capacity(body.len().saturating_add(model_json.len()));
            splice::bytes(&body, &mut [Splice::new(span, &model_json)], &mut renamed);
            Bytes::from(renamed)
        }
        None => body,
    };
    let usage = usage.and_then(|usage| usage.believed(generated_bytes));
    let learned = usage.or_else(|| tier.map(Usage::of_tier));
    Ok(Whole { body, usage, learned, generated_bytes, refused_free })
}
