//! `Idempotency-Key`: a key has one answer and one debit, however often the client repeats the
//! request, disconnects or fails, and even if the gateway dies in between.
//!
//! The gateway stores the answer microseconds after the debit, and a kill from outside cannot
//! reliably hit that moment. `forget_the_answer` puts the store into the state that such a kill
//! leaves. The tests with kills under load cover the other moments.

use crate::account::{Account, Standing, micro};
use crate::client::{self, Answer, Connection, End, Request};
use crate::surface::{BOTH, Chat, INVALID, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use test_world::wait_until;

const USUAL: &str = "input=100 output=20 text=\"one two three four\" events=4";

/// A route through the gateway: a surface, a vendor, streamed or not.
#[derive(Clone, Copy, Debug)]
struct Way {
    surface: Surface,
    /// The surface whose protocol the model's vendor uses.
    vendor: Surface,
    stream: bool,
}

fn ways() -> Vec<Way> {
    let pairs = BOTH
        .into_iter()
        .flat_map(|surface| BOTH.map(|vendor| (surface, vendor)));
    pairs
        .flat_map(|(surface, vendor)| {
            [false, true].map(|stream| Way {
                surface,
                vendor,
                stream,
            })
        })
        .collect()
}

impl Way {
    /// A route to the surface's own vendor.
    fn own(surface: Surface, stream: bool) -> Self {
        Self {
            surface,
            vendor: surface,
            stream,
        }
    }

    fn body(self, marker: &str) -> Value {
        let mut body = self.surface.body(marker, self.stream, 4_000);
        body["model"] = self.vendor.model().into();
        body
    }

    fn plain(self, account: &Account, marker: &str) -> Request {
        self.surface.request(&account.key, &self.body(marker))
    }

    fn keyed(self, account: &Account, key: &str, marker: &str) -> Request {
        self.plain(account, marker).header("idempotency-key", key)
    }
}

fn is_replayed(answer: &Answer) -> bool {
    answer.header("x-gateway-replayed") == Some("true")
}

/// The headers without the framing, the connection headers, the times and the replay mark.
fn lasting(answer: &Answer) -> Vec<(String, String)> {
    let framing = [
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
    ];
    let passing = [
        &framing[..],
        &["date", "server-timing", "x-gateway-replayed"],
    ]
    .concat();
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| !passing.contains(&name.as_str()));
    headers.sort();
    headers
}

/// Asserts that the second answer is a replay of the first.
#[track_caller]
fn same(first: &Answer, second: &Answer) {
    assert_eq!(
        (first.status, second.status),
        (200, 200),
        "{}{}",
        first.text(),
        second.text()
    );
    assert_eq!(
        (is_replayed(first), is_replayed(second)),
        (false, true),
        "{second:?}"
    );
    assert_eq!(second.end(), Some(End::Whole));
    assert_eq!(first.request_id(), second.request_id());
    assert_eq!(lasting(first), lasting(second));
    assert_eq!(first.text(), second.text());
}

#[track_caller]
fn is_running(surface: Surface, answer: &Answer) {
    surface.fails(
        answer,
        (409, INVALID),
        (409, "conflict_error"),
        Some("idempotency_running"),
    );
    assert_eq!(
        (
            answer.header("retry-after"),
            answer.header("x-should-retry")
        ),
        (Some("1"), None)
    );
}

#[track_caller]
fn is_unavailable(surface: Surface, answer: &Answer) {
    let code = "idempotency_result_unavailable";
    surface.fails(answer, (409, INVALID), (409, "conflict_error"), Some(code));
    assert_eq!(
        (
            answer.header("retry-after"),
            answer.header("x-should-retry")
        ),
        (None, Some("false"))
    );
}

#[track_caller]
fn conflicts(surface: Surface, answer: &Answer) {
    surface.fails(
        answer,
        (422, INVALID),
        (422, INVALID),
        Some("idempotency_conflict"),
    );
}

