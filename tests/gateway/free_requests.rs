//! Requests that cost nothing are limited too: token counts, the gateway's own endpoints, receipts,
//! and requests that the gateway refuses because of their bodies.

use crate::account::Account;
use crate::bystander::{Bystander, REQUESTS, StopOnDrop};
use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn count(key: &str) -> Request {
    let body = Messages.body("input=77", false, 1_000);
    Request::post("/v1/messages/count_tokens", body.to_string()).bearer(key)
}

fn key_of_five(world: &World, account: &Account) -> String {
    let made = world.json(&[
        "key",
        "create",
        "--account",
        &account.id,
        "--name",
        "five",
        "--requests-per-minute",
        "5",
    ]);
    made["key"].as_str().unwrap().to_owned()
}

#[track_caller]
fn limited(surface: Surface, answer: &Answer, words: &str) {
    let limited = (429, "rate_limit_error");
    let error = surface.fails(answer, limited, limited, Some("rate_limit_exceeded"));
    assert!(
        error["message"].as_str().unwrap().contains(words),
        "{error}"
    );
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
}

/// Sends the request 24 times and returns the statuses.
fn asked_24_times(world: &World, request: &Request) -> Vec<u16> {
    (0..24).map(|_| world.ask(request).status).collect()
}

/// Asserts that the first `count` requests were answered and the rest refused. On a slow machine up
/// to three more are answered.
#[track_caller]
fn first(count: usize, statuses: &[u16]) {
    let answered = statuses.iter().filter(|status| **status == 200).count();
    assert!(
        statuses.iter().all(|status| matches!(status, 200 | 429)),
        "{statuses:?}"
    );
    assert!(
        statuses[..count].iter().all(|status| *status == 200),
        "{statuses:?}"
    );
    assert!((count..count + 4).contains(&answered), "{statuses:?}");
}

#[test]
fn token_counts_have_the_keys_own_limit_and_leave_billed_requests_alone() {
    let (world, account) = World::with_account();
    let key = key_of_five(&world, &account);
    let statuses = asked_24_times(&world, &count(&key));
    first(5, &statuses);
    let answered = statuses.iter().filter(|status| **status == 200).count() as u64;
    assert_eq!(
        world.vendor.calls(),
        answered,
        "a refused count reached the vendor"
    );
    limited(
        Messages,
        &world.ask(&count(&key)),
        "the limit of this key is 5 token counts per minute",
    );
    limited(
        Chat,
        &world.ask(&Request::get("/v1/models").bearer(&key)),
        "50 free requests per minute",
    );
    // Billed requests have a separate limit, and so does another key.
    for _ in 0..5 {
        world.expect(200, &Messages.whole(&key, "input=1 output=1"));
    }
    limited(
        Messages,
        &world.ask(&Messages.whole(&key, "input=1 output=1")),
        "5 requests per minute",
    );
    world.expect(200, &count(&account.key));
    assert!(world.metric("gateway_rejected_total", &["\"free_requests_per_minute\""]) >= 2.0);
    world.ended(&account, 5);
}

#[test]
fn control_without_the_limit_token_counts_have_none() {
    let (world, account) = Plan::default()
        .limit("free_requests_per_minute", 0)
        .with_account();
    let key = key_of_five(&world, &account);
    assert_eq!(asked_24_times(&world, &count(&key)), [200; 24]);
    assert_eq!(world.vendor.calls(), 24);
}

#[test]
fn an_account_without_limits_of_its_own_has_that_of_all() {
    let world = Plan::default()
        .limit("free_requests_per_minute", 12)
        .start();
    let (account, other) = (world.account(), world.funded(1_000_000));
    for path in [
        "/v1/models",
        "/v1/credits",
        "/v1/models/beta-5.2",
        "/v1/receipts/none",
    ] {
        let answers: Vec<_> = (0..3)
            .map(|_| world.ask(&Request::get(path).bearer(&account.key)).status)
            .collect();
        assert!(
            answers.iter().all(|status| matches!(status, 200 | 404)),
            "{path}: {answers:?}"
        );
    }
    for path in ["/v1/models", "/v1/credits", "/v1/receipts/none"] {
        limited(
            Chat,
            &world.ask(&Request::get(path).bearer(&account.key)),
            "the limit of this account is 12 free requests",
        );
    }
    limited(
        Messages,
        &world.ask(&count(&account.key)),
        "the limit of this account is 1 token counts per minute",
    );
    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    world.expect(200, &Request::get("/v1/models").bearer(&other.key));
}

#[test]
fn an_account_without_credit_has_its_tokens_counted_by_the_gateway() {
    let world = World::new();
    let (poor, paying) = (world.funded(0), world.account());
    let counted = world.ask(&count(&poor.key));
    assert_eq!(
        (counted.status, counted.header("x-gateway-estimated")),
        (200, Some("true")),
        "{}",
        counted.text()
    );
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 0);
    assert_eq!(
        world.vendor.calls(),
        0,
        "the vendor was asked under the operator's key"
    );
    let counted = world.ask(&count(&paying.key));
    assert_eq!(
        (counted.status, counted.header("x-gateway-estimated")),
        (200, None)
    );
    assert_eq!(world.vendor.calls(), 1);
}

