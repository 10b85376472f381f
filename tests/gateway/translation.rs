//! Tests each model through the surface of the other vendor, over HTTP: the gateway answers,
//! returns warnings about changes, and bills as on the model's own surface.
//!
//! The test vectors check the content of translated bodies. This file tests the rest.

use crate::account::{credits, micro};
use crate::client::Request;
use crate::failure::{STATUSES, broke_off, is_free};
use crate::surface::{BOTH, Chat, Messages, OVERLOADED, Surface, UPSTREAM_ERROR};
use crate::world::{Plan, SOON, Simulator, World, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

const GRANT: i64 = 300_000_000;

/// The surface of the vendor that answers.
fn vendor_of(surface: Surface) -> Surface {
    match surface {
        Chat => Messages,
        Messages => Chat,
    }
}

/// A request on this surface for a model of the other vendor.
fn over(surface: Surface, marker: &str, stream: bool, limit: u64) -> Value {
    let mut body = surface.body(marker, stream, limit);
    body["model"] = vendor_of(surface).model().into();
    body
}

fn whole(surface: Surface, key: &str, marker: &str) -> Request {
    surface.request(key, &over(surface, marker, false, 1_000))
}

fn stream(surface: Surface, key: &str, marker: &str) -> Request {
    surface.request(key, &over(surface, marker, true, 1_000))
}

/// The body that the vendor received last.
fn sent(world: &World) -> Value {
    serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap()
}

/// The text of a whole answer.
fn said(surface: Surface, answer: &Value) -> String {
    let text = match surface {
        Chat => &answer["choices"][0]["message"]["content"],
        Messages => &answer["content"][0]["text"],
    };
    text.as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_answer_costs_what_it_costs_in_its_own_protocol_streamed_or_not() {
    let (world, account) = World::with_account();
    let mut balance = GRANT;
    for surface in BOTH {
        let vendor = vendor_of(surface);
        for streamed in [false, true] {
            let marker = "text=\"Grüße, 世界\" input=1001 cache_read=2003 write_5m=307 output=99 reasoning=40";
            let answer =
                world.ask(&surface.request(&account.key, &over(surface, marker, streamed, 500)));
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-gateway-warnings"), None);
            let receipt = world.receipt(&account, &answer.request_id());
            // In thousandths of a µc.
            let exact = match vendor {
                Messages => (1_001 * 100 + 2_003 * 10 + 307 * 125 + 99 * 500) * 1_000,
                Chat => (1_001 * 175 + 307 * 175 + 99 * 1_400) * 1_000 + 2_003 * 17_500,
            };
            let cost = (exact + 999) / 1_000;
            assert_eq!(
                micro(&receipt["credits"]),
                cost,
                "{surface:?} {streamed}: {receipt}"
            );
            assert_eq!(
                receipt["surface"],
                if surface == Chat { "chat" } else { "messages" }
            );
            assert_eq!(receipt["model"], vendor.model());
            assert_eq!(receipt["estimated"], false);
            if streamed {
                assert!(surface.is_complete(&answer), "{}", answer.text());
                assert!(
                    !answer.text().contains(vendor.upstream_model()),
                    "{}",
                    answer.text()
                );
            } else {
                let body = answer.json();
                assert_eq!(said(surface, &body), "Grüße, 世界");
                assert_eq!(body["model"], vendor.model());
                assert_eq!(
                    answer.header("x-gateway-credits"),
                    receipt["credits"].as_str()
                );
                let usage = &body["usage"];
                match surface {
                    Chat => assert_eq!(
                        (
                            &usage["prompt_tokens"],
                            &usage["prompt_tokens_details"]["cached_tokens"]
                        ),
                        (&json!(1_001 + 2_003 + 307), &json!(2_003))
                    ),
                    Messages => assert_eq!(
                        (
                            &usage["input_tokens"],
                            &usage["cache_read_input_tokens"],
                            &usage["output_tokens"]
                        ),
                        (&json!(1_001), &json!(2_003), &json!(99))
                    ),
                }
            }
            balance -= cost;
            assert_eq!(world.standing(&account).balance, balance);
        }
    }
}

#[test]
fn the_vendor_gets_its_own_path_and_headers_and_nothing_of_the_client() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let request = whole(surface, &account.key, "input=1 output=1")
            .header("anthropic-version", "2099-01-01")
            .header("anthropic-beta", "context-1m-2025-08-07,something-new")
            .header("openai-organization", "org-of-the-client");
        world.expect(200, &request);
        let last = world.vendor.last();
        assert_eq!(last["path"], vendor_of(surface).path());
        let headers = last["headers"].to_string();
        for foreign in [
            account.key.as_str(),
            "2099-01-01",
            "something-new",
            "org-of-the-client",
            "user-agent\":\"test",
        ] {
            assert!(!headers.contains(foreign), "{foreign}: {headers}");
        }
        if surface == Chat {
            assert!(
                headers.contains("2023-06-01") && headers.contains("sim-alpha-key"),
                "{headers}"
            );
        } else {
            assert!(headers.contains("Bearer sim-beta-key"), "{headers}");
        }
    }
}

