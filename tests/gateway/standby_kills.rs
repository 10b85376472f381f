//! Kills of everything that an installation with a ledger in PostgreSQL consists of, under load:
//! each answer that a client had whole is in the ledger once, and nothing else is.
//!
//! The kills go on for two minutes, or for `GATEWAY_KILL_SECONDS`. With `GATEWAY_KILL_RATE=1000`
//! the clients use many accounts, and the ledger must enter that many debits a second on average,
//! outages included. That needs a release build (`MODEL_GATEWAY_BIN`). What is entered is read from
//! PostgreSQL itself.

use crate::account::{Account, Standing, credits};
use crate::chaos::{Dice, LONG, are_refusals, audited};
use crate::crash::{self, CLIENTS_OF_A_KIND, FUNDS, Habit, Load, Log};
use crate::standby::{Installation, TAKEN_OVER_WITHIN};
use crate::surface::{BOTH, Surface};
use crate::world::{SOON, wait_until};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

/// A process to kill, or connections to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Victim {
    /// All connections of the gateway to PostgreSQL, also in the middle of a commit.
    Connections,
    Holder,
    Primary,
    Edge(usize),
    Follower,
    Redis,
    Standby,
    /// The holder stays dead until the standby has taken over.
    HolderForGood,
    /// The primary stays dead until its standby was promoted, and then follows that one.
    PrimaryForGood,
}

const VICTIMS: [Victim; 10] = [
    Victim::Connections,
    Victim::Holder,
    Victim::Primary,
    Victim::Edge(0),
    Victim::Follower,
    Victim::Redis,
    Victim::Edge(1),
    Victim::Standby,
    Victim::HolderForGood,
    Victim::PrimaryForGood,
];

/// How long, how often and under which load.
struct Campaign {
    time: Duration,
    /// Debits a second that the ledger must enter.
    rate: Option<u32>,
    /// Longest time between two strikes, in ms, so that a standby can take over in between.
    random_pause_ms: u64,
    accounts: usize,
    habits: Vec<Habit>,
    /// Kinds of strikes; each happens at least once.
    victims: usize,
}

impl Campaign {
    fn new() -> Self {
        let time = crash::asked_seconds().unwrap_or(LONG);
        let rate = std::env::var("GATEWAY_KILL_RATE").ok();
        let rate = rate.map(|rate| rate.parse().expect("a number of debits a second"));
        let one_of_each = [Habit::Whole, Habit::Stream, Habit::Abort];
        let mut habits = one_of_each.to_vec();
        if rate.is_some() {
            habits.extend([Habit::Whole; 5]);
        }
        Self {
            time,
            rate,
            random_pause_ms: 3_000,
            accounts: if rate.is_some() { 200 } else { 4 },
            habits,
            victims: if rate.is_some() { VICTIMS.len() } else { 8 },
        }
    }

    fn clients(&self) -> usize {
        2 * BOTH.len() * self.habits.len() * CLIENTS_OF_A_KIND
    }

    /// A client's interval: a third more requests are sent than must be debited.
    fn interval(&self) -> Duration {
        let clients = u32::try_from(self.clients()).unwrap();
        let of = |rate: u32| Duration::from_secs(3) * clients / (4 * rate);
        self.rate.map_or(Duration::ZERO, of)
    }

    /// Time without strikes at the beginning.
    fn calm(&self) -> Duration {
        self.rate.map_or(Duration::ZERO, |_| self.time / 30)
    }
}

/// Minimum number of whole answers of an edge.
const MIN_ANSWERS: usize = 100;
const EVERY: Duration = Duration::from_secs(10);

struct Strike {
    at_ms: i64,
    victim: Victim,
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_millis()).unwrap()
}

impl Installation {
    fn funded_accounts(&self, count: usize) -> Vec<Account> {
        let sidecar = &self.fleet.sidecar;
        let accounts: Vec<_> = (0..count)
            .map(|number| {
                let email = format!("paid-{number}@example.test");
                let account = sidecar.account_with(&email, &["--no-trial"]);
                let funds = credits(FUNDS);
                sidecar.json(&[
                    "account",
                    "grant",
                    &account.id,
                    &funds,
                    "--ref",
                    &account.id,
                ]);
                account
            })
            .collect();
        for (account, edge) in accounts.iter().flat_map(|account| {
            let edges = self.fleet.edges.iter();
            edges.map(move |edge| (account, edge))
        }) {
            self.fleet.wait_known(edge, &account.key);
        }
        accounts
    }

