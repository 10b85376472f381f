//! The gateway counts each refused request with its reason, logs one line, and over HTTP/1.1
//! answers in the surface's format.
//!
//! `smuggling.rs` tests that no part of a refused request reaches a vendor. `h2_conformance.rs`
//! tests conformance to HTTP/2.

use crate::client::{Answer, Connection, Request};
use crate::h2::{
    DATA, END_HEADERS, END_STREAM, Fields, GOAWAY, H2, HEADERS, RST_STREAM, block, field, good,
};
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

const MALFORMED: &str = "gateway_malformed_total";

/// Every reason for a refusal.
const REASONS: [&str; 17] = [
    "request_line",
    "header_field",
    "framing",
    "host",
    "path",
    "header_too_large",
    "header_timeout",
    "header_incomplete",
    "silent",
    "chunk",
    "http2_preface",
    "http2_connection",
    "http2_stream",
    "http2_flood",
    "tls_handshake",
    "admin_listener",
    "sidecar_listener",
];

fn count(world: &World, reason: &str) -> f64 {
    world.metric(MALFORMED, &[&format!("reason=\"{reason}\"")])
}

fn wait_count(world: &World, reason: &str, count_due: f64) {
    wait_for(
        &format!("{reason} to be counted {count_due} times"),
        SOON,
        || (count(world, reason) >= count_due).then_some(()),
    );
    assert_eq!(count(world, reason), count_due, "{reason}");
}

/// The log's lines with this reason.
fn lines(world: &World, reason: &str) -> Vec<String> {
    let mark = format!("refused ({reason})");
    world
        .log()
        .lines()
        .filter(|line| line.contains(&mark))
        .map(str::to_owned)
        .collect()
}

fn send(world: &World, bytes: &[u8]) -> (Option<Answer>, Connection) {
    let mut connection = world.connect();
    connection.send(bytes);
    (connection.try_answer(), connection)
}

/// The client's bytes, the reason, and the status.
#[rustfmt::skip]
const REFUSED: [(&str, &str, u16); 20] = [
    ("GET\r\n\r\n", "request_line", 400),
    ("GET /healthz\r\n\r\n", "request_line", 400),
    ("GET /v1/messages HTTP/1.2\r\nhost: g\r\n\r\n", "request_line", 400),
    ("CONNECT g:443 HTTP/1.1\r\nhost: g:443\r\n\r\n", "request_line", 405),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx : 1\r\n\r\n", "header_field", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx y: 1\r\n\r\n", "header_field", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx: a\0b\r\n\r\n", "header_field", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx: 1\n\r\n", "header_field", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\nx\r\n\r\n", "header_field", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "framing", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 1x\r\n\r\n", "framing", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999999999999\r\n\r\n", "framing", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\ntransfer-encoding: x\r\n\r\n", "framing", 400),
    ("POST /v1/messages HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "framing", 400),
    ("POST /v1/messages HTTP/1.1\r\n\r\n", "host", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "host", 400),
    ("GET http://a/healthz HTTP/1.1\r\nhost: b\r\n\r\n", "host", 400),
    ("POST /v1/messages/../x HTTP/1.1\r\nhost: g\r\n\r\n", "path", 400),
    ("POST /v1/messages HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n\r\n", "chunk", 400),
    ("OPTIONS * HTTP/1.1\r\nhost: g\r\n\r\n", "path", 400),
];

