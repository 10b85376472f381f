//! Joins consecutive messages of one role, for a server whose chat template wants the roles to
//! alternate.
//!
//! It works on the body that the vendor gets, whatever the client's protocol is. This file must not
//! decide which server needs it: the profile does.

use super::ForeignFieldRemover;
use super::messages::turns::text_blocks;
use crate::json::{JsonStr, JsonValue};
use crate::request::foreign_fields::finished::edit_body;
use bytes::Bytes;

/// The roles that must alternate. Several results of tools may follow each other.
const ALTERNATING: [&str; 2] = ["user", "assistant"];

/// Joins consecutive messages of one role in the body of a chat request. Returns the body, and a
/// warning for each member of a joined message that is lost; `None` if there is nothing to join.
pub fn alternate_roles(body: &Bytes) -> Option<(Bytes, Vec<String>)> {
    edit_body(body, |joiner, root| {
        let messages: Vec<_> = root.items_of("messages").collect();
        for run in messages.chunk_by(|one, next| is_joined(*one, *next)) {
            if let [earlier @ .., last] = run
                && !earlier.is_empty()
            {
                joiner.join_messages(earlier, *last);
            }
        }
    })
}

/// Whether the later message takes in the earlier one. A message with calls ends its turn.
fn is_joined(earlier: JsonValue<'_>, later: JsonValue<'_>) -> bool {
    let have_role = |role: &str| earlier.member_is("role", role) && later.member_is("role", role);
    ALTERNATING.into_iter().any(have_role) && earlier.items_of("tool_calls").next().is_none()
}

impl<'a> ForeignFieldRemover<'a> {
    /// Puts the contents of all messages into the last one, and removes the others.
    fn join_messages(&mut self, earlier: &[JsonValue<'a>], last: JsonValue<'a>) {
        for message in earlier {
            for (key, value) in message.members() {
                if !key.is("role") && !key.is("content") && !value.is_null() {
                    self.warnings
                        .dropped(format_args!("messages.{}", key.value()));
                }
            }
            self.remove_value(*message);
        }
        let messages = || earlier.iter().chain([&last]);
        let contents: Vec<_> = messages()
            .filter_map(|message| message.get("content"))
            .filter(|content| !content.is_null())
            .collect();
        let texts: Option<Vec<_>> = contents.iter().map(|content| content.text()).collect();
        let joined = match &texts {
            Some(texts) => {
                let texts: Vec<_> = texts.iter().map(JsonStr::written).collect();
                format!(r#""{}""#, texts.join(r"\n\n"))
            }
            None => {
                let parts: Vec<_> = contents.into_iter().flat_map(text_blocks).collect();
                format!("[{}]", parts.join(","))
            }
        };
        match last.get("content") {
            Some(content) => self.replace_raw(content, joined),
            None => {
                self.drop_member(last, "content");
                self.insert_inside(last, format!(r#""content":{joined}"#));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn joins(messages: Value, expected: Value, lost: &[&str]) {
        let body = json!({"model": "m", "messages": messages, "stream": true}).to_string();
        let (joined, warnings) = alternate_roles(&body.into()).unwrap();
        let joined: Value = serde_json::from_slice(&joined).unwrap();
        let expected = json!({"model": "m", "messages": expected, "stream": true});
        assert_eq!(
            (joined, warnings),
            (expected, lost.iter().map(|&at| at.into()).collect())
        );
    }

    #[test]
    fn consecutive_messages_of_one_role_become_one() {
        let system = json!({"role": "system", "content": "s"});
        let part = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        joins(
            json!([system, {"role": "user", "content": "a\"\n"}, {"role": "user", "content": "é"}, {"role": "user", "content": "c"}]),
            json!([system, {"role": "user", "content": "a\"\n\n\né\n\nc"}]),
            &[],
        );
        joins(
            json!([{"role": "user", "content": [part]}, {"role": "user", "name": "n", "content": "b"}]),
            json!([{"role": "user", "name": "n", "content": [part, {"type": "text", "text": "b"}]}]),
            &[],
        );
        let call =
            json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
        let result = json!({"role": "tool", "tool_call_id": "1", "content": "r"});
        joins(
            json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "reasoning_content": "r"},
                {"role": "assistant", "content": null, "tool_calls": call},
                result, result,
                {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d", "name": null},
            ]),
            json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "tool_calls": call},
                result, result,
                {"role": "assistant", "content": "c\n\nd", "name": null},
            ]),
            &["dropped:messages.reasoning_content"],
        );
        joins(
            json!([{"role": "assistant", "content": "b"}, {"role": "assistant", "tool_calls": call}]),
            json!([{"role": "assistant", "content": "b", "tool_calls": call}]),
            &[],
        );
    }

    #[test]
    fn roles_that_alternate_stay_as_they_are() {
        for messages in [
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]),
            json!([{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]),
            json!([]),
            json!("x"),
        ] {
            let body = json!({"messages": messages}).to_string();
            assert!(alternate_roles(&body.into()).is_none());
        }
        assert!(alternate_roles(&Bytes::from_static(b"{")).is_none());
    }
}
