//! Removes from a finished body, which the vendor would get, the members that its server refuses.
//!
//! The pass that removes another vendor's remains from passed-on chat bodies does this beside its
//! other work; this one serves the other protocols and translated requests. This file must not
//! decide what a server refuses: the profile does.

use super::ForeignFieldRemover;
use super::asks_nothing;
use crate::Protocol;
use crate::json::{JsonDocument, JsonValue, MAX_DEPTH, NodeBuffer};
use crate::profile::{ChatPlace, VendorProfile};
use crate::request::body::RequestBody;
use crate::request::rewrite;
use bytes::Bytes;

/// Members of a request whose objects are read.
const OUTER: [&str; 9] = [
    "input",
    "messages",
    "output_config",
    "reasoning",
    "system",
    "text",
    "thinking",
    "tool_choice",
    "tools",
];
/// Members of those objects that are read too. Others may hold what a tool takes or gives.
const INNER: [&str; 2] = ["content", "source"];
/// Members of those objects that [`without_members`] reads besides.
const CALLS: [&str; 2] = ["function", "tool_calls"];
/// Members that the gateway adds in translation, so that the client does not lose them.
const ADDED: [&str; 3] = ["cache_control", "metadata", "signature"];

/// Removes the members that the server refuses. Returns the body and a warning for each, or `None`
/// if there is nothing to remove.
pub fn without_refused(
    protocol: Protocol,
    profile: &VendorProfile,
    body: &RequestBody,
    is_translated: bool,
) -> Option<(Bytes, Vec<String>)> {
    if !profile.refuses_beyond_cleaning(protocol, is_translated) {
        return None;
    }
    let context = Context {
        protocol,
        profile,
        is_translated,
    };
    edit_body(&body.to_bytes(), |remover, root| {
        remover.remove_everywhere(root, "", ChatPlace::Request, &context);
    })
}

/// Returns the body without the members of these names, in the request and in its messages, parts,
/// calls and tools, and a warning for each. Returns `None` if the body has none of them.
pub fn without_members(body: &Bytes, members: &[&str]) -> Option<(Bytes, Vec<String>)> {
    edit_body(body, |remover, root| {
        remover.remove_members(root, "", members);
        for (key, value) in root.members() {
            let name = key.value();
            if OUTER.contains(&&*name) {
                remover.remove_inside(value, &name, members);
            }
        }
    })
}

/// Returns the body with the edits that `edit` collects, and their warnings. Returns `None` if
/// there are none, or if the body is no JSON document.
pub(in crate::request) fn edit_body(
    body: &Bytes,
    edit: impl for<'a> FnOnce(&mut ForeignFieldRemover<'a>, JsonValue<'a>),
) -> Option<(Bytes, Vec<String>)> {
    let text = std::str::from_utf8(body).ok()?;
    let tree = JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()).ok()?;
    let mut remover = ForeignFieldRemover::new(text);
    edit(&mut remover, tree.root());
    let cleanup = remover.finish();
    let warnings = cleanup.warnings.clone();
    (!cleanup.edits.is_empty()).then(|| (rewrite::apply_cleanup(body, cleanup), warnings))
}

struct Context<'p> {
    protocol: Protocol,
    profile: &'p VendorProfile,
    is_translated: bool,
}

impl<'a> ForeignFieldRemover<'a> {
    fn remove_inside(&mut self, value: JsonValue<'a>, path: &str, members: &[&str]) {
        for (index, item) in value.items().enumerate() {
            self.remove_inside(item, &format!("{path}[{index}]"), members);
        }
        self.remove_members(value, &format!("{path}."), members);
        for (key, inner) in value.members() {
            let name = key.value();
            if INNER.contains(&&*name) || CALLS.contains(&&*name) {
                self.remove_inside(inner, &format!("{path}.{name}"), members);
            }
        }
    }

