//! Tests the optional parts of a price list (long-context tiers, service tiers, audio, web
//! searches): the gateway holds for them, bills them, and lists them on the receipt.

use crate::account::{Standing, credits, micro};
use crate::client::Answer;
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, World};
use serde_json::{Value, json};

const HAIKU: &str = r#"output: "500"}"#;
const BETA: &str = r#"price: {input: "175", cache_read: "17.5", output: "1400"}"#;
const GRANT: i64 = 300_000_000;

/// Prices: above 1 000 input tokens everything costs twice the base price; above 3 000, input still
/// costs twice, and output four times the base price.
fn tiered() -> World {
    let alpha = r#"output: "500", tiers: [
      {above_input_tokens: 1000, input: "200", cache_read: "20", cache_write_5m: "250", cache_write_1h: "400", output: "1000"},
      {above_input_tokens: 3000, input: "200", output: "2000"}]}"#;
    let beta = r#"price: {input: "175", cache_read: "17.5", output: "1400", tiers: [{above_input_tokens: 1000, input: "350", cache_read: "35", output: "2800"}]}"#;
    Plan::default().edit(HAIKU, alpha).edit(BETA, beta).start()
}

/// The receipt of an answer. Checks that its lines add up to the credits charged.
#[track_caller]
pub fn receipt(world: &World, account: &crate::account::Account, answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let receipt = world.receipt(account, &answer.request_id());
    // Whole numbers, in units of 10⁻¹² µc.
    let parts = |text: &Value| {
        let (whole, part) = text
            .as_str()
            .unwrap()
            .split_once('.')
            .unwrap_or((text.as_str().unwrap(), ""));
        format!("{whole}{part:0<18}").parse::<u128>().unwrap()
    };
    let sum: u128 = receipt["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| parts(&line["credits"]))
        .sum();
    let taken = u128::try_from(micro(&receipt["credits"])).unwrap();
    assert_eq!(sum.div_ceil(1_000_000_000_000), taken, "{receipt}");
    receipt
}

pub fn line<'a>(receipt: &'a Value, class: &str) -> &'a Value {
    let lines = receipt["lines"].as_array().unwrap();
    lines
        .iter()
        .find(|line| line["class"] == class)
        .unwrap_or_else(|| panic!("no {class} in {receipt}"))
}

#[test]
fn a_request_one_token_above_a_threshold_is_billed_whole_at_the_higher_prices() {
    let world = tiered();
    let account = world.account();
    let mut sum = 0;
    for surface in BOTH {
        for stream in [false, true] {
            for (marker, above) in [
                ("input=600 cache_read=400", false),
                ("input=601 cache_read=400", true),
            ] {
                let body = surface.body(&format!("{marker} output=10"), stream, 500);
                let receipt = receipt(
                    &world,
                    &account,
                    &world.ask(&surface.request(&account.key, &body)),
                );
                let input: i64 = if above { 601 } else { 600 };
                // In units of half a µc, because chat's cached input has a price of 17.5 credits.
                let halves = match surface {
                    Messages => 2 * (input * 100 + 400 * 10 + 10 * 500),
                    Chat => 2 * (input * 175 + 10 * 1_400) + 400 * 35,
                };
                let cost = halves / if above { 1 } else { 2 };
                assert_eq!(micro(&receipt["credits"]), cost, "{receipt}");
                let (input_price, output_price) = surface.prices();
                let times = if above { 2 } else { 1 };
                assert_eq!(
                    micro(&receipt["price"]["input"]),
                    input_price * times * 1_000_000,
                    "{receipt}"
                );
                assert_eq!(
                    micro(&line(&receipt, "output")["price"]),
                    output_price * times * 1_000_000,
                    "{receipt}"
                );
                let tier = if above { json!(1_000) } else { Value::Null };
                assert_eq!(receipt["price"]["above_input_tokens"], tier, "{receipt}");
                sum += cost;
            }
        }
    }
    assert_eq!(
        world.standing(&account),
        Standing {
            balance: GRANT - sum,
            held: 0,
            available: GRANT - sum
        }
    );
}

/// A messages body of `bytes` bytes, each of which may be a token.
fn sized(bytes: usize, marker: &str, stream: bool, limit: u64) -> Value {
    let body = |padding: usize| {
        Messages.body(
            &format!("{marker} text={}", "t".repeat(padding + 1)),
            stream,
            limit,
        )
    };
    let body = body(bytes - body(0).to_string().len());
    assert_eq!(body.to_string().len(), bytes);
    body
}

