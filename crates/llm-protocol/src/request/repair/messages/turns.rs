//! Repairs turns that a messages model refuses: instructions inside the conversation, and a final
//! assistant turn.
//!
//! Instructions before the conversation move to `system`; later ones become reminders in a user
//! turn, as in translation.

use super::super::{ForeignFieldRemover, is_empty_value};
use crate::ir::JsonPath;
use crate::json::{JsonStr, JsonValue, Span, edit::JsonEdit, edit::json_string};
use crate::messages::write_request::turns::{CONTINUE_PROMPT, REMINDER_TAGS};

impl<'a> ForeignFieldRemover<'a> {
    /// Moves instructions of the role `system`.
    pub(super) fn rewrite_system_turns(&mut self, root: JsonValue<'a>) {
        let messages: Vec<JsonValue<'a>> = root.items_of("messages").collect();
        if !messages.iter().any(|message| is_system(*message)) {
            return;
        }
        let first_other = messages.iter().position(|message| !is_system(*message));
        // Instructions alone are not a conversation, so the last one becomes the user's message.
        let leading = first_other.unwrap_or(messages.len().saturating_sub(1));
        let mut instructions = Vec::new();
        let moves = results_behind(&messages, is_system, |message| {
            has_block(message, "tool_result")
        });
        for (index, (message, result)) in messages
            .iter()
            .copied()
            .zip(moves)
            .enumerate()
            .filter(|(_, (message, _))| is_system(*message))
        {
            self.warnings.rewritten(JsonPath::Message(index));
            if index < leading {
                instructions.extend(message.get("content"));
                self.gone.push(self.span(message.raw()));
            } else if first_other.is_none() {
                let role = message.get("role").unwrap_or(message);
                self.replace_string(role, "user");
            } else {
                let results = result.and_then(|result| messages.get(result));
                self.insert_reminder(message, results.copied());
            }
        }
        self.add_instructions(root, &instructions);
    }

    /// Writes instructions as a user message, behind the message `results` if that is set.
    fn insert_reminder(&mut self, message: JsonValue<'a>, results: Option<JsonValue<'a>>) {
        let content = message
            .get("content")
            .filter(|content| !is_empty_value(*content));
        let Some(reminder) = content.and_then(reminder_message) else {
            self.gone.push(self.span(message.raw()));
            return;
        };
        match results {
            Some(results) => {
                self.gone.push(self.span(message.raw()));
                let end = self.span(results.raw()).end;
                self.edits
                    .push(JsonEdit::new(Span::at(end), format!(",{reminder}")));
            }
            None => self.replace_raw(message, reminder),
        }
    }

    /// Appends the instructions before the conversation to the top-level `system`.
    fn add_instructions(&mut self, root: JsonValue<'a>, instructions: &[JsonValue<'a>]) {
        let blocks: Vec<String> = instructions
            .iter()
            .flat_map(|content| text_blocks(*content))
            .collect();
        if blocks.is_empty() {
            return;
        }
        let system_prompt = root
            .members()
            .filter(|(key, _)| key.is("system"))
            .last()
            .map(|(_, value)| value);
        let before = system_prompt.into_iter().flat_map(text_blocks);
        let all = || {
            before
                .chain(blocks.iter().cloned())
                .collect::<Vec<_>>()
                .join(",")
        };
        match (system_prompt, instructions) {
            (Some(system_prompt), _) => {
                let all = format!("[{}]", all());
                self.replace_raw(system_prompt, all);
            }
            (None, [only]) if only.is_string() => self.insert_member(root, "system", only.raw()),
            (None, _) => {
                let all = format!("[{}]", all());
                self.insert_member(root, "system", &all);
            }
        }
    }

    /// Handles a final assistant turn: appends a user turn that asks the model to continue from it.
    pub(super) fn append_continue_turn(&mut self, root: JsonValue<'a>) {
        let messages = || root.items_of("messages");
        let Some(last) = messages().last() else {
            return;
        };
        let content = last.get("content");
        let ends_in_text = content.is_some_and(|content| {
            content.is_string()
                || content
                    .items()
                    .last()
                    .is_some_and(|block| is(block.get("type"), "text"))
        });
        if !is(last.get("role"), "assistant") || !ends_in_text {
            return;
        }
        self.warnings
            .inserted(JsonPath::Message(messages().count()));
        let end = self.span(last.raw()).end;
        let turn = format!(
            r#",{{"role":"user","content":{}}}"#,
            json_string(CONTINUE_PROMPT)
        );
        self.edits.push(JsonEdit::new(Span::at(end), turn));
    }
}

fn is(value: Option<JsonValue<'_>>, expected: &str) -> bool {
    value.is_some_and(|value| value.is(expected))
}

fn is_system(message: JsonValue<'_>) -> bool {
    is(message.get("role"), "system")
}

/// Returns for each late instruction the index of the last result in its turn. Vendors want results
/// directly behind their calls, so the instruction must follow that message.
pub(in crate::request::repair) fn results_behind<'a>(
    messages: &[JsonValue<'a>],
    is_instruction: impl Fn(JsonValue<'a>) -> bool,
    has_result: impl Fn(JsonValue<'a>) -> bool,
) -> Vec<Option<usize>> {
    let mut moves = vec![None; messages.len()];
    let mut result = None;
    for ((index, message), place) in messages.iter().enumerate().zip(&mut moves).rev() {
        if is_instruction(*message) {
            *place = result;
        } else if has_result(*message) {
            result = result.or(Some(index));
        } else {
            result = None;
        }
    }
    moves
}

fn has_block(message: JsonValue<'_>, kind: &str) -> bool {
    message
        .items_of("content")
        .any(|block| is(block.get("type"), kind))
}

/// Returns instructions as text blocks, with each text unchanged.
pub(in crate::request::repair) fn text_blocks(content: JsonValue<'_>) -> Vec<String> {
    if content.is_string() {
        let is_blank = content.text().is_none_or(|text| text.is_blank());
        return if is_blank {
            Vec::new()
        } else {
            vec![format!(r#"{{"type":"text","text":{}}}"#, content.raw())]
        };
    }
    content
        .items()
        .map(|block| block.raw().to_owned())
        .collect()
}

/// Returns a user message with the instructions as a reminder, or `None` if they have no text.
pub(in crate::request::repair) fn reminder_message(content: JsonValue<'_>) -> Option<String> {
    let texts: Vec<JsonStr<'_>> = match content.text() {
        Some(text) => vec![text],
        None => content
            .items()
            .filter_map(|block| block.text_of("text"))
            .collect(),
    };
    let raws: Vec<&str> = texts
        .iter()
        .filter(|text| !text.is_blank())
        .map(JsonStr::written)
        .collect();
    if raws.is_empty() {
        return None;
    }
    let [before, behind] = REMINDER_TAGS.map(json_string);
    let text = format!(
        "{}{}{}",
        before.strip_suffix('"')?,
        raws.concat(),
        behind.strip_prefix('"')?
    );
    let marker = content
        .items()
        .filter_map(|block| block.get("cache_control"))
        .last();
    let marker = marker
        .map(|marker| format!(r#","cache_control":{}"#, marker.raw()))
        .unwrap_or_default();
    Some(format!(
        r#"{{"role":"user","content":[{{"type":"text","text":{text}{marker}}}]}}"#
    ))
}
