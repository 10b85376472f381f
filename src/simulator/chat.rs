//! Chat completions, as its vendor writes them: whole and as a stream of chunks.
//!
//! It must not decide what is said (`answer.rs`), nor when it is sent (`play.rs`).

use std::ops::Range;

use super::answer::Answer;
use super::behaviour::{Behaviour, UsageMode};
use super::json::{pretty, quote};
use super::request::Turn;
use super::usage::Usage;

const FINGERPRINT: &str = "fp_sim0123456";
const PADDING: &str = "aK3xQ9mZ7tRw2LpV";

#[derive(Debug)]
pub struct Reply {
    turn: Turn,
    behaviour: Behaviour,
    answer: Answer,
    /// The part of every id that makes it unique.
    serial: String,
    created: i64,
    steps: Vec<(usize, Step)>,
}

/// One event of a stream, before it is worded; kept small, because streams can be long.
#[derive(Debug)]
enum Step {
    /// A chunk that knows nothing, as some hosts send first.
    Prelude,
    Role,
    /// The vendor opens an answer that is one call and nothing else in a single chunk.
    RoleAndCall,
    Thinking(Range<usize>),
    Text(Range<usize>),
    CallStart(usize),
    CallArgs(usize, Range<usize>),
    Finish,
    Usage,
    Done,
}

impl Reply {
    pub fn new(turn: Turn, behaviour: Behaviour, serial: String, created: i64) -> Self {
        let answer = Answer::new(&turn, &behaviour);
        let mut reply = Self { turn, behaviour, answer, serial, created, steps: Vec::new() };
        if reply.turn.stream {
            reply.plan();
        }
        reply
    }

