//! A key's limits, tested from outside: expiry, permitted models, rates and spending. The tests use
//! the embedded store and two edges that share a store.

use crate::account::{Account, credits, micro};
use crate::client::{Answer, Request};
use crate::shared::Fleet;
use crate::surface::{BOTH, Chat, INVALID, INVALID_API_KEY, Messages, Surface};
use crate::world::{Plan, SOON, SettableClock, World, wait_for, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Creates a key of the account with these `key create` options.
fn key_with(world: &World, account: &Account, settings: &[&str]) -> (String, String) {
    let made = world.json(
        &[
            &[
                "key",
                "create",
                "--account",
                &account.id,
                "--name",
                "limited",
            ],
            settings,
        ]
        .concat(),
    );
    (
        made["key_id"].as_str().unwrap().to_owned(),
        made["key"].as_str().unwrap().to_owned(),
    )
}

/// The limit, the remaining number and the reset time, from the surface's headers for `what`
/// (`requests` or `tokens`).
fn told(surface: Surface, answer: &Answer, what: &str) -> Option<(u64, u64, String)> {
    let name = |part: &str| match surface {
        Chat => format!("x-ratelimit-{part}-{what}"),
        Messages => format!("anthropic-ratelimit-{what}-{part}"),
    };
    let header = |part: &str| answer.header(&name(part)).map(str::to_owned);
    let number = |part: &str| header(part).map(|text| text.parse().unwrap());
    Some((number("limit")?, number("remaining")?, header("reset")?))
}

#[track_caller]
fn too_many(surface: Surface, answer: &Answer, words: &str) {
    let limited = (429, "rate_limit_error");
    let error = surface.fails(answer, limited, limited, Some("rate_limit_exceeded"));
    assert!(
        error["message"].as_str().unwrap().contains(words),
        "{error}"
    );
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(answer.header("x-should-retry"), None, "waiting helps");
}

/// Sends `most` requests, whole and streamed in turn. Asserts that each is answered and that its
/// headers count down. Returns the answer to one more request.
fn answered_until_refused(
    surface: Surface,
    ask: &mut dyn FnMut(&Request) -> Answer,
    key: &str,
    most: u64,
) -> Answer {
    for count in 0..most {
        let request = match count % 2 {
            0 => surface.whole(key, "input=10 output=10"),
            _ => surface.stream(key, "events=2 input=10 output=10"),
        };
        let answer = ask(&request);
        assert_eq!(answer.status, 200, "{count}: {}", answer.text());
        let (limit, remaining, reset) =
            told(surface, &answer, "requests").expect("headers on success");
        assert_eq!((limit, remaining), (most, most - count - 1), "{reset}");
        match surface {
            Chat => assert!(reset.ends_with('s'), "{reset}"),
            Messages => assert!(reset.ends_with('Z') && reset.len() == 24, "{reset}"),
        }
    }
    ask(&surface.whole(key, "input=10 output=10"))
}

#[test]
fn requests_beyond_a_keys_or_its_accounts_rate_are_429_and_the_headers_tell_what_is_left() {
    let (world, account) = World::with_funds(100_000_000);
    let mut calls = 0;
    for surface in BOTH {
        let (_, key) = key_with(&world, &account, &["--requests-per-minute", "3"]);
        let refused = answered_until_refused(surface, &mut |request| world.ask(request), &key, 3);
        too_many(
            surface,
            &refused,
            "the limit of this key is 3 requests per minute",
        );
        assert_eq!(
            told(surface, &refused, "requests").map(|(limit, left, _)| (limit, left)),
            Some((3, 0))
        );
        assert_eq!(
            told(surface, &refused, "tokens"),
            None,
            "no limit, no header"
        );
        calls += 3;
        assert_eq!(
            world.vendor.calls(),
            calls,
            "a refused request reached the vendor"
        );
    }
    let free = world.works(Chat, &account.key);
    assert_eq!(told(Chat, &free, "requests"), None);

    let limited = world.account_with("limited@example.test", &["--no-trial"]);
    world.json(&[
        "account",
        "grant",
        &limited.id,
        "100",
        "--ref",
        "more funds",
    ]);
    world.json(&[
        "account",
        "limit",
        &limited.id,
        "--requests-per-minute",
        "2",
    ]);
    let (_, second) = key_with(&world, &limited, &["--requests-per-minute", "50"]);
    for key in [&limited.key, &second] {
        let answer = world.works(Chat, key);
        assert_eq!(
            told(Chat, &answer, "requests").map(|(limit, ..)| limit),
            Some(2),
            "the tighter of the two"
        );
    }
    too_many(
        Chat,
        &world.ask(&Chat.whole(&second, "input=1 output=1")),
        "the limit of this account is 2 requests per minute",
    );
    world.json(&[
        "account",
        "limit",
        &limited.id,
        "--requests-per-minute",
        "default",
    ]);
    world.works(Chat, &limited.key);
    assert!(world.metric("gateway_rejected_total", &["requests_per_minute"]) >= 3.0);
    world.ended(&limited, 3);
}

#[test]
fn tokens_are_counted_as_asked_for_and_then_as_used() {
    let (world, account) = World::with_funds(100_000_000);
    for surface in BOTH {
        let (_, key) = key_with(&world, &account, &["--tokens-per-minute", "1500"]);
        let mut open = world.connect();
        open.send(
            &surface
                .whole(&key, "hold=headers input=10 output=10")
                .bytes(),
        );
        wait_until("the first to run", SOON, || {
            world.standing(&account).held > 0
        });
        let refused = world.ask(&surface.whole(&key, "input=10 output=10"));
        too_many(
            surface,
            &refused,
            "the limit of this key is 1500 tokens per minute",
        );
        world.vendor.wait_busy(1);
        world.vendor.release();
        let first = open.answer();
        assert_eq!(first.status, 200, "{}", first.text());
        let (limit, left, _) = told(surface, &first, "tokens").expect("headers on success");
        assert!(
            limit == 1_500 && left < 500,
            "{left} of {limit} left of a request that asked for a thousand"
        );
        let after = world.works(surface, &key);
        let (_, left, _) = told(surface, &after, "tokens").unwrap();
        assert!(left > 300, "what was not used is given back: {left}");
    }
    world.ended(&account, 4);
}

#[test]
fn what_runs_at_one_time_is_bounded_and_given_back_however_a_request_ends() {
    let (world, account) = World::with_funds(100_000_000);
    let (_, key) = key_with(&world, &account, &["--concurrent", "1"]);
    let mut ends = 0;
    for surface in BOTH {
        let streamed = surface == Messages;
        for (marker, stream) in [
            ("input=10 output=10", streamed),
            ("status=400", !streamed),
            ("cut=1 events=5", true),
        ] {
            let body = surface.body(&format!("hold=headers {marker}"), stream, 1_000);
            let mut open = world.connect();
            open.send(&surface.request(&key, &body).bytes());
            wait_until("the first to run", SOON, || {
                world.standing(&account).held > 0
            });
            let refused = world.ask(&surface.whole(&key, "input=10 output=10"));
            too_many(
                surface,
                &refused,
                "the limit of this key is 1 concurrent requests",
            );
            world.vendor.wait_busy(1);
            world.vendor.release();
            open.answer();
            ends += 1;
            world.ended(&account, ends);
        }
        let mut left = world.connect();
        left.send(
            &surface
                .stream(&key, "delay_ms=100 gap_ms=20 events=100 input=10 output=10")
                .bytes(),
        );
        wait_until("the first to run", SOON, || {
            world.standing(&account).held > 0
        });
        drop(left);
        ends += 1;
        wait_until("what the client left to end", SOON, || {
            world.standing(&account).held == 0
        });
        world.works(surface, &key);
        ends += 1;
        world.ended(&account, ends);
    }
}

#[test]
fn a_clock_that_is_set_refills_no_limit_per_minute() {
    let Some(clock) = SettableClock::new() else {
        return;
    };
    let (world, account) = Plan::default().clock(&clock).with_account();
    let (_, key) = key_with(&world, &account, &["--requests-per-minute", "1"]);
    world.works(Chat, &key);
    for offset in ["+0", "+2m", "+0", "-2m"] {
        clock.set(offset);
        let answer = world.ask(&Chat.whole(&key, "input=1 output=1"));
        assert_eq!(answer.status, 429, "{offset}: {}", answer.text());
    }
}

/// Sends requests of a known cost until the key's limit refuses one. Returns how many were answered
/// and their total debit.
fn spend_all(
    world: &World,
    ask: &dyn Fn(&Request) -> Answer,
    surface: Surface,
    limited: &Limited,
) -> (usize, i64) {
    for count in 0..20 {
        let answer = ask(&surface.whole(&limited.key, "input=10 output=200"));
        if answer.status == 200 {
            continue;
        }
        let error = limited.refuses(surface, &answer);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("(month, until 20"), "{error}");
        return (count, i64::try_from(count).unwrap() * surface.cost(10, 200));
    }
    panic!("a spend limit never refused: {}", world.log())
}

