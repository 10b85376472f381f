//! Images, speech and transcriptions: the vendor's bytes pass, and cost what the vendor counts or
//! what was asked for, never more than was held.

use crate::account::{Account, micro};
use crate::client::{Answer, Connection, End, Request};
use crate::prices::{line, receipt};
use crate::scripted::{Scripted, Step, stream, stream_end};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/speech";
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const IMAGES: &str = "/v1/images/generations";
const EDITS: &str = "/v1/images/edits";

/// The shipped models, and one for each way in which media are billed.
fn plan() -> Plan {
    Plan::default().edit(
        "models:\n",
        "models:\n  - {id: voice, vendor: beta, upstream_model: tts-1, kind: speech, \
         context_tokens: 4096, price: {character: \"150\"}}\n  \
         - {id: scribe, vendor: beta, upstream_model: whisper-1, kind: transcription, \
         context_tokens: 4096, max_audio_seconds: 60, price: {second: \"1000\"}}\n  \
         - {id: scribe-tokens, vendor: beta, upstream_model: gpt-4o-transcribe, \
         kind: transcription, context_tokens: 16000, max_output_tokens: 2000, \
         price: {input: \"25\", audio_input: \"60\", output: \"100\"}}\n  \
         - {id: painter, vendor: beta, upstream_model: gpt-image-2, kind: image, \
         context_tokens: 32000, max_output_tokens: 8000, \
         price: {input: \"50\", image_input: \"80\", image_output: \"300\"}}\n  \
         - {id: painter-flat, vendor: beta, upstream_model: flux, kind: image, \
         context_tokens: 4096, price: {image: \"2000\"}}\n",
    )
}

fn post(path: &str, account: &Account, body: &Value) -> Request {
    Request::post(path, body.to_string()).bearer(&account.key)
}

/// A part of a form: its name, the file's name if it is a file, and its value.
type Part<'p> = (&'p str, Option<&'p str>, &'p [u8]);

fn form(path: &str, account: &Account, boundary: &str, parts: &[Part<'_>]) -> Request {
    let mut body = Vec::new();
    for (name, file, value) in parts {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n"
        );
        body.extend([head.as_bytes(), value, b"\r\n"].concat());
    }
    body.extend(format!("--{boundary}--\r\n").into_bytes());
    let kind = format!("multipart/form-data; boundary={boundary}");
    let request = Request::new("POST", path).bearer(&account.key);
    request.header("content-type", &kind).body(body)
}

