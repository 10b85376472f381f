//! Tests the sidecar's side of the shared store on real Redis: each event in the store reaches the
//! ledger once, whatever is lost, and each ledger post reaches the store once.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod commands;
mod restarts;
mod stale;

use accounts::db::account_lifecycle::{OpenAccountOutcome, SignUpTerms};
use accounts::db::{AccountRow, AppDb, Role};
use accounts::{AccountStatus, Accounts, NewKey};
use config::redis_address::RedisAddress;
use credits::limits::Spender;
use credits::money::{CreditSplit, Micro};
use credits::pricing;
use credits::trial::Trial;
use ledger::{
    BalanceChange, BalanceChangeKind, Ending, EndingDetail, IngestEvent, Ledger, PartitionLocation,
    RequestOutcome,
};
use llm_protocol::usage::Usage;
use model_gateway::billing::Billing;
use model_gateway::shared_credit::ledger_ingest::{IngestWorker, LedgerIngest, debit_operation};
use model_gateway::shared_credit::redis::{
    PARTITIONS, PostCommand, PostReply, ReserveCommand, ReserveReply, SettleCommand, SettleReply,
    SharedStore, SpendSeed, StoreAccount, StoreEvent, partition,
};
use model_gateway::shared_credit::shared_balances;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use test_world::SOON;
use test_world::redis::{Cluster, Server};

const PATIENCE: Duration = Duration::from_secs(5);
const BINARY: &str = env!("CARGO_BIN_EXE_model-gateway");
const ACCOUNT: &str = "acct_feed";
const KEY: &str = "key_1";
const LEASE: Duration = Duration::from_secs(60);

fn address(server: &Server) -> RedisAddress {
    RedisAddress::One(server.url())
}

fn cluster_address(cluster: &Cluster) -> RedisAddress {
    RedisAddress::Cluster(cluster.urls())
}

