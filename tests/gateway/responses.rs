//! Tests the responses surface in front of both vendors: every model answers, streamed and whole,
//! and is debited once. Also tests failures, silent vendors and idempotent retries.
//!
//! The test vectors check the content of translated bodies. This file tests the rest.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::failure::is_free;
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const COUNT: &str = "/v1/responses/input_tokens";

/// A request for a model of this vendor.
fn body(vendor: Surface, marker: &str, stream: bool) -> Value {
    json!({
        "model": vendor.model(), "input": format!("[[sim {marker}]] hello"), "stream": stream, "max_output_tokens": 500,
    })
}

fn post(key: &str, body: &Value) -> Request {
    Request::post(PATH, body.to_string()).bearer(key)
}

/// The events of a stream. Checks that each event's name is its type, and that the sequence numbers
/// have no gap.
pub fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let each = |(number, frame): (usize, &str)| {
        let (name, data) = frame.split_once('\n').unwrap_or_else(|| panic!("{frame}"));
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            name.strip_prefix("event: "),
            event["type"].as_str(),
            "{text}"
        );
        assert_eq!(event["sequence_number"], number, "{text}");
        event
    };
    text.split_terminator("\n\n")
        .enumerate()
        .map(each)
        .collect()
}

pub fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect()
}

#[test]
fn every_model_answers_streamed_and_whole_and_is_debited_once() {
    let (world, account) = World::with_account();
    let mut balance = 300_000_000;
    let mut count = 0;
    for vendor in BOTH {
        for streamed in [false, true] {
            let marker = "text=\"Grüße, 世界\" input=1001 cache_read=2003 write_5m=307 output=99";
            let answer = world.expect(200, &post(&account.key, &body(vendor, marker, streamed)));
            assert_eq!(answer.header("x-gateway-warnings"), None);
            let response = if streamed {
                let events = events(&answer);
                let last = events.last().unwrap();
                assert_eq!(
                    kinds(&events)[..2],
                    ["response.created", "response.in_progress"]
                );
                assert_eq!(last["type"], "response.completed");
                last["response"].clone()
            } else {
                answer.json()
            };
            assert_eq!(
                (&response["status"], &response["model"]),
                (&json!("completed"), &json!(vendor.model()))
            );
            assert_eq!(response["output"][0]["content"][0]["text"], "Grüße, 世界");
            assert!(
                !answer.text().contains(vendor.upstream_model()),
                "{}",
                answer.text()
            );
            let usage = &response["usage"];
            assert_eq!(
                (&usage["input_tokens"], &usage["output_tokens"]),
                (&json!(1_001 + 2_003 + 307), &json!(99))
            );
            assert_eq!(usage["input_tokens_details"]["cached_tokens"], 2_003);
            let exact = match vendor {
                Messages => (1_001 * 100 + 2_003 * 10 + 307 * 125 + 99 * 500) * 1_000,
                Chat => (1_001 * 175 + 307 * 175 + 99 * 1_400) * 1_000 + 2_003 * 17_500,
            };
            let cost = (exact + 999) / 1_000;
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                micro(&receipt["credits"]),
                cost,
                "{vendor:?} {streamed}: {receipt}"
            );
            assert_eq!(
                (&receipt["surface"], &receipt["model"]),
                (&json!("responses"), &json!(vendor.model()))
            );
            balance -= cost;
            count += 1;
            assert_eq!(
                (
                    world.standing(&account).balance,
                    world.endings(&account).len()
                ),
                (balance, count)
            );
        }
    }
    assert_eq!(world.standing(&account).held, 0);
    assert!(world.metric("gateway_requests_total", &["surface=\"responses\""]) >= 4.0);
}

