//! One `Idempotency-Key` at two edges: the client may use either edge and gets one answer and one
//! debit, even if a process dies in between.
//!
//! `idempotency.rs` tests a key at one edge.

use crate::account::{Account, micro};
use crate::client::{Answer, Connection, End, Request};
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use std::sync::atomic::{AtomicUsize, Ordering};
use test_world::redis::Server;
use test_world::wait_until;

/// `total_seconds` of these tests. If an edge does not come back, its key counts as running for
/// this time plus one minute.
const TOTAL_SECONDS: u64 = 2;

/// Two edges, a sidecar and a Redis, each a process. They end in this order.
pub struct Edges {
    pub edges: [World; 2],
    pub sidecar: World,
    pub redis: Server,
}

impl Edges {
    pub fn new() -> Self {
        Self::with(|plan| plan)
    }

    pub fn with(limits: impl Fn(Plan) -> Plan) -> Self {
        Self::start(Server::start(), "", limits, |plan| plan)
    }

    /// Edges and a sidecar whose configs have the same change.
    pub fn everywhere(change: impl Fn(Plan) -> Plan) -> Self {
        Self::start(Server::start(), "", &change, &change)
    }

    /// Edges with their own Redis user, which has all permissions at first.
    pub fn as_user(name: &str) -> Self {
        let redis = Server::start();
        let password = format!(">{name}");
        assert_eq!(
            redis.cli(&[
                "ACL",
                "SETUSER",
                name,
                "on",
                &password,
                "~*",
                "+@all",
                "allchannels"
            ]),
            "OK"
        );
        Self::start(redis, &format!("{name}:{name}@"), |plan| plan, |plan| plan)
    }

    fn start(
        redis: Server,
        user: &str,
        limits: impl Fn(Plan) -> Plan,
        of_sidecar: impl Fn(Plan) -> Plan,
    ) -> Self {
        let plan = |role, user| {
            // On a busy machine, a store that is well needs longer than the shipped time.
            let store = format!(
                "store: {{kind: redis, url: \"redis://{user}127.0.0.1:{}\", reply_timeout_ms: 1000}}",
                redis.port
            );
            Plan::default()
                .role(role)
                .edit("store: {kind: embedded}", &store)
        };
        let sidecar = of_sidecar(plan("sidecar", "")).start();
        let edge = || {
            limits(
                plan("edge", user)
                    .sidecar(sidecar.sidecar)
                    .endpoints(&[sidecar.vendor.port]),
            )
            .start()
        };
        let edges = [edge(), edge()];
        Self {
            redis,
            sidecar,
            edges,
        }
    }

    pub fn account(&self) -> Account {
        let account = self.sidecar.account();
        for edge in &self.edges {
            let credits = Request::get("/v1/credits").bearer(&account.key);
            wait_until("an edge to know the key", SOON, || {
                edge.ask(&credits).status == 200
            });
        }
        account
    }

    /// Waits until `ended` requests of the account have ended. Returns how many of them ended with
    /// a debit.
    #[track_caller]
    fn debits(&self, account: &Account, ended: usize) -> usize {
        let endings = wait_for("the requests to end", SOON, || {
            Some(self.sidecar.endings(account)).filter(|endings| endings.len() >= ended)
        });
        assert_eq!(endings.len(), ended, "{endings:?}");
        endings
            .iter()
            .filter(|ending| micro(&ending["credits"]) > 0)
            .count()
    }

    fn begin(&self, edge: usize, request: &Request) -> Connection {
        let before = self.sidecar.vendor.calls();
        let mut connection = self.edges[edge].connect();
        assert!(connection.send(&request.bytes()));
        wait_until("the vendor to be called", SOON, || {
            self.sidecar.vendor.calls() > before
        });
        connection
    }

    /// Repeats a request that its vendor holds until its key is no longer running, and releases it
    /// once the vendor is called.
    fn once_released(&self, edge: usize, request: &Request) -> Answer {
        let vendor = &self.sidecar.vendor;
        let before = vendor.calls();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the vendor to be called", SOON, || vendor.calls() > before);
                vendor.release();
            });
            once_decided(&self.edges[edge], request)
        })
    }
}

fn keyed(surface: Surface, account: &Account, key: &str, marker: &str, stream: bool) -> Request {
    surface
        .request(&account.key, &surface.body(marker, stream, 4_000))
        .header("idempotency-key", key)
}

