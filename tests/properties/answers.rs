//! Whole answers: every byte stays the same except the model's name, and the reader is as strict as
//! `serde_json`.

use crate::payloads::*;
use bytes::Bytes;
use llm_protocol::Protocol;
use llm_protocol::passthrough::{self, rewrite_token_count};
use llm_protocol::profile::VendorProfile;
use llm_protocol::usage::{MeteringTerms, Usage};
use llm_protocol::vendor_response::{CompleteResponse, UpstreamError};
use proptest::prelude::*;
use serde::de::IgnoredAny;

fn whole(
    protocol: Protocol,
    public_model: &str,
    body: Bytes,
) -> Result<CompleteResponse, UpstreamError> {
    passthrough::rewrite_response(
        protocol,
        public_model,
        body,
        &MeteringTerms::default(),
        None,
    )
}

#[test]
fn a_chat_answer_is_the_same_but_for_the_model() {
    let answer = whole(
        Protocol::Chat,
        PUBLIC,
        Bytes::from_static(CHAT_WHOLE.as_bytes()),
    )
    .unwrap();
    assert_eq!(answer.body, renamed(CHAT_WHOLE).as_bytes());
    let expected = Usage {
        input: 3,
        cache_read: 4,
        cache_write_5m: 2,
        output: 5,
        ..Usage::default()
    };
    assert_eq!(answer.usage.map(|metered| metered.usage), Some(expected));
    assert_eq!(answer.generated_bytes, "up-model-20260101 A{}".len() as u64);
}

#[test]
fn a_messages_answer_is_the_same_but_for_the_model() {
    let body = Bytes::from_static(MESSAGES_WHOLE.as_bytes());
    let answer = whole(Protocol::Messages, PUBLIC, body).unwrap();
    assert_eq!(answer.body, renamed(MESSAGES_WHOLE).as_bytes());
    let expected = Usage {
        input: 7,
        cache_read: 5,
        cache_write_5m: 30,
        output: 12,
        ..Usage::default()
    };
    assert_eq!(answer.usage.map(|metered| metered.usage), Some(expected));
    assert_eq!(answer.generated_bytes, "hmok{\"a\":[1,2]}".len() as u64);
    assert!(!answer.refused_free);
}

#[test]
fn a_refusal_without_content_is_free() {
    let body = r#"{"type":"message","content":[],"stop_reason":"refusal","usage":{"input_tokens":4,"output_tokens":0}}"#;
    assert!(
        whole(Protocol::Messages, PUBLIC, Bytes::from(body))
            .unwrap()
            .refused_free
    );
    let body = body.replace("[]", r#"[{"type":"text","text":"No"}]"#);
    assert!(
        !whole(Protocol::Messages, PUBLIC, Bytes::from(body))
            .unwrap()
            .refused_free
    );
}

#[test]
fn what_is_no_answer_is_told_apart() {
    for body in [
        "",
        "<html></html>",
        "{\"a\":",
        "[]",
        "\"x\"",
        "null",
        "{} {}",
        "{\"a\":01}",
        "{\"a\":NaN}",
    ] {
        for protocol in [Protocol::Chat, Protocol::Messages] {
            let fault = whole(protocol, PUBLIC, Bytes::from(body)).unwrap_err();
            assert_eq!(fault, UpstreamError::NotJson, "{body}");
            assert_eq!(
                fault
                    .to_failure(VendorProfile::official(protocol), UPSTREAM, PUBLIC)
                    .status(Protocol::Chat),
                502
            );
        }
    }
    let error = r#"{"type":"error","error":{"type":"rate_limit_error","message":"m"}}"#;
    for protocol in [Protocol::Chat, Protocol::Messages] {
        let fault = whole(protocol, PUBLIC, Bytes::from(error)).unwrap_err();
        assert_eq!(
            fault
                .to_failure(VendorProfile::official(protocol), UPSTREAM, PUBLIC)
                .status(protocol),
            429
        );
    }
}

proptest! {
    #![proptest_config(crate::cases(3000))]

    /// The reader accepts exactly the texts that `serde_json` accepts, up to the reader's maximum
    /// depth.
    #[test]
    fn the_reader_is_as_strict_as_serde_json(
        text in r#"\{"a":([\[\]{}:,"\\ueE0-9.+\-\t tfn\x01é/b]|true|false|null|"[a-z\\u0-9D\n]*"|-?[0-9]\.?[eE]?[+]?[0-9]?|"a":){0,12}\}"#,
    ) {
        let expected = serde_json::from_str::<IgnoredAny>(&text).is_ok();
        let read = rewrite_token_count(Protocol::Chat, PUBLIC, Bytes::from(text.clone())).is_ok();
        prop_assert_eq!(read, expected, "{}", text);
    }

    #[test]
    fn a_mutated_answer_never_panics_and_stays_json(
        index: prop::sample::Index,
        byte: u8,
        is_chat: bool,
    ) {
        let (protocol, body) = match is_chat {
            true => (Protocol::Chat, CHAT_WHOLE),
            false => (Protocol::Messages, MESSAGES_WHOLE),
        };
        let mut body = body.as_bytes().to_vec();
        let at = index.index(body.len());
        body[at] = byte;
        let is_json = std::str::from_utf8(&body)
            .is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        match whole(protocol, PUBLIC, Bytes::from(body)) {
            Ok(answer) => {
                prop_assert!(is_json);
                serde_json::from_slice::<IgnoredAny>(&answer.body).unwrap();
            }
            Err(UpstreamError::NotJson) => prop_assert!(!is_json),
            // JSON without its choices, or without its stop reason.
            Err(UpstreamError::Vendor(_) | UpstreamError::Empty | UpstreamError::Cut) => prop_assert!(is_json),
            Err(fault) => prop_assert!(false, "{fault:?}"),
        }
    }
}
