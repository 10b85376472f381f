//! Tests the limits that the shared store's scripts enforce: requests, tokens and concurrent
//! requests of a key and of its account, and the credit that a key may spend.
//!
//! Must not know config or HTTP.

use super::{LEASE, Server, World, lacks, micro, now_ms, parts};
use credits::limits::{Period, RequestLimits, SpendLimit, Spender};
use credits::money::{CreditSplit, Micro};
use credits::rates::LimitScope::{Account, Key};
use credits::rates::RateLimitKind::{Concurrent, Requests, Tokens};
use credits::rates::{LimitScope, RateLimitKind, RateLimitStatus, RateLimitWait, RateQuota};
use model_gateway::shared_credit::redis::ReserveReply::{Held, HeldWithin, Limited, Unknown};
use model_gateway::shared_credit::redis::{
    ReserveCommand, ReserveReply, RestoreEntry, SettleCommand, SettleReply, SharedStore, SpendSeed,
    partition,
};
use std::time::{Duration, Instant};

fn rates(requests_per_minute: u64, tokens_per_minute: u64, concurrent: u64) -> RateQuota {
    RateQuota {
        requests_per_minute,
        tokens_per_minute,
        concurrent,
    }
}

fn of_key(key: RateQuota) -> RequestLimits {
    RequestLimits {
        key,
        ..RequestLimits::default()
    }
}

fn of_account(account: RateQuota) -> RequestLimits {
    RequestLimits {
        account,
        ..RequestLimits::default()
    }
}

fn spending(of: Spender, micro: i64, period: Period) -> RequestLimits {
    let limit = SpendLimit {
        credits: Micro::new(micro),
        period,
    };
    RequestLimits {
        spend: Spender::ALL.map(|one| (one == of).then_some(limit)),
        ..RequestLimits::default()
    }
}

/// The reply to a reservation over the limit of a spender, who can spend this many µc.
fn over(of: Spender, free: i64) -> ReserveReply {
    let free = micro(free);
    ReserveReply::SpendLimit { of, free }
}

/// A client with one key of an account; or a member, each of whose requests has another key.
#[derive(Clone)]
struct Caller<'a> {
    store: &'a SharedStore,
    account: &'a str,
    key: String,
    member: Option<String>,
}

impl<'a> Caller<'a> {
    async fn new(store: &'a SharedStore, account: &'a str) -> Self {
        Self::of(Spender::Key, store, account).await
    }

    async fn of(spender: Spender, store: &'a SharedStore, account: &'a str) -> Self {
        World::with(store, account, 1_000_000, None).await;
        Self {
            store,
            account,
            key: format!("key_{account}"),
            member: (spender == Spender::Member).then(|| format!("{account}/acct_ann")),
        }
    }

    fn key_of(&self, request: &str) -> String {
        match self.member {
            Some(_) => format!("{}_{request}", self.key),
            None => self.key.clone(),
        }
    }

    fn other(&self, key: &str) -> Caller<'a> {
        Caller {
            key: format!("key_{}_{key}", self.account),
            member: self.member.as_ref().map(|member| format!("{member}_{key}")),
            ..*self
        }
    }

    async fn ask(
        &self,
        request: &str,
        bounds: &RequestLimits,
        full: i64,
        floor: i64,
    ) -> ReserveReply {
        self.ask_for(request, bounds, full, floor, LEASE).await
    }

    async fn ask_for(
        &self,
        request: &str,
        bounds: &RequestLimits,
        full: i64,
        floor: i64,
        lease: Duration,
    ) -> ReserveReply {
        let request_id = &format!("req_{}_{request}", self.account);
        let (full, floor, account, max_open) = (micro(full), micro(floor), self.account, 500);
        let key = self.key_of(request);
        let within = (&*key, self.member.as_deref(), bounds);
        let within = (!bounds.is_unbounded()).then_some(within);
        self.store
            .holds()
            .reserve(&ReserveCommand {
                request_id,
                account,
                full,
                floor,
                lease,
                max_open,
                within,
            })
            .await
            .unwrap()
    }

    async fn end(&self, request: &str, cost: i64, tokens: u64) {
        let request_id = &format!("req_{}_{request}", self.account);
        let key = self.key_of(request);
        let member = self.member.as_deref();
        let ending = &serde_json::json!({"key_id": key, "member": member}).to_string();
        let end = SettleCommand {
            request_id,
            account: self.account,
            cost: micro(cost),
            ending,
            key_id: &key,
            member,
            tokens,
        };
        assert!(
            matches!(
                self.store.holds().settle(&end).await.unwrap(),
                SettleReply::Done { .. }
            ),
            "{request}"
        );
    }

    async fn seed(&self, spent: i64, seq: i64) -> bool {
        self.seed_at(spent, seq, now_ms()).await
    }

    async fn seed_at(&self, spent: i64, seq: i64, at_ms: i64) -> bool {
        let spent = [micro(spent); 4];
        let (spender, id) = match &self.member {
            Some(member) => (Spender::Member, member),
            None => (Spender::Key, &self.key),
        };
        let seed = SpendSeed {
            account: self.account,
            spender,
            id,
            at_ms,
            spent,
            seq,
            epoch: "",
        };
        self.store.ingest().seed_spending(&seed).await.unwrap()
    }

    async fn held(&self) -> CreditSplit {
        self.store
            .balances()
            .account(self.account)
            .await
            .unwrap()
            .unwrap()
            .held
    }
}

