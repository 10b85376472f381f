//! Streams: every byte stays the same except for the edits, the output does not depend on where the
//! bytes are cut, and what the gateway learns from a stream.

use crate::payloads::*;
use llm_protocol::Protocol;
use llm_protocol::passthrough::StreamPassthrough;
use llm_protocol::profile::VendorProfile;
use llm_protocol::usage::{MeteringTerms, ServiceTier, Usage, UsageEstimator, text_tokens};
use llm_protocol::vendor_response::ResponseStream as _;
use llm_protocol::vendor_response::UpstreamError;
use proptest::prelude::*;

const EVENT_BYTES_MAX: usize = 1 << 20;

/// All observable results of a stream that was passed through.
#[derive(PartialEq, Debug)]
struct Passed {
    out: String,
    pushed: Result<(), UpstreamError>,
    /// Whether the stream was complete before `finish`.
    completed: bool,
    finished: Result<(), UpstreamError>,
    usage: Option<Usage>,
    generated_bytes: u64,
    refused_free: bool,
    started: bool,
    input_learned: Option<Usage>,
}

fn pass_bounded(
    protocol: Protocol,
    hide_usage: bool,
    pieces: &[&[u8]],
    event_bytes_max: usize,
) -> Passed {
    let mut pass = StreamPassthrough::new(protocol, PUBLIC, hide_usage, event_bytes_max);
    let mut out = Vec::new();
    let mut pushed = Ok(());
    for piece in pieces {
        let outcome = pass.push(piece, &mut out);
        if pushed.is_ok() {
            pushed = outcome;
        }
    }
    let completed = pass.is_complete();
    let finished = pass.finish(&mut out);
    Passed {
        out: String::from_utf8_lossy(&out).into_owned(),
        pushed,
        completed,
        finished,
        usage: pass.usage().map(|metered| metered.usage),
        generated_bytes: pass.generated_bytes(),
        refused_free: pass.refused_free(),
        started: pass.has_started(),
        input_learned: pass.usage_so_far(),
    }
}

fn pass(protocol: Protocol, hide_usage: bool, stream: &str) -> Passed {
    pass_bounded(protocol, hide_usage, &[stream.as_bytes()], EVENT_BYTES_MAX)
}

fn chat(stream: &str) -> Passed {
    pass(Protocol::Chat, false, stream)
}

fn messages(stream: &str) -> Passed {
    pass(Protocol::Messages, false, stream)
}

#[test]
fn a_chat_stream_is_the_same_but_for_the_model() {
    let passed = chat(CHAT_TEXT);
    assert_eq!(passed.out, renamed(CHAT_TEXT));
    assert!(passed.completed && passed.finished.is_ok());
    let usage = passed.usage.unwrap();
    assert_eq!(
        (usage.input, usage.cache_read, usage.output, usage.reasoning),
        (200, 1000, 340, 300)
    );
    assert_eq!(
        passed.generated_bytes,
        ("Héllo \"you\"\n 世界 😀").len() as u64
    );
}

