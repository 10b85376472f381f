//! The cost of a response. The tests also check that nobody pays for anything else.

use crate::account::{Account, Standing, credits, micro, taken};
use crate::client::{Answer, Request};
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

const GRANT: i64 = 300_000_000;
const ANY_LIMIT: (u64, i64) = (1_000, 1_000);

/// The hold for a body: its largest possible cost.
fn hold(surface: Surface, body: &Value, limit: i64) -> i64 {
    let bytes = i64::try_from(body.to_string().len()).unwrap();
    surface.cost(bytes, limit)
}

#[test]
fn a_hold_stands_while_a_stream_runs_and_is_gone_with_it() {
    let (world, account) = World::with_account();
    let mut balance = GRANT;
    for surface in BOTH {
        let body = surface.body("events=8 hold=5 input=100 output=50", true, ANY_LIMIT.0);
        let (mut connection, mut answer) = world.begin(&surface.request(&account.key, &body));
        let mut held = hold(surface, &body, ANY_LIMIT.1);
        if surface == Chat {
            // The estimate may include bytes that the gateway adds to the body.
            held = world.standing(&account).held.max(held).min(held + 60 * 175);
        }
        assert_eq!(
            world.standing(&account),
            Standing {
                balance,
                held,
                available: balance - held
            }
        );
        wait_until("the command line to see the hold", SOON, || {
            world.shown(&account).held == held
        });
        assert_eq!(world.metric("gateway_open_holds", &[]), 1.0);
        assert_eq!(world.metric("gateway_streams_open", &[]), 1.0);
        world.vendor.release();
        surface.completes(&mut connection, &mut answer);
        balance -= surface.cost(100, 50);
        assert_eq!(
            world.standing(&account),
            Standing {
                balance,
                held: 0,
                available: balance
            }
        );
        wait_until("the command line to see its end", SOON, || {
            world.shown(&account)
                == Standing {
                    balance,
                    held: 0,
                    available: balance,
                }
        });
    }
}