/// A WAV file of 8 000 bytes a second.
fn wav(seconds: u32) -> Vec<u8> {
    let bytes = seconds * 8_000;
    let mut wav = b"RIFF".to_vec();
    wav.extend((bytes + 36).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    wav.extend(8_000_u32.to_le_bytes());
    wav.extend(8_000_u32.to_le_bytes());
    wav.extend(b"\x01\0\x08\0data");
    wav.extend(bytes.to_le_bytes());
    // Bytes that look like a boundary's begin.
    wav.extend(b"\r\n--b".iter().copied().cycle().take(bytes as usize));
    wav
}

fn transcribe(world: &World, account: &Account, model: &str, more: &[(&str, &str)]) -> Answer {
    let audio = wav(7);
    // The SDK for JavaScript sends the file first and the body in chunks.
    let mut parts: Vec<Part<'_>> = vec![("file", Some("a.wav"), &audio)];
    parts.push(("model", None, model.as_bytes()));
    parts.extend(
        more.iter()
            .map(|(name, value)| (*name, None, value.as_bytes())),
    );
    world.ask(&form(TRANSCRIPTIONS, account, "boundary", &parts).chunked(1_000))
}

fn nothing_was_billed(world: &World, account: &Account, balance: i64) {
    let standing = wait_for("the end of every hold", SOON, || {
        Some(world.standing(account)).filter(|standing| standing.held == 0)
    });
    assert_eq!(standing.balance, balance);
}

#[test]
fn speech_passes_while_it_is_made_and_costs_its_characters() {
    let (world, account) = plan().limit("idle_seconds", 1).with_account();
    for (format, stream, kind) in [
        ("mp3", "audio", "audio/mpeg"),
        ("wav", "audio", "audio/wav"),
        ("mp3", "sse", "text/event-stream; charset=utf-8"),
    ] {
        let body = json!({"model": "voice", "input": "Grüße", "voice": "alloy",
            "response_format": format, "stream_format": stream});
        let answer = world.ask(&post(SPEECH, &account, &body));
        assert_eq!(answer.header("content-type"), Some(kind));
        let mut own = body.clone();
        own["model"] = json!("tts-1");
        let direct = Request::post(SPEECH, own.to_string()).bearer("sim-beta-key");
        let direct = crate::client::ask(world.vendor.port, &direct);
        assert_eq!(answer.body, direct.body, "{stream}");
        let receipt = receipt(&world, &account, &answer);
        assert_eq!(line(&receipt, "character")["units"], 5, "{receipt}");
        // 5 × 150 credits per 1 000 characters.
        assert_eq!(micro(&receipt["credits"]), 750_000);
        assert_eq!(receipt["estimated"], false);
    }
    // The first sound arrives before the last one is made, here never.
    let balance = world.standing(&account).balance;
    let slow = json!({"model": "voice", "voice": "alloy", "input": "[[sim hang=1 bytes=100000]]"});
    let mut connection = Connection::open(world.edge);
    connection.send(&post(SPEECH, &account, &slow).bytes());
    let mut answer = connection.begin();
    connection.finish(&mut answer);
    assert_eq!((answer.status, answer.end()), (200, Some(End::Cut)));
    assert_eq!(answer.body.len(), 49_999);
    let cut = json!({"model": "voice", "voice": "alloy",
        "input": "[[sim cut=1 bytes=100000]]"});
    let cut = world.ask(&post(SPEECH, &account, &cut));
    assert_eq!((cut.status, cut.end()), (200, Some(End::Cut)));
    let refused = json!({"model": "voice", "voice": {"id": "v"}, "input": "x"});
    world.expect(400, &post(SPEECH, &account, &refused));
    nothing_was_billed(&world, &account, balance);
}

#[test]
fn a_stream_that_ends_cleanly_is_billed_whatever_its_last_event_is_called() {
    let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let last = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let done = "data: [DONE]\n\n";
    for (events, ending, is_billed) in [
        // vLLM's stream. What follows its mark no longer counts.
        (vec![delta, last, done], stream_end(), true),
        (vec![delta, last, done], Step::Close, true),
        (vec![delta], stream_end(), true),
        (vec![delta], Step::Close, false),
    ] {
        let events: Vec<_> = events.into_iter().map(ToOwned::to_owned).collect();
        let mut steps = stream(&events);
        steps.retain(|step| !matches!(step, Step::Send(bytes) if bytes == b"0\r\n\r\n"));
        steps.push(ending);
        let vendor = Scripted::start(steps);
        let world = plan().endpoints(&[vendor.port]).start();
        let account = world.account();
        let balance = world.standing(&account).balance;
        let answer = transcribe(&world, &account, "scribe", &[("stream", "true")]);
        let text = events.concat();
        if is_billed {
            assert_eq!((answer.text(), answer.end()), (text, Some(End::Whole)));
            let receipt = receipt(&world, &account, &answer);
            assert_eq!(receipt["outcome"], "completed", "{receipt}");
            assert_eq!(line(&receipt, "second")["units"], 7, "{receipt}");
            nothing_was_billed(&world, &account, balance - 7_000_000);
        } else {
            assert_eq!(answer.end(), Some(End::Cut), "{}", answer.text());
            nothing_was_billed(&world, &account, balance);
        }
    }
}

#[test]
fn a_body_of_no_bytes_is_the_words_of_silence_and_nothing_else() {
    for (kind, is_billed) in [
        ("text/plain", true),
        ("text/vtt", true),
        ("application/json", false),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 0\r\n\r\n");
        let vendor = Scripted::start(vec![Step::Send(head.into_bytes())]);
        let world = plan().endpoints(&[vendor.port]).start();
        let account = world.account();
        let balance = world.standing(&account).balance;
        let answer = transcribe(&world, &account, "scribe", &[("response_format", "text")]);
        if !is_billed {
            assert_eq!(answer.status, 502, "{}", answer.text());
            nothing_was_billed(&world, &account, balance);
            continue;
        }
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(answer.end(), Some(End::Whole));
        assert_eq!(answer.header("content-length"), Some("0"));
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(
            line(&receipt(&world, &account, &answer), "second")["units"],
            7
        );
        nothing_was_billed(&world, &account, balance - 7_000_000);
    }
}

#[test]
fn a_stream_that_the_gateway_ends_at_a_limit_of_time_is_billed() {
    let (world, account) = plan().limit("total_seconds", 2).with_account();
    let slow = json!({"model": "voice", "voice": "alloy", "input": "[[sim hang=1 bytes=100000]]"});
    let answer = world.ask(&post(SPEECH, &account, &slow));
    assert_eq!((answer.status, answer.end()), (200, Some(End::Cut)));
    let ended = wait_for("the bill", SOON, || world.endings(&account).pop());
    assert_eq!(ended["outcome"], "gateway_ended", "{ended}");
    // 27 × 150 credits per 1 000 characters.
    assert_eq!(micro(&ended["credits"]), 4_050_000, "{ended}");
}

#[test]
fn an_answer_that_the_vendor_compressed_is_refused_and_costs_nothing() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-encoding: gzip\r\n\
                content-length: 4\r\n\r\n\u{1f}\u{8}ab";
    let vendor = Scripted::start(vec![Step::Send(head.as_bytes().to_vec())]);
    let world = plan().endpoints(&[vendor.port]).start();
    let account = world.account();
    let balance = world.standing(&account).balance;
    let body = json!({"model": "voice", "input": "x", "voice": "alloy"});
    let answer = world.ask(&post(SPEECH, &account, &body));
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.text().contains("compressed"), "{}", answer.text());
    nothing_was_billed(&world, &account, balance);
}

