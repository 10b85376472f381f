//! Bodies and headers in transit. The vendor receives exactly the body that the client sent.
//! Headers that belong to one connection, either between the client and the gateway or between the
//! gateway and the vendor, do not cross to the other.

use crate::client::{Answer, End, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, Simulator, World};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::process::Command;

const KB: usize = 1_000;
const SIZES: [usize; 4] = [KB, 60 * KB, 5_000 * KB, 30_000 * KB];
/// The simulated vendor accepts unknown members: these tests check which bytes arrive, not whether
/// the vendor likes them.
const MARKER: &str = "[[sim lenient=1 input=1000 output=10]]";

/// A body with everything that a careless proxy would change: spaces, escapes, number formats,
/// unknown members, cache marks, and the model's name in places where it is not the model.
/// `{MODEL}` stands for the name.
fn body(surface: Surface, bytes: usize, stream: bool) -> String {
    let rest = match surface {
        Messages => {
            "\"system\":[{\"type\":\"text\",\"text\":\"S\\u00e9\\/\",\"cache_control\":{\"type\":\"ephemeral\"}}],\
             \"metadata\" : {\"user_id\":\"\\\"model\\\":\\\"alpha-haiku-4-5-20251001\\\"\"},\"max_tokens\": 1000 "
        }
        Chat => {
            "\"max_completion_tokens\": 1000 ,\"stream_options\":{\"include_usage\":true, \"x\":0},\
             \"user\":\"\\\"model\\\":\\\"beta-5.2\\\"\""
        }
    };
    let rest = if stream || surface == Messages {
        rest
    } else {
        "\"max_completion_tokens\": 1000"
    };
    let start = format!(
        "{{ \"x_unknown\":{{\"a\":[1, 2.50,1e3,-0.0,null,true],\"model\":\"{}\"}},\n\"stream\":{stream},\"messages\":[",
        surface.model()
    );
    let end = format!(
        "{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"{MARKER} \\ud83d\\ude00 é\"}}]}}]\
         ,\t\"model\" : \"{{MODEL}}\",{rest}}}\r\n"
    );
    let filler = bytes.saturating_sub(start.len() + end.len() + 64);
    format!(
        "{start}{{\"role\":\"user\",\"content\":\"{}\"}},{end}",
        "0123456789abcdef".repeat(filler / 16)
    )
}

fn sent(surface: Surface, template: &str) -> String {
    template.replace("{MODEL}", surface.model())
}

/// Asserts that the vendor's last call had exactly this template's body, with the vendor's own
/// model name; returns the call.
#[track_caller]
fn arrived(vendor: &Simulator, surface: Surface, template: &str) -> Value {
    let expected = template.replace("{MODEL}", surface.upstream_model());
    let call = vendor.last();
    assert_eq!(call["body_length"], expected.len());
    if let Some(body) = call["body"].as_str() {
        assert_eq!(body, expected);
    }
    let digest: String = Sha256::digest(&expected)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(call["body_sha256"], digest.as_str());
    assert_eq!(
        header(&call, "content-length"),
        vec![expected.len().to_string()]
    );
    assert!(header(&call, "transfer-encoding").is_empty());
    call
}

