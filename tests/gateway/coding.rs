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
    let world = World::new();
    let account = world.account();
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
        assert_eq!(
            world
                .ask(&request(surface, &account.key, "identity", plain.into()))
                .status,
            200
        );
    }
    world.close();
}

fn refused(answer: &Answer, status: u16, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
}

#[test]
fn what_a_body_becomes_counts_against_the_limit_to_the_byte() {
    let world = Plan::default().limit("body_bytes", 100_000).start();
    let account = world.account();
    for coding in CODINGS {
        let ask =
            |plain: &[u8]| world.ask(&request(Chat, &account.key, coding, coded(coding, plain)));
        refused(&ask(&spaced(100_000)), 200, coding);
        refused(&ask(&spaced(100_001)), 413, coding);
        // 32 MiB in a few KiB.
        refused(&ask(&spaced(32 << 20)), 413, coding);
    }
    assert_eq!(world.vendor.calls(), CODINGS.len() as u64);
    world.close();
}

#[test]
fn a_body_of_another_coding_or_of_none_that_was_said_is_refused() {
    let world = World::new();
    let account = world.account();
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
    world.close();
}

/// A body of tiny brotli blocks, each with its own codes, decodes at some megabytes a second.
fn slow_to_decode(blocks: usize) -> Vec<u8> {
    let mut out = Vec::new();
    {
        let mut encoder = brotli::CompressorWriter::new(&mut out, 4_096, 9, 16);
        encoder.write_all(b"{\"x\":\"").unwrap();
        for _ in 0..blocks {
            encoder.write_all(b"abcabcab").unwrap();
            encoder.flush().unwrap();
        }
        encoder.write_all(b"\"}").unwrap();
    }
    out
}

#[test]
fn a_body_that_is_made_to_decode_slowly_is_refused_before_it_is_decoded() {
    let world = Plan::default().start();
    let account = world.account();
    let ask = |blocks| {
        let body = slow_to_decode(blocks);
        Messages.failure(
            &world.ask(&request(Messages, &account.key, "br", body)),
            400,
            "invalid_request_error",
            None,
        )
    };
    let decoded = ask(1_000).to_string();
    assert!(!decoded.contains("too long"), "few blocks: {decoded}");
    let refused = ask(400_000).to_string();
    assert!(refused.contains("takes too long to decode"), "{refused}");
    assert_eq!(world.vendor.calls(), 0);
    world.close();
}
