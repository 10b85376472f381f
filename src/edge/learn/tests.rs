use super::answer::Answer;
use super::table::probes_of;
use super::*;
use crate::edge::probe::ProbeResponse;
use http::HeaderMap;
use llm_protocol::Protocol;
use std::collections::BTreeSet;

#[test]
fn the_table_can_be_read_and_leaves_requests_for_the_members() {
    for protocol in [Protocol::Chat, Protocol::Messages] {
        let table = probes_of(protocol).unwrap();
        assert!(
            table.probes.len() + 10 <= MAX_REQUESTS as usize,
            "{protocol}"
        );
        let mut earlier = BTreeSet::from([table.plain.name.as_str()]);
        for probe in &table.probes {
            for needed in probe.needs.keys() {
                assert!(
                    earlier.contains(needed.as_str()),
                    "{}: {needed}",
                    probe.name
                );
            }
            assert!(earlier.insert(&probe.name), "{} is there twice", probe.name);
        }
        let with_turn = table
            .probes
            .iter()
            .find(|probe| probe.name == "turn as it came");
        let body = &with_turn.unwrap().body;
        assert!(
            body.contains_key("tools"),
            "merge keys are applied: {body:?}"
        );
    }
    assert!(probes_of(Protocol::Responses).is_err());
}

fn answer_of(protocol: Protocol, body: &[u8]) -> Answer {
    let response = ProbeResponse {
        status: 200,
        headers: HeaderMap::new(),
        body: body.to_vec(),
    };
    Answer::new(protocol, response, &probes_of(protocol).unwrap().places)
}

fn turn_of(protocol: Protocol, answer: &Value) -> answer::ToolTurn {
    let answer = answer_of(protocol, answer.to_string().as_bytes());
    answer.turn.unwrap()
}

#[test]
fn only_a_completion_of_the_protocol_is_taken() {
    let chat = r#"{"choices": [{"message": {"role": "assistant"}}]}"#;
    let chunk = "data: {\"choices\": [{\"delta\": {}}]}\n\ndata: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";
    let messages = r#"{"role": "assistant", "content": [], "stop_reason": "end_turn"}"#;
    let start = "event: message_start\ndata: {\"message\": {\"role\": \"assistant\"}}\n\n";
    for (protocol, whole, stream) in [
        (Protocol::Chat, chat, chunk),
        (Protocol::Messages, messages, start),
    ] {
        for body in [whole, stream] {
            assert!(answer_of(protocol, body.as_bytes()).is_accepted(), "{body}");
        }
        let others = [
            b"<html>Welcome</html>".as_slice(),
            b"\x00\xff\x80",
            b"",
            b"ok",
            b"{}",
            br#"{"error": {"message": "no"}}"#,
            br#"{"choices": []}"#,
            b"data: {\"error\": 1}\n\n",
        ];
        for body in others {
            let answer = answer_of(protocol, body);
            assert!(!answer.is_accepted() && !answer.is_refused(), "{body:?}");
        }
    }
}

#[test]
fn the_state_of_a_turn_is_what_its_protocol_does_not_define() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "s"}}});
    let message = json!({"role": "assistant", "content": null, "refusal": null, "annotations": [],
        "reasoning_content": "t", "x_zorro": {"pondering": "p"}, "tool_calls": [call]});
    let turn = turn_of(Protocol::Chat, &json!({"choices": [{"message": message}]}));
    let paths = [
        "reasoning_content",
        "message.x_zorro.pondering",
        "extra_content.google.thought_signature",
    ];
    assert_eq!(turn.state, paths);
    assert_eq!(turn.results[0]["tool_call_id"], "c");
    let whole = &turn.whole;
    assert!(whole.get("refusal").is_none(), "it says nothing: {whole}");
    let members =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let bare = turn.with_members(&Value::Null, &Value::Null);
    assert_eq!(members(&bare), ["content", "role", "tool_calls"]);
    assert_eq!(members(&bare["tool_calls"][0]), ["function", "id", "type"]);
    let placed = turn.with_members(&json!({"reasoning_content": ""}), &json!({"x": 1}));
    assert_eq!(placed["reasoning_content"], "");
    assert_eq!(placed["tool_calls"][0]["x"], 1);
    let content = json!([{"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}}]);
    let turn = turn_of(Protocol::Messages, &json!({"content": content}));
    assert_eq!(turn.whole["content"], content);
    assert_eq!(turn.results[0]["content"][0]["tool_use_id"], "c");
}

#[test]
fn a_profile_has_no_key_that_check_refuses_for_its_protocol() {
    let finding = |key: &str, value| ProbeFinding {
        probe: key.to_owned(),
        verdict: Verdict::Refused,
        evidence: String::new(),
        decides: Some(key.to_owned()),
        value: Some(value),
    };
    let findings = [
        finding("strict", json!(true)),
        finding("request", json!(["metadata"])),
        finding("drop", json!(["top_k"])),
        finding("state", json!(["x"])),
    ];
    let keys = |protocol| {
        let profile = profile::profile_of(&findings, protocol);
        profile.keys().cloned().collect::<BTreeSet<_>>()
    };
    let of_messages = BTreeSet::from(["drop", "request", "strict"].map(str::to_owned));
    assert_eq!(keys(Protocol::Messages), of_messages);
    let mut of_chat = of_messages;
    of_chat.insert("state".to_owned());
    assert_eq!(keys(Protocol::Chat), of_chat);
}
