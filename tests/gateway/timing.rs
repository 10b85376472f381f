//! Tests the timeouts for vendors: none is extended by another, and each ends the request with an
//! error of its own.

use crate::account::micro;
use crate::failure::{broke_off, is_free};
use crate::surface::{BOTH, Chat, Surface, UPSTREAM_TIMEOUT};
use crate::world::{Plan, SOON, World, wait_until};
use std::time::{Duration, Instant};

/// Longest time in which a request ends that meets a timeout of some seconds: on a busy machine it
/// takes several times as long. Without the timeout, a request waits for minutes.
const ENDED_WITHIN: Duration = Duration::from_secs(40);

/// Checks that a request ended at a timeout of 1 s or more.
#[track_caller]
fn in_time(took: Duration) {
    assert!(
        took > Duration::from_millis(750) && took < ENDED_WITHIN,
        "{took:?}"
    );
}

#[test]
fn a_vendor_that_does_not_answer_is_504_in_time() {
    let (world, account) = Plan::default()
        .limit("first_byte_seconds", 1)
        .limit("idle_seconds", 1)
        .limit("attempts", 1)
        .with_account();
    for surface in BOTH {
        for stream in [false, true] {
            let began = Instant::now();
            let answer = world
                .ask(&surface.request(&account.key, &surface.body("hang=headers", stream, 100)));
            let took = began.elapsed();
            let chat = (504, "server_error");
            surface.fails(
                &answer,
                chat,
                (504, "timeout_error"),
                Some("upstream_timeout"),
            );
            in_time(took);
            is_free(&world, &account, &answer);
        }
        // The JSON answer stops in the middle. The client has received nothing yet, so it gets a
        // normal error response.
        let answer = world.ask(&surface.whole(&account.key, "hang=1"));
        surface.fails_as(&answer, UPSTREAM_TIMEOUT);
        is_free(&world, &account, &answer);
    }
}

/// The gateway's own time excludes the time that it waits for the client's body and for the vendor.
#[test]
fn the_gateways_own_time_holds_none_of_the_vendors_or_the_clients() {
    let (world, account) = World::with_account();
    // Either wait would exceed this limit. A busy machine may need several seconds.
    let (wait_ms, own_ms) = (4_500.0, 4_000.0);
    let check = &|surface: Surface| {
        let marker = format!("delay_ms={wait_ms} input=1 output=1");
        let request = surface.whole(&account.key, &marker);
        let mut connection = world.connect();
        connection.send(&request.head());
        std::thread::sleep(Duration::from_millis(wait_ms as u64));
        connection.send(&request.framed_body());
        let answer = connection.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let timing = answer.header("server-timing").unwrap().to_owned();
        let phase = |name: &str| {
            let told = timing
                .split(", ")
                .find_map(|phase| phase.strip_prefix(&format!("{name};dur=")))
                .unwrap();
            told.parse::<f64>().unwrap()
        };
        // The gateway may read the head later than the client sends it.
        assert!(
            phase("vendor") >= wait_ms - 50.0 && phase("body") > 0.0,
            "{timing}"
        );
        assert!(phase("auth") + phase("admit") < own_ms, "{timing}");
        phase("body")
    };
    let body_ms: f64 = std::thread::scope(|scope| {
        let checks = BOTH.map(|surface| scope.spawn(move || check(surface)));
        checks.map(|check| check.join().unwrap()).iter().sum()
    });
    let sum = |family: &str| world.metric(family, &[]);
    wait_until("both to be counted", SOON, || {
        sum("gateway_overhead_seconds_count") == 2.0
    });
    assert!(
        sum("gateway_request_seconds_sum") * 1_000.0 > 2.0 * wait_ms + body_ms - 100.0,
        "both waits are in the whole"
    );
    assert!(
        sum("gateway_overhead_seconds_sum") * 1_000.0 < 2.0 * own_ms,
        "and neither in its own"
    );
}

