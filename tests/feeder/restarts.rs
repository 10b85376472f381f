//! What the sidecar restores after the store's server has restarted: only what that server may have
//! lost. Real Redis.

use super::{ACCOUNT, PATIENCE, World, address, credits, frozen_replica};
use model_gateway::shared_credit::redis::{SettleReply, SharedStore, partition};
use test_world::redis::Server;

const REQUESTS: usize = 40;

/// Number of reads of markers, and of a few other keys, since the server started.
fn markers_asked_for(server: &Server) -> usize {
    let stats = server.cli(&["info", "commandstats"]);
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    calls
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or_default()
}

/// The server restarts after many requests. Returns how many markers the sidecar then asks for.
async fn asked_for_after_a_restart(has_record: bool) -> usize {
    let mut server = Server::start();
    let world = World::on(&server).await;
    let mut feed = world.feed();
    world.grant(ACCOUNT, credits(10_000), "more");
    world.make_known(&mut feed).await;
    for number in 0..REQUESTS {
        world.run(&format!("req_{number}")).await;
    }
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), REQUESTS as u64);
    if !has_record {
        server.cli(&["del", &format!("gw:{{p{}}}:published", partition(ACCOUNT))]);
    }
    server.kill_and_restart();
    feed.run_all().await.unwrap();
    let asked = markers_asked_for(&server);
    assert_eq!(world.drift(&world.store).await, 0);
    assert_eq!(world.debits(), REQUESTS as u64);
    asked
}

#[tokio::test]
async fn a_restarted_server_is_given_only_what_it_may_have_lost() {
    let asked = asked_for_after_a_restart(true).await;
    assert!(asked < REQUESTS / 2, "{asked} markers");
}

#[tokio::test]
async fn control_without_a_record_it_is_given_everything_of_some_minutes() {
    assert!(asked_for_after_a_restart(false).await >= REQUESTS);
}

#[tokio::test]
async fn a_server_that_restarted_unnoticed_records_nothing() {
    let mut server = Server::start();
    let world = World::on(&server).await;
    let place = partition(ACCOUNT);
    let before = world.store.ingest().partition_server(place).await.unwrap();
    let record = async |seq| {
        world
            .store
            .ingest()
            .record_published(&[place], &before.server, seq)
            .await
            .unwrap();
        world.store.ingest().published(place).await.unwrap()
    };
    assert_eq!(record(7).await, Some(7));
    server.kill_and_restart();
    assert_eq!(record(8).await, Some(7));
}

/// A replica takes over that has neither a request's hold nor its end, which the ledger has. The
/// edge reports the end again before the sidecar has restored it. `is_entered_before`: the sidecar
/// also reads that report before it restores. Returns the ledger's balance minus the store's, in
/// µc.
async fn reported_before_the_restoration(is_entered_before: bool, marks_as_settled: bool) -> i64 {
    let (primary, world, mut feed) = World::known().await;
    let replica = frozen_replica(&primary).await;
    world.run("req_lost").await;
    feed.run_all().await.unwrap();
    drop((feed, primary));
    let store = SharedStore::connect(&address(&replica), PATIENCE)
        .await
        .unwrap();
    let SettleReply::Done { event, .. } = world.end_in(&store, "req_lost").await else {
        panic!("its end was not lost")
    };
    let place = partition(ACCOUNT);
    if is_entered_before {
        let entered = [(event.clone(), "req_lost".to_owned())];
        store.ingest().clear_events(place, &entered).await.unwrap();
    }
    if marks_as_settled {
        let marker = format!("gw:{{p{place}}}:r:req_lost");
        assert_eq!(replica.cli(&["set", &marker, &format!("e{event}")]), "OK");
    }
    let mut feed = world.feed_from(&store);
    for _ in 0..2 {
        feed.run_all().await.unwrap();
    }
    assert_eq!(world.end_in(&store, "req_lost").await, SettleReply::Applied);
    assert_eq!(world.debits(), 1);
    world.drift(&store).await
}

#[tokio::test]
async fn an_end_that_comes_before_the_restoration_is_restored_all_the_same() {
    assert_eq!(reported_before_the_restoration(false, false).await, 0);
    assert_eq!(reported_before_the_restoration(true, false).await, 0);
}

#[tokio::test]
async fn control_marked_as_taken_it_is_not_restored() {
    assert_ne!(reported_before_the_restoration(false, true).await, 0);
}
