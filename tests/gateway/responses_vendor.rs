//! Tests vendors that speak the responses protocol, used from the chat and messages surfaces:
//! agents whose model reasons between tool calls, over several turns.
//!
//! The test vectors check the content of translated bodies. The simulated vendor refuses reasoning
//! that it did not make, that was altered, or that is not followed by the item it led to. So a turn
//! that the vendor answers was translated correctly.

use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::{Value, json};

const GRANT: i64 = 300_000_000;
const MODEL: &str = "beta-5.5";
/// Price per token, in µc: input and output.
const PRICES: (i64, i64) = (500, 3_000);
const DOOR: &str = "    upstream_model: gpt-5.5\n";

/// Makes the vendor answer with a reasoning block of two parts, a text, and a tool call. After the
/// tool's result it answers with a text that repeats the result.
const STEP: &str = r#"[[sim input=1001 output=99 blocks=[{"thinking":"Größe?\n\nFirst \"look\"."},{"text":"Looking."},{"tool":"look","args":{"at":"ü"}}]]] Go on."#;

/// A world whose newest chat model is served over the responses protocol as well.
fn with_both() -> World {
    Plan::default()
        .edit(
            DOOR,
            "    upstream_model: gpt-5.5\n    upstream_protocol: responses\n",
        )
        .start()
}

/// A world whose second vendor speaks only the responses protocol.
fn with_responses_alone() -> World {
    Plan::default()
        .edit("    protocol: chat\n", "    protocol: responses\n")
        .start()
}

/// An agent's conversation on one of the surfaces.
struct Agent {
    surface: Surface,
    key: String,
    model: String,
    streams: bool,
    turns: Vec<Value>,
}

impl Agent {
    fn new(surface: Surface, key: &str, streams: bool) -> Self {
        Self {
            surface,
            key: key.to_owned(),
            model: MODEL.to_owned(),
            streams,
            turns: Vec::new(),
        }
    }

    fn says(&mut self, text: &str) {
        self.turns.push(json!({"role": "user", "content": text}));
    }

    fn request(&self) -> Request {
        let schema = json!({"type": "object", "properties": {"at": {"type": "string"}}});
        let (tool, limit) = match self.surface {
            Chat => {
                let function =
                    json!({"name": "look", "description": "Looks.", "parameters": schema});
                (
                    json!({"type": "function", "function": function}),
                    "max_completion_tokens",
                )
            }
            Messages => (
                json!({"name": "look", "description": "Looks.", "input_schema": schema}),
                "max_tokens",
            ),
        };
        let mut body = json!({"model": self.model, "stream": self.streams, "messages": self.turns, "tools": [tool]});
        body[limit] = 4_000.into();
        match self.surface {
            Chat => body["reasoning"] = json!({"effort": "high"}),
            Messages => {
                body["system"] = "Be brief.".into();
                body["thinking"] = json!({"type": "adaptive"});
                body["output_config"] = json!({"effort": "high"});
            }
        }
        self.surface.request(&self.key, &body)
    }

    /// Sends the conversation, stores the answer as a client of that surface does, and returns it.
    fn asks(&mut self, world: &World) -> Answer {
        let answer = world.expect(200, &self.request());
        let turn = match (self.surface, self.streams) {
            (Chat, false) => answer.json()["choices"][0]["message"].clone(),
            (Messages, false) => json!({"role": "assistant", "content": answer.json()["content"]}),
            (Chat, true) => folded_chat(&answer),
            (Messages, true) => json!({"role": "assistant", "content": folded_messages(&answer)}),
        };
        self.turns.push(turn);
        answer
    }

    /// Adds `text` as the result of every tool call of the last turn.
    fn gives(&mut self, text: &str) {
        let last = self.turns.last().unwrap().clone();
        match self.surface {
            Chat => {
                for call in list(&last["tool_calls"]) {
                    self.turns
                        .push(json!({"role": "tool", "tool_call_id": call["id"], "content": text}));
                }
            }
            Messages => {
                let calls = list(&last["content"])
                    .iter()
                    .filter(|block| block["type"] == "tool_use");
                let results =
                    calls.map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": text}));
                self.turns
                    .push(json!({"role": "user", "content": results.collect::<Vec<_>>()}));
            }
        }
    }

