//! Another model answers if the requested one fails: when it does, at which model's price, and how
//! the client learns of it.
//!
//! `beta-5.2` and `alpha-haiku-4-5-20251001` are each other's fallback, so on each surface a model
//! of its own protocol fails and a translated one answers. A third vendor uses the messages
//! protocol, for fallbacks without translation.

use crate::account::{Account, micro};
use crate::client::Answer;
use crate::surface::{BOTH, Chat, Messages, OVERLOADED, Surface};
use crate::world::{Plan, SOON, Simulator, World, free_port, vendor_url, wait_for, wait_until};
use serde_json::Value;
use std::net::TcpListener;

const HAIKU: &str = "    upstream_model: claude-haiku-4-5-20251001\n";
const SONNET: &str = "    vendor: alpha\n    upstream_model: claude-sonnet-4-6\n";
const BETA: &str = "    upstream_model: gpt-5.2\n";

pub fn other(surface: Surface) -> Surface {
    if surface == Chat { Messages } else { Chat }
}

/// The vendor of this surface's own model listens on `of_it`, the other model's vendor on
/// `of_other`.
fn between(surface: Surface, of_it: u16, of_other: u16) -> Plan {
    let (alpha, beta) = if surface == Messages {
        (of_it, of_other)
    } else {
        (of_other, of_it)
    };
    Plan::default().endpoints_of(&[alpha], &[beta])
}

/// Makes the two models each other's fallback.
pub fn mutual(plan: Plan) -> Plan {
    let plan = plan.edit(HAIKU, &format!("{HAIKU}    fallback: [{}]\n", Chat.model()));
    plan.edit(
        BETA,
        &format!("{BETA}    fallback: [{}]\n", Messages.model()),
    )
}

/// Adds a messages model at a third vendor as the fallback of the messages model.
pub fn passed_on(plan: Plan, third: u16) -> Plan {
    let endpoints = format!("endpoints: [{{url: \"{}\"}}]", vendor_url(third));
    let version = "version_header: {name: anthropic-version, value: \"2023-06-01\"}";
    let members = [
        "protocol: messages",
        &endpoints,
        "api_key: \"sim-gamma-key\"",
        version,
        "profile: {betas: true}",
    ]
    .join("\n    ");
    let vendor = format!("  gamma:\n    {members}\nmodels:\n");
    let plan = plan
        .edit("models:\n", &vendor)
        .edit(SONNET, &SONNET.replace("alpha\n", "gamma\n"));
    plan.edit(HAIKU, &format!("{HAIKU}    fallback: [alpha-sonnet-4-6]\n"))
}

/// Asserts that `model` answered, and that a warning names it to the client.
#[track_caller]
pub fn is_from(answer: &Answer, model: &str) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let warnings = answer.header("x-gateway-warnings").unwrap_or_default();
    assert!(
        warnings
            .split(", ")
            .any(|token| token == format!("fallback:{model}")),
        "{warnings}"
    );
    assert!(
        answer.has(&format!("\"model\":\"{model}\"")),
        "{}",
        answer.text()
    );
}