#[test]
fn a_malformed_request_is_answered_counted_and_logged_once() {
    let world = World::new();
    for reason in REASONS {
        assert!(
            world
                .metrics()
                .contains(&format!("{MALFORMED}{{reason=\"{reason}\"}} 0")),
            "{reason} begins at 0"
        );
    }
    for (bytes, reason, status) in REFUSED {
        let before = (count(&world, reason), lines(&world, reason).len());
        let (answer, mut connection) = send(&world, bytes.as_bytes());
        let answer = answer.unwrap_or_else(|| panic!("no answer to {bytes:?}"));
        assert_eq!(answer.status, status, "{bytes:?}: {}", answer.text());
        assert_eq!(answer.header("server"), None, "{bytes:?}");
        assert_eq!(answer.header("connection"), Some("close"), "{bytes:?}");
        let request_id = answer.request_id();
        let body = answer.json();
        let is_messages = bytes.contains(" /v1/messages HTTP/1.");
        assert_eq!(body["type"] == "error", is_messages, "{bytes:?}: {body}");
        assert!(
            body["error"]["message"].as_str().unwrap().len() > 10,
            "{body}"
        );
        assert!(connection.is_closed(), "{bytes:?}");
        wait_count(&world, reason, before.0 + 1.0);
        let lines = wait_for("the line of the log", SOON, || {
            Some(lines(&world, reason)).filter(|lines| lines.len() > before.1)
        });
        assert_eq!(lines.len(), before.1 + 1, "{bytes:?}: {lines:#?}");
        assert!(
            lines[before.1].contains(&request_id) && lines[before.1].contains("127.0.0.1"),
            "{lines:#?}"
        );
    }
    let answers = world.metric("gateway_requests_total", &["route=\"malformed\""]);
    assert_eq!(answers, REFUSED.len() as f64);
    world.has_metric("gateway_requests_total", &["route=\"api\""], 0.0);
    assert_eq!(world.vendor.calls(), 0);
}

#[test]
fn a_malformed_request_behind_a_good_one_is_answered_and_is_not_taken_for_the_good_ones_path() {
    let (world, account) = World::with_account();
    let good = Request::get("/v1/messages/none")
        .bearer(&account.key)
        .bytes();
    let mut connection = world.connect();
    connection.send(&[&good[..], b"nonsense\r\n\r\n"].concat());
    assert_eq!(connection.answer().status, 404);
    let answer = connection.answer();
    assert_eq!((answer.status, answer.header("server")), (400, None));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    assert_eq!(
        answer.json()["type"],
        serde_json::Value::Null,
        "the chat shape"
    );
    assert!(connection.is_closed());
    wait_count(&world, "request_line", 1.0);
}

#[test]
fn what_never_became_a_request_is_counted_too() {
    let world = Plan::default().limit("header_read_seconds", 1).start();
    let mut silent = world.connect();
    let mut slow = world.connect();
    slow.send(b"POST /v1/messages HTTP/1.1\r\nhost: g\r\n");
    assert!(silent.is_closed() && slow.is_closed());
    wait_count(&world, "silent", 1.0);
    wait_count(&world, "header_timeout", 1.0);
    let gone = world.connect();
    TcpStream::connect(("127.0.0.1", world.edge))
        .unwrap()
        .write_all(b"POST /v1/me")
        .unwrap();
    drop(gone);
    wait_count(&world, "header_incomplete", 1.0);
    assert_eq!(
        (
            lines(&world, "silent").len(),
            lines(&world, "header_timeout").len()
        ),
        (1, 1)
    );
    // Load balancers open a connection without sending a byte to check the port, so the gateway
    // does not count it.
    assert_eq!(count(&world, "silent"), 1.0);
    let mut large = world.connect();
    large.send(b"GET / HTTP/1.1\r\nhost: g\r\n");
    large.send(format!("x: {}\r\n", "y".repeat(200_000)).as_bytes());
    large.try_answer();
    wait_count(&world, "header_too_large", 1.0);
}