#[track_caller]
fn is_held(reserved: &ReserveReply, amount: i64) {
    assert!(
        matches!(reserved, HeldWithin(held, _) if held.total() == micro(amount)),
        "{reserved:?}"
    );
}

#[track_caller]
fn must_wait(
    reserved: &ReserveReply,
    limited: RateLimitKind,
    whose: LimitScope,
    most: u64,
) -> RateLimitWait {
    let Limited(wait) = reserved else {
        panic!("{reserved:?}")
    };
    assert_eq!(
        (wait.limited, wait.whose, wait.limit),
        (limited, whose, most)
    );
    assert!(wait.ms > 0, "{wait:?}");
    *wait
}

async fn requests_a_minute_are_counted_by_key_and_by_account(store: &SharedStore) {
    let one = Caller::new(store, "acct_rpm").await;
    let other = one.other("b");
    let two = of_key(rates(2, 0, 0));
    let HeldWithin(_, meters) = one.ask("1", &two, 10, 10).await else {
        panic!("not held")
    };
    assert_eq!(
        meters.requests,
        Some(RateLimitStatus {
            limit: 2,
            remaining: 1,
            reset_ms: 30_000
        })
    );
    assert_eq!(meters.tokens, None);
    is_held(&one.ask("2", &two, 10, 10).await, 10);
    let wait = must_wait(&one.ask("3", &two, 10, 10).await, Requests, Key, 2);
    assert!((1..=30_000).contains(&wait.ms), "{wait:?}");
    assert_eq!(
        wait.meters
            .requests
            .map(|meter| (meter.limit, meter.remaining)),
        Some((2, 0))
    );
    assert_eq!(
        one.held().await,
        parts(20, 0),
        "a refused request holds nothing"
    );
    is_held(&other.ask("4", &two, 10, 10).await, 10);
    for request in ["1", "2", "4"] {
        one.end(request, 1, 0).await;
    }
    must_wait(&one.ask("5", &two, 10, 10).await, Requests, Key, 2);

    let three = of_account(rates(3, 0, 0));
    for (caller, request) in [(&one, "6"), (&other, "7"), (&one, "8")] {
        is_held(&caller.ask(request, &three, 10, 10).await, 10);
    }
    must_wait(&other.ask("9", &three, 10, 10).await, Requests, Account, 3);
    assert!(
        matches!(
            other.ask("10", &RequestLimits::default(), 10, 10).await,
            Held(_)
        ),
        "no limit, no count"
    );
}

