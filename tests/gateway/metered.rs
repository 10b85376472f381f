//! Endpoints beyond the three protocols: the vendor's answer passes byte for byte except for the
//! model's name, and costs exactly what the vendor counted, never more than was held.

use crate::account::{Account, micro};
use crate::client::{Answer, Connection, End, Request};
use crate::prices::{line, receipt};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::{Value, json};

const EMBEDDINGS: &str = "/v1/embeddings";
/// µc per token.
const PRICE: i64 = 13;

/// The shipped models and an embedding model.
fn plan() -> Plan {
    Plan::default().edit(
        "models:\n",
        "models:\n  - {id: beta-embed, vendor: beta, upstream_model: text-embedding-3-large, \
         kind: embedding, context_tokens: 8192, price: {input: \"13\"}}\n  \
         - {id: beta-rank, vendor: beta, upstream_model: rerank-v3.5, kind: rerank, \
         context_tokens: 4096, price: {search_unit: \"200\"}}\n  \
         - {id: beta-rank-2, vendor: beta, upstream_model: rerank-2.5, kind: rerank, \
         context_tokens: 32000, price: {input: \"5\"}}\n  \
         - {id: beta-guard, vendor: beta, upstream_model: omni-moderation-latest, \
         kind: moderation, context_tokens: 32768, price: {input: \"0\"}}\n",
    )
}

fn post(path: &str, account: &Account, body: &Value) -> Request {
    Request::post(path, body.to_string()).bearer(&account.key)
}

fn embed(world: &World, account: &Account, input: Value, more: &[(&str, Value)]) -> Answer {
    let mut body = json!({"model": "beta-embed", "input": input});
    for (name, value) in more {
        body[*name] = value.clone();
    }
    world.ask(&post(EMBEDDINGS, account, &body))
}

/// What the vendor itself answers to this body.
fn directly(world: &World, path: &str, body: &str) -> Answer {
    let request = Request::post(path, body).bearer("sim-beta-key");
    crate::client::ask(world.vendor.port, &request)
}

#[track_caller]
fn refused(answer: &Answer, param: &str, words: &str) {
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["param"], param, "{error}");
    assert!(
        error["message"].as_str().unwrap().contains(words),
        "{error}"
    );
}

