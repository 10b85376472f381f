//! Two endpoints: what one cannot do the other does, with the same bytes and one debit; where neither can, it is told
//! in the surface's words and costs nothing.

use crate::account::micro;
use crate::client::{End, Request};
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, Simulator, World, free_port};
use serde_json::Value;

/// An endpoint that is no good, in one of the usual ways.
enum Bad {
    /// Nobody listens.
    Refused(u16),
    Broken(Simulator),
}

impl Bad {
    fn all() -> Vec<(&'static str, Self)> {
        let broken = |fault| Self::Broken(Simulator::start(Some(fault)));
        vec![
            ("refused", Self::Refused(free_port())),
            ("close", broken("close")),
            ("429", broken("status=429")),
            ("500", broken("status=500")),
            ("503", broken("status=503")),
        ]
    }

    fn port(&self) -> u16 {
        match self {
            Self::Refused(port) => *port,
            Self::Broken(simulator) => simulator.port,
        }
    }

    fn calls(&self) -> Option<(u64, Value)> {
        match self {
            Self::Refused(_) => None,
            Self::Broken(simulator) => Some((simulator.calls(), simulator.last())),
        }
    }
}

fn large(surface: Surface, stream: bool) -> String {
    let mut body = surface.body("input=1000 output=10", stream, 1_000);
    let filler = serde_json::json!({"role": "user", "content": "x".repeat(5_000_000)});
    body["messages"].as_array_mut().unwrap().insert(0, filler);
    body.to_string()
}

/// A world whose vendors have `first` and then a good endpoint; that one weighs little, so that the bad one is tried
/// first whenever it is its turn.
fn behind(first: &Bad) -> (World, Simulator) {
    let good = Simulator::start(None);
    (Plan::default().endpoints(&[first.port(), good.port]).start(), good)
}

#[test]
fn the_second_endpoint_gets_the_same_bytes_and_the_client_pays_once() {
    for (what, bad) in Bad::all() {
        let (world, good) = behind(&bad);
        let account = world.account();
        let mut expected = 300_000_000;
        // The turn alternates, so that of two requests one begins at the bad endpoint.
        for (index, surface) in BOTH.into_iter().chain(BOTH).enumerate() {
            let stream = index >= 2;
            let request = Request::post(surface.path(), large(surface, stream)).bearer(&account.key);
            let answer = world.ask(&request);
            assert_eq!((answer.status, answer.end()), (200, Some(End::Whole)), "{what}: {}", answer.text());
            let cost = surface.cost(1_000, 10);
            expected -= cost;
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(micro(&receipt["credits"]), cost, "{what}: {receipt}");
            assert_eq!(receipt["outcome"], "completed");
            assert_eq!(good.calls(), index as u64 + 1, "{what}");
            if !stream {
                assert_eq!(answer.header("x-gateway-credits"), receipt["credits"].as_str());
            }
            if let Some((calls @ 1.., failed)) = bad.calls()
                && failed["target"] == surface.path()
                && calls > index as u64 / 2
            {
                assert_eq!(failed["body_length"], good.last()["body_length"], "{what}");
            }
        }
        assert_eq!(world.standing(&account).balance, expected, "{what}");
        world.ended(&account, 4);
        if let Some((calls, _)) = bad.calls() {
            assert!(calls >= 2, "{what}: the bad endpoint was tried {calls} times");
        }
        assert_eq!(world.vendor.calls(), 0);
        world.close();
    }
}

#[test]
fn a_body_that_failed_at_one_endpoint_has_the_same_sha_at_the_next() {
    let bad = Bad::Broken(Simulator::start(Some("close")));
    let (world, good) = behind(&bad);
    let account = world.account();
    let request = Request::post(Chat.path(), large(Chat, false)).bearer(&account.key);
    for _ in 0..2 {
        assert_eq!(world.ask(&request).status, 200);
    }
    let (calls, failed) = bad.calls().unwrap();
    assert_eq!((calls, good.calls()), (1, 2));
    assert_eq!(failed["body_sha256"], good.last()["body_sha256"]);
    assert!(failed["body_length"].as_u64().unwrap() > 5_000_000);
    world.close();
}

#[test]
fn where_every_endpoint_fails_it_is_told_and_costs_nothing() {
    let unreachable = ((502, "server_error"), (500, "api_error"), "upstream_error");
    let overloaded = ((503, "server_error"), (529, "overloaded_error"), "overloaded");
    let limited = ((429, "rate_limit_error"), (429, "rate_limit_error"), "rate_limit_exceeded");
    for (what, bad) in Bad::all() {
        let (chat, messages, code) = match what {
            "429" => limited,
            "503" => overloaded,
            _ => unreachable,
        };
        let also = if let Bad::Refused(_) = bad { free_port() } else { bad.port() };
        let world = Plan::default().endpoints(&[bad.port(), also]).start();
        let account = world.account();
        let mut connection = world.connect();
        for (index, surface) in BOTH.into_iter().enumerate() {
            for stream in [false, true] {
                let request = Request::post(surface.path(), large(surface, stream)).bearer(&account.key);
                let answer = connection.ask(&request);
                surface.fails(&answer, chat, messages, Some(code));
                let has_wait = answer.header("retry-after").is_some();
                assert_eq!(has_wait, matches!(what, "429" | "503"), "{what}: {:?}", answer.headers);
                let standing = world.standing(&account);
                assert_eq!((standing.balance, standing.held), (300_000_000, 0), "{what}");
                let receipt = world.receipt(&account, &answer.request_id());
                assert_eq!(micro(&receipt["credits"]), 0, "{what}: {receipt}");
                connection = world.connect();
            }
            if let Some((calls, _)) = bad.calls() {
                assert_eq!(calls, (index as u64 + 1) * 4, "{what}: two attempts for each request");
            }
        }
        world.ended(&account, 4);
        world.close();
    }
}

#[test]
fn an_answer_the_caller_caused_is_not_tried_elsewhere() {
    let world = Plan::default().start();
    let account = world.account();
    for surface in BOTH {
        for status in [400, 401, 404, 413, 422] {
            let before = world.vendor.calls();
            let answer = world.ask(&surface.whole(&account.key, &format!("status={status}")));
            assert!(answer.status >= 400);
            assert_eq!(world.vendor.calls(), before + 1, "{surface:?} {status}");
        }
    }
    assert_eq!(world.standing(&account).balance, 300_000_000);
    world.close();
}
