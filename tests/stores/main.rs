//! Tests the stores behind their interfaces: the shared store's scripts on real Redis, the same
//! tests on a single server and on a cluster; and the rules of a ledger on each of its homes. Read
//! next: `stores/edge.rs`, `stores/ledger.rs`.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod copies;
mod edge;
mod ledger;
mod limits;
mod schema;

use config::redis_address::RedisAddress;
use credits::money::{CreditSplit, MAX_MICRO, Micro};
use model_gateway::shared_credit::redis::ReserveReply::{
    Ended, Held, Insufficient, Suspended, TooManyOpen, TrialExpired, Unknown,
};
use model_gateway::shared_credit::redis::{
    AccountSeed, PARTITIONS, PostCommand, PostReply, ReserveCommand, ReserveReply, SettleCommand,
    SettleReply, SharedStore, StoreAccount, StoreEvent, partition,
};
use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use test_world::redis::{Cluster, Server};

const PATIENCE: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(60);

fn address(server: &Server) -> RedisAddress {
    RedisAddress::One(server.url())
}

fn cluster_address(cluster: &Cluster) -> RedisAddress {
    RedisAddress::Cluster(cluster.urls())
}

async fn connect(address: &RedisAddress) -> SharedStore {
    SharedStore::connect(address, PATIENCE).await.unwrap()
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

fn micro(amount: i64) -> Micro {
    Micro::new(amount)
}

fn parts(paid: i64, trial: i64) -> CreditSplit {
    CreditSplit {
        paid: micro(paid),
        trial: micro(trial),
    }
}

/// The reply to a reservation of more than this many µc, which are available.
fn lacks(available: i64) -> ReserveReply {
    Insufficient {
        available: micro(available),
    }
}

/// A store, and an account in it that no other test uses.
struct World {
    store: SharedStore,
    account: String,
    requests: u64,
}

impl World {
    async fn with(
        store: &SharedStore,
        account: &str,
        paid: i64,
        trial: Option<(i64, i64)>,
    ) -> Self {
        let has = parts(paid, trial.map_or(0, |(left, _)| left));
        let seed = AccountSeed {
            account,
            has,
            credited: micro(paid),
            is_active: true,
            trial_ends_at_ms: trial.map(|(_, ends)| ends),
            seq: 0,
            epoch: "",
        };
        assert!(store.balances().seed_account(&seed).await.unwrap());
        Self {
            store: store.clone(),
            account: account.to_owned(),
            requests: 0,
        }
    }

    fn next(&mut self) -> String {
        self.requests += 1;
        format!("req_{}_{}", self.account, self.requests)
    }

    async fn reserve(&self, request: &str, full: i64, floor: i64) -> ReserveReply {
        self.reserve_for(request, full, floor, LEASE).await
    }

    async fn reserve_for(
        &self,
        request: &str,
        full: i64,
        floor: i64,
        lease: Duration,
    ) -> ReserveReply {
        let (full, floor, account) = (micro(full), micro(floor), self.account.as_str());
        self.store
            .holds()
            .reserve(&ReserveCommand {
                request_id: request,
                account,
                full,
                floor,
                lease,
                max_open: 20,
                within: None,
            })
            .await
            .unwrap()
    }

    async fn end(&self, request: &str, cost: i64) -> SettleReply {
        let end = SettleCommand {
            request_id: request,
            account: &self.account,
            cost: micro(cost),
            ending: "{\"a\":1}",
            key_id: "",
            member: None,
            tokens: 0,
        };
        self.store.holds().settle(&end).await.unwrap()
    }

    async fn taken(&self, request: &str, cost: i64) -> (CreditSplit, Micro) {
        match self.end(request, cost).await {
            SettleReply::Done {
                taken, writeoff, ..
            } => (taken, writeoff),
            other => panic!("{other:?}"),
        }
    }

    async fn stands(&self) -> StoreAccount {
        let found = self.store.balances().account(&self.account).await;
        found.unwrap().unwrap()
    }

    async fn has(&self) -> (CreditSplit, CreditSplit) {
        let stands = self.stands().await;
        (stands.has, stands.held)
    }
}

async fn a_hold_is_given_back_but_for_the_cost_and_told_to_the_ledger(store: &SharedStore) {
    let mut world = World::with(store, "acct_hold", 1_000, None).await;
    let request = world.next();
    assert_eq!(world.reserve(&request, 600, 600).await, Held(parts(600, 0)));
    assert_eq!(world.has().await, (parts(1_000, 0), parts(600, 0)));
    assert_eq!(
        world.reserve(&request, 600, 600).await,
        Held(parts(600, 0)),
        "asked again, held once"
    );
    assert_eq!(world.has().await, (parts(1_000, 0), parts(600, 0)));
    let SettleReply::Done {
        event,
        taken,
        writeoff,
    } = world.end(&request, 250).await
    else {
        panic!("not ended")
    };
    assert_eq!((taken, writeoff), (parts(250, 0), Micro::ZERO));
    assert_eq!(world.has().await, (parts(750, 0), parts(0, 0)));
    assert_eq!(
        world.end(&request, 250).await,
        SettleReply::Known {
            event: event.clone()
        },
        "once"
    );
    assert_eq!(
        world.reserve(&request, 600, 600).await,
        Ended,
        "never again"
    );
    assert_eq!(world.has().await, (parts(750, 0), parts(0, 0)));
    let told = StoreEvent::Ended {
        request_id: request,
        account: world.account.clone(),
        taken,
        writeoff,
        ending: "{\"a\":1}".into(),
    };
    let events = store
        .events()
        .events(partition(&world.account), "0", 1_000)
        .await
        .unwrap();
    let mine: Vec<_> = events.into_iter().filter(|(id, _)| *id == event).collect();
    assert_eq!(mine, [(event.clone(), told)]);
    let later = store
        .events()
        .events(partition(&world.account), &event, 1_000)
        .await
        .unwrap();
    assert!(later.iter().all(|(id, _)| *id != event), "read on after it");
}

async fn what_does_not_fit_is_lowered_to_what_is_there_but_not_below_the_floor(
    store: &SharedStore,
) {
    let mut world = World::with(store, "acct_fit", 1_000, None).await;
    let first = world.next();
    assert_eq!(world.reserve(&first, 5_000, 1_001).await, lacks(1_000));
    assert_eq!(
        world.reserve(&first, 5_000, 1_000).await,
        Held(parts(1_000, 0))
    );
    let second = world.next();
    assert_eq!(world.reserve(&second, 1, 0).await, lacks(0));
    world.taken(&first, 0).await;
    assert_eq!(world.has().await, (parts(1_000, 0), parts(0, 0)));
}

async fn a_cost_beyond_the_hold_takes_what_is_free_and_no_more(store: &SharedStore) {
    let mut world = World::with(store, "acct_beyond", 1_000, None).await;
    let (first, second) = (world.next(), world.next());
    world.reserve(&first, 300, 300).await;
    world.reserve(&second, 500, 500).await;
    assert_eq!(
        world.taken(&first, 700).await,
        (parts(500, 0), micro(200)),
        "what another request holds is not free"
    );
    assert_eq!(world.has().await, (parts(500, 0), parts(500, 0)));
    assert_eq!(
        world.taken(&second, 500).await,
        (parts(500, 0), Micro::ZERO)
    );
    assert_eq!(world.has().await, (parts(0, 0), parts(0, 0)));
    let late = world.next();
    assert_eq!(
        world.taken(&late, 10).await,
        (parts(0, 0), Micro::ZERO),
        "without a hold, the ledger decides"
    );
}

async fn a_trial_is_spent_first_and_ends_on_the_dot(store: &SharedStore) {
    let ends = now_ms() + 400;
    let mut world = World::with(store, "acct_trial", 100, Some((1_000, ends))).await;
    let (first, second) = (world.next(), world.next());
    assert_eq!(world.reserve(&first, 600, 600).await, Held(parts(0, 600)));
    assert_eq!(world.reserve(&second, 450, 450).await, Held(parts(50, 400)));
    while now_ms() <= ends {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let third = world.next();
    assert_eq!(world.reserve(&third, 60, 60).await, lacks(50));
    assert!(
        !store.balances().expire_trial(&world.account).await.unwrap(),
        "not while a request holds of it"
    );
    assert_eq!(
        world.taken(&first, 500).await,
        (parts(0, 500), Micro::ZERO),
        "held before the end, spent after it"
    );
    assert_eq!(
        world.taken(&second, 500).await,
        (parts(100, 400), Micro::ZERO),
        "beyond the hold only what is not trial"
    );
    assert!(store.balances().expire_trial(&world.account).await.unwrap());
    assert!(
        !store.balances().expire_trial(&world.account).await.unwrap(),
        "once"
    );
    assert_eq!(world.has().await, (parts(0, 0), parts(0, 0)));
    let events = store
        .events()
        .events(partition(&world.account), "0", 1_000)
        .await
        .unwrap();
    let lapsed = StoreEvent::Lapsed {
        account: world.account.clone(),
        trial: micro(100),
    };
    assert_eq!(
        events.iter().filter(|(_, event)| *event == lapsed).count(),
        1
    );
    let trial_only = World::with(store, "acct_expired", 0, Some((1_000, ends))).await;
    assert_eq!(trial_only.reserve("req_x", 60, 60).await, TrialExpired);
}

async fn a_post_counts_once_and_takes_only_what_is_free(store: &SharedStore) {
    let mut world = World::with(store, "acct_post", 1_000, None).await;
    let request = world.next();
    world.reserve(&request, 600, 600).await;
    let command = |operation, paid, only_free| PostCommand {
        operation,
        account: "acct_post",
        change: parts(paid, 0),
        credited: micro(paid.max(0)),
        only_free,
        seq: 0,
    };
    let post = async |operation, paid, only_free| {
        let command = command(operation, paid, only_free);
        store.balances().post(&command).await.unwrap()
    };
    let refused = PostReply::Insufficient {
        available: micro(400),
    };
    assert_eq!(post("op 1", -401, true).await, refused);
    assert_eq!(post("op 1", -400, true).await, PostReply::Done);
    assert_eq!(
        post("op 1", -400, true).await,
        PostReply::Known {
            change: parts(-400, 0)
        }
    );
    assert_eq!(post("op 2", 50, false).await, PostReply::Done);
    assert_eq!(
        post("op 2", 50, false).await,
        PostReply::Known {
            change: parts(50, 0)
        }
    );
    assert_eq!(world.has().await, (parts(650, 0), parts(600, 0)));
    assert_eq!(world.stands().await.credited, micro(1_050));
    let nobody = PostCommand {
        account: "acct_nobody",
        ..command("op 3", 1, false)
    };
    assert_eq!(
        store.balances().post(&nobody).await.unwrap(),
        PostReply::Unknown
    );
}

async fn whom_the_store_does_not_know_the_ledger_must_seed(store: &SharedStore) {
    let stranger = World {
        store: store.clone(),
        account: "acct_stranger".into(),
        requests: 0,
    };
    assert_eq!(stranger.reserve("req_s", 1, 1).await, Unknown);
    assert_eq!(
        stranger.taken("req_a", 1).await,
        (parts(0, 0), Micro::ZERO),
        "the ledger decides before it is known"
    );
    assert_eq!(
        store.balances().account("acct_stranger").await.unwrap(),
        None
    );
    let seed = |paid, is_active| AccountSeed {
        account: "acct_stranger",
        has: parts(paid, 0),
        credited: micro(paid),
        is_active,
        trial_ends_at_ms: None,
        seq: 0,
        epoch: "",
    };
    assert!(
        store
            .balances()
            .seed_account(&seed(500, false))
            .await
            .unwrap()
    );
    assert!(
        !store
            .balances()
            .seed_account(&seed(900, true))
            .await
            .unwrap(),
        "only where it is not known"
    );
    assert_eq!(stranger.has().await, (parts(500, 0), parts(0, 0)));
    assert_eq!(stranger.reserve("req_s", 1, 1).await, Suspended);
    assert_eq!(
        stranger.taken("req_s", 7).await,
        (parts(0, 0), Micro::ZERO),
        "what runs is finished all the same, and the ledger decides its debit"
    );
}

async fn a_hold_whose_lease_ran_out_is_given_up_and_its_end_left_to_the_ledger(
    store: &SharedStore,
) {
    let mut world = World::with(store, "acct_lease", 1_000, None).await;
    let (short, long) = (world.next(), world.next());
    world
        .reserve_for(&short, 600, 600, Duration::from_millis(1))
        .await;
    world.reserve_for(&long, 300, 300, LEASE).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        store
            .holds()
            .sweep(partition(&world.account), now_ms())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        store
            .holds()
            .sweep(partition(&world.account), now_ms())
            .await
            .unwrap(),
        0
    );
    assert_eq!(world.has().await, (parts(1_000, 0), parts(300, 0)));
    assert_eq!(world.taken(&short, 600).await, (parts(0, 0), Micro::ZERO));
    assert_eq!(world.has().await, (parts(1_000, 0), parts(300, 0)));
    assert!(matches!(
        world.end(&short, 600).await,
        SettleReply::Known { .. }
    ));
}

async fn amounts_are_exact_to_the_bounds(store: &SharedStore) {
    let mut world = World::with(store, "acct_bounds", MAX_MICRO, None).await;
    for cost in [
        1,
        999_999_999_999_999,
        1_000_000_000_000_001,
        4_503_599_627_370_497,
    ] {
        let before = world.has().await.0.paid;
        let request = world.next();
        let held = world.reserve(&request, cost, cost).await;
        assert_eq!(held, Held(parts(cost, 0)));
        assert_eq!(
            world.taken(&request, cost).await,
            (parts(cost, 0), Micro::ZERO)
        );
        assert_eq!(
            world.has().await,
            (
                CreditSplit {
                    paid: before.minus(micro(cost)),
                    trial: Micro::ZERO
                },
                parts(0, 0)
            )
        );
    }
}

async fn open_requests_are_counted(store: &SharedStore) {
    let mut world = World::with(store, "acct_open", 1_000, None).await;
    for _ in 0..20 {
        let request = world.next();
        assert_eq!(world.reserve(&request, 1, 1).await, Held(parts(1, 0)));
    }
    assert_eq!(world.reserve("req_21", 1, 1).await, TooManyOpen);
    world.taken("req_acct_open_1", 1).await;
    assert_eq!(world.reserve("req_21", 1, 1).await, Held(parts(1, 0)));
}

async fn a_reserve_without_a_lease_judges_and_sets_nothing_aside(store: &SharedStore) {
    let mut world = World::with(store, "acct_judged", 1_000, None).await;
    let judge = async |full: i64, max_open: u64| {
        let full = micro(full);
        let lease = Duration::ZERO;
        let asked = ReserveCommand {
            request_id: "",
            account: "acct_judged",
            full,
            floor: full,
            lease,
            max_open,
            within: None,
        };
        store.holds().reserve(&asked).await.unwrap()
    };
    for _ in 0..3 {
        assert_eq!(judge(1_000, 1).await, Held(parts(0, 0)));
    }
    assert_eq!(judge(1_001, 1).await, lacks(1_000));
    assert_eq!(world.has().await, (parts(1_000, 0), parts(0, 0)));
    let request = world.next();
    assert_eq!(
        world.reserve(&request, 1_000, 1_000).await,
        Held(parts(1_000, 0))
    );
    assert_eq!(judge(1, 1).await, TooManyOpen);
    assert_eq!(judge(1, 2).await, lacks(0));
    world.taken(&request, 0).await;
    assert_eq!(world.has().await, (parts(1_000, 0), parts(0, 0)));
}

/// The connections of two edges race for one account with credit for exactly ten requests.
async fn credit_for_ten_admits_exactly_ten_through_two_connections(
    store: &SharedStore,
    other: &SharedStore,
) {
    let rounds = if std::env::var_os("GATEWAY_LONG").is_some() {
        1_000
    } else {
        50
    };
    for round in 0..rounds {
        let account = format!("acct_race_{round}");
        let world = World::with(store, &account, 10, None).await;
        let mut tries = tokio::task::JoinSet::new();
        for number in 0..64 {
            let (store, account) = (
                if number % 2 == 0 {
                    store.clone()
                } else {
                    other.clone()
                },
                account.clone(),
            );
            tries.spawn(async move {
                let request_id = format!("req_{account}_{number}");
                let one = micro(1);
                let asked = ReserveCommand {
                    request_id: &request_id,
                    account: &account,
                    full: one,
                    floor: one,
                    lease: LEASE,
                    max_open: 99,
                    within: None,
                };
                matches!(store.holds().reserve(&asked).await.unwrap(), Held(_))
            });
        }
        let admitted = tries
            .join_all()
            .await
            .into_iter()
            .filter(|held| *held)
            .count();
        assert_eq!(admitted, 10, "round {round}");
        assert_eq!(world.has().await, (parts(10, 0), parts(10, 0)));
    }
}

async fn all(store: &SharedStore, other: &SharedStore) {
    a_hold_is_given_back_but_for_the_cost_and_told_to_the_ledger(store).await;
    what_does_not_fit_is_lowered_to_what_is_there_but_not_below_the_floor(store).await;
    a_cost_beyond_the_hold_takes_what_is_free_and_no_more(store).await;
    a_trial_is_spent_first_and_ends_on_the_dot(store).await;
    a_post_counts_once_and_takes_only_what_is_free(store).await;
    whom_the_store_does_not_know_the_ledger_must_seed(store).await;
    a_hold_whose_lease_ran_out_is_given_up_and_its_end_left_to_the_ledger(store).await;
    amounts_are_exact_to_the_bounds(store).await;
    open_requests_are_counted(store).await;
    a_reserve_without_a_lease_judges_and_sets_nothing_aside(store).await;
    credit_for_ten_admits_exactly_ten_through_two_connections(store, other).await;
    limits::all(store, other).await;
}

#[tokio::test]
async fn on_one_server() {
    let server = Server::start();
    let store = connect(&address(&server)).await;
    let other = connect(&address(&server)).await;
    all(&store, &other).await;
    limits::a_limit_holds_wherever_the_clock_goes(&server, &store).await;
    assert_eq!(server.cli(&["script", "flush"]), "OK");
    let world = World::with(&store, "acct_after_flush", 5, None).await;
    assert_eq!(
        world.reserve("req_flush", 5, 5).await,
        Held(parts(5, 0)),
        "scripts that were forgotten are sent again"
    );
}

#[tokio::test]
async fn on_a_cluster_of_three() {
    let cluster = Cluster::start();
    let store = connect(&cluster_address(&cluster)).await;
    let other = connect(&cluster_address(&cluster)).await;
    all(&store, &other).await;
    let accounts: Vec<_> = (0..200).map(|number| format!("acct_{number}")).collect();
    for account in &accounts {
        World::with(&store, account, 1, None).await;
    }
    let used: HashSet<_> = accounts.iter().map(|account| partition(account)).collect();
    assert_eq!(
        used.len(),
        PARTITIONS as usize,
        "accounts are spread over all partitions"
    );
    let names = |keys: Vec<String>| {
        let name = |key: &String| key.split(':').nth(1).map(str::to_owned);
        keys.iter().filter_map(name).collect::<HashSet<_>>().len()
    };
    let mut of_nodes: Vec<_> = cluster.keys("gw:*:a:*").into_iter().map(names).collect();
    of_nodes.sort_unstable();
    assert_eq!(of_nodes, [5, 5, 6], "and the partitions over all primaries");
}

#[tokio::test]
async fn a_cluster_whose_partitions_have_the_names_of_before_is_refused() {
    let cluster = Cluster::start();
    let store = connect(&cluster_address(&cluster)).await;
    store.fitness().check_fitness(false).await.unwrap();
    assert_eq!(
        cluster.0[0].cli(&["-c", "set", "gw:{p9}:epoch", "begun"]),
        "OK"
    );
    let refused = store
        .fitness()
        .check_fitness(false)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("named the partitions otherwise"),
        "{refused}"
    );
    assert_eq!(cluster.0[0].cli(&["-c", "del", "gw:{p9}:epoch"]), "1");
    store.fitness().check_fitness(false).await.unwrap();
}