#[test]
fn a_model_that_cannot_be_had_is_answered_for_by_its_fallback_at_that_one_s_price() {
    let faults = [
        ("status=500", "status_5xx"),
        ("status=529", "status_5xx"),
        ("status=429", "status_429"),
        ("close", "broken"),
    ];
    for surface in BOTH {
        for (fault, reason) in faults {
            let (bad, good) = (Simulator::start(Some(fault)), Simulator::start(None));
            let world = mutual(between(surface, bad.port, good.port)).start();
            let (account, instead) = (world.account(), other(surface));
            let whole = world.ask(&surface.whole(&account.key, "input=100 output=7"));
            is_from(&whole, instead.model());
            let told = micro(&whole.header("x-gateway-credits").unwrap().into());
            assert_eq!(told, instead.cost(100, 7), "{fault}");
            let stream = world.ask(&surface.stream(&account.key, "input=100 output=7"));
            is_from(&stream, instead.model());
            assert!(surface.is_complete(&stream), "{}", stream.text());
            assert_eq!((bad.calls(), good.calls()), (2, 2), "{fault}");
            assert_eq!(
                good.last()["path"],
                instead.path(),
                "asked in its own protocol"
            );
            assert!(
                good.last()["body"]
                    .as_str()
                    .unwrap()
                    .contains(instead.upstream_model())
            );
            // The receipts name only the model that answered.
            for answer in [&whole, &stream] {
                let receipt = world.receipt(&account, &answer.request_id());
                assert_eq!(receipt["model"], instead.model(), "{receipt}");
                assert_eq!(receipt["outcome"], "completed", "{receipt}");
                assert_eq!(
                    micro(&receipt["credits"]),
                    instead.cost(100, 7),
                    "{receipt}"
                );
            }
            world.ended(&account, 2);
            let of = |model: &str| {
                world.metric("gateway_requests_total", &[&format!("model=\"{model}\"")])
            };
            assert_eq!((of(instead.model()), of(surface.model())), (2.0, 0.0));
            let labels = [
                format!("model=\"{}\"", surface.model()),
                format!("fallback=\"{}\"", instead.model()),
            ];
            assert_eq!(
                world.metric(
                    "gateway_fallbacks_total",
                    &labels.each_ref().map(|label| &**label)
                ),
                2.0
            );
            let reason = format!("reason=\"{reason}\"");
            assert_eq!(
                world.metric("gateway_upstream_failovers_total", &[&reason]),
                2.0,
                "{fault}"
            );
        }
    }
}

#[test]
fn without_a_fallback_the_same_failures_are_told() {
    for surface in BOTH {
        let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
        let (world, account) = between(surface, bad.port, good.port).with_account();
        let answer = world.ask(&surface.whole(&account.key, "input=100 output=7"));
        surface.fails_as(&answer, OVERLOADED);
        assert_eq!((bad.calls(), good.calls()), (1, 0));
    }
}

#[test]
fn a_vendor_that_is_not_there_or_says_nothing_is_answered_for_too() {
    let check = |surface: Surface| {
        let good = Simulator::start(None);
        // The kernel accepts connections to this listener, but nobody reads from them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        for port in [free_port(), silent.local_addr().unwrap().port()] {
            // The good vendor must answer in this time too.
            let (world, account) = mutual(between(surface, port, good.port))
                .limit("first_byte_seconds", 6)
                .with_account();
            is_from(
                &world.ask(&surface.stream(&account.key, "input=1 output=1")),
                other(surface).model(),
            );
            assert_eq!(world.ended(&account, 1)["model"], other(surface).model());
        }
    };
    std::thread::scope(|scope| {
        for surface in BOTH {
            scope.spawn(move || check(surface));
        }
    });
}

#[test]
fn an_endpoint_that_is_left_alone_costs_a_request_with_a_fallback_no_attempt() {
    let (bad, good) = (Simulator::start(Some("close")), Simulator::start(None));
    let plan = mutual(between(Chat, bad.port, good.port)).limit("breaker_failures", 2);
    let (world, account) = plan
        .limit("breaker_open_seconds", 3_600)
        .limit("breaker_open_max_seconds", 3_600)
        .with_account();
    for _ in 0..5 {
        is_from(
            &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
            Messages.model(),
        );
    }
    assert_eq!(
        (bad.calls(), good.calls()),
        (2, 5),
        "the breaker is open after two"
    );
}