async fn tokens_are_counted_as_estimated_and_corrected_at_the_end(store: &SharedStore) {
    let caller = Caller::new(store, "acct_tpm").await;
    let asks = |tokens| RequestLimits {
        tokens,
        ..of_key(rates(0, 60_000, 0))
    };
    is_held(&caller.ask("1", &asks(50_000), 10, 10).await, 10);
    must_wait(
        &caller.ask("2", &asks(50_000), 10, 10).await,
        Tokens,
        Key,
        60_000,
    );
    caller.end("1", 1, 1_000).await;
    is_held(&caller.ask("2", &asks(50_000), 10, 10).await, 10);
    caller.end("2", 1, 90_000).await;
    let wait = must_wait(
        &caller.ask("3", &asks(1), 10, 10).await,
        Tokens,
        Key,
        60_000,
    );
    assert!(
        wait.ms > 5_000,
        "what was used beyond the estimate counts: {wait:?}"
    );

    let caller = Caller::new(store, "acct_tpm_all").await;
    let asks = |tokens| RequestLimits {
        tokens,
        ..of_account(rates(0, 60_000, 0))
    };
    is_held(&caller.ask("1", &asks(1_000_000), 10, 10).await, 10);
    must_wait(
        &caller.ask("2", &asks(30_000), 10, 10).await,
        Tokens,
        Account,
        60_000,
    );
    caller.end("1", 1, 0).await;
    is_held(&caller.ask("2", &asks(30_000), 10, 10).await, 10);
}

async fn what_runs_at_one_time_is_given_back_by_an_end_and_by_a_lapse(store: &SharedStore) {
    let one = Caller::new(store, "acct_runs").await;
    let other = one.other("b");
    let bounds = RequestLimits {
        account: rates(0, 0, 3),
        ..of_key(rates(0, 0, 2))
    };
    is_held(
        &one.ask_for("1", &bounds, 10, 10, Duration::from_millis(1))
            .await,
        10,
    );
    is_held(&one.ask("2", &bounds, 10, 10).await, 10);
    must_wait(&one.ask("3", &bounds, 10, 10).await, Concurrent, Key, 2);
    is_held(&other.ask("4", &bounds, 10, 10).await, 10);
    must_wait(
        &other.ask("5", &bounds, 10, 10).await,
        Concurrent,
        Account,
        3,
    );
    one.end("2", 1, 0).await;
    is_held(&one.ask("3", &bounds, 10, 10).await, 10);
    let began = Instant::now();
    while store
        .holds()
        .sweep(partition(one.account), now_ms())
        .await
        .unwrap()
        == 0
    {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the lease never ran out"
        );
    }
    is_held(&one.ask("6", &bounds, 10, 10).await, 10);
    must_wait(&one.ask("7", &bounds, 10, 10).await, Concurrent, Key, 2);
    assert_eq!(
        one.ask("6", &bounds, 10, 10).await,
        one.ask("6", &bounds, 10, 10).await,
        "asked again, counted once"
    );
    one.end("6", 1, 0).await;
    is_held(&one.ask("7", &bounds, 10, 10).await, 10);
}

async fn a_spender_spends_no_more_than_the_limit(store: &SharedStore, of: Spender) {
    for period in Period::ALL {
        let account = &format!("acct_spend_{of:?}_{}", period.name());
        let caller = Caller::of(of, store, account).await;
        let limit = spending(of, 1_000, period);
        assert_eq!(
            caller.ask("1", &limit, 10, 10).await,
            Unknown,
            "the ledger says first what was spent"
        );
        assert!(caller.seed(400, 0).await);
        assert!(!caller.seed(0, 0).await, "once");
        is_held(&caller.ask("1", &limit, 500, 500).await, 500);
        assert_eq!(caller.ask("2", &limit, 500, 101).await, over(of, 100));
        is_held(&caller.ask("2", &limit, 500, 100).await, 100);
        assert_eq!(caller.ask("3", &limit, 1, 1).await, over(of, 0));
        caller.end("1", 200, 0).await;
        caller.end("2", 100, 0).await;
        assert_eq!(caller.ask("3", &limit, 500, 301).await, over(of, 300));
        is_held(&caller.ask("3", &limit, 500, 300).await, 300);
        let free = caller.other("free");
        assert!(matches!(
            free.ask("4", &RequestLimits::default(), 5_000, 5_000).await,
            Held(_)
        ));
        caller.end("3", 0, 0).await;
        free.end("4", 5_000, 0).await;
        is_held(&caller.ask("5", &limit, 300, 300).await, 300);
        let both = caller.ask("6", &limit, 2_000_000, 2_000_000).await;
        let free = Micro::ZERO;
        assert_eq!(both, ReserveReply::SpendLimit { of, free }, "it goes first");
        let ample = spending(of, 1_000_000_000, period);
        let broke = lacks(1_000_000 - 300 - 5_000 - 300);
        assert_eq!(caller.ask("6", &ample, 2_000_000, 2_000_000).await, broke);
    }
}