#[test]
fn usage_that_was_not_asked_for_is_hidden_and_still_known() {
    let passed = pass(Protocol::Chat, true, CHAT_TEXT);
    assert!(!passed.out.contains("usage"), "{}", passed.out);
    assert_eq!(passed.usage.unwrap().output, 340);
    assert!(
        passed
            .out
            .ends_with("\"finish_reason\":\"stop\"}] }\n\ndata: [DONE]\n\n")
    );
    assert!(passed.out.contains(r#"}],"obfuscation":"x1"}"#));
    for line in passed
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
    {
        serde_json::from_str::<serde_json::Value>(&format!("{{{line}")).unwrap();
    }
}

#[test]
fn an_alone_null_usage_leaves_an_empty_object() {
    let passed = pass(Protocol::Chat, true, "data: {\"usage\" : null}\n\n");
    assert_eq!(passed.out, "data: {}\n\n");
}

#[test]
fn tool_arguments_and_reasoning_are_counted() {
    let passed = chat(CHAT_TOOLS);
    assert_eq!(passed.out, renamed(CHAT_TOOLS));
    let expected = "Let me see".len() + r#"{"path":"/tmp/x"}"#.len() + "{}".len();
    assert_eq!(passed.generated_bytes, expected as u64);
}

#[test]
fn a_messages_stream_is_the_same_but_for_the_model() {
    let passed = messages(MESSAGES_THINKING);
    assert_eq!(passed.out, renamed(MESSAGES_THINKING));
    assert!(passed.completed && !passed.refused_free);
    let expected = Usage {
        input: 26,
        cache_read: 2000,
        cache_write_1h: 120,
        output: 89,
        reasoning: 40,
        service_tier: Some(ServiceTier::from_wire("standard")),
        ..Usage::default()
    };
    assert_eq!(passed.usage, Some(expected));
    let generated = "The model is \"up-model\"…".len() + "Sure.\n".len() + "{\"a\": 1}".len();
    assert_eq!(passed.generated_bytes, generated as u64);
}

#[test]
fn a_refusal_before_any_output_is_free() {
    assert!(messages(MESSAGES_REFUSAL).refused_free);
    let text = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"I\"}}\n\nevent: message_delta";
    assert!(!messages(&MESSAGES_REFUSAL.replacen("event: message_delta", text, 1)).refused_free);
}

#[test]
fn the_input_is_known_before_the_end() {
    let cut = MESSAGES_THINKING.find("event: message_delta").unwrap();
    let passed = messages(&MESSAGES_THINKING[..cut]);
    assert_eq!(passed.usage, None);
    assert_eq!(passed.finished, Err(UpstreamError::Cut));
    assert_eq!(passed.input_learned.unwrap().input_total(), 2125);
}

#[test]
fn a_chat_stream_without_its_end_mark_is_complete_once_finished() {
    for cut in [
        CHAT_TEXT.find("data: [DONE]").unwrap(),
        CHAT_TEXT.rfind("data: {").unwrap() + 9,
    ] {
        let passed = chat(&CHAT_TEXT[..cut]);
        assert!(!passed.completed && passed.finished.is_ok());
        assert!(
            passed.out.ends_with("\n\ndata: [DONE]\n\n"),
            "{}",
            passed.out
        );
    }
    let unfinished =
        CHAT_TEXT.find("data: {\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"model\"");
    let passed = chat(&CHAT_TEXT[..unfinished.unwrap()]);
    assert_eq!(passed.finished, Err(UpstreamError::Cut));
    assert!(!passed.out.contains("[DONE]"));
    assert_eq!(chat("data: [DONE]\n\n").pushed, Err(UpstreamError::Cut));
    assert_eq!(chat("").finished, Err(UpstreamError::Cut));
    // Some proxies send the end mark even if their own vendor broke off.
    let marked = format!("{}data: [DONE]\n\n", &CHAT_TEXT[..unfinished.unwrap()]);
    assert_eq!(chat(&marked).pushed, Err(UpstreamError::Cut));
}

#[test]
fn a_usage_that_was_asked_for_and_is_missing_is_reported_as_it_is_billed() {
    let cut = CHAT_TEXT.rfind("data: {").unwrap();
    let estimator = UsageEstimator::from_input_tokens(501);
    let terms = MeteringTerms {
        estimator,
        ..MeteringTerms::default()
    };
    let mut pass = StreamPassthrough::new(Protocol::Chat, PUBLIC, false, EVENT_BYTES_MAX)
        .with_request(terms, 1);
    let mut out = Vec::new();
    pass.push(&CHAT_TEXT.as_bytes()[..cut], &mut out).unwrap();
    assert!(pass.is_finishing() && pass.finish(&mut out).is_ok());
    assert_eq!(pass.usage(), None);
    let estimated = estimator.usage(pass.usage_so_far(), pass.generated_bytes());
    let out = String::from_utf8(out).unwrap();
    let data = out
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .next_back()
        .unwrap();
    let usage =
        serde_json::from_str::<serde_json::Value>(&format!("{{{data}")).unwrap()["usage"].clone();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&estimated.input.into(), &estimated.output.into())
    );
}

#[test]
fn a_choice_that_was_asked_for_and_never_began_is_a_cut_unless_the_vendor_ends_the_stream() {
    let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    let of = |choices, bytes: &str| {
        let mut pass = StreamPassthrough::new(Protocol::Chat, PUBLIC, false, EVENT_BYTES_MAX)
            .with_request(MeteringTerms::default(), choices);
        let pushed = pass.push(bytes.as_bytes(), &mut Vec::new());
        pushed.and_then(|()| pass.finish(&mut Vec::new()))
    };
    assert_eq!(of(2, stream), Err(UpstreamError::Cut));
    assert_eq!(of(1, stream), Ok(()));
    assert_eq!(of(2, &format!("{stream}data: [DONE]\n\n")), Ok(()));
}

