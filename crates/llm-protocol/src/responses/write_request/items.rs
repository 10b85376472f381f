//! Writes the conversation as items: instructions, turns, calls and their results, in their
//! original order.
//!
//! This file must not give an item an id, except a reasoning item: the vendor looks up every id,
//! and it stores no item of the gateway.
//!
//! Read next: `responses/write_request/reasoning.rs`, `capabilities/pairing.rs` (which moves
//! results after their calls).

use super::writer::{ResponsesCallRef, ResponsesRequestWriter};
use crate::capabilities::{arguments, identifiers};
use crate::ir::{
    Block, BlockKind, ImageDetail, Request, RequestResult, ToolCall, ToolResult, ToolResultContent,
    Turn, TurnRole, refuse,
};
use crate::json::{JoinedText, JsonStr, JsonWriter};
use crate::openai::parts::{ContentPart, PartContent, file_name};
use crate::openai::text_fallback::starts_with_error;

impl ResponsesRequestWriter<'_> {
    /// Writes the member `input`.
    ///
    /// # Errors
    /// Returns an error if the whole conversation is empty.
    pub(super) fn input(&mut self, request: &Request<'_>) -> RequestResult {
        self.json.member_array("input");
        let empty = self.json.as_bytes().len();
        self.instructions(&request.system);
        let last = request.turns.len().saturating_sub(1);
        for (index, turn) in request.turns.iter().enumerate() {
            match turn.side {
                TurnRole::System => self.instructions(&turn.blocks),
                TurnRole::User => self.user(turn, index == last),
                TurnRole::Assistant => self.assistant(turn, index == last),
            }
        }
        if self.json.as_bytes().len() == empty {
            let message = "at least one message is required";
            return refuse(request.surface, "messages", message);
        }
        self.json.close_array();
        Ok(())
    }

    /// Writes a message with instructions, or nothing if they are blank.
    fn instructions(&mut self, blocks: &[Block<'_>]) {
        let Some(first) = blocks.first() else { return };
        let parts = self.fallback.parts(first.at, blocks);
        if !parts.is_empty() && parts.iter().all(ContentPart::is_text) {
            self.message("developer", &parts);
        }
    }

    fn user(&mut self, turn: &Turn<'_>, is_last: bool) {
        let has_results = self.write_results(&turn.blocks);
        let parts = self.fallback.parts(turn.at, &turn.blocks);
        // Send an empty message only if it is the one to be answered. A turn without blocks held
        // only results.
        let needs_answer = is_last && !has_results && !turn.blocks.is_empty();
        if !parts.is_empty() {
            self.message("user", &parts);
        } else if needs_answer {
            self.message("user", &[ContentPart::text(JsonStr::from_value(""))]);
        }
    }

    fn message(&mut self, role: &str, parts: &[ContentPart<'_>]) {
        self.json
            .open_typed("message")
            .member("role", role)
            .member_array("content");
        let takes_detail = self.write_context.target.profile.takes("detail");
        for part in parts {
            write_part(part, takes_detail, &mut self.json);
        }
        self.json.close_array().close_object();
    }

    fn assistant(&mut self, turn: &Turn<'_>, is_last: bool) {
        self.calls.clear();
        let last_call = turn
            .blocks
            .iter()
            .rposition(|block| matches!(block.kind, BlockKind::Call(_)));
        if is_last && last_call.is_none() && turn.blocks.iter().any(has_text) {
            self.fallback.warnings.emulated(turn.at);
        }
        let mut results = None;
        // Hold reasoning back until the next item, because the vendor refuses reasoning without an
        // item after it.
        let mut thought = Vec::new();
        for (index, block) in turn.blocks.iter().enumerate() {
            let texts = match &block.kind {
                BlockKind::Thinking(thinking) => {
                    thought.push(thinking);
                    continue;
                }
                BlockKind::Call(call) => {
                    self.write_reasoning_items(&mut thought);
                    self.call(block, call);
                    continue;
                }
                BlockKind::Text(text) => vec![text.reborrow()],
                BlockKind::Refusal(text) => {
                    if !text.is_blank() {
                        self.write_reasoning_items(&mut thought);
                        self.refusal_message(text);
                    }
                    continue;
                }
                BlockKind::File(file) => self.fallback.document(block.at, file),
                BlockKind::Opaque(opaque) => self.fallback.opaque_block(
                    (turn.at, turn.blocks.as_slice()),
                    block.at,
                    opaque,
                    &mut results,
                ),
                // The gateway has refused an assistant turn with such a block already.
                BlockKind::Image(_) | BlockKind::Result(_) => Vec::new(),
            };
            if texts.iter().all(JsonStr::is_blank) {
                continue;
            }
            self.write_reasoning_items(&mut thought);
            // Newer models of the protocol's own vendor behave wrongly if `phase` is missing, and
            // no other protocol has an equivalent.
            let is_before_call = last_call.is_some_and(|call| call > index);
            self.assistant_message(
                &texts,
                if is_before_call {
                    "commentary"
                } else {
                    "final_answer"
                },
            );
        }
    }

    /// Writes a text of the model as a string, which every server accepts. Many servers refuse an
    /// `output_text` part without the id, the status and the annotations of the original answer.
    fn assistant_message(&mut self, texts: &[JsonStr<'_>], phase: &str) {
        self.json.open_typed("message").member("role", "assistant");
        self.json.member("content", JoinedText(texts));
        self.phase(phase);
        self.json.close_object();
    }

    fn phase(&mut self, phase: &str) {
        if self.write_context.target.profile.takes("phase") {
            self.json.member("phase", phase);
        }
    }

    fn refusal_message(&mut self, text: &JsonStr<'_>) {
        self.json.open_typed("message").member("role", "assistant");
        self.json
            .member_array("content")
            .open_typed("refusal")
            .member("refusal", text);
        self.json.close_object().close_array();
        self.phase("final_answer");
        self.json.close_object();
    }

    fn call(&mut self, block: &Block<'_>, call: &ToolCall<'_>) {
        let original_id = call.id.as_ref().map(JsonStr::value).unwrap_or_default();
        let id = match identifiers::responses_call_id(original_id) {
            empty if empty.is_empty() => format!("call_{}", self.calls_made),
            id => id.into_owned(),
        };
        let id = self.ids.make_unique(id);
        self.calls_made = self.calls_made.saturating_add(1);
        let name = self
            .fallback
            .tool_name(&call.name, format_args!("{}.name", block.at));
        let is_custom = call.is_custom && !self.model.functions_only;
        let (kind, member) = if is_custom {
            ("custom_tool_call", "input")
        } else {
            ("function_call", "arguments")
        };
        self.json
            .open_typed(kind)
            .member("call_id", &id)
            .member("name", &name)
            .key(member);
        arguments::write_call_arguments(call, is_custom, &mut self.json);
        self.json.close_object();
        self.calls.push(ResponsesCallRef { id, is_custom });
    }

    /// Writes the results at the front of a user turn, in the order of their calls. Returns true if
    /// there were any.
    fn write_results(&mut self, blocks: &[Block<'_>]) -> bool {
        let mut calls = std::mem::take(&mut self.calls).into_iter();
        let mut is_any = false;
        for block in blocks {
            let BlockKind::Result(result) = &block.kind else {
                continue;
            };
            is_any = true;
            let original_id = result.id.as_ref().map(JsonStr::value).unwrap_or_default();
            let sent = calls.next();
            let sent = sent.unwrap_or(ResponsesCallRef {
                id: identifiers::responses_call_id(original_id).into_owned(),
                is_custom: false,
            });
            let kind = if sent.is_custom {
                "custom_tool_call_output"
            } else {
                "function_call_output"
            };
            self.json
                .open_typed(kind)
                .member("call_id", &sent.id)
                .key("output");
            self.tool_output(result);
            self.json.close_object();
        }
        is_any
    }

    /// Writes the output of a tool: a string, or a list of parts if the output is more than text.
    fn tool_output(&mut self, result: &ToolResult<'_>) {
        let mut parts: Vec<ContentPart<'_>> = Vec::new();
        match &result.content {
            ToolResultContent::Nothing => {}
            ToolResultContent::Text(text) => parts.push(ContentPart::text(text.reborrow())),
            ToolResultContent::Blocks(blocks) => blocks
                .iter()
                .for_each(|block| self.push_result_block(block, &mut parts)),
        }
        if result.is_error {
            let prefix = JsonStr::from_value("Error: ");
            match parts.first_mut().map(|part| &mut part.content) {
                Some(PartContent::Text(texts)) => {
                    if !texts.first().is_some_and(starts_with_error) {
                        texts.insert(0, prefix);
                    }
                }
                _ => parts.insert(0, ContentPart::text(prefix)),
            }
        }
        if parts.iter().all(ContentPart::is_text) {
            let mut lines: Vec<JsonStr<'_>> = Vec::new();
            for part in &parts {
                if !lines.is_empty() {
                    lines.push(JsonStr::from_value("\n"));
                }
                if let PartContent::Text(texts) = &part.content {
                    lines.extend(texts.iter().map(JsonStr::reborrow));
                }
            }
            self.json.value(JoinedText(&lines));
            return;
        }
        let takes_detail = self.write_context.target.profile.takes("detail");
        self.json.open_array();
        for part in &parts {
            write_part(part, takes_detail, &mut self.json);
        }
        self.json.close_array();
    }

    fn push_result_block<'t>(&mut self, block: &'t Block<'t>, parts: &mut Vec<ContentPart<'t>>) {
        match &block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => {
                parts.push(ContentPart::text(text.reborrow()))
            }
            BlockKind::Image(image) => parts.push(ContentPart::new(PartContent::Image(image))),
            BlockKind::File(file) => self.fallback.push_file(block, file, parts),
            BlockKind::Opaque(opaque) => {
                let texts = self.fallback.result_block(block.at, opaque);
                parts.push(ContentPart::new(PartContent::Text(texts)));
            }
            // The reader refuses these blocks inside a result.
            BlockKind::Thinking(_) | BlockKind::Call(_) | BlockKind::Result(_) => {}
        }
    }
}

fn has_text(block: &Block<'_>) -> bool {
    matches!(&block.kind, BlockKind::Text(text) | BlockKind::Refusal(text) if !text.is_blank())
}

fn write_part(part: &ContentPart<'_>, takes_detail: bool, json: &mut JsonWriter) {
    json.open_object().key("type");
    match &part.content {
        PartContent::Text(text) => {
            json.value("input_text").member("text", JoinedText(text));
        }
        PartContent::Image(image) => {
            json.value("input_image").key("image_url");
            image.source.write_url(json);
            // The protocol's own vendor requires a detail; other vendors may not support it.
            let unasked = takes_detail.then_some(ImageDetail::Auto);
            if let Some(detail) = image.detail.or(unasked) {
                json.member("detail", detail.as_str());
            }
        }
        PartContent::File(file, data) => {
            json.value("input_file").member("filename", file_name(file));
            json.member(
                "file_data",
                JoinedText(&[
                    JsonStr::from_value("data:application/pdf;base64,"),
                    data.reborrow(),
                ]),
            );
        }
        // The vendor accepts no file name next to a URL.
        PartContent::FileAt(url) => drop(json.value("input_file").member("file_url", url)),
    }
    if part.is_marked {
        json.member("prompt_cache_breakpoint", ("mode", "explicit"));
    }
    json.close_object();
}
