//! Encodes responses as their vendor does: as one document and as a stream of numbered events.
//!
//! This module must not decide the content (`answer.rs`) or the timing (`sender.rs`). Read next:
//! `responses/items.rs`.

mod items;

use std::ops::Range;

use super::answer::{SimulatedAnswer, interleave};
use super::behaviour::{
    Behaviour, ErrorForm, ItemMode, KeepAliveMode, MalformedShape, ToolCallMode, UsageMode,
};
use super::json::{pretty, quote};
use super::part::SimPart;
use super::turn::SimTurn;
use super::usage::SimUsage;

#[derive(Debug)]
pub struct SimResponsesResponse {
    turn: SimTurn,
    behaviour: Behaviour,
    answer: SimulatedAnswer,
    /// Unique part of every id.
    serial: String,
    created: i64,
    steps: Vec<SimResponsesEvent>,
}

/// One event of a stream before encoding. It is small because streams can be long. The first number
/// is the index of the item.
#[derive(Clone, Debug)]
enum SimResponsesEvent {
    Created,
    InProgress,
    Unknown,
    Added(usize),
    /// Start of a part in a reasoning item's summary, by the part's index.
    SummaryBegins(usize, usize),
    SummaryDelta(usize, usize, Range<usize>),
    SummaryText(usize, usize),
    SummaryEnds(usize, usize),
    ContentBegins(usize),
    Delta(usize, Range<usize>),
    Annotation(usize, usize),
    /// The complete text or arguments, which repeat the pieces.
    Whole(usize),
    ContentEnds(usize),
    /// Progress of a search that the vendor runs.
    Search(usize, &'static str),
    Done(usize),
    Terminal,
}

impl SimResponsesResponse {
    pub fn new(turn: SimTurn, behaviour: Behaviour, serial: String, created: i64) -> Self {
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

    /// Returns the body of a JSON answer.
    pub fn whole(&self) -> String {
        pretty(&self.envelope(true), 2)
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
            Some(
                SimResponsesEvent::Delta(_, range) | SimResponsesEvent::SummaryDelta(_, _, range),
            ) => range.len(),
            _ => 0,
        }
    }

