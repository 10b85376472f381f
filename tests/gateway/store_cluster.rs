//! A Redis Cluster that changes under load, and one that is down: nothing is lost, nothing doubled.

use crate::client::Request;
use crate::crash::FUNDS;
use crate::server::Cluster;
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{SOON, free_port, wait_for};
use std::time::Duration;

fn fleet() -> Fleet<Cluster> {
    let cluster = Cluster::start_on(free_port);
    let store = cluster.store();
    Fleet::on(cluster, &store)
}

#[test]
fn slots_that_move_under_load_and_a_node_that_dies_lose_and_double_nothing() {
    let mut fleet = fleet();
    let account = fleet.funded(FUNDS);
    let rounds = if crate::is_long() { 10 } else { 1 };
    let log = fleet.under_load(&account, |fleet| {
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(300));
            // Every node's slots but the last ones, there and back: whatever partition the account is in moves.
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                fleet.redis.move_slots(from, to, 5_400);
            }
            fleet.redis.0[1].kill();
            wait_for("the cluster to be down", SOON, || {
                fleet.redis.0[0].cli(&["cluster", "info"]).contains("cluster_state:fail").then_some(())
            });
            for edge in &fleet.edges {
                let answer = edge.ask(&Chat.whole(&account.key, "input=10 output=5"));
                assert_eq!(answer.status, 503, "{}", answer.text());
                wait_for("the edge to say so", SOON, || (!edge.is_ready()).then_some(()));
                let ready = crate::client::ask(edge.admin, &Request::get("/readyz")).text();
                assert!(ready.contains("shared store"), "{ready}");
                assert!(edge.metric("gateway_ledger_errors_total", &["store_cluster_down"]) > 0.0);
            }
            fleet.redis.0[1].start_again();
            for edge in &fleet.edges {
                wait_for("the edge to admit again", SOON, || {
                    (edge.ask(&Chat.whole(&account.key, "input=10 output=5")).status == 200).then_some(())
                });
            }
        }
    });
    assert!(log.cut.is_empty(), "no running answer depends on the store: {} cut", log.cut.len());
    fleet.matches(&account, &log);
    fleet.close();
}
