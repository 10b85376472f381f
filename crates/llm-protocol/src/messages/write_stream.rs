//! Writes an answer as a messages stream. `write_stream/body.rs` writes one messages body.
//!
//! This module must not break the rules whose violation crashes clients of this protocol: one block
//! is open at a time, block indexes have no gap, no block is empty or blank, a delta matches its
//! block, every value of the usage is a number. Overlapping blocks therefore wait in a bounded
//! queue, and a block opens only when there is content for it.
//!
//! A text or thinking block closes as soon as other content arrives; a call closes only when its
//! arguments are complete. At the end, all queued blocks are written in the order in which they
//! began.
//!
//! Read next: `messages/write_stream/arguments.rs`, which detects complete arguments.

use crate::event_frame::write_typed_event;
use crate::ir::event::{
    AnswerWriter, Event, EventSink, OutputPart as Kind, ResponseContext, take_output,
};
use crate::json::{JsonNull, JsonStr, JsonStrBuf, JsonWriter};
use crate::reasoning_token;
use crate::usage::{CompactionPasses, Usage};
use arguments::ArgumentScanner;
use completion::MessagesCompletion;
use std::collections::VecDeque;
use unseen_thinking::UnseenThinking;

mod arguments;
mod body;
mod completion;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod unseen_thinking;

pub use body::MessagesBodyWriter;

/// Keep-alive event for a silent stream.
pub const KEEP_ALIVE: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Maximum number of bytes in the queue.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;

/// Bytes counted for each queued block in addition to its text.
const BLOCK_OVERHEAD_BYTES: usize = 256;

/// Writer of an answer as a messages stream.
#[derive(Debug, Default)]
pub struct MessagesStreamWriter {
    out: Vec<u8>,
    completion: MessagesCompletion,
    /// Queue of blocks in output order. Only the first can be open.
    line: VecDeque<MessagesQueuedBlock>,
    is_open: bool,
    next_index: u64,
    /// Fixed beginning of each delta of the open block.
    delta_head: Vec<u8>,
    /// Text or thinking that was opened and has no queued content yet.
    announced: Option<(u32, MessagesQueuedBlockKind)>,
    /// White space to write before the next text, if there is one.
    held_space: JsonStrBuf,
    waiting_bytes: usize,
    overflowed: bool,
    is_over: bool,
    unseen: UnseenThinking,
}

#[derive(Debug)]
struct MessagesQueuedBlock {
    slot: u32,
    content: MessagesQueuedBlockKind,
    /// Content that could not be sent yet.
    kept: JsonStrBuf,
    is_whole: bool,
}

#[derive(Debug)]
enum MessagesQueuedBlockKind {
    Text,
    /// Text block of its own for a refusal.
    Refusal,
    Thinking {
        signature: String,
    },
    /// Hidden thinking, buffered as a whole.
    Hidden,
    Call(MessagesQueuedCall),
}

#[derive(Debug)]
struct MessagesQueuedCall {
    id: String,
    name: String,
    arguments: ArgumentScanner,
}

impl MessagesStreamWriter {
    pub fn new(response_context: ResponseContext) -> Self {
        MessagesStreamWriter {
            completion: MessagesCompletion::new(response_context),
            ..MessagesStreamWriter::default()
        }
    }

