//! More work than the gateway has room for: it refuses new requests at once with a time to retry,
//! completes running ones, and works as before afterwards.

use crate::account::Account;
use crate::client::{Answer, Connection};
use crate::failure_table::{Case, reaches_clients};
use crate::surface::{BOTH, Chat, Messages, OVERLOADED, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use test_world::wait_until;

/// The number of concurrent requests that the gateway always serves.
const ALWAYS: usize = 8;

/// Streams that have begun and run for a while.
fn streams(world: &World, account: &Account, count: usize) -> Vec<(Connection, Answer)> {
    let begun = (0..count).map(|_| {
        let mut connection = world.connect();
        connection.send(
            &Chat
                .stream(&account.key, "events=10 gap_ms=1000 input=1 output=10")
                .bytes(),
        );
        let answer = connection.begin();
        assert_eq!(answer.status, 200, "{}", answer.text());
        (connection, answer)
    });
    begun.collect()
}

fn finish(streams: Vec<(Connection, Answer)>) {
    for (mut connection, mut answer) in streams {
        connection.finish(&mut answer);
        assert!(
            Chat.is_complete(&answer),
            "a stream that ran was not finished: {}",
            answer.text()
        );
    }
}

#[track_caller]
fn is_refused(surface: Surface, answer: &Answer) {
    surface.fails_as(answer, OVERLOADED);
    assert_eq!(answer.header("retry-after"), Some("2"));
}

#[test]
fn past_the_memory_budget_new_work_is_refused_and_what_runs_is_finished() {
    // The process alone uses more memory than this.
    let world = Plan::default().limit("memory_bytes", 1_048_576).begin();
    world.wait_log("listening on");
    let account = world.account();
    world.wait_log("memory is at 90 %");
    let (status, why) = world.readiness();
    assert_eq!(
        (status, &why["reasons"][0]["code"]),
        (503, &"memory".into()),
        "{why}"
    );
    let open = streams(&world, &account, ALWAYS);
    for surface in BOTH {
        let mut connection = world.connect();
        // Only the header: if the gateway waited for the body, this would block.
        connection.send(&surface.whole(&account.key, "input=1 output=1").head());
        is_refused(surface, &connection.answer());
    }
    world.has_metric("gateway_rejected_total", &["reason=\"memory\""], 2.0);
    reaches_clients(&world, &Case::of_bytes("MemoryShort", &account.key, 0));
    assert_eq!(world.vendor.calls(), ALWAYS as u64);
    finish(open);
    // The gateway serves some requests however little memory there is.
    world.works(Messages, &account.key);
}

#[test]
fn control_within_the_memory_budget_nobody_is_refused() {
    let (world, account) = World::with_account();
    let open = streams(&world, &account, ALWAYS);
    BOTH.into_iter()
        .for_each(|surface| drop(world.works(surface, &account.key)));
    assert!(world.metric("gateway_resident_bytes", &[]) > 1_000_000.0);
    finish(open);
    assert_eq!(world.metric("gateway_rejected_total", &[]), 0.0);
}

/// An operator can change the budget while the gateway runs. Freed memory no longer counts.
#[test]
fn memory_that_fills_up_is_noticed_and_so_is_its_end() {
    let plan = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1);
    let world = plan.start();
    let account = world.funded(100_000_000_000);
    world.works(Chat, &account.key);
    let resident = world.metric("gateway_resident_bytes", &[]) as u64;
    let budget = (resident + 80 * 1_048_576) * 10 / 9;
    let text = std::fs::read_to_string(&world.config).unwrap();
    std::fs::write(&world.config, format!("{text}  memory_bytes: {budget}\n")).unwrap();
    world.signal("HUP");
    world.wait_metric("gateway_config_reloads_total", &["result=\"ok\""], 1.0);
    let mut body = Chat.body("", true, 1_000);
    let padding = "x".repeat(4 * 1_048_576);
    body["messages"][0]["content"] = format!("[[sim delay_ms=600000]] {padding}").into();
    let request = Chat.request(&account.key, &body).bytes();
    let mut held: Vec<Connection> = Vec::new();
    // 100 bodies of 4 MiB do not fit. Each is sent once the vendor has the one before.
    let is_short = || world.log().contains("memory is at 90 %");
    while !is_short() {
        let mut connection = world.connect();
        connection.send(&request);
        held.push(connection);
        assert!(held.len() < 100, "bodies of 400 MiB are no shortage");
        wait_until("the vendor to have it", SOON, || {
            world.vendor.stats()["in_flight"].as_u64() >= Some(held.len() as u64) || is_short()
        });
    }
    assert!(held.len() > ALWAYS);
    wait_for("a request to be refused", SOON, || {
        let answer = world.ask(&Messages.whole(&account.key, "input=1 output=1"));
        (answer.status != 200).then(|| is_refused(Messages, &answer))
    });
    drop(held);
    // The gateway may or may not have returned the memory to the system by then.
    wait_for("everybody to be served", SOON, || {
        let answer = world.ask(&Messages.whole(&account.key, "input=1 output=1"));
        (answer.status == 200).then_some(())
    });
}

