//! Messages, as its vendor writes them: whole and as a stream of events.
//!
//! It must not decide what is said (`answer.rs`), nor when it is sent (`play.rs`).

use std::ops::Range;

use sha2::{Digest as _, Sha256};

use super::answer::Answer;
use super::behaviour::{Behaviour, UsageMode};
use super::json::quote;
use super::request::Turn;
use super::stats::hex;
use super::usage::Usage;

#[derive(Debug)]
pub struct Reply {
    turn: Turn,
    behaviour: Behaviour,
    answer: Answer,
    /// The part of every id that makes it unique.
    serial: String,
    blocks: Vec<Block>,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Block {
    Thinking,
    Text,
    Call(usize),
}

/// One event of a stream, before it is worded; kept small, because streams can be long.
#[derive(Debug)]
enum Step {
    Start,
    Unknown,
    Ping,
    BlockStart(usize),
    Delta(usize, Range<usize>),
    Signature(usize),
    BlockStop(usize),
    /// Usage so far, in the middle of the answer.
    Report,
    Finish,
    Stop,
}

impl Reply {
    pub fn new(turn: Turn, behaviour: Behaviour, serial: String) -> Self {
        let answer = Answer::new(&turn, &behaviour);
        let thinking = (!answer.thinking.is_empty()).then_some(Block::Thinking);
        let text = (!answer.text.is_empty()).then_some(Block::Text);
        let calls = (0..answer.calls.len()).map(Block::Call);
        let blocks = thinking.into_iter().chain(text).chain(calls).collect();
        let mut reply = Self { turn, behaviour, answer, serial, blocks, steps: Vec::new() };
        if reply.turn.stream {
            reply.plan();
        }
        reply
    }

    /// The body of a JSON answer.
    pub fn whole(&self) -> String {
        let blocks: Vec<String> = self.blocks.iter().map(|block| self.block(*block)).collect();
        let (stop, details) = (quote(self.stop_reason()), self.stop_details());
        let usage = self.usage_field(&self.answer.usage.messages_whole());
        format!(
            r#"{{"id":"msg_{}","type":"message","role":"assistant","model":{},"content":[{}],"stop_reason":{stop},"stop_sequence":null{details}{usage}{}}}"#,
            self.serial,
            self.model(),
            blocks.join(","),
            self.unknown_field(),
        )
    }