#[test]
fn what_was_changed_is_told_and_is_refused_to_who_is_strict() {
    let (world, account) = World::with_account();
    for (surface, member, value, warning) in [
        (Chat, "seed", json!(7), "dropped:seed"),
        (Messages, "top_k", json!(5), "dropped:top_k"),
    ] {
        for streamed in [false, true] {
            let mut body = over(surface, "input=1 output=1", streamed, 100);
            body[member] = value.clone();
            let answer = world.ask(&surface.request(&account.key, &body));
            assert_eq!(
                (answer.status, answer.header("x-gateway-warnings")),
                (200, Some(warning)),
                "{}",
                answer.text()
            );
            let calls = world.vendor.calls();
            let strict = surface
                .request(&account.key, &body)
                .header("x-gateway-strict", "true");
            let error = surface.failure(&world.ask(&strict), 400, "invalid_request_error", None);
            assert_eq!(error["message"], format!("Strict mode: {warning}"));
            assert_eq!(world.vendor.calls(), calls);
        }
    }
    assert_eq!(world.standing(&account).held, 0);
}

#[test]
fn what_cannot_be_translated_is_refused_before_any_credit_is_asked_for() {
    let world = World::new();
    // Enough for the request's header, but too little for any request. If the gateway checked the
    // credit first, it would answer 402.
    let account = world.funded(10_000);
    for (surface, member, value, path) in [
        (Chat, "n", json!(2), "n"),
        (Messages, "container", json!("c_1"), "container"),
    ] {
        let mut body = over(surface, "", false, 100);
        body[member] = value;
        let answer = world.ask(&surface.request(&account.key, &body));
        let error = world_error(surface, &answer);
        assert_eq!(answer.status, 400, "{error}");
        assert!(
            error["param"] == path || error["message"].as_str().unwrap().starts_with(path),
            "{error}"
        );
        world.expect(402, &whole(surface, &account.key, ""));
    }
    assert_eq!(world.vendor.calls(), 0);
}

fn world_error(surface: Surface, answer: &crate::client::Answer) -> Value {
    assert!(answer.header("x-request-id").is_some(), "{surface:?}");
    answer.json()["error"].clone()
}

