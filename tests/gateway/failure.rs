//! Vendors that fail: the client gets an error in its surface's format, pays nothing, and never
//! gets a partial answer that looks complete.

use crate::account::{Account, micro};
use crate::client::{self, Answer, End, Request};
use crate::surface::{
    BOTH, Chat, Failure, INVALID, Messages, OVERLOADED, Surface, UPSTREAM_ERROR, UPSTREAM_TIMEOUT,
    failure,
};
use crate::world::{Plan, SOON, World, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

const GRANT: i64 = 300_000_000;
const LIMITED: &str = "rate_limit_error";

/// Asserts that the request ended without a debit. Returns its receipt, which states the reason.
#[track_caller]
pub fn is_free(world: &World, account: &Account, answer: &Answer) -> Value {
    let receipt = world.receipt(account, &answer.request_id());
    assert_eq!(micro(&receipt["credits"]), 0, "{receipt}");
    let standing = world.standing(account);
    assert_eq!((standing.balance, standing.held), (GRANT, 0), "{receipt}");
    receipt
}

/// Asserts that a stream failed midway: it has its surface's error frame, and no ending that a
/// client would take for a complete answer.
#[track_caller]
pub fn broke_off(surface: Surface, answer: &Answer, chat_code: &str, messages_type: &str) {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{text}");
    let (_, after) = text
        .split_once(surface.error_frame())
        .unwrap_or_else(|| panic!("no error frame: {text}"));
    match surface {
        Chat => {
            let json = format!("{{\"error\":{{{}", after.lines().next().unwrap());
            let error = &serde_json::from_str::<Value>(&json).unwrap()["error"];
            assert_eq!(
                (&error["type"], &error["code"]),
                (&"server_error".into(), &chat_code.into()),
                "{text}"
            );
            assert!(
                error.get("param").is_some() && error["message"].is_string(),
                "{text}"
            );
            assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
            assert!(!text.contains("\"finish_reason\":\"stop\""), "{text}");
        }
        Messages => {
            let json = after
                .lines()
                .next()
                .unwrap()
                .strip_prefix("data: ")
                .unwrap();
            let frame = serde_json::from_str::<Value>(json).unwrap();
            assert_eq!(
                (&frame["type"], &frame["error"]["type"]),
                (&"error".into(), &messages_type.into()),
                "{text}"
            );
            assert_eq!(frame["request_id"], answer.request_id(), "{text}");
            assert!(
                !text.contains("message_stop") && !text.contains("message_delta"),
                "{text}"
            );
        }
    }
}

/// The vendor's status, and how the client gets it.
pub const STATUSES: [(&str, Failure); 17] = [
    ("400", ((400, INVALID), (400, INVALID), None)),
    ("401", UPSTREAM_ERROR),
    ("402", OVERLOADED),
    ("403", UPSTREAM_ERROR),
    (
        "404",
        failure(404, INVALID, 404, "not_found_error", "model_not_found"),
    ),
    (
        "408",
        failure(408, INVALID, 408, INVALID, "request_timeout"),
    ),
    ("409", ((409, INVALID), (409, "conflict_error"), None)),
    (
        "413",
        failure(413, INVALID, 413, "request_too_large", "request_too_large"),
    ),
    ("422", ((422, INVALID), (400, INVALID), None)),
    (
        "429 retry_after=90",
        failure(429, LIMITED, 429, LIMITED, "rate_limit_exceeded"),
    ),
    ("500", UPSTREAM_ERROR),
    ("502", UPSTREAM_ERROR),
    ("503 retry_after=7", OVERLOADED),
    ("504", UPSTREAM_TIMEOUT),
    ("529", OVERLOADED),
    ("302", UPSTREAM_ERROR),
    ("400 error_body=quota", OVERLOADED),
];

#[test]
fn each_status_of_a_vendor_is_told_by_the_table() {
    // Without a cool-down the gateway calls the vendor for each request, even if the previous
    // answer asked it to wait.
    let (world, account) = Plan::default()
        .limit("cool_down_max_seconds", 0)
        .with_account();
    for surface in BOTH {
        let mut connection = world.connect();
        for (marker, (chat, messages, code)) in STATUSES {
            for stream in [false, true] {
                let marker = format!("status={marker}");
                let answer = connection
                    .ask(&surface.request(&account.key, &surface.body(&marker, stream, 1_000)));
                let (status, kind) = if surface == Chat { chat } else { messages };
                let error = &answer.json()["error"];
                assert_eq!(
                    (answer.status, &error["type"]),
                    (status, &kind.into()),
                    "{marker}: {}",
                    answer.text()
                );
                surface.fails(&answer, chat, messages, code);
                let wait = answer.header("retry-after");
                match marker.as_str() {
                    "status=429 retry_after=90" => assert_eq!(wait, Some("60")),
                    "status=503 retry_after=7" => assert_eq!(wait, Some("7")),
                    _ => assert!(
                        wait.is_none_or(|wait| (1..=60).contains(&wait.parse().unwrap())),
                        "{marker}"
                    ),
                }
                let never = matches!(marker.as_str(), "status=401" | "status=403" | "status=404");
                assert_eq!(
                    answer.header("x-should-retry"),
                    never.then_some("false"),
                    "{surface:?} {marker}"
                );
                is_free(&world, &account, &answer);
            }
        }
        // All requests use one connection: a vendor's error must not close the client's connection.
        assert_eq!(
            connection
                .ask(&surface.whole(&account.key, "status=400"))
                .status,
            400
        );
    }
}

#[test]
fn a_vendors_refusal_is_no_cut_on_the_receipt() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for status in [400, 429, 500] {
            let answer = world.ask(&surface.whole(&account.key, &format!("status={status}")));
            assert_eq!(
                is_free(&world, &account, &answer)["outcome"],
                "vendor_error",
                "{surface:?} {status}"
            );
        }
    }
}