#[test]
fn every_class_of_tokens_is_billed_at_its_price_and_the_receipts_add_up() {
    let (world, account) = World::with_account();
    let mut sum = 0;
    for surface in BOTH {
        for stream in [false, true] {
            let marker =
                "input=1001 cache_read=2003 write_5m=307 write_1h=11 output=99 reasoning=40";
            let answer =
                world.ask(&surface.request(&account.key, &surface.body(marker, stream, 500)));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let receipt = world.receipt(&account, &answer.request_id());
            // In thousandths of a µc, because chat's price for cached input is 17.5 credits.
            let exact = match surface {
                Messages => (1_001 * 100 + 2_003 * 10 + 307 * 125 + 11 * 200 + 99 * 500) * 1_000,
                Chat => (1_001 * 175 + 318 * 175 + 99 * 1_400) * 1_000 + 2_003 * 17_500,
            };
            let cost = (exact + 999) / 1_000;
            assert_eq!(micro(&receipt["credits"]), cost, "{surface:?}: {receipt}");
            let lines = receipt["lines"].as_array().unwrap();
            let line_sum: f64 = lines
                .iter()
                .map(|line| line["credits"].as_str().unwrap().parse::<f64>().unwrap())
                .sum();
            assert!(
                (line_sum * 1e6 - exact as f64 / 1e3).abs() < 1e-3,
                "{receipt}"
            );
            assert_eq!(receipt["usage"]["output"], 99);
            assert_eq!(receipt["usage"]["reasoning"], 40, "{receipt}");
            assert_eq!(receipt["estimated"], false);
            assert_eq!(receipt["model"], surface.model());
            assert!(
                account
                    .key
                    .starts_with(receipt["key"].as_str().unwrap().split('…').next().unwrap())
            );
            if !stream {
                assert_eq!(
                    answer.header("x-gateway-credits"),
                    receipt["credits"].as_str()
                );
            }
            sum += cost;
            assert_eq!(micro(&receipt["balance_after"]), GRANT - sum);
            assert_eq!(world.standing(&account).balance, GRANT - sum);
        }
    }
    assert_eq!(taken(&world.endings(&account)), sum);
    let other = world.account_with("other@example.test", &[]);
    let id = world.endings(&account)[0]["request_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let peek = world.ask(&Request::get(&format!("/v1/receipts/{id}")).bearer(&other.key));
    assert_eq!(peek.status, 404, "another account's receipt");
    assert_eq!(peek.header("retry-after"), Some("1"));
}

#[test]
fn an_output_limit_is_lowered_to_what_the_account_can_pay() {
    let world = World::new();
    for surface in BOTH {
        let body = surface.body("input=10 output=10", false, 50_000);
        let account = world.account_with(&format!("{surface:?}@example.test"), &["--no-trial"]);
        let given = hold(surface, &body, 1_000) + 3;
        world.grant(&account, &credits(given), &format!("{surface:?}"));
        let refused = world.ask(
            &surface
                .request(&account.key, &body)
                .header("x-gateway-strict", "true"),
        );
        insufficient(surface, &refused);
        assert_eq!(world.vendor.calls(), if surface == Chat { 0 } else { 1 });
        let answer = world.expect(200, &surface.request(&account.key, &body));
        let warning = format!("clamped:{}", surface.limit_field());
        assert_eq!(answer.header("x-gateway-warnings"), Some(warning.as_str()));
        let sent: Value =
            serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap();
        let limit = sent[surface.limit_field()].as_u64().unwrap();
        assert!((990..=1_000).contains(&limit), "{sent}");
        let mut expected = body.clone();
        expected["model"] = surface.upstream_model().into();
        expected[surface.limit_field()] = limit.into();
        assert_eq!(sent, expected, "only the limit and the model may change");
        let left = given - surface.cost(10, 10);
        assert_eq!(world.standing(&account).balance, left);
    }
}

#[test]
fn below_the_least_limit_there_is_402_and_a_smaller_wish_is_granted() {
    let world = World::new();
    for surface in BOTH {
        let account = world.account_with(&format!("{surface:?}@example.test"), &["--no-trial"]);
        let body = surface.body("input=10 output=10", false, 50_000);
        // Enough for 200 tokens. The gateway does not lower an output limit below 256.
        let given = hold(surface, &body, 200);
        world.grant(&account, &credits(given), &format!("{surface:?}"));
        let before = world.vendor.calls();
        insufficient(surface, &world.ask(&surface.request(&account.key, &body)));
        assert_eq!(
            (world.vendor.calls(), world.standing(&account).held),
            (before, 0)
        );
        let modest = surface.body("input=10 output=10", false, 150);
        let answer = world.ask(&surface.request(&account.key, &modest));
        assert_eq!(
            (answer.status, answer.header("x-gateway-warnings")),
            (200, None),
            "{}",
            answer.text()
        );
    }
}

#[track_caller]
fn insufficient(surface: Surface, answer: &Answer) {
    let (chat, messages) = ((402, "insufficient_quota"), (402, "billing_error"));
    surface.fails(answer, chat, messages, Some("insufficient_credits"));
}

#[test]
fn a_thinking_budget_is_lowered_with_the_limit_and_never_below_what_the_vendor_takes() {
    let world = World::new();
    let mut body = Messages.body("input=10 output=10", false, 50_000);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 40_000});
    let account = world.funded(hold(Messages, &body, 5_000));
    let answer = world.ask(&Messages.request(&account.key, &body));
    let warnings = answer.header("x-gateway-warnings");
    assert_eq!(
        warnings,
        Some("clamped:max_tokens, clamped:thinking.budget_tokens"),
        "{}",
        answer.text()
    );
    let sent: Value = serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap();
    let (limit, budget) = (
        sent["max_tokens"].as_u64().unwrap(),
        sent["thinking"]["budget_tokens"].as_u64().unwrap(),
    );
    assert!((1_024..limit).contains(&budget) && limit <= 5_000, "{sent}");
    let poor = world.account_with("poor@example.test", &["--no-trial"]);
    let given = credits(hold(Messages, &body, 1_024 + 255));
    world.grant(&poor, &given, "poor");
    insufficient(Messages, &world.ask(&Messages.request(&poor.key, &body)));
    assert_eq!(world.vendor.calls(), 1);
}

#[test]
fn a_limit_that_is_lowered_is_one_that_the_model_takes() {
    let world = World::new();
    let body = Messages.body("input=10 output=10", false, 1_000_000);
    let account = world.funded(hold(Messages, &body, 100_000));
    let answer = world.ask(&Messages.request(&account.key, &body));
    answer.has_header("x-gateway-warnings", "clamped:max_tokens");
    let sent: Value = serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap();
    assert_eq!((answer.status, &sent["max_tokens"]), (200, &json!(64_000)));
}

#[test]
fn where_no_limit_is_given_one_is_put_in_that_the_account_can_pay() {
    let (world, account) = World::with_funds(20_000_000);
    let mut body = Chat.body("input=10 output=10", false, 1);
    body.as_object_mut()
        .unwrap()
        .remove("max_completion_tokens");
    let answer = world.ask(&Chat.request(&account.key, &body));
    answer.has_header("x-gateway-warnings", "clamped:max_completion_tokens");
    let sent: Value = serde_json::from_str(world.vendor.last()["body"].as_str().unwrap()).unwrap();
    let limit = sent["max_completion_tokens"].as_i64().unwrap();
    assert!(limit * 1_400 <= 20_000_000 && limit > 14_000, "{sent}");
}

