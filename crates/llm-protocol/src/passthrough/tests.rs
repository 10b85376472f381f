//! Tests where the opening of a stream ends. Only a client that has received later events would
//! notice another attempt.

use super::{StreamPassthrough, rewrite_response};
use crate::ir::event::ResponseContext;
use crate::usage::MeteringTerms;
use crate::vendor_response::ResponseStream as _;
use crate::{Protocol, translate};

/// Returns whether the events hold anything but an opening.
fn has_content(protocol: Protocol, events: &[&str]) -> bool {
    let (mut pass, mut out) = (
        StreamPassthrough::new(protocol, "public", true, 1 << 20),
        Vec::new(),
    );
    for event in events {
        pass.push(event.as_bytes(), &mut out).unwrap();
    }
    pass.has_content()
}

fn chunk(choices: &str) -> String {
    format!("data: {{\"id\":\"c\",\"created\":1,\"model\":\"m\",\"choices\":{choices}}}\n\n")
}

#[test]
fn a_chat_stream_opens_with_a_role_empty_texts_comments_and_findings_about_the_prompt() {
    let of = |delta: &str| {
        chunk(&format!(
            "[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]"
        ))
    };
    let opening = [
        ": PROCESSING\n\n".to_owned(),
        chunk("[]"),
        of("{}"),
        of(r#"{"role":"assistant"}"#),
        of(
            r#"{"role":"assistant","content":"","refusal":null,"tool_calls":[],"reasoning_content":null,"audio":null}"#,
        ),
    ];
    assert!(!has_content(
        Protocol::Chat,
        &opening.each_ref().map(String::as_str)
    ));
    for useful in [
        of(r#"{"content":" "}"#),
        of(r#"{"reasoning_content":"h"}"#),
        of(r#"{"refusal":"no"}"#),
        of(r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"look","arguments":""}}]}"#),
        of(r#"{"function_call":{"name":"look","arguments":""}}"#),
        of(r#"{"something_new":{"a":1}}"#),
        chunk(r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#),
    ] {
        assert!(
            has_content(Protocol::Chat, &[&opening[3], &useful]),
            "{useful}"
        );
    }
}

#[test]
fn a_messages_stream_opens_with_its_start_and_pings() {
    let of =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let opening = [
        of("message_start", ",\"message\":{\"id\":\"m\"}"),
        of("ping", ""),
        ":\n\n".to_owned(),
    ];
    assert!(!has_content(
        Protocol::Messages,
        &opening.each_ref().map(String::as_str)
    ));
    let block = of(
        "content_block_start",
        ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}",
    );
    assert!(has_content(Protocol::Messages, &[&opening[0], &block]));
    assert!(has_content(
        Protocol::Messages,
        &[&opening[0], &of("something_new", "")]
    ));
}

#[test]
fn a_responses_stream_opens_with_word_that_the_request_was_taken() {
    let of = |kind: &str| {
        format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":0}}\n\n")
    };
    let opening = [
        "response.created",
        "response.queued",
        "response.in_progress",
        "keepalive",
    ]
    .map(of);
    assert!(!has_content(
        Protocol::Responses,
        &opening.each_ref().map(String::as_str)
    ));
    assert!(has_content(
        Protocol::Responses,
        &[&opening[0], &of("response.output_item.added")]
    ));
}

/// Returns the text that the client reads from a stream with these events, and whether the answer
/// is complete.
fn passed(protocol: Protocol, hide_usage: bool, events: &[&str]) -> (String, bool) {
    let (mut pass, mut out) = (
        StreamPassthrough::new(protocol, "public", hide_usage, 1 << 20),
        Vec::new(),
    );
    for event in events {
        let _ = pass.push(format!("data: {event}\n\n").as_bytes(), &mut out);
    }
    (String::from_utf8(out).unwrap(), pass.is_complete())
}

#[test]
fn a_chat_stream_reports_the_usage_that_was_asked_for_before_it_ends() {
    const TEXT: &str =
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}]}"#;
    let usages = |events: &[&str], hide_usage| {
        let (text, is_complete) = passed(Protocol::Chat, hide_usage, events);
        assert!(is_complete && text.ends_with("data: [DONE]\n\n"), "{text}");
        text.matches(r#""completion_tokens":"#).count()
    };
    assert_eq!(usages(&[TEXT, "[DONE]"], false), 1);
    assert_eq!(usages(&[TEXT, "[DONE]"], true), 0);
    for empty in ["null", "{}", r#"{"total_tokens":500}"#, "[]", "\"none\""] {
        let chunk = format!(r#"{{"id":"c","choices":[],"usage":{empty}}}"#);
        assert_eq!(usages(&[TEXT, &chunk, "[DONE]"], false), 1, "{empty}");
        assert_eq!(usages(&[TEXT, &chunk, "[DONE]"], true), 0, "{empty}");
        let early = TEXT.replace("{\"id\"", &format!("{{\"usage\":{empty},\"id\""));
        assert_eq!(usages(&[&early, "[DONE]"], false), 1, "{empty}");
        assert!(
            !passed(Protocol::Chat, false, &[&early, &chunk, "[DONE]"])
                .0
                .contains("500"),
            "{empty}"
        );
        // A usage with counts comes after it.
        let counts = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
        assert_eq!(usages(&[&early, counts, "[DONE]"], false), 1, "{empty}");
    }
    let exact = [
        TEXT,
        r#"{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#,
    ];
    let (text, _) = passed(Protocol::Chat, false, &exact);
    assert_eq!(
        text,
        format!("data: {}\n\ndata: {}\n\n", exact[0], exact[1]),
        "right usage stays as it is"
    );
}

#[test]
fn the_last_event_of_messages_and_responses_reports_usage_that_the_vendor_does_not() {
    for usage in [
        "",
        r#","usage":null"#,
        r#","usage":{}"#,
        r#","usage":"none""#,
    ] {
        let start = r#"{"type":"message_start","message":{"id":"m","model":"up"}}"#;
        let delta =
            format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}}{usage}}}"#);
        let (text, is_complete) = passed(
            Protocol::Messages,
            false,
            &[start, &delta, r#"{"type":"message_stop"}"#],
        );
        assert!(
            is_complete && text.matches(r#""output_tokens":"#).count() == 1,
            "{text}"
        );
        let end = format!(
            r#"{{"type":"response.completed","response":{{"id":"r","status":"completed"{usage}}} }}"#
        );
        let (text, is_complete) = passed(Protocol::Responses, false, &[&end]);
        assert!(
            is_complete && text.matches(r#""output_tokens":"#).count() == 1,
            "{text}"
        );
        for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let event: serde_json::Value = serde_json::from_str(data).unwrap();
            assert!(
                event["response"]["usage"]["total_tokens"].is_u64(),
                "{text}"
            );
        }
    }
    let bare = r#"{"type":"response.completed"}"#;
    assert_eq!(
        passed(Protocol::Responses, false, &[bare]),
        (format!("data: {bare}\n\n"), true)
    );
    let failed = r#"{"type":"response.completed","response":{"status":"completed","error":{"message":"boom"}}}"#;
    assert!(!passed(Protocol::Responses, false, &[failed]).1);
}

