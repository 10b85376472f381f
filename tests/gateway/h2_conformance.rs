//! HTTP/2 conformance (RFC 9113). Each case is one fault of a client, or one thing that a client
//! may do, and its name begins with the RFC's section.
//!
//! A connection error ends the connection, with the section's error code if the gateway sends one.
//! A stream error ends only that stream. A faulty request never reaches a vendor, and the gateway
//! keeps serving other clients. The cost of frame floods without requests is bounded.

use crate::h2::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, H2, HEADERS, RST_STREAM, SETTINGS, block, field,
    good,
};
use crate::h2::{Fields, resident_kib};
use crate::surface::Chat;
use crate::world::World;
use std::io::Write;
use std::time::{Duration, Instant};

const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 0xf5;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 0x20;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// How the gateway reacted to the frames.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    /// The connection is closed, with this error code if the gateway sent one.
    Ended(Option<u32>),
    /// The gateway reset a stream with this error code.
    Reset(u32),
    /// A stream has an answer. True: its status is 200.
    Answered(bool),
    /// A PING acknowledgement with this payload.
    Pong(Vec<u8>),
}

/// The gateway's first reaction to the frames so far. It skips window updates and settings
/// acknowledgements, which can come at any time.
fn taken(h2: &mut H2) -> Taken {
    loop {
        match h2.frame() {
            None => return Taken::Ended(None),
            Some((GOAWAY, _, _, payload)) => {
                return Taken::Ended(Some(u32::from_be_bytes(payload[4..8].try_into().unwrap())));
            }
            Some((RST_STREAM, _, _, payload)) => {
                return Taken::Reset(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
            Some((HEADERS, _, _, block)) => return Taken::Answered(block[0] == 0x88),
            Some((PING, ACK, _, payload)) => return Taken::Pong(payload),
            Some(_) => {}
        }
    }
}

/// What a case can send: frames, and the header fields and body of a valid request.
struct With<'a> {
    h2: &'a mut H2,
    fields: Fields,
    body: Vec<u8>,
}

impl With<'_> {
    fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        // Ignores a write error: if the gateway has already closed the connection, the test checks
        // that afterwards.
        let _ = self.h2.send(kind, flags, id, payload);
    }

    fn block(&self) -> Vec<u8> {
        block(&self.fields)
    }

    /// Sends the header of a valid request, without its body.
    fn head(&mut self, id: u32) {
        let block = self.block();
        self.send(HEADERS, END_HEADERS, id, &block);
    }

    fn rest(&mut self, id: u32) {
        let body = self.body.clone();
        self.send(DATA, END_STREAM, id, &body);
    }

    /// Sends a complete request without a body.
    fn get(&mut self, id: u32) {
        self.send(HEADERS, END_HEADERS | END_STREAM, id, &get_block());
    }

    /// Sends a complete request without a body and one more frame in the same write. The gateway
    /// then reads the frame before it answers, because it may ignore frames after the answer.
    fn behind_a_whole_one(&mut self, kind: u8, payload: &[u8]) {
        let whole = END_HEADERS | END_STREAM;
        let bytes = [
            frame(HEADERS, whole, 1, &get_block()),
            frame(kind, whole, 1, payload),
        ]
        .concat();
        let _ = self.h2.0.write_all(&bytes);
    }

    fn setting(&mut self, name: u16, value: u32) {
        let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
        self.send(SETTINGS, 0, 0, &payload);
    }
}

fn get_block() -> Vec<u8> {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/healthz"),
        (":authority", "g"),
    ];
    block(&fields.map(|(name, value)| field(name, value)).to_vec())
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