    fn open(&mut self, slot: u32, piece: Kind<'_>) {
        let token = match piece {
            Kind::Call { .. } => self.unseen.begin_call(),
            Kind::Thinking if self.unseen.is_sealed() => self.unseen.take_token(),
            _ => None,
        };
        self.send_unseen_thinking(token);
        match piece {
            Kind::Text => self.announced = Some((slot, MessagesQueuedBlockKind::Text)),
            Kind::Refusal => self.announced = Some((slot, MessagesQueuedBlockKind::Refusal)),
            Kind::Thinking if self.completion.response_context.show_thinking => {
                self.announced = Some((
                    slot,
                    MessagesQueuedBlockKind::Thinking {
                        signature: String::new(),
                    },
                ));
            }
            Kind::Thinking => {
                let replay = self.completion.response_context.reasoning_replay;
                self.unseen.open(slot, replay);
            }
            Kind::Hidden { data } if self.completion.response_context.show_thinking => {
                self.send_hidden(slot, &data);
            }
            Kind::State { token } => self.send_hidden(slot, &token),
            // The caller did not ask for it, or the protocol cannot represent it.
            Kind::Hidden { .. } | Kind::Search { .. } | Kind::Foreign { .. } => {}
            Kind::Call {
                id,
                name,
                is_custom,
            } => {
                let (id, name) = self.completion.resolve_call(id, &name);
                let call = MessagesQueuedCall {
                    id,
                    name,
                    arguments: ArgumentScanner::new(is_custom),
                };
                let content = MessagesQueuedBlockKind::Call(call);
                self.enqueue(MessagesQueuedBlock::new(slot, content));
            }
        }
    }

    fn send_hidden(&mut self, slot: u32, data: &JsonStr<'_>) {
        let mut block = MessagesQueuedBlock::new(slot, MessagesQueuedBlockKind::Hidden);
        block.kept.push(data);
        block.is_whole = true;
        self.enqueue(block);
    }

    /// Sends thinking that the caller does not see.
    fn send_unseen_thinking(&mut self, token: Option<String>) {
        if let Some(token) = token {
            // Nothing else belongs to this block, so no event names its slot.
            self.send_hidden(u32::MAX, &JsonStr::from_value(token));
        }
    }

    fn enqueue(&mut self, piece: MessagesQueuedBlock) {
        self.add_waiting_bytes(piece.fixed_bytes() + piece.kept.len());
        self.line.push_back(piece);
        self.advance(false);
    }

    fn add_waiting_bytes(&mut self, bytes: usize) {
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.overflowed |= self.waiting_bytes > MAX_WAITING_BYTES;
    }