#[test]
fn faults_of_http2_are_counted_by_what_they_end() {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    // A control: a valid request, and a client that disconnects by itself.
    let mut h2 = H2::open(world.edge);
    h2.ask(1, &good(&account.key, &body), body.as_bytes());
    assert_eq!(h2.outcome(1), crate::h2::Outcome::Answered);
    drop(h2);
    for reason in [
        "http2_stream",
        "http2_connection",
        "http2_flood",
        "http2_preface",
        "header_incomplete",
    ] {
        assert_eq!(count(&world, reason), 0.0, "{reason}");
    }
    // A header field that only HTTP/1 permits resets the stream.
    let mut h2 = H2::open(world.edge);
    let mut fields = good(&account.key, &body);
    fields.push(field("connection", "close"));
    h2.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields));
    wait_count(&world, "http2_stream", 1.0);
    // Pingora itself answers 400 to a request without an authority.
    let mut fields = good(&account.key, &body);
    fields.retain(|(name, _)| name != b":authority" && name != b"content-length");
    h2.send(HEADERS, END_HEADERS | END_STREAM, 3, &block(&fields));
    wait_count(&world, "http2_stream", 2.0);
    // HEADERS on stream 0 end the connection.
    h2.send(HEADERS, END_HEADERS, 0, &[]);
    wait_count(&world, "http2_connection", 1.0);
    assert_eq!(
        (
            lines(&world, "http2_stream").len(),
            lines(&world, "http2_connection").len()
        ),
        (2, 1)
    );
    world.works(Chat, &account.key);
}

#[test]
fn a_flood_is_counted_whole_and_logged_in_a_few_lines() {
    let world = World::new();
    let requests = if crate::is_long() { 5_000 } else { 300 };
    for _ in 0..requests {
        let (answer, _) = send(&world, b"nonsense\r\n\r\n");
        assert_eq!(answer.unwrap().status, 400);
    }
    wait_count(&world, "request_line", f64::from(requests));
    let logged = lines(&world, "request_line").len();
    assert!(
        (10..=requests as usize / 10).contains(&logged),
        "{logged} lines"
    );
    wait_until("the number of the others", SOON, || {
        lines(&world, "request_line")
            .iter()
            .any(|line| line.contains("more lines like this one"))
    });
}

#[test]
fn health_checks_and_pages_are_counted_apart_from_the_api() {
    let (world, account) = World::with_account();
    for _ in 0..20 {
        world.expect(200, &Request::get("/healthz"));
    }
    world.expect(200, &Request::get("/docs"));
    world.works(Chat, &account.key);
    world.expect(401, &Request::get("/v1/models"));
    let answers = |labels: &[&str]| world.metric("gateway_requests_total", labels);
    wait_until("all to be counted", SOON, || answers(&[]) >= 23.0);
    assert_eq!(
        answers(&["route=\"health\"", "surface=\"\"", "status=\"200\""]),
        20.0
    );
    assert_eq!(
        answers(&["route=\"page\"", "surface=\"\"", "status=\"200\""]),
        1.0
    );
    assert_eq!(answers(&["route=\"api\""]), 2.0);
    assert_eq!(answers(&["route=\"api\"", "status=\"200\""]), 1.0);
}

