//! Headers, paths and model names that try to gain another meaning at the sidecar, at a vendor or
//! in a log.

use crate::client::Request;
use crate::secrets::Seen;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, World};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A chat request whose header has exactly `bytes` bytes.
fn of_bytes(key: &str, bytes: usize) -> Request {
    let plain = Chat.whole(key, "input=1 output=1");
    let pad = bytes - plain.clone().header("x-pad", "").head().len();
    plain.header("x-pad", &"x".repeat(pad))
}

/// A chat request whose header has exactly `fields` fields.
fn of_fields(key: &str, fields: usize) -> Request {
    let plain = Chat.whole(key, "input=1 output=1");
    // The request line and the blank line are not fields.
    let given = String::from_utf8(plain.head()).unwrap().lines().count() - 2;
    (given..fields).fold(plain, |request, index| {
        request.header(&format!("x-{index}"), "1")
    })
}

#[test]
fn a_header_is_read_up_to_its_limits_and_no_further() {
    let (world, account) = World::with_account();
    world.expect(200, &of_bytes(&account.key, 32_768));
    world.expect(200, &of_fields(&account.key, 64));
    for request in [
        of_bytes(&account.key, 32_769),
        of_fields(&account.key, 65),
        of_bytes(&account.key, 60_000),
    ] {
        let mut connection = world.connect();
        let answer = connection.ask(&request);
        Chat.failure(&answer, 431, "invalid_request_error", None);
        assert!(connection.is_closed());
    }
    let page = Request::get("/dashboard/sign-in").header("x-pad", &"x".repeat(33_000));
    for (accepts, kind) in [
        ("text/html", "text/html; charset=utf-8"),
        ("*/*", "application/json"),
    ] {
        let answer = world.ask(&page.clone().header("accept", accepts));
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (431, Some(kind))
        );
    }
    // The gateway does not even read the rest of a far larger header.
    let mut connection = world.connect();
    connection.send(&of_bytes(&account.key, 900_000).bytes());
    assert!(
        connection
            .try_answer()
            .is_none_or(|answer| answer.status >= 400)
    );
    assert_eq!(world.vendor.calls(), 2);
}

#[test]
fn a_path_that_must_be_resolved_or_decoded_first_leads_nowhere() {
    let (world, account) = World::with_account();
    for path in [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/./chat/completions",
        "/x/../v1/chat/completions",
        "/v1/chat/completions/..",
        "/v1/chat%2fcompletions",
        "/v1/chat%2Fcompletions",
        "/v1%2fchat/completions",
        "/%761/chat/completions",
        "/v1/chat/completions;x=1",
        "/v1/chat/completions%3bx",
        "/v1/chat/completions%00",
        "/v1/chat/completions%0d%0ax:1",
        "/v1\\chat\\completions",
        "/v1/%2e%2e/chat/completions",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2fetc/passwd",
        "/login/%2e/",
        "/login//",
        "/login%00",
        "/login;x",
        "/v1/models/%2e%2e",
        "/v1/receipts/..%2fadmin",
    ] {
        for method in ["GET", "POST"] {
            let body = Chat.body("input=1 output=1", false, 10).to_string();
            let request = match method {
                "GET" => Request::get(path),
                _ => Request::post(path, body),
            };
            let answer = world.ask(&request.bearer(&account.key));
            Chat.failure(&answer, 400, "invalid_request_error", None);
        }
    }
    // The gateway accepts a normalized path, a query and its own paths as usual.
    for (path, status) in [
        ("/healthz", 200),
        ("/v1/models?x=../..", 200),
        ("/v1/models/a:b@c", 404),
        ("/v1/none", 404),
    ] {
        assert_eq!(
            world.ask(&Request::get(path).bearer(&account.key)).status,
            status,
            "{path}"
        );
    }
    assert_eq!(world.vendor.calls(), 0);
}