#[test]
fn a_transcription_in_any_format_costs_the_seconds_that_the_vendor_or_the_file_tells() {
    let (world, account) = plan().with_account();
    for (more, kind, seconds, estimated) in [
        (vec![], "application/json", 7, false),
        (
            vec![("response_format", "verbose_json")],
            "application/json",
            7,
            false,
        ),
        (
            vec![("response_format", "text")],
            "text/plain; charset=utf-8",
            7,
            true,
        ),
        (
            vec![("response_format", "srt")],
            "text/plain; charset=utf-8",
            7,
            true,
        ),
        (vec![("response_format", "vtt")], "text/vtt", 7, true),
        (
            vec![("stream", "true")],
            "text/event-stream; charset=utf-8",
            7,
            false,
        ),
        (
            vec![("prompt", "[[sim input=5]]")],
            "application/json",
            5,
            false,
        ),
        (
            vec![("prompt", "[[sim usage=none]]")],
            "application/json",
            7,
            true,
        ),
        (
            vec![("prompt", "[[sim usage=zero]]")],
            "application/json",
            7,
            true,
        ),
    ] {
        let answer = transcribe(&world, &account, "scribe", &more);
        assert_eq!(
            answer.header("content-type"),
            Some(kind),
            "{}",
            answer.text()
        );
        assert!(answer.text().contains("It is said."), "{}", answer.text());
        let receipt = receipt(&world, &account, &answer);
        assert_eq!(
            line(&receipt, "second")["units"],
            seconds,
            "{more:?}: {receipt}"
        );
        assert_eq!(receipt["estimated"], estimated, "{more:?}");
        assert_eq!(micro(&receipt["credits"]), seconds * 1_000_000);
    }
    // Never more than was held, which is the length of the file.
    let answer = transcribe(
        &world,
        &account,
        "scribe",
        &[("prompt", "[[sim input=90]]")],
    );
    let implausible = receipt(&world, &account, &answer);
    assert_eq!(line(&implausible, "second")["units"], 7);
    assert!(implausible.get("implausible").is_some(), "{implausible}");
    let answer = transcribe(&world, &account, "scribe-tokens", &[("prompt", "A hint.")]);
    let tokens = receipt(&world, &account, &answer);
    let usage = &answer.json()["usage"];
    let details = &usage["input_token_details"];
    assert_eq!(line(&tokens, "input")["tokens"], details["text_tokens"]);
    assert_eq!(
        line(&tokens, "audio_input")["tokens"],
        details["audio_tokens"]
    );
    assert_eq!(line(&tokens, "output")["tokens"], usage["output_tokens"]);
    let poor = world.funded(1_000_000);
    let text = transcribe(&world, &poor, "scribe", &[]).text();
    assert!(
        text.contains("up to 7 seconds") && text.contains("1 of them"),
        "{text}"
    );
}