    fn strike(&mut self, victim: Victim) {
        let pause = || std::thread::sleep(Duration::from_millis(200));
        match victim {
            Victim::Connections => {
                let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE application_name = 'model-gateway'";
                self.primary.psql("postgres", sql);
            }
            Victim::Holder => {
                self.fleet.sidecar.kill();
                pause();
                self.fleet.sidecar.begin_gateway(None);
            }
            Victim::HolderForGood => {
                self.fleet.sidecar.kill();
                self.swap();
                wait_until("the standby to hold the ledger", SOON, || {
                    self.fleet.sidecar.holds_ledger()
                });
                self.standby.begin_gateway(None);
            }
            Victim::Standby => {
                self.standby.kill();
                pause();
                self.standby.begin_gateway(None);
            }
            Victim::Primary => {
                self.primary.kill();
                pause();
                self.primary.start_again();
            }
            Victim::PrimaryForGood => {
                self.primary.kill();
                // Nothing is acknowledged that only the new primary has.
                self.follower.wait_for_standby_named("standby");
                self.follower.promote();
                std::mem::swap(&mut self.primary, &mut self.follower);
                self.follower.rejoin(&self.primary, "standby");
            }
            Victim::Follower => {
                self.follower.kill();
                pause();
                self.follower.start_again();
            }
            Victim::Redis => {
                self.fleet.redis.kill();
                pause();
                self.fleet.redis.start_again();
            }
            Victim::Edge(index) => {
                self.fleet.edges[index].kill();
                pause();
                self.fleet.edges[index].start_gateway();
            }
        }
    }

    /// Strikes at random, each victim at least once.
    fn strikes(&mut self, campaign: &Campaign) -> Vec<Strike> {
        let mut dice = Dice(20_261_126);
        let mut strikes: Vec<Strike> = Vec::new();
        let began = Instant::now();
        std::thread::sleep(campaign.calm());
        let mut due = Instant::now();
        while began.elapsed() < campaign.time || strikes.len() < campaign.victims {
            let kinds = u64::try_from(campaign.victims).unwrap();
            let victim = match VICTIMS[..campaign.victims].get(strikes.len()) {
                Some(victim) => *victim,
                None => VICTIMS[usize::try_from(dice.below(kinds)).unwrap()],
            };
            self.find_holder();
            // One that met no Redis at its start has ended.
            if self.standby.has_ended() {
                self.standby.begin_gateway(None);
            }
            let at_ms = now_ms();
            strikes.push(Strike { at_ms, victim });
            self.strike(victim);
            due += EVERY;
            std::thread::sleep(match campaign.rate {
                Some(_) => due.saturating_duration_since(Instant::now()),
                None => Duration::from_millis(dice.below(campaign.random_pause_ms)),
            });
        }
        strikes
    }

    /// Rows of a query on the primary, each as its columns.
    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let text = self.primary.psql("gateway", sql);
        let row = |line: &str| line.split('|').map(str::to_owned).collect();
        text.lines().map(row).collect()
    }
}

/// The clients' log compared with the entries in PostgreSQL and with the store.
#[derive(Debug)]
struct Books {
    whole: usize,
    /// Debits and voids of requests.
    entries: usize,
    completed: usize,
    /// Those whose client had left.
    left: usize,
    /// Those whose end no client saw, because something died.
    unseen: usize,
    lost: usize,
    doubled: usize,
    /// Completed requests that were charged another amount than their answer costs.
    charged_wrong: usize,
    /// Accounts whose grant is not their balance and what their requests cost.
    drifted: usize,
    /// Accounts whose credit at an edge is not what the ledger has.
    apart: usize,
    negative: usize,
}

