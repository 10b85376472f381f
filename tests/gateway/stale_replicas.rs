//! Tests failovers under load to replicas that are seconds behind, for accounts whose trial runs
//! out meanwhile: each answer is debited once, nothing is written off while the account has credit,
//! and the store agrees with the ledger in each bucket within ten seconds.
//!
//! There are three series of random failovers, some of which also kill an edge or the sidecar.
//! `GATEWAY_SEED` sets the seed.

use crate::account::{Account, credits, micro};
use crate::crash::Log;
use crate::shared::Fleet;
use crate::world::{Plan, SOON, wait_for, wait_until};
use std::time::{Duration, Instant};
use test_world::redis::Watched;

/// Credits of the trial, and credits that were bought in addition, in µc.
const TRIAL: i64 = 300_000;
const BOUGHT: i64 = 1_000_000_000_000;
const STALE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(10)];
/// Measured from the last answer.
const LEVEL_WITHIN: Duration = Duration::from_secs(50);
const RUNS: usize = 3;
const FAILOVERS_OF_A_RUN: usize = 4;

/// Which other process is killed while the replica is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Edge,
    Sidecar,
}

fn fleet() -> Fleet<Watched> {
    let watched = Watched::start();
    let store = watched.store();
    let trial = format!("trial_credits: \"{}\"", credits(TRIAL));
    // After a failover the edges send all lost entries again, and new entries wait behind them. The
    // holds of these requests stay open until then, so the limit is raised.
    let open = |plan: Plan| plan.limit("open_requests_per_account", 10_000);
    Fleet::on_with(watched, &store, |plan| {
        open(plan).edit("trial_credits: \"300\"", &trial)
    })
}

impl Fleet<Watched> {
    /// An account with a trial and with bought credit.
    fn mixed(&self, name: &str) -> Account {
        let account = self
            .sidecar
            .account_with(&format!("{name}@example.test"), &[]);
        self.sidecar.json(&[
            "account",
            "grant",
            &account.id,
            &credits(BOUGHT),
            "--ref",
            name,
        ]);
        for edge in &self.edges {
            self.wait_known(edge, &account.key);
        }
        account
    }

    fn trial_left(&self, account: &Account) -> i64 {
        micro(&self.sidecar.json(&["account", "show", &account.id])["trial"]["credits_left"])
    }

    /// Waits until part of the trial is spent, cuts off the replica for `stale`, and then kills the
    /// primary. The promoted replica still has most of the trial.
    fn fail_over(&mut self, account: &Account, stale: Duration, beside: Beside) {
        let primary = wait_for("one primary that all know", SOON, || self.redis.primary());
        let replica = 1 - primary;
        wait_until("the trial to be spent on", SOON, || {
            self.trial_left(account) < TRIAL
        });
        self.redis.cut_off(replica);
        let began = Instant::now();
        while began.elapsed() < stale {
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = self.trial_left(account);
        self.redis.servers[primary].kill();
        match beside {
            Beside::Nothing => {}
            Beside::Edge => {
                self.edges[0].kill();
                // The edge becomes ready once there is a primary again.
                self.edges[0].begin_gateway(None);
            }
            Beside::Sidecar => self.sidecar.kill(),
        }
        wait_until("Sentinel to promote the replica", SOON, || {
            self.redis.primary() == Some(replica)
        });
        if beside == Beside::Sidecar {
            self.sidecar.begin_gateway(None);
        }
        for process in [&self.sidecar, &self.edges[0]] {
            wait_until("every process to be ready", 3 * SOON, || process.is_ready());
        }
        eprintln!(
            "failed over to a replica {stale:?} behind, {left} µc of the trial left; died beside: {beside:?}"
        );
        std::thread::sleep(Duration::from_secs(2));
        self.redis.start_as_replica(primary, replica);
        self.redis.wait_ready();
    }

    /// Checks that nothing was written off, and that the store agrees with the ledger by bucket in
    /// time.
    fn is_level(&self, account: &Account) -> Duration {
        let began = Instant::now();
        let level = wait_for("the store to agree with the ledger", SOON, || {
            let audit = self.sidecar.command(&["ledger", "verify"]);
            audit.status.success().then(|| began.elapsed())
        });
        assert!(level <= LEVEL_WITHIN, "level after {level:?}");
        for ending in self.sidecar.endings(account) {
            assert_eq!(
                ending["writeoff"]
                    .as_str()
                    .map_or(0, |_| micro(&ending["writeoff"])),
                0,
                "{ending}"
            );
        }
        level
    }
}

fn run(fleet: &mut Fleet<Watched>, name: &str, rounds: &[(Duration, Beside)]) {
    for (round, &(stale, beside)) in rounds.iter().enumerate() {
        let account = fleet.mixed(&format!("{name}-{round}"));
        let log: Log = fleet.under_load(&account, |fleet| fleet.fail_over(&account, stale, beside));
        let level = fleet.is_level(&account);
        fleet.matches_of(&account, &log, TRIAL + BOUGHT);
        let whole = log.whole.len();
        eprintln!(
            "{name}, {stale:?} behind, {beside:?}: {whole} answers, 0 lost, 0 doubled, 0 written off, level in {level:?}"
        );
    }
}

#[test]
#[ignore = "long installation: twelve failovers to stale replicas, about 6 minutes"]
fn a_failover_to_a_stale_replica_writes_nothing_off_and_leaves_no_drift() {
    let seed = std::env::var("GATEWAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1_u64);
    let mut chance = seed;
    for number in 0..RUNS {
        let rounds: Vec<_> = (0..FAILOVERS_OF_A_RUN)
            .map(|_| {
                chance = chance
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let (stale, beside) = (usize::from(chance >> 63 == 1), (chance >> 40) % 3);
                let beside = [Beside::Nothing, Beside::Edge, Beside::Sidecar]
                    [usize::try_from(beside).unwrap()];
                (STALE[stale], beside)
            })
            .collect();
        // A fleet for each run, because `ledger verify` reads all earlier entries and the test
        // measures its time.
        let mut fleet = fleet();
        // A short timeout would keep Sentinel from promoting a replica that is ten seconds behind.
        fleet.redis.set_down_after(2_000);
        run(&mut fleet, &format!("run-{number}"), &rounds);
    }
}