fn now_ms() -> i64 {
    i64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

fn credits(amount: i64) -> Micro {
    Micro::new(amount * 1_000_000)
}

/// Far longer than an idle machine needs, and shorter than the interval in which the sidecar looks
/// through the whole store.
const UNSWEPT: Duration = Duration::from_secs(8);

async fn wait_for(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < SOON, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A store, and a ledger with one account that has a hundred credits.
struct World {
    dir: TempDir,
    store: SharedStore,
    billing: Billing,
    accounts: Accounts,
    detail: EndingDetail,
    cost: Micro,
}

impl World {
    async fn on(server: &Server) -> Self {
        Self::at(&address(server)).await
    }

    /// A server, a world on it whose account the server knows, and the sidecar's worker.
    async fn known() -> (Server, Self, IngestWorker) {
        let server = Server::start();
        let world = Self::on(&server).await;
        let mut feed = world.feed();
        world.make_known(&mut feed).await;
        (server, world, feed)
    }

    async fn at(address: &RedisAddress) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let billing = Billing::open(dir.path()).unwrap();
        let settings = config::parse(include_str!("../../conf/local.yaml"), &|_| None).unwrap();
        billing
            .store_prices(settings.catalog.models(), now_ms())
            .unwrap();
        let model = &settings.catalog.models()[0];
        let usage = Usage {
            input: 1_000,
            output: 2_000,
            ..Usage::default()
        };
        let detail = EndingDetail {
            key_id: KEY.into(),
            model: model.id.clone(),
            vendor: "alpha".into(),
            usage,
            price_version: model.price.version.clone(),
            ..Ending::in_test("", ACCOUNT, 0, RequestOutcome::Completed).detail
        };
        let cost = pricing::cost(&usage, &model.price);
        let accounts = Accounts::open(dir.path()).unwrap();
        let store = SharedStore::connect(address, PATIENCE).await.unwrap();
        let world = Self {
            dir,
            store,
            billing,
            accounts,
            detail,
            cost,
        };
        world.open(ACCOUNT, None);
        world.grant(ACCOUNT, credits(100), "first");
        world
    }

    fn open(&self, account: &str, trial: Option<Trial>) {
        let row = AccountRow {
            id: account.into(),
            email: format!("{account}@example.com"),
            role: Role::Member,
            active: true,
            deleted: false,
            created_at_ms: now_ms(),
            trial: trial.map(|trial| (trial.credits, trial.ends_at_ms)),
            granted: true,
            organisation: None,
        };
        let opened = AppDb::open(self.dir.path(), None)
            .unwrap()
            .people()
            .insert_account(&row, None, None, &SignUpTerms::default());
        assert_eq!(opened.unwrap(), OpenAccountOutcome::Done);
        self.billing.open_account(account, trial, now_ms()).unwrap();
    }

    /// Grants credits, with a reference that the account has not yet.
    fn grant(&self, account: &str, amount: Micro, reference: &str) {
        let corrections = self.billing.corrections();
        let is_new = corrections.grant(account, amount, reference, now_ms());
        assert!(is_new.unwrap(), "{reference} of {account}");
    }

    fn create_key(&self, name: &str) -> NewKey {
        let keys = self.accounts.api_keys();
        keys.create_key(ACCOUNT, name, now_ms()).unwrap()
    }

    fn revoke_key(&self, key: &NewKey, at_ms: i64) {
        let keys = self.accounts.api_keys();
        assert!(keys.revoke_key(None, &key.key_id, at_ms).unwrap());
    }

    /// Starts the sidecar's threads.
    fn ingest(&self, server: &Server) -> LedgerIngest {
        let start = || LedgerIngest::start(self.dir.path(), &address(server), false, None);
        tokio::task::block_in_place(start).unwrap()
    }

    fn feed(&self) -> IngestWorker {
        self.feed_from(&self.store)
    }

    fn feed_from(&self, store: &SharedStore) -> IngestWorker {
        IngestWorker::open(self.dir.path(), store.clone(), None).unwrap()
    }

    fn ledger(&self) -> Ledger {
        Ledger::open(self.dir.path()).unwrap()
    }

    async fn make_known(&self, feed: &mut IngestWorker) {
        self.store.ingest().request_seed(ACCOUNT).await.unwrap();
        wait_for("the account in the store", async || {
            feed.run_all().await.unwrap();
            self.shared(ACCOUNT).await.is_some()
        })
        .await;
    }

    /// Waits until the sidecar's threads have published the account.
    async fn wait_known(&self) {
        self.store.ingest().request_seed(ACCOUNT).await.unwrap();
        let is_known = async || self.shared(ACCOUNT).await.is_some();
        wait_for("the account", is_known).await;
    }

    /// What the store has of an account.
    async fn shared(&self, account: &str) -> Option<StoreAccount> {
        self.store.balances().account(account).await.unwrap()
    }

    /// What the sidecar has not yet taken from the store.
    async fn events(&self) -> Vec<(String, StoreEvent)> {
        let events = self.store.events();
        events.events(partition(ACCOUNT), "0", 10).await.unwrap()
    }

    async fn reserve(&self, request: &str) -> ReserveReply {
        let (full, floor) = (credits(10), credits(10));
        let asked = ReserveCommand {
            request_id: request,
            account: ACCOUNT,
            full,
            floor,
            lease: LEASE,
            max_open: 20,
            within: None,
        };
        self.store.holds().reserve(&asked).await.unwrap()
    }

    /// The ending that the edge reports for a request.
    fn told(&self, request: &str) -> String {
        let ending = Ending {
            request_id: request.to_owned(),
            account: ACCOUNT.to_owned(),
            at_ms: now_ms(),
            paid: self.cost,
            trial: Micro::ZERO,
            writeoff: Micro::ZERO,
            detail: self.detail.clone(),
        };
        serde_json::to_string(&ending).unwrap()
    }

    async fn held(&self) -> CreditSplit {
        self.shared(ACCOUNT).await.unwrap().held
    }

    async fn end(&self, request: &str) -> SettleReply {
        self.end_in(&self.store, request).await
    }

    async fn end_in(&self, store: &SharedStore, request: &str) -> SettleReply {
        let ending = self.told(request);
        store
            .holds()
            .settle(&SettleCommand {
                request_id: request,
                account: ACCOUNT,
                cost: self.cost,
                ending: &ending,
                key_id: KEY,
                member: None,
                tokens: 0,
            })
            .await
            .unwrap()
    }

    async fn hold(&self, request: &str) {
        let reply = self.reserve(request).await;
        assert!(
            matches!(reply, ReserveReply::Held(_)),
            "{request}: {reply:?}"
        );
    }

    async fn settle(&self, request: &str) {
        let reply = self.end(request).await;
        assert!(
            matches!(reply, SettleReply::Done { .. }),
            "{request}: {reply:?}"
        );
    }

    async fn run(&self, request: &str) {
        self.hold(request).await;
        self.settle(request).await;
    }

    /// The ledger's balance of the account minus the store's, in µc.
    async fn drift(&self, store: &SharedStore) -> i64 {
        let row = self.ledger().rows().account(ACCOUNT, "").unwrap().unwrap();
        let shared = store.balances().account(ACCOUNT).await.unwrap().unwrap();
        CreditSplit {
            paid: row.paid,
            trial: row.trial,
        }
        .minus(shared.has)
        .total()
        .get()
    }

    fn debits(&self) -> u64 {
        let verdict = self.billing.verify(now_ms()).unwrap();
        assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
        verdict.debits
    }
}

#[tokio::test]
async fn what_happened_is_entered_once_wherever_it_was_cut() {
    let (_server, world, feed) = World::known().await;
    for request in ["req_1", "req_2", "req_3"] {
        world.run(request).await;
    }
    let partition = partition(ACCOUNT);
    let events = world.events().await;
    assert_eq!(events.len(), 3);
    drop(feed);
    // As after a crash: the ledger has the first two events, but they were not cleared in the
    // store.
    let entered: Vec<_> = events[..2]
        .iter()
        .map(|(_, event)| {
            let StoreEvent::Ended {
                request_id,
                account,
                taken,
                writeoff,
                ..
            } = event.clone()
            else {
                panic!("{event:?}")
            };
            let (at_ms, detail, CreditSplit { paid, trial }) =
                (now_ms(), world.detail.clone(), taken);
            let ending = Ending {
                request_id,
                account,
                at_ms,
                paid,
                trial,
                writeoff,
                detail,
            };
            IngestEvent::Ended(Box::new(ending), None)
        })
        .collect();
    assert_eq!(
        world
            .ledger()
            .changes()
            .enter_store_events(&entered.iter().collect::<Vec<_>>())
            .unwrap()
            .len(),
        2
    );
    assert_eq!(world.debits(), 2);
    // As after a crash: not all their events are removed.
    world
        .store
        .ingest()
        .clear_events(partition, &[(events[0].0.clone(), "req_1".into())])
        .await
        .unwrap();
    let mut feed = world.feed();
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), 3, "each once");
    assert!(world.events().await.is_empty(), "and cleared");
    assert_eq!(
        world.end("req_3").await,
        SettleReply::Applied,
        "its edge may forget it"
    );
    assert_eq!(world.drift(&world.store).await, 0);
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), 3);
}

