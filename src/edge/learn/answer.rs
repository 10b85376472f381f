//! Parses an answer of the vendor as far as the probes need it.
//!
//! This file must not decide what an answer means for the profile: the table does.

use super::table::Verdict;
use crate::edge::probe::{ProbeResponse, VendorClient};
use bytes::Bytes;
use http::header;
use llm_protocol::failure::{self, Kind, VendorError};
use llm_protocol::profile::VendorProfile;
use llm_protocol::usage::{MeteringTerms, Usage};
use llm_protocol::{Protocol, passthrough, translate};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The result that a probe returns for a tool call.
const TOOL_RESULT: &str = "18 degrees";
/// Name that the table uses for the places where only a completion has content.
const COMPLETION: &str = "completion";

pub struct Answer {
    pub response: ProbeResponse,
    /// Usage that the gateway reads from the answer.
    pub usage: Option<Usage>,
    pub turn: Option<ToolTurn>,
    is_completion: bool,
    /// Other features that the answer shows, such as `reasoning`, with the places where they were
    /// found.
    seen: BTreeMap<&'static str, String>,
}

impl Answer {
    pub fn new(
        protocol: Protocol,
        response: ProbeResponse,
        places: &'static BTreeMap<String, Vec<String>>,
    ) -> Self {
        let events = response.events();
        let is_shown = |place: &&String| {
            let mut values = events.iter().filter_map(|event| event.pointer(place));
            values.any(|value| !is_empty(value))
        };
        let seen = places.iter().filter_map(|(name, places)| {
            let place = places.iter().find(is_shown)?;
            Some((name.as_str(), format!("{name} in {place}")))
        });
        let mut seen: BTreeMap<_, _> = seen.collect();
        let is_completion = response.is_good() && seen.remove(COMPLETION).is_some();
        let usage = events.iter().rev().find_map(|event| {
            let event = Bytes::from(event.to_string());
            passthrough::read_usage(protocol, &event, &MeteringTerms::default())
                .filter(|usage| !usage.is_zero())
        });
        match (seen.get_mut("usage"), &usage) {
            (Some(place), None) => *place += ", which the gateway cannot read",
            (_, Some(usage)) if usage.reasoning > 0 => {
                let alone = "reasoning in the usage alone".to_owned();
                seen.entry("reasoning").or_insert(alone);
            }
            _ => {}
        }
        let turn = events.first().and_then(|answer| match protocol {
            Protocol::Messages => ToolTurn::from_messages(answer),
            _ => ToolTurn::from_chat(answer.pointer("/choices/0/message")?),
        });
        if let Some(ToolTurn { calls, state, .. }) = &turn {
            let state = state.iter().map(|path| format!(", with {path}"));
            let state = state.collect::<String>();
            seen.insert("calls", format!("calls at once: {calls}{state}"));
        }
        Self {
            response,
            usage,
            turn,
            is_completion,
            seen,
        }
    }

    /// Returns whether the vendor accepted the request. A page under a 200 does not count. A model
    /// that reasoned up to the output limit counts.
    pub fn is_accepted(&self) -> bool {
        self.is_completion || translate::is_limit_reached_error(&self.response.body)
    }

    /// Returns whether the vendor refused the content of the request, not its rate or its key.
    pub fn is_refused(&self) -> bool {
        matches!(self.response.status, 400..=499)
            && self.response.status != 429
            && !self.is_accepted()
    }