/// The reaction that a case requires.
enum Due {
    /// The connection ends, with one of these codes if the gateway sends one.
    Connection(&'static [u32]),
    /// The stream is reset or gets an answer other than 200, or the connection ends.
    Stream(&'static [u32]),
    /// The answer is a 200.
    Fine,
}

use Due::{Connection, Fine, Stream};

type Case = (&'static str, Due, fn(&mut With<'_>));

#[rustfmt::skip]
const CASES: &[Case] = &[
    // The h2 library does not require the SETTINGS frame.
    ("3.4: no SETTINGS at first", Fine, |with| {
        // The test's first connection has sent SETTINGS already, so this opens a second one.
        let peer = with.h2.0.peer_addr().unwrap();
        with.h2.0 = std::net::TcpStream::connect(peer).unwrap();
        with.h2.0.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        with.h2.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        with.get(1);
    }),
    ("4.1: a frame of an unknown type", Fine, |with| { with.send(UNKNOWN, 0xff, 0, b"anything"); with.get(1); }),
    ("4.1: flags without a meaning", Fine, |with| { with.send(PING, 0x16, 0, &[0; 8]); with.get(1); }),
    ("4.1: the reserved bit of a stream's id", Fine, |with| { with.send(PING, 0, 1 << 31, &[0; 8]); with.get(1); }),
    ("4.2: DATA as large as may be", Fine, |with| {
        let padding = vec![b' '; 16_384];
        with.fields.retain(|(name, _)| name != b"content-length");
        with.head(1);
        with.send(DATA, 0, 1, &padding);
        with.rest(1);
    }),
    ("4.2: DATA that is larger", Connection(&[FRAME_SIZE_ERROR]), |with| { with.head(1); with.send(DATA, 0, 1, &[b' '; 16_385]); }),
    ("4.2: HEADERS that are larger", Connection(&[FRAME_SIZE_ERROR]), |with| with.send(HEADERS, END_HEADERS, 1, &[0; 16_385])),
    ("4.3: a header that cannot be decompressed", Connection(&[COMPRESSION_ERROR]), |with| with.send(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f])),
    ("4.3: a field of no table", Connection(&[COMPRESSION_ERROR]), |with| with.send(HEADERS, END_HEADERS | END_STREAM, 1, &[0xc6])),
    ("4.3: a table larger than was agreed on", Connection(&[COMPRESSION_ERROR]), |with| with.send(HEADERS, END_HEADERS | END_STREAM, 1, &[0x3f, 0xe1, 0xff, 0x03])),
    ("5.1: DATA on a stream that is idle", Connection(&[PROTOCOL_ERROR, STREAM_CLOSED]), |with| with.send(DATA, END_STREAM, 1, b"x")),
    ("5.1: RST_STREAM on a stream that is idle", Connection(&[PROTOCOL_ERROR]), |with| with.send(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
    ("5.1: WINDOW_UPDATE on a stream that is idle", Connection(&[PROTOCOL_ERROR]), |with| with.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 8])),
    ("5.1: CONTINUATION on a stream that is idle", Connection(&[PROTOCOL_ERROR]), |with| with.send(CONTINUATION, END_HEADERS, 1, b"")),
    ("5.1: DATA after the end of a request", Stream(&[STREAM_CLOSED, PROTOCOL_ERROR]), |with| { with.behind_a_whole_one(DATA, b"x"); taken_first(with); }),
    ("5.1: HEADERS after the end of a request", Stream(&[STREAM_CLOSED, PROTOCOL_ERROR]), |with| { with.behind_a_whole_one(HEADERS, &get_block()); taken_first(with); }),
    ("5.1: DATA after a reset", Stream(&[STREAM_CLOSED, PROTOCOL_ERROR]), |with| { with.head(1); with.send(RST_STREAM, 0, 1, &[0, 0, 0, 8]); for _ in 0..1_100 { with.send(DATA, 0, 1, b"x"); } with.send(DATA, END_STREAM | PADDED, 1, &[9]); }),
    ("5.1.1: a stream with an even id", Connection(&[PROTOCOL_ERROR]), |with| with.get(2)),
    ("5.1.1: a stream with a smaller id than one before", Connection(&[PROTOCOL_ERROR, STREAM_CLOSED]), |with| { with.get(5); let _ = taken(with.h2); with.get(3); }),
    ("5.1.2: more streams at one time than may be", Stream(&[REFUSED_STREAM, PROTOCOL_ERROR, ENHANCE_YOUR_CALM]), |with| (0..102).for_each(|index| with.head(2 * index + 1))),
    ("5.5: an unknown frame in the middle of a header", Connection(&[PROTOCOL_ERROR]), |with| { let block = with.block(); with.send(HEADERS, 0, 1, &block[..9]); with.send(UNKNOWN, 0, 0, b"x"); }),
    ("6.1: DATA on stream 0", Connection(&[PROTOCOL_ERROR]), |with| with.send(DATA, 0, 0, b"x")),
    ("6.1: more padding than DATA", Connection(&[PROTOCOL_ERROR]), |with| { with.head(1); with.send(DATA, PADDED | END_STREAM, 1, &[6, 1, 2, 3]); }),
    ("6.1: padded DATA", Fine, |with| {
        let padded = [&[4][..], &with.body, &[0; 4]].concat();
        with.head(1);
        with.send(DATA, PADDED | END_STREAM, 1, &padded);
    }),
    ("6.2: HEADERS on stream 0", Connection(&[PROTOCOL_ERROR]), |with| { let block = with.block(); with.send(HEADERS, END_HEADERS, 0, &block); }),
    ("6.2: more padding than HEADERS", Connection(&[PROTOCOL_ERROR]), |with| with.send(HEADERS, PADDED | END_HEADERS, 1, &[9, 1, 2])),
    ("6.2: padded HEADERS with a priority", Fine, |with| {
        let framed = [&[3][..], &[0, 0, 0, 0, 7], &with.block(), &[0; 3]].concat();
        with.send(HEADERS, PADDED | WITH_PRIORITY | END_HEADERS, 1, &framed);
        with.rest(1);
    }),
    ("6.3: PRIORITY on stream 0", Connection(&[PROTOCOL_ERROR]), |with| with.send(PRIORITY, 0, 0, &[0, 0, 0, 1, 1])),
    ("6.3: PRIORITY of a wrong size", Stream(&[FRAME_SIZE_ERROR]), |with| with.send(PRIORITY, 0, 1, &[0, 0, 0, 1])),
    ("6.4: RST_STREAM on stream 0", Connection(&[PROTOCOL_ERROR]), |with| with.send(RST_STREAM, 0, 0, &[0, 0, 0, 8])),
    ("6.4: RST_STREAM of a wrong size", Connection(&[FRAME_SIZE_ERROR]), |with| { with.head(1); with.send(RST_STREAM, 0, 1, &[0, 0, 8]); }),
    ("6.5: an acknowledgement with settings in it", Connection(&[FRAME_SIZE_ERROR]), |with| with.send(SETTINGS, ACK, 0, &[0, 3, 0, 0, 0, 1])),
    ("6.5: SETTINGS on a stream", Connection(&[PROTOCOL_ERROR]), |with| with.send(SETTINGS, 0, 1, b"")),
    ("6.5: SETTINGS of a wrong size", Connection(&[FRAME_SIZE_ERROR]), |with| with.send(SETTINGS, 0, 0, &[0, 3, 0])),
    ("6.5.2: ENABLE_PUSH that is neither 0 nor 1", Connection(&[PROTOCOL_ERROR]), |with| with.setting(2, 2)),
    ("6.5.2: a window past its largest", Connection(&[FLOW_CONTROL_ERROR]), |with| with.setting(4, 1 << 31)),
    ("6.5.2: frames below the least size", Connection(&[PROTOCOL_ERROR]), |with| with.setting(5, 16_383)),
    ("6.5.2: frames above the largest size", Connection(&[PROTOCOL_ERROR]), |with| with.setting(5, 1 << 24)),
    ("6.5.2: a setting that nobody knows", Fine, |with| { with.setting(0xfff, 7); with.get(1); }),
    ("6.6: PUSH_PROMISE of a client", Connection(&[PROTOCOL_ERROR]), |with| { with.head(1); let block = [&[0, 0, 0, 2][..], &with.block()].concat(); with.send(PUSH_PROMISE, END_HEADERS, 1, &block); }),
    ("6.7: PING on a stream", Connection(&[PROTOCOL_ERROR]), |with| with.send(PING, 0, 1, &[0; 8])),
    ("6.7: PING of a wrong size", Connection(&[FRAME_SIZE_ERROR]), |with| with.send(PING, 0, 0, &[0; 6])),
    ("6.7: an acknowledgement that nobody asked for", Fine, |with| { with.send(PING, ACK, 0, &[7; 8]); with.get(1); }),
    ("6.8: GOAWAY on a stream", Connection(&[PROTOCOL_ERROR]), |with| with.send(GOAWAY, 0, 1, &[0; 8])),
    ("6.9: WINDOW_UPDATE by nothing on the connection", Connection(&[PROTOCOL_ERROR]), |with| with.send(WINDOW_UPDATE, 0, 0, &[0; 4])),
    ("6.9: WINDOW_UPDATE by nothing on a stream", Stream(&[PROTOCOL_ERROR]), |with| { with.head(1); with.send(WINDOW_UPDATE, 0, 1, &[0; 4]); }),
    ("6.9: WINDOW_UPDATE of a wrong size", Connection(&[FRAME_SIZE_ERROR]), |with| with.send(WINDOW_UPDATE, 0, 0, &[0; 3])),
    ("6.9.1: the connection's window past its largest", Connection(&[FLOW_CONTROL_ERROR]), |with| (0..2).for_each(|_| with.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]))),
    ("6.9.1: a stream's window past its largest", Stream(&[FLOW_CONTROL_ERROR]), |with| { with.head(1); (0..2).for_each(|_| with.send(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])); }),
    ("6.9.1: more DATA than a stream's window", Stream(&[FLOW_CONTROL_ERROR]), |with| {
        with.fields.retain(|(name, _)| name != b"content-length");
        with.head(1);
        // The gateway has not opened the window yet, because one write sends all of this.
        let frame = [&[0, 0x40, 0, DATA, 0, 0, 0, 0, 1][..], &[b' '; 16_384]].concat();
        let _ = with.h2.0.write_all(&frame.repeat(100));
    }),
    ("6.10: CONTINUATION on stream 0", Connection(&[PROTOCOL_ERROR]), |with| { let block = with.block(); with.send(HEADERS, 0, 1, &block[..9]); with.send(CONTINUATION, END_HEADERS, 0, &block[9..]); }),
    ("6.10: CONTINUATION on another stream", Connection(&[PROTOCOL_ERROR]), |with| { let block = with.block(); with.send(HEADERS, 0, 1, &block[..9]); with.send(CONTINUATION, END_HEADERS, 3, &block[9..]); }),
    ("6.10: CONTINUATION behind a whole header", Connection(&[PROTOCOL_ERROR]), |with| { with.head(1); with.send(CONTINUATION, END_HEADERS, 1, b""); }),
    ("6.10: DATA in the middle of a header", Connection(&[PROTOCOL_ERROR]), |with| { let block = with.block(); with.send(HEADERS, 0, 1, &block[..9]); with.send(DATA, 0, 1, b"x"); }),
    ("6.10: a header in many pieces", Fine, |with| {
        let block = with.block();
        with.send(HEADERS, 0, 1, &block[..5]);
        block[5..].chunks(block.len() / 3).for_each(|piece| with.send(CONTINUATION, 0, 1, piece));
        with.send(CONTINUATION, END_HEADERS, 1, b"");
        with.rest(1);
    }),
    ("6.10: a header in ever more pieces", Connection(&[ENHANCE_YOUR_CALM]), |with| {
        let block = with.block();
        with.send(HEADERS, 0, 1, &block[..5]);
        block[5..].chunks(9).for_each(|piece| with.send(CONTINUATION, 0, 1, piece));
    }),
    ("8.1: trailers", Fine, |with| {
        let body = with.body.clone();
        with.head(1);
        with.send(DATA, 0, 1, &body);
        with.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&vec![field("x-trailer", "1")]));
    }),
    ("8.1: a second header without an end", Stream(&[PROTOCOL_ERROR]), |with| { with.head(1); with.head(1); }),
    ("8.3: a pseudo field among trailers", Stream(&[PROTOCOL_ERROR]), |with| { with.head(1); with.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&vec![field(":method", "GET")])); }),
    ("8.1.1: trailers before all of the content", Stream(&[PROTOCOL_ERROR]), |with| { with.head(1); with.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&vec![field("x-trailer", "1")])); }),
];