impl Books {
    fn read(all: &Installation, accounts: &[Account], log: &Log) -> Self {
        all.fleet.wait_quiet(accounts);
        let entries = all.rows(
            "SELECT ref, account, detail::json->>'outcome', -d_paid - d_trial \
             FROM model_gateway.entry WHERE kind IN ('debit', 'void')",
        );
        let costs = BOTH.map(|surface: Surface| surface.cost(10, 5));
        let (mut spent, mut ids) = (HashMap::<&str, i64>::new(), HashSet::new());
        let (mut completed, mut doubled, mut charged_wrong) = (HashSet::new(), 0, 0);
        for entry in &entries {
            let [id, account, outcome, amount] = entry.as_slice() else {
                panic!("not four columns: {entry:?}");
            };
            let amount: i64 = amount.parse().unwrap();
            *spent.entry(account).or_default() += amount;
            doubled += usize::from(!ids.insert(id.as_str()));
            if outcome == "completed" {
                completed.insert(id.as_str());
                charged_wrong += usize::from(!costs.contains(&amount));
            }
        }
        let of_log = |seen: &HashSet<String>| {
            let of = completed.iter().filter(|id| seen.contains(**id));
            of.count()
        };
        let (had, left) = (of_log(&log.whole), of_log(&log.aborted));
        let balances = all.rows("SELECT id, paid + trial FROM model_gateway.account");
        let balances: HashMap<_, i64> = balances
            .iter()
            .map(|row| (row[0].as_str(), row[1].parse().unwrap()))
            .collect();
        let (mut drifted, mut apart) = (0, 0);
        for account in accounts {
            let balance = balances[account.id.as_str()];
            let taken = spent.get(account.id.as_str()).copied().unwrap_or(0);
            drifted += usize::from(FUNDS - balance != taken);
            let settled = Standing {
                balance,
                held: 0,
                available: balance,
            };
            let edges = &mut all.fleet.edges.iter();
            apart += usize::from(!edges.all(|edge| edge.standing(account) == settled));
        }
        let negative = all.rows(
            "SELECT 1 FROM model_gateway.entry WHERE bal_paid < 0 OR bal_trial < 0 \
             UNION ALL SELECT 1 FROM model_gateway.account WHERE paid < 0 OR trial < 0",
        );
        Self {
            whole: log.whole.len(),
            entries: entries.len(),
            left,
            unseen: completed.len() - had - left,
            lost: log.whole.len() - had,
            completed: completed.len(),
            doubled,
            charged_wrong,
            drifted,
            apart,
            negative: negative.len(),
        }
    }

    #[track_caller]
    fn are_right(&self) {
        let faults = [
            self.lost,
            self.doubled,
            self.charged_wrong,
            self.drifted,
            self.apart,
            self.negative,
        ];
        assert_eq!(faults, [0; 6], "{self:?}");
        assert_eq!(self.completed, self.whole + self.left + self.unseen);
        assert!(self.completed <= self.entries, "{self:?}");
    }
}

/// Times of events, in ms, oldest first, and what happened after each strike.
struct Timeline<'a> {
    strikes: &'a [Strike],
    events: Vec<i64>,
}

impl Timeline<'_> {
    /// The longest pause that began at or after each strike and before the next one.
    fn pauses(&self) -> Vec<i64> {
        let mut longest = vec![0; self.strikes.len()];
        for pair in self.events.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let met = self.strikes.iter().position(|strike| strike.at_ms >= from);
            let met = met.filter(|index| self.strikes[*index].at_ms <= to);
            let before = || self.strikes.iter().rposition(|strike| strike.at_ms <= from);
            if let Some(index) = met.or_else(before) {
                longest[index] = (to - from).max(longest[index]);
            }
        }
        longest
    }
}

/// Times of the clients' whole answers, in ms.
fn answered_ms(log: &Log) -> Vec<i64> {
    let (now, now_ms) = (Instant::now(), now_ms());
    let ms = |at: &Instant| now_ms - i64::try_from((now - *at).as_millis()).unwrap();
    let mut times: Vec<_> = log.finished.iter().map(|(at, _)| ms(at)).collect();
    times.sort_unstable();
    times
}

/// Prints what happened after each strike. Returns the longest pause of the ledger.
fn print_strikes(strikes: &[Strike], began_ms: i64, entered: Vec<i64>, answered: Vec<i64>) -> i64 {
    let ledger = Timeline {
        strikes,
        events: entered,
    };
    let clients = Timeline {
        strikes,
        events: answered,
    };
    let mut worst: HashMap<Victim, (usize, i64, i64)> = HashMap::new();
    let pauses = ledger.pauses().into_iter().zip(clients.pauses());
    for (index, (strike, (ledger_ms, clients_ms))) in strikes.iter().zip(pauses).enumerate() {
        let (from, last) = (strike.at_ms, *ledger.events.last().unwrap());
        let to = strikes.get(index + 1).map_or(last, |next| next.at_ms);
        let in_time = ledger.events.iter().filter(|at| (from..to).contains(at));
        eprintln!(
            "{:>5} s {:?}: {} debits/s until the next; longest pause: ledger {ledger_ms} ms, clients {clients_ms} ms",
            (from - began_ms) / 1_000,
            strike.victim,
            in_time.count() as i64 * 1_000 / (to - from).max(1),
        );
        let of = worst.entry(strike.victim).or_default();
        *of = (of.0 + 1, of.1.max(ledger_ms), of.2.max(clients_ms));
    }
    let mut worst: Vec<_> = worst.into_iter().collect();
    worst.sort();
    for (victim, (count, ledger_ms, clients_ms)) in &worst {
        eprintln!(
            "{count} × {victim:?}: ledger away for {ledger_ms} ms at most, clients {clients_ms} ms"
        );
    }
    worst.iter().map(|(_, (_, ms, _))| *ms).max().unwrap()
}

