//! Writes the messages: instructions and turns, in the order that a chat vendor requires.
//!
//! This file must not merge messages that the caller kept separate: the vendor accepts consecutive
//! turns of one role.
//!
//! Read next: `chat/write_request/parts.rs`, `chat/write_request/results.rs`.

use super::writer::ChatRequestWriter;
use crate::Protocol;
use crate::capabilities::{ReasoningReplay, arguments};
use crate::chat::opaque_state::OpaqueState;
use crate::ir::{
    Block, BlockKind, JsonPath, Request, RequestResult, Thinking, ToolCall, Turn, TurnRole, refuse,
};
use crate::json::{JoinedText, JsonDocument, JsonStr, MAX_DEPTH, NodeBuffer, RawJson};
use crate::messages::write_request::turns::REMINDER_TAGS;
use crate::openai::parts::{ContentPart, PartContent};
use crate::reasoning_token::{self, ReasoningPayload, StatePlace};
use std::ops::Range;

/// Text of an assistant message between a tool's message and a user's, for servers that do not
/// accept a user's message directly after a tool's.
pub(crate) const ACKNOWLEDGEMENT: &str = "Understood.";

/// Separator between content converted to text and the text around it.
const TEXT_GAP: &str = "\n\n";

impl ChatRequestWriter<'_> {
    /// Writes the member `messages`.
    ///
    /// # Errors
    /// Returns an error if the whole conversation is empty.
    pub(super) fn messages(&mut self, request: &Request<'_>) -> RequestResult {
        self.json.member_array("messages");
        let empty = self.json.as_bytes().len();
        let leading = self.leading_instructions(request);
        let last = request.turns.len().saturating_sub(1);
        let replayed = self.replayed_turns(&request.turns);
        let mut reminders = Vec::new();
        let mut turns = request.turns.iter().enumerate().skip(leading).peekable();
        while let Some((index, turn)) = turns.next() {
            self.replays = replayed.contains(&index);
            match turn.side {
                TurnRole::System if self.model.mid_system => self.instructions(&turn.blocks),
                TurnRole::System => reminders.extend(self.reminder(turn)),
                TurnRole::User => {
                    let mut at = index;
                    let mut behind = Vec::new();
                    while let Some((next, turn)) = turns.next_if(|(_, next)| {
                        next.side == TurnRole::System && !self.model.mid_system
                    }) {
                        at = next;
                        behind.extend(self.reminder(turn));
                    }
                    self.user(turn, std::mem::take(&mut reminders), behind, at == last);
                }
                TurnRole::Assistant => {
                    self.user_parts(std::mem::take(&mut reminders));
                    self.assistant(turn, index == last);
                }
            }
        }
        self.user_parts(reminders);
        if self.json.as_bytes().len() == empty {
            let message = "at least one message is required";
            return refuse(request.surface, "messages", message);
        }
        self.json.close_array();
        Ok(())
    }

    /// Returns the index range of the turns whose reasoning is sent back.
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

    /// Writes the instructions in front of the conversation. Returns the number of turns that are
    /// included: a server that accepts only one instruction message gets the leading turns with
    /// instructions in it.
    fn leading_instructions(&mut self, request: &Request<'_>) -> usize {
        let is_system = |turn: &&Turn<'_>| turn.side == TurnRole::System;
        let leading = match self.model.mid_system {
            true => 0,
            false => request.turns.iter().take_while(is_system).count(),
        };
        // Instructions contain only texts, so the function for user turns applies to them.
        let mut parts = self.fallback.parts(JsonPath::System(0), &request.system);
        for turn in request.turns.iter().take(leading) {
            parts.extend(self.fallback.parts(turn.at, &turn.blocks));
        }
        self.instruction_parts(&parts);
        leading
    }

    /// Returns instructions as a part of a user's message, where the server does not accept an
    /// instruction message. The prompt before that place, and so the vendor's cache, stays valid.
    fn reminder<'t>(&mut self, turn: &'t Turn<'t>) -> Option<ContentPart<'t>> {
        let texts: Vec<JsonStr<'t>> = turn
            .blocks
            .iter()
            .filter_map(|block| match &block.kind {
                BlockKind::Text(text) | BlockKind::Refusal(text) if !text.is_blank() => {
                    Some(text.reborrow())
                }
                _ => None,
            })
            .collect();
        if texts.is_empty() {
            return None;
        }
        self.fallback.warnings.rewritten(turn.at);
        let [before, behind] = REMINDER_TAGS.map(JsonStr::from_value);
        let pieces = [before].into_iter().chain(texts).chain([behind]);
        Some(ContentPart::new(PartContent::Text(pieces.collect())))
    }

    /// Writes a user turn between the reminders that belong to it.
    fn user<'t>(
        &mut self,
        turn: &'t Turn<'t>,
        before: Vec<ContentPart<'t>>,
        behind: Vec<ContentPart<'t>>,
        is_last: bool,
    ) {
        let has_results = self.write_results(&turn.blocks);
        let mut parts = before;
        parts.extend(self.fallback.parts(turn.at, &turn.blocks));
        parts.extend(behind);
        // Send an empty message only if it is the one to be answered. A turn without blocks held
        // only results.
        if parts.is_empty() && is_last && !has_results && !turn.blocks.is_empty() {
            parts.push(ContentPart::text(JsonStr::from_value("")));
        }
        self.user_parts(parts);
    }

    /// Writes a user's message, unless it is empty.
    pub(super) fn user_parts(&mut self, parts: Vec<ContentPart<'_>>) {
        if parts.is_empty() {
            return;
        }
        if self.is_behind_result && !self.model.user_after_tool {
            self.json.open_object().member("role", "assistant");
            self.json.member("content", ACKNOWLEDGEMENT).close_object();
        }
        self.is_behind_result = false;
        self.json
            .open_object()
            .member("role", "user")
            .key("content");
        self.content(&parts);
        self.json.close_object();
    }

    fn assistant(&mut self, turn: &Turn<'_>, is_last: bool) {
        let texts = self.assistant_texts(turn);
        let has_text = texts.iter().any(|text| !text.is_blank());
        let calls = || turn.blocks.iter().filter_map(as_call);
        let has_calls = calls().next().is_some();
        if !has_text && !has_calls {
            return;
        }
        let is_prefix = is_last && self.surface == Protocol::Messages && !has_calls;
        let takes_prefix = self.model.prefix == Some(true);
        if is_prefix && self.model.prefix == Some(false) {
            self.fallback.warnings.dropped(turn.at);
            return;
        }
        if is_prefix && !takes_prefix {
            self.fallback.warnings.emulated(turn.at);
        }
        self.is_behind_result = false;
        self.json.open_object().member("role", "assistant");
        if is_prefix && takes_prefix {
            self.json.member("prefix", true);
        }
        self.json
            .member("content", has_text.then_some(JoinedText(&texts)));
        let profile = self.write_context.target.profile;
        let state = TurnState::collect(
            &turn.blocks,
            &profile.state_beside(self.model.reasoning_replay.member()),
        );
        if !self.write_context.without_thinking {
            let has_reasoning = self.reasoning(&turn.blocks);
            state.message.write(&mut self.json);
            let is_own = has_reasoning || state.is_own();
            let is_due = has_calls || self.has_tools && profile.state_in_answers;
            if let Some(placeholder) = &profile.message_placeholder
                && is_due
                && !is_own
            {
                self.json.value(RawJson(placeholder));
            }
        }
        if has_calls {
            self.json.member_array("tool_calls");
            // If a message has no state because another vendor made it, its first call gets the
            // placeholder that the vendor accepts instead.
            let mut placeholder = profile.call_placeholder.as_ref();
            placeholder = placeholder.filter(|_| !state.is_own());
            for ((at, call), state) in calls().zip(&state.calls) {
                self.call(at, call, state, placeholder.take());
            }
            self.json.close_array();
        }
        self.json.close_object();
    }

    /// Writes a call. `placeholder` contains further members, as the inside of a JSON object.
    fn call(
        &mut self,
        at: JsonPath,
        call: &ToolCall<'_>,
        state: &OpaqueState,
        placeholder: Option<&String>,
    ) {
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
            .member("id", &id)
            .member("type", kind);
        self.json
            .member_object(kind)
            .member("name", &name)
            .key(arguments);
        arguments::write_call_arguments(call, is_custom, &mut self.json);
        self.json.close_object();
        state.write(&mut self.json);
        if let Some(placeholder) = placeholder {
            self.json.value(RawJson(placeholder));
        }
        self.json.close_object();
    }

    /// Returns the turn's texts as the pieces of one string.
    fn assistant_texts<'t>(&mut self, turn: &'t Turn<'t>) -> Vec<JsonStr<'t>> {
        let mut joiner = TextJoiner::default();
        let (mut results, mut last_container) = (None, None);
        for block in &turn.blocks {
            match &block.kind {
                BlockKind::Text(text) | BlockKind::Refusal(text) => {
                    // Texts of two consecutive messages stay separate.
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

    /// Writes the reasoning for vendors that want it back. Returns whether any was written.
    fn reasoning(&mut self, blocks: &[Block<'_>]) -> bool {
        let unseen: Vec<_> = blocks.iter().filter_map(unseen_thinking).collect();
        let seen = blocks.iter().filter_map(|block| match &block.kind {
            BlockKind::Thinking(Thinking::Shown { text, signature }) => {
                Some((text, signature.as_ref()))
            }
            _ => None,
        });
        let unseen = unseen
            .iter()
            .map(|(text, signature)| (text, signature.as_ref()));
        let shown = seen.chain(unseen);
        let Some(member) = self.model.reasoning_replay.member() else {
            return false;
        };
        match self.model.reasoning_replay {
            _ if !self.replays => false,
            ReasoningReplay::None => false,
            ReasoningReplay::Reasoning
            | ReasoningReplay::ReasoningContent
            | ReasoningReplay::ReasoningContentInTurn => {
                let texts: Vec<JsonStr<'_>> = match self.surface {
                    // A signature of the responses protocol comes from another vendor.
                    Protocol::Responses => {
                        let own = shown.filter(|(_, signature)| signature.is_none());
                        with_gaps(own.map(|(text, _)| text.reborrow()).collect())
                    }
                    Protocol::Chat | Protocol::Messages => {
                        shown.map(|(text, _)| text.reborrow()).collect()
                    }
                };
                let has_text = !texts.iter().all(JsonStr::is_empty);
                if has_text {
                    self.json.member(member, JoinedText(&texts));
                    self.carries_thinking = true;
                }
                has_text
            }
            ReasoningReplay::ReasoningDetails => {
                let details = shown.filter_map(|(text, signature)| {
                    match signature.filter(|signature| !signature.is_empty()) {
                        Some(signature) => reasoning_token::decode_details(&signature.value())
                            .and_then(array_items),
                        // A detail without a signature consists of its text.
                        None => (!text.is_empty()).then(|| text_detail(text)),
                    }
                });
                let items: Vec<String> = details.collect();
                if !items.is_empty() {
                    self.json
                        .member(member, RawJson(&format!("[{}]", items.join(","))));
                    self.carries_thinking = true;
                }
                !items.is_empty()
            }
        }
    }
}

/// The state that the vendor gave with a message and with its calls, read from a turn that the
/// client sent back.
struct TurnState {
    message: OpaqueState,
    calls: Vec<OpaqueState>,
}

impl TurnState {
    /// Reads the tokens of a turn. Only the values at the vendor's own paths count, so the state of
    /// another vendor never reaches it.
    fn collect(blocks: &[Block<'_>], paths: &[String]) -> Self {
        let mut message = OpaqueState::default();
        let count = blocks.iter().filter_map(as_call).count();
        let mut calls: Vec<_> = (0..count).map(|_| OpaqueState::default()).collect();
        let mut next = 0;
        for block in blocks {
            let token = match &block.kind {
                BlockKind::Thinking(Thinking::Hidden { data }) => data.value(),
                BlockKind::Call(_) => {
                    next += 1;
                    continue;
                }
                _ => continue,
            };
            let Some(ReasoningPayload::State(place, json)) = reasoning_token::unpack(&token) else {
                continue;
            };
            let state = match place {
                StatePlace::Message => Some(&mut message),
                StatePlace::NextCall => calls.get_mut(next),
                // A client may split the calls of an answer into several turns.
                StatePlace::Call(at) => match usize::try_from(at) {
                    Ok(at) if at < count => calls.get_mut(at),
                    _ => calls.get_mut(next).filter(|state| state.is_empty()),
                },
            };
            let tree = JsonDocument::parse(&json, MAX_DEPTH, NodeBuffer::new());
            if let (Some(state), Ok(tree)) = (state, tree) {
                state.add(tree.root(), paths);
            }
        }
        Self { message, calls }
    }

    /// Returns whether the state shows that this vendor made the turn.
    fn is_own(&self) -> bool {
        !self.message.is_empty() || self.calls.iter().any(|state| !state.is_empty())
    }
}

/// Returns the text and the signature of a chat vendor's reasoning that the client did not see.
fn unseen_thinking(block: &Block<'_>) -> Option<(JsonStr<'static>, Option<JsonStr<'static>>)> {
    let BlockKind::Thinking(Thinking::Hidden { data }) = &block.kind else {
        return None;
    };
    let token = data.value();
    let details = match reasoning_token::unpack(&token) {
        Some(ReasoningPayload::ChatText(text)) => return Some((JsonStr::from_value(text), None)),
        Some(ReasoningPayload::ChatDetails(details)) => details,
        Some(_) => return None,
        None => reasoning_token::decode_details(&token)?,
    };
    let signature = reasoning_token::encode_details(&details);
    Some((
        JsonStr::from_value(""),
        Some(JsonStr::from_value(signature)),
    ))
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

/// Returns an unsigned text as a detail, in JSON.
fn text_detail(text: &JsonStr<'_>) -> String {
    let mut json = String::from(r#"{"type":"reasoning.text","text":"#).into_bytes();
    text.write(&mut json);
    json.push(b'}');
    String::from_utf8(json).unwrap_or_default()
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
    /// True if another part came after the last text.
    is_interrupted: bool,
    /// True if the last piece must be separated from the next one.
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

/// Returns whether the text ends in white space. Escaped characters do not count.
fn ends_in_whitespace(text: &JsonStr<'_>) -> bool {
    let before = text
        .token()
        .and_then(|raw| raw.strip_suffix(['n', 'r', 't']));
    let backslashes = before
        .unwrap_or_default()
        .bytes()
        .rev()
        .take_while(|byte| *byte == b'\\')
        .count();
    text.written().ends_with(char::is_whitespace) || backslashes % 2 == 1
}