/// The gateway may answer a complete request before it reads the faulty frame that follows. This
/// skips such answers and requires a fault.
fn taken_first(with: &mut With<'_>) {
    with.send(PING, 0, 0, b"behind..");
    let mut pong = false;
    while !pong {
        match taken(with.h2) {
            Taken::Answered(_) => {}
            Taken::Pong(_) => pong = true,
            // The gateway has reported the fault, but this loop consumed the report. An invalid
            // frame provokes a report that the caller can read.
            _ => return with.send(WINDOW_UPDATE, 0, 0, &[0; 4]),
        }
    }
    panic!("what came behind the end of a request was taken without a word");
}

fn is_due(due: &Due, taken: &Taken) -> bool {
    // The h2 library sends PROTOCOL_ERROR in many cases that have a more specific code.
    let is_told = |codes: &[u32], code: &Option<u32>| {
        code.is_none_or(|code| codes.contains(&code) || code == PROTOCOL_ERROR)
    };
    match (due, taken) {
        (Connection(codes), Taken::Ended(code)) => is_told(codes, code),
        (Stream(codes), Taken::Ended(code)) => is_told(codes, code),
        (Stream(codes), Taken::Reset(code)) => codes.contains(code),
        (Stream(_), Taken::Answered(well)) => !well,
        (Fine, Taken::Answered(well)) => *well,
        _ => false,
    }
}

