//! Writes an answer as one messages body.
//!
//! The writer must limit its buffer, because a stream that becomes one body has no known length.
//!
//! Read next: `messages/write_stream/completion.rs`.

use super::completion::MessagesCompletion;
use super::unseen_thinking::UnseenThinking;
use crate::capabilities::arguments::{write_input, write_truncated_input};
use crate::ir::event::{AnswerWriter, Event, EventSink, OutputPart, ResponseContext};
use crate::json::{JsonNull, JsonStr, JsonStrBuf, JsonWriter};
use crate::reasoning_token;

/// Maximum number of bytes that are buffered.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Number of bytes counted for each block besides its text, both in memory and in the output.
const BLOCK_OVERHEAD_BYTES: usize = 256;

#[derive(Debug, Default)]
pub struct MessagesBodyWriter {
    completion: MessagesCompletion,
    blocks: Vec<MessagesBodyBlock>,
    bytes: usize,
    overflowed: bool,
    unseen: UnseenThinking,
}

#[derive(Debug)]
struct MessagesBodyBlock {
    slot: u32,
    kind: MessagesBodyBlockKind,
    text: JsonStrBuf,
}

#[derive(Debug)]
enum MessagesBodyBlockKind {
    Text,
    Refusal,
    Thinking {
        signature: String,
    },
    Hidden,
    Call {
        id: String,
        name: String,
        is_custom: bool,
    },
}

impl MessagesBodyWriter {
    pub fn new(response_context: ResponseContext) -> Self {
        MessagesBodyWriter {
            completion: MessagesCompletion::new(response_context),
            ..MessagesBodyWriter::default()
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut json = JsonWriter::with_capacity(self.bytes + 1024);
        json.open_object();
        self.completion.write_envelope(&mut json);
        json.member_array("content");
        let last = self.blocks.len().saturating_sub(1);
        for (at, block) in self.blocks.iter().enumerate() {
            block.write(at == last && self.completion.is_cut_short(), &mut json);
        }
        json.close_array();
        self.completion.write_stop(&mut json);
        json.member("container", JsonNull);
        self.write_usage(&mut json);
        json.close_object();
        json.into_bytes()
    }

    fn write_usage(&self, json: &mut JsonWriter) {
        let usage = self.completion.usage();
        let cache_write = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
        json.member_object("usage");
        json.member(
            "input_tokens",
            usage.input.saturating_add(usage.audio_input),
        );
        json.member("cache_creation_input_tokens", cache_write);
        json.member("cache_read_input_tokens", usage.cache_read);
        json.member_object("cache_creation");
        json.member("ephemeral_5m_input_tokens", usage.cache_write_5m);
        json.member("ephemeral_1h_input_tokens", usage.cache_write_1h)
            .close_object();
        json.member("output_tokens", usage.output_total());
        json.member(
            "output_tokens_details",
            ("thinking_tokens", usage.reasoning),
        );
        json.member("server_tool_use", JsonNull);
        json.member(
            "service_tier",
            if self.completion.is_priority() {
                "priority"
            } else {
                "standard"
            },
        );
        json.close_object();
    }

    fn open(&mut self, slot: u32, piece: OutputPart<'_>) {
        let token = match piece {
            OutputPart::Call { .. } => self.unseen.begin_call(),
            OutputPart::Thinking if self.unseen.is_sealed() => self.unseen.take_token(),
            _ => None,
        };
        self.keep_unseen_thinking(token);
        let mut text = JsonStrBuf::default();
        let kind = match piece {
            OutputPart::Text => MessagesBodyBlockKind::Text,
            OutputPart::Refusal => MessagesBodyBlockKind::Refusal,
            OutputPart::Thinking if self.completion.response_context.show_thinking => {
                MessagesBodyBlockKind::Thinking {
                    signature: String::new(),
                }
            }
            OutputPart::Hidden { data } if self.completion.response_context.show_thinking => {
                text.push(&data);
                MessagesBodyBlockKind::Hidden
            }
            OutputPart::State { token } => {
                text.push(&token);
                MessagesBodyBlockKind::Hidden
            }
            OutputPart::Thinking => {
                let replay = self.completion.response_context.reasoning_replay;
                return self.unseen.open(slot, replay);
            }
            // The client did not ask for this part, or the protocol cannot represent it.
            OutputPart::Hidden { .. } | OutputPart::Search { .. } | OutputPart::Foreign { .. } => {
                return;
            }
            OutputPart::Call {
                id,
                name,
                is_custom,
            } => {
                let (id, name) = self.completion.resolve_call(id, &name);
                self.bytes = self.bytes.saturating_add(id.len() + name.len());
                MessagesBodyBlockKind::Call {
                    id,
                    name,
                    is_custom,
                }
            }
        };
        self.bytes = self.bytes.saturating_add(BLOCK_OVERHEAD_BYTES + text.len());
        // A text that continues after omitted content remains one block.
        match (self.blocks.last_mut(), &kind) {
            (
                Some(
                    last @ MessagesBodyBlock {
                        kind: MessagesBodyBlockKind::Text,
                        ..
                    },
                ),
                MessagesBodyBlockKind::Text,
            ) => last.slot = slot,
            _ => self.blocks.push(MessagesBodyBlock { slot, kind, text }),
        }
    }

    /// Makes a block of hidden thinking.
    fn keep_unseen_thinking(&mut self, token: Option<String>) {
        let Some(token) = token else {
            return;
        };
        let mut text = JsonStrBuf::default();
        text.push(&JsonStr::from_value(token));
        self.bytes = self.bytes.saturating_add(BLOCK_OVERHEAD_BYTES + text.len());
        self.blocks.push(MessagesBodyBlock {
            // No other part belongs to the block, so no event names its slot.
            slot: u32::MAX,
            kind: MessagesBodyBlockKind::Hidden,
            text,
        });
    }

    fn block(&mut self, slot: u32) -> Option<&mut MessagesBodyBlock> {
        self.blocks
            .iter_mut()
            .rev()
            .find(|block| block.slot == slot)
    }

    fn delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        self.completion.count_generated(text);
        self.unseen.delta(slot, text);
        let Some(block) = self.block(slot) else {
            return;
        };
        let before = block.text.len();
        block.text.push(text);
        let added = block.text.len().saturating_sub(before);
        self.bytes = self.bytes.saturating_add(added);
    }

