//! An answer as a messages stream, and (in `write_stream/whole.rs`) as one messages body.
//!
//! It must not break the rules that clients of this protocol crash on: one block is open at a time,
//! blocks are numbered without a gap, none is empty or blank, a delta fits its block, every number
//! of the usage is a number. So what overlaps waits in line, bounded, and a block is opened only
//! when there is something to put into it.
//!
//! A text or thinking block gives way as soon as something else is to be said; a call only once its
//! arguments are whole. All that is left at the end goes out in the order in which it began.
//!
//! Read next: `messages/write_stream/arguments.rs`, when a call's arguments are whole.

use crate::protocol::carrier;
use crate::protocol::form::answer::{Event, Piece as Kind, Recall, Sink};
use crate::protocol::text::{Gathered, Json, Text};
use crate::usage::{Passes, Usage};
use arguments::Arguments;
use ending::Heard;
use std::collections::VecDeque;

mod arguments;
mod ending;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod whole;

pub use whole::Whole;

/// What a silent stream is kept open with.
pub const KEEP_ALIVE: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// The most that may wait in line.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What a piece in line takes besides its text.
const PIECE_BYTES: usize = 256;

/// The most memory that the output buffer keeps when it is empty.
const IDLE_BYTES_MAX: usize = 16 * 1024;

/// The writer.
#[derive(Debug)]
pub struct Stream {
    out: Vec<u8>,
    heard: Heard,
    /// What goes out, in order. Only the first can be an open block.
    line: VecDeque<Piece>,
    is_open: bool,
    next_index: u64,
    /// What each delta of the open block begins with.
    delta_head: Vec<u8>,
    /// A text or thinking that was announced, and of which nothing stands in line yet.
    announced: Option<(u32, Said)>,
    /// White space that belongs before the next text, if there comes one.
    held_space: Gathered,
    waiting_bytes: usize,
    overflowed: bool,
    is_over: bool,
}

#[derive(Debug)]
struct Piece {
    slot: u32,
    said: Said,
    /// What could not be sent yet.
    kept: Gathered,
    is_whole: bool,
}

#[derive(Debug)]
enum Said {
    Text,
    /// A text of its own.
    Refusal,
    Thinking {
        signature: String,
    },
    /// All of it is kept.
    Hidden,
    Call(Call),
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: Arguments,
}

impl Stream {
    pub fn new(recall: Recall) -> Self {
        Stream {
            out: Vec::new(),
            heard: Heard::new(recall),
            line: VecDeque::new(),
            is_open: false,
            next_index: 0,
            delta_head: Vec::new(),
            announced: None,
            held_space: Gathered::default(),
            waiting_bytes: 0,
            overflowed: false,
            is_over: false,
        }
    }

