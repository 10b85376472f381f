//! HTTP/2 clients that open no window for an answer: a refusal does not wait for a window, and
//! every other answer has a deadline.

use crate::client::Connection;
use crate::h2::{
    ACK, DATA, END_HEADERS, END_STREAM, Fields, H2, HEADERS, OK, RST_STREAM, SETTINGS, block,
    field, good, resident_kib,
};
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_until};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const WINDOW_UPDATE: u8 = 8;
const MAX_CONCURRENT_STREAMS: u32 = 100;
/// RFC 9113, section 6.9.1.
const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Opens a connection whose streams have windows of `bytes` bytes.
fn with_window(world: &World, bytes: u32) -> H2 {
    let mut h2 = H2::open(world.edge);
    h2.0.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let setting = [&4_u16.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
    h2.send(SETTINGS, 0, 0, &setting);
    h2
}

fn get(path: &str) -> Fields {
    vec![
        field(":method", "GET"),
        field(":scheme", "http"),
        field(":path", path),
        field(":authority", "gateway.test"),
    ]
}

fn send_get(h2: &mut H2, stream: u32, fields: &Fields) {
    h2.send(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields));
}

/// The answer on a stream: its header, its body, and whether it is complete.
#[derive(Default)]
struct Received {
    header: Vec<u8>,
    body: Vec<u8>,
    is_whole: bool,
}

/// Reads until the stream ends. Calls `on_header` once the header has arrived.
fn receive(h2: &mut H2, stream: u32, on_header: impl Fn(&mut H2)) -> Received {
    let mut received = Received::default();
    loop {
        let (kind, flags, id, payload) = h2.frame().expect("the end of the stream");
        match kind {
            SETTINGS if flags & ACK == 0 => {
                h2.send(SETTINGS, ACK, 0, b"");
            }
            HEADERS if id == stream => {
                received.header = payload;
                on_header(h2);
            }
            DATA if id == stream => received.body.extend(payload),
            RST_STREAM if id == stream => return received,
            _ => {}
        }
        if id == stream && matches!(kind, HEADERS | DATA) && flags & END_STREAM > 0 {
            received.is_whole = true;
            return received;
        }
    }
}

#[test]
fn a_short_answer_is_reset_behind_its_header_where_the_client_opens_no_window() {
    let world = World::new();
    for path in ["/v1/models", "/v1/nothing", "/healthz"] {
        let mut h2 = with_window(&world, 0);
        send_get(&mut h2, 1, &get(path));
        let received = receive(&mut h2, 1, |_| {});
        assert!(!received.header.is_empty(), "{path}: no header");
        assert_eq!(received.header[0] == OK, path == "/healthz", "{path}");
        assert!(received.body.is_empty() && !received.is_whole, "{path}");
        // The connection still works.
        h2.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]);
        send_get(&mut h2, 3, &get(path));
        assert!(receive(&mut h2, 3, |_| {}).is_whole, "{path}");
    }
    // The gateway counts none of these as its own failure.
    world.has_metric("gateway_rejected_total", &["reason=\"internal\""], 0.0);
}

#[test]
fn a_window_that_opens_a_little_late_gets_the_whole_refusal() {
    let world = World::new();
    let mut ordinary = with_window(&world, 65_535);
    send_get(&mut ordinary, 1, &get("/v1/models"));
    let whole = receive(&mut ordinary, 1, |_| {});
    assert!(whole.is_whole && !whole.body.is_empty());
    let mut late = with_window(&world, 0);
    send_get(&mut late, 1, &get("/v1/models"));
    let received = receive(&mut late, 1, |h2| {
        h2.send(WINDOW_UPDATE, 0, 1, &10_000_u32.to_be_bytes());
    });
    assert!(received.is_whole);
    assert_eq!(received.body.len(), whole.body.len());
}

#[test]
fn a_drain_waits_for_a_refusal_whose_client_opens_its_window_late() {
    let mut world = World::new();
    let mut late = with_window(&world, 0);
    send_get(&mut late, 1, &get("/v1/models"));
    let received = receive(&mut late, 1, |h2| {
        world.signal("TERM");
        wait_until("new connections to be refused", SOON, || {
            Connection::try_open(world.edge).is_none()
        });
        // Less than the gateway waits for a window, and more than its end takes.
        let some_time = Some(Duration::from_millis(700));
        h2.0.set_read_timeout(some_time).unwrap();
        while h2.frame().is_some() {}
        h2.0.set_read_timeout(Some(SOON)).unwrap();
        h2.send(WINDOW_UPDATE, 0, 1, &10_000_u32.to_be_bytes());
    });
    assert!(received.is_whole && !received.body.is_empty());
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
}

