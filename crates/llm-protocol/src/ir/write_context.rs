//! Defines the further input of the request writers of all protocols, and their output.
//!
//! This file must not depend on a protocol: `translate.rs` chooses the writer.
//!
//! Read next: `translate.rs`.

use crate::capabilities::TranslationTarget;

#[derive(Clone, Copy, Debug)]
pub struct WriteContext<'a> {
    pub target: TranslationTarget<'a>,
    pub account_id: &'a str,
    /// Output limit, lowered to the amount that the account can pay.
    pub output_limit: Option<u64>,
    /// True to leave the reasoning out, because the vendor refused it in the first attempt.
    pub without_thinking: bool,
}

#[derive(Debug, Default)]
pub struct EncodedRequest {
    pub body: Vec<u8>,
    pub streams: bool,
    pub carries_thinking: bool,
}