    /// Moves what was written so far.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.out);
        if self.out.capacity() > IDLE_BYTES_MAX {
            self.out = Vec::new();
        }
    }

    /// More waits in line than is held: the stream cannot go on.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    fn open(&mut self, slot: u32, piece: Kind<'_>) {
        match piece {
            Kind::Text => self.announced = Some((slot, Said::Text)),
            Kind::Refusal => self.announced = Some((slot, Said::Refusal)),
            Kind::Thinking if self.heard.recall.show_thinking => {
                self.announced = Some((
                    slot,
                    Said::Thinking {
                        signature: String::new(),
                    },
                ));
            }
            Kind::Hidden { data } if self.heard.recall.show_thinking => {
                let mut kept = Gathered::default();
                kept.push(&data);
                self.stand_in_line(Piece {
                    slot,
                    said: Said::Hidden,
                    kept,
                    is_whole: true,
                });
            }
            // Not asked for, or without a place here.
            Kind::Thinking | Kind::Hidden { .. } | Kind::Search { .. } | Kind::Foreign { .. } => {}
            Kind::Call {
                id,
                name,
                is_custom,
            } => {
                let (id, name) = self.heard.call(id, &name);
                let call = Call {
                    id,
                    name,
                    arguments: Arguments::new(is_custom),
                };
                let piece = Piece {
                    slot,
                    said: Said::Call(call),
                    kept: Gathered::default(),
                    is_whole: false,
                };
                self.stand_in_line(piece);
            }
        }
    }

    fn stand_in_line(&mut self, piece: Piece) {
        let names = match &piece.said {
            Said::Call(call) => call.id.len() + call.name.len(),
            Said::Text | Said::Refusal | Said::Thinking { .. } | Said::Hidden => 0,
        };
        self.wait_for(PIECE_BYTES + names + piece.kept.len());
        self.line.push_back(piece);
        self.advance(false);
    }

    fn wait_for(&mut self, bytes: usize) {
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.overflowed |= self.waiting_bytes > WAITING_BYTES_MAX;
    }

    fn delta(&mut self, slot: u32, text: &Text<'_>) {
        if let Some(first) = self.line.front_mut()
            && self.is_open
            && first.slot == slot
        {
            // The usual way: straight through.
            match &mut first.said {
                Said::Text | Said::Refusal | Said::Thinking { .. } => self.write_delta(text),
                Said::Call(call) => {
                    let text = call.arguments.more(text);
                    self.write_delta(&text);
                    self.advance(false);
                }
                Said::Hidden => {}
            }
            return;
        }
        if let Some(piece) = self.line.iter_mut().rev().find(|piece| piece.slot == slot) {
            let before = piece.kept.len();
            match &mut piece.said {
                Said::Call(call) => call.arguments.keep(text, &mut piece.kept),
                Said::Text | Said::Refusal | Said::Thinking { .. } | Said::Hidden => {
                    piece.kept.push(text)
                }
            }
            let added = piece.kept.len().saturating_sub(before);
            self.wait_for(added);
            self.advance(false);
            return;
        }
        self.first_delta(slot, text);
    }

    /// The first words of an announced text or thinking. A text that only went on after what is not
    /// shown, or after white space, stays one block.
    fn first_delta(&mut self, slot: u32, text: &Text<'_>) {
        let Some((announced, said)) = self.announced.take_if(|(announced, _)| *announced == slot)
        else {
            return;
        };
        let goes_on = match (self.line.back(), &said) {
            (
                Some(Piece {
                    said: Said::Text,
                    is_whole: false,
                    ..
                }),
                Said::Text,
            ) => true,
            (
                Some(Piece {
                    said: Said::Refusal,
                    is_whole: false,
                    ..
                }),
                Said::Refusal,
            ) => true,
            (
                Some(Piece {
                    said: Said::Thinking { signature },
                    is_whole: false,
                    ..
                }),
                Said::Thinking { .. },
            ) => signature.is_empty(),
            _ => false,
        };
        if goes_on {
            if let Some(last) = self.line.back_mut() {
                last.slot = slot;
            }
            self.delta(slot, text);
            return;
        }
        let mut kept = Gathered::default();
        if matches!(said, Said::Text | Said::Refusal) {
            if text.is_blank() {
                self.held_space.push(text);
                self.wait_for(text_bytes(text));
                self.announced = Some((announced, said));
                return;
            }
            self.waiting_bytes = self.waiting_bytes.saturating_sub(self.held_space.len());
            kept = std::mem::take(&mut self.held_space);
        }
        kept.push(text);
        self.stand_in_line(Piece {
            slot,
            said,
            kept,
            is_whole: false,
        });
    }

    fn sign(&mut self, slot: u32, given: &Text<'_>) {
        let given = given.value().into_owned();
        self.wait_for(given.len());
        if let Some(piece) = self.line.iter_mut().rev().find(|piece| piece.slot == slot) {
            if let Said::Thinking { signature } = &mut piece.said {
                *signature = given;
            }
        } else if let Some((slot, _)) = self.announced.take_if(|(announced, said)| {
            *announced == slot && matches!(said, Said::Thinking { .. })
        }) {
            let said = Said::Thinking { signature: given };
            self.stand_in_line(Piece {
                slot,
                said,
                kept: Gathered::default(),
                is_whole: false,
            });
        }
    }

    fn close(&mut self, slot: u32) {
        if let Some(piece) = self.line.iter_mut().find(|piece| piece.slot == slot) {
            piece.is_whole = true;
            self.advance(false);
        }
    }

    /// Opens what may be opened and closes what must give way, as far as the line allows. `at_end`:
    /// nothing more will be said.
    fn advance(&mut self, at_end: bool) {
        while let Some(first) = self.line.front() {
            let is_last = self.line.len() == 1;
            let is_done = at_end || first.is_whole || (!is_last && first.gives_way());
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

    /// `is_done`: all of it is here, and goes out now.
    fn open_first(&mut self, is_done: bool, at_end: bool) {
        let Some(mut first) = self.line.pop_front() else {
            return;
        };
        let mut json = self.frame("content_block_start");
        json.key("index")
            .number(self.next_index)
            .key("content_block")
            .open_object();
        match &first.said {
            Said::Text | Said::Refusal => json.key("type").str("text").key("text").str(""),
            Said::Thinking { .. } => json
                .key("type")
                .str("thinking")
                .key("thinking")
                .str("")
                .key("signature")
                .str(""),
            Said::Hidden => json
                .key("type")
                .str("redacted_thinking")
                .key("data")
                .text(&first.kept.text()),
            Said::Call(call) => {
                json.key("type").str("tool_use").key("id").str(&call.id);
                json.key("name")
                    .str(&call.name)
                    .key("input")
                    .open_object()
                    .close_object()
            }
        };
        json.close_object();
        self.end_frame(json);
        self.is_open = true;
        self.delta_head.clear();
        let (kind, member) = match &first.said {
            Said::Text | Said::Refusal | Said::Hidden => ("text_delta", "text"),
            Said::Thinking { .. } => ("thinking_delta", "thinking"),
            Said::Call(_) => ("input_json_delta", "partial_json"),
        };
        let head = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\
             \"{kind}\",\"{member}\":\"",
            self.next_index
        );
        self.delta_head.extend_from_slice(head.as_bytes());
        self.waiting_bytes = self.waiting_bytes.saturating_sub(first.kept.len());
        let kept = std::mem::take(&mut first.kept);
        match &first.said {
            Said::Text | Said::Refusal | Said::Thinking { .. } => self.write_delta(&kept.text()),
            Said::Hidden => {}
            Said::Call(call) => {
                let was_cut = at_end && self.heard.breaks_off() && self.line.is_empty();
                let text = call.arguments.opening(&kept, is_done, was_cut);
                self.write_delta(&text);
            }
        }
        self.line.push_front(first);
    }

    fn close_first(&mut self) {
        let Some(first) = self.line.pop_front() else {
            return;
        };
        if let Said::Thinking { signature } = &first.said {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(signature.len());
            let mut json = self.frame("content_block_delta");
            json.key("index")
                .number(self.next_index)
                .key("delta")
                .open_object();
            let signature = if signature.is_empty() {
                carrier::MARK
            } else {
                signature
            };
            json.key("type")
                .str("signature_delta")
                .key("signature")
                .str(signature)
                .close_object();
            self.end_frame(json);
        }
        let mut json = self.frame("content_block_stop");
        json.key("index").number(self.next_index);
        self.end_frame(json);
        let names = match &first.said {
            Said::Call(call) => call.id.len() + call.name.len(),
            Said::Text | Said::Refusal | Said::Thinking { .. } | Said::Hidden => 0,
        };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(PIECE_BYTES + names);
        self.is_open = false;
        self.next_index += 1;
    }

    fn write_delta(&mut self, text: &Text<'_>) {
        if text.is_empty() {
            return;
        }
        self.out.extend_from_slice(&self.delta_head);
        text.write_inside(&mut self.out);
        self.out.extend_from_slice(b"\"}}\n\n");
    }

    fn start(&mut self) {
        let mut json = self.frame("message_start");
        json.key("message").open_object();
        self.heard.write_envelope(&mut json);
        json.key("content").open_array().close_array();
        json.key("stop_reason").null().key("stop_sequence").null();
        json.key("usage").open_object();
        json.key("input_tokens")
            .number(self.heard.recall.input_estimate);
        json.key("cache_creation_input_tokens")
            .number(0)
            .key("cache_read_input_tokens")
            .number(0);
        json.key("output_tokens").number(0);
        json.close_object().close_object();
        self.end_frame(json);
        self.out.extend_from_slice(KEEP_ALIVE);
    }

    fn end(&mut self) {
        self.advance(true);
        let mut json = self.frame("message_delta");
        json.key("delta").open_object();
        self.heard.write_stop(&mut json);
        json.key("container").null().close_object();
        json.key("usage");
        write_usage(&self.heard.usage(), &mut json);
        self.end_frame(json);
        let json = self.frame("message_stop");
        self.end_frame(json);
        self.is_over = true;
    }

    /// Begins an event: its two lines say the same type, for there are clients of either.
    fn frame(&mut self, kind: &str) -> Json {
        let mut out = std::mem::take(&mut self.out);
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        let mut json = Json::onto(out);
        json.open_object().key("type").str(kind);
        json
    }

    fn end_frame(&mut self, mut json: Json) {
        json.close_object();
        self.out = json.into_bytes();
        self.out.extend_from_slice(b"\n\n");
    }
}