#[test]
fn a_limit_for_the_first_byte_is_not_stretched_by_the_one_between_pieces() {
    let (world, account) = Plan::default()
        .limit("first_byte_seconds", 1)
        .limit("idle_seconds", 600)
        .limit("attempts", 1)
        .with_account();
    let began = Instant::now();
    let answer = world.ask(&Chat.whole(&account.key, "hang=headers"));
    assert_eq!(answer.status, 504);
    in_time(began.elapsed());
    // The reverse: a slow first byte is allowed, and so is a stream whose pauses are far below the
    // limit and together longer.
    world.close();
    let (world, account) = Plan::default()
        .limit("first_byte_seconds", 600)
        .limit("idle_seconds", 4)
        .with_account();
    std::thread::scope(|scope| {
        for surface in BOTH {
            let (world, account) = (&world, &account);
            scope.spawn(move || {
                let answer = world.ask(&surface.stream(
                    &account.key,
                    "delay_ms=4500 events=8 gap_ms=500 input=1 output=1",
                ));
                assert!(
                    surface.is_complete(&answer),
                    "{} {}",
                    answer.status,
                    answer.text()
                );
            });
        }
    });
    world.close();
}

#[test]
fn a_stream_that_hangs_ends_with_an_error_frame_in_time() {
    // The first events must come in this time too.
    let (world, account) = Plan::default().limit("idle_seconds", 4).with_account();
    let check = &|surface: Surface| {
        let began = Instant::now();
        let answer = world.ask(&surface.stream(&account.key, "events=8 hang=4"));
        in_time(began.elapsed());
        broke_off(surface, &answer, "upstream_timeout", "timeout_error");
        answer
    };
    let answers = std::thread::scope(|scope| {
        let checks = BOTH.map(|surface| scope.spawn(move || check(surface)));
        checks.map(|check| check.join().unwrap())
    });
    for answer in answers {
        assert_eq!(is_free(&world, &account, &answer)["outcome"], "vendor_cut");
    }
}

#[test]
fn a_stream_that_outlasts_the_whole_requests_time_is_debited_for_what_was_generated() {
    // The first events must come in this time too.
    let (world, account) = Plan::default().limit("total_seconds", 5).with_account();
    let check = &|surface: Surface| {
        let began = Instant::now();
        let answer = world.ask(&surface.stream(
            &account.key,
            "events=200 bytes=4000 gap_ms=500 input=10 output=900",
        ));
        // By itself, the stream lasts 100 s.
        assert!(began.elapsed() < ENDED_WITHIN, "{:?}", began.elapsed());
        assert!(
            answer.has(surface.error_frame()) && !surface.is_complete(&answer),
            "{}",
            answer.text()
        );
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(receipt["outcome"], "gateway_ended", "{receipt}");
        assert!(micro(&receipt["credits"]) > 0, "{receipt}");
    };
    std::thread::scope(|scope| {
        for surface in BOTH {
            scope.spawn(move || check(surface));
        }
    });
}

#[test]
fn a_receipt_tells_when_the_first_token_came_and_when_the_last() {
    let (world, account) = Plan::default().with_account();
    for surface in BOTH {
        // So long that a busy machine does not get first and last at one time.
        let answer = world.ask(&surface.stream(&account.key, "delay_ms=150 events=4 gap_ms=600"));
        assert_eq!(answer.status, 200);
        let receipt = world.receipt(&account, answer.header("x-request-id").unwrap());
        let (first, took) = (
            receipt["first_token_ms"].as_u64().unwrap(),
            receipt["took_ms"].as_u64().unwrap(),
        );
        // Clocks count in whole milliseconds.
        assert!(
            first >= 149 && first < took,
            "{surface:?}: the first after {first} ms, the last after {took} ms"
        );
        let whole = world.ask(&surface.whole(&account.key, "output=10"));
        let receipt = world.receipt(&account, whole.header("x-request-id").unwrap());
        assert!(
            receipt["took_ms"].is_u64() && receipt.get("first_token_ms").is_none(),
            "{receipt}"
        );
        let failed = world.ask(&surface.stream(&account.key, "status=500"));
        let receipt = world.receipt(&account, failed.header("x-request-id").unwrap());
        assert!(receipt.get("first_token_ms").is_none(), "{receipt}");
    }
}
