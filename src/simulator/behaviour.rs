//! The meaning of a marker's keys.
//!
//! It must not guess: whatever it does not know is an error that names it. The list for people is in
//! `simulator.rs`; the syntax is in `marker.rs`.

use std::time::Duration;

use super::marker;

const BYTES_MAX: u64 = 64 * 1024 * 1024;
const EVENTS_MAX: u64 = 1024 * 1024;
const TOOLS_MAX: u64 = 128;
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What one request asked for.
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
    pub reasoning: Option<u64>,
    pub usage: UsageMode,
    pub model: Option<String>,
    pub finish: Option<String>,
    pub refusal: bool,
    pub status: Option<u16>,
    pub retry_after: Option<u64>,
    pub error_body: ErrorBody,
    pub cut: Option<Point>,
    pub reset: bool,
    pub clean_end: bool,
    pub hang: Option<Point>,
    pub garbage: Option<Garbage>,
    pub error_event: Option<usize>,
    pub comment: bool,
    pub unknown: bool,
    pub crlf: bool,
    pub split: Option<usize>,
    pub nodone: bool,
    pub chunked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageMode {
    #[default]
    Normal,
    None,
    Zero,
    Twice,
    Every,
    Finish,
    Negative,
    Huge,
    Nan,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorBody {
    #[default]
    Json,
    Html,
    Empty,
    Leak,
    Quota,
    Context,
    Policy,
}

/// Where in an answer something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Headers,
    Events(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    Json,
    Sse,
    Chunk,
    Headers,
    Length,
}

impl Behaviour {
    /// Reads the first marker in `text`; without one, everything is as usual.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut behaviour = Self::default();
        for (key, value) in marker::read(text)? {
            behaviour.set(key, value)?;
        }
        behaviour.check()
    }

    fn check(self) -> Result<Self, String> {
        if self.tool.is_none() && (self.args.is_some() || self.tools.is_some()) {
            return Err("'args' and 'tools' need 'tool'".to_owned());
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
            "cache_read" => self.cache_read = number(key, &value)?,
            "write_5m" => self.write_5m = number(key, &value)?,
            "write_1h" => self.write_1h = number(key, &value)?,
            "reasoning" => self.reasoning = Some(number(key, &value)?),
            "usage" => self.usage = usage_mode(&value).ok_or_else(|| bad(key, &value))?,
            _ => return self.set_fault(key, &value),
        }
        Ok(())
    }

    /// The second half of the keys: what goes wrong, and how it looks on the wire.
    fn set_fault(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "status" => self.status = Some(status(value).ok_or_else(|| bad(key, value))?),
            "retry_after" => self.retry_after = Some(number(key, value)?),
            "error_body" => self.error_body = error_body(value).ok_or_else(|| bad(key, value))?,
            "cut" => self.cut = Some(point(key, value)?),
            "hang" => self.hang = Some(point(key, value)?),
            "end" => self.clean_end = end(value).ok_or_else(|| bad(key, value))?,
            "garbage" => self.garbage = Some(garbage(value).ok_or_else(|| bad(key, value))?),
            "error_event" => self.error_event = Some(size(key, value, 0, EVENTS_MAX)?),
            "split" => self.split = Some(size(key, value, 1, BYTES_MAX)?),
            "reset" => self.reset = flag(key, value)?,
            "comment" => self.comment = flag(key, value)?,
            "unknown" => self.unknown = flag(key, value)?,
            "crlf" => self.crlf = flag(key, value)?,
            "nodone" => self.nodone = flag(key, value)?,
            "chunked" => self.chunked = flag(key, value)?,
            "refusal" => self.refusal = flag(key, value)?,
            _ => return Err(format!("unknown key '{key}'")),
        }
        Ok(())
    }
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
    value.parse().ok().filter(|status| (300..=599).contains(status))
}

fn end(value: &str) -> Option<bool> {
    match value {
        "clean" => Some(true),
        "cut" => Some(false),
        _ => None,
    }
}

fn usage_mode(value: &str) -> Option<UsageMode> {
    Some(match value {
        "normal" => UsageMode::Normal,
        "none" => UsageMode::None,
        "zero" => UsageMode::Zero,
        "twice" => UsageMode::Twice,
        "every" => UsageMode::Every,
        "finish" => UsageMode::Finish,
        "negative" => UsageMode::Negative,
        "huge" => UsageMode::Huge,
        "nan" => UsageMode::Nan,
        _ => return None,
    })
}

fn error_body(value: &str) -> Option<ErrorBody> {
    Some(match value {
        "json" => ErrorBody::Json,
        "html" => ErrorBody::Html,
        "empty" => ErrorBody::Empty,
        "leak" => ErrorBody::Leak,
        "quota" => ErrorBody::Quota,
        "context" => ErrorBody::Context,
        "policy" => ErrorBody::Policy,
        _ => return None,
    })
}

fn garbage(value: &str) -> Option<Garbage> {
    Some(match value {
        "json" => Garbage::Json,
        "sse" => Garbage::Sse,
        "chunk" => Garbage::Chunk,
        "headers" => Garbage::Headers,
        "length" => Garbage::Length,
        _ => return None,
    })
}
