//! Vendor addresses: the address in the config against the request that the vendor receives. Also
//! requests from clients whose base address has a different path than the gateway's.

use crate::client::Request;
use crate::surface::{Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A vendor that answers every request and records its request line and its header. It stores the
/// header in lower case.
struct Recorder {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        // The thread ends with the test's process; no test waits for it.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || serve(client, &kept));
            }
        });
        Self { port, heads }
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

fn serve(mut client: TcpStream, heads: &Mutex<Vec<String>>) {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    while let Ok(length @ 1..) = client.read(&mut piece) {
        got.extend_from_slice(&piece[..length]);
        if !got.ends_with(b"}") {
            continue;
        }
        let text = String::from_utf8_lossy(&got).into_owned();
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        let (line, fields) = head.split_once("\r\n").unwrap();
        heads
            .lock()
            .unwrap()
            .push(format!("{line}\r\n{}\r\n", fields.to_ascii_lowercase()));
        let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
        let body = if path.ends_with("/count_tokens") {
            json!({"input_tokens": 7})
        } else if path.ends_with("/messages") {
            json!({"id": "m", "type": "message", "role": "assistant", "model": "up", "stop_reason": "end_turn",
                   "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 1, "output_tokens": 1}})
        } else if path.ends_with("/responses") {
            json!({"id": "r", "object": "response", "status": "completed", "model": "up", "output": [{"type": "message",
                   "id": "i", "role": "assistant", "status": "completed", "content": [{"type": "output_text",
                   "text": "hi", "annotations": []}]}], "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})
        } else {
            json!({"id": "c", "object": "chat.completion", "created": 1, "model": "up", "choices": [{"index": 0,
                   "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
        };
        let body = body.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let _ = write!(client, "{head}content-length: {}\r\n\r\n{body}", body.len());
        got.clear();
    }
}

/// A world with these additional vendors, each with a model of the same name.
fn world_with(vendors: &[(&str, String)], more: &str) -> World {
    let (mut entries, mut models) = ("vendors:\n".to_owned(), "models:\n".to_owned());
    for (name, entry) in vendors {
        entries += &format!("  {name}: {entry}\n");
        models += &format!(
            "  - {{id: {name}, vendor: {name}, upstream_model: up, context_tokens: 9000, max_output_tokens: 900, \
             price: {{input: \"1\", output: \"1\"}}{more}}}\n"
        );
    }
    Plan::default()
        .edit("vendors:\n", &entries)
        .edit("models:\n", &models)
        .start()
}

fn question(surface: Surface, key: &str, model: &str) -> Request {
    let body = json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]});
    surface.request(key, &body)
}

#[test]
fn the_address_that_an_sdk_takes_is_called_whether_or_not_it_names_a_version() {
    let vendor = Recorder::start();
    let at = |path: &str| format!("http://127.0.0.1:{}{path}", vendor.port);
    let chat = |path: &str| {
        format!(
            "{{protocol: chat, api_key: k, endpoints: [{{url: \"{}\"}}]}}",
            at(path)
        )
    };
    let messages = |path: &str| {
        format!(
            "{{protocol: messages, api_key: k, endpoints: [{{url: \"{}\"}}]}}",
            at(path)
        )
    };
    let cases = [
        ("a1", chat(""), "/v1/chat/completions"),
        ("a2", chat("/"), "/v1/chat/completions"),
        ("a3", chat("/v1"), "/v1/chat/completions"),
        ("a4", chat("/openai/v1/"), "/openai/v1/chat/completions"),
        ("a5", chat("/api/paas/v4"), "/api/paas/v4/chat/completions"),
        (
            "a6",
            chat("/v1beta/openai/"),
            "/v1beta/openai/chat/completions",
        ),
        ("a7", chat("/proxy"), "/proxy/v1/chat/completions"),
        ("b1", messages(""), "/v1/messages"),
        ("b2", messages("/v1"), "/v1/messages"),
        (
            "b3",
            messages("/v1/account/anthropic"),
            "/v1/account/anthropic/v1/messages",
        ),
    ];
    let vendors: Vec<_> = cases
        .iter()
        .map(|(name, entry, _)| (*name, entry.clone()))
        .collect();
    let world = world_with(&vendors, "");
    let account = world.account();
    for (name, _, path) in &cases {
        let surface = if name.starts_with('a') {
            Chat
        } else {
            Messages
        };
        let answer = world.ask(&question(surface, &account.key, name));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let heads = vendor.take();
        assert_eq!(heads.len(), 1, "{heads:?}");
        assert!(
            heads[0].starts_with(&format!("POST {path} HTTP/1.1\r\n")),
            "{name}: {}",
            heads[0]
        );
    }
    let count = question(Messages, &account.key, "b2");
    let count =
        Request::post("/v1/messages/count_tokens", count.framed_body()).bearer(&account.key);
    assert_eq!(world.ask(&count).json(), json!({"input_tokens": 7}));
    assert!(vendor.take()[0].starts_with("POST /v1/messages/count_tokens "));
}

#[test]
fn path_query_headers_and_auth_reach_the_vendor_and_an_endpoints_own_go_before_its_vendors() {
    let vendor = Recorder::start();
    let url = format!("http://127.0.0.1:{}", vendor.port);
    let entry = |keys: &str, own: &str| format!("{{{keys}, endpoints: [{{url: \"{url}\"{own}}}]}}");
    let chat = "protocol: chat, api_key: CANARY";
    let both =
        "query: {api-version: v1, a: 1 b}, headers: {X-Team: red, X-Kept: \"yes\"}, auth: api-key";
    let world = world_with(
        &[
            ("plain", entry(chat, "")),
            (
                "all",
                entry(
                    &format!(
                        "{chat}, path: /x/chat/completions, {}",
                        both.replace("1 b", "\"1 b\"")
                    ),
                    "",
                ),
            ),
            (
                "own",
                entry(
                    &format!("{chat}, {}", both.replace("1 b", "\"1 b\"")),
                    ", query: {a: \"2\"}, headers: {x-team: blue}, auth: {header: X-My-Key}, path: /own",
                ),
            ),
            ("free", entry("protocol: chat, auth: none", "")),
            (
                "turned",
                entry("protocol: messages, auth: bearer, api_key: CANARY", ""),
            ),
        ],
        "",
    );
    let account = world.account();
    let key_fields = ["authorization: ", "x-api-key: ", "api-key: ", "x-my-key: "];
    for (model, line, has, key_field) in [
        (
            "plain",
            "/v1/chat/completions",
            vec![],
            Some("authorization: bearer canary"),
        ),
        (
            "all",
            "/x/chat/completions?a=1%20b&api-version=v1",
            vec!["x-team: red", "x-kept: yes"],
            Some("api-key: canary"),
        ),
        (
            "own",
            "/own?api-version=v1&a=2",
            vec!["x-team: blue", "x-kept: yes"],
            Some("x-my-key: canary"),
        ),
        ("free", "/v1/chat/completions", vec![], None),
        (
            "turned",
            "/v1/messages",
            vec![],
            Some("authorization: bearer canary"),
        ),
    ] {
        let surface = if model == "turned" { Messages } else { Chat };
        let answer = world.ask(&question(surface, &account.key, model));
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        let heads = vendor.take();
        assert_eq!(heads.len(), 1, "{heads:?}");
        let head = &heads[0];
        assert!(
            head.starts_with(&format!("POST {line} HTTP/1.1\r\n")),
            "{model}: {head}"
        );
        let fields: Vec<_> = head
            .split("\r\n")
            .skip(1)
            .filter(|field| !field.is_empty())
            .collect();
        assert!(
            has.iter().all(|field| fields.contains(field)),
            "{model}: {head}"
        );
        let keys: Vec<_> = fields
            .iter()
            .filter(|field| key_fields.iter().any(|name| field.starts_with(name)))
            .copied()
            .collect();
        assert_eq!(
            keys,
            key_field.into_iter().collect::<Vec<_>>(),
            "{model}: the key once, or not at all"
        );
    }
    let out = world.command(&["check"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let shown = format!(
        "all: POST {url}/x/chat/completions?a=********&api-version=v1 (chat, key in api-key, HTTP/1.1)"
    );
    assert!(said.contains(&shown) && !said.contains("CANARY"), "{said}");
    assert!(!world.log().contains("CANARY"));
}

#[test]
fn a_path_that_tells_nothing_of_others_has_its_tokens_counted_here() {
    let vendor = Recorder::start();
    let entry = |path: &str| {
        let url = format!("http://127.0.0.1:{}", vendor.port);
        format!("{{protocol: messages, api_key: k, path: {path}, endpoints: [{{url: \"{url}\"}}]}}")
    };
    let world = world_with(
        &[
            ("odd", entry("/answer")),
            ("even", entry("/claude/messages")),
        ],
        "",
    );
    let account = world.account();
    let count = |model: &str| {
        let body = question(Messages, &account.key, model).framed_body();
        world.ask(&Request::post("/v1/messages/count_tokens", body).bearer(&account.key))
    };
    let counted = count("odd");
    assert_eq!(
        (counted.status, counted.header("x-gateway-estimated")),
        (200, Some("true")),
        "{}",
        counted.text()
    );
    assert!(vendor.take().is_empty(), "nobody was asked");
    let asked = count("even");
    assert_eq!(
        (asked.json(), asked.header("x-gateway-estimated")),
        (json!({"input_tokens": 7}), None)
    );
    assert!(vendor.take()[0].starts_with("POST /claude/messages/count_tokens "));
}

#[test]
fn responses_are_asked_beside_a_chat_path() {
    let vendor = Recorder::start();
    let url = format!("http://127.0.0.1:{}", vendor.port);
    let entry = format!("{{preset: azure-openai, api_key: k, endpoints: [{{url: \"{url}\"}}]}}");
    let world = world_with(&[("azure", entry)], ", upstream_protocol: responses");
    let account = world.account();
    world.expect(200, &question(Chat, &account.key, "azure"));
    let body = json!({"model": "azure", "input": "hello", "max_output_tokens": 16});
    let answer = world.ask(&Request::post("/v1/responses", body.to_string()).bearer(&account.key));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let heads = vendor.take();
    assert!(
        heads[0].starts_with("POST /openai/v1/chat/completions HTTP/1.1\r\n"),
        "{}",
        heads[0]
    );
    assert!(
        heads[1].starts_with("POST /openai/v1/responses HTTP/1.1\r\n"),
        "{}",
        heads[1]
    );
    assert!(
        heads
            .iter()
            .all(|head| head.contains("\r\napi-key: k\r\n") && !head.contains("authorization")),
        "{heads:?}"
    );
}

#[test]
fn a_client_whose_base_address_has_one_v1_too_few_or_too_many_is_served() {
    let (world, account) = World::with_account();
    for surface in [Chat, Messages] {
        for path in [
            surface.path().trim_start_matches("/v1").to_owned(),
            format!("/v1{}", surface.path()),
        ] {
            let body = surface.body("input=5 output=5", false, 100).to_string();
            let answer = world.ask(&Request::post(&path, body).bearer(&account.key));
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    }
    for path in ["/responses", "/v1/v1/responses"] {
        let body = json!({"model": "beta-5.2", "input": "[[sim input=5 output=5]] hello", "max_output_tokens": 100});
        let answer = world.ask(&Request::post(path, body.to_string()).bearer(&account.key));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert_eq!(world.vendor.calls(), 6);
    for path in ["/messages/count_tokens", "/v1/v1/messages/count_tokens"] {
        let body = Messages
            .body("", false, 100)
            .to_string()
            .replace(",\"max_tokens\":100", "");
        let answer =
            world.ask(&Request::post(path, body.replace("[[sim ]] ", "")).bearer(&account.key));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    for path in [
        "/models",
        "/v1/v1/models",
        "/models/beta-5.2",
        "/v1/v1/models/beta-5.2",
    ] {
        let answer = world.ask(&Request::get(path).bearer(&account.key));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.has("beta-5.2"));
    }
}

#[test]
fn a_path_that_is_wrong_in_another_way_is_a_json_error_that_names_the_right_address() {
    let world = World::new();
    let base = format!("http://127.0.0.1:{}", world.edge);
    for (path, surface) in [
        ("/v1/chat/completion", Chat),
        ("/v1/v1/v1/messages", Messages),
        ("/v2/chat/completions", Chat),
        ("/api/v1/chat/completions", Chat),
        ("/anthropic/v1/messages", Messages),
        ("/openai/responses", Chat),
        ("/v1/v1/credits", Chat),
    ] {
        let answer = world.ask(&Request::post(path, "{}"));
        let (kind, code) = if surface == Chat {
            ("invalid_request_error", None)
        } else {
            ("not_found_error", None)
        };
        let error = surface.failure(&answer, 404, kind, code);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(path)
                && message.contains(&format!("{base}/v1 (OpenAI SDKs) or {base} ")),
            "{message}"
        );
    }
    let unserved = world.ask(&Request::post("/v1/files", "{}"));
    let code = Some("not_supported");
    let error = Chat.failure(&unserved, 404, "invalid_request_error", code);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("/v1/chat/completions"), "{message}");
    assert_eq!(world.vendor.calls(), 0);
}
