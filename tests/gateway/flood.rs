//! Clients that open many connections, or send slowly: the gateway limits each of them and keeps
//! serving the others.

use crate::bystander::{Bystander, StopOnDrop};
use crate::client::{Connection, Request};
use crate::surface::{BOTH, Chat, Messages, OVERLOADED};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits before it concludes that nothing happens.
const A_WHILE: Duration = Duration::from_secs(3);

fn head(world: &World) -> Vec<u8> {
    let account = world.account();
    Chat.whole(&account.key, "input=1 output=1").bytes()
}

/// Sends byte after byte until the gateway closes the connection. Returns how long that took, or
/// `None` if it is still open after `most`.
fn trickle(
    connection: &mut Connection,
    bytes: &[u8],
    gap: Duration,
    most: Duration,
) -> Option<Duration> {
    let began = Instant::now();
    for byte in bytes.iter().cycle() {
        if !connection.send(&[*byte]) {
            return Some(began.elapsed());
        }
        if began.elapsed() > most {
            return None;
        }
        std::thread::sleep(gap);
    }
    None
}

const GAP: Duration = Duration::from_millis(50);

#[test]
fn a_header_that_does_not_end_costs_its_connection() {
    // A client of this test must send its whole header in this time too.
    let limit = Duration::from_secs(3);
    let world = Plan::default()
        .limit("header_read_seconds", limit.as_secs())
        .start();
    let request = head(&world);
    // The deadline applies to the first request of a connection and to a later one.
    let trickles = |had_one: bool| {
        let mut connection = world.connect();
        if had_one {
            connection.send(&request);
            assert_eq!(connection.answer().status, 200);
        }
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx: ");
        let closed = trickle(&mut connection, b"x", GAP, SOON);
        assert!(
            closed.is_some(),
            "still open after {SOON:?} (had one: {had_one})"
        );
    };
    let stops = |bytes: &[u8]| {
        let mut connection = world.connect();
        connection.send(bytes);
        assert!(connection.is_closed(), "{bytes:?}");
    };
    std::thread::scope(|scope| {
        let (world, request, trickles, stops) = (&world, &request, &trickles, &stops);
        for had_one in [false, true] {
            scope.spawn(move || trickles(had_one));
        }
        // A connection that stops within the HTTP/2 preface, and one that sends nothing.
        for bytes in [&b"PRI * HTTP/2.0\r\n"[..], b"G", b""] {
            scope.spawn(move || stops(bytes));
        }
        // The header deadline does not run between two requests.
        scope.spawn(move || {
            let mut connection = world.connect();
            for _ in 0..2 {
                connection.send(request);
                assert_eq!(connection.answer().status, 200);
                std::thread::sleep(limit + Duration::from_millis(500));
            }
        });
    });
    world.close();
}

#[test]
fn control_without_the_deadline_a_header_may_take_for_ever() {
    let world = World::new();
    let mut connection = world.connect();
    connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx: ");
    assert_eq!(trickle(&mut connection, b"x", GAP, A_WHILE), None);
}

