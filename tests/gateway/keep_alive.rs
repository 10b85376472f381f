//! Keep-alives for a stream's client while its vendor is silent. They fit the client's protocol,
//! occur on every stream, are never inside an event, and are not stored with an answer.

use crate::client::Request;
use crate::scripted::{Scripted, Step, piece, stream_end, stream_head};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::json;
use std::time::Duration;

/// Time for at least two keep-alives at an interval of one second, although a busy machine may not
/// run the gateway for seconds.
const SILENCE: Step = Step::Wait(Duration::from_millis(5_600));

fn sign(surface: Surface) -> &'static str {
    match surface {
        Chat => ": ping\n\n",
        Messages => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    }
}

fn world(plan: Plan) -> World {
    plan.limit("stream_keep_alive_seconds", 1).start()
}

/// The events of a complete stream, as the vendor of this protocol writes them.
fn events(surface: Surface) -> Vec<String> {
    let chunk = |delta: &str, reason: &str| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-5.2\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
        )
    };
    let named =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n");
    match surface {
        Chat => vec![
            chunk("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
            chunk("{\"content\":\"one\"}", "null"),
            chunk("{\"content\":\" two\"}", "null"),
            chunk("{}", "\"stop\""),
            "data: [DONE]\n\n".to_owned(),
        ],
        Messages => vec![
            named(
                "message_start",
                ",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"claude-haiku-4-5-20251001\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}",
            ),
            named(
                "content_block_start",
                ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}",
            ),
            named(
                "content_block_delta",
                ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"one\"}",
            ),
            named("content_block_stop", ",\"index\":0"),
            named(
                "message_delta",
                ",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":2}",
            ),
            named("message_stop", ""),
        ],
    }
}

/// The vendor pauses before the first event, or in the middle of a later one.
#[test]
fn a_stream_that_is_passed_on_is_kept_alive_between_its_events_and_is_the_vendor_s_but_for_that() {
    let check = |surface: Surface| {
        let events = events(surface);
        let expected = events
            .concat()
            .replace(surface.upstream_model(), surface.model());
        let in_silence = |silent: usize| {
            let mut steps = vec![stream_head()];
            for (index, event) in events.iter().enumerate() {
                if index != silent {
                    steps.push(piece(event));
                    continue;
                }
                let (half, rest) = event.split_at(event.len() / 2);
                let halves = [piece(half), SILENCE, piece(rest)];
                // Before the first event the vendor sends nothing at all.
                steps.extend(if silent == 0 {
                    vec![SILENCE, piece(event)]
                } else {
                    halves.to_vec()
                });
            }
            steps.push(stream_end());
            let vendor = Scripted::start(steps);
            let world = world(Plan::default().endpoints(&[vendor.port]));
            let account = world.account();
            let answer = world.ask(&surface.stream(&account.key, "input=1"));
            let text = answer.text();
            assert!(
                text.matches(sign(surface)).count() >= 2,
                "{surface:?}, silent in event {silent}: {text}"
            );
            assert_eq!(
                text.replace(sign(surface), ""),
                expected,
                "{surface:?}, silent in event {silent}"
            );
            world.ended(&account, 1);
        };
        std::thread::scope(|scope| {
            let in_silence = &in_silence;
            for silent in [0, 1, 2, events.len() - 1] {
                scope.spawn(move || in_silence(silent));
            }
        });
    };
    BOTH.into_iter().for_each(check);
}

#[test]
fn a_responses_stream_that_is_passed_on_is_kept_alive_by_comments_which_have_no_number() {
    let world = world(Plan::default().edit("    protocol: chat\n", "    protocol: responses\n"));
    let account = world.account();
    for marker in ["first_ms=5600 events=2", "events=2 gap_ms=2600"] {
        let body = json!({"model": Chat.model(), "input": format!("[[sim {marker}]] hi"), "stream": true, "max_output_tokens": 500});
        let mut answer =
            world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
        let text = answer.text();
        assert!(text.matches(": ping\n\n").count() >= 2, "{marker}: {text}");
        answer.body = text.replace(": ping\n\n", "").into_bytes();
        let events = crate::responses::events(&answer);
        assert_eq!(
            *crate::responses::kinds(&events).last().unwrap(),
            "response.completed"
        );
    }
}

/// The gateway holds back the first event until useful content follows, or until the client has
/// waited for long enough.
#[test]
fn a_client_that_waits_gets_the_opening_that_was_kept_back_and_what_is_numbered_in_order() {
    for surface in BOTH {
        let events = events(surface);
        let mut steps = vec![stream_head(), piece(&events[0]), SILENCE];
        steps.extend(events[1..].iter().map(|event| piece(event)));
        steps.push(stream_end());
        let vendor = Scripted::start(steps);
        let world = world(Plan::default().endpoints(&[vendor.port]));
        let account = world.account();
        // Translated: `crate::responses::events` asserts that the sequence numbers start right and
        // have no gap.
        let body = json!({"model": surface.model(), "input": "hi", "stream": true, "max_output_tokens": 500});
        let answer =
            world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
        let responses = crate::responses::events(&answer);
        let kinds = crate::responses::kinds(&responses);
        assert_eq!(
            kinds[..4],
            [
                "response.created",
                "response.in_progress",
                "keepalive",
                "keepalive"
            ],
            "{kinds:?}"
        );
        assert_eq!(*kinds.last().unwrap(), "response.completed", "{kinds:?}");
        // Passed through.
        let text = world.ask(&surface.stream(&account.key, "input=1")).text();
        let opening = events[0].replace(surface.upstream_model(), surface.model());
        assert!(
            text.starts_with(&format!("{opening}{}", sign(surface))),
            "{text}"
        );
        world.ended(&account, 2);
    }
}

/// After a keep-alive the 200 is final, so the gateway reports a later failure in the stream, which
/// already has its first event.
#[test]
fn a_stream_that_fails_after_a_keep_alive_says_so_in_the_stream() {
    for surface in BOTH {
        let events = events(surface);
        let vendor = Scripted::start(vec![stream_head(), piece(&events[0]), SILENCE, Step::Close]);
        let world = world(Plan::default().endpoints(&[vendor.port, vendor.port]));
        let account = world.account();
        let answer = world.ask(&surface.stream(&account.key, "input=1"));
        let text = answer.text();
        assert!(
            answer.status == 200 && text.contains(surface.error_frame()),
            "{text}"
        );
        let opening = events[0].replace(surface.upstream_model(), surface.model());
        assert!(
            text.replace(sign(surface), "").starts_with(&opening),
            "{text}"
        );
        assert_eq!(
            (vendor.calls(), world.ended(&account, 1)["outcome"].as_str()),
            (1, Some("vendor_cut"))
        );
    }
}

#[test]
fn an_answer_that_is_kept_for_its_idempotency_key_holds_no_keep_alive() {
    let world = world(Plan::default());
    let account = world.account();
    for surface in BOTH {
        let request = || {
            surface
                .stream(&account.key, "first_ms=5600 events=2")
                .header("idempotency-key", surface.path())
        };
        let (first, again) = (world.ask(&request()), world.ask(&request()));
        // The messages vendor sends pings of its own, which the stored answer keeps.
        assert!(
            first.text().matches(sign(surface)).count()
                >= again.text().matches(sign(surface)).count() + 2
        );
        assert_eq!(again.header("x-gateway-replayed"), Some("true"));
        let strip = |text: String| text.replace(sign(surface), "");
        assert_eq!(strip(first.text()), strip(again.text()));
        assert!(surface.is_complete(&again));
    }
}
