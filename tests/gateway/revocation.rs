//! Tests how soon several edges accept a new key and refuse a revoked one, also if an edge missed
//! the notification; and how much unknown keys cost.

use crate::account::{Account, micro};
use crate::client::Request;
use crate::failure_table::{Case, may_reach_clients};
use crate::h2::resident_kib;
use crate::keys_of_edges::Edges;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::time::{Duration, Instant};

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn asks(edge: &World, key: &str) -> u16 {
    edge.ask(&Request::get("/v1/credits").bearer(key)).status
}

/// Number of revocations that an edge has measured, and the sum of their delays in seconds.
fn measured(edge: &World) -> (f64, f64) {
    let of = |part: &str| edge.metric(&format!("gateway_revocation_seconds_{part}"), &[]);
    (of("count"), of("sum"))
}

/// Creates a key and puts it into the caches of both edges.
fn cached(world: &Edges, account: &str) -> (String, String) {
    let (key_id, key) = world.sidecar.key(account, "doomed");
    for edge in &world.edges {
        wait_until("an edge to know the key", SOON, || asks(edge, &key) == 200);
    }
    (key_id, key)
}

#[test]
fn a_revocation_counts_at_both_edges_at_once_and_each_says_how_soon() {
    let world = Edges::new();
    let account = world.account();
    for round in 1..=3 {
        let (key_id, key) = cached(&world, &account.id);
        world.sidecar.json(&["key", "revoke", &key_id]);
        for edge in &world.edges {
            wait_until("the key to be refused", SOON, || asks(edge, &key) == 401);
            let (count, seconds) = wait_for("the measure", SOON, || {
                Some(measured(edge)).filter(|(count, _)| *count >= f64::from(round))
            });
            println!("{count} revocations in the caches, {seconds} s together");
            assert!(
                count == f64::from(round) && seconds < 5.0,
                "{count} in {seconds} s"
            );
            assert_eq!(asks(edge, &account.key), 200, "and no other key");
        }
    }
}

#[test]
fn what_was_revoked_while_nobody_listened_is_refused_all_the_same() {
    let world = Edges::as_user("edge");
    let account = world.account();
    let (key_id, key) = cached(&world, &account.id);
    let (asked_id, asked) = cached(&world, &account.id);
    let listen = |count: &str| {
        wait_for("edges to listen or not", SOON, || {
            let told = world.redis.cli(&["PUBSUB", "NUMSUB", "gw:revoked"]);
            (told.lines().last() == Some(count)).then_some(())
        });
    };
    listen("2");
    // The edges lose the right to subscribe: they are disconnected and cannot subscribe again.
    world
        .redis
        .cli(&["ACL", "SETUSER", "edge", "resetchannels"]);
    world.redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    listen("0");
    for key_id in [&key_id, &asked_id] {
        world.sidecar.json(&["key", "revoke", key_id]);
    }
    // A request with a revoked key makes the edge look the key up again.
    for edge in &world.edges {
        wait_until("the key to be refused", SOON, || asks(edge, &asked) == 401);
    }
    world.redis.cli(&["ACL", "SETUSER", "edge", "allchannels"]);
    listen("2");
    let since = Instant::now();
    for edge in &world.edges {
        // This is long before the edge would refresh a cached key.
        wait_until("the key to be refused", Duration::from_secs(15), || {
            asks(edge, &key) == 401
        });
        assert_eq!(asks(edge, &account.key), 200);
    }
    println!("refused {:?} after both listened again", since.elapsed());
    // Both keys were in the caches. For the key that was looked up, the store's record holds the
    // time of revocation.
    for edge in &world.edges {
        wait_until("the measure", SOON, || measured(edge).0 >= 1.0);
    }
}