/// The highest possible cost of a messages request of `bytes` bytes under `tiered`.
fn worst(bytes: i64, limit: i64) -> i64 {
    let base = bytes.min(1_000) * 100 + limit * 500;
    let second = if bytes > 1_000 {
        bytes.min(3_000) * 200 + limit * 1_000
    } else {
        0
    };
    let third = if bytes > 3_000 {
        bytes * 200 + limit * 2_000
    } else {
        0
    };
    base.max(second).max(third)
}

#[test]
fn a_hold_is_for_the_dearest_tier_that_the_input_can_reach() {
    let world = tiered();
    let account = world.account();
    for bytes in [999, 1_000, 1_001, 3_000, 3_001, 5_000] {
        let body = sized(bytes, "events=4 hold=5 input=5 output=5", true, 800);
        let (mut connection, mut answer) = world.begin(&Messages.request(&account.key, &body));
        assert_eq!(
            world.standing(&account).held,
            worst(i64::try_from(bytes).unwrap(), 800),
            "{bytes} bytes"
        );
        world.vendor.release();
        Messages.completes(&mut connection, &mut answer);
        assert_eq!(world.standing(&account).held, 0);
    }
}

#[test]
fn a_limit_is_lowered_to_exactly_what_pays_for_the_dearest_tier() {
    let world = tiered();
    for (bytes, limit) in [(900, 700_i64), (1_400, 700), (4_000, 700)] {
        let account = world.account_with(&format!("b{bytes}@example.test"), &["--no-trial"]);
        let body = sized(bytes, "input=5000 output=700", false, 50_000);
        let given = worst(i64::try_from(bytes).unwrap(), limit + 1) - 1;
        world.grant(&account, &credits(given), &format!("b{bytes}"));
        let answer = world.ask(&Messages.request(&account.key, &body));
        answer.has_header("x-gateway-warnings", "clamped:max_tokens");
        let sent: Value =
            serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap();
        assert_eq!(sent["max_tokens"], limit, "{bytes} bytes");
        // The vendor reports more input tokens than the body has bytes. The operator pays the cost
        // beyond the balance.
        let receipt = receipt_with_writeoff(&world, &account, &answer);
        assert_eq!(
            micro(&receipt["credits"]) + micro(&receipt["writeoff"]),
            5_000 * 200 + 700 * 2_000,
            "{receipt}"
        );
        assert_eq!(world.standing(&account).balance, 0);
    }
}

fn receipt_with_writeoff(
    world: &World,
    account: &crate::account::Account,
    answer: &Answer,
) -> Value {
    let receipt = world.receipt(account, &answer.request_id());
    assert!(receipt["writeoff"].is_string(), "{receipt}");
    receipt
}

#[test]
fn an_answer_without_usage_is_estimated_at_the_tier_of_its_size_and_within_its_hold() {
    let world = tiered();
    let account = world.account();
    let body = sized(4_000, "usage=none events=4", false, 50);
    let receipt = receipt(
        &world,
        &account,
        &world.ask(&Messages.request(&account.key, &body)),
    );
    assert_eq!(receipt["estimated"], true, "{receipt}");
    // The estimate of three tokens per ten bytes is above the first threshold. The estimated output
    // exceeds the hold and is lowered.
    assert_eq!(
        (
            &receipt["usage"]["input"],
            &receipt["price"]["above_input_tokens"]
        ),
        (&json!(1_200), &json!(1_000))
    );
    assert!(micro(&receipt["credits"]) <= worst(4_000, 50), "{receipt}");
}

