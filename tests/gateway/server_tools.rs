//! Tests server tools, regions and speeds. Each has a price key, and 0 is a valid price. The
//! gateway bills what the vendor reports, with one line of the receipt for each.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::prices::{line, receipt};
use crate::responses::{events, kinds};
use crate::scripted::{self, Scripted, Step};
use crate::surface::{Chat, Messages};
use crate::world::{Plan, World};
use serde_json::{Value, json};

const HAIKU: &str = r#"output: "500"}"#;

/// The content of a vendor's answer: three texts, a search, two code executions and a call of an
/// MCP tool.
fn content() -> Value {
    let ran = |id: &str| {
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": id,
            "content": {"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}})
    };
    json!([
        {"type": "text", "text": "I look. "},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "ada \"lovelace\""}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
            {"type": "web_search_result", "url": "https://a.example/x", "title": "Ada", "encrypted_content": "Eq", "page_age": null}]},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {"command": "1"}},
        ran("srvtoolu_2"),
        ran("srvtoolu_3"),
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "look", "server_name": "x", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": false, "content": []},
        {"type": "text", "text": "She was born in 1815.", "citations": [
            {"type": "web_search_result_location", "url": "https://a.example/x", "title": "Ada",
                "cited_text": "1815", "encrypted_index": "Eo"}]},
    ])
}

fn usage(more: &Value) -> Value {
    let mut usage = json!({"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": 10, "service_tier": "standard"});
    usage
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    usage
}

/// A vendor that reports this usage in addition to its tokens, in a whole or a streamed answer.
fn vendor(stream: bool, reported: &Value) -> Scripted {
    let message = |content: Value, stop: Value, usage: Value| {
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5-20251001",
            "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage})
    };
    if !stream {
        let whole = message(content(), json!("end_turn"), usage(reported));
        return Scripted::start(scripted::json(200, &whole.to_string()));
    }
    let event = |data: Value| {
        format!(
            "event: {}\ndata: {data}\n\n",
            data["type"].as_str().unwrap()
        )
    };
    let mut events = vec![event(
        json!({"type": "message_start", "message": message(json!([]), Value::Null, usage(&json!({"output_tokens": 1})))}),
    )];
    for (index, block) in content().as_array().unwrap().iter().enumerate() {
        let (mut begun, mut deltas) = (block.clone(), Vec::new());
        let input = begun.get("input").map(Value::to_string);
        if let Some(input) = input {
            begun["input"] = json!({});
            let (one, other) = input.split_at(input.len() / 2);
            let piece = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
            deltas.extend([piece(one), piece(other)]);
        } else if let Some(text) = begun.get("text").cloned() {
            begun["text"] = "".into();
            begun.as_object_mut().unwrap().remove("citations");
            deltas.push(json!({"type": "text_delta", "text": text}));
            let cited = block["citations"].as_array().into_iter().flatten();
            deltas.extend(cited.map(|cited| json!({"type": "citations_delta", "citation": cited})));
        }
        events.push(event(
            json!({"type": "content_block_start", "index": index, "content_block": begun}),
        ));
        let deltas = deltas
            .iter()
            .map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta}));
        events.extend(deltas.map(event));
        events.push(event(json!({"type": "content_block_stop", "index": index})));
    }
    let delta = json!({"stop_reason": "end_turn", "stop_sequence": null});
    events.push(event(
        json!({"type": "message_delta", "delta": delta, "usage": usage(reported)}),
    ));
    events.push(event(json!({"type": "message_stop"})));
    let pieces = events.iter().map(|event| scripted::piece(event));
    let steps: Vec<Step> = std::iter::once(scripted::stream_head())
        .chain(pieces)
        .chain([scripted::stream_end()])
        .collect();
    Scripted::start(steps)
}

fn world(vendor: &Scripted, prices: &str) -> World {
    let prices = format!("output: \"500\", {prices}}}");
    Plan::default()
        .endpoints(&[vendor.port])
        .edit(HAIKU, &prices)
        .start()
}

#[track_caller]
fn unpriced(answer: &Answer, member: &str) {
    let error = Messages.failure(
        answer,
        400,
        "invalid_request_error",
        Some("unpriced_feature"),
    );
    assert!(
        error["message"].as_str().unwrap().contains(member),
        "{error}"
    );
}

