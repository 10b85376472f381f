use super::*;
use crate::failure::Failure;
use crate::usage::{CountedUnit, Excess, MeteredUsage, Usage, UsageVerdict};
use crate::vendor_response::UpstreamError;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

const CONTEXT: u64 = 8_192;

const LIMITS: MeteredLimits = MeteredLimits {
    context_tokens: CONTEXT,
    max_output_tokens: 4_000,
    max_audio_seconds: 600,
};

fn endpoint(path: &str) -> &'static MeteredEndpoint {
    let mut all = ENDPOINTS.iter();
    all.find(|endpoint| endpoint.path == path).unwrap()
}

fn read(path: &str, body: &Value) -> Result<MeteredRequest, Failure> {
    MeteredRequest::read(endpoint(path), None, body.to_string().as_bytes(), 1_000)
}

fn tokens(path: &str, body: &Value) -> MeteredTerms {
    let request = read(path, body).unwrap_or_else(|failure| panic!("{}: {body}", failure.message));
    MeteredTerms::new(
        endpoint(path),
        BilledUnit::Tokens,
        &request.content,
        &LIMITS,
    )
}

fn json_answer(terms: MeteredTerms) -> MeteredAnswer {
    MeteredAnswer::new(terms, MeteredForm::Json, "public", 1_000)
}

/// Reads a body in pieces of this size, up to its end or to its last byte. Returns the usage, if
/// the answer was complete, and what the client gets.
fn pieces(mut answer: MeteredAnswer, body: &[u8], size: usize) -> (Option<MeteredUsage>, Vec<u8>) {
    let mut out = Vec::new();
    let count = body.chunks(size).len();
    for (index, piece) in (1..).zip(body.chunks(size)) {
        let end = answer.form() != MeteredForm::Json && index == count;
        if let Some(usage) = answer.push(piece, end, &mut out).unwrap() {
            out.append(&mut answer.take_last());
            return (Some(usage), out);
        }
    }
    (None, out)
}

fn metered(terms: MeteredTerms, body: &Value) -> MeteredUsage {
    pieces(json_answer(terms), body.to_string().as_bytes(), 1_000)
        .0
        .unwrap()
}

#[test]
fn an_input_is_bounded_by_its_bytes_or_ids_and_by_the_context_of_each() {
    let bound =
        |input: Value| tokens("/v1/embeddings", &json!({"model": "m", "input": input})).bound;
    let bound = |input: Value| bound(input).input;
    assert_eq!(bound(json!("größe")), 7 + 32);
    assert_eq!(bound(json!(["ab", "c"])), 3 + 64);
    assert_eq!(bound(json!([1, 2, 3])), 3 + 32);
    assert_eq!(bound(json!([[1, 2], [3], []])), 3 + 64);
    assert_eq!(bound(json!([])), 32);
    assert_eq!(bound(json!("x".repeat(9_000))), CONTEXT);
    let lists = json!({"model": "m", "inputs": [["größe", "c"], ["d"]]});
    let lists = tokens("/v1/contextualizedembeddings", &lists);
    assert_eq!(lists.bound.input, 9 + 3 * 32);
}