/// Clients percent-encode special characters in a model's id. The gateway decodes the id once, and
/// decodes nothing else in the path.
#[test]
fn a_models_id_in_a_path_is_decoded_once() {
    let (world, account) = Plan::default()
        .edit("id: beta-5.5", "id: org/beta:5@x")
        .with_account();
    let status = |path: &str| world.ask(&Request::get(path).bearer(&account.key)).status;
    for id in [
        "org/beta:5@x",
        "org%2Fbeta:5@x",
        "org%2fbeta%3A5%40x",
        "org%2Fbeta%3a5@x",
    ] {
        let answer = world.ask(&Request::get(&format!("/v1/models/{id}")).bearer(&account.key));
        assert!(
            answer.status == 200 && answer.json()["id"] == "org/beta:5@x",
            "{id}: {}",
            answer.text()
        );
    }
    for id in [
        "org%252Fbeta:5@x",
        "%6Frg/beta:5@x",
        "org%2F%2Fbeta:5@x",
        "..%2Fcredits",
        "org%2F..%2Fbeta:5@x",
    ] {
        assert_eq!(status(&format!("/v1/models/{id}")), 400, "{id}");
    }
    assert_eq!(status("/v1/models/org%2Fnone"), 404);
    assert_eq!(status("/v1/receipts/org%2Fnone"), 400, "ids alone");
}

#[test]
fn a_models_name_enters_no_path_and_no_header() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for model in [
            "../../admin",
            "a?key=1",
            "%2e%2e",
            "a\r\nx: 1",
            "/v1/messages",
            "a#b",
            "\0",
            "é",
            &"x".repeat(5_000),
        ] {
            let mut body = surface.body("input=1 output=1", false, 10);
            body["model"] = model.into();
            let answer = world.ask(&surface.request(&account.key, &body));
            assert_eq!(answer.status, 404, "{model}: {}", answer.text());
            assert!(
                answer.body.len() < 2_000 && answer.header("x").is_none(),
                "{model}"
            );
        }
        // The client's query does not reach the vendor.
        let body = surface.body("input=1 output=1", false, 10).to_string();
        let path = format!("{}?key=1&beta=true&model=../../admin", surface.path());
        world.expect(200, &Request::post(&path, body).bearer(&account.key));
        assert_eq!(
            world.vendor.last()["path"]
                .as_str()
                .unwrap_or(surface.path()),
            surface.path()
        );
    }
    assert_eq!(world.vendor.calls(), 2);
}

/// Header names that an intermediate proxy, a vendor or a log might interpret.
const HOSTILE: [&str; 44] = [
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-http-method-override",
    "x-method-override",
    "cookie",
    "set-cookie",
    "proxy-authorization",
    "proxy-authenticate",
    "api-key",
    "x_api_key",
    "x_forwarded_for",
    "content_length",
    "transfer_encoding",
    "openai-organization",
    "openai-project",
    "openai-beta",
    "anthropic-workspace-id",
    "anthropic-dangerous-direct-browser-access",
    "x-goog-api-key",
    "x-goog-user-project",
    "x-amz-security-token",
    "x-amz-date",
    "x-ms-client-request-id",
    "trailer",
    "te",
    "keep-alive",
    "x-custom-named",
    "range",
    "if-none-match",
    "max-forwards",
    "x-gateway-account",
    "x-request-id",
    "traceparent",
];