    fn delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        self.unseen.delta(slot, text);
        if let Some(first) = self.line.front_mut()
            && self.is_open
            && first.slot == slot
        {
            // Usual case: pass the delta through.
            match &mut first.content {
                MessagesQueuedBlockKind::Text
                | MessagesQueuedBlockKind::Refusal
                | MessagesQueuedBlockKind::Thinking { .. } => self.write_delta(text),
                MessagesQueuedBlockKind::Call(call) => {
                    let text = call.arguments.forward(text);
                    self.write_delta(&text);
                    self.advance(false);
                }
                MessagesQueuedBlockKind::Hidden => {}
            }
            return;
        }
        if let Some(piece) = self.line.iter_mut().rev().find(|piece| piece.slot == slot) {
            let before = piece.kept.len();
            match &mut piece.content {
                MessagesQueuedBlockKind::Call(call) => call.arguments.buffer(text, &mut piece.kept),
                _ => piece.kept.push(text),
            }
            let added = piece.kept.len().saturating_sub(before);
            self.add_waiting_bytes(added);
            self.advance(false);
            return;
        }
        self.first_delta(slot, text);
    }

    /// Handles the first delta of an opened text or thinking. A text that merely continues after
    /// omitted content or white space remains one block.
    fn first_delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        let Some((announced, content)) =
            self.announced.take_if(|(announced, _)| *announced == slot)
        else {
            return;
        };
        let goes_on = self.line.back().is_some_and(|last| {
            !last.is_whole
                && match (&last.content, &content) {
                    (MessagesQueuedBlockKind::Text, MessagesQueuedBlockKind::Text)
                    | (MessagesQueuedBlockKind::Refusal, MessagesQueuedBlockKind::Refusal) => true,
                    (
                        MessagesQueuedBlockKind::Thinking { signature },
                        MessagesQueuedBlockKind::Thinking { .. },
                    ) => signature.is_empty(),
                    _ => false,
                }
        });
        if goes_on {
            if let Some(last) = self.line.back_mut() {
                last.slot = slot;
            }
            self.delta(slot, text);
            return;
        }
        let mut block = MessagesQueuedBlock::new(slot, content);
        if !matches!(block.content, MessagesQueuedBlockKind::Thinking { .. }) {
            if text.is_blank() {
                self.held_space.push(text);
                self.add_waiting_bytes(text.written().len());
                self.announced = Some((announced, block.content));
                return;
            }
            self.waiting_bytes = self.waiting_bytes.saturating_sub(self.held_space.len());
            block.kept = std::mem::take(&mut self.held_space);
        }
        block.kept.push(text);
        self.enqueue(block);
    }

    fn set_signature(&mut self, slot: u32, new_signature: &JsonStr<'_>) {
        self.unseen.set_signature(slot, new_signature);
        let new_signature = new_signature.value().into_owned();
        self.add_waiting_bytes(new_signature.len());
        if let Some(piece) = self.line.iter_mut().rev().find(|piece| piece.slot == slot) {
            if let MessagesQueuedBlockKind::Thinking { signature } = &mut piece.content {
                *signature = new_signature;
            }
        } else if let Some((slot, _)) = self.announced.take_if(|(announced, content)| {
            *announced == slot && matches!(content, MessagesQueuedBlockKind::Thinking { .. })
        }) {
            let content = MessagesQueuedBlockKind::Thinking {
                signature: new_signature,
            };
            self.enqueue(MessagesQueuedBlock::new(slot, content));
        }
    }

    fn close(&mut self, slot: u32) {
        if let Some(piece) = self.line.iter_mut().find(|piece| piece.slot == slot) {
            piece.is_whole = true;
            self.advance(false);
        }
    }

    /// Opens and closes blocks as far as the queue allows. `at_end`: no more content follows.
    fn advance(&mut self, at_end: bool) {
        while let Some(first) = self.line.front() {
            let is_last = self.line.len() == 1;
            let is_done = at_end || first.is_whole || (!is_last && first.may_close_early());
            if !self.is_open {
                if !is_done && !first.is_ready() {
                    return;
                }
                self.open_first(is_done, at_end);
            }
            if !is_done {
                return;
            }
            self.close_first();
        }
    }

    /// Opens the first block of the queue. `is_done`: its content is complete and is written now.
    fn open_first(&mut self, is_done: bool, at_end: bool) {
        let Some(mut first) = self.line.pop_front() else {
            return;
        };
        write_typed_event("content_block_start", &mut self.out, |json| {
            json.member("index", self.next_index)
                .member_object("content_block");
            match &first.content {
                MessagesQueuedBlockKind::Text | MessagesQueuedBlockKind::Refusal => {
                    json.member("type", "text").member("text", "")
                }
                MessagesQueuedBlockKind::Thinking { .. } => json
                    .member("type", "thinking")
                    .member("thinking", "")
                    .member("signature", ""),
                MessagesQueuedBlockKind::Hidden => json
                    .member("type", "redacted_thinking")
                    .member("data", first.kept.text()),
                MessagesQueuedBlockKind::Call(call) => json
                    .member("type", "tool_use")
                    .member("id", &call.id)
                    .member("name", &call.name)
                    .member_object("input")
                    .close_object(),
            };
            json.close_object();
        });
        self.is_open = true;
        self.delta_head.clear();
        let (kind, member) = match &first.content {
            MessagesQueuedBlockKind::Text
            | MessagesQueuedBlockKind::Refusal
            | MessagesQueuedBlockKind::Hidden => ("text_delta", "text"),
            MessagesQueuedBlockKind::Thinking { .. } => ("thinking_delta", "thinking"),
            MessagesQueuedBlockKind::Call(_) => ("input_json_delta", "partial_json"),
        };
        let head = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\
             \"{kind}\",\"{member}\":\"",
            self.next_index
        );
        self.delta_head.extend_from_slice(head.as_bytes());
        self.waiting_bytes = self.waiting_bytes.saturating_sub(first.kept.len());
        let kept = std::mem::take(&mut first.kept);
        match &first.content {
            MessagesQueuedBlockKind::Text
            | MessagesQueuedBlockKind::Refusal
            | MessagesQueuedBlockKind::Thinking { .. } => self.write_delta(&kept.text()),
            MessagesQueuedBlockKind::Hidden => {}
            MessagesQueuedBlockKind::Call(call) => {
                let was_cut = at_end && self.completion.is_cut_short() && self.line.is_empty();
                let text = call.arguments.initial_text(&kept, is_done, was_cut);
                self.write_delta(&text);
            }
        }
        self.line.push_front(first);
    }

    fn close_first(&mut self) {
        let Some(first) = self.line.pop_front() else {
            return;
        };
        if let MessagesQueuedBlockKind::Thinking { signature } = &first.content {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(signature.len());
            let signature = match signature.as_str() {
                "" => reasoning_token::TOKEN_PREFIX,
                signature => signature,
            };
            write_typed_event("content_block_delta", &mut self.out, |json| {
                json.member("index", self.next_index)
                    .member_typed("delta", "signature_delta")
                    .member("signature", signature)
                    .close_object();
            });
        }
        write_typed_event("content_block_stop", &mut self.out, |json| {
            json.member("index", self.next_index);
        });
        self.waiting_bytes = self.waiting_bytes.saturating_sub(first.fixed_bytes());
        self.is_open = false;
        self.next_index += 1;
    }

    fn write_delta(&mut self, text: &JsonStr<'_>) {
        if text.is_empty() {
            return;
        }
        self.out.extend_from_slice(&self.delta_head);
        text.write_unquoted(&mut self.out);
        self.out.extend_from_slice(b"\"}}\n\n");
    }

    fn start(&mut self) {
        write_typed_event("message_start", &mut self.out, |json| {
            json.member_object("message");
            self.completion.write_envelope(json);
            json.member_array("content").close_array();
            let input_estimate = self.completion.response_context.input_estimate;
            json.member("stop_reason", JsonNull)
                .member("stop_sequence", JsonNull)
                .member_object("usage")
                .member("input_tokens", input_estimate)
                .member("cache_creation_input_tokens", 0)
                .member("cache_read_input_tokens", 0)
                .member("output_tokens", 0)
                .close_object()
                .close_object();
        });
        self.out.extend_from_slice(KEEP_ALIVE);
    }

    fn end(&mut self) {
        let token = self.unseen.finish();
        self.send_unseen_thinking(token);
        self.advance(true);
        write_typed_event("message_delta", &mut self.out, |json| {
            json.member_object("delta");
            self.completion.write_stop(json);
            json.member("container", JsonNull)
                .close_object()
                .key("usage");
            write_usage(&self.completion.usage(), json);
        });
        write_typed_event("message_stop", &mut self.out, |_| {});
        self.is_over = true;
    }
}

