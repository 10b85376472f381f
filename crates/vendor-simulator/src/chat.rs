//! Encodes chat completions as their vendor does: as one document and as a stream of chunks.
//!
//! This module must not decide the content (`answer.rs`) or the timing (`sender.rs`).

mod deltas;

use std::ops::Range;

use super::answer::{SimulatedAnswer, interleave};
use super::behaviour::{Behaviour, MalformedShape, ReasoningFieldMode, ToolCallMode, UsageMode};
use super::json::{pretty, quote};
use super::part::SimPart;
use super::turn::SimTurn;
use super::usage::SimUsage;

const FINGERPRINT: &str = "fp_sim0123456";

#[derive(Debug)]
pub struct SimChatResponse {
    turn: SimTurn,
    behaviour: Behaviour,
    answer: SimulatedAnswer,
    /// The unique part of every id.
    serial: String,
    created: i64,
    steps: Vec<(usize, SimChatEvent)>,
}

/// One event of a stream before encoding. It is small because streams can be long.
#[derive(Clone, Debug)]
enum SimChatEvent {
    /// An empty chunk, which some hosts send first.
    Prelude,
    Role,
    /// Role and call in a single chunk, for an answer that consists of one call.
    RoleAndCall,
    /// A piece of a part's output.
    Piece(usize, Range<usize>),
    Opaque(usize),
    Annotations,
    /// Call entries of one chunk, as tuples: the index of the call, whether the entry opens the
    /// call, and a range of its arguments.
    Calls(Vec<(usize, bool, Range<usize>)>),
    Finish,
    Usage,
    Done,
}

impl SimChatResponse {
    pub fn new(turn: SimTurn, mut behaviour: Behaviour, serial: String, created: i64) -> Self {
        if turn.legacy_functions {
            behaviour.calls = ToolCallMode::Legacy;
        }
        let answer = SimulatedAnswer::new(&turn, &behaviour);
        let mut response = Self {
            turn,
            behaviour,
            answer,
            serial,
            created,
            steps: Vec::new(),
        };
        if response.turn.stream {
            response.plan();
        }
        response
    }

    /// Returns the prefix of the id and the name of a whole answer's form.
    fn names(&self) -> (&'static str, &'static str) {
        match self.turn.is_completion {
            true => ("cmpl", "text_completion"),
            false => ("chatcmpl", "chat.completion"),
        }
    }

