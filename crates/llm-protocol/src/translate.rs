//! Translates between protocols: a request through the canonical form to the vendor's protocol, and
//! the answer back as events, streamed or folded.
//!
//! This module connects the readers and writers, and must not depend on the fields of a protocol.
//! The caller passes the time and a seed in, so that translation needs neither a clock nor random
//! numbers.
//!
//! Read next: `translate/request.rs`, `translate/stream.rs`, `translate/response.rs`.

use super::fields::rows::OutcomeRow;
pub use super::ir::write_context::{EncodedRequest, WriteContext};
use super::{Protocol, fields};
pub use chat_shape::rewrite_as_chat;
pub use request::{TranslatedRequest, TranslationRequest, count_tokens, translate_request};
pub use response::{
    empty_response_at_limit, is_limit_reached_error, refuses_thinking, translate_response,
};
pub use stream::StreamTranslation;

mod chat_shape;
mod observer;
mod request;
mod response;
mod stream;
#[cfg(test)]
mod tests;

/// Returns the outcome of every member of a surface's requests in translation. Each table explains
/// its path syntax.
pub fn field_mappings(surface: Protocol) -> &'static [OutcomeRow] {
    match surface {
        Protocol::Chat => fields::chat::FIELDS,
        Protocol::Messages => fields::messages::FIELDS,
        Protocol::Responses => fields::responses::FIELDS,
    }
}

/// Memory for a request's token tree and all structures built from it, in bytes per value. The peak
/// of the resident memory for 100 000 to 900 000 values was 111 to 144 bytes for short messages,
/// 127 to 180 for short text blocks, and 30 to 41 for numbers.
const DOCUMENT_BYTES_PER_VALUE: u64 = 160;

/// Returns the memory in bytes for translating or counting a request with this number of values, in
/// addition to its texts.
pub fn document_bytes(values: u64) -> u64 {
    values.saturating_mul(DOCUMENT_BYTES_PER_VALUE)
}

/// Returns the vendor's path for answers.
pub fn vendor_path(vendor: Protocol) -> &'static str {
    match vendor {
        Protocol::Chat => "/v1/chat/completions",
        Protocol::Messages => "/v1/messages",
        Protocol::Responses => "/v1/responses",
    }
}
