//! Writes the messages: instructions and turns, in the order that a chat vendor requires.
//!
//! It must not merge messages that the caller kept separate: the vendor accepts consecutive turns
//! of one role.
//!
//! Read next: `chat/write_request/parts.rs`, `chat/write_request/results.rs`.

use super::writer::ChatRequestWriter;
use crate::Protocol;
use crate::capabilities::{ReasoningReplay, arguments, custom_tool};
use crate::ir::{
    Block, BlockKind, BoxedFailure, JsonPath, Request, Thinking, ToolArguments, ToolCall, Turn,
    TurnRole, WarningAction,
};
use crate::json::string::JsonStr;
use crate::openai::refusal::invalid_param;
use crate::reasoning_token;
use std::ops::Range;

/// Separator between content converted to text and the text around it.
const TEXT_GAP: &str = "\n\n";

impl ChatRequestWriter<'_> {
    /// Writes the member `messages`.
    ///
    /// # Errors
    /// Returns an error if the whole conversation is empty.
    pub(super) fn messages(&mut self, request: &Request<'_>) -> Result<(), BoxedFailure> {
        self.json.key("messages").open_array();
        let empty = self.json.as_bytes().len();
        self.instructions(&request.system);
        let last = request.turns.len().saturating_sub(1);
        let replayed = self.replayed_turns(&request.turns);
        for (index, turn) in request.turns.iter().enumerate() {
            self.replays = replayed.contains(&index);
            match turn.side {
                TurnRole::System => self.instructions(&turn.blocks),
                TurnRole::User => self.user(turn, index == last),
                TurnRole::Assistant => self.assistant(turn, index == last),
            }
        }
        if self.json.as_bytes().len() == empty {
            return Err(invalid_param(
                request.surface,
                "messages",
                "at least one message is required",
            ));
        }
        self.json.close_array();
        Ok(())
    }

    /// Index range of the turns whose reasoning is sent back.
    fn replayed_turns(&self, turns: &[Turn<'_>]) -> Range<usize> {
        if self.model.reasoning_replay != ReasoningReplay::ReasoningContentInTurn {
            return 0..turns.len();
        }
        let holds = |turn: &Turn<'_>, predicate: fn(&BlockKind<'_>) -> bool| {
            turn.blocks.iter().any(|block| predicate(&block.kind))
        };
        let asks = |turn: &Turn<'_>| {
            turn.side == TurnRole::User && !holds(turn, |kind| matches!(kind, BlockKind::Result(_)))
        };
        let start = turns.iter().rposition(asks).unwrap_or_default();
        let calls = |turn: &Turn<'_>| holds(turn, |kind| matches!(kind, BlockKind::Call(_)));
        let has_calls = turns.iter().skip(start).any(calls);
        if has_calls { start..turns.len() } else { 0..0 }
    }

    fn user(&mut self, turn: &Turn<'_>, is_last: bool) {
        let has_results = self.write_results(&turn.blocks);
        let parts = self.fallback.parts(turn.at, &turn.blocks);
        // Send an empty message only if it is the one to be answered. A turn without blocks held
        // only results.
        let needs_answer = is_last && !has_results && !turn.blocks.is_empty();
        if !parts.is_empty() || needs_answer {
            self.json
                .open_object()
                .key("role")
                .str("user")
                .key("content");
            self.content(&parts);
            self.json.close_object();
        }
    }

    fn assistant(&mut self, turn: &Turn<'_>, is_last: bool) {
        let texts = self.assistant_texts(turn);
        let has_text = texts.iter().any(|text| !text.is_blank());
        let calls = || turn.blocks.iter().filter_map(as_call);
        let has_calls = calls().next().is_some();
        if !has_text && !has_calls {
            return;
        }
        if is_last && self.surface == Protocol::Messages {
            self.fallback.warnings.add(WarningAction::Emulated, turn.at);
        }
        self.json
            .open_object()
            .key("role")
            .str("assistant")
            .key("content");
        if has_text {
            self.json.concat(&texts);
        } else {
            self.json.null();
        }
        if !self.write_context.without_thinking {
            self.reasoning(&turn.blocks);
        }
        if has_calls {
            self.json.key("tool_calls").open_array();
            calls().for_each(|(at, call)| self.call(at, call));
            self.json.close_array();
        }
        self.json.close_object();
    }

    fn call(&mut self, at: JsonPath, call: &ToolCall<'_>) {
        let id = self.call_id(call.id.as_ref());
        let name = self
            .fallback
            .tool_name(&call.name, format_args!("{at}.name"));
        let is_custom = call.is_custom && self.model.custom_tools;
        let (kind, arguments) = if is_custom {
            ("custom", "input")
        } else {
            ("function", "arguments")
        };
        self.json
            .open_object()
            .key("id")
            .str(&id)
            .key("type")
            .str(kind);
        self.json
            .key(kind)
            .open_object()
            .key("name")
            .str(&name)
            .key(arguments);
        match &call.arguments {
            ToolArguments::Json(input) => arguments::write_arguments(*input, &mut self.json),
            ToolArguments::Text(text) if call.is_custom && !is_custom => {
                custom_tool::write_arguments(text, &mut self.json)
            }
            // An empty string is not valid JSON.
            ToolArguments::Text(text) if text.is_blank() && !is_custom => drop(self.json.str("{}")),
            ToolArguments::Text(text) => drop(self.json.text(text)),
        }
        self.json.close_object().close_object();
    }

    /// Returns the turn's texts as the pieces of one string.
    fn assistant_texts<'t>(&mut self, turn: &'t Turn<'t>) -> Vec<JsonStr<'t>> {
        let mut joiner = TextJoiner::default();
        let (mut results, mut last_container) = (None, None);
        for block in &turn.blocks {
            match &block.kind {
                BlockKind::Text(text) | BlockKind::Refusal(text) => {
                    // Two messages in a row are two texts.
                    if last_container.is_some_and(|item| item != block.at.container_index()) {
                        joiner.push_piece(Vec::new());
                    }
                    last_container = Some(block.at.container_index());
                    joiner.push_text(text.reborrow());
                }
                BlockKind::File(file) => {
                    let texts = self.fallback.document(block.at, file);
                    joiner.push_piece(texts);
                }
                BlockKind::Opaque(opaque) => {
                    let whole = (turn.at, turn.blocks.as_slice());
                    joiner.push_piece(self.fallback.opaque_block(
                        whole,
                        block.at,
                        opaque,
                        &mut results,
                    ));
                }
                // Calls and reasoning are written next to the text; images and results in an
                // assistant turn were refused before.
                BlockKind::Thinking(_)
                | BlockKind::Call(_)
                | BlockKind::Image(_)
                | BlockKind::Result(_) => {
                    joiner.push_piece(Vec::new());
                }
            }
        }
        joiner.texts
    }

    /// Writes the reasoning for vendors that want it back.
    fn reasoning(&mut self, blocks: &[Block<'_>]) {
        let shown = blocks.iter().filter_map(|block| match &block.kind {
            BlockKind::Thinking(Thinking::Shown { text, signature }) => {
                Some((text, signature.as_ref()))
            }
            _ => None,
        });
        match self.model.reasoning_replay {
            ReasoningReplay::None => {}
            _ if !self.replays => {}
            ReasoningReplay::ReasoningContent | ReasoningReplay::ReasoningContentInTurn => {
                let texts: Vec<JsonStr<'_>> = match self.surface {
                    // A signature there comes from another vendor.
                    Protocol::Responses => {
                        let own = shown.filter(|(_, signature)| signature.is_none());
                        with_gaps(own.map(|(text, _)| text.reborrow()).collect())
                    }
                    Protocol::Chat | Protocol::Messages => {
                        shown.map(|(text, _)| text.reborrow()).collect()
                    }
                };
                if !texts.iter().all(JsonStr::is_empty) {
                    self.json.key("reasoning_content").concat(&texts);
                    self.carries_thinking = true;
                }
            }
            ReasoningReplay::ReasoningDetails => {
                let details = shown.filter_map(|(_, signature)| {
                    reasoning_token::decode_details(&signature?.value())
                });
                let items: Vec<String> = details.filter_map(array_items).collect();
                if !items.is_empty() {
                    self.json
                        .key("reasoning_details")
                        .raw(&format!("[{}]", items.join(",")));
                    self.carries_thinking = true;
                }
            }
        }
    }
}

