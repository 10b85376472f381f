//! The kinds of conversations, and what is right for each.
//!
//! It must not know a vendor: what differs by vendor is a loss that the gateway names in its
//! warnings, or a request that it refuses itself.

use super::Vendor;
use super::protocol::{Media, Reply, Surface, Turn};
use crate::client::Connection;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Plain,
    Tools,
    Parallel,
    Images,
    Pdf,
    ThinkingOn,
    ThinkingOff,
    LateSystem,
    Switch,
    Errors,
}

pub const KINDS: [Kind; 10] = [
    Kind::Plain,
    Kind::Tools,
    Kind::Parallel,
    Kind::Images,
    Kind::Pdf,
    Kind::ThinkingOn,
    Kind::ThinkingOff,
    Kind::LateSystem,
    Kind::Switch,
    Kind::Errors,
];

pub struct Cell<'a> {
    pub vendor: &'a Vendor,
    /// The vendor that began the conversation, where it changes.
    pub before: &'a Vendor,
    pub surface: Surface,
    pub kind: Kind,
    pub stream: bool,
}

/// What came of a cell.
#[derive(Default)]
pub struct Outcome {
    /// What is wrong.
    pub problems: Vec<String>,
    /// Losses that the gateway named.
    pub losses: BTreeSet<String>,
    /// Why the gateway refused the request without asking a vendor.
    pub refusal: Option<String>,
    /// What each request must cost, in µc, by its id.
    pub bills: Vec<(String, i64)>,
}

/// Usage that every vendor reports: input without cached tokens, cached tokens, output.
const USAGE: [i64; 3] = [1_000, 500, 20];
/// Prices per token in µc, of the same classes.
pub const PRICES: [i64; 3] = [100, 10, 1_000];
const MARKER: &str = "input=1000 cache_read=500 output=20";
const TOOL: &str = "read_file";
const SYSTEM: &str = "Be brief.";
const LATE: &str = "LATE RULE";

impl fmt::Display for Cell<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.stream { "streamed" } else { "whole" };
        let Self {
            vendor,
            surface,
            kind,
            ..
        } = self;
        write!(formatter, "{} {surface:?} {kind:?} {form}", vendor.preset)
    }
}

impl Cell<'_> {
    pub fn run(&self, connection: &mut Connection, key: &str) -> Outcome {
        let mut run = Run {
            cell: self,
            connection,
            key,
            outcome: Outcome::default(),
        };
        match self.kind {
            Kind::Plain => run.plain(),
            Kind::Tools => run.tools(),
            Kind::Parallel => run.parallel(),
            Kind::Images => run.media(Media::Image, "image"),
            Kind::Pdf => run.media(Media::Pdf, "document"),
            Kind::ThinkingOn => run.thinking(true),
            Kind::ThinkingOff => run.thinking(false),
            Kind::LateSystem => run.late_system(),
            Kind::Switch => run.switch(),
            Kind::Errors => run.errors(),
        }
        run.outcome
    }
}

impl Outcome {
    /// Compares what the requests must cost with what the ledger has.
    pub fn check_bills(&mut self, billed: &BTreeMap<String, i64>) {
        for (id, expected) in &self.bills {
            let found = billed.get(id).copied();
            if found != Some(*expected) {
                self.problems
                    .push(format!("{id} cost {found:?} µc instead of {expected}"));
            }
        }
    }
}

fn user(marker: &str) -> Turn {
    Turn::User(format!("hello [[sim {marker} {MARKER}]]"))
}

fn system() -> Turn {
    Turn::System(SYSTEM.to_owned())
}

struct Run<'a, 'b> {
    cell: &'a Cell<'b>,
    connection: &'a mut Connection,
    key: &'a str,
    outcome: Outcome,
}

