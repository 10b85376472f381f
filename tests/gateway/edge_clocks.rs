//! Edges whose clocks are hours off, or are set while they serve: the clock of the shared store
//! decides, and all edges decide alike.

use crate::client::Request;
use crate::keys_of_edges::Edges;
use crate::surface::{BOTH, Chat};
use crate::world::{SOON, SettableClock, World, faketime, wait_for, wait_until};
use serde_json::Value;
use std::cell::Cell;

/// How far the clocks of the two edges are off.
const HOURS: [i64; 2] = [3, -3];
const HOUR_MS: f64 = 3_600_000.0;

fn asks(edge: &World, key: &str) -> u16 {
    edge.ask(&Request::get("/v1/credits").bearer(key)).status
}

/// Creates a key that is valid for a time.
fn expiring(world: &Edges, account: &str, after: &str) -> String {
    let arguments = [
        "key",
        "create",
        "--account",
        account,
        "--name",
        "expiring",
        "--expires-in",
        after,
    ];
    let made = world.sidecar.json(&arguments);
    made["key"].as_str().unwrap().to_owned()
}

#[test]
fn edges_that_are_hours_off_accept_and_refuse_the_same_keys_and_date_what_they_bill_alike() {
    let Some(library) = faketime() else { return };
    let begun = Cell::new(0);
    let world = Edges::with(|plan| {
        let hours = HOURS[begun.replace(begun.get() + 1)];
        plan.environment("LD_PRELOAD", library.as_os_str())
            .environment("FAKETIME", format!("{hours:+}h"))
            .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .environment("DONT_FAKE_MONOTONIC", "1")
    });
    let account = world.account();
    for (edge, hours) in world.edges.iter().zip(HOURS) {
        let skew = edge.metric("gateway_store_clock_skew_milliseconds", &[]);
        let off = skew + hours as f64 * HOUR_MS;
        assert!(off.abs() < 5_000.0, "{hours} h off, measured {skew} ms");
    }
    let valid = expiring(&world, &account.id, "1h");
    for edge in &world.edges {
        wait_until("a valid key to be accepted", SOON, || {
            asks(edge, &valid) == 200
        });
    }
    let expired = expiring(&world, &account.id, "1s");
    for edge in &world.edges {
        wait_until("an expired key to be refused", SOON, || {
            asks(edge, &expired) == 401
        });
        let answer = edge.ask(&Request::get("/v1/credits").bearer(&expired));
        assert!(answer.text().contains("expired"), "{}", answer.text());
    }
    let before = jiff::Timestamp::now();
    for (edge, surface) in world.edges.iter().zip(BOTH) {
        edge.works(surface, &account.key);
    }
    let endings = wait_for("both requests in the ledger", SOON, || {
        Some(world.sidecar.endings(&account)).filter(|endings| endings.len() == 2)
    });
    for ending in &endings {
        let at: jiff::Timestamp = text(ending, "at").parse().unwrap();
        let seconds = at.duration_since(before).as_secs_f64();
        assert!((-5.0..60.0).contains(&seconds), "{seconds} s: {ending}");
    }
    world.edges[0].works(Chat, &valid);
}

#[test]
fn an_edge_whose_clock_is_set_goes_on_to_accept_refuse_and_bill_as_the_other_does() {
    let Some(clock) = SettableClock::new() else {
        return;
    };
    let begun = Cell::new(0);
    let world = Edges::with(|plan| match begun.replace(begun.get() + 1) {
        0 => plan.clock(&clock),
        _ => plan,
    });
    let account = world.account();
    let valid = expiring(&world, &account.id, "1h");
    for (count, offset) in ["+3h", "-3h", "+0"].into_iter().enumerate() {
        for edge in &world.edges {
            wait_until("a valid key to be accepted", SOON, || {
                asks(edge, &valid) == 200
            });
        }
        // This one ends while the clock is off.
        let expired = expiring(&world, &account.id, "1s");
        clock.set(offset);
        let before = jiff::Timestamp::now();
        for (edge, surface) in world.edges.iter().zip(BOTH) {
            edge.works(surface, &valid);
            wait_until("an expired key to be refused", SOON, || {
                asks(edge, &expired) == 401
            });
        }
        let endings = wait_for("both requests in the ledger", SOON, || {
            let endings = world.sidecar.endings(&account);
            Some(endings).filter(|endings| endings.len() == 2 * (count + 1))
        });
        for ending in &endings[..2] {
            let at: jiff::Timestamp = text(ending, "at").parse().unwrap();
            let seconds = at.duration_since(before).as_secs_f64();
            assert!(
                (-5.0..60.0).contains(&seconds),
                "{offset} {seconds} s: {ending}"
            );
        }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{value}"))
}
