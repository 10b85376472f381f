//! Tests vendors that refuse the gateway's own key, its credit, a model, or every request, by a
//! status or by the first event of a stream: where the gateway retries and how often, and that no
//! client learns about the operator's account.

use crate::account::micro;
use crate::client::Answer;
use crate::fallback::{is_from, mutual, other};
use crate::scripted::{Scripted, Step, json, piece, stream, stream_head};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, Simulator, World, wait_for, wait_until};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::time::Duration;

const CHAT_TO_RESPONSES: (&str, &str) = ("    protocol: chat\n", "    protocol: responses\n");

/// A model whose vendor is at `port`, with a fallback model.
fn with_fallback(surface: Surface, port: u16, good: &Simulator) -> Plan {
    let (alpha, beta) = if surface == Messages {
        (port, good.port)
    } else {
        (good.port, port)
    };
    mutual(Plan::default().endpoints_of(&[alpha], &[beta]))
}

/// An error in the format of both vendors.
fn error(kind: &str, code: &str, message: &str) -> String {
    format!(
        r#"{{"type":"error","error":{{"type":"{kind}","code":"{code}","message":"{message}","param":null}}}}"#
    )
}

/// Refusals of the key or of the account, in the forms that vendors use.
fn key_refusals() -> Vec<(u16, String)> {
    vec![
        (
            401,
            error(
                "authentication_error",
                "invalid_api_key",
                "Incorrect API key",
            ),
        ),
        (401, String::new()),
        (
            402,
            error("billing_error", "", "Your account has a billing problem."),
        ),
        (
            403,
            error(
                "permission_error",
                "",
                "Your API key does not have permission.",
            ),
        ),
        (
            429,
            error(
                "insufficient_quota",
                "insufficient_quota",
                "You exceeded your current quota.",
            ),
        ),
        (
            403,
            error(
                "invalid_request_error",
                "account_deactivated",
                "Deactivated.",
            ),
        ),
        (
            400,
            r#"[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT"}}]"#
                .to_owned(),
        ),
        (498, r#"{"message":"invalid api token"}"#.to_owned()),
        (
            400,
            error(
                "invalid_request_error",
                "",
                "Your credit balance is too low to access the API.",
            ),
        ),
    ]
}

fn refused_keys(world: &World) -> f64 {
    world.metric("gateway_vendor_key_refused_total", &[])
}

#[test]
fn a_vendor_that_refuses_the_gateway_s_key_costs_no_client_an_answer_and_is_hardly_asked() {
    for (index, (status, body)) in key_refusals().into_iter().enumerate() {
        let (bad, good) = (Scripted::start(json(status, &body)), Simulator::start(None));
        let surface = BOTH[index % 2];
        let (world, account) = with_fallback(surface, bad.port, &good).with_account();
        let requests = if index == 0 { 100 } else { 15 };
        for number in 0..requests {
            let request = if number % 2 == 0 {
                Surface::whole
            } else {
                Surface::stream
            };
            is_from(
                &world.ask(&request(surface, &account.key, "input=1 output=1")),
                other(surface).model(),
            );
        }
        assert!(
            (1..=5).contains(&bad.calls()),
            "{status} {body}: asked {} times",
            bad.calls()
        );
        assert_eq!(
            (good.calls(), refused_keys(&world)),
            (requests, bad.calls() as f64),
            "{status} {body}"
        );
        assert_eq!(
            world.log().matches("does not serve this gateway").count() as u64,
            bad.calls(),
            "{}",
            world.log()
        );
        world.ended(&account, requests as usize);
    }
}

/// The vendor refuses after a delay, so that all requests of a burst are under way before the first
/// refusal.
#[test]
fn of_requests_that_come_together_few_find_out_that_the_key_is_refused() {
    for together in [10, 20, 50] {
        let refusal = error(
            "authentication_error",
            "invalid_api_key",
            "Incorrect API key",
        );
        let mut steps = vec![Step::Wait(Duration::from_millis(100))];
        steps.extend(json(401, &refusal));
        let (bad, good) = (Scripted::start(steps), Simulator::start(None));
        let (world, account) = with_fallback(Chat, bad.port, &good).with_account();
        std::thread::scope(|scope| {
            for _ in 0..together {
                scope.spawn(|| {
                    for _ in 0..100 / together {
                        is_from(
                            &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
                            Messages.model(),
                        );
                    }
                });
            }
        });
        assert!(
            (1..=5).contains(&bad.calls()),
            "{together} at a time: asked {} times",
            bad.calls()
        );
        assert_eq!(good.calls(), 100);
    }
}

/// A vendor that accepts the key and answers slowly gets all requests after a short delay.
#[test]
fn a_burst_for_a_vendor_that_is_slow_is_not_sent_elsewhere() {
    let (slow, other) = (Simulator::start(None), Simulator::start(None));
    let (world, account) = with_fallback(Chat, slow.port, &other).with_account();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let answer = world.ask(&Chat.whole(&account.key, "input=1 output=1 hold=headers"));
                assert_eq!(
                    (answer.status, answer.header("x-gateway-warnings")),
                    (200, None)
                );
            });
        }
        wait_until("all requests to be under way", SOON, || slow.calls() == 10);
        slow.release();
    });
    assert_eq!((slow.calls(), other.calls()), (10, 0));
}