#[tokio::test]
async fn an_event_that_cannot_be_entered_stops_no_other() {
    let (server, world, mut feed) = World::known().await;
    let stream = format!("gw:{{p{}}}:ev", partition(ACCOUNT));
    server.cli(&["xadd", &stream, "*", "what", "ever"]);
    server.cli(&[
        "xadd",
        &stream,
        "*",
        "lapse",
        "acct_nobody",
        "account",
        "acct_nobody",
        "trial",
        "5",
    ]);
    world.run("req_1").await;
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), 1);
    assert_eq!(
        server.cli(&["xlen", &stream]),
        "2",
        "what cannot be entered is kept"
    );
}

#[tokio::test]
async fn a_server_without_memory_loses_no_event_that_it_cannot_mark_as_entered() {
    let (server, world, mut feed) = World::known().await;
    world.run("req_1").await;
    // The edge is of an older version, which looks at the marker.
    let (event, _) = world
        .store
        .events()
        .events(partition(ACCOUNT), "0", 1)
        .await
        .unwrap()[0]
        .clone();
    let marker = format!("gw:{{p{}}}:r:req_1", partition(ACCOUNT));
    assert_eq!(server.cli(&["set", &marker, &event, "keepttl"]), "OK");
    assert_eq!(server.cli(&["config", "set", "maxmemory", "1mb"]), "OK");
    let refused = feed.run_all().await.unwrap_err();
    assert_eq!(world.debits(), 1, "it was entered: {refused}");
    assert_eq!(world.events().await.len(), 1, "and is still told");
    assert_eq!(server.cli(&["config", "set", "maxmemory", "0"]), "OK");
    feed.run_all().await.unwrap();
    assert!(world.events().await.is_empty());
    assert_eq!(
        world.end("req_1").await,
        SettleReply::Applied,
        "its edge may forget it"
    );
    assert_eq!(server.cli(&["get", &marker]), "applied");
    assert_eq!((world.debits(), world.drift(&world.store).await), (1, 0));
}

#[tokio::test]
async fn what_the_store_took_otherwise_than_the_ledger_is_levelled_there_once() {
    let (server, world, mut feed) = World::known().await;
    world.run("req_1").await;
    feed.run_all().await.unwrap();
    // The request ends a second time, on a server that lost the first end and where the account had
    // 5 µc less to take.
    let (place, less) = (partition(ACCOUNT), world.cost.get() - 5);
    server.cli(&[
        "hincrby",
        &format!("gw:{{p{place}}}:a:{ACCOUNT}"),
        "paid",
        "5",
    ]);
    let stream = format!("gw:{{p{place}}}:ev");
    let (paid, told) = (less.to_string(), world.told("req_1"));
    for _ in 0..2 {
        let event = [
            "xadd", &stream, "*", "request", "req_1", "account", ACCOUNT, "paid", &paid, "trial",
            "0",
        ];
        server.cli(&[&event[..], &["writeoff", "5", "ending", &told]].concat());
        feed.run_all().await.unwrap();
        assert_eq!(world.drift(&world.store).await, 0);
    }
    assert_eq!(world.debits(), 1);
}

#[tokio::test]
async fn what_has_an_epoch_of_before_is_brought_up_to_date() {
    let (primary, world, mut feed) = World::known().await;
    let replica = frozen_replica(&primary).await;
    world.run("req_1").await;
    feed.run_all().await.unwrap();
    assert_eq!(primary.cli(&["flushall"]), "OK");
    world.make_known(&mut feed).await;
    drop((feed, primary));
    // The replica has the account as it was in the first epoch. A restoration was begun and broken
    // off there.
    let store = SharedStore::connect(&address(&replica), PATIENCE)
        .await
        .unwrap();
    let place = partition(ACCOUNT);
    let before = store.ingest().partition_server(place).await.unwrap().epoch;
    let begin = async |before: &str| {
        let token = "restoring:unfinished";
        store
            .ingest()
            .begin_epoch(place, before, token)
            .await
            .unwrap()
    };
    assert!(!begin("another").await, "only what was seen is followed");
    assert!(begin(&before).await);
    let mut feed = world.feed_from(&store);
    feed.run_all().await.unwrap();
    assert_eq!(world.end_in(&store, "req_1").await, SettleReply::Applied);
    assert_eq!((world.debits(), world.drift(&store).await), (1, 0));
}

/// A copy of the server as it is now.
async fn frozen_replica(primary: &Server) -> Server {
    let port = primary.port.to_string();
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port]);
    let in_step = || replica.cli(&["get", "in:step"]) == "yes";
    primary.cli(&["set", "in:step", "yes"]);
    wait_for("the replica to follow", async || in_step()).await;
    replica.cli(&["replicaof", "no", "one"]);
    replica
}

