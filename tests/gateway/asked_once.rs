//! The gateway waits for a slow vendor and asks it once. After a vendor has had a request for a
//! while, the gateway never repeats it, unless the vendor refused it with a status or an error:
//! both answers would be paid for.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::failure::is_free;
use crate::fallback::{is_from, mutual};
use crate::is_long;
use crate::scripted::{Scripted, Step, json, piece, stream_head};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, Simulator, World, faketime, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than `repeat_within_seconds` in the tests that set it to 1.
const LATE: Step = Step::Wait(Duration::from_millis(2_200));

/// Plans in which another endpoint, or another model, would answer.
fn with_others(bad: u16, good: u16) -> [Plan; 2] {
    let fallback = mutual(Plan::default().endpoints_of(&[good], &[bad]));
    [Plan::default().turns().endpoints(&[bad, good]), fallback]
}

/// Asserts that the request fails with `status` after the vendor has had it for a while, and that
/// the gateway asks no other vendor.
fn is_asked_once(steps: &[Step], status: u16, code: &str) {
    for stream in [false, true] {
        let (bad, good) = (Scripted::start(steps.to_vec()), Simulator::start(None));
        for (index, plan) in with_others(bad.port, good.port).into_iter().enumerate() {
            let plan = match code {
                "upstream_timeout" => plan.limit("first_byte_seconds", 3),
                _ => plan,
            };
            let (world, account) = plan.limit("repeat_within_seconds", 1).with_account();
            let answer =
                world.ask(&Chat.request(&account.key, &Chat.body("input=1 output=1", stream, 100)));
            Chat.failure(&answer, status, "server_error", Some(code));
            assert_eq!((bad.calls(), good.calls()), (index as u64 + 1, 0));
            is_free(&world, &account, &answer);
        }
    }
}

#[test]
fn a_vendor_that_is_silent_for_too_long_is_asked_once() {
    is_asked_once(&[Step::Hang], 504, "upstream_timeout");
}

#[test]
fn a_connection_that_dies_after_a_while_is_asked_over_once() {
    is_asked_once(&[LATE, Step::Close], 502, "upstream_error");
}

#[test]
fn an_answer_that_breaks_off_after_a_while_is_asked_for_once() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    is_asked_once(
        &[LATE, Step::Send(head.into()), Step::Close],
        502,
        "upstream_error",
    );
}

/// The vendor has sent no part of an answer, and the client has received nothing.
#[test]
fn a_vendor_that_refuses_in_words_is_followed_by_another_however_late() {
    let error =
        r#"{"error":{"message":"boom","type":"server_error","code":"server_error","param":null}}"#;
    let with = |steps: Vec<Step>| [vec![LATE], steps].concat();
    let event = with(vec![stream_head(), piece(&format!("data: {error}\n\n"))]);
    for (steps, stream) in [
        (with(json(500, error)), false),
        (with(json(429, error)), true),
        (event, true),
    ] {
        let (bad, good) = (Scripted::start(steps), Simulator::start(None));
        for plan in with_others(bad.port, good.port) {
            let (world, account) = plan
                .limit("repeat_within_seconds", 1)
                .limit("breaker_failures", 0)
                .with_account();
            let answer =
                world.ask(&Chat.request(&account.key, &Chat.body("input=1 output=1", stream, 100)));
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        assert_eq!((bad.calls(), good.calls()), (2, 2));
    }
}

#[test]
fn a_connection_that_dies_soon_is_asked_over_again() {
    let (bad, good) = (
        Scripted::start(vec![LATE, Step::Close]),
        Simulator::start(None),
    );
    let [endpoints, fallback] = with_others(bad.port, good.port);
    let (world, account) = endpoints.with_account();
    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    world.close();
    let (world, account) = fallback.with_account();
    is_from(
        &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
        Messages.model(),
    );
    assert_eq!((bad.calls(), good.calls()), (2, 2));
}

/// The operating system probes the vendor's system with TCP keep-alive, so the gateway need not
/// give up a silent vendor.
#[test]
fn a_connection_to_a_silent_vendor_is_kept_under_watch_by_the_system() {
    let (world, account) = Plan::default()
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
        .with_account();
    let mut connection = world.connect();
    assert!(connection.send(&Chat.stream(&account.key, "hang=headers").bytes()));
    world.vendor.wait_busy(1);
    let port = format!(":{:04X}", world.vendor.port);
    // Columns 2 and 5 of the table: the remote address, and the active timer (2: keep-alive).
    wait_for("the keep-alive timer", SOON, || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut rows = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row[2].ends_with(&port) && row[5].starts_with("02:"))
            .then_some(())
    });
    drop(connection);
}

/// Sends a request and reads the response to its end. One read may take 700 s.
fn patiently(port: u16, request: &Request) -> String {
    wait_for("the request to be admitted", SOON, || {
        let got = ask_slow_vendor(port, request);
        (!got.contains(LEDGER_LATE)).then_some(got)
    })
}