#[test]
fn an_error_without_a_readable_body_and_a_long_prompt_are_told_too() {
    let (world, account) = World::with_account();
    let upstream = (
        (502, "server_error"),
        (500, "api_error"),
        Some("upstream_error"),
    );
    for surface in BOTH {
        for body in ["html", "empty"] {
            let answer =
                world.ask(&surface.whole(&account.key, &format!("status=500 error_body={body}")));
            surface.fails(&answer, upstream.0, upstream.1, upstream.2);
            let answer =
                world.ask(&surface.whole(&account.key, &format!("status=400 error_body={body}")));
            surface.fails(&answer, (400, INVALID), (400, INVALID), None);
            is_free(&world, &account, &answer);
        }
        let answer = world.ask(&surface.whole(&account.key, "status=400 error_body=context"));
        let code = "context_length_exceeded";
        let error = surface.fails(&answer, (400, INVALID), (400, INVALID), Some(code));
        if surface == Messages {
            assert!(
                error["message"]
                    .as_str()
                    .unwrap()
                    .contains("prompt is too long"),
                "{error}"
            );
        } else {
            assert_eq!(error["param"], "messages");
        }
        let answer = world.ask(&surface.whole(&account.key, "status=400 error_body=policy"));
        let code = (surface == Chat).then_some("content_policy_violation");
        surface.fails(&answer, (400, INVALID), (400, INVALID), code);
        is_free(&world, &account, &answer);
    }
}

#[test]
fn a_stream_that_is_cut_ends_with_an_error_frame_and_never_cleanly() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let mut connection = world.connect();
        for end in ["end=cut", "end=clean", "reset=1"] {
            // On messages the fourth event is the first with text. The last event is the terminal
            // one.
            for cut in [4, 5, 6] {
                let answer = connection
                    .ask(&surface.stream(&account.key, &format!("events=8 cut={cut} {end}")));
                broke_off(surface, &answer, "upstream_closed", "api_error");
                assert_eq!(
                    is_free(&world, &account, &answer)["outcome"],
                    "vendor_cut",
                    "{end} {cut}"
                );
                connection = world.connect();
            }
        }
    }
}

#[test]
fn a_stream_whose_rest_came_while_the_gateway_was_stopped_is_not_cut_for_silence() {
    let idle = Duration::from_secs(3);
    let (world, account) = Plan::default()
        .limit("idle_seconds", idle.as_secs())
        .with_account();
    let streams = [Chat, Messages, Chat, Messages].map(|surface| {
        let (connection, answer) =
            world.begin_stream(&surface.stream(&account.key, "events=8 hold=5"));
        (surface, connection, answer)
    });
    world.vendor.wait_busy(streams.len() as u64);
    world.signal("STOP");
    let stopped = Instant::now();
    world.vendor.release();
    world.vendor.wait_idle();
    wait_until("the pause to last longer than a silence may", SOON, || {
        stopped.elapsed() > idle + Duration::from_secs(1)
    });
    world.signal("CONT");
    for (surface, mut connection, mut answer) in streams {
        surface.completes(&mut connection, &mut answer);
    }
}