#[test]
fn the_key_is_tried_again_after_a_while_and_used_once_it_is_good() {
    let (bad, good) = (Simulator::start(Some("status=401")), Simulator::start(None));
    let plan = with_fallback(Chat, bad.port, &good)
        .limit("breaker_open_seconds", 1)
        .limit("breaker_open_max_seconds", 1);
    let (world, account) = plan.with_account();
    let ask = || world.ask(&Chat.whole(&account.key, "input=1 output=1"));
    is_from(&ask(), Messages.model());
    let port = bad.port;
    drop(bad);
    let mended = Simulator::start_on(port, None);
    wait_until("the model to answer itself", SOON, || {
        ask().header("x-gateway-warnings").is_none()
    });
    let calls = mended.calls();
    (0..5).for_each(|_| drop(ask()));
    assert_eq!(mended.calls(), calls + 5);
}

/// All endpoints of a vendor get the same key, but another endpoint may accept it.
#[test]
fn without_another_model_the_next_endpoint_is_asked_and_the_client_s_own_key_is_not_blamed() {
    for (status, body) in key_refusals() {
        let bad = [0, 1].map(|_| Scripted::start(json(status, &body)));
        let (world, account) = Plan::default()
            .endpoints(&bad.each_ref().map(|vendor| vendor.port))
            .with_account();
        for (index, surface) in BOTH.into_iter().enumerate() {
            let answer = world.ask(&surface.whole(&account.key, "input=1 output=1"));
            assert!(
                matches!(answer.status, 500..=529),
                "{status}: {} {}",
                answer.status,
                answer.text()
            );
            let text = answer.text().to_lowercase();
            assert!(
                !["api key", "billing", "quota", "credit", "deactivated"]
                    .iter()
                    .any(|word| text.contains(word)),
                "{text}"
            );
            let calls = bad.each_ref().map(Scripted::calls);
            assert_eq!(calls, [index as u64 + 1; 2], "{status} {body}");
            assert_eq!(micro(&world.ended(&account, index + 1)["credits"]), 0);
        }
    }
}

#[test]
fn an_endpoint_that_refuses_the_key_does_not_keep_one_that_takes_it_from_answering() {
    let (bad, good) = (Simulator::start(Some("status=401")), Simulator::start(None));
    let (world, account) = Plan::default()
        .turns()
        .endpoints(&[bad.port, good.port])
        .with_account();
    for _ in 0..20 {
        world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    }
    assert_eq!((bad.calls(), good.calls()), (1, 20));
}