/// Repeats the request until its key is no longer running.
#[track_caller]
fn once_decided(world: &World, request: &Request) -> Answer {
    wait_for("the key to be decided", SOON, || {
        let answer = world.ask(request);
        let running = answer.status == 409 && answer.has("idempotency_running");
        (!running).then_some(answer)
    })
}

/// The account's credits once nothing is held.
fn at_rest(world: &World, account: &Account) -> Standing {
    wait_for("nothing to be held", SOON, || {
        Some(world.standing(account)).filter(|standing| standing.held == 0)
    })
}

/// Waits until the shared store has recorded every ending. A client has its answer some
/// milliseconds earlier.
fn all_is_told(world: &World) {
    world.wait_metric("gateway_journal_pending", &[], 0.0);
}

/// Begins a request and waits until the vendor has received it.
fn begin(world: &World, request: &Request) -> Connection {
    let before = world.vendor.calls();
    let mut connection = world.connect();
    assert!(connection.send(&request.bytes()));
    wait_until("the vendor to be called", SOON, || {
        world.vendor.calls() > before
    });
    connection
}

/// Runs each test twice: with the file store of one process, and with the store that edges share.
macro_rules! wherever_it_is_kept {
    ($($name:ident,)*) => {
        mod in_a_file {
            use crate::world::Plan;
            $(#[test] fn $name() { super::$name(Plan::default()) })*
        }
        mod in_a_shared_store {
            use crate::world::Plan;
            $(#[test] fn $name() { super::$name(Plan::default().shared()) })*
        }
    };
}

wherever_it_is_kept! {
    the_answer_is_given_again_on_every_way_and_debited_once,
    a_running_key_is_409_and_another_body_is_422_in_its_own_scope_only,
    twenty_at_once_are_one_call_and_one_debit,
    a_key_is_one_header_of_visible_ascii_and_only_answers_of_models_have_one,
    what_is_refused_before_the_hold_leaves_its_key_free_and_an_answer_costs_no_limit,
    a_failure_of_the_vendor_frees_the_key,
    a_client_that_leaves_finds_the_whole_answer_later,
    the_requests_own_deadline_ends_what_is_read_for_nobody_and_what_was_debited_is_not_again,
    an_answer_is_kept_up_to_the_cap_to_the_byte,
    a_kill_while_it_runs_frees_the_key,
    a_restart_forgets_nothing,
    kills_under_load_never_debit_a_key_twice,
}

fn the_answer_is_given_again_on_every_way_and_debited_once(plan: Plan) {
    let (world, account) = plan.with_account();
    let (_, other_key) = world.key(&account.id, "another key of the same account");
    for (index, way) in ways().into_iter().enumerate() {
        let request = way.keyed(&account, &format!("key-{index}"), USUAL);
        let first = world.ask(&request);
        let mut connection = world.connect();
        for _ in 0..2 {
            same(&first, &connection.ask(&request));
        }
        let by_other_key = way.surface.request(&other_key, &way.body(USUAL));
        same(
            &first,
            &world.ask(&by_other_key.header("Idempotency-Key", &format!("key-{index}"))),
        );
        assert_eq!(
            first.header("x-gateway-credits").is_some(),
            !way.stream,
            "{way:?}"
        );
        assert_eq!(world.vendor.calls() as usize, index + 1, "{way:?}");
        let ending = world.ended(&account, index + 1);
        assert_eq!(ending["request_id"], first.request_id());
        assert_eq!(
            micro(&world.receipt(&account, &first.request_id())["credits"]),
            way.vendor.cost(100, 20),
            "{way:?}"
        );
    }
}

#[test]
fn without_a_key_nothing_is_deduplicated() {
    let (world, account) = World::with_account();
    for (index, way) in ways().into_iter().enumerate() {
        let request = way.plain(&account, USUAL);
        let ids = [world.ask(&request), world.ask(&request)].map(|answer| {
            assert_eq!(
                (answer.status, is_replayed(&answer)),
                (200, false),
                "{}",
                answer.text()
            );
            answer.request_id()
        });
        assert_ne!(ids[0], ids[1]);
        world.ended(&account, 2 * index + 2);
        assert_eq!(world.vendor.calls() as usize, 2 * index + 2);
    }
}

fn a_running_key_is_409_and_another_body_is_422_in_its_own_scope_only(plan: Plan) {
    let (world, account) = plan.with_account();
    let stranger = world.account_with("stranger@example.test", &[]);
    for (index, way) in ways().into_iter().enumerate() {
        let key = format!("key-{index}");
        let marker = format!("hold=headers {USUAL}");
        let request = way.keyed(&account, &key, &marker);
        let other = way.keyed(&account, &key, USUAL);
        let mut connection = begin(&world, &request);
        is_running(way.surface, &world.ask(&request));
        conflicts(way.surface, &world.ask(&other));
        world.vendor.release();
        let first = connection.answer();
        same(&first, &world.ask(&request));
        conflicts(way.surface, &world.ask(&other));
        let elsewhere = world.ask(&way.keyed(&stranger, &key, USUAL));
        assert_eq!(
            (elsewhere.status, is_replayed(&elsewhere)),
            (200, false),
            "another account: {way:?}"
        );
    }
    // Both surfaces have used the same key, and neither gets the other's answer.
    let [chat, messages] =
        BOTH.map(|surface| world.ask(&Way::own(surface, false).keyed(&account, "shared", USUAL)));
    assert!(
        chat.status == 200 && messages.status == 200 && chat.request_id() != messages.request_id()
    );
    assert!(!is_replayed(&messages));
}

fn twenty_at_once_are_one_call_and_one_debit(plan: Plan) {
    let (world, account) = plan.with_account();
    for (index, way) in ways().into_iter().enumerate() {
        let request = way.keyed(
            &account,
            &format!("key-{index}"),
            &format!("delay_ms=200 {USUAL}"),
        );
        let fresh = AtomicUsize::new(0);
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let ask = || {
                let answer = once_decided(&world, &request);
                assert_eq!(answer.status, 200, "{}", answer.text());
                fresh.fetch_add(usize::from(!is_replayed(&answer)), Ordering::Relaxed);
                answer
            };
            let threads: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(fresh.into_inner(), 1, "{way:?}");
        assert!(
            answers.iter().all(|answer| answer.body == answers[0].body),
            "{way:?}"
        );
        assert_eq!(world.vendor.calls() as usize, index + 1, "{way:?}");
        world.ended(&account, index + 1);
    }
}

fn a_key_is_one_header_of_visible_ascii_and_only_answers_of_models_have_one(plan: Plan) {
    let (world, account) = plan.with_account();
    let long = "k".repeat(255);
    for surface in BOTH {
        let way = Way::own(surface, false);
        for bad in ["", "a b", "\u{fc}", &format!("{long}k")] {
            let answer = world.ask(&way.keyed(&account, bad, USUAL));
            surface.fails(&answer, (400, INVALID), (400, INVALID), None);
        }
        let answer = world.ask(
            &way.keyed(&account, "one", USUAL)
                .header("idempotency-key", "two"),
        );
        surface.fails(&answer, (400, INVALID), (400, INVALID), None);
        world.expect(200, &way.keyed(&account, &long, USUAL));
        // The gateway rejects an invalid body or an unknown model before it checks the key.
        let broken = Request::post(surface.path(), "{")
            .bearer(&account.key)
            .header("idempotency-key", "a b");
        assert!(!world.ask(&broken).has("Idempotency-Key"));
        let mut body = way.body(USUAL);
        body["model"] = "no-such-model".into();
        let answer = world.ask(
            &surface
                .request(&account.key, &body)
                .header("idempotency-key", "a b"),
        );
        assert_eq!(answer.status, 404);
    }
    for key in ["", "twice", "twice"] {
        let text = format!("{key} or not");
        let body =
            json!({"model": Messages.model(), "messages": [{"role": "user", "content": text}]});
        let count =
            Request::post("/v1/messages/count_tokens", body.to_string()).bearer(&account.key);
        for request in [count, Request::get("/v1/models").bearer(&account.key)] {
            let answer = world.ask(&request.header("idempotency-key", key));
            assert_eq!(
                (answer.status, is_replayed(&answer)),
                (200, false),
                "{}",
                answer.text()
            );
        }
    }
}

fn what_is_refused_before_the_hold_leaves_its_key_free_and_an_answer_costs_no_limit(plan: Plan) {
    let world = plan.limit("open_requests_per_account", 1).start();
    // Enough credits for the request's header, but not for any hold.
    let poor = world.funded(10_000);
    for surface in BOTH {
        let way = Way::own(surface, false);
        let request = way.keyed(&poor, "poor", USUAL);
        for _ in 0..2 {
            world.expect(402, &request);
        }
        assert_eq!(
            world
                .ask(&way.keyed(&poor, "poor", "input=1 output=1"))
                .status,
            402,
            "nor is its body remembered"
        );
        let mut bad = way.body(USUAL);
        bad[surface.limit_field()] = (-1).into();
        let bad = surface
            .request(&poor.key, &bad)
            .header("idempotency-key", "bad");
        assert_eq!([world.ask(&bad).status, world.ask(&bad).status], [400, 400]);
    }
    world.json(&["account", "grant", &poor.id, "100", "--ref", "now"]);
    wait_until("the grant", SOON, || world.standing(&poor).balance > 10_000);
    for surface in BOTH {
        let way = Way::own(surface, false);
        let request = way.keyed(&poor, "poor", USUAL);
        let first = world.ask(&request);
        assert_eq!(
            (first.status, is_replayed(&first)),
            (200, false),
            "{}",
            first.text()
        );
        all_is_told(&world);
        world.expect(200, &way.keyed(&poor, "bad", USUAL));
        all_is_told(&world);
        let mut open = begin(&world, &way.plain(&poor, "hold=headers"));
        world.expect(429, &way.keyed(&poor, "more", USUAL));
        same(&first, &world.ask(&request));
        conflicts(surface, &world.ask(&way.keyed(&poor, "poor", "input=1")));
        world.vendor.release();
        assert_eq!(open.answer().status, 200);
        all_is_told(&world);
        assert_eq!(
            once_decided(&world, &way.keyed(&poor, "more", USUAL)).status,
            200,
            "429 left the key free"
        );
        all_is_told(&world);
    }
}

fn a_failure_of_the_vendor_frees_the_key(plan: Plan) {
    let (world, account) = plan.with_account();
    for (index, way) in ways().into_iter().enumerate() {
        let mid = if way.stream {
            "cut=3 events=6"
        } else {
            "cut=0"
        };
        for (number, marker) in [
            "status=500",
            "status=400",
            "status=429",
            "cut=headers",
            "garbage=json",
            mid,
        ]
        .iter()
        .enumerate()
        {
            if way.stream && *marker == "garbage=json" {
                continue;
            }
            let request = way.keyed(&account, &format!("key-{index}-{number}"), marker);
            let before = world.vendor.calls();
            let first = world.ask(&request);
            assert!(
                first.status != 200 || first.has(way.surface.error_frame()),
                "{way:?} {marker}: {}",
                first.text()
            );
            let between = world.vendor.calls();
            let second = once_decided(&world, &request);
            assert!(
                !is_replayed(&second) && second.status != 409,
                "{way:?} {marker}: {}",
                second.text()
            );
            assert_ne!(first.request_id(), second.request_id());
            assert!(
                between > before && world.vendor.calls() > between,
                "{way:?} {marker}: the vendor was asked again"
            );
            let other = once_decided(
                &world,
                &way.keyed(&account, &format!("key-{index}-{number}"), USUAL),
            );
            assert_eq!(
                (other.status, is_replayed(&other)),
                (200, false),
                "{way:?} {marker}: {}",
                other.text()
            );
        }
    }
}

fn a_client_that_leaves_finds_the_whole_answer_later(plan: Plan) {
    let (world, account) = plan
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1)
        .with_account();
    let mut keys = Vec::new();
    for (index, way) in ways().into_iter().enumerate() {
        let marker = if way.stream {
            "events=6 hold=5 input=100 output=20"
        } else {
            "hold=headers input=100 output=20"
        };
        let request = way.keyed(&account, &format!("key-{index}"), marker);
        let mut connection = begin(&world, &request);
        if way.stream {
            let mut answer = connection.begin();
            assert!(connection.more(&mut answer));
        }
        drop(connection);
        is_running(way.surface, &world.ask(&request));
        keys.push((way, request));
    }
    // Longer than a stream without a key is read on, and than the gateway needs to notice that a
    // client left.
    std::thread::sleep(Duration::from_secs(4));
    world.vendor.release();
    for (way, request) in &keys {
        let answer = once_decided(&world, request);
        assert!(
            answer.status == 200 && is_replayed(&answer),
            "{way:?}: {}",
            answer.text()
        );
        assert!(
            !way.stream || way.surface.is_complete(&answer),
            "{way:?}: {}",
            answer.text()
        );
        let receipt = world.receipt(&account, &answer.request_id());
        assert_eq!(
            (&receipt["outcome"], &receipt["estimated"]),
            (&"client_left".into(), &false.into()),
            "{receipt}"
        );
        assert_eq!(
            micro(&receipt["credits"]),
            way.vendor.cost(100, 20),
            "{receipt}"
        );
    }
    assert_eq!(world.vendor.calls() as usize, keys.len());
    assert_eq!(
        world.vendor.stats()["client_gone"],
        0,
        "each was read to its end"
    );
    world.ended(&account, keys.len());
}

fn the_requests_own_deadline_ends_what_is_read_for_nobody_and_what_was_debited_is_not_again(
    plan: Plan,
) {
    let (world, account) = plan.limit("total_seconds", 4).with_account();
    for (index, surface) in BOTH.into_iter().enumerate() {
        let request = Way::own(surface, true).keyed(&account, "key", "bytes=4000 events=8 hang=6");
        let mut connection = begin(&world, &request);
        let mut answer = connection.begin();
        while answer.text().matches("\n\n").count() < 4 {
            assert!(connection.more(&mut answer));
        }
        drop(connection);
        is_running(surface, &world.ask(&request));
        is_unavailable(surface, &once_decided(&world, &request));
        let ending = world.ended(&account, index + 1);
        assert_eq!(ending["outcome"], "client_left", "{ending}");
        assert_eq!(world.vendor.calls() as usize, index + 1);
    }
}

fn an_answer_is_kept_up_to_the_cap_to_the_byte(plan: Plan) {
    const CAP: usize = 8_192;
    let (world, account) = plan
        .limit("idempotency_body_bytes", CAP as u64)
        .with_account();
    for way in ways() {
        let marker = |bytes: usize| format!("bytes={bytes} input=100 output=20 events=4");
        // The bytes of an answer besides its text, for texts whose length has four digits.
        let of = |bytes: usize| world.ask(&way.plain(&account, &marker(bytes))).body.len();
        let (low, high) = (of(4_000), of(4_004));
        assert_eq!(high - low, 4, "{way:?}");
        let fitting = CAP - low + 4_000;
        for (bytes, fits) in [(fitting, true), (fitting + 1, false)] {
            let request = way.keyed(
                &account,
                &format!("{way:?}-{bytes}").replace(' ', ""),
                &marker(bytes),
            );
            let first = world.ask(&request);
            assert_eq!(
                (first.status, first.body.len()),
                (200, CAP + usize::from(!fits)),
                "{way:?}"
            );
            let (calls, standing) = (world.vendor.calls(), at_rest(&world, &account));
            let second = world.ask(&request);
            if fits {
                same(&first, &second);
            } else {
                is_unavailable(way.surface, &second);
            }
            assert_eq!(
                (world.vendor.calls(), world.standing(&account)),
                (calls, standing),
                "{way:?}"
            );
        }
    }
}

fn a_kill_while_it_runs_frees_the_key(plan: Plan) {
    let (mut world, account) = plan.with_account();
    // No answer ends before the kill. Otherwise the kill could fall between an answer's debit and
    // its storing.
    let begun: Vec<_> = ways()
        .into_iter()
        .enumerate()
        .map(|(index, way)| {
            let point = if way.stream { "5" } else { "headers" };
            let marker = format!("hold={point} events=8 input=100 output=20");
            let request = way.keyed(&account, &format!("key-{index}"), &marker);
            let mut connection = begin(&world, &request);
            // The kill hits half of the requests before their answers begin, and half of them
            // during their answers.
            if way.stream {
                let mut answer = connection.begin();
                assert!(connection.more(&mut answer));
            }
            (way, request, connection)
        })
        .filter(|(way, ..)| way.stream || way.surface == Chat)
        .collect();
    // The last requests still run.
    let (way, request, _) = begun.last().unwrap();
    is_running(way.surface, &world.ask(request));
    world.kill();
    world.start_gateway();
    for (way, request, _) in &begun {
        let mut connection = begin(&world, request);
        world.vendor.release();
        let answer = connection.answer();
        assert_eq!(answer.status, 200, "{way:?}: {}", answer.text());
        same_or_new(&world, request, &answer);
    }
    let (way, request, _) = begun.last().unwrap();
    let again = world.ask(request);
    assert!(is_replayed(&again), "{way:?}");
    let count = |outcome: &str| {
        let endings = world.endings(&account);
        let of = endings.iter().filter(|it| it["outcome"] == outcome);
        of.count()
    };
    wait_until("the request that the kill met", SOON, || {
        count("interrupted") > 0
    });
    assert!(count("completed") <= ways().len());
}

/// If the answer is new, asserts that the gateway replays it from now on.
#[track_caller]
fn same_or_new(world: &World, request: &Request, answer: &Answer) {
    if !is_replayed(answer) {
        same(answer, &world.ask(request));
    }
}

#[test]
fn a_kill_after_the_debit_and_before_the_answer_left_loses_neither() {
    let mut world = Plan::default()
        .limit("idempotency_body_bytes", 67_108_864)
        .start();
    let account = world.funded(100_000_000_000);
    let mut stuck = Vec::new();
    for (index, surface) in BOTH.into_iter().enumerate() {
        // More than the sockets' buffers hold, so the gateway cannot send all of it to this client,
        // which does not read.
        let body = surface.body(
            "lenient=1 bytes=24000000 input=100 output=20",
            false,
            12_000_000,
        );
        let request = surface
            .request(&account.key, &body)
            .header("idempotency-key", "whole");
        let mut connection = begin(&world, &request);
        let half = connection.begin();
        assert_eq!(world.ended(&account, index + 1)["outcome"], "completed");
        stuck.push((surface, request, connection, half));
    }
    world.kill();
    world.start_gateway();
    let (calls, balance) = (world.vendor.calls(), world.standing(&account).balance);
    for (surface, request, mut connection, mut half) in stuck {
        connection.finish(&mut half);
        assert_eq!(
            half.end(),
            Some(End::Cut),
            "{surface:?}: the answer had left"
        );
        let answer = world.ask(&request);
        assert!(
            answer.status == 200 && is_replayed(&answer),
            "{:.300}",
            answer.text()
        );
        assert_eq!(answer.request_id(), half.request_id());
        assert!(answer.body.len() > 24_000_000 && answer.body.starts_with(&half.body));
        answer.json();
    }
    assert_eq!(
        (world.vendor.calls(), world.standing(&account).balance),
        (calls, balance)
    );
}

/// Puts the store into the state that a kill leaves between a debit and the storing of its answer.
fn forget_the_answer(world: &World) {
    let store = rusqlite::Connection::open(world.data_dir().join("idempotency.db")).unwrap();
    store
        .execute_batch("DELETE FROM answer; UPDATE asked SET done = 0, bytes = 0, expires_at = 0;")
        .unwrap();
}

#[test]
fn a_kill_between_the_debit_and_the_keeping_of_the_answer_spends_the_key() {
    let (mut world, account) = World::with_account();
    let requests: Vec<_> = ways()
        .into_iter()
        .enumerate()
        .map(|(index, way)| (way, way.keyed(&account, &format!("key-{index}"), USUAL)))
        .collect();
    for (_, request) in &requests {
        world.expect(200, request);
    }
    world.kill();
    forget_the_answer(&world);
    world.start_gateway();
    let (calls, balance) = (world.vendor.calls(), world.standing(&account).balance);
    for (way, request) in &requests {
        for _ in 0..2 {
            is_unavailable(way.surface, &world.ask(request));
        }
    }
    assert_eq!(
        (world.vendor.calls(), world.standing(&account).balance),
        (calls, balance)
    );
    world.ended(&account, requests.len());
}

fn a_restart_forgets_nothing(plan: Plan) {
    let (mut world, account) = plan.with_account();
    let requests: Vec<_> = ways()
        .into_iter()
        .enumerate()
        .map(|(index, way)| way.keyed(&account, &format!("key-{index}"), USUAL))
        .collect();
    let first: Vec<_> = requests.iter().map(|request| world.ask(request)).collect();
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
    for (request, first) in requests.iter().zip(&first) {
        same(first, &world.ask(request));
    }
    world.kill();
    world.start_gateway();
    for (request, first) in requests.iter().zip(&first) {
        same(first, &world.ask(request));
    }
    assert_eq!(world.vendor.calls() as usize, requests.len());
}

/// Repeats the request under one key, across restarts of the gateway, until it gets an answer or
/// learns that the answer is lost. Returns true for an answer.
fn ask_until_decided(edge: u16, request: &Request) -> bool {
    let answer = wait_for("an answer or its loss", SOON, || {
        let answer = client::try_ask(edge, request)?;
        let whole = answer.end() == Some(End::Whole) && !answer.has("\"error\"");
        (answer.status == 200 && whole || answer.has("idempotency_result_unavailable"))
            .then_some(answer)
    });
    answer.status == 200
}

fn kills_under_load_never_debit_a_key_twice(plan: Plan) {
    let mut world = plan.start();
    let account = world.funded(1_000_000_000_000);
    let kills = if crate::is_long() { 100 } else { 8 };
    const LEAST_DECIDED: usize = 200;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (answered, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let edge = world.edge;
    std::thread::scope(|scope| {
        for (client, way) in ways().into_iter().enumerate() {
            let (account, stop, answered, lost) = (&account, &stop, &answered, &lost);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let marker = "events=3 gap_us=700 input=10 output=5";
                    let request = way.keyed(account, &format!("{client}-{round}"), marker);
                    let count = if ask_until_decided(edge, &request) {
                        answered
                    } else {
                        lost
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
            world.kill();
            world.start_gateway();
        }
        stop.store(true, Ordering::Relaxed);
    });
    world.vendor.wait_idle();
    let (answered, lost) = (answered.into_inner(), lost.into_inner());
    let debited = wait_for("all to be in the ledger", SOON, || {
        let endings = world.endings(&account);
        let debited = endings
            .iter()
            .filter(|ending| micro(&ending["credits"]) > 0)
            .count();
        (debited == answered + lost).then_some(debited)
    });
    eprintln!(
        "{kills} kills: {answered} keys answered, {lost} spent with their answers lost, {debited} debits"
    );
    assert!(answered > 100, "too few answers to tell");
}