#[tokio::test]
async fn an_end_without_a_hold_is_decided_by_the_ledger_and_posted_to_the_store_once() {
    let (server, world, mut feed) = World::known().await;
    let place = partition(ACCOUNT);
    let forget = |request: &str| {
        assert_eq!(
            server.cli(&["del", &format!("gw:{{p{place}}}:r:{request}")]),
            "1"
        )
    };
    // The store has forgotten the end of one request and the hold of the other.
    world.run("req_known").await;
    feed.run_all().await.unwrap();
    forget("req_known");
    world.hold("req_open").await;
    lose_hold(&server, "req_open");
    for request in ["req_known", "req_open"] {
        let SettleReply::Done { taken, .. } = world.end(request).await else {
            panic!("{request} was not accepted")
        };
        assert_eq!(taken, CreditSplit::ZERO, "{request}");
        assert!(
            matches!(world.end(request).await, SettleReply::Known { .. }),
            "told once"
        );
    }
    drop(feed);
    // As after a crash: the ledger has the entries, but nothing was posted to the store yet.
    let events = world.events().await;
    let entered: Vec<_> = events
        .iter()
        .map(|(_, event)| {
            let StoreEvent::EndedLate { ending, .. } = event else {
                panic!("{event:?}")
            };
            IngestEvent::EndedLate(Box::new(serde_json::from_str(ending).unwrap()), None)
        })
        .collect();
    assert_eq!(
        world
            .ledger()
            .changes()
            .enter_store_events(&entered.iter().collect::<Vec<_>>())
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        (world.debits(), world.drift(&world.store).await),
        (2, -world.cost.get()),
        "not posted there yet"
    );
    let mut feed = world.feed();
    for _ in 0..2 {
        feed.run_all().await.unwrap();
        assert_eq!((world.debits(), world.drift(&world.store).await), (2, 0));
    }
    assert_eq!(
        world.end("req_open").await,
        SettleReply::Applied,
        "its edge may forget it"
    );
    // The result is the same once the markers are gone, and after a total loss.
    forget("req_open");
    for is_lost in [false, true] {
        if is_lost {
            assert_eq!(server.cli(&["flushall"]), "OK");
            world.make_known(&mut feed).await;
        }
        world.end("req_open").await;
        feed.run_all().await.unwrap();
        assert_eq!((world.debits(), world.drift(&world.store).await), (2, 0));
    }
}

/// Removes a hold as a server does that lost the write of it.
fn lose_hold(server: &Server, request: &str) {
    let account = format!("gw:{{p{}}}:a:{ACCOUNT}", partition(ACCOUNT));
    assert_eq!(server.cli(&["hdel", &account, &format!("~{request}")]), "1");
    let none = ["held_paid", "0", "held_trial", "0", "open_holds", "0"];
    server.cli(&[&["hset", &account], &none[..]].concat());
}

#[tokio::test]
async fn what_a_hold_covers_is_taken_from_the_store_though_the_ledger_has_the_end() {
    // The control of the test above: with a hold, the store takes the cost again, and keeps it.
    let (server, world, mut feed) = World::known().await;
    world.run("req_known").await;
    feed.run_all().await.unwrap();
    let marker = format!("gw:{{p{}}}:r:req_known", partition(ACCOUNT));
    assert_eq!(server.cli(&["del", &marker]), "1");
    world.run("req_known").await;
    feed.run_all().await.unwrap();
    assert_eq!(
        (world.debits(), world.drift(&world.store).await),
        (1, world.cost.get())
    );
}

/// An API key with a spending limit learns of a debit that the ledger decided.
#[tokio::test]
async fn a_debit_that_the_ledger_decided_counts_as_the_spending_of_its_key() {
    let (server, world, mut feed) = World::known().await;
    let place = partition(ACCOUNT);
    let api_key = format!("gw:{{p{place}}}:k:{KEY}");
    let PartitionLocation { epoch, .. } = world
        .ledger()
        .events()
        .partition_location(place)
        .unwrap()
        .unwrap();
    let seed = SpendSeed {
        account: ACCOUNT,
        spender: Spender::Key,
        id: KEY,
        at_ms: now_ms(),
        spent: [Micro::ZERO; 4],
        seq: 1,
        epoch: &epoch,
    };
    assert!(world.store.ingest().seed_spending(&seed).await.unwrap());
    world.end("req_1").await;
    for _ in 0..2 {
        feed.run_all().await.unwrap();
        assert_eq!(
            server.cli(&["hget", &api_key, "total_spent"]),
            world.cost.get().to_string()
        );
    }
    assert_eq!((world.debits(), world.drift(&world.store).await), (1, 0));
}

#[tokio::test]
async fn after_a_total_loss_nothing_is_lost_or_counted_twice_and_nothing_need_be_restored() {
    let (server, world, mut feed) = World::known().await;
    let requests: Vec<_> = (0..5).map(|number| format!("req_{number}")).collect();
    for request in &requests {
        world.run(request).await;
    }
    feed.run_all().await.unwrap();
    // Only the edge knows the end of one request, and one still runs.
    world.run("req_unread").await;
    world.hold("req_running").await;
    assert_eq!(server.cli(&["flushall"]), "OK");
    world.make_known(&mut feed).await;
    let markers = format!("gw:{{p{}}}:r:*", partition(ACCOUNT));
    assert_eq!(server.cli(&["keys", &markers]), "", "nothing is restored");
    world.hold("req_new").await;
    let late = ["req_unread", "req_running", "req_new"];
    for request in requests.iter().map(String::as_str).chain(late) {
        world.end(request).await;
    }
    feed.run_all().await.unwrap();
    assert_eq!((world.debits(), world.drift(&world.store).await), (8, 0));
    assert_eq!(world.held().await, CreditSplit::ZERO);
    for request in requests.iter().map(String::as_str).chain(late) {
        assert_eq!(world.end(request).await, SettleReply::Applied, "{request}");
    }
}