#[test]
fn each_use_of_a_server_tool_is_a_line_of_the_receipt_and_zero_is_a_price() {
    let reported = json!({"server_tool_use":
        {"web_search_requests": 2, "web_fetch_requests": 3, "tool_search_requests": 1}});
    for stream in [false, true] {
        let vendor = vendor(stream, &reported);
        let prices = r#"web_search: "1000", web_fetch: "0", code_execution: "2000", tool_search: "0", mcp: "500""#;
        let world = world(&vendor, prices);
        let account = world.account();
        let mut body = Messages.body("", stream, 500);
        body["tools"] = json!([
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 3},
            {"type": "code_execution_20250825", "name": "code_execution"},
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            {"type": "mcp_toolset", "mcp_server_name": "x"},
        ]);
        body["mcp_servers"] = json!([{"type": "url", "url": "https://mcp.example/x", "name": "x"}]);
        let receipt = receipt(
            &world,
            &account,
            &world.ask(&Messages.request(&account.key, &body)),
        );
        for (tool, uses, price, credits) in [
            ("web_search", 2, "1000", "2"),
            ("web_fetch", 3, "0", "0"),
            // The vendor does not count these uses, so the gateway counts the results.
            ("code_execution", 2, "2000", "4"),
            ("tool_search", 1, "0", "0"),
            ("mcp", 1, "500", "0.5"),
        ] {
            let line = line(&receipt, tool);
            assert_eq!(
                (&line["uses"], &line["price"], &line["credits"]),
                (&json!(uses), &json!(price), &json!(credits))
            );
            let labels = [Messages.model(), &format!("tool=\"{tool}\"")];
            assert_eq!(
                world.metric("gateway_server_tool_uses_total", &labels),
                f64::from(uses),
                "{tool}"
            );
        }
        assert_eq!(
            micro(&receipt["credits"]),
            Messages.cost(100, 10) + 6_500_000,
            "{receipt}"
        );
        assert_eq!((world.standing(&account).held, vendor.calls()), (0, 1));
    }
}