fn listed(world: &World, account: &Account, key_id: &str) -> Value {
    let keys = world.json(&["key", "list", "--account", &account.id]);
    keys.as_array()
        .unwrap()
        .iter()
        .find(|key| key["key_id"] == key_id)
        .unwrap()
        .clone()
}

/// What has a spend limit: a key, or a member with a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Key,
    Member,
}

const OWNERS: [Owner; 2] = [Owner::Key, Owner::Member];

/// A key under a spend limit.
struct Limited {
    owner: Owner,
    account: Account,
    id: String,
    key: String,
}

impl Limited {
    /// Creates the key, of a new organisation if a member has the limit.
    fn new(world: &World, owner: Owner, surface: Surface, limit: &str) -> Self {
        let email = format!("{owner:?}-{surface:?}@example.test").to_lowercase();
        let person = world.account_with(&email, &["--no-trial"]);
        if owner == Owner::Key {
            world.grant(&person, "1000", &person.id);
            let (id, key) = key_with(world, &person, &["--spend-limit", limit]);
            return Self {
                owner,
                account: person,
                id,
                key,
            };
        }
        let made = world.json(&["org", "create", "Acme", "--owner", &person.id]);
        let mut account = Account {
            id: made["account_id"].as_str().unwrap().to_owned(),
            email: String::new(),
            key: String::new(),
            key_id: String::new(),
        };
        world.grant(&account, "1000", &account.id);
        let (_, key) = key_with(world, &account, &["--member", &person.id]);
        account.key.clone_from(&key);
        let limited = Self {
            owner,
            account,
            id: person.id,
            key,
        };
        limited.set(world, limit);
        limited
    }

