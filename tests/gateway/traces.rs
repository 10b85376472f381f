//! Tests traces: a collector gets one span per request and one per attempt at a vendor, and no
//! secret. An unreachable collector does not affect requests.

use crate::client::Request;
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, SOON, Simulator, World, free_port, wait_for, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A collector that keeps what it receives.
struct Collector {
    port: u16,
    got: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = Arc::<Mutex<Vec<(String, Value)>>>::default();
        let kept = Arc::clone(&got);
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for mut socket in listener.incoming().flatten() {
                let (mut text, mut piece) = (Vec::new(), [0; 16_384]);
                let (head, body) = loop {
                    let read = socket.read(&mut piece).unwrap();
                    assert!(read > 0, "{}", String::from_utf8_lossy(&text));
                    text.extend_from_slice(&piece[..read]);
                    let all = String::from_utf8_lossy(&text).into_owned();
                    let Some((head, body)) = all.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let length = head
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: "))
                        .unwrap();
                    if body.len() >= length.parse().unwrap() {
                        break (head.to_owned(), body.to_owned());
                    }
                };
                kept.lock()
                    .unwrap()
                    .push((head, serde_json::from_str(&body).unwrap()));
                socket
                    .write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
                    )
                    .unwrap();
            }
        });
        Self { port, got }
    }

    /// Waits for `count` spans and returns all.
    fn spans(&self, count: usize) -> Vec<Value> {
        let spans = || {
            let got = self.got.lock().unwrap();
            let of = |(_, document): &(String, Value)| {
                document["resourceSpans"][0]["scopeSpans"][0]["spans"]
                    .as_array()
                    .unwrap()
                    .clone()
            };
            got.iter().flat_map(of).collect::<Vec<_>>()
        };
        let found = wait_for("the spans", SOON, || {
            Some(spans()).filter(|found| found.len() >= count)
        });
        assert_eq!(found.len(), count, "{found:#?}");
        found
    }
}

fn tracing(plan: Plan, port: u16, more: &str) -> World {
    let store = "store: {kind: embedded}";
    let traces = format!("{{endpoint: \"http://127.0.0.1:{port}/v1/traces\"{more}}}");
    plan.edit(store, &format!("{store}\ntelemetry: {{traces: {traces}}}"))
        .start()
}

fn fact<'a>(span: &'a Value, key: &str) -> &'a str {
    let found = span["attributes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|fact| fact["key"] == key);
    let value = &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"];
    value["stringValue"]
        .as_str()
        .or(value["intValue"].as_str())
        .unwrap()
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().unwrap().parse().unwrap()
}

