//! Encodes messages as their vendor does: as one document and as a stream of events.
//!
//! This module must not decide the content (`answer.rs`) or the timing (`sender.rs`). Read next:
//! `messages/blocks.rs`.

mod blocks;
mod response;

use std::ops::Range;

pub use self::response::SimMessagesResponse;

use self::response::{SimBlock, SimMessagesEvent};
use super::answer::SimulatedAnswer;
use super::behaviour::{Behaviour, RefusalMode, ToolCallMode, UsageMode};
use super::json::quote;
use super::part::SimPart;
use super::turn::SimTurn;
use super::usage::SimUsage;

impl SimMessagesResponse {
    pub fn new(turn: SimTurn, behaviour: Behaviour, serial: String) -> Self {
        let answer = SimulatedAnswer::new(&turn, &behaviour);
        let mut blocks = Vec::with_capacity(answer.parts.len());
        for (index, part) in answer.parts.iter().enumerate() {
            blocks.push(SimBlock::Part(index));
            blocks.extend(matches!(part, SimPart::Search(_)).then_some(SimBlock::Result(index)));
        }
        if behaviour.refusal == RefusalMode::Instead {
            // In a refusal, the vendor shows thinking but no output.
            blocks
                .retain(|block| matches!(block, SimBlock::Part(part) if matches!(answer.parts[*part], SimPart::Thinking(_))));
        }
        let mut response = Self {
            turn,
            behaviour,
            answer,
            serial,
            blocks,
            steps: Vec::new(),
        };
        if response.turn.stream {
            response.plan();
        }
        response
    }

    /// Returns the body of a JSON answer.
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

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn usage(&self) -> SimUsage {
        self.answer.usage
    }

    /// Returns the number of output bytes in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match self.steps.get(index) {
            Some(SimMessagesEvent::Delta(_, range)) => range.len(),
            _ => 0,
        }
    }

    /// Returns the name and data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<(&'static str, String)> {
        let (name, fields) = match self.steps.get(index)? {
            SimMessagesEvent::Start => ("message_start", self.start()),
            SimMessagesEvent::Unknown => ("sim_unknown", r#","n":1"#.to_owned()),
            SimMessagesEvent::Ping => return Some(("ping", r#"{"type": "ping"}"#.to_owned())),
            SimMessagesEvent::BlockStart(block) => {
                let content = self.empty_block(*block);
                (
                    "content_block_start",
                    format!(r#","index":{block},"content_block":{content}"#),
                )
            }
            SimMessagesEvent::Delta(block, range) => {
                let delta = self.delta(*block, range.clone());
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            SimMessagesEvent::Signature(block) => {
                let signature = self.signature(*block);
                let delta = format!(r#"{{"type":"signature_delta","signature":"{signature}"}}"#);
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            SimMessagesEvent::Citation(block, number) => {
                let SimPart::Text(text) = self.part(*block) else {
                    return None;
                };
                let citation = self.citation(*block, text.sources.get(*number)?);
                let delta = format!(r#"{{"type":"citations_delta","citation":{citation}}}"#);
                (
                    "content_block_delta",
                    format!(r#","index":{block},"delta":{delta}"#),
                )
            }
            SimMessagesEvent::Odd(block) => {
                let SimPart::Unknown(kind) = self.part(*block) else {
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
            SimMessagesEvent::BlockStop(block) => {
                ("content_block_stop", format!(r#","index":{block}"#))
            }
            SimMessagesEvent::Report => {
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
            SimMessagesEvent::Finish => ("message_delta", self.finish()),
            SimMessagesEvent::Stop => ("message_stop", String::new()),
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
        let mut steps = vec![SimMessagesEvent::Start];
        if self.behaviour.unknown {
            steps.push(SimMessagesEvent::Unknown);
        }
        if self.answer.usage.mode == UsageMode::Before {
            steps.push(SimMessagesEvent::Report);
        }
        for index in 0..self.blocks.len() {
            steps.push(SimMessagesEvent::BlockStart(index));
            if index == 0 {
                steps.push(SimMessagesEvent::Ping);
            }
            self.plan_block(index, &mut steps);
            steps.push(SimMessagesEvent::BlockStop(index));
        }
        if !self.behaviour.nofinish {
            steps.push(SimMessagesEvent::Finish);
            if self.answer.usage.mode == UsageMode::Twice {
                steps.push(SimMessagesEvent::Finish);
            }
            if !self.behaviour.nodone {
                steps.push(SimMessagesEvent::Stop);
            }
        }
        self.steps = steps;
    }

    fn plan_block(&self, index: usize, steps: &mut Vec<SimMessagesEvent>) {
        let reports = self.answer.usage.mode == UsageMode::Every;
        let part = self.part(index);
        let ranges = match part {
            SimPart::Thinking(thinking) if thinking.omitted => Vec::new(),
            SimPart::Call(_) if self.behaviour.calls == ToolCallMode::Whole => Vec::new(),
            SimPart::Search(_) if matches!(self.blocks[index], SimBlock::Result(_)) => Vec::new(),
            SimPart::Search(search) => {
                std::iter::once(0..blocks::search_input(search).len()).collect()
            }
            _ => self.answer.pieces(part),
        };
        let is_input = matches!(part, SimPart::Call(_) | SimPart::Search(_)) && !ranges.is_empty();
        if is_input {
            // The vendor starts every tool input with an empty piece.
            steps.push(SimMessagesEvent::Delta(index, 0..0));
        }
        for range in ranges {
            steps.push(SimMessagesEvent::Delta(index, range));
            steps.extend(reports.then_some(SimMessagesEvent::Report));
        }
        match part {
            SimPart::Thinking(_) => steps.push(SimMessagesEvent::Signature(index)),
            SimPart::Text(text) => steps.extend(
                (0..text.sources.len()).map(|number| SimMessagesEvent::Citation(index, number)),
            ),
            SimPart::Unknown(_) => steps.push(SimMessagesEvent::Odd(index)),
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

    fn delta(&self, index: usize, range: Range<usize>) -> String {
        let search;
        let (kind, field, whole) = match self.part(index) {
            SimPart::Thinking(_) => ("thinking_delta", "thinking", self.visible_output(index)),
            SimPart::Call(call) => ("input_json_delta", "partial_json", call.args.as_str()),
            SimPart::Search(written) => {
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
            .filter(|_| behaviour.refusal == RefusalMode::Instead);
        let explanation = behaviour
            .explanation
            .as_ref()
            .or(text)
            .map_or_else(|| "null".to_owned(), |text| quote(text));
        let category = behaviour
            .category
            .as_deref()
            .map_or_else(|| "null".to_owned(), quote);
        format!(
            r#","stop_details":{{"type":"refusal","category":{category},"explanation":{explanation}}}"#
        )
    }

    fn usage_field(&self, usage: &str) -> String {
        match self.answer.usage.mode {
            UsageMode::None => String::new(),
            _ => format!(r#","usage":{usage}"#),
        }
    }
}