    fn set_signature(&mut self, slot: u32, new_signature: &JsonStr<'_>) {
        self.unseen.set_signature(slot, new_signature);
        let Some(MessagesBodyBlock {
            kind: MessagesBodyBlockKind::Thinking { signature },
            ..
        }) = self.block(slot)
        else {
            return;
        };
        *signature = new_signature.value().into_owned();
        let added = signature.len();
        self.bytes = self.bytes.saturating_add(added);
    }
}

impl AnswerWriter for MessagesBodyWriter {
    fn take(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.body());
    }

    fn overflowed(&self) -> bool {
        self.overflowed
    }
}

impl EventSink for MessagesBodyWriter {
    fn event(&mut self, event: Event<'_>) {
        if self.overflowed {
            return;
        }
        match event {
            Event::Start(start) => self.completion.start(&start),
            Event::Open { slot, piece } => self.open(slot, piece),
            Event::Delta { slot, text } => self.delta(slot, &text),
            Event::Signature { slot, signature } => self.set_signature(slot, &signature),
            // Citations are dropped, because the text itself names its sources.
            Event::Citation { .. }
            | Event::Close { .. }
            | Event::Counters { .. }
            | Event::Warning(_) => {}
            Event::End => {
                let token = self.unseen.finish();
                self.keep_unseen_thinking(token);
            }
            Event::Stop(stop) => self.completion.set_stop(stop),
            Event::Usage { usage, .. } => self.completion.set_usage(usage),
        }
        if self.bytes > MAX_ANSWER_BYTES {
            self.overflowed = true;
            self.blocks = Vec::new();
        }
    }
}

impl MessagesBodyBlock {
    /// Writes the block. `was_cut` says whether the answer was cut off inside the block.
    fn write(&self, was_cut: bool, json: &mut JsonWriter) {
        let text = self.text.text();
        match &self.kind {
            // Vendors refuse a blank block in the history of a later request.
            MessagesBodyBlockKind::Text | MessagesBodyBlockKind::Refusal if text.is_blank() => {}
            MessagesBodyBlockKind::Text | MessagesBodyBlockKind::Refusal => {
                json.open_typed("text").member("text", &text);
                json.member("citations", JsonNull).close_object();
            }
            MessagesBodyBlockKind::Thinking { signature }
                if text.is_empty() && signature.is_empty() => {}
            MessagesBodyBlockKind::Thinking { signature } => {
                let signature = if signature.is_empty() {
                    reasoning_token::TOKEN_PREFIX
                } else {
                    signature
                };
                json.open_typed("thinking").member("thinking", &text);
                json.member("signature", signature).close_object();
            }
            MessagesBodyBlockKind::Hidden => {
                json.open_typed("redacted_thinking")
                    .member("data", &text)
                    .close_object();
            }
            MessagesBodyBlockKind::Call {
                id,
                name,
                is_custom,
            } => {
                json.open_typed("tool_use")
                    .member("id", id)
                    .member("name", name)
                    .key("input");
                if was_cut {
                    write_truncated_input(&text, json);
                } else if *is_custom {
                    json.open_object().member("input", &text).close_object();
                } else {
                    write_input(&text, json);
                }
                json.close_object();
            }
        }
    }
}
