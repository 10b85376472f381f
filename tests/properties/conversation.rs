//! Conversation keys: every turn of a conversation has the same key, another conversation has
//! another key, and nobody can read the text from the key.

use llm_protocol::Protocol;
use llm_protocol::request::{SESSION_HEADERS, read_summary};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashSet;

fn key_with(protocol: Protocol, account: &str, headers: &[(&str, &str)], body: &Value) -> String {
    let body = body.to_string();
    let header = |name: &str| {
        headers
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    };
    read_summary(protocol, body.as_bytes())
        .unwrap()
        .conversation_key(account, header, body.as_bytes())
        .to_string()
}

fn key(protocol: Protocol, body: &Value) -> String {
    key_with(protocol, "acc_1", &[], body)
}

fn body(system: &str, messages: &[Value]) -> Value {
    json!({"model": "m", "max_tokens": 9, "system": system, "messages": messages})
}

fn said(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// The message as clients write it that mark it for the vendor's cache.
fn marked(role: &str, text: &str) -> Value {
    json!({"role": role, "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]})
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn every_turn_has_the_key_of_the_first(
        system in ".{0,80}",
        turns in prop::collection::vec((".{1,80}", any::<bool>()), 1..12),
        models in prop::collection::vec("[a-z]{1,8}", 12),
    ) {
        for protocol in [Protocol::Chat, Protocol::Messages] {
            let messages: Vec<_> = turns.iter().enumerate().map(|(index, (text, is_marked))| {
                let role = if index % 2 == 0 { "user" } else { "assistant" };
                if *is_marked { marked(role, text) } else { said(role, text) }
            }).collect();
            let whole = |messages: &[Value]| match protocol {
                Protocol::Messages | Protocol::Responses => body(&system, messages),
                Protocol::Chat => {
                    let all = [&[said("developer", &system)], messages].concat();
                    json!({"messages": all, "model": "m"})
                }
            };
            let first = key(protocol, &whole(&messages[..1]));
            prop_assert!(first.len() == 16 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
            for (until, model) in (1..=messages.len()).zip(&models) {
                let mut later = whole(&messages[..until]);
                later["model"] = json!(model);
                prop_assert_eq!(&key(protocol, &later), &first);
            }
        }
    }

    #[test]
    fn other_beginnings_have_other_keys(
        system in "[a-z ]{0,40}", text in "[a-z ]{1,9000}", at in any::<prop::sample::Index>(),
    ) {
        let first = key(Protocol::Messages, &body(&system, &[said("user", &text)]));
        // Bytes far from both ends of a long text count only through the text's length.
        let at = match at.index(text.len()) {
            at if at < 4_096 || at >= text.len().saturating_sub(4_096) => at,
            _ => 0,
        };
        let mut other = text.clone();
        other.replace_range(at..=at, "#");
        let others = [
            body(&system, &[said("user", &other)]),
            body(&system, &[said("user", &format!("{text}."))]),
            body(&format!("{system}."), &[said("user", &text)]),
        ];
        let keys: HashSet<_> = others.iter().map(|other| key(Protocol::Messages, other)).collect();
        prop_assert_eq!(keys.len(), 3);
        prop_assert!(!keys.contains(&first));
        prop_assert_ne!(key_with(Protocol::Messages, "acc_2", &[], &others[0]), key(Protocol::Messages, &others[0]));
    }
}

#[test]
fn what_a_client_calls_its_session_counts_whatever_is_said() {
    let ids = |members: Value, text: &str| {
        let mut body = body("s", &[said("user", text)]);
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        body
    };
    let wanted = key_with(
        Protocol::Chat,
        "acc_1",
        &[("x-session-id", "conv-77")],
        &body("s", &[said("user", "x")]),
    );
    for header in SESSION_HEADERS {
        let other = body("t", &[said("user", "y")]);
        assert_eq!(
            key_with(Protocol::Chat, "acc_1", &[(header, " conv-77")], &other),
            wanted,
            "{header}"
        );
        assert_ne!(
            key_with(Protocol::Chat, "acc_2", &[(header, "conv-77")], &other),
            wanted,
            "{header}"
        );
    }
    for members in [
        json!({"prompt_cache_key": "conv-77"}),
        json!({"session_id": "conv-77", "prompt_cache_key": "other"}),
        json!({"metadata": {"session_id": "conv-77"}}),
        json!({"metadata": {"user_id": "user_abc_account__session_conv-77"}}),
        json!({"metadata": {"user_id": "{\"device_id\":\"d\",\"session_id\":\"conv-77\"}"}, "prompt_cache_key": "x"}),
    ] {
        let one = key(Protocol::Messages, &ids(members.clone(), "one"));
        assert_eq!(one, wanted, "{members}");
    }
    let unnamed = key(Protocol::Messages, &body("s", &[said("user", "one")]));
    for no_session in [
        json!({"metadata": {"user_id": "user-5"}}),
        json!({"prompt_cache_key": ""}),
        json!({"prompt_cache_key": 7, "metadata": null}),
        json!({"session_id": "x".repeat(513)}),
    ] {
        assert_eq!(
            key(Protocol::Messages, &ids(no_session.clone(), "one")),
            unnamed,
            "{no_session}"
        );
    }
    assert_ne!(
        key(
            Protocol::Messages,
            &ids(json!({"session_id": "x".repeat(512)}), "one")
        ),
        unnamed
    );
}

/// A client that sends a string in the first turn must send items in the second turn. Both turns
/// belong to one conversation.
#[test]
fn a_string_has_the_key_of_the_parts_that_it_stands_for() {
    let text = "Read \"this\" / that\n";
    let go_on = [
        json!({"role": "assistant", "content": "ok"}),
        json!({"role": "user", "content": "go on"}),
    ];
    let part = |kind: &str| json!([{"type": kind, "text": text}]);
    let responses =
        |input: &Value| json!({"model": "m", "instructions": "be brief", "input": input});
    let items = |first: Value| Value::Array([&[first], go_on.as_slice()].concat());
    let first = key(Protocol::Responses, &responses(&json!(text)));
    for message in [
        json!({"role": "user", "content": text}),
        json!({"type": "message", "role": "user", "content": part("input_text")}),
    ] {
        assert_eq!(
            key(Protocol::Responses, &responses(&json!([message]))),
            first,
            "{message}"
        );
        assert_eq!(
            key(Protocol::Responses, &responses(&items(message.clone()))),
            first,
            "{message}"
        );
    }
    for other in [
        json!("completely different words"),
        json!(""),
        json!([]),
        Value::Null,
    ] {
        assert_ne!(
            key(Protocol::Responses, &responses(&other)),
            first,
            "{other}"
        );
    }
    for protocol in [Protocol::Chat, Protocol::Messages] {
        let whole = |system: Value, content: Value| {
            let user = json!({"role": "user", "content": content});
            match protocol {
                Protocol::Chat => {
                    json!({"model": "m", "messages": [{"role": "system", "content": system}, user]})
                }
                _ => json!({"model": "m", "system": system, "messages": [user]}),
            }
        };
        let first = key(protocol, &whole(json!(text), json!(text)));
        assert_eq!(
            key(protocol, &whole(part("text"), part("text"))),
            first,
            "{protocol:?}"
        );
        assert_ne!(
            key(protocol, &whole(json!(text), json!("other"))),
            first,
            "{protocol:?}"
        );
    }
}

/// One client puts a line before its instructions that changes with every request.
#[test]
fn a_line_that_changes_with_every_request_does_not_count() {
    let with = |line: &str| {
        let system =
            json!([{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}]);
        key(
            Protocol::Messages,
            &json!({"model": "m", "system": system, "messages": [said("user", "hi")]}),
        )
    };
    assert_eq!(
        with("x-anthropic-billing-header: cch=1;"),
        with("x-anthropic-billing-header: cch=2;")
    );
    assert_ne!(with("one"), with("two"));
}

#[test]
fn a_body_without_a_beginning_has_a_key_too() {
    for body in [
        json!({"model": "m"}),
        json!({"model": "m", "messages": []}),
        json!({"model": "m", "messages": [1, "x"]}),
    ] {
        assert_eq!(
            key(Protocol::Chat, &body),
            key(Protocol::Chat, &json!({"model": "n"})),
            "{body}"
        );
    }
}
