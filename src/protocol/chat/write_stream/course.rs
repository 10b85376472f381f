//! Decides the outcome of each event of an answer, for a stream and for one body alike.
//!
//! It must not write JSON: the encoders do that. It holds what the end of the answer needs.
//!
//! Read next: `write_stream/deferred.rs`.

use super::kept::{Details, Sources, take};
use super::usage::Told;
use crate::protocol::form::answer::{Event, Piece, Recall, Start, Stop};
use crate::protocol::rules::names;
use crate::protocol::text::{Gathered, Text};
use crate::protocol::translate::ANSWER_DEPTH_MAX;
use crate::protocol::tree::{Nodes, Tree};

/// Maximum number of open items. Vendors open a handful; above the limit, the oldest counts as
/// closed.
const PIECES_MAX: usize = 1024;

/// Refusal text for a model that declined without a text.
const DECLINED: &str = "The model declined to answer.";

/// Encoder of an answer, as chunks or as one body.
pub(super) trait Shape {
    fn start(&mut self, start: &Start<'_>, recall: &Recall);
    fn content(&mut self, text: &Text<'_>);
    fn reasoning(&mut self, text: &Text<'_>);
    fn refusal(&mut self, text: &Text<'_>);
    /// Begins call `number`, without arguments.
    fn call(&mut self, number: u64, form: Form, id: &Text<'_>, name: &str);
    /// Adds arguments to call `number`.
    fn arguments(&mut self, number: u64, form: Form, text: &Text<'_>);
    fn end(&mut self, course: &mut Course);
}

/// Form in which a call is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Function,
    Custom,
    /// `function_call`, which a message has at most once.
    Legacy,
}

#[derive(Debug)]
pub(super) struct Course {
    pub recall: Recall,
    pieces: Vec<(u32, Held)>,
    /// A call that ended without arguments. They become an empty object, unless the answer is cut
    /// off there.
    bare: Option<(u64, Form)>,
    /// Number of code points of the content so far.
    content_points: u64,
    /// The content so far ends in white space.
    ends_blank: bool,
    /// After the latest text came something that chat cannot represent.
    after_foreign: bool,
    pub has_text: bool,
    pub calls: u64,
    pub details: Details,
    pub sources: Sources,
    /// Number of bytes that may still be held back.
    budget: usize,
    /// A part that cannot be omitted exceeded the limit.
    pub overflowed: bool,
    ended: Ended,
    /// Reason why the model declined.
    declined: Option<Gathered>,
    /// The model sent a refusal text itself.
    has_refusal: bool,
    pub told: Told,
}

/// Item that is still open.
#[derive(Debug)]
enum Held {
    /// `start`: number of code points of content before the text, set with its first delta.
    Text {
        start: Option<u64>,
    },
    Refusal,
    Thinking {
        entry: usize,
    },
    Call {
        number: u64,
        form: Form,
        has_arguments: bool,
    },
    /// Call of a custom tool whose input arrives inside a JSON object. It is written when the
    /// object is complete.
    Wrapped {
        number: u64,
        json: Gathered,
    },
    Skipped,
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    Stop,
    Length,
    Calls,
    Declined,
    Unknown,
}

impl Course {
    /// `budget`: number of bytes that may be held back.
    pub fn new(recall: Recall, budget: usize) -> Self {
        Course {
            told: Told::new(recall.estimator),
            recall,
            pieces: Vec::new(),
            bare: None,
            content_points: 0,
            ends_blank: false,
            after_foreign: false,
            has_text: false,
            calls: 0,
            details: Details::default(),
            sources: Sources::default(),
            budget,
            overflowed: false,
            ended: Ended::Unknown,
            declined: None,
            has_refusal: false,
        }
    }

    pub fn event(&mut self, event: Event<'_>, shape: &mut impl Shape) {
        match event {
            Event::Start(start) => shape.start(&start, &self.recall),
            Event::Open { slot, piece } => self.open(slot, piece, shape),
            Event::Delta { slot, text } => self.delta(slot, &text, shape),
            Event::Signature { slot, signature } => {
                if let Some((_, Held::Thinking { entry })) =
                    self.pieces.iter().rfind(|(other, _)| *other == slot)
                {
                    self.details.sign(*entry, &signature, &mut self.budget);
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
            Event::Counters { .. } => {}
            Event::Usage { usage, is_final } => self.told.learn(usage, is_final),
            Event::End => {
                for (slot, held) in std::mem::take(&mut self.pieces) {
                    self.close(slot, held, shape);
                }
                if !matches!(self.ended, Ended::Length | Ended::Declined) {
                    self.end_bare(shape);
                }
                shape.end(self);
            }
        }
    }

    fn open(&mut self, slot: u32, piece: Piece<'_>, shape: &mut impl Shape) {
        self.end_bare(shape);
        let anchor = (self.content_points, self.calls);
        let held = match piece {
            Piece::Text => {
                self.has_text = true;
                Held::Text { start: None }
            }
            Piece::Refusal => Held::Refusal,
            Piece::Thinking => Held::Thinking {
                entry: self.details.open(anchor, &mut self.budget),
            },
            Piece::Hidden { data } => {
                self.details.hidden(anchor, &data, &mut self.budget);
                Held::Skipped
            }
            Piece::Call {
                id,
                name,
                is_custom,
            } => self.call(id, &name, is_custom, shape),
            Piece::Search { .. } | Piece::Foreign { .. } => {
                self.after_foreign = true;
                Held::Skipped
            }
        };
        if self.pieces.len() >= PIECES_MAX {
            let (slot, held) = self.pieces.remove(0);
            self.close(slot, held, shape);
        }
        self.pieces.push((slot, held));
    }

    fn call(
        &mut self,
        id: Option<Text<'_>>,
        name: &Text<'_>,
        is_custom: bool,
        shape: &mut impl Shape,
    ) -> Held {
        let name = name.value();
        let name = self.recall.own_name(&name);
        let is_wrapped = !is_custom && self.recall.custom_tools.iter().any(|custom| custom == name);
        let form = match self.recall.legacy_functions {
            true => Form::Legacy,
            false if is_custom || is_wrapped => Form::Custom,
            false => Form::Function,
        };
        let number = self.calls;
        if form == Form::Legacy && number > 0 {
            return Held::Skipped;
        }
        self.calls += 1;
        let id =
            id.unwrap_or_else(|| Text::made(names::made_id("call_", &self.recall.seed, number)));
        shape.call(number, form, &id, name);
        match form {
            Form::Custom if is_wrapped => Held::Wrapped {
                number,
                json: Gathered::default(),
            },
            Form::Custom | Form::Function | Form::Legacy => Held::Call {
                number,
                form,
                has_arguments: false,
            },
        }
    }

    fn delta(&mut self, slot: u32, text: &Text<'_>, shape: &mut impl Shape) {
        self.told.count(text);
        let Some((_, held)) = self.pieces.iter_mut().rfind(|(other, _)| *other == slot) else {
            return;
        };
        match held {
            Held::Text { start } => {
                if start.is_none() {
                    // Two texts with an omitted item between them must not merge into one word.
                    if self.after_foreign && self.content_points > 0 && !self.ends_blank {
                        shape.content(&Text::made("\n\n"));
                        self.content_points += 2;
                    }
                    self.after_foreign = false;
                    *start = Some(self.content_points);
                }
                self.content_points += text.code_points();
                self.ends_blank = ends_blank(text);
                shape.content(text);
            }
            Held::Refusal => {
                self.has_refusal = true;
                shape.refusal(text);
            }
            Held::Thinking { entry } => {
                self.details.more(*entry, text, &mut self.budget);
                shape.reasoning(text);
            }
            Held::Call {
                number,
                form,
                has_arguments,
            } => {
                *has_arguments = true;
                shape.arguments(*number, *form, text);
            }
            Held::Wrapped { json, .. } => {
                let before = json.len();
                json.push(text);
                self.overflowed |= !take(json.len() - before, &mut self.budget);
            }
            Held::Skipped => {}
        }
    }

    /// Writes empty arguments for a call that ended without any. More events follow it, so the call
    /// was complete.
    fn end_bare(&mut self, shape: &mut impl Shape) {
        if let Some((number, form)) = self.bare.take() {
            shape.arguments(number, form, &Text::made("{}"));
        }
    }

    fn close(&mut self, slot: u32, held: Held, shape: &mut impl Shape) {
        self.end_bare(shape);
        match held {
            Held::Text { start } => {
                self.sources.place(
                    slot,
                    start.unwrap_or(self.content_points),
                    self.content_points,
                );
            }
            Held::Call {
                number,
                form: form @ (Form::Function | Form::Legacy),
                has_arguments: false,
            } => {
                self.bare = Some((number, form));
            }
            Held::Wrapped { number, json } => unwrapped(&json.text().value(), |input| {
                if !input.is_empty() {
                    shape.arguments(number, Form::Custom, input);
                }
            }),
            Held::Call { .. } | Held::Refusal | Held::Thinking { .. } | Held::Skipped => {}
        }
    }

    fn stop(&mut self, stop: Stop<'_>) {
        self.declined = None;
        self.ended = match stop {
            Stop::EndTurn | Stop::StopSequence => Ended::Stop,
            Stop::ToolUse => Ended::Calls,
            Stop::MaxTokens | Stop::ContextFull => Ended::Length,
            Stop::Refusal { explanation } => {
                let mut why = Gathered::default();
                why.push(&explanation.unwrap_or_else(|| Text::made(DECLINED)));
                self.declined = Some(why);
                Ended::Declined
            }
            Stop::Unknown => Ended::Unknown,
        };
    }

    pub fn finish_reason(&self) -> &'static str {
        match self.ended {
            Ended::Stop => "stop",
            Ended::Length => "length",
            Ended::Declined => "content_filter",
            Ended::Unknown if self.calls == 0 => "stop",
            Ended::Calls | Ended::Unknown if self.recall.legacy_functions => "function_call",
            Ended::Calls | Ended::Unknown => "tool_calls",
        }
    }

    /// Returns the reason why the model declined, if it declined without a refusal text of its own.
    pub fn declined(&self) -> Option<Text<'_>> {
        self.declined
            .as_ref()
            .filter(|_| !self.has_refusal)
            .map(Gathered::text)
    }
}

fn ends_blank(text: &Text<'_>) -> bool {
    match text {
        Text::Token { raw, escaped, .. } => {
            // No escape is longer than a backslash and five characters.
            let last_escape = if *escaped {
                memchr::memrchr(b'\\', raw.as_bytes())
            } else {
                None
            };
            if last_escape.is_none_or(|at| raw.len() - at > 6) {
                raw.ends_with(char::is_whitespace)
            } else {
                text.letters().last().is_some_and(char::is_whitespace)
            }
        }
        Text::Made(text) => text.ends_with(char::is_whitespace),
    }
}

/// Passes the text inside `{"input": "…"}` to `write`. A messages vendor uses this form for the
/// input of a custom tool. Passes anything else, such as a truncated text, unchanged.
fn unwrapped(json: &str, write: impl FnOnce(&Text<'_>)) {
    let tree = Tree::read(json, ANSWER_DEPTH_MAX, Nodes::new()).ok();
    match tree
        .as_ref()
        .and_then(|tree| tree.root().get("input")?.text())
    {
        Some(input) => write(&input),
        None => write(&Text::made(json)),
    }
}
