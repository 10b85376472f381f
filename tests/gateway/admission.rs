//! Admission: the order of the checks, and each refusal in the error format of the surface that the
//! client called.

use crate::account::Account;
use crate::client::{Answer, Connection, Request};
use crate::failure_table::Unfinished;
use crate::surface::{BOTH, Chat, INVALID, INVALID_API_KEY, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::json;
use std::time::{Duration, Instant};

/// A request in which only the path is valid.
fn bare(surface: Surface) -> Request {
    Request::post(surface.path(), "{")
}

/// Asserts that no vendor was called, and that no credit is held or was debited.
#[track_caller]
fn nothing_happened(world: &World, account: &Account) {
    assert_eq!(world.vendor.calls(), 0, "{}", world.vendor.stats());
    let standing = world.standing(account);
    assert_eq!((standing.balance, standing.held), (300_000_000, 0));
    assert!(world.endings(account).is_empty());
}

#[test]
fn an_unknown_path_is_404_before_anything_else() {
    let world = World::new();
    for path in [
        "/v1/nothing",
        "/v1",
        "/v1/",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v1/messages/x",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let plain = world.ask(&Request::new(method, path));
            Chat.failure(&plain, 404, INVALID, None);
            let versioned =
                world.ask(&Request::new(method, path).header("anthropic-version", "2023-06-01"));
            Messages.failure(&versioned, 404, "not_found_error", None);
        }
    }
    assert_eq!(world.vendor.calls(), 0);
}

#[test]
fn a_wrong_method_is_405_before_the_key() {
    let world = World::new();
    for surface in BOTH {
        for method in ["GET", "PUT", "DELETE", "HEAD"] {
            let answer =
                world.ask(&Request::new(method, surface.path()).header("connection", "close"));
            assert_eq!(answer.status, 405);
            answer.request_id();
            if method != "HEAD" {
                surface.fails(&answer, (405, INVALID), (405, INVALID), None);
            }
        }
    }
    Chat.failure(
        &world.ask(&Request::post("/v1/models", "{}")),
        405,
        INVALID,
        None,
    );
    Chat.failure(
        &world.ask(&Request::post("/v1/credits", "{}")),
        405,
        INVALID,
        None,
    );
}

/// Codex asks for a WebSocket first. It uses plain requests at once only after a 426.
#[test]
fn a_web_socket_is_426_and_its_connection_ends() {
    let world = World::new();
    for path in ["/v1/responses", "/responses"] {
        let request = Request::get(path)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let answer = world.expect(426, &request);
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(
            answer.json()["error"]["code"],
            "web_socket_not_supported",
            "{}",
            answer.text()
        );
    }
}

#[test]
fn a_key_that_is_not_good_is_401_before_the_body() {
    let (world, account) = World::with_account();
    let key = &account.key;
    let (revoked_id, revoked) = world.key(&account.id, "revoked");
    world.json(&["key", "revoke", &revoked_id]);
    let (_, other) = world.key(&account.id, "other");
    let last = if key.ends_with('a') { "b" } else { "a" };
    let wrong_checksum = format!("{}{last}", &key[..key.len() - 1]);
    // A well-formed key that no account has: 43 zeros and their CRC-32 in base 62.
    let unknown = unknown_key();
    for surface in BOTH {
        let with = |name: &str, value: &str| bare(surface).header(name, value);
        let refused = [
            ("no key", bare(surface)),
            ("empty", with("authorization", "")),
            ("no scheme", with("authorization", key)),
            ("basic", with("authorization", &format!("Basic {key}"))),
            ("malformed", with("x-api-key", "gw-sk-short")),
            ("wrong checksum", with("x-api-key", &wrong_checksum)),
            ("unknown", with("x-api-key", &unknown)),
            ("unknown bearer", bare(surface).bearer(&unknown)),
            ("revoked", bare(surface).bearer(&revoked)),
            ("a vendor's", with("x-api-key", "sk-ant-api03-abcdefgh")),
            ("another vendor's", bare(surface).bearer("sk-proj-abcdefgh")),
            ("our vendor's", with("x-api-key", "sim-alpha-key")),
            (
                "two of ours",
                bare(surface).bearer(key).header("x-api-key", &other),
            ),
            ("nonsense", with("x-api-key", "' OR 1=1 --")),
        ];
        for (what, request) in refused {
            let answer = world.ask(&request);
            assert_eq!(answer.status, 401, "{what}: {}", answer.text());
            let error = surface.fails_as(&answer, INVALID_API_KEY);
            let message = error["message"].as_str().unwrap();
            assert!(!message.contains("abcdefgh"), "{what}: {message}");
            if what.ends_with("vendor's") {
                assert!(
                    message.contains("begins with `gw-sk-`"),
                    "{what}: {message}"
                );
            }
            for secret in [key, &other, &revoked, &unknown] {
                let start = &secret[..12];
                assert!(!error.to_string().contains(start), "{what}: {error}");
            }
        }
        // The value that is a gateway key counts, in whichever header it is.
        let body = surface.body("input=1 output=1", false, 100).to_string();
        let open = || Request::post(surface.path(), body.clone());
        for request in [
            open().bearer(key),
            open().header("x-api-key", key),
            open().header("authorization", &format!("bearer {key}")),
            open().bearer(key).header("x-api-key", key),
            open()
                .bearer(key)
                .header("x-api-key", "sk-ant-api03-abcdefgh"),
            open().bearer("sk-proj-abcdefgh").header("x-api-key", key),
            open().bearer(&wrong_checksum).header("x-api-key", key),
        ] {
            world.expect(200, &request);
        }
    }
    assert_eq!(world.vendor.calls(), 14);
    world.ended(&account, 14);
}