#[test]
fn an_output_limit_is_lowered_in_the_vendors_words_and_told_in_the_callers() {
    let world = World::new();
    for surface in BOTH {
        let vendor = vendor_of(surface);
        let account = world.account_with(&format!("{surface:?}@example.test"), &["--no-trial"]);
        let body = over(surface, "input=10 output=10", false, 30_000);
        // Enough for the input (at most the body's bytes, at the highest price) and about a
        // thousand output tokens.
        let given = 1_000 * 200 + 1_000 * vendor.prices().1;
        world.grant(&account, &credits(given), &format!("{surface:?}"));
        world.expect(
            402,
            &surface
                .request(&account.key, &body)
                .header("x-gateway-strict", "true"),
        );
        let answer = world.expect(200, &surface.request(&account.key, &body));
        let warning = format!("clamped:{}", surface.limit_field());
        assert_eq!(answer.header("x-gateway-warnings"), Some(warning.as_str()));
        let limit = sent(&world)[vendor.limit_field()].as_u64().unwrap();
        assert!((256..2_000).contains(&limit), "{limit}");
        // If the client sets no limit, the gateway sets one and returns the warning.
        if surface == Chat {
            let mut body = body.clone();
            body.as_object_mut().unwrap().remove(surface.limit_field());
            let answer = world.ask(&surface.request(&account.key, &body));
            assert_eq!(
                answer.header("x-gateway-warnings"),
                Some(warning.as_str()),
                "{}",
                answer.text()
            );
        }
    }
}

#[test]
fn each_status_of_the_other_vendor_is_told_in_the_callers_words() {
    // One answer's retry-after must not affect the next request.
    let (world, account) = Plan::default()
        .limit("cool_down_max_seconds", 0)
        .with_account();
    for surface in BOTH {
        let mut connection = world.connect();
        for (marker, (chat, messages, code)) in STATUSES {
            for streamed in [false, true] {
                let marker = format!("status={marker}");
                let answer = connection
                    .ask(&surface.request(&account.key, &over(surface, &marker, streamed, 1_000)));
                surface.fails(&answer, chat, messages, code);
                assert!(
                    !answer.text().contains(vendor_of(surface).upstream_model()),
                    "{}",
                    answer.text()
                );
                is_free(&world, &account, &answer);
            }
        }
    }
}

#[test]
fn a_failure_before_the_first_event_has_a_status_and_one_inside_the_stream_a_frame() {
    let plan = || Plan::default().limit("attempts", 1);
    let (world, account) = plan().with_account();
    for surface in BOTH {
        let overloaded =
            "error_event=0 status=529 error_type=overloaded_error error_code=overloaded";
        let answer = world.ask(&stream(surface, &account.key, overloaded));
        surface.fails_as(&answer, OVERLOADED);
        is_free(&world, &account, &answer);
        let frames = [
            (
                "events=8 error_event=5 error_type=overloaded_error error_code=overloaded",
                "overloaded",
                "overloaded_error",
            ),
            ("events=8 cut=5", "upstream_closed", "api_error"),
            ("events=8 nofinish=1", "upstream_closed", "api_error"),
        ];
        for (marker, code, kind) in frames {
            let answer = world.ask(&stream(surface, &account.key, marker));
            broke_off(surface, &answer, code, kind);
            assert_eq!(
                is_free(&world, &account, &answer)["outcome"],
                "vendor_cut",
                "{surface:?} {marker}"
            );
        }
        let answer = world.ask(&whole(surface, &account.key, "garbage=json"));
        surface.fails_as(&answer, UPSTREAM_ERROR);
        is_free(&world, &account, &answer);
    }
    world.close();
    // The first events must come in this time too.
    let (world, account) = plan().limit("idle_seconds", 4).with_account();
    let hangs = &|surface: Surface| world.ask(&stream(surface, &account.key, "events=8 hang=5"));
    let answers = std::thread::scope(|scope| {
        let asked = BOTH.map(|surface| scope.spawn(move || hangs(surface)));
        asked.map(|asked| asked.join().unwrap())
    });
    for (surface, answer) in BOTH.into_iter().zip(answers) {
        broke_off(surface, &answer, "upstream_timeout", "timeout_error");
        let receipt = is_free(&world, &account, &answer);
        assert_eq!(receipt["outcome"], "vendor_cut", "{surface:?}");
    }
}

