//! Tests failovers to replicas that lag behind, with trial and paid credit side by side: episodes
//! of random requests, posts, sidecar passes and promotions on real Redis servers.
//!
//! Each request that an edge ended must have one debit of its full cost, nothing may be written off
//! while the account has credit, and the store must end with the same amount in each bucket as the
//! ledger.

use super::{KEY, LEASE, PATIENCE, World, address, credits, now_ms, wait_for};
use credits::money::{CreditSplit, Micro};
use credits::trial::Trial;
use ledger::{BalanceChange, BalanceChangeKind, Ending};
use model_gateway::shared_credit::ledger_ingest::IngestWorker;
use model_gateway::shared_credit::redis::{
    ReserveCommand, ReserveReply, SettleCommand, SettleReply, SharedStore,
};
use test_world::redis::Server;

const MIXED: &str = "acct_mixed";
const TRIAL_DAYS_MS: i64 = 7 * 86_400_000;
/// Number of requests that the trial pays for.
const TRIAL_REQUESTS: i64 = 8;

/// SplitMix64: the same seed gives the same episode.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }
}

/// A request in its edge's journal. It stays there until the store reports that the ledger has it.
#[derive(Clone)]
struct Journalled {
    request: String,
    ending: String,
}

struct Episode {
    world: World,
    primary: Server,
    store: SharedStore,
    feed: Option<IngestWorker>,
    /// Requests with an open hold, and the amount held.
    open: Vec<(String, CreditSplit)>,
    journal: Vec<Journalled>,
    ended: Vec<String>,
    count: usize,
}

impl Episode {
    async fn start(trial: Micro, paid: Micro) -> Self {
        Self::start_until(trial, now_ms() + TRIAL_DAYS_MS, paid).await
    }

