//! What the request writers of all protocols get beside the request, and what they return.
//!
//! This file must not know a protocol: `translate.rs` chooses the writer.
//!
//! Read next: `translate.rs`.

use crate::capabilities::TranslationTarget;

/// Further input of the request writers.
#[derive(Clone, Copy, Debug)]
pub struct WriteContext<'a> {
    pub target: TranslationTarget<'a>,
    pub account_id: &'a str,
    /// Lowered to what the account can pay.
    pub output_limit: Option<u64>,
    /// Whether to leave reasoning out, because the vendor refused it the first time.
    pub without_thinking: bool,
}

/// Output of a request writer.
#[derive(Debug, Default)]
pub struct EncodedRequest {
    pub body: Vec<u8>,
    pub streams: bool,
    pub carries_thinking: bool,
}