impl Sink for Stream {
    fn event(&mut self, event: Event<'_>) {
        if self.is_over || self.overflowed {
            return;
        }
        match event {
            Event::Start(start) => {
                self.heard.start(&start);
                self.start();
            }
            Event::Open { slot, piece } => self.open(slot, piece),
            Event::Delta { slot, text } => {
                self.heard.generated(&text);
                self.delta(slot, &text);
            }
            Event::Signature { slot, signature } => self.sign(slot, &signature),
            // A text names its sources itself.
            Event::Citation { .. } | Event::Counters { .. } => {}
            Event::Close { slot } => self.close(slot),
            Event::Stop(stop) => self.heard.stop(stop),
            Event::Usage { usage, .. } => self.heard.used(usage),
            Event::End => self.end(),
        }
        if self.overflowed {
            self.line.clear();
            self.held_space.clear();
        }
    }
}

impl Piece {
    /// It may be opened: there is something to say, and no need to see the rest of it first.
    fn is_ready(&self) -> bool {
        match &self.said {
            Said::Text | Said::Refusal | Said::Hidden => true,
            Said::Thinking { signature } => !self.kept.is_empty() || !signature.is_empty(),
            Said::Call(call) => call.arguments.may_be_opened(),
        }
    }

    /// It need not be waited for when something else is to be said.
    fn gives_way(&self) -> bool {
        match &self.said {
            Said::Text | Said::Refusal | Said::Thinking { .. } | Said::Hidden => true,
            Said::Call(call) => call.arguments.are_whole(),
        }
    }
}