    async fn start_until(trial: Micro, ends_at_ms: i64, paid: Micro) -> Self {
        let primary = Server::start();
        let world = World::on(&primary).await;
        let trial = Trial {
            credits: trial,
            ends_at_ms,
        };
        world.open(MIXED, Some(trial));
        world.grant(MIXED, paid, "funds");
        let store = world.store.clone();
        let mut feed = world.feed();
        store.ingest().request_seed(MIXED).await.unwrap();
        feed.run_all().await.unwrap();
        let (open, journal, ended) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            world,
            primary,
            store,
            feed: Some(feed),
            open,
            journal,
            ended,
            count: 0,
        }
    }

    async fn pass(&mut self) {
        self.feed.as_mut().unwrap().run_all().await.unwrap();
    }

    async fn begin(&mut self) {
        self.count += 1;
        let request = format!("req_{}", self.count);
        let full = Micro::new(self.world.cost.get() * 2);
        let (request_id, account) = (request.as_str(), MIXED);
        let asked = ReserveCommand {
            request_id,
            account,
            full,
            floor: full,
            lease: LEASE,
            max_open: 100,
            within: None,
        };
        match self.store.holds().reserve(&asked).await.unwrap() {
            ReserveReply::Held(parts) => self.open.push((request, parts)),
            ReserveReply::Insufficient { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// The edge writes the end to its journal, then sends it to the store.
    async fn end(&mut self, index: usize) {
        let (request, held) = self.open.swap_remove(index);
        let taken = held.draw(self.world.cost);
        let ending = Ending {
            request_id: request.clone(),
            account: MIXED.into(),
            at_ms: now_ms(),
            paid: taken.paid,
            trial: taken.trial,
            writeoff: self.world.cost.minus(taken.total()),
            detail: self.world.detail.clone(),
        };
        let ending = serde_json::to_string(&ending).unwrap();
        let journalled = Journalled {
            request: request.clone(),
            ending,
        };
        self.ended.push(request);
        self.say(&journalled).await;
        self.journal.push(journalled);
    }

    async fn say(&self, journalled: &Journalled) -> SettleReply {
        let Journalled { request, ending } = journalled;
        let (cost, key_id) = (self.world.cost, KEY);
        self.store
            .holds()
            .settle(&SettleCommand {
                request_id: request,
                account: MIXED,
                cost,
                ending,
                key_id,
                member: None,
                tokens: 0,
            })
            .await
            .unwrap()
    }

    /// The edge sends again, in any order, what the store has not yet reported as applied.
    async fn say_again(&mut self, chance: &mut Chance) {
        for _ in 0..self.journal.len() {
            let index = chance.index(self.journal.len());
            let journalled = self.journal.swap_remove(index);
            if self.say(&journalled).await != SettleReply::Applied {
                self.journal.push(journalled);
            }
        }
    }

    /// A replica that has everything up to now and receives nothing from here on.
    async fn freeze(&self) -> Server {
        // Otherwise a primary waits five seconds for further replicas before it starts the copy.
        assert_eq!(
            self.primary
                .cli(&["config", "set", "repl-diskless-sync-delay", "0"]),
            "OK"
        );
        let replica =
            Server::start_with(&["--replicaof", "127.0.0.1", &self.primary.port.to_string()]);
        let mark = format!("mark {}", self.count);
        self.primary.cli(&["set", "in:step", &mark]);
        wait_for("the replica to follow", async || {
            replica.cli(&["get", "in:step"]) == mark
        })
        .await;
        assert_eq!(replica.cli(&["replicaof", "no", "one"]), "OK");
        replica
    }

    /// The primary dies and `replica` takes its place. The sidecar restarts without its memory.
    async fn promote(&mut self, replica: Server) {
        self.feed = None;
        self.primary = replica;
        self.store = SharedStore::connect(&address(&self.primary), PATIENCE)
            .await
            .unwrap();
        self.feed = Some(self.world.feed_from(&self.store));
    }

    async fn step(&mut self, chance: &mut Chance) {
        match chance.below(12) {
            0..=3 => self.begin().await,
            4..=7 if !self.open.is_empty() => {
                let index = chance.index(self.open.len());
                self.end(index).await;
            }
            8..=9 => self.pass().await,
            10 => self.say_again(chance).await,
            11 if chance.below(3) == 0 => {
                let (reference, amount) = (format!("more {}", self.count), self.world.cost);
                self.world
                    .billing
                    .corrections()
                    .grant(MIXED, amount, &reference, now_ms())
                    .unwrap();
            }
            _ => {}
        }
    }

    async fn settle(&mut self, chance: &mut Chance) {
        while !self.open.is_empty() {
            self.end(0).await;
        }
        for _ in 0..3 {
            self.say_again(chance).await;
            self.pass().await;
        }
        self.say_again(chance).await;
        assert!(
            self.journal.is_empty(),
            "{} endings never arrived",
            self.journal.len()
        );
    }

    /// What the ledger has left of the trial.
    fn trial(&self) -> Micro {
        let row = self.world.ledger().rows().account(MIXED, "");
        row.unwrap().unwrap().trial
    }

    /// The ledger's balance minus the store's, by bucket.
    async fn drift(&self) -> CreditSplit {
        let row = self.world.ledger().rows().account(MIXED, "");
        let row = row.unwrap().unwrap();
        let shared = self.store.balances().account(MIXED).await.unwrap().unwrap();
        assert_eq!(shared.held, CreditSplit::ZERO);
        CreditSplit {
            paid: row.paid,
            trial: row.trial,
        }
        .minus(shared.has)
    }

    /// Ends all requests. The ledger must then be right, and agree with the store; nothing may be
    /// written off, because there was credit.
    async fn finish(&mut self, chance: &mut Chance, seed: u64) {
        self.settle(chance).await;
        assert_eq!(self.checked(seed), Micro::ZERO, "seed {seed}: written off");
        assert_eq!(self.drift().await, CreditSplit::ZERO, "seed {seed}");
    }

    /// Checks the ledger. Returns the amount that was written off.
    fn checked(&self, seed: u64) -> Micro {
        let verdict = self.world.billing.verify(now_ms()).unwrap();
        assert!(
            verdict.findings.is_empty(),
            "seed {seed}: {:?}",
            verdict.findings
        );
        let mut writeoff = Micro::ZERO;
        for request in &self.ended {
            let entry = self.world.ledger().rows().ending(MIXED, request).unwrap();
            let entry = entry.unwrap_or_else(|| panic!("seed {seed}: {request} was lost"));
            writeoff = writeoff.plus(entry.writeoff);
            assert_eq!(
                entry.writeoff.minus(entry.change()),
                self.world.cost,
                "seed {seed}: {request}"
            );
        }
        writeoff
    }
}

/// Cost of a request.
async fn cost() -> Micro {
    let server = Server::start();
    World::on(&server).await.cost
}

#[tokio::test]
async fn a_spent_trial_that_a_stale_replica_promises_again_is_borne_by_paid_credit() {
    let cost = cost().await;
    let trial = Micro::new(cost.get() * TRIAL_REQUESTS);
    let mut episode = Episode::start(trial, credits(1_000_000)).await;
    let replica = episode.freeze().await;
    // The trial is spent, and the ledger has the debits. The replica still has the whole trial.
    for _ in 0..TRIAL_REQUESTS {
        episode.begin().await;
        episode.end(0).await;
    }
    episode.pass().await;
    assert_eq!(episode.trial(), Micro::ZERO);
    episode.promote(replica).await;
    // The requests are admitted and end before the sidecar notices the new server.
    for _ in 0..TRIAL_REQUESTS / 2 {
        episode.begin().await;
        let (_, held) = episode.open[0].clone();
        assert!(
            held.trial.is_positive(),
            "the stale replica promises the trial again"
        );
        episode.end(0).await;
    }
    episode.finish(&mut Chance(1), 1).await;
}

#[tokio::test]
async fn what_a_hold_promised_is_taken_though_a_stale_replica_lacks_the_credit() {
    let cost = cost().await;
    let mut episode = Episode::start(Micro::ZERO, cost).await;
    let replica = episode.freeze().await;
    episode.world.grant(MIXED, credits(1_000_000), "bought");
    episode.pass().await;
    for _ in 0..3 {
        episode.begin().await;
    }
    assert_eq!(episode.open.len(), 3);
    episode.promote(replica).await;
    for _ in 0..3 {
        episode.end(0).await;
    }
    episode.finish(&mut Chance(1), 1).await;
}

#[tokio::test]
async fn a_trial_whose_lapse_a_stale_replica_has_lost_is_the_same_in_both() {
    let cost = cost().await;
    let trial = Micro::new(cost.get() * TRIAL_REQUESTS);
    // The loop doubles the time until a request begins within it, however slow the machine.
    let mut lasts_ms = 2_000;
    let mut episode = loop {
        let mut episode = Episode::start_until(trial, now_ms() + lasts_ms, credits(10)).await;
        episode.begin().await;
        if episode
            .open
            .iter()
            .any(|(_, held)| held.trial > Micro::ZERO)
        {
            break episode;
        }
        lasts_ms *= 2;
        assert!(lasts_ms < 100_000, "no request begins in the trial");
    };
    let replica = episode.freeze().await;
    // The request has ended, and so has the trial. The replica still has the hold and the credit
    // that the request used.
    episode.end(0).await;
    episode.pass().await;
    while episode.trial() != Micro::ZERO {
        episode.pass().await;
    }
    assert_eq!(episode.drift().await, CreditSplit::ZERO);
    episode.promote(replica).await;
    episode.finish(&mut Chance(1), 1).await;
}

#[tokio::test]
async fn an_adjustment_that_a_stale_replica_bears_of_a_spent_trial_is_entered_and_levelled() {
    let cost = cost().await;
    let mut episode = Episode::start(Micro::new(cost.get() * 2), cost).await;
    let replica = episode.freeze().await;
    for _ in 0..2 {
        episode.begin().await;
        episode.end(0).await;
    }
    episode.pass().await;
    episode.world.grant(MIXED, credits(1_000), "bought");
    episode.promote(replica).await;
    // The amount exceeds the paid credit that the replica knows, so the replica takes the rest from
    // the trial, which is already spent.
    let (amount, kind) = (
        Micro::new(-2 * cost.get()),
        BalanceChangeKind::Adjust { reason: "test" },
    );
    let change = BalanceChange {
        kind,
        reference: "less",
        account: MIXED,
        amount,
        actor: None,
        at_ms: now_ms(),
    };
    let address = address(&episode.primary);
    let billing = model_gateway::billing::Billing::open_with_store(
        episode.world.dir.path(),
        model_gateway::shared_credit::shared_balances(Some(address)),
        None,
    )
    .unwrap();
    billing.corrections().post_change(&change).unwrap();
    episode.finish(&mut Chance(1), 1).await;
}

/// Number of episodes, by default and in long runs.
const EPISODES: (u64, u64) = (4, 200);

#[tokio::test]
async fn random_failovers_to_stale_replicas_lose_double_and_write_off_nothing() {
    let is_long = std::env::var("GATEWAY_LONG").is_ok_and(|value| value == "1");
    let first = std::env::var("GATEWAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let episodes = if is_long { EPISODES.1 } else { EPISODES.0 };
    let (cost, mut requests, mut failovers) = (cost().await, 0, 0);
    for seed in first..first + episodes {
        let mut chance = Chance(seed);
        let trial = Micro::new(cost.get() / 2 * i64::try_from(chance.below(20)).unwrap());
        let mut episode = Episode::start(trial, credits(1_000_000)).await;
        for _ in 0..2 + chance.below(3) {
            for _ in 0..chance.below(20) {
                episode.step(&mut chance).await;
            }
            let replica = episode.freeze().await;
            for _ in 0..chance.below(40) {
                episode.step(&mut chance).await;
            }
            episode.promote(replica).await;
            // These requests run before the sidecar notices the new server.
            for _ in 0..chance.below(8) {
                episode.begin().await;
                if !episode.open.is_empty() {
                    episode.end(0).await;
                }
            }
            failovers += 1;
        }
        episode.finish(&mut chance, seed).await;
        requests += episode.ended.len();
    }
    eprintln!(
        "{episodes} episodes, {failovers} failovers, {requests} requests: 0 lost, 0 doubled, 0 written off"
    );
}
