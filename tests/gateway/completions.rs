//! The completions API: prompts in the place of messages. Requests and answers pass unchanged
//! except for the model's name, and are held, ended and billed as those of chat.

use crate::account::{Account, micro, taken};
use crate::client::{Answer, Request};
use crate::prices::{line, receipt};
use crate::world::{Plan, World};
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";
const FIM: &str = "/v1/fim/completions";
/// µc per token, of input and output.
const PRICES: (i64, i64) = (150, 200);
const MAX_OUTPUT: i64 = 2_000;

fn plan() -> Plan {
    Plan::default().limit("drain_after_client_seconds", 60).edit(
        "models:\n",
        "models:\n  - {id: beta-text, vendor: beta, upstream_model: text-1, context_tokens: 4096, \
         max_output_tokens: 2000, capabilities: {completions: text}, fallback: [beta-5.2], \
         price: {input: \"150\", output: \"200\"}}\n  \
         - {id: beta-fim, vendor: beta, upstream_model: fim-1, context_tokens: 4096, \
         max_output_tokens: 2000, capabilities: {completions: fim}, \
         price: {input: \"150\", output: \"200\"}}\n",
    )
}

fn body(prompt: &Value, more: &Value) -> Value {
    let mut body = json!({"model": "beta-text", "prompt": prompt});
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

fn request(account: &Account, prompt: &Value, more: &Value) -> Request {
    Request::post(TEXT, body(prompt, more).to_string()).bearer(&account.key)
}

/// The last body that the vendor got.
fn sent(world: &World) -> Value {
    let body = world.vendor.last()["body"].as_str().unwrap().to_owned();
    serde_json::from_str(&body).unwrap()
}

/// What the vendor itself answers to the last body that it got.
fn directly(world: &World, path: &str) -> Answer {
    let body = world.vendor.last()["body"].as_str().unwrap().to_owned();
    let request = Request::post(path, body).bearer("sim-beta-key");
    crate::client::ask(world.vendor.port, &request)
}

/// An answer's text without what differs between two answers to one request.
fn comparable(answer: &Answer) -> String {
    let text = answer.text();
    let document = text.lines().find_map(|line| {
        let data = line.strip_prefix("data: ").unwrap_or(&text);
        serde_json::from_str::<Value>(data).ok()
    });
    let document = document.unwrap_or_else(|| panic!("{text}"));
    let id = document["id"].as_str().unwrap();
    let created = document["created"].to_string();
    let text = text.replace(id, "ID").replace(&created, "CREATED");
    let renamed = text.replace("\"text-1\"", "\"beta-text\"");
    renamed
        .replace("\"fim-1\"", "\"beta-fim\"")
        .trim_end()
        .to_owned()
}

/// Checks the receipt of an answer: exactly these tokens, at the model's prices.
#[track_caller]
fn costs(world: &World, account: &Account, answer: &Answer, input: i64, output: i64) {
    let receipt = receipt(world, account, answer);
    let tokens = |class| line(&receipt, class)["tokens"].as_i64();
    assert_eq!(
        (tokens("input"), tokens("output")),
        (Some(input), Some(output)),
        "{receipt}"
    );
    let credits = input * PRICES.0 + output * PRICES.1;
    assert_eq!(micro(&receipt["credits"]), credits, "{receipt}");
    assert_eq!(receipt["estimated"], false, "{receipt}");
}

#[test]
fn a_completion_passes_unchanged_and_costs_what_the_vendor_counts() {
    let (world, account) = plan().with_account();
    let usage = "[[sim input=7 output=5 text=\"one two\"]]";
    for (prompt, more, tokens) in [
        (
            json!(usage),
            json!({"suffix": "end", "temperature": 0.5, "user": "u"}),
            Some((7, 5)),
        ),
        (
            json!(usage),
            json!({"echo": true, "logprobs": 2, "seed": 1, "stop": ["x"]}),
            Some((7, 5)),
        ),
        (json!("x"), json!({"n": 2, "max_tokens": 3}), Some((1, 6))),
        // The vendor returns one of three texts, and counts all of them.
        (
            json!(["x", "y"]),
            json!({"best_of": 3, "max_tokens": 3}),
            Some((2, 18)),
        ),
        (json!([1, 2, 3]), json!({"max_tokens": 2}), Some((3, 2))),
        (json!([[1, 2], [3]]), json!({"max_tokens": 2}), Some((3, 4))),
        (json!(null), json!({}), None),
        (json!("x"), json!({"max_tokens": 0, "echo": true}), None),
    ] {
        let answer = world.ask(&request(&account, &prompt, &more));
        assert_eq!(answer.status, 200, "{prompt} {more}: {}", answer.text());
        let mut expected = body(&prompt, &more);
        expected["model"] = "text-1".into();
        assert_eq!(sent(&world), expected, "only the name differs");
        assert_eq!(comparable(&answer), comparable(&directly(&world, TEXT)));
        match tokens {
            Some((input, output)) => costs(&world, &account, &answer, input, output),
            None => drop(receipt(&world, &account, &answer)),
        }
    }
    // Also below another base address.
    let body = json!({"model": "beta-text", "prompt": "x"}).to_string();
    for path in ["/completions", "/v1/v1/completions"] {
        world.expect(200, &Request::post(path, body.clone()).bearer(&account.key));
    }
    let gap = json!({"model": "beta-fim", "prompt": usage, "suffix": "end", "random_seed": 1});
    for stream in [false, true] {
        let mut gap = gap.clone();
        gap["stream"] = stream.into();
        let answer = world.ask(&Request::post(FIM, gap.to_string()).bearer(&account.key));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.has("\"chat.completion"), "{}", answer.text());
        costs(&world, &account, &answer, 7, 5);
        assert_eq!(sent(&world)["model"], "fim-1");
    }
}

