//! The operations of one seed on the real core, each compared with the model.
//!
//! The entries are read through a separate connection, not by the code under test. Read next:
//! `ledger_simulation/upkeep.rs`, the work on which the process dies.

use crate::model::{Account, Admission, Ask, Hold, Model, Parts, Prices, cost};
use crate::upkeep;
use config::Limits;
use config::catalog::{
    CatalogModel as Route, CatalogVendor, EndpointAuth, HttpVersion, Secret, VendorEndpoint,
};
use credits::limits::{Period, RequestLimits, SpendLimit, Spender};
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing::{Quote, WorstCase};
use credits::trial::Trial;
use ledger::StoreError;
use ledger::{EntrySelection, LedgerEntry, RequestOutcome};
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use model_gateway::billing::{self, CreditService, Finding, HoldRequest, ReserveError};
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const BEGIN: i64 = 1_800_000_000_000;
pub const ACCOUNTS: usize = 4;
/// Keys, and members, of each account.
const SPENDERS: u64 = 2;
const MOST_OPEN: usize = 6;
/// Endings that may wait for the ledger.
const MOST_WAITING: usize = 4;
/// This account has a trial and never gets a grant, so its trial ends.
const NEVER_GIVEN: usize = 2;

/// Every eighth episode seals.
const SEAL_EVERY: u64 = 8;
/// Folder of the archived segments.
const ARCHIVE: &str = "archive";

/// SplitMix64: small, and the same on every platform.
pub struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        let index = usize::try_from(self.below(from.len() as u64)).unwrap();
        from.get(index)
    }
}

/// Counts of the operations, so that a run can show that each of them happened.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<String, u64>);

/// The kinds of operations.
const COUNTED: [&str; 18] = [
    "steps",
    "held",
    "lowered",
    "refused",
    "refused by the backlog",
    "refused by a spend limit",
    "expired",
    "settled",
    "written off",
    "released",
    "crashes",
    "torn",
    "replays",
    "turns",
    "lapses",
    "refunds",
    "adjustments",
    "audits",
];

impl Counts {
    pub fn add(&mut self, what: &str) {
        self.add_if(true, what);
    }

    pub fn add_if(&mut self, happened: bool, what: &str) {
        if happened {
            *self.0.entry(what.to_owned()).or_default() += 1;
        }
    }

    pub fn add_all(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// Checks that each kind of operation happened at least this number of times.
    pub fn assert_operations(&self, least: u64) {
        self.assert_at_least(least, &COUNTED);
    }

    /// Like [`Counts::assert_operations`]. Each kind of upkeep and each point of death must have
    /// happened too.
    pub fn assert_all_kinds(&self, least: u64) {
        self.assert_operations(least);
        self.assert_at_least(1, &upkeep::COUNTED);
    }

    fn assert_at_least(&self, least: u64, kinds: &[&str]) {
        for what in kinds {
            assert!(self.count(what) >= least, "{what}: {self:?}");
        }
    }
}

/// A protection that is taken away: then the simulation must find a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A process that dies takes its journal with it.
    LosesJournals,
    /// A process that dies while it seals or archives takes the segments with it.
    LosesSegments,
    /// A process that dies while it indexes leaves a part of the index.
    LosesIndexRows,
    /// Admission ignores the endings that wait.
    IgnoresTheBacklog,
}

pub struct Episode {
    pub dir: TempDir,
    pub sabotage: Option<Sabotage>,
    /// Whether old entries are sealed. It takes an unoptimised build long to read sealed ones.
    pub seals: bool,
    limits: Limits,
    pub dice: Dice,
    pub now: i64,
    core: Option<CreditService>,
    holds: HashMap<String, billing::Hold>,
    route: Arc<Route>,
    prices: Prices,
    model: Model,
    requests: u64,
    references: u64,
    /// The last request whose end is in the journal and not yet in the ledger. A torn write can
    /// lose this end.
    last_end: Option<(String, Hold)>,
    last_open: Option<String>,
    entries: Connection,
    seen: i64,
    sums: BTreeMap<String, Parts>,
    pub counts: Counts,
}