    /// The text of the last answer.
    fn heard(&self) -> String {
        let last = self.turns.last().unwrap();
        match self.surface {
            Chat => last["content"].as_str().unwrap_or_default().to_owned(),
            Messages => list(&last["content"])
                .iter()
                .filter_map(|block| block["text"].as_str())
                .collect::<Vec<_>>()
                .concat(),
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok())
        .collect()
}

/// The message that a chat client builds from a stream.
fn folded_chat(answer: &Answer) -> Value {
    assert!(Chat.is_complete(answer), "{}", answer.text());
    let (mut content, mut reasoning, mut calls) =
        (String::new(), String::new(), Vec::<Value>::new());
    let mut details = Value::Null;
    for event in events(answer) {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        if delta["reasoning_details"].is_array() {
            assert!(details.is_null(), "told twice: {}", answer.text());
            details = delta["reasoning_details"].clone();
        }
        for call in list(&delta["tool_calls"]) {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                calls.push(json!({"id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}}));
            }
            let arguments = calls[index]["function"]["arguments"]
                .as_str()
                .unwrap()
                .to_owned();
            calls[index]["function"]["arguments"] =
                (arguments + call["function"]["arguments"].as_str().unwrap_or_default()).into();
        }
    }
    let mut message =
        json!({"role": "assistant", "content": content, "reasoning_content": reasoning});
    if !details.is_null() {
        message["reasoning_details"] = details;
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// The content blocks that a messages client builds from a stream.
fn folded_messages(answer: &Answer) -> Vec<Value> {
    assert!(Messages.is_complete(answer), "{}", answer.text());
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    for event in events(answer) {
        let index = usize::try_from(event["index"].as_u64().unwrap_or_default()).unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                inputs[index].push_str(delta["partial_json"].as_str().unwrap_or_default());
                for member in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[member].as_str() {
                        blocks[index][member] =
                            format!("{}{more}", blocks[index][member].as_str().unwrap()).into();
                    }
                }
            }
            "content_block_stop" if !inputs[index].is_empty() => {
                blocks[index]["input"] = serde_json::from_str(&inputs[index]).unwrap();
            }
            _ => {}
        }
    }
    blocks
}

/// The body that the vendor received last, and the kinds of the items in its conversation.
fn sent(world: &World) -> (Value, Vec<String>) {
    let last = world.vendor.last();
    assert_eq!(last["path"], "/v1/responses");
    let body: Value = serde_json::from_str(last["body"].as_str().unwrap()).unwrap();
    let kinds = list(&body["input"])
        .iter()
        .map(|item| match item["type"].as_str().unwrap() {
            "message" => item["role"].as_str().unwrap().to_owned(),
            kind => kind.to_owned(),
        });
    let kinds = kinds.collect();
    (body, kinds)
}

#[test]
fn an_agent_reasons_through_its_calls_on_either_surface() {
    for world in [with_both(), with_responses_alone()] {
        let account = world.account();
        let mut balance = GRANT;
        for (surface, streams) in BOTH
            .into_iter()
            .flat_map(|surface| [(surface, false), (surface, true)])
        {
            let case = format!("{surface:?} {streams}");
            let mut agent = Agent::new(surface, &account.key, streams);
            let mut told = Vec::new();
            for step in 0..3 {
                if step != 1 {
                    agent.says(STEP);
                }
                let answer = agent.asks(&world);
                assert_eq!(answer.header("x-gateway-warnings"), None, "{case} {step}");
                balance -= 1_001 * PRICES.0 + 99 * PRICES.1;
                assert_eq!(
                    world.standing(&account).balance,
                    balance,
                    "{case} {step}: debited once"
                );
                told.push(sent(&world));
                if step == 0 {
                    assert_eq!(agent.heard(), "Looking.", "{case}");
                    agent.gives("A door.");
                }
                if step == 1 {
                    assert_eq!(agent.heard(), "The tool said: A door.", "{case}");
                }
            }
            let (first, _) = &told[0];
            assert_eq!(
                (&first["store"], &first["include"]),
                (&json!(false), &json!(["reasoning.encrypted_content"]))
            );
            assert_eq!(
                first["reasoning"],
                json!({"effort": "high", "summary": "auto"}),
                "{case}"
            );
            let step = [
                "user",
                "reasoning",
                "assistant",
                "function_call",
                "function_call_output",
            ];
            let opening: &[&str] = if surface == Messages {
                &["developer"]
            } else {
                &[]
            };
            assert_eq!(told[1].1, [opening, &step].concat(), "{case}");
            assert_eq!(
                told[2].1,
                [opening, &step, &["assistant", "user"]].concat(),
                "{case}"
            );
            // The vendor gets its reasoning back byte for byte; otherwise its prompt cache would
            // not match.
            let thought = list(&told[2].0["input"])
                .iter()
                .find(|item| item["type"] == "reasoning")
                .unwrap();
            let summary = json!([{"type": "summary_text", "text": "Größe?"}, {"type": "summary_text", "text": "First \"look\"."}]);
            assert_eq!(thought["summary"], summary, "{case}");
            let items = list(&told[2].0["input"]);
            let phases: Vec<_> = items
                .iter()
                .filter_map(|item| item["phase"].as_str())
                .collect();
            assert_eq!(phases, ["commentary", "final_answer"], "{case}");
            assert_eq!(
                items[..told[1].1.len()],
                list(&told[1].0["input"])[..],
                "{case}: the same prefix"
            );
        }
        assert_eq!(world.vendor.calls(), 12);
        world.ended(&account, 12);
        world.close();
    }
}

/// The models of a conversation's turns, from one vendor to the other and back, and whether the
/// turn calls a tool.
const VISIT: [(&str, bool); 4] = [
    (MODEL, true),
    (MODEL, false),
    ("alpha-opus-4-7", true),
    (MODEL, false),
];

#[test]
fn a_conversation_goes_to_another_vendor_and_back() {
    let world = with_both();
    let account = world.account();
    for (surface, streams) in BOTH
        .into_iter()
        .flat_map(|surface| [(surface, false), (surface, true)])
    {
        let mut agent = Agent::new(surface, &account.key, streams);
        let mut paths = Vec::new();
        for (model, calls) in VISIT {
            agent.model = model.to_owned();
            if calls {
                agent.says(STEP);
            }
            agent.asks(&world);
            let wanted = if calls {
                "Looking."
            } else {
                "The tool said: A door."
            };
            assert_eq!(agent.heard(), wanted, "{surface:?} {streams} {model}");
            paths.push(world.vendor.last()["path"].as_str().unwrap().to_owned());
            if calls {
                agent.gives("A door.");
            }
        }
        assert_eq!(
            paths,
            [
                "/v1/responses",
                "/v1/responses",
                "/v1/messages",
                "/v1/responses"
            ]
        );
        let (_, kinds) = sent(&world);
        // The vendor got its own reasoning back, but not the other vendor's.
        assert_eq!(
            kinds.iter().filter(|kind| *kind == "reasoning").count(),
            1,
            "{surface:?} {streams}: {kinds:?}"
        );
    }
    assert_eq!(world.vendor.calls(), 16, "nobody was asked twice");
}

#[test]
fn reasoning_that_its_vendor_refuses_is_left_out_once_and_told() {
    let world = with_both();
    let account = world.account();
    for (surface, streams) in BOTH
        .into_iter()
        .flat_map(|surface| [(surface, false), (surface, true)])
    {
        let before = world.standing(&account).balance;
        let calls = world.vendor.calls();
        let mut agent = Agent::new(surface, &account.key, streams);
        agent.says(STEP);
        agent.asks(&world);
        agent.gives("A door.");
        agent.turns[1] = of_another_account(surface, &agent.turns[1]);
        let answer = agent.asks(&world);
        assert_eq!(agent.heard(), "The tool said: A door.");
        assert_eq!(
            answer.header("x-gateway-warnings"),
            Some("dropped:thinking"),
            "{surface:?}"
        );
        assert_eq!(
            world.vendor.calls(),
            calls + 3,
            "asked once more, and no more than once"
        );
        assert!(!sent(&world).1.contains(&"reasoning".to_owned()));
        assert_eq!(
            world.standing(&account).balance,
            before - 2 * (1_001 * PRICES.0 + 99 * PRICES.1)
        );
        // Strict mode accepts the loss of a reasoning token that the gateway itself put into the
        // history (on messages), and refuses any other loss.
        agent.turns.pop();
        let answer = world.ask(&agent.request().header("x-gateway-strict", "true"));
        let status = if surface == Messages { 200 } else { 400 };
        assert_eq!(
            (answer.status, answer.header("x-gateway-warnings")),
            (status, None),
            "{}",
            answer.text()
        );
    }
}

/// A turn whose reasoning was sealed for another account: it has the simulated vendor's format, but
/// does not verify.
fn of_another_account(surface: Surface, turn: &Value) -> Value {
    let mut turn = turn.clone();
    match surface {
        Chat => {
            let details = turn["reasoning_details"].as_array_mut().unwrap();
            let sealed = details
                .iter_mut()
                .find(|entry| entry["type"] == "reasoning.encrypted")
                .unwrap();
            sealed["data"] = altered(sealed["data"].as_str().unwrap()).into();
        }
        Messages => {
            use base64::Engine;
            let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
            let blocks = turn["content"].as_array_mut().unwrap();
            let block = blocks
                .iter_mut()
                .find(|block| block["type"] == "thinking")
                .unwrap();
            let packed = block["signature"]
                .as_str()
                .unwrap()
                .strip_prefix("gw1.r.")
                .unwrap();
            let mut carried: Value =
                serde_json::from_slice(&engine.decode(packed).unwrap()).unwrap();
            carried["e"] = altered(carried["e"].as_str().unwrap()).into();
            block["signature"] = format!("gw1.r.{}", engine.encode(carried.to_string())).into();
        }
    }
    turn
}

fn altered(sealed: &str) -> String {
    let (start, rest) = sealed.split_at(40);
    let (letter, rest) = rest.split_at(1);
    format!("{start}{}{rest}", if letter == "A" { "B" } else { "A" })
}

#[test]
fn a_request_goes_to_the_protocol_that_does_it_best() {
    let world = with_both();
    let account = world.account();
    let path = |surface: Surface, change: Value| {
        let mut agent = Agent::new(surface, &account.key, false);
        agent.says("[[sim text=ok]]");
        let request = agent.request();
        let mut body: Value = serde_json::from_slice(&request.framed_body()).unwrap();
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(body.as_object_mut().unwrap().remove(name)),
                value => body[name] = value.clone(),
            }
        }
        world.expect(200, &surface.request(&account.key, &body));
        world.vendor.last()["path"].as_str().unwrap().to_owned()
    };
    let called = json!([
        {"role": "user", "content": "[[sim text=ok]]"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"}
    ]);
    let (chat, responses) = ("/v1/chat/completions", "/v1/responses");
    for (surface, change, wanted) in [
        (Chat, json!({}), responses),
        (Chat, json!({"reasoning": null}), responses),
        (
            Chat,
            json!({"reasoning": null, "reasoning_effort": "none"}),
            chat,
        ),
        (Chat, json!({"tools": null, "reasoning": null}), chat),
        (
            Chat,
            json!({"tools": null, "reasoning": null, "messages": called}),
            responses,
        ),
        (Messages, json!({}), responses),
        (Messages, json!({"tools": null}), responses),
        (
            Messages,
            json!({"tools": null, "stop_sequences": ["END"]}),
            chat,
        ),
    ] {
        assert_eq!(
            path(surface, change.clone()),
            wanted,
            "{surface:?} {change}"
        );
    }
}

#[test]
fn a_failure_is_told_in_the_callers_words_and_costs_nothing() {
    let both = "    upstream_model: gpt-5.5\n    upstream_protocol: responses\n";
    let (world, account) = Plan::default()
        .limit("cool_down_max_seconds", 0)
        .edit(DOOR, both)
        .with_account();
    for surface in BOTH {
        let refused = |marker: &str, streams: bool| {
            let mut agent = Agent::new(surface, &account.key, streams);
            agent.says(&format!("[[sim {marker}]]"));
            world.ask(&agent.request())
        };
        for streams in [false, true] {
            let answer = refused("status=400 error_body=context", streams);
            assert_eq!(answer.status, 400);
            let words = if surface == Chat {
                "maximum context length"
            } else {
                "prompt is too long"
            };
            assert!(answer.text().contains(words), "{}", answer.text());
            let answer = refused("status=429 retry_after=0", streams);
            assert_eq!(answer.status, 429, "{}", answer.text());
            let answer = refused("finish=failed error_code=server_is_overloaded", streams);
            let wanted = if surface == Chat { 503 } else { 529 };
            let is_told = answer.status == wanted || streams && answer.has(surface.error_frame());
            assert!(is_told, "{} {}", answer.status, answer.text());
        }
        for form in ["flat", "nested", "failed", "both"] {
            let answer = refused(
                &format!("error_event=8 error_form={form} text=abcdefgh events=8"),
                true,
            );
            assert!(
                answer.has(surface.error_frame()),
                "{form}: {}",
                answer.text()
            );
            assert!(!surface.is_complete(&answer), "{form}");
        }
        for cut in ["cut=6", "cut=6 end=clean", "nodone=1"] {
            let answer = refused(&format!("{cut} text=abcdefgh events=8"), true);
            assert!(!surface.is_complete(&answer), "{cut}: {}", answer.text());
        }
    }
    let standing = world.standing(&account);
    assert_eq!((standing.balance, standing.held), (GRANT, 0));
}

/// A request on the responses surface from an agent that keeps its own history.
fn responses(key: &str, model: &str, input: &[Value], streams: bool) -> Request {
    let schema = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    let body = json!({
        "model": model, "stream": streams, "store": false, "include": ["reasoning.encrypted_content"], "input": input,
        "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": schema, "strict": false}],
        "reasoning": {"effort": "high", "summary": "auto"}, "prompt_cache_key": "thread-1", "max_output_tokens": 4_000,
        "client_metadata": {"installation": "secret"}
    });
    Request::post("/v1/responses", body.to_string()).bearer(key)
}

fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

/// The completed output items of an answer.
fn output(answer: &Answer, streams: bool) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    if !streams {
        return list(&answer.json()["output"]).to_vec();
    }
    let events = events(answer);
    let last = events.last().unwrap();
    assert_eq!(
        (&events[0]["type"], &last["type"]),
        (&json!("response.created"), &json!("response.completed"))
    );
    let done = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done");
    let done: Vec<_> = done.map(|event| event["item"].clone()).collect();
    assert_eq!(list(&last["response"]["output"]), done);
    done
}

fn outputs_of(items: &[Value], text: &str) -> Vec<Value> {
    let calls = items.iter().filter(|item| item["type"] == "function_call");
    calls.map(|call| json!({"type": "function_call_output", "call_id": call["call_id"], "output": text})).collect()
}

#[test]
fn an_agent_of_the_same_protocol_is_passed_on_and_nothing_of_it_is_kept() {
    for world in [with_both(), with_responses_alone()] {
        let account = world.account();
        let mut balance = GRANT;
        for streams in [false, true] {
            let mut input = vec![user(STEP)];
            for step in 0..3 {
                let answer = world.ask(&responses(&account.key, MODEL, &input, streams));
                let items = output(&answer, streams);
                assert_eq!(answer.header("x-gateway-warnings"), None);
                assert!(
                    answer.text().contains(MODEL) && !answer.text().contains("gpt-5.5"),
                    "{}",
                    answer.text()
                );
                balance -= 1_001 * PRICES.0 + 99 * PRICES.1;
                assert_eq!(
                    world.standing(&account).balance,
                    balance,
                    "{streams} {step}: debited once"
                );
                let (body, _) = sent(&world);
                assert_eq!(list(&body["input"]), input, "{streams} {step}: as it came");
                assert_eq!(
                    (&body["store"], body.get("client_metadata")),
                    (&json!(false), None)
                );
                assert_ne!(body["prompt_cache_key"], "thread-1");
                assert!(body["safety_identifier"].is_string());
                let kinds: Vec<_> = items
                    .iter()
                    .map(|item| item["type"].as_str().unwrap())
                    .collect();
                let wanted: &[&str] = if step == 1 {
                    &["message"]
                } else {
                    &["reasoning", "message", "function_call"]
                };
                assert_eq!(kinds, wanted);
                input.extend(items.clone());
                input.extend(outputs_of(&items, "A door."));
                if step == 1 {
                    input.push(user(STEP));
                }
            }
        }
        assert_eq!(world.vendor.calls(), 6);
        world.ended(&account, 6);
        world.close();
    }
}