#[test]
fn a_tool_is_called_and_what_it_gave_goes_on() {
    let (world, account) = World::with_account();
    for vendor in BOTH {
        let tools = json!([
            {"type": "namespace", "name": "files", "tools": [
                {"type": "function", "name": "list", "parameters": {"type": "object", "properties": {"dir": {"type": "string"}}}},
            ]},
            {"type": "web_search", "external_web_access": false},
        ]);
        let mut first = body(vendor, "tool=files__list args={\"dir\":\"a\"}", true);
        first["tools"] = tools.clone();
        let answer = world.ask(&post(&account.key, &first));
        answer.has_header("x-gateway-warnings", "dropped:tools[1]");
        let events = events(&answer);
        let output = events.last().unwrap()["response"]["output"].clone();
        let call = output
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["type"] == "function_call");
        let call = call.unwrap_or_else(|| panic!("{vendor:?}: {}", answer.text()));
        assert_eq!(
            (&call["name"], &call["namespace"]),
            (&json!("list"), &json!("files")),
            "{call}"
        );
        let mut input = vec![json!({"role": "user", "content": "hello"})];
        input.extend(output.as_array().unwrap().iter().cloned());
        input.push(
            json!({"type": "function_call_output", "call_id": call["call_id"], "output": "a.rs"}),
        );
        let second =
            json!({"model": vendor.model(), "input": input, "tools": tools, "store": false});
        let answer = world.expect(200, &post(&account.key, &second));
        assert_eq!(answer.json()["status"], "completed");
        let sent = world.vendor.last()["body"].as_str().unwrap().to_owned();
        assert!(
            sent.contains("files__list") && sent.contains("a.rs"),
            "{sent}"
        );
    }
    world.ended(&account, 4);
}