#[test]
fn a_body_that_comes_too_slowly_is_given_up_and_a_slow_one_that_keeps_pace_is_not() {
    let plan = || {
        Plan::default()
            .limit("body_bytes_per_second", 100)
            .limit("body_rate_seconds", 4)
    };
    let (world, account) = plan().with_account();
    for surface in BOTH {
        let mut body = surface.body("input=1 output=1", false, 1_000);
        body["messages"][0]["content"] =
            format!("[[sim input=1 output=1]] {}", "pad ".repeat(500)).into();
        let request = surface.request(&account.key, &body);
        let mut connection = world.connect();
        connection.send(&request.head());
        trickle(
            &mut connection,
            b" ",
            Duration::from_millis(100),
            Duration::from_secs(8),
        );
        assert_eq!(connection.answer().status, 408);
        assert!(connection.is_closed());
        let mut connection = world.connect();
        connection.send(&request.head());
        // For longer than the rate is measured, at three times the rate.
        for piece in request.framed_body().chunks(100) {
            assert!(connection.send(piece));
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(connection.answer().status, 200);
    }
    assert_eq!(world.vendor.calls(), 2);
}

#[test]
fn control_without_the_rate_a_slow_body_is_waited_for() {
    let (world, account) = Plan::default()
        .limit("body_bytes_per_second", 0)
        .limit("body_rate_seconds", 1)
        .with_account();
    let request = Chat.whole(&account.key, "input=1 output=1");
    let mut connection = world.connect();
    connection.send(&request.head());
    let body = request.framed_body();
    for byte in &body[..30] {
        assert!(connection.send(&[*byte]));
        std::thread::sleep(Duration::from_millis(80));
    }
    assert!(connection.send(&body[30..]));
    assert_eq!(connection.answer().status, 200);
}

fn healthy(connection: &mut Connection) -> bool {
    connection.send(&Request::get("/healthz").bytes());
    connection
        .try_answer()
        .is_some_and(|answer| answer.status == 200)
}

/// The status that a client with this loopback source address gets.
fn status_from(address: &str, world: &World) -> String {
    let url = format!("http://127.0.0.1:{}/healthz", world.edge);
    let output = Command::new("curl")
        .args([
            "--silent",
            "--max-time",
            "20",
            "--interface",
            address,
            "--output",
            "/dev/null",
        ])
        .args(["--write-out", "%{http_code}", &url])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_address_has_so_many_connections_and_others_are_served() {
    let world = Plan::default().limit("connections_per_address", 4).start();
    world.wait_metric("gateway_client_connections", &[], 0.0);
    let mut held: Vec<_> = (0..4).map(|_| world.connect()).collect();
    assert!(held.iter_mut().all(healthy));
    for _ in 0..3 {
        assert!(
            !healthy(&mut world.connect()),
            "a fifth connection was served"
        );
    }
    world.has_metric(
        "gateway_connections_refused_total",
        &["limit=\"per_address\""],
        3.0,
    );
    assert_eq!(status_from("127.0.0.2", &world), "200");
    assert!(held.iter_mut().all(healthy), "those that were there stay");
    held.pop();
    wait_until("room for another", SOON, || healthy(&mut world.connect()));
    drop(held);
    world.wait_metric("gateway_client_connections", &[], 0.0);
}

/// Streams that run until the test drops them.
fn busy(world: &World, key: &str, count: usize) -> Vec<Connection> {
    let begin = |_| {
        let mut connection = world.connect();
        connection.send(
            &Chat
                .stream(key, "events=60 gap_ms=1000 input=1 output=60")
                .bytes(),
        );
        assert_eq!(connection.begin().status, 200);
        connection
    };
    (0..count).map(begin).collect()
}

#[test]
fn the_process_has_so_many_connections_from_all_addresses() {
    let plan = Plan::default()
        .limit("connections", 4)
        .limit("connections_per_address", 0);
    let (world, account) = plan
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
        .with_account();
    world.wait_metric("gateway_client_connections", &[], 0.0);
    let held = busy(&world, &account.key, 4);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(
        status_from("127.0.0.2", &world),
        "000",
        "none of them is idle"
    );
    world.has_metric(
        "gateway_connections_refused_total",
        &["limit=\"total\""],
        1.0,
    );
    world.has_metric("gateway_idle_connections_closed_total", &[], 0.0);
    drop(held);
    wait_until("room for another", SOON, || {
        status_from("127.0.0.2", &world) == "200"
    });
}

#[test]
fn past_the_connections_the_longest_idle_one_gives_way_and_no_other() {
    let plan = Plan::default()
        .limit("connections", 4)
        .limit("connections_per_address", 0);
    let (world, account) = plan
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
        .with_account();
    world.wait_metric("gateway_client_connections", &[], 0.0);
    // One connection that never sent anything, one that got an answer, and two with running
    // streams.
    let mut held = busy(&world, &account.key, 2);
    let mut answered = world.connect();
    assert!(healthy(&mut answered));
    let mut silent = world.connect();
    std::thread::sleep(Duration::from_secs(2));
    assert!(healthy(&mut answered), "the limit itself closes nobody");
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(healthy(&mut world.connect()));
    assert!(silent.is_closed());
    world.has_metric("gateway_idle_connections_closed_total", &[], 1.0);
    assert!(healthy(&mut answered), "it was idle for less long");
    assert!(
        held.iter_mut().all(|connection| connection.hears_more()),
        "whoever is busy is left alone"
    );
    drop(held);
}

#[test]
fn past_the_open_requests_a_body_is_not_even_read() {
    let (world, account) = Plan::default().limit("open_requests", 2).with_account();
    let mut open: Vec<_> = (0..2)
        .map(|_| {
            let mut connection = world.connect();
            connection.send(
                &Chat
                    .stream(&account.key, "events=3 hold=5 input=1 output=3")
                    .bytes(),
            );
            let answer = connection.begin();
            assert_eq!(answer.status, 200);
            (connection, answer)
        })
        .collect();
    for surface in BOTH {
        let mut connection = world.connect();
        // Only the header: if the gateway waited for the body, this would block.
        connection.send(&surface.whole(&account.key, "input=1 output=1").head());
        let answer = connection.answer();
        surface.fails_as(&answer, OVERLOADED);
        assert!(answer.header("retry-after").is_some());
        assert!(connection.is_closed());
    }
    world.vendor.release();
    for (connection, answer) in &mut open {
        connection.finish(answer);
        assert!(Chat.is_complete(answer), "{}", answer.text());
    }
    world.works(Messages, &account.key);
}

/// CPU time of a process, in ticks of 1/100 s.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_ascii_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn with_no_file_left_streams_go_on_nothing_spins_and_new_clients_wait() {
    let (world, account) = World::with_account();
    let (mut stream, mut answer) =
        world.begin_stream(&Chat.stream(&account.key, "events=12 gap_ms=500 input=1 output=12"));
    world.limit_open_files(world.open_files() + 8);
    let held: Vec<_> = (0..40).map(|_| world.connect()).collect();
    world.wait_log("Accept() failed");
    let before = ticks(world.pid());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(world.pid()) - before;
    assert!(
        used < 40,
        "{used} of 200 ticks of processor time while there was nothing to do"
    );
    Chat.completes(&mut stream, &mut answer);
    drop(held);
    wait_for("a new client to be served", SOON, || {
        let mut connection = Connection::try_open(world.edge)?;
        healthy(&mut connection).then_some(())
    });
    world.works(Chat, &account.key);
}

/// Sends bodies in chunks of a byte each until `stop`, as fast as the gateway reads them.
fn send_tiny_chunks(world: &World, authorization: &str, stop: &AtomicBool) {
    let header = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: g\r\n{authorization}transfer-encoding: chunked\r\n\r\n"
    );
    let chunks = "1\r\nx\r\n".repeat(4_000);
    while !stop.load(Ordering::Relaxed) {
        let mut connection = world.connect();
        connection.send(header.as_bytes());
        while !stop.load(Ordering::Relaxed) && connection.send(chunks.as_bytes()) {}
    }
}

#[test]
fn bodies_in_tiny_chunks_do_not_hold_up_the_requests_of_others() {
    let world = World::new();
    let key = format!("authorization: Bearer {}\r\n", world.account().key);
    let bystander = Bystander::new(&world);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        // The gateway reads on for a while after it has refused a request without a key.
        for authorization in ["", "", &key] {
            scope.spawn(|| send_tiny_chunks(&world, authorization, &stop));
        }
        bystander.endures(&world, "bodies in tiny chunks", |_| ());
    });
}