/// No client can block others by the content of its requests.
#[test]
fn what_a_client_brings_about_opens_no_breaker() {
    let bodies = [
        (
            403,
            error("invalid_request_error", "content_policy_violation", "No."),
        ),
        (403, error("moderation", "403", "Your input was flagged.")),
        (403, "<html>blocked</html>".to_owned()),
        (
            400,
            error(
                "invalid_request_error",
                "invalid_value",
                "Invalid value: 'You exceeded your current quota'",
            ),
        ),
        (
            400,
            error(
                "invalid_request_error",
                "invalid_value",
                "'credit balance is too low' is not a role",
            ),
        ),
        (429, error("requests", "rate_limit_exceeded", "Slow down.")),
    ];
    for (status, body) in bodies {
        let (bad, good) = (Scripted::start(json(status, &body)), Simulator::start(None));
        let (world, account) = with_fallback(Chat, bad.port, &good).with_account();
        for _ in 0..8 {
            world.ask(&Chat.whole(&account.key, "input=1 output=1"));
        }
        assert_eq!(
            (bad.calls(), refused_keys(&world)),
            (8, 0.0),
            "{status} {body}"
        );
    }
}

#[test]
fn which_refusals_another_model_answers_for() {
    let of = |kind: &str, code: &str| error(kind, code, "The model or the request is no good.");
    let cases = [
        (404, of("invalid_request_error", "model_not_found"), true),
        (403, of("invalid_request_error", "model_not_found"), true),
        (404, "<html></html>".to_owned(), true),
        (408, of("timeout_error", ""), true),
        (500, of("api_error", ""), true),
        (502, "<html></html>".to_owned(), true),
        (504, String::new(), true),
        (
            413,
            error(
                "tokens",
                "rate_limit_exceeded",
                "Request too large: tokens per minute (TPM): limit 6000.",
            ),
            true,
        ),
        (400, of("invalid_request_error", "invalid_value"), false),
        (400, "<html></html>".to_owned(), false),
        (413, of("request_too_large", ""), false),
        (422, of("invalid_request_error", ""), false),
    ];
    for (status, body, is_answered) in cases {
        let (bad, good) = (Scripted::start(json(status, &body)), Simulator::start(None));
        let (world, account) = with_fallback(Messages, bad.port, &good).with_account();
        let answer = world.ask(&Messages.whole(&account.key, "input=1 output=1"));
        assert_eq!(
            answer.status == 200,
            is_answered,
            "{status} {body}: {}",
            answer.text()
        );
        assert_eq!(
            (bad.calls(), good.calls()),
            (1, u64::from(is_answered)),
            "{status} {body}"
        );
    }
}

/// If a vendor's error body never ends, the gateway stops waiting after a few seconds.
#[test]
fn an_error_that_is_not_said_to_its_end_is_not_waited_for() {
    let head =
        "HTTP/1.1 429 Said\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let steps = vec![Step::Send(head.into()), Step::Hang];
    let (bad, good) = (Scripted::start(steps), Simulator::start(None));
    let (world, account) = with_fallback(Chat, bad.port, &good).with_account();
    is_from(
        &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
        Messages.model(),
    );
    assert_eq!((bad.calls(), good.calls()), (1, 1));
}

const MESSAGE_START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_bad\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-haiku-4-5-20251001\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n";
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
const ROLE: &str = "data: {\"id\":\"chatcmpl-bad\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-5.2\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";
const COMMENT: &str = ": PROCESSING\n\n";

fn response_event(kind: &str, number: u64) -> String {
    format!(
        "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},\"response\":{{\"id\":\"resp_bad\",\"object\":\"response\",\"created_at\":1,\"status\":\"in_progress\",\"model\":\"gpt-5.2\",\"output\":[],\"usage\":null}}}}\n\n"
    )
}