impl AnswerWriter for MessagesStreamWriter {
    fn take(&mut self, out: &mut Vec<u8>) {
        take_output(&mut self.out, out);
    }

    fn overflowed(&self) -> bool {
        self.overflowed
    }
}

impl EventSink for MessagesStreamWriter {
    fn event(&mut self, event: Event<'_>) {
        if self.is_over || self.overflowed {
            return;
        }
        match event {
            Event::Start(start) => {
                self.completion.start(&start);
                self.start();
            }
            Event::Open { slot, piece } => self.open(slot, piece),
            Event::Delta { slot, text } => {
                self.completion.count_generated(&text);
                self.delta(slot, &text);
            }
            Event::Signature { slot, signature } => self.set_signature(slot, &signature),
            // Citations: the text itself names its sources.
            Event::Citation { .. } | Event::Counters { .. } | Event::Warning(_) => {}
            Event::Close { slot } => self.close(slot),
            Event::Stop(stop) => self.completion.set_stop(stop),
            Event::Usage { usage, .. } => self.completion.set_usage(usage),
            Event::End => self.end(),
        }
        if self.overflowed {
            self.line.clear();
            self.held_space.clear();
        }
    }
}

impl MessagesQueuedBlock {
    fn new(slot: u32, content: MessagesQueuedBlockKind) -> Self {
        MessagesQueuedBlock {
            slot,
            content,
            kept: JsonStrBuf::default(),
            is_whole: false,
        }
    }