#[test]
fn a_stop_reason_with_every_chunk_ends_nothing() {
    let chunk = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(
        chat(&[chunk, chunk].concat()).finished,
        Err(UpstreamError::Cut)
    );
    assert_eq!(
        chat(&[chunk, chunk, "data: [DONE]\n\n"].concat()).finished,
        Ok(())
    );
    let empty = chunk.replace("stop", "");
    assert_eq!(chat(&empty).finished, Err(UpstreamError::Cut));
}

#[test]
fn garbage_behind_the_stop_reason_changes_nothing_and_an_error_only_before_the_usage() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"no\"}}\n\n";
    let finish = CHAT_TEXT.rfind("data: {").unwrap();
    let done = CHAT_TEXT.find("data: [DONE]").unwrap();
    for (passed, is_complete) in [
        (
            chat(&format!("{}data: <html>\n\n", &CHAT_TEXT[..finish])),
            true,
        ),
        (chat(&format!("{}{error}", &CHAT_TEXT[..finish])), false),
        (chat(&format!("{}{error}", &CHAT_TEXT[..done])), true),
    ] {
        assert_eq!(
            passed.pushed.is_ok() && passed.finished.is_ok(),
            is_complete,
            "{passed:?}"
        );
        assert_eq!(
            passed.out.contains("[DONE]") || passed.out.contains("message_stop\n"),
            is_complete,
            "{passed:?}"
        );
    }
    let stop = MESSAGES_THINKING.find("event: message_stop").unwrap();
    for behind in [error, "data: <html>\n\n", "data: [DONE]\n\n", ""] {
        let passed = messages(&format!("{}{behind}", &MESSAGES_THINKING[..stop]));
        assert_eq!(
            (passed.pushed, passed.finished),
            (Ok(()), Ok(())),
            "{behind}"
        );
        assert!(
            passed
                .out
                .ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
            "{}",
            passed.out
        );
    }
}

#[test]
fn one_of_two_choices_finished_is_a_cut() {
    let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}},{\"index\":1,\"delta\":{}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(chat(stream).finished, Err(UpstreamError::Cut));
}

#[test]
fn an_end_without_its_blank_line_is_an_end() {
    assert!(chat(CHAT_TEXT.trim_end()).finished.is_ok());
    assert!(messages(MESSAGES_THINKING.trim_end()).finished.is_ok());
    let passed = messages(&MESSAGES_THINKING[..MESSAGES_THINKING.trim_end().len() - 1]);
    assert!(
        passed.finished.is_ok() && passed.out.ends_with("\"message_stop\"}\n\n"),
        "{}",
        passed.out
    );
}

#[test]
fn nothing_follows_the_end() {
    let passed = chat(&format!("{CHAT_TEXT}data: {{\"error\":{{}}}}\n\n"));
    assert_eq!((passed.out, passed.pushed), (renamed(CHAT_TEXT), Ok(())));
    let passed = messages(&format!("{MESSAGES_REFUSAL}data: [DONE]\n\n"));
    assert_eq!(
        (passed.out, passed.pushed),
        (renamed(MESSAGES_REFUSAL), Ok(()))
    );
}

#[test]
fn all_line_ends_pass_and_end_at_once() {
    for line_end in ["\r\n", "\r"] {
        let stream = format!("\u{feff}{}", MESSAGES_THINKING.replace('\n', line_end));
        let passed = messages(&stream);
        assert_eq!(passed.out, renamed(&stream));
        assert!(passed.completed, "{line_end:?}");
        let stream = CHAT_TEXT.replace('\n', line_end);
        assert!(chat(&stream).completed);
    }
}

