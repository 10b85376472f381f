//! Interprets the keys of a marker.
//!
//! It must not guess: an unknown key or value is an error that names it. The list of keys for users
//! is in `simulator.rs`; the syntax is in `marker.rs`.

mod modes;

use std::time::Duration;

pub use self::modes::{
    Calls, ErrorBody, ErrorForm, Garbage, Items, KeepAlive, Refusal, Shape, Spelling, UsageMode,
};

use super::json::quote;
use super::marker;
use super::part::{self, Part};

const BYTES_MAX: u64 = 64 * 1024 * 1024;
const EVENTS_MAX: u64 = 1024 * 1024;
const TOOLS_MAX: u64 = 128;
const END: [(&str, bool); 2] = [("clean", true), ("cut", false)];
const DISPLAY: [(&str, bool); 2] = [("omitted", true), ("summarized", false)];
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The behaviour that one request selected.
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
    pub refusal: Refusal,
    pub status: Option<u16>,
    pub retry_after: Option<u64>,
    pub error_body: ErrorBody,
    pub cut: Option<Point>,
    pub reset: bool,
    pub clean_end: bool,
    pub hang: Option<Point>,
    pub garbage: Option<Garbage>,
    pub error_event: Option<usize>,
    pub unknown: bool,
    pub crlf: bool,
    pub split: Option<usize>,
    pub nodone: bool,
    pub chunked: bool,
    pub blocks: Option<Vec<Part>>,
    /// Whether to show thinking by its signature only.
    pub omitted: Option<bool>,
    pub explanation: Option<String>,
    pub category: Option<String>,
    pub stop_sequence: Option<String>,
    pub spelling: Spelling,
    pub calls: Calls,
    pub items: Items,
    pub error_form: ErrorForm,
    pub shape: Option<Shape>,
    pub nofinish: bool,
    pub keep_alive: Option<KeepAlive>,
    pub error_type: Option<String>,
    pub error_code: Option<String>,
    pub min_output: Option<u64>,
    pub overrun: bool,
    pub chatter: bool,
    /// Whether the vendor checks only what it needs to answer, if the marker says so.
    pub lenient: Option<bool>,
}

/// Position in an answer at which a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Headers,
    Events(usize),
}

