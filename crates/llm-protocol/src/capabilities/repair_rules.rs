//! Tells known capabilities of a model from assumed ones. The repair of a passthrough request uses
//! only known ones.
//!
//! [`ModelCapabilities`] has a value for every key, because translation must decide. If no source
//! states what the model accepts, that value is a safe guess. A guess must never change a request
//! that the model could have answered. This file must not hold a capability's value. Read next:
//! `request/repair.rs`.

use super::ModelCapabilities;

/// Marks the capabilities that the config, or the shipped catalog, sets for this model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KnownCapabilities {
    pub sampling: bool,
    pub thinking_types: bool,
    /// Covers `effort_levels` of messages and `effort_values` of chat and responses.
    pub efforts: bool,
    pub prefill: bool,
    pub mid_system: bool,
    pub turn_order: bool,
    pub output_limit_field: bool,
    pub reasoning: bool,
    pub tools_with_reasoning: bool,
    pub stop: bool,
    pub verbosity: bool,
    pub system_role: bool,
    pub reasoning_replay: bool,
    pub top_k: bool,
    pub summaries: bool,
    pub parallel_tool_calls: bool,
    pub tool_call_ids: bool,
}

impl KnownCapabilities {
    /// No capability is known, so nothing is repaired: the config has `repair: false`, or no source
    /// describes the model.
    pub const NONE: KnownCapabilities = KnownCapabilities::all(false);

    /// Every capability is known, because the shipped catalog describes the model completely.
    pub const ALL: KnownCapabilities = KnownCapabilities::all(true);

    const fn all(known: bool) -> Self {
        KnownCapabilities {
            sampling: known,
            thinking_types: known,
            efforts: known,
            prefill: known,
            mid_system: known,
            turn_order: known,
            output_limit_field: known,
            reasoning: known,
            tools_with_reasoning: known,
            stop: known,
            verbosity: known,
            system_role: known,
            reasoning_replay: known,
            top_k: known,
            summaries: known,
            parallel_tool_calls: known,
            tool_call_ids: known,
        }
    }
}

/// Input of the repair of a passthrough request: the capabilities, and the limits on output and
/// thinking.
#[derive(Clone, Copy, Debug)]
pub struct RepairRules<'a> {
    pub accepts: &'a ModelCapabilities,
    pub known: KnownCapabilities,
    /// Maximum output of the model, in tokens.
    pub max_output_tokens: u64,
    /// The output limit that the account can pay. Set if it is below the client's own limit.
    pub output_limit: Option<u64>,
    /// The client's own thinking budget, after it was lowered with the output limit.
    pub thinking_budget: Option<u64>,
    /// True if a preview flag of the request allows a thinking budget above the output limit.
    pub is_interleaved: bool,
}