fn unknown_key() -> String {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let secret = "0".repeat(43);
    let mut rest = crc32fast::hash(secret.as_bytes());
    let mut checksum = vec![b'0'; 6];
    for digit in checksum.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    format!("gw-sk-{secret}{}", String::from_utf8(checksum).unwrap())
}

#[test]
fn a_key_of_a_suspended_account_is_403_until_it_is_resumed() {
    let (world, account) = World::with_account();
    world.works(Chat, &account.key);
    world.json(&["account", "suspend", &account.email]);
    for surface in BOTH {
        let answer = world.ask(&bare(surface).bearer(&account.key));
        surface.fails(
            &answer,
            (403, INVALID),
            (403, "permission_error"),
            Some("account_suspended"),
        );
    }
    world.expect(403, &Request::get("/v1/credits").bearer(&account.key));
    world.json(&["account", "resume", &account.id]);
    world.works(Messages, &account.key);
    world.json(&["key", "revoke", &account.key_id]);
    assert_eq!(
        world.ask(&Chat.whole(&account.key, "input=1")).status,
        401,
        "a revoked key"
    );
    assert_eq!(world.vendor.calls(), 2);
}

#[test]
fn a_body_over_the_limit_is_413_before_it_is_read() {
    let (world, account) = Plan::default().limit("body_bytes", 100_000).with_account();
    for surface in BOTH {
        let too_large = |answer: &Answer| {
            surface.fails(
                answer,
                (413, INVALID),
                (413, "request_too_large"),
                Some("request_too_large"),
            );
        };
        let request = Request::post(surface.path(), vec![b' '; 100_001]).bearer(&account.key);
        // With a content length, the gateway refuses the request on the header alone.
        let mut connection = world.connect();
        connection.send(&request.head());
        too_large(&connection.answer());
        let mut connection = world.connect();
        connection.send(&request.clone().header("expect", "100-continue").head());
        let answer = connection.answer();
        assert!(
            answer.interim.is_empty(),
            "a body that is refused was asked for"
        );
        too_large(&answer);
        // Chunked, the gateway refuses the request at the first byte above the limit, and does not
        // wait for the rest.
        let request = request.chunked(10_000);
        let mut connection = world.connect();
        connection.send(&request.head());
        let framed = request.framed_body();
        connection.send(&framed[..framed.len() - 5]);
        too_large(&connection.answer());
        // The gateway reads a body of exactly the limit.
        let body = surface.body("input=1 output=1", false, 100).to_string();
        let padded = format!("{body}{}", " ".repeat(100_000 - body.len()));
        for chunk in [0, 7_000] {
            let request = Request::post(surface.path(), padded.clone())
                .bearer(&account.key)
                .chunked(chunk);
            world.expect(200, &request);
        }
        // Without a valid key, the gateway does not even check the size.
        assert_eq!(
            world
                .ask(&Request::post(surface.path(), vec![b' '; 100_001]))
                .status,
            401
        );
    }
    // Of a form, the file is too large.
    for (path, file) in [
        ("/v1/audio/transcriptions", json!("file")),
        ("/v1/images/edits", json!("image")),
        ("/v1/embeddings", json!(null)),
    ] {
        let request = Request::post(path, vec![b' '; 100_001]).bearer(&account.key);
        for request in [request.clone(), request.chunked(10_000)] {
            let answer = world.ask(&request);
            assert_eq!(answer.status, 413, "{path}: {}", answer.text());
            assert_eq!(answer.json()["error"]["param"], file, "{path}");
        }
    }
    assert_eq!(world.vendor.calls(), 4);
}

