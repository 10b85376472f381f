//! Tests requests in their model's protocol that contain members which the model refuses. The
//! gateway repairs exactly these members and names them in a warning; every other byte arrives as
//! it was sent. The simulated vendors refuse all that the real ones refuse.

use crate::account::micro;
use crate::client::{Answer, Request};
use crate::fallback::passed_on;
use crate::world::{Plan, Simulator, World};
use serde_json::{Value, json};

const STRICT: &str = "[[sim input=100 output=10]]";

fn post(path: &str, body: &str, key: &str) -> Request {
    Request::post(path, body.to_owned()).bearer(key)
}

fn warnings(answer: &Answer) -> Vec<&str> {
    let mut all: Vec<_> = answer
        .header("x-gateway-warnings")
        .unwrap_or_default()
        .split(", ")
        .collect();
    all.retain(|token| !token.is_empty());
    all
}

/// The body that the vendor received last, as text.
fn sent(world: &World) -> String {
    world.vendor.last()["body"].as_str().unwrap().to_owned()
}

fn chat(model: &str, members: &str) -> String {
    format!(
        r#"{{"model":"{model}",{members},"messages" : [{{"role":"user","content":"{STRICT} \u00e9"}}]}}"#
    )
}

#[test]
fn what_popular_clients_say_to_a_reasoning_chat_model_is_answered() {
    let (world, account) = World::with_account();
    for (members, arrives, told) in [
        // As sent by the README's curl line, Open WebUI, and promptfoo.
        (
            r#" "max_tokens" : 2000 "#,
            r#" "max_completion_tokens" : 2000 "#,
            &["renamed:max_tokens"][..],
        ),
        (
            r#""temperature":0,"max_tokens":50,"top_p":0.9"#,
            r#""max_completion_tokens":50"#,
            &["dropped:temperature", "dropped:top_p", "renamed:max_tokens"],
        ),
        (
            r#""stop":["x"],"reasoning_effort":"minimal""#,
            r#""reasoning_effort":"none""#,
            &["downgraded:reasoning_effort", "dropped:stop"],
        ),
        (
            r#""max_completion_tokens":50,"temperature":1"#,
            r#""max_completion_tokens":50,"temperature":1"#,
            &[],
        ),
    ] {
        let answer = world.ask(&post(
            "/v1/chat/completions",
            &chat("beta-5.2", members),
            &account.key,
        ));
        assert_eq!(answer.status, 200, "{members}: {}", answer.text());
        assert_eq!(sent(&world), chat("gpt-5.2", arrives));
        assert_eq!(warnings(&answer), told, "{members}");
    }
    let streamed = chat("beta-5.2", r#""stream":true,"max_tokens":2000"#);
    let answer = world.ask(&post("/v1/chat/completions", &streamed, &account.key));
    assert!(
        answer.status == 200 && answer.has("data: [DONE]"),
        "{}",
        answer.text()
    );
    assert_eq!(warnings(&answer), ["renamed:max_tokens"]);
    assert_eq!(world.vendor.calls(), 5);
    world.ended(&account, 5);
}

fn messages(model: &str, members: &str, turns: &str) -> String {
    format!(r#"{{"model":"{model}",{members},"messages":[{turns}]}}"#)
}

#[test]
fn agents_that_take_the_model_for_another_are_answered_by_every_messages_model() {
    let (world, account) = World::with_account();
    let user = format!(r#"{{"role":"user","content":"{STRICT}"}}"#);
    let turns = format!(r#"{user},{{"role":"system","content":"be brief"}}"#);
    let enabled =
        r#""max_tokens":9000,"thinking":{"type":"enabled","budget_tokens":9000},"temperature":1"#;
    let adaptive =
        r#""max_tokens":9000,"thinking":{"type":"adaptive"},"output_config":{"effort":"xhigh"}"#;
    let moved = "rewritten:messages[1]";
    for (model, members, told) in [
        ("alpha-opus-4-7", enabled, vec![moved, "rewritten:thinking"]),
        ("alpha-opus-4-7", adaptive, vec![moved]),
        (
            "alpha-sonnet-4-6",
            enabled,
            vec!["clamped:thinking.budget_tokens", moved],
        ),
        (
            "alpha-sonnet-4-6",
            adaptive,
            vec!["downgraded:output_config.effort", moved],
        ),
        (
            "alpha-haiku-4-5-20251001",
            enabled,
            vec!["clamped:thinking.budget_tokens", moved],
        ),
        (
            "alpha-haiku-4-5-20251001",
            adaptive,
            vec!["dropped:output_config.effort", moved, "rewritten:thinking"],
        ),
    ] {
        let answer = world.ask(&post(
            "/v1/messages",
            &messages(model, members, &turns),
            &account.key,
        ));
        assert_eq!(answer.status, 200, "{model} {members}: {}", answer.text());
        assert_eq!(warnings(&answer), told, "{model} {members}");
        let body: Value = serde_json::from_str(&sent(&world)).unwrap();
        let reminder = "<system-reminder>\nbe brief\n</system-reminder>";
        assert_eq!(
            body["messages"][1],
            json!({"role": "user", "content": [{"type": "text", "text": reminder}]})
        );
        let counted = messages(model, r#""thinking":{"type":"adaptive"}"#, &turns);
        let count = world.ask(&post("/v1/messages/count_tokens", &counted, &account.key));
        assert_eq!(count.status, 200, "{model}: {}", count.text());
    }
    world.ended(&account, 6);
}

#[test]
fn who_is_strict_or_wants_no_repair_gets_a_refusal() {
    let (world, account) = World::with_account();
    let body = chat("beta-5.2", r#""max_tokens":20"#);
    let strict =
        post("/v1/chat/completions", &body, &account.key).header("x-gateway-strict", "true");
    let answer = world.ask(&strict);
    assert_eq!((answer.status, world.vendor.calls()), (400, 0));
    assert!(answer.has("renamed:max_tokens"), "{}", answer.text());
    world.close();
    let line = "    upstream_model: gpt-5.2\n";
    let (world, account) = Plan::default()
        .edit(line, &format!("{line}    repair: false\n"))
        .with_account();
    let answer = world.ask(&post("/v1/chat/completions", &body, &account.key));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "max_tokens");
    assert_eq!(sent(&world), body.replace("beta-5.2", "gpt-5.2"));
    assert!(warnings(&answer).is_empty());
}

/// The gateway changes nothing for a model whose capabilities it does not know.
#[test]
fn a_model_of_an_unknown_id_gets_every_byte() {
    let (world, account) = Plan::default()
        .edit("  - id: beta-5.2\n", "  - id: mine\n")
        .with_account();
    let members = r#""max_tokens":20,"temperature":0,"stop":["x"],"reasoning_effort":"minimal""#;
    let answer = world.ask(&post(
        "/v1/chat/completions",
        &chat("mine", members),
        &account.key,
    ));
    assert_eq!(sent(&world), chat("gpt-5.2", members));
    assert!(warnings(&answer).is_empty());
}

/// The gateway lowers the output limit to what the account can pay for. A thinking budget that the
/// gateway itself sets stays below the lowered limit.
#[test]
fn a_lowered_limit_lowers_the_budget_that_was_made() {
    let world = World::new();
    let account = world.account_with("few@example.test", &["--no-trial"]);
    world.grant(&account, "2", "few");
    let user = format!(r#"{{"role":"user","content":"{STRICT}"}}"#);
    let body = messages(
        "alpha-haiku-4-5-20251001",
        r#""max_tokens":64000,"thinking":{"type":"adaptive"}"#,
        &user,
    );
    let answer = world.expect(200, &post("/v1/messages", &body, &account.key));
    assert_eq!(
        warnings(&answer),
        ["clamped:max_tokens", "rewritten:thinking"]
    );
    let body: Value = serde_json::from_str(&sent(&world)).unwrap();
    let (limit, budget) = (
        body["max_tokens"].as_u64().unwrap(),
        body["thinking"]["budget_tokens"].as_u64().unwrap(),
    );
    assert!(limit < 4_000 && (1_024..limit).contains(&budget), "{body}");
    assert!(micro(&world.receipt(&account, &answer.request_id())["credits"]) > 0);
}

#[test]
fn a_model_that_stands_in_for_another_has_its_own_dialect() {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let (world, account) = passed_on(
        Plan::default().endpoints_of(&[bad.port], &[good.port]),
        good.port,
    )
    .with_account();
    let turns = format!(r#"{{"role":"user","content":"{STRICT}"}}"#);
    let members =
        r#""max_tokens":3000,"thinking":{"type":"adaptive"},"output_config":{"effort":"xhigh"}"#;
    let body = messages("alpha-haiku-4-5-20251001", members, &turns);
    let answer = world.expect(200, &post("/v1/messages", &body, &account.key));
    assert_eq!(
        warnings(&answer),
        [
            "downgraded:output_config.effort",
            "fallback:alpha-sonnet-4-6"
        ]
    );
    let arrived: Value = serde_json::from_str(good.last()["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (
            &arrived["thinking"]["type"],
            &arrived["output_config"]["effort"]
        ),
        (&json!("adaptive"), &json!("high"))
    );
}
