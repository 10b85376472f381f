//! HTTP/2 with every frame under the test's control: fields that it must not carry, and floods of
//! streams.
//!
//! Must not become a full client: it does not implement HPACK compression, and of an answer it
//! recognizes only whether it is a 200.

use crate::surface::Chat;
use crate::world::World;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;
/// `:status: 200` as an index of HPACK's static table.
pub const OK: u8 = 0x88;

pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    /// An answer other than 200, a reset, or the end of the connection.
    Refused,
}

pub struct H2(pub TcpStream);

impl H2 {
    pub fn open(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(40)))
            .unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        let mut h2 = Self(stream);
        h2.send(SETTINGS, 0, 0, b"");
        h2
    }

    /// Returns false if the other side closed the connection.
    pub fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &id.to_be_bytes()].concat();
        self.0.write_all(&[&head, payload].concat()).is_ok()
    }

    pub fn ask(&mut self, id: u32, fields: &Fields, body: &[u8]) {
        self.send(HEADERS, END_HEADERS, id, &block(fields));
        self.send(DATA, END_STREAM, id, body);
    }

    pub fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some((
            head[3],
            head[4],
            u32::from_be_bytes(head[5..].try_into().unwrap()),
            payload,
        ))
    }

    pub fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            match self.frame() {
                Some((HEADERS, _, id, block)) if id == stream => {
                    return if block[0] == OK {
                        Outcome::Answered
                    } else {
                        Outcome::Refused
                    };
                }
                Some((SETTINGS, flags, ..)) if flags & ACK == 0 => {
                    self.send(SETTINGS, ACK, 0, b"");
                }
                Some((RST_STREAM, _, id, _)) if id == stream => return Outcome::Refused,
                Some((GOAWAY, ..)) | None => return Outcome::Refused,
                Some(_) => {}
            }
        }
    }
}

/// Encodes each field as an HPACK literal that is not indexed.
pub fn block(fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            // Seven bits of length, then the rest in groups of seven bits.
            if text.len() < 127 {
                out.push(text.len() as u8);
            } else {
                out.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    out.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                out.push(rest as u8);
            }
            out.extend_from_slice(text);
        }
    }
    out
}

pub fn field(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (name.into(), value.into())
}

pub fn good(key: &str, body: &str) -> Fields {
    announcing(key, body.len())
}

/// The header of a request that announces a body of `bytes` bytes.
pub fn announcing(key: &str, bytes: usize) -> Fields {
    vec![
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/v1/chat/completions"),
        field(":authority", "gateway.test"),
        field("authorization", &format!("Bearer {key}")),
        field("content-type", "application/json"),
        field("content-length", &bytes.to_string()),
    ]
}

