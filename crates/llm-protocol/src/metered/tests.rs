use super::*;
use crate::failure::Failure;
use crate::usage::{CountedUnit, Excess, MeteredUsage, Usage, UsageVerdict};
use crate::vendor_response::UpstreamError;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

const CONTEXT: u64 = 8_192;

fn endpoint(path: &str) -> &'static MeteredEndpoint {
    let mut all = ENDPOINTS.iter();
    all.find(|endpoint| endpoint.path == path).unwrap()
}

fn read(path: &str, body: &Value) -> Result<MeteredRequest, Failure> {
    MeteredRequest::read(endpoint(path), body.to_string().as_bytes(), 1_000)
}

fn tokens(path: &str, body: &Value) -> MeteredTerms {
    let request = read(path, body).unwrap_or_else(|failure| panic!("{}: {body}", failure.message));
    MeteredTerms::new(
        endpoint(path),
        BilledUnit::InputTokens,
        &request.content,
        CONTEXT,
    )
}

fn pieces(terms: MeteredTerms, body: &[u8], size: usize) -> (MeteredAnswer, Vec<u8>) {
    let (mut answer, mut out) = (MeteredAnswer::new(terms, "public"), Vec::new());
    for piece in body.chunks(size) {
        answer.push(piece, &mut out).unwrap();
    }
    if answer.is_complete() {
        out.push(MeteredAnswer::LAST);
    }
    (answer, out)
}

fn metered(terms: MeteredTerms, body: &Value) -> MeteredUsage {
    pieces(terms, body.to_string().as_bytes(), 1_000)
        .0
        .usage()
        .unwrap()
}

#[test]
fn an_input_is_bounded_by_its_bytes_or_ids_and_by_the_context_of_each() {
    let bound =
        |input: Value| tokens("/v1/embeddings", &json!({"model": "m", "input": input})).bound;
    assert_eq!(bound(json!("größe")), 7 + 32);
    assert_eq!(bound(json!(["ab", "c"])), 3 + 64);
    assert_eq!(bound(json!([1, 2, 3])), 3 + 32);
    assert_eq!(bound(json!([[1, 2], [3], []])), 3 + 64);
    assert_eq!(bound(json!([])), 32);
    assert_eq!(bound(json!("x".repeat(9_000))), CONTEXT);
}

#[test]
fn a_rerank_request_is_bounded_by_its_pairs_and_a_moderation_by_its_texts_and_images() {
    let body = |query: &str, documents: Value| json!({"model": "m", "query": query, "documents": documents});
    let rank = body("12345", json!(["123", {"text": "12"}]));
    assert_eq!(tokens("/v1/rerank", &rank).bound, 2 * (5 + 128) + 3 + 13);
    let long = body("q", json!(["x".repeat(20_000)]));
    assert_eq!(tokens("/v1/rerank", &long).bound, CONTEXT);
    let units = |body: &Value| {
        let request = read("/v2/rerank", body).unwrap();
        let unit = BilledUnit::Counted(CountedUnit::SearchUnit);
        MeteredTerms::new(endpoint("/v2/rerank"), unit, &request.content, CONTEXT).bound
    };
    assert_eq!(units(&body("q", json!([]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x"; 100]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x"; 101]))), 2);
    assert_eq!(units(&body("q", json!(vec!["x".repeat(499); 100]))), 1);
    assert_eq!(units(&body("q", json!(vec!["x".repeat(500); 100]))), 2);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let parts = json!({"input": [{"type": "text", "text": "abc"}, image]});
    assert_eq!(tokens("/v1/moderations", &parts).bound, 3 + 32 + CONTEXT);
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
        let request = MeteredRequest::read(endpoint("/v1/moderations"), body, 9).unwrap();
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
    assert!(MeteredRequest::read(endpoint("/v1/moderations"), twice, 9).is_err());
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
            MeteredRequest::read(endpoint("/v1/embeddings"), body.as_bytes(), 9).unwrap_err();
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
    let request = MeteredRequest::read(endpoint("/v1/embeddings"), &body, 9).unwrap();
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
    let found = pieces(terms, escaped, 5).0.usage().unwrap();
    assert_eq!((found.usage.input, found.verdict), (7, UsageVerdict::Exact));
    let cohere = json!({"data": [1], "meta": {"billed_units": {"input_tokens": 7.0}}});
    assert_eq!(metered(terms, &cohere).usage.input, 7);
}

