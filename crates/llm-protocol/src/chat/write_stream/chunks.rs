//! Encodes an answer as a stream of chunks.
//!
//! The encoder must not repeat a member, because clients that accumulate a stream concatenate
//! repeated strings. Only the first chunk has the role, and only the first chunk of a call has its
//! id and name. The encoder writes no `event:` and no `id:` lines: after an `id:`, one client takes
//! the next comment for an event.
//!
//! Read next: `write_stream/message.rs`, which encodes one body.

use super::answer_builder::{ChatAnswerBuilder, ChatCallForm, ChatEncoder};
use super::message::write_tier;
use crate::capabilities::response_ids;
use crate::ir::event::{ResponseContext, ResponseStart};
use crate::json::{JsonNull, JsonStr, JsonWriter};
use std::io::Write;

const DELTA_OPEN: &[u8] = b"{\"index\":0,\"delta\":";
const NO_FINISH_REASON: &[u8] = b",\"logprobs\":null,\"finish_reason\":null}]";
const USAGE_NULL: &[u8] = b",\"usage\":null";
const FRAME_END: &[u8] = b"}\n\n";
const DONE_FRAME: &[u8] = b"data: [DONE]\n\n";

/// Writes the entry of a choice that ends without more output.
pub(crate) fn write_finished_choice(json: &mut JsonWriter, index: u64, reason: &str) {
    json.open_object()
        .member("index", index)
        .member_object("delta")
        .close_object();
    json.member("logprobs", JsonNull)
        .member("finish_reason", reason)
        .close_object();
}

#[derive(Debug, Default)]
pub struct ChatChunkEncoder {
    out: Vec<u8>,
    /// Fixed text of every chunk. `head` precedes the choices, and `tail` follows them.
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl ChatChunkEncoder {
    /// Writes a chunk whose delta consists of `before`, the text and `after`.
    fn text_chunk(&mut self, before: &[u8], text: &JsonStr<'_>, after: &[u8]) {
        self.open();
        self.out.extend_from_slice(before);
        text.write_unquoted(&mut self.out);
        self.out.extend_from_slice(after);
        self.close();
    }

    /// Writes a chunk whose delta has one member.
    fn member_chunk(&mut self, name: &str, write: impl FnOnce(&mut JsonWriter)) {
        self.open();
        JsonWriter::append_to(&mut self.out, |json| {
            json.open_object().key(name);
            write(json);
            json.close_object();
        });
        self.close();
    }

    /// Writes the part of a chunk before its delta.
    fn open(&mut self) {
        self.out.extend_from_slice(&self.head);
        self.out.extend_from_slice(DELTA_OPEN);
    }

    /// Writes the part of a chunk after its delta.
    fn close(&mut self) {
        self.out.extend_from_slice(NO_FINISH_REASON);
        self.out.extend_from_slice(&self.tail);
    }
}

impl ChatEncoder for ChatChunkEncoder {
    /// Eight MiB are more than ten times the reasoning of the longest answers. Beyond this limit,
    /// the stream continues without the deferred parts, but never without the input of a call.
    const MAX_BUFFERED_BYTES: usize = 8 << 20;

    fn output(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn overflowed(&self) -> bool {
        false
    }

    fn start(&mut self, start: &ResponseStart<'_>, response_context: &ResponseContext) {
        let id = response_ids::chat_response_id(start.id.as_ref(), &response_context.seed);
        self.head = b"data: ".to_vec();
        JsonWriter::append_to(&mut self.head, |json| {
            json.open_object()
                .member("id", id)
                .member("object", "chat.completion.chunk")
                .member("created", response_context.created)
                .member("model", &response_context.public_model)
                .member("system_fingerprint", JsonNull);
            write_tier(start.tier.as_ref(), response_context, json);
            json.member_array("choices");
        });
        let usage = if response_context.include_usage {
            USAGE_NULL
        } else {
            b""
        };
        self.tail = [usage, FRAME_END].concat();
        self.text_chunk(
            b"{\"role\":\"assistant\",\"content\":\"",
            &JsonStr::from_value(""),
            b"\",\"refusal\":null}",
        );
    }

    fn content(&mut self, text: &JsonStr<'_>) {
        self.text_chunk(b"{\"content\":\"", text, b"\"}");
    }

    fn reasoning(&mut self, text: &JsonStr<'_>) {
        self.text_chunk(b"{\"reasoning_content\":\"", text, b"\"}");
    }

    fn refusal(&mut self, text: &JsonStr<'_>) {
        self.text_chunk(b"{\"refusal\":\"", text, b"\"}");
    }

    fn call(&mut self, number: u64, form: ChatCallForm, id: &JsonStr<'_>, name: &str) {
        if form == ChatCallForm::Legacy {
            return self.member_chunk("function_call", |json| {
                json.open_object()
                    .member("name", name)
                    .member("arguments", "")
                    .close_object();
            });
        }
        let (kind, arguments) = match form {
            ChatCallForm::Function | ChatCallForm::Legacy => ("function", "arguments"),
            ChatCallForm::Custom => ("custom", "input"),
        };
        self.member_chunk("tool_calls", |json| {
            json.open_array()
                .open_object()
                .member("index", number)
                .member("id", id);
            json.member("type", kind)
                .member_object(kind)
                .member("name", name);
            json.member(arguments, "")
                .close_object()
                .close_object()
                .close_array();
        });
    }

    fn arguments(&mut self, number: u64, form: ChatCallForm, text: &JsonStr<'_>) {
        self.open();
        // Writing to a buffer in memory cannot fail.
        let _ = match form {
            ChatCallForm::Function => write!(
                self.out,
                r#"{{"tool_calls":[{{"index":{number},"function":{{"arguments":""#
            ),
            ChatCallForm::Custom => write!(
                self.out,
                r#"{{"tool_calls":[{{"index":{number},"custom":{{"input":""#
            ),
            ChatCallForm::Legacy => write!(self.out, r#"{{"function_call":{{"arguments":""#),
        };
        text.write_unquoted(&mut self.out);
        self.out.extend_from_slice(match form {
            ChatCallForm::Function | ChatCallForm::Custom => b"\"}}]}".as_slice(),
            ChatCallForm::Legacy => b"\"}}",
        });
        self.close();
    }

    fn end(&mut self, builder: &mut ChatAnswerBuilder) {
        if !builder.details.is_empty() {
            self.member_chunk("reasoning_details", |json| builder.details.write(json));
        }
        if !builder.sources.is_empty() {
            self.member_chunk("annotations", |json| builder.sources.write(true, json));
        }
        if let Some(declined) = builder.refusal_explanation() {
            self.refusal(&declined);
        }
        self.out.extend_from_slice(&self.head);
        JsonWriter::append_to(&mut self.out, |json| {
            write_finished_choice(json, 0, builder.finish_reason());
            json.close_array();
        });
        self.out.extend_from_slice(&self.tail);
        if builder.response_context.include_usage {
            self.out.extend_from_slice(&self.head);
            JsonWriter::append_to(&mut self.out, |json| {
                json.close_array().key("usage");
                builder.usage_tracker.write(json);
            });
            self.out.extend_from_slice(FRAME_END);
        }
        self.out.extend_from_slice(DONE_FRAME);
    }
}
