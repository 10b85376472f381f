//! Clients that announce large bodies and send little of them. They must not take room from other
//! accounts. The gateway refuses an account that cannot pay on the header alone.

use crate::account::Account;
use crate::bystander::{Bystander, REQUESTS, StopOnDrop};
use crate::client::{Connection, Request};
use crate::failure_table::{Case, PATHS, reaches_clients};
use crate::h2::{DATA, END_HEADERS, H2, HEADERS, announcing, block, field};
use crate::surface::{BOTH, Chat, OVERLOADED, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The largest body that the shipped limits allow, in bytes.
const LARGEST: usize = 33_554_432;
/// The number of such bodies for which the shipped `limits.bodies_in_flight_bytes` has room.
const STREAMS: usize = 32;
const PIECE: &[u8] = &[b' '; 1_250];
/// Each stream sends [`PIECE`] in this interval: 10 KB in 8 s.
const INTERVAL: Duration = Duration::from_secs(1);

fn stream_id(index: usize) -> u32 {
    u32::try_from(2 * index + 1).unwrap()
}

/// Announces the largest body on every stream of one connection, then keeps sending a little of
/// each body until `stop`.
fn announce_and_trickle(port: u16, key: &str, stop: &AtomicBool) {
    let mut h2 = H2::open(port);
    for index in 0..STREAMS {
        h2.send(
            HEADERS,
            END_HEADERS,
            stream_id(index),
            &block(&announcing(key, LARGEST)),
        );
        h2.send(DATA, 0, stream_id(index), PIECE);
    }
    h2.0.set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let mut sent_at = std::time::Instant::now();
    let mut frames = [0; 16_384];
    // Bounded, so that a failing test also ends.
    let until = std::time::Instant::now() + 3 * SOON;
    while !stop.load(Ordering::Relaxed) && std::time::Instant::now() < until {
        // The content of answers and window updates does not matter, but unread they would fill the
        // connection.
        let _ = std::io::Read::read(&mut h2.0, &mut frames);
        if sent_at.elapsed() >= INTERVAL {
            sent_at = std::time::Instant::now();
            for index in 0..STREAMS {
                h2.send(DATA, 0, stream_id(index), PIECE);
            }
        }
    }
}

fn bytes_in_flight(world: &World) -> f64 {
    world.metric("gateway_bodies_in_flight_bytes", &[])
}

/// Runs the attack with this key while another account sends 200 requests, none of which the
/// gateway may refuse. `is_on` returns true once the attack has reached its full strength.
fn others_are_served_while(world: &World, key: &str, is_on: impl Fn() -> bool) {
    let bystander = Bystander::new(world);
    let files_before = world.open_files();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| announce_and_trickle(world.edge, key, &stop));
        wait_until("the attack to stand", SOON, &is_on);
        bystander.endures(
            world,
            "large bodies that are announced and do not come",
            |_| (),
        );
        assert!(is_on(), "the attack was over before the others were served");
    });
    wait_for("nothing to be left", SOON, || {
        let left = (
            bytes_in_flight(world),
            world.metric("gateway_open_holds", &[]),
        );
        (left == (0.0, 0.0) && world.open_files() <= files_before + 8).then_some(())
    });
}

#[test]
fn an_account_without_credit_that_announces_large_bodies_is_refused_on_the_header() {
    let world = World::new();
    let poor = world.account_with("poor@example.test", &["--no-trial"]);
    others_are_served_while(&world, &poor.key, || {
        world.metric("gateway_rejected_total", &["insufficient_credits"]) >= STREAMS as f64
    });
    // The vendor received only the other account's requests, from before and during the attack.
    assert_eq!(world.vendor.calls(), 3 * REQUESTS as u64);
}

#[test]
fn an_account_with_credit_that_announces_large_bodies_holds_what_it_sends() {
    let world = World::new();
    let account = world.account_with("large@example.test", &[]);
    others_are_served_while(&world, &account.key, || {
        let (held, announced) = (bytes_in_flight(&world), (STREAMS * LARGEST) as f64);
        assert!(
            held < announced / 100.0,
            "{held} bytes are counted, and a few KB of each body have come"
        );
        held >= (STREAMS * PIECE.len()) as f64
    });
}

/// A gateway with room for 1 MiB of bodies: 262 000 bytes per account, 62 910 per connection.
fn small_room() -> Plan {
    Plan::default()
        .limit("bodies_in_flight_bytes", 1_048_576)
        .limit("body_bytes", 16_384)
}

const BODY: usize = 15_000;

fn large_request(surface: Surface, key: &str) -> Request {
    let mut body = surface.body("input=1 output=1", false, 100).to_string();
    body.push_str(&" ".repeat(BODY - body.len()));
    Request::post(surface.path(), body).bearer(key)
}

