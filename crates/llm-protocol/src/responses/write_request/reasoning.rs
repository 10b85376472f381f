//! Rebuilds the reasoning items of earlier answers from the data that clients kept.
//!
//! This file must not send the vendor reasoning that it did not produce. Only a reasoning token of
//! the gateway contains a responses vendor's item; reasoning with any other signature is dropped.
//!
//! Read next: `reasoning_token.rs`.

use super::writer::ResponsesRequestWriter;
use crate::ir::Thinking;
use crate::json::{JsonStr, RawJson};
use crate::openai::reasoning_summary::split_summary;
use crate::reasoning_token::{self, ReasoningItem, ReasoningPayload};

impl ResponsesRequestWriter<'_> {
    /// Writes the reasoning that precedes the next item.
    pub(super) fn write_reasoning_items(&mut self, thought: &mut Vec<&Thinking<'_>>) {
        for thinking in thought
            .drain(..)
            .filter(|_| !self.write_context.without_thinking && self.model.reasoning)
        {
            let unseen = JsonStr::from_value("");
            let (text, token) = match thinking {
                Thinking::Shown { text, signature } => (text, signature.as_ref()),
                // The client of the messages protocol did not see it.
                Thinking::Hidden { data } => (&unseen, Some(data)),
            };
            if let Some(ReasoningPayload::Item(item)) =
                token.and_then(|token| reasoning_token::unpack(&token.value()))
            {
                self.write_reasoning_item(&item, text);
                self.carries_thinking = true;
            }
        }
    }

    fn write_reasoning_item(&mut self, item: &ReasoningItem, text: &JsonStr<'_>) {
        self.json.open_typed("reasoning");
        if !item.id.is_empty() {
            self.json.member("id", &item.id);
        }
        self.json.member_array("summary");
        for part in split_summary(text, &item.lengths).unwrap_or_default() {
            self.json
                .open_typed("summary_text")
                .member("text", &part)
                .close_object();
        }
        self.json.close_array();
        if let Some(content) = &item.content {
            self.json.member("content", RawJson(content));
        }
        self.json
            .member("encrypted_content", &item.encrypted)
            .close_object();
    }
}