#[test]
fn a_reload_while_a_response_runs_leaves_it_its_prices() {
    let world = tiered();
    let account = world.account();
    let (mut connection, mut answer) =
        world.begin(&Messages.stream(&account.key, "events=30 hold=5 input=1001 output=10"));
    let dearer = std::fs::read_to_string(&world.config)
        .unwrap()
        .replace(r#"output: "1000"}"#, r#"output: "9000"}"#);
    std::fs::write(&world.config, dearer).unwrap();
    world.signal("HUP");
    world.wait_metric("gateway_config_reloads_total", &["result=\"ok\""], 1.0);
    let later = receipt(
        &world,
        &account,
        &world.ask(&Messages.whole(&account.key, "input=1001 output=10")),
    );
    assert_eq!(
        micro(&later["credits"]),
        1_001 * 200 + 10 * 9_000,
        "{later}"
    );
    assert!(
        answer.end().is_none(),
        "the stream was to outlast the reload"
    );
    world.vendor.release();
    connection.finish(&mut answer);
    let earlier = receipt(&world, &account, &answer);
    assert_eq!(
        micro(&earlier["credits"]),
        1_001 * 200 + 10 * 1_000,
        "{earlier}"
    );
    assert_ne!(earlier["price"]["version"], later["price"]["version"]);
}

fn with_service_tiers() -> World {
    let alpha = r#"output: "500", service_tier: {priority: "1.75"}}"#;
    let beta = r#"price: {input: "175", cache_read: "17.5", output: "1400", service_tier: {priority: "1.75", flex: 0.5}}"#;
    Plan::default().edit(HAIKU, alpha).edit(BETA, beta).start()
}

#[test]
fn the_service_tier_that_served_is_billed_and_never_a_dearer_one_than_asked_for() {
    let world = with_service_tiers();
    let account = world.account();
    let base = Chat.cost(101, 11);
    for (asked, told, billed, cost) in [
        (
            Some("flex"),
            None,
            Some("flex"),
            base.div_euclid(2) + base % 2,
        ),
        (
            Some("flex"),
            Some("none"),
            Some("flex"),
            base.div_euclid(2) + base % 2,
        ),
        (
            Some("flex"),
            Some("default"),
            Some("flex"),
            base.div_euclid(2) + base % 2,
        ),
        (Some("priority"), None, Some("priority"), (base * 7 + 3) / 4),
        (Some("priority"), Some("default"), None, base),
        (
            Some("auto"),
            Some("priority"),
            Some("priority"),
            (base * 7 + 3) / 4,
        ),
        (
            None,
            Some("flex"),
            Some("flex"),
            base.div_euclid(2) + base % 2,
        ),
        (None, None, None, base),
        (Some("default"), Some("priority"), None, base),
        (None, Some("unheard_of"), None, base),
    ] {
        for stream in [false, true] {
            let tier = told.map(|told| format!(" tier={told}")).unwrap_or_default();
            let mut body = Chat.body(&format!("input=101 output=11{tier}"), stream, 500);
            if let Some(asked) = asked {
                body["service_tier"] = asked.into();
            }
            let receipt = receipt(
                &world,
                &account,
                &world.ask(&Chat.request(&account.key, &body)),
            );
            let said = format!("asked {asked:?}, told {told:?}: {receipt}");
            assert_eq!(micro(&receipt["credits"]), cost, "{said}");
            assert_eq!(receipt["usage"]["service_tier"].as_str(), billed, "{said}");
            assert_eq!(receipt["price"]["service_tier"].as_str(), billed, "{said}");
            let factor = billed.map(|tier| if tier == "flex" { "0.5" } else { "1.75" });
            assert_eq!(line(&receipt, "input")["factor"].as_str(), factor, "{said}");
        }
    }
    // On the surface of the other protocol, and on the vendor's own surface.
    for told in ["standard", "priority"] {
        let receipt = receipt(
            &world,
            &account,
            &world.ask(&Messages.whole(&account.key, &format!("input=100 output=10 tier={told}"))),
        );
        let cost = Messages.cost(100, 10) * if told == "priority" { 7 } else { 4 } / 4;
        assert_eq!(micro(&receipt["credits"]), cost, "{receipt}");
        let mut body = Messages.body(&format!("input=100 output=10 tier={told}"), true, 500);
        body["model"] = Chat.model().into();
        let receipt = self::receipt(
            &world,
            &account,
            &world.ask(&Messages.request(&account.key, &body)),
        );
        let cost = Chat.cost(100, 10) * if told == "priority" { 7 } else { 4 } / 4;
        assert_eq!(micro(&receipt["credits"]), cost, "{receipt}");
    }
}

#[test]
fn a_hold_is_for_the_dearest_service_tier_that_may_serve() {
    let world = with_service_tiers();
    let account = world.account();
    for (asked, quarters) in [(None, 7), (Some("auto"), 7), (Some("standard_only"), 4)] {
        let mut body = Messages.body("events=4 hold=5 input=5 output=5", true, 800);
        if let Some(asked) = asked {
            body["service_tier"] = asked.into();
        }
        let bytes = i64::try_from(body.to_string().len()).unwrap();
        let (mut connection, mut answer) = world.begin(&Messages.request(&account.key, &body));
        assert_eq!(
            world.standing(&account).held,
            (Messages.cost(bytes, 800) * quarters + 3) / 4,
            "{asked:?}"
        );
        world.vendor.release();
        connection.finish(&mut answer);
    }
}

#[track_caller]
fn unpriced(surface: Surface, answer: &Answer, param: &str) {
    let words = (400, "invalid_request_error");
    let error = surface.fails(answer, words, words, Some("unpriced_feature"));
    if surface == Chat {
        assert_eq!(error["param"], param, "{error}");
    }
}

#[test]
fn what_has_no_price_is_refused_and_costs_nothing() {
    let (world, account) = World::with_account();
    let mut tier = Chat.body("input=1", false, 10);
    tier["service_tier"] = "flex".into();
    unpriced(
        Chat,
        &world.ask(&Chat.request(&account.key, &tier)),
        "service_tier",
    );
    unpriced(
        Chat,
        &world.ask(&Chat.request(&account.key, &heard())),
        "messages",
    );
    unpriced(
        Chat,
        &world.ask(&Chat.request(&account.key, &spoken("input=1"))),
        "modalities",
    );
    unpriced(
        Messages,
        &world.ask(&Messages.request(&account.key, &searching("input=1", Some(3), false))),
        "tools",
    );
    assert_eq!(
        (world.vendor.calls(), world.standing(&account).balance),
        (0, GRANT)
    );
}

fn heard() -> Value {
    let mut body = Chat.body("input=100 output=10 audio_input=40", false, 500);
    let text = body["messages"][0]["content"].take();
    let audio =
        json!({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}});
    body["messages"][0]["content"] = json!([{"type": "text", "text": text}, audio]);
    body
}

