//! What the admin port tells: every promised family, and no label that a client chose.

use crate::client::Request;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{SOON, World, wait_for};
use serde_json::json;
use std::collections::BTreeSet;

/// Every family that the contract promises, with the labels its samples carry.
const FAMILIES: [(&str, &[&str]); 15] = [
    ("gateway_requests_total", &["surface", "model", "status"]),
    ("gateway_request_seconds_count", &["surface", "model"]),
    ("gateway_time_to_first_byte_seconds_count", &[]),
    ("gateway_overhead_seconds_count", &[]),
    ("gateway_upstream_requests_total", &["vendor", "endpoint", "status"]),
    ("gateway_upstream_healthy", &["vendor", "endpoint"]),
    ("gateway_tokens_total", &["model", "class"]),
    ("gateway_credits_micro_total", &["model"]),
    ("gateway_open_holds", &[]),
    ("gateway_streams_open", &[]),
    ("gateway_journal_pending", &[]),
    ("gateway_journal_oldest_seconds", &[]),
    ("gateway_rejected_total", &["reason"]),
    ("gateway_config_reloads_total", &["result"]),
    ("gateway_ledger_errors_total", &["reason"]),
];

fn series(world: &World) -> BTreeSet<String> {
    let text = world.metrics();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
}

#[test]
fn every_promised_family_is_there_after_a_few_requests() {
    let world = World::new();
    let account = world.account();
    for surface in BOTH {
        world.works(surface, &account.key);
        world.ask(&surface.stream(&account.key, "input=5 output=5"));
        world.ask(&surface.whole(&account.key, "status=500"));
        world.ask(&surface.whole("gw-sk-none", "input=1"));
    }
    world.signal("HUP");
    wait_for("the reload to be counted", SOON, || {
        (world.metric("gateway_config_reloads_total", &["result=\"ok\""]) == 1.0).then_some(())
    });
    let series = series(&world);
    for (family, labels) in FAMILIES {
        let sample = series.iter().find(|sample| sample.split('{').next() == Some(family));
        let Some(sample) = sample else {
            // A family whose every sample would be a failure that did not happen may be without one.
            assert_eq!(family, "gateway_ledger_errors_total", "no {family} in {series:#?}");
            continue;
        };
        for label in labels {
            assert!(sample.contains(&format!("{label}=\"")), "{sample} has no {label}");
        }
    }
    assert_eq!(world.metric("gateway_requests_total", &["surface=\"chat\"", "beta-5.2", "status=\"200\""]), 2.0);
    assert_eq!(world.metric("gateway_requests_total", &["surface=\"messages\"", "status=\"401\""]), 1.0);
    assert_eq!(world.metric("gateway_tokens_total", &[Messages.model(), "class=\"output\""]), 15.0);
    let cost = Chat.cost(15, 15);
    assert_eq!(world.metric("gateway_credits_micro_total", &[Chat.model()]), cost as f64);
    assert_eq!(world.metric("gateway_rejected_total", &["reason=\"bad_key\""]), 2.0);
    assert_eq!(world.metric("gateway_upstream_requests_total", &["vendor=\"beta\"", "status=\"200\""]), 2.0);
    world.close();
}

#[test]
fn what_a_client_sends_never_becomes_a_series() {
    let world = World::new();
    let account = world.account();
    let junk = |round: usize| {
        for surface in BOTH {
            let mut body = surface.body("input=1", false, 100);
            body["model"] = format!("junk-{round}").into();
            world.ask(&surface.request(&account.key, &body));
            world.ask(&Request::get(&format!("/v1/junk-{round}")).header("anthropic-version", &format!("v{round}")));
            world.ask(&Request::get(&format!("/v1/models/junk-{round}")).bearer(&account.key));
            world.ask(&Request::new(&format!("JUNK{round}"), surface.path()));
            world.ask(&surface.request(&format!("gw-sk-junk-{round}"), &json!({})));
            world.ask(&Request::get(&format!("/junk-{round}")));
            world.ask(&surface.whole(&account.key, &format!("model=junk-{round} finish=junk-{round} input=1")));
        }
    };
    junk(0);
    // A request is counted once its answer is out: the client may be quicker.
    let asked = 7.0 * BOTH.len() as f64;
    wait_for("the first round to be counted", SOON, || {
        (world.metric("gateway_requests_total", &[]) >= asked).then_some(())
    });
    let before = series(&world);
    for round in 1..if crate::is_long() { 1_000 } else { 40 } {
        junk(round);
    }
    let after = series(&world);
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{new:?}");
    let text = world.metrics();
    for word in ["junk", "JUNK", "gw-sk", &account.id, &account.email, "127.0.0.1:1234"] {
        assert!(!text.contains(word), "{word} is in the metrics");
    }
    world.close();
}
