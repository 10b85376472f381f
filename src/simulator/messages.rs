//! Encodes messages as their vendor does: as one document and as a stream of events.
//!
//! It must not decide the content (`answer.rs`) or the timing (`sender.rs`).

mod blocks;

use std::ops::Range;

use super::answer::Answer;
use super::behaviour::{Behaviour, Calls, Refusal, UsageMode};
use super::json::quote;
use super::part::Part;
use super::request::Turn;
use super::usage::Usage;

#[derive(Debug)]
pub struct Reply {
    turn: Turn,
    behaviour: Behaviour,
    answer: Answer,
    /// The unique part of every id.
    serial: String,
    blocks: Vec<Block>,
    steps: Vec<Step>,
}

/// A block, by the index of its part; a search has two blocks.
#[derive(Clone, Copy, Debug)]
enum Block {
    Part(usize),
    Result(usize),
}

/// One event of a stream before it is encoded; small, because streams can be long.
#[derive(Debug)]
enum Step {
    Start,
    Unknown,
    Ping,
    BlockStart(usize),
    Delta(usize, Range<usize>),
    Signature(usize),
    /// A citation: index of its block, and its index within the block.
    Citation(usize, usize),
    /// A delta of an unknown block.
    Odd(usize),
    BlockStop(usize),
    /// A usage report in the middle of the answer.
    Report,
    Finish,
    Stop,
}

impl Reply {
    pub fn new(turn: Turn, behaviour: Behaviour, serial: String) -> Self {
        let answer = Answer::new(&turn, &behaviour);
        let mut blocks = Vec::with_capacity(answer.parts.len());
        for (index, part) in answer.parts.iter().enumerate() {
            blocks.push(Block::Part(index));
            blocks.extend(matches!(part, Part::Search(_)).then_some(Block::Result(index)));
        }
        if behaviour.refusal == Refusal::Instead {
            // In a refusal the vendor shows its thinking, but no output.
            blocks
                .retain(|block| matches!(block, Block::Part(part) if matches!(answer.parts[*part], Part::Thinking(_))));
        }
        let mut reply = Self {
            turn,
            behaviour,
            answer,
            serial,
            blocks,
            steps: Vec::new(),
        };
        if reply.turn.stream {
            reply.plan();
        }
        reply
    }

    /// The body of a JSON answer.
    pub fn whole(&self) -> String {
        let blocks: Vec<String> = (0..self.blocks.len())
            .map(|index| self.block(index))
            .collect();
        let (stop, sequence, details) = (
            self.stop_reason(),
            self.stop_sequence(),
            self.stop_details(),
        );
        let usage = self.usage_field(
            &self
                .answer
                .usage
                .messages_whole(self.behaviour.tier(&self.turn.service_tier)),
        );
        format!(
            r#"{{"id":"msg_{}","type":"message","role":"assistant","model":{},"content":[{}],"stop_reason":{stop},"stop_sequence":{sequence}{details}{usage}{}}}"#,
            self.serial,
            self.behaviour.model_field(&self.turn.model),
            blocks.join(","),
            self.behaviour.unknown_field(),
        )
    }

