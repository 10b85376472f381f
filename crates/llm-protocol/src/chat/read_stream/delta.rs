//! Parses the members of a choice and of its delta or message.
//!
//! This file must not keep state between chunks. It treats members of a wrong type as absent.
//!
//! Read next: `chat/read_stream/calls.rs`.

use crate::failure::is_failure_reason;
use crate::json::{JsonStr, JsonValue};

/// An entry of `choices`. The request asks for one choice, so a missing index counts as the first.
#[derive(Debug, Default)]
pub(super) struct ChatAnswerChoice<'v> {
    pub index: u64,
    pub delta: Option<JsonValue<'v>>,
    pub message: Option<JsonValue<'v>>,
    pub finish_reason: Option<JsonStr<'v>>,
    /// Usage of a stream, which Kimi places in the choice.
    pub usage: Option<JsonValue<'v>>,
}

impl<'v> ChatAnswerChoice<'v> {
    pub fn parse(choice: JsonValue<'v>) -> Self {
        let mut read = ChatAnswerChoice::default();
        for (key, value) in choice.members() {
            match key.value().as_ref() {
                "index" => read.index = value.count().unwrap_or(0),
                "delta" => read.delta = Some(value),
                "message" => read.message = Some(value),
                "finish_reason" => read.finish_reason = value.text(),
                "usage" => read.usage = Some(value),
                _ => {}
            }
        }
        read
    }

    /// Returns whether `finish_reason` reports a failure.
    pub fn is_error(&self) -> bool {
        self.finish_reason
            .as_ref()
            .is_some_and(|reason| is_failure_reason(&reason.value()))
    }
}

#[derive(Debug, Default)]
pub(super) struct ChatDelta<'v> {
    pub content: Option<JsonValue<'v>>,
    pub refusal: Option<JsonStr<'v>>,
    pub reasoning_content: Option<JsonStr<'v>>,
    pub reasoning: Option<JsonStr<'v>>,
    pub details: Option<JsonValue<'v>>,
    pub calls: Option<JsonValue<'v>>,
    pub function_call: Option<JsonValue<'v>>,
    pub annotations: Option<JsonValue<'v>>,
}

impl<'v> ChatDelta<'v> {
    pub fn parse(message: JsonValue<'v>) -> Self {
        let mut delta = ChatDelta::default();
        let mut audio = None;
        for (key, value) in message.members() {
            match key.value().as_ref() {
                "content" => delta.content = Some(value).filter(|value| !value.is_null()),
                "refusal" => delta.refusal = non_empty_text(value),
                "reasoning_content" => delta.reasoning_content = non_empty_text(value),
                "reasoning" => delta.reasoning = non_empty_text(value),
                "annotations" => delta.annotations = Some(value),
                "reasoning_details" => delta.details = Some(value),
                "tool_calls" => delta.calls = Some(value).filter(|value| value.is_array()),
                "function_call" => {
                    delta.function_call = Some(value).filter(|value| value.is_object())
                }
                "audio" => audio = value.get("transcript"),
                _ => {}
            }
        }
        delta.content = delta.content.or(audio);
        delta
    }
}

/// Returns the string unless it is empty.
pub(super) fn non_empty_text(value: JsonValue<'_>) -> Option<JsonStr<'_>> {
    value.text().filter(|text| !text.is_empty())
}