#[test]
fn every_fault_of_a_client_ends_its_connection_or_stream_and_what_it_may_do_is_taken() {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    let mut wrong = Vec::new();
    for (name, due, act) in CASES {
        let mut h2 = H2::open(world.edge);
        let before = world.vendor.calls();
        let mut with = With {
            h2: &mut h2,
            fields: good(&account.key, &body),
            body: body.clone().into_bytes(),
        };
        act(&mut with);
        let mut taken = taken(&mut h2);
        while matches!(taken, Taken::Pong(_)) {
            taken = self::taken(&mut h2);
        }
        let calls = world.vendor.calls() - before;
        if !is_due(due, &taken) || !matches!(due, Fine) && calls > 0 {
            wrong.push(format!("{name}: {taken:?}, {calls} calls"));
        }
    }
    assert!(wrong.is_empty(), "of {}: {wrong:#?}", CASES.len());
    println!("{} cases", CASES.len());
    world.works(Chat, &account.key);
}

#[test]
fn a_ping_is_answered_with_its_own_words_and_settings_are_acknowledged() {
    let world = World::new();
    let mut h2 = H2::open(world.edge);
    h2.send(PING, 0, 0, b"12345678");
    assert_eq!(taken(&mut h2), Taken::Pong(b"12345678".to_vec()));
    h2.send(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]);
    let acknowledged = (0..10)
        .any(|_| matches!(h2.frame(), Some((SETTINGS, ACK, 0, payload)) if payload.is_empty()));
    assert!(acknowledged);
}

