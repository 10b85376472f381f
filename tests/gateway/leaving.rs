//! Clients that disconnect: they pay for the generated output, exactly if the vendor reports usage,
//! and nothing stays open.

use crate::account::{Account, micro};
use crate::client::{Connection, End, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Begins a request and reads `events` events of its stream. The first event includes the stream's
/// head.
fn begin(world: &World, request: &Request, events: usize) -> (Connection, Option<String>) {
    let mut connection = world.connect();
    assert!(connection.send(&request.bytes()));
    let id = (events > 0).then(|| {
        let mut answer = connection.begin();
        while answer.text().matches("\n\n").count() < events {
            assert!(connection.more(&mut answer), "{}", answer.text());
        }
        answer.request_id()
    });
    (connection, id)
}

/// The receipt of the request that ended because its client disconnected.
#[track_caller]
fn left(world: &World, account: &Account, count: usize) -> Value {
    let ending = world.ended(account, count);
    assert_eq!(ending["outcome"], "client_left", "{ending}");
    world.receipt(account, ending["request_id"].as_str().unwrap())
}

/// A gateway that reads on for as long as a stream lasts after its client disconnected.
fn patient() -> World {
    Plan::default()
        .limit("drain_after_client_seconds", 600)
        .start()
}

#[test]
fn a_stream_whose_client_leaves_is_read_to_its_end_and_debited_exactly() {
    let world = patient();
    let account = world.account();
    // The client disconnects after the first event, in the middle, and just before the end.
    let moments = [1, 6, 11];
    std::thread::scope(|scope| {
        let (world, account) = (&world, &account);
        for (surface, events) in BOTH
            .into_iter()
            .flat_map(|surface| moments.map(|events| (surface, events)))
        {
            scope.spawn(move || {
                let marker = "text=\"The quick brown fox jumps over the lazy dog\" events=9 gap_ms=500 input=200 output=70";
                let (connection, id) = begin(world, &surface.stream(&account.key, marker), events);
                drop(connection);
                world.ended_all::<6>(account);
                let receipt = world.receipt(account, &id.unwrap());
                // Just before the end, the answer may be complete before the gateway notices.
                let outcome = receipt["outcome"].as_str().unwrap();
                let may_complete = events == moments[2] && outcome == "completed";
                assert!(may_complete || outcome == "client_left", "{receipt}");
                assert_eq!(
                    micro(&receipt["credits"]),
                    surface.cost(200, 70),
                    "{surface:?} {events}: {receipt}"
                );
                assert_eq!(receipt["estimated"], false, "{receipt}");
            });
        }
    });
    world.vendor.wait_idle();
    assert_eq!(
        world.vendor.stats()["client_gone"],
        0,
        "the vendor was read to its end"
    );
    world.close();
}

#[test]
fn a_half_close_counts_as_leaving() {
    let world = patient();
    let account = world.account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let request = surface.stream(&account.key, "events=6 gap_ms=400 input=200 output=70");
        let (mut connection, _) = begin(&world, &request, 2);
        connection.half_close();
        let receipt = left(&world, &account, index + 1);
        assert_eq!(
            micro(&receipt["credits"]),
            surface.cost(200, 70),
            "{receipt}"
        );
        while !connection.is_closed() {
            connection.forget();
        }
    }
}

#[test]
fn an_answer_that_is_no_stream_is_awaited_for_a_client_that_left() {
    let (world, account) = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .with_account();
    let connections = BOTH.map(|surface| {
        let request = surface.whole(&account.key, "delay_ms=6000 input=300 output=20");
        begin(&world, &request, 0).0
    });
    world.vendor.wait_busy(2);
    drop(connections);
    let mut credits = world.ended_all::<2>(&account).map(|ending| {
        assert_eq!(ending["outcome"], "client_left", "{ending}");
        micro(&ending["credits"])
    });
    credits.sort_unstable();
    let mut due = BOTH.map(|surface| surface.cost(300, 20));
    due.sort_unstable();
    assert_eq!(credits, due);
}

#[test]
fn a_stream_that_goes_on_too_long_without_its_client_is_ended_and_estimated() {
    let (world, account) = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
        .with_account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let request = surface.stream(
            &account.key,
            "events=100 bytes=4000 gap_ms=400 input=300 output=900",
        );
        let (connection, _) = begin(&world, &request, 6);
        let began = Instant::now();
        drop(connection);
        let receipt = left(&world, &account, index + 1);
        let took = began.elapsed();
        // By itself, the stream lasts 40 s.
        assert!(
            took > Duration::from_millis(700) && took < Duration::from_secs(30),
            "drained for {took:?}"
        );
        assert_eq!(receipt["estimated"], true, "{receipt}");
        let output = receipt["usage"]["output"].as_i64().unwrap();
        assert!(
            output > 20 && output < 1_200,
            "some of the 4000 bytes, three tokens for ten: {receipt}"
        );
        world.vendor.wait_idle();
        assert_eq!(
            world.vendor.stats()["client_gone"],
            index as u64 + 1,
            "the vendor was told to stop"
        );
    }
}

#[test]
fn a_client_that_leaves_before_a_failure_of_the_vendors_pays_at_most_for_what_was_generated() {
    let (world, account) = World::with_account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let request = surface.whole(&account.key, "delay_ms=500 status=500");
        let before = world.vendor.calls();
        let (connection, _) = begin(&world, &request, 0);
        wait_until("the call", SOON, || world.vendor.calls() > before);
        drop(connection);
        let ending = world.ended(&account, index + 1);
        assert_eq!(
            micro(&ending["credits"]),
            0,
            "nothing was generated: {ending}"
        );
    }
}