#[test]
fn a_call_that_is_cut_before_anything_was_sent_is_an_error() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for (marker, stream) in [
            ("cut=headers", false),
            ("cut=headers", true),
            ("cut=headers reset=1", false),
            ("cut=1", false),
            ("cut=1 reset=1", false),
            ("cut=1 end=clean", false),
            ("cut=1 chunked=1", false),
            ("cut=0", true),
            ("cut=0 end=clean", true),
        ] {
            let answer =
                world.ask(&surface.request(&account.key, &surface.body(marker, stream, 1_000)));
            assert!(
                answer.status >= 500,
                "{surface:?} {marker} {stream}: {} {}",
                answer.status,
                answer.text()
            );
            surface.fails_as(&answer, UPSTREAM_ERROR);
            is_free(&world, &account, &answer);
        }
    }
}

#[test]
fn garbage_of_a_vendor_is_never_passed_on_as_an_answer() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for (garbage, stream) in [
            ("json", false),
            ("chunk", false),
            ("headers", false),
            ("json", true),
            ("headers", true),
        ] {
            let body = surface.body(&format!("garbage={garbage} events=6"), stream, 1_000);
            let answer = world.ask(&surface.request(&account.key, &body));
            assert!(
                answer.status >= 500,
                "{surface:?} {garbage} {stream}: {} {}",
                answer.status,
                answer.text()
            );
            surface.fails_as(&answer, UPSTREAM_ERROR);
            is_free(&world, &account, &answer);
        }
        for garbage in ["sse", "chunk"] {
            let answer =
                world.ask(&surface.stream(&account.key, &format!("garbage={garbage} events=6")));
            if answer.status == 200 {
                assert!(
                    answer.has(surface.error_frame()) && !surface.is_complete(&answer),
                    "{}",
                    answer.text()
                );
            } else {
                assert!(answer.status >= 500, "{}", answer.text());
            }
            is_free(&world, &account, &answer);
        }
        world.ask(&surface.whole(&account.key, "status=400"));
    }
}

#[test]
fn a_stream_whose_terminal_event_came_is_whole_whatever_its_framing_does_next() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for marker in [
            "garbage=length",
            "cut=1000",
            "cut=1000 reset=1",
            "hang=1000",
            "chatter=1",
        ] {
            let marker = format!("{marker} events=4 input=100 output=10");
            let answer = world.ask(&surface.stream(&account.key, &marker));
            assert!(surface.is_complete(&answer), "{}", answer.text());
            assert_eq!(answer.end(), Some(End::Whole), "{surface:?} {marker}");
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                micro(&receipt["credits"]),
                surface.cost(100, 10),
                "{receipt}"
            );
            assert_eq!(receipt["outcome"], "completed");
        }
    }
    // A stream may also lack its last event, and a whole answer may lack the end of its framing.
    for surface in BOTH {
        let answers = [
            (
                true,
                world.ask(&surface.stream(&account.key, "nodone=1 events=4 input=100 output=10")),
            ),
            (
                true,
                world.ask(&Messages.stream(
                    &account.key,
                    "text=three events=3 cut=8 input=100 output=10",
                )),
            ),
            (
                false,
                world.ask(&surface.whole(&account.key, "garbage=length input=100 output=10")),
            ),
        ];
        for (index, (streams, answer)) in answers.iter().enumerate() {
            let surface = if index == 1 { Messages } else { surface };
            let is_complete = if *streams {
                surface.is_complete(answer)
            } else {
                answer.status == 200
            };
            assert!(is_complete, "{index}: {}", answer.text());
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                micro(&receipt["credits"]),
                surface.cost(100, 10),
                "{receipt}"
            );
        }
    }
}