#[test]
fn a_waiting_client_hears_that_its_stream_is_alive() {
    let (world, account) = Plan::default()
        .limit("stream_keep_alive_seconds", 1)
        .with_account();
    let hears = &|surface: Surface, marker: &str| {
        let sign = if surface == Chat {
            "\n\n: ping\n\n"
        } else {
            "event: ping\ndata: {\"type\":\"ping\"}\n\n"
        };
        let answer = world.ask(&stream(surface, &account.key, marker));
        let text = answer.text();
        assert!(surface.is_complete(&answer), "{text}");
        let least = if surface == Chat { 1 } else { 3 };
        let signs = text.matches(sign.trim_start()).count();
        assert!(signs >= least, "{surface:?} {marker}: {text}");
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(
            micro(&receipt["credits"]),
            vendor_of(surface).cost(10, 5),
            "{receipt}"
        );
    };
    // The clients wait beside one another, in a pause between two events and before the first.
    std::thread::scope(|scope| {
        for surface in BOTH {
            for pause in ["gap_ms=1500", "first_ms=5600"] {
                let marker = format!("events=1 {pause} input=10 output=5");
                scope.spawn(move || hears(surface, &marker));
            }
        }
    });
    for surface in BOTH {
        // Without a long pause the gateway sends no keep-alive. A busy machine may pause.
        wait_for("an answer without a pause", SOON, || {
            let answer = world.ask(&stream(surface, &account.key, "events=4 gap_ms=100"));
            let pings = answer.text().matches("ping").count();
            (pings <= if surface == Chat { 0 } else { 2 }).then_some(())
        });
    }
}

#[test]
fn a_vendor_that_finishes_and_does_not_end_is_ended_here() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let began = Instant::now();
        // The vendor sends nothing after the finish: the usage chunk and `[DONE]`, or
        // `message_stop`, are missing.
        let events = if surface == Chat { 9 } else { 8 };
        let marker =
            format!("text=\"a b c d\" events=4 usage=finish input=30 output=4 hang={events}");
        let answer = world.ask(&stream(surface, &account.key, &marker));
        assert!(
            surface.is_complete(&answer),
            "{surface:?}: {}",
            answer.text()
        );
        assert!(
            began.elapsed() < Duration::from_secs(50),
            "{:?}",
            began.elapsed()
        );
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(receipt["outcome"], "completed", "{receipt}");
        assert!(micro(&receipt["credits"]) > 0, "{receipt}");
    }
}

#[test]
fn a_client_that_leaves_pays_for_what_was_generated() {
    let (world, account) = Plan::default()
        .limit("drain_after_client_seconds", 600)
        .with_account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let marker = "text=\"one two three four five six\" events=6 gap_ms=400 input=200 output=70";
        let (mut connection, mut answer) = world.begin(&stream(surface, &account.key, marker));
        while answer.text().matches("\n\n").count() < 4 {
            assert!(connection.more(&mut answer), "{}", answer.text());
        }
        drop(connection);
        let ending = world.ended(&account, index + 1);
        assert_eq!(ending["outcome"], "client_left", "{ending}");
        let receipt = world.receipt(&account, ending["request_id"].as_str().unwrap());
        assert_eq!(
            micro(&receipt["credits"]),
            vendor_of(surface).cost(200, 70),
            "{receipt}"
        );
        assert_eq!(receipt["estimated"], false, "{receipt}");
    }
}

#[test]
fn a_failed_endpoint_is_survived_with_the_same_translated_megabytes() {
    let broken = Simulator::start(Some("close"));
    let good = Simulator::start(None);
    let (world, account) = Plan::default()
        .endpoints(&[broken.port, good.port])
        .turns()
        .with_account();
    for surface in BOTH {
        for attempt in 0..2 {
            let mut body = over(surface, "input=10 output=10", attempt == 1, 100);
            let text = "x \u{4e16}\n".repeat(400_000);
            body["messages"] = json!([
                {"role": "user", "content": text},
                {"role": "assistant", "content": "Go on."},
                {"role": "user", "content": "[[sim input=10 output=10]]"},
            ]);
            world.expect(200, &surface.request(&account.key, &body));
            let last = good.last();
            assert!(last["body_length"].as_u64().unwrap() > 2_000_000, "{last}");
        }
    }
    assert!(broken.calls() >= 2, "{}", broken.calls());
}

