//! Interprets the keys of a marker.
//!
//! This module must not guess, so an unknown key or value is an error that names it. The list of
//! keys for users is in `lib.rs`; the syntax is in `marker.rs`.

mod modes;

use std::time::Duration;

pub use self::modes::{
    ErrorBody, ErrorForm, Garbage, ItemMode, KeepAliveMode, MalformedShape, ReasoningFieldMode,
    RefusalMode, ToolCallMode, UsageMode,
};

use super::json::quote;
use super::marker;
use super::part::{self, SimPart};

const MAX_BYTES: u64 = 64 * 1024 * 1024;
const MAX_EVENTS: u64 = 1024 * 1024;
const MAX_TOOLS: u64 = 128;
const END: [(&str, bool); 2] = [("clean", true), ("cut", false)];
const DISPLAY: [(&str, bool); 2] = [("omitted", true), ("summarized", false)];
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Behaviour {
    pub text: Option<String>,
    pub bytes: Option<usize>,
    pub events: Option<usize>,
    pub gap: Duration,
    pub delay: Duration,
    pub first: Duration,
    pub tool: Option<String>,
    pub args: Option<String>,
    pub tools: Option<usize>,
    pub tool_id: Option<String>,
    pub steps: Option<usize>,
    /// True if the reply is an outline of the conversation.
    pub outline: bool,
    pub thinking: Option<String>,
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cache_read: u64,
    pub write_5m: u64,
    pub write_1h: u64,
    pub audio_input: u64,
    pub audio_output: u64,
    pub searches: Option<u64>,
    pub service_tier: Option<String>,
    pub reasoning: Option<u64>,
    pub usage: UsageMode,
    pub model: Option<String>,
    pub finish: Option<String>,
    pub refusal: RefusalMode,
    pub status: Option<u16>,
    pub retry_after: Option<u64>,
    pub error_body: ErrorBody,
    pub cut: Option<InterruptPoint>,
    pub reset: bool,
    pub clean_end: bool,
    pub hang: Option<InterruptPoint>,
    pub hold: Option<InterruptPoint>,
    pub garbage: Option<Garbage>,
    pub error_event: Option<usize>,
    pub unknown: bool,
    pub crlf: bool,
    pub split: Option<usize>,
    pub nodone: bool,
    pub chunked: bool,
    pub blocks: Option<Vec<SimPart>>,
    /// True to show thinking by its signature only.
    pub omitted: Option<bool>,
    pub explanation: Option<String>,
    pub category: Option<String>,
    pub stop_sequence: Option<String>,
    pub spelling: ReasoningFieldMode,
    pub calls: ToolCallMode,
    pub items: ItemMode,
    pub error_form: ErrorForm,
    pub shape: Option<MalformedShape>,
    pub nofinish: bool,
    pub keep_alive: Option<KeepAliveMode>,
    pub error_type: Option<String>,
    pub error_code: Option<String>,
    pub min_output: Option<u64>,
    pub overrun: bool,
    pub chatter: bool,
    /// True if the vendor checks only the members that it needs to answer; `None` if the marker
    /// sets nothing.
    pub lenient: Option<bool>,
}

/// Position in an answer at which a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptPoint {
    Headers,
    Events(usize),
}