/// Plain text sent to a port that requires TLS.
#[test]
fn a_handshake_that_fails_is_counted_and_a_look_at_the_port_is_not() {
    let (world, _dir) = crate::tls::secure();
    for _ in 0..3 {
        drop(TcpStream::connect(("127.0.0.1", world.edge)).unwrap());
    }
    let mut stream = TcpStream::connect(("127.0.0.1", world.edge)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: g\r\n\r\n")
        .unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    wait_count(&world, "tls_handshake", 1.0);
    let lines = wait_for("the line of the log", SOON, || {
        Some(lines(&world, "tls_handshake")).filter(|lines| !lines.is_empty())
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        !world.log().contains("Downstream handshake"),
        "Pingora's own line"
    );
    world.close();
}

/// The header of an HTTP/2 request without a key.
fn anonymous(method: &str, path: &str) -> Fields {
    vec![
        field(":method", method),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", "gateway.test"),
    ]
}

/// The access log's lines, once `due` of them are there.
fn access_lines(path: &std::path::Path, due: usize) -> Vec<Value> {
    wait_for(&format!("{due} lines in the access log"), SOON, || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        (lines.len() >= due).then_some(lines)
    })
}

/// The number of requests that the gateway has counted under these labels.
fn answers(world: &World, labels: &[&str]) -> f64 {
    world.metric("gateway_requests_total", labels)
}

fn rejected(world: &World) -> f64 {
    world.metric("gateway_rejected_total", &[])
}

/// If a client cancels its request over HTTP/2, the gateway does not count that as its own failure.
#[test]
fn a_request_that_is_cancelled_over_http2_is_counted_once_as_its_clients_doing() {
    let (world, log, _dir) = crate::access::logging();
    let mut counted = 0.0;
    for (path, route) in [
        ("/dashboard/sign-in", "page"),
        ("/dashboard/sign-up", "page"),
    ] {
        let mut h2 = H2::open(world.edge);
        let mut fields = anonymous("POST", path);
        fields.push(field("content-length", "100"));
        h2.send(HEADERS, END_HEADERS, 1, &block(&fields));
        h2.send(DATA, 0, 1, b"email=a");
        h2.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
        counted += 1.0;
        let labels = [&format!("route=\"{route}\"")[..], "status=\"499\""];
        wait_until("the request to be counted", SOON, || {
            answers(&world, &labels) == counted
        });
    }
    for line in access_lines(&log, 2) {
        assert_eq!(
            (&line["route"], &line["status"], &line["reason"]),
            (&"page".into(), &499.into(), &"client_left".into()),
            "{line}"
        );
        assert_eq!(line.get("surface"), None, "{line}");
    }
    // The reset may arrive before or after the answer. In neither case is it a failure.
    for path in ["/v1/models", "/healthz", "/docs"] {
        for _ in 0..20 {
            let mut h2 = H2::open(world.edge);
            let request = block(&anonymous("GET", path));
            h2.send(HEADERS, END_HEADERS, 1, &request);
            h2.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
            counted += 1.0;
        }
    }
    world.wait_metric("gateway_client_connections", &[], 0.0);
    assert!(answers(&world, &[]) <= counted);
    assert_eq!(answers(&world, &["status=\"500\""]), 0.0);
    let internal = ["reason=\"internal\""];
    assert_eq!(world.metric("gateway_rejected_total", &internal), 0.0);
    world.close();
}

#[test]
fn a_body_that_breaks_http2_is_counted_as_malformed_alone() {
    let (world, log, _dir) = crate::access::logging();
    let account = world.account();
    let mut page = anonymous("POST", "/dashboard/sign-in");
    page.push(field("content-length", "5"));
    let mut call = good(&account.key, "");
    call.retain(|(name, _)| name != b"content-length");
    call.push(field("content-length", "5"));
    for (number, fields) in [page, call].into_iter().enumerate() {
        let mut h2 = H2::open(world.edge);
        h2.ask(1, &fields, &[b'a'; 50]);
        assert_eq!(h2.outcome(1), crate::h2::Outcome::Refused);
        let due = number as f64 + 1.0;
        wait_count(&world, "http2_stream", due);
        wait_until("the request to be counted", SOON, || {
            answers(&world, &["route=\"malformed\"", "status=\"400\""]) == due
        });
    }
    // A second HEADERS frame without END_STREAM.
    let mut h2 = H2::open(world.edge);
    let fields = anonymous("POST", "/dashboard/sign-in");
    h2.send(HEADERS, END_HEADERS, 1, &block(&fields));
    h2.send(HEADERS, END_HEADERS, 1, &block(&vec![field("x", "y")]));
    assert_eq!(h2.outcome(1), crate::h2::Outcome::Refused);
    for line in access_lines(&log, 3) {
        assert_eq!(
            (&line["route"], &line["reason"]),
            (&"malformed".into(), &"http2_stream".into()),
            "{line}"
        );
    }
    assert_eq!((answers(&world, &[]), rejected(&world)), (3.0, 0.0));
    world.close();
}

#[test]
fn what_the_library_for_http2_answers_by_itself_is_logged_and_counted_once() {
    let (world, log, _dir) = crate::access::logging();
    let large = "x".repeat(15_000);
    let mut differing = anonymous("GET", "/v1/models");
    differing.push(field("host", "other.test"));
    let mut nameless = anonymous("GET", "/v1/models");
    nameless.retain(|(name, _)| name != b":authority");
    let connect = vec![field(":method", "CONNECT"), field(":authority", "g:443")];
    for (fields, reason) in [
        (connect, "request_line"),
        (differing, "http2_stream"),
        (nameless, "http2_stream"),
    ] {
        let before = count(&world, reason);
        let mut h2 = H2::open(world.edge);
        h2.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields));
        assert_eq!(h2.outcome(1), crate::h2::Outcome::Refused);
        wait_count(&world, reason, before + 1.0);
    }
    // Two requests on one connection, because the connection remembers the first status.
    let mut h2 = H2::open(world.edge);
    for stream in [1, 3] {
        let begin = block(&anonymous("GET", "/v1/models"));
        h2.send(HEADERS, END_STREAM, stream, &begin);
        for number in 0..4 {
            let flags = if number == 3 { END_HEADERS } else { 0 };
            let more = block(&vec![field(&format!("x-{number}"), &large)]);
            h2.send(CONTINUATION, flags, stream, &more);
        }
        assert_eq!(h2.outcome(stream), crate::h2::Outcome::Refused);
        wait_count(&world, "header_too_large", f64::from(stream + 1) / 2.0);
    }
    let lines = access_lines(&log, 5);
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            assert_eq!(line["route"], "malformed", "{line}");
            (line["status"].as_u64().unwrap(), line["reason"].clone())
        })
        .collect();
    let due = [
        (405, "request_line".into()),
        (400, "http2_stream".into()),
        (400, "http2_stream".into()),
        (431, "header_too_large".into()),
        (431, "header_too_large".into()),
    ];
    assert_eq!(seen, due);
    for (status, due) in [("405", 1.0), ("400", 2.0), ("431", 2.0)] {
        let labels = ["route=\"malformed\"", &format!("status=\"{status}\"")];
        assert_eq!(answers(&world, &labels), due, "{status}");
    }
    assert_eq!(rejected(&world), 0.0);
    world.close();
}