/// Opens connections; each sends a body without its last byte.
fn unfinished(world: &World, account: &Account, count: usize) -> Vec<(Connection, Surface)> {
    let open = |index: usize| {
        let surface = BOTH[index % BOTH.len()];
        let request = large_request(surface, &account.key);
        let mut connection = world.connect();
        connection.send(&request.head());
        connection.send(&request.framed_body()[..BODY - 1]);
        (connection, surface)
    };
    let open: Vec<_> = (0..count).map(open).collect();
    wait_until("the bodies", SOON, || {
        bytes_in_flight(world) == (count * (BODY - 1)) as f64
    });
    open
}

#[test]
fn an_account_holds_a_quarter_of_the_room_for_bodies() {
    let world = small_room().start();
    let (greedy, other) = (world.account(), world.funded(100_000_000));
    let held = unfinished(&world, &greedy, 262_000 / BODY);
    for surface in BOTH {
        // With a content length, the gateway refuses the request on the header. Chunked, it refuses
        // the request once the body has arrived.
        let request = large_request(surface, &greedy.key);
        for (bytes, chunk) in [
            (request.head(), 0),
            (request.clone().chunked(5_000).bytes(), 5_000),
        ] {
            let mut connection = world.connect();
            connection.send(&bytes);
            let answer = connection.answer();
            let limited = (429, "rate_limit_error");
            let error = surface.fails(&answer, limited, limited, Some("rate_limit_exceeded"));
            assert!(
                error["message"]
                    .as_str()
                    .unwrap()
                    .contains("of this account already have"),
                "{chunk}: {error}"
            );
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        world.expect(200, &large_request(surface, &other.key));
    }
    world.has_metric("gateway_rejected_total", &["\"account_bodies\""], 4.0);
    let refused = Case::of_bytes("AccountBodies", &greedy.key, BODY);
    reaches_clients(&world, &refused);
    let chunked = refused.map(|case| case.with_header("transfer-encoding: chunked"));
    reaches_clients(&world, &chunked);
    let count = held.len();
    for (mut connection, surface) in held {
        connection.send(b" ");
        let answer = connection.answer();
        assert_eq!(answer.status, 200, "{surface:?}: {}", answer.text());
    }
    wait_until("the bytes to be given back", SOON, || {
        bytes_in_flight(&world) == 0.0
    });
    world.expect(200, &large_request(Chat, &greedy.key));
    world.ended(&greedy, count + 1);
    world.ended(&other, 2);
}

#[test]
fn control_with_the_whole_room_for_one_account_it_takes_the_room_of_others() {
    let world = small_room().limit("account_bodies_percent", 100).start();
    let (greedy, other) = (world.account(), world.funded(100_000_000));
    let held = unfinished(&world, &greedy, 1_048_576 / BODY);
    for surface in BOTH {
        let answer = world.ask(&large_request(surface, &other.key));
        surface.fails_as(&answer, OVERLOADED);
        assert!(answer.header("retry-after").is_some());
    }
    world.has_metric("gateway_rejected_total", &["\"bodies_full\""], 2.0);
    reaches_clients(&world, &Case::of_bytes("BodiesFull", &other.key, BODY));
    drop(held);
    wait_until("the bytes to be given back", SOON, || {
        bytes_in_flight(&world) == 0.0
    });
    world.expect(200, &large_request(Chat, &other.key));
}

#[test]
fn a_connection_holds_a_sixteenth_of_the_room_for_bodies() {
    let world = small_room().start();
    let (greedy, other) = (world.account(), world.funded(100_000_000));
    let mut h2 = H2::open(world.edge);
    for index in 0..4 {
        h2.send(
            HEADERS,
            END_HEADERS,
            stream_id(index),
            &block(&announcing(&greedy.key, BODY)),
        );
        h2.send(DATA, 0, stream_id(index), &vec![b' '; BODY - 1]);
    }
    wait_until("the bodies", SOON, || {
        bytes_in_flight(&world) == (4 * (BODY - 1)) as f64
    });
    // The row "ConnectionBodies" of the failure table.
    let kinds = PATHS.map(|path| [(path, false), (path, true)]);
    for ((path, waits), index) in kinds.into_iter().flatten().zip(4..) {
        let mut fields = announcing(&greedy.key, BODY);
        fields.retain(|(name, _)| name != b":path");
        fields.insert(0, field(":path", path));
        fields.extend(waits.then(|| field("expect", "100-continue")));
        h2.send(HEADERS, END_HEADERS, stream_id(index), &block(&fields));
        let outcome = h2.outcome(stream_id(index));
        assert_eq!(
            outcome,
            crate::h2::Outcome::Refused,
            "{path}, waits: {waits}"
        );
    }
    let refused = world.metric("gateway_rejected_total", &["\"connection_bodies\""]);
    assert_eq!(refused, 6.0);
    // The account may send the same number of bytes over another connection.
    world.expect(200, &large_request(Chat, &greedy.key));
    world.expect(200, &large_request(Chat, &other.key));
    drop(h2);
    wait_until("the bytes to be given back", SOON, || {
        bytes_in_flight(&world) == 0.0
    });
}