#[test]
fn past_nine_tenths_of_the_files_new_work_is_told_so_and_its_connection_closed() {
    let (world, account) = World::with_account();
    let open = streams(&world, &account, ALWAYS + 2);
    // Room for a few more files, all within the last tenth of the limit.
    world.limit_open_files(world.open_files() * 10 / 9);
    world.wait_log("open files are at 90 %");
    let (status, why) = world.readiness();
    assert_eq!(
        (status, &why["reasons"][0]["code"]),
        (503, &"descriptors".into()),
        "{why}"
    );
    for surface in BOTH {
        let mut connection = world.connect();
        connection.send(&surface.whole(&account.key, "input=1 output=1").bytes());
        is_refused(surface, &connection.answer());
        assert!(connection.is_closed(), "its file is free again");
    }
    world.has_metric("gateway_rejected_total", &["reason=\"files\""], 2.0);
    reaches_clients(&world, &Case::of_bytes("FilesShort", &account.key, 0));
    finish(open);
    world.limit_open_files(1_024);
    world.wait_log("the gateway admits new requests");
    wait_until("readiness, a while after", SOON, || world.is_ready());
    world.works(Chat, &account.key);
}

/// The results of an open loop at a fixed request rate.
#[derive(Debug, Default)]
struct Load {
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    /// The slowest refusal, in µs.
    slowest_refusal: AtomicU64,
}

/// Sends `rate` requests a second until this number of them was answered, whatever the answers are.
/// Each request starts on schedule, on one of the connections.
fn open_loop(world: &World, account: &Account, rate: u64, answers: u64) -> Load {
    let load = Load::default();
    let threads = 32;
    let request = Chat
        .whole(&account.key, "delay_ms=200 input=1 output=1")
        .bytes();
    let began = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut connection = world.connect();
                while load.answered.load(Ordering::Relaxed) < answers {
                    let due = began
                        + Duration::from_micros(
                            next.fetch_add(1, Ordering::Relaxed) * 1_000_000 / rate,
                        );
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let sent = Instant::now();
                    connection.send(&request);
                    let Some(answer) = connection.try_answer() else {
                        load.failed.fetch_add(1, Ordering::Relaxed);
                        connection = world.connect();
                        continue;
                    };
                    let took = u64::try_from(sent.elapsed().as_micros()).unwrap();
                    if answer.header("connection") == Some("close") {
                        // The gateway has not read the body, so the connection cannot be used
                        // again.
                        connection = world.connect();
                    }
                    match answer.status {
                        200 => &load.answered,
                        429 | 503 => {
                            load.slowest_refusal.fetch_max(took, Ordering::Relaxed);
                            &load.refused
                        }
                        other => panic!("{other}: {}", answer.text()),
                    }
                    .fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    load
}

/// How often the throughput under overload is compared with that below it.
const MAX_MEASUREMENTS: usize = 4;

/// Far more requests than may run at once: the gateway answers as many as it can, refuses the
/// others at once, and lets nobody wait in vain.
#[test]
fn under_too_many_requests_as_many_are_answered_as_may_run_and_the_rest_are_told_at_once() {
    let open = 8;
    let world = Plan::default()
        .limit("open_requests", open)
        .limit("keepalive_requests", 1_000_000)
        .start();
    let account = world.funded(1_000_000_000);
    let (answers, rate) = if crate::is_long() {
        (600, 1_500)
    } else {
        (90, 400)
    };
    // Each request takes 200 ms at the vendor, so 8 concurrent requests make 40 a second.
    let measure = |rate| {
        let began = Instant::now();
        let load = open_loop(&world, &account, rate, answers);
        assert_eq!(load.failed.load(Ordering::Relaxed), 0, "{load:?}");
        (load, began.elapsed())
    };
    // The machine may become slower between the two: then both are measured again.
    let overload = (1..).find_map(|attempt| {
        let ((peak, peak_took), (overload, took)) = (measure(30), measure(rate));
        println!("at 30/s {peak:?} in {peak_took:?}\nfar above {overload:?} in {took:?}");
        // On an idle machine it takes less time than below the limit, and the refusals cost
        // something.
        let is_kept_up = took < 5 * peak_took;
        assert!(
            is_kept_up || attempt < MAX_MEASUREMENTS,
            "{took:?} under overload, {peak_took:?} below it"
        );
        is_kept_up.then_some(overload)
    });
    let overload = overload.expect("a measurement");
    assert!(
        overload.refused.load(Ordering::Relaxed) > overload.answered.load(Ordering::Relaxed),
        "{overload:?}"
    );
    // On an idle machine a refusal takes a millisecond.
    assert!(
        overload.slowest_refusal.load(Ordering::Relaxed) < 20_000_000,
        "{overload:?}"
    );
    world.works(Chat, &account.key);
}
