//! The parts of a dialect: order of messages, state, the switch of thinking, the shape of answers.
//!
//! This file must not check or rewrite anything: `check.rs` and `answer.rs` do.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Which orders of messages the vendor refuses.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageOrder {
    /// A system message may stand in front only, and only one.
    #[serde(default)]
    pub system_first: bool,
    /// No user message directly after the result of a tool.
    #[serde(default)]
    pub no_user_after_tool: bool,
    /// The last message must be of the user or a tool, or an assistant's with `prefix`.
    #[serde(default)]
    pub no_final_assistant: bool,
    /// Messages of the same role must not follow each other.
    #[serde(default)]
    pub alternates: bool,
}

/// What must come back with the vendor's own calls.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VendorState {
    #[default]
    None,
    /// `extra_content.google.thought_signature` on the first call of each message of this turn.
    ThoughtSignature,
    /// `reasoning_content` on messages with calls, while the model thinks.
    ReasoningContent,
    /// The same, but calls of other models need none.
    OwnReasoningContent,
    /// `reasoning_details` as they were.
    ReasoningDetails,
}

/// Whether the model thinks: a path in the body and its value; `*` is any value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimThinkingSwitch {
    #[serde(default)]
    default: bool,
    #[serde(default)]
    on: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    off: BTreeMap<String, Vec<String>>,
}

impl SimThinkingSwitch {
    pub fn is_on(&self, body: &Value) -> bool {
        let has = |switches: &BTreeMap<String, Vec<String>>| {
            switches
                .iter()
                .any(|(path, values)| values.iter().any(|value| is_at(body, path, value)))
        };
        !has(&self.off) && (self.default || has(&self.on))
    }
}

/// Where the vendor puts what other vendors put elsewhere.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerShape {
    #[serde(default)]
    pub reasoning: ReasoningPlace,
    #[serde(default)]
    pub usage: SimUsageMember,
    #[serde(default)]
    pub cached: CachedPlace,
    /// Streams a call in one piece.
    #[serde(default)]
    pub whole_calls: bool,
    /// Kimi's ids: `functions.NAME:0`, which are unique in a message only.
    #[serde(default)]
    pub ids_by_name: bool,
    /// The vendor's own words for a finish reason.
    #[serde(default)]
    pub finish: BTreeMap<String, String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningPlace {
    #[default]
    ReasoningContent,
    Reasoning,
    ReasoningDetails,
    /// A part `{type: thinking, thinking: [{type: text, text}]}` of the content.
    ContentPart,
}

/// Where a stream reports its usage.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimUsageMember {
    /// In a chunk of its own, if the caller asked.
    #[default]
    IfAsked,
    /// In the chunk with the finish reason, always.
    FinishChunk,
    /// `x_groq.usage` of that chunk.
    XGroq,
    /// `choices[0].usage` of that chunk.
    Choice,
}

/// Where a report has the cached tokens.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedPlace {
    /// `prompt_tokens_details.cached_tokens`
    #[default]
    Details,
    /// `cached_tokens`
    Top,
    /// `prompt_cache_hit_tokens` and `prompt_cache_miss_tokens`
    HitAndMiss,
    /// `cache_read_input_tokens` and `cache_creation_input_tokens` of `input_tokens_details`
    /// (responses).
    ReadAndCreation,
    /// The vendor does not report them.
    Absent,
}

/// A member of an object by its path, such as `/thinking/type`.
fn is_at(body: &Value, pointer: &str, value: &str) -> bool {
    match body.pointer(pointer) {
        None | Some(Value::Null) => false,
        Some(_) if value == "*" => true,
        Some(Value::String(text)) => text == value,
        Some(Value::Bool(is_on)) => value == if *is_on { "true" } else { "false" },
        Some(_) => false,
    }
}