#[test]
fn tokens_are_counted_for_nothing_and_other_paths_are_unknown() {
    let (world, account) = World::with_account();
    for vendor in BOTH {
        let answer = world
            .ask(&Request::post(COUNT, body(vendor, "", false).to_string()).bearer(&account.key));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let told = answer.json();
        assert_eq!(told["object"], "response.input_tokens");
        assert!(told["input_tokens"].as_u64().unwrap() > 3, "{told}");
    }
    for path in [
        "/v1/responses/resp_1",
        "/v1/responses/compact",
        "/v1/responses/resp_1/input_items",
        "/v1/conversations",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = world.ask(&Request::new(method, path).bearer(&account.key));
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
    assert_eq!(
        (world.vendor.calls(), world.endings(&account).len()),
        (0, 0)
    );
}

#[test]
fn what_is_kept_nowhere_is_refused_before_any_credit_is_asked_for() {
    let world = World::new();
    // Enough for the cheapest possible request. With less, the gateway refuses the account after
    // reading the request's header.
    let poor = world.funded(1_000);
    for (member, value, code) in [
        (
            "previous_response_id",
            json!("resp_1"),
            "previous_response_not_found",
        ),
        ("conversation", json!("conv_1"), "unsupported_parameter"),
    ] {
        let mut request = body(Messages, "", false);
        request[member] = value;
        let answer = world.ask(&post(&poor.key, &request));
        let error = Chat.failure(&answer, 400, "invalid_request_error", Some(code));
        assert_eq!(error["param"], member);
    }
    let answer = world.expect(402, &post(&poor.key, &body(Messages, "", false)));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let answer = world.ask(&post("gw_wrong", &body(Messages, "", false)));
    Chat.failure(
        &answer,
        401,
        "invalid_request_error",
        Some("invalid_api_key"),
    );
    let mut unknown = body(Messages, "", false);
    unknown["model"] = json!("nobody");
    Chat.failure(
        &world.ask(&post(&poor.key, &unknown)),
        404,
        "invalid_request_error",
        Some("model_not_found"),
    );
    let mut strict = body(Chat, "", false);
    strict["store"] = json!(true);
    let answer = world.ask(&post(&poor.key, &strict).header("x-gateway-strict", "true"));
    let error = Chat.failure(&answer, 400, "invalid_request_error", None);
    assert_eq!(error["message"], "Strict mode: dropped:store");
    assert_eq!(world.vendor.calls(), 0);
}

#[test]
fn a_failure_has_the_word_that_agents_stop_at_and_a_broken_stream_both_its_ends() {
    // The first events must come in this time too.
    let (world, account) = Plan::default()
        .limit("attempts", 1)
        .limit("idle_seconds", 4)
        .with_account();
    for vendor in BOTH {
        let overloaded =
            "error_event=0 status=529 error_type=overloaded_error error_code=overloaded";
        let answer = world.ask(&post(&account.key, &body(vendor, overloaded, true)));
        Chat.failure(&answer, 503, "server_error", Some("server_is_overloaded"));
        is_free(&world, &account, &answer);
        for (marker, code) in [
            (
                "events=8 error_event=5 error_type=overloaded_error error_code=overloaded",
                "server_is_overloaded",
            ),
            ("events=8 cut=5", "server_error"),
            ("events=8 nofinish=1", "server_error"),
            ("events=8 hang=5", "server_error"),
        ] {
            let answer = world.ask(&post(&account.key, &body(vendor, marker, true)));
            let events = events(&answer);
            let kinds = kinds(&events);
            assert!(
                kinds.ends_with(&["error", "response.failed"]),
                "{marker}: {kinds:?}"
            );
            assert_eq!(
                kinds
                    .iter()
                    .filter(|kind| kind.contains("output_item.done"))
                    .count(),
                0,
                "{marker}: {kinds:?}"
            );
            let failed = &events.last().unwrap()["response"];
            assert_eq!(
                (&failed["status"], &failed["error"]["code"]),
                (&json!("failed"), &json!(code)),
                "{marker}"
            );
            assert_eq!(failed["id"], events[0]["response"]["id"]);
            assert_eq!(
                is_free(&world, &account, &answer)["outcome"],
                "vendor_cut",
                "{vendor:?} {marker}"
            );
        }
    }
}

/// Asserts that the stream is one complete response with keep-alive events. `events` checks that
/// the sequence numbers have no gap.
#[track_caller]
pub fn was_kept_waiting(answer: &Answer, marker: &str) {
    let events = events(answer);
    let kinds = kinds(&events);
    assert!(kinds.contains(&"keepalive"), "{marker}: {kinds:?}");
    assert_eq!(
        kinds[..2],
        ["response.created", "response.in_progress"],
        "{marker}"
    );
    let created = kinds.iter().filter(|kind| **kind == "response.created");
    assert_eq!(created.count(), 1, "{marker}: {kinds:?}");
    let end = events.last().unwrap();
    assert_eq!(end["type"], "response.completed", "{marker}: {kinds:?}");
    assert_eq!(events[0]["response"]["id"], end["response"]["id"]);
}

#[test]
fn a_waiting_client_hears_numbered_events_and_the_response_that_began() {
    let (world, account) = Plan::default()
        .limit("stream_keep_alive_seconds", 1)
        .with_account();
    let check = |vendor: Surface, marker: &str| {
        let answer = world.ask(&post(&account.key, &body(vendor, marker, true)));
        was_kept_waiting(&answer, marker);
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(micro(&receipt["credits"]), vendor.cost(10, 5), "{receipt}");
    };
    // The requests wait beside one another.
    std::thread::scope(|scope| {
        let check = &check;
        for vendor in BOTH {
            scope.spawn(move || check(vendor, "events=1 gap_ms=2600 input=10 output=5"));
            scope.spawn(move || check(vendor, "events=2 first_ms=4600 input=10 output=5"));
        }
    });
}

#[test]
fn under_an_idempotency_key_the_same_bytes_come_again_and_cost_nothing() {
    let (world, account) = Plan::default()
        .limit("stream_keep_alive_seconds", 1)
        .with_account();
    for (number, vendor) in BOTH.into_iter().enumerate() {
        // The vendor is silent long enough for a keep-alive. Keep-alives are not part of the
        // answer.
        let request = body(vendor, "events=2 first_ms=4600 input=10 output=5", true);
        let key = format!("key-{number}");
        let ask = || world.ask(&post(&account.key, &request).header("idempotency-key", &key));
        let first = ask();
        let again = ask();
        let said = first.text().replace(": ping\n\n", "");
        assert_eq!(again.text(), said);
        assert_eq!(again.header("x-gateway-replayed"), Some("true"));
        assert_eq!(events(&again).last().unwrap()["type"], "response.completed");
        // The one debit of the first request is in the ledger.
        assert_eq!(
            world.receipt(&account, &first.request_id())["outcome"],
            "completed"
        );
        world.ended(&account, number + 1);
    }
}

#[test]
fn a_client_that_leaves_pays_for_what_was_generated() {
    let (world, account) = Plan::default()
        .limit("drain_after_client_seconds", 600)
        .with_account();
    for (index, vendor) in BOTH.into_iter().enumerate() {
        let marker = "text=\"one two three four five six\" events=6 gap_ms=400 input=200 output=70";
        let (mut connection, mut answer) =
            world.begin(&post(&account.key, &body(vendor, marker, true)));
        while answer.text().matches("output_text.delta").count() < 2 {
            assert!(connection.more(&mut answer), "{}", answer.text());
        }
        drop(connection);
        let ending = world.ended(&account, index + 1);
        assert_eq!(ending["outcome"], "client_left", "{ending}");
        let receipt = world.receipt(&account, ending["request_id"].as_str().unwrap());
        assert_eq!(
            micro(&receipt["credits"]),
            vendor.cost(200, 70),
            "{receipt}"
        );
    }
}