fn is_replayed(answer: &Answer) -> bool {
    answer.status == 200
        && answer.header("x-gateway-replayed") == Some("true")
        && answer.end() == Some(End::Whole)
}

/// Repeats the request until its key is no longer running.
fn once_decided(edge: &World, request: &Request) -> Answer {
    wait_for("the key to be decided", SOON, || {
        let answer = edge.ask(request);
        (!answer.has("idempotency_running")).then_some(answer)
    })
}

#[test]
fn what_one_edge_answers_the_other_gives_again_to_the_byte() {
    let world = Edges::new();
    let account = world.account();
    let mut asked = 0;
    for surface in BOTH {
        for stream in [false, true] {
            for (first, second) in [(0, 1), (1, 0)] {
                let key = format!("{surface:?}-{stream}-{first}");
                let request = keyed(
                    surface,
                    &account,
                    &key,
                    "hold=headers input=100 output=20",
                    stream,
                );
                let mut running = world.begin(first, &request);
                let meanwhile = world.edges[second].ask(&request);
                assert_eq!(
                    (meanwhile.status, meanwhile.header("retry-after")),
                    (409, Some("1"))
                );
                assert!(meanwhile.has("idempotency_running"), "{}", meanwhile.text());
                let other = keyed(surface, &account, &key, "input=1", stream);
                world.edges[second].expect(422, &other);
                world.sidecar.vendor.release();
                let answer = running.answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
                for edge in [second, first] {
                    let again = world.edges[edge].ask(&request);
                    assert!(is_replayed(&again), "{}", again.text());
                    assert_eq!(
                        (again.body.clone(), again.request_id()),
                        (answer.body.clone(), answer.request_id())
                    );
                }
                asked += 1;
                assert_eq!(world.sidecar.vendor.calls(), asked);
            }
        }
    }
    assert_eq!(world.debits(&account, asked as usize), asked as usize);
}

#[test]
fn forty_at_both_edges_at_once_are_one_call_and_one_debit() {
    let world = Edges::new();
    let account = world.account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let request = keyed(
            surface,
            &account,
            "key",
            "delay_ms=200 input=100 output=20",
            index == 1,
        );
        let answers: Vec<_> = std::thread::scope(|scope| {
            let edges = world.edges.iter().cycle().take(40);
            let asked: Vec<_> = edges
                .map(|edge| scope.spawn(|| once_decided(edge, &request)))
                .collect();
            asked
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            answers
                .iter()
                .all(|answer| answer.status == 200 && answer.body == answers[0].body)
        );
        assert_eq!(
            answers.iter().filter(|answer| !is_replayed(answer)).count(),
            1
        );
        assert_eq!(world.sidecar.vendor.calls() as usize, index + 1);
        assert_eq!(world.debits(&account, index + 1), index + 1);
    }
}

#[test]
fn a_key_whose_edge_was_killed_is_held_for_it_and_decided_when_it_is_back() {
    let mut world = Edges::new();
    let account = world.account();
    let marker = "hold=headers input=100 output=20";
    let running = keyed(Chat, &account, "running", marker, true);
    let answered = keyed(Chat, &account, "answered", "input=100 output=20", false);
    let first = world.edges[0].ask(&answered);
    assert_eq!(first.status, 200);
    let connection = world.begin(0, &running);
    world.edges[0].kill();
    drop(connection);
    let other = &world.edges[1];
    assert!(
        other.ask(&running).has("idempotency_running"),
        "who knows what it did"
    );
    let again = other.ask(&answered);
    assert!(
        is_replayed(&again) && again.body == first.body,
        "{}",
        again.text()
    );
    world.edges[0].start_gateway();
    let answer = world.once_released(1, &running);
    assert!(
        answer.status == 200 && !is_replayed(&answer),
        "it was cut, so it is asked anew: {}",
        answer.text()
    );
    assert!(is_replayed(&world.edges[0].ask(&running)));
    // One request was answered, one was cut off, and one was answered in its place.
    assert_eq!(world.debits(&account, 3), 2);
}