#[test]
fn a_body_that_is_no_request_is_400() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let model = surface.model();
        let deep = format!(
            "{{\"model\":\"{model}\",\"messages\":{}",
            "[".repeat(100_000)
        );
        let mut broken = vec![
            "".to_owned(),
            "{".to_owned(),
            "null".to_owned(),
            "[]".to_owned(),
            "\"text\"".to_owned(),
            format!("[{{\"model\":\"{model}\",\"messages\":[]}}]"),
            format!("{{\"model\":\"{model}\",\"messages\":[],}}"),
            format!("{{\"model\":\"{model}\",\"messages\":[]}} {{}}"),
            format!("{{\"model\":\"{model}\",\"model\":\"{model}\",\"messages\":[]}}"),
            deep,
            json!({"messages": []}).to_string(),
            json!({"model": null, "messages": []}).to_string(),
            json!({"model": 5, "messages": []}).to_string(),
            json!({"model": {}, "messages": []}).to_string(),
        ];
        for (member, value) in [
            ("messages", json!("x")),
            ("stream", json!("yes")),
            ("max_tokens", json!("many")),
            ("max_tokens", json!(-1)),
        ] {
            let mut body = surface.body("input=1", false, 100);
            body[member] = value;
            broken.push(body.to_string());
        }
        for body in broken {
            let shown = body.get(..200).unwrap_or(&body).to_owned();
            let answer = world.ask(&Request::post(surface.path(), body).bearer(&account.key));
            assert_eq!(answer.status, 400, "{surface:?} {shown}: {}", answer.text());
            let kind = answer.json()["error"]["type"].clone();
            assert_eq!(kind, INVALID, "{shown}");
            answer.request_id();
        }
        let not_text = [
            b"{\"model\":\"".as_slice(),
            &[0xff, 0xfe],
            b"\",\"messages\":[]}",
        ]
        .concat();
        let answer = world.ask(&Request::post(surface.path(), not_text).bearer(&account.key));
        assert!(matches!(answer.status, 400 | 404), "{}", answer.text());
    }
    nothing_happened(&world, &account);
}

#[test]
fn a_model_that_is_not_in_the_catalog_is_404() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for name in ["gpt-unknown", "../../admin", "a?key=", "gpt-5.2"] {
            let mut body = surface.body("input=1", false, 100);
            body["model"] = name.into();
            let answer = world.ask(&surface.request(&account.key, &body));
            let error = surface.fails(
                &answer,
                (404, INVALID),
                (404, "not_found_error"),
                Some("model_not_found"),
            );
            match surface {
                Chat => {
                    assert_eq!(error["param"], "model");
                    let words = format!(
                        "The model `{name}` does not exist or you do not have access to it."
                    );
                    assert_eq!(error["message"], words);
                }
                Messages => assert_eq!(error["message"], format!("model: {name}")),
            }
        }
        let mut body = surface.body("input=1", false, 100);
        body["model"] = "beta-5.3".into();
        let answer = world.ask(&surface.request(&account.key, &body));
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        let near = "(did you mean `beta-5.2` or `beta-5.5`?)";
        assert!(message.ends_with(near), "{message}");
    }
    nothing_happened(&world, &account);
}

#[test]
fn a_body_that_breaks_off_is_400() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let whole = surface.whole(&account.key, "input=1 output=1");
        for request in [whole.clone(), whole.chunked(50)] {
            let framed = request.framed_body();
            let mut connection = world.connect();
            connection.send(&[&request.head(), &framed[..framed.len() / 2]].concat());
            connection.half_close();
            let answer = connection.answer();
            surface.fails(&answer, (400, INVALID), (400, INVALID), None);
        }
    }
    nothing_happened(&world, &account);
}