async fn what_the_ledger_does_not_have_yet_is_counted_where_a_spender_is_seeded(
    store: &SharedStore,
    of: Spender,
) {
    let account = &format!("acct_late_{of:?}");
    let caller = Caller::of(of, store, account).await;
    assert!(matches!(
        caller.ask("1", &RequestLimits::default(), 100, 100).await,
        Held(_)
    ));
    caller.end("1", 70, 0).await;
    let other = caller.other("b");
    assert!(matches!(
        other.ask("2", &RequestLimits::default(), 100, 100).await,
        Held(_)
    ));
    other.end("2", 50, 0).await;
    assert!(caller.seed(0, 0).await);
    let limit = spending(of, 100, Period::Day);
    assert_eq!(caller.ask("3", &limit, 31, 31).await, over(of, 30));
    is_held(&caller.ask("3", &limit, 30, 30).await, 30);
}

async fn what_a_server_lost_is_restored_to_the_spender_s_count_once(
    store: &SharedStore,
    of: Spender,
) {
    let account = &format!("acct_lost_{of:?}");
    let caller = Caller::of(of, store, account).await;
    assert!(caller.seed(0, 5).await);
    let bounds = RequestLimits {
        key: rates(0, 0, 1),
        ..spending(of, 1_000, Period::Month)
    };
    is_held(&caller.ask("1", &bounds, 600, 600).await, 600);
    let restore = |request: &str, paid, seq| RestoreEntry {
        request_id: format!("req_{account}_{request}"),
        account: caller.account.into(),
        taken: parts(paid, 0),
        seq,
        spenders: std::iter::once(caller.key_of(request))
            .chain(caller.member.clone())
            .collect(),
        at_ms: now_ms(),
    };
    let ended = [restore("1", 400, 7), restore("0", 300, 5)];
    for restored in [2, 0] {
        let place = partition(caller.account);
        assert_eq!(
            store.ingest().restore(place, &ended).await.unwrap(),
            restored
        );
    }
    assert_eq!(caller.ask("2", &bounds, 601, 601).await, over(of, 600));
    is_held(&caller.ask("2", &bounds, 600, 600).await, 600);
}

/// After the server's clock was set forward and back, events stay dated ahead, and so may be what
/// was counted. Both count for the current period too, so that the limit holds.
async fn a_clock_that_was_set_forward_and_back_opens_no_spend_limit(
    store: &SharedStore,
    of: Spender,
) {
    const AHEAD_MS: i64 = 40 * 86_400_000;
    for period in [Period::Day, Period::Week, Period::Month] {
        let account = &format!("acct_ahead_{of:?}_{}", period.name());
        let caller = Caller::of(of, store, account).await;
        assert!(caller.seed_at(900, 0, now_ms() + AHEAD_MS).await);
        let limit = spending(of, 1_000, period);
        let refused = |free| over(of, free);
        assert_eq!(
            caller.ask("0", &limit, 600, 600).await,
            refused(100),
            "{of:?} {period:?}: counted ahead"
        );
        let account = &format!("acct_dated_{of:?}_{}", period.name());
        let caller = Caller::of(of, store, account).await;
        assert!(caller.seed(0, 0).await);
        let ended = RestoreEntry {
            request_id: format!("req_{account}_0"),
            account: caller.account.into(),
            taken: parts(700, 0),
            seq: 7,
            spenders: std::iter::once(caller.key_of("0"))
                .chain(caller.member.clone())
                .collect(),
            at_ms: now_ms() + AHEAD_MS,
        };
        let place = partition(account);
        assert_eq!(store.ingest().restore(place, &[ended]).await.unwrap(), 1);
        assert_eq!(
            caller.ask("1", &limit, 600, 301).await,
            refused(300),
            "{of:?} {period:?}: dated ahead"
        );
    }
}