    /// Returns a choice of the completions API with a part of its text.
    fn text_choice(&self, index: usize, text: &str, finish: &str) -> String {
        let text = quote(text);
        format!(r#"{{"text":{text},"index":{index},"logprobs":null,"finish_reason":{finish}}}"#)
    }

    /// Returns the prompt with which the text of a choice begins.
    fn echo(&self, choice: usize) -> &str {
        let prompts = self.turn.echo.len().max(1);
        let per_prompt = (self.turn.choices / prompts).max(1);
        self.turn
            .echo
            .get(choice / per_prompt)
            .map_or("", String::as_str)
    }

    /// Returns the member with the service tier.
    fn tier(&self) -> String {
        if self.turn.is_completion {
            return String::new();
        }
        let tier = self.behaviour.tier(&self.turn.service_tier);
        tier.map(|tier| format!(r#","service_tier":"{tier}""#))
            .unwrap_or_default()
    }

    /// Returns the body of a JSON answer.
    pub fn whole(&self) -> String {
        let count = if self.behaviour.shape == Some(MalformedShape::NoChoices) {
            0
        } else {
            self.turn.choices
        };
        let choices: Vec<String> = (0..count).map(|index| self.choice(index)).collect();
        let usage = match self.answer.usage.mode {
            UsageMode::None => String::new(),
            _ => format!(r#","usage":{}"#, self.answer.usage.chat()),
        };
        let (prefix, object) = self.names();
        let compact = format!(
            r#"{{"id":"{prefix}-{}","object":"{object}","created":{},"model":{},"choices":[{}]{usage}{},"system_fingerprint":"{FINGERPRINT}"{}}}"#,
            self.serial,
            self.created,
            self.behaviour.model_field(&self.turn.model),
            choices.join(","),
            self.tier(),
            self.behaviour.unknown_field(),
        );
        pretty(&compact, 2)
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn usage(&self) -> SimUsage {
        self.answer.usage
    }

    /// Returns the number of output bytes in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match self.steps.get(index) {
            Some((_, SimChatEvent::Piece(_, range))) => range.len(),
            Some((_, SimChatEvent::Calls(entries))) => {
                entries.iter().map(|(_, _, range)| range.len()).sum()
            }
            _ => 0,
        }
    }

    /// Returns the data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<String> {
        let (choice, step) = self.steps.get(index)?;
        let delta = match step {
            SimChatEvent::Done => return Some("[DONE]".to_owned()),
            SimChatEvent::Prelude => {
                return Some(
                    r#"{"choices":[],"created":0,"id":"","model":"","object":"","sim_prelude":[{"index":0}]}"#
                        .to_owned(),
                );
            }
            SimChatEvent::Usage => return Some(self.chunk(index, "[]", &self.answer.usage)),
            SimChatEvent::Role => self.role(""),
            SimChatEvent::RoleAndCall => self.role(&format!(
                r#","tool_calls":[{}]"#,
                self.entry(*choice, 0, true, None)
            )),
            SimChatEvent::Piece(part, range) => self.piece(*part, range.clone()),
            SimChatEvent::Opaque(part) => self.opaque(*part),
            SimChatEvent::Annotations => format!(r#"{{"annotations":[{}]}}"#, self.annotations()),
            SimChatEvent::Calls(entries) => self.calls(*choice, entries),
            SimChatEvent::Finish => "{}".to_owned(),
        };
        let (finish, usage) = match step {
            SimChatEvent::Finish => (self.finish_reason(), self.answer.usage),
            _ => {
                let so_far = self.answer.usage.partial(index + 1, self.steps.len());
                ("null".to_owned(), so_far)
            }
        };
        let choices = match (self.turn.is_completion, step) {
            (false, _) => format!(
                r#"[{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]"#
            ),
            (true, SimChatEvent::Piece(part, range)) => {
                let output = self.answer.parts.get(*part).map_or("", SimPart::output);
                let text = output.get(range.clone()).unwrap_or_default();
                format!("[{}]", self.text_choice(*choice, text, &finish))
            }
            (true, SimChatEvent::Role) => {
                format!(
                    "[{}]",
                    self.text_choice(*choice, self.echo(*choice), &finish)
                )
            }
            (true, _) => format!("[{}]", self.text_choice(*choice, "", &finish)),
        };
        Some(self.chunk(index, &choices, &usage))
    }

    fn plan(&mut self) {
        let usage = &self.answer.usage;
        let mut steps = Vec::new();
        let only_call = self.answer.parts.len() == 1 && self.answer.calls().next().is_some();
        let opens_at_once = only_call && self.behaviour.calls == ToolCallMode::Usual;
        if self.behaviour.unknown {
            steps.push(SimChatEvent::Prelude);
        }
        steps.push(if opens_at_once {
            SimChatEvent::RoleAndCall
        } else {
            SimChatEvent::Role
        });
        self.plan_parts(opens_at_once, &mut steps);
        let is_before = usage.mode == UsageMode::Before && self.turn.include_usage;
        let reports = match usage.mode {
            UsageMode::None | UsageMode::Finish | UsageMode::Before => 0,
            UsageMode::Twice => 2,
            _ => 1,
        };
        let choices = self.turn.choices;
        let for_each = |step: SimChatEvent| (0..choices).map(move |choice| (choice, step.clone()));
        let mut all: Vec<(usize, SimChatEvent)> = steps.into_iter().flat_map(for_each).collect();
        all.extend(is_before.then_some((0, SimChatEvent::Usage)));
        if !self.behaviour.nofinish {
            all.extend(for_each(SimChatEvent::Finish));
            if self.turn.include_usage {
                all.extend((0..reports).map(|_| (0, SimChatEvent::Usage)));
            }
            if !self.behaviour.nodone {
                all.push((0, SimChatEvent::Done));
            }
        }
        self.steps = all;
    }

    fn plan_parts(&self, opens_at_once: bool, steps: &mut Vec<SimChatEvent>) {
        let mut call = 0;
        let mut waiting = Vec::new();
        for (index, part) in self.answer.parts.iter().enumerate() {
            let pieces = self.answer.pieces(part);
            match part {
                SimPart::Thinking(_) | SimPart::Text(_) | SimPart::Refusal(_) => {
                    steps.extend(
                        pieces
                            .into_iter()
                            .map(|range| SimChatEvent::Piece(index, range)),
                    );
                }
                SimPart::Redacted
                    if matches!(
                        self.behaviour.spelling,
                        ReasoningFieldMode::Details | ReasoningFieldMode::All
                    ) =>
                {
                    steps.push(SimChatEvent::Opaque(index));
                }
                SimPart::Call(_) => {
                    let entries = self.entries(call, part, opens_at_once);
                    if self.behaviour.calls == ToolCallMode::Interleaved {
                        waiting.push(entries);
                    } else {
                        steps.extend(entries.into_iter().map(SimChatEvent::Calls));
                    }
                    call += 1;
                }
                SimPart::Redacted | SimPart::Search(_) | SimPart::Unknown(_) => {}
            }
        }
        steps.extend(interleave(waiting).into_iter().map(SimChatEvent::Calls));
        if !self.annotations().is_empty() {
            steps.push(SimChatEvent::Annotations);
        }
    }

    fn entries(
        &self,
        call: usize,
        part: &SimPart,
        is_open: bool,
    ) -> Vec<Vec<(usize, bool, Range<usize>)>> {
        let pieces = self.answer.pieces(part);
        let later = |range: Range<usize>| (call, false, range);
        let opening = (call, true, 0..0);
        match self.behaviour.calls {
            ToolCallMode::Whole => vec![vec![(call, true, 0..part.output().len())]],
            ToolCallMode::Legacy if call > 0 => Vec::new(),
            ToolCallMode::Double => {
                let mut entries: Vec<_> = std::iter::once(opening)
                    .chain(pieces.into_iter().map(later))
                    .collect();
                let mut chunks = Vec::new();
                while !entries.is_empty() {
                    chunks.push(entries.drain(..entries.len().min(2)).collect());
                }
                chunks
            }
            _ => {
                let opening = (!is_open).then(|| vec![opening]);
                opening
                    .into_iter()
                    .chain(pieces.into_iter().map(|range| vec![later(range)]))
                    .collect()
            }
        }
    }

    fn calls(&self, choice: usize, entries: &[(usize, bool, Range<usize>)]) -> String {
        let encode = |(call, opens, range): &(usize, bool, Range<usize>)| match self.behaviour.calls
        {
            ToolCallMode::Legacy => self.function(*call, *opens, Some(range.clone())),
            _ => self.entry(choice, *call, *opens, Some(range.clone())),
        };
        let calls: Vec<String> = entries.iter().map(encode).collect();
        match self.behaviour.calls {
            ToolCallMode::Legacy => format!(r#"{{"function_call":{}}}"#, calls.concat()),
            _ => format!(r#"{{"tool_calls":[{}]}}"#, calls.join(",")),
        }
    }

    fn chunk(&self, index: usize, choices: &str, usage: &SimUsage) -> String {
        let is_report = choices == "[]";
        let is_finish = matches!(self.steps.get(index), Some((_, SimChatEvent::Finish)));
        let shows = match usage.mode {
            UsageMode::Every => true,
            UsageMode::Finish => is_finish,
            _ => is_report,
        };
        let usage = match (shows, self.turn.include_usage) {
            (true, _) => format!(r#","usage":{}"#, usage.chat()),
            (false, true) => r#","usage":null"#.to_owned(),
            (false, false) => String::new(),
        };
        let padding = self.turn.padding(index);
        let (prefix, object) = match self.names() {
            names @ (_, "text_completion") => names,
            (prefix, _) => (prefix, "chat.completion.chunk"),
        };
        format!(
            r#"{{"id":"{prefix}-{}","object":"{object}","created":{},"model":{}{},"system_fingerprint":"{FINGERPRINT}","choices":{choices}{usage}{}{padding}}}"#,
            self.serial,
            self.created,
            self.behaviour.model_field(&self.turn.model),
            self.tier(),
            self.behaviour.unknown_field(),
        )
    }

    fn choice(&self, index: usize) -> String {
        if self.turn.is_completion {
            let text = format!("{}{}", self.echo(index), self.answer.text());
            return self.text_choice(index, &text, &self.finish_reason());
        }
        let (message, finish) = (self.message(index), self.finish_reason());
        format!(
            r#"{{"index":{index},"message":{message},"logprobs":null,"finish_reason":{finish}}}"#
        )
    }

    fn finish_reason(&self) -> String {
        match &self.behaviour.finish {
            Some(finish) if finish == "null" => finish.clone(),
            Some(finish) => quote(finish),
            None if self.answer.limited => quote("length"),
            None if self.answer.calls().next().is_none() => quote("stop"),
            None if self.behaviour.calls == ToolCallMode::Legacy => quote("function_call"),
            None => quote("tool_calls"),
        }
    }
}