#[test]
fn a_whole_answer_reports_usage_that_the_vendor_does_not() {
    let terms = crate::usage::MeteringTerms::default();
    for (protocol, answer) in [
        (
            Protocol::Chat,
            r#""choices":[{"index":0,"message":{"content":"Yes."},"finish_reason":"stop"}]"#,
        ),
        (
            Protocol::Messages,
            r#""type":"message","content":[{"type":"text","text":"Yes."}],"stop_reason":"end_turn""#,
        ),
        (
            Protocol::Responses,
            r#""status":"completed","error":null,"output":[]"#,
        ),
    ] {
        for usage in ["", r#","usage":null"#, r#","usage":{}"#, r#","usage":7"#] {
            let body = format!("{{{answer}{usage}}}\n");
            let whole =
                super::rewrite_response(protocol, "public", body.into(), &terms, None).unwrap();
            let read: serde_json::Value = serde_json::from_slice(&whole.body).unwrap();
            let output = if protocol == Protocol::Chat {
                "completion_tokens"
            } else {
                "output_tokens"
            };
            assert!(read["usage"][output].is_u64(), "{read}");
        }
        let failed =
            format!(r#"{{{answer},"error":{{"message":"boom"}}}}"#).replace(r#""error":null,"#, "");
        assert!(super::rewrite_response(protocol, "public", failed.into(), &terms, None).is_err());
    }
}

#[test]
fn a_refusal_before_any_output_is_free_unless_the_vendor_bills_its_category() {
    for (category, is_free) in [
        ("null", true),
        ("\"cyber\"", true),
        ("\"general_harms\"", true),
        ("\"a_new_one\"", true),
        ("\"bio\"", false),
        ("\"frontier_llm\"", false),
        ("\"reasoning_extraction\"", false),
    ] {
        let details = format!(r#"{{"type":"refusal","category":{category},"explanation":null}}"#);
        let whole = format!(
            r#"{{"type":"message","role":"assistant","model":"m","content":[],"stop_reason":"refusal",
            "stop_details":{details},"usage":{{"input_tokens":9,"output_tokens":0}}}}"#
        );
        let body = bytes::Bytes::from(whole);
        let terms = MeteringTerms::default();
        let passed =
            rewrite_response(Protocol::Messages, "public", body.clone(), &terms, None).unwrap();
        assert_eq!(passed.refused_free, is_free, "{category}");
        for surface in [Protocol::Chat, Protocol::Responses] {
            let translated = translate::translate_response(
                Protocol::Messages,
                surface,
                ResponseContext::default(),
                false,
                &body,
            );
            assert_eq!(translated.unwrap().refused_free, is_free, "{category}");
        }
        let delta = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"refusal","stop_details":{details}}},"usage":{{"output_tokens":0}}}}"#
        );
        let mut pass = StreamPassthrough::new(Protocol::Messages, "public", false, 1 << 20);
        let start = r#"{"type":"message_start","message":{"stop_reason":null,"stop_details":null,"usage":{"input_tokens":9,"output_tokens":0}}}"#;
        for event in [start, &delta] {
            pass.push(format!("data: {event}\n\n").as_bytes(), &mut Vec::new())
                .unwrap();
        }
        assert_eq!(pass.refused_free(), is_free, "{category}");
    }
}