#[test]
fn embeddings_pass_unchanged_and_cost_what_the_vendor_counts() {
    let (world, account) = plan().with_account();
    let mut spent = 0;
    for (input, more, tokens) in [
        (json!("[[sim input=7]] Grüße"), vec![], 7),
        (json!(["one text", "and another"]), vec![], 5),
        (json!([1, 2, 3]), vec![], 3),
        (
            json!([[1, 2], [3]]),
            vec![("encoding_format", json!("base64"))],
            3,
        ),
        (
            json!("x"),
            vec![("dimensions", json!(3)), ("user", json!("u"))],
            1,
        ),
    ] {
        let answer = embed(&world, &account, input.clone(), &more);
        let receipt = receipt(&world, &account, &answer);
        let sent = world.vendor.last()["body"].as_str().unwrap().to_owned();
        assert!(
            sent.contains(r#""model":"text-embedding-3-large""#),
            "{sent}"
        );
        let own = directly(&world, EMBEDDINGS, &sent).text();
        let own = own.replace("text-embedding-3-large", "beta-embed");
        let own = own.trim_end();
        assert_eq!(answer.text(), own, "{input}");
        assert_eq!(
            answer.header("content-length"),
            Some(own.len().to_string().as_str())
        );
        let input_line = line(&receipt, "input");
        assert_eq!(input_line["tokens"], tokens, "{receipt}");
        assert_eq!(micro(&receipt["credits"]), i64::from(tokens) * PRICE);
        assert_eq!(
            (&receipt["estimated"], receipt.get("implausible")),
            (&json!(false), None)
        );
        let credits = micro(&json!(answer.header("x-gateway-credits").unwrap()));
        assert_eq!(credits, i64::from(tokens) * PRICE);
        spent += credits;
    }
    // No believable count: 0.3 tokens for each byte, and never more than was held.
    for (usage, is_estimated) in [
        ("none", true),
        ("zero", true),
        ("negative", true),
        ("huge", false),
        ("normal input=400", false),
    ] {
        let text = format!("[[sim usage={usage}]]");
        let bytes = i64::try_from(text.len()).unwrap();
        let answer = embed(&world, &account, json!(text), &[]);
        let receipt = receipt(&world, &account, &answer);
        assert_eq!(receipt["estimated"], is_estimated, "{usage}: {receipt}");
        assert_eq!(
            receipt.get("implausible").is_some(),
            !is_estimated,
            "{receipt}"
        );
        let expected = if is_estimated {
            (bytes * 3 + 9) / 10
        } else {
            bytes + 32
        };
        let tokens = &line(&receipt, "input")["tokens"];
        assert_eq!(*tokens, expected, "{usage}: {receipt}");
        spent += micro(&receipt["credits"]);
    }
    assert_eq!(world.standing(&account).balance, 300_000_000 - spent);
    // 300 000 token ids are one request, however many JSON values they are.
    let lists: Vec<_> = (0..40).map(|_| vec![1; 7_500]).collect();
    let answer = embed(&world, &account, json!(lists), &[]);
    assert_eq!(
        line(&receipt(&world, &account, &answer), "input")["tokens"],
        300_000
    );
}

#[test]
fn the_paths_of_one_vendor_pass_unchanged_and_cost_what_it_counts() {
    let world = plan().start();
    let account = world.account();
    let types = json!(["float", "uint8", "base64"]);
    for (path, mut body, tokens, is_estimated) in [
        (
            "/v2/embed",
            json!({"texts": ["[[sim input=7]]", "two"], "embedding_types": types}),
            7,
            false,
        ),
        ("/v1/embed", json!({"texts": ["one"]}), 1, false),
        (
            "/v2/embed",
            json!({"texts": ["[[sim usage=none]]"]}),
            6,
            true,
        ),
        (
            "/v1/contextualizedembeddings",
            json!({"inputs": [["[[sim input=5]]", "b"], ["c"]]}),
            5,
            false,
        ),
        (
            "/v1/contextualizedembeddings",
            json!({"inputs": [["[[sim usage=zero]]", "b"]]}),
            6,
            true,
        ),
    ] {
        body["model"] = json!("beta-embed");
        let answer = world.ask(&post(path, &account, &body));
        let receipt = receipt(&world, &account, &answer);
        let sent = world.vendor.last();
        assert_eq!(sent["path"], path);
        let own = directly(&world, path, sent["body"].as_str().unwrap()).text();
        let own = own.replace("text-embedding-3-large", "beta-embed");
        assert_eq!(answer.text(), own, "{body}");
        assert_eq!(line(&receipt, "input")["tokens"], tokens, "{receipt}");
        assert_eq!(receipt["estimated"], is_estimated, "{receipt}");
    }
    let calls = world.vendor.calls();
    for (path, members, param, words) in [
        (
            "/v2/embed",
            json!({"texts": ["x"], "images": ["data:x"]}),
            "images",
            "price of their own",
        ),
        (
            "/v2/embed",
            json!({"inputs": [{"content": []}]}),
            "inputs",
            "send texts",
        ),
        ("/v1/embed", json!({}), "texts", "Missing"),
        (
            "/v1/contextualizedembeddings",
            json!({"inputs": [[["x"]]]}),
            "inputs",
            "lists of strings",
        ),
        (
            "/v1/contextualizedembeddings",
            json!({"model": "beta-5.2", "inputs": [["x"]]}),
            "model",
            "/v1/chat/completions",
        ),
    ] {
        let mut body = json!({"model": "beta-embed"});
        let members = members.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(members);
        refused(&world.ask(&post(path, &account, &body)), param, words);
    }
    assert_eq!(world.vendor.calls(), calls);
    world.close();
}

#[test]
fn what_an_embeddings_request_may_not_ask_for_is_refused_and_a_vendors_refusal_keeps_its_words() {
    let (world, account) = plan().with_account();
    let calls = world.vendor.calls();
    let chat = json!({"model": "beta-5.2", "input": "x"});
    refused(
        &world.ask(&post(EMBEDDINGS, &account, &chat)),
        "model",
        "/v1/chat/completions",
    );
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"model": "beta-embed", "messages": [{"role": "user", "content": "x"}]}),
        ),
        (
            "/v1/responses",
            json!({"model": "beta-embed", "input": "x"}),
        ),
    ] {
        refused(
            &world.ask(&post(path, &account, &body)),
            "model",
            EMBEDDINGS,
        );
    }
    let refused_with = |members: Value, param: &str, words: &str| {
        let mut body = json!({"model": "beta-embed", "input": "x"});
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        refused(&world.ask(&post(EMBEDDINGS, &account, &body)), param, words);
    };
    refused_with(
        json!({"encoding_format": "bytes"}),
        "encoding_format",
        "float, base64",
    );
    refused_with(json!({"messages": []}), "messages", "not supported");
    refused_with(
        json!({"input": [{"image": "x"}]}),
        "input",
        "expected a string",
    );
    refused_with(json!({"input": null}), "input", "Missing");
    refused_with(json!({"Model": "x"}), "Model", "did you mean 'model'");
    let twice = r#"{"model":"beta-embed","input":"x","input":"y"}"#;
    let twice = Request::post(EMBEDDINGS, twice).bearer(&account.key);
    refused(&world.ask(&twice), "input", "more than once");
    assert_eq!(
        world.vendor.calls(),
        calls,
        "the gateway refused all of them"
    );
    let answer = embed(&world, &account, json!("x"), &[("dimensions", json!(0))]);
    refused(&answer, "dimensions", "expected 1 to 3072");
    let answer = embed(&world, &account, json!("x"), &[("unknown", json!(0))]);
    assert!(
        answer.status == 400 && answer.text().contains("unknown field"),
        "{}",
        answer.text()
    );
    let poor = world.funded(100);
    let answer = embed(&world, &poor, json!("x".repeat(1_000)), &[]);
    let text = answer.text();
    assert!(
        answer.status == 402
            && text.contains("up to 1032 input tokens")
            && text.contains("7 of them are affordable"),
        "{text}"
    );
    assert_eq!(world.standing(&account).balance, 300_000_000);
}