#[test]
fn a_server_tool_without_a_price_is_refused_and_never_reaches_the_vendor() {
    let vendor = vendor(false, &json!({}));
    let world = world(&vendor, r#"web_fetch: "0""#);
    let account = world.account();
    for (member, value) in [
        (
            "tools",
            json!([{"type": "web_search_20250305", "name": "web_search"}]),
        ),
        (
            "tools",
            json!([{"type": "code_execution_20250825", "name": "code_execution"}]),
        ),
        (
            "tools",
            json!([{"type": "tool_search_tool_bm25", "name": "t"}]),
        ),
        (
            "mcp_servers",
            json!([{"type": "url", "url": "https://mcp.example/x", "name": "x"}]),
        ),
        (
            "container",
            json!({"skills": [{"type": "anthropic", "skill_id": "pdf"}]}),
        ),
        ("inference_geo", json!("us")),
        ("speed", json!("fast")),
    ] {
        let mut body = Messages.body("", false, 500);
        body[member] = value;
        let named = if matches!(member, "inference_geo" | "speed") {
            member
        } else {
            "tools"
        };
        unpriced(&world.ask(&Messages.request(&account.key, &body)), named);
    }
    assert_eq!((vendor.calls(), world.endings(&account).len()), (0, 0));
}

#[test]
fn a_region_and_a_speed_multiply_tokens_as_the_vendor_reports_them() {
    for (asked, reported, factor) in [
        (
            json!({"inference_geo": "us"}),
            json!({"inference_geo": "us"}),
            Some("1.1"),
        ),
        // If the request names no region, the vendor's own setting applies.
        (json!({}), json!({"inference_geo": "us"}), Some("1.1")),
        (json!({}), json!({"inference_geo": "not_available"}), None),
        (json!({"inference_geo": "us"}), json!({}), Some("1.1")),
        // The gateway never bills more than what the request asked for.
        (
            json!({"inference_geo": "global"}),
            json!({"inference_geo": "us"}),
            None,
        ),
        (
            json!({"speed": "fast"}),
            json!({"speed": "fast", "inference_geo": "us"}),
            Some("6.6"),
        ),
        (
            json!({"speed": "fast"}),
            json!({"speed": "standard", "inference_geo": "global"}),
            None,
        ),
        (json!({}), json!({"speed": "fast"}), None),
    ] {
        let vendor = vendor(false, &reported);
        let world = world(&vendor, r#"inference_geo: {us: "1.1"}, speed: {fast: "6"}"#);
        let account = world.account();
        let mut body = Messages.body("", false, 500);
        body.as_object_mut()
            .unwrap()
            .extend(asked.as_object().unwrap().clone());
        let receipt = receipt(
            &world,
            &account,
            &world.ask(&Messages.request(&account.key, &body)),
        );
        let times = factor.map_or(100, |factor| {
            (factor.parse::<f64>().unwrap() * 100.0).round() as i64
        });
        assert_eq!(
            micro(&receipt["credits"]),
            Messages.cost(100, 10) * times / 100,
            "{asked} {reported}: {receipt}"
        );
        let billed = line(&receipt, "output")
            .get("factor")
            .and_then(Value::as_str);
        assert_eq!(billed, factor, "{asked} {reported}: {receipt}");
    }
}

#[test]
fn a_responses_client_searches_at_a_messages_vendor_where_that_is_priced() {
    let reported = json!({"server_tool_use": {"web_search_requests": 1}});
    for stream in [false, true] {
        let vendor = vendor(stream, &reported);
        let world = world(&vendor, r#"web_search: "1000""#);
        let account = world.account();
        let body = json!({"model": Messages.model(), "input": "when was she born?", "stream": stream,
            "max_output_tokens": 500, "tool_choice": "auto", "tools": [{"type": "web_search"}]});
        let answer =
            world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
        assert_eq!(
            (answer.status, answer.header("x-gateway-warnings")),
            (200, None),
            "{}",
            answer.text()
        );
        let response = if stream {
            let events = events(&answer);
            let kinds = kinds(&events);
            let at = kinds
                .iter()
                .position(|kind| *kind == "response.web_search_call.in_progress")
                .unwrap();
            let search = [
                "response.web_search_call.searching",
                "response.web_search_call.completed",
            ];
            assert_eq!(kinds[at - 1], "response.output_item.added");
            assert_eq!(
                (&kinds[at + 1..at + 3], kinds[at + 3]),
                (&search[..], "response.output_item.done")
            );
            assert!(
                events[at..at + 4]
                    .iter()
                    .all(|event| event["output_index"] == 1),
                "{}",
                answer.text()
            );
            assert_eq!(
                events[at + 3]["item"],
                events.last().unwrap()["response"]["output"][1]
            );
            assert!(
                kinds.contains(&"response.output_text.annotation.added"),
                "{kinds:?}"
            );
            events.last().unwrap()["response"].clone()
        } else {
            answer.json()
        };
        let output = response["output"].as_array().unwrap();
        let types: Vec<_> = output
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            types,
            ["message", "web_search_call", "message"],
            "{response}"
        );
        let (query, status) = (json!("ada \"lovelace\""), json!("completed"));
        let action = json!({"type": "search", "query": query, "queries": [query]});
        assert_eq!(
            (&output[1]["action"], &output[1]["status"]),
            (&action, &status)
        );
        assert!(output[1]["id"].as_str().unwrap().starts_with("ws_"));
        let cited = &output[2]["content"][0]["annotations"][0];
        assert_eq!(
            (&cited["type"], &cited["url"]),
            (&json!("url_citation"), &json!("https://a.example/x"))
        );
        let receipt = receipt(&world, &account, &answer);
        assert_eq!(line(&receipt, "web_search")["uses"], 1);
        assert_eq!(
            micro(&receipt["credits"]),
            Messages.cost(100, 10) + 1_000_000,
            "{receipt}"
        );
    }
}

/// A search tool without a price is left out of a responses request with a warning: clients of that
/// protocol offer the tool with every request. A chat request that asks for a search is refused.
#[test]
fn a_search_that_is_not_sold_is_left_out_of_a_responses_request() {
    let vendor = vendor(false, &json!({}));
    let world = world(&vendor, r#"web_fetch: "0""#);
    let account = world.account();
    let tools = json!([{"type": "web_search"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let body =
        json!({"model": Messages.model(), "input": "hi", "max_output_tokens": 500, "tools": tools});
    let answer = world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
    answer.has_header("x-gateway-warnings", "dropped:tools[0]");
    let mut chat = Chat.body("", false, 500);
    chat["model"] = Messages.model().into();
    chat["web_search_options"] = json!({});
    world.expect(400, &Chat.request(&account.key, &chat));
    assert_eq!(vendor.calls(), 1);
}