fn micro(amount: i128) -> Micro {
    Micro::new(i64::try_from(amount).unwrap())
}

pub fn name(account: usize) -> String {
    format!("acct_{account}")
}

/// Returns the id of an account's key (`place` 0) or membership (`place` 1).
fn spender(account: usize, place: usize, number: u64) -> String {
    match place {
        0 => format!("key_{account}_{number}"),
        _ => format!("{}/acct_person_{number}", name(account)),
    }
}

fn route(prices: &Prices) -> Arc<Route> {
    let endpoint = VendorEndpoint {
        tls: false,
        host: "127.0.0.1".into(),
        port: 1,
        authority: "127.0.0.1:1".into(),
        prefix: String::new(),
        adds_v1: true,
        path: None,
        query: Vec::new(),
        headers: Vec::new(),
        auth: EndpointAuth::Bearer,
        http_version: HttpVersion::Auto,
        weight: 1,
        max_concurrent: None,
        health_check: None,
    };
    let vendor = CatalogVendor {
        name: "beta".into(),
        protocol: Protocol::Chat,
        profile: llm_protocol::profile::VendorProfile::official(Protocol::Chat).clone(),
        endpoints: vec![endpoint],
        sticky: true,
        api_key: Secret::new("k".into()),
        version_header: None,
    };
    Arc::new(Route {
        id: "beta-5.2".into(),
        aliases: Vec::new(),
        vendor: Arc::new(vendor),
        upstream_model: "b".into(),
        context_tokens: 1_000_000,
        max_output_tokens: 1_000,
        max_audio_seconds: 7_200,
        kind: llm_protocol::metered::ModelKind::Chat,
        accepts: llm_protocol::capabilities::ModelCapabilities::Messages(Default::default()),
        repairs: llm_protocol::capabilities::repair_rules::KnownCapabilities::NONE,
        price: Arc::new(PriceList::new(prices.map(Micro::new))),
        fallback: Vec::new(),
        by_responses: None,
    })
}

