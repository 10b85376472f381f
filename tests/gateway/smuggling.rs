//! Tests requests that two parsers could understand differently: the vendor sees one request or
//! none, and never a request that was hidden in the body of another.
//!
//! The cases are data. `h2.rs` has those of HTTP/2.

use crate::client::{Answer, Connection, Request};
use crate::surface::{BOTH, Chat};
use crate::world::{Plan, World};
use serde_json::json;

/// The expected result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The gateway answers 4xx and closes the connection. The vendor sees nothing.
    Refused,
    /// The gateway sends one answer, the vendor sees one request, and the rest of the bytes is
    /// ignored.
    One,
}

use Fate::{One, Refused};

const LINE: &str = "POST /v1/chat/completions HTTP/1.1";

/// Name, request line, header fields, body, expected result. `{B}` is a valid body, `{L}` its
/// length, `{C}` the same body in one chunk, `{I}` a whole request that must not be processed,
/// `{IL}` its length.
type Case = (&'static str, &'static str, &'static str, &'static str, Fate);

#[rustfmt::skip]
const TWO_FRAMINGS: &[Case] = &[
    ("control: a length", LINE, "host: g\r\ncontent-length: {L}\r\n", "{B}", One),
    ("control: chunks", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{C}", One),
    ("CL.TE", LINE, "host: g\r\ncontent-length: {L}\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n{I}", Refused),
    ("TE.CL", LINE, "host: g\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n", "{C}{I}", Refused),
    ("both, of one mind", LINE, "host: g\r\ntransfer-encoding: chunked\r\ncontent-length: {L}\r\n", "{C}", Refused),
    ("both, length 0", LINE, "host: g\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n", "{C}", Refused),
    ("TE with a space before its colon", LINE, "host: g\r\ncontent-length: {L}\r\ntransfer-encoding : chunked\r\n", "{B}", Refused),
    ("TE xchunked", LINE, "host: g\r\ncontent-length: {L}\r\ntransfer-encoding: xchunked\r\n", "{B}", Refused),
    ("TE vertical tab", LINE, "host: g\r\ncontent-length: {L}\r\ntransfer-encoding:\x0bchunked\r\n", "{B}", Refused),
    ("TE in a folded line", LINE, "host: g\r\nx: 1\r\n transfer-encoding: chunked\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("TE folded", LINE, "host: g\r\ntransfer-encoding:\r\n chunked\r\n", "{C}", Refused),
    ("TE first, behind a space", LINE, " transfer-encoding: chunked\r\nhost: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("TE chunked, identity", LINE, "host: g\r\ntransfer-encoding: chunked, identity\r\n", "{C}", Refused),
    ("TE identity", LINE, "host: g\r\ntransfer-encoding: identity\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("TE identity alone", LINE, "host: g\r\ntransfer-encoding: identity\r\n", "{B}", Refused),
    ("TE gzip, chunked", LINE, "host: g\r\ntransfer-encoding: gzip, chunked\r\n", "{C}", Refused),
    ("TE twice, unlike", LINE, "host: g\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", "{C}", Refused),
    ("TE twice, unlike, turned", LINE, "host: g\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n", "{C}", Refused),
    ("TE twice", LINE, "host: g\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "{C}", Refused),
    ("TE quoted", LINE, "host: g\r\ntransfer-encoding: \"chunked\"\r\n", "{C}", Refused),
    ("TE with a parameter", LINE, "host: g\r\ntransfer-encoding: chunked;q=1\r\n", "{C}", Refused),
    ("TE chunked, chunked", LINE, "host: g\r\ntransfer-encoding: chunked, chunked\r\n", "{C}", Refused),
    ("TE empty", LINE, "host: g\r\ntransfer-encoding:\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("TE in capitals", LINE, "host: g\r\nTRANSFER-ENCODING: CHUNKED\r\n", "{C}", One),
    ("TE with an underscore is another field", LINE, "host: g\r\ntransfer_encoding: chunked\r\ncontent-length: {L}\r\n", "{B}", One),
    ("TE behind a bare line feed", LINE, "host: g\r\nx: 1\ntransfer-encoding: chunked\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("TE behind a bare carriage return", LINE, "host: g\r\nx: 1\rtransfer-encoding: chunked\r\ncontent-length: {L}\r\n", "{B}", Refused),
];

#[rustfmt::skip]
const LENGTHS: &[Case] = &[
    ("two lengths, unlike", LINE, "host: g\r\ncontent-length: {L}\r\ncontent-length: 5\r\n", "{B}", Refused),
    ("two lengths, alike", LINE, "host: g\r\ncontent-length: {L}\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a list of lengths", LINE, "host: g\r\ncontent-length: {L}, {L}\r\n", "{B}", Refused),
    ("a list with nothing in it", LINE, "host: g\r\ncontent-length: {L},\r\n", "{B}", Refused),
    ("a length with a plus", LINE, "host: g\r\ncontent-length: +{L}\r\n", "{B}", Refused),
    ("a length with a minus", LINE, "host: g\r\ncontent-length: -{L}\r\n", "{B}", Refused),
    ("a length in hexadecimal", LINE, "host: g\r\ncontent-length: 0x5\r\n", "{B}", Refused),
    ("a length with an exponent", LINE, "host: g\r\ncontent-length: 1e2\r\n", "{B}", Refused),
    ("a length with a point", LINE, "host: g\r\ncontent-length: {L}.0\r\n", "{B}", Refused),
    ("a length with a gap", LINE, "host: g\r\ncontent-length: 1 2\r\n", "{B}", Refused),
    ("a length past 64 bits", LINE, "host: g\r\ncontent-length: 18446744073709551621\r\n", "{B}", Refused),
    ("an empty length", LINE, "host: g\r\ncontent-length:\r\n", "{B}", Refused),
    ("a length in other digits", LINE, "host: g\r\ncontent-length: \u{ff15}\r\n", "{B}", Refused),
    ("a length with a space before its colon", LINE, "host: g\r\ncontent-length : {L}\r\n", "{B}", Refused),
    ("a length too short leaves the rest unheard", LINE, "host: g\r\nconnection: close\r\ncontent-length: {L}\r\n", "{B}{I}", One),
];

#[rustfmt::skip]
const FIELDS: &[Case] = &[
    ("bare line feeds", LINE, "host: g\ncontent-length: {L}\n", "{B}", Refused),
    ("one bare line feed", LINE, "host: g\r\nx: 1\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a bare carriage return in a value", LINE, "host: g\r\nx: 1\r2\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a folded value", LINE, "host: g\r\nx: 1\r\n 2\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a value folded with a tab", LINE, "host: g\r\nx: 1\r\n\t2\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a space before a colon", LINE, "host: g\r\nx : 1\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a tab before a colon", LINE, "host: g\r\nx\t: 1\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("NUL in a value", LINE, "host: g\r\nx: 1\x002\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("NUL in a name", LINE, "host: g\r\nx\x00: 1\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("no colon", LINE, "host: g\r\nx\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("no name", LINE, "host: g\r\n: 1\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a space in a name", LINE, "host: g\r\nx y: 1\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("no host", LINE, "content-length: {L}\r\n", "{B}", Refused),
    ("two hosts", LINE, "host: a\r\nhost: b\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("two hosts, alike", LINE, "host: a\r\nhost: a\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a host with a user", LINE, "host: a@b\r\ncontent-length: {L}\r\n", "{B}", Refused),
];

#[rustfmt::skip]
const CHUNKS: &[Case] = &[
    ("a chunk past 64 bits", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "fffffffffffffffff\r\n{B}\r\n0\r\n\r\n", Refused),
    ("a chunk of 64 bits", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "ffffffffffffffff\r\n{B}\r\n0\r\n\r\n", Refused),
    ("a chunk of 2^63, and nothing of it", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "8000000000000000\r\n", Refused),
    ("a chunk of 0x5", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "0x5\r\nhello\r\n0\r\n\r\n", Refused),
    ("a chunk of -5", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "-5\r\nhello\r\n0\r\n\r\n", Refused),
    ("a chunk of +5", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "+5\r\nhello\r\n0\r\n\r\n", Refused),
    ("a chunk of zz", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "zz\r\nhello\r\n0\r\n\r\n", Refused),
    ("a chunk without a size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a last chunk without a size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n\r\n\r\n{I}", Refused),
    ("a blank behind a size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X} \r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a tab behind a size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\t\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a blank before an extension", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X} ;a\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a bare line feed behind a size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("NUL in an extension", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X};\0\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a control character in an extension", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X};a\x01\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("a bare line feed in an extension", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X};a\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("an extension that is too long", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X};{E}\r\n{B}\r\n0\r\n\r\n{I}", Refused),
    ("an extension in the last chunk that is too long", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0;{E}\r\n\r\n{I}", Refused),
    ("control: an extension", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X};a=\"b c\"\r\n{B}\r\n0;z\r\n\r\n", One),
    ("a trailer without a colon", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\nx\r\n\r\n{I}", Refused),
    ("a trailer without a name", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\n: x\r\n\r\n{I}", Refused),
    ("a trailer with a space before its colon", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\nx : 1\r\n\r\n{I}", Refused),
    ("a folded trailer", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\nx: 1\r\n 2\r\n\r\n{I}", Refused),
    ("NUL in a trailer", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\nx: a\0b\r\n\r\n{I}", Refused),
    ("a trailer that ends in a bare line feed", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\nx: 1\n\r\n{I}", Refused),
    ("a trailer that is a request", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\n{I}", Refused),
    ("a chunk longer than its size", LINE, "host: g\r\ntransfer-encoding: chunked\r\n", "3\r\nhello\r\n0\r\n\r\n", Refused),
    ("trailers that would frame and name another", LINE, "host: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", "{X}\r\n{B}\r\n0\r\ncontent-length: 5\r\nauthorization: Bearer gw-sk-other\r\n\r\n", One),
    ("a request behind the last chunk, and close", LINE, "host: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", "{C}{I}", One),
];

#[rustfmt::skip]
const LINES: &[Case] = &[
    ("HTTP/1.0 with a body", "POST /v1/chat/completions HTTP/1.0", "content-length: {L}\r\n", "{B}", One),
    ("HTTP/1.0 with a body, kept alive", "POST /v1/chat/completions HTTP/1.0", "host: g\r\nconnection: keep-alive\r\ncontent-length: {L}\r\n", "{B}{I}", One),
    ("HTTP/1.0 with two lengths", "POST /v1/chat/completions HTTP/1.0", "content-length: {L}\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("HTTP/1.0 with a length and chunks", "POST /v1/chat/completions HTTP/1.0", "content-length: {L}\r\ntransfer-encoding: chunked\r\n", "{C}", Refused),
    ("HTTP/1.0 in chunks", "POST /v1/chat/completions HTTP/1.0", "host: g\r\ntransfer-encoding: chunked\r\n", "{C}", Refused),
    ("HTTP/0.9", "POST /v1/chat/completions", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("HTTP/1.2", "POST /v1/chat/completions HTTP/1.2", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("HTTP/2.0 in words", "POST /v1/chat/completions HTTP/2.0", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("http/1.1", "POST /v1/chat/completions http/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("two spaces", "POST  /v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a tab", "POST\t/v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a fourth word", "POST /v1/chat/completions x HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a space first", " POST /v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("a method in small letters", "post /v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("absolute form", "POST http://gateway.test/v1/chat/completions HTTP/1.1", "host: gateway.test\r\ncontent-length: {L}\r\n", "{B}", One),
    ("absolute form of https, HTTP/1.0", "POST HTTPS://gateway.test:80/v1/chat/completions?a=http://b/c HTTP/1.0", "content-length: {L}\r\n", "{B}", One),
    ("absolute form with a user", "POST http://me@gateway.test/v1/chat/completions HTTP/1.1", "host: gateway.test\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("absolute form, no host field", "POST http://gateway.test/v1/chat/completions HTTP/1.1", "content-length: {L}\r\n", "{B}", Refused),
    ("absolute form, a path to be resolved", "POST http://gateway.test/x/../v1/chat/completions HTTP/1.1", "host: gateway.test\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("absolute form, another host", "POST http://other.test/v1/chat/completions HTTP/1.1", "host: gateway.test\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("absolute form of a file", "POST file:///v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("no path", "POST * HTTP/1.1", "host: g\r\ncontent-length: {L}\r\n", "{B}", Refused),
    ("CONNECT", "CONNECT gateway.test:443 HTTP/1.1", "host: gateway.test:443\r\n", "{I}", Refused),
    ("an upgrade to a socket", LINE, "host: g\r\nconnection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\ncontent-length: {L}\r\n", "{B}{I}", One),
    ("an upgrade to h2c", LINE, "host: g\r\nconnection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\ncontent-length: {L}\r\n", "{B}{I}", One),
    ("a body that is left unread: path", "POST /v1/none HTTP/1.1", "host: g\r\ncontent-length: {IL}\r\n", "{I}", Refused),
    ("a body that is left unread: method", "GET /v1/chat/completions HTTP/1.1", "host: g\r\ncontent-length: {IL}\r\n", "{I}", Refused),
    ("a body that is left unread: in chunks", "POST /v1/none HTTP/1.1", "host: g\r\ntransfer-encoding: chunked\r\n", "{C}{I}", Refused),
    ("a body that is left unread: coding", LINE, "host: g\r\ncontent-encoding: none\r\ncontent-length: {IL}\r\n", "{I}", Refused),
];

fn all() -> impl Iterator<Item = &'static Case> {
    [TWO_FRAMINGS, LENGTHS, FIELDS, CHUNKS, LINES]
        .into_iter()
        .flatten()
}

/// The bytes to send for a case.
fn raw(case: &Case, key: &str) -> Vec<u8> {
    let (_, line, fields, body, fate) = case;
    let good = Chat.body("input=1 output=1", false, 10).to_string();
    let hidden = Chat
        .whole(key, "text=SMUGGLED input=1 output=1")
        .header("connection", "close")
        .bytes();
    let hidden = String::from_utf8(hidden).unwrap();
    let chunk = format!("{:x}\r\n{good}\r\n0\r\n\r\n", good.len());
    let close = if *fate == One && !fields.contains("connection:") {
        "connection: close\r\n"
    } else {
        ""
    };
    let text = format!(
        "{line}\r\n{fields}{close}authorization: Bearer {key}\r\ncontent-type: application/json\r\n\r\n{body}"
    );
    text.replace("{IL}", &hidden.len().to_string())
        .replace("{L}", &good.len().to_string())
        .replace("{X}", &format!("{:x}", good.len()))
        .replace("{E}", &"e".repeat(300))
        .replace("{C}", &chunk)
        .replace("{B}", &good)
        .replace("{I}", &hidden)
        .into_bytes()
}

/// The bytes of every case that the gateway refuses.
pub fn corpus(key: &str) -> Vec<Vec<u8>> {
    all()
        .filter(|(.., fate)| *fate == Refused)
        .map(|case| raw(case, key))
        .collect()
}

/// All answers until the gateway closes the connection.
fn answers(world: &World, bytes: &[u8]) -> Vec<Answer> {
    let mut connection = world.connect();
    connection.send(bytes);
    std::iter::from_fn(|| connection.try_answer()).collect()
}

#[test]
fn a_request_of_two_readings_reaches_no_vendor_and_a_hidden_one_never_does() {
    assert!(all().count() >= 60, "{}", all().count());
    let (world, account) = World::with_account();
    let mut wrong = Vec::new();
    for case in all() {
        let before = world.vendor.calls();
        let answers = answers(&world, &raw(case, &account.key));
        let (name, .., fate) = case;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        let calls = world.vendor.calls() - before;
        let is_right = match fate {
            Refused => calls == 0 && statuses.len() == 1 && (400..500).contains(&statuses[0]),
            One => calls == 1 && statuses == [200] && !answers[0].has("SMUGGLED"),
        };
        if !is_right {
            wrong.push(format!("{name}: {statuses:?}, {calls} calls"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A small random number generator with a seed, so that a failure can be reproduced.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn in_any_mix_on_one_connection_each_answer_is_to_its_own_request() {
    let (world, account) = World::with_account();
    let mut dice = Dice(20);
    let (mut connection, mut asked) = (world.connect(), 0_u64);
    while asked < 1_000 {
        // Up to three requests in one segment. Each carries its number, and the answer must contain
        // it.
        let batch: Vec<_> = (0..=dice.below(3))
            .map(|_| (asked + dice.below(1), dice.below(6), dice.below(2)))
            .collect();
        let mut bytes = Vec::new();
        let mut wanted = Vec::new();
        for (_, kind, surface) in batch {
            asked += 1;
            let surface = BOTH[surface as usize];
            let marker = format!("text=number-{asked}. input=1 output=1");
            let request = match kind {
                0 => surface
                    .whole(&account.key, &marker)
                    .chunked(1 + dice.below(64) as usize),
                1 => surface.stream(&account.key, &format!("{marker} events=1")),
                2 => surface.request(
                    &account.key,
                    &json!({"model": format!("none-{asked}."), "messages": []}),
                ),
                3 => surface.request(&account.key, &json!([asked])),
                4 => Request::get("/v1/credits").bearer(&account.key),
                _ => surface.whole(&account.key, &marker),
            };
            bytes.extend_from_slice(&request.bytes());
            wanted.push((asked, kind));
        }
        assert!(connection.send(&bytes));
        for (number, kind) in wanted {
            let Some(answer) = connection.try_answer() else {
                panic!("no answer to {number} ({kind})")
            };
            let (status, text) = match kind {
                2 => (404, format!("none-{number}.")),
                3 => (400, "JSON object".to_owned()),
                4 => (200, "{".to_owned()),
                _ => (200, format!("number-{number}.")),
            };
            assert_eq!(
                answer.status,
                status,
                "{number} ({kind}): {}",
                answer.text()
            );
            assert!(answer.has(&text), "{number} ({kind}): {}", answer.text());
            if answer.header("connection") == Some("close") {
                connection = world.connect();
                break;
            }
        }
    }
}

#[test]
fn a_connection_is_closed_after_its_last_request() {
    let (world, account) = Plan::default()
        .limit("keepalive_requests", 3)
        .with_account();
    let mut connection = Connection::open(world.edge);
    let request = Chat.whole(&account.key, "input=1 output=1");
    for asked in 1..=3 {
        let answer = connection.ask(&request);
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("connection") == Some("close"),
            asked == 3,
            "request {asked}"
        );
    }
    assert!(connection.is_closed());
    world.works(Chat, &account.key);
}
