//! Defines the parts of a dialect: order of messages, state, the switch of thinking, the shape of
//! answers.
//!
//! This file must not check or rewrite anything, which `check.rs` and `answer.rs` do.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageOrder {
    /// True if only the first message may be a system message.
    #[serde(default)]
    pub system_first: bool,
    /// True if a user message must not directly follow a tool result.
    #[serde(default)]
    pub no_user_after_tool: bool,
    /// True if the last message must be the user's or a tool's, or an assistant's with `prefix`.
    #[serde(default)]
    pub no_final_assistant: bool,
    /// True if messages of the same role must not follow each other.
    #[serde(default)]
    pub alternates: bool,
}

/// State that the client must return with the vendor's own calls.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VendorState {
    #[default]
    None,
    /// The state is `extra_content.google.thought_signature` on the first call of each message of
    /// this turn.
    ThoughtSignature,
    /// The state is `reasoning_content` on messages with calls, while the model thinks.
    ReasoningContent,
    /// The state is `reasoning_content` on every answer of a request with tools, while the model
    /// thinks.
    ReasoningContentBesideTools,
    /// The state is `reasoning_content` too, but calls of other models need none.
    OwnReasoningContent,
    /// The state is `reasoning_details`, which must be unchanged.
    ReasoningDetails,
    /// The state is a thinking block in each turn with calls, while the model thinks (messages).
    Thinking,
}

/// Condition under which the model thinks: a path in the body and its value, where `*` is any
/// value.
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

/// Places of members that differ between vendors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerShape {
    #[serde(default)]
    pub reasoning: ReasoningPlace,
    #[serde(default)]
    pub signature: ThinkingSignature,
    #[serde(default)]
    pub usage: SimUsageMember,
    #[serde(default)]
    pub cached: CachedPlace,
    /// True if a stream sends each call in one piece.
    #[serde(default)]
    pub whole_calls: bool,
    /// True for call ids such as Kimi's `functions.NAME:0`, which are unique only within a message.
    #[serde(default)]
    pub ids_by_name: bool,
    /// Maps standard finish reasons to the vendor's names.
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
    /// Reasoning is a part `{type: thinking, thinking: [{type: text, text}]}` of the content.
    ContentPart,
}

/// The signature of thinking (messages).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingSignature {
    #[default]
    Own,
    Empty,
    Absent,
}

/// Place of the usage report in a stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimUsageMember {
    /// Usage is in a separate chunk, if the caller requested it.
    #[default]
    IfAsked,
    /// Usage is always in the chunk with the finish reason.
    FinishChunk,
    /// Usage is in `x_groq.usage` of the chunk with the finish reason.
    XGroq,
    /// Usage is in `choices[0].usage` of the chunk with the finish reason.
    Choice,
}

/// Place of the cached tokens in a usage report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedPlace {
    /// Cached tokens are in `prompt_tokens_details.cached_tokens`.
    #[default]
    Details,
    /// Cached tokens are in `cached_tokens`.
    Top,
    /// Cached tokens are in `prompt_cache_hit_tokens`, and the others in
    /// `prompt_cache_miss_tokens`.
    HitAndMiss,
    /// Cached tokens are in `cache_read_input_tokens` and `cache_creation_input_tokens` of
    /// `input_tokens_details` (responses).
    ReadAndCreation,
    /// The vendor does not report cached tokens.
    Absent,
}

/// Returns whether the member at a path such as `/thinking/type` has this value.
fn is_at(body: &Value, pointer: &str, value: &str) -> bool {
    match body.pointer(pointer) {
        None | Some(Value::Null) => false,
        Some(_) if value == "*" => true,
        Some(Value::String(text)) => text == value,
        Some(Value::Bool(is_on)) => value == if *is_on { "true" } else { "false" },
        Some(_) => false,
    }
}
