//! Decides the outcome of each event of an answer, for a stream and for one body alike.
//!
//! This file must not write JSON: the encoders do that. It keeps the data for the end of the
//! answer.
//!
//! Read next: `write_stream/deferred.rs`.

use super::deferred::{ChatCitations, ReasoningDetailsBuffer, try_consume};
use super::usage::ChatUsageTracker;
use crate::capabilities::response_ids;
use crate::ir::event::{Event, OutputPart, ResponseContext, ResponseStart, StopReason};
use crate::json::{JsonDocument, JsonStr, JsonStrBuf, MAX_RESPONSE_DEPTH, NodeBuffer};
use std::fmt::Debug;

/// Maximum number of open items. Vendors open a handful. Above the limit, the oldest item counts as
/// closed.
const MAX_OPEN_ITEMS: usize = 1024;

/// Refusal text for a model that declined without a text.
const DEFAULT_REFUSAL_TEXT: &str = "The model declined to answer.";

pub trait ChatEncoder: Debug + Default + Send + Sync {
    /// Maximum total number of bytes of parts that wait for the end of the answer.
    const MAX_BUFFERED_BYTES: usize;

    /// Returns the chunks written so far, or the body once it is complete.
    fn output(&mut self) -> &mut Vec<u8>;

    /// Returns whether the encoder holds more than its limit.
    fn overflowed(&self) -> bool;

