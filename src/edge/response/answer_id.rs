//! The id of an answer in the bytes that the client gets, by which its reader can find the request.
//!
//! Reads only the beginning, and no JSON: an id that it misses is only not found later.

use std::str;

/// Number of bytes that are read: the id is at the beginning, or behind a short object.
const MAX_READ_BYTES: usize = 4_096;
/// Maximum length of an id, in bytes.
const MAX_ID_BYTES: usize = 128;
/// What the ids of answers begin with. Other ids count only as the first member of the answer.
const PREFIXES: [&str; 4] = ["chatcmpl-", "msg_", "resp_", "gen-"];
const MEMBER: &[u8] = b"\"id\"";

/// Finds the id of an answer in its first bytes: of a whole body or of a stream of events.
pub(super) fn find_answer_id(bytes: &[u8]) -> Option<&str> {
    let bytes = bytes.get(..MAX_READ_BYTES).unwrap_or(bytes);
    memchr::memmem::find_iter(bytes, MEMBER).find_map(|at| {
        let (before, rest) = (bytes.get(..at)?, bytes.get(at + MEMBER.len()..)?);
        let rest = rest.trim_ascii_start().strip_prefix(b":")?;
        let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
        let id = rest.get(..memchr::memchr(b'"', rest)?)?;
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        let id = str::from_utf8(id).ok().filter(|_| id.iter().all(is_part))?;
        let is_first = before.iter().filter(|byte| **byte == b'{').count() == 1
            && before.trim_ascii_end().ends_with(b"{");
        let is_id = is_first || PREFIXES.iter().any(|prefix| id.starts_with(prefix));
        (is_id && !id.is_empty() && id.len() <= MAX_ID_BYTES).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_answer_is_found_in_each_protocol() {
        for (bytes, id) in [
            (
                r#"{"id":"chatcmpl-1","object":"chat.completion"}"#,
                Some("chatcmpl-1"),
            ),
            (
                r#"data: {"id":"a1b2","object":"chat.completion.chunk"}"#,
                Some("a1b2"),
            ),
            (
                r#"{"content":[{"type":"tool_use","id":"toolu_1"}], "id" : "msg_1"}"#,
                Some("msg_1"),
            ),
            (
                r#"data: {"type":"message_start","message":{"id":"msg_1"}}"#,
                Some("msg_1"),
            ),
            (r#"{"choices":[{"id":"call_1"}]}"#, None),
            (r#"{"id":"a b"}"#, None),
            ("", None),
        ] {
            assert_eq!(find_answer_id(bytes.as_bytes()), id, "{bytes}");
        }
        for (length, is_found) in [(MAX_ID_BYTES, true), (MAX_ID_BYTES + 1, false)] {
            let body = format!(r#"{{"id":"{}"}}"#, "a".repeat(length));
            assert_eq!(find_answer_id(body.as_bytes()).is_some(), is_found);
        }
    }
}