#[test]
fn a_fallback_of_the_same_protocol_is_passed_on_with_the_client_s_own_words() {
    let (bad, third) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let (world, account) = passed_on(
        Plan::default().endpoints_of(&[bad.port], &[bad.port]),
        third.port,
    )
    .with_account();
    let mut body = Messages.body("input=100 output=7", false, 1_000);
    body["metadata"] = serde_json::json!({"user_id": "somebody"});
    let request = Messages
        .request(&account.key, &body)
        .header("anthropic-version", "2023-06-01");
    let answer =
        world.ask(&request.header("anthropic-beta", "some-preview, context-1m-2025-08-07"));
    is_from(&answer, "alpha-sonnet-4-6");
    answer.has_header(
        "x-gateway-warnings",
        "dropped:anthropic-beta, fallback:alpha-sonnet-4-6",
    );
    let asked = third.last();
    assert!(
        asked["body"].as_str().unwrap().contains("somebody"),
        "{asked}"
    );
    let headers = asked["headers"].to_string();
    for header in [
        r#"["x-api-key","sim-gamma-key"]"#,
        r#"["anthropic-beta","some-preview"]"#,
    ] {
        assert!(
            headers.contains(header),
            "the other vendor's own key, and no flag without a price: {headers}"
        );
    }
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        micro(&receipt["credits"]),
        100 * 300 + 7 * 1_500,
        "{receipt}"
    );
}

#[test]
fn a_fallback_is_asked_for_no_more_than_it_can_say() {
    let (bad, third) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let sonnet = "    upstream_model: claude-sonnet-4-6\n    context_tokens: 200000\n    max_output_tokens: 64000\n";
    let plan = passed_on(
        Plan::default().endpoints_of(&[bad.port], &[bad.port]),
        third.port,
    );
    let (world, account) = plan
        .edit(sonnet, &sonnet.replace("64000", "700"))
        .with_account();
    for (asked, sent) in [(700, 700), (701, 700), (5_000, 700)] {
        let body = Messages.body("input=1 output=1", false, asked);
        let answer = world.ask(&Messages.request(&account.key, &body));
        is_from(&answer, "alpha-sonnet-4-6");
        let told = answer.header("x-gateway-warnings").unwrap();
        assert_eq!(told.contains("clamped:max_tokens"), asked > sent, "{told}");
        let got: Value = serde_json::from_str(third.last()["body"].as_str().unwrap()).unwrap();
        assert_eq!(got["max_tokens"], sent);
    }
}

#[test]
fn a_fallback_that_lets_its_client_wait_numbers_all_that_the_client_hears() {
    // The requests wait beside one another.
    std::thread::scope(|scope| {
        for surface in BOTH {
            scope.spawn(move || lets_its_client_wait(surface));
        }
    });
}

fn lets_its_client_wait(surface: Surface) {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let plan = mutual(between(surface, bad.port, good.port)).limit("stream_keep_alive_seconds", 1);
    let (world, account) = plan.with_account();
    let check = |marker: &str| {
        let body = serde_json::json!({
            "model": surface.model(), "input": format!("[[sim {marker}]] hello"), "stream": true, "max_output_tokens": 500,
        });
        let request =
            crate::client::Request::post("/v1/responses", body.to_string()).bearer(&account.key);
        let answer = world.ask(&request);
        is_from(&answer, other(surface).model());
        crate::responses::was_kept_waiting(&answer, marker);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check("events=2 first_ms=4600 input=10 output=5"));
        scope.spawn(|| check("events=1 gap_ms=2600 input=10 output=5"));
    });
}

/// The credits held for a request that hangs at its vendor.
fn held(world: &World, account: &Account, surface: Surface) -> i64 {
    let mut connection = world.connect();
    assert!(connection.send(&surface.stream(&account.key, "hang=headers").bytes()));
    let held = wait_for("credit to be held", SOON, || {
        let standing = world.standing(account);
        (standing.held > 0).then_some(standing.held)
    });
    connection.forget();
    held
}

#[test]
fn the_hold_is_for_the_dearest_of_the_models() {
    let (limit, vendor) = (1_000_i64, Simulator::start(None));
    let hold = |plan: Plan, surface| {
        let (world, account) = plan
            .limit("drain_after_client_seconds", 1)
            .limit("drain_reasoning_seconds", 1)
            .with_account();
        let held = held(&world, &account, surface);
        world.ended(&account, 1);
        world.close();
        held
    };
    let plan = || Plan::default().endpoints(&[vendor.port]);
    // The hold covers haiku's own worst case, or with a fallback that of the dearer model.
    assert!(hold(plan(), Messages) < 1_000 * limit);
    assert!(hold(mutual(plan()), Messages) >= 1_400 * limit);
    // A fallback to a cheaper model does not change the hold for the dearer one.
    assert_eq!(hold(mutual(plan()), Chat), hold(plan(), Chat));
}

