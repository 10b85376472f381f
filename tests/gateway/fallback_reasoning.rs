//! Requests with reasoning that only the first vendor can read, answered by a fallback vendor: the
//! gateway drops the reasoning and reports that in a warning.
//!
//! The fallback vendors of these tests refuse such reasoning with an error message that the gateway
//! does not know, as a vendor with its own variant of a protocol does.

use crate::account::micro;
use crate::client::Request;
use crate::fallback::{is_from, passed_on};
use crate::world::{Plan, Simulator};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const FOREIGN: &str = "EpwBCkYIBxgCKkCforeign+signature==";

/// A vendor that answers every request whose body does not contain `refused`.
struct Choosy {
    port: u16,
    bodies: Arc<Mutex<Vec<String>>>,
}

fn read_body(client: &mut TcpStream) -> Option<String> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    loop {
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(body.to_owned());
            }
        }
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}

impl Choosy {
    fn start(refused: &'static str, answer: &Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let bodies = Arc::<Mutex<Vec<String>>>::default();
        let (kept, answer) = (Arc::clone(&bodies), answer.to_string());
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let Some(body) = read_body(&mut client) else {
                    continue;
                };
                let says = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "Not this."}});
                let (status, says) = if body.contains(refused) {
                    ("400 Bad Request", says.to_string())
                } else {
                    ("200 OK", answer.clone())
                };
                kept.lock().unwrap().push(body);
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                );
                let _ = client.write_all(
                    format!("{head}content-length: {}\r\n\r\n{says}", says.len()).as_bytes(),
                );
            }
        });
        Self { port, bodies }
    }

    /// The request bodies that it received, oldest first.
    fn asked(&self) -> Vec<Value> {
        self.bodies
            .lock()
            .unwrap()
            .iter()
            .map(|body| serde_json::from_str(body).unwrap())
            .collect()
    }
}

fn message() -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
        "content": [{"type": "text", "text": "Here."}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    })
}

/// A conversation in which the model reasoned and called a tool, and the client sends the tool's
/// result. `thought` is the reasoning block that the vendor signed.
fn turn(model: &str, thought: Option<&Value>) -> Value {
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": "A door."});
    let content: Vec<_> = thought.cloned().into_iter().chain([call]).collect();
    json!({
        "model": model, "max_tokens": 4_000, "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result]},
        ],
    })
}

#[test]
fn a_message_whose_thoughts_another_vendor_signed_is_said_to_a_fallback_without_them() {
    let haiku = "alpha-haiku-4-5-20251001";
    for thought in [
        json!({"type": "thinking", "thinking": "First look.", "signature": FOREIGN}),
        json!({"type": "redacted_thinking", "data": FOREIGN}),
    ] {
        let (bad, third) = (
            Simulator::start(Some("status=529")),
            Choosy::start("thinking", &message()),
        );
        let (world, account) = passed_on(
            Plan::default().endpoints_of(&[bad.port], &[bad.port]),
            third.port,
        )
        .with_account();
        let ask = |body: &Value| {
            world.ask(
                &Request::post("/v1/messages", body.to_string()).header("x-api-key", &account.key),
            )
        };
        let answer = ask(&turn(haiku, Some(&thought)));
        is_from(&answer, "alpha-sonnet-4-6");
        let warnings = answer.header("x-gateway-warnings").unwrap();
        assert_eq!(
            warnings,
            "dropped:messages[1].content[0], dropped:thinking, fallback:alpha-sonnet-4-6"
        );
        let [first, second] = &third.asked()[..] else {
            panic!("{:?}", third.asked())
        };
        assert_eq!(
            first["messages"][1]["content"][0], thought,
            "as it stands, for it may be able to read it"
        );
        assert_eq!(
            second["messages"][1]["content"][0]["type"], "tool_use",
            "{second}"
        );
        assert!(
            second["thinking"].is_null() && second["messages"][2] == first["messages"][2],
            "{second}"
        );
        assert_eq!(
            micro(&world.ended(&account, 1)["credits"]),
            10 * 300 + 5 * 1_500
        );
        // Without reasoning in the request the gateway has nothing to drop, and it reports the
        // first vendor's failure.
        let mut plain = turn(haiku, None);
        plain["messages"][0]["content"] = "thinking".into();
        let answer = ask(&plain);
        assert_eq!(
            (answer.status, third.asked().len()),
            (529, 3),
            "{}",
            answer.text()
        );
    }
}

#[test]
fn a_fallback_that_refuses_it_without_as_well_is_asked_no_third_time() {
    let (bad, third) = (
        Simulator::start(Some("status=529")),
        Choosy::start("model", &message()),
    );
    let (world, account) = passed_on(
        Plan::default().endpoints_of(&[bad.port], &[bad.port]),
        third.port,
    )
    .with_account();
    let thought = json!({"type": "thinking", "thinking": "First look.", "signature": FOREIGN});
    let body = turn("alpha-haiku-4-5-20251001", Some(&thought)).to_string();
    let answer = world.ask(&Request::post("/v1/messages", body).header("x-api-key", &account.key));
    assert_eq!(
        (answer.status, third.asked().len()),
        (529, 2),
        "{}",
        answer.text()
    );
    assert_eq!(micro(&world.ended(&account, 1)["credits"]), 0);
}

#[test]
fn an_item_that_another_vendor_sealed_is_not_said_to_a_fallback_that_refuses_it() {
    let response = json!({
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "gpt-5.2", "error": null,
        "incomplete_details": null, "output": [{
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Here.", "annotations": []}],
        }],
        "usage": {
            "input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    });
    let (bad, third) = (
        Simulator::start(Some("status=529")),
        Choosy::start("sealed-by-another", &response),
    );
    let endpoints = format!("endpoints: [{{url: \"http://127.0.0.1:{}\"}}]", third.port);
    let vendor = format!(
        "  gamma:\n    protocol: responses\n    {endpoints}\n    api_key: \"sim-gamma-key\"\nmodels:\n"
    );
    let plan = Plan::default()
        .endpoints_of(&[bad.port], &[bad.port])
        .edit("models:\n", &vendor);
    let old = "    vendor: beta\n    upstream_model: gpt-5.2\n";
    let plan = plan.edit(old, &old.replace("beta", "gamma"));
    let door = "    upstream_model: gpt-5.5\n";
    let (world, account) = plan
        .edit(
            door,
            &format!("{door}    upstream_protocol: responses\n    fallback: [beta-5.2]\n"),
        )
        .with_account();
    let item = |kind: &str, text: &str| json!({"type": "message", "role": kind, "content": text});
    let sealed = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed-by-another"});
    let input = json!([
        item("user", "Go on."),
        sealed,
        item("assistant", "Looking."),
        item("user", "And?")
    ]);
    let body =
        json!({"model": "beta-5.5", "store": false, "input": input, "max_output_tokens": 500});
    let answer = world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
    is_from(&answer, "beta-5.2");
    assert!(
        answer
            .header("x-gateway-warnings")
            .unwrap()
            .contains("dropped:"),
        "{:?}",
        answer.header("x-gateway-warnings")
    );
    let asked = third.asked();
    let has_item = |body: &Value| {
        body["input"]
            .as_array()
            .unwrap()
            .iter()
            .any(|item| item["type"] == "reasoning")
    };
    assert_eq!(
        asked.iter().map(has_item).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(
        micro(&world.ended(&account, 1)["credits"]),
        10 * 175 + 5 * 1_400
    );
}