#[test]
fn an_edge_killed_between_the_debit_and_the_keeping_spends_the_key_at_both() {
    let mut world = Edges::new();
    let account = world.account();
    world.edges[0].kill();
    world.edges[0].start_failing(Some("after_journal_end"));
    let request = keyed(Chat, &account, "key", "input=100 output=20", false);
    let mut connection = world.edges[0].connect();
    connection.send(&request.bytes());
    world.edges[0].wait_killed();
    assert!(world.edges[1].ask(&request).has("idempotency_running"));
    world.edges[0].start_gateway();
    for edge in &world.edges {
        let answer = once_decided(edge, &request);
        assert!(
            answer.status == 409 && answer.has("idempotency_result_unavailable"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(
        (world.debits(&account, 1), world.sidecar.vendor.calls()),
        (1, 1)
    );
}

#[test]
fn an_edge_that_never_comes_back_leaves_its_key_spent_and_not_free() {
    // Nobody else knows the contents of a killed edge's journal, so no edge may answer and debit
    // its key a second time.
    let mut world = Edges::with(|plan| plan.limit("total_seconds", TOTAL_SECONDS));
    let account = world.account();
    let request = keyed(
        Chat,
        &account,
        "key",
        "hold=headers input=100 output=20",
        false,
    );
    let connection = world.begin(0, &request);
    world.edges[0].kill();
    drop(connection);
    assert!(world.edges[1].ask(&request).has("idempotency_running"));
    // This skips the wait of more than a minute.
    let names = world.redis.cli(&["--scan", "--pattern", "gw:*:i:*"]);
    let names: Vec<_> = names.lines().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    world.redis.cli(&["HSET", names[0], "until", "1"]);
    let calls = world.sidecar.vendor.calls();
    let answer = world.edges[1].ask(&request);
    assert!(
        answer.status == 409 && answer.has("idempotency_result_unavailable"),
        "{}",
        answer.text()
    );
    assert_eq!(world.sidecar.vendor.calls(), calls);
    // The edge does come back, and reports that nothing was debited.
    world.edges[0].start_gateway();
    assert_eq!(world.once_released(1, &request).status, 200);
    assert_eq!(world.debits(&account, 2), 1);
}

#[test]
fn a_store_that_forgets_everything_while_a_request_runs_learns_its_answer_anew() {
    let world = Edges::new();
    let account = world.account();
    for (index, stream) in [false, true].into_iter().enumerate() {
        let marker = "hold=headers input=100 output=20";
        let request = keyed(Chat, &account, &format!("key-{stream}"), marker, stream);
        let balance = Request::get("/v1/credits").bearer(&account.key);
        wait_until("the account to be in the store", SOON, || {
            world.edges[0].ask(&balance).status == 200
        });
        let mut running = world.begin(0, &request);
        world.redis.cli(&["FLUSHALL"]);
        world.sidecar.vendor.release();
        let answer = running.answer();
        assert!(
            answer.status == 200 && answer.end() == Some(End::Whole),
            "{}",
            answer.text()
        );
        for edge in &world.edges {
            // The edge where the request ended never debits it again.
            let again = wait_for("the account to be restored", SOON, || {
                Some(edge.ask(&request)).filter(|answer| !matches!(answer.status, 401 | 503))
            });
            assert!(
                is_replayed(&again) && again.body == answer.body,
                "{}",
                again.text()
            );
        }
        assert_eq!(world.sidecar.vendor.calls() as usize, index + 1);
        assert_eq!(world.debits(&account, index + 1), index + 1);
    }
}

#[test]
fn without_the_store_an_answer_ends_whole_and_its_key_is_spent_when_it_is_back() {
    let mut world = Edges::new();
    let account = world.account();
    let requests = [false, true].map(|stream| {
        keyed(
            Chat,
            &account,
            &format!("key-{stream}"),
            "hold=headers events=4 input=100 output=20",
            stream,
        )
    });
    let running: Vec<_> = requests
        .iter()
        .enumerate()
        .map(|(edge, request)| world.begin(edge, request))
        .collect();
    world.redis.kill();
    world.sidecar.vendor.release();
    for (mut connection, edge) in running.into_iter().zip(&world.edges) {
        let answer = connection.answer();
        assert!(
            answer.status == 200 && answer.end() == Some(End::Whole),
            "{}",
            answer.text()
        );
        let refused = edge.ask(&requests[0]);
        assert_eq!(
            refused.status, 503,
            "nothing is answered under a key that nobody can look up"
        );
    }
    world.redis.start_again();
    for edge in &world.edges {
        for request in &requests {
            let answer = wait_for("the key to be decided", SOON, || {
                let answer = edge.ask(request);
                (answer.status != 503 && !answer.has("idempotency_running")).then_some(answer)
            });
            assert!(
                answer.has("idempotency_result_unavailable"),
                "{}",
                answer.text()
            );
        }
    }
    assert_eq!(
        (world.sidecar.vendor.calls(), world.debits(&account, 2)),
        (2, 2)
    );
}

#[test]
fn answers_take_no_more_of_the_store_than_they_may() {
    const ACCOUNT_BYTES: u64 = 16_384;
    let world = Edges::with(|plan| plan.limit("idempotency_shared_account_bytes", ACCOUNT_BYTES));
    let account = world.account();
    let request = |number: usize| {
        keyed(
            Chat,
            &account,
            &format!("key-{number}"),
            "bytes=3000 input=100 output=20",
            false,
        )
    };
    let asked: Vec<_> = (0..12).map(request).collect();
    for (number, request) in asked.iter().enumerate() {
        assert_eq!(world.edges[number % 2].ask(request).status, 200);
    }
    let kept: Vec<bool> = asked
        .iter()
        .map(|request| {
            let answer = world.edges[0].ask(request);
            assert!(
                is_replayed(&answer) || answer.has("idempotency_result_unavailable"),
                "{}",
                answer.text()
            );
            is_replayed(&answer)
        })
        .collect();
    let first = kept
        .iter()
        .position(|kept| *kept)
        .expect("an answer is kept");
    assert!(
        (7..=9).contains(&first) && kept[first..].iter().all(|kept| *kept),
        "the oldest went: {kept:?}"
    );
    let counted = world.redis.cli(&["--scan", "--pattern", "gw:*:iu"]);
    let counted = world.redis.cli(&["HGETALL", &counted]);
    let bytes: Vec<u64> = counted
        .lines()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(
        bytes.len() == 2
            && bytes
                .iter()
                .all(|bytes| (3_000..=ACCOUNT_BYTES).contains(bytes)),
        "{counted}"
    );
    assert_eq!(
        (world.sidecar.vendor.calls(), world.debits(&account, 12)),
        (12, 12)
    );
}

#[test]
fn keys_of_an_edge_killed_under_load_are_debited_once_wherever_they_are_asked_again() {
    let mut world = Edges::new();
    let account = world.sidecar.funded(1_000_000_000_000);
    for edge in &world.edges {
        let credits = Request::get("/v1/credits").bearer(&account.key);
        wait_until("an edge to know the key", SOON, || {
            edge.ask(&credits).status == 200
        });
    }
    const LEAST_DECIDED: usize = 100;
    let kills = if crate::is_long() { 60 } else { 4 };
    let ports = [world.edges[0].edge, world.edges[1].edge];
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (answered, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (answered, lost) = (&answered, &lost);
        for client in 0_usize..6 {
            let (account, stop) = (&account, &stop);
            scope.spawn(move || {
                for round in 0_usize.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("{client}-{round}");
                    let request = keyed(
                        Chat,
                        account,
                        &key,
                        "events=3 gap_us=700 input=10 output=5",
                        client.is_multiple_of(2),
                    );
                    let count = match ask_anywhere(ports, &request) {
                        true => answered,
                        false => lost,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let decided = || answered.load(Ordering::Relaxed) + lost.load(Ordering::Relaxed);
        for kill in 0..kills {
            // At another moment of the requests each time, and only after some of them.
            let enough = decided() + LEAST_DECIDED / kills + kill * 7_919 % 20;
            wait_until("more keys to be decided", SOON, || decided() >= enough);
            let edge = usize::from(kill % 2 == 1);
            world.edges[edge].kill();
            world.edges[edge].start_gateway();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (answered, lost) = (answered.into_inner(), lost.into_inner());
    world.sidecar.vendor.wait_idle();
    let debited = wait_for("all to be in the ledger", SOON, || {
        let endings = world.sidecar.endings(&account);
        let debited = endings
            .iter()
            .filter(|ending| micro(&ending["credits"]) > 0)
            .count();
        (debited == answered + lost).then_some(debited)
    });
    println!(
        "{kills} kills: {answered} keys answered, {lost} spent with their answers lost, {debited} debits"
    );
    assert!(answered > 50, "too few answers to tell");
}

/// Repeats the request under one key, alternating between the edges, until it gets an answer or
/// learns that the answer is lost.
fn ask_anywhere(ports: [u16; 2], request: &Request) -> bool {
    let mut turn = 0;
    let answer = wait_for("an answer or its loss", SOON, || {
        turn += 1;
        let answer = crate::client::try_ask(ports[turn % 2], request)?;
        let whole = answer.end() == Some(End::Whole) && !answer.has("\"error\"");
        (answer.status == 200 && whole || answer.has("idempotency_result_unavailable"))
            .then_some(answer)
    });
    answer.status == 200
}
