//! Tests vendors that send bytes which no modern server sends: broken framing, oversized headers,
//! dates. Each case ends in time with an error in the client's own protocol, costs nothing, and
//! affects no other request.

use crate::account::{Account, taken};
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bytes that the vendor sends, and whether it then closes the connection.
#[derive(Clone)]
struct Says {
    bytes: Vec<u8>,
    closes: bool,
}

/// Reads one request and returns the number of the case in it, or `None` if the client
/// disconnected.
fn read_request(client: &mut TcpStream) -> Option<usize> {
    let (mut got, mut piece) = (Vec::new(), [0; 65_536]);
    while !got.ends_with(b"}") {
        match client.read(&mut piece) {
            Ok(count) if count > 0 => got.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
    let text = String::from_utf8_lossy(&got).into_owned();
    let number = text
        .split("case ")
        .nth(1)
        .and_then(|rest| rest.split(';').next()?.parse().ok());
    Some(number.unwrap_or(0))
}

/// A vendor that answers each request with the bytes of its case, until the test ends.
fn vendor(cases: Vec<Says>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let cases = cases.clone();
            std::thread::spawn(move || {
                // Also serves further requests on the same connection.
                while let Some(number) = read_request(&mut client) {
                    if client.write_all(&cases[number].bytes).is_err() || cases[number].closes {
                        return;
                    }
                }
            });
        }
    });
    port
}

