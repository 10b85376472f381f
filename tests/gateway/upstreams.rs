//! Tests several endpoints of one vendor: which endpoint gets which request, which endpoints the
//! gateway avoids and for how long, and how requests return to them.

use crate::account::Account;
use crate::client::{self, Answer, Request};
use crate::surface::{BOTH, Chat, Messages, Surface, UPSTREAM_ERROR, UPSTREAM_TIMEOUT};
use crate::world::{Plan, SOON, Simulator, World, free_port, vendor_url, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use test_world::wait_until;

fn url(port: u16) -> String {
    format!("url: \"{}\"", vendor_url(port))
}

/// Entries of these endpoints, with more config in each.
fn endpoints(simulators: &[&Simulator], more: &str) -> Vec<String> {
    simulators
        .iter()
        .map(|simulator| format!("{{{}{more}}}", url(simulator.port)))
        .collect()
}

fn simulators<const N: usize>() -> [Simulator; N] {
    std::array::from_fn(|_| Simulator::start(None))
}

fn calls(simulators: &[Simulator]) -> Vec<u64> {
    simulators.iter().map(Simulator::calls).collect()
}

fn label(port: u16) -> String {
    format!("endpoint=\"127.0.0.1:{port}\"")
}

#[test]
fn endpoints_that_take_turns_get_their_exact_shares() {
    let vendors = simulators::<3>();
    let weights = [5, 3, 2];
    let listed = vendors
        .iter()
        .zip(weights)
        .map(|(vendor, weight)| format!("{{{}, weight: {weight}}}", url(vendor.port)));
    let (world, account) = Plan::default()
        .turns()
        .endpoints_as(&listed.collect::<Vec<_>>())
        .with_account();
    let mut connection = world.connect();
    for _ in 0..100 {
        assert_eq!(
            connection
                .ask(&Chat.whole(&account.key, "input=1 output=1"))
                .status,
            200
        );
    }
    assert_eq!(calls(&vendors), [50, 30, 20]);
}

#[test]
fn conversations_are_shared_out_by_weight_and_each_stays_where_it_is() {
    let vendors = simulators::<3>();
    let weights = [5, 3, 2];
    let listed = vendors
        .iter()
        .zip(weights)
        .map(|(vendor, weight)| format!("{{{}, weight: {weight}}}", url(vendor.port)));
    let plan = Plan::default().endpoints_as(&listed.collect::<Vec<_>>());
    let (world, account) = plan.limit("keepalive_requests", 10_000).with_account();
    let mut connection = world.connect();
    for number in 0..1_000 {
        let request = Chat
            .whole(&account.key, "input=1 output=1")
            .header("x-session-id", &format!("one of many {number}"));
        assert_eq!(connection.ask(&request).status, 200);
    }
    let first = calls(&vendors);
    // The tolerance is five standard deviations of a fair distribution.
    for (calls, (expected, spread)) in first.iter().zip([(500_u64, 80), (300, 73), (200, 64)]) {
        assert!(calls.abs_diff(expected) < spread, "{first:?}");
    }
    for _ in 0..20 {
        let request = Chat
            .whole(&account.key, "input=1 output=1")
            .header("x-session-id", "one of many 7");
        assert_eq!(connection.ask(&request).status, 200);
    }
    let grown: Vec<_> = calls(&vendors)
        .iter()
        .zip(&first)
        .map(|(now, before)| now - before)
        .collect();
    assert!(
        grown.contains(&20) && grown.iter().sum::<u64>() == 20,
        "{grown:?}"
    );
}

/// The request of a conversation's n-th turn, with all earlier turns.
fn turn(surface: Surface, number: usize, turns: usize) -> Value {
    let mut body = surface.body("input=1 output=1", false, 100);
    let mut messages = vec![json!({"role": "user", "content": format!("conversation {number}")})];
    for turn in 1..turns {
        messages.push(json!({"role": "assistant", "content": format!("answer {turn}")}));
        let said =
            json!([{"type": "text", "text": format!("[[sim input=1 output=1]] turn {turn}")}]);
        messages.push(json!({"role": "user", "content": said}));
    }
    body["messages"] = messages.into();
    body
}

/// The conversations of which a vendor has received requests.
fn seen(vendor: &Simulator) -> BTreeSet<usize> {
    let requests = vendor.requests();
    let bodies = requests
        .as_array()
        .unwrap()
        .iter()
        .map(|request| request["body"].as_str().unwrap().to_owned());
    let first = |body: String| {
        body.split("conversation ")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    bodies.map(first).collect()
}

const CONVERSATIONS: usize = 24;

#[track_caller]
fn ask_all(world: &World, account: &Account, turns: usize) {
    let mut connection = world.connect();
    for number in 0..CONVERSATIONS {
        for surface in BOTH {
            let answer =
                connection.ask(&surface.request(&account.key, &turn(surface, number, turns)));
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

#[test]
fn a_conversation_keeps_its_endpoint_moves_when_that_dies_and_comes_back_with_it() {
    let mut vendors: Vec<_> = simulators::<3>().into();
    let ports: Vec<_> = vendors.iter().map(|vendor| vendor.port).collect();
    let plan = Plan::default()
        .endpoints(&ports)
        .limit("breaker_failures", 2)
        .limit("breaker_open_seconds", 1);
    let (world, account) = plan.limit("breaker_open_max_seconds", 1).with_account();
    for turns in 1..=3 {
        ask_all(&world, &account, turns);
    }
    let own: Vec<_> = vendors.iter().map(seen).collect();
    assert_eq!(
        own.iter().map(BTreeSet::len).sum::<usize>(),
        CONVERSATIONS,
        "each at one endpoint: {own:?}"
    );
    let dead = (0..3).max_by_key(|index| own[*index].len()).unwrap();
    let port = vendors[dead].port;
    drop(vendors.remove(dead));
    ask_all(&world, &account, 4);
    let mut now = vendors.iter().map(seen);
    for (before, port) in own.iter().zip(&ports).filter(|(_, other)| **other != port) {
        let now = now.next().unwrap();
        assert!(
            now.is_superset(before)
                && now
                    .difference(before)
                    .all(|moved| own[dead].contains(moved)),
            "{port}"
        );
    }
    world.has_metric("gateway_upstream_healthy", &[&label(port)], 0.0);
    // The endpoint returns, and gets back exactly its own conversations.
    let back = Simulator::start_on(port, None);
    wait_for("the endpoint to be asked again", SOON, || {
        ask_all(&world, &account, 5);
        (world.metric("gateway_upstream_healthy", &[&label(port)]) == 2.0).then_some(())
    });
    ask_all(&world, &account, 6);
    assert_eq!(seen(&back), own[dead]);
}

/// Sends requests, all of which succeed. The two endpoints take turns to be tried first. Returns
/// how many reached the failing endpoint.
fn at_the_bad_one(world: &World, bad: &Simulator, surface: Surface, requests: u64) -> u64 {
    let account = world.account_with(&format!("{surface:?}@example.org").to_lowercase(), &[]);
    let before = bad.calls();
    for _ in 0..requests {
        world.expect(200, &surface.whole(&account.key, "input=1 output=1"));
    }
    bad.calls() - before
}

/// The state of the endpoint's circuit breakers (both vendors must agree), as `/upstreams` on the
/// admin listener reports it.
fn states(world: &World, port: u16) -> String {
    let page = client::ask(world.admin, &Request::get("/upstreams")).json();
    let here = page
        .as_array()
        .unwrap()
        .iter()
        .filter(|state| state["endpoint"] == format!("127.0.0.1:{port}"));
    let breakers: Vec<_> = here
        .map(|state| state["breaker"].as_str().unwrap().to_owned())
        .collect();
    assert!(breakers.len() == 2 && breakers[0] == breakers[1], "{page}");
    breakers[0].clone()
}

/// At low traffic each failure is a large part of the requests, and the breaker is still closed.
#[test]
fn the_first_failures_of_an_endpoint_reach_no_client_where_another_one_works() {
    for fault in ["close", "status=500"] {
        let (bad, good) = (Simulator::start(Some(fault)), Simulator::start(None));
        let plan = Plan::default().turns().endpoints(&[bad.port, good.port]);
        let world = plan.start();
        let account = world.funded(1_000_000_000);
        for _ in 0..12 {
            for surface in BOTH {
                world.works(surface, &account.key);
            }
        }
        assert!(bad.calls() >= 5, "{fault}");
    }
}

#[test]
fn an_endpoint_that_fails_in_a_row_is_left_alone() {
    for (fault, failovers) in [("close", "broken"), ("status=500", "status_5xx")] {
        for (failures, expected) in [(3, 3), (0, 10)] {
            let (bad, good) = (Simulator::start(Some(fault)), Simulator::start(None));
            let plan = Plan::default().turns().endpoints(&[bad.port, good.port]);
            let limits = plan
                .limit("breaker_failures", failures)
                .limit("breaker_open_seconds", 3_600);
            let world = limits
                .limit("breaker_open_max_seconds", 3_600)
                .limit("retry_budget_min", 100)
                .start();
            for surface in BOTH {
                assert_eq!(
                    at_the_bad_one(&world, &bad, surface, 20),
                    expected,
                    "{fault}, breaker at {failures}"
                );
            }
            let of_bad = label(bad.port);
            let opened = if failures > 0 { 2.0 } else { 0.0 };
            assert_eq!(
                world.metric("gateway_upstream_breaker_opened_total", &[&of_bad]),
                opened
            );
            assert_eq!(
                world.metric("gateway_upstream_healthy", &[&of_bad]),
                2.0 - opened
            );
            world.has_metric("gateway_upstream_healthy", &[&label(good.port)], 2.0);
            assert_eq!(
                states(&world, bad.port),
                if failures > 0 { "open" } else { "closed" }
            );
            assert_eq!(states(&world, good.port), "closed");
            let reason = format!("reason=\"{failovers}\"");
            let counted = world.metric("gateway_upstream_failovers_total", &[&of_bad, &reason]);
            assert_eq!(counted, 2.0 * expected as f64, "{fault}");
        }
    }
}

#[test]
fn a_breaker_that_was_open_closes_once_a_request_finds_the_endpoint_well() {
    let (mut flaky, good) = (Simulator::start(Some("status=503")), Simulator::start(None));
    let plan = Plan::default().turns().endpoints(&[flaky.port, good.port]);
    let (world, account) = plan
        .limit("breaker_failures", 1)
        .limit("breaker_open_seconds", 1)
        .with_account();
    let of_flaky = label(flaky.port);
    let chat = ["vendor=\"beta\"", &of_flaky];
    let ask = || {
        assert_eq!(
            world
                .ask(&Chat.whole(&account.key, "input=1 output=1"))
                .status,
            200
        )
    };
    wait_for("the breaker to open", SOON, || {
        ask();
        (world.metric("gateway_upstream_healthy", &chat) == 0.0).then_some(())
    });
    // The probe request finds the endpoint failing each time. No client sees a failure.
    wait_for("it to open twice more", SOON, || {
        ask();
        (world.metric("gateway_upstream_breaker_opened_total", &chat) >= 3.0).then_some(())
    });
    let port = flaky.port;
    drop(flaky);
    flaky = Simulator::start_on(port, None);
    wait_for("the breaker to close", SOON, || {
        ask();
        (world.metric("gateway_upstream_healthy", &chat) == 1.0).then_some(())
    });
    let before = flaky.calls();
    (0..10).for_each(|_| ask());
    assert_eq!(flaky.calls(), before + 5);
}

#[test]
fn where_every_breaker_is_open_requests_are_still_tried() {
    let [bad, other] = std::array::from_fn(|_| Simulator::start(Some("close")));
    let plan = Plan::default()
        .endpoints(&[bad.port, other.port])
        .limit("breaker_failures", 1);
    let (world, account) = plan
        .limit("retry_budget_min", 100)
        .limit("breaker_open_seconds", 3_600)
        .limit("breaker_open_max_seconds", 3_600)
        .with_account();
    for surface in BOTH {
        for _ in 0..4 {
            let answer = world.ask(&surface.whole(&account.key, "input=1"));
            surface.fails_as(&answer, UPSTREAM_ERROR);
        }
    }
    assert_eq!(
        bad.calls() + other.calls(),
        16,
        "two attempts for each of the eight"
    );
}

#[track_caller]
fn is_told_to_wait(surface: Surface, status: u16, answer: &Answer, most: u64) {
    let (chat, messages) = match status {
        429 => ((429, "rate_limit_error"), (429, "rate_limit_error")),
        _ => ((503, "server_error"), (529, "overloaded_error")),
    };
    surface.fails(
        answer,
        chat,
        messages,
        None.or(answer.json()["error"]["code"].as_str()),
    );
    let wait: u64 = answer
        .header("retry-after")
        .expect("a retry-after")
        .parse()
        .unwrap();
    assert!((1..=most).contains(&wait), "{wait}");
}

/// The gateway does not send requests for a model before the time that the vendor's retry-after
/// gives. The client gets an error with that time in its own protocol.
#[test]
fn a_vendor_that_says_when_to_come_again_is_left_alone_until_then() {
    for (status, surface) in [(429, Chat), (429, Messages), (503, Chat), (529, Messages)] {
        let vendors = simulators::<2>();
        let ports = [vendors[0].port, vendors[1].port];
        let plan = Plan::default()
            .endpoints(&ports)
            .limit("breaker_failures", 0);
        let (world, account) = plan.limit("cool_down_probe_seconds", 0).with_account();
        let limited = surface.whole(&account.key, &format!("status={status} retry_after=40"));
        is_told_to_wait(surface, status, &world.ask(&limited), 40);
        assert_eq!(calls(&vendors), [1, 1]);
        // These requests are valid, but the vendor asked the gateway to wait.
        for _ in 0..3 {
            is_told_to_wait(
                surface,
                status,
                &world.ask(&surface.whole(&account.key, "input=1 output=1")),
                40,
            );
        }
        assert_eq!(calls(&vendors), [1, 1]);
        // Other models are not affected.
        let mut other = surface.body("input=1 output=1", false, 100);
        other["model"] = if surface == Chat {
            "beta-5.5"
        } else {
            "alpha-sonnet-4-6"
        }
        .into();
        world.expect(200, &surface.request(&account.key, &other));
        // A refused request is released after its response, so the ledger may have it later.
        world.ended(&account, 5);
        let is_completed = |row: &&Value| row["outcome"] == "completed";
        let completed = world.endings(&account).iter().filter(is_completed).count();
        assert_eq!(completed, 1);
    }
}

#[test]
fn the_time_that_a_vendor_asks_for_passes_and_is_heeded_up_to_a_limit() {
    for most in [1, 0] {
        let vendors = simulators::<1>();
        let plan = Plan::default()
            .endpoints(&[vendors[0].port])
            .limit("cool_down_max_seconds", most);
        let (world, account) = plan.limit("cool_down_probe_seconds", 0).with_account();
        let limited = world.ask(&Chat.whole(&account.key, "status=429 retry_after=40"));
        assert_eq!(
            limited.header("retry-after"),
            Some("40"),
            "the vendor's own answer"
        );
        let ask = || world.ask(&Chat.whole(&account.key, "input=1 output=1"));
        if most == 0 {
            assert_eq!(ask().status, 200, "not heeded");
        } else {
            wait_for("the time to be over", SOON, || {
                let answer = ask();
                assert!(
                    answer.status == 200 || answer.status == 429,
                    "{}",
                    answer.text()
                );
                (answer.status == 200).then_some(())
            });
            assert_eq!(vendors[0].calls(), 2, "asked only once the time was over");
        }
    }
}

/// One client exceeded a limit once. That must not block all clients from the only endpoint for the
/// whole retry-after.
#[test]
fn a_vendor_that_says_when_to_come_again_and_answers_before_is_open_to_all() {
    for (probe, status, surface) in [(1, 429, Chat), (1, 529, Messages), (0, 429, Chat)] {
        let vendors = simulators::<1>();
        let plan = Plan::default()
            .endpoints(&[vendors[0].port])
            .limit("cool_down_probe_seconds", probe);
        let (world, account) = plan.limit("breaker_failures", 0).with_account();
        let limited = surface.whole(&account.key, &format!("status={status} retry_after=60"));
        is_told_to_wait(surface, status, &world.ask(&limited), 60);
        let ask = || world.ask(&surface.whole(&account.key, "input=1 output=1"));
        let is_answered = || {
            let answer = ask();
            if answer.status != 200 {
                is_told_to_wait(surface, status, &answer, 60);
            }
            answer.status == 200
        };
        if probe == 0 {
            // The control below has its answer within a second.
            let began = Instant::now();
            wait_until("three seconds to pass", SOON, || {
                assert!(!is_answered());
                began.elapsed() > Duration::from_secs(3)
            });
            assert_eq!(vendors[0].calls(), 1, "nobody tries: everybody is shut out");
        } else {
            wait_until("a request that tries to be answered", SOON, is_answered);
            assert_eq!(vendors[0].calls(), 2, "one has tried");
            (0..5).for_each(|_| assert_eq!(ask().status, 200));
            assert_eq!(vendors[0].calls(), 7);
        }
    }
}

#[test]
fn after_the_first_byte_nobody_else_is_asked() {
    let vendors = simulators::<2>();
    let ports = [vendors[0].port, vendors[1].port];
    let (world, account) = Plan::default()
        .turns()
        .endpoints(&ports)
        .limit("breaker_failures", 1)
        .with_account();
    for surface in BOTH {
        let answer = world.ask(&surface.stream(&account.key, "events=8 cut=4"));
        assert!(
            answer.status == 200 && !surface.is_complete(&answer),
            "{}",
            answer.text()
        );
    }
    assert_eq!(calls(&vendors).iter().sum::<u64>(), 2);
    assert_eq!(world.metric("gateway_upstream_failovers_total", &[]), 0.0);
    // The endpoint's breaker counts this failure as well.
    world.wait_metric("gateway_upstream_breaker_opened_total", &[], 2.0);
}

#[test]
fn no_more_requests_run_at_an_endpoint_than_may() {
    let vendors = simulators::<2>();
    let listed = endpoints(&[&vendors[0], &vendors[1]], ", max_concurrent: 2");
    let plan = Plan::default().endpoints_as(&listed);
    let plan = plan
        .limit("drain_after_client_seconds", 1)
        .limit("drain_reasoning_seconds", 1);
    let (world, account) = plan.limit("breaker_failures", 1).with_account();
    let hanging = Chat.stream(&account.key, "events=6 hang=2");
    let mut open: Vec<_> = (0..4)
        .map(|_| {
            let mut connection = world.connect();
            connection.send(&hanging.bytes());
            let answer = connection.begin();
            assert_eq!(answer.status, 200);
            connection
        })
        .collect();
    assert_eq!(
        calls(&vendors),
        [2, 2],
        "one conversation, and its endpoint was full"
    );
    let refused = world.ask(&hanging);
    Chat.failure(&refused, 503, "server_error", Some("overloaded"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(calls(&vendors), [2, 2]);
    // The gateway counts the other vendor's requests separately, although the addresses are equal.
    world.expect(200, &Messages.whole(&account.key, "input=1 output=1"));
    drop(open.pop());
    wait_for("a place", SOON, || {
        let answer = world.ask(&Chat.whole(&account.key, "input=1 output=1"));
        (answer.status == 200).then_some(())
    });
    drop(open);
    wait_for("the others to have left", SOON, || {
        let page = client::ask(world.admin, &Request::get("/upstreams")).json();
        page.as_array()
            .unwrap()
            .iter()
            .all(|state| state["in_flight"] == 0)
            .then_some(())
    });
    assert_eq!(
        world.metric("gateway_upstream_breaker_opened_total", &[]),
        0.0,
        "clients that leave are no vendor's fault"
    );
}

#[test]
fn an_endpoint_that_fails_its_health_check_is_not_asked() {
    let (good, mut checked) = (Simulator::start(None), Simulator::start(None));
    let port = checked.port;
    let check = "health_check: {path: /_sim/stats, interval_seconds: 1, timeout_seconds: 30, fails_after: 1}";
    let listed = [
        format!("{{{}}}", url(good.port)),
        format!("{{{}, {check}}}", url(port)),
    ];
    let (world, account) = Plan::default().turns().endpoints_as(&listed).with_account();
    let healthy = |wanted: f64| {
        wait_until("the check to tell", SOON, || {
            world.metric("gateway_upstream_healthy", &[&label(port)]) == wanted
        });
    };
    let ask = |times| {
        (0..times)
            .for_each(|_| assert_eq!(world.ask(&Chat.whole(&account.key, "input=1")).status, 200))
    };
    ask(10);
    assert_eq!((good.calls(), checked.calls()), (5, 5));
    drop(checked);
    healthy(0.0);
    ask(10);
    assert_eq!(good.calls(), 15);
    assert_eq!(
        world.metric("gateway_upstream_failovers_total", &[]),
        0.0,
        "no client's request found it out"
    );
    checked = Simulator::start_on(port, None);
    healthy(2.0);
    ask(10);
    assert_eq!((good.calls(), checked.calls()), (20, 5));
}

/// One address of the name has no listener. The gateway tries the next address, and does not count
/// a failure of the endpoint.
#[test]
fn every_address_of_a_name_is_tried() {
    let vendor = Simulator::start(None);
    // `localhost` is ::1 and 127.0.0.1. The simulator listens on 127.0.0.1 only.
    let listed = [format!(
        "{{url: \"{}\"}}",
        vendor_url(vendor.port).replace("127.0.0.1", "localhost")
    )];
    let (world, account) = Plan::default()
        .endpoints_as(&listed)
        .limit("attempts", 1)
        .limit("breaker_failures", 1)
        .with_account();
    for _ in 0..4 {
        for surface in BOTH {
            world.expect(200, &surface.whole(&account.key, "input=1 output=1"));
        }
    }
    assert_eq!(vendor.calls(), 8);
}

#[test]
fn a_name_that_does_not_resolve_is_a_failure_like_any_other() {
    let good = Simulator::start(None);
    let listed = [
        "{url: \"http://no-such-host.invalid:9\"}".to_owned(),
        format!("{{{}}}", url(good.port)),
    ];
    let (world, account) = Plan::default().turns().endpoints_as(&listed).with_account();
    for surface in BOTH {
        for _ in 0..2 {
            world.expect(200, &surface.whole(&account.key, "input=1 output=1"));
        }
    }
    assert_eq!(good.calls(), 4);
    world.close();
    let listed = ["{url: \"http://no-such-host.invalid:9\"}".to_owned()];
    let (world, account) = Plan::default().endpoints_as(&listed).with_account();
    let answer = world.ask(&Chat.whole(&account.key, "input=1 output=1"));
    Chat.failure(&answer, 502, "server_error", Some("upstream_error"));
}

/// A reload keeps the state of the endpoints that it finds again.
#[test]
fn a_reload_forgets_no_open_breaker() {
    let (bad, good) = (Simulator::start(Some("close")), Simulator::start(None));
    let plan = Plan::default()
        .turns()
        .endpoints(&[bad.port, good.port])
        .limit("breaker_failures", 1);
    let (world, account) = plan
        .limit("breaker_open_seconds", 3_600)
        .limit("breaker_open_max_seconds", 3_600)
        .with_account();
    let ask = |path: &str| {
        let request = Request::post(path, Chat.body("input=1 output=1", false, 100).to_string())
            .bearer(&account.key);
        world.expect(200, &request);
    };
    (0..4).for_each(|_| ask(Chat.path()));
    assert_eq!(bad.calls(), 1);
    world.signal("HUP");
    world.wait_metric("gateway_config_reloads_total", &["result=\"ok\""], 1.0);
    (0..4).for_each(|_| ask(Chat.path()));
    assert_eq!((bad.calls(), good.calls()), (1, 8));
}

#[test]
fn a_connection_that_is_never_taken_up_fails_in_time() {
    // A listener with a full queue: the handshake is never answered.
    let socket = std::net::TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = socket.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) =
        std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200))
    {
        waiting.push(stream);
    }
    let good = Simulator::start(None);
    let (world, account) = Plan::default()
        .turns()
        .endpoints(&[address.port(), good.port])
        .limit("connect_seconds", 8)
        .with_account();
    std::thread::scope(|scope| {
        let (world, account) = (&world, &account);
        for surface in BOTH {
            scope.spawn(move || {
                for _ in 0..2 {
                    world.expect(200, &surface.whole(&account.key, "input=1 output=1"));
                }
            });
        }
    });
    assert_eq!(good.calls(), 4);
    let reason = "reason=\"connect\"";
    world.has_metric(
        "gateway_upstream_failovers_total",
        &[&label(address.port()), reason],
        2.0,
    );
    world.close();
    // If this is the only endpoint, the client gets a timeout error in time.
    let (world, account) = Plan::default()
        .endpoints(&[address.port()])
        .limit("connect_seconds", 1)
        .with_account();
    for surface in BOTH {
        let began = Instant::now();
        let answer = world.ask(&surface.whole(&account.key, "input=1 output=1"));
        surface.fails_as(&answer, UPSTREAM_TIMEOUT);
        let took = began.elapsed();
        assert!(took > Duration::from_millis(750) && took < SOON, "{took:?}");
    }
    assert_eq!(world.standing(&account).balance, 300_000_000);
    world.close();
}