    fn set(&self, world: &World, limit: &str) {
        match self.owner {
            Owner::Key => world.json(&["key", "set", &self.id, "--spend-limit", limit]),
            Owner::Member => {
                let organisation = &self.account.id;
                let set = ["org", "member", "set", organisation, &self.id, "--budget"];
                world.json(&[&set[..], &[limit]].concat())
            }
        };
    }

    /// Another key under the same limit, if there can be one.
    fn other_key(&self, world: &World) -> Option<String> {
        let member = ["--member", &self.id];
        (self.owner == Owner::Member).then(|| key_with(world, &self.account, &member).1)
    }

    fn spent(&self, world: &World) -> i64 {
        micro(&match self.owner {
            Owner::Key => listed(world, &self.account, &self.id)["spent"].clone(),
            Owner::Member => {
                let shown = world.json(&["org", "show", &self.account.id]);
                shown["members"][0]["spent"].clone()
            }
        })
    }

    /// Checks that the limit refused a request. Returns the error.
    fn refuses(&self, surface: Surface, answer: &Answer) -> Value {
        let code = match self.owner {
            Owner::Key => "key_spend_limit",
            Owner::Member => "member_budget",
        };
        let (chat, messages) = ((402, "insufficient_quota"), (402, "billing_error"));
        surface.fails(answer, chat, messages, Some(code))
    }
}

