//! What of a stream is said in two places: its writer numbers the events and begins the response,
//! and signs of life and the last words of a failure come from outside of it, with the next number
//! and of the same response.
//!
//! It must not wait for anybody: whoever holds the lock only appends to memory.
//!
//! Read next: `responses/write_stream.rs`.

use crate::protocol::failure::Failure;
use crate::protocol::form::Request;
use crate::protocol::rules::names;
use crate::protocol::text::{Json, Text};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The response that a stream is about. Clones speak of the same one.
#[derive(Clone, Debug, Default)]
pub struct Voice {
    response: Arc<Response>,
    spoken: Arc<Mutex<Spoken>>,
}

/// What is known of the response from its request alone.
#[derive(Debug, Default)]
struct Response {
    /// Seconds since 1970.
    created: u64,
    /// The same, now.
    clock: Option<fn() -> u64>,
    model: String,
    /// Where an id comes from that the vendor did not give.
    seed: String,
    /// Members of the request that the response repeats, as JSON.
    echo: Vec<(&'static str, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// The number of the next event.
    pub sequence: u64,
    /// The part of all ids that is this response's own; empty before it began.
    id: String,
    /// It was begun by a sign of life, before the vendor said anything.
    is_begun_early: bool,
    /// Items by index, as JSON; `None` for one that is not whole.
    pub items: Vec<Option<Vec<u8>>>,
}

/// Members that every response repeats, with what the protocol's own vendor would do by itself.
const ECHOED: [(&str, &str); 14] = [
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

/// How a response ended, or that it has not.
pub(super) enum Status<'s> {
    InProgress,
    Completed,
    Incomplete(&'s str),
}

impl Voice {
    /// Of an answer to this request.
    pub fn new(request: &Request<'_>, clock: fn() -> u64, model: &str, seed: &str) -> Self {
        let echo = ECHOED.iter().map(|(name, usual)| {
            let given = request.echo.iter().find(|(echoed, _)| echoed == name);
            let mut json = Json::default();
            json.compact(given.map_or(usual, |(_, value)| value.raw()));
            // It was read as text, so it is text.
            (
                *name,
                String::from_utf8(json.into_bytes()).unwrap_or_default(),
            )
        });
        let (model, seed) = (model.to_owned(), seed.to_owned());
        let response = Response {
            created: clock(),
            clock: Some(clock),
            model,
            seed,
            echo: echo.collect(),
        };
        Voice {
            response: Arc::new(response),
            spoken: Arc::default(),
        }
    }

    /// Of a stream that is passed on, whose vendor numbers its events.
    pub(in crate::protocol) fn of_vendor(model: &str) -> Self {
        let response = Response {
            model: model.to_owned(),
            seed: model.to_owned(),
            ..Response::default()
        };
        Voice {
            response: Arc::new(response),
            spoken: Arc::default(),
        }
    }

    /// What the vendor's stream has said so far: its id and the number that comes next.
    pub(in crate::protocol) fn heard(&self, id: &str, next_sequence: u64) {
        let mut spoken = self.spoken();
        spoken.sequence = next_sequence;
        if spoken.id.is_empty() {
            id.strip_prefix("resp_")
                .unwrap_or(id)
                .clone_into(&mut spoken.id);
        }
    }

    pub(super) fn spoken(&self) -> MutexGuard<'_, Spoken> {
        // A number and bytes: whole at every moment.
        self.spoken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another attempt at the answer begins. What a client has seen of the response goes on;
    /// nothing else counts.
    pub(super) fn begin_attempt(&self) {
        let mut spoken = self.spoken();
        if !spoken.is_begun_early {
            *spoken = Spoken::default();
        }
    }

    /// The response begins: the events of that, unless they were said.
    pub(super) fn begin(&self, vendors_id: Option<&Text<'_>>, out: &mut Vec<u8>) {
        let mut spoken = self.spoken();
        if !spoken.id.is_empty() {
            return;
        }
        let id = vendors_id.map(Text::value).unwrap_or_default();
        let rest = ["msg_", "chatcmpl-", "resp_"]
            .into_iter()
            .find_map(|prefix| id.strip_prefix(prefix))
            .unwrap_or_default();
        spoken.id = rest.chars().filter(char::is_ascii_alphanumeric).collect();
        if spoken.id.is_empty() {
            spoken.id = names::made_id("", &self.response.seed, 0);
        }
        for kind in ["response.created", "response.in_progress"] {
            spoken.event(kind, out, |json, spoken| {
                json.key("response");
                self.write(
                    spoken,
                    &Status::InProgress,
                    |json| {
                        json.key("usage").null();
                    },
                    json,
                );
            });
        }
    }

    /// What a client that waits is told: that the response has begun, or that it goes on.
    pub fn keep_alive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let is_begun = !self.spoken().id.is_empty();
        if is_begun {
            self.spoken().event("keepalive", &mut out, |_, _| {});
        } else {
            self.begin(None, &mut out);
            self.spoken().is_begun_early = true;
        }
        out
    }

    /// The end of a stream that failed. Of the items only whole ones are told.
    pub fn failed(&self, failure: &Failure) -> Vec<u8> {
        let mut out = Vec::new();
        // Some clients read no end without a beginning.
        self.begin(None, &mut out);
        let mut spoken = self.spoken();
        let sequence = spoken.sequence;
        failure.responses_events(sequence, &mut out, |json| self.write_members(&spoken, json));
        spoken.sequence = sequence.saturating_add(2);
        out
    }

    /// The response as a value. `usage` writes the member of that name.
    pub(super) fn write(
        &self,
        spoken: &Spoken,
        status: &Status<'_>,
        usage: impl FnOnce(&mut Json),
        json: &mut Json,
    ) {
        json.open_object();
        self.write_members(spoken, json);
        let (word, reason) = match status {
            Status::InProgress => ("in_progress", None),
            Status::Completed => ("completed", None),
            Status::Incomplete(reason) => ("incomplete", Some(reason)),
        };
        json.key("completed_at");
        match status {
            Status::Completed => drop(
                json.number(
                    self.response
                        .clock
                        .map_or(self.response.created, |clock| clock()),
                ),
            ),
            Status::InProgress | Status::Incomplete(_) => drop(json.null()),
        }
        json.key("status")
            .str(word)
            .key("error")
            .null()
            .key("incomplete_details");
        match reason {
            Some(reason) => drop(json.open_object().key("reason").str(reason).close_object()),
            None => drop(json.null()),
        }
        usage(json);
        json.close_object();
    }

    /// All but `completed_at`, `status`, `error`, `incomplete_details` and `usage`.
    fn write_members(&self, spoken: &Spoken, json: &mut Json) {
        let Response {
            created,
            model,
            echo,
            ..
        } = &*self.response;
        json.key("id")
            .str(&format!("resp_{}", spoken.id))
            .key("object")
            .str("response");
        json.key("created_at")
            .number(*created)
            .key("model")
            .str(model);
        json.key("output").open_array();
        for item in spoken.items.iter().flatten() {
            json.raw(std::str::from_utf8(item).unwrap_or("null"));
        }
        json.close_array();
        for (name, value) in echo {
            json.key(name).raw(value);
        }
        json.key("store")
            .bool(false)
            .key("background")
            .bool(false)
            .key("previous_response_id")
            .null();
        // Its own vendor repeats both in three events of every stream, tens of kilobytes each;
        // nobody reads them.
        json.key("instructions")
            .null()
            .key("tools")
            .open_array()
            .close_array();
    }
}

impl Spoken {
    /// An event with the next number.
    pub fn event(&mut self, kind: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Json, &Spoken)) {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        let mut json = Json::onto(std::mem::take(out));
        json.open_object()
            .key("type")
            .str(kind)
            .key("sequence_number")
            .number(self.sequence);
        write(&mut json, self);
        json.close_object();
        *out = json.into_bytes();
        out.extend_from_slice(b"\n\n");
        self.sequence = self.sequence.saturating_add(1);
    }

    /// The id of the item at this index.
    pub fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", self.id)
    }
}
