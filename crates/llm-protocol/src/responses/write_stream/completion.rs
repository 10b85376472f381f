//! Stop reason and usage of an answer.
//!
//! This file must not leave out a number: agents use the usage to decide when to compact their
//! history.

use crate::ir::event::{ResponseContext, StopReason};
use crate::json::{JsonStr, JsonWriter};
use crate::usage::Usage;

/// Refusal text for a model that declined without a text.
pub(super) const DEFAULT_REFUSAL_TEXT: &str = "The model declined to answer.";

/// Data of an answer other than its items.
#[derive(Debug, Default)]
pub(super) struct ResponsesCompletion {
    is_cut: bool,
    /// Reason why the model declined.
    declined: Option<String>,
    usage: Option<Usage>,
    is_final: bool,
    generated_bytes: u64,
}

impl ResponsesCompletion {
    pub fn set_stop(&mut self, stop: StopReason<'_>) {
        self.is_cut = matches!(stop, StopReason::MaxTokens | StopReason::ContextFull);
        self.declined = match stop {
            StopReason::Refusal { explanation, .. } => {
                let words = explanation.filter(|words| !words.is_blank());
                Some(words.map_or_else(
                    || DEFAULT_REFUSAL_TEXT.to_owned(),
                    |words| words.into_value().into_owned(),
                ))
            }
            _ => None,
        };
    }

    pub fn set_usage(&mut self, usage: Usage, is_final: bool) {
        self.usage = Some(usage);
        self.is_final |= is_final;
    }

    pub fn count_generated(&mut self, text: &JsonStr<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    /// Returns whether the output limit cut off the answer.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether a limit or a filter cut the answer off, so the last call may be incomplete.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut || self.declined.is_some()
    }

    pub fn take_refusal(&mut self) -> Option<String> {
        self.declined.take()
    }

    /// Writes the member `usage`: the vendor's final usage if it is plausible, otherwise the
    /// estimate.
    pub fn write_usage(&self, response_context: &ResponseContext, json: &mut JsonWriter) {
        let reported = self
            .usage
            .filter(|_| self.is_final)
            .and_then(|usage| usage.if_plausible(self.generated_bytes));
        let usage = reported.unwrap_or_else(|| {
            response_context
                .estimator
                .usage(self.usage, self.generated_bytes)
        });
        json.key("usage");
        write_usage(&usage, json);
    }
}

/// Writes a usage object with every member that clients read.
pub(crate) fn write_usage(usage: &Usage, json: &mut JsonWriter) {
    let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
    json.open_object()
        .member("input_tokens", usage.input_total());
    json.member_object("input_tokens_details");
    json.member("cached_tokens", usage.cache_read)
        .member("cache_write_tokens", written)
        .close_object();
    json.member("output_tokens", usage.output_total());
    json.member(
        "output_tokens_details",
        ("reasoning_tokens", usage.reasoning),
    );
    json.member("total_tokens", usage.tokens_total())
        .close_object();
}