#[tokio::test]
async fn after_a_total_loss_an_account_is_seeded_once_the_edges_have_reported_again() {
    let server = Server::start();
    let world = World::on(&server).await;
    let mut feed = world.feed();
    world.store.ingest().request_seed(ACCOUNT).await.unwrap();
    feed.run_all().await.unwrap();
    assert!(
        world.shared(ACCOUNT).await.is_some(),
        "a new store waits for nobody"
    );
    // The store loses this end before the sidecar reads it.
    world.run("req_unread").await;
    assert_eq!(server.cli(&["flushall"]), "OK");
    // The sidecar learns of the loss when it looks for the account.
    world.store.ingest().request_seed(ACCOUNT).await.unwrap();
    feed.seed_accounts().await.unwrap();
    feed.run_all().await.unwrap();
    assert_eq!(
        world.shared(ACCOUNT).await,
        None,
        "its credits could be spent again"
    );
    world.settle("req_unread").await;
    world.make_known(&mut feed).await;
    assert_eq!((world.debits(), world.drift(&world.store).await), (1, 0));
    assert_eq!(world.end("req_unread").await, SettleReply::Applied);
}

/// A replica without the last writes takes over.
async fn failover(is_noticed: bool) -> (i64, u64) {
    let (primary, world, mut feed) = World::known().await;
    world.run("req_kept").await;
    world.hold("req_lost").await;
    feed.run_all().await.unwrap();
    let replica = frozen_replica(&primary).await;
    // These two are in the ledger, and the promoted replica does not have them.
    world.settle("req_lost").await;
    world.grant(ACCOUNT, credits(7), "lost");
    feed.run_all().await.unwrap();
    assert_eq!(world.drift(&world.store).await, 0);
    // The store loses this end before the sidecar reads it. Only the edge has it.
    world.run("req_unread").await;
    drop(feed);
    drop(primary);
    let store = SharedStore::connect(&address(&replica), PATIENCE)
        .await
        .unwrap();
    if !is_noticed {
        for number in 0..PARTITIONS {
            let lineage = store.ingest().partition_server(number).await.unwrap();
            let found = PartitionLocation {
                server: lineage.server,
                epoch: lineage.epoch,
                seen_ms: now_ms(),
            };
            world
                .ledger()
                .events()
                .set_partition_locations(&[(number, found)])
                .unwrap();
        }
    }
    let mut feed = world.feed_from(&store);
    feed.run_all().await.unwrap();
    let seen = world.drift(&store).await;
    assert!(matches!(
        world.end_in(&store, "req_unread").await,
        SettleReply::Done { .. }
    ));
    if is_noticed {
        assert_eq!(world.end_in(&store, "req_lost").await, SettleReply::Applied);
        assert_eq!(world.end_in(&store, "req_kept").await, SettleReply::Applied);
        assert_eq!(
            store
                .balances()
                .account(ACCOUNT)
                .await
                .unwrap()
                .unwrap()
                .held,
            CreditSplit::ZERO,
            "its hold is gone"
        );
    }
    feed.run_all().await.unwrap();
    assert_eq!(world.drift(&store).await, seen);
    (seen, world.debits())
}

#[tokio::test]
async fn after_a_failover_what_was_lost_is_restored() {
    assert_eq!(failover(true).await, (0, 3));
}

#[tokio::test]
async fn control_a_failover_that_is_not_noticed_leaves_the_balances_apart() {
    assert_ne!(failover(false).await.0, 0);
}

#[tokio::test]
async fn a_grant_counts_once_whether_seeded_or_posted() {
    let (server, world, mut feed) = World::known().await;
    world.grant(ACCOUNT, credits(5), "second");
    feed.run_all().await.unwrap();
    assert_eq!(world.drift(&world.store).await, 0, "told");
    assert_eq!(world.shared(ACCOUNT).await.unwrap().credited, credits(105));
    let (kind, amount) = (BalanceChangeKind::TopUp, credits(2));
    let bought = BalanceChange {
        kind,
        reference: "bought",
        account: ACCOUNT,
        amount,
        actor: None,
        at_ms: now_ms(),
    };
    assert!(
        world
            .billing
            .corrections()
            .post_change(&bought)
            .unwrap()
            .is_new
    );
    feed.run_all().await.unwrap();
    assert_eq!(world.shared(ACCOUNT).await.unwrap().credited, credits(107));
    drop(feed);
    // As after a crash before the published position was saved: the sidecar publishes again the
    // credit that the account was seeded with, and the posted credit.
    world.ledger().events().set_published_seq(0).unwrap();
    world.feed().run_all().await.unwrap();
    assert_eq!(world.drift(&world.store).await, 0, "once");
    // Without the `seeded` position in the store, the seeded credit would count again.
    let partition = partition(ACCOUNT);
    server.cli(&[
        "hset",
        &format!("gw:{{p{partition}}}:a:{ACCOUNT}"),
        "seeded",
        "0",
    ]);
    world.ledger().events().set_published_seq(0).unwrap();
    world.feed().run_all().await.unwrap();
    assert_eq!(world.drift(&world.store).await, -100_000_000);
}

