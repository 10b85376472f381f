//! Holds the state of a stream that the stream writer shares with other code. The writer numbers
//! the events and begins the response. Keep-alive events and the final events of a failure come
//! from outside the writer, and need the next number and the same response.
//!
//! This file must not wait: the holder of the lock only appends to memory.
//!
//! Read next: `responses/write_stream.rs`.

use crate::capabilities::response_ids;
use crate::event_frame::write_typed_event;
use crate::failure::Failure;
use crate::ir::Request;
use crate::json::{JsonNull, JsonStr, JsonWriter, RawJson, compacted};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sequencer of the events of one response. Clones share the same response.
#[derive(Clone, Debug, Default)]
pub struct EventSequencer {
    response: Arc<ResponseTemplate>,
    state: Arc<Mutex<SequencerState>>,
}

/// The part of the response that depends on the request alone.
#[derive(Debug, Default)]
struct ResponseTemplate {
    /// Creation time, in seconds since 1970.
    created: u64,
    /// Clock that returns the current time in seconds since 1970.
    clock: Option<fn() -> u64>,
    model: String,
    /// Seed for an id that the vendor did not send.
    seed: String,
    /// Members of the request that the response repeats, as JSON.
    echo: Vec<(&'static str, String)>,
}

#[derive(Debug, Default)]
pub(super) struct SequencerState {
    /// Number of the next event.
    pub sequence: u64,
    /// The part that all ids of this response share. Empty before the response begins.
    id: String,
    /// True if a keep-alive event began the response before the vendor sent any data.
    is_begun_early: bool,
    /// Items by index, as JSON. `None` for an incomplete item.
    pub items: Vec<Option<Vec<u8>>>,
}

/// Members that every response repeats, with the defaults of the protocol's own vendor.
const ECHO_DEFAULTS: [(&str, &str); 14] = [
    ("parallel_tool_calls", "true"),
    ("tool_choice", "\"auto\""),
    ("temperature", "1"),
    ("top_p", "1"),
    ("top_logprobs", "0"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("truncation", "\"disabled\""),
    ("metadata", "{}"),
    ("service_tier", "\"auto\""),
    ("prompt_cache_key", "null"),
    ("safety_identifier", "null"),
];

pub(super) enum ResponsesStatus<'s> {
    InProgress,
    Completed,
    Incomplete(&'s str),
}

impl EventSequencer {
    /// Creates the sequencer for an answer to this request.
    pub fn new(request: &Request<'_>, clock: fn() -> u64, model: &str, seed: &str) -> Self {
        let echo = ECHO_DEFAULTS.iter().map(|(name, usual)| {
            let member = request.echo.iter().find(|(echoed, _)| echoed == name);
            let value = member.map_or(*usual, |(_, value)| value.raw());
            (*name, compacted(value))
        });
        let (model, seed) = (model.to_owned(), seed.to_owned());
        let response = ResponseTemplate {
            created: clock(),
            clock: Some(clock),
            model,
            seed,
            echo: echo.collect(),
        };
        EventSequencer {
            response: Arc::new(response),
            state: Arc::default(),
        }
    }

    /// Creates the sequencer for a passthrough stream, whose vendor numbers the events.
    pub(crate) fn from_vendor(model: &str) -> Self {
        let response = ResponseTemplate {
            model: model.to_owned(),
            seed: model.to_owned(),
            ..ResponseTemplate::default()
        };
        EventSequencer {
            response: Arc::new(response),
            state: Arc::default(),
        }
    }

    /// Records the id and the next sequence number of the vendor's stream.
    pub(crate) fn observe_vendor(&self, id: &str, next_sequence: u64) {
        let mut state = self.state();
        state.sequence = next_sequence;
        if state.id.is_empty() {
            id.strip_prefix("resp_")
                .unwrap_or(id)
                .clone_into(&mut state.id);
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SequencerState> {
        // The state is a number and bytes, which a panic cannot leave inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins another attempt at the answer. The part of the response that the client has seen is
    /// kept, and all other state is reset.
    pub(super) fn begin_attempt(&self) {
        let mut state = self.state();
        if !state.is_begun_early {
            *state = SequencerState::default();
        }
    }

    /// Begins the response: writes its first events, unless they were written before.
    pub(super) fn begin(&self, vendors_id: Option<&JsonStr<'_>>, out: &mut Vec<u8>) {
        let mut state = self.state();
        if !state.id.is_empty() {
            return;
        }
        let id = vendors_id.map(JsonStr::value).unwrap_or_default();
        let rest = ["msg_", "chatcmpl-", "resp_"]
            .into_iter()
            .find_map(|prefix| id.strip_prefix(prefix))
            .unwrap_or_default();
        state.id = rest.chars().filter(char::is_ascii_alphanumeric).collect();
        if state.id.is_empty() {
            state.id = response_ids::generate_id("", &self.response.seed, 0);
        }
        for kind in ["response.created", "response.in_progress"] {
            state.write_event(kind, out, |json, state| {
                json.key("response");
                self.write_response(
                    state,
                    &ResponsesStatus::InProgress,
                    |json| {
                        json.member("usage", JsonNull);
                    },
                    json,
                );
            });
        }
    }

    /// Returns a keep-alive event for a waiting client. Before the response has begun, it begins
    /// the response instead.
    pub fn keep_alive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let is_begun = !self.state().id.is_empty();
        if is_begun {
            self.state().write_event("keepalive", &mut out, |_, _| {});
        } else {
            self.begin(None, &mut out);
            self.state().is_begun_early = true;
        }
        out
    }

    /// Returns the final events of a stream that failed. The response contains only its complete
    /// items.
    pub fn failure_events(&self, failure: &Failure) -> Vec<u8> {
        let mut out = Vec::new();
        // Some clients do not accept an end without a beginning.
        self.begin(None, &mut out);
        let mut state = self.state();
        let sequence = state.sequence;
        failure.write_responses_events(sequence, &mut out, |json| self.write_members(&state, json));
        state.sequence = sequence.saturating_add(2);
        out
    }

    /// Writes the response as a JSON value. `usage` writes the member of that name.
    pub(super) fn write_response(
        &self,
        state: &SequencerState,
        status: &ResponsesStatus<'_>,
        usage: impl FnOnce(&mut JsonWriter),
        json: &mut JsonWriter,
    ) {
        json.open_object();
        self.write_members(state, json);
        let ResponseTemplate { clock, created, .. } = *self.response;
        let (word, completed_at, reason) = match status {
            ResponsesStatus::InProgress => ("in_progress", None, None),
            ResponsesStatus::Completed => (
                "completed",
                Some(clock.map_or(created, |clock| clock())),
                None,
            ),
            ResponsesStatus::Incomplete(reason) => ("incomplete", None, Some(("reason", reason))),
        };
        json.member("completed_at", completed_at)
            .member("status", word)
            .member("error", JsonNull)
            .member("incomplete_details", reason);
        usage(json);
        json.close_object();
    }

    /// Writes all members except `completed_at`, `status`, `error`, `incomplete_details` and
    /// `usage`.
    fn write_members(&self, state: &SequencerState, json: &mut JsonWriter) {
        let ResponseTemplate {
            created,
            model,
            echo,
            ..
        } = &*self.response;
        json.member("id", format!("resp_{}", state.id))
            .member("object", "response");
        json.member("created_at", *created).member("model", model);
        json.member_array("output");
        for item in state.items.iter().flatten() {
            json.value(RawJson(std::str::from_utf8(item).unwrap_or("null")));
        }
        json.close_array();
        for (name, value) in echo {
            json.member(name, RawJson(value));
        }
        json.member("store", false)
            .member("background", false)
            .member("previous_response_id", JsonNull);
        // The protocol's own vendor repeats both members in three events of every stream, tens of
        // kilobytes each. No client reads them.
        json.member("instructions", JsonNull)
            .member_array("tools")
            .close_array();
    }
}

impl SequencerState {
    /// Writes an event with the next number.
    pub fn write_event(
        &mut self,
        kind: &str,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut JsonWriter, &SequencerState),
    ) {
        write_typed_event(kind, out, |json| {
            json.member("sequence_number", self.sequence);
            write(json, self);
        });
        self.sequence = self.sequence.saturating_add(1);
    }

    pub fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", self.id)
    }
}
