//! Tests an edge's billing backend on a real Redis: the ends of its requests survive a crash of the
//! edge and a loss of the store.

use super::{address, micro, now_ms, parts};
use config::Limits;
use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing::{Quote, WorstCase};
use ledger::RequestOutcome;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use model_gateway::billing::{Hold, HoldRequest, ReserveError};
use model_gateway::shared_credit::SharedBilling;
use model_gateway::shared_credit::redis::{AccountSeed, SharedStore, StoreEvent, partition};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use test_world::redis::Server;

const ACCOUNT: &str = "acct_edge";
const SOON: Duration = Duration::from_secs(20);

/// A Redis server, and the data folder of an edge.
pub struct World {
    pub server: Server,
    dir: TempDir,
    model: Arc<CatalogModel>,
}

impl World {
    pub async fn new() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/local.yaml");
        let model = Arc::clone(
            config::load(&file, config::FileChecks::Edge)
                .unwrap()
                .catalog
                .find("beta-5.2")
                .unwrap(),
        );
        let world = Self {
            server: Server::start(),
            dir: tempfile::tempdir().unwrap(),
            model,
        };
        world.seed(10_000_000).await;
        world
    }

    pub fn store(&self) -> SharedStore {
        SharedStore::new(address(&self.server), Duration::from_secs(5))
    }

    async fn seed(&self, paid: i64) {
        let has = parts(paid, 0);
        let seed = AccountSeed {
            account: ACCOUNT,
            has,
            credited: has.paid,
            is_active: true,
            trial_ends_at_ms: None,
            seq: 0,
            epoch: "",
        };
        self.store().balances().seed_account(&seed).await.unwrap();
    }

    pub fn edge(&self) -> SharedBilling {
        let stores = (self.store(), self.store());
        SharedBilling::serve(self.dir.path(), stores, &[], &Limits::default()).unwrap()
    }

    fn journals(&self) -> usize {
        let entries = std::fs::read_dir(self.dir.path().join("journal")).unwrap();
        entries
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    }

    /// A hold of one credit.
    async fn hold(&self, billing: &SharedBilling, request: &str) -> Result<Hold, ReserveError> {
        let opening = HoldRequest {
            request_id: request.into(),
            account: ACCOUNT.into(),
            key_id: "key_1".into(),
            key_shown: "gw-sk-…".into(),
            member: None,
            model: Arc::clone(&self.model),
            surface: Protocol::Chat,
            bounds: Default::default(),
            conversation: None,
        };
        let price = micro(1_000_000);
        let reach = WorstCase {
            input_tokens: 0,
            input_price: price,
            output_price: price,
        };
        let quote = Quote::flat(reach, 1, 1_000_000, 1_000_000);
        billing
            .reserve(opening, &quote, true, now_ms())
            .await
            .map(|(hold, _)| hold)
    }

    async fn has(&self) -> (Micro, Micro) {
        let shared = self
            .store()
            .balances()
            .account(ACCOUNT)
            .await
            .unwrap()
            .unwrap();
        (shared.has.paid, shared.held.paid)
    }

    async fn wait_has(&self, paid: i64, held: i64) {
        let began = Instant::now();
        loop {
            let has = self.has().await;
            if has == (micro(paid), micro(held)) {
                return;
            }
            assert!(began.elapsed() < SOON, "{has:?}, not {paid} and {held}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn events(&self) -> Vec<StoreEvent> {
        let events = self
            .store()
            .events()
            .events(partition(ACCOUNT), "0", 1_000)
            .await
            .unwrap();
        events.into_iter().map(|(_, event)| event).collect()
    }
}

/// Usage of ten output tokens of the shipped model, and their cost in µc.
fn ten() -> (Usage, i64) {
    (
        Usage {
            output: 10,
            ..Usage::default()
        },
        14_000,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_edge_settles_reaches_the_store_and_stays_in_the_journal_until_the_ledger_has_it() {
    let world = World::new().await;
    let billing = world.edge();
    let hold = world.hold(&billing, "req_a").await.unwrap();
    assert_eq!(world.has().await, (micro(10_000_000), micro(1_000_000)));
    let (usage, cost) = ten();
    assert_eq!(
        hold.settle(usage, RequestOutcome::Completed, false, now_ms())
            .wait_on_thread()
            .unwrap(),
        micro(cost)
    );
    world.wait_has(10_000_000 - cost, 0).await;
    world
        .hold(&billing, "req_b")
        .await
        .unwrap()
        .release(RequestOutcome::VendorError, now_ms());
    world.wait_has(10_000_000 - cost, 0).await;
    let ended = |event: &StoreEvent| matches!(event, StoreEvent::Ended { .. });
    while world
        .events()
        .await
        .iter()
        .filter(|event| ended(event))
        .count()
        < 2
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The ledger has the first request and not the second, so the edge leaves its journal behind
    // when it ends.
    world.server.cli(&[
        "set",
        &format!("gw:{{p{}}}:r:req_a", partition(ACCOUNT)),
        "applied",
    ]);
    tokio::task::spawn_blocking(move || billing.shut_down())
        .await
        .unwrap();
    assert_eq!(world.journals(), 1);
    let next = world.edge();
    for request in ["req_a", "req_b"] {
        world.server.cli(&[
            "set",
            &format!("gw:{{p{}}}:r:{request}", partition(ACCOUNT)),
            "applied",
        ]);
    }
    tokio::task::spawn_blocking(move || next.shut_down())
        .await
        .unwrap();
    assert_eq!(world.journals(), 0, "all is known to be in the ledger");
    assert_eq!(world.events().await.len(), 2, "told twice, counted once");
    for event in world.events().await {
        let StoreEvent::Ended { ending, .. } = event else {
            panic!("{event:?}")
        };
        let told: serde_json::Value = serde_json::from_str(&ending).unwrap();
        let price: PriceList = serde_json::from_value(told["price"].clone()).unwrap();
        assert!(
            price.matches_version(told["detail"]["price_version"].as_str().unwrap()),
            "{told}"
        );
    }
    assert_eq!(world.has().await, (micro(10_000_000 - cost), Micro::ZERO));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_everything_is_told_again() {
    let world = World::new().await;
    let billing = world.edge();
    let (usage, cost) = ten();
    world
        .hold(&billing, "req_a")
        .await
        .unwrap()
        .settle(usage, RequestOutcome::Completed, false, now_ms())
        .wait_on_thread()
        .unwrap();
    world.wait_has(10_000_000 - cost, 0).await;
    assert_eq!(world.server.cli(&["flushall"]), "OK");
    // The ledger's balance does not include the request, because no sidecar has entered it.
    world.seed(10_000_000).await;
    let began = Instant::now();
    while !matches!(&world.events().await[..], [StoreEvent::EndedLate { request_id, .. }] if request_id == "req_a")
    {
        assert!(began.elapsed() < SOON, "the end was not told again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(world.has().await, (micro(10_000_000), Micro::ZERO));
}

/// Number of times that edges have read the ledger's progress from the store.
fn times_asked(server: &Server) -> u32 {
    let stats = server.cli(&["info", "commandstats"]);
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_xread:calls="));
    calls
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_everything_is_told_soon_however_long_the_ledger_is_away() {
    let world = World::new().await;
    let billing = world.edge();
    let (usage, _) = ten();
    let requests: Vec<_> = (0..300).map(|number| format!("req_{number}")).collect();
    for request in &requests {
        world
            .hold(&billing, request)
            .await
            .unwrap()
            .settle(usage, RequestOutcome::Completed, false, now_ms())
            .wait_on_thread()
            .unwrap();
        // Each holds a credit until the store has its end, and the account has ten.
        while world.has().await.1 > micro(3_000_000) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // The edge asks for each end after 0.3 s, 0.6 s and so on. Ten seconds later, all delays have
    // doubled to more than nine.
    let settled_at = Instant::now();
    while settled_at.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(times_asked(&world.server) > 5, "it asks for nothing");
    assert_eq!(world.server.cli(&["flushall"]), "OK");
    let lost_at = Instant::now();
    while world.events().await.len() < requests.len() {
        assert!(
            lost_at.elapsed() < Duration::from_secs(8),
            "{} of the ends were told again",
            world.events().await.len()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_edge_left_open_is_given_back_by_the_next() {
    let world = World::new().await;
    let billing = world.edge();
    let (usage, cost) = ten();
    world
        .hold(&billing, "req_a")
        .await
        .unwrap()
        .settle(usage, RequestOutcome::Completed, false, now_ms())
        .wait_on_thread()
        .unwrap();
    let _running = world.hold(&billing, "req_b").await.unwrap();
    world.wait_has(10_000_000 - cost, 1_000_000).await;
    // Another edge finds the journal that this one would leave if it were killed now.
    let other = tempfile::tempdir().unwrap();
    let (left, found) = (
        world.dir.path().join("journal").join(billing.instance_id()),
        other.path().join("journal/left"),
    );
    std::fs::create_dir_all(&found).unwrap();
    for file in std::fs::read_dir(left).unwrap().flatten() {
        std::fs::copy(file.path(), found.join(file.file_name())).unwrap();
    }
    let stores = (world.store(), world.store());
    let _next = SharedBilling::serve(other.path(), stores, &[], &Limits::default()).unwrap();
    world.wait_has(10_000_000 - cost, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_for_a_client_that_left_while_the_store_was_asked_is_given_back() {
    let world = World::new().await;
    let billing = world.edge();
    world
        .hold(&billing, "req_a")
        .await
        .unwrap()
        .release(RequestOutcome::VendorError, now_ms());
    world.server.signal("STOP");
    // The reserve request is under way, and nobody will read the answer.
    let left = tokio::time::timeout(Duration::from_secs(1), world.hold(&billing, "req_b")).await;
    assert!(left.is_err(), "a store that stands still has answered");
    world.server.signal("CONT");
    let began = Instant::now();
    let ended = |event: &StoreEvent| matches!(event, StoreEvent::Ended { request_id, .. } if request_id == "req_b");
    while !world.events().await.iter().any(ended) {
        assert!(
            began.elapsed() < SOON,
            "nobody ended it: {:?} is had and held",
            world.has().await
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The end of the first request may have waited for the store too.
    world.wait_has(10_000_000, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_nothing_begins_and_what_runs_is_finished() {
    let mut world = World::new().await;
    let billing = world.edge();
    let running = world.hold(&billing, "req_a").await.unwrap();
    world.server.kill();
    let began = Instant::now();
    let refused = world.hold(&billing, "req_b").await;
    assert!(
        matches!(refused, Err(ReserveError::Unavailable(_))),
        "admitted without the store"
    );
    assert!(
        began.elapsed() < SOON,
        "refused after {:?}",
        began.elapsed()
    );
    let (usage, cost) = ten();
    assert_eq!(
        running
            .settle(usage, RequestOutcome::Completed, false, now_ms())
            .wait_on_thread()
            .unwrap(),
        micro(cost)
    );
    world.server.start_again();
    world.wait_has(10_000_000 - cost, 0).await;
    let hold = world.hold(&billing, "req_c").await.unwrap();
    hold.release(RequestOutcome::VendorError, now_ms());
}