fn as_call<'t>(block: &'t Block<'t>) -> Option<(JsonPath, &'t ToolCall<'t>)> {
    match &block.kind {
        BlockKind::Call(call) => Some((block.at, call)),
        _ => None,
    }
}

/// Joins the texts of several items, with a gap between them.
fn with_gaps(texts: Vec<JsonStr<'_>>) -> Vec<JsonStr<'_>> {
    let mut spaced = Vec::with_capacity(texts.len().saturating_mul(2));
    for text in texts.into_iter().filter(|text| !text.is_empty()) {
        if !spaced.is_empty() {
            spaced.push(JsonStr::from_value(TEXT_GAP));
        }
        spaced.push(text);
    }
    spaced
}

/// Returns the text between the brackets of a JSON array, or `None` if the array is empty.
fn array_items(array: String) -> Option<String> {
    let inside = array.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    (!inside.is_empty()).then(|| inside.to_owned())
}

/// Collects the pieces that become one string.
#[derive(Default)]
struct TextJoiner<'t> {
    texts: Vec<JsonStr<'t>>,
    /// Something else came after the last text.
    is_interrupted: bool,
    /// The last piece must be separated from the next one.
    is_apart: bool,
}

impl<'t> TextJoiner<'t> {
    fn push_text(&mut self, text: JsonStr<'t>) {
        if text.is_empty() {
            return;
        }
        let needs_gap = self.is_interrupted
            && self
                .texts
                .last()
                .is_some_and(|last| !ends_in_whitespace(last));
        if self.is_apart || needs_gap {
            self.texts.push(JsonStr::from_value(TEXT_GAP));
        }
        self.texts.push(text);
        (self.is_interrupted, self.is_apart) = (false, false);
    }

    /// Adds a piece that is separated from its neighbours. An empty piece only interrupts the text.
    fn push_piece(&mut self, piece: Vec<JsonStr<'t>>) {
        self.is_interrupted = true;
        if piece.is_empty() {
            return;
        }
        if !self.texts.is_empty() {
            self.texts.push(JsonStr::from_value(TEXT_GAP));
        }
        self.texts.extend(piece);
        self.is_apart = true;
    }
}

/// Returns whether the text ends in white space, as far as its JSON spelling shows.
fn ends_in_whitespace(text: &JsonStr<'_>) -> bool {
    match text {
        JsonStr::Made(made) => made.ends_with(char::is_whitespace),
        JsonStr::Token { raw, .. } => {
            let before = raw.strip_suffix(['n', 'r', 't']).unwrap_or_default();
            let backslashes = before
                .bytes()
                .rev()
                .take_while(|byte| *byte == b'\\')
                .count();
            raw.ends_with(char::is_whitespace) || backslashes % 2 == 1
        }
    }
}