#[test]
fn a_form_is_refused_with_words_and_repeated_under_its_key_whatever_its_boundary() {
    let (world, account) = plan().with_account();
    let audio = wav(2);
    let parts: [Part<'_>; 2] = [("model", None, b"scribe"), ("file", Some("a.wav"), &audio)];
    let first = form(TRANSCRIPTIONS, &account, "one", &parts).header("idempotency-key", "k");
    let first = world.ask(&first);
    let cost = micro(&json!(first.header("x-gateway-credits").unwrap()));
    assert_eq!(cost, 2_000_000);
    let again = form(TRANSCRIPTIONS, &account, "two", &parts).header("idempotency-key", "k");
    let again = world.ask(&again);
    assert_eq!((again.status, again.text()), (200, first.text()));
    let balance = world.standing(&account).balance;
    let other: [Part<'_>; 2] = [("model", None, b"scribe"), ("file", Some("a.wav"), b"x")];
    let other = form(TRANSCRIPTIONS, &account, "two", &other).header("idempotency-key", "k");
    world.expect(422, &other);
    let json_body = json!({"model": "scribe"});
    let unbound = Request::new("POST", TRANSCRIPTIONS).bearer(&account.key);
    let unbound = unbound.header("content-type", "multipart/form-data");
    let unbound = unbound.body("--b--");
    for (request, words) in [
        (
            post(TRANSCRIPTIONS, &account, &json_body),
            "multipart/form-data",
        ),
        (
            post(EDITS, &account, &json!({"model": "painter", "images": []})),
            "multipart/form-data",
        ),
        (unbound, "boundary"),
        (
            form(TRANSCRIPTIONS, &account, "other", &parts[..1]),
            "'file'",
        ),
        (form(EDITS, &account, "other", &parts), "'image'"),
        (
            form(
                "/v1/audio/translations",
                &account,
                "other",
                &[parts[0], parts[1], parts[0]],
            ),
            "more than once",
        ),
        (
            post(IMAGES, &account, &json!({"model": "scribe", "prompt": "x"})),
            "/v1/audio/transcriptions",
        ),
        (
            post(
                IMAGES,
                &account,
                &json!({"model": "painter", "prompt": "x", "n": 11}),
            ),
            "1 to 10",
        ),
        (
            post(
                IMAGES,
                &account,
                &json!({"model": "painter", "prompt": "x", "output_format": "svg"}),
            ),
            "png, webp, jpeg",
        ),
        (
            post(SPEECH, &account, &json!({"model": "voice", "voice": "v"})),
            "'input'",
        ),
    ] {
        let answer = world.ask(&request);
        assert!(
            answer.status == 400 && answer.text().contains(words),
            "{words}: {}",
            answer.text()
        );
    }
    nothing_was_billed(&world, &account, balance);
}

#[test]
fn images_cost_their_tokens_or_their_number_whole_streamed_and_edited() {
    let (world, account) = plan().with_account();
    let paint = |body: &Value| {
        let answer = world.ask(&post(IMAGES, &account, body));
        let receipt = receipt(&world, &account, &answer);
        (answer, receipt)
    };
    let (answer, whole) = paint(&json!({"model": "painter", "prompt": "A cat.", "n": 2}));
    let usage = &answer.json()["usage"];
    assert_eq!(answer.json()["data"].as_array().unwrap().len(), 2);
    assert_eq!(line(&whole, "image_output")["tokens"], 544, "{whole}");
    assert_eq!(line(&whole, "input")["tokens"], usage["input_tokens"]);
    let streamed = json!({"model": "painter", "prompt": "A cat.", "n": 2, "stream": true,
        "partial_images": 2});
    let (answer, streamed) = paint(&streamed);
    assert_eq!(
        answer
            .text()
            .matches("image_generation.completed\"")
            .count(),
        2
    );
    assert_eq!(line(&streamed, "image_output")["tokens"], 544, "{streamed}");
    // The vendor counts the prompt for each image.
    let input = usage["input_tokens"].as_u64().unwrap();
    assert_eq!(line(&streamed, "input")["tokens"], 2 * input, "{streamed}");
    let (_, unreported) = paint(&json!({"model": "painter", "prompt": "[[sim usage=none]]"}));
    assert_eq!(line(&unreported, "image_output")["tokens"], 1_056);
    assert_eq!(unreported["estimated"], true);
    let (_, flat) = paint(&json!({"model": "painter-flat", "prompt": "A cat.", "n": 3}));
    assert_eq!(line(&flat, "image")["units"], 3);
    assert_eq!(micro(&flat["credits"]), 6_000_000);
    // A picture of megabytes passes as it comes.
    let (large, _) = paint(&json!({"model": "painter", "prompt": "[[sim bytes=3000000]]"}));
    assert!(large.body.len() > 4_000_000);
    let edit = form(
        EDITS,
        &account,
        "other",
        &[
            ("image[]", Some("a.png"), b"one"),
            ("image[]", Some("b.png"), b"two"),
            ("model", None, b"painter"),
            ("prompt", None, b"A dog."),
        ],
    );
    let answer = world.ask(&edit);
    let edited = receipt(&world, &account, &answer);
    assert_eq!(line(&edited, "image_input")["tokens"], 600, "{edited}");
    let balance = world.standing(&account).balance;
    for marker in ["cut=1 bytes=100000", "shape=error", "status=500"] {
        let body = json!({"model": "painter", "prompt": format!("[[sim {marker}]]")});
        let failed = world.ask(&post(IMAGES, &account, &body));
        assert_eq!(failed.status, 502, "{marker}: {}", failed.text());
    }
    nothing_was_billed(&world, &account, balance);
}