#[test]
fn a_spend_limit_admits_what_it_covers_and_no_more_also_after_a_restart() {
    let mut world = World::new();
    for (owner, surface) in OWNERS
        .into_iter()
        .flat_map(|owner| BOTH.map(|one| (owner, one)))
    {
        let limit = 4 * surface.cost(10, 1_000);
        let setting = format!("{}/month", credits(limit));
        let limited = Limited::new(&world, owner, surface, &setting);
        let (count, spent) = spend_all(&world, &|request| world.ask(request), surface, &limited);
        assert!(
            spent <= limit && limit - spent < surface.cost(300, 456),
            "{spent} of {limit}"
        );
        world.ended(&limited.account, count);
        assert_eq!(limited.spent(&world), spent);

        world.kill();
        world.start_gateway();
        let (none, _) = spend_all(&world, &|request| world.ask(request), surface, &limited);
        assert_eq!(none, 0, "a restart gave another chance");
        let other = limited.other_key(&world);
        if let Some(other) = &other {
            let refused = world.ask(&surface.whole(other, "input=10 output=200"));
            limited.refuses(surface, &refused);
        }
        limited.set(&world, "none");
        let keys = [Some(&limited.key), other.as_ref()];
        let works = keys
            .into_iter()
            .flatten()
            .map(|key| world.works(surface, key));
        world.ended(&limited.account, count + works.count());
    }
}

#[test]
fn a_key_is_bound_to_its_models_and_ends_at_its_hour() {
    let (world, account) = World::with_funds(100_000_000);
    let (id, key) = key_with(&world, &account, &["--models", "beta-5.2,alpha-opus-4-7"]);
    let denied = world.ask(&Messages.whole(&key, "input=1 output=1"));
    Messages.failure(&denied, 403, "permission_error", Some("model_not_allowed"));
    let mut body = Chat.body("input=1 output=1", false, 100);
    body["model"] = "alpha-haiku-4-5-20251001".into();
    Chat.failure(
        &world.ask(&Chat.request(&key, &body)),
        403,
        INVALID,
        Some("model_not_allowed"),
    );
    world.works(Chat, &key);
    for version in [false, true] {
        let list = Request::get("/v1/models").bearer(&key);
        let list = world
            .ask(&if version {
                list.header("anthropic-version", "2023-06-01")
            } else {
                list
            })
            .json();
        let ids: Vec<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].clone())
            .collect();
        assert_eq!(ids, ["alpha-opus-4-7", "beta-5.2"]);
    }
    world.expect(200, &Request::get("/v1/models/beta-5.2").bearer(&key));
    world.expect(403, &Request::get("/v1/models/beta-5.5").bearer(&key));
    assert!(
        !world
            .command(&["key", "set", &id, "--models", "no-such-model"])
            .status
            .success()
    );

    world.json(&["key", "set", &id, "--models", "all", "--expires-in", "0s"]);
    for surface in BOTH {
        let answer = world.ask(&surface.whole(&key, "input=1 output=1"));
        let error = surface.fails_as(&answer, INVALID_API_KEY);
        assert!(
            error["message"].as_str().unwrap().contains("expired"),
            "{error}"
        );
    }
    world.json(&["key", "set", &id, "--expires-in", "never"]);
    world.works(Messages, &key);
    let rotated = world.json(&["key", "rotate", &id, "--overlap", "0s"]);
    world.expect(401, &Chat.whole(&key, "input=1 output=1"));
    world.works(Chat, rotated["key"].as_str().unwrap());
    world.ended(&account, 3);
}

