//! Data of an answer other than its blocks: id, stop reason, usage. Streams and bodies write it
//! alike.
//!
//! It must not leave out a number: clients crash on a usage value that is missing or null, so the
//! gateway estimates what the vendor did not report.
//!
//! Read next: `capabilities/names.rs`, which generates ids.

use crate::protocol::form::answer::{Recall, Start, Stop};
use crate::protocol::rules::names;
use crate::protocol::text::{Json, Text};
use crate::usage::Usage;

#[derive(Debug)]
pub(super) struct Heard {
    pub recall: Recall,
    id: String,
    is_priority: bool,
    stop: Stop<'static>,
    usage: Option<Usage>,
    generated_bytes: u64,
    /// Whether the answer contains calls, and number of ids generated for calls.
    has_calls: bool,
    ids_made: u64,
}

impl Heard {
    pub(super) fn new(recall: Recall) -> Self {
        Heard {
            recall,
            id: String::new(),
            is_priority: false,
            stop: Stop::Unknown,
            usage: None,
            generated_bytes: 0,
            has_calls: false,
            ids_made: 0,
        }
    }

    pub(super) fn start(&mut self, start: &Start<'_>) {
        self.id = names::messages_answer_id(start.id.as_ref(), &self.recall.seed);
        self.is_priority = start.tier.as_ref().is_some_and(|tier| tier.is("priority"));
    }

    pub(super) fn generated(&mut self, text: &Text<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    /// Returns a call's id, and the caller's own name for the tool.
    pub(super) fn call(&mut self, id: Option<Text<'_>>, name: &Text<'_>) -> (String, String) {
        self.has_calls = true;
        let id = if let Some(id) = id.filter(|id| !id.is_empty()) {
            id.into_value().into_owned()
        } else {
            self.ids_made += 1;
            names::made_id("call_", &self.recall.seed, self.ids_made)
        };
        (id, self.recall.own_name(&name.value()).to_owned())
    }

    pub(super) fn stop(&mut self, stop: Stop<'_>) {
        self.stop = match stop {
            Stop::EndTurn => Stop::EndTurn,
            Stop::StopSequence => Stop::StopSequence,
            Stop::ToolUse => Stop::ToolUse,
            Stop::MaxTokens => Stop::MaxTokens,
            Stop::ContextFull => Stop::ContextFull,
            Stop::Refusal { explanation } => {
                let explanation =
                    explanation.map(|text| Text::made(text.into_value().into_owned()));
                Stop::Refusal { explanation }
            }
            Stop::Unknown => Stop::Unknown,
        };
    }

    pub(super) fn used(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// Returns whether a limit or a filter cut off the answer; the last call may then be
    /// incomplete.
    pub(super) fn breaks_off(&self) -> bool {
        matches!(
            self.stop,
            Stop::MaxTokens | Stop::ContextFull | Stop::Refusal { .. }
        )
    }

    pub(super) fn is_priority(&self) -> bool {
        self.is_priority
    }

    pub(super) fn usage(&self) -> Usage {
        let told = self
            .usage
            .and_then(|usage| usage.believed(self.generated_bytes));
        told.unwrap_or_else(|| {
            self.recall
                .estimator
                .usage(self.usage, self.generated_bytes)
        })
    }

    /// Writes the members from `id` to `model`.
    pub(super) fn write_envelope(&self, json: &mut Json) {
        json.key("id")
            .str(&self.id)
            .key("type")
            .str("message")
            .key("role")
            .str("assistant");
        json.key("model").str(&self.recall.public_model);
    }

    /// Writes `stop_reason`, `stop_sequence` and `stop_details`.
    pub(super) fn write_stop(&self, json: &mut Json) {
        let reason = match &self.stop {
            // Some vendors report `stop` although the model made a call, others `tool_calls`
            // although it made none. Agents would then stop, or wait forever.
            Stop::EndTurn | Stop::ToolUse | Stop::Unknown if self.has_calls => "tool_use",
            Stop::EndTurn | Stop::ToolUse | Stop::Unknown => "end_turn",
            Stop::StopSequence => "stop_sequence",
            Stop::MaxTokens => "max_tokens",
            Stop::ContextFull => "model_context_window_exceeded",
            Stop::Refusal { .. } => "refusal",
        };
        json.key("stop_reason")
            .str(reason)
            .key("stop_sequence")
            .null()
            .key("stop_details");
        let Stop::Refusal { explanation } = &self.stop else {
            json.null();
            return;
        };
        json.open_object()
            .key("type")
            .str("refusal")
            .key("category")
            .null()
            .key("explanation");
        match explanation {
            Some(explanation) => json.text(explanation),
            None => json.null(),
        };
        json.close_object();
    }
}
