//! Encodes an answer as one body.
//!
//! It must omit empty members, except those that every client reads: content, refusal, usage.
//!
//! Read next: `write_stream/answer_builder.rs`.

use super::course::{Course, Form, Shape};
use crate::protocol::form::answer::{Recall, Start};
use crate::protocol::rules::names;
use crate::protocol::text::{Gathered, Json, Text};

/// Maximum number of bytes that are buffered.
pub(super) const BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct Message {
    /// Members before `choices`.
    head: Json,
    content: Gathered,
    refusal: Gathered,
    calls: Vec<Call>,
    /// Number of buffered bytes.
    bytes: usize,
    body: Vec<u8>,
}

#[derive(Debug)]
struct Call {
    number: u64,
    form: Form,
    id: Gathered,
    name: String,
    arguments: Gathered,
}

impl Message {
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    pub fn overflowed(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    fn write(&self, course: &Course, json: &mut Json) {
        json.open_object()
            .key("role")
            .str("assistant")
            .key("content");
        let has_refusal = !self.refusal.is_empty() || course.declined().is_some();
        if course.has_text || (self.calls.is_empty() && !has_refusal) {
            json.text(&self.content.text());
        } else {
            json.null();
        }
        json.key("refusal");
        match course.declined() {
            Some(declined) => json.text(&declined),
            None if has_refusal => json.text(&self.refusal.text()),
            None => json.null(),
        };
        if !course.sources.is_empty() {
            json.key("annotations");
            course.sources.write(false, json);
        }
        self.write_calls(json);
        if course.details.texts().any(|text| !text.is_empty()) {
            json.key("reasoning_content")
                .joined(course.details.texts().collect::<Vec<_>>().iter());
        }
        if !course.details.is_empty() {
            json.key("reasoning_details");
            course.details.write(json);
        }
        json.close_object();
    }

    fn write_calls(&self, json: &mut Json) {
        if let [
            Call {
                form: Form::Legacy,
                name,
                arguments,
                ..
            },
        ] = self.calls.as_slice()
        {
            json.key("function_call")
                .open_object()
                .key("name")
                .str(name);
            json.key("arguments").text(&arguments.text()).close_object();
            return;
        }
        if self.calls.is_empty() {
            return;
        }
        json.key("tool_calls").open_array();
        for call in &self.calls {
            let (kind, arguments) = match call.form {
                Form::Function | Form::Legacy => ("function", "arguments"),
                Form::Custom => ("custom", "input"),
            };
            json.open_object()
                .key("id")
                .text(&call.id.text())
                .key("type")
                .str(kind)
                .key(kind)
                .open_object();
            json.key("name")
                .str(&call.name)
                .key(arguments)
                .text(&call.arguments.text());
            json.close_object().close_object();
        }
        json.close_array();
    }

    /// Removes the code fence if it encloses the whole content, and shifts the positions in the
    /// content.
    fn unwrap_fence(&mut self, course: &mut Course) {
        let content = self.content.text();
        let content = content.value();
        let Some((before, inside)) = unfenced(&content) else {
            return;
        };
        let start = Text::made(before).code_points();
        let inside = Text::made(inside);
        course.details.shift(start, inside.code_points());
        course.sources.shift(start, inside.code_points());
        let mut content = Gathered::default();
        content.push(&inside);
        self.content = content;
    }
}

impl Shape for Message {
    fn start(&mut self, start: &Start<'_>, recall: &Recall) {
        self.head
            .open_object()
            .key("id")
            .str(&names::chat_answer_id(start.id.as_ref(), &recall.seed));
        self.head
            .key("object")
            .str("chat.completion")
            .key("created")
            .number(recall.created);
        self.head
            .key("model")
            .str(&recall.public_model)
            .key("system_fingerprint")
            .null();
        write_tier(start.tier.as_ref(), recall, &mut self.head);
    }

    fn content(&mut self, text: &Text<'_>) {
        gather(text, &mut self.content, &mut self.bytes);
    }

    /// The answer builder keeps the reasoning.
    fn reasoning(&mut self, _text: &Text<'_>) {}

    fn refusal(&mut self, text: &Text<'_>) {
        gather(text, &mut self.refusal, &mut self.bytes);
    }

    fn call(&mut self, number: u64, form: Form, id: &Text<'_>, name: &str) {
        let mut call = Call {
            number,
            form,
            id: Gathered::default(),
            name: name.to_owned(),
            arguments: Gathered::default(),
        };
        gather(id, &mut call.id, &mut self.bytes);
        self.bytes = self.bytes.saturating_add(size_of::<Call>() + name.len());
        self.calls.push(call);
    }

    fn arguments(&mut self, number: u64, _form: Form, text: &Text<'_>) {
        if let Some(call) = self.calls.iter_mut().rfind(|call| call.number == number) {
            gather(text, &mut call.arguments, &mut self.bytes);
        }
    }

    fn end(&mut self, course: &mut Course) {
        if course.recall.unwrap_fence {
            self.unwrap_fence(course);
        }
        let mut json = std::mem::take(&mut self.head);
        json.key("choices")
            .open_array()
            .open_object()
            .key("index")
            .number(0)
            .key("message");
        self.write(course, &mut json);
        json.key("logprobs")
            .null()
            .key("finish_reason")
            .str(course.finish_reason());
        json.close_object().close_array().key("usage");
        course.told.write(&mut json);
        json.close_object();
        self.body = json.into_bytes();
    }
}

fn gather(text: &Text<'_>, into: &mut Gathered, bytes: &mut usize) {
    let before = into.len();
    into.push(text);
    *bytes = bytes.saturating_add(into.len() - before);
}

/// Writes the service tier that served the request, if the caller asked for one.
pub(super) fn write_tier(tier: Option<&Text<'_>>, recall: &Recall, json: &mut Json) {
    if recall.tell_tier {
        let tier = tier.map(Text::value);
        json.key("service_tier").str(match tier.as_deref() {
            Some("priority") => "priority",
            Some("batch") => "flex",
            _ => "default",
        });
    }
}

/// Returns the text before a code fence and the text inside it, if one fence encloses the whole
/// text.
fn unfenced(text: &str) -> Option<(&str, &str)> {
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