#[test]
fn a_member_is_bound_to_the_models_that_the_organisation_allows() {
    let world = World::new();
    let limited = Limited::new(&world, Owner::Member, Chat, "1000/day");
    let organisation = &limited.account.id;
    let set = |models: &str| {
        let set = ["org", "member", "set", organisation, &limited.id];
        world.command(&[&set[..], &["--models", models]].concat())
    };
    assert!(!set("no-such-model").status.success());
    world.works(Messages, &limited.key);
    assert!(set("beta-5.2").status.success());
    let own = [
        "--models",
        "beta-5.2,alpha-opus-4-7",
        "--member",
        &limited.id,
    ];
    let (_, later) = key_with(&world, &limited.account, &own);
    let message = |error: Value| error["message"].as_str().unwrap().to_owned();
    let code = Some("model_not_allowed");
    for key in [&limited.key, &later] {
        let mut body = Messages.body("input=1 output=1", false, 100);
        body["model"] = "alpha-opus-4-7".into();
        let denied = world.ask(&Messages.request(key, &body));
        let said = message(Messages.failure(&denied, 403, "permission_error", code));
        assert!(said.contains("member of the organisation"), "{said}");
        assert!(said.ends_with("/dashboard/organisation"), "{said}");
        body.as_object_mut().unwrap().remove("max_tokens");
        let body = serde_json::to_vec(&body).unwrap();
        let count = Request::post("/v1/messages/count_tokens", body).bearer(key);
        world.expect(403, &count);
        let list = world.ask(&Request::get("/v1/models").bearer(key)).json();
        let listed = list["data"].as_array().unwrap().iter();
        let listed: Vec<_> = listed.map(|model| &model["id"]).collect();
        assert_eq!(listed, ["beta-5.2"]);
        world.expect(200, &Request::get("/v1/models/beta-5.2").bearer(key));
        world.expect(403, &Request::get("/v1/models/alpha-opus-4-7").bearer(key));
        world.works(Chat, key);
    }
    let mut body = Chat.body("input=1 output=1", false, 100);
    body["model"] = "beta-5.5".into();
    let denied = world.ask(&Chat.request(&later, &body));
    let said = message(Chat.failure(&denied, 403, INVALID, code));
    assert!(said.starts_with("This key may not"), "both lists: {said}");
    assert!(set("all").status.success());
    world.works(Messages, &limited.key);
}

/// Sends a request to an edge, again if a busy machine's store does not answer in time.
fn asked(edge: &World, request: &Request) -> Answer {
    wait_for("the store to answer", SOON, || {
        Some(edge.ask(request)).filter(|answer| !matches!(answer.status, 503 | 529))
    })
}

/// Sends `count` requests at once, alternating between the edges. Returns the answered ones, the
/// refused ones, and the number for which a busy machine's store did not answer in time.
fn at_once(fleet: &Fleet, count: usize, request: &Request) -> (Vec<Answer>, Vec<Answer>, usize) {
    let ports: Vec<_> = fleet.edges.iter().map(|edge| edge.edge).collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |index: usize| {
            let port = ports[index % ports.len()];
            scope.spawn(move || crate::client::ask(port, request))
        };
        let asked: Vec<_> = (0..count).map(ask).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect()
    });
    let (judged, unclear): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|answer| !matches!(answer.status, 503 | 529));
    let (answered, refused) = judged
        .into_iter()
        .partition(|answer: &Answer| answer.status == 200);
    (answered, refused, unclear.len())
}

fn known_to_all(fleet: &Fleet, key: &str) {
    fleet
        .edges
        .iter()
        .for_each(|edge| fleet.wait_known(edge, key));
}

