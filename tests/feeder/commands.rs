//! How many commands a request costs the shared store, how many an idle sidecar sends, and how an
//! edge learns that the ledger has its requests.

use super::{ACCOUNT, KEY, LEASE, UNSWEPT, World, address, credits, now_ms, wait_for};
use credits::money::CreditSplit;
use model_gateway::shared_credit::redis::{
    EndState, ReserveCommand, ReserveReply, SettleCommand, SettleReply, SharedStore, partition,
};
use std::time::{Duration, Instant};
use test_world::redis::Server;

/// Commands that the server has run, those inside scripts included; those of this test are not.
fn commands(server: &Server) -> u64 {
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_ours = ["info", "config|resetstat", "script|load"].contains(&name);
        (!is_ours).then_some(rest.split(',').next()?.parse::<u64>().ok()?)
    };
    let stats = server.cli(&["info", "commandstats"]);
    stats.lines().filter_map(calls).sum()
}

fn key(kind: &str, of: &str) -> String {
    format!("gw:{{p{}}}:{kind}{of}", partition(ACCOUNT))
}

async fn state(world: &World, request: &str) -> EndState {
    let asked = [(ACCOUNT.to_owned(), request.to_owned())];
    world.store.holds().end_states(&asked).await.unwrap()[0]
}

async fn event_of(world: &World) -> String {
    let events = world
        .store
        .events()
        .events(partition(ACCOUNT), "1-1", 1)
        .await;
    events.unwrap()[0].0.clone()
}

#[tokio::test]
async fn a_request_costs_the_store_no_more_than_twelve_commands() {
    let server = Server::start();
    let world = World::on(&server).await;
    let mut feed = world.feed();
    let more = credits(10_000);
    world.grant(ACCOUNT, more, "more");
    world.make_known(&mut feed).await;
    world.run("req_warm").await;
    feed.run_all().await.unwrap();
    const REQUESTS: u64 = 50;
    server.cli(&["config", "resetstat"]);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| format!("req_{number}"))
        .collect();
    for request in &requests {
        world.run(request).await;
    }
    let alone = commands(&server);
    assert!(
        alone <= 11 * REQUESTS,
        "{alone} commands of {REQUESTS} requests"
    );
    feed.run_all().await.unwrap();
    let asked: Vec<_> = requests
        .iter()
        .map(|request| (ACCOUNT.to_owned(), request.clone()))
        .collect();
    let states = world.store.holds().end_states(&asked).await.unwrap();
    assert!(states.iter().all(|state| *state == EndState::Applied));
    let all = commands(&server);
    // One pass of all tasks and one poll, for however many requests. Three of the tasks, which run
    // four times a second, each second and every ten seconds, visit each of the sixteen partitions.
    assert!(all <= alone + 120, "{all} commands with the ledger");
    assert_eq!(world.debits(), REQUESTS + 1);
    assert_eq!(world.drift(&world.store).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_sidecar_sends_few_commands_and_finds_what_happens_all_the_same() {
    let server = Server::start();
    let world = World::on(&server).await;
    let feeder = world.ingest(&server);
    world.wait_known().await;
    // The sidecar has begun; from here on nothing happens for so long.
    const QUIET: Duration = Duration::from_secs(3);
    let (before, began) = (commands(&server), Instant::now());
    wait_for("a quiet time", async || began.elapsed() >= QUIET).await;
    let sent = commands(&server) - before;
    let a_second = u128::from(sent) * 1_000 / began.elapsed().as_millis();
    assert!(a_second <= 45, "{a_second} commands a second");
    let began = Instant::now();
    world.run("req_1").await;
    wait_for("the debit", async || {
        state(&world, "req_1").await == EndState::Applied
    })
    .await;
    assert!(began.elapsed() < UNSWEPT, "{:?}", began.elapsed());
    assert_eq!(world.debits(), 1);
    feeder.shut_down();
}

#[tokio::test]
async fn an_edge_learns_what_the_ledger_has_from_the_events_that_are_gone() {
    let (server, world, mut feed) = World::known().await;
    // An old event that nobody can enter stays, and holds up no other.
    server.cli(&["xadd", &key("ev", ""), "1-1", "what", "ever"]);
    assert_eq!(state(&world, "req_1").await, EndState::Lost, "never sent");
    world.run("req_1").await;
    assert_eq!(state(&world, "req_1").await, EndState::Waiting);
    let event = event_of(&world).await;
    assert_eq!(
        world.end("req_1").await,
        SettleReply::Known {
            event: event.clone()
        },
        "sent again"
    );
    assert_eq!(event_of(&world).await, event, "and nothing is added");
    world.run("req_2").await;
    feed.run_all().await.unwrap();
    assert_eq!(state(&world, "req_1").await, EndState::Applied);
    assert_eq!(state(&world, "req_2").await, EndState::Applied);
    assert_eq!(world.end("req_2").await, SettleReply::Applied);
    world.run("req_3").await;
    assert_eq!(state(&world, "req_3").await, EndState::Waiting);
    // A server that lost its last writes has neither the event nor the marker.
    server.cli(&["del", &key("r:", "req_3")]);
    assert_eq!(state(&world, "req_3").await, EndState::Lost);
    feed.run_all().await.unwrap();
    assert_eq!((world.debits(), world.drift(&world.store).await), (3, 0));
}

/// Another server may give an event's id to another event.
#[tokio::test]
async fn an_event_of_another_request_is_not_removed() {
    let (server, world, mut feed) = World::known().await;
    world.run("req_here").await;
    let event = event_of(&world).await;
    let there = [(event.clone(), "req_there".to_owned())];
    world
        .store
        .ingest()
        .clear_events(partition(ACCOUNT), &there)
        .await
        .unwrap();
    assert_eq!(event_of(&world).await, event);
    assert_eq!(state(&world, "req_here").await, EndState::Waiting);
    // The marker of an event that waited for very long has expired.
    server.cli(&["del", &key("r:", "req_here")]);
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), 1);
    assert_eq!(server.cli(&["xlen", &key("ev", "")]), "0");
}