fn text_chunk(choices: &str, more: &str) -> String {
    format!(
        "data: {{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":{choices}{more}}}\n\n"
    )
}

fn text_choice(index: u8, text: &str, finish: &str) -> String {
    format!(
        "[{{\"text\":\"{text}\",\"index\":{index},\"logprobs\":null,\"finish_reason\":{finish}}}]"
    )
}

#[test]
fn a_stream_of_completions_passes_and_what_the_gateway_adds_to_it_has_their_form() {
    let events = [
        text_chunk(&text_choice(0, "a", "null"), ""),
        text_chunk(&text_choice(1, "bc", "null"), ""),
        text_chunk(&text_choice(0, "", "\"stop\""), ""),
        text_chunk(&text_choice(1, "", "\"length\""), ""),
    ];
    let usage = text_chunk(
        "[]",
        ",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}",
    );
    let run = |events: &[&str], hides: bool| {
        let mut pass = StreamPassthrough::new(Protocol::Chat, "public", hides, 1 << 20)
            .with_request(MeteringTerms::default(), 2)
            .with_text_form(true);
        let mut out = Vec::new();
        for event in events {
            pass.push(event.as_bytes(), &mut out).unwrap();
        }
        let ended = pass.finish(&mut out);
        (pass, String::from_utf8(out).unwrap(), ended)
    };
    let of_vendor: Vec<_> = events.iter().map(String::as_str).collect();
    let whole = [&of_vendor[..], &[&usage, "data: [DONE]\n\n"]].concat();
    let renamed = whole
        .concat()
        .replace("\"model\":\"m\"", "\"model\":\"public\"");
    let (pass, out, ended) = run(&whole, false);
    assert_eq!((out.as_str(), ended.is_ok()), (renamed.as_str(), true));
    assert_eq!(pass.generated_bytes(), 3);
    let counted = pass.usage().unwrap().usage;
    assert_eq!((counted.input, counted.output), (3, 2));
    let (_, hidden, _) = run(&whole, true);
    assert!(
        !hidden.contains("usage") && hidden.ends_with("data: [DONE]\n\n"),
        "{hidden}"
    );
    // A vendor that breaks off behind the last reason, and one that breaks off before it.
    let (pass, out, ended) = run(&of_vendor, false);
    assert!(ended.is_ok() && pass.is_complete());
    let added = out.split("\n\n").nth(4).unwrap();
    assert!(
        added.contains("\"object\":\"text_completion\"") && added.contains("\"usage\":"),
        "{out}"
    );
    assert!(run(&of_vendor[..3], false).2.is_err());
    // An answer that the gateway ends at the output limit.
    let mut pass = StreamPassthrough::new(Protocol::Chat, "public", true, 1 << 20)
        .with_request(MeteringTerms::default(), 1)
        .with_text_form(true);
    let mut out = Vec::new();
    pass.push(events[0].as_bytes(), &mut out).unwrap();
    out.clear();
    pass.end_at_limit(&counted, &mut out);
    let end = String::from_utf8(out).unwrap();
    let expected = text_chunk(&text_choice(0, "", "\"length\""), "").replace("\"m\"", "\"public\"");
    let expected = expected.replace(r#""text":"","index":0"#, r#""index":0,"text":"""#);
    assert_eq!(end, format!("{expected}data: [DONE]\n\n"));
}

#[test]
fn a_whole_completion_passes_with_its_usage_and_is_none_without_a_reason() {
    let read = |choices: &str, usage: &str| {
        let body = format!(
            r#"{{"id":"cmpl-1","object":"text_completion","model":"m","choices":{choices}{usage}}}"#
        );
        rewrite_response(
            Protocol::Chat,
            "public",
            body.into(),
            &MeteringTerms::default(),
            None,
        )
    };
    let usage = r#","usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}"#;
    let answer = read(&text_choice(0, "abc", "\"stop\""), usage).unwrap();
    assert_eq!(answer.generated_bytes, 3);
    assert_eq!(answer.usage.unwrap().usage.output, 2);
    assert!(
        answer
            .body
            .ends_with(format!("\"finish_reason\":\"stop\"}}]{usage}}}").as_bytes())
    );
    assert!(read(&text_choice(0, "abc", "null"), usage).is_err());
    assert!(read("[]", usage).is_err());
}

#[test]
fn a_character_that_two_pieces_of_a_text_share_reaches_the_client_whole() {
    let mut pass = StreamPassthrough::new(Protocol::Chat, "m", true, 1 << 20).with_text_form(true);
    let mut out = Vec::new();
    for text in [r"a\ud83d", r"\ude00b"] {
        let event = text_chunk(&text_choice(0, text, "null"), "");
        pass.push(event.as_bytes(), &mut out).unwrap();
    }
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains(r#""text":"a""#) && out.contains(r#""text":"\ud83d\ude00b""#),
        "{out}"
    );
}
