//! Request bodies with a content coding: the vendor receives them decoded. A few bytes that decode
//! to many cost no more than the limit.

use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use std::io::Write;

const CODINGS: [&str; 5] = ["gzip", "x-gzip", "deflate", "zstd", "br"];

fn coded(coding: &str, plain: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::default();
    match coding {
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => zstd::stream::encode_all(plain, 0).unwrap(),
        "br" => {
            let mut out = Vec::new();
            {
                let mut encoder = brotli::CompressorWriter::new(&mut out, 4_096, 5, 20);
                encoder.write_all(plain).unwrap();
            }
            out
        }
        _ => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
    }
}

fn request(surface: Surface, key: &str, coding: &str, body: Vec<u8>) -> Request {
    Request::post(surface.path(), body)
        .bearer(key)
        .header("content-encoding", coding)
}

/// A chat body of this size, most of it spaces.
fn spaced(bytes: usize) -> Vec<u8> {
    let body = Chat.body("input=1 output=1", false, 10).to_string();
    [body.as_bytes(), &b" ".repeat(bytes - body.len())].concat()
}

#[test]
fn a_coded_body_reaches_the_vendor_plain_and_costs_what_it_costs_plain() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        let plain = surface.body("input=7 output=3", false, 1_000).to_string();
        let sent = plain.replace(surface.model(), surface.upstream_model());
        for coding in CODINGS.into_iter().chain(["GZIP"]) {
            for chunk in [0, 7] {
                let body = coded(&coding.to_lowercase(), plain.as_bytes());
                let answer =
                    world.ask(&request(surface, &account.key, coding, body).chunked(chunk));
                assert_eq!(answer.status, 200, "{coding}: {}", answer.text());
                let call = world.vendor.last();
                assert_eq!(call["body"], sent.as_str(), "{coding}");
                let headers = call["headers"].as_array().unwrap();
                assert!(
                    headers.iter().all(|pair| pair[0] != "content-encoding"),
                    "{coding}: {headers:?}"
                );
                assert_eq!(
                    answer.header("x-gateway-credits").map(str::is_empty),
                    Some(false),
                    "{coding}"
                );
            }
        }
        // `identity` is no coding.
        world.expect(
            200,
            &request(surface, &account.key, "identity", plain.into()),
        );
    }
}

fn refused(answer: &Answer, status: u16, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
}

#[test]
fn what_a_body_becomes_counts_against_the_limit_to_the_byte() {
    let (world, account) = Plan::default().limit("body_bytes", 100_000).with_account();
    for coding in CODINGS {
        let ask =
            |plain: &[u8]| world.ask(&request(Chat, &account.key, coding, coded(coding, plain)));
        refused(&ask(&spaced(100_000)), 200, coding);
        refused(&ask(&spaced(100_001)), 413, coding);
        // 32 MiB in a few KiB.
        refused(&ask(&spaced(32 << 20)), 413, coding);
    }
    assert_eq!(world.vendor.calls(), CODINGS.len() as u64);
}

#[test]
fn a_body_of_another_coding_or_of_none_that_was_said_is_refused() {
    let (world, account) = World::with_account();
    let plain = Chat
        .body("input=1 output=1", false, 10)
        .to_string()
        .into_bytes();
    for coding in ["compress", "gzip, br", "zip", "", "gzip;q=1"] {
        refused(
            &world.ask(&request(Chat, &account.key, coding, plain.clone())),
            400,
            coding,
        );
    }
    for coding in CODINGS {
        refused(
            &world.ask(&request(Chat, &account.key, coding, plain.clone())),
            400,
            coding,
        );
        let whole = coded(coding, &plain);
        refused(
            &world.ask(&request(
                Chat,
                &account.key,
                coding,
                whole[..whole.len() / 2].to_vec(),
            )),
            400,
            coding,
        );
    }
    assert_eq!(world.vendor.calls(), 0);
    world.works(Chat, &account.key);
}

/// Bits of a brotli stream, the lowest first (RFC 7932).
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn put(&mut self, value: u32, count: usize) {
        for bit in 0..count {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let bit = u8::from(value >> bit & 1 == 1) << (self.count % 8);
            *self.bytes.last_mut().unwrap() |= bit;
            self.count += 1;
        }
    }

    /// A prefix code with one symbol, which then takes no bits.
    fn put_single_symbol(&mut self, symbol: u32, alphabet_bits: usize) {
        self.put(1, 4);
        self.put(symbol, alphabet_bits);
    }

    /// A prefix code of 512 symbols with nine bits each. It takes four bytes, since all code
    /// lengths are equal.
    fn put_512_symbols(&mut self) {
        // The order in which it gives the lengths of the codes of the code lengths, without the
        // first three.
        const ORDER: [u32; 15] = [4, 0, 5, 17, 6, 16, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        self.put(3, 2);
        for length in ORDER {
            self.put(if length == 9 { 2 } else { 0 }, 2);
        }
    }
}

/// A brotli stream of this text. Each byte has a block of its own, which begins with 256 large
/// prefix codes: 1 KiB that takes a millisecond to decode.
fn slow_to_decode(text: &[u8]) -> Vec<u8> {
    let mut bits = Bits::default();
    // The window.
    bits.put(0, 1);
    for byte in text {
        // More blocks follow; four nibbles with a length of 1; it is compressed.
        bits.put(0, 1 + 2 + 16 + 1);
        // One type of literals, 256 types of commands: 1 + 2^7 + 127. The code of the types, the
        // code of the counts, and the first count.
        bits.put(0, 1);
        bits.put(1 | 7 << 1 | 127 << 4, 1 + 3 + 7);
        bits.put_single_symbol(0, 9);
        bits.put_single_symbol(0, 5);
        bits.put(0, 2);
        // One type of distances, no postfix, no direct distances, the context mode, and one code
        // each.
        bits.put(0, 1 + 2 + 4 + 2 + 1 + 1);
        bits.put_single_symbol((*byte).into(), 8);
        (0..256).for_each(|_| bits.put_512_symbols());
        bits.put_single_symbol(0, 6);
        // The command 8: insert one literal. Codes are written from their highest bit on.
        bits.put(8_u32.reverse_bits() >> (32 - 9), 9);
    }
    // The last block is empty.
    bits.put(3, 2);
    bits.bytes
}

#[test]
fn a_body_that_is_made_to_decode_slowly_is_refused_before_it_is_decoded() {
    let (world, account) = Plan::default().with_account();
    let ask = |blocks| {
        let text = format!("{{\"x\":\"{}\"}}", "a".repeat(blocks));
        let body = slow_to_decode(text.as_bytes());
        world.ask(&request(Messages, &account.key, "br", body))
    };
    let invalid = |answer: &Answer| {
        let error = Messages.failure(answer, 400, "invalid_request_error", None);
        error["message"].to_string()
    };
    let decoded = invalid(&ask(1));
    assert!(decoded.contains("model"), "few blocks: {decoded}");
    let refused = ask(1_000);
    // On a slow machine the time is over before its share of headers shows.
    if refused.status == 529 {
        let error = Messages.failure(&refused, 529, "overloaded_error", None);
        let message = error["message"].to_string();
        assert!(message.contains("takes too long to decode"), "{message}");
        assert!(refused.header("retry-after").is_some());
    } else {
        let message = invalid(&refused);
        assert!(message.contains("far longer than"), "{message}");
    }
    assert_eq!(world.vendor.calls(), 0);
}
