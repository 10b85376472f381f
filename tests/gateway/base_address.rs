//! Misconfigured clients: a wrong base address, a wrong method, two keys. The error says what to
//! change, in a format that the client's program can read.

use crate::client::Request;
use crate::surface::{BOTH, Chat};
use crate::world::World;

#[test]
fn an_unknown_path_says_what_is_wrong_with_the_base_address() {
    let (world, account) = World::with_account();
    let message = |request: &Request| {
        let answer = world.expect(404, request);
        answer.has_header("content-type", "application/json");
        answer.request_id();
        answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for path in [
        "/v1/v1/credits",
        "/v1/v1/v1/chat/completions",
        "/v1/v1/receipts/x",
        "/v1/v1/v1/messages",
    ] {
        let message = message(&Request::post(path, "{}").bearer(&account.key));
        assert!(message.contains("Remove one `/v1`"), "{path}: {message}");
    }
    for path in ["/credits", "/receipts/req_1"] {
        let message = message(&Request::get(path).bearer(&account.key));
        assert!(message.contains("Add `/v1`"), "{path}: {message}");
    }
    for path in ["/v1/none", "/api/none", "/v1/v1/none"] {
        let message = message(&Request::post(path, "{}").bearer(&account.key));
        assert!(
            message.contains("Set the client's base address") && !message.contains("Add `"),
            "{path}: {message}"
        );
        assert!(!message.contains("Drop"), "{path}: {message}");
    }
    for path in [
        "/v1/files",
        "/files",
        "/v1/messages/batches",
        "/v1/responses/resp_1",
    ] {
        let request = Request::post(path, "{}").bearer(&account.key);
        let answer = world.ask(&request);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "not_supported", "{path}");
        let message = message(&request);
        assert!(
            message.contains("does not serve") && message.contains("/v1/responses"),
            "{path}: {message}"
        );
    }
    // The gateway still serves these paths, which it accepts with either kind of base address.
    for path in [
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/messages",
        "/v1/v1/messages",
        "/embeddings",
        "/v1/v1/embeddings",
    ] {
        assert_eq!(
            world
                .ask(&Request::post(path, "{}").bearer(&account.key))
                .status,
            400,
            "{path}"
        );
    }
}

#[test]
fn a_program_gets_json_and_a_browser_a_page() {
    let world = World::new();
    let kind = |request: Request| {
        let answer = world.ask(&request);
        assert_eq!(answer.status, 404);
        answer
            .header("content-type")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    };
    let get = || Request::get("/nothing/here");
    for request in [
        get().bearer("sk-none"),
        get().header("x-api-key", "sk-none"),
        get().header("accept", "application/json"),
        get().header("content-type", "application/json"),
    ] {
        assert_eq!(kind(request), "application/json");
    }
    for request in [
        get(),
        get().header("accept", "text/html,application/xhtml+xml"),
        get().header("accept", "text/html, application/json"),
    ] {
        assert_eq!(kind(request), "text/html");
    }
    let answer = world.ask(
        &get()
            .header("x-api-key", "sk-none")
            .header("anthropic-version", "2023-06-01"),
    );
    assert_eq!(
        (
            answer.json()["type"].clone(),
            answer.json()["request_id"].clone()
        ),
        ("error".into(), answer.request_id().into())
    );
}

#[test]
fn a_wrong_method_is_answered_with_those_that_are_right() {
    let world = World::new();
    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/messages", "POST"),
        ("OPTIONS", "/v1/messages", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/credits", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
    ] {
        let answer = world.ask(&Request::new(method, path));
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some(allowed)),
            "{method} {path}"
        );
        assert!(
            answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .contains(allowed)
        );
    }
    let answer = world.ask(&Request::new("DELETE", "/docs"));
    assert_eq!(
        (answer.status, answer.header("allow")),
        (405, Some("GET,HEAD")),
        "a page"
    );
}

#[test]
fn two_different_keys_in_one_request_are_refused_wherever_they_stand() {
    let world = World::new();
    let (one, other) = (world.account().key, world.funded(1_000_000_000).key);
    let bearer = |key: &str| format!("Bearer {key}");
    for surface in BOTH {
        let body = surface.body("input=1 output=1", false, 10);
        let bare = || Request::post(surface.path(), body.to_string());
        for (fields, status) in [
            (
                vec![
                    ("authorization", bearer(&one)),
                    ("authorization", bearer(&one)),
                ],
                200,
            ),
            (
                vec![("authorization", bearer(&one)), ("x-api-key", one.clone())],
                200,
            ),
            (
                vec![
                    ("authorization", bearer("sk-vendors-own")),
                    ("x-api-key", one.clone()),
                ],
                200,
            ),
            (
                vec![
                    ("authorization", bearer(&one)),
                    ("authorization", bearer(&other)),
                ],
                401,
            ),
            (
                vec![
                    ("authorization", bearer(&one)),
                    ("x-api-key", other.clone()),
                ],
                401,
            ),
            (
                vec![("x-api-key", one.clone()), ("x-api-key", other.clone())],
                401,
            ),
            (
                vec![(
                    "authorization",
                    format!("{}, {}", bearer(&one), bearer(&other)),
                )],
                401,
            ),
            (vec![("x-api-key", format!("{one},{other}"))], 401),
        ] {
            let request = fields
                .iter()
                .fold(bare(), |request, (name, value)| request.header(name, value));
            let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
            assert_eq!(world.ask(&request).status, status, "{names:?}");
        }
    }
    assert_eq!(world.vendor.calls(), 6);
    world.works(Chat, &one);
}