#[test]
fn a_large_whole_answer_is_streamed_from_the_vendor_and_told_whole() {
    let (world, account) = World::with_account();
    let body = over(Chat, "bytes=60000 input=10 output=9000", false, 20_000);
    let answer = world.expect(200, &Chat.request(&account.key, &body));
    assert_eq!(sent(&world)["stream"], true);
    assert_eq!(said(Chat, &answer.json()).len(), 60_000);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        micro(&answer.header("x-gateway-credits").into()),
        Messages.cost(10, 9_000)
    );
    // Failures of the stream become normal error responses.
    for (marker, code) in [
        ("events=9 cut=5", "upstream_error"),
        ("error_event=3 error_type=overloaded_error", "overloaded"),
    ] {
        let answer = world.ask(&Chat.request(&account.key, &over(Chat, marker, false, 20_000)));
        assert!(answer.status >= 500, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code, "{}", answer.text());
    }
}

#[test]
fn tokens_are_counted_for_every_model_and_for_nothing() {
    let (world, account) = World::with_account();
    let count = |model: &str, query: &str| {
        let body = json!({"model": model, "system": "Be brief.", "messages": [{"role": "user", "content": "Hello there, world"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
        let path = format!("/v1/messages/count_tokens{query}");
        world.ask(&Request::post(&path, body.to_string()).bearer(&account.key))
    };
    let own = count(Messages.model(), "?beta=true");
    assert_eq!(
        (own.status, own.header("x-gateway-estimated")),
        (200, None),
        "{}",
        own.text()
    );
    let calls = world.vendor.calls();
    let other = count(Chat.model(), "");
    assert_eq!(
        (other.status, other.header("x-gateway-estimated")),
        (200, Some("true")),
        "{}",
        other.text()
    );
    // The estimate is 300 for the use of tools, 8 for each tool, 4 for each message, then the texts
    // and the margin.
    let tokens = other.json()["input_tokens"].as_u64().unwrap();
    assert!((330..420).contains(&tokens), "{tokens}");
    assert_eq!(world.vendor.calls(), calls, "counted here");
    let unknown = count("no-such-model", "");
    assert_eq!(unknown.status, 404);
    let wrong = Request::post(
        "/v1/messages/count_tokens",
        json!({"model": Chat.model(), "messages": []}).to_string(),
    );
    let error = Messages.failure(
        &world.ask(&wrong.bearer(&account.key)),
        400,
        "invalid_request_error",
        None,
    );
    assert_eq!(
        error["message"],
        "messages: at least one message is required"
    );
    assert_eq!(world.endings(&account), Vec::<Value>::new());
}

#[test]
fn reasoning_that_the_vendor_refuses_is_left_out_once() {
    let (world, account) = World::with_account();
    let details = json!([{"type": "reasoning.text", "text": "So.", "signature": "bm90IG91cnM=", "format": "anthropic-claude-v1", "index": 0, "anchor": "0:0"}]);
    let body = json!({"model": Messages.model(), "max_completion_tokens": 4_000, "messages": [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "It is this.", "reasoning_details": details},
        {"role": "user", "content": "[[sim text=\"Sure.\" input=10 output=5]] And why?"},
    ]});
    let answer = world.expect(200, &Chat.request(&account.key, &body));
    answer.has_header("x-gateway-warnings", "dropped:thinking");
    assert_eq!(said(Chat, &answer.json()), "Sure.");
    assert_eq!(world.vendor.calls(), 2);
    assert!(!sent(&world).to_string().contains("bm90IG91cnM="));
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        micro(&receipt["credits"]),
        Messages.cost(10, 5),
        "debited once: {receipt}"
    );
    // On the vendor's own surface the gateway passes the refusal on and leaves nothing out.
    let own = json!({"model": Messages.model(), "max_tokens": 4_000, "messages": [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "So.", "signature": "bm90IG91cnM="}, {"type": "text", "text": "It is this."}]},
        {"role": "user", "content": "And why?"},
    ]});
    world.expect(400, &Messages.request(&account.key, &own));
    assert_eq!(world.vendor.calls(), 3);
}

