//! Holds the data of an answer other than its blocks: id, stop reason, usage. Streams and bodies
//! share this code.
//!
//! This file must not leave out a number: clients crash on a usage value that is missing or null,
//! so the gateway estimates what the vendor did not report.
//!
//! Read next: `capabilities/response_ids.rs`, which generates ids.

use crate::capabilities::response_ids;
use crate::ir::event::{ResponseContext, ResponseStart, StopReason};
use crate::json::{JsonNull, JsonStr, JsonWriter};
use crate::usage::Usage;

#[derive(Debug, Default)]
pub(super) struct MessagesCompletion {
    pub response_context: ResponseContext,
    id: String,
    is_priority: bool,
    stop: StopReason<'static>,
    usage: Option<Usage>,
    generated_bytes: u64,
    /// True if the answer contains calls, and the number of ids generated for calls.
    has_calls: bool,
    ids_made: u64,
}

impl MessagesCompletion {
    pub(super) fn new(response_context: ResponseContext) -> Self {
        MessagesCompletion {
            response_context,
            ..MessagesCompletion::default()
        }
    }

    pub(super) fn start(&mut self, start: &ResponseStart<'_>) {
        self.id =
            response_ids::messages_response_id(start.id.as_ref(), &self.response_context.seed);
        self.is_priority = start.tier.as_ref().is_some_and(|tier| tier.is("priority"));
    }

    pub(super) fn count_generated(&mut self, text: &JsonStr<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    /// Returns a call's id, and the client's own name for the tool.
    pub(super) fn resolve_call(
        &mut self,
        id: Option<JsonStr<'_>>,
        name: &JsonStr<'_>,
    ) -> (String, String) {
        self.has_calls = true;
        let id = if let Some(id) = id.filter(|id| !id.is_empty()) {
            id.into_value().into_owned()
        } else {
            self.ids_made += 1;
            response_ids::generate_id("call_", &self.response_context.seed, self.ids_made)
        };
        (
            id,
            self.response_context
                .client_tool_name(&name.value())
                .to_owned(),
        )
    }

    pub(super) fn set_stop(&mut self, stop: StopReason<'_>) {
        self.stop = match stop {
            StopReason::EndTurn => StopReason::EndTurn,
            StopReason::StopSequence => StopReason::StopSequence,
            StopReason::ToolUse => StopReason::ToolUse,
            StopReason::MaxTokens => StopReason::MaxTokens,
            StopReason::ContextFull => StopReason::ContextFull,
            StopReason::Refusal {
                is_billed,
                explanation,
            } => {
                let explanation =
                    explanation.map(|text| JsonStr::from_value(text.into_value().into_owned()));
                StopReason::Refusal {
                    is_billed,
                    explanation,
                }
            }
        };
    }

    pub(super) fn set_usage(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// Returns whether a limit or a filter cut the answer off, so the last call may be incomplete.
    pub(super) fn is_cut_short(&self) -> bool {
        matches!(
            self.stop,
            StopReason::MaxTokens | StopReason::ContextFull | StopReason::Refusal { .. }
        )
    }

    pub(super) fn is_priority(&self) -> bool {
        self.is_priority
    }

    pub(super) fn usage(&self) -> Usage {
        let reported = self
            .usage
            .and_then(|usage| usage.if_plausible(self.generated_bytes));
        reported.unwrap_or_else(|| {
            self.response_context
                .estimator
                .usage(self.usage, self.generated_bytes)
        })
    }

    /// Writes the members from `id` to `model`.
    pub(super) fn write_envelope(&self, json: &mut JsonWriter) {
        json.member("id", &self.id)
            .member("type", "message")
            .member("role", "assistant");
        json.member("model", &self.response_context.public_model);
    }

    /// Writes `stop_reason`, `stop_sequence` and `stop_details`.
    pub(super) fn write_stop(&self, json: &mut JsonWriter) {
        let reason = match &self.stop {
            // Some vendors report `stop` although the model made a call, and others `tool_calls`
            // although it made none. Agents would then stop too early or wait forever.
            StopReason::EndTurn | StopReason::ToolUse if self.has_calls => "tool_use",
            StopReason::EndTurn | StopReason::ToolUse => "end_turn",
            StopReason::StopSequence => "stop_sequence",
            StopReason::MaxTokens => "max_tokens",
            StopReason::ContextFull => "model_context_window_exceeded",
            StopReason::Refusal { .. } => "refusal",
        };
        json.member("stop_reason", reason)
            .member("stop_sequence", JsonNull);
        let StopReason::Refusal { explanation, .. } = &self.stop else {
            json.member("stop_details", JsonNull);
            return;
        };
        json.member_typed("stop_details", "refusal")
            .member("category", JsonNull)
            .member("explanation", explanation)
            .close_object();
    }
}