/// Through the connections of two edges, a key is admitted up to each limit and no further:
/// requests and tokens per minute, concurrent requests, and credit.
async fn of_many_at_once_exactly_as_many_are_admitted_as_each_limit_bears(
    store: &SharedStore,
    other: &SharedStore,
) {
    for (name, bounds, most) in [
        ("requests", of_key(rates(10, 0, 0)), 10),
        (
            "tokens",
            RequestLimits {
                tokens: 100,
                ..of_key(rates(0, 1_000, 0))
            },
            10,
        ),
        ("runs", of_key(rates(0, 0, 10)), 10),
        ("account", of_account(rates(10, 0, 10)), 10),
        ("spend", spending(Spender::Key, 10, Period::Day), 10),
        ("budget", spending(Spender::Member, 10, Period::Day), 10),
    ] {
        let account = format!("acct_many_{name}");
        let began = Instant::now();
        let spender = match name {
            "budget" => Spender::Member,
            _ => Spender::Key,
        };
        let caller = Caller::of(spender, store, &account).await;
        assert!(caller.seed(0, 0).await);
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
            let (key, member) = (caller.key.clone(), caller.member.clone());
            tries.spawn(async move {
                let caller = Caller {
                    store: &store,
                    account: &account,
                    key,
                    member,
                };
                matches!(
                    caller.ask(&number.to_string(), &bounds, 1, 1).await,
                    HeldWithin(..)
                )
            });
        }
        let admitted = tries
            .join_all()
            .await
            .into_iter()
            .filter(|held| *held)
            .count();
        // On a slow machine, a bucket has emptied by one after six seconds, and so on.
        let emptied = usize::try_from(began.elapsed().as_secs() / 6).unwrap();
        let is_bucket = ["requests", "tokens", "account"].contains(&name);
        let more = if is_bucket { emptied } else { 0 };
        assert!(
            (most..=most + more).contains(&admitted),
            "{name}: {admitted} were admitted"
        );
        let held = i64::try_from(admitted).unwrap();
        assert_eq!(caller.held().await, parts(held, 0), "{name}");
    }
}

/// Each period has a count of its own, also if the clock goes forward, back, and forward again.
pub async fn a_limit_holds_wherever_the_clock_goes(server: &Server, store: &SharedStore) {
    let caller = Caller::of(Spender::Key, store, "acct_clock").await;
    assert!(caller.seed(0, 0).await);
    let hash = format!("gw:{{p{}}}:k:{}", partition("acct_clock"), caller.key);
    let fields = ["week", "week_spent", "week_before", "week_before_spent"];
    let counted = || {
        let values = server.cli(&[&["hmget", &hash][..], &fields].concat());
        let number = |line: &str| line.parse().unwrap();
        values.lines().map(number).collect::<Vec<i64>>()
    };
    // What the server has after its clock was elsewhere.
    let was = |state: [i64; 4]| {
        let values = state.map(|value| value.to_string());
        let pairs = fields.iter().zip(&values);
        let pairs: Vec<_> = pairs.flat_map(|(field, value)| [*field, value]).collect();
        server.cli(&[&["hset", &hash][..], &pairs].concat());
    };
    let limit = spending(Spender::Key, 1_000, Period::Week);
    let week = (now_ms() / 86_400_000 + 3) / 7;
    let states = [
        ("begins", [week - 1, 700, week - 2, 5], 0),
        ("back", [week + 1, 500, week, 800], 800),
        ("forward", [week - 1, 300, week, 900], 900),
        ("unknown", [week + 9, 600, week + 8, 1], 600),
    ];
    for (name, state, spent) in states {
        was(state);
        let free = 1_000 - spent;
        assert_eq!(
            caller.ask(name, &limit, free + 1, free + 1).await,
            ReserveReply::SpendLimit {
                of: Spender::Key,
                free: micro(free)
            },
            "{name}"
        );
        is_held(&caller.ask(name, &limit, free, free).await, free);
        caller.end(name, free, 0).await;
        let before = &state[..2];
        assert_eq!(counted(), [&[week, 1_000], before].concat(), "{name}");
    }
}

pub async fn all(store: &SharedStore, other: &SharedStore) {
    requests_a_minute_are_counted_by_key_and_by_account(store).await;
    tokens_are_counted_as_estimated_and_corrected_at_the_end(store).await;
    what_runs_at_one_time_is_given_back_by_an_end_and_by_a_lapse(store).await;
    for of in Spender::ALL {
        a_spender_spends_no_more_than_the_limit(store, of).await;
        what_the_ledger_does_not_have_yet_is_counted_where_a_spender_is_seeded(store, of).await;
        what_a_server_lost_is_restored_to_the_spender_s_count_once(store, of).await;
        a_clock_that_was_set_forward_and_back_opens_no_spend_limit(store, of).await;
    }
    of_many_at_once_exactly_as_many_are_admitted_as_each_limit_bears(store, other).await;
}