    fn start(&mut self, start: &ResponseStart<'_>, response_context: &ResponseContext);
    fn content(&mut self, text: &JsonStr<'_>);
    fn reasoning(&mut self, text: &JsonStr<'_>);
    fn refusal(&mut self, text: &JsonStr<'_>);
    /// Begins call `number` without arguments.
    fn call(&mut self, number: u64, form: ChatCallForm, id: &JsonStr<'_>, name: &str);
    /// Adds arguments to call `number`.
    fn arguments(&mut self, number: u64, form: ChatCallForm, text: &JsonStr<'_>);
    fn end(&mut self, builder: &mut ChatAnswerBuilder);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChatCallForm {
    Function,
    Custom,
    /// The call is written as `function_call`, which a message has at most once.
    Legacy,
}

#[derive(Debug, Default)]
pub struct ChatAnswerBuilder {
    pub response_context: ResponseContext,
    pieces: Vec<(u32, ChatOpenItem)>,
    /// A call that ended without arguments. The arguments become an empty object, unless the answer
    /// is cut off at this call.
    bare: Option<(u64, ChatCallForm)>,
    /// Number of code points of the content so far.
    content_points: u64,
    /// True if the content so far ends in white space.
    ends_blank: bool,
    /// True if a part that chat cannot represent followed the latest text.
    after_foreign: bool,
    pub has_text: bool,
    pub calls: u64,
    pub(super) details: ReasoningDetailsBuffer,
    pub(super) sources: ChatCitations,
    /// Number of bytes by which the parts that wait for the end may still grow.
    budget: usize,
    /// True if a part that cannot be omitted exceeded the limit.
    pub overflowed: bool,
    ended: ChatAnswerEnding,
    /// Reason why the model declined.
    declined: Option<JsonStrBuf>,
    /// True if the model sent a refusal text itself.
    has_refusal: bool,
    pub(super) usage_tracker: ChatUsageTracker,
}

#[derive(Debug)]
enum ChatOpenItem {
    /// A text. `start` is the number of code points of content before the text, and is set with the
    /// first delta.
    Text {
        start: Option<u64>,
    },
    Refusal,
    Thinking {
        entry: usize,
    },
    Call {
        number: u64,
        form: ChatCallForm,
        has_arguments: bool,
    },
    /// The call of a custom tool whose input arrives inside a JSON object. The builder writes the
    /// input once the object is complete.
    Wrapped {
        number: u64,
        json: JsonStrBuf,
    },
    Skipped,
}

#[derive(Clone, Copy, Debug, Default)]
enum ChatAnswerEnding {
    #[default]
    Stop,
    Length,
    Calls,
    Declined,
}

impl ChatAnswerBuilder {
    /// Creates the builder. `budget` is the maximum number of bytes of parts that wait for the end
    /// of the answer.
    pub fn new(response_context: ResponseContext, budget: usize) -> Self {
        ChatAnswerBuilder {
            usage_tracker: ChatUsageTracker::new(response_context.estimator),
            response_context,
            budget,
            ..ChatAnswerBuilder::default()
        }
    }

    pub fn event(&mut self, event: Event<'_>, shape: &mut impl ChatEncoder) {
        match event {
            Event::Start(start) => shape.start(&start, &self.response_context),
            Event::Open { slot, piece } => self.open(slot, piece, shape),
            Event::Delta { slot, text } => self.delta(slot, &text, shape),
            Event::Signature { slot, signature } => {
                if let Some((_, ChatOpenItem::Thinking { entry })) =
                    self.pieces.iter().rfind(|(other, _)| *other == slot)
                {
                    self.details
                        .set_signature(*entry, &signature, &mut self.budget);
                }
            }
            Event::Citation { slot, title, url } => {
                self.sources
                    .add(slot, title.as_ref(), &url, &mut self.budget)
            }
            Event::Close { slot } => {
                if let Some(at) = self.pieces.iter().rposition(|(other, _)| *other == slot) {
                    let (slot, held) = self.pieces.remove(at);
                    self.close(slot, held, shape);
                }
            }
            Event::Stop(stop) => self.stop(stop),
            Event::Counters { .. } | Event::Warning(_) => {}
            Event::Usage { usage, is_final } => self.usage_tracker.record(usage, is_final),
            Event::End => {
                for (slot, held) in std::mem::take(&mut self.pieces) {
                    self.close(slot, held, shape);
                }
                if !matches!(
                    self.ended,
                    ChatAnswerEnding::Length | ChatAnswerEnding::Declined
                ) {
                    self.flush_empty_arguments(shape);
                }
                shape.end(self);
            }
        }
    }

    fn open(&mut self, slot: u32, piece: OutputPart<'_>, shape: &mut impl ChatEncoder) {
        self.flush_empty_arguments(shape);
        let anchor = (self.content_points, self.calls);
        let held = match piece {
            OutputPart::Text => {
                self.has_text = true;
                ChatOpenItem::Text { start: None }
            }
            OutputPart::Refusal => ChatOpenItem::Refusal,
            OutputPart::Thinking => ChatOpenItem::Thinking {
                entry: self.details.open(anchor, &mut self.budget),
            },
            OutputPart::Hidden { data } => {
                self.details.push_hidden(anchor, &data, &mut self.budget);
                ChatOpenItem::Skipped
            }
            OutputPart::Call {
                id,
                name,
                is_custom,
            } => self.call(id, &name, is_custom, shape),
            // Only a chat vendor has such state, and its answers reach chat clients unchanged.
            OutputPart::State { .. } => ChatOpenItem::Skipped,
            OutputPart::Search { .. } | OutputPart::Foreign { .. } => {
                self.after_foreign = true;
                ChatOpenItem::Skipped
            }
        };
        if self.pieces.len() >= MAX_OPEN_ITEMS {
            let (slot, held) = self.pieces.remove(0);
            self.close(slot, held, shape);
        }
        self.pieces.push((slot, held));
    }

    fn call(
        &mut self,
        id: Option<JsonStr<'_>>,
        name: &JsonStr<'_>,
        is_custom: bool,
        shape: &mut impl ChatEncoder,
    ) -> ChatOpenItem {
        let name = name.value();
        let name = self.response_context.client_tool_name(&name);
        let is_wrapped = !is_custom
            && self
                .response_context
                .custom_tools
                .iter()
                .any(|custom| custom == name);
        let form = match self.response_context.legacy_functions {
            true => ChatCallForm::Legacy,
            false if is_custom || is_wrapped => ChatCallForm::Custom,
            false => ChatCallForm::Function,
        };
        let number = self.calls;
        if form == ChatCallForm::Legacy && number > 0 {
            return ChatOpenItem::Skipped;
        }
        self.calls += 1;
        let id = id.unwrap_or_else(|| {
            JsonStr::from_value(response_ids::generate_id(
                "call_",
                &self.response_context.seed,
                number,
            ))
        });
        shape.call(number, form, &id, name);
        match form {
            ChatCallForm::Custom if is_wrapped => ChatOpenItem::Wrapped {
                number,
                json: JsonStrBuf::default(),
            },
            ChatCallForm::Custom | ChatCallForm::Function | ChatCallForm::Legacy => {
                ChatOpenItem::Call {
                    number,
                    form,
                    has_arguments: false,
                }
            }
        }
    }

    fn delta(&mut self, slot: u32, text: &JsonStr<'_>, shape: &mut impl ChatEncoder) {
        self.usage_tracker.count_text(text);
        let Some((_, held)) = self.pieces.iter_mut().rfind(|(other, _)| *other == slot) else {
            return;
        };
        match held {
            ChatOpenItem::Text { start } => {
                if start.is_none() {
                    // Two texts with an omitted item between them must not merge into one word.
                    if self.after_foreign && self.content_points > 0 && !self.ends_blank {
                        shape.content(&JsonStr::from_value("\n\n"));
                        self.content_points += 2;
                    }
                    self.after_foreign = false;
                    *start = Some(self.content_points);
                }
                self.content_points += text.code_points();
                self.ends_blank = ends_in_whitespace(text);
                shape.content(text);
            }
            ChatOpenItem::Refusal => {
                self.has_refusal = true;
                shape.refusal(text);
            }
            ChatOpenItem::Thinking { entry } => {
                self.details.append(*entry, text, &mut self.budget);
                shape.reasoning(text);
            }
            ChatOpenItem::Call {
                number,
                form,
                has_arguments,
            } => {
                *has_arguments = true;
                shape.arguments(*number, *form, text);
            }
            ChatOpenItem::Wrapped { json, .. } => {
                let before = json.len();
                json.push(text);
                self.overflowed |= !try_consume(json.len() - before, &mut self.budget);
            }
            ChatOpenItem::Skipped => {}
        }
    }

    /// Writes empty arguments for a call that ended without any. Further events show that the call
    /// was complete.
    fn flush_empty_arguments(&mut self, shape: &mut impl ChatEncoder) {
        if let Some((number, form)) = self.bare.take() {
            shape.arguments(number, form, &JsonStr::from_value("{}"));
        }
    }

    fn close(&mut self, slot: u32, held: ChatOpenItem, shape: &mut impl ChatEncoder) {
        self.flush_empty_arguments(shape);
        match held {
            ChatOpenItem::Text { start } => {
                self.sources.set_range(
                    slot,
                    start.unwrap_or(self.content_points),
                    self.content_points,
                );
            }
            ChatOpenItem::Call {
                number,
                form: form @ (ChatCallForm::Function | ChatCallForm::Legacy),
                has_arguments: false,
            } => {
                self.bare = Some((number, form));
            }
            ChatOpenItem::Wrapped { number, json } => {
                unwrap_custom_input(&json.text().value(), |input| {
                    if !input.is_empty() {
                        shape.arguments(number, ChatCallForm::Custom, input);
                    }
                })
            }
            ChatOpenItem::Call { .. }
            | ChatOpenItem::Refusal
            | ChatOpenItem::Thinking { .. }
            | ChatOpenItem::Skipped => {}
        }
    }

    fn stop(&mut self, stop: StopReason<'_>) {
        self.declined = None;
        self.ended = match stop {
            StopReason::EndTurn | StopReason::StopSequence => ChatAnswerEnding::Stop,
            StopReason::ToolUse => ChatAnswerEnding::Calls,
            StopReason::MaxTokens | StopReason::ContextFull => ChatAnswerEnding::Length,
            StopReason::Refusal { explanation, .. } => {
                let mut why = JsonStrBuf::default();
                why.push(&explanation.unwrap_or_else(|| JsonStr::from_value(DEFAULT_REFUSAL_TEXT)));
                self.declined = Some(why);
                ChatAnswerEnding::Declined
            }
        };
    }

    pub fn finish_reason(&self) -> &'static str {
        match self.ended {
            ChatAnswerEnding::Stop => "stop",
            ChatAnswerEnding::Length => "length",
            ChatAnswerEnding::Declined => "content_filter",
            ChatAnswerEnding::Calls if self.response_context.legacy_functions => "function_call",
            ChatAnswerEnding::Calls => "tool_calls",
        }
    }

    /// Returns the reason why the model declined, if it declined without a refusal text of its own.
    pub fn refusal_explanation(&self) -> Option<JsonStr<'_>> {
        self.declined
            .as_ref()
            .filter(|_| !self.has_refusal)
            .map(JsonStrBuf::text)
    }
}

fn ends_in_whitespace(text: &JsonStr<'_>) -> bool {
    let written = text.written();
    // An escape has at most a backslash and five characters.
    let last_escape = text
        .is_escaped()
        .then(|| memchr::memrchr(b'\\', written.as_bytes()));
    match last_escape.flatten() {
        Some(at) if written.len() - at <= 6 => text.chars().last().is_some_and(char::is_whitespace),
        _ => written.ends_with(char::is_whitespace),
    }
}

/// Passes the text inside `{"input": "…"}` to `write`. A messages vendor uses this form for the
/// input of a custom tool. Any other text, such as a truncated one, is passed unchanged.
fn unwrap_custom_input(json: &str, write: impl FnOnce(&JsonStr<'_>)) {
    let tree = JsonDocument::parse(json, MAX_RESPONSE_DEPTH, NodeBuffer::new()).ok();
    match tree
        .as_ref()
        .and_then(|tree| tree.root().get("input")?.text())
    {
        Some(input) => write(&input),
        None => write(&JsonStr::from_value(json)),
    }
}