/// Section 6.9.2: a client whose window is closed gets no DATA. It gets as much as it opens the
/// window for, and the rest once it opens it further.
#[test]
fn an_answer_keeps_to_the_window_that_the_client_gives() {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    let mut h2 = H2::open(world.edge);
    h2.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 3]);
    h2.ask(1, &good(&account.key, &body), body.as_bytes());
    let mut data = Vec::new();
    let mut read = |h2: &mut H2, until: usize| {
        while data.len() < until {
            match h2.frame().expect("a frame") {
                (DATA, _, 1, piece) => data.extend(piece),
                (RST_STREAM | GOAWAY, ..) => panic!("the stream ended"),
                _ => {}
            }
        }
        data.len()
    };
    assert_eq!(read(&mut h2, 1), 3);
    // The next frame is the answer to this PING, not DATA.
    h2.send(PING, 0, 0, b"anything");
    assert_eq!(taken(&mut h2), Taken::Pong(b"anything".to_vec()));
    h2.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 4]);
    assert_eq!(read(&mut h2, 4), 7);
    // A larger initial window in SETTINGS also applies to this open stream.
    h2.send(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    assert!(read(&mut h2, 100) > 100);
}

/// Endless frames without a request, from a client that reads nothing.
#[test]
fn floods_of_frames_cost_others_nothing_and_little_memory() {
    flood(50_000);
}

#[test]
#[ignore = "long load: floods of a million frames of five kinds, about 3 minutes"]
fn floods_of_a_million_frames_cost_others_nothing_and_little_memory() {
    flood(1_000_000);
}

/// Sends this number of frames of each kind.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn flood(frames: usize) {
    let (world, account) = World::with_account();
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    world.works(Chat, &account.key);
    let block = block(&good(&account.key, &body));
    let floods: [(&str, u8, u32, &[u8]); 5] = [
        ("SETTINGS", SETTINGS, 0, &[0, 3, 0, 0, 0, 9]),
        ("PING", PING, 0, &[0; 8]),
        ("empty DATA", DATA, 1, b""),
        ("PRIORITY", PRIORITY, 1, &[0, 0, 0, 0, 1]),
        ("empty CONTINUATION", CONTINUATION, 1, b""),
    ];
    for (name, kind, id, payload) in floods {
        let before = resident_kib(world.pid());
        let mut h2 = H2::open(world.edge);
        h2.0.set_write_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        if id > 0 {
            let flags = if kind == CONTINUATION { 0 } else { END_HEADERS };
            h2.send(HEADERS, flags, 1, &block);
        }
        let (mut sent, began) = (0, Instant::now());
        // Stops when the gateway closes the connection, when a write blocks because the client
        // reads nothing, or after all frames.
        while sent < frames && h2.send(kind, 0, id, payload) {
            sent += 1;
            if sent % 10_000 == 0 {
                world.works(Chat, &account.key);
            }
        }
        let grown = resident_kib(world.pid()).saturating_sub(before);
        println!(
            "{name}: {sent} frames in {:?}: {grown} KiB more",
            began.elapsed()
        );
        assert!(grown < 32 * 1_024, "{name}: {grown} KiB");
        world.works(Chat, &account.key);
    }
}