    /// The body of a JSON answer.
    pub fn whole(&self) -> String {
        let choices: Vec<String> = (0..self.turn.choices).map(|index| self.choice(index)).collect();
        let usage = match self.answer.usage.mode {
            UsageMode::None => String::new(),
            _ => format!(r#","usage":{}"#, self.answer.usage.chat()),
        };
        let compact = format!(
            r#"{{"id":"chatcmpl-{}","object":"chat.completion","created":{},"model":{},"choices":[{}]{usage},"service_tier":"{}","system_fingerprint":"{FINGERPRINT}"{}}}"#,
            self.serial,
            self.created,
            self.model(),
            choices.join(","),
            self.turn.service_tier,
            self.unknown_field(),
        );
        pretty(&compact, 2)
    }

    /// Events in a stream.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The data of the event at `index`.
    pub fn event(&self, index: usize) -> Option<String> {
        let (choice, step) = self.steps.get(index)?;
        let delta = match step {
            Step::Done => return Some("[DONE]".to_owned()),
            Step::Prelude => {
                return Some(
                    r#"{"choices":[],"created":0,"id":"","model":"","object":"","sim_prelude":[{"index":0}]}"#
                        .to_owned(),
                );
            }
            Step::Usage => return Some(self.chunk(index, "[]", &self.answer.usage)),
            Step::Role => self.role_delta(""),
            Step::RoleAndCall => self.role_delta(&format!(r#","tool_calls":[{}]"#, self.call_start(*choice, 0))),
            Step::Thinking(range) => {
                format!(r#"{{"reasoning_content":{}}}"#, quote(&self.answer.thinking[range.clone()]))
            }
            Step::Text(range) => {
                let field = if self.answer.refuses { "refusal" } else { "content" };
                format!(r#"{{"{field}":{}}}"#, quote(&self.answer.text[range.clone()]))
            }
            Step::CallStart(call) => {
                format!(r#"{{"tool_calls":[{}]}}"#, self.call_start(*choice, *call))
            }
            Step::CallArgs(call, range) => {
                let piece = quote(&self.answer.calls[*call].args[range.clone()]);
                format!(r#"{{"tool_calls":[{{"index":{call},"function":{{"arguments":{piece}}}}}]}}"#)
            }
            Step::Finish => "{}".to_owned(),
        };
        let (finish, usage) = match step {
            Step::Finish => (quote(self.finish_reason()), self.answer.usage),
            _ => {
                let so_far = self.answer.usage.partial(index + 1, self.steps.len());
                ("null".to_owned(), so_far)
            }
        };
        let choices = format!(r#"[{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]"#);
        Some(self.chunk(index, &choices, &usage))
    }

    fn plan(&mut self) {
        let answer = &self.answer;
        let mut steps = Vec::new();
        let mut for_all = |make: &dyn Fn() -> Step| {
            steps.extend((0..self.turn.choices).map(|choice| (choice, make())));
        };
        let only_call = answer.calls.len() == 1 && answer.text.is_empty() && answer.thinking.is_empty();
        if self.behaviour.unknown {
            for_all(&|| Step::Prelude);
        }
        for_all(&|| {
            if only_call { Step::RoleAndCall } else { Step::Role }
        });
        for range in answer.thinking_pieces() {
            for_all(&|| Step::Thinking(range.clone()));
        }
        for range in answer.text_pieces() {
            for_all(&|| Step::Text(range.clone()));
        }
        for (number, call) in answer.calls.iter().enumerate() {
            if !only_call {
                for_all(&|| Step::CallStart(number));
            }
            for range in call.pieces() {
                for_all(&|| Step::CallArgs(number, range.clone()));
            }
        }
        for_all(&|| Step::Finish);
        let reports = match answer.usage.mode {
            UsageMode::None | UsageMode::Finish => 0,
            UsageMode::Twice => 2,
            _ => 1,
        };
        if self.turn.include_usage {
            steps.extend((0..reports).map(|_| (0, Step::Usage)));
        }
        if !self.behaviour.nodone {
            steps.push((0, Step::Done));
        }
        self.steps = steps;
    }

    fn chunk(&self, index: usize, choices: &str, usage: &Usage) -> String {
        let is_report = choices == "[]";
        let is_finish = matches!(self.steps.get(index), Some((_, Step::Finish)));
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
        let padding = match self.turn.obfuscation {
            true => format!(r#","obfuscation":"{}""#, &PADDING[..index * 5 % PADDING.len()]),
            false => String::new(),
        };
        format!(
            r#"{{"id":"chatcmpl-{}","object":"chat.completion.chunk","created":{},"model":{},"service_tier":"{}","system_fingerprint":"{FINGERPRINT}","choices":{choices}{usage}{}{padding}}}"#,
            self.serial,
            self.created,
            self.model(),
            self.turn.service_tier,
            self.unknown_field(),
        )
    }

    fn choice(&self, index: usize) -> String {
        let answer = &self.answer;
        let text = quote(&answer.text);
        let only_calls = answer.text.is_empty() && !answer.calls.is_empty();
        let content = if answer.refuses || only_calls { "null" } else { &text };
        let refusal = if answer.refuses { &text } else { "null" };
        let mut calls = String::new();
        if !answer.calls.is_empty() {
            let listed: Vec<String> =
                (0..answer.calls.len()).map(|call| self.call(index, call, "", &answer.calls[call].args)).collect();
            calls = format!(r#","tool_calls":[{}]"#, listed.join(","));
        }
        let mut reasoning = String::new();
        if !answer.thinking.is_empty() {
            reasoning = format!(r#","reasoning_content":{}"#, quote(&answer.thinking));
        }
        let unknown = self.unknown_field();
        let finish = quote(self.finish_reason());
        format!(
            r#"{{"index":{index},"message":{{"role":"assistant","content":{content}{reasoning}{calls},"refusal":{refusal},"annotations":[]{unknown}}},"logprobs":null,"finish_reason":{finish}}}"#
        )
    }

    /// A call; `index` is a field that only streams have.
    fn call(&self, choice: usize, call: usize, index: &str, args: &str) -> String {
        let (id, args) = (self.call_id(choice, call), quote(args));
        let name = quote(&self.answer.calls[call].name);
        format!(r#"{{{index}"id":{id},"type":"function","function":{{"name":{name},"arguments":{args}}}}}"#)
    }

    fn call_start(&self, choice: usize, call: usize) -> String {
        self.call(choice, call, &format!(r#""index":{call},"#), "")
    }

    fn call_id(&self, choice: usize, call: usize) -> String {
        match &self.answer.calls[call].id {
            Some(id) => quote(id),
            None => format!(r#""call_{}{choice:02}{call:02}""#, self.serial),
        }
    }

    fn role_delta(&self, calls: &str) -> String {
        let has_text = !self.answer.text.is_empty() || self.answer.calls.is_empty();
        let content = if has_text && !self.answer.refuses { r#""""# } else { "null" };
        format!(r#"{{"role":"assistant","content":{content}{calls},"refusal":null}}"#)
    }

    fn finish_reason(&self) -> &str {
        match &self.behaviour.finish {
            Some(finish) => finish,
            None if self.answer.limited => "length",
            None if !self.answer.calls.is_empty() => "tool_calls",
            None => "stop",
        }
    }

    fn model(&self) -> String {
        quote(self.behaviour.model.as_ref().unwrap_or(&self.turn.model))
    }

    fn unknown_field(&self) -> &'static str {
        if self.behaviour.unknown { r#","sim_unknown":{"a":[1,null]}"# } else { "" }
    }
}