/// A change to a valid request: replaces a field, adds one at the end or the start, or removes one.
enum Change {
    Put(&'static str, &'static str),
    Add(&'static str, &'static str),
    First(&'static str, &'static str),
    Drop(&'static str),
}

use Change::{Add, Drop, First, Put};

#[rustfmt::skip]
const CASES: &[(&str, Change)] = &[
    ("transfer-encoding", Add("transfer-encoding", "chunked")),
    ("transfer-encoding and no length", Put("content-length", "\r\ntransfer-encoding: chunked")),
    ("connection", Add("connection", "close")),
    ("keep-alive", Add("keep-alive", "timeout=5")),
    ("proxy-connection", Add("proxy-connection", "close")),
    ("upgrade", Add("upgrade", "websocket")),
    ("te", Add("te", "gzip")),
    ("CR and LF in a value", Add("x", "1\r\nauthorization: Bearer x")),
    ("LF in a value", Add("x", "1\n2")),
    ("NUL in a value", Add("x", "1\x002")),
    ("a capital in a name", Add("X-Y", "1")),
    ("a colon in a name", Add("x:y", "1")),
    ("a space in a name", Add("x y", "1")),
    ("CR and LF in a name", Add("x\r\ny", "1")),
    ("an empty name", Add("", "1")),
    ("a space in the path", Put(":path", "/v1/chat/completions x")),
    ("CR and LF in the path", Put(":path", "/v1/chat/completions HTTP/1.1\r\nx: 1")),
    ("an empty path", Put(":path", "")),
    ("a path without a slash", Put(":path", "v1/chat/completions")),
    ("a path with two slashes", Put(":path", "//v1/chat/completions")),
    ("a path with dots", Put(":path", "/x/../v1/chat/completions")),
    ("a path with hidden dots", Put(":path", "/%2e%2e/v1/chat/completions")),
    ("two paths", Add(":path", "/v1/messages")),
    ("two methods", Add(":method", "GET")),
    ("two authorities", First(":authority", "other.test")),
    ("another host than the authority", Add("host", "other.test")),
    ("a user in the authority", Put(":authority", "a@gateway.test")),
    ("an unknown pseudo field", First(":x", "1")),
    ("a pseudo field behind others", Add(":scheme", "http")),
    ("no method", Drop(":method")),
    ("no path", Drop(":path")),
    ("no scheme", Drop(":scheme")),
    ("a method that is two lines", Put(":method", "POST / HTTP/1.1\r\nx")),
    ("CONNECT", Put(":method", "CONNECT")),
    ("a length that is too short", Put("content-length", "5")),
    ("a length that is too long", Put("content-length", "5000")),
    ("a length with a plus", Put("content-length", "+5")),
    ("two lengths", Add("content-length", "5")),
];

fn changed(mut fields: Fields, change: &Change) -> Fields {
    match change {
        Put(name, value) => {
            fields
                .iter_mut()
                .filter(|(given, _)| given == name.as_bytes())
                .for_each(|pair| pair.1 = (*value).into());
        }
        Add(name, value) => fields.push(field(name, value)),
        First(name, value) => fields.insert(0, field(name, value)),
        Drop(name) => fields.retain(|(given, _)| given != name.as_bytes()),
    }
    fields
}

#[test]
fn what_has_no_place_in_http2_reaches_no_vendor() {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    let ask = |fields: &Fields| {
        let mut h2 = H2::open(world.edge);
        h2.ask(1, fields, body.as_bytes());
        h2.outcome(1)
    };
    let good = good(&account.key, &body);
    assert_eq!(ask(&good), Outcome::Answered, "the control");
    assert_eq!(world.vendor.calls(), 1);
    let mut wrong = Vec::new();
    for (name, change) in CASES {
        let before = world.vendor.calls();
        let outcome = ask(&changed(good.clone(), change));
        let calls = world.vendor.calls() - before;
        if (outcome, calls) != (Outcome::Refused, 0) {
            wrong.push(format!("{name}: {outcome:?}, {calls} calls"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    world.works(Chat, &account.key);
}

#[test]
fn a_header_too_large_for_http2_is_refused_and_one_that_fits_is_not() {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    let ask = |count: usize, bytes: usize| {
        let mut fields = good(&account.key, &body);
        fields.extend((0..count).map(|index| field(&format!("x-{index}"), &"x".repeat(bytes))));
        let mut h2 = H2::open(world.edge);
        h2.ask(1, &fields, body.as_bytes());
        h2.outcome(1)
    };
    assert_eq!(
        ask(57, 1),
        Outcome::Answered,
        "pseudo fields and a cookie are no fields"
    );
    assert_eq!(ask(70, 1), Outcome::Refused);
    assert_eq!(ask(3, 5_000), Outcome::Answered);
    assert_eq!(world.vendor.calls(), 2);
}

/// Memory of a process, in KiB: what it has allocated, and no code. The first use of a function
/// loads a page of the program, which no number of clients repeats.
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// CPU time that a process has used, in steps of 10 ms.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the program may have spaces. After it, the times of user and system are fields 12
    // and 13.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn streams_that_are_reset_at_once_cost_others_nothing_and_little_memory() {
    reset_at_once(10_000);
}

#[test]
#[ignore = "long load: 100 000 streams that are reset at once, about 2 minutes"]
fn a_hundred_thousand_streams_that_are_reset_at_once_cost_others_nothing_and_little_memory() {
    reset_at_once(100_000);
}

#[allow(clippy::print_stdout, reason = "figures for a person")]
fn reset_at_once(streams: u32) {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    world.works(Chat, &account.key);
    let before = resident_kib(world.pid());
    let fields = block(&good(&account.key, &body));
    let (mut reset, mut connections) = (0, 0);
    while reset < streams {
        // The gateway closes a connection with too many resets, and the client opens a new one.
        let mut h2 = H2::open(world.edge);
        connections += 1;
        let mut id = 1;
        while reset < streams && id < 20_000 {
            reset += 1;
            if !h2.send(HEADERS, END_HEADERS, id, &fields)
                || !h2.send(RST_STREAM, 0, id, &8_u32.to_be_bytes())
            {
                break;
            }
            id += 2;
            if reset % 2_000 == 0 {
                world.works(Chat, &account.key);
            }
        }
    }
    let grown = resident_kib(world.pid()).saturating_sub(before);
    println!("{reset} resets over {connections} connections: {grown} KiB more");
    assert!(grown < 64 * 1_024, "{grown} KiB");
}
