//! Decisions from the header alone: the gateway answers before it reads the body, and the client
//! can read that answer whatever it still sends. A stored answer needs neither credits nor room
//! under a limit.

use crate::account::credits;
use crate::client::{self, Answer, Request};
use crate::shared::Fleet;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::json;
use std::process::Command;

#[track_caller]
fn insufficient(surface: Surface, answer: &Answer) {
    let (chat, messages) = ((402, "insufficient_quota"), (402, "billing_error"));
    surface.fails(answer, chat, messages, Some("insufficient_credits"));
}

fn large(surface: Surface, key: &str, bytes: usize) -> Request {
    Request::post(surface.path(), vec![b' '; bytes]).bearer(key)
}

#[test]
fn whoever_cannot_pay_is_answered_before_the_body_and_can_read_it() {
    let (world, poor) = World::with_funds(0);
    for surface in BOTH {
        // Only the header, with and without `expect: 100-continue`.
        for expects in [false, true] {
            let request = large(surface, &poor.key, 30_000_000);
            let request = if expects {
                request.header("expect", "100-continue")
            } else {
                request
            };
            let mut connection = world.connect();
            connection.send(&request.head());
            let answer = connection.answer();
            assert!(
                answer.interim.is_empty(),
                "a body that is refused was asked for"
            );
            insufficient(surface, &answer);
        }
        // A client that reads the answer only after it has sent everything.
        for chunk in [0, 16_000] {
            insufficient(
                surface,
                &world.ask(&large(surface, &poor.key, 5_000_000).chunked(chunk)),
            );
        }
        // After a short body the connection stays usable.
        let mut connection = world.connect();
        for _ in 0..3 {
            insufficient(
                surface,
                &connection.ask(&surface.whole(&poor.key, "input=1 output=1")),
            );
        }
        // The gateway does not wait long for a body that does not come.
        let mut connection = world.connect();
        connection.send(&surface.whole(&poor.key, "input=1 output=1").head());
        insufficient(surface, &connection.answer());
        assert!(connection.is_closed());
        assert_eq!(
            over_h2(
                &world,
                &large(surface, &poor.key, 5_000_000),
                &poor.key,
                surface
            ),
            402
        );
    }
    assert_eq!(world.vendor.calls(), 0);
    assert_eq!(world.metric("gateway_bodies_in_flight_bytes", &[]), 0.0);
}

/// The status that an HTTP/2 client gets.
fn over_h2(world: &World, request: &Request, key: &str, surface: Surface) -> u16 {
    let file = world.dir.path().join("body");
    std::fs::write(&file, request.framed_body()).unwrap();
    let url = format!("http://127.0.0.1:{}{}", world.edge, surface.path());
    let output = Command::new("curl")
        .args([
            "--http2-prior-knowledge",
            "--silent",
            "--max-time",
            "20",
            "--output",
            "/dev/null",
            &url,
        ])
        .args([
            "--write-out",
            "%{http_code}",
            "--header",
            &format!("x-api-key: {key}"),
            "--data-binary",
        ])
        .arg(format!("@{}", file.display()))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).parse().unwrap()
}