const CONTINUATION: u8 = 9;

#[test]
fn frames_without_end_are_a_flood() {
    let world = World::new();
    let page = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/healthz"),
        (":authority", "g"),
    ];
    let page = block(&page.map(|(name, value)| field(name, value)).to_vec());
    for (kind, payload, is_behind_a_request) in [
        (6, &[0; 8][..], false),
        (4, &[], false),
        (2, &[0; 5], false),
        (99, &[0; 64], false),
        (8, &[0, 0, 0, 1], false),
        // Frames that nothing answers.
        (2, &[0; 5], true),
        (99, &[0; 64], true),
        (8, &[0, 0, 0, 1], true),
    ] {
        let before = count(&world, "http2_flood");
        let mut h2 = H2::open(world.edge);
        if is_behind_a_request {
            h2.send(HEADERS, END_HEADERS | END_STREAM, 1, &page);
            assert_eq!(h2.outcome(1), crate::h2::Outcome::Answered);
        }
        let mut frames = 0;
        while count_of_writes(&mut h2, kind, payload) && frames < 200 {
            frames += 1;
        }
        while h2.frame().is_some_and(|(kind, ..)| kind != GOAWAY) {}
        wait_until("the flood to be counted", SOON, || {
            count(&world, "http2_flood") > before
        });
    }
    for reason in ["header_too_large", "header_timeout", "header_incomplete"] {
        assert_eq!(count(&world, reason), 0.0, "{reason}");
    }
}

/// Sends a thousand frames. Returns false if the gateway has closed the connection.
fn count_of_writes(h2: &mut H2, kind: u8, payload: &[u8]) -> bool {
    let stream = u32::from(kind == 2);
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, 0], &stream.to_be_bytes()].concat();
    h2.0.write_all(&[&head, payload].concat().repeat(1_000))
        .is_ok()
}