#[test]
fn what_is_no_answer_is_an_error() {
    let terms = tokens("/v1/embeddings", &json!({"model": "m", "input": "x"}));
    let outcome = |body: &str| {
        let mut answer = MeteredAnswer::new(terms, "public");
        answer.push(body.as_bytes(), &mut Vec::new())?;
        assert!(answer.is_complete(), "{body}");
        answer.usage()
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
        let (answer, out) = pieces(terms, body.as_bytes(), size);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{size}");
        assert_eq!(answer.usage().unwrap().usage.input, 1);
    }
    for cut in 0..body.trim_end().len() {
        let (answer, _) = pieces(terms, &body.as_bytes()[..cut], 7);
        assert!(!answer.is_complete(), "{cut}");
    }
    let marked = b"\xef\xbb\xbf{\"data\":[1]} trailing";
    assert_eq!(pieces(terms, marked, 1).1, b"{\"data\":[1]}");
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
    /// For every endpoint and any request and answer: what is billed is at most the bound, which is
    /// what is held for.
    #[test]
    fn a_hold_is_never_smaller_than_the_debit(
        index in 0..ENDPOINTS.len(),
        texts in prop::collection::vec(".{0,40}", 0..5),
        ids in any::<bool>(),
        context in 1_u64..10_000,
        is_counted in any::<bool>(),
        answer in json_value(),
    ) {
        let endpoint = &ENDPOINTS[index];
        let sample: Value = serde_json::from_str(&endpoint.sample_body("m")).unwrap();
        let mut body = sample;
        for name in ["input", "documents"] {
            if body.get(name).is_some() {
                body[name] = match ids && name == "input" {
                    true => json!([[1, 2], [3]]),
                    false => json!(texts),
                };
            }
        }
        let request = MeteredRequest::read(endpoint, body.to_string().as_bytes(), 100).unwrap();
        let unit = match is_counted && endpoint.kind == ModelKind::Rerank {
            true => BilledUnit::Counted(CountedUnit::SearchUnit),
            false => BilledUnit::InputTokens,
        };
        let terms = MeteredTerms::new(endpoint, unit, &request.content, context);
        let count = |usage: Usage| match unit {
            BilledUnit::InputTokens => usage.input,
            BilledUnit::Counted(unit) => usage.units(unit),
        };
        prop_assert!(count(terms.estimate()) <= terms.bound);
        let (mut reader, mut out) = (MeteredAnswer::new(terms, "p"), Vec::new());
        if reader.push(answer.to_string().as_bytes(), &mut out).is_ok()
            && reader.is_complete()
            && let Ok(metered) = reader.usage()
        {
            let billed = count(metered.usage);
            prop_assert!(billed <= terms.bound);
            prop_assert_eq!(metered.usage, unit.usage(billed));
        }
    }

    /// Any JSON object passes unchanged but for its model, however it is cut into pieces.
    #[test]
    fn a_document_passes_in_any_pieces(members in prop::collection::btree_map("model|data|usage|[a-z]{0,3}", json_value(), 0..6), size in 1_usize..40) {
        let terms = MeteredTerms::unbounded(&ENDPOINTS[0], BilledUnit::InputTokens);
        let text = Value::Object(members.into_iter().collect()).to_string();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let (answer, out) = pieces(terms, text.as_bytes(), size);
        prop_assert!(answer.is_complete());
        if document["model"].is_string() {
            document["model"] = json!("public");
        }
        prop_assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), document);
    }

    /// Bytes that are no JSON neither panic nor pass beyond what was there.
    #[test]
    fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200), size in 1_usize..20) {
        let terms = MeteredTerms::unbounded(&ENDPOINTS[0], BilledUnit::InputTokens);
        let (mut answer, mut out) = (MeteredAnswer::new(terms, "p"), Vec::new());
        for piece in body.chunks(size) {
            if answer.push(piece, &mut out).is_err() {
                break;
            }
        }
        let _ = answer.usage();
        let _ = MeteredRequest::read(&ENDPOINTS[0], &body, 9);
    }
}