    /// Returns the name and data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<(String, String)> {
        let step = self.steps.get(index)?;
        let (name, fields) = match step {
            SimResponsesEvent::Created => ("response.created".to_owned(), self.started_fields()),
            SimResponsesEvent::InProgress => {
                ("response.in_progress".to_owned(), self.started_fields())
            }
            SimResponsesEvent::Unknown => {
                ("response.sim_unknown".to_owned(), r#","n":1"#.to_owned())
            }
            SimResponsesEvent::Terminal => (
                format!("response.{}", self.status()),
                format!(r#","response":{}"#, self.envelope(true)),
            ),
            step => self.item_event(step, index)?,
        };
        let (number, unknown) = (self.number(index), self.behaviour.unknown_field());
        let data = format!(r#"{{"type":"{name}"{fields},"sequence_number":{number}{unknown}}}"#);
        Some((name, data))
    }

    /// Returns the events of a failure. The first event has the members of `error`.
    pub fn error(&self, error: &str) -> Vec<(&'static str, String)> {
        let number = self.steps.len();
        let failed = || {
            let response =
                self.envelope_of("failed", "[]", "null", &format!("{{{error}}}"), "null");
            (
                "response.failed",
                format!(
                    r#"{{"type":"response.failed","response":{response},"sequence_number":{number}}}"#
                ),
            )
        };
        let flat = || {
            (
                "error",
                format!(r#"{{"type":"error",{error},"sequence_number":{number}}}"#),
            )
        };
        match self.behaviour.error_form {
            ErrorForm::Flat => vec![flat()],
            ErrorForm::Nested => vec![(
                "error",
                format!(
                    r#"{{"type":"error","error":{{"type":"server_error",{error}}},"sequence_number":{number}}}"#
                ),
            )],
            ErrorForm::Failed => vec![failed()],
            ErrorForm::Both => vec![flat(), failed()],
        }
    }

    fn plan(&mut self) {
        let mut steps = vec![SimResponsesEvent::Created, SimResponsesEvent::InProgress];
        if self.behaviour.unknown {
            steps.push(SimResponsesEvent::Unknown);
        }
        if self.behaviour.items != ItemMode::Last {
            self.plan_items(&mut steps);
        }
        if !self.behaviour.nofinish && !self.behaviour.nodone {
            steps.push(SimResponsesEvent::Terminal);
        }
        self.steps = steps;
    }

    fn plan_items(&self, steps: &mut Vec<SimResponsesEvent>) {
        let mut waiting = Vec::new();
        for (item, part) in self.answer.parts.iter().enumerate() {
            let planned = self.item_steps(item, part);
            match part {
                SimPart::Call(_) if self.behaviour.calls == ToolCallMode::Interleaved => {
                    waiting.push(planned)
                }
                _ => steps.extend(planned),
            }
        }
        steps.extend(interleave(waiting));
    }

    fn item_steps(&self, item: usize, part: &SimPart) -> Vec<SimResponsesEvent> {
        let form = self.behaviour.items;
        if form == ItemMode::Done {
            return vec![SimResponsesEvent::Done(item)];
        }
        let mut steps = vec![SimResponsesEvent::Added(item)];
        let pieces = if form == ItemMode::Whole {
            Vec::new()
        } else {
            self.answer.pieces(part)
        };
        let deltas = pieces
            .into_iter()
            .map(|range| SimResponsesEvent::Delta(item, range));
        match part {
            SimPart::Thinking(_) | SimPart::Redacted => {
                for (number, range) in self.summary(item).into_iter().enumerate() {
                    let middle = range.start + range.len() / 2;
                    let middle = part.output().floor_char_boundary(middle).max(range.start);
                    steps.push(SimResponsesEvent::SummaryBegins(item, number));
                    if form != ItemMode::Whole {
                        let halves = [range.start..middle, middle..range.end];
                        let halves = halves.into_iter().filter(|half| !half.is_empty());
                        steps.extend(
                            halves.map(|half| SimResponsesEvent::SummaryDelta(item, number, half)),
                        );
                    }
                    steps.extend([
                        SimResponsesEvent::SummaryText(item, number),
                        SimResponsesEvent::SummaryEnds(item, number),
                    ]);
                }
            }
            SimPart::Text(text) => {
                steps.push(SimResponsesEvent::ContentBegins(item));
                steps.extend(deltas);
                steps.extend(
                    (0..text.sources.len())
                        .map(|number| SimResponsesEvent::Annotation(item, number)),
                );
                steps.extend([
                    SimResponsesEvent::Whole(item),
                    SimResponsesEvent::ContentEnds(item),
                ]);
            }
            SimPart::Refusal(_) => {
                steps.push(SimResponsesEvent::ContentBegins(item));
                steps.extend(deltas);
                steps.extend([
                    SimResponsesEvent::Whole(item),
                    SimResponsesEvent::ContentEnds(item),
                ]);
            }
            SimPart::Call(_) => {
                steps.extend(deltas);
                steps.push(SimResponsesEvent::Whole(item));
            }
            SimPart::Search(_) => {
                steps.extend(
                    ["in_progress", "searching", "completed"]
                        .map(|phase| SimResponsesEvent::Search(item, phase)),
                );
            }
            SimPart::Unknown(_) => {}
        }
        steps.push(SimResponsesEvent::Done(item));
        steps
    }

    fn started_fields(&self) -> String {
        format!(
            r#","response":{}"#,
            self.envelope_of("in_progress", "[]", "null", "null", "null")
        )
    }

    fn status(&self) -> &'static str {
        match self.behaviour.finish.as_deref() {
            Some("failed") => "failed",
            Some("completed") => "completed",
            Some(_) => "incomplete",
            None if self.answer.limited => "incomplete",
            None => "completed",
        }
    }

    /// Encodes the response in its final state.
    fn envelope(&self, is_listed: bool) -> String {
        let status = self.status();
        let listed = is_listed
            && !(self.turn.stream && self.behaviour.items == ItemMode::Unlisted)
            && self.behaviour.shape != Some(MalformedShape::NoChoices);
        let items: Vec<String> = (0..self.answer.parts.len())
            .filter(|_| listed)
            .map(|item| self.item(item))
            .collect();
        let usage = match self.answer.usage.mode {
            UsageMode::None => "null".to_owned(),
            _ => self.answer.usage.responses(),
        };
        let error = match status {
            "failed" => {
                let code = quote(
                    self.behaviour
                        .error_code
                        .as_deref()
                        .unwrap_or("server_error"),
                );
                let message = quote(
                    self.behaviour
                        .explanation
                        .as_deref()
                        .unwrap_or("The model failed."),
                );
                format!(r#"{{"code":{code},"message":{message}}}"#)
            }
            _ => "null".to_owned(),
        };
        let incomplete_details = match status {
            "incomplete" => {
                let reason = self
                    .behaviour
                    .finish
                    .as_deref()
                    .unwrap_or("max_output_tokens");
                format!(r#"{{"reason":{}}}"#, quote(reason))
            }
            _ => "null".to_owned(),
        };
        self.envelope_of(
            status,
            &format!("[{}]", items.join(",")),
            &usage,
            &error,
            &incomplete_details,
        )
    }

    fn envelope_of(
        &self,
        status: &str,
        output: &str,
        usage: &str,
        error: &str,
        incomplete_details: &str,
    ) -> String {
        let options = &self.turn.responses;
        let completed = if status == "completed" {
            self.created.to_string()
        } else {
            "null".to_owned()
        };
        let limit = self
            .turn
            .max_tokens
            .map_or_else(|| "null".to_owned(), |limit| limit.to_string());
        let tier = self.behaviour.tier(&self.turn.service_tier);
        let tier = tier
            .map(|tier| format!(r#""service_tier":"{tier}","#))
            .unwrap_or_default();
        let searches = match self.answer.usage.searches {
            0 => String::new(),
            count => format!(r#""tool_usage":{{"web_search":{{"num_requests":{count}}}}},"#),
        };
        format!(
            r#"{{"id":"resp_{}","object":"response","created_at":{},"status":"{status}","background":false,"completed_at":{completed},"error":{error},"incomplete_details":{incomplete_details},"instructions":null,"max_output_tokens":{limit},"model":{},"output":{output},"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{},{tier}{searches}"store":false,"temperature":1.0,"text":{{"format":{{"type":"text"}},"verbosity":"medium"}},"tool_choice":"auto","tools":{},"top_p":1.0,"truncation":"disabled","usage":{usage},"user":null,"metadata":{{}}{}}}"#,
            self.serial,
            self.created,
            self.behaviour.model_field(&self.turn.model),
            options.reasoning,
            options.tools,
            self.behaviour.unknown_field(),
        )
    }

    /// Returns the sequence number of an event. Keep-alives have numbers too.
    fn number(&self, index: usize) -> usize {
        if self.behaviour.keep_alive == Some(KeepAliveMode::Ping) {
            index * 2 + 1
        } else {
            index
        }
    }
}

/// Returns the data of the keep-alive before the event at `index`.
pub fn keep_alive(index: usize) -> String {
    format!(r#"{{"type":"keepalive","sequence_number":{}}}"#, index * 2)
}