#[test]
fn a_long_answer_streams_and_one_that_breaks_off_is_free_and_never_ends_cleanly() {
    let (world, account) = plan().with_account();
    let texts: Vec<_> = (0..2_048).map(|index| format!("text {index}")).collect();
    let members = [
        ("dimensions", json!(3_072)),
        ("encoding_format", json!("base64")),
    ];
    let answer = embed(&world, &account, json!(texts), &members);
    assert!(answer.body.len() > 33_554_432, "{}", answer.body.len());
    assert_eq!(answer.json()["data"].as_array().unwrap().len(), 2_048);
    assert_eq!(answer.json()["model"], "beta-embed");
    let receipt = receipt(&world, &account, &answer);
    let vendor = answer.json()["usage"]["prompt_tokens"].clone();
    assert_eq!(line(&receipt, "input")["tokens"], vendor);
    let balance = world.standing(&account).balance;
    // After half of a body that is short, and of one that has begun to pass.
    let short = embed(&world, &account, json!("[[sim cut=1]]"), &[]);
    assert_eq!(short.status, 502, "{}", short.text());
    let mut long = texts;
    long[0] = "[[sim cut=1]]".to_owned();
    let long = embed(&world, &account, json!(long), &members);
    assert_eq!((long.status, long.end()), (200, Some(End::Cut)));
    // An error in a 200 or a 202 counts by its words alone.
    for (marker, status) in [
        ("shape=error", 502),
        ("status=202 error_type=server_error", 502),
        ("status=502", 502),
        ("shape=error error_type=invalid_request_error", 400),
        ("status=202 error_type=invalid_request_error", 400),
    ] {
        let failed = embed(&world, &account, json!(format!("[[sim {marker}]]")), &[]);
        assert_eq!(failed.status, status, "{marker}: {}", failed.text());
    }
    let standing = wait_for("the end of every hold", SOON, || {
        Some(world.standing(&account)).filter(|standing| standing.held == 0)
    });
    assert_eq!(standing.balance, balance);
}

#[test]
fn a_client_of_http_1_0_gets_a_long_answer_whole_with_its_length_or_an_error() {
    let (world, account) = plan().with_account();
    let ask = |first: &str, count: usize| {
        let texts: Vec<_> = std::iter::once(first)
            .chain(std::iter::repeat_n("text", count))
            .collect();
        let body = json!({"model": "beta-embed", "input": texts, "encoding_format": "base64",
            "dimensions": 3_072});
        let request = post(EMBEDDINGS, &account, &body).bytes();
        let request = String::from_utf8(request).unwrap();
        let mut connection = Connection::open(world.edge);
        connection.send(request.replace(" HTTP/1.1", " HTTP/1.0").as_bytes());
        connection.answer()
    };
    let answer = ask("text", 100);
    assert!(answer.body.len() > 1_048_576, "{}", answer.body.len());
    let length = answer.body.len().to_string();
    assert_eq!(answer.header("content-length"), Some(length.as_str()));
    receipt(&world, &account, &answer);
    let balance = world.standing(&account).balance;
    for (first, count, words) in [
        ("[[sim cut=1]]", 100, "did not answer correctly"),
        ("text", 2_047, "larger than this gateway accepts"),
    ] {
        let failed = ask(first, count);
        let text = failed.text();
        assert!(failed.status == 502 && text.contains(words), "{text}");
    }
    let standing = wait_for("the end of every hold", SOON, || {
        Some(world.standing(&account)).filter(|standing| standing.held == 0)
    });
    assert_eq!(standing.balance, balance);
}