/// Streams that fail before any useful output, by the vendor's protocol.
fn failing_streams(surface: Surface) -> Vec<Vec<String>> {
    let chat = format!(
        "data: {}\n\n",
        error("server_error", "server_error", "boom")
    );
    let messages = format!(
        "event: error\ndata: {}\n\n",
        error("overloaded_error", "", "Overloaded")
    );
    let texts = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    match surface {
        Chat => vec![
            texts(&[&chat]),
            texts(&[ROLE, &chat]),
            texts(&[COMMENT, ROLE, COMMENT, &chat]),
            texts(&[ROLE]),
        ],
        Messages => vec![
            texts(&[&messages]),
            texts(&[MESSAGE_START, &messages]),
            texts(&[&format!("{MESSAGE_START}{PING}{messages}")]),
            texts(&[MESSAGE_START, PING]),
        ],
    }
}

/// Checks that the client received nothing of the failed attempt.
#[track_caller]
fn is_clean(answer: &Answer, what: &[String]) {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{what:?}: {text}");
    assert!(
        !text.contains("bad\"") && !text.contains("boom") && !text.contains("error"),
        "{what:?}: {text}"
    );
}

#[test]
fn a_stream_that_fails_before_anything_useful_is_begun_anew_elsewhere() {
    // Each stream has gateways of its own, so they need not wait for one another.
    std::thread::scope(|scope| {
        for surface in BOTH {
            scope.spawn(move || are_begun_anew(surface));
        }
    });
}

fn are_begun_anew(surface: Surface) {
    for events in failing_streams(surface) {
        let (bad, good) = (Scripted::start(stream(&events)), Simulator::start(None));
        // The same model at the next endpoint, passed through.
        let (world, account) = Plan::default()
            .turns()
            .endpoints(&[bad.port, good.port])
            .with_account();
        let answer = world.ask(&surface.stream(&account.key, "input=100 output=7"));
        is_clean(&answer, &events);
        assert!(surface.is_complete(&answer), "{}", answer.text());
        assert_eq!((bad.calls(), good.calls()), (1, 1), "{events:?}");
        assert_eq!(
            micro(&world.ended(&account, 1)["credits"]),
            surface.cost(100, 7)
        );
        world.close();
        // A fallback model, whose answer is translated.
        let (world, account) = with_fallback(surface, bad.port, &good).with_account();
        for request in [
            surface.stream(&account.key, "input=100 output=7"),
            surface.whole(&account.key, "input=100 output=7"),
        ] {
            let answer = world.ask(&request);
            is_clean(&answer, &events);
            is_from(&answer, other(surface).model());
        }
        assert_eq!((bad.calls(), good.calls()), (3, 3), "{events:?}");
        // A vendor whose answer would be translated fails; the fallback speaks the client's own
        // protocol.
        let mut body = other(surface).body("input=100 output=7", true, 1_000);
        body["model"] = surface.model().into();
        let answer = world.ask(&other(surface).request(&account.key, &body));
        is_clean(&answer, &events);
        assert!(other(surface).is_complete(&answer), "{}", answer.text());
    }
}

#[test]
fn a_responses_stream_that_fails_after_it_was_begun_is_begun_anew_elsewhere() {
    let opening = [
        response_event("response.created", 0),
        response_event("response.in_progress", 1),
    ];
    let flat = "event: error\ndata: {\"type\":\"error\",\"sequence_number\":2,\"code\":\"server_error\",\"message\":\"boom\",\"param\":null}\n\n";
    let failed = response_event("response.failed", 2).replace(
        "\"usage\"",
        "\"error\":{\"code\":\"server_error\",\"message\":\"boom\"},\"usage\"",
    );
    for end in [flat.to_owned(), failed] {
        let events = [opening.to_vec(), vec![end]].concat();
        let (bad, good) = (Scripted::start(stream(&events)), Simulator::start(None));
        let plan = Plan::default()
            .turns()
            .edit(CHAT_TO_RESPONSES.0, CHAT_TO_RESPONSES.1);
        let (world, account) = plan.endpoints(&[bad.port, good.port]).with_account();
        let body = serde_json::json!({"model": Chat.model(), "input": "hello", "stream": true, "max_output_tokens": 500});
        let answer = world.ask(
            &crate::client::Request::post("/v1/responses", body.to_string()).bearer(&account.key),
        );
        assert!(
            !answer.text().contains("resp_bad") && !answer.text().contains("boom"),
            "{}",
            answer.text()
        );
        let events = crate::responses::events(&answer);
        let kinds = crate::responses::kinds(&events);
        assert_eq!(
            (kinds[0], *kinds.last().unwrap()),
            ("response.created", "response.completed"),
            "{kinds:?}"
        );
        assert_eq!((bad.calls(), good.calls()), (1, 1));
    }
}