fn says(head: &str, body: &[u8], closes: bool) -> Says {
    Says {
        bytes: [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat(),
        closes,
    }
}

const JSON: &str = "200 OK\r\ncontent-type: application/json";
/// The minimal whole answer of a vendor.
const HI: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"gpt-5.2","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
const EVENTS: &str = "200 OK\r\ncontent-type: text/event-stream";

fn chunked(kind: &str, body: &[u8], closes: bool) -> Says {
    says(
        &format!("{kind}\r\ntransfer-encoding: chunked"),
        body,
        closes,
    )
}

fn plan_of(cases: Vec<Says>) -> Plan {
    Plan::default()
        .endpoints(&[vendor(cases)])
        .limit("breaker_failures", 0)
        .limit("attempts", 1)
}

/// A vendor that answers each request, and records whether the whole request arrived in one read.
fn looks_at_packets() -> (u16, Arc<Mutex<Vec<bool>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::<Mutex<Vec<bool>>>::default();
    let told = Arc::clone(&seen);
    let answer = format!(
        "HTTP/1.1 {JSON}\r\ncontent-length: {}\r\n\r\n{HI}",
        HI.len()
    );
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let (told, answer) = (Arc::clone(&told), answer.clone());
            std::thread::spawn(move || {
                let mut piece = [0; 65_536];
                while let Ok(count) = client.read(&mut piece)
                    && count > 0
                {
                    let at_once = piece[..count].ends_with(b"}");
                    if !at_once && read_request(&mut client).is_none() {
                        return;
                    }
                    told.lock().unwrap().push(at_once);
                    client.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    (port, seen)
}

#[test]
fn a_request_reaches_its_vendor_in_one_packet_and_at_once() {
    /// At least; as many as it takes until one is fast.
    const ASKED: usize = 20;
    let (port, seen) = looks_at_packets();
    let (world, account) = Plan::default().endpoints(&[port]).with_account();
    let mut client = world.connect();
    let (mut asked, mut fastest) = (0, Duration::MAX);
    // The kernel sends corked data only after 200 ms, so no request would be faster. On a busy
    // machine, most may be slower.
    wait_for("a request that is not corked for long", SOON, || {
        let began = Instant::now();
        let answer = client.ask(&Chat.whole(&account.key, "input=1"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        (asked, fastest) = (asked + 1, fastest.min(began.elapsed()));
        (asked >= ASKED && fastest < Duration::from_millis(200)).then_some(())
    });
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), asked);
    // On a machine that stalls that long, a request may be split.
    assert!(
        seen.iter().filter(|at_once| !**at_once).count() <= asked / 2,
        "{seen:?}"
    );
    drop(seen);
}

#[test]
fn broken_framing_of_a_vendor_is_a_failure_that_costs_nothing() {
    let many =
        |count: usize, line: &str| format!("{JSON}\r\n{}content-length: 2", line.repeat(count));
    let mut cases = vec![
        (
            "no header",
            Says {
                bytes: b"nothing of HTTP\r\n\r\n".to_vec(),
                closes: true,
            },
        ),
        (
            "a header that does not end",
            Says {
                bytes: b"HTTP/1.1 200 OK\r\nx: ".to_vec(),
                closes: false,
            },
        ),
        (
            "two lengths",
            says(
                &format!("{JSON}\r\ncontent-length: 2\r\ncontent-length: 3"),
                b"{}}",
                false,
            ),
        ),
        (
            "a length that is none",
            says(&format!("{JSON}\r\ncontent-length: two"), b"{}", true),
        ),
        (
            "a length that is too long",
            says(&format!("{JSON}\r\ncontent-length: 500"), b"{}", true),
        ),
        (
            "a body of which nothing comes",
            says(&format!("{JSON}\r\ncontent-length: 500"), b"", false),
        ),
        (
            "a header of 2 MiB",
            says(
                &many(1, &format!("x: {}\r\n", "x".repeat(2 << 20))),
                b"{}",
                true,
            ),
        ),
        (
            "600 header fields",
            says(&many(600, "x: x\r\n"), b"{}", true),
        ),
    ];
    for kind in [JSON, EVENTS] {
        cases.extend([
            (
                "a chunk without a size",
                chunked(kind, b"\r\n{}\r\n0\r\n\r\n", false),
            ),
            ("a missing size, closed", chunked(kind, b"\r\n", true)),
            (
                "a size below nothing",
                chunked(kind, b"-2\r\n{}\r\n0\r\n\r\n", false),
            ),
            (
                "a size that is none",
                chunked(kind, b"zz\r\n{}\r\n0\r\n\r\n", false),
            ),
            (
                "a size past all bounds",
                chunked(kind, b"fffffffffffffffff\r\n{}\r\n", false),
            ),
            (
                "a size that does not end",
                chunked(kind, &[b'0'; 100_000], false),
            ),
            (
                "a chunk that is longer than its size",
                chunked(kind, b"2\r\n{}{}{}\r\n0\r\n\r\n", false),
            ),
            ("a chunk that breaks off", chunked(kind, b"ff\r\n{}", true)),
            ("no last chunk", chunked(kind, b"2\r\n{}\r\n", true)),
        ]);
    }
    let (names, cases): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    // Some of these vendors send no more and leave the connection open.
    let (world, account) = plan_of(cases)
        .limit("idle_seconds", 1)
        .limit("first_byte_seconds", 1)
        .with_account();
    std::thread::scope(|scope| {
        for (number, name) in names.iter().enumerate() {
            let (world, account) = (&world, &account);
            scope.spawn(move || each_way(world, account, number, name));
        }
    });
    world.ended(&account, names.len() * 4);
    let ended = world.endings(&account);
    assert!(
        ended.len() == names.len() * 4 && taken(&ended) == 0,
        "{ended:?}"
    );
    assert!(
        ended
            .iter()
            .all(|ending| ending["outcome"] == "vendor_error" || ending["outcome"] == "vendor_cut")
    );
    assert_eq!(world.standing(&account).held, 0);
    world.close();
}

/// Sends a request for a whole answer and one for a stream on each surface. Each must end with an
/// error.
fn each_way(world: &World, account: &Account, number: usize, name: &str) {
    for (surface, stream) in BOTH
        .into_iter()
        .flat_map(|surface| [(surface, false), (surface, true)])
    {
        let mut body = surface.body("", stream, 10);
        body["messages"][0]["content"] = format!("case {number};").into();
        let answer = world.ask(&surface.request(&account.key, &body));
        let told = match answer.status {
            200 => answer.has(surface.error_frame()) && !surface.is_complete(&answer),
            status => (500..505).contains(&status),
        };
        assert!(
            told,
            "{name}, {surface:?}, stream {stream}: {} {}",
            answer.status,
            answer.text()
        );
    }
}

/// The control: the same vendor with correct framing.
#[test]
fn control_a_vendor_of_the_same_make_is_understood() {
    for says in [
        says(
            &format!("{JSON}\r\ncontent-length: {}", HI.len()),
            HI.as_bytes(),
            false,
        ),
        chunked(
            JSON,
            format!("{:x}\r\n{HI}\r\n0\r\n\r\n", HI.len()).as_bytes(),
            false,
        ),
    ] {
        let (world, account) = plan_of(vec![says]).with_account();
        world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
    }
}

/// The gateway asked for no other protocol, so it cannot read the bytes that follow. Without this
/// check the request would wait for the whole first-byte timeout.
#[test]
fn a_vendor_that_switches_protocols_is_a_failure_at_once_and_interim_answers_are_skipped() {
    let good = format!(
        "HTTP/1.1 {JSON}\r\ncontent-length: {}\r\n\r\n{HI}",
        HI.len()
    );
    let says_first = |interim: &str| Says {
        bytes: format!("HTTP/1.1 {interim}\r\n\r\n{good}").into_bytes(),
        closes: false,
    };
    let switched = |rest: &str| Says {
        bytes: format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n{rest}"
        )
        .into_bytes(),
        closes: false,
    };
    let cases = vec![
        says_first("100 Continue"),
        says_first("103 Early Hints"),
        switched(""),
        switched(&good),
    ];
    let (world, account) = plan_of(cases)
        .limit("first_byte_seconds", 600)
        .with_account();
    for (case, status) in [(0, 200), (1, 200), (2, 502), (3, 502)] {
        for stream in [false, true] {
            let body = Chat.body(&format!("case {case}; input=1"), stream, 10);
            let answer = world.ask(&Chat.request(&account.key, &body));
            if status == 200 && stream {
                continue;
            }
            assert_eq!(answer.status, status, "case {case}: {}", answer.text());
            assert_eq!(answer.header("upgrade"), None);
        }
    }
    world.has_metric(
        "gateway_upstream_requests_total",
        &["vendor=\"beta\"", "status=\"101\""],
        4.0,
    );
}

fn limited(retry_after: &str) -> Says {
    let head = format!(
        "429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: {retry_after}"
    );
    says(&format!("{head}\r\ncontent-length: 2"), b"{}", false)
}

#[test]
fn a_vendors_date_to_come_again_is_told_in_seconds_and_heeded() {
    let date = |seconds: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    };
    // A date in the past means the shortest possible wait. A value that is neither a date nor a
    // number is ignored.
    for (retry_after, least, most) in [
        (date(50), 20, 50),
        (date(9_000), 60, 60),
        (date(-50), 0, 0),
        ("50".into(), 50, 50),
    ] {
        let port = vendor(vec![limited(&retry_after)]);
        let plan = Plan::default()
            .endpoints(&[port])
            .limit("cool_down_probe_seconds", 0);
        let (world, account) = plan.limit("breaker_failures", 0).with_account();
        let ask = |surface: Surface| {
            let answer = world.expect(429, &surface.whole(&account.key, "input=1 output=1"));
            answer
                .header("retry-after")
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        for surface in BOTH {
            let told = ask(surface);
            assert!((least..=most).contains(&told), "{retry_after}: {told}");
        }
        if least > 1 {
            ask(Chat);
            assert_eq!(
                world.metric("gateway_upstream_requests_total", &["vendor=\"beta\""]),
                1.0,
                "{retry_after}"
            );
        }
    }
}
