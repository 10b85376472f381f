//! A whole JSON answer that came with a 2xx status.
//!
//! It must not touch anything but the model's name.
//!
//! Read next: `protocol/failure.rs`, what becomes of an answer that is none.

use super::{chat, messages};
use crate::protocol::Protocol;
use crate::protocol::failure::{self, Failure, Kind, VendorError};
use crate::protocol::splice::{self, Splice};
use crate::usage::Usage;
use bytes::Bytes;

/// An answer that may be sent on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    /// The vendor's body with the public model id.
    pub body: Bytes,
    /// `None`: not learned.
    pub usage: Option<Usage>,
    /// Bytes of text, reasoning, refusal and tool arguments, as UTF-8: for estimates.
    pub generated_bytes: u64,
    /// A messages vendor refused before any output, which it documents as free.
    pub refused_free: bool,
}

/// Why a 2xx is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WholeFault {
    /// HTML, nothing, broken JSON, or JSON that is no object.
    NotJson,
    /// An error object under a 2xx.
    VendorError(VendorError),
}

impl WholeFault {
    /// What the caller is told. `protocol` is the vendor's.
    pub fn failure(&self, protocol: Protocol, upstream_model: &str, public_model: &str) -> Failure {
        match self {
            WholeFault::NotJson => Failure::of(Kind::UpstreamFailed),
            WholeFault::VendorError(error) => failure::from_vendor_error(protocol, error, upstream_model, public_model),
        }
    }
}

/// Reads a whole answer and renames its model.
pub fn whole(protocol: Protocol, public_model: &str, body: Bytes) -> Result<Whole, WholeFault> {
    let text = std::str::from_utf8(&body).map_err(|_| WholeFault::NotJson)?;
    let (model, usage, generated_bytes, refused_free, is_error) = match protocol {
        Protocol::Chat => {
            let answer = chat::read(text).ok_or(WholeFault::NotJson)?;
            let usage = answer.usage.and_then(|counters| counters.usage());
            (answer.model, usage, answer.generated_bytes, false, answer.is_error)
        }
        Protocol::Messages => {
            let answer = messages::read(text).ok_or(WholeFault::NotJson)?;
            let seen = answer.settled();
            let is_error = answer.kind.as_deref() == Some("error") || (answer.kind.is_none() && answer.has_error);
            let refused_free = seen.refused_free(answer.generated_bytes);
            (answer.model, seen.usage.total(), answer.generated_bytes, refused_free, is_error)
        }
    };
    if is_error {
        let error = VendorError::read(&body).unwrap_or_default();
        return Err(WholeFault::VendorError(error));
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
    Ok(Whole { body, usage: usage.and_then(|usage| usage.believed(generated_bytes)), generated_bytes, refused_free })
}
