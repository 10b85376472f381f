//! A failure on the responses surface: the codes its clients act on, and how a stream that has
//! begun is ended.
//!
//! It must say it twice: some clients only know the event `error`, others only `response.failed`,
//! and the official ones throw with our words at the first, in this order alone.
//!
//! Read next: `protocol/failure/table.rs`.

use super::table::{self, OVERLOADED, Row};
use super::{Failure, messages_for};
use crate::protocol::Protocol;
use crate::protocol::rules::names;
use crate::protocol::text::Json;

/// The code before the 200. With any other than this one the agent repeats a 503 thirty times.
pub(super) fn code<'f>(failure: &'f Failure, row: &Row, status: u16) -> Option<&'f str> {
    if status == 503 {
        Some(OVERLOADED)
    } else {
        failure.code.as_deref().or(row.code)
    }
}

/// The end of a stream of which nothing but the request's id is known.
pub(super) fn frame(failure: &Failure, request_id: &str) -> Vec<u8> {
    let mut out = Vec::new();
    failure.responses_events(0, &mut out, |json| {
        json.key("id")
            .str(&names::made_id("resp_", request_id, 0))
            .key("object")
            .str("response");
    });
    out
}

impl Failure {
    /// The two events that end a stream of the responses surface, the first with this number.
    /// `envelope` writes the members of the response that stand before its status.
    pub fn responses_events(
        &self,
        sequence: u64,
        out: &mut Vec<u8>,
        envelope: impl FnOnce(&mut Json),
    ) {
        let code = table::responses_code(self.kind);
        let message = messages_for::surface(self, Protocol::Responses);
        out.extend_from_slice(b"event: error\ndata: ");
        let mut json = Json::onto(std::mem::take(out));
        json.open_object()
            .key("type")
            .str("error")
            .key("sequence_number")
            .number(sequence);
        json.key("code")
            .str(code)
            .key("message")
            .str(&message)
            .key("param")
            .null();
        json.key("error")
            .open_object()
            .key("type")
            .str("server_error");
        json.key("code")
            .str(code)
            .key("message")
            .str(&message)
            .key("param")
            .null()
            .close_object()
            .close_object();
        *out = json.into_bytes();
        out.extend_from_slice(b"\n\nevent: response.failed\ndata: ");
        let mut json = Json::onto(std::mem::take(out));
        json.open_object().key("type").str("response.failed");
        json.key("sequence_number")
            .number(sequence.saturating_add(1))
            .key("response")
            .open_object();
        envelope(&mut json);
        json.key("status").str("failed");
        json.key("error")
            .open_object()
            .key("code")
            .str(code)
            .key("message")
            .str(&message)
            .close_object();
        json.key("incomplete_details")
            .null()
            .key("usage")
            .null()
            .close_object()
            .close_object();
        *out = json.into_bytes();
        out.extend_from_slice(b"\n\n");
    }
}