    /// Events in a stream.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The name and the data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<(&'static str, String)> {
        let (name, fields) = match self.steps.get(index)? {
            Step::Start => ("message_start", self.start()),
            Step::Unknown => ("sim_unknown", r#","n":1"#.to_owned()),
            Step::Ping => return Some(("ping", r#"{"type": "ping"}"#.to_owned())),
            Step::BlockStart(block) => {
                let content = self.empty_block(self.blocks[*block]);
                ("content_block_start", format!(r#","index":{block},"content_block":{content}"#))
            }
            Step::Delta(block, range) => {
                let delta = self.delta(self.blocks[*block], range.clone());
                ("content_block_delta", format!(r#","index":{block},"delta":{delta}"#))
            }
            Step::Signature(block) => {
                let signature = self.signature();
                let delta = format!(r#"{{"type":"signature_delta","signature":"{signature}"}}"#);
                ("content_block_delta", format!(r#","index":{block},"delta":{delta}"#))
            }
            Step::BlockStop(block) => ("content_block_stop", format!(r#","index":{block}"#)),
            Step::Report => {
                let usage = self.answer.usage.partial(index + 1, self.steps.len());
                let usage = self.usage_field(&usage.messages_so_far());
                ("message_delta", format!(r#","delta":{{"stop_reason":null,"stop_sequence":null}}{usage}"#))
            }
            Step::Finish => ("message_delta", self.finish()),
            Step::Stop => ("message_stop", String::new()),
        };
        let unknown = self.unknown_field();
        // The vendor pads its events with spaces before the last brace.
        let padding = &"               "[..index * 7 % 15];
        Some((name, format!(r#"{{"type":"{name}"{fields}{unknown}{padding}}}"#)))
    }

    fn plan(&mut self) {
        let reports = self.answer.usage.mode == UsageMode::Every;
        let mut steps = vec![Step::Start];
        if self.behaviour.unknown {
            steps.push(Step::Unknown);
        }
        for (index, block) in self.blocks.iter().enumerate() {
            steps.push(Step::BlockStart(index));
            if index == 0 {
                steps.push(Step::Ping);
            }
            let ranges = match block {
                Block::Thinking => self.answer.thinking_pieces(),
                Block::Text => self.answer.text_pieces(),
                Block::Call(call) => {
                    // The vendor opens every call with an empty piece.
                    steps.push(Step::Delta(index, 0..0));
                    self.answer.calls[*call].pieces()
                }
            };
            for range in ranges {
                steps.push(Step::Delta(index, range));
                steps.extend(reports.then_some(Step::Report));
            }
            if matches!(block, Block::Thinking) {
                steps.push(Step::Signature(index));
            }
            steps.push(Step::BlockStop(index));
        }
        steps.push(Step::Finish);
        if self.answer.usage.mode == UsageMode::Twice {
            steps.push(Step::Finish);
        }
        if !self.behaviour.nodone {
            steps.push(Step::Stop);
        }
        self.steps = steps;
    }

    fn start(&self) -> String {
        // The vendor has produced a token or so when it starts; the number is a placeholder.
        let usage = Usage { output: self.answer.usage.output.min(1), reasoning: 0, ..self.answer.usage };
        let usage = self.usage_field(&usage.messages_whole());
        format!(
            r#","message":{{"model":{},"id":"msg_{}","type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null{usage}}}"#,
            self.model(),
            self.serial,
        )
    }

    fn finish(&self) -> String {
        let (stop, details) = (quote(self.stop_reason()), self.stop_details());
        let usage = self.usage_field(&self.answer.usage.messages_so_far());
        format!(r#","delta":{{"stop_reason":{stop},"stop_sequence":null{details}}}{usage}"#)
    }

    fn block(&self, block: Block) -> String {
        match block {
            Block::Thinking => {
                let (thinking, signature) = (quote(&self.answer.thinking), self.signature());
                format!(r#"{{"type":"thinking","thinking":{thinking},"signature":"{signature}"}}"#)
            }
            Block::Text => format!(r#"{{"type":"text","text":{}}}"#, quote(&self.answer.text)),
            Block::Call(call) => {
                let args = &self.answer.calls[call].args;
                let is_json = serde_json::from_str::<serde::de::IgnoredAny>(args).is_ok();
                self.call(call, if is_json { args } else { "{}" })
            }
        }
    }

    fn empty_block(&self, block: Block) -> String {
        match block {
            Block::Thinking => r#"{"type":"thinking","thinking":"","signature":""}"#.to_owned(),
            Block::Text => r#"{"type":"text","text":""}"#.to_owned(),
            Block::Call(call) => self.call(call, "{}"),
        }
    }

    fn call(&self, call: usize, input: &str) -> String {
        let name = quote(&self.answer.calls[call].name);
        let id = match &self.answer.calls[call].id {
            Some(id) => quote(id),
            None => format!(r#""toolu_{}{call:02}""#, self.serial),
        };
        format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
    }

    fn delta(&self, block: Block, range: Range<usize>) -> String {
        let (kind, field, whole) = match block {
            Block::Thinking => ("thinking_delta", "thinking", &self.answer.thinking),
            Block::Text => ("text_delta", "text", &self.answer.text),
            Block::Call(call) => ("input_json_delta", "partial_json", &self.answer.calls[call].args),
        };
        format!(r#"{{"type":"{kind}","{field}":{}}}"#, quote(&whole[range]))
    }

    fn signature(&self) -> String {
        format!("EqSim{}==", hex(&Sha256::digest(self.answer.thinking.as_bytes())))
    }

    fn stop_reason(&self) -> &str {
        match &self.behaviour.finish {
            Some(finish) => finish,
            None if self.answer.refuses => "refusal",
            None if self.answer.limited => "max_tokens",
            None if !self.answer.calls.is_empty() => "tool_use",
            None => "end_turn",
        }
    }

    fn stop_details(&self) -> String {
        if !self.answer.refuses {
            return String::new();
        }
        let words = self.behaviour.text.as_deref().map_or_else(|| "null".to_owned(), quote);
        format!(r#","stop_details":{{"type":"refusal","category":null,"explanation":{words}}}"#)
    }

    fn usage_field(&self, usage: &str) -> String {
        match self.answer.usage.mode {
            UsageMode::None => String::new(),
            _ => format!(r#","usage":{usage}"#),
        }
    }

    fn model(&self) -> String {
        quote(self.behaviour.model.as_ref().unwrap_or(&self.turn.model))
    }

    fn unknown_field(&self) -> &'static str {
        if self.behaviour.unknown { r#","sim_unknown":{"a":[1,null]}"# } else { "" }
    }
}
