//! Two endpoints of a vendor. If one fails, the gateway sends the same bytes to the other and
//! debits once. If both fail, the client gets an error in its surface's format and pays nothing.

use crate::account::micro;
use crate::client::{End, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, Simulator, World, free_port};
use serde_json::Value;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// An endpoint that fails in one of the usual ways.
enum Bad {
    /// A port on which nobody listens.
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
    let filler = serde_json::json!({"role": "user", "content": "x".repeat(1_000_000)});
    body["messages"].as_array_mut().unwrap().insert(0, filler);
    body.to_string()
}

/// A world whose vendors have `first` and then a good endpoint. The good endpoint has a low weight,
/// so that the gateway tries the bad one first whenever it is its turn.
fn behind(first: &Bad) -> (World, Simulator) {
    let good = Simulator::start(None);
    (
        Plan::default()
            .turns()
            .endpoints(&[first.port(), good.port])
            .start(),
        good,
    )
}

/// Runs the check of each way to fail in a thread of its own.
fn beside_one_another(check: impl Fn(&str, Bad) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for (what, bad) in Bad::all() {
            scope.spawn(move || check(what, bad));
        }
    });
}

#[test]
fn the_second_endpoint_gets_the_same_bytes_and_the_client_pays_once() {
    let check = |what: &str, bad: Bad| {
        let (world, good) = behind(&bad);
        let account = world.account();
        let mut expected = 300_000_000;
        // The endpoints alternate, so one of a surface's two requests begins at the bad endpoint.
        for (index, surface) in BOTH.into_iter().chain(BOTH).enumerate() {
            let stream = index >= 2;
            let failed_before = bad.calls().map_or(0, |(calls, _)| calls);
            let request =
                Request::post(surface.path(), large(surface, stream)).bearer(&account.key);
            let answer = world.ask(&request);
            assert_eq!(
                (answer.status, answer.end()),
                (200, Some(End::Whole)),
                "{what}: {}",
                answer.text()
            );
            let cost = surface.cost(1_000, 10);
            expected -= cost;
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(micro(&receipt["credits"]), cost, "{what}: {receipt}");
            assert_eq!(receipt["outcome"], "completed");
            assert_eq!(good.calls(), index as u64 + 1, "{what}");
            if !stream {
                assert_eq!(
                    answer.header("x-gateway-credits"),
                    receipt["credits"].as_str()
                );
            }
            if let Some((calls, failed)) = bad.calls()
                && calls > failed_before
            {
                assert_eq!(failed["body_length"], good.last()["body_length"], "{what}");
            }
        }
        assert_eq!(world.standing(&account).balance, expected, "{what}");
        world.ended(&account, 4);
        if let Some((calls, _)) = bad.calls() {
            assert!(
                calls >= 2,
                "{what}: the bad endpoint was tried {calls} times"
            );
        }
        assert_eq!(world.vendor.calls(), 0);
        world.close();
    };
    beside_one_another(check);
}

#[test]
fn a_body_that_failed_at_one_endpoint_has_the_same_sha_at_the_next() {
    let bad = Bad::Broken(Simulator::start(Some("close")));
    let (world, good) = behind(&bad);
    let account = world.account();
    let request = Request::post(Chat.path(), large(Chat, false)).bearer(&account.key);
    for _ in 0..2 {
        world.expect(200, &request);
    }
    let (calls, failed) = bad.calls().unwrap();
    assert_eq!((calls, good.calls()), (1, 2));
    assert_eq!(failed["body_sha256"], good.last()["body_sha256"]);
    assert!(failed["body_length"].as_u64().unwrap() > 1_000_000);
    world.close();
}

