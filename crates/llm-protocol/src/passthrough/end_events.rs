//! Writes the end of a stream in the vendor's place, because the vendor continued past the output
//! limit or sent a stop reason without a last event.
//!
//! This file must not decide about the end of a stream or its usage.
//!
//! Read next: `chat.rs` and `messages.rs` in this folder, which keep the state that an end needs.

use super::{chat, messages, responses};
use crate::chat::write_stream::{write_finished_choice, write_usage as write_chat_usage};
use crate::event_frame::write_typed_event;
use crate::json::{JsonNull, JsonWriter, RawJson};
use crate::messages::write_stream::write_usage as write_messages_usage;
use crate::responses::write_stream::completion::write_usage as write_responses_usage;
use crate::usage::Usage;

/// Writes a finish chunk for every unfinished choice, the usage unless it is hidden, and `[DONE]`.
pub(super) fn write_chat_end(
    seen: &chat::ChatStreamState,
    model_json: &str,
    usage: Option<&Usage>,
    out: &mut Vec<u8>,
) {
    for index in seen.unfinished_choices() {
        write_finish_chunk(seen, model_json, index, "length", out);
    }
    if let Some(usage) = usage {
        write_chat_usage_chunk(seen, model_json, usage, out);
    }
    out.extend_from_slice(b"data: [DONE]\n\n");
}

pub(super) fn write_finish_chunk(
    seen: &chat::ChatStreamState,
    model_json: &str,
    index: u64,
    reason: &str,
    out: &mut Vec<u8>,
) {
    let finish = |json: &mut JsonWriter| match seen.is_text {
        true => {
            json.open_object()
                .member("index", index)
                .member("text", "")
                .member("logprobs", JsonNull)
                .member("finish_reason", reason);
            json.close_object();
        }
        false => write_finished_choice(json, index, reason),
    };
    write_chat_chunk(seen, model_json, &finish, None, out);
}

pub(super) fn write_chat_usage_chunk(
    seen: &chat::ChatStreamState,
    model_json: &str,
    usage: &Usage,
    out: &mut Vec<u8>,
) {
    write_chat_chunk(seen, model_json, &|_| {}, Some(usage), out);
}

fn write_chat_chunk(
    seen: &chat::ChatStreamState,
    model_json: &str,
    choices: &dyn Fn(&mut JsonWriter),
    usage: Option<&Usage>,
    out: &mut Vec<u8>,
) {
    let object = match seen.is_text {
        true => "text_completion",
        false => "chat.completion.chunk",
    };
    out.extend_from_slice(b"data: ");
    JsonWriter::append_to(out, |json| {
        json.open_object()
            .member("id", RawJson(seen.id.json()))
            .member("object", object)
            .member("created", seen.id.created)
            .member("model", RawJson(model_json))
            .member_array("choices");
        choices(json);
        json.close_array();
        if let Some(usage) = usage {
            json.key("usage");
            write_chat_usage(usage, json);
        }
        json.close_object();
    });
    out.extend_from_slice(b"\n\n");
}

/// Writes the end of the open block, the stop reason with the usage, and the terminal event.
pub(super) fn write_messages_end(
    seen: &messages::MessagesStreamState,
    usage: &Usage,
    out: &mut Vec<u8>,
) {
    write_block_stop(seen, out);
    write_typed_event("message_delta", out, |json| {
        json.member_object("delta")
            .member("stop_reason", "max_tokens")
            .member("stop_sequence", JsonNull);
        json.close_object().key("usage");
        write_messages_usage(usage, json);
    });
    write_typed_event("message_stop", out, |_| {});
}

/// Writes the terminal event that follows the vendor's stop reason.
pub(super) fn write_messages_stop(seen: &messages::MessagesStreamState, out: &mut Vec<u8>) {
    write_block_stop(seen, out);
    write_typed_event("message_stop", out, |_| {});
}

fn write_block_stop(seen: &messages::MessagesStreamState, out: &mut Vec<u8>) {
    if let Some(index) = seen.open_block() {
        write_typed_event("content_block_stop", out, |json| {
            json.member("index", index);
        });
    }
}

/// Writes the terminal event. Items that are still open are not closed, because the client shows
/// them as cut off.
pub(super) fn write_responses_end(
    seen: &responses::ResponsesStreamState,
    model_json: &str,
    usage: &Usage,
    out: &mut Vec<u8>,
) {
    write_typed_event("response.incomplete", out, |json| {
        json.member("sequence_number", seen.next_sequence())
            .member_object("response");
        json.member("id", RawJson(seen.id.json()))
            .member("object", "response")
            .member("created_at", seen.id.created);
        json.member("status", "incomplete")
            .member("error", JsonNull);
        json.member("incomplete_details", ("reason", "max_output_tokens"));
        json.member("model", RawJson(model_json))
            .member_array("output")
            .close_array();
        json.key("usage");
        write_responses_usage(usage, json);
        json.close_object();
    });
}