fn ask_slow_vendor(port: u16, request: &Request) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(700)))
        .unwrap();
    stream
        .write_all(&request.clone().header("connection", "close").bytes())
        .unwrap();
    let mut got = String::new();
    stream.read_to_string(&mut got).unwrap();
    got
}

/// In an answer to a client that shall ask again. With a fast clock, the 5 s in which the ledger
/// must be read are an eighth of a second, too few for a busy machine.
const LEDGER_LATE: &str = "\"ledger_unavailable\"";

/// The number of seconds that pass on the gateway's clock in one real second.
pub const SCALE: u64 = 40;

pub fn with_fast_clock(plan: Plan, library: &Path) -> Plan {
    // Commands create the accounts: the admin API would time out after a fraction of a second.
    plan.without_administrator()
        .environment("LD_PRELOAD", library.as_os_str())
        .environment("FAKETIME", format!("+0 x{SCALE}"))
}

pub fn ask_until_admitted(world: &World, request: &Request) -> Answer {
    wait_for("the request to be admitted", SOON, || {
        let got = world.ask(request);
        (!got.has(LEDGER_LATE)).then_some(got)
    })
}

#[test]
fn control_with_a_limit_of_two_minutes_an_answer_of_ten_is_lost() {
    let Some(library) = faketime() else { return };
    let (world, account) = with_fast_clock(
        Plan::default()
            .limit("first_byte_seconds", 120)
            .limit("attempts", 1),
        library,
    )
    .with_account();
    let marker = format!("delay_ms={} input=100 output=7", 580_000 / SCALE);
    let request = Chat.whole(&account.key, &marker);
    Chat.failure(
        &ask_until_admitted(&world, &request),
        504,
        "server_error",
        Some("upstream_timeout"),
    );
}

/// Uses the shipped limits. The long run takes ten minutes in real time. In the short run, the
/// gateway's clock runs faster than its vendor's, and the vendor takes eight minutes: on a busy
/// machine, each second more is [`SCALE`] seconds for the gateway.
#[test]
fn whole_answers_of_ten_minutes_and_streams_silent_for_nine_arrive_and_are_asked_for_once() {
    let (scale, plan) = if is_long() {
        (1, Plan::default())
    } else {
        let Some(library) = faketime() else { return };
        (SCALE, with_fast_clock(Plan::default(), library))
    };
    let (whole_ms, silent_ms) = match scale {
        1 => (580_000, 540_000),
        _ => (480_000 / scale, 480_000 / scale),
    };
    let other = Simulator::start(None);
    let vendor = Simulator::start(None);
    let (world, account) = plan
        .turns()
        .endpoints(&[vendor.port, other.port])
        .with_account();
    let markers = [
        (false, format!("delay_ms={whole_ms} input=100 output=7")),
        (true, format!("delay_ms={silent_ms} input=100 output=7")),
        (true, format!("first_ms={silent_ms} input=100 output=7")),
    ];
    let requests: Vec<(Surface, bool, bool, Request)> = BOTH
        .into_iter()
        .flat_map(|surface| {
            let of = |(stream, marker): &(bool, String)| {
                (
                    surface,
                    *stream,
                    marker.starts_with("first_ms"),
                    surface.body(marker, *stream, 100),
                )
            };
            markers.iter().map(of).collect::<Vec<_>>()
        })
        .map(|(surface, stream, is_silent, body)| {
            (
                surface,
                stream,
                is_silent,
                surface.request(&account.key, &body),
            )
        })
        .collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (surface, stream, is_silent, request) in &requests {
            let port = world.edge;
            scope.spawn(move || {
                let text = patiently(port, request);
                assert!(
                    text.starts_with("HTTP/1.1 200") && !text.contains("error"),
                    "{surface:?} {stream}: {text}"
                );
                assert!(
                    !stream || text.contains(surface.terminal().trim_end()),
                    "{surface:?}: {text}"
                );
                // Eight minutes contain 32 intervals of 15 s.
                let pings =
                    text.matches(": ping\n\n").count() + text.matches("event: ping\n").count();
                assert!(!is_silent || pings > 20, "{surface:?}: {pings} in {text}");
            });
        }
    });
    assert!(
        began.elapsed() > Duration::from_millis(silent_ms),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        vendor.calls() + other.calls(),
        requests.len() as u64,
        "each asked for once"
    );
    world.ended(&account, requests.len());
    let endings = world.endings(&account);
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "completed"),
        "{endings:?}"
    );
    let billed: i64 = endings.iter().map(|ending| micro(&ending["credits"])).sum();
    assert_eq!(billed, 3 * (Chat.cost(100, 7) + Messages.cost(100, 7)));
}
