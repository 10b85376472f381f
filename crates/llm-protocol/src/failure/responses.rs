//! Renders a failure on the responses surface: the codes that its clients act on, and the last
//! events of a stream that has begun.
//!
//! The stream must report the failure twice, because some clients know only the event `error`, and
//! others only `response.failed`. The official clients throw at the first one, and show our message
//! only in this order.
//!
//! Read next: `failure/table.rs`.

use super::constructors::Failure;
use super::surface_message;
use super::table::{self, FailureRow, OVERLOADED_CODE};
use crate::Protocol;
use crate::capabilities::response_ids;
use crate::event_frame::write_typed_event;
use crate::json::{JsonNull, JsonWriter};

/// Returns the code of an error response before the 200. With any code but this one, the agent
/// retries a 503 thirty times.
pub(super) fn error_code<'f>(
    failure: &'f Failure,
    row: &FailureRow,
    status: u16,
) -> Option<&'f str> {
    if status == 503 {
        Some(OVERLOADED_CODE)
    } else {
        failure.code.as_deref().or(row.code)
    }
}

/// Returns the last events of a stream if only the request's id is known.
pub(super) fn encode_stream_error(failure: &Failure, request_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    failure.write_responses_events(0, &mut out, |json| {
        json.member("id", response_ids::generate_id("resp_", request_id, 0))
            .member("object", "response");
    });
    out
}

impl Failure {
    /// Writes the two events that end a stream of the responses surface. `sequence` is the number
    /// of the first event. `envelope` writes the members of the response before its status.
    pub fn write_responses_events(
        &self,
        sequence: u64,
        out: &mut Vec<u8>,
        envelope: impl FnOnce(&mut JsonWriter),
    ) {
        let code = table::responses_code(self.kind);
        let message = surface_message::message_for_surface(self, Protocol::Responses);
        let cause = |json: &mut JsonWriter| {
            json.member("code", code).member("message", &message);
        };
        write_typed_event("error", out, |json| {
            json.member("sequence_number", sequence);
            cause(json);
            json.member("param", JsonNull)
                .member_typed("error", "server_error");
            cause(json);
            json.member("param", JsonNull).close_object();
        });
        write_typed_event("response.failed", out, |json| {
            json.member("sequence_number", sequence.saturating_add(1))
                .member_object("response");
            envelope(json);
            json.member("status", "failed").member_object("error");
            cause(json);
            json.close_object();
            json.member("incomplete_details", JsonNull)
                .member("usage", JsonNull)
                .close_object();
        });
    }
}
