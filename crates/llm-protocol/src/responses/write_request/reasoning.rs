//! Rebuilds the reasoning items of earlier answers from the data that clients kept.
//!
//! It must not send the vendor reasoning that it did not produce. Only a reasoning token of the
//! gateway contains a responses vendor's item; reasoning with any other signature is dropped.
//!
//! Read next: `reasoning_token.rs`.

use super::ResponsesRequestWriter;
use crate::ir::Thinking;
use crate::json_string::JsonStr;
use crate::reasoning_token::{self, ReasoningItem, ReasoningPayload};

/// Separator between the parts of a summary that are sent as one text.
pub const SUMMARY_SEPARATOR: &str = "\n\n";

impl ResponsesRequestWriter<'_> {
    /// Writes the reasoning that precedes the next item.
    pub(super) fn write_reasoning_items(&mut self, thought: &mut Vec<&Thinking<'_>>) {
        for thinking in thought
            .drain(..)
            .filter(|_| !self.given.without_thinking && self.model.reasoning)
        {
            if let Thinking::Shown {
                text,
                signature: Some(signature),
            } = thinking
                && let Some(ReasoningPayload::Item(item)) =
                    reasoning_token::unpack(&signature.value())
            {
                self.write_reasoning_item(&item, text);
                self.carries_thinking = true;
            }
        }
    }

    fn write_reasoning_item(&mut self, item: &ReasoningItem, text: &JsonStr<'_>) {
        self.json.open_object().key("type").str("reasoning");
        if !item.id.is_empty() {
            self.json.key("id").str(&item.id);
        }
        self.json.key("summary").open_array();
        for part in split_summary(text, &item.lengths).unwrap_or_default() {
            self.json
                .open_object()
                .key("type")
                .str("summary_text")
                .key("text")
                .text(&part)
                .close_object();
        }
        self.json.close_array();
        if let Some(content) = &item.content {
            self.json.key("content").raw(content);
        }
        self.json
            .key("encrypted_content")
            .str(&item.encrypted)
            .close_object();
    }
}

/// Splits a summary into parts of these lengths. Returns `None` if the text was changed.
pub fn split_summary<'a>(text: &JsonStr<'a>, lengths: &[u64]) -> Option<Vec<JsonStr<'a>>> {
    let mut parts = Vec::with_capacity(lengths.len());
    let mut rest = text.clone();
    for (index, length) in lengths.iter().enumerate() {
        if index > 0 {
            let (gap, behind) = rest.split_at_code_point(2);
            if !gap.is(SUMMARY_SEPARATOR) {
                return None;
            }
            rest = behind;
        }
        let (part, behind) = rest.split_at_code_point(*length);
        if part.code_points() != *length {
            return None;
        }
        parts.push(part);
        rest = behind;
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::split_summary;
    use crate::json_string::JsonStr;

    fn parts(text: &str, lengths: &[u64]) -> Option<Vec<String>> {
        let parts = split_summary(&JsonStr::from_value(text), lengths)?;
        Some(parts.iter().map(|part| part.value().into_owned()).collect())
    }

    #[test]
    fn a_summary_is_cut_where_it_was_joined_and_nowhere_else() {
        let said = |parts: &[&str]| {
            Some(
                parts
                    .iter()
                    .map(|part| (*part).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(parts("", &[]), said(&[]));
        assert_eq!(parts("", &[0]), said(&[""]));
        assert_eq!(parts("hm", &[2]), said(&["hm"]));
        assert_eq!(
            parts("größe\n\n🦀\n\n\n\n", &[5, 1, 0, 0]),
            said(&["größe", "🦀", "", ""])
        );
        assert_eq!(
            parts("größe\n\n🦀\n\n", &[5, 1, 0]),
            said(&["größe", "🦀", ""])
        );
        for (text, lengths) in [
            ("hm", &[1][..]),
            ("hm", &[3]),
            ("hm, so", &[2, 2]),
            ("h", &[]),
            ("a\n\nb ", &[1, 1]),
        ] {
            assert_eq!(parts(text, lengths), None, "{text}");
        }
    }
}