#[test]
fn of_64_at_once_on_credit_for_ten_exactly_ten_get_in() {
    let world = World::new();
    for surface in BOTH {
        let account = world.account_with(&format!("{surface:?}@example.test"), &["--no-trial"]);
        let body = surface.body("hold=headers input=1 output=1", surface == Chat, 200);
        let one = hold(surface, &body, 200);
        world.grant(&account, &credits(one * 10), &format!("{surface:?}"));
        let before = world.vendor.calls();
        let request = surface.request(&account.key, &body);
        // None that was admitted ends before all others are refused.
        let refused = AtomicU64::new(0);
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for("all to be admitted or refused", SOON, || {
                    let admitted = world.vendor.calls() - before;
                    (admitted + refused.load(Ordering::Relaxed) == 64).then_some(())
                });
                world.vendor.release();
            });
            together(64, || {
                let answer = world.ask(&request);
                refused.fetch_add(u64::from(answer.status != 200), Ordering::Relaxed);
                answer
            })
        });
        let admitted = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(admitted, 10, "{surface:?}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            insufficient(surface, answer);
        }
        assert_eq!(world.vendor.calls(), before + 10);
        world.ended(&account, 10);
        assert_eq!(
            world.standing(&account).balance,
            one * 10 - 10 * surface.cost(1, 1)
        );
    }
}

