//! API calls from web pages of other origins: which origins may call, what they may send and read,
//! and that no other origin gains access.

use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, World};

const APP: &str = "https://app.example";
const OTHER: &str = "https://evil.example";

fn world(origins: &str) -> World {
    Plan::default()
        .edit(
            "store: {kind: embedded}",
            &format!("store: {{kind: embedded}}\ncors: {{origins: {origins}}}"),
        )
        .start()
}

fn preflight(path: &str, origin: &str) -> Request {
    Request::new("OPTIONS", path)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,x-stainless-os,x-evil",
        )
}

/// Returns `access-control-allow-origin`. Asserts that the answer does not allow credentials.
fn allowed(answer: &Answer) -> Option<&str> {
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    answer.header("access-control-allow-origin")
}

#[test]
fn without_a_list_no_page_may_call() {
    let (world, account) = World::with_account();
    let answer = world.ask(&preflight("/v1/chat/completions", APP));
    assert_eq!((answer.status, allowed(&answer)), (405, None));
    let answer = world.ask(
        &Chat
            .whole(&account.key, "input=1 output=1")
            .header("origin", APP),
    );
    assert_eq!(
        (answer.status, allowed(&answer), answer.header("vary")),
        (200, None, None)
    );
}

#[test]
fn a_listed_page_may_call_and_reads_every_answer() {
    let world = world(&format!("[{APP:?}, \"http://localhost:3000\"]"));
    let account = world.account();
    for path in [
        "/v1/chat/completions",
        "/messages",
        "/v1/models",
        "/v1/none",
    ] {
        let answer = world.ask(&preflight(path, APP));
        assert_eq!(
            (answer.status, allowed(&answer)),
            (204, Some(APP)),
            "{path}"
        );
        answer.has_header("access-control-allow-methods", "GET, HEAD, POST, OPTIONS");
        answer.has_header(
            "access-control-allow-headers",
            "authorization, content-type, x-stainless-os",
        );
        assert_eq!(answer.header("access-control-max-age"), Some("7200"));
        assert_eq!(
            (answer.header("vary"), answer.body.len()),
            (Some("origin"), 0)
        );
        let refused = world.ask(&preflight(path, OTHER));
        assert_eq!((refused.status, allowed(&refused)), (204, None), "{path}");
        assert_eq!(refused.header("access-control-allow-headers"), None);
    }
    for surface in BOTH {
        for (request, status) in [
            (surface.whole(&account.key, "input=1 output=1"), 200),
            (surface.stream(&account.key, "input=1 output=1"), 200),
            (surface.whole(&account.key, "status=400"), 400),
            (surface.whole("gw-sk-none", "input=1"), 401),
            (Request::post(surface.path(), "{").bearer(&account.key), 400),
            (Request::get(surface.path()).bearer(&account.key), 405),
            (Request::get("/v1/none").bearer(&account.key), 404),
            (Request::get("/v1/credits").bearer(&account.key), 200),
            (Request::get("/v1/models//x").bearer(&account.key), 400),
        ] {
            for (origin, due) in [(Some(APP), Some(APP)), (Some(OTHER), None), (None, None)] {
                let request = origin.iter().fold(request.clone(), |request, origin| {
                    request.header("origin", origin)
                });
                let answer = world.ask(&request);
                assert_eq!(
                    (answer.status, allowed(&answer)),
                    (status, due),
                    "{request:?}: {}",
                    answer.text()
                );
                assert_eq!(
                    answer.header("access-control-expose-headers"),
                    due.map(|_| "*")
                );
                assert_eq!(answer.header("vary"), Some("origin"));
            }
        }
    }
    // A replayed answer allows the origin of the page that asks now.
    let keyed = Chat
        .whole(&account.key, "input=1 output=1")
        .header("idempotency-key", "a-key");
    assert_eq!(
        allowed(&world.ask(&keyed.clone().header("origin", APP))),
        Some(APP)
    );
    let again = world.ask(&keyed.clone().header("origin", "http://localhost:3000"));
    assert_eq!(again.header("x-gateway-replayed"), Some("true"));
    assert_eq!(allowed(&again), Some("http://localhost:3000"));
    assert_eq!(allowed(&world.ask(&keyed)), None);
}

#[test]
fn pages_and_health_checks_take_no_part() {
    let world = world("[\"*\"]");
    for path in [
        "/docs",
        "/docs/models.json",
        "/dashboard/sign-in",
        "/healthz",
        "/",
    ] {
        let answer = world.ask(&Request::get(path).header("origin", APP));
        assert_eq!(allowed(&answer), None, "{path}");
        let answer = world.ask(&preflight(path, APP));
        assert_eq!(allowed(&answer), None, "{path}");
        assert_eq!(
            answer.header("access-control-allow-headers"),
            None,
            "{path}"
        );
    }
    let answer = world.ask(&Request::get("/v1/models").header("origin", OTHER));
    assert_eq!(
        (answer.status, allowed(&answer)),
        (401, Some("*")),
        "every page may ask, and needs a key"
    );
}