#[test]
fn a_body_that_came_while_the_gateway_was_stopped_is_read() {
    let (world, account) = Plan::default().limit("body_read_seconds", 1).with_account();
    let request = Chat.whole(&account.key, "input=1 output=1");
    let request = request.header("expect", "100-continue");
    let mut connection = world.connect();
    connection.send(&request.head());
    let interim = connection.head().expect("an interim response");
    assert!(interim.starts_with("HTTP/1.1 100 "), "it reads the body");
    world.signal("STOP");
    connection.send(&request.framed_body());
    std::thread::sleep(Duration::from_millis(1_500));
    world.signal("CONT");
    assert_eq!(connection.answer().status, 200);
}

#[test]
fn a_body_that_stalls_is_408() {
    let (world, account) = Plan::default().limit("body_read_seconds", 1).with_account();
    Unfinished::begin(&world, &account.key).are_answered_by("BodyTimeout");
    for surface in BOTH {
        let whole = surface.whole(&account.key, "input=1 output=1");
        for request in [whole.clone(), whole.chunked(50)] {
            let framed = request.framed_body();
            let half = &framed[..framed.len() / 2];
            let mut connection = world.connect();
            connection.send(&[&request.head(), half].concat());
            let began = Instant::now();
            let answer = connection.answer();
            let took = began.elapsed();
            assert!(
                took > Duration::from_millis(800) && took < Duration::from_secs(40),
                "408 after {took:?}"
            );
            surface.fails(
                &answer,
                (408, INVALID),
                (408, INVALID),
                Some("request_timeout"),
            );
            assert!(
                connection.is_closed(),
                "the rest of the body would be taken for a request"
            );
        }
        // Single bytes at intervals do not count as progress.
        let request = surface.whole(&account.key, "input=1 output=1");
        let mut connection = world.connect();
        connection.send(&request.head());
        let began = Instant::now();
        for byte in request.framed_body() {
            if began.elapsed() > Duration::from_secs(3) || !connection.send(&[byte]) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(
            connection.try_answer().map(|answer| answer.status),
            Some(408)
        );
    }
    nothing_happened(&world, &account);
}

#[test]
fn an_earlier_judgement_stands_above_a_later_one() {
    let (world, account) = Plan::default().limit("body_bytes", 1_024).with_account();
    let poor = world.account_with("poor@example.test", &["--no-trial"]);
    // Enough credit for the header of a request, too little for any request.
    let scant = world.funded(10_000);
    let large = vec![b'{'; 2_000];
    let unknown = json!({"model": "unknown", "messages": [], "max_tokens": 1}).to_string();
    for surface in BOTH {
        let to = |path: &str, body: &[u8], key: &str| {
            world.ask(&Request::post(path, body).bearer(key)).status
        };
        assert_eq!(to("/v1/unknown", &large, "bad"), 404);
        world.expect(405, &Request::new("PATCH", surface.path()).bearer("bad"));
        assert_eq!(to(surface.path(), &large, "bad"), 401);
        assert_eq!(to(surface.path(), &large, &account.key), 413);
        assert_eq!(to(surface.path(), &large, &poor.key), 413);
        assert_eq!(
            to(surface.path(), b"{", &poor.key),
            402,
            "what the header decides stands above the body"
        );
        assert_eq!(to(surface.path(), b"{", &scant.key), 400);
        assert_eq!(to(surface.path(), unknown.as_bytes(), &scant.key), 404);
        world.expect(402, &surface.whole(&scant.key, "input=1"));
    }
    nothing_happened(&world, &account);
}

#[test]
fn garbage_on_the_wire_harms_nobody() {
    let (world, account) = World::with_account();
    let key = &account.key;
    let path = Chat.path();
    for bytes in [
        b"\x00\x01\x02\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: +2\r\n\r\n{{}}").into(),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{{}}x").into(),
        format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n").into(),
    ] {
        let mut connection = Connection::open(world.edge);
        connection.send(&bytes);
        connection.half_close();
        if let Some(answer) = connection.try_answer() {
            assert!((400..500).contains(&answer.status), "{}: {}", answer.status, String::from_utf8_lossy(&bytes));
        }
    }
    assert_eq!(world.vendor.calls(), 0);
    world.works(Chat, key);
}