fn spoken(marker: &str) -> Value {
    let mut body = Chat.body(marker, false, 500);
    body["modalities"] = json!(["text", "audio"]);
    body["audio"] = json!({"voice": "alloy", "format": "wav"});
    body
}

#[test]
fn audio_is_billed_apart_from_text_on_both_sides() {
    let beta = r#"price: {input: "175", cache_read: "17.5", output: "1400", audio_input: "3200", audio_output: "6400"}"#;
    let world = Plan::default().edit(BETA, beta).start();
    let account = world.funded(4_000_000_000);
    let heard = receipt(
        &world,
        &account,
        &world.ask(&Chat.request(&account.key, &heard())),
    );
    assert_eq!(
        micro(&heard["credits"]),
        Chat.cost(100, 10) + 40 * 3_200,
        "{heard}"
    );
    assert_eq!(
        (
            &line(&heard, "input")["tokens"],
            &line(&heard, "audio_input")["tokens"]
        ),
        (&json!(100), &json!(40))
    );
    let body = spoken("input=100 output=10 audio_output=30 events=4 gap_ms=100");
    let spoken = receipt(
        &world,
        &account,
        &world.ask(&Chat.request(&account.key, &body)),
    );
    assert_eq!(
        micro(&spoken["credits"]),
        Chat.cost(100, 10) + 30 * 6_400,
        "{spoken}"
    );
    assert_eq!(
        line(&spoken, "audio_output")["credits"],
        "0.192",
        "{spoken}"
    );
    world.has_metric(
        "gateway_tokens_total",
        &["beta-5.2", "class=\"audio_output\""],
        30.0,
    );
}

fn searching(marker: &str, max_uses: Option<u64>, stream: bool) -> Value {
    let mut body = Messages.body(marker, stream, 500);
    body["tools"] = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    if let Some(max_uses) = max_uses {
        body["tools"][0]["max_uses"] = max_uses.into();
    }
    body
}

#[test]
fn searches_are_held_for_and_billed_by_the_thousand_uses() {
    let (world, account) = Plan::default()
        .edit(HAIKU, r#"output: "500", web_search: "1000"}"#)
        .with_account();
    for (max_uses, held_for) in [(Some(3), 3), (None, 20)] {
        for stream in [false, true] {
            let hold = if stream { "hold=5" } else { "" };
            let marker = format!("input=100 output=10 searches=2 events=4 {hold}");
            let body = searching(&marker, max_uses, stream);
            let (mut connection, mut answer) = world.begin(&Messages.request(&account.key, &body));
            if stream {
                // The model also reads the search results, so the input may fill the whole context.
                let held = Messages.cost(200_000, 500) + held_for * 1_000_000;
                assert_eq!(world.standing(&account).held, held, "{max_uses:?}");
                world.vendor.release();
            }
            connection.finish(&mut answer);
            let receipt = receipt(&world, &account, &answer);
            assert_eq!(
                micro(&receipt["credits"]),
                Messages.cost(100, 10) + 2_000_000,
                "{receipt}"
            );
            let searches = line(&receipt, "web_search");
            assert_eq!(
                (&searches["uses"], &searches["price"], &searches["credits"]),
                (&json!(2), &json!("1000"), &json!("2"))
            );
            assert_eq!(receipt["usage"]["web_searches"], 2);
        }
    }
    world.has_metric("gateway_web_searches_total", &[Messages.model()], 8.0);
    // Another of the vendor's server tools in the same request has no price.
    let mut body = searching("input=1", Some(1), false);
    let other = json!({"type": "code_execution_20250825", "name": "code_execution"});
    body["tools"].as_array_mut().unwrap().push(other);
    unpriced(
        Messages,
        &world.ask(&Messages.request(&account.key, &body)),
        "tools",
    );
}
