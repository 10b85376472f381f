//! Tests a Redis Cluster whose slots move under load, and one that is down: no entry is lost, and
//! none is doubled.

use crate::account::Account;
use crate::client::Request;
use crate::crash::FUNDS;
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_until};
use std::time::Instant;
use test_world::redis::Cluster;

fn fleet() -> Fleet<Cluster> {
    let cluster = Cluster::start();
    let store = cluster.store();
    Fleet::on(cluster, &store)
}

/// Pauses a node until the other nodes report it as failed. The node loses no data; other tests
/// cover data loss after a crash.
fn miss_a_node(fleet: &Fleet<Cluster>, account: &Account) {
    let ask = |edge: &World| edge.ask(&Chat.whole(&account.key, "input=10 output=5"));
    fleet.redis.0[1].signal("STOP");
    wait_until("the cluster to be down", SOON, || {
        fleet.redis.0[0]
            .cli(&["cluster", "info"])
            .contains("cluster_state:fail")
    });
    for edge in &fleet.edges {
        let answer = ask(edge);
        assert_eq!(answer.status, 503, "{}", answer.text());
        wait_until("the edge to say so", SOON, || !edge.is_ready());
        let ready = crate::client::ask(edge.admin, &Request::get("/readyz")).text();
        assert!(ready.contains("shared store"), "{ready}");
        // The Redis client waits for the cluster until its time is up, so any of these reasons is
        // possible.
        let counted = ["store_cluster_down", "store_timeout", "store_unreachable"]
            .map(|reason| edge.metric("gateway_ledger_errors_total", &[reason]));
        assert!(counted.iter().sum::<f64>() > 0.0, "{}", edge.metrics());
    }
    fleet.redis.0[1].signal("CONT");
    for edge in &fleet.edges {
        let mut last = String::new();
        let began = Instant::now();
        while ask(edge).status != 200 {
            last = ask(edge).text();
            assert!(
                began.elapsed() < SOON,
                "the edge does not admit again: {last}"
            );
        }
        eprintln!("admitted again after {:?}, before: {last}", began.elapsed());
    }
}

/// Waits until the clients of a load have sent enough requests to tell whether one was lost.
fn wait_for_requests(fleet: &Fleet<Cluster>) {
    let calls = fleet.sidecar.vendor.calls() + 100;
    wait_until("the load", SOON, || fleet.sidecar.vendor.calls() >= calls);
}

#[test]
fn slots_that_move_under_load_lose_and_double_nothing() {
    let mut fleet = fleet();
    let account = fleet.funded(FUNDS);
    let keys = fleet.redis.keys(&format!("gw:*:a:{}", account.id)).concat();
    let [key] = &keys[..] else {
        panic!("the account is not in the store once: {keys:?}")
    };
    let rounds = if crate::is_long() { 10 } else { 1 };
    let log = fleet.under_load(&account, |fleet| {
        for _ in 0..rounds {
            wait_for_requests(fleet);
            let began = Instant::now();
            fleet.redis.move_slot(key);
            fleet.redis.move_slot(key);
            println!(
                "the account's slot was moved twice in {:?}",
                began.elapsed()
            );
            wait_for_requests(fleet);
            if crate::is_long() {
                miss_a_node(fleet, &account);
            }
        }
    });
    assert!(
        log.cut.is_empty(),
        "no running answer depends on the store: {} cut",
        log.cut.len()
    );
    fleet.matches(&account, &log);
}