#[test]
fn a_whole_answer_that_is_an_error_with_status_200_is_asked_for_elsewhere() {
    for surface in BOTH {
        let bad = Scripted::start(json(
            200,
            &error("overloaded_error", "", "Overloaded, boom"),
        ));
        let good = Simulator::start(None);
        let (world, account) = with_fallback(surface, bad.port, &good).with_account();
        let answer = world.ask(&surface.whole(&account.key, "input=100 output=7"));
        is_from(&answer, other(surface).model());
        assert_eq!((bad.calls(), good.calls()), (1, 1));
    }
}

/// The client already has useful output. The gateway keeps it and adds the error at the end.
#[test]
fn a_stream_that_fails_after_something_useful_is_not_begun_anew() {
    let word = "data: {\"id\":\"chatcmpl-bad\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-5.2\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"},\"finish_reason\":null}]}\n\n";
    let call = word.replace("\"content\":\"word\"", "\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"look\",\"arguments\":\"\"}}]");
    for useful in [word.to_owned(), call] {
        let failure = format!(
            "data: {}\n\n",
            error("server_error", "server_error", "boom")
        );
        // The pause makes sure that the client has the output.
        let steps = vec![
            stream_head(),
            piece(ROLE),
            piece(&useful),
            Step::Wait(Duration::from_secs(1)),
            piece(&failure),
        ];
        let (bad, good) = (Scripted::start(steps), Simulator::start(None));
        let (world, account) = with_fallback(Chat, bad.port, &good).with_account();
        let answer = world.ask(&Chat.stream(&account.key, "input=1 output=1"));
        assert!(
            answer.status == 200 && answer.has("chatcmpl-bad") && answer.has(Chat.error_frame()),
            "{}",
            answer.text()
        );
        assert_eq!((bad.calls(), good.calls()), (1, 0));
    }
}

#[test]
fn a_vendor_that_fails_every_call_is_not_asked_twice_as_often() {
    let bad = [0, 1].map(|_| Simulator::start(Some("status=500")));
    let ports = bad.each_ref().map(|vendor| vendor.port);
    let (world, account) = Plan::default()
        .turns()
        .endpoints(&ports)
        .limit("breaker_failures", 0)
        .with_account();
    for _ in 0..100 {
        let answer = world.ask(&Chat.whole(&account.key, "input=1 output=1"));
        Chat.failure(&answer, 502, "server_error", Some("upstream_error"));
    }
    let calls: u64 = bad.iter().map(Simulator::calls).sum();
    assert!((103..=125).contains(&calls), "100 requests became {calls}");
    let refused = world.metric("gateway_retry_budget_exhausted_total", &["vendor=\"beta\""]);
    assert_eq!(
        refused,
        200.0 - calls as f64,
        "each other one would have been repeated"
    );
}

/// A request to another vendor is not a retry. A request after an endpoint that could not be
/// reached is not one either.
#[test]
fn the_retry_budget_is_for_repeats_alone() {
    let (bad, good) = (Simulator::start(Some("status=500")), Simulator::start(None));
    let no_repeats = |plan: Plan| {
        plan.limit("retry_budget_min", 0)
            .limit("retry_budget_percent", 0)
            .limit("breaker_failures", 0)
    };
    let (world, account) = no_repeats(with_fallback(Chat, bad.port, &good)).with_account();
    for _ in 0..8 {
        is_from(
            &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
            Messages.model(),
        );
    }
    world.close();
    let nobody = crate::world::free_port();
    let (world, account) =
        no_repeats(Plan::default().turns().endpoints(&[nobody, good.port])).with_account();
    for _ in 0..8 {
        world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    }
    world.has_metric("gateway_retry_budget_exhausted_total", &[], 0.0);
}