#[test]
fn two_edges_keep_one_limit_on_requests_and_on_spending() {
    let fleet = Fleet::new();
    let account = fleet.funded(1_000_000_000);
    for surface in BOTH {
        let (_, key) = key_with(&fleet.sidecar, &account, &["--requests-per-minute", "10"]);
        known_to_all(&fleet, &key);
        let began = Instant::now();
        let (answered, refused, unclear) =
            at_once(&fleet, 64, &surface.whole(&key, "input=10 output=10"));
        // The limit permits one more request every six seconds, which matters on a slow machine.
        let most = 10 + usize::try_from(began.elapsed().as_secs() / 6).unwrap();
        // The limit may have counted a request whose answer did not come in time.
        let least = 10_usize.saturating_sub(unclear);
        assert!(
            (least..=most).contains(&answered.len()),
            "{} were answered, {unclear} unclear",
            answered.len()
        );
        for answer in &refused {
            too_many(
                surface,
                answer,
                "the limit of this key is 10 requests per minute",
            );
        }
        assert!(answered.iter().all(|answer| {
            told(surface, answer, "requests").is_some_and(|(limit, ..)| limit == 10)
        }));
    }
    for (owner, surface) in OWNERS
        .into_iter()
        .flat_map(|owner| BOTH.map(|one| (owner, one)))
    {
        // The limit has room for five requests: four at their actual cost, and one at its worst
        // case.
        let (worst, cost) = (surface.cost(400, 1_000), surface.cost(10, 1_000));
        let limit = 4 * cost + worst;
        let setting = format!("{}/day", credits(limit));
        let limited = Limited::new(&fleet.sidecar, owner, surface, &setting);
        known_to_all(&fleet, &limited.key);
        let strict = surface
            .whole(&limited.key, "input=10 output=1000")
            .header("x-gateway-strict", "true");
        let mut spent = 0;
        let mut round = || {
            let (answered, refused, unclear) = at_once(&fleet, 16, &strict);
            spent += i64::try_from(answered.len()).unwrap() * cost;
            assert!(spent <= limit, "{spent} were spent of {limit}");
            for answer in &refused {
                limited.refuses(surface, answer);
            }
            (spent >= 5 * cost && answered.is_empty() && unclear == 0).then_some(())
        };
        wait_for("the limit to be spent", SOON, &mut round);
        assert_eq!(spent, 5 * cost);
        wait_until("the ledger to have it", SOON, || {
            limited.spent(&fleet.sidecar) == spent
        });
    }
}

#[test]
fn two_edges_share_what_runs_at_one_time_and_a_dead_edge_gives_it_back() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(100_000_000);
    let (id, key) = key_with(&fleet.sidecar, &account, &["--concurrent", "2"]);
    known_to_all(&fleet, &key);
    for surface in BOTH {
        let (answered, refused, unclear) = at_once(
            &fleet,
            12,
            &surface.whole(&key, "delay_ms=1500 input=10 output=10"),
        );
        // Requests that arrive after the first two have ended are answered too.
        assert!(
            answered.len() + unclear >= 2 && !refused.is_empty(),
            "{} were answered",
            answered.len()
        );
        for answer in &refused {
            too_many(
                surface,
                answer,
                "the limit of this key is 2 concurrent requests",
            );
        }
    }
    // The store may not have processed the last endings yet.
    wait_until("all to have ended", SOON, || {
        fleet.edges[0].standing(&account).held == 0
    });
    let open: Vec<_> = (0..2)
        .map(|_| {
            let mut open = fleet.edges[0].connect();
            open.send(
                &Chat
                    .stream(&key, "gap_ms=100 events=600 input=10 output=10")
                    .bytes(),
            );
            open
        })
        .collect();
    let held_for_both =
        || (fleet.edges[1].standing(&account).held >= 2 * Chat.cost(10, 1_000)).then_some(());
    wait_for("both to run", SOON, held_for_both);
    too_many(
        Chat,
        &asked(&fleet.edges[1], &Chat.whole(&key, "input=10 output=10")),
        "2 concurrent requests",
    );
    fleet.edges[0].kill();
    too_many(
        Chat,
        &asked(&fleet.edges[1], &Chat.whole(&key, "input=10 output=10")),
        "2 concurrent requests",
    );
    drop(open);
    fleet.edges[0].start_gateway();
    wait_until("the dead edge's requests to be given back", SOON, || {
        fleet.edges[1]
            .ask(&Chat.whole(&key, "input=10 output=10"))
            .status
            == 200
    });

    // A change reaches every edge that has cached the key.
    fleet
        .sidecar
        .json(&["key", "set", &id, "--models", "beta-5.5"]);
    for edge in &fleet.edges {
        wait_until("the change to be heard", Duration::from_secs(15), || {
            edge.ask(&Chat.whole(&key, "input=1 output=1")).status == 403
        });
    }
}
