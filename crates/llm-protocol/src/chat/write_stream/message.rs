//! Encodes an answer as one body.
//!
//! The encoder must omit empty members, except content, refusal and usage, which every client
//! reads.
//!
//! Read next: `write_stream/answer_builder.rs`.

use super::answer_builder::{ChatAnswerBuilder, ChatCallForm, ChatEncoder};
use crate::capabilities::response_ids;
use crate::ir::event::{ResponseContext, ResponseStart};
use crate::json::{JoinedText, JsonNull, JsonStr, JsonStrBuf, JsonWriter};

#[derive(Debug, Default)]
pub struct ChatMessageEncoder {
    /// Members before `choices`, as JSON.
    head: JsonWriter,
    content: JsonStrBuf,
    refusal: JsonStrBuf,
    calls: Vec<BufferedChatCall>,
    bytes: usize,
    body: Vec<u8>,
}

#[derive(Debug)]
struct BufferedChatCall {
    number: u64,
    form: ChatCallForm,
    id: JsonStrBuf,
    name: String,
    arguments: JsonStrBuf,
}

impl ChatMessageEncoder {
    fn write(&self, builder: &ChatAnswerBuilder, json: &mut JsonWriter) {
        let own = (!self.refusal.is_empty()).then(|| self.refusal.text());
        let refusal = builder.refusal_explanation().or(own);
        let has_content = builder.has_text || (self.calls.is_empty() && refusal.is_none());
        json.open_object()
            .member("role", "assistant")
            .member("content", has_content.then(|| self.content.text()))
            .member("refusal", refusal);
        if !builder.sources.is_empty() {
            json.key("annotations");
            builder.sources.write(false, json);
        }
        self.write_calls(json);
        if builder.details.texts().any(|text| !text.is_empty()) {
            json.member(
                "reasoning_content",
                JoinedText(builder.details.texts().collect::<Vec<_>>().iter()),
            );
        }
        if !builder.details.is_empty() {
            json.key("reasoning_details");
            builder.details.write(json);
        }
        json.close_object();
    }

    fn write_calls(&self, json: &mut JsonWriter) {
        if let [
            BufferedChatCall {
                form: ChatCallForm::Legacy,
                name,
                arguments,
                ..
            },
        ] = self.calls.as_slice()
        {
            json.member_object("function_call").member("name", name);
            json.member("arguments", arguments.text()).close_object();
            return;
        }
        if self.calls.is_empty() {
            return;
        }
        json.member_array("tool_calls");
        for call in &self.calls {
            let (kind, arguments) = match call.form {
                ChatCallForm::Function | ChatCallForm::Legacy => ("function", "arguments"),
                ChatCallForm::Custom => ("custom", "input"),
            };
            json.open_object()
                .member("id", call.id.text())
                .member("type", kind)
                .member_object(kind);
            json.member("name", &call.name)
                .member(arguments, call.arguments.text());
            json.close_object().close_object();
        }
        json.close_array();
    }

    /// Removes the code fence if it encloses the whole content, and shifts the positions in the
    /// content.
    fn unwrap_code_fence(&mut self, builder: &mut ChatAnswerBuilder) {
        let content = self.content.text();
        let content = content.value();
        let Some((before, inside)) = strip_code_fence(&content) else {
            return;
        };
        let start = JsonStr::from_value(before).code_points();
        let inside = JsonStr::from_value(inside);
        builder.details.shift_anchors(start, inside.code_points());
        builder.sources.shift_ranges(start, inside.code_points());
        let mut content = JsonStrBuf::default();
        content.push(&inside);
        self.content = content;
    }
}

impl ChatEncoder for ChatMessageEncoder {
    const MAX_BUFFERED_BYTES: usize = 64 << 20;

    fn output(&mut self) -> &mut Vec<u8> {
        &mut self.body
    }

    fn overflowed(&self) -> bool {
        self.bytes > Self::MAX_BUFFERED_BYTES
    }

    fn start(&mut self, start: &ResponseStart<'_>, response_context: &ResponseContext) {
        self.head.open_object().member(
            "id",
            response_ids::chat_response_id(start.id.as_ref(), &response_context.seed),
        );
        self.head
            .member("object", "chat.completion")
            .member("created", response_context.created);
        self.head
            .member("model", &response_context.public_model)
            .member("system_fingerprint", JsonNull);
        write_tier(start.tier.as_ref(), response_context, &mut self.head);
    }

    fn content(&mut self, text: &JsonStr<'_>) {
        append_counted(text, &mut self.content, &mut self.bytes);
    }

    /// Does nothing, because the answer builder keeps the reasoning.
    fn reasoning(&mut self, _text: &JsonStr<'_>) {}

    fn refusal(&mut self, text: &JsonStr<'_>) {
        append_counted(text, &mut self.refusal, &mut self.bytes);
    }

    fn call(&mut self, number: u64, form: ChatCallForm, id: &JsonStr<'_>, name: &str) {
        let mut call = BufferedChatCall {
            number,
            form,
            id: JsonStrBuf::default(),
            name: name.to_owned(),
            arguments: JsonStrBuf::default(),
        };
        append_counted(id, &mut call.id, &mut self.bytes);
        self.bytes = self
            .bytes
            .saturating_add(size_of::<BufferedChatCall>() + name.len());
        self.calls.push(call);
    }

    fn arguments(&mut self, number: u64, _form: ChatCallForm, text: &JsonStr<'_>) {
        if let Some(call) = self.calls.iter_mut().rfind(|call| call.number == number) {
            append_counted(text, &mut call.arguments, &mut self.bytes);
        }
    }

    fn end(&mut self, builder: &mut ChatAnswerBuilder) {
        if builder.response_context.unwrap_fence {
            self.unwrap_code_fence(builder);
        }
        let mut json = std::mem::take(&mut self.head);
        json.member_array("choices")
            .open_object()
            .member("index", 0)
            .key("message");
        self.write(builder, &mut json);
        json.member("logprobs", JsonNull)
            .member("finish_reason", builder.finish_reason());
        json.close_object().close_array().key("usage");
        builder.usage_tracker.write(&mut json);
        json.close_object();
        self.body = json.into_bytes();
    }
}

fn append_counted(text: &JsonStr<'_>, into: &mut JsonStrBuf, bytes: &mut usize) {
    let before = into.len();
    into.push(text);
    *bytes = bytes.saturating_add(into.len() - before);
}

/// Writes the service tier that served the request, if the caller asked for one.
pub(super) fn write_tier(
    tier: Option<&JsonStr<'_>>,
    response_context: &ResponseContext,
    json: &mut JsonWriter,
) {
    if response_context.report_tier {
        let tier = tier.map(JsonStr::value);
        json.member(
            "service_tier",
            match tier.as_deref() {
                Some("priority") => "priority",
                Some("batch") => "flex",
                _ => "default",
            },
        );
    }
}

/// Returns the text before a code fence and the text inside it, if one fence encloses the whole
/// text.
fn strip_code_fence(text: &str) -> Option<(&str, &str)> {
    let fenced = text.trim().strip_prefix("```")?.strip_suffix("```")?;
    let (language, inside) = fenced.split_once('\n')?;
    let (inside, indent) = inside.rsplit_once('\n')?;
    let is_one = !inside
        .lines()
        .any(|line| line.trim_start().starts_with("```"));
    if !is_one || language.contains('`') || !indent.trim().is_empty() {
        return None;
    }
    let start = text.find(fenced)?.checked_add(language.len() + 1)?;
    Some((text.get(..start)?, inside))
}