#[test]
fn a_moved_key_is_billed_to_the_other_account_at_both_edges_at_once() {
    let world = Edges::everywhere(|plan| plan.edit("signup:", "organisations: true\nsignup:"));
    let (sidecar, [first, other]) = (&world.sidecar, &world.edges);
    let account = world.account();
    let made = sidecar.json(&["org", "create", "Acme", "--owner", &account.email]);
    let company = Account {
        id: made["account_id"].as_str().unwrap().to_owned(),
        email: String::new(),
        key: account.key.clone(),
        key_id: String::new(),
    };
    sidecar.grant(&company, "5", "funds");
    for edge in &world.edges {
        edge.works(Chat, &account.key);
    }
    let spent = |id: &str, key: &str| {
        let keys = sidecar.json(&["key", "list", "--account", id]);
        let found = keys.as_array().unwrap().iter();
        let found = found.clone().find(|found| found["key_id"] == key);
        micro(&found.unwrap()["spent"])
    };
    let debits = |account: &Account, count| {
        let endings = wait_for("the requests to end", SOON, || {
            Some(sidecar.endings(account)).filter(|endings| endings.len() >= count)
        });
        assert_eq!(endings.len(), count, "{endings:?}");
        let cost = endings.iter().map(|ending| micro(&ending["credits"]));
        cost.sum::<i64>()
    };
    debits(&account, 2);
    let request = Chat.stream(&account.key, "events=10 hold=5 input=100 output=50");
    let (mut connection, mut answer) = first.begin_stream(&request);

    let moved = sidecar.json(&["key", "move", &account.key_id, "--to", &company.id]);
    assert_eq!(
        (&moved["moved_from"], &moved["in_store"]),
        (&account.key_id.clone().into(), &true.into()),
        "{moved}"
    );
    let key_id = moved["key_id"].as_str().unwrap();
    for edge in [other, first] {
        assert_eq!(edge.standing(&company).balance, 5_000_000, "at once");
    }
    for edge in &world.edges {
        edge.works(Chat, &account.key);
    }
    assert!(answer.end().is_none(), "the stream was to outlast this");
    sidecar.vendor.release();
    Chat.completes(&mut connection, &mut answer);
    let (of_person, of_company) = (debits(&account, 3), debits(&company, 2));
    assert_eq!(spent(&account.id, &account.key_id), of_person);
    assert_eq!(spent(&company.id, key_id), of_company);
    let shown = sidecar.json(&["org", "show", &company.id]);
    assert_eq!(micro(&shown["members"][0]["spent"]), of_company, "{shown}");

    // Its limit, which no request keeps to, moves too.
    let limit = |key: &str, limit| sidecar.json(&["key", "set", key, "--spend-limit", limit]);
    limit(key_id, "0.000001/total");
    let back = sidecar.json(&["key", "move", key_id, "--to", &account.id]);
    let back = back["key_id"].as_str().unwrap();
    for edge in &world.edges {
        let refused = edge.expect(402, &Chat.whole(&account.key, ""));
        assert!(refused.has("key_spend_limit"), "{}", refused.text());
    }
    limit(back, "none");
    for edge in &world.edges {
        edge.works(Chat, &account.key);
    }
    assert_eq!(debits(&account, 5), of_person + spent(&account.id, back));
    assert_eq!(debits(&company, 2), of_company);
    for (key, words) in [
        (key_id, "does not exist or is revoked"),
        (back, "belongs to this account already"),
    ] {
        let refused = sidecar.command(&["key", "move", key, "--to", &account.id]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && text.contains(words), "{text}");
    }
    // Of a key that moves between two people, only who pays changes for an edge.
    let bob = Account {
        key: account.key.clone(),
        ..sidecar.account_with("bob@example.test", &["--no-trial"])
    };
    sidecar.grant(&bob, "7", "funds of bob");
    sidecar.json(&["key", "move", back, "--to", &bob.email]);
    for edge in &world.edges {
        assert_eq!(edge.standing(&bob).balance, 7_000_000, "at once");
    }
    // The credits go the same way when his account is merged.
    let balance = sidecar.shown(&account).balance + 7_000_000;
    sidecar.json(&["account", "suspend", &bob.id]);
    let merged = sidecar.json(&["account", "merge", &bob.id, "--into", &account.id]);
    assert_eq!(
        (&merged["credits"], &merged["in_store"]),
        (&"7".into(), &true.into()),
        "{merged}"
    );
    for edge in &world.edges {
        let standing = || edge.standing(&account).balance;
        wait_until("the credits", SOON, || standing() == balance);
    }
}