impl Episode {
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        }
        .unwrap();
        let mut dice = Dice(seed);
        // Random prices, so that costs have fractions to round.
        let prices = [0; 5].map(|_| i64::try_from(dice.below(3_000_000_000)).unwrap());
        let limits = Limits {
            // Room for a few dozen records, so that files fill up, are covered by the ledger, and
            // are removed.
            journal_segment_bytes: 8_192,
            journal_reserve_bytes: 65_536,
            open_requests_per_account: MOST_OPEN as u64,
            journal_pending: match sabotage {
                Some(Sabotage::IgnoresTheBacklog) => 1_000_000,
                _ => MOST_WAITING as u64,
            },
            ..Limits::default()
        };
        std::fs::create_dir(dir.path().join(ARCHIVE)).unwrap();
        let core = CreditService::serve_stepwise(dir.path(), &limits).unwrap();
        let entries = Connection::open(dir.path().join("ledger.db")).unwrap();
        let mut episode = Self {
            dir,
            sabotage,
            seals: seed.is_multiple_of(SEAL_EVERY),
            limits,
            dice,
            now: BEGIN,
            core: Some(core),
            holds: HashMap::new(),
            route: route(&prices),
            prices,
            model: Model {
                max_open: MOST_OPEN,
                max_waiting: MOST_WAITING,
                ..Model::default()
            },
            requests: 0,
            references: 0,
            last_end: None,
            last_open: None,
            entries,
            seen: 0,
            sums: BTreeMap::new(),
            counts: Counts::default(),
        };
        episode.open_accounts();
        episode
    }

    pub fn core(&self) -> &CreditService {
        self.core.as_ref().unwrap()
    }

    pub fn archive(&self) -> PathBuf {
        self.dir.path().join(ARCHIVE)
    }

    /// Starts the next process.
    pub fn start(&self) -> CreditService {
        CreditService::serve_stepwise(self.dir.path(), &self.limits).unwrap()
    }

    fn open_accounts(&mut self) {
        self.core()
            .billing()
            .store_prices(&[Arc::clone(&self.route)], self.now)
            .unwrap();
        for account in 0..ACCOUNTS {
            let trial = (account % 2 == 0).then(|| {
                let ends = self.now + 50_000 + i64::try_from(self.dice.below(400_000)).unwrap();
                (i128::from(self.dice.below(100_000_000)) + 1, ends)
            });
            let granted = trial.map(|(amount, ends_at_ms)| Trial {
                credits: micro(amount),
                ends_at_ms,
            });
            for _ in 0..2 {
                self.core()
                    .billing()
                    .open_account(&name(account), granted, self.now)
                    .unwrap();
            }
            let trial_ends = trial.map(|(_, ends)| ends);
            let has = Parts {
                paid: 0,
                trial: trial.map_or(0, |(amount, _)| amount),
            };
            self.model.accounts.push(Account {
                has,
                trial_ends,
                was_given: false,
                lapsed: false,
            });
        }
    }

    pub fn run(mut self, steps: u64) -> Counts {
        for step in 0..steps {
            self.now += i64::try_from(self.dice.below(500)).unwrap();
            self.step();
            self.counts.add("steps");
            self.agree();
            if step % 1_000 == 999 {
                self.audit();
            }
        }
        self.crash();
        self.agree();
        self.turn_until_done();
        self.audit();
        let core = self.core.take().unwrap();
        core.shut_down();
        self.counts
    }

    fn step(&mut self) {
        // A crash may follow any of these operations, with any state of the memory and of the
        // journal.
        match self.dice.below(100) {
            0..=33 => self.reserve(),
            34..=59 => self.settle(),
            60..=66 => self.release(),
            67..=80 => self.turn(),
            81..=84 => self.grant(),
            85..=89 => self.refund(),
            90..=93 => self.adjust(),
            94..=95 => self.double_replay(),
            96 => self.leap(),
            97 => self.crash(),
            98 if self.seals || self.dice.one_in(2) => self.upkeep(),
            _ if self.dice.one_in(3) => self.crash(),
            _ => {}
        }
    }

    /// Moves the clock by some seconds, or to the last or first moment of a trial.
    fn leap(&mut self) {
        let leap = self.now + i64::try_from(self.dice.below(20_000)).unwrap();
        let end = self
            .model
            .accounts
            .iter()
            .filter_map(|account| account.trial_ends)
            .find(|ends| *ends > self.now + 1);
        self.now = match end {
            Some(ends) if ends < leap => ends - i64::from(self.dice.one_in(2)),
            _ => leap,
        };
    }

    fn any_account(&mut self) -> usize {
        usize::try_from(self.dice.below(ACCOUNTS as u64)).unwrap()
    }

    fn any_open(&mut self) -> Option<String> {
        let open: Vec<_> = self.model.open.keys().cloned().collect();
        self.dice.pick(&open).cloned()
    }

    fn reserve(&mut self) {
        let account = self.any_account();
        let limit = 1 + self.dice.below(4_000);
        let input = self.dice.below(3_000);
        let spenders = [0; 2].map(|_| self.dice.below(SPENDERS));
        // A limit that leaves less or more than the request needs.
        let needed = u64::try_from(cost([input, 0, 0, 0, limit], &self.prices)).unwrap();
        let left = [0; 2].map(|_| {
            let left = self.dice.below(2 * needed + 1);
            self.dice.one_in(3).then_some(i128::from(left))
        });
        let ask = Ask {
            input,
            limit,
            floor: 1 + self.dice.below(limit),
            exact: self.dice.one_in(4),
            left,
        };
        let spend = [0, 1].map(|place| {
            let used = self.model.used(account, place, spenders[place]);
            let credits = micro(used + ask.left[place]?);
            let period = Period::Total;
            Some(SpendLimit { credits, period })
        });
        self.requests += 1;
        let request = format!("req_{:06}", self.requests);
        self.model.spenders.insert(request.clone(), spenders);
        let [key, member] = [0, 1].map(|place| spender(account, place, spenders[place]));
        let price = &self.route.price;
        let reach = WorstCase {
            input_tokens: ask.input,
            input_price: price.input,
            output_price: price.output,
        };
        let quote = Quote::flat(reach, 1, ask.limit, ask.floor);
        let opening = HoldRequest {
            request_id: request.clone(),
            account: name(account).into(),
            key_id: key.into(),
            key_shown: "gw-sk".into(),
            member: Some(member.into()),
            model: Arc::clone(&self.route),
            surface: Protocol::Chat,
            bounds: RequestLimits {
                spend,
                ..RequestLimits::default()
            },
            conversation: None,
        };
        let expected = self.model.admission(account, &ask, &self.prices, self.now);
        match (
            self.core().reserve(opening, &quote, ask.exact, self.now),
            expected,
        ) {
            (Ok((hold, given)), Admission::Held { amount, limit }) => {
                assert_eq!(
                    (i128::from(hold.amount().get()), given),
                    (amount, limit),
                    "{request}"
                );
                self.model.hold(&request, account, amount, self.now);
                self.counts.add("held");
                self.counts.add_if(limit < ask.limit, "lowered");
                self.last_open = Some(request.clone());
                self.last_end = None;
                self.holds.insert(request, hold);
            }
            (Err(ReserveError::Insufficient { .. }), Admission::Insufficient)
            | (Err(ReserveError::TooManyOpen { .. }), Admission::TooMany) => {
                self.counts.add("refused");
            }
            (Err(ReserveError::SpendLimit { of, free, .. }), Admission::SpendLimit(place)) => {
                let left = ask.left[place].unwrap();
                assert_eq!((of, free), (Spender::ALL[place], micro(left)), "{request}");
                self.counts.add("refused by a spend limit");
            }
            (Err(ReserveError::TrialExpired), Admission::TrialExpired) => {
                self.counts.add("expired");
            }
            (Err(ReserveError::Backlog(_)), Admission::Backlog) => {
                self.counts.add("refused by the backlog");
            }
            (given, expected) => panic!(
                "{request}: {:?} for {expected:?}",
                given.map(|(hold, _)| hold.amount())
            ),
        }
    }

    fn settle(&mut self) {
        let Some(request) = self.any_open() else {
            return;
        };
        let tokens = [0; 5].map(|_| self.dice.below(2_000));
        // Mostly within the hold, sometimes far more.
        let tokens = if self.dice.one_in(5) {
            tokens
        } else {
            tokens.map(|count| count / 8)
        };
        let cost = cost(tokens, &self.prices);
        let [input, cache_read, cache_write_5m, cache_write_1h, output] = tokens;
        let usage = Usage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
            reasoning: output / 2,
            ..Usage::default()
        };
        let outcome = if self.dice.one_in(6) {
            RequestOutcome::ClientLeft
        } else {
            RequestOutcome::Completed
        };
        let hold = self.holds.remove(&request).unwrap();
        let kept = self.model.open[&request].clone();
        let taken = hold
            .settle(usage, outcome, false, self.now)
            .wait_on_thread()
            .unwrap();
        let expected = self.model.end(&request, cost, true, self.now);
        assert_eq!(i128::from(taken.get()), expected, "{request} of {tokens:?}");
        self.counts.add("settled");
        self.counts.add_if(expected < cost, "written off");
        self.last_end = Some((request, kept));
        self.last_open = None;
    }

    fn release(&mut self) {
        let Some(request) = self.any_open() else {
            return;
        };
        let hold = self.holds.remove(&request).unwrap();
        let kept = self.model.open[&request].clone();
        if self.dice.one_in(3) {
            // Dropping the hold releases it, as when the gateway aborts a request.
            drop(hold);
        } else {
            hold.release(RequestOutcome::VendorError, self.now);
        }
        self.model.end(&request, 0, false, self.now);
        self.counts.add("released");
        self.last_end = Some((request, kept));
        self.last_open = None;
    }

    /// Commits waiting entries and lapses trials.
    fn turn(&mut self) {
        self.core().step(self.now).unwrap();
        self.turned();
    }

    pub fn turned(&mut self) {
        self.committed();
        self.model.lapse(self.now);
        self.counts.add("turns");
    }

    /// The ledger has all ends. Committed entries can no longer be torn off the journal.
    pub fn committed(&mut self) {
        self.model.waiting = 0;
        (self.last_end, self.last_open) = (None, None);
    }

    fn turn_until_done(&mut self) {
        while self.core().step(self.now).unwrap() {}
        self.committed();
        self.model.lapse(self.now);
    }

    fn reference(&mut self) -> String {
        self.references += 1;
        format!("ref {}", self.references)
    }

    fn grant(&mut self) {
        let (account, reference) = (self.any_account(), self.reference());
        if account == NEVER_GIVEN {
            return;
        }
        let amount = 1 + i128::from(self.dice.below(12_000_000));
        for is_new in [true, false] {
            assert_eq!(
                self.core()
                    .billing()
                    .corrections()
                    .grant(&name(account), micro(amount), &reference, self.now)
                    .unwrap(),
                is_new
            );
        }
        assert!(
            self.core()
                .billing()
                .corrections()
                .grant(&name(account), micro(amount + 1), &reference, self.now)
                .is_err()
        );
        assert!(self.model.adjust(account, amount, self.now));
    }

    fn refund(&mut self) {
        // Only entries in the ledger can be refunded. A refund of a waiting entry is refused, and
        // the caller retries later.
        self.turn_until_done();
        let requests: Vec<_> = self.model.ends.keys().cloned().collect();
        let Some(request) = self.dice.pick(&requests).cloned() else {
            return;
        };
        let amount = self
            .dice
            .one_in(2)
            .then(|| i128::from(self.dice.below(3_000_000)));
        let reference = self.reference();
        let given = self.core().billing().corrections().refund(
            &request,
            amount.map(micro),
            &reference,
            self.now,
        );
        match (given, self.model.refund(&request, amount, self.now)) {
            (Ok(posted), Some(amount)) => {
                assert_eq!(
                    (posted.is_new, i128::from(posted.change.get())),
                    (true, amount)
                );
                let again = self
                    .core()
                    .billing()
                    .corrections()
                    .refund(&request, None, &reference, self.now)
                    .unwrap();
                assert!(!again.is_new);
                self.counts.add("refunds");
            }
            (Err(StoreError::Refused(_) | StoreError::Unknown(_)), None) => {}
            (given, expected) => {
                panic!("refund {amount:?} of {request}: {given:?} for {expected:?}")
            }
        }
    }

    fn adjust(&mut self) {
        let (account, reference) = (self.any_account(), self.reference());
        let amount = i128::from(self.dice.below(6_000_000)) - 4_000_000;
        if amount == 0 || amount > 0 && account == NEVER_GIVEN {
            return;
        }
        let given = self.core().billing().corrections().adjust(
            &name(account),
            micro(amount),
            &reference,
            "a test",
            self.now,
        );
        match (given, self.model.adjust(account, amount, self.now)) {
            (Ok(posted), true) => {
                assert_eq!(i128::from(posted.change.get()), amount);
                assert!(
                    !self
                        .core()
                        .billing()
                        .corrections()
                        .adjust(
                            &name(account),
                            micro(amount),
                            &reference,
                            "a test",
                            self.now
                        )
                        .unwrap()
                        .is_new
                );
                self.counts.add("adjustments");
            }
            (Err(StoreError::Refused(_)), false) => {}
            (given, expected) => {
                panic!("adjust {amount} of account {account}: {given:?} for {expected}")
            }
        }
    }

    fn journals(&self) -> Vec<PathBuf> {
        let mut folders: Vec<_> = std::fs::read_dir(self.dir.path().join("journal"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        folders.sort();
        folders
    }

    /// Replays the journal of a running core from a copy, in any order. Each end must count once.
    /// Open requests are left out, because a replay must not void a running request.
    fn double_replay(&mut self) {
        let Some(folder) = self.journals().pop() else {
            return;
        };
        let lines = lines_of(&folder)
            .into_iter()
            .filter(|line| line.contains("{\"end\":"));
        let copy = self.dir.path().join("journal-copy");
        self.write_journal(&copy, lines.collect());
        self.core()
            .billing()
            .upkeep()
            .replay_journal(&copy)
            .unwrap();
        std::fs::remove_dir_all(&copy).unwrap();
        self.counts.add("replays");
        // The ledger has these ends, and the core does not know it yet. The core must notice this
        // at its next commit.
        self.turn_until_done();
    }

    /// Writes `lines` in a random order, some of them twice.
    fn write_journal(&mut self, folder: &Path, mut lines: Vec<String>) {
        for line in lines.clone() {
            if self.dice.one_in(3) {
                lines.push(line);
            }
        }
        for index in (1..lines.len()).rev() {
            lines.swap(
                index,
                usize::try_from(self.dice.below(index as u64 + 1)).unwrap(),
            );
        }
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("lock"), "").unwrap();
        let text = lines
            .into_iter()
            .fold(String::new(), |text, line| text + "\n" + &line + "\n");
        std::fs::write(folder.join("000001.log"), text).unwrap();
    }

    /// The process dies. Its memory is lost, and the next process finds the files.
    pub fn crash(&mut self) {
        self.counts.add("crashes");
        for (_, hold) in self.holds.drain() {
            hold.abandon();
        }
        drop(self.core.take());
        let folders = self.journals();
        if self.dice.one_in(2) {
            self.tear(&folders);
        }
        if self.dice.one_in(2) {
            // Each folder's records are reordered, and some are duplicated.
            for folder in &folders {
                let lines = lines_of(folder);
                std::fs::read_dir(folder)
                    .unwrap()
                    .for_each(|file| std::fs::remove_file(file.unwrap().path()).unwrap());
                self.write_journal(folder, lines);
            }
        }
        if self.sabotage == Some(Sabotage::LosesJournals) {
            std::fs::remove_dir_all(self.dir.path().join("journal")).unwrap();
        }
        self.model.crash();
        // Sometimes the next process dies at once as well, in the replay or after it.
        if self.dice.one_in(2) {
            self.start_briefly();
        }
        self.core = Some(self.start());
        (self.last_end, self.last_open) = (None, None);
    }

    /// Removes the last record, or some of its bytes, from the journal's last file.
    fn tear(&mut self, folders: &[PathBuf]) {
        let Some(folder) = folders.last() else { return };
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
        files.sort();
        let Some(file) = files.pop() else { return };
        let text = std::fs::read(&file).unwrap();
        let unacknowledged = self.last_end.is_some() || self.last_open.is_some();
        if text.is_empty() || !unacknowledged {
            return;
        }
        // A record is written as a line break, its text, and a line break.
        let before = text[..text.len() - 1]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .unwrap();
        let cut = self.dice.below((text.len() - before - 1) as u64) as usize;
        let mut torn = text[..before + cut].to_vec();
        if self.dice.one_in(2) {
            // A complete record follows. The torn line is then in the middle and must be rejected.
            torn.push(b'\n');
        } else if self.dice.one_in(2) {
            // Or the disk returns other bytes than were written.
            torn.extend_from_slice(&text[before + cut..]);
            let at = before + 1 + self.dice.below((text.len() - before - 2) as u64) as usize;
            // Three bits, because the checksum always finds a single one.
            torn[at] ^= 0b111;
        }
        std::fs::write(&file, torn).unwrap();
        self.counts.add("torn");
        if let Some((request, hold)) = self.last_end.take() {
            self.model.unend(&request, hold);
        } else if let Some(request) = self.last_open.take() {
            // No client got an answer for this request.
            self.model.open.remove(&request);
        }
    }

    /// Compares the program with the model, account by account, and then checks the new entries in
    /// the ledger.
    fn agree(&mut self) {
        for account in 0..ACCOUNTS {
            let told = self
                .core()
                .billing()
                .balance(&name(account), self.now)
                .unwrap();
            let (balance, held) = (
                self.model.balance(account, self.now),
                self.model.held(account).total(),
            );
            let free = self.model.free(account, self.now);
            assert_eq!(
                i128::from(told.balance.get()),
                balance,
                "balance of {account}"
            );
            assert_eq!(i128::from(told.held.get()), held, "held of {account}");
            assert_eq!(
                i128::from(told.available.get()),
                free.paid.max(0) + free.trial.max(0),
                "available of {account}"
            );
            assert!(balance >= 0 && free.paid >= 0);
        }
        assert_eq!(self.holds.len(), self.model.open.len());
        self.read_entries();
    }

    /// Checks that each new entry's request ended once, as in the model, and that the sum of the
    /// entries is the balance.
    fn read_entries(&mut self) {
        let mut statement = self
            .entries
            .prepare_cached(
                "SELECT seq, kind, ref, account, d_paid, d_trial, writeoff FROM entry WHERE seq > ?1 ORDER BY seq",
            )
            .unwrap();
        let mut rows = statement.query([self.seen]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            self.seen = row.get(0).unwrap();
            let (kind, request, account): (String, String, String) = (
                row.get(1).unwrap(),
                row.get(2).unwrap(),
                row.get(3).unwrap(),
            );
            let amount = |column| i128::from(row.get::<_, i64>(column).unwrap());
            let sums = self.sums.entry(account.clone()).or_default();
            *sums = Parts {
                paid: sums.paid + amount(4),
                trial: sums.trial + amount(5),
            };
            assert!(
                sums.paid >= 0 && sums.trial >= 0,
                "{account} below zero: {sums:?}"
            );
            self.counts.add_if(kind == "lapse", "lapses");
            if kind == "debit" || kind == "void" {
                let end = self
                    .model
                    .ends
                    .get(&request)
                    .unwrap_or_else(|| panic!("{request} has not ended: {kind}"));
                assert_eq!(
                    (kind == "debit", account),
                    (end.is_debit, name(end.account)),
                    "{request}"
                );
                assert_eq!(
                    (-amount(4), -amount(5)),
                    (end.taken.paid, end.taken.trial),
                    "{request}"
                );
                assert_eq!(amount(6), end.writeoff, "{request}");
            }
        }
        drop(rows);
        let mut statement = self
            .entries
            .prepare_cached("SELECT id, paid, trial FROM account")
            .unwrap();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let id: String = row.get(0).unwrap();
            let sums = self.sums.get(&id).copied().unwrap_or_default();
            let kept = (
                i128::from(row.get::<_, i64>(1).unwrap()),
                i128::from(row.get::<_, i64>(2).unwrap()),
            );
            assert_eq!((sums.paid, sums.trial), kept, "{id}");
        }
    }

    /// Commits everything, then checks that each ended request has one entry and that `verify` has
    /// no finding.
    fn audit(&mut self) {
        self.turn_until_done();
        self.read_entries();
        self.counts.add("audits");
        for (account, place) in (0..ACCOUNTS).flat_map(|account| [(account, 0), (account, 1)]) {
            for number in 0..SPENDERS {
                let id = spender(account, place, number);
                let billing = self.core().billing();
                let known = billing.key_spend(&id, Period::Total, self.now).unwrap();
                let expected = micro(self.model.spent(account, place, number));
                assert_eq!(known.total, expected, "{id}");
            }
        }
        let verdict = self.core().billing().verify(self.now).unwrap();
        // A torn record is kept and reported as a finding.
        let is_torn =
            |finding: &Finding| finding.rule == "damaged journal" && self.counts.count("torn") > 0;
        let findings: Vec<_> = verdict
            .findings
            .iter()
            .filter(|finding| !is_torn(finding))
            .collect();
        assert!(findings.is_empty(), "{findings:?}");
        let debits = self.model.ends.values().filter(|end| end.is_debit).count();
        assert_eq!(verdict.debits, debits as u64);
        let mut ends = Vec::new();
        let mut collect = |entry: LedgerEntry| {
            if entry.is_ending() {
                ends.push(entry.reference);
            }
            Ok(())
        };
        self.core()
            .billing()
            .receipts()
            .for_each_entry(&EntrySelection::default(), &mut collect)
            .unwrap();
        ends.sort();
        assert!(ends.iter().eq(self.model.ends.keys()), "{ends:?}");
    }
}

/// The records of a journal folder, in the order in which they were written.
fn lines_of(folder: &Path) -> Vec<String> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    let whole = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let end = text.rfind('\n').map_or(0, |end| end + 1);
        text[..end]
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    files.iter().flat_map(whole).collect()
}
