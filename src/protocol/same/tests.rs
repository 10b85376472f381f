//! Where the opening of a stream ends, by whose events a client would notice that another attempt was made.

use super::StreamPass;
use crate::protocol::Protocol;

/// Whether anything but an opening was in these events.
fn has_content(protocol: Protocol, events: &[&str]) -> bool {
    let (mut pass, mut out) = (StreamPass::new(protocol, "public", true, 1 << 20), Vec::new());
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
    let of = |delta: &str| chunk(&format!("[{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}]"));
    let opening = [
        ": PROCESSING\n\n".to_owned(),
        chunk("[]"),
        of("{}"),
        of(r#"{"role":"assistant"}"#),
        of(r#"{"role":"assistant","content":"","refusal":null,"tool_calls":[],"reasoning_content":null,"audio":null}"#),
    ];
    assert!(!has_content(Protocol::Chat, &opening.each_ref().map(String::as_str)));
    for useful in [
        of(r#"{"content":" "}"#),
        of(r#"{"reasoning_content":"h"}"#),
        of(r#"{"refusal":"no"}"#),
        of(r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"look","arguments":""}}]}"#),
        of(r#"{"function_call":{"name":"look","arguments":""}}"#),
        of(r#"{"something_new":{"a":1}}"#),
        chunk(r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#),
    ] {
        assert!(has_content(Protocol::Chat, &[&opening[3], &useful]), "{useful}");
    }
}

#[test]
fn a_messages_stream_opens_with_its_start_and_pings() {
    let of = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    let opening = [of("message_start", ",\"message\":{\"id\":\"m\"}"), of("ping", ""), ":\n\n".to_owned()];
    assert!(!has_content(Protocol::Messages, &opening.each_ref().map(String::as_str)));
    let block = of("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    assert!(has_content(Protocol::Messages, &[&opening[0], &block]));
    assert!(has_content(Protocol::Messages, &[&opening[0], &of("something_new", "")]));
}

#[test]
fn a_responses_stream_opens_with_word_that_the_request_was_taken() {
    let of = |kind: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":0}}\n\n");
    let opening = ["response.created", "response.queued", "response.in_progress", "keepalive"].map(of);
    assert!(!has_content(Protocol::Responses, &opening.each_ref().map(String::as_str)));
    assert!(has_content(Protocol::Responses, &[&opening[0], &of("response.output_item.added")]));
}