#[tokio::test]
async fn a_trial_that_is_over_lapses_in_both() {
    let server = Server::start();
    let world = World::on(&server).await;
    // A busy machine has seeded the account by then.
    let ends_at_ms = now_ms() + 4_000;
    world.open(
        "acct_trial",
        Some(Trial {
            credits: credits(300),
            ends_at_ms,
        }),
    );
    let mut feed = world.feed();
    world
        .store
        .ingest()
        .request_seed("acct_trial")
        .await
        .unwrap();
    feed.run_all().await.unwrap();
    assert_eq!(
        world.shared("acct_trial").await.unwrap().has.trial,
        credits(300)
    );
    wait_for("the lapse", async || {
        feed.run_all().await.unwrap();
        world
            .ledger()
            .rows()
            .account("acct_trial", "")
            .unwrap()
            .unwrap()
            .trial
            == Micro::ZERO
    })
    .await;
    assert_eq!(
        world.shared("acct_trial").await.unwrap().has.trial,
        Micro::ZERO
    );
    let entries = world
        .billing
        .receipts()
        .entries("acct_trial", None, 10)
        .unwrap();
    let kinds: Vec<_> = entries.iter().map(|entry| entry.kind.as_str()).collect();
    assert_eq!(kinds, ["lapse", "trial"]);
    assert_eq!(world.debits(), 0);
}