#[test]
fn an_answer_in_no_known_form_is_shown_to_the_operator_once_a_minute() {
    let page = format!(
        "<html>A login page for sim-beta-key. {}</html>",
        "x".repeat(300)
    );
    for status in [200, 500] {
        let bad = Scripted::start(json(status, &page));
        let world = Plan::default().endpoints(&[bad.port]).start();
        let account = world.funded(1_000_000);
        for surface in BOTH {
            let body = serde_json::json!({"model": Chat.model(), "max_tokens": 10,
                "messages": [{"role": "user", "content": "hello"}]});
            let answer = world.ask(&surface.request(&account.key, &body));
            assert!(
                answer
                    .text()
                    .contains("in a form that this gateway does not know"),
                "{}",
                answer.text()
            );
            assert!(!answer.text().contains("login page"), "{}", answer.text());
        }
        let log = world.log();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("in no known form"))
            .collect();
        assert!(
            matches!(lines[..], [line] if line.contains("vendor `beta`")
                && line.contains("<html>A login page for [key]. xxx")
                && line.contains(&format!("status {status}"))
                && !line.contains(&"x".repeat(200))),
            "{lines:?}"
        );
        assert_eq!(
            world.standing(&account).balance,
            1_000_000,
            "nothing is billed"
        );
    }
}

#[test]
fn an_answer_behind_a_byte_order_mark_and_a_coded_error_are_read() {
    let whole = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"Sure."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":100,"output_tokens":5}}"#;
    let marked = Scripted::start(json(200, &format!("\u{feff}{whole}")));
    let mut coded = GzEncoder::new(Vec::new(), Compression::fast());
    coded
        .write_all(error("invalid_request_error", "", "The seed is odd.").as_bytes())
        .unwrap();
    let coded = coded.finish().unwrap();
    let head = format!(
        "HTTP/1.1 400 Said\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        coded.len()
    );
    let refusing = Scripted::start(vec![Step::Send([head.into_bytes(), coded].concat())]);
    let world = Plan::default()
        .endpoints_of(&[marked.port], &[refusing.port])
        .start();
    let account = world.funded(1_000_000);
    let ask = |surface: Surface, model: &str| {
        let body = serde_json::json!({"model": model, "max_tokens": 50,
            "messages": [{"role": "user", "content": "hello"}]});
        world.ask(&surface.request(&account.key, &body))
    };
    for surface in BOTH {
        let answer = ask(surface, Messages.model());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.json().is_object() && answer.has("Sure."));
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(micro(&receipt["credits"]), Messages.cost(100, 5));
        let refused = ask(surface, Chat.model());
        assert!(
            refused.status == 400 && refused.has("The seed is odd."),
            "{} {}",
            refused.status,
            refused.text()
        );
    }
    assert_eq!((marked.calls(), refusing.calls()), (2, 2));
}