#[test]
fn a_passed_on_conversation_goes_to_another_vendor_and_back() {
    let world = with_both();
    let account = world.account();
    for streams in [false, true] {
        let mut input = Vec::new();
        let mut paths = Vec::new();
        for (model, calls) in VISIT {
            input.extend(calls.then(|| user(STEP)));
            let items = output(
                &world.ask(&responses(&account.key, model, &input, streams)),
                streams,
            );
            let kinds: Vec<_> = items
                .iter()
                .map(|item| item["type"].as_str().unwrap())
                .collect();
            let wanted: &[&str] = if calls {
                &["reasoning", "message", "function_call"]
            } else {
                &["message"]
            };
            assert_eq!(kinds, wanted, "{model}");
            paths.push(world.vendor.last()["path"].as_str().unwrap().to_owned());
            input.extend(items.clone());
            input.extend(outputs_of(&items, "A door."));
        }
        assert_eq!(
            paths,
            [
                "/v1/responses",
                "/v1/responses",
                "/v1/messages",
                "/v1/responses"
            ]
        );
        let (_, kinds) = sent(&world);
        assert_eq!(
            kinds.iter().filter(|kind| *kind == "reasoning").count(),
            1,
            "{kinds:?}"
        );
    }
    assert_eq!(world.vendor.calls(), 8, "nobody was asked twice");
}