#[tokio::test]
async fn holds_are_seen_by_those_who_look_at_the_books() {
    let (_server, world, mut feed) = World::known().await;
    world.hold("req_1").await;
    feed.run_all().await.unwrap();
    let balance = world.billing.balance(ACCOUNT, now_ms()).unwrap();
    assert_eq!(
        (balance.balance, balance.held, balance.available),
        (credits(100), credits(10), credits(90))
    );
    world.end("req_1").await;
    feed.run_all().await.unwrap();
    assert_eq!(
        world.billing.balance(ACCOUNT, now_ms()).unwrap().held,
        Micro::ZERO
    );
    feed.close().unwrap();
    assert_eq!(world.debits(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_revocations_and_suspensions_arrive_within_a_second() {
    let server = Server::start();
    let world = World::on(&server).await;
    let early = world.create_key("early");
    let feeder = world.ingest(&server);
    // Revoked long ago, while no sidecar ran. An edge may still have the key in its cache as valid.
    let gone = world.create_key("gone");
    world.revoke_key(&gone, now_ms() - 48 * 3_600_000);
    let known = |key: &str| {
        format!(
            "gw:k:{}",
            Sha256::digest(key)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        )
    };
    let says = |key: &str, field: &str| server.cli(&["hget", &known(key), field]);
    let soon = async |what: &str, condition: &dyn Fn() -> bool| {
        let began = Instant::now();
        wait_for(what, async || condition()).await;
        assert!(
            began.elapsed() < UNSWEPT,
            "{what} took {:?}",
            began.elapsed()
        );
    };
    wait_for("the keys there were", async || {
        says(&early.key, "status") == "active"
    })
    .await;
    assert_eq!(says(&early.key, "account"), ACCOUNT);
    wait_for("the one that is good no more", async || {
        says(&gone.key, "status") == "revoked"
    })
    .await;
    world.wait_known().await;
    let late = world.create_key("late");
    soon("a new key", &|| says(&late.key, "status") == "active").await;
    world.revoke_key(&late, now_ms());
    soon("a revocation", &|| says(&late.key, "status") == "revoked").await;
    assert!(
        server
            .cli(&["ttl", &known(&late.key)])
            .parse::<i64>()
            .unwrap()
            > 0,
        "it is forgotten some day"
    );
    assert!(
        world
            .accounts
            .set_status(ACCOUNT, AccountStatus::Suspended)
            .unwrap()
    );
    soon("a suspension", &|| {
        says(&early.key, "account_status") == "suspended"
    })
    .await;
    wait_for("a refusal", async || {
        world.reserve("req_s").await == ReserveReply::Suspended
    })
    .await;
    assert!(
        world
            .accounts
            .set_status(ACCOUNT, AccountStatus::Active)
            .unwrap()
    );
    soon("its end", &|| {
        says(&early.key, "account_status") == "active"
    })
    .await;
    world.run("req_1").await;
    wait_for("the debit", async || world.debits() == 1).await;
    assert!(feeder.is_healthy());
    assert!(
        IngestWorker::open(world.dir.path(), world.store.clone(), None).is_err(),
        "one feeder to a ledger"
    );
    server.cli(&["flushall"]);
    wait_for("the keys after a loss", async || {
        says(&early.key, "status") == "active"
    })
    .await;
    feeder.shut_down();
}

/// A ledger from a backup would publish old balances, and keys without accounts would work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_older_than_the_store_is_refused_until_the_store_is_emptied() {
    let server = Server::start();
    let world = World::on(&server).await;
    let start = |dir: &Path| LedgerIngest::start(dir, &address(&server), false, None);
    let backup = world.dir.path().join("backup");
    let granted = tokio::task::block_in_place(|| {
        world.billing.upkeep().backup(&backup).unwrap();
        world
            .billing
            .corrections()
            .grant(ACCOUNT, credits(5), "second", now_ms())
    });
    assert!(granted.unwrap());
    let ingest = tokio::task::block_in_place(|| start(world.dir.path()).unwrap());
    wait_for("the last entry to be recorded", async || {
        server.cli(&["get", "gw:ledger"]).starts_with("2 ")
    })
    .await;
    tokio::task::block_in_place(|| ingest.shut_down());
    drop(ingest);
    let refused = tokio::task::block_in_place(|| start(&backup).err().unwrap().to_string());
    assert!(
        refused.contains("knows entry 2 of the ledger, which this ledger does not have"),
        "{refused}"
    );
    // The newest one is good, and so is the older one once nothing knows better.
    tokio::task::block_in_place(|| start(world.dir.path()).unwrap().shut_down());
    assert_eq!(server.cli(&["flushall"]), "OK");
    tokio::task::block_in_place(|| start(&backup).unwrap().shut_down());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_takes_in_both_what_no_request_holds_and_once() {
    let server = Server::start();
    let world = World::on(&server).await;
    let feeder = world.ingest(&server);
    let billing = Billing::open_with_store(
        world.dir.path(),
        shared_balances(Some(address(&server))),
        None,
    )
    .unwrap();
    let adjust = |amount, reference: &str| {
        tokio::task::block_in_place(|| {
            billing
                .corrections()
                .adjust(ACCOUNT, credits(amount), reference, "a reason", now_ms())
        })
    };
    assert!(
        adjust(-20, "a").unwrap().is_new,
        "an account that the store did not know"
    );
    assert!(!adjust(-20, "a").unwrap().is_new, "once");
    assert!(adjust(-21, "a").is_err(), "the reference is taken");
    world.hold("req_1").await;
    let refused = adjust(-71, "b").unwrap_err().to_string();
    assert!(refused.contains("only 70 are available"), "{refused}");
    assert!(
        adjust(-70, "b").unwrap().is_new,
        "what was refused took nothing"
    );
    world.end("req_1").await;
    // As after a crash between the store and the ledger: the store has charged the amount, and
    // running the command again enters it in the ledger.
    let rest = PostCommand {
        operation: &debit_operation("adjust", ACCOUNT, "c"),
        account: ACCOUNT,
        change: CreditSplit {
            paid: credits(-2),
            trial: Micro::ZERO,
        },
        credited: Micro::ZERO,
        only_free: true,
        seq: 0,
    };
    assert_eq!(
        world.store.balances().post(&rest).await.unwrap(),
        PostReply::Done
    );
    let verify = || tokio::task::block_in_place(|| billing.verify(now_ms()).unwrap());
    // Between its debit and its end, the request still holds what the account has paid.
    wait_for("the debit, and what the ledger lacks", async || {
        let seen = verify();
        let found = &seen.findings;
        seen.debits == 1 && found.len() == 1 && found[0].rule == "shared balance"
    })
    .await;
    assert!(adjust(-2, "c").unwrap().is_new);
    assert!(adjust(3, "d").unwrap().is_new);
    wait_for("the books to agree", async || {
        world.drift(&world.store).await == 0
    })
    .await;
    let found = verify().findings;
    assert!(found.is_empty(), "{found:?}");
    feeder.shut_down();
}

#[tokio::test]
async fn a_cluster_is_followed_like_one_server() {
    let cluster = Cluster::start();
    let world = World::at(&cluster_address(&cluster)).await;
    let mut feed = world.feed();
    world.make_known(&mut feed).await;
    world.run("req_1").await;
    world.hold("req_2").await;
    world
        .accounts
        .api_keys()
        .create_key(ACCOUNT, "a key", now_ms())
        .unwrap();
    world.grant(ACCOUNT, credits(1), "more");
    feed.run_all().await.unwrap();
    assert_eq!(world.debits(), 1);
    assert_eq!(world.drift(&world.store).await, 0);
    assert_eq!(
        world.billing.balance(ACCOUNT, now_ms()).unwrap().held,
        credits(10)
    );
    drop(feed);
    // As after a restart, the server has a new name. The sidecar publishes everything again, which
    // changes nothing.
    for number in 0..PARTITIONS {
        let found = world
            .ledger()
            .events()
            .partition_location(number)
            .unwrap()
            .unwrap();
        world
            .ledger()
            .events()
            .set_partition_locations(&[(
                number,
                PartitionLocation {
                    server: "another".into(),
                    ..found
                },
            )])
            .unwrap();
    }
    world.feed().run_all().await.unwrap();
    assert_eq!(world.drift(&world.store).await, 0);
    assert_eq!(world.debits(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_costs_no_debit_and_doubles_none() {
    let mut server = Server::start();
    let world = World::on(&server).await;
    let feeder = world.ingest(&server);
    world.wait_known().await;
    let mut ended = 0;
    for round in 0..3 {
        for number in 0..5 {
            world.run(&format!("req_{round}_{number}")).await;
            ended += 1;
        }
        server.kill_and_restart();
        // The edge got no answer for the last request, and sends its end again.
        let request = format!("req_{round}_4");
        let ending = world.told(&request);
        let end = SettleCommand {
            request_id: &request,
            account: ACCOUNT,
            cost: world.cost,
            ending: &ending,
            key_id: KEY,
            member: None,
            tokens: 0,
        };
        wait_for("the server", async || {
            world.store.holds().settle(&end).await.is_ok()
        })
        .await;
    }
    wait_for("the debits", async || world.debits() == ended).await;
    wait_for("the books to agree", async || {
        world.drift(&world.store).await == 0
    })
    .await;
    server.kill();
    wait_for("the feeder to notice", async || !feeder.is_healthy()).await;
    let path = world.dir.path();
    tokio::task::block_in_place(|| feeder.shut_down());
    drop(IngestWorker::open(path, world.store.clone(), None).unwrap());
}

struct Sidecar {
    process: Child,
    ports: [u16; 2],
}

impl Sidecar {
    /// Writes the config file of a sidecar in `dir`. Returns its path and the ports.
    fn config(dir: &Path, store: &str) -> (PathBuf, [u16; 2]) {
        let ports = [(); 3]
            .map(|()| TcpListener::bind("127.0.0.1:0").unwrap())
            .map(|port| port.local_addr().unwrap().port());
        let text = include_str!("../../conf/local.yaml")
            .replace("127.0.0.1:8080\"]", &format!("127.0.0.1:{}\"]", ports[0]))
            .replace("127.0.0.1:8081", &format!("127.0.0.1:{}", ports[1]))
            .replace("127.0.0.1:9090", &format!("127.0.0.1:{}", ports[2]))
            .replace(
                "data_dir: \"data\"",
                &format!("data_dir: {:?}", dir.display().to_string()),
            )
            .replace("store: {kind: embedded}", &format!("store: {store}"));
        let file = dir.join("gateway.yaml");
        std::fs::write(&file, text).unwrap();
        (file, [ports[1], ports[2]])
    }

    fn start(dir: &Path, server: &Server) -> Self {
        let store = format!(
            "{{kind: redis, url: \"redis://127.0.0.1:{}\"}}",
            server.port
        );
        let (file, ports) = Self::config(dir, &store);
        let process = Command::new(BINARY)
            .args(["sidecar", "-c"])
            .arg(file)
            .spawn()
            .unwrap();
        Self { process, ports }
    }

    /// Returns the status line and the body.
    fn ask(port: u16, path: &str, header: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.lines().next()?.to_owned(), body.to_owned()))
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sidecar_serves_edges_and_ends_when_it_is_told_to() {
    let server = Server::start();
    let world = World::on(&server).await;
    let mut sidecar = Sidecar::start(world.dir.path(), &server);
    let [pages, admin] = sidecar.ports;
    let is = |answer: Option<(String, String)>, status: &str| {
        answer.is_some_and(|(line, _)| line.contains(status))
    };
    wait_for("the sidecar", async || {
        is(Sidecar::ask(admin, "/readyz", ""), "200")
    })
    .await;
    world.wait_known().await;
    let request = format!("req_{}", uuid::Uuid::now_v7().simple());
    world.hold(&request).await;
    let whose = format!("x-gateway-account: {ACCOUNT}\r\n");
    wait_for("the hold", async || {
        Sidecar::ask(pages, "/v1/credits", &whose)
            .unwrap()
            .1
            .contains("\"held\":\"10\"")
    })
    .await;
    let path = format!("/v1/receipts/{request}");
    // The receipt is requested before the request has ended, so the sidecar waits.
    let asking = std::thread::spawn({
        let (path, whose) = (path.clone(), whose.clone());
        move || Sidecar::ask(pages, &path, &whose).unwrap()
    });
    world.settle(&request).await;
    let (status, body) = tokio::task::block_in_place(|| asking.join().unwrap());
    assert!(
        status.contains("200")
            && body.contains(&request)
            && body.contains("\"outcome\":\"completed\""),
        "{body}"
    );
    assert!(
        is(
            Sidecar::ask(pages, &path, "x-gateway-account: acct_other\r\n"),
            "404"
        ),
        "another's"
    );
    assert!(is(Sidecar::ask(pages, "/v1/credits", ""), "400"));
    assert!(is(Sidecar::ask(pages, "/dashboard/sign-in", ""), "200"));
    world.run("req_last").await;
    let killed = Command::new("kill")
        .args(["-TERM", &sidecar.process.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let status = tokio::task::block_in_place(|| sidecar.process.wait().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(world.debits(), 2, "nothing was left behind");
}

#[test]
fn each_command_says_which_store_it_is_for() {
    let dir = tempfile::tempdir().unwrap();
    let said = |command: &str, store: &str| {
        let (file, _) = Sidecar::config(dir.path(), store);
        let output = Command::new(BINARY)
            .args([command, "-c"])
            .arg(file)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said("sidecar", "{kind: embedded}").contains("use `model-gateway run`"));
    let said = said("run", "{kind: redis, url: \"redis://127.0.0.1:1\"}");
    assert!(
        said.contains("`model-gateway edge` and `model-gateway sidecar`"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_would_forget_is_refused_by_the_name_of_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.cli(&["config", "set", "appendonly", "no"]);
    server.cli(&["config", "set", "maxmemory", "100mb"]);
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let address = address(&server);
    let path = dir.path().to_owned();
    let said = tokio::task::spawn_blocking(move || {
        let refused = LedgerIngest::start(&path, &address, false, None)
            .err()
            .unwrap()
            .to_string();
        LedgerIngest::start(&path, &address, true, None)
            .unwrap()
            .shut_down();
        refused
    });
    let said = said.await.unwrap();
    assert!(
        said.contains("maxmemory-policy is allkeys-lru") && said.contains("appendonly is no"),
        "{said}"
    );
}