    /// Bytes counted for the block in addition to its text and its signature.
    fn fixed_bytes(&self) -> usize {
        let names = match &self.content {
            MessagesQueuedBlockKind::Call(call) => call.id.len() + call.name.len(),
            _ => 0,
        };
        BLOCK_OVERHEAD_BYTES + names
    }

    /// Returns whether the block can be opened: it has content, and the rest of it is not needed
    /// first.
    fn is_ready(&self) -> bool {
        match &self.content {
            MessagesQueuedBlockKind::Text
            | MessagesQueuedBlockKind::Refusal
            | MessagesQueuedBlockKind::Hidden => true,
            MessagesQueuedBlockKind::Thinking { signature } => {
                !self.kept.is_empty() || !signature.is_empty()
            }
            MessagesQueuedBlockKind::Call(call) => call.arguments.may_open(),
        }
    }

    /// Returns whether the block may close early when other content arrives.
    fn may_close_early(&self) -> bool {
        match &self.content {
            MessagesQueuedBlockKind::Call(call) => call.arguments.is_complete(),
            _ => true,
        }
    }
}

/// Writes the usage object at the end of the stream, with every member that clients read.
pub fn write_usage(usage: &Usage, json: &mut JsonWriter) {
    // The protocol's counters exclude the compaction passes, which have a list of their own.
    let (passes, usage) = (&usage.compactions, &usage.without_passes());
    json.open_object().member(
        "input_tokens",
        usage.input.saturating_add(usage.audio_input),
    );
    json.member(
        "cache_creation_input_tokens",
        usage.cache_write_5m.saturating_add(usage.cache_write_1h),
    );
    json.member("cache_read_input_tokens", usage.cache_read);
    json.member("output_tokens", usage.output_total());
    json.member(
        "output_tokens_details",
        ("thinking_tokens", usage.reasoning),
    );
    if usage.cache_write_1h > 0 {
        json.member_object("cache_creation");
        json.member("ephemeral_5m_input_tokens", usage.cache_write_5m);
        json.member("ephemeral_1h_input_tokens", usage.cache_write_1h)
            .close_object();
    }
    if usage.web_searches > 0 {
        json.member_object("server_tool_use");
        json.member("web_search_requests", usage.web_searches)
            .close_object();
    }
    write_iterations(passes, json);
    json.close_object();
}

fn write_iterations(passes: &CompactionPasses, json: &mut JsonWriter) {
    if passes.is_empty() {
        return;
    }
    json.member_array("iterations");
    for pass in passes.iter() {
        let [input, read, short, long, output] = [
            pass.input,
            pass.cache_read,
            pass.cache_write_5m,
            pass.cache_write_1h,
            pass.output,
        ]
        .map(u64::from);
        json.open_typed("compaction").member("input_tokens", input);
        json.member("output_tokens", output)
            .member("cache_read_input_tokens", read);
        json.member("cache_creation_input_tokens", short.saturating_add(long));
        json.member_object("cache_creation")
            .member("ephemeral_5m_input_tokens", short);
        json.member("ephemeral_1h_input_tokens", long)
            .close_object()
            .close_object();
    }
    json.close_array();
}