/// The user of an installation from before lacks MGET and XREAD.
#[tokio::test]
async fn a_user_without_the_new_rights_is_served_all_the_same() {
    let (server, world, mut feed) = World::known().await;
    server.cli(&["acl", "setuser", "default", "-mget", "-xread"]);
    world.run("req_1").await;
    assert_eq!(state(&world, "req_1").await, EndState::Waiting);
    feed.run_all().await.unwrap();
    assert_eq!(state(&world, "req_1").await, EndState::Applied);
    assert_eq!((world.debits(), world.drift(&world.store).await), (1, 0));
}

/// Reserves as a version did that kept holds and leases beside the account.
fn reserve_as_before(server: &Server, request: &str, ends_at_ms: i64) {
    let (account, amount) = (key("a:", ACCOUNT), credits(10).get().to_string());
    server.cli(&["hincrby", &account, "held_paid", &amount]);
    let hold = format!("{amount}:0");
    server.cli(&["hset", &key("h:", ACCOUNT), request, &hold]);
    let member = format!("{ACCOUNT} {request}");
    server.cli(&["zadd", &key("l", ""), &ends_at_ms.to_string(), &member]);
}

#[tokio::test]
async fn holds_of_an_older_version_are_settled_seen_and_released() {
    let (server, world, mut feed) = World::known().await;
    let held = async || world.shared(ACCOUNT).await.unwrap().held;
    reserve_as_before(&server, "req_old", now_ms() + 60_000);
    reserve_as_before(&server, "req_gone", now_ms() - 1);
    world.hold("req_new").await;
    feed.run_all().await.unwrap();
    let twenty = CreditSplit {
        paid: credits(20),
        trial: credits(0),
    };
    assert_eq!(
        held().await,
        twenty,
        "the one whose edge is gone is released"
    );
    for request in ["req_old", "req_new"] {
        world.settle(request).await;
    }
    assert_eq!(held().await, CreditSplit::ZERO);
    assert_eq!(server.cli(&["exists", &key("h:", ACCOUNT)]), "0");
    feed.run_all().await.unwrap();
    assert_eq!((world.debits(), world.drift(&world.store).await), (2, 0));
}

#[tokio::test]
async fn an_account_is_visited_while_it_has_holds_and_forgotten_after() {
    let (server, world, _feed) = World::known().await;
    let (store, place, full) = (world.store.clone(), partition(ACCOUNT), credits(1));
    let reserve = async |request: &str, lease: Duration| {
        let asked = ReserveCommand {
            request_id: request,
            account: ACCOUNT,
            full,
            floor: full,
            lease,
            max_open: 20,
            within: None,
        };
        let reply = store.holds().reserve(&asked).await.unwrap();
        assert!(matches!(reply, ReserveReply::Held(_)), "{reply:?}");
    };
    reserve("req_short", Duration::from_millis(1)).await;
    reserve("req_long", LEASE).await;
    let due = || server.cli(&["zscore", &key("l", ""), ACCOUNT]);
    let first: i64 = due().parse().unwrap();
    assert!(first <= now_ms() + 10, "the first lease decides");
    wait_for("the short lease to end", async || {
        store.holds().sweep(place, now_ms()).await.unwrap() == 1
    })
    .await;
    let next: i64 = due().parse().unwrap();
    assert!(next > first && next <= now_ms() + 10_000, "it has a hold");
    let end = SettleCommand {
        request_id: "req_long",
        account: ACCOUNT,
        cost: full,
        ending: &world.told("req_long"),
        key_id: KEY,
        member: None,
        tokens: 0,
    };
    assert!(matches!(
        store.holds().settle(&end).await.unwrap(),
        SettleReply::Done { .. }
    ));
    // As ten seconds later.
    server.cli(&["zadd", &key("l", ""), "1", ACCOUNT]);
    assert_eq!(store.holds().sweep(place, now_ms()).await.unwrap(), 0);
    assert_eq!(due(), "", "nothing is held");
    let other = SharedStore::connect(&address(&server), Duration::from_secs(5))
        .await
        .unwrap();
    assert!(!other.ingest().has_holds(&[place]).await.unwrap());
    assert_eq!(
        store
            .balances()
            .account(ACCOUNT)
            .await
            .unwrap()
            .unwrap()
            .held,
        CreditSplit::ZERO
    );
    reserve("req_again", LEASE).await;
    assert_ne!(due(), "", "and it is listed again");
}