impl Behaviour {
    /// Parses the first marker in `text`; without a marker, the behaviour is the default.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut behaviour = Self::default();
        for (key, value) in marker::parse(text)? {
            behaviour.set(key, value)?;
        }
        behaviour.validate()
    }

    /// Returns the reported model name as JSON, for a request for the model `requested`.
    pub fn model_field(&self, requested: &str) -> String {
        quote(self.model.as_deref().unwrap_or(requested))
    }

    /// Returns an unknown member, if the marker requests one.
    pub fn unknown_field(&self) -> &'static str {
        if self.unknown {
            r#","sim_unknown":{"a":[1,null]}"#
        } else {
            ""
        }
    }

    /// Returns the reported service tier for a request for `requested`; `None` to report no tier.
    pub fn tier<'a>(&'a self, requested: &'a str) -> Option<&'a str> {
        Some(self.service_tier.as_deref().unwrap_or(requested)).filter(|tier| *tier != "none")
    }

    fn validate(self) -> Result<Self, String> {
        if self.tool.is_none() && (self.args.is_some() || self.tools.is_some()) {
            return Err("'args' and 'tools' need 'tool'".to_owned());
        }
        let is_spelt_out = self.bytes.is_some() || self.tool.is_some() || self.thinking.is_some();
        if self.blocks.is_some() && is_spelt_out {
            return Err("'blocks' takes the place of 'bytes', 'tool' and 'thinking'".to_owned());
        }
        Ok(self)
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), String> {
        match key {
            "text" => self.text = Some(value),
            "bytes" => self.bytes = Some(parse_size(key, &value, 0, MAX_BYTES)?),
            "events" => self.events = Some(parse_size(key, &value, 1, MAX_EVENTS)?),
            "gap_ms" => self.gap = parse_wait(key, &value, Duration::from_millis)?,
            "gap_us" => self.gap = parse_wait(key, &value, Duration::from_micros)?,
            "delay_ms" => self.delay = parse_wait(key, &value, Duration::from_millis)?,
            "first_ms" => self.first = parse_wait(key, &value, Duration::from_millis)?,
            "tool" => self.tool = Some(value),
            "args" => self.args = Some(value),
            "tools" => self.tools = Some(parse_size(key, &value, 1, MAX_TOOLS)?),
            "steps" => self.steps = Some(parse_size(key, &value, 1, MAX_TOOLS)?),
            "outline" => self.outline = parse_flag(key, &value)?,
            "tool_id" => self.tool_id = Some(value),
            "thinking" => self.thinking = Some(value),
            "model" => self.model = Some(value),
            "finish" => self.finish = Some(value),
            "input" => self.input = Some(parse_number(key, &value)?),
            "output" => self.output = Some(parse_number(key, &value)?),
            _ => return self.set_usage(key, &value),
        }
        Ok(())
    }

    /// Sets a key that affects the usage report, except the two plain counts.
    fn set_usage(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "cache_read" => self.cache_read = parse_number(key, value)?,
            "write_5m" => self.write_5m = parse_number(key, value)?,
            "write_1h" => self.write_1h = parse_number(key, value)?,
            "reasoning" => self.reasoning = Some(parse_number(key, value)?),
            "audio_input" => self.audio_input = parse_number(key, value)?,
            "audio_output" => self.audio_output = parse_number(key, value)?,
            "searches" => self.searches = Some(parse_number(key, value)?),
            "tier" => self.service_tier = Some(value.to_owned()),
            "usage" => self.usage = parse_word(key, value, &modes::USAGE)?,
            _ => return self.set_fault(key, value),
        }
        Ok(())
    }

    /// Sets a key that selects a fault or its form on the wire.
    fn set_fault(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "status" => {
                self.status = Some(parse_status(value).ok_or_else(|| bad_value(key, value))?)
            }
            "retry_after" => self.retry_after = Some(parse_number(key, value)?),
            "error_body" => self.error_body = parse_word(key, value, &modes::ERROR_BODY)?,
            "cut" => self.cut = Some(parse_point(key, value)?),
            "hang" => self.hang = Some(parse_point(key, value)?),
            "hold" => self.hold = Some(parse_point(key, value)?),
            "end" => self.clean_end = parse_word(key, value, &END)?,
            "garbage" => self.garbage = Some(parse_word(key, value, &modes::GARBAGE)?),
            "error_event" => self.error_event = Some(parse_size(key, value, 0, MAX_EVENTS)?),
            "split" => self.split = Some(parse_size(key, value, 1, MAX_BYTES)?),
            "reset" => self.reset = parse_flag(key, value)?,
            "comment" => {
                self.keep_alive = parse_flag(key, value)?.then_some(KeepAliveMode::Comment)
            }
            "unknown" => self.unknown = parse_flag(key, value)?,
            "crlf" => self.crlf = parse_flag(key, value)?,
            "nodone" => self.nodone = parse_flag(key, value)?,
            "chunked" => self.chunked = parse_flag(key, value)?,
            _ => return self.set_form(key, value),
        }
        Ok(())
    }

    /// Sets a key that selects an unusual form or the strictness of checks.
    fn set_form(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "blocks" => self.blocks = Some(part::parse(value)?),
            "display" => self.omitted = Some(parse_word(key, value, &DISPLAY)?),
            "refusal" => self.refusal = parse_word(key, value, &modes::REFUSAL)?,
            "explanation" => self.explanation = Some(value.to_owned()),
            "category" => self.category = Some(value.to_owned()),
            "stop_sequence" => self.stop_sequence = Some(value.to_owned()),
            "spelling" => self.spelling = parse_word(key, value, &modes::SPELLING)?,
            "calls" => self.calls = parse_word(key, value, &modes::CALLS)?,
            "items" => self.items = parse_word(key, value, &modes::ITEMS)?,
            "error_form" => self.error_form = parse_word(key, value, &modes::ERROR_FORM)?,
            "shape" => self.shape = Some(parse_word(key, value, &modes::SHAPE)?),
            "nofinish" => self.nofinish = parse_flag(key, value)?,
            "keepalive" => self.keep_alive = Some(parse_word(key, value, &modes::KEEP_ALIVE)?),
            "error_type" => self.error_type = Some(value.to_owned()),
            "error_code" => self.error_code = Some(value.to_owned()),
            "min_output" => self.min_output = Some(parse_number(key, value)?),
            "overrun" => self.overrun = parse_flag(key, value)?,
            "chatter" => self.chatter = parse_flag(key, value)?,
            "lenient" => self.lenient = Some(parse_flag(key, value)?),
            _ => return Err(format!("unknown key '{key}'")),
        }
        Ok(())
    }
}

fn parse_word<T: Copy>(key: &str, value: &str, modes: &[(&str, T)]) -> Result<T, String> {
    let found = modes.iter().find(|(word, _)| *word == value);
    found
        .map(|(_, mode)| *mode)
        .ok_or_else(|| bad_value(key, value))
}

fn bad_value(key: &str, value: &str) -> String {
    format!("bad value {value:?} for key '{key}'")
}

fn parse_number(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| bad_value(key, value))
}

fn parse_wait(key: &str, value: &str, unit: fn(u64) -> Duration) -> Result<Duration, String> {
    let wait = unit(parse_number(key, value)?);
    if wait > MAX_WAIT {
        return Err(bad_value(key, value));
    }
    Ok(wait)
}

fn parse_size(key: &str, value: &str, min: u64, max: u64) -> Result<usize, String> {
    let number = parse_number(key, value)?;
    if !(min..=max).contains(&number) {
        return Err(bad_value(key, value));
    }
    usize::try_from(number).map_err(|_| bad_value(key, value))
}

fn parse_flag(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(bad_value(key, value)),
    }
}

fn parse_point(key: &str, value: &str) -> Result<InterruptPoint, String> {
    match value {
        "headers" => Ok(InterruptPoint::Headers),
        _ => Ok(InterruptPoint::Events(parse_size(
            key, value, 0, MAX_EVENTS,
        )?)),
    }
}

/// Parses the status of an error, which some vendors send with 202.
fn parse_status(value: &str) -> Option<u16> {
    value
        .parse()
        .ok()
        .filter(|status| matches!(status, 202 | 300..=599))
}