#[test]
fn reranking_costs_search_units_or_tokens_and_a_moderation_may_be_free() {
    let (world, account) = plan().with_account();
    let rank = |path: &str, model: &str, query: &str, documents: &Value| {
        let body = json!({"model": model, "query": query, "documents": documents});
        let answer = world.ask(&post(path, &account, &body));
        let receipt = receipt(&world, &account, &answer);
        (answer, receipt)
    };
    let texts = json!(["one", {"text": "two"}]);
    for (path, query, units, flags) in [
        ("/v2/rerank", "[[sim input=1]] who?", 1, (false, false)),
        ("/v1/rerank", "who?", 1, (false, false)),
        // Up to 1 unit can be used, and that is what an answer without usage costs.
        ("/v2/rerank", "[[sim usage=none]]", 1, (true, false)),
        ("/v2/rerank", "[[sim usage=zero]]", 1, (true, false)),
        ("/v2/rerank", "[[sim input=7]]", 1, (false, true)),
    ] {
        let (answer, receipt) = rank(path, "beta-rank", query, &texts);
        assert_eq!(answer.json()["results"].as_array().unwrap().len(), 2);
        assert_eq!(world.vendor.last()["path"], path);
        assert_eq!(line(&receipt, "search_unit")["units"], units, "{receipt}");
        assert_eq!(micro(&receipt["credits"]), 200_000);
        let found = (
            receipt["estimated"] == true,
            receipt.get("implausible").is_some(),
        );
        assert_eq!(found, flags, "{query}: {receipt}");
    }
    let many = json!(vec!["x".repeat(600); 101]);
    let (_, units) = rank("/v2/rerank", "beta-rank", "[[sim usage=none]]", &many);
    assert_eq!(
        line(&units, "search_unit")["units"],
        3,
        "202 pieces: {units}"
    );
    let (answer, tokens) = rank(
        "/v1/rerank",
        "beta-rank-2",
        "who",
        &json!(["four", "bytes"]),
    );
    assert_eq!(answer.json()["model"], "beta-rank-2");
    assert_eq!(
        line(&tokens, "input")["tokens"],
        answer.json()["usage"]["total_tokens"]
    );
    for (documents, words) in [
        (json!([{"image": "https://x"}]), "images"),
        (json!("one"), "an array"),
        (json!(null), "Missing"),
    ] {
        let body = json!({"model": "beta-rank", "query": "q", "documents": documents});
        refused(
            &world.ask(&post("/v1/rerank", &account, &body)),
            "documents",
            words,
        );
    }
    let wrong = json!({"model": "beta-embed", "query": "q", "documents": ["x"]});
    refused(
        &world.ask(&post("/v1/rerank", &account, &wrong)),
        "model",
        EMBEDDINGS,
    );
    let balance = world.standing(&account).balance;
    let moderate = |body: Value| world.ask(&post("/v1/moderations", &account, &body));
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    for body in [
        json!({"input": "fine"}),
        json!({"input": ["fine", "too"], "model": null}),
        json!({"input": [{"type": "text", "text": "fine"}, image], "model": "beta-guard"}),
    ] {
        let answer = moderate(body.clone());
        let receipt = receipt(&world, &account, &answer);
        assert_eq!(answer.json()["model"], "beta-guard", "{body}");
        assert_eq!(receipt["model"], "beta-guard");
        let sent = world.vendor.last()["body"].as_str().unwrap().to_owned();
        let sent: Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(sent["model"], "omni-moderation-latest", "{sent}");
    }
    assert_eq!(world.standing(&account).balance, balance);
    let far = json!({"type": "image_url", "image_url": {"url": "https://x.test/a.png"}});
    refused(&moderate(json!({"input": [far]})), "input", "data URLs");
    let list = world
        .ask(&Request::get("/v1/models").bearer(&account.key))
        .json();
    let kinds = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["kind"]);
    let kinds: Vec<_> = kinds.take(5).collect();
    assert_eq!(
        kinds,
        ["embedding", "rerank", "rerank", "moderation", "chat"]
    );
}
