//! Holds the state that all steps of writing a responses request share.
//!
//! This file must not write JSON: the steps do.

use crate::Protocol;
use crate::capabilities::ResponsesModel;
use crate::capabilities::identifiers::CallIdAllocator;
use crate::ir::write_context::WriteContext;
use crate::json::JsonWriter;
use crate::openai::text_fallback::TextFallback;

pub(super) struct ResponsesRequestWriter<'w> {
    pub surface: Protocol,
    pub model: &'w ResponsesModel,
    pub write_context: &'w WriteContext<'w>,
    pub fallback: TextFallback<'w>,
    pub json: JsonWriter,
    pub carries_thinking: bool,
    /// Calls of the last assistant turn in the order in which they were sent. Their results use the
    /// same ids.
    pub calls: Vec<ResponsesCallRef>,
    pub calls_made: u64,
    pub ids: CallIdAllocator,
}

/// Id and kind of a call in the request.
pub(super) struct ResponsesCallRef {
    pub id: String,
    pub is_custom: bool,
}