fn header(call: &Value, name: &str) -> Vec<String> {
    let headers = call["headers"].as_array().unwrap().iter();
    headers
        .filter(|pair| pair[0] == name)
        .map(|pair| pair[1].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn is_answered(surface: Surface, stream: bool, answer: &Answer) {
    assert_eq!(
        (answer.status, answer.end()),
        (200, Some(End::Whole)),
        "{}",
        answer.text()
    );
    if stream {
        assert!(surface.is_complete(answer), "{}", answer.text());
    } else {
        assert_eq!(answer.json()["model"], surface.model());
        assert_eq!(
            answer.header("content-length"),
            Some(answer.body.len().to_string().as_str())
        );
    }
    assert!(
        !answer.has(surface.upstream_model()),
        "the vendor's model name: {}",
        answer.text()
    );
}

/// Sizes of chunks, 0 for a body with a content length. The largest body is sent in one framing on
/// each surface.
fn framings(surface: Surface, size: usize) -> &'static [usize] {
    match (size > 10_000 * KB, surface) {
        (false, _) => &[0, 16_000],
        (true, Chat) => &[0],
        (true, Messages) => &[16_000],
    }
}

#[test]
fn a_body_of_any_size_and_framing_reaches_the_vendor_byte_for_byte() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for (index, size) in SIZES.into_iter().enumerate() {
            for chunk in framings(surface, size) {
                let stream = (index + usize::from(*chunk > 0)) % 2 == 1;
                let template = body(surface, size, stream);
                let request =
                    Request::post(surface.path(), sent(surface, &template)).bearer(&account.key);
                is_answered(surface, stream, &world.ask(&request.chunked(*chunk)));
                arrived(&world.vendor, surface, &template);
            }
        }
    }
    // The largest body has one framing.
    let count = BOTH.len() * (SIZES.len() * 2 - 1);
    assert_eq!(world.vendor.calls(), count as u64);
    assert_eq!(world.ended(&account, count)["outcome"], "completed");
}

#[test]
fn a_body_of_any_size_over_h2c_reaches_the_vendor_byte_for_byte() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for (index, size) in SIZES.into_iter().enumerate() {
            let stream = index % 2 == 0;
            let template = body(surface, size, stream);
            let file = world.dir.path().join("body");
            std::fs::write(&file, sent(surface, &template)).unwrap();
            let url = format!("http://127.0.0.1:{}{}", world.edge, surface.path());
            let output = Command::new("curl")
                .args([
                    "--http2-prior-knowledge",
                    "--silent",
                    "--show-error",
                    "--max-time",
                    "60",
                    &url,
                ])
                .args(["--write-out", "\n%{http_version} %{http_code}", "--header"])
                .arg(format!("x-api-key: {}", account.key))
                .arg("--data-binary")
                .arg(format!("@{}", file.display()))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(text.ends_with("\n2 200"), "{text}");
            assert_eq!(text.contains(surface.terminal()), stream, "{text}");
            arrived(&world.vendor, surface, &template);
        }
    }
    assert_eq!(world.ended(&account, 8)["outcome"], "completed");
}

#[test]
fn a_client_that_expects_100_continue_gets_it_and_keeps_its_connection() {
    let (world, account) = World::with_account();
    let mut connection = world.connect();
    for (surface, size) in [(Chat, KB), (Messages, 5_000 * KB), (Chat, 60 * KB)] {
        let template = body(surface, size, false);
        let request = Request::post(surface.path(), sent(surface, &template)).bearer(&account.key);
        let request = request.header("expect", "100-continue");
        assert!(connection.send(&request.head()));
        // This client does not send its body until the gateway asks for it.
        assert!(
            connection
                .head()
                .expect("an interim answer")
                .starts_with("HTTP/1.1 100 ")
        );
        assert!(connection.send(&request.framed_body()));
        is_answered(surface, false, &connection.answer());
        let call = arrived(&world.vendor, surface, &template);
        assert!(header(&call, "expect").is_empty());
    }
}

#[test]
fn five_requests_on_one_connection_are_answered_in_turn() {
    let (world, account) = World::with_account();
    let mut connection = world.connect();
    for (index, size) in [KB, 5_000 * KB, 60 * KB, KB, 5_000 * KB]
        .into_iter()
        .enumerate()
    {
        let surface = BOTH[index % 2];
        let stream = index % 3 == 0;
        let template = body(surface, size, stream);
        let request = Request::post(surface.path(), sent(surface, &template)).bearer(&account.key);
        is_answered(
            surface,
            stream,
            &connection.ask(&request.chunked(index % 2 * 4_096)),
        );
        arrived(&world.vendor, surface, &template);
    }
    // The gateway also keeps the connection open after a refusal if it has read the body.
    let refused = connection.ask(&Chat.request(
        &account.key,
        &serde_json::json!({"model": "none", "messages": []}),
    ));
    assert_eq!(refused.status, 404);
    is_answered(
        Chat,
        false,
        &connection.ask(&Chat.whole(&account.key, "input=1 output=1")),
    );
}