#[test]
fn an_answer_in_the_wrong_form_changes_nothing_of_the_next_endpoint_s() {
    let failed = error("overloaded_error", "overloaded", "Busy.");
    let bad = Scripted::start(json(200, &failed));
    let chunk = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","own_member":7,"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#;
    let good = Scripted::start(stream(&[
        format!("data: {chunk}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ]));
    let world = Plan::default()
        .turns()
        .endpoints(&[bad.port, good.port])
        .limit("breaker_failures", 0)
        .start();
    let account = world.funded(1_000_000);
    // Whichever endpoint comes first.
    for _ in 0..2 {
        let answer = world.ask(&Chat.stream(&account.key, "input=1 output=1"));
        assert!(Chat.is_complete(&answer), "{}", answer.text());
        assert!(
            answer.has(r#""own_member":7"#),
            "passed on: {}",
            answer.text()
        );
    }
    assert_eq!((bad.calls(), good.calls()), (1, 2));
}

#[test]
fn a_failing_vendor_is_a_few_lines_of_the_log_with_cause_number_and_a_request() {
    let busy = error(
        "overloaded_error",
        "",
        "Busy, says sim-alpha-key of org-Ab12cd.",
    );
    let (busy, good) = (Scripted::start(json(503, &busy)), Simulator::start(None));
    let cut = Scripted::start(vec![stream_head(), piece(": nothing\n\n"), Step::Close]);
    let nobody = crate::world::free_port();
    let (world, account) = Plan::default()
        .turns()
        .endpoints_of(&[busy.port], &[nobody, cut.port, good.port])
        .limit("breaker_failures", 0)
        .limit("attempts", 3)
        .limit("retry_budget_percent", 100)
        .with_account();
    let ids: Vec<_> = (0..6)
        .map(|_| {
            let answer = world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
            answer.request_id()
        })
        .collect();
    let busy = world.expect(529, &Messages.whole(&account.key, "input=1"));
    let line = |cause: &str| {
        wait_for(cause, SOON, || {
            let log = world.log();
            let line = log.lines().find(|line| line.contains(cause))?;
            Some(line.to_owned())
        })
    };
    for line in [
        line("no connection (\"Connection refused"),
        line("status 200, the answer broke off"),
    ] {
        for part in [
            "vendor `beta`: ",
            "; model beta-5.2; ",
            " answered by another attempt; for example request req_",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("none answered"), "{line}");
        assert!(ids.iter().any(|id| line.contains(id)), "{line}");
    }
    let line = line("vendor `alpha`: 1 failure in ");
    for part in [
        "status 503, overloaded (\"Busy, says [key] of [organization].\")",
        "none answered",
        &busy.request_id(),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let log = world.log();
    assert!(
        !log.contains("sim-alpha-key") && !log.contains("org-Ab"),
        "{log}"
    );
    let lines = log
        .lines()
        .filter(|line| line.contains("answered by another attempt"));
    assert!((3..=5).contains(&lines.count()), "{log}");
    let listed = crate::client::ask(world.admin, &crate::client::Request::get("/upstreams")).json();
    let of = |port: u16| {
        let listed = listed.as_array().unwrap().iter();
        let mut found = listed.filter(|one| {
            one["endpoint"]
                .as_str()
                .unwrap()
                .ends_with(&port.to_string())
        });
        found.next().unwrap().clone()
    };
    assert_eq!(of(good.port)["recent"]["failed"], 0);
    assert!(of(good.port)["recent"]["first_byte_p50_ms"].is_u64());
    let failed = of(nobody);
    assert_eq!(failed["recent"]["failed"], failed["recent"]["ended"]);
    assert_eq!(failed["last_failure"]["cause"], "no connection");
    assert_eq!(of(good.port)["last_failure"], serde_json::Value::Null);
}

#[test]
fn a_vendor_that_complains_about_a_limit_of_the_gateways_own_is_not_heard_alone() {
    let words = "max_tokens: must be above 4000.";
    let strict = Scripted::start(json(400, &error("invalid_request_error", "", words)));
    let world = Plan::default().endpoints(&[strict.port]).start();
    let account = world.funded(1_000_000);
    for (surface, limit) in [(Chat, "max_completion_tokens"), (Messages, "max_tokens")] {
        let ask = |tokens: u64| {
            // The request before has its answer a moment before its hold is given back.
            wait_until("the hold to be given back", SOON, || {
                world.standing(&account).held == 0
            });
            let body = serde_json::json!({"model": surface.model(), limit: tokens,
                "messages": [{"role": "user", "content": "hello"}]});
            let answer = world.expect(400, &surface.request(&account.key, &body));
            answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(ask(100), words, "the caller's own limit");
        let message = ask(8_000);
        let begin = format!("The gateway had changed this request: it set `{limit}` to ");
        assert!(message.starts_with(&begin), "{message}");
        assert!(
            message.ends_with(&format!("The vendor then answered: {words}")),
            "{message}"
        );
    }
}