#[test]
fn passed_on_reasoning_that_its_vendor_refuses_is_left_out_once_and_told() {
    let world = with_both();
    let account = world.account();
    for streams in [false, true] {
        let calls = world.vendor.calls();
        let mut input = vec![user(STEP)];
        let mut items = output(
            &world.ask(&responses(&account.key, MODEL, &input, streams)),
            streams,
        );
        items[0]["encrypted_content"] =
            altered(items[0]["encrypted_content"].as_str().unwrap()).into();
        input.extend(items.clone());
        input.extend(outputs_of(&items, "A door."));
        let answer = world.ask(&responses(&account.key, MODEL, &input, streams));
        assert_eq!(
            output(&answer, streams)[0]["content"][0]["text"],
            "The tool said: A door."
        );
        answer.has_header("x-gateway-warnings", "dropped:thinking");
        assert_eq!(world.vendor.calls(), calls + 3);
        assert!(!sent(&world).1.contains(&"reasoning".to_owned()));
    }
}

#[test]
fn a_passed_on_stream_that_fails_ends_as_the_response_that_it_was() {
    let world = with_both();
    let account = world.account();
    for marker in [
        "error_event=6",
        "error_event=6 error_form=failed",
        "cut=6",
        "nodone=1",
    ] {
        let input = [user(&format!("[[sim {marker} text=abcdefgh events=8]]"))];
        let answer = world.ask(&responses(&account.key, MODEL, &input, true));
        assert_eq!(answer.status, 200, "{marker}");
        let events = events(&answer);
        let kinds: Vec<_> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds[kinds.len() - 2..],
            ["error", "response.failed"],
            "{marker}: {kinds:?}"
        );
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number, "{marker}: {event}");
        }
        let last = &events.last().unwrap()["response"];
        assert_eq!(
            (&last["id"], &last["model"]),
            (&events[0]["response"]["id"], &json!(MODEL)),
            "{marker}"
        );
    }
    let standing = world.standing(&account);
    assert_eq!((standing.balance, standing.held), (GRANT, 0));
}

