//! What comes of each member of a responses request on its way to another protocol's vendor: the one table of it.
//!
//! What is left out, refused or warned about at the top is decided by looking here ([`outcome`]); what is mapped has its
//! code, and the tests hold that code against the rows. A member that is not here is left out with a warning. A row
//! without members below it speaks for all of them. Items, parts and tools go by their types: see `read_request/items.rs`,
//! `read_request/parts.rs` and `read_request/tools.rs`.
//!
//! Read next: `read_request/items.rs`.

use crate::protocol::rules::Outcome::{self, Drop, Map, Refuse, Warn};

/// Sorted bytewise.
pub const FIELDS: &[(&str, Outcome)] = &[
    ("access_programs", Refuse),
    ("background", Refuse),
    ("background_options", Drop),
    ("cache_control", Map),
    ("client_metadata", Drop),
    ("context_management", Warn),
    ("conversation", Refuse),
    ("image", Drop),
    ("include", Drop),
    ("inference_geo", Map),
    ("input", Map),
    ("instructions", Map),
    ("max_output_tokens", Map),
    ("max_tool_calls", Drop),
    ("metadata", Drop),
    ("model", Map),
    ("moderation", Refuse),
    ("output_config", Map),
    ("parallel_tool_calls", Map),
    ("previous_response_id", Refuse),
    ("prompt", Refuse),
    ("prompt_cache_key", Map),
    ("prompt_cache_options", Drop),
    ("prompt_cache_options.mode", Map),
    ("prompt_cache_options.prewarm", Refuse),
    ("prompt_cache_retention", Drop),
    ("reasoning", Map),
    ("reasoning.context", Drop),
    ("reasoning.effort", Map),
    ("reasoning.generate_summary", Map),
    ("reasoning.mode", Warn),
    ("reasoning.summary", Map),
    ("safety_identifier", Map),
    ("service_tier", Map),
    ("speed", Map),
    ("store", Warn),
    ("stream", Map),
    ("stream_options", Drop),
    ("temperature", Map),
    ("text", Map),
    ("text.format", Map),
    ("text.verbosity", Map),
    ("thinking", Map),
    ("tool_choice", Map),
    ("tools", Map),
    ("top_k", Map),
    ("top_logprobs", Refuse),
    ("top_p", Map),
    ("truncation", Warn),
    ("user", Map),
];

/// The outcome of the member at `path`. `None`: no row.
pub(crate) fn outcome(path: &str) -> Option<Outcome> {
    let row = FIELDS.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
    FIELDS.get(row).map(|(_, outcome)| *outcome)
}