/// The usage object of the stream's end, with every member that clients read.
pub fn write_usage(usage: &Usage, json: &mut Json) {
    // By the protocol's rule the counters leave the passes out, which stand beside them.
    let (passes, usage) = (&usage.compactions, &usage.without_passes());
    json.open_object()
        .key("input_tokens")
        .number(usage.input.saturating_add(usage.audio_input));
    json.key("cache_creation_input_tokens")
        .number(usage.cache_write_5m.saturating_add(usage.cache_write_1h));
    json.key("cache_read_input_tokens").number(usage.cache_read);
    json.key("output_tokens").number(usage.output_total());
    json.key("output_tokens_details")
        .open_object()
        .key("thinking_tokens")
        .number(usage.reasoning)
        .close_object();
    if usage.cache_write_1h > 0 {
        json.key("cache_creation").open_object();
        json.key("ephemeral_5m_input_tokens")
            .number(usage.cache_write_5m);
        json.key("ephemeral_1h_input_tokens")
            .number(usage.cache_write_1h)
            .close_object();
    }
    if usage.web_searches > 0 {
        json.key("server_tool_use").open_object();
        json.key("web_search_requests")
            .number(usage.web_searches)
            .close_object();
    }
    write_iterations(passes, json);
    json.close_object();
}

fn write_iterations(passes: &Passes, json: &mut Json) {
    if passes.is_empty() {
        return;
    }
    json.key("iterations").open_array();
    for pass in passes.iter() {
        let [input, read, short, long, output] = [
            pass.input,
            pass.cache_read,
            pass.cache_write_5m,
            pass.cache_write_1h,
            pass.output,
        ]
        .map(u64::from);
        json.open_object()
            .key("type")
            .str("compaction")
            .key("input_tokens")
            .number(input);
        json.key("output_tokens")
            .number(output)
            .key("cache_read_input_tokens")
            .number(read);
        json.key("cache_creation_input_tokens")
            .number(short.saturating_add(long));
        json.key("cache_creation")
            .open_object()
            .key("ephemeral_5m_input_tokens")
            .number(short);
        json.key("ephemeral_1h_input_tokens")
            .number(long)
            .close_object()
            .close_object();
    }
    json.close_array();
}

fn text_bytes(text: &Text<'_>) -> usize {
    match text {
        Text::Token { raw, .. } => raw.len(),
        Text::Made(text) => text.len(),
    }
}