    /// Returns the verdict on the feature that the request asked for, and the evidence.
    pub fn classify(
        &self,
        client: &VendorClient<'_>,
        expect: &BTreeMap<String, bool>,
    ) -> (Verdict, String) {
        let status = self.response.status;
        if self.is_accepted() {
            let shown = self.seen.values().map(|shown| format!(", {shown}"));
            let shown = shown.collect::<String>();
            let without = if self.seen.contains_key("usage") {
                ""
            } else {
                ", no usage"
            };
            let is_as = |(name, is): (&String, &bool)| self.seen.contains_key(&**name) == *is;
            let verdict = match expect.iter().all(is_as) {
                true => Verdict::Taken,
                false => Verdict::Unknown,
            };
            return (verdict, format!("{status}{shown}{without}"));
        }
        if self.response.is_good() {
            let kind = self.response.headers.get(header::CONTENT_TYPE);
            let kind = kind.and_then(|kind| kind.to_str().ok());
            let kind = kind.unwrap_or("no content-type");
            let start = client.message(&self.response);
            return (
                Verdict::Unknown,
                format!("{status}, no completion, but {kind}: {start}"),
            );
        }
        let (name, body) = (client.vendor.name.as_str(), &self.response.body);
        let profile = &client.vendor.profile;
        let failure = failure::from_vendor_response(profile, status, None, body, name, name);
        let is_full = failure.kind == Kind::ContextTooLong;
        let form = match VendorError::parse(body) {
            _ if is_full => ", as a full context",
            Some(_) => "",
            None => ", in a form that the gateway does not know",
        };
        let seen = format!("{status}{form}: {}", client.message(&self.response));
        match self.is_refused() && (is_full || !expect.contains_key("full_context")) {
            true => (Verdict::Refused, seen),
            false => (Verdict::Unknown, seen),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => value.is_null(),
    }
}

/// An assistant's turn that calls tools.
#[derive(Debug)]
pub struct ToolTurn {
    /// The message exactly as the vendor sent it.
    pub whole: Value,
    /// The message without the members that the protocol does not define.
    pub bare: Map<String, Value>,
    /// The messages that return the results of the calls.
    pub results: Vec<Value>,
    calls: usize,
    /// Paths of the members that `bare` lacks, relative to the message or to a call.
    pub state: Vec<String>,
}

impl ToolTurn {
    /// Reads the turn from a messages answer. Returns `None` if it calls no tool.
    fn from_messages(answer: &Value) -> Option<Self> {
        let blocks = answer["content"].as_array()?;
        let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
        let result = |call: &Value| json!({"type": "tool_result", "tool_use_id": call["id"], "content": TOOL_RESULT});
        let results: Vec<_> = calls.map(result).collect();
        (!results.is_empty()).then(|| Self {
            whole: json!({"role": "assistant", "content": blocks}),
            bare: Map::new(),
            calls: results.len(),
            results: vec![json!({"role": "user", "content": results})],
            state: Vec::new(),
        })
    }

    /// Reads the turn from a chat message. Returns `None` if it calls no tool.
    fn from_chat(message: &Value) -> Option<Self> {
        let mut whole = message.as_object()?.clone();
        // Empty members such as `refusal: null` carry no information, and some servers refuse them
        // in requests.
        whole.retain(|name, value| name == "content" || !is_empty(value));
        let calls = whole.get("tool_calls")?.as_array()?;
        let result = |call: &Value| json!({"role": "tool", "tool_call_id": call["id"], "content": TOOL_RESULT});
        let results: Vec<_> = calls.iter().map(result).collect();
        let (mut bare, mut state) = (whole.clone(), Vec::new());
        remove_state(&mut bare, "message.", &mut state);
        let calls = bare.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls?.iter_mut().filter_map(Value::as_object_mut) {
            remove_state(call, "", &mut state);
        }
        Some(Self {
            whole: whole.into(),
            bare,
            calls: results.len(),
            results,
            state,
        })
    }

    /// Returns the bare turn with these members added to the message and to its first call.
    pub fn with_members(&self, of_message: &Value, of_call: &Value) -> Value {
        let members = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let mut turn = self.bare.clone();
        turn.extend(members(of_message));
        let mut turn = Value::from(turn);
        if let Some(Value::Object(call)) = turn.pointer_mut("/tool_calls/0") {
            call.extend(members(of_call));
        }
        turn
    }
}

/// Removes the members that the protocol does not define, and adds their paths to `state`. `prefix`
/// precedes a path unless the name shows that the message itself has the member.
fn remove_state(object: &mut Map<String, Value>, prefix: &str, state: &mut Vec<String>) {
    object.retain(|name, value| {
        let is_base = VendorProfile::is_in_base(name);
        if !is_base {
            let prefix = if VendorProfile::is_reasoning(name) {
                ""
            } else {
                prefix
            };
            let (mut path, mut value) = (format!("{prefix}{name}"), &*value);
            // Descend through objects with one member each.
            while let Some((name, inner)) = value.as_object().and_then(only_member) {
                path += &format!(".{name}");
                value = inner;
            }
            if !state.contains(&path) {
                state.push(path);
            }
        }
        is_base
    });
}

fn only_member(members: &Map<String, Value>) -> Option<(&String, &Value)> {
    members.iter().next().filter(|_| members.len() == 1)
}