#[test]
fn a_stream_of_completions_ends_only_with_its_debit() {
    let (world, account) = plan().with_account();
    let prompt = json!([
        "[[sim input=7 output=5 events=4 text=\"one two three\"]]",
        "y"
    ]);
    let stream = |more: Value| {
        let mut all = json!({"stream": true, "n": 2});
        let members = more.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(members);
        request(&account, &prompt, &all)
    };
    let asked = json!({"stream_options": {"include_usage": true, "include_obfuscation": false}});
    let answer = world.ask(&stream(asked));
    assert_eq!(comparable(&answer), comparable(&directly(&world, TEXT)));
    costs(&world, &account, &answer, 7, 5);
    let text = answer.text();
    assert!(
        text.contains("\"completion_tokens\":5") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    // The gateway asks for the usage, and hides what the client did not ask for.
    let hidden = world.ask(&stream(json!({})));
    assert_eq!(sent(&world)["stream_options"]["include_usage"], true);
    assert!(
        !hidden.has("usage") && hidden.text().ends_with("data: [DONE]\n\n"),
        "{}",
        hidden.text()
    );
    costs(&world, &account, &hidden, 7, 5);
    // Without a usage, the texts are counted: never more than is held.
    let none = json!("[[sim usage=none text=\"one two three\"]]");
    let answer = world.ask(&request(
        &account,
        &none,
        &json!({"stream": true, "max_tokens": 3}),
    ));
    let estimate = receipt(&world, &account, &answer);
    assert_eq!(estimate["estimated"], true, "{estimate}");
    assert!(
        line(&estimate, "output")["tokens"].as_i64().unwrap() <= 3,
        "{estimate}"
    );
    // One of six texts returns, and all six cost.
    let one_of = |best_of: u64| {
        let more = json!({"best_of": best_of});
        let answer = world.ask(&request(&account, &none, &more));
        let receipt = receipt(&world, &account, &answer);
        line(&receipt, "output")["tokens"].as_f64().unwrap()
    };
    let (one, six) = (one_of(1), one_of(6));
    assert!(one > 2.0 && (six / one - 6.0).abs() < 1.6, "{one} {six}");
    let huge = json!("[[sim input=7 output=9999]]");
    let answer = world.ask(&request(
        &account,
        &huge,
        &json!({"best_of": 2, "max_tokens": 3}),
    ));
    let most = receipt(&world, &account, &answer);
    assert_eq!(line(&most, "output")["tokens"], 6, "{most}");
    assert!(most.get("implausible").is_some(), "{most}");
    // A vendor that breaks off is not paid, and one that leaves out only its last event is.
    let balance = world.standing(&account).balance;
    let cut = world.ask(&request(
        &account,
        &json!("[[sim cut=3 events=9 bytes=90]]"),
        &json!({"stream": true}),
    ));
    assert!(cut.has("data: {\"error\":{"), "{}", cut.text());
    let whole = world.ask(&request(
        &account,
        &json!("[[sim cut=1 bytes=90]]"),
        &json!({}),
    ));
    assert_eq!(whole.status, 502, "{}", whole.text());
    let refused = world.ask(&request(&account, &json!("[[sim status=400]]"), &json!({})));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(world.standing(&account).balance, balance);
    let unfinished = json!("[[sim nodone=1 input=7 output=5]]");
    let answer = world.ask(&request(&account, &unfinished, &json!({"stream": true})));
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    costs(&world, &account, &answer, 7, 5);
}

#[test]
fn a_client_that_leaves_pays_what_the_vendor_counts() {
    let (world, account) = plan().with_account();
    let prompt = json!("[[sim input=70 output=50 events=20 bytes=400 gap_ms=40]]");
    let (mut connection, mut answer) = world.begin(&request(
        &account,
        &prompt,
        &json!({"stream": true, "max_tokens": 100}),
    ));
    connection.until(&mut answer, "\"text\":\"");
    drop(connection);
    let ending = world.ended(&account, 1);
    assert_eq!(ending["outcome"], "client_left", "{ending}");
    let receipt = world.receipt(&account, ending["request_id"].as_str().unwrap());
    assert_eq!(
        micro(&receipt["credits"]),
        70 * PRICES.0 + 50 * PRICES.1,
        "{receipt}"
    );
}

#[test]
fn a_killed_gateway_bills_a_completion_only_if_its_ending_is_in_the_journal() {
    let mut world = plan().start();
    let account = world.funded(100_000_000);
    let stream = request(
        &account,
        &json!("[[sim input=7 output=5 events=4 gap_ms=15]]"),
        &json!({"stream": true, "max_tokens": 50}),
    );
    let mut known = 0;
    for (point, is_debited) in [
        ("mid_stream:3", false),
        ("before_journal_end", false),
        ("after_journal_end", true),
    ] {
        world.kill();
        world.start_failing(Some(point));
        let mut connection = world.connect();
        connection.send(&stream.bytes());
        if let Some(mut answer) = connection.try_begin() {
            connection.finish(&mut answer);
            assert!(!answer.has("[DONE]"), "{point}: {}", answer.text());
        }
        world.kill();
        world.start_gateway();
        known += 1;
        let ending = world.ended(&account, known);
        let cost = 7 * PRICES.0 + 5 * PRICES.1;
        let expected = if is_debited { cost } else { 0 };
        assert_eq!(taken(&[ending]), expected, "{point}");
    }
}

#[test]
fn a_hold_covers_each_text_and_the_output_limit_is_lowered_to_what_the_account_pays() {
    let world = plan().start();
    let account = world.funded(1_000_000);
    let prompt = json!("x");
    let answer = world.ask(&request(
        &account,
        &prompt,
        &json!({"n": 4, "max_tokens": 10}),
    ));
    assert_eq!(answer.header("x-gateway-warnings"), None);
    // Four texts of the model's most tokens cost more than the account has.
    let before = world.standing(&account).balance;
    assert!(before < MAX_OUTPUT * 4 * PRICES.1);
    for more in [
        json!({"n": 4}),
        json!({"best_of": 4}),
        json!({"n": 4, "max_tokens": null}),
    ] {
        let answer = world.expect(200, &request(&account, &prompt, &more));
        answer.has_header("x-gateway-warnings", "clamped:max_tokens");
        let limit = sent(&world)["max_tokens"].as_i64().unwrap();
        assert!(limit > 1_000 && limit * 4 * PRICES.1 <= before, "{limit}");
    }
    let strict = request(&account, &prompt, &json!({"n": 4})).header("x-gateway-strict", "true");
    world.expect(402, &strict);
    let many = request(
        &account,
        &json!(vec!["x"; 128]),
        &json!({"max_tokens": 100}),
    );
    world.expect(402, &many);
    let calls = world.vendor.calls();
    let poor = world.account_with("poor@example.test", &["--no-trial"]);
    world.expect(402, &request(&poor, &prompt, &json!({})));
    assert_eq!(world.vendor.calls(), calls);
}

#[test]
fn a_repeated_completion_is_replayed_and_costs_nothing() {
    let (world, account) = plan().with_account();
    for stream in [false, true] {
        let key = format!("key-{stream}");
        let keyed = request(
            &account,
            &json!("[[sim input=7 output=5]]"),
            &json!({"stream": stream}),
        )
        .header("idempotency-key", &key);
        let first = world.expect(200, &keyed);
        let (balance, calls) = (world.standing(&account).balance, world.vendor.calls());
        let second = world.ask(&keyed);
        assert_eq!(second.header("x-gateway-replayed"), Some("true"));
        assert_eq!(second.text(), first.text());
        assert_eq!(world.standing(&account).balance, balance);
        assert_eq!(world.vendor.calls(), calls);
        let other = request(&account, &json!("other"), &json!({})).header("idempotency-key", &key);
        world.expect(422, &other);
    }
}

#[test]
fn a_model_without_completions_and_members_that_change_the_bill_are_refused() {
    let (world, account) = plan().with_account();
    let calls = world.vendor.calls();
    for (path, model, words) in [
        (TEXT, "beta-5.2", "/v1/chat/completions"),
        (TEXT, "alpha-opus-4-7", "/v1/messages"),
        (TEXT, "beta-fim", FIM),
        (FIM, "beta-text", TEXT),
    ] {
        let body = json!({"model": model, "prompt": "x"}).to_string();
        let answer = world.ask(&Request::post(path, body).bearer(&account.key));
        assert!(
            answer.status == 400 && answer.text().contains(words),
            "{path} {model}: {}",
            answer.text()
        );
        assert_eq!(answer.json()["error"]["param"], "model");
    }
    for (more, param) in [
        (json!({"n_predict": 9}), "max_tokens"),
        (json!({"max_completion_tokens": 9}), "max_completion_tokens"),
        (json!({"prompt_embeds": "AA"}), "prompt_embeds"),
        (json!({"n": 65, "prompt": ["x", "y"]}), "prompt"),
        (json!({"prompt": [{"text": "x"}]}), "prompt"),
    ] {
        let answer = world.ask(&request(&account, &json!("x"), &more));
        assert_eq!(answer.status, 400, "{more}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{more}");
    }
    assert_eq!(world.vendor.calls(), calls);
    // No other model answers, and nothing is left out.
    let failed = world.ask(&request(&account, &json!("[[sim status=500]]"), &json!({})));
    assert_eq!(failed.status, 502, "{}", failed.text());
    assert!(world.vendor.calls() > calls);
    assert_eq!(sent(&world)["model"], "text-1");
    let unknown = world.ask(&request(&account, &json!("x"), &json!({"unknown": 1})));
    assert!(
        unknown.status == 400 && unknown.text().contains("unknown field"),
        "{}",
        unknown.text()
    );
}