#[test]
fn a_client_that_stops_reading_does_not_hold_the_gateway_for_ever() {
    let world = Plan::default().limit("client_write_seconds", 1).start();
    let account = world.funded(100_000_000_000);
    let body = Messages.body(
        "lenient=1 bytes=40000000 events=4000 input=100 output=900",
        true,
        12_000_000,
    );
    let (connection, id) = begin(&world, &Messages.request(&account.key, &body), 6);
    let receipt = wait_for("the stream's end", SOON, || {
        world
            .endings(&account)
            .first()
            .map(|_| world.receipt(&account, id.as_ref().unwrap()))
    });
    assert_eq!(receipt["outcome"], "client_left", "{receipt}");
    assert!(micro(&receipt["credits"]) > 0, "{receipt}");
    drop(connection);
}

#[test]
fn a_client_that_was_given_up_is_cut_off_although_its_vendor_finishes() {
    // However slow the machine is, it drains the stream in this time.
    let world = Plan::default()
        .limit("client_write_seconds", 1)
        .limit("drain_after_client_seconds", 600)
        .start();
    let account = world.funded(100_000_000_000);
    for (index, surface) in BOTH.into_iter().enumerate() {
        // More than the buffers hold, and little enough to be drained.
        let marker = "lenient=1 bytes=20000000 events=2000 input=100 output=900";
        let body = surface.body(marker, true, 12_000_000);
        let (mut connection, _) = begin(&world, &surface.request(&account.key, &body), 0);
        let mut answer = connection.begin();
        let receipt = left(&world, &account, index + 1);
        assert_eq!(receipt["estimated"], false, "drained: {receipt}");
        world.wait_metric("gateway_client_connections", &[], 0.0);
        assert_eq!(world.metric("gateway_streams_open", &[]), 0.0);
        connection.finish(&mut answer);
        assert_eq!(
            answer.end(),
            Some(End::Cut),
            "a clean end would look like a complete response"
        );
    }
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_a_large_answer() {
    // The answer takes longer. Between two reads of the client, a busy machine may take its time.
    const LIMIT: Duration = Duration::from_secs(6);
    let world = Plan::default()
        .limit("client_write_seconds", LIMIT.as_secs())
        .start();
    let account = world.funded(100_000_000_000);
    let marker = "lenient=1 bytes=20000000 events=200 input=100 output=900";
    for (index, (surface, stream)) in [(Messages, false), (Chat, true)].into_iter().enumerate() {
        let body = surface.body(marker, stream, 12_000_000);
        let (mut connection, _) = begin(&world, &surface.request(&account.key, &body), 0);
        let mut answer = connection.begin();
        let began = Instant::now();
        while connection.more(&mut answer) {
            // At most 64 KiB each time, so 7 s or more for the whole.
            std::thread::sleep(Duration::from_millis(24));
        }
        let took = began.elapsed();
        assert!(took > LIMIT, "read within {took:?}");
        assert_eq!(answer.end(), Some(End::Whole), "{surface:?} after {took:?}");
        assert!(answer.body.len() > 20_000_000);
        let ending = world.ended(&account, index + 1);
        assert_eq!(ending["outcome"], "completed", "{ending}");
    }
}

/// The system lets the gateway write only once more than a megabyte of its buffer is free.
#[test]
fn a_client_that_takes_seconds_for_a_full_buffer_is_not_given_up() {
    let world = Plan::default().limit("client_write_seconds", 3).start();
    let account = world.funded(100_000_000_000);
    let marker = "lenient=1 bytes=20000000 events=2000 input=100 output=900";
    let body = Chat.body(marker, true, 12_000_000);
    let (mut connection, _) = begin(&world, &Chat.request(&account.key, &body), 0);
    let mut answer = connection.begin();
    let (began, bytes_per_ms) = (Instant::now(), 300);
    while connection.more(&mut answer) {
        let due = Duration::from_millis(answer.body.len() as u64 / bytes_per_ms);
        if due < Duration::from_secs(9) {
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    assert_eq!(answer.end(), Some(End::Whole));
    let ending = world.ended(&account, 1);
    assert_eq!(ending["outcome"], "completed", "{ending}");
}

#[test]
fn a_client_that_reads_none_of_many_answers_is_given_up() {
    let (world, account) = Plan::default()
        .limit("client_write_seconds", 1)
        .with_account();
    let request = Request::get("/v1/models").bearer(&account.key).bytes();
    let mut connection = world.connect();
    // Until the gateway no longer reads either, and closes the connection.
    let requests = request.repeat(100);
    wait_until("the connection to be closed", SOON, || {
        !connection.send(&requests)
    });
    world.wait_metric("gateway_client_connections", &[], 0.0);
}

#[test]
fn many_clients_that_leave_at_any_moment_leave_nothing_behind() {
    let (world, account) = World::with_account();
    let rounds = if crate::is_long() { 200 } else { 20 };
    let surfaces: Vec<Surface> = BOTH.into_iter().cycle().take(8).collect();
    std::thread::scope(|scope| {
        for (index, surface) in surfaces.into_iter().enumerate() {
            let (world, account) = (&world, &account);
            scope.spawn(move || {
                for round in 0..rounds {
                    let request =
                        surface.stream(&account.key, "events=8 gap_ms=3 input=10 output=10");
                    let (connection, _) = begin(world, &request, 0);
                    std::thread::sleep(Duration::from_millis(
                        ((index * 7 + round * 3) % 40) as u64,
                    ));
                    drop(connection);
                }
            });
        }
    });
    world.vendor.wait_idle();
    wait_until("no hold", SOON, || world.standing(&account).held == 0);
    let balance = world.standing(&account).balance;
    wait_until("all to be in the ledger", SOON, || {
        crate::account::taken(&world.endings(&account)) == 300_000_000 - balance
    });
    assert_eq!(world.metric("gateway_streams_open", &[]), 0.0);
    world.close();
}