#[test]
fn a_limit_too_small_to_say_anything_in_is_an_empty_answer_on_messages() {
    let (world, account) = World::with_account();
    for streamed in [false, true] {
        let answer = world
            .ask(&Messages.request(&account.key, &over(Messages, "min_output=16", streamed, 1)));
        assert_eq!(answer.status, 200, "{}", answer.text());
        if streamed {
            assert!(Messages.is_complete(&answer), "{}", answer.text());
            assert!(
                answer.has("\"stop_reason\":\"max_tokens\""),
                "{}",
                answer.text()
            );
        } else {
            let body = answer.json();
            assert_eq!(
                (&body["content"], &body["stop_reason"]),
                (&json!([]), &json!("max_tokens")),
                "{body}"
            );
        }
        is_free(&world, &account, &answer);
    }
}

#[test]
fn a_message_thread_cannot_go_to_another_vendor() {
    let (world, account) = World::with_account();
    let mut body = over(Messages, "", false, 100);
    body["thread"] = json!({"type": "create"});
    let answer = world.ask(&Messages.request(&account.key, &body));
    let error = Messages.failure(
        &answer,
        400,
        "invalid_request_error",
        Some("thread_unsupported_request"),
    );
    assert_eq!(error["details"]["unsupported"], json!(["model"]));
    assert_eq!(world.vendor.calls(), 0);
    wait_until("no hold", Duration::from_secs(5), || {
        world.standing(&account).held == 0
    });
}

/// A vendor that plays one script per call: a list of texts, each with a pause in ms before it.
struct Scripted {
    port: u16,
}

type Script = Vec<(u64, String)>;

impl Scripted {
    fn start(scripts: Vec<Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for script in scripts {
                let (mut client, _) = listener.accept().unwrap();
                let mut got = Vec::new();
                let mut piece = [0; 65_536];
                // The body ends with `}`. After the script the connection is closed.
                while !got.ends_with(b"}") {
                    let read = client.read(&mut piece).unwrap();
                    assert!(read > 0, "the call broke off");
                    got.extend_from_slice(&piece[..read]);
                }
                for (pause_ms, text) in script {
                    std::thread::sleep(Duration::from_millis(pause_ms));
                    if client.write_all(text.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        Scripted { port }
    }
}

fn stream_head() -> String {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned()
}

fn error_head(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
}

/// The events of a messages stream up to its stop reason.
fn said_and_stopped() -> String {
    [
        r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":100,"output_tokens":1}}}"#,
        r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Sure."}}"#,
        r#"event: content_block_stop
data: {"type":"content_block_stop","index":0}"#,
        r#"event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":5}}"#,
        "",
    ]
    .join("\n\n")
}

fn ended() -> String {
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned()
}

/// A request with reasoning of an earlier turn that the vendor refuses.
fn with_reasoning(streamed: bool) -> Value {
    json!({"model": Messages.model(), "max_completion_tokens": 4_000, "stream": streamed, "messages": [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "This.", "thinking_blocks": [{"type": "thinking", "thinking": "So.", "signature": "EqQB"}]},
        {"role": "user", "content": "And why?"},
    ]})
}

#[test]
fn a_second_attempt_has_its_own_head_and_its_own_time() {
    let refusal = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}"#;
    let vendor = Scripted::start(vec![
        // The head and the body of the refusal arrive separately, and the second answer is slow.
        vec![
            (0, error_head("400 Bad Request", refusal)),
            (300, refusal.to_owned()),
        ],
        vec![(5_000, stream_head()), (0, said_and_stopped() + &ended())],
    ]);
    let (world, account) = Plan::default()
        .endpoints(&[vendor.port])
        .limit("stream_keep_alive_seconds", 1)
        .limit("idle_seconds", 4)
        .limit("first_byte_seconds", 60)
        .with_account();
    let answer = world.ask(&Chat.request(&account.key, &with_reasoning(true)));
    assert!(
        Chat.is_complete(&answer),
        "{} {}",
        answer.status,
        answer.text()
    );
    answer.has_header("content-type", "text/event-stream; charset=utf-8");
    answer.has_header("x-gateway-warnings", "dropped:thinking");
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        micro(&receipt["credits"]),
        Messages.cost(100, 5),
        "{receipt}"
    );
}