fn bad(surface: Surface, key: &str) -> Request {
    Request::post(surface.path(), "{".to_owned()).bearer(key)
}

#[test]
fn requests_that_are_refused_for_their_bodies_have_a_limit() {
    let world = Plan::default()
        .limit("free_requests_per_minute", 20)
        .start();
    let (account, other) = (world.account(), world.funded(1_000_000));
    for round in 0..10 {
        for surface in BOTH {
            assert_eq!(
                world.ask(&bad(surface, &account.key)).status,
                400,
                "round {round}"
            );
        }
    }
    for surface in BOTH {
        let words = "20 requests with invalid bodies";
        limited(surface, &world.ask(&bad(surface, &account.key)), words);
        // The gateway refuses on the header and does not wait for the body.
        let mut connection = world.connect();
        connection.send(&surface.whole(&account.key, "input=1 output=1").head());
        limited(surface, &connection.answer(), words);
        world.expect(400, &bad(surface, &other.key));
    }
    assert_eq!(
        world
            .ask(&Request::get("/v1/credits").bearer(&account.key))
            .status,
        200,
        "those are counted apart"
    );
}

#[test]
fn control_without_the_limit_refused_requests_have_none() {
    let (world, account) = Plan::default()
        .limit("free_requests_per_minute", 0)
        .with_account();
    for _ in 0..30 {
        world.expect(400, &bad(Chat, &account.key));
    }
    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    world.ended(&account, 1);
}

#[test]
fn an_account_has_so_many_receipts_looked_up_at_one_time() {
    let world = Plan::default()
        .limit("receipt_lookups_per_account", 2)
        .start();
    let (account, other) = (world.account(), world.funded(1_000_000));
    // A request that has just begun can still get a receipt.
    let begun = uuid::Uuid::now_v7().simple();
    let unknown = Request::get(&format!("/v1/receipts/req_{begun}"));
    let look_up = |key: &str| world.ask(&unknown.clone().bearer(key));
    // Of three lookups that meet, the limit lets two wait. On a busy machine they may not meet.
    wait_for("three lookups at one time", SOON, || {
        let (answers, unlimited) = std::thread::scope(|scope| {
            let three: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| look_up(&account.key)))
                .collect();
            let unlimited = look_up(&other.key);
            let three = three.into_iter().map(|answer| answer.join().unwrap());
            (three.collect::<Vec<_>>(), unlimited)
        });
        assert_eq!(unlimited.status, 404, "the limit is of one account");
        let (found_none, refused): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| answer.status == 404);
        assert!(found_none.len() >= 2, "two lookups are within the limit");
        for answer in &refused {
            limited(Chat, answer, "already looks up 2 receipts");
        }
        (refused.len() == 1).then_some(())
    });
    assert_eq!(
        look_up(&account.key).status,
        404,
        "the places are free again"
    );
}

/// Sends these requests in turn on one connection, [`PER_SECOND`] in total per second, until
/// `stop`.
fn repeat(world: &World, requests: &[Request], stop: &AtomicBool) {
    let mut connection = world.connect();
    for request in requests.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let start = Instant::now();
        let answer = connection
            .send(&request.bytes())
            .then(|| connection.try_answer())
            .flatten();
        match answer {
            Some(answer) => assert!(
                matches!(answer.status, 200 | 400 | 402 | 404 | 429),
                "{}",
                answer.text()
            ),
            None => connection = world.connect(),
        }
        std::thread::sleep(
            Duration::from_secs(1) / PER_SECOND
                - start.elapsed().min(Duration::from_secs(1) / PER_SECOND),
        );
    }
}

const PER_SECOND: u32 = 100;

/// Token counts, unknown receipts and bodies that are not JSON, each sent in its own loop: once by
/// a key with a limit of five requests per minute, and once by an account without credits.
#[test]
fn what_costs_nothing_does_not_hold_up_the_requests_of_another_account() {
    let world = World::new();
    let bystander = Bystander::new(&world);
    let (limited, poor) = (key_of_five(&world, &world.account()), world.funded(0).key);
    let receipt =
        |key: &str| Request::get("/v1/receipts/req_00000000000000000000000000000000").bearer(key);
    let loops = [&limited, &poor].map(|key| [count(key), receipt(key), bad(Chat, key)]);
    let (stop, before) = (AtomicBool::new(false), world.vendor.calls());
    std::thread::scope(|scope| {
        for request in loops.as_flattened() {
            scope.spawn(|| repeat(&world, std::slice::from_ref(request), &stop));
        }
        let _stop = StopOnDrop(&stop);
        wait_until("the limits to be reached", SOON, || {
            world.metric("gateway_rejected_total", &["\"free_requests_per_minute\""]) > 0.0
        });
        bystander.endures(&world, "loops of requests that cost nothing", |_| ());
    });
    let of_attack = world.vendor.calls() - before - REQUESTS as u64;
    assert!(
        of_attack < 10,
        "{of_attack} token counts reached the vendor under a limit of 5 per minute"
    );
    wait_for("nothing to be in flight", SOON, || {
        let gauges = ["gateway_bodies_in_flight_bytes", "gateway_open_holds"];
        gauges
            .iter()
            .all(|gauge| world.metric(gauge, &[]) == 0.0)
            .then_some(())
    });
}