/// Runs `ask` in `count` threads at once.
pub fn together<T: Send>(count: usize, ask: impl Fn() -> T + Sync) -> Vec<T> {
    let start = std::sync::Barrier::new(count);
    std::thread::scope(|scope| {
        let run = || {
            start.wait();
            ask()
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn an_account_may_hold_only_so_many_requests_open() {
    let (world, account) = Plan::default()
        .limit("open_requests_per_account", 2)
        .with_account();
    for surface in BOTH {
        let mut open: Vec<_> = (0..2)
            .map(|_| {
                let mut connection = world.connect();
                connection.send(
                    &surface
                        .stream(&account.key, "events=6 hold=5 input=1 output=1")
                        .bytes(),
                );
                let answer = connection.begin();
                (connection, answer)
            })
            .collect();
        let answer = world.ask(&surface.whole(&account.key, "input=1"));
        let words = (429, "rate_limit_error");
        surface.fails(&answer, words, words, Some("rate_limit_exceeded"));
        assert_eq!(answer.header("retry-after"), Some("1"));
        world.vendor.release();
        for (connection, answer) in &mut open {
            connection.finish(answer);
            assert!(surface.is_complete(answer));
        }
        world.works(surface, &account.key);
    }
    assert_eq!(world.vendor.calls(), 6);
}

#[test]
fn a_trial_ends_at_its_time_and_a_running_response_finishes() {
    let (world, account) = Plan::default().trial_days("0.00006").with_account();
    let never = world.account_with("never@example.test", &["--no-trial"]);
    insufficient(Chat, &world.ask(&Chat.whole(&never.key, "input=1")));
    let (mut running, mut answer) =
        world.begin(&Messages.stream(&account.key, "events=20 hold=5 input=100 output=10"));
    wait_until("the trial's end", SOON, || {
        trial(&world, &account)["active"] == false
    });
    let standing = world.standing(&account);
    assert_eq!(standing.available, 0, "{standing:?}");
    for surface in BOTH {
        let refused = world.ask(&surface.whole(&account.key, "input=1"));
        let (chat, messages) = ((402, "insufficient_quota"), (402, "billing_error"));
        surface.fails(&refused, chat, messages, Some("trial_expired"));
    }
    assert!(
        answer.end().is_none(),
        "the stream was to outlast the trial"
    );
    world.vendor.release();
    Messages.completes(&mut running, &mut answer);
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        micro(&receipt["credits"]),
        Messages.cost(100, 10),
        "{receipt}"
    );
    assert_eq!(world.standing(&account).balance, 0);
    // Bought credits do not expire. Once they are spent, the error has another code.
    world.grant(&account, "1", "bought");
    world.works(Chat, &account.key);
    let mut body = Chat.body("input=1", false, 1_000);
    body["max_completion_tokens"] = 100_000.into();
    insufficient(
        Chat,
        &world.ask(
            &Chat
                .request(&account.key, &body)
                .header("x-gateway-strict", "true"),
        ),
    );
}

fn trial(world: &World, account: &Account) -> Value {
    world
        .ask(&Request::get("/v1/credits").bearer(&account.key))
        .json()["trial"]
        .clone()
}

#[test]
fn a_grant_while_the_gateway_runs_counts_at_the_next_request_and_only_once() {
    let (world, account) = World::with_funds(0);
    insufficient(
        Messages,
        &world.ask(&Messages.whole(&account.key, "input=1")),
    );
    let grant = |reference: &str| {
        world.json(&[
            "account",
            "grant",
            &account.email,
            "2.5",
            "--ref",
            reference,
        ])
    };
    assert_eq!(grant("invoice-1")["balance"], "2.5");
    // A command counts at most 50 ms after it has written, and a refused request costs nothing.
    let asked = Messages.whole(&account.key, "input=10 output=10");
    wait_until("the grant to count", SOON, || {
        world.ask(&asked).status == 200
    });
    let cost = Messages.cost(10, 10);
    assert_eq!(world.standing(&account).balance, 2_500_000 - cost);
    assert_eq!(grant("invoice-1")["counted"], false);
    assert_eq!(world.standing(&account).balance, 2_500_000 - cost);
    assert_eq!(grant("invoice-2")["counted"], true);
    assert_eq!(world.standing(&account).balance, 5_000_000 - cost);
    for bad in ["0", "-1", "0.0000001", "x"] {
        let output = world.command(&["account", "grant", &account.id, "--ref", "r", "--", bad]);
        assert!(!output.status.success(), "a grant of {bad}");
    }
}

#[test]
fn usage_that_is_missing_or_nonsense_is_estimated_within_the_hold() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for usage in ["none", "zero", "negative", "huge", "nan"] {
            for stream in [false, true] {
                let text = "t".repeat(400);
                let body = surface.body(&format!("usage={usage} text={text}"), stream, 1_000);
                let answer = world.ask(&surface.request(&account.key, &body));
                if answer.status != 200 || stream && !surface.is_complete(&answer) {
                    // If an answer is not JSON, that is the vendor's failure, and the request is
                    // free.
                    assert_eq!(
                        usage,
                        "nan",
                        "{surface:?} {usage} {stream}: {}",
                        answer.text()
                    );
                    let receipt = world.receipt(&account, &answer.request_id());
                    assert_eq!(micro(&receipt["credits"]), 0, "{receipt}");
                    continue;
                }
                let receipt = world.receipt(&account, &answer.request_id());
                let (most, cost) = (
                    hold(surface, &body, 1_000) + 10_500,
                    micro(&receipt["credits"]),
                );
                assert!(
                    cost <= most,
                    "{surface:?} {usage} {stream}: {cost} above the hold {most}"
                );
                assert!(cost > 0, "{surface:?} {usage} {stream}: free");
                if usage == "none" || usage == "zero" {
                    assert_eq!(
                        receipt["estimated"], true,
                        "{surface:?} {usage} {stream}: {receipt}"
                    );
                    assert_eq!(receipt["usage"]["output"], 120, "{receipt}");
                }
            }
        }
        for usage in ["twice", "every", "finish"] {
            let answer = world.ask(&surface.stream(
                &account.key,
                &format!("usage={usage} events=4 input=100 output=40"),
            ));
            let receipt = world.receipt(&account, &answer.request_id());
            assert_eq!(
                micro(&receipt["credits"]),
                surface.cost(100, 40),
                "{surface:?} {usage}: {receipt}"
            );
        }
    }
    let balance = world.standing(&account).balance;
    wait_until("all to be in the ledger", SOON, || {
        taken(&world.endings(&account)) == GRANT - balance
    });
}

#[test]
fn a_balance_never_goes_below_zero_whatever_a_vendor_reports() {
    let world = World::new();
    for surface in BOTH {
        let account = world.account_with(&format!("{surface:?}@example.test"), &["--no-trial"]);
        // More input tokens than the body has bytes, as a vendor's own prompt template can cause.
        let body = surface.body("input=6000 output=100", surface == Chat, 100);
        let given = hold(surface, &body, 100) + 20_000;
        world.grant(&account, &credits(given), &format!("{surface:?}"));
        let answer = world.ask(&surface.request(&account.key, &body));
        assert_eq!(answer.status, 200);
        let standing = world.standing(&account);
        assert_eq!((standing.balance, standing.held), (0, 0));
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(micro(&receipt["credits"]), given, "{receipt}");
        assert_eq!(
            micro(&receipt["writeoff"]),
            surface.cost(6_000, 100) - given,
            "{receipt}"
        );
        insufficient(surface, &world.ask(&surface.whole(&account.key, "input=1")));
    }
}

#[test]
fn a_free_refusal_and_a_count_of_tokens_cost_nothing() {
    let (world, account) = World::with_account();
    let answer = world.ask(&Messages.whole(&account.key, "refusal=1 input=500 output=0"));
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        (&receipt["outcome"], micro(&receipt["credits"])),
        (&json!("refused_free"), 0),
        "{receipt}"
    );
    let body = Messages.body("input=77", false, 1_000);
    let count = world
        .ask(&Request::post("/v1/messages/count_tokens", body.to_string()).bearer(&account.key));
    assert_eq!(
        (count.status, count.json()["input_tokens"].as_u64()),
        (200, Some(77))
    );
    assert_eq!(world.standing(&account).balance, GRANT);
    world.ended(&account, 1);
}