#[test]
fn who_is_strict_gets_the_vendors_refusal_of_the_reasoning() {
    let (world, account) = World::with_account();
    let request = Chat
        .request(&account.key, &with_reasoning(false))
        .header("x-gateway-strict", "true");
    let answer = world.ask(&request);
    assert_eq!(
        (answer.status, answer.header("x-gateway-warnings")),
        (400, None),
        "{}",
        answer.text()
    );
    assert_eq!(world.vendor.calls(), 1);
    is_free(&world, &account, &answer);
}

#[test]
fn an_error_whose_body_is_late_stays_an_error() {
    let refusal = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Slow down."}}"#;
    let head = error_head("429 Too Many Requests", refusal)
        .replace("\r\n\r\n", "\r\nretry-after: 7\r\n\r\n");
    let vendor = Scripted::start(vec![vec![(0, head), (2_500, refusal.to_owned())]]);
    let plan = Plan::default()
        .endpoints(&[vendor.port])
        .limit("attempts", 1);
    let (world, account) = plan.limit("stream_keep_alive_seconds", 1).with_account();
    let answer = world.ask(&stream(Chat, &account.key, ""));
    Chat.failure(
        &answer,
        429,
        "rate_limit_error",
        Some("rate_limit_exceeded"),
    );
    assert_eq!(answer.header("retry-after"), Some("7"));
    is_free(&world, &account, &answer);
}

#[test]
fn an_answer_that_was_finished_is_one_though_its_vendor_breaks_off_or_falls_silent() {
    let finished = || vec![(0, stream_head()), (0, said_and_stopped())];
    let broken = || [finished(), vec![(300, String::new())]].concat();
    let silent = || [finished(), vec![(5_000, String::new())]].concat();
    let vendor = Scripted::start(vec![broken(), silent(), broken(), silent()]);
    let (world, account) = Plan::default().endpoints(&[vendor.port]).with_account();
    for limit in [1_000, 20_000] {
        let streamed = limit == 1_000;
        for _ in 0..2 {
            let answer = world.ask(&Chat.request(&account.key, &over(Chat, "", streamed, limit)));
            assert_eq!(answer.status, 200, "{}", answer.text());
            if streamed {
                assert!(Chat.is_complete(&answer), "{}", answer.text());
            } else {
                assert_eq!(said(Chat, &answer.json()), "Sure.");
                assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
            }
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(receipt["outcome"], "completed", "{receipt}");
            assert_eq!(
                micro(&receipt["credits"]),
                Messages.cost(100, 5),
                "{receipt}"
            );
        }
    }
}

#[test]
fn a_thinking_budget_of_the_callers_own_is_lowered_with_the_limit() {
    let world = World::new();
    let account = world.account_with("poor@example.test", &["--no-trial"]);
    world.grant(&account, "2", "two");
    let mut body = over(Chat, "input=10 output=10", false, 20_000);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 10_000});
    let answer = world.expect(200, &Chat.request(&account.key, &body));
    answer.has_header(
        "x-gateway-warnings",
        "clamped:max_completion_tokens, clamped:thinking.budget_tokens",
    );
    let sent = sent(&world);
    let (limit, budget) = (
        sent["max_tokens"].as_u64().unwrap(),
        sent["thinking"]["budget_tokens"].as_u64().unwrap(),
    );
    assert!(
        limit < 4_000 && (1_024..limit).contains(&budget),
        "{limit} {budget}"
    );
}