impl Run<'_, '_> {
    fn is(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.outcome.problems.push(problem());
        }
    }

    fn body(&self, turns: &[Turn]) -> Value {
        let Cell {
            surface,
            vendor,
            stream,
            ..
        } = *self.cell;
        surface.body(&vendor.model(), turns, stream)
    }

    /// Sends a request that the vendor must answer. `None` if it did not.
    fn ask(&mut self, body: &Value) -> Option<Reply> {
        self.ask_vendor(self.cell.vendor, body)
    }

    fn ask_vendor(&mut self, vendor: &Vendor, body: &Value) -> Option<Reply> {
        let reply = self.cell.surface.ask(self.connection, self.key, body);
        self.outcome.losses.extend(
            reply
                .warnings
                .split(", ")
                .filter(|warning| !warning.is_empty())
                .map(str::to_owned),
        );
        if reply.has_parts {
            self.outcome.losses.insert("content in parts".to_owned());
        }
        if reply.status != 200 || !reply.error.is_null() {
            let said = format!("{} {}", reply.status, reply.error);
            // A vendor may refuse media that it does not know: its words arrive.
            let is_media = matches!(self.cell.kind, Kind::Images | Kind::Pdf);
            let is_refusal = (400..500).contains(&reply.status);
            match is_refusal && (is_media || !reply.was_sent) {
                true => self.outcome.refusal = Some(reply.refusal()),
                false => self.outcome.problems.push(said),
            }
            return None;
        }
        let [fresh, cached, output] = USAGE;
        let expected = match vendor.reports_cached {
            true => USAGE,
            false => [fresh + cached, 0, output],
        };
        self.is(reply.usage == expected, || {
            format!("usage {:?}", reply.usage)
        });
        let cost = expected
            .iter()
            .zip(PRICES)
            .map(|(count, price)| count * price)
            .sum();
        self.outcome.bills.push((reply.request_id.clone(), cost));
        Some(reply)
    }

    fn check_end(&mut self, reply: &Reply) {
        let expected = match (self.cell.surface, reply.calls.is_empty()) {
            (Surface::Chat, true) => "stop",
            (Surface::Chat, false) => "tool_calls",
            (Surface::Messages, true) => "end_turn",
            (Surface::Messages, false) => "tool_use",
            (Surface::Responses, _) => "completed",
        };
        self.is(reply.finish == expected, || {
            format!("ended as {:?}", reply.finish)
        });
    }

    /// Sends the turns, and checks that the vendor got `words`.
    fn outline(&mut self, body: &Value, words: &[&str]) -> Option<Reply> {
        let reply = self.ask(body)?;
        self.check_end(&reply);
        for word in words {
            self.is(reply.text.contains(word), || {
                format!("the vendor got {:?}", reply.text)
            });
        }
        Some(reply)
    }

    fn plain(&mut self) {
        let body = self.body(&[system(), user("outline=1")]);
        self.outline(&body, &["Be brief.", "hello"]);
    }

    fn tools(&mut self) {
        let mut turns = vec![
            system(),
            user("tool=read_file args={\"path\":\"a\"} steps=3 text=Done."),
        ];
        let mut ids = BTreeSet::new();
        for step in 0..3 {
            let Some(reply) = self.call(&turns, 1) else {
                return;
            };
            self.check_end(&reply);
            if self.cell.surface == Surface::Chat {
                // A vendor's own ids: unique in an answer, and it knows them again.
                ids.clear();
            }
            for (id, _) in &reply.calls {
                self.is(ids.insert(id.clone()), || {
                    format!("step {step}: a second call {id}")
                });
            }
            answer_calls(&mut turns, reply);
        }
        self.finish(&turns);
    }

    fn parallel(&mut self) {
        let mut turns = vec![
            system(),
            user("tool=read_file args={\"path\":\"a\"} tools=2 text=Done."),
        ];
        let Some(reply) = self.call(&turns, 2) else {
            return;
        };
        answer_calls(&mut turns, reply);
        self.finish(&turns);
    }

    /// Sends the turns, and expects calls.
    fn call(&mut self, turns: &[Turn], count: usize) -> Option<Reply> {
        let mut body = self.body(turns);
        self.cell.surface.add_tool(&mut body, TOOL);
        let reply = self.ask(&body)?;
        let is_right =
            reply.calls.len() == count && reply.calls.iter().all(|(_, name)| name == TOOL);
        self.is(is_right, || format!("calls {:?}", reply.calls));
        is_right.then_some(reply)
    }

    /// Sends the turns with the last results, and expects the end.
    fn finish(&mut self, turns: &[Turn]) {
        let mut body = self.body(turns);
        self.cell.surface.add_tool(&mut body, TOOL);
        let Some(reply) = self.ask(&body) else { return };
        self.check_end(&reply);
        self.is(reply.text == "Done.", || {
            format!("after the results: {:?}", reply.text)
        });
    }

    fn media(&mut self, media: Media, word: &str) {
        let text = format!("hello [[sim outline=1 {MARKER}]]");
        let body = self.body(&[Turn::UserWith(media, text)]);
        let Some(reply) = self.outline(&body, &["hello"]) else {
            return;
        };
        let is_there = reply.text.contains(word);
        self.is(is_there || !self.outcome.losses.is_empty(), || {
            format!("lost without a warning: {:?}", reply.text)
        });
    }

    fn thinking(&mut self, is_on: bool) {
        let marker = match is_on {
            true => "thinking=\"I think.\" outline=1",
            false => "outline=1",
        };
        let mut body = self.body(&[system(), user(marker)]);
        self.cell.surface.set_thinking(&mut body, is_on);
        let Some(reply) = self.outline(&body, &["hello"]) else {
            return;
        };
        // What the vendor cannot do is a loss that the gateway names.
        let is_told = !self.outcome.losses.is_empty();
        let thought = !reply.thinking.is_empty();
        let expected = is_on && self.cell.vendor.shows_thinking;
        // A chat caller's own member goes to a chat vendor as it is, also if the vendor ignores it.
        if self.cell.surface == Surface::Chat && thought && !is_on {
            self.outcome
                .losses
                .insert("ignored:reasoning_effort".to_owned());
            return;
        }
        self.is(thought == expected || is_told, || {
            format!("thinking {:?}", reply.thinking)
        });
    }

    fn late_system(&mut self) {
        let turns = [
            system(),
            Turn::User("First question".to_owned()),
            Turn::Assistant(self.plain_answer("First answer")),
            Turn::System(LATE.to_owned()),
            user("outline=1"),
        ];
        let body = self.body(&turns);
        let Some(reply) = self.outline(&body, &["Be brief.", LATE, "hello"]) else {
            return;
        };
        let (first, late) = (reply.text.find("First answer"), reply.text.find(LATE));
        // In its place: what stands before it may be cached.
        self.is(first < late, || {
            format!("not at its place: {:?}", reply.text)
        });
    }

    fn plain_answer(&self, text: &str) -> Vec<Value> {
        vec![serde_json::json!({"role": "assistant", "content": text})]
    }

    /// Another vendor made the call whose result this one gets.
    fn switch(&mut self) {
        let Cell {
            surface,
            before,
            stream,
            ..
        } = *self.cell;
        let mut turns = vec![
            system(),
            user("tool=read_file args={\"path\":\"a\"} steps=2 text=Done."),
        ];
        let mut body = surface.body(&before.model(), &turns, stream);
        surface.add_tool(&mut body, TOOL);
        let Some(reply) = self.ask_vendor(before, &body) else {
            return;
        };
        self.outcome.losses.clear();
        answer_calls(&mut turns, reply);
        let Some(reply) = self.call(&turns, 1) else {
            return;
        };
        answer_calls(&mut turns, reply);
        self.finish(&turns);
    }

    fn errors(&mut self) {
        if self.cell.stream {
            return;
        }
        self.error(
            "f",
            "status=400 text=\"temperature is wrong\"",
            |status| status == 400 || status == 422,
            "temperature is wrong",
        );
        self.error(
            "f",
            "status=400 error_body=context",
            |status| [400, 413, 422].contains(&status),
            "",
        );
        self.error("f", "status=500", |status| status >= 500, "");
        self.error(
            &format!("r{}", self.cell.surface as u8),
            "status=429",
            |status| status == 429,
            "",
        );
    }

    /// The vendor fails: its status and its words must arrive, and nothing is billed.
    fn error(&mut self, purpose: &str, marker: &str, fits: impl Fn(u16) -> bool, words: &str) {
        let Cell {
            surface,
            vendor,
            stream,
            ..
        } = *self.cell;
        let turns = [Turn::User(format!("hello [[sim {marker} {MARKER}]]"))];
        let body = surface.body(&vendor.model_for(purpose), &turns, stream);
        let reply = surface.ask(self.connection, self.key, &body);
        let said = format!("{marker}: {} {}", reply.status, reply.error);
        self.is(fits(reply.status), || said.clone());
        let message = reply.error["message"].as_str().unwrap_or_default();
        self.is(message.contains(words), || said.clone());
        if marker.contains("context") {
            let is_told = match surface {
                Surface::Chat | Surface::Responses => {
                    reply.error["code"] == "context_length_exceeded"
                }
                Surface::Messages => message.to_lowercase().contains("prompt is too long"),
            };
            self.is(is_told, || said.clone());
        }
        self.outcome.bills.push((reply.request_id.clone(), 0));
    }
}

/// Appends the vendor's turn and the results of its calls.
fn answer_calls(turns: &mut Vec<Turn>, reply: Reply) {
    let results = reply
        .calls
        .iter()
        .map(|(id, _)| (id.clone(), "contents".to_owned()))
        .collect();
    turns.push(Turn::Assistant(reply.turn));
    turns.push(Turn::Results(results));
}