    fn remove_everywhere(
        &mut self,
        object: JsonValue<'a>,
        path: &str,
        place: ChatPlace,
        context: &Context<'_>,
    ) {
        let read: &[&str] = match place {
            _ if context.protocol == Protocol::Chat => &[],
            ChatPlace::Request => &OUTER,
            _ => &INNER,
        };
        for (key, value) in object.members() {
            let name = key.value();
            let at = format!("{path}{name}");
            if context.profile.refuses_in(context.protocol, place, &name) {
                let is_added = context.is_translated && ADDED.contains(&&*name);
                if !is_added && !asks_nothing(place, &name, value) {
                    self.warnings.dropped(&at);
                }
                self.gone.push(self.member_span(&key, value));
            } else if read.contains(&&*name) && value.is_object() {
                self.remove_everywhere(value, &format!("{at}."), ChatPlace::Inner, context);
            } else if read.contains(&&*name) {
                for (index, item) in value.items().enumerate() {
                    let at = format!("{at}[{index}].");
                    self.remove_everywhere(item, &at, ChatPlace::Inner, context);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sent(protocol: Protocol, profile: &VendorProfile, body: &Value) -> (Value, Vec<String>) {
        let bytes = Bytes::from(body.to_string());
        match without_refused(protocol, profile, &bytes.into(), false) {
            Some((without, warnings)) => (serde_json::from_slice(&without).unwrap(), warnings),
            None => (body.clone(), Vec::new()),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_strict_messages_server_gets_the_base_and_what_it_takes() {
        let body = json!({
            "model": "m", "max_tokens": 9, "stream": true, "context_management": {"edits": []},
            "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"},
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "f", "input_schema": {"strict": true}, "strict": true}],
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"content": [{"cache_control": 1}]}, "caller": {}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
                    {"type": "text", "text": "r", "citations": [1]},
                ]}]},
            ],
        });
        let strict = VendorProfile {
            strict: true,
            request: names(&["thinking", "budget_tokens", "signature"]),
            ..VendorProfile::default()
        };
        let (sent_body, warnings) = sent(Protocol::Messages, &strict, &body);
        let mut expected = body.clone();
        for name in ["context_management", "metadata"] {
            expected.as_object_mut().unwrap().remove(name);
        }
        for (at, name) in [
            ("/thinking", "display"),
            ("/tools/0", "strict"),
            ("/messages/1/content/1", "caller"),
            ("/messages/2/content/0/content/0", "citations"),
        ] {
            let object = expected.pointer_mut(at).unwrap().as_object_mut().unwrap();
            object.remove(name).unwrap();
        }
        assert_eq!(sent_body, expected);
        let mut told = [
            "dropped:context_management",
            "dropped:messages[1].content[1].caller",
            "dropped:messages[2].content[0].content[0].citations",
            "dropped:metadata",
            "dropped:thinking.display",
            "dropped:tools[0].strict",
        ];
        told.sort_unstable();
        assert_eq!(warnings, told);
        let (again, warnings) = sent(Protocol::Messages, &strict, &sent_body);
        assert_eq!((again, warnings.len()), (sent_body, 0));
    }

    #[test]
    fn a_member_that_was_refused_is_left_out_wherever_it_stands() {
        let kept = r#"{"system":[{"text":"a"}],"messages":[{"content":[{"type":"tool_result","content":[{"text":"b"}],"input":{"content":{"strict":1}}}]},{"tool_calls":[{"function":{"name":"c"}}]}],"tools":[{"function":{"name":"d","parameters":{"strict":1}}}]}"#;
        let mut sent = kept.to_owned();
        for written in [
            r#""text":"a""#,
            r#""text":"b""#,
            r#""name":"c""#,
            r#""name":"d""#,
        ] {
            sent = sent.replace(written, &format!(r#"{written},"strict":true"#));
        }
        let (left, warnings) = without_members(&Bytes::from(sent), &["strict"]).unwrap();
        assert_eq!(left, kept);
        let expected = [
            "dropped:messages[0].content[0].content[0].strict",
            "dropped:messages[1].tool_calls[0].function.strict",
            "dropped:system[0].strict",
            "dropped:tools[0].function.strict",
        ];
        assert_eq!(warnings, expected);
        assert!(without_members(&Bytes::from_static(kept.as_bytes()), &["strict"]).is_none());
    }

    #[test]
    fn what_is_dropped_by_name_is_dropped_in_every_protocol() {
        let profile = VendorProfile {
            drop: names(&["tool_choice", "cache_control", "thinking"]),
            ..VendorProfile::default()
        };
        for (protocol, choice) in [
            (Protocol::Messages, json!({"type": "auto"})),
            (Protocol::Responses, json!("auto")),
        ] {
            let body =
                json!({"model": "m", "tool_choice": choice, "tools": [{"cache_control": 1}]});
            let (sent, warnings) = sent(protocol, &profile, &body);
            assert_eq!(sent, json!({"model": "m", "tools": [{}]}));
            assert_eq!(
                warnings,
                ["dropped:tools[0].cache_control"],
                "auto is the default"
            );
        }
        let required = json!({"model": "m", "tool_choice": "required"});
        let (without, warnings) = sent(Protocol::Responses, &profile, &required);
        assert_eq!(
            (without, warnings),
            (
                json!({"model": "m"}),
                vec!["dropped:tool_choice".to_owned()]
            )
        );
        // A part of the history is not the switch of the same name.
        let history = json!({"messages": [{"content": [{"type": "thinking", "thinking": "t"}]}]});
        assert_eq!(sent(Protocol::Messages, &profile, &history).0, history);
        let chat = RequestBody::from(Bytes::from(
            r#"{"tool_choice":"required","tools":[{"cache_control":1}]}"#,
        ));
        let (translated, _) = without_refused(Protocol::Chat, &profile, &chat, true).unwrap();
        assert_eq!(translated, r#"{"tools":[{"cache_control":1}]}"#);
        assert!(without_refused(Protocol::Chat, &profile, &chat, false).is_none());
    }
}