#[test]
fn a_vendor_error_stops_the_stream_and_is_not_shown() {
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let start = MESSAGES_THINKING.split_inclusive("\n\n").next().unwrap();
    let passed = messages(&format!("{start}{error}"));
    assert_eq!(passed.out, renamed(start));
    let fault = passed.pushed.unwrap_err();
    assert_eq!(
        fault
            .to_failure(VendorProfile::compatible(), UPSTREAM, PUBLIC)
            .status(Protocol::Messages),
        529
    );
    assert!(!messages(error).started);

    let chat_error = "data: {\"error\":{\"message\":\"busy\",\"code\":429}}\n\n";
    let fault = chat(chat_error).pushed.unwrap_err();
    assert_eq!(
        fault
            .to_failure(VendorProfile::compatible(), UPSTREAM, PUBLIC)
            .reason(),
        "rate_limited"
    );
    let named = "event: error\ndata: it broke\n\n";
    assert!(matches!(chat(named).pushed, Err(UpstreamError::Vendor(_))));
}

#[test]
fn what_must_be_json_and_is_not_stops_the_stream() {
    for stream in [
        "data: {\"a\":1\n\n",
        "data: 12\n\n",
        "data: <html>\n\n",
        "data: {\"a\":\"\u{1}\"}\n\n",
    ] {
        assert_eq!(chat(stream).pushed, Err(UpstreamError::NotJson), "{stream}");
        assert_eq!(
            messages(stream).pushed,
            Err(UpstreamError::NotJson),
            "{stream}"
        );
    }
    let named = "event: news\ndata: not json\n\n";
    assert_eq!(messages(named).out, named);
    let wrapped = "data: : keep-alive\n\n";
    assert_eq!(
        (chat(wrapped).out.as_str(), chat(wrapped).pushed),
        ("", Ok(()))
    );
}

#[test]
fn data_in_several_lines_is_joined_when_it_must_be_edited() {
    let stream = format!("data: {{\"model\":\ndata:\"{UPSTREAM}\",\ndata: \"choices\":[]}}\n\n");
    let expected = format!("data: {{\"model\": {}, \"choices\":[]}}\n\n", public_json());
    assert_eq!(chat(&stream).out, expected);
}