#[test]
fn who_cannot_pay_for_the_dearest_model_has_the_one_that_was_asked_for_alone() {
    for shared in [false, true] {
        let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
        let plan = mutual(between(Messages, bad.port, good.port));
        let world = if shared { plan.shared() } else { plan }.start();
        // Enough credits for haiku's smallest hold, but not for the other model's.
        let account = world.funded(300_000);
        wait_until("the funds", SOON, || {
            world.standing(&account).available == 300_000
        });
        let answer = world.ask(&Messages.whole(&account.key, "input=1 output=1"));
        Messages.failure(&answer, 529, "overloaded_error", Some("overloaded"));
        assert_eq!(
            (bad.calls(), good.calls()),
            (1, 0),
            "it could be paid, and the other could not"
        );
        assert_eq!(world.ended(&account, 1)["model"], Messages.model());
    }
}

#[test]
fn no_answer_is_shortened_for_a_model_that_may_never_be_asked() {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let world = mutual(between(Messages, bad.port, good.port)).start();
    let (rich, poor) = (world.account(), world.funded(1_000_000));
    let limit = || {
        let body: Value = serde_json::from_str(bad.last()["body"].as_str().unwrap()).unwrap();
        body["max_tokens"].as_u64().unwrap()
    };
    is_from(
        &world.ask(&Messages.whole(&rich.key, "input=1 output=1")),
        Chat.model(),
    );
    let whole = limit();
    let answer = world.ask(&Messages.whole(&poor.key, "input=1 output=1"));
    Messages.failure(&answer, 529, "overloaded_error", Some("overloaded"));
    assert_eq!(limit(), whole, "it can pay for this model");
    assert_eq!(
        (bad.calls(), good.calls()),
        (2, 1),
        "and not for the other one"
    );
}

#[test]
fn a_strict_caller_and_a_key_bound_to_models_get_no_other_model() {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let (world, account) = mutual(between(Chat, bad.port, good.port)).with_account();
    let strict = Chat
        .whole(&account.key, "input=1 output=1")
        .header("x-gateway-strict", "true");
    Chat.failure(&world.ask(&strict), 503, "server_error", Some("overloaded"));
    world.json(&["key", "set", &account.key_id, "--models", Chat.model()]);
    let bound = world.ask(&Chat.whole(&account.key, "input=1 output=1"));
    Chat.failure(&bound, 503, "server_error", Some("overloaded"));
    world.json(&["key", "set", &account.key_id, "--models", "all"]);
    let made = world.json(&["org", "create", "Acme", "--owner", &account.id]);
    let company = made["account_id"].as_str().unwrap();
    world.json(&["account", "grant", company, "5", "--ref", "funds"]);
    let set = ["org", "member", "set", company, &account.id, "--models"];
    world.json(&[&set[..], &[Chat.model()]].concat());
    let create = ["key", "create", "--account", company, "--name", "bound"];
    let made = world.json(&[&create[..], &["--member", &account.id]].concat());
    let of_member = Chat.whole(made["key"].as_str().unwrap(), "input=1 output=1");
    Chat.failure(
        &world.ask(&of_member),
        503,
        "server_error",
        Some("overloaded"),
    );
    assert_eq!((bad.calls(), good.calls()), (3, 0));
}