    /// Number of events in the stream.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn usage(&self) -> Usage {
        self.answer.usage
    }

    /// Bytes of output in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match self.steps.get(index) {
            Some(Step::Delta(_, range)) => range.len(),
            _ => 0,
        }
    }

    /// Name and data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<(&'static str, String)> {
        let (name, fields) = match self.steps.get(index)? {
            Step::Start => ("message_start", self.start()),
            Step::Unknown => ("sim_unknown", r#","n":1"#.to_owned()),
            Step::Ping => return Some(("ping", r#"{"type": "ping"}"#.to_owned())),
            Step::BlockStart(block) => {
                let content = self.empty_block(*block);
                (
                    "content_block_start",
                    format!(r#","index":{block},"content_block":{content}"#),
                )
            }
            Step::Delta(block, range) => {
                let delta = self.delta(*block, range.clone());
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            Step::Signature(block) => {
                let signature = self.signature(*block);
                let delta = format!(r#"{{"type":"signature_delta","signature":"{signature}"}}"#);
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            Step::Citation(block, number) => {
                let Part::Text(text) = self.part(*block) else {
                    return None;
                };
                let citation = self.citation(*block, text.sources.get(*number)?);
                let delta = format!(r#"{{"type":"citations_delta","citation":{citation}}}"#);
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            Step::Odd(block) => {
                let Part::Unknown(kind) = self.part(*block) else {
                    return None;
                };
                let delta = format!(
                    r#"{{"type":{},"data":"x"}}"#,
                    quote(&format!("{kind}_delta"))
                );
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            Step::BlockStop(block) => ("content_block_stop", format!(r#","index":{block}"#)),
            Step::Report => {
                let usage = match self.answer.usage.mode {
                    UsageMode::Before => self.answer.usage,
                    _ => self.answer.usage.partial(index + 1, self.steps.len()),
                };
                let usage = self.usage_field(&usage.messages_so_far());
                (
                    "message_delta",
                    format!(r#","delta":{{"stop_reason":null,"stop_sequence":null}}{usage}"#),
                )
            }
            Step::Finish => ("message_delta", self.finish()),
            Step::Stop => ("message_stop", String::new()),
        };
        let unknown = self.behaviour.unknown_field();
        // The vendor pads its events with spaces before the last brace.
        let padding = &"               "[..index * 7 % 15];
        Some((
            name,
            format!(r#"{{"type":"{name}"{fields}{unknown}{padding}}}"#),
        ))
    }

    fn plan(&mut self) {
        let mut steps = vec![Step::Start];
        if self.behaviour.unknown {
            steps.push(Step::Unknown);
        }
        if self.answer.usage.mode == UsageMode::Before {
            steps.push(Step::Report);
        }
        for index in 0..self.blocks.len() {
            steps.push(Step::BlockStart(index));
            if index == 0 {
                steps.push(Step::Ping);
            }
            self.plan_block(index, &mut steps);
            steps.push(Step::BlockStop(index));
        }
        if !self.behaviour.nofinish {
            steps.push(Step::Finish);
            if self.answer.usage.mode == UsageMode::Twice {
                steps.push(Step::Finish);
            }
            if !self.behaviour.nodone {
                steps.push(Step::Stop);
            }
        }
        self.steps = steps;
    }

    fn plan_block(&self, index: usize, steps: &mut Vec<Step>) {
        let reports = self.answer.usage.mode == UsageMode::Every;
        let part = self.part(index);
        let ranges = match part {
            Part::Thinking(thought) if thought.omitted => Vec::new(),
            Part::Call(_) if self.behaviour.calls == Calls::Whole => Vec::new(),
            Part::Search(_) if matches!(self.blocks[index], Block::Result(_)) => Vec::new(),
            Part::Search(search) => {
                std::iter::once(0..blocks::search_input(search).len()).collect()
            }
            _ => self.answer.pieces(part),
        };
        let is_input = matches!(part, Part::Call(_) | Part::Search(_)) && !ranges.is_empty();
        if is_input {
            // The vendor starts every tool input with an empty piece.
            steps.push(Step::Delta(index, 0..0));
        }
        for range in ranges {
            steps.push(Step::Delta(index, range));
            steps.extend(reports.then_some(Step::Report));
        }
        match part {
            Part::Thinking(_) => steps.push(Step::Signature(index)),
            Part::Text(text) => {
                steps.extend((0..text.sources.len()).map(|number| Step::Citation(index, number)))
            }
            Part::Unknown(_) => steps.push(Step::Odd(index)),
            _ => {}
        }
    }

    fn start(&self) -> String {
        let usage = self.usage_field(
            &self
                .answer
                .usage
                .messages_start(self.behaviour.tier(&self.turn.service_tier)),
        );
        format!(
            r#","message":{{"model":{},"id":"msg_{}","type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null{usage}}}"#,
            self.behaviour.model_field(&self.turn.model),
            self.serial,
        )
    }

    fn finish(&self) -> String {
        let (stop, sequence, details) = (
            self.stop_reason(),
            self.stop_sequence(),
            self.stop_details(),
        );
        let usage = match self.answer.usage.mode {
            UsageMode::Before | UsageMode::Start => String::new(),
            _ => self.usage_field(&self.answer.usage.messages_so_far()),
        };
        format!(r#","delta":{{"stop_reason":{stop},"stop_sequence":{sequence}{details}}}{usage}"#)
    }

    fn part(&self, index: usize) -> &Part {
        let (Block::Part(part) | Block::Result(part)) = self.blocks[index];
        &self.answer.parts[part]
    }

    fn delta(&self, index: usize, range: Range<usize>) -> String {
        let search;
        let (kind, field, whole) = match self.part(index) {
            Part::Thinking(_) => ("thinking_delta", "thinking", self.shown(index)),
            Part::Call(call) => ("input_json_delta", "partial_json", call.args.as_str()),
            Part::Search(written) => {
                search = blocks::search_input(written);
                ("input_json_delta", "partial_json", search.as_str())
            }
            part => ("text_delta", "text", part.output()),
        };
        format!(r#"{{"type":"{kind}","{field}":{}}}"#, quote(&whole[range]))
    }

    fn stop_reason(&self) -> String {
        match &self.behaviour.finish {
            Some(finish) if finish == "null" => finish.clone(),
            Some(finish) => quote(finish),
            None if self.answer.refuses => quote("refusal"),
            None if self.answer.limited => quote("max_tokens"),
            None if self.behaviour.stop_sequence.is_some() => quote("stop_sequence"),
            None if self.answer.calls().next().is_some() => quote("tool_use"),
            None => quote("end_turn"),
        }
    }

    fn stop_sequence(&self) -> String {
        self.behaviour
            .stop_sequence
            .as_deref()
            .map_or_else(|| "null".to_owned(), quote)
    }

    fn stop_details(&self) -> String {
        if !self.answer.refuses {
            return String::new();
        }
        let behaviour = &self.behaviour;
        let text = behaviour
            .text
            .as_ref()
            .filter(|_| behaviour.refusal == Refusal::Instead);
        let words = behaviour
            .explanation
            .as_ref()
            .or(text)
            .map_or_else(|| "null".to_owned(), |words| quote(words));
        let category = behaviour
            .category
            .as_deref()
            .map_or_else(|| "null".to_owned(), quote);
        format!(
            r#","stop_details":{{"type":"refusal","category":{category},"explanation":{words}}}"#
        )
    }

    fn usage_field(&self, usage: &str) -> String {
        match self.answer.usage.mode {
            UsageMode::None => String::new(),
            _ => format!(r#","usage":{usage}"#),
        }
    }
}
