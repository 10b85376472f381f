//! Requests: what the gateway reads of them, what it refuses, and that a rewrite changes nothing
//! else.

use crate::payloads::*;
use bytes::Bytes;
use llm_protocol::Protocol;
use llm_protocol::request::{
    Features, OutputLimit, RequestCleanup, RequestEdits, read_summary, rewrite, splice,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn edits(model: &str) -> RequestEdits<'_> {
    RequestEdits {
        model,
        output_limit: None,
        output_limit_field: "max_tokens",
        thinking_budget: None,
        include_usage: false,
    }
}

fn rewritten(protocol: Protocol, body: &str, edits: &RequestEdits<'_>) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let outline = read_summary(protocol, &body).unwrap();
    String::from_utf8(rewrite(&body, &outline, edits).to_vec()).unwrap()
}

fn refused(protocol: Protocol, body: &str) -> (String, Option<String>, Option<String>) {
    let failure = read_summary(protocol, body.as_bytes()).expect_err(body);
    assert_eq!(failure.status(protocol), 400);
    (failure.message, failure.param, failure.code)
}

#[test]
fn a_chat_request_is_read_and_rewritten() {
    let outline = read_summary(Protocol::Chat, CHAT_REQUEST.as_bytes()).unwrap();
    assert_eq!(
        (outline.model.as_str(), outline.stream, outline.choices),
        ("alpha/opus", true, 1)
    );
    assert!(!outline.include_usage);
    assert_eq!(
        outline.output_limit,
        Some(OutputLimit {
            field: "max_tokens",
            tokens: 4096
        })
    );
    let content = outline.features.content;
    assert_eq!(
        outline.features,
        Features {
            tools: true,
            content,
            ..Features::default()
        }
    );
    let edits = RequestEdits {
        output_limit: Some(1000),
        include_usage: true,
        ..edits("up/\"1\"")
    };
    let expected = CHAT_REQUEST
        .replace("alpha/opus", r#"up/\"1\""#)
        .replace("4096", "1000")
        .replace("{\"include_obf", "{\"include_usage\":true,\"include_obf");
    assert_eq!(rewritten(Protocol::Chat, CHAT_REQUEST, &edits), expected);
}

#[test]
fn a_messages_request_is_read_and_rewritten() {
    let outline = read_summary(Protocol::Messages, MESSAGES_REQUEST.as_bytes()).unwrap();
    assert_eq!(outline.thinking_budget, Some(16000));
    assert!(outline.features.cache_markers && !outline.features.cache_markers_1h);
    assert_eq!(
        (outline.features.images, outline.features.url_sources),
        (0, false)
    );
    let edits = RequestEdits {
        output_limit: Some(4000),
        thinking_budget: Some(2000),
        ..edits("up")
    };
    let expected = MESSAGES_REQUEST
        .replace("alpha/opus", "up")
        .replace("32000", "4000")
        .replace("16000", "2000");
    assert_eq!(
        rewritten(Protocol::Messages, MESSAGES_REQUEST, &edits),
        expected
    );
}

#[test]
fn nothing_to_change_is_the_same_body() {
    let body = Bytes::from_static(CHAT_REQUEST.as_bytes());
    let outline = read_summary(Protocol::Chat, &body).unwrap();
    let edits = RequestEdits {
        output_limit: Some(4096),
        ..edits("alpha/opus")
    };
    assert_eq!(rewrite(&body, &outline, &edits).as_ptr(), body.as_ptr());
}

#[test]
fn a_long_body_is_spliced_to_what_a_rewrite_writes() {
    let text = "a".repeat(300_000);
    let edits = RequestEdits {
        output_limit: Some(1000),
        include_usage: true,
        ..edits("up/\"1\"")
    };
    for (before, after) in [
        (&text[..], ""),
        ("", &text[..]),
        (&text[..], &text[..]),
        ("", ""),
    ] {
        let rest = CHAT_REQUEST.trim_end().trim_end_matches('}');
        let rest = rest.strip_prefix('{').unwrap();
        let body = format!(r#"{{"x":"{before}",{rest},"y":"{after}"}}"#);
        let body = Bytes::from(body);
        let outline = read_summary(Protocol::Chat, &body).unwrap();
        let mut spliced = splice(&body, &outline, &edits, RequestCleanup::default());
        assert_eq!(spliced.to_bytes(), rewrite(&body, &outline, &edits));
        let first = spliced.take_piece(usize::MAX).unwrap();
        let is_whole = spliced.is_empty();
        assert_eq!(
            is_whole,
            body.len() < 10_000,
            "{} bytes of {}",
            first.len(),
            body.len()
        );
    }
}

#[test]
fn members_are_put_in_once() {
    let both = RequestEdits {
        output_limit: Some(9),
        output_limit_field: "max_completion_tokens",
        include_usage: true,
        ..edits("m")
    };
    let check = |body: &str, expected: &str| {
        assert_eq!(rewritten(Protocol::Chat, body, &both), expected);
    };
    check(
        r#" { "model":"m"}"#,
        r#" {"max_completion_tokens":9,"stream_options":{"include_usage":true}, "model":"m"}"#,
    );
    check(
        r#"{"max_completion_tokens":null,"model":"m","stream_options":null}"#,
        r#"{"max_completion_tokens":9,"model":"m","stream_options":{"include_usage":true}}"#,
    );
    check(
        r#"{"max_tokens":5,"model":"m","stream_options":{ }}"#,
        r#"{"max_tokens":5,"model":"m","stream_options":{"include_usage":true }}"#,
    );
    check(
        r#"{"max_tokens":10,"max_completion_tokens":3,"model":"m","stream_options":{"a":1,"include_usage": false}}"#,
        r#"{"max_tokens":9,"max_completion_tokens":3,"model":"m","stream_options":{"a":1,"include_usage": true}}"#,
    );
    check(
        r#"{"n":2,"model":"m","stream_options":{"include_usage":null }}"#,
        r#"{"max_completion_tokens":9,"n":2,"model":"m","stream_options":{"include_usage":true }}"#,
    );
}

#[test]
fn of_two_limits_the_larger_is_held_for() {
    let body = r#"{"model":"m","max_tokens":900,"max_completion_tokens":3}"#;
    let limit = read_summary(Protocol::Chat, body.as_bytes())
        .unwrap()
        .output_limit;
    assert_eq!(
        limit,
        Some(OutputLimit {
            field: "max_completion_tokens",
            tokens: 900
        })
    );
}

#[test]
fn escapes_in_keys_hide_nothing() {
    let body = r#"{"m\u006fdel":"m\u006f","\u006d\u0061x_tokens":7,"messages":[{"content":[{"t\u0079pe":"im\u0061ge"}]}]}"#;
    let outline = read_summary(Protocol::Messages, body.as_bytes()).unwrap();
    assert_eq!(outline.model, "mo");
    assert_eq!(outline.output_limit.map(|limit| limit.tokens), Some(7));
    assert_eq!(outline.features.images, 1);
    let twice = r#"{"model":"m","m\u006fdel":"dear"}"#;
    assert_eq!(refused(Protocol::Chat, twice).1.as_deref(), Some("model"));
}

#[test]
fn what_cannot_be_billed_for_sure_is_refused() {
    for body in [
        "",
        " ",
        "{",
        "[]",
        "1",
        "{\"model\":\"m\"}x",
        "{\"model\":\"m\",}",
        "\u{feff}{}",
        "{\"model\":\"\\ud800\"}",
    ] {
        for protocol in [Protocol::Chat, Protocol::Messages] {
            refused(protocol, body);
        }
    }
    assert!(read_summary(Protocol::Chat, b"{\"model\":\"\xff\"}").is_err());
    let deep = |depth: usize| {
        format!(
            r#"{{"model":"m","x":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    assert!(read_summary(Protocol::Chat, deep(63).as_bytes()).is_ok());
    assert!(refused(Protocol::Chat, &deep(64)).0.contains("deep"));
    for body in [r#"{}"#, r#"{"model":null}"#, r#"{"model":""}"#] {
        let (message, param, code) = refused(Protocol::Chat, body);
        assert_eq!(message, "you must provide a model parameter");
        assert_eq!(param.as_deref(), Some("model"));
        assert_eq!(code.as_deref(), Some("missing_required_parameter"));
        assert_eq!(refused(Protocol::Messages, body).0, "model: Field required");
    }
}

#[test]
fn a_wrong_type_range_or_second_member_names_its_place() {
    let chat = [
        (r#""model":"m","model":"m""#, "model"),
        (r#""model":1"#, "model"),
        (r#""model":"m","stream":"true""#, "stream"),
        (r#""model":"m","Stream":true"#, "Stream"),
        (r#""model":"m","max_tokens":-1"#, "max_tokens"),
        (r#""model":"m","max_tokens":1.5"#, "max_tokens"),
        (r#""model":"m","max_tokens":1e9"#, "max_tokens"),
        (
            r#""model":"m","max_completion_tokens":99999999999999999999"#,
            "max_completion_tokens",
        ),
        (r#""model":"m","n":0"#, "n"),
        (r#""model":"m","n":129"#, "n"),
        (r#""model":"m","stream_options":[]"#, "stream_options"),
        (
            r#""model":"m","stream_options":{"include_usage":1}"#,
            "stream_options.include_usage",
        ),
        (
            r#""model":"m","stream_options":{"include_usage":true,"include_usage":false}"#,
            "stream_options.include_usage",
        ),
        (r#""model":"m","messages":{}"#, "messages"),
        (r#""model":"m","tools":"x""#, "tools"),
        (r#""model":"m","service_tier":1"#, "service_tier"),
        (r#""model":"m","messages":[],"messages":[]"#, "messages"),
    ];
    for (members, param) in chat {
        assert_eq!(
            refused(Protocol::Chat, &format!("{{{members}}}"))
                .1
                .as_deref(),
            Some(param)
        );
    }
    let messages = [
        (r#""model":"m","thinking":true"#, "thinking"),
        (
            r#""model":"m","thinking":{"type":"enabled","budget_tokens":"x"}"#,
            "thinking.budget_tokens",
        ),
        (
            r#""model":"m","thinking":{"type":"enabled","type":"disabled"}"#,
            "thinking",
        ),
        (r#""model":"m","thinking":{},"thinking":{}"#, "thinking"),
    ];
    for (members, param) in messages {
        let (message, found, _) = refused(Protocol::Messages, &format!("{{{members}}}"));
        assert_eq!(found.as_deref(), Some(param));
        assert!(message.starts_with(&format!("{param}: ")), "{message}");
    }
}

/// Any shallow JSON value.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!("model")),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z_\u{e9}\"\\\\]{0,8}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn optional(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![Just(None), Just(Some(Value::Null)), value.prop_map(Some)]
}

/// The members of a body with their values, in any order, and whether the body is pretty-printed.
fn bodies() -> impl Strategy<Value = (Vec<(String, Value)>, bool)> {
    let options = prop_oneof![
        Just(json!({})),
        Just(json!({"include_usage": false, "b": [1]})),
        Just(json!({"a": {"include_usage": true}})),
        Just(json!({"include_usage": true})),
    ];
    let known = (
        any::<String>().prop_filter("a model has a name", |model| !model.is_empty()),
        optional((1..1_u64 << 53).prop_map(Value::from)),
        optional((1..100_u64).prop_map(Value::from)),
        optional(options),
        optional(prop::collection::vec(values(), 0..4).prop_map(Value::from)),
    );
    let others = prop::collection::btree_map("x_[a-z\u{e9}]{0,6}", values(), 0..4);
    (known, others, any::<bool>())
        .prop_map(
            |((model, older, newer, options, messages), others, pretty)| {
                let mut members = vec![("model".to_owned(), Value::from(model))];
                let known = [
                    ("max_tokens", older),
                    ("max_completion_tokens", newer),
                    ("stream_options", options),
                    ("messages", messages),
                ];
                members.extend(
                    known
                        .into_iter()
                        .filter_map(|(name, value)| Some((name.to_owned(), value?))),
                );
                members.extend(others);
                (members, pretty)
            },
        )
        .prop_flat_map(|(members, pretty)| (Just(members).prop_shuffle(), Just(pretty)))
}

fn written(members: &[(String, Value)], pretty: bool) -> String {
    let (open, colon, comma) = if pretty {
        ("{\r\n\t ", " : ", " ,\n  ")
    } else {
        ("{", ":", ",")
    };
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| {
            let value = if pretty {
                format!("{value:#}")
            } else {
                value.to_string()
            };
            format!("{}{colon}{value}", Value::from(name.as_str()))
        })
        .collect();
    format!("{open}{}}}", members.join(comma))
}

/// The result of the edits, computed member by member.
fn edited(members: &[(String, Value)], edits: &RequestEdits<'_>) -> Vec<(String, Value)> {
    let mut members = members.to_vec();
    let has_limit = members.iter().any(|(name, value)| {
        matches!(name.as_str(), "max_tokens" | "max_completion_tokens") && !value.is_null()
    });
    for (name, value) in &mut members {
        match (name.as_str(), edits.output_limit) {
            ("model", _) => *value = json!(edits.model),
            ("max_tokens" | "max_completion_tokens", Some(limit))
                if value.as_u64().is_some_and(|given| given > limit)
                    || (!has_limit && name == edits.output_limit_field) =>
            {
                *value = json!(limit);
            }
            ("stream_options", _) if edits.include_usage => {
                let mut options = value.as_object().cloned().unwrap_or_default();
                options.insert("include_usage".to_owned(), json!(true));
                *value = Value::Object(options);
            }
            _ => {}
        }
    }
    let absent =
        |wanted: &str, members: &[(String, Value)]| !members.iter().any(|(name, _)| name == wanted);
    if let Some(limit) = edits.output_limit
        && !has_limit
        && absent(edits.output_limit_field, &members)
    {
        members.push((edits.output_limit_field.to_owned(), json!(limit)));
    }
    if edits.include_usage && absent("stream_options", &members) {
        members.push(("stream_options".to_owned(), json!({"include_usage": true})));
    }
    members
}

proptest! {
    #![proptest_config(crate::cases(1500))]

    #[test]
    fn a_rewrite_is_the_identity_but_for_the_edits(
        (members, pretty) in bodies(),
        model: String,
        output_limit in prop::option::of(1..2000_u64),
        newer: bool,
        include_usage: bool,
    ) {
        let body = written(&members, pretty);
        let edits = RequestEdits {
            output_limit,
            output_limit_field: if newer { "max_completion_tokens" } else { "max_tokens" },
            include_usage,
            ..edits(&model)
        };
        let result = rewritten(Protocol::Chat, &body, &edits);
        let expected: serde_json::Map<String, Value> = edited(&members, &edits).into_iter().collect();
        let result_value: Value = serde_json::from_str(&result).unwrap();
        prop_assert_eq!(&result_value, &Value::Object(expected));
        if !model.is_empty() {
            prop_assert_eq!(read_summary(Protocol::Chat, result.as_bytes()).unwrap().model, model.clone());
        }
        // Every byte outside the edits stays the same.
        let only_model = self::edits(&model);
        let result = rewritten(Protocol::Chat, &body, &only_model);
        prop_assert_eq!(result, written(&edited(&members, &only_model), pretty));
    }

    #[test]
    fn no_body_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), other in "\\PC{0,40}") {
        for protocol in [Protocol::Chat, Protocol::Messages] {
            let _ = read_summary(protocol, &bytes);
            let real = read_summary(Protocol::Chat, CHAT_REQUEST.as_bytes()).unwrap();
            // The summary of another body must not cause a panic either.
            let edits = RequestEdits { output_limit: Some(1), include_usage: true, ..edits(&other) };
            rewrite(&Bytes::from(bytes.clone()), &real, &edits);
        }
    }

    #[test]
    fn a_mutated_body_is_read_as_serde_json_reads_it(
        index: prop::sample::Index,
        byte in prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\nu0e-. ".to_vec())],
        is_chat: bool,
    ) {
        let (protocol, body) = match is_chat {
            true => (Protocol::Chat, CHAT_REQUEST),
            false => (Protocol::Messages, MESSAGES_REQUEST),
        };
        let mut body = body.as_bytes().to_vec();
        let at = index.index(body.len());
        body[at] = byte;
        let Ok(outline) = read_summary(protocol, &body) else { return Ok(()) };
        let value: Value = match serde_json::from_slice(&body) {
            Ok(value) => value,
            // Numbers beyond the range of a float, and half surrogates, are JSON but no `Value`.
            Err(_) => return Ok(()),
        };
        prop_assert_eq!(value["model"].as_str(), Some(outline.model.as_str()));
        prop_assert_eq!(value["stream"].as_bool().unwrap_or(false), outline.stream);
        let body = Bytes::from(body);
        let edited = rewrite(&body, &outline, &edits("another"));
        let mut expected = value;
        expected["model"] = json!("another");
        prop_assert_eq!(serde_json::from_slice::<Value>(&edited).unwrap(), expected);
    }
}