impl Behaviour {
    /// Parses the first marker in `text`; without a marker, the behaviour is the default.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut behaviour = Self::default();
        for (key, value) in marker::read(text)? {
            behaviour.set(key, value)?;
        }
        behaviour.check()
    }

    /// The model name to report, as JSON, for a request for the model `asked`.
    pub fn model_field(&self, asked: &str) -> String {
        quote(self.model.as_deref().unwrap_or(asked))
    }

    /// An unknown member, if the marker asks for one.
    pub fn unknown_field(&self) -> &'static str {
        if self.unknown {
            r#","sim_unknown":{"a":[1,null]}"#
        } else {
            ""
        }
    }

    /// The service tier to report for a request for `asked`; `None`: report no tier.
    pub fn tier<'a>(&'a self, asked: &'a str) -> Option<&'a str> {
        Some(self.service_tier.as_deref().unwrap_or(asked)).filter(|tier| *tier != "none")
    }

    fn check(self) -> Result<Self, String> {
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
            "bytes" => self.bytes = Some(size(key, &value, 0, BYTES_MAX)?),
            "events" => self.events = Some(size(key, &value, 1, EVENTS_MAX)?),
            "gap_ms" => self.gap = wait(key, &value, Duration::from_millis)?,
            "gap_us" => self.gap = wait(key, &value, Duration::from_micros)?,
            "delay_ms" => self.delay = wait(key, &value, Duration::from_millis)?,
            "first_ms" => self.first = wait(key, &value, Duration::from_millis)?,
            "tool" => self.tool = Some(value),
            "args" => self.args = Some(value),
            "tools" => self.tools = Some(size(key, &value, 1, TOOLS_MAX)?),
            "tool_id" => self.tool_id = Some(value),
            "thinking" => self.thinking = Some(value),
            "model" => self.model = Some(value),
            "finish" => self.finish = Some(value),
            "input" => self.input = Some(number(key, &value)?),
            "output" => self.output = Some(number(key, &value)?),
            _ => return self.set_usage(key, &value),
        }
        Ok(())
    }

    /// Sets a key about usage other than the two plain counts.
    fn set_usage(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "cache_read" => self.cache_read = number(key, value)?,
            "write_5m" => self.write_5m = number(key, value)?,
            "write_1h" => self.write_1h = number(key, value)?,
            "reasoning" => self.reasoning = Some(number(key, value)?),
            "audio_input" => self.audio_input = number(key, value)?,
            "audio_output" => self.audio_output = number(key, value)?,
            "searches" => self.searches = Some(number(key, value)?),
            "tier" => self.service_tier = Some(value.to_owned()),
            "usage" => self.usage = word(key, value, &modes::USAGE)?,
            _ => return self.set_fault(key, value),
        }
        Ok(())
    }

    /// Sets a key about faults and their form on the wire.
    fn set_fault(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "status" => self.status = Some(status(value).ok_or_else(|| bad(key, value))?),
            "retry_after" => self.retry_after = Some(number(key, value)?),
            "error_body" => self.error_body = word(key, value, &modes::ERROR_BODY)?,
            "cut" => self.cut = Some(point(key, value)?),
            "hang" => self.hang = Some(point(key, value)?),
            "end" => self.clean_end = word(key, value, &END)?,
            "garbage" => self.garbage = Some(word(key, value, &modes::GARBAGE)?),
            "error_event" => self.error_event = Some(size(key, value, 0, EVENTS_MAX)?),
            "split" => self.split = Some(size(key, value, 1, BYTES_MAX)?),
            "reset" => self.reset = flag(key, value)?,
            "comment" => self.keep_alive = flag(key, value)?.then_some(KeepAlive::Comment),
            "unknown" => self.unknown = flag(key, value)?,
            "crlf" => self.crlf = flag(key, value)?,
            "nodone" => self.nodone = flag(key, value)?,
            "chunked" => self.chunked = flag(key, value)?,
            _ => return self.set_form(key, value),
        }
        Ok(())
    }

    /// Sets a key about unusual forms that a translator must handle, or about strictness.
    fn set_form(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "blocks" => self.blocks = Some(part::read(value)?),
            "display" => self.omitted = Some(word(key, value, &DISPLAY)?),
            "refusal" => self.refusal = word(key, value, &modes::REFUSAL)?,
            "explanation" => self.explanation = Some(value.to_owned()),
            "category" => self.category = Some(value.to_owned()),
            "stop_sequence" => self.stop_sequence = Some(value.to_owned()),
            "spelling" => self.spelling = word(key, value, &modes::SPELLING)?,
            "calls" => self.calls = word(key, value, &modes::CALLS)?,
            "items" => self.items = word(key, value, &modes::ITEMS)?,
            "error_form" => self.error_form = word(key, value, &modes::ERROR_FORM)?,
            "shape" => self.shape = Some(word(key, value, &modes::SHAPE)?),
            "nofinish" => self.nofinish = flag(key, value)?,
            "keepalive" => self.keep_alive = Some(word(key, value, &modes::KEEP_ALIVE)?),
            "error_type" => self.error_type = Some(value.to_owned()),
            "error_code" => self.error_code = Some(value.to_owned()),
            "min_output" => self.min_output = Some(number(key, value)?),
            "overrun" => self.overrun = flag(key, value)?,
            "chatter" => self.chatter = flag(key, value)?,
            "lenient" => self.lenient = Some(flag(key, value)?),
            _ => return Err(format!("unknown key '{key}'")),
        }
        Ok(())
    }
}

/// Parses a word from a list of modes.
fn word<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, way)| *way).ok_or_else(|| bad(key, value))
}

fn bad(key: &str, value: &str) -> String {
    format!("bad value {value:?} for key '{key}'")
}

fn number(key: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| bad(key, value))
}

fn wait(key: &str, value: &str, unit: fn(u64) -> Duration) -> Result<Duration, String> {
    let wait = unit(number(key, value)?);
    if wait > WAIT_MAX {
        return Err(bad(key, value));
    }
    Ok(wait)
}

fn size(key: &str, value: &str, min: u64, max: u64) -> Result<usize, String> {
    let number = number(key, value)?;
    if !(min..=max).contains(&number) {
        return Err(bad(key, value));
    }
    usize::try_from(number).map_err(|_| bad(key, value))
}

fn flag(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(bad(key, value)),
    }
}

fn point(key: &str, value: &str) -> Result<Point, String> {
    match value {
        "headers" => Ok(Point::Headers),
        _ => Ok(Point::Events(size(key, value, 0, EVENTS_MAX)?)),
    }
}

fn status(value: &str) -> Option<u16> {
    value
        .parse()
        .ok()
        .filter(|status| (300..=599).contains(status))
}