#[test]
fn the_access_log_and_the_metrics_agree_on_route_and_reason() {
    let (world, log, _dir) = crate::access::logging();
    let chunk = "POST /v1/messages HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n\r\n";
    let framing = "POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
    let path = "GET /v1/x/../y HTTP/1.1\r\nhost: g\r\n\r\n";
    let cases: [(&[u8], &str, &str, u16); 6] = [
        (chunk.as_bytes(), "malformed", "chunk", 400),
        (framing.as_bytes(), "malformed", "framing", 400),
        (path.as_bytes(), "malformed", "path", 400),
        (
            b"POST /healthz HTTP/1.1\r\nhost: g\r\n\r\n",
            "health",
            "wrong_method",
            405,
        ),
        (
            b"GET /nowhere HTTP/1.1\r\nhost: g\r\n\r\n",
            "page",
            "unknown_path",
            404,
        ),
        (
            b"PUT /docs HTTP/1.1\r\nhost: g\r\ncontent-length: 0\r\n\r\n",
            "page",
            "wrong_method",
            405,
        ),
    ];
    for (number, (bytes, route, reason, status)) in cases.into_iter().enumerate() {
        let (answer, _connection) = send(&world, bytes);
        let answer = answer.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
        let labels = [format!("route=\"{route}\""), format!("status=\"{status}\"")];
        let labels = labels.each_ref().map(String::as_str);
        let lines = access_lines(&log, number + 1);
        let line = &lines[number];
        assert_eq!(
            (&line["route"], &line["reason"], &line["status"]),
            (&route.into(), &reason.into(), &status.into()),
            "{line}"
        );
        let family = if route == "malformed" {
            MALFORMED
        } else {
            assert_eq!(line.get("surface"), None, "{line}");
            "gateway_rejected_total"
        };
        assert_eq!(
            world.metric(family, &[&format!("reason=\"{reason}\"")]),
            if number == 5 { 2.0 } else { 1.0 },
            "{reason}"
        );
        assert!(answers(&world, &labels) >= 1.0, "{labels:?}");
        assert_eq!(answers(&world, &[]), number as f64 + 1.0);
    }
    assert_eq!(rejected(&world), 3.0);
    world.close();
}

#[test]
fn every_answer_that_can_occur_begins_at_zero() {
    let world = World::new();
    let text = world.metrics();
    for series in [
        "gateway_requests_total{model=\"\",route=\"malformed\",status=\"431\",surface=\"\"} 0",
        "gateway_requests_total{model=\"\",route=\"malformed\",status=\"405\",surface=\"chat\"} 0",
        "gateway_requests_total{model=\"\",route=\"page\",status=\"303\",surface=\"\"} 0",
        "gateway_requests_total{model=\"\",route=\"page\",status=\"404\",surface=\"\"} 0",
        "gateway_requests_total{model=\"\",route=\"health\",status=\"405\",surface=\"\"} 0",
    ] {
        assert!(text.contains(series), "{series}");
    }
    assert!(text.lines().any(|line| {
        line.starts_with(
            "gen_ai_client_operation_duration_seconds_count{error_type=\"client_left\"",
        ) && line.ends_with(" 0")
    }));
}

#[test]
fn what_the_admin_listener_refuses_is_counted_and_logged_once() {
    let world = World::new();
    for (number, (method, path, status)) in [
        ("GET", "/nowhere", 404),
        ("POST", "/metrics", 405),
        ("GET", "/admin/v1/accounts", 401),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = crate::client::try_ask(world.admin, &Request::new(method, path)).unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        wait_count(&world, "admin_listener", number as f64 + 1.0);
    }
    let lines = lines(&world, "admin_listener");
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(
        lines[0].contains("GET /nowhere: answered with 404"),
        "{lines:#?}"
    );
    // A stranger's name that points to this machine, in a browser of this network.
    for (host, status) in [("evil.example", 421), ("localhost", 200)] {
        let mut connection = Connection::open(world.admin);
        connection.send(format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes());
        let answer = connection.answer();
        assert_eq!(answer.status, status, "{host}");
        assert_eq!(answer.has("gateway_"), status == 200, "{host}");
    }
    wait_count(&world, "admin_listener", 4.0);
    // The edge counts a request for an unknown page, and the sidecar does not count it again.
    world.expect(404, &Request::get("/nowhere"));
    assert_eq!(count(&world, "sidecar_listener"), 0.0);
    assert_eq!(rejected(&world), 1.0);
}