#[test]
fn two_requests_in_one_segment_are_both_answered() {
    let (world, account) = World::with_account();
    let mut connection = world.connect();
    let first = Chat
        .whole(&account.key, "text=first input=1 output=1")
        .bytes();
    let second = Messages
        .stream(&account.key, "text=second events=1 input=1 output=1")
        .bytes();
    connection.send(&[first, second].concat());
    let answer = connection.answer();
    is_answered(Chat, false, &answer);
    assert!(answer.has("first"));
    let answer = connection.answer();
    is_answered(Messages, true, &answer);
    assert!(answer.has("second"));
    world.ended(&account, 2);
}

#[test]
fn a_second_request_during_the_first_ones_stream_does_not_disturb_it() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let (mut connection, mut first) = world
            .begin_stream(&surface.stream(&account.key, "events=10 gap_ms=60 input=1 output=10"));
        connection.send(
            &surface
                .whole(&account.key, "text=second input=1 output=1")
                .bytes(),
        );
        connection.finish(&mut first);
        is_answered(surface, true, &first);
        let second = connection.answer();
        is_answered(surface, false, &second);
        assert!(second.has("second"));
    }
    assert_eq!(world.ended(&account, 4)["outcome"], "completed");
}

#[test]
fn a_stream_is_passed_on_as_it_comes_however_it_is_cut() {
    let plan = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1);
    let (world, account) = plan.with_account();
    for surface in BOTH {
        for marker in [
            "split=1",
            "crlf=1 comment=1",
            "unknown=1 comment=1 split=7",
            "thinking=hmm tool=f args={\"a\":1}",
        ] {
            let answer = world
                .ask(&surface.stream(&account.key, &format!("{marker} events=6 input=1 output=9")));
            assert_eq!(
                (answer.status, answer.end()),
                (200, Some(End::Whole)),
                "{surface:?} {marker}"
            );
            assert!(
                answer
                    .text()
                    .replace("\r\n", "\n")
                    .contains(surface.terminal()),
                "{marker}: {}",
                answer.text()
            );
            assert!(
                answer.has(surface.model()) && !answer.has(surface.upstream_model()),
                "{marker}"
            );
            assert_eq!(
                answer.has("\r\n"),
                marker.contains("crlf"),
                "{marker}: line ends are the vendor's"
            );
            assert_eq!(
                answer.has(": keep-alive"),
                marker.contains("comment"),
                "{marker}: comments are passed on"
            );
        }
        // The gateway passes events on as they come: the client gets the first ones although the
        // last ones never come.
        let (mut connection, mut answer) =
            world.begin(&surface.stream(&account.key, "events=8 hang=5 input=1 output=9"));
        assert!(
            connection.more(&mut answer) && answer.end().is_none(),
            "{}",
            answer.text()
        );
    }
}

/// Names of the headers that a vendor may see.
const TO_VENDOR: [&str; 13] = [
    "host",
    "content-type",
    "content-length",
    "accept",
    "accept-encoding",
    "user-agent",
    "authorization",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "x-client-request-id",
    "connection",
    // HTTP/2 has this instead of `host`.
    ":authority",
];