#[test]
fn requests_whose_bodies_still_come_count_among_those_of_their_account_and_key() {
    let world = Plan::default()
        .limit("open_requests_per_account", 2)
        .start();
    let (account, other) = (world.account(), world.funded(100_000_000));
    let made = world.json(&[
        "key",
        "create",
        "--account",
        &other.id,
        "--name",
        "one",
        "--concurrent",
        "1",
    ]);
    let single = made["key"].as_str().unwrap();
    // The gateway checks the header before it asks for the body with a 100.
    let unfinished = |key: &str| {
        let mut connection = world.connect();
        connection.send(
            &Chat
                .whole(key, "input=1 output=1")
                .header("expect", "100-continue")
                .head(),
        );
        assert!(connection.head().unwrap().starts_with("HTTP/1.1 100"));
        connection
    };
    let mut held = [
        unfinished(&account.key),
        unfinished(&account.key),
        unfinished(single),
    ];
    for (key, words) in [
        (account.key.as_str(), "2 running requests"),
        (single, "1 concurrent requests"),
    ] {
        let mut connection = world.connect();
        connection.send(&Chat.whole(key, "input=1 output=1").head());
        let answer = connection.answer();
        let limited = (429, "rate_limit_error");
        let error = Chat.fails(&answer, limited, limited, Some("rate_limit_exceeded"));
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    world.works(Chat, &other.key);
    for (connection, key) in held
        .iter_mut()
        .zip([&account.key, &account.key, &single.to_owned()])
    {
        connection.send(&Chat.whole(key, "input=1 output=1").framed_body());
        assert_eq!(connection.answer().status, 200);
    }
    for key in [account.key.as_str(), single] {
        world.expect(200, &Chat.whole(key, "input=1 output=1"));
    }
}

#[test]
fn a_stored_answer_needs_no_credit_and_an_unknown_key_is_refused_on_the_header() {
    let world = World::new();
    let root = world.account_with("root@example.test", &["--no-trial", "--admin"]);
    let account = world.funded(100_000_000);
    let keyed = |surface: Surface, key: &str| {
        surface
            .whole(&account.key, "input=10 output=10")
            .header("idempotency-key", key)
    };
    let first: Vec<_> = BOTH
        .iter()
        .map(|surface| world.ask(&keyed(*surface, "paid")))
        .collect();
    assert!(first.iter().all(|answer| answer.status == 200));
    world.ended(&account, 2);
    let taken = json!({
        "credits": format!("-{}", credits(world.standing(&account).available)), "ref": "all", "reason": "a test",
    });
    let path = format!("/admin/v1/accounts/{}/adjustments", account.id);
    assert_eq!(
        client::ask(
            world.admin,
            &Request::post(&path, taken.to_string()).bearer(&root.key)
        )
        .status,
        201
    );
    for (surface, first) in BOTH.into_iter().zip(&first) {
        let again = world.ask(&keyed(surface, "paid"));
        assert_eq!(
            (again.status, again.header("x-gateway-replayed")),
            (200, Some("true")),
            "{}",
            again.text()
        );
        assert_eq!(again.body, first.body);
        let other = surface
            .whole(&account.key, "input=11 output=10")
            .header("idempotency-key", "paid");
        world.expect(422, &other);
        let mut connection = world.connect();
        connection.send(&keyed(surface, "unknown").head());
        insufficient(surface, &connection.answer());
        insufficient(
            surface,
            &world.ask(&surface.whole(&account.key, "input=10 output=10")),
        );
    }
    world.ended(&account, 2);
}

#[test]
fn an_edge_among_many_asks_the_store_before_it_reads_a_large_body() {
    let fleet = Fleet::new();
    let poor = fleet.funded(0);
    let mut refused = Vec::new();
    for edge in &fleet.edges {
        fleet.wait_known(edge, &poor.key);
        for surface in BOTH {
            // If the store does not answer in time, the edge answers 503 or 529, and the test tries
            // again.
            wait_for("the store to answer", SOON, || {
                let mut connection = edge.connect();
                connection.send(&large(surface, &poor.key, 5_000_000).head());
                let answer = connection.answer();
                let id = answer.header("x-request-id").unwrap().to_owned();
                let is_refusal = !matches!(answer.status, 503 | 529);
                refused.extend(is_refusal.then_some(id));
                is_refusal.then(|| insufficient(surface, &answer))
            });
        }
    }
    // The sidecar, which has the pages, gets to know what the edges refused.
    let file = fleet.sidecar.data_dir().join("refused.db");
    let file = rusqlite::Connection::open(file).unwrap();
    for id in refused {
        wait_for("the sidecar to have the refusal", SOON, || {
            let sql = "SELECT code FROM refused WHERE request_id = ?1 AND account = ?2";
            let code = file.query_row(sql, [&id, &poor.id], |row| row.get::<_, String>(0));
            (code.ok()? == "insufficient_credits").then_some(())
        });
    }
}