#[test]
fn a_rerank_request_is_bounded_by_its_pairs_and_a_moderation_by_its_texts_and_images() {
    let body = |query: &str, documents: Value| json!({"model": "m", "query": query, "documents": documents});
    let rank = body("12345", json!(["123", {"text": "12"}]));
    assert_eq!(
        tokens("/v1/rerank", &rank).bound.input,
        2 * (5 + 128) + 3 + 13
    );
    let long = body("q", json!(["x".repeat(20_000)]));
    assert_eq!(tokens("/v1/rerank", &long).bound.input, CONTEXT);
    let units = |body: &Value| {
        let request = read("/v2/rerank", body).unwrap();
        let unit = BilledUnit::Counted(CountedUnit::SearchUnit);
        MeteredTerms::new(endpoint("/v2/rerank"), unit, &request.content, &LIMITS)
            .bound
            .search_units
    };
    assert_eq!(units(&body("q", json!([]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x"; 100]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x"; 101]))), 2);
    assert_eq!(units(&body("q", json!(vec!["x".repeat(499); 100]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x".repeat(500); 100]))), 2);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let parts = json!({"input": [{"type": "text", "text": "abc"}, image]});
    assert_eq!(
        tokens("/v1/moderations", &parts).bound.input,
        3 + 32 + CONTEXT
    );
}

#[test]
fn content_that_the_gateway_cannot_measure_is_refused() {
    let moderation = |input: Value| read("/v1/moderations", &json!({"input": input}));
    for part in [
        json!({"role": "user", "content": "x"}),
        json!({"type": "file", "file_id": "f"}),
        json!({"type": "text", "text": "x", "content": "y"}),
        json!({"type": "input_image", "image_url": "http://x"}),
        json!({"type": "image_url", "image_url": "http://x"}),
        json!({"type": "image_url", "image_url": {"uri": "http://x"}}),
        json!({"type": "image_url", "image_url": [{"url": "http://x"}]}),
        json!({"type": "image_url", "image_url": {"url": "http://x"}}),
        json!({"type": "image_url", "image_url": {}}),
        json!({"type": "text"}),
    ] {
        assert!(moderation(json!([part])).is_err(), "{part}");
    }
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let request = moderation(json!([image])).unwrap();
    assert_eq!(request.content.estimated_tokens(), 85);
    for document in [
        json!({"Image": "http://x"}),
        json!({"pdf": "http://x"}),
        json!({"content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}),
    ] {
        let body = json!({"model": "m", "query": "q", "documents": [document]});
        assert!(read("/v2/rerank", &body).is_err(), "{document}");
    }
}

#[test]
fn a_missing_model_is_inserted_where_the_endpoint_has_a_default() {
    let with = |body: &'static [u8]| {
        let request = MeteredRequest::read(endpoint("/v1/moderations"), None, body, 9).unwrap();
        assert_eq!(request.model, None);
        request.with_model(&Bytes::from_static(body), "up")
    };
    assert_eq!(
        with(br#" { "input":"x"}"#),
        br#" {"model":"up", "input":"x"}"#.as_slice()
    );
    assert_eq!(
        with(br#"{"input":"x","model":null}"#),
        br#"{"input":"x","model":"up"}"#.as_slice()
    );
    let twice = br#"{"input":"x","model":null,"model":"b"}"#;
    assert!(MeteredRequest::read(endpoint("/v1/moderations"), None, twice, 9).is_err());
}

#[test]
fn a_body_that_two_readers_could_read_differently_is_refused() {
    for (body, words) in [
        (r#"[]"#, "must be a JSON object"),
        (r#"{"model":"m","input":"x""#, "not valid JSON"),
        (r#"{"input":"x"}"#, "'model'"),
        (r#"{"model":"","input":"x"}"#, "'model'"),
        (r#"{"model":7,"input":"x"}"#, "expected a string"),
        (r#"{"model":"m"}"#, "'input'"),
        (r#"{"model":"m","input":{"text":"x"}}"#, "expected a string"),
        (r#"{"model":"m","input":[["x"]]}"#, "expected a string"),
        (r#"{"model":"m","model":"n","input":"x"}"#, "more than once"),
        (
            r#"{"model":"m","INPUT":"x","input":"x"}"#,
            "did you mean 'input'",
        ),
        (
            r#"{"model":"m","input":"x","encoding_format":"bytes"}"#,
            "float, base64",
        ),
    ] {
        let failure =
            MeteredRequest::read(endpoint("/v1/embeddings"), None, body.as_bytes(), 9).unwrap_err();
        assert!(
            failure.message.contains(words),
            "{body}: {}",
            failure.message
        );
    }
    let inputs = |count| json!({"model": "m", "input": vec!["x"; count]});
    assert!(read("/v1/embeddings", &inputs(1_000)).is_ok());
    let failure = read("/v1/embeddings", &inputs(1_001)).unwrap_err();
    assert!(
        failure.message.contains("more than 1000"),
        "{}",
        failure.message
    );
    let ids = json!({"model": "m", "input": vec![1; 300_000]});
    assert!(
        read("/v1/embeddings", &ids).is_ok(),
        "token ids are no inputs"
    );
}

#[test]
fn only_the_value_of_the_model_is_replaced() {
    let body = Bytes::from_static(br#" {"input" : "\u006d", "m\u006fdel":"m", "x":[1.0e2]} "#);
    let request = MeteredRequest::read(endpoint("/v1/embeddings"), None, &body, 9).unwrap();
    assert_eq!(
        request.with_model(&body, "up\"stream"),
        br#" {"input" : "\u006d", "m\u006fdel":"up\"stream", "x":[1.0e2]} "#.as_slice()
    );
    assert_eq!(request.with_model(&body, "m"), body);
}

#[test]
fn a_count_is_billed_up_to_the_bound_and_anything_else_is_estimated() {
    let terms = tokens(
        "/v1/embeddings",
        &json!({"model": "m", "input": "0123456789"}),
    );
    let answer = |usage: Value| json!({"data": [1], "model": "u", "usage": usage});
    let estimated = (3, UsageVerdict::Estimated);
    let over = UsageVerdict::Implausible(Excess {
        input: true,
        ..Excess::default()
    });
    for (usage, expected) in [
        (
            json!({"prompt_tokens": 4, "total_tokens": 9}),
            (4, UsageVerdict::Exact),
        ),
        (json!({"total_tokens": 9}), (9, UsageVerdict::Exact)),
        (
            json!({"prompt_tokens": 0, "total_tokens": 5}),
            (5, UsageVerdict::Exact),
        ),
        (json!({"prompt_tokens": 1.2}), (2, UsageVerdict::Exact)),
        (json!({"prompt_tokens": 42}), (42, UsageVerdict::Exact)),
        (json!({"prompt_tokens": 43}), (42, over)),
        (json!({"prompt_tokens": 0}), estimated),
        (json!({"prompt_tokens": -4}), estimated),
        (json!({"prompt_tokens": "4"}), estimated),
        (json!({"prompt_tokens": 1e300}), (42, over)),
        (json!({"prompt_tokens": (1_u64 << 53) + 1}), (42, over)),
        (json!(null), estimated),
        (
            json!({"x": "y".repeat(70_000), "prompt_tokens": 4}),
            estimated,
        ),
    ] {
        let found = metered(terms, &answer(usage.clone()));
        assert_eq!((found.usage.input, found.verdict), expected, "{usage}");
    }
    assert_eq!(
        metered(terms, &json!({"data": [1]})).usage,
        terms.estimate()
    );
    let escaped = br#"{"data":[1],"us\u0061ge":{"prompt_tokens":7}}"#;
    let found = pieces(json_answer(terms), escaped, 5).0.unwrap();
    assert_eq!((found.usage.input, found.verdict), (7, UsageVerdict::Exact));
    let cohere = json!({"data": [1], "meta": {"billed_units": {"input_tokens": 7.0}}});
    assert_eq!(metered(terms, &cohere).usage.input, 7);
}

#[test]
fn what_is_no_answer_is_an_error() {
    let terms = tokens("/v1/embeddings", &json!({"model": "m", "input": "x"}));
    let outcome = |body: &str| {
        let found = json_answer(terms).push(body.as_bytes(), false, &mut Vec::new())?;
        Ok::<_, UpstreamError>(found.unwrap_or_else(|| panic!("incomplete: {body}")))
    };
    for body in [
        "<html>",
        "[1]",
        "\"x\"",
        "{\"data\":[}",
        "{\"data\":{]",
        "{]",
        "{\"a\" 1}",
        "data: {}",
        // Between the members of the document.
        "{,}",
        "{\"a\":1,}",
        "{\"a\":1,,\"b\":2}",
        "{\"a\":1 2}",
        "{\"a\":\"x\" \"y\"}",
        "{\"a\":[1] \"b\":2}",
        "{\"a\":[1]x}",
        "{\"a\":tr\"ue\"}",
        "{\"a\":,\"b\":2}",
        "{\"a\":}",
        "{\"a\":1:2}",
    ] {
        assert_eq!(outcome(body).unwrap_err(), UpstreamError::NotJson, "{body}");
    }
    let deep = format!("{{\"data\":{}", "[".repeat(200));
    assert_eq!(outcome(&deep).unwrap_err(), UpstreamError::NotJson);
    for body in [
        "{}",
        r#"{"data":[ ]}"#,
        r#"{"data":{}}"#,
        r#"{"x":[{"data":[1]}]}"#,
    ] {
        assert_eq!(outcome(body).unwrap_err(), UpstreamError::Empty, "{body}");
    }
    let by_type = tokens("/v2/embed", &json!({"model": "m", "texts": ["x"]}));
    for (body, has_content) in [
        (r#"{"embeddings": { "float":[[1]]}}"#, true),
        (r#"{"\u0065mbeddings":[[1]]}"#, true),
        (r#"{"embeddings":{ }}"#, false),
        (r#"{"embeddings":"x"}"#, false),
        (r#"{"texts":{"x":[1]}}"#, false),
    ] {
        let (used, _) = match has_content {
            true => pieces(json_answer(by_type), body.as_bytes(), 3),
            false => (None, Vec::new()),
        };
        assert_eq!(used.is_some(), has_content, "{body}");
        if !has_content {
            let found = json_answer(by_type).push(body.as_bytes(), false, &mut Vec::new());
            assert_eq!(found.unwrap_err(), UpstreamError::Empty, "{body}");
        }
    }
    let error = outcome(r#"{"data":[1],"error":{"message":"No."}}"#).unwrap_err();
    assert!(matches!(error, UpstreamError::Vendor(error) if error.message == "No."));
    assert!(outcome("{\"data\":[1],\"error\": null\n}").is_ok());
}

#[test]
fn an_answer_passes_byte_for_byte_except_for_the_model_and_is_incomplete_without_its_last_byte() {
    let terms = tokens("/v1/embeddings", &json!({"model": "m", "input": "x"}));
    let body = r#" {"object":"list" , "mod\u0065l":"a","model" : "te\"xt}","data":[{"model":"x","e":"}]\\"},[-1.5e-3]],
        "usage":{"prompt_tokens":1,"model":"y"},"n":1.0, "model":null} "#;
    let expected = body.trim_end().replace(r#""te\"xt}""#, r#""public""#);
    let expected = expected.replace(r#""mod\u0065l":"a""#, r#""mod\u0065l":"public""#);
    for size in 1..=body.len() {
        let (usage, out) = pieces(json_answer(terms), body.as_bytes(), size);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{size}");
        assert_eq!(usage.unwrap().usage.input, 1);
    }
    for cut in 0..body.trim_end().len() {
        let (usage, _) = pieces(json_answer(terms), &body.as_bytes()[..cut], 7);
        assert_eq!(usage, None, "{cut}");
    }
    let marked = b"\xef\xbb\xbf{\"data\":[1]} trailing";
    assert_eq!(pieces(json_answer(terms), marked, 1).1, b"{\"data\":[1]}");
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\"\\\\{}\\[\\]é]{0,6}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("model".to_owned()),
        Just("data".to_owned()),
        Just("usage".to_owned()),
        Just("prompt_tokens".to_owned()),
        Just("results".to_owned()),
        Just("meta".to_owned()),
        Just("billed_units".to_owned()),
        Just("search_units".to_owned()),
        Just("error".to_owned()),
        "[a-z\"]{0,4}",
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// For every endpoint and any request and answer: each count that is billed is at most that of
    /// the bound, which is what is held for.
    #[test]
    fn a_hold_is_never_smaller_than_the_debit(
        index in 0..ENDPOINTS.len(),
        texts in prop::collection::vec(".{0,40}", 0..5),
        ids in any::<bool>(),
        context in 1_u64..10_000,
        is_counted in any::<bool>(),
        form in prop::sample::select(vec![MeteredForm::Json, MeteredForm::Events, MeteredForm::Media]),
        answer in json_value(),
    ) {
        let endpoint = &ENDPOINTS[index];
        let (mut kind, mut body) = endpoint.sample("m");
        if endpoint.is_form {
            let hint = texts.concat();
            let silence = wav(20);
            let parts = [("model", None, b"m".as_slice()), ("file", Some("f"), &silence),
                ("image", Some("f"), b"x"), ("prompt", None, hint.as_bytes())];
            (kind, body) = ("multipart/form-data; boundary=b", form_of(&parts));
        } else {
            let mut value: Value = serde_json::from_slice(&body).unwrap();
            for name in ["input", "inputs", "texts", "documents", "prompt"] {
                if value.get(name).is_some() {
                    value[name] = match name {
                        "inputs" => json!([texts, ["x"]]),
                        "input" if endpoint.kind == ModelKind::Speech => json!(texts.concat()),
                        "input" if ids => json!([[1, 2], [3]]),
                        "prompt" => json!(texts.concat()),
                        _ => json!(texts),
                    };
                }
            }
            body = value.to_string().into_bytes();
        }
        let request = MeteredRequest::read(endpoint, Some(kind), &body, 100).unwrap();
        let counted = match endpoint.kind {
            ModelKind::Rerank => Some(CountedUnit::SearchUnit),
            ModelKind::Image => Some(CountedUnit::Image),
            ModelKind::Speech => Some(CountedUnit::Character),
            ModelKind::Transcription => Some(CountedUnit::Second),
            ModelKind::Chat | ModelKind::Embedding | ModelKind::Moderation => None,
        };
        let unit = match counted {
            Some(unit) if is_counted || unit == CountedUnit::Character => BilledUnit::Counted(unit),
            _ => BilledUnit::Tokens,
        };
        let limits = MeteredLimits { context_tokens: context, ..LIMITS };
        let terms = MeteredTerms::new(endpoint, unit, &request.content, &limits);
        let is_below = |usage: Usage| {
            let below = usage.tokens().iter().zip(terms.bound.tokens()).all(|(one, most)| one.1 <= most.1);
            below && CountedUnit::ALL.iter().all(|unit| usage.units(*unit) <= terms.bound.units(*unit))
        };
        prop_assert!(is_below(terms.estimate()));
        let text = match form {
            MeteredForm::Events => format!("data: {answer}\n\ndata: {{\"type\":\"x.done\",\"usage\":{answer}}}\n\n"),
            MeteredForm::Json | MeteredForm::Media => answer.to_string(),
        };
        let mut reader = MeteredAnswer::new(terms, form, "p", 100_000);
        if let Ok(Some(metered)) = reader.push(text.as_bytes(), true, &mut Vec::new()) {
            prop_assert!(is_below(metered.usage), "{metered:?}");
        }
    }

    /// Any JSON object passes unchanged but for its model, however it is cut into pieces.
    #[test]
    fn a_document_passes_in_any_pieces(members in prop::collection::btree_map("model|data|usage|[a-z]{0,3}", json_value(), 0..6), size in 1_usize..40) {
        let mut members = members;
        members.insert("data".to_owned(), json!([1]));
        let text = Value::Object(members.into_iter().collect()).to_string();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let (usage, out) = pieces(json_answer(any_terms()), text.as_bytes(), size);
        prop_assert!(usage.is_some());
        if document["model"].is_string() {
            document["model"] = json!("public");
        }
        prop_assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), document);
    }

    /// Bytes that are no JSON neither panic nor pass beyond what was there.
    #[test]
    fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200), size in 1_usize..20) {
        for form in [MeteredForm::Json, MeteredForm::Events, MeteredForm::Media] {
            let (mut answer, mut out) = (MeteredAnswer::new(any_terms(), form, "p", 100), Vec::new());
            for piece in body.chunks(size) {
                if answer.push(piece, false, &mut out).is_err() {
                    break;
                }
            }
            let _ = answer.push(b"", true, &mut out);
        }
        for endpoint in &ENDPOINTS {
            let _ = MeteredRequest::read(endpoint, None, &body, 9);
        }
        let kind = "multipart/form-data; boundary=b";
        let form = [b"--b\r\ncontent-disposition: form-data; name=file; filename=f\r\n\r\n", &body[..], b"\r\n--b--"].concat();
        let _ = MeteredRequest::read(endpoint("/v1/audio/transcriptions"), Some(kind), &form, 9);
    }
}

fn any_terms() -> MeteredTerms {
    tokens("/v1/embeddings", &json!({"model": "m", "input": "x"}))
}

/// A form with a boundary `b`: each part with its name, and with a file's name if it is one.
fn form_of(parts: &[(&str, Option<&str>, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, value) in parts {
        let file = file
            .map(|file| format!("; filename=\"{file}\""))
            .unwrap_or_default();
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend([head.as_bytes(), value, b"\r\n"].concat());
    }
    body.extend(b"--b--\r\n");
    body
}

fn read_form(path: &str, parts: &[(&str, Option<&str>, &[u8])]) -> Result<MeteredRequest, Failure> {
    MeteredRequest::read(
        endpoint(path),
        Some("multipart/form-data; boundary=b"),
        &form_of(parts),
        9,
    )
}

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

/// A WAV file of this number of tenths of a second.
fn wav(tenths: u32) -> Vec<u8> {
    let (_, sample) = endpoint(TRANSCRIPTIONS).sample("m");
    let at = sample.windows(4).position(|four| four == b"RIFF").unwrap();
    let mut wav = sample[at..at + 40].to_vec();
    wav[4..8].copy_from_slice(&(tenths * 1_600 + 36).to_le_bytes());
    wav.extend((tenths * 1_600).to_le_bytes());
    wav.extend(vec![0; usize::try_from(tenths).unwrap() * 1_600]);
    wav
}

#[test]
fn a_form_is_sent_with_the_vendors_model_and_is_the_same_form_with_any_boundary() {
    let audio = b"\x00\r\n--bc\r\n--b\xff".as_slice();
    // The SDK for JavaScript sends the file first.
    let parts = [
        ("file", Some("a.mp3"), audio),
        ("model", None, b"public".as_slice()),
    ];
    let request = read_form(TRANSCRIPTIONS, &parts).unwrap();
    assert_eq!(request.model.as_deref(), Some("public"));
    let body = Bytes::from(form_of(&parts));
    let renamed = [
        ("file", Some("a.mp3"), audio),
        ("model", None, b"up".as_slice()),
    ];
    assert_eq!(request.with_model(&body, "up"), form_of(&renamed));
    let parts_of = |body: &[u8], kind: &str| {
        let request = MeteredRequest::read(endpoint(TRANSCRIPTIONS), Some(kind), body, 9).unwrap();
        request.parts_of_form(body)
    };
    let simple = form_of(&[("file", Some("a"), b"x"), ("model", None, b"m")]);
    let same = String::from_utf8(simple.clone())
        .unwrap()
        .replace("--b", "--c");
    assert_eq!(
        parts_of(&simple, "multipart/form-data; boundary=b"),
        parts_of(same.as_bytes(), "multipart/form-data; boundary=c")
    );
}

#[test]
fn a_form_without_its_file_or_with_something_that_is_not_billed_is_refused() {
    let file: (&str, Option<&str>, &[u8]) = ("file", Some("a.wav"), b"x");
    let model: (&str, Option<&str>, &[u8]) = ("model", None, b"m");
    for (path, parts, words) in [
        (TRANSCRIPTIONS, vec![file], "'model'"),
        (TRANSCRIPTIONS, vec![model], "'file'"),
        (
            TRANSCRIPTIONS,
            vec![model, ("file", None, b"x")],
            "expected a file",
        ),
        (TRANSCRIPTIONS, vec![model, file, model], "more than once"),
        (TRANSCRIPTIONS, vec![model, file, file], "more than once"),
        (
            TRANSCRIPTIONS,
            vec![model, file, ("url", None, b"http://x")],
            "Media at another place",
        ),
        (
            "/v1/images/edits",
            vec![model, ("image[]", Some("a"), b"x")],
            "'prompt'",
        ),
        (
            "/v1/images/edits",
            vec![
                model,
                ("image", Some("a"), b"x"),
                ("prompt", None, b"p"),
                ("n", None, b"11"),
            ],
            "1 to 10",
        ),
        (
            "/v1/images/edits",
            vec![
                model,
                ("image", Some("a"), b"x"),
                ("prompt", None, b"p"),
                ("output_format", None, b"svg"),
            ],
            "png, webp, jpeg",
        ),
    ] {
        let failure = read_form(path, &parts).unwrap_err();
        assert!(
            failure.message.contains(words),
            "{words}: {}",
            failure.message
        );
    }
    for (path, body, words) in [
        (
            "/v1/images/generations",
            json!({"model": "m", "prompt": "p", "n": 2.5}),
            "1 to 10",
        ),
        (
            "/v1/images/generations",
            json!({"model": "m", "prompt": "p", "svg": {}}),
            "Vector images",
        ),
        (
            "/v1/images/generations",
            json!({"model": "m", "prompt": "p", "sequential_image_generation": "auto"}),
            "disabled",
        ),
        (
            "/v1/audio/speech",
            json!({"model": "m", "input": "x", "voice": {"id": "v"}}),
            "expected a string",
        ),
        (
            "/v1/audio/speech",
            json!({"model": "m", "voice": "v"}),
            "'input'",
        ),
    ] {
        let failure = read(path, &body).unwrap_err();
        assert!(
            failure.message.contains(words),
            "{words}: {}",
            failure.message
        );
    }
}

#[test]
fn an_image_at_another_place_is_refused_and_one_in_the_request_counts() {
    let generation = |name: &str, value: &Value| {
        let mut body = json!({"model": "m", "prompt": "p"});
        body[name] = value.clone();
        read("/v1/images/generations", &body)
    };
    for (name, value) in [
        ("image", json!("https://example.test/a.png")),
        ("image_url", json!("HTTP://example.test/a.png")),
        (
            "images",
            json!(["data:image/png;base64,AA", "s3://bucket/a"]),
        ),
        (
            "reference_images",
            json!([{"image_url": {"url": "https://example.test/a"}}]),
        ),
        ("mask", json!({"file_id": "file-1"})),
        ("file_id", json!("file-1")),
    ] {
        let failure = generation(name, &value).unwrap_err();
        assert_eq!(failure.param.as_deref(), Some(name), "{value}");
        assert!(failure.message.contains("another place"), "{value}");
    }
    let limits = |request: MeteredRequest| {
        let terms = endpoint("/v1/images/generations");
        MeteredTerms::new(terms, BilledUnit::Tokens, &request.content, &LIMITS)
            .bound
            .image_input
    };
    for (name, value, expected) in [
        (
            "image",
            json!(["data:image/png;base64,AA"]),
            LIMITS.context_tokens,
        ),
        ("input_image", json!("A".repeat(92)), LIMITS.context_tokens),
        ("image_size", json!("1024x1024"), 0),
        ("user", json!("https://example.test/people/1"), 0),
        ("negative_prompt", json!("a word ".repeat(30)), 0),
    ] {
        assert_eq!(
            limits(generation(name, &value).unwrap()),
            expected,
            "{name}"
        );
    }
    for (name, value) in [
        ("voice", json!("https://example.test/voice.wav")),
        ("ref_audio", json!("file:///etc/voice.wav")),
        ("references", json!([{"audio": "https://example.test/a"}])),
        ("voice_settings", json!({"file_id": "file-1"})),
    ] {
        let mut body = json!({"model": "m", "input": "x", "voice": "alloy"});
        body[name] = value;
        let failure = read("/v1/audio/speech", &body).unwrap_err();
        assert_eq!(failure.param.as_deref(), Some(name));
    }
    let parts = [
        ("model", None, b"m".as_slice()),
        ("image", Some("a"), b"x"),
        ("prompt", None, b"p"),
        ("image_url", None, b"https://example.test/a"),
    ];
    let failure = read_form("/v1/images/edits", &parts).unwrap_err();
    assert_eq!(failure.param.as_deref(), Some("image_url"));
}

#[test]
fn the_number_of_images_has_one_name() {
    for (name, value) in [
        ("image", json!(4)),
        ("images", json!(4)),
        ("batch_size", json!(4)),
        ("batchSize", json!("4")),
        ("num_images_per_prompt", json!(4)),
        ("samples", json!(4)),
        ("extra_body", json!({"n": 4})),
        (
            "sequential_image_generation_options",
            json!({"max_images": 15}),
        ),
        ("options", json!({"num_images": 4})),
        ("config", json!([{"more": {"n": 4}}])),
    ] {
        let mut body = json!({"model": "m", "prompt": "p"});
        body[name] = value;
        let failure = read("/v1/images/generations", &body).unwrap_err();
        assert!(
            failure.message.contains("as 'n'"),
            "{name}: {}",
            failure.message
        );
    }
    let passes = json!({"model": "m", "prompt": "p", "batch_size": null, "image": "data:x",
        "images": [], "num_inference_steps": 4, "partial_images": 2, "seed": 1,
        "options": {"n": "x", "count": null, "steps": 4}, "metadata": {"n": 4}});
    assert!(read("/v1/images/generations", &passes).is_ok());
    let speech = json!({"model": "m", "input": "x", "voice": "v", "batch_size": 4});
    assert!(read("/v1/audio/speech", &speech).is_ok());
    let edit = |name, file| {
        let parts = [
            ("model", None, b"m".as_slice()),
            ("image", Some("a"), b"x"),
            ("prompt", None, b"p"),
            (name, file, b"4"),
        ];
        read_form("/v1/images/edits", &parts)
    };
    for name in ["num_images", "extra_body[n]", "images"] {
        assert!(edit(name, None).is_err(), "{name}");
    }
    assert!(edit("images", Some("b")).is_ok());
}

#[test]
fn a_transcription_is_held_for_its_length_and_billed_by_what_is_reported_or_shown() {
    let terms = |audio: &[u8]| {
        let parts = [("model", None, b"m".as_slice()), ("file", Some("a"), audio)];
        let request = read_form(TRANSCRIPTIONS, &parts).unwrap();
        let unit = BilledUnit::Counted(CountedUnit::Second);
        MeteredTerms::new(endpoint(TRANSCRIPTIONS), unit, &request.content, &LIMITS)
    };
    // What is no known audio has at least 250 bytes a second.
    assert_eq!(terms(&[0; 2_501]).bound.seconds, 11);
    assert_eq!(terms(&[0; 2_501]).estimate().seconds, 11);
    assert_eq!(terms(&vec![0; 1_000_000]).bound.seconds, 600);
    let of_wav = terms(&wav(75));
    assert_eq!((of_wav.bound.seconds, of_wav.estimate().seconds), (8, 8));
    for (answer, expected) in [
        (
            json!({"text": "", "usage": {"type": "duration", "seconds": 6.1}}),
            (7, UsageVerdict::Exact),
        ),
        (
            json!({"text": "x", "duration": 3.0}),
            (3, UsageVerdict::Exact),
        ),
        (
            json!({"text": "x", "usage": {"prompt_audio_seconds": 5}}),
            (5, UsageVerdict::Exact),
        ),
        (json!({"text": "x"}), (8, UsageVerdict::Estimated)),
    ] {
        let found = metered(of_wav, &answer);
        assert_eq!((found.usage.seconds, found.verdict), expected, "{answer}");
    }
    let media = |text: &str| {
        let answer = MeteredAnswer::new(terms(&[0; 250_000]), MeteredForm::Media, "p", 9);
        let (usage, out) = pieces(answer, text.as_bytes(), 7);
        assert_eq!(out, text.as_bytes());
        usage.unwrap().usage.seconds
    };
    assert_eq!(
        media("1\n00:00:00,000 --> 00:09:00,500\nHi\n"),
        600,
        "the estimate is longer"
    );
    assert_eq!(media("Hi"), 600);
    // Tokens: the audio and the words apart.
    let parts = [("model", None, b"m".as_slice()), ("file", Some("a"), b"x")];
    let request = read_form(TRANSCRIPTIONS, &parts).unwrap();
    let terms = MeteredTerms::new(
        endpoint(TRANSCRIPTIONS),
        BilledUnit::Tokens,
        &request.content,
        &LIMITS,
    );
    let usage = json!({"type": "tokens", "input_tokens": 14, "output_tokens": 45,
        "input_token_details": {"text_tokens": 4, "audio_tokens": 10}});
    let done = json!({"type": "transcript.text.done", "text": "x", "usage": usage});
    let events =
        format!("data: {{\"type\":\"transcript.text.delta\",\"delta\":\"x\"}}\n\ndata: {done}\n\n");
    let answer = MeteredAnswer::new(terms, MeteredForm::Events, "p", 1_000);
    let (found, out) = pieces(answer, events.as_bytes(), 5);
    assert_eq!(String::from_utf8(out).unwrap(), events);
    let found = found.unwrap().usage;
    assert_eq!((found.input, found.audio_input, found.output), (4, 10, 45));
}

#[test]
fn images_are_billed_by_their_tokens_or_by_their_number_also_when_they_are_streamed() {
    const IMAGES: &str = "/v1/images/generations";
    let body = json!({"model": "m", "prompt": "a cat", "n": 2});
    let terms = tokens(IMAGES, &body);
    assert_eq!((terms.bound.input, terms.bound.image_input), (5 + 32, 0));
    assert_eq!(terms.bound.image_output, 2 * 4_300);
    let usage = json!({"input_tokens": 9, "output_tokens": 272, "total_tokens": 281,
        "input_tokens_details": {"text_tokens": 9, "image_tokens": 0}});
    let found = metered(terms, &json!({"data": [{}, {}], "usage": usage})).usage;
    assert_eq!((found.input, found.image_output), (9, 272));
    // The input and the output are estimated each by itself.
    for (usage, input, output) in [
        (json!(null), 2, 2 * 1_056),
        (json!({"input_tokens": 9, "output_tokens": 0}), 9, 2 * 1_056),
        (json!({"input_tokens": 9}), 9, 2 * 1_056),
        (json!({"input_tokens": -1, "output_tokens": 272}), 2, 272),
    ] {
        let found = metered(terms, &json!({"data": [{}, {}], "usage": usage}));
        assert_eq!(
            (found.usage.input, found.usage.image_output, found.verdict),
            (input, output, UsageVerdict::Estimated),
            "{usage}"
        );
    }
    let completed = json!({"type": "image_generation.completed", "b64_json": "AA", "usage": usage});
    let partial = json!({"type": "image_generation.partial_image", "b64_json": "A"});
    let events = format!(
        "data: {partial}\n\nevent: x\ndata: {completed}\n\n: mark\n\ndata: {completed}\n\n"
    );
    let streamed = |terms| {
        let answer = MeteredAnswer::new(terms, MeteredForm::Events, "p", 1_000);
        let (usage, out) = pieces(answer, events.as_bytes(), 9);
        assert_eq!(String::from_utf8(out).unwrap(), events);
        usage.unwrap().usage
    };
    assert_eq!(streamed(terms).image_output, 544);
    let request = read(IMAGES, &body).unwrap();
    let unit = BilledUnit::Counted(CountedUnit::Image);
    let counted = MeteredTerms::new(endpoint(IMAGES), unit, &request.content, &LIMITS);
    assert_eq!((counted.bound.images, streamed(counted).images), (2, 2));
    let more = metered(terms, &json!({"data": [{}, {}, {}]}));
    assert_eq!(more.usage.image_output, 3 * 1_056);
    let three = json!({"data": [{"b64_json": "[{}]"}, {"url": "x"}, {}]});
    let found = metered(counted, &three);
    let over = UsageVerdict::Implausible(Excess {
        units: true,
        ..Excess::default()
    });
    assert_eq!((found.usage.images, found.verdict), (2, over));
}

#[test]
fn events_that_break_off_or_report_an_error_are_no_answer_and_their_end_is_kept_back() {
    let terms = tokens(
        "/v1/images/generations",
        &json!({"model": "m", "prompt": "x"}),
    );
    let outcome = |text: &str, end| {
        let mut out = Vec::new();
        let mut answer = MeteredAnswer::new(terms, MeteredForm::Events, "p", 100);
        let outcome = answer.push(text.as_bytes(), end, &mut out);
        (outcome, String::from_utf8(out).unwrap())
    };
    let partial = "data: {\"type\":\"image_generation.partial_image\"}\n\n";
    let done = "data: {\"type\":\"image_generation.completed\"}\n\n";
    let (billed, shown) = outcome(partial, true);
    let verdict = billed.map(|billed| billed.map(|billed| billed.verdict));
    assert_eq!(verdict, Ok(Some(UsageVerdict::Estimated)));
    assert_eq!(shown, partial, "the whole body, without an end of its own");
    assert_eq!(
        outcome(&format!("{partial}{done}"), false),
        (Ok(None), partial.to_owned())
    );
    for text in [
        "data: {\"error\":{\"message\":\"No.\"}}\n\n",
        "event: error\ndata: {\"message\":\"No.\",\"type\":\"error\"}\n\n",
    ] {
        let (found, _) = outcome(text, false);
        assert!(
            matches!(&found, Err(UpstreamError::Vendor(error)) if error.message == "No."),
            "{found:?}"
        );
    }
    assert_eq!(
        outcome("data: <html>\n\n", false).0,
        Err(UpstreamError::NotJson)
    );
    let large = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(100));
    assert_eq!(outcome(&large, false).0, Err(UpstreamError::TooLarge));
    let many = format!("{done}{}", ": mark\n\n".repeat(30));
    assert_eq!(outcome(&many, false).0, Err(UpstreamError::TooLarge));
}

#[test]
fn words_may_be_empty_but_sound_may_not() {
    let silent = |path: &str, body: Value| {
        let terms = MeteredTerms::new(
            endpoint(path),
            BilledUnit::Counted(CountedUnit::Character),
            &read("/v1/audio/speech", &body).unwrap().content,
            &LIMITS,
        );
        let mut answer = MeteredAnswer::new(terms, MeteredForm::Media, "p", 9);
        answer.push(b"", true, &mut Vec::new())
    };
    let body = json!({"model": "m", "input": "hum", "voice": "v"});
    assert_eq!(
        silent("/v1/audio/speech", body.clone()),
        Err(UpstreamError::Empty)
    );
    let words = silent(TRANSCRIPTIONS, body).unwrap().unwrap();
    assert_eq!(words.usage.characters, 3);
}

#[test]
fn a_stream_without_an_end_of_openais_is_billed_at_done_or_where_it_ends() {
    let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let last =
        "data: {\"choices\":[{\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}]}\n\n";
    let running = "data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2}}\n\n";
    let usage =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":4}}\n\n";
    let done = "data: [DONE]\n\n";
    let parts = [
        ("model", None, b"m".as_slice()),
        ("file", Some("a"), &wav(75)),
    ];
    let content = read_form(TRANSCRIPTIONS, &parts).unwrap().content;
    let terms = |unit| MeteredTerms::new(endpoint(TRANSCRIPTIONS), unit, &content, &LIMITS);
    let seconds = terms(BilledUnit::Counted(CountedUnit::Second));
    let tokens = terms(BilledUnit::Tokens);
    // `shown`: what the client has before the debit.
    for (terms, events, end, shown) in [
        (seconds, vec![delta, last, done], false, delta),
        (seconds, vec![delta, last, usage, done], false, delta),
        (tokens, vec![delta, last, done], false, delta),
        (tokens, vec![delta, last, usage, done], false, delta),
        (tokens, vec![delta, running, last, usage], true, ""),
        (seconds, vec![delta, done], false, delta),
        (seconds, vec![delta], true, delta),
    ] {
        let text = events.concat();
        let mut out = Vec::new();
        let mut answer = MeteredAnswer::new(terms, MeteredForm::Events, "p", 1_000);
        let found = answer.push(text.as_bytes(), end, &mut out).unwrap();
        let found = found.unwrap_or_else(|| panic!("free: {text}"));
        assert!(shown.is_empty() || out == shown.as_bytes(), "{text}");
        out.append(&mut answer.take_last());
        assert_eq!(String::from_utf8(out).unwrap(), text);
        match terms.unit {
            BilledUnit::Counted(_) => assert_eq!(found.usage.seconds, 8),
            BilledUnit::Tokens if events.contains(&usage) => {
                assert_eq!((found.usage.audio_input, found.usage.output), (20, 4));
                assert_eq!(found.verdict, UsageVerdict::Exact);
            }
            BilledUnit::Tokens => assert_eq!(found.usage, terms.estimate()),
        }
    }
    for nothing in [done, ": mark\n\n", ""] {
        let mut answer = MeteredAnswer::new(seconds, MeteredForm::Events, "p", 1_000);
        let found = answer.push(nothing.as_bytes(), true, &mut Vec::new());
        assert_eq!(found, Err(UpstreamError::Cut), "{nothing}");
    }
}

#[test]
fn a_wav_file_is_as_long_as_any_decoder_can_read_it() {
    let chunk = |name: &[u8; 4], told: u32, body: &[u8]| {
        [name, told.to_le_bytes().as_slice(), body].concat()
    };
    let format = |kind: u16, rate: u32, bits: u16, more: &[u8]| {
        let block = bits / 8;
        let mut body = [kind.to_le_bytes(), 1_u16.to_le_bytes()].concat();
        body.extend(rate.to_le_bytes());
        body.extend((rate * u32::from(block)).to_le_bytes());
        body.extend([block.to_le_bytes(), bits.to_le_bytes()].concat());
        body.extend(more);
        chunk(b"fmt ", u32::try_from(body.len()).unwrap(), &body)
    };
    let sound = vec![0x80; 80_000];
    let data = |told: u32| chunk(b"data", told, &sound);
    let eight = || format(1, 8_000, 8, &[]);
    let seconds = |chunks: &[Vec<u8>]| {
        let file = [b"RIFF\xff\xff\xff\xffWAVE".to_vec(), chunks.concat()].concat();
        let length = super::audio::length(&file);
        (length.seconds.unwrap_or(0), length.is_exact)
    };
    let small = chunk(b"data", 4, b"abcd");
    let list = chunk(b"LIST", 12, b"data\x04\0\0\0abcd");
    let cover = chunk(b"id3 ", 80_000, &sound);
    // 8 valid bits of 32, as integers.
    let mut extended = vec![22, 0, 8, 0, 0, 0, 0, 0, 1, 0];
    extended.extend([0; 14]);
    for (name, chunks, expected) in [
        ("plain", vec![eight(), data(80_000)], (10, true)),
        ("piped", vec![eight(), data(u32::MAX)], (10, true)),
        ("piped without a length", vec![eight(), data(0)], (10, true)),
        (
            "metadata",
            vec![eight(), list, cover.clone(), data(80_000)],
            (10, true),
        ),
        (
            "a small data first",
            vec![eight(), small, data(80_000)],
            (11, true),
        ),
        (
            "an empty data, then metadata",
            vec![eight(), chunk(b"data", 0, b""), cover],
            (11, true),
        ),
        ("a short data", vec![eight(), data(8)], (10, true)),
        (
            "an unknown chunk",
            vec![eight(), chunk(b"xxxx", 80_000, &sound)],
            (11, true),
        ),
        (
            "a chunk beyond the end",
            vec![eight(), chunk(b"LIST", 1 << 30, &data(80_000))],
            (11, true),
        ),
        (
            "a second format",
            vec![format(1, 8_000_000, 8, &[]), eight(), data(80_000)],
            (10, true),
        ),
        (
            "a faster format last",
            vec![eight(), format(1, 8_000_000, 8, &[]), data(80_000)],
            (10, true),
        ),
        (
            "a format after the data",
            vec![format(1, 8_000_000, 8, &[]), data(80_000), eight()],
            (10, true),
        ),
        (
            "fewer valid bits",
            vec![format(0xfffe, 8_000, 32, &extended), data(80_000)],
            (10, true),
        ),
        (
            "more bits than a law has",
            vec![format(7, 8_000, 32, &[]), data(80_000)],
            (10, true),
        ),
        (
            "two samples in a byte, whatever the rate of bytes",
            vec![format(0x11, 8_000, 4_096, &[]), data(80_000)],
            (20, false),
        ),
        (
            "frames without a lowest rate",
            vec![format(0x55, 8_000, 8, &[]), data(80_000)],
            (0, false),
        ),
        (
            "such frames in the second format",
            vec![eight(), format(0x55, 8_000, 8, &[]), data(80_000)],
            (0, false),
        ),
        ("no format", vec![data(80_000)], (0, false)),
        (
            "no rate",
            vec![format(1, 0, 8, &[]), data(80_000)],
            (0, false),
        ),
    ] {
        assert_eq!(seconds(&chunks), expected, "{name}");
    }
}