#[test]
fn the_vendor_sees_its_own_key_and_nothing_of_the_clients_but_version_and_previews() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let mut request = surface.whole(&account.key, "input=1 output=1");
        for name in [
            "cookie",
            "x-stainless-os",
            "x-stainless-retry-count",
            "openai-organization",
            "openai-project",
        ] {
            request = request.header(name, "CANARY");
        }
        for name in [
            "origin",
            "referer",
            "x-forwarded-for",
            "forwarded",
            "via",
            "traceparent",
            "idempotency-key",
        ] {
            request = request.header(name, "CANARY");
        }
        for name in [
            "x-gateway-note",
            "anthropic-workspace-id",
            "x-goog-user",
            "x-amz-date",
            "user-agent",
        ] {
            request = request.header(name, "CANARY");
        }
        request = request.header("x-api-key", &account.key);
        request = request
            .header("anthropic-beta", "one-2025, two-2026")
            .header("anthropic-beta", "unknown-2099");
        world.expect(200, &request.header("anthropic-version", "2026-10-21"));
        let call = world.vendor.last();
        for pair in call["headers"].as_array().unwrap() {
            let (name, value) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
            assert!(TO_VENDOR.contains(&name), "the vendor saw {name}: {value}");
            assert!(
                !value.contains("CANARY") && !value.contains("gw-sk-"),
                "the vendor saw {name}: {value}"
            );
        }
        match surface {
            Chat => {
                assert_eq!(header(&call, "authorization"), ["Bearer sim-beta-key"]);
                assert!(
                    header(&call, "x-api-key").is_empty()
                        && header(&call, "anthropic-version").is_empty()
                );
                assert!(header(&call, "anthropic-beta").is_empty());
            }
            Messages => {
                assert_eq!(header(&call, "x-api-key"), ["sim-alpha-key"]);
                assert!(header(&call, "authorization").is_empty());
                assert_eq!(header(&call, "anthropic-version"), ["2026-10-21"]);
                assert_eq!(
                    header(&call, "anthropic-beta"),
                    ["one-2025,two-2026,unknown-2099"]
                );
            }
        }
    }
}

#[test]
fn the_version_header_is_taken_under_any_of_its_names_and_never_required() {
    let (world, account) = World::with_account();
    for (name, value, arrives) in [
        ("x-none", "1", "2023-06-01"),
        ("compat-version", "2024-01-01", "2024-01-01"),
        ("anthropic-version", "x", "x"),
    ] {
        let request = Messages
            .whole(&account.key, "input=1 output=1")
            .header(name, value);
        assert_eq!(world.ask(&request).status, 200, "{name}");
        assert_eq!(
            header(&world.vendor.last(), "anthropic-version"),
            [arrives],
            "{name}"
        );
        assert!(header(&world.vendor.last(), "compat-version").is_empty());
    }
}

#[test]
fn the_client_sees_nothing_of_what_is_between_us_and_the_vendor() {
    let (world, account) = World::with_account();
    let hidden = [
        "set-cookie",
        "server",
        "via",
        "alt-svc",
        "strict-transport-security",
        "access-control-expose-headers",
    ];
    let hidden_starts = ["openai-", "anthropic-", "cf-", "x-ratelimit-", "x-robots-"];
    for surface in BOTH {
        for request in [
            surface.whole(&account.key, "input=1 output=1"),
            surface.stream(&account.key, "input=1 output=1"),
            surface.whole(&account.key, "status=400"),
            surface.whole(&account.key, "status=500 error_body=leak"),
            surface.whole(&account.key, "status=400 error_body=leak"),
            surface.whole(&account.key, "status=302"),
        ] {
            let answer = world.ask(&request);
            answer.request_id();
            for (name, value) in &answer.headers {
                let is_hidden = hidden.contains(&name.as_str())
                    || hidden_starts.iter().any(|start| name.starts_with(start));
                assert!(!is_hidden, "the client saw {name}: {value}");
                assert_ne!(name, "location", "a redirect of the vendor's");
            }
            let theirs = answer
                .header("x-upstream-request-id")
                .expect("the vendor's id");
            assert_ne!(theirs, answer.request_id());
            for leak in ["org-", "sk-", surface.upstream_model(), "127.0.0.1"] {
                assert!(
                    !answer.has(leak),
                    "the client saw {leak}: {}",
                    answer.text()
                );
            }
        }
    }
}