/// SQL: when an entry was committed, in ms. A standby has it some ms later.
const COMMITTED_MS: &str = "(extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000)::bigint";

impl Installation {
    /// When each end of a request was committed, in ms.
    fn entered_ms(&self) -> Vec<i64> {
        let sql = format!(
            "SELECT {COMMITTED_MS} FROM model_gateway.entry WHERE kind IN ('debit', 'void') ORDER BY 1"
        );
        let rows = self.rows(&sql);
        rows.iter().map(|row| row[0].parse().unwrap()).collect()
    }

    /// Prints the time from the ends of requests in an interval to their commits.
    fn print_settling(&self, from_ms: i64, to_ms: i64) {
        let sql = format!(
            "SELECT count(*), percentile_disc(ARRAY[0.5, 0.99, 0.999]) WITHIN GROUP (ORDER BY {COMMITTED_MS} - at) \
             FROM model_gateway.entry WHERE kind = 'debit' AND at >= {from_ms} AND at < {to_ms}"
        );
        let row = self.rows(&sql).remove(0);
        eprintln!(
            "calm: {} debits in {} ms, from the end to the commit p50, p99, p99.9 {} ms",
            row[0],
            to_ms - from_ms,
            row[1]
        );
    }
}

#[test]
#[ignore = "long installation: kills of every process of an installation for 2 minutes, or for GATEWAY_KILL_SECONDS"]
fn kills_all_over_an_installation_neither_lose_nor_double_a_debit() {
    let campaign = Campaign::new();
    let mut all = Installation::new();
    let accounts = all.funded_accounts(campaign.accounts);
    let keys: Vec<_> = accounts.iter().map(|account| &*account.key).collect();
    let load = Load {
        keys: &keys,
        habits: &campaign.habits,
        interval: campaign.interval(),
        min_whole: MIN_ANSWERS,
    };
    let edges = [all.fleet.edges[0].edge, all.fleet.edges[1].edge];
    let (mut strikes, began, began_ms) = (Vec::new(), Instant::now(), now_ms());
    let log = load.run_at(edges, || strikes = all.strikes(&campaign));
    let (time, ended_ms) = (began.elapsed(), now_ms());
    all.find_holder();
    let books = Books::read(&all, &accounts, &log);
    let entered = all.entered_ms();
    let in_time = entered.iter().filter(|at| **at < ended_ms).count();
    let rate = in_time as u64 * 1_000 / u64::try_from(time.as_millis()).unwrap();
    all.print_settling(began_ms, strikes[0].at_ms);
    let longest_ms = print_strikes(&strikes, began_ms, entered, answered_ms(&log));
    println!(
        "{} strikes in {time:?} by {} clients of {} accounts: {rate} debits/s, {} answers whole, {} cut, {} left, \
         {} refused; the ledger was away for {longest_ms} ms at most\n{books:?}",
        strikes.len(),
        campaign.clients(),
        accounts.len(),
        log.whole.len(),
        log.cut.len(),
        log.aborted.len(),
        log.odd.len(),
    );
    books.are_right();
    audited(&all.fleet);
    are_refusals(&log.odd);
    assert!(books.whole >= MIN_ANSWERS, "{books:?}");
    // At a strike, each client has at most one request in flight.
    let most = strikes.len() * campaign.clients();
    assert!(books.unseen <= most, "{books:?}");
    let within = i64::try_from(TAKEN_OVER_WITHIN.as_millis()).unwrap();
    assert!(
        longest_ms <= within,
        "the ledger was away for {longest_ms} ms"
    );
    if let Some(least) = campaign.rate {
        assert!(rate >= u64::from(least), "{rate} debits/s");
    }
    let verify = ["ledger", "verify", "--all", "--json"];
    let report = all.fleet.sidecar.command(&verify);
    let found = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.status.success(), "{found}");
    all.close();
}