#[test]
fn zeros_beside_text_and_what_is_no_count_are_estimated() {
    let with = |usage: &str| {
        let from = CHAT_TOOLS.find("{\"prompt_tokens\"").unwrap();
        let to = CHAT_TOOLS.find("}\n\ndata: [DONE]").unwrap();
        chat(&format!(
            "{}{usage}{}",
            &CHAT_TOOLS[..from],
            &CHAT_TOOLS[to..]
        ))
    };
    let generated = with("null").generated_bytes;
    let estimate = text_tokens(generated);
    let zeros = with(r#"{"prompt_tokens":0,"completion_tokens":0}"#);
    assert_eq!(zeros.usage.unwrap().output, estimate);
    assert!(
        zeros.out.contains(&format!(
            "\"completion_tokens\":{estimate},\"total_tokens\":{estimate}"
        )),
        "{}",
        zeros.out
    );
    for garbage in [
        "-1",
        "1.5",
        "1e99",
        "\"7\"",
        "null",
        "9007199254740993",
        "[]",
        "99999999999999999999999",
    ] {
        let usage = format!(r#"{{"prompt_tokens":5,"completion_tokens":{garbage}}}"#);
        let passed = with(&usage);
        let usage = passed.usage.unwrap();
        assert_eq!((usage.input, usage.output), (5, estimate), "{garbage}");
        assert!(
            passed.out.contains(&format!(
                "\"prompt_tokens\":5,\"completion_tokens\":{estimate}"
            )),
            "{}",
            passed.out
        );
        let usage = format!(
            r#"{{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":{garbage}}}}}"#
        );
        assert_eq!(with(&usage).usage.unwrap().input, 5, "{garbage}");
    }
    for nothing in ["\"NaN\"", "null", "{}", r#"{"total_tokens":9}"#] {
        let passed = with(nothing);
        assert_eq!(passed.usage, None, "{nothing}");
        // The billed estimate replaces it, or is in a chunk that the gateway adds.
        assert!(
            passed
                .out
                .contains(&format!("\"completion_tokens\":{estimate},")),
            "{}",
            passed.out
        );
    }
    let most = r#"{"prompt_tokens":9007199254740992,"completion_tokens":9007199254740992}"#;
    assert_eq!(with(most).usage.unwrap().output, 1 << 53);
}

#[test]
fn an_event_over_the_limit_stops_the_stream_however_it_is_cut() {
    let stream = CHAT_TEXT.as_bytes();
    let whole = pass_bounded(Protocol::Chat, false, &[stream], 280);
    assert_eq!(whole.pushed, Err(UpstreamError::TooLarge));
    let bytes: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(pass_bounded(Protocol::Chat, false, &bytes, 280), whole);
}

fn streams() -> impl Strategy<Value = (Protocol, bool, Vec<u8>)> {
    let stream = prop_oneof![
        Just((Protocol::Chat, CHAT_TEXT)),
        Just((Protocol::Chat, CHAT_TOOLS)),
        Just((Protocol::Messages, MESSAGES_THINKING)),
        Just((Protocol::Messages, MESSAGES_REFUSAL)),
    ];
    let line_end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(b"\n\r:{}[],\"\\ \xef".to_vec()),
    ];
    let change = (any::<prop::sample::Index>(), byte, 0..3_u8);
    (
        stream,
        line_end,
        any::<bool>(),
        prop::collection::vec(change, 0..4),
    )
        .prop_map(|((protocol, stream), line_end, hide_usage, changes)| {
            let mut bytes = stream.replace('\n', line_end).into_bytes();
            for (index, byte, how) in changes {
                let at = index.index(bytes.len());
                match how {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            (protocol, hide_usage, bytes)
        })
}

/// Cuts the bytes into pieces at these places.
pub fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts
        .iter()
        .map(|index| index.index(bytes.len() + 1))
        .collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn any_cut_gives_the_same(
        (protocol, hide_usage, bytes) in streams(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        event_bytes_max in prop_oneof![4 => Just(EVENT_BYTES_MAX), 1 => 1..700_usize],
    ) {
        let whole = pass_bounded(protocol, hide_usage, &[&bytes], event_bytes_max);
        let pieces = pass_bounded(protocol, hide_usage, &cut(&bytes, &cuts), event_bytes_max);
        prop_assert_eq!(&whole, &pieces);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&whole, &pass_bounded(protocol, hide_usage, &single, event_bytes_max));
        if let Some(usage) = whole.usage {
            prop_assert!(usage.reasoning <= usage.output);
            prop_assert!(usage.input_total() <= 4 << 53);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), hide_usage: bool) {
        for protocol in [Protocol::Chat, Protocol::Messages] {
            let data = [b"data: ".as_slice(), &bytes, b"\n\n"].concat();
            pass_bounded(protocol, hide_usage, &[&bytes, &data], 200);
        }
    }
}

/// Reads these events and stops before the end of the stream. Returns the usage learned so far, and
/// the number of generated bytes.
fn left_early(protocol: Protocol, events: &[&str]) -> (Option<Usage>, u64) {
    let mut pass = StreamPassthrough::new(protocol, "public", false, 1 << 20);
    for event in events {
        pass.push(format!("data: {event}\n\n").as_bytes(), &mut Vec::new())
            .unwrap();
    }
    (pass.usage_so_far(), pass.generated_bytes())
}

#[test]
fn what_was_spoken_and_searched_is_not_free_for_who_leaves_before_the_usage() {
    let sound = format!(
        r#"{{"choices":[{{"index":0,"delta":{{"audio":{{"id":"a","transcript":"Hello","data":"{}"}}}}}}]}}"#,
        "A".repeat(6_401)
    );
    let (learned, generated) = left_early(Protocol::Chat, &[&sound]);
    assert_eq!(
        learned.unwrap().audio_output,
        3,
        "a token for each 3 200 bytes begun"
    );
    assert_eq!(generated, 5, "the transcript is text");
    let silent = r#"{"choices":[{"index":0,"delta":{"audio":{"data":"AAAA"}}}]}"#;
    assert_eq!(
        left_early(Protocol::Chat, &[silent]).1,
        1,
        "sound without words was generated all the same"
    );
    let start =
        r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#;
    let result = r#"{"type":"content_block_start","index":1,"content_block":{"type":"web_search_tool_result"}}"#;
    let (learned, _) = left_early(Protocol::Messages, &[start, result, result]);
    assert_eq!(learned.unwrap().web_searches, 2);
    let told = r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":5,"server_tool_use":{"web_search_requests":1}}}"#;
    let mut pass = StreamPassthrough::new(Protocol::Messages, "public", false, 1 << 20);
    for event in [start, result, result, told] {
        pass.push(format!("data: {event}\n\n").as_bytes(), &mut Vec::new())
            .unwrap();
    }
    assert_eq!(
        pass.usage().unwrap().usage.web_searches,
        1,
        "what the vendor tells is billed"
    );
}
