//! Writes a JSON object as one server-sent event.
//!
//! This file must not depend on a type of event: the caller writes the members.
//!
//! Read next: `json/writer.rs`.

use crate::json::JsonWriter;

/// Writes an event with an object of this type. The event's name and the JSON both state the type,
/// because some clients read only one of them.
pub(crate) fn write_typed_event(
    kind: &str,
    out: &mut Vec<u8>,
    members: impl FnOnce(&mut JsonWriter),
) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    JsonWriter::append_to(out, |json| {
        json.open_typed(kind);
        members(json);
        json.close_object();
    });
    out.extend_from_slice(b"\n\n");
}
