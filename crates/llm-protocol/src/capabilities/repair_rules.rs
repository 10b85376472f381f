//! Which of a model's capabilities are known, not assumed. Repair of a passthrough request uses
//! only known ones.
//!
//! [`ModelCapabilities`] has a value for every key, because translation must decide. If no source
//! states what the model accepts, that value is a safe guess. A guess must never change a request
//! that the model could have answered. This file must not hold a capability's value. Read next:
//! `request/repair.rs`.

use super::ModelCapabilities;

/// Capabilities set in the config, or in the shipped catalog for this model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KnownCapabilities {
    pub sampling: bool,
    pub thinking_types: bool,
    /// `effort_levels` of messages, `effort_values` of chat and responses.
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
    /// Nothing is repaired: `repair: false`, or no source describes the model.
    pub const NONE: KnownCapabilities = KnownCapabilities::all(false);

    /// The shipped catalog describes the model completely.
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

/// Input of the repair of a passthrough request: capabilities, and the limits that it must respect.
#[derive(Clone, Copy, Debug)]
pub struct RepairRules<'a> {
    pub accepts: &'a ModelCapabilities,
    pub known: KnownCapabilities,
    /// Maximum output of the model, in tokens.
    pub max_output_tokens: u64,
    /// The output limit that the account can pay, if it is below the caller's own.
    pub output_limit: Option<u64>,
    /// The caller's own thinking budget, lowered with the output limit.
    pub thinking_budget: Option<u64>,
    /// Whether a preview flag of the request allows a thinking budget above the output limit.
    pub is_interleaved: bool,
}