#[test]
fn an_endpoint_that_takes_the_connection_and_says_nothing_is_left_in_time() {
    // The kernel accepts connections for this listener and buffers some of the body, although
    // nobody calls `accept`.
    let silent = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let good = Simulator::start(None);
    let ports = [silent.local_addr().unwrap().port(), good.port];
    // The good endpoint needs far less for a large body, also on a busy machine.
    let limit = Duration::from_secs(10);
    let limits = Plan::default()
        .limit("first_byte_seconds", limit.as_secs())
        .limit("idle_seconds", limit.as_secs())
        .limit("repeat_within_seconds", 600)
        .limit("cpu_queue_seconds", 600);
    let (world, account) = limits.turns().endpoints(&ports).with_account();
    let ask = &|surface: Surface, body: &str| {
        let began = Instant::now();
        let answer =
            world.ask(&Request::post(surface.path(), body.to_owned()).bearer(&account.key));
        let len = body.len();
        assert_eq!(answer.status, 200, "{surface:?} {len}: {}", answer.text());
        began.elapsed()
    };
    std::thread::scope(|scope| {
        for surface in BOTH {
            scope.spawn(move || {
                let small = surface.body("input=1000 output=10", false, 1_000);
                // Two of the four requests begin at the silent endpoint.
                let bodies = [small.to_string(), large(surface, true)];
                let took = std::thread::scope(|scope| {
                    let asked = [0, 1, 0, 1].map(|body: usize| {
                        let body = &bodies[body];
                        scope.spawn(move || ask(surface, body))
                    });
                    asked.map(|asked| asked.join().unwrap())
                });
                let late = took.iter().filter(|took| **took >= limit).count();
                assert!(late >= 2, "{took:?}");
                assert!(took.iter().all(|took| *took < 10 * limit), "{took:?}");
            });
        }
    });
    assert_eq!(good.calls(), 8);
    assert_eq!(
        world.standing(&account).balance,
        300_000_000 - 4 * (Chat.cost(1_000, 10) + Messages.cost(1_000, 10))
    );
}

#[test]
fn where_every_endpoint_fails_it_is_told_and_costs_nothing() {
    let unreachable = ((502, "server_error"), (500, "api_error"), "upstream_error");
    let overloaded = (
        (503, "server_error"),
        (529, "overloaded_error"),
        "overloaded",
    );
    let limited = (
        (429, "rate_limit_error"),
        (429, "rate_limit_error"),
        "rate_limit_exceeded",
    );
    let check = |what: &str, bad: Bad| {
        let (chat, messages, code) = match what {
            "429" => limited,
            "503" => overloaded,
            _ => unreachable,
        };
        let also = if let Bad::Refused(_) = bad {
            free_port()
        } else {
            bad.port()
        };
        let (world, account) = Plan::default()
            .endpoints(&[bad.port(), also])
            .with_account();
        let mut connection = world.connect();
        for (index, surface) in BOTH.into_iter().enumerate() {
            for stream in [false, true] {
                let request =
                    Request::post(surface.path(), large(surface, stream)).bearer(&account.key);
                let answer = connection.ask(&request);
                surface.fails(&answer, chat, messages, Some(code));
                let has_wait = answer.header("retry-after").is_some();
                assert_eq!(
                    has_wait,
                    matches!(what, "429" | "503"),
                    "{what}: {:?}",
                    answer.headers
                );
                let receipt = world.receipt(&account, &answer.request_id());
                assert_eq!(micro(&receipt["credits"]), 0, "{what}: {receipt}");
                let standing = world.standing(&account);
                assert_eq!(
                    (standing.balance, standing.held),
                    (300_000_000, 0),
                    "{what}"
                );
                connection = world.connect();
            }
            if let Some((calls, _)) = bad.calls() {
                assert_eq!(
                    calls,
                    (index as u64 + 1) * 4,
                    "{what}: two attempts for each request"
                );
            }
        }
        world.ended(&account, 4);
    };
    beside_one_another(check);
}

#[test]
fn an_answer_the_caller_caused_is_not_tried_elsewhere() {
    let (world, account) = Plan::default().with_account();
    for surface in BOTH {
        for status in [400, 401, 404, 413, 422] {
            let before = world.vendor.calls();
            let answer = world.ask(&surface.whole(&account.key, &format!("status={status}")));
            assert!(answer.status >= 400);
            assert_eq!(world.vendor.calls(), before + 1, "{surface:?} {status}");
        }
    }
    assert_eq!(world.standing(&account).balance, 300_000_000);
}