#[test]
fn refusals_without_a_window_keep_little_memory_and_leave_others_theirs() {
    const CONNECTIONS: usize = 20;
    let world = World::new();
    let before = resident_kib(world.pid());
    let mut silent: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut h2 = with_window(&world, 0);
            for index in 0..MAX_CONCURRENT_STREAMS {
                send_get(&mut h2, index * 2 + 1, &get("/v1/models"));
            }
            h2
        })
        .collect();
    let mut ordinary = with_window(&world, 65_535);
    for index in 0..20 {
        send_get(&mut ordinary, index * 2 + 1, &get("/v1/models"));
        assert!(receive(&mut ordinary, index * 2 + 1, |_| {}).is_whole);
    }
    for h2 in &mut silent {
        let mut reset = BTreeSet::new();
        while reset.len() < MAX_CONCURRENT_STREAMS as usize {
            let (kind, _, id, _) = h2.frame().expect("a reset of every stream");
            if kind == RST_STREAM {
                reset.insert(id);
            }
        }
    }
    let grown = resident_kib(world.pid()).saturating_sub(before);
    println!(
        "{} refusals: {grown} KiB more",
        CONNECTIONS * MAX_CONCURRENT_STREAMS as usize
    );
    assert!(grown < 64 * 1_024, "{grown} KiB");
}

#[test]
fn an_answer_that_is_no_refusal_has_the_deadline_of_a_write_without_a_window() {
    let (world, account) = Plan::default()
        .limit("client_write_seconds", 1)
        .with_account();
    let with_key = [
        get("/v1/models"),
        vec![field("authorization", &format!("Bearer {}", account.key))],
    ]
    .concat();
    for fields in [with_key, get("/docs")] {
        let mut h2 = with_window(&world, 0);
        send_get(&mut h2, 1, &fields);
        let received = receive(&mut h2, 1, |_| {});
        assert_eq!(received.header[0], OK);
        assert!(received.body.is_empty() && !received.is_whole);
    }
    world.has_metric("gateway_rejected_total", &["reason=\"internal\""], 0.0);
}

#[test]
fn a_connection_that_opens_its_windows_and_is_not_read_is_closed() {
    let world = Plan::default().limit("client_write_seconds", 1).start();
    let account = world.funded(100_000_000_000);
    let marker = "lenient=1 bytes=40000000 events=4000 input=100 output=900";
    let body = Chat.body(marker, true, 12_000_000).to_string();
    let mut h2 = with_window(&world, MAX_WINDOW);
    h2.send(WINDOW_UPDATE, 0, 0, &(MAX_WINDOW - 65_535).to_be_bytes());
    h2.ask(1, &good(&account.key, &body), body.as_bytes());
    let ending = world.ended(&account, 1);
    assert_eq!(ending["outcome"], "client_left", "{ending}");
    world.wait_metric("gateway_client_connections", &[], 0.0);
}

#[test]
fn a_client_that_opens_its_window_slowly_gets_all_of_a_large_answer() {
    // The answer takes longer.
    let limit = Duration::from_secs(5);
    let world = Plan::default()
        .limit("client_write_seconds", limit.as_secs())
        .start();
    let account = world.funded(100_000_000_000);
    let marker = "lenient=1 bytes=4000000 input=100 output=900";
    let began = Instant::now();
    let body = Chat.body(marker, false, 12_000_000).to_string();
    let mut h2 = with_window(&world, 65_535);
    h2.ask(1, &good(&account.key, &body), body.as_bytes());
    let mut bytes = 0;
    loop {
        let (kind, flags, id, payload) = h2.frame().expect("the end of the stream");
        assert_ne!(kind, RST_STREAM, "after {bytes} bytes");
        if kind != DATA {
            continue;
        }
        bytes += payload.len();
        if flags & END_STREAM > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(28));
        let taken = u32::try_from(payload.len()).unwrap().to_be_bytes();
        h2.send(WINDOW_UPDATE, 0, id, &taken);
        h2.send(WINDOW_UPDATE, 0, 0, &taken);
    }
    assert!(bytes > 4_000_000 && began.elapsed() > limit);
    let ending = world.ended(&account, 1);
    assert_eq!(ending["outcome"], "completed", "{ending}");
}