#[test]
fn after_the_first_byte_no_other_model_is_asked() {
    let (bad, good) = (Simulator::start(None), Simulator::start(None));
    for surface in BOTH {
        let (world, account) = mutual(between(surface, bad.port, good.port)).with_account();
        let answer = world.ask(&surface.stream(&account.key, "events=8 cut=4"));
        assert!(
            answer.status == 200 && !surface.is_complete(&answer),
            "{}",
            answer.text()
        );
        assert!(answer.has(surface.error_frame()) && answer.header("x-gateway-warnings").is_none());
        assert_eq!(
            (good.calls(), world.metric("gateway_fallbacks_total", &[])),
            (0, 0.0)
        );
    }
}

#[test]
fn a_fallback_that_refuses_is_not_the_client_s_business() {
    let (bad, refusing) = (
        Simulator::start(Some("status=529")),
        Simulator::start(Some("status=400")),
    );
    for surface in BOTH {
        let (world, account) = mutual(between(surface, bad.port, refusing.port)).with_account();
        let before = (bad.calls(), refusing.calls());
        let answer = world.ask(&surface.whole(&account.key, "input=1 output=1"));
        surface.fails_as(&answer, OVERLOADED);
        assert_eq!(
            (bad.calls() - before.0, refusing.calls() - before.1),
            (1, 1)
        );
        assert_eq!(micro(&world.ended(&account, 1)["credits"]), 0);
    }
}

#[test]
fn a_request_under_an_idempotency_key_is_debited_once_and_told_again_as_it_was() {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let (world, account) = mutual(between(Chat, bad.port, good.port)).with_account();
    let request = || {
        Chat.whole(&account.key, "input=100 output=7")
            .header("idempotency-key", "once")
    };
    let (first, again) = (world.ask(&request()), world.ask(&request()));
    is_from(&first, Messages.model());
    is_from(&again, Messages.model());
    assert_eq!(again.header("x-gateway-replayed"), Some("true"));
    assert_eq!(first.text(), again.text());
    assert_eq!((bad.calls(), good.calls()), (1, 1));
    assert_eq!(
        micro(&world.ended(&account, 1)["credits"]),
        Messages.cost(100, 7)
    );
}

#[test]
fn where_edges_share_a_store_the_model_that_answered_is_billed_as_well() {
    let (bad, good) = (Simulator::start(Some("status=529")), Simulator::start(None));
    let (world, account) = mutual(between(Chat, bad.port, good.port))
        .shared()
        .with_account();
    let answer = world.ask(&Chat.whole(&account.key, "input=100 output=7"));
    is_from(&answer, Messages.model());
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(receipt["model"], Messages.model(), "{receipt}");
    assert_eq!(
        micro(&receipt["credits"]),
        Messages.cost(100, 7),
        "{receipt}"
    );
}

#[test]
fn bodies_that_wait_for_their_model_s_turn_count_among_those_in_flight() {
    let vendor = Simulator::start(None);
    let filler = serde_json::json!({"role": "user", "content": "x".repeat(300_000)});
    // Three or more bodies count as in flight: the client's, the vendor's, and one encoded for each
    // fallback model.
    for (fallback, status) in [
        ("alpha-haiku-4-5-20251001", 200),
        ("alpha-haiku-4-5-20251001, alpha-sonnet-4-6", 503),
    ] {
        let plan = Plan::default()
            .endpoints(&[vendor.port])
            .edit(BETA, &format!("{BETA}    fallback: [{fallback}]\n"));
        let world = plan
            .limit("bodies_in_flight_bytes", 1_048_576)
            .limit("body_bytes", 1_048_576)
            .start();
        let account = world.funded(crate::crash::FUNDS);
        let short = Chat.body("input=1 output=1", false, 1_000);
        let mut long = short.clone();
        long["messages"]
            .as_array_mut()
            .unwrap()
            .insert(0, filler.clone());
        // A refused request releases its bytes before the next one.
        for (body, status) in [
            (&short, 200),
            (&long, status),
            (&short, 200),
            (&long, status),
        ] {
            let before = vendor.calls();
            let answer = world.ask(&Chat.request(&account.key, body));
            assert_eq!(
                (answer.status, vendor.calls() - before),
                (status, u64::from(status == 200)),
                "{fallback}: {}",
                answer.text()
            );
        }
    }
}