#[test]
fn a_server_that_knows_only_functions_gets_functions_and_its_caller_the_tools_that_they_were() {
    let few = "    upstream_model: gpt-5.5\n    capabilities: {functions_only: true}\n";
    let (world, account) = Plan::default()
        .edit("    protocol: chat\n", "    protocol: responses\n")
        .edit(DOOR, few)
        .with_account();
    let patch = "*** Begin Patch\n\"é\" \\d\n";
    let calls = json!([{"thinking": "Hm."}, {"text": "Looking."}, {"tool": "files__edit", "args": {"input": patch}}]);
    let marker = format!("[[sim input=1001 output=99 blocks={calls}]] Go on.");
    let mut balance = GRANT;
    for streams in [false, true] {
        let mut input = vec![user(&marker)];
        for step in 0..2 {
            let body = json!({
                "model": MODEL, "stream": streams, "store": false, "input": input, "max_output_tokens": 4_000,
                "reasoning": {"effort": "high", "summary": "auto"},
                "tools": [
                    {"type": "namespace", "name": "files", "tools": [{"type": "custom", "name": "edit"}]},
                    {"type": "local_shell"},
                ],
            });
            let answer =
                world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
            let items = output(&answer, streams);
            assert_eq!(
                answer.header("x-gateway-warnings"),
                None,
                "{streams} {step}"
            );
            balance -= 1_001 * PRICES.0 + 99 * PRICES.1;
            assert_eq!(
                world.standing(&account).balance,
                balance,
                "{streams} {step}: debited once"
            );
            let (body, kinds) = sent(&world);
            let tools: Vec<_> = list(&body["tools"])
                .iter()
                .map(|tool| (&tool["type"], &tool["name"]))
                .collect();
            let function = json!("function");
            assert_eq!(
                tools,
                [
                    (&function, &json!("files__edit")),
                    (&function, &json!("local_shell"))
                ]
            );
            let told: Vec<_> = items
                .iter()
                .map(|item| item["type"].as_str().unwrap())
                .collect();
            if step == 0 {
                assert_eq!(told, ["reasoning", "message", "custom_tool_call"]);
                let call = &items[2];
                assert_eq!(
                    (&call["namespace"], &call["name"], &call["input"]),
                    (&json!("files"), &json!("edit"), &json!(patch))
                );
                input.extend(items.clone());
                input.push(json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."}));
            } else {
                assert_eq!(
                    items[0]["content"][0]["text"], "The tool said: Done.",
                    "{streams}"
                );
                assert_eq!(
                    kinds,
                    [
                        "user",
                        "reasoning",
                        "assistant",
                        "function_call",
                        "function_call_output"
                    ]
                );
            }
        }
    }
    assert_eq!(
        world.vendor.calls(),
        4,
        "its own reasoning came back to it: nobody was asked twice"
    );
}

#[test]
fn what_is_kept_at_the_vendor_is_refused_before_anybody_is_asked() {
    let world = with_both();
    let account = world.account();
    let refused = |change: Value| {
        let request = responses(&account.key, MODEL, &[user("hi")], false);
        let mut body: Value = serde_json::from_slice(&request.framed_body()).unwrap();
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let answer =
            world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.json()["error"].clone()
    };
    let error = refused(json!({"previous_response_id": "resp_1"}));
    assert_eq!(
        (&error["code"], &error["param"]),
        (
            &json!("previous_response_not_found"),
            &json!("previous_response_id")
        )
    );
    assert_eq!(
        refused(json!({"conversation": "conv_1"}))["param"],
        "conversation"
    );
    assert_eq!(refused(json!({"background": true}))["param"], "background");
    assert_eq!(
        refused(json!({"tools": [{"type": "code_interpreter"}]}))["param"],
        "tools[0]"
    );
    assert_eq!(
        (world.vendor.calls(), world.standing(&account).held),
        (0, 0)
    );
}