/// The `traceparent` header that the vendor received last.
fn sent(vendor: &Simulator) -> Option<String> {
    let call = vendor.last();
    let header = call["headers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|header| header[0] == "traceparent")
        .cloned();
    header.map(|header| header[1].as_str().unwrap().to_owned())
}

#[test]
fn a_request_and_its_attempts_are_one_trace_of_its_callers() {
    let collector = Collector::start();
    let (broken, works) = (Simulator::start(Some("status=500")), Simulator::start(None));
    let plan = Plan::default()
        .endpoints(&[broken.port, works.port])
        .turns()
        .limit("breaker_failures", 0);
    let world = tracing(
        plan,
        collector.port,
        ", sample_ratio: \"1\", to_vendors: true",
    );
    let account = world.account();
    let mut asked = 0;
    // The endpoints take turns: send requests until one begins at the endpoint that fails.
    while broken.calls() == 0 {
        asked += 1;
        let answer = world.expect(
            200,
            &Chat
                .stream(&account.key, "text=CANARY input=10 output=5")
                .header("traceparent", CALLER),
        );
        assert!(Chat.is_complete(&answer));
    }
    let refused = world.ask(&Chat.whole("gw-sk-CANARY", "text=CANARY"));
    assert_eq!(refused.status, 401);
    let spans = collector.spans(2 * asked + 2);
    let requests: Vec<_> = spans
        .iter()
        .filter(|span| span["name"] == "request")
        .collect();
    assert_eq!(requests.len(), asked + 1);
    // Spans arrive in any order, because the client gets its answer before the span is recorded.
    let attempts_of = |request: &Value| {
        spans
            .iter()
            .filter(|span| span["parentSpanId"] == request["spanId"])
            .collect::<Vec<_>>()
    };
    let (of_caller, own): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .partition(|request| request["parentSpanId"] == "00f067aa0ba902b7");
    let [failed] = own[..] else { panic!("{own:?}") };
    let last = of_caller
        .into_iter()
        .find(|request| attempts_of(request).len() == 2)
        .unwrap();
    assert_eq!(
        (&last["traceId"], last["kind"].as_u64()),
        (&TRACE.into(), Some(2))
    );
    assert_eq!(
        [
            fact(last, "gen_ai.request.model"),
            fact(last, "gateway.outcome")
        ],
        [Chat.model(), "completed"]
    );
    let attempts = attempts_of(last);
    let [first, second] = attempts[..] else {
        panic!("{attempts:?}")
    };
    assert_eq!(
        [
            fact(first, "http.response.status_code"),
            fact(second, "http.response.status_code")
        ],
        ["500", "200"]
    );
    assert_eq!(
        fact(second, "server.address"),
        format!("127.0.0.1:{}", works.port)
    );
    assert!(
        first["status"]["code"] == 2 && second["status"].is_null() && first["traceId"] == TRACE
    );
    let times = [
        nanos(last, "startTimeUnixNano"),
        nanos(first, "startTimeUnixNano"),
        nanos(first, "endTimeUnixNano"),
        nanos(second, "startTimeUnixNano"),
        nanos(second, "endTimeUnixNano"),
    ];
    assert!(
        times.is_sorted() && times[4] <= nanos(last, "endTimeUnixNano"),
        "{times:?}"
    );
    // The vendor received the span id of the attempt.
    assert_eq!(
        sent(&works),
        Some(format!(
            "00-{TRACE}-{}-01",
            second["spanId"].as_str().unwrap()
        ))
    );
    // A request without `traceparent` starts a trace of its own. A refused request has no attempt.
    assert_ne!(failed["traceId"], TRACE);
    assert!(failed["parentSpanId"].is_null());
    assert_eq!(
        [
            fact(failed, "gateway.reason"),
            fact(failed, "http.response.status_code")
        ],
        ["bad_key", "401"]
    );
    let all = format!("{:?}", collector.got.lock().unwrap());
    for secret in [
        "CANARY",
        "sim-beta-key",
        &account.key,
        &account.id,
        &account.email,
    ] {
        assert!(!all.contains(secret), "{secret}");
    }
    assert_eq!(world.metric("gateway_trace_spans_dropped_total", &[]), 0.0);
}

#[test]
fn nobody_is_traced_and_no_vendor_told_unless_it_is_asked_for() {
    let collector = Collector::start();
    // Three cases: traces off; traces on without `to_vendors`; traces on with `to_vendors` and a
    // sample ratio of 0.
    let (world, account) = World::with_account();
    let ask = |world: &World, key: &str| {
        for surface in BOTH {
            world.expect(
                200,
                &surface
                    .whole(key, "input=1 output=1")
                    .header("traceparent", CALLER),
            );
        }
    };
    ask(&world, &account.key);
    assert_eq!(sent(&world.vendor), None);
    world.close();

    let world = tracing(Plan::default(), collector.port, ", sample_ratio: \"1\"");
    let account = world.account();
    ask(&world, &account.key);
    assert_eq!(sent(&world.vendor), None);
    collector.spans(4);
    world.close();

    let world = tracing(
        Plan::default(),
        collector.port,
        ", sample_ratio: \"0\", to_vendors: true",
    );
    let account = world.account();
    ask(&world, &account.key);
    assert_eq!(
        sent(&world.vendor).as_deref(),
        Some(CALLER),
        "as the caller said it"
    );
    world.ask(
        &Chat
            .whole(&account.key, "input=1")
            .header("traceparent", "00-nonsense"),
    );
    assert_eq!(sent(&world.vendor), None);
    // The gateway sends the remaining spans when it shuts down.
    world.close();
    collector.spans(4);
    let got = collector.got.lock().unwrap();
    assert!(
        got.iter()
            .all(|(head, _)| head.starts_with("POST /v1/traces HTTP/1.1\r\n")),
        "{got:?}"
    );
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_request() {
    let world = tracing(Plan::default(), free_port(), ", sample_ratio: \"1\"");
    let account = world.account();
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    world.expect(200, &Request::get("/healthz"));
    wait_until("the spans to be given up", SOON, || {
        world.metric("gateway_trace_spans_dropped_total", &["reason=\"failed\""]) >= 4.0
    });
    assert_eq!(
        world.log().matches("send traces to").count(),
        1,
        "{}",
        world.log()
    );
}