#[test]
fn no_field_of_a_clients_reaches_a_vendor() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let asked = surface.whole(&account.key, "input=1 output=1");
        let asked = HOSTILE
            .iter()
            .fold(asked, |request, name| request.header(name, "CANARY"));
        // A proxy removes the fields that `connection` names. The gateway must not remove the
        // vendor's key or the framing because of that.
        let asked = asked.header(
            "connection",
            "x-custom-named, authorization, content-length, x-api-key, host",
        );
        let answer = world.expect(200, &asked);
        let call = world.vendor.last();
        let headers = call["headers"].as_array().unwrap();
        for pair in headers {
            let (name, value) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
            assert!(
                !HOSTILE.contains(&name) && !value.contains("CANARY"),
                "the vendor saw {name}: {value}"
            );
        }
        let has = |name: &str| headers.iter().filter(|pair| pair[0] == name).count();
        assert_eq!(
            (
                has("authorization") + has("x-api-key"),
                has("content-length")
            ),
            (1, 1)
        );
        assert_eq!(has("host") + has(":authority"), 1, "{headers:?}");
        for (name, value) in &answer.headers {
            assert!(!value.contains("CANARY"), "the client saw {name}: {value}");
        }
    }
}

/// A vendor whose answers contain the key of the call wherever possible. Each call gets the next
/// status.
fn echoing_vendor(statuses: &'static [u16]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for status in statuses.iter().cycle() {
            let Ok((mut client, _)) = listener.accept() else {
                return;
            };
            let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
            while !got.ends_with(b"}") {
                match client.read(&mut piece) {
                    Ok(read) if read > 0 => got.extend_from_slice(&piece[..read]),
                    _ => break,
                }
            }
            let text = String::from_utf8_lossy(&got).into_owned();
            let is_key =
                |line: &&str| line.starts_with("authorization:") || line.starts_with("x-api-key:");
            let header = text.lines().map(str::trim_end);
            let key = header
                .map(|line| line.trim())
                .find(|line| is_key(&line.to_lowercase().as_str()));
            let key = key
                .and_then(|line| line.split_once(':'))
                .map_or("", |(_, key)| key.trim());
            let error = json!({"type": "error", "error": {
                "type": key, "code": key, "param": key,
                "message": format!("Incorrect API key provided: {key}. You can find it at {key}."),
            }})
            .to_string();
            let (kind, body) = match status {
                200 => (
                    "text/event-stream",
                    format!("event: error\ndata: {error}\n\n"),
                ),
                _ => ("application/json", error),
            };
            let answer = format!(
                "HTTP/1.1 {status} {key}\r\ncontent-type: {kind}\r\nx-echo: {key}\r\nopenai-organization: {key}\r\n\
                 set-cookie: {key}\r\nwww-authenticate: {key}\r\nlocation: /{key}\r\nx-request-id: {key}\r\n\
                 request-id: {key}\r\nserver: {key}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = client.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn a_vendors_key_comes_back_to_nobody_whatever_the_vendor_does_with_it() {
    const STATUSES: &[u16] = &[
        400, 401, 402, 403, 404, 409, 413, 422, 429, 500, 503, 529, 302, 200,
    ];
    let vendor = echoing_vendor(STATUSES);
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access.log");
    let plan = Plan::default()
        .endpoints(&[vendor])
        .telling_everything(&access);
    let plan = plan
        .edit("\"sim-alpha-key\"", "\"CANARY-alpha-key\"")
        .edit("\"sim-beta-key\"", "\"CANARY-beta-key\"");
    let (world, account) = plan.with_account();
    let mut seen = Seen::default();
    for surface in BOTH {
        for round in 0..STATUSES.len() * 2 {
            let request = if round % 2 == 0 {
                surface.whole(&account.key, "x")
            } else {
                surface.stream(&account.key, "x")
            };
            let answer = world.ask(&request);
            seen.add(
                format!("{surface:?} {round}: head"),
                format!("{:?}", answer.headers),
            );
            seen.add(
                format!("{surface:?} {round}: {}", answer.status),
                answer.body,
            );
        }
    }
    // Also with translation between the protocols.
    let mut crossed = Messages.body("x", false, 100);
    crossed["model"] = Chat.model().into();
    for _ in STATUSES {
        seen.add(
            "crossed",
            world.ask(&Messages.request(&account.key, &crossed)).body,
        );
    }
    seen.add_all_of(&world, &access);
    seen.has_none_of(&["CANARY", &account.key]);
}
