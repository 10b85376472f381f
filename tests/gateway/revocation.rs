//! Tests how soon several edges refuse a revoked key, also if an edge missed the notification; and
//! how much unknown keys cost.

use crate::client::Request;
use crate::h2::resident_kib;
use crate::keys_of_edges::Edges;
use crate::surface::Chat;
use crate::world::{SOON, World, wait_for};
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
        wait_for("an edge to know the key", SOON, || {
            (asks(edge, &key) == 200).then_some(())
        });
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
            wait_for("the key to be refused", SOON, || {
                (asks(edge, &key) == 401).then_some(())
            });
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
    world.close();
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
        wait_for("the key to be refused", SOON, || {
            (asks(edge, &asked) == 401).then_some(())
        });
    }
    world.redis.cli(&["ACL", "SETUSER", "edge", "allchannels"]);
    listen("2");
    let since = Instant::now();
    for edge in &world.edges {
        // This is long before the edge would refresh a cached key.
        wait_for("the key to be refused", Duration::from_secs(10), || {
            (asks(edge, &key) == 401).then_some(())
        });
        assert_eq!(asks(edge, &account.key), 200);
    }
    println!("refused {:?} after both listened again", since.elapsed());
    // Both keys were in the caches. For the key that was looked up, the store's record holds the
    // time of revocation.
    for edge in &world.edges {
        wait_for("the measure", SOON, || {
            (measured(edge).0 >= 1.0).then_some(())
        });
    }
    world.close();
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
    let world = Edges::with(|plan| plan.limit("keepalive_requests", 1_000_000));
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
    world.close();
}