/// A well-formed key with a correct checksum that does not exist.
fn unknown_key(number: u64) -> String {
    let in_base_62 = |mut number: u64, digits: &mut [u8]| {
        for digit in digits.iter_mut().rev() {
            *digit = ALPHABET[usize::try_from(number % 62).unwrap()];
            number /= 62;
        }
    };
    let (mut body, mut check) = ([b'7'; 43], [b'0'; 6]);
    in_base_62(number, &mut body[20..]);
    in_base_62(crc32fast::hash(&body).into(), &mut check);
    format!(
        "gw-sk-{}{}",
        String::from_utf8_lossy(&body),
        String::from_utf8_lossy(&check)
    )
}

fn look_ups(world: &Edges) -> u64 {
    let stats = world.redis.cli(&["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_hgetall:calls="))
        .unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn noise_costs_no_look_up_and_unknown_keys_fill_no_memory() {
    const ALLOWED_KIB: u64 = 16_384;
    let world = Edges::with(|plan| {
        plan.limit("keepalive_requests", 1_000_000)
            .limit("unknown_key_lookups_per_second", 1_000_000)
    });
    let account = world.account();
    let edge = &world.edges[0];
    // Returns the number of requests sent. On a busy machine a look-up can time out; then the
    // request is sent again.
    let ask_all = |numbers: std::ops::Range<u64>, key: &dyn Fn(u64) -> String| {
        let (mut connection, mut asked) = (edge.connect(), 0);
        for number in numbers {
            let request = Request::get("/v1/models").bearer(&key(number));
            wait_for("an answer", SOON, || {
                asked += 1;
                let answer = connection.ask(&request);
                assert!(matches!(answer.status, 401 | 503), "{}", answer.text());
                (answer.status == 401).then_some(())
            });
        }
        asked
    };
    let before = look_ups(&world);
    ask_all(0..300, &|number| format!("{}x", unknown_key(number)));
    ask_all(0..300, &|number| {
        unknown_key(number).replace("gw-sk-7", "gw-sk-8")
    });
    ask_all(0..300, &|number| format!("sk-{number}"));
    assert_eq!(look_ups(&world), before, "noise was looked up");
    let mut asked = ask_all(0..1_000, &unknown_key);
    let resident = resident_kib(edge.pid());
    let count = if crate::is_long() { 1_000_000 } else { 3_000 };
    asked += ask_all(1_000..1_000 + count, &unknown_key);
    let looked_up = look_ups(&world) - before;
    assert!(
        (1_000 + count..=asked).contains(&looked_up),
        "{looked_up} look-ups, asked {asked} times"
    );
    let grown = resident_kib(edge.pid()).saturating_sub(resident);
    println!("{count} unknown keys: {grown} KiB more");
    assert!(
        grown < ALLOWED_KIB,
        "{grown} KiB more for {count} unknown keys"
    );
    edge.works(Chat, &account.key);
}

/// The status of the first answer that is not the store's time-out on a busy machine.
fn first_status(edge: &World, key: &str) -> u16 {
    wait_for("an answer", SOON, || {
        Some(asks(edge, key)).filter(|status| *status != 503)
    })
}

#[test]
fn a_key_works_at_every_edge_when_the_command_that_made_it_returns_and_no_longer_when_revoked() {
    let world = Edges::new();
    let account = world.account();
    for round in 0..10 {
        let made = world.sidecar.json(&[
            "key",
            "create",
            "--account",
            &account.id,
            "--name",
            &format!("key {round}"),
        ]);
        assert_eq!(made["in_store"], true, "{made}");
        let (key, key_id) = (made["key"].as_str().unwrap(), made["key_id"].as_str());
        let [first, other] = &world.edges;
        assert_eq!(first_status(first, key), 200, "round {round}");
        world.sidecar.json(&["key", "revoke", key_id.unwrap()]);
        assert_eq!(first_status(other, key), 401, "round {round}");
    }
}

#[test]
fn without_the_store_a_key_is_created_and_the_command_says_that_edges_wait_for_it() {
    let Edges {
        redis,
        mut sidecar,
        mut edges,
    } = Edges::new();
    let account = sidecar.account();
    edges.iter_mut().for_each(World::leave);
    drop(redis);
    let command = ["key", "create", "--account", &account.id, "--name", "later"];
    let began = Instant::now();
    let output = sidecar.command(&[&command[..], &["--json"]].concat());
    assert!(output.status.success() && began.elapsed() < SOON);
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["in_store"], false, "{made}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("edges will have it once the store is reachable"),
        "{said}"
    );
    // Without the store, the ledger cannot be compared with it.
    sidecar.forget();
}