#[test]
fn an_end_that_arrives_with_the_start_changes_nothing() {
    let (world, account) = World::with_account();
    let mut expected = GRANT;
    // Head, events and the connection's end are all readable at once, because the test stops the
    // gateway's process while the vendor answers.
    let at_once = |request: &Request| {
        let calls = world.vendor.calls();
        let mut connection = world.connect();
        connection.send(&request.bytes());
        wait_until("the call", SOON, || world.vendor.calls() > calls);
        world.signal("STOP");
        world.vendor.release();
        world.vendor.wait_idle();
        world.signal("CONT");
        let answer = connection
            .try_answer()
            .unwrap_or_else(|| panic!("nothing was answered"));
        (answer, world.vendor.calls() - calls)
    };
    for surface in BOTH {
        for end in ["cut=1000", "garbage=length", "end=clean"] {
            let marker = format!("{end} hold=headers events=3 input=10 output=3");
            let (answer, calls) = at_once(&surface.stream(&account.key, &marker));
            assert!(
                surface.is_complete(&answer),
                "{surface:?} {end}: {} {}",
                answer.status,
                answer.text()
            );
            assert_eq!(
                (answer.end(), calls),
                (Some(End::Whole), 1),
                "{surface:?} {end}: asked again though billed"
            );
            expected -= surface.cost(10, 3);
        }
        for marker in ["cut=4", "garbage=sse", "cut=4 end=clean", "error_event=4"] {
            let (answer, _) =
                at_once(&surface.stream(&account.key, &format!("{marker} hold=headers events=4")));
            assert!(
                !surface.is_complete(&answer),
                "{surface:?} {marker}: {}",
                answer.text()
            );
            assert!(
                answer.status >= 500 || answer.has(surface.error_frame()),
                "{surface:?}: {}",
                answer.text()
            );
        }
    }
    assert_eq!(
        world.standing(&account).balance,
        expected,
        "who has a whole answer pays for it, and nobody else"
    );
}

#[test]
fn an_error_event_is_an_error_answer_when_it_comes_first_and_a_frame_later() {
    let (world, account) = World::with_account();
    let overloaded = (
        (503, "server_error"),
        (529, "overloaded_error"),
        Some("overloaded"),
    );
    let limited = (
        (429, "rate_limit_error"),
        (429, "rate_limit_error"),
        Some("rate_limit_exceeded"),
    );
    let failed = (
        (502, "server_error"),
        (500, "api_error"),
        Some("upstream_error"),
    );
    for surface in BOTH {
        let mut connection = world.connect();
        // A chat vendor's error object has no type or code that lets the gateway recognize an
        // overload.
        let of_529 = if surface == Chat { failed } else { overloaded };
        for (status, words) in [(529, of_529), (429, limited)] {
            let answer = connection
                .ask(&surface.stream(&account.key, &format!("error_event=0 status={status}")));
            surface.fails(&answer, words.0, words.1, words.2);
            is_free(&world, &account, &answer);
            connection = world.connect();
        }
        let answer =
            connection.ask(&surface.stream(&account.key, "events=6 error_event=5 status=529"));
        broke_off(surface, &answer, "upstream_error", "overloaded_error");
        assert_eq!(is_free(&world, &account, &answer)["outcome"], "vendor_cut");
    }
}

#[test]
fn an_event_or_an_answer_that_is_too_large_is_refused() {
    let (world, account) = Plan::default()
        .limit("event_bytes", 20_000)
        .limit("response_buffer_bytes", 50_000)
        .with_account();
    for surface in BOTH {
        let body = surface.body("bytes=400000 events=1", true, 60_000);
        let answer = world.ask(&surface.request(&account.key, &body));
        assert!(
            answer.status >= 500 || answer.has(surface.error_frame()),
            "{}",
            answer.text()
        );
        assert!(!surface.is_complete(&answer) && answer.body.len() < 50_000);
        let answer =
            world.ask(&surface.request(&account.key, &surface.body("bytes=400000", false, 60_000)));
        surface.fails_as(&answer, UPSTREAM_ERROR);
        is_free(&world, &account, &answer);
    }
}

#[test]
fn a_broken_call_leaves_no_trace_in_the_next_one() {
    let (world, account) = World::with_account();
    let breakers = [
        "garbage=length",
        "garbage=chunk",
        "cut=headers",
        "cut=3",
        "status=500",
        "garbage=sse",
        "cut=1 end=clean",
    ];
    let mut works = 0;
    for surface in BOTH {
        for marker in breakers {
            for stream in [false, true] {
                let body = surface.body(&format!("{marker} input=0 output=0"), stream, 9);
                let broken = client::try_ask(world.edge, &surface.request(&account.key, &body));
                assert!(
                    broken.is_some(),
                    "{surface:?} {marker} {stream}: no answer at all"
                );
                let text = format!("answer-{works}");
                let answer = world
                    .ask(&surface.whole(&account.key, &format!("text={text} input=1 output=1")));
                assert!(
                    answer.status == 200 && answer.has(&text),
                    "after {marker}: {}",
                    answer.text()
                );
                works += 1;
            }
        }
    }
    let request = Request::get("/v1/credits").bearer(&account.key);
    assert_eq!(micro(&world.ask(&request).json()["held"]), 0);
}