#[test]
fn a_flood_of_unknown_keys_is_bounded_and_does_not_harm_a_key_that_the_edge_knows() {
    const PER_SECOND: u64 = 5;
    let world = Edges::with(|plan| plan.limit("unknown_key_lookups_per_second", PER_SECOND));
    let account = world.account();
    let edge = &world.edges[0];
    let before = look_ups(&world);
    let began = Instant::now();
    let (mut connection, mut refused) = (edge.connect(), 0);
    for number in 0..200 {
        let request = Request::get("/v1/models").bearer(&unknown_key(number));
        let answer = connection.ask(&request);
        match answer.status {
            429 => {
                assert!(answer.has("rate_limit_exceeded"), "{}", answer.text());
                assert_eq!(answer.header("retry-after"), Some("1"));
                refused += 1;
            }
            status => assert!(matches!(status, 401 | 503), "{}", answer.text()),
        }
        if number % 50 == 0 {
            assert_eq!(first_status(edge, &account.key), 200, "a known key");
        }
    }
    // The other edge looks nothing up, and this one its known key once in thirty seconds.
    let allowed = PER_SECOND * (began.elapsed().as_secs() + 2) + 2;
    let looked_up = look_ups(&world) - before;
    assert!(looked_up <= allowed, "{looked_up} of {allowed} look-ups");
    assert!(refused > 0, "nothing was refused");
    let counted = edge.metric("gateway_rejected_total", &["reason=\"key_lookups\""]);
    assert_eq!(counted, f64::from(refused));
    let mut numbers = 2_000_u64..;
    may_reach_clients(edge, &[401, 503, 529], || {
        let keys = numbers.by_ref().take(20);
        keys.flat_map(|number| Case::of_bytes("KeyLookups", &unknown_key(number), 0))
            .collect()
    });
    wait_until("the budget to fill again", SOON, || {
        asks(edge, &unknown_key(1_000)) == 401
    });
}

#[test]
fn while_the_store_is_away_no_key_counts_as_made_up() {
    const PER_SECOND: u64 = 5;
    let mut world = Edges::with(|plan| plan.limit("unknown_key_lookups_per_second", PER_SECOND));
    let account = world.account();
    let edge = &world.edges[0];
    world.redis.kill();
    for number in 0..10 * PER_SECOND {
        assert_eq!(asks(edge, &unknown_key(number)), 503, "request {number}");
    }
    world.redis.start_again();
    wait_for("the edge to admit again", SOON, || {
        let status = asks(edge, &account.key);
        assert!(matches!(status, 200 | 503), "answered {status}");
        (status == 200).then_some(())
    });
}
