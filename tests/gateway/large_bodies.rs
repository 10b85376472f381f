//! Bodies that take time to decompress, parse and translate. A separate pool does this work, with
//! bounded queues and in turns among accounts. Its memory is bounded and counted.

use crate::bystander::{Bystander, StopOnDrop};
use crate::client::{Answer, Connection, Request};
use crate::failure_table::{Case, may_reach_clients};
use crate::surface::{BOTH, Chat, INTERNAL_ERROR, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const COUNT_PATH: &str = "/v1/messages/count_tokens";

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// A token count of `messages` messages of `bytes` bytes each, for a model whose vendor has no
/// token counting.
fn count_body(messages: usize, bytes: usize) -> Vec<u8> {
    let text = "x".repeat(bytes);
    let message = json!({"role": "user", "content": text}).to_string();
    let list = vec![message.as_str(); messages].join(",");
    format!("{{\"model\":\"{}\",\"messages\":[{list}]}}", Chat.model()).into_bytes()
}

fn count(key: &str, body: Vec<u8>) -> Request {
    Request::post(COUNT_PATH, body).bearer(key)
}

fn count_coded(key: &str, plain: &[u8]) -> Request {
    count(key, gzip(plain)).header("content-encoding", "gzip")
}

/// A request with `more` additional messages. Each counts as three values: the object and its two
/// members.
fn with_messages(surface: Surface, more: usize) -> Value {
    let mut body = surface.body("input=1 output=1", false, 100);
    let message = json!({"role": "user", "content": "x"});
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend(vec![message; more]);
    body
}

#[test]
fn a_body_of_more_values_than_the_limit_is_refused_and_the_limit_is_named() {
    let (world, account) = Plan::default().limit("body_values", 1_001).with_account();
    for surface in BOTH {
        let ask = |more| world.ask(&surface.request(&account.key, &with_messages(surface, more)));
        assert_eq!(ask(300).status, 200);
        let failure = surface.failure(&ask(340), 400, "invalid_request_error", None);
        assert!(
            failure.to_string().contains("more than 1001 JSON values"),
            "{failure}"
        );
    }
    // One value for the model, one for the list, and three for each message.
    assert_eq!(
        world.ask(&count(&account.key, count_body(333, 1))).status,
        200,
        "at the limit"
    );
    for request in [
        count(&account.key, count_body(334, 1)),
        count_coded(&account.key, &count_body(100_000, 1)),
    ] {
        Messages.failure(&world.ask(&request), 400, "invalid_request_error", None);
    }
    assert_eq!(world.vendor.calls(), 2);
}

#[test]
fn control_without_that_limit_a_body_of_as_many_values_is_read() {
    let (world, account) = Plan::default()
        .limit("body_values", 10_000_000)
        .with_account();
    world.expect(200, &count_coded(&account.key, &count_body(100_000, 1)));
}

/// Large bodies get the same answers as small ones, on every route through the gateway.
#[test]
fn large_bodies_are_answered_like_small_ones() {
    let (world, account) = World::with_funds(1_000_000_000);
    let padding = "lorem ipsum ".repeat(20_000);
    for (surface, model) in [
        (Chat, Chat),
        (Chat, Messages),
        (Messages, Chat),
        (Messages, Messages),
    ] {
        let mut body = surface.body("input=7 output=3", false, 100);
        body["model"] = model.model().into();
        let plain = world.ask(&surface.request(&account.key, &body));
        let text = body["messages"][0]["content"].as_str().unwrap().to_owned();
        body["messages"][0]["content"] = format!("{text} {padding}").into();
        let large = surface.request(&account.key, &body);
        let sent = gzip(body.to_string().as_bytes());
        let coded = Request::post(surface.path(), sent)
            .bearer(&account.key)
            .header("content-encoding", "gzip");
        for request in [
            large.clone(),
            coded,
            large.header("idempotency-key", &format!("{surface:?}-{model:?}")),
        ] {
            let answer = world.ask(&request);
            assert_eq!(
                (answer.status, plain.status),
                (200, 200),
                "{}",
                answer.text()
            );
            assert_eq!(answer.json()["usage"], plain.json()["usage"]);
        }
    }
    assert_eq!(world.metric("gateway_cpu_jobs_waiting", &[]), 0.0);
}

#[test]
fn small_bodies_of_many_values_or_with_a_coding_are_work_for_the_pool_and_one_long_text_is_not() {
    for surface in BOTH {
        let (world, account) = Plan::default()
            .environment("GW_FAIL", "panic@cpu_job")
            .with_account();
        let mut text = surface.body("input=1 output=1", false, 100);
        text["messages"][0]["content"] =
            format!("[[sim input=1 output=1]] {}", "pad, ".repeat(15_000)).into();
        assert_eq!(
            world.ask(&surface.request(&account.key, &text)).status,
            200,
            "one long text"
        );
        let mut members = surface.body("input=1 output=1", false, 100);
        for number in 0..5_000 {
            members[format!("unknown-{number}")] = number.into();
        }
        assert!(members.to_string().len() < 131_072);
        let failed = world.ask(&surface.request(&account.key, &members));
        assert_eq!(failed.status, 500, "many values: {}", failed.text());
        assert!(world.log().contains("CpuJob"));
    }
    // Of a coded body nobody knows how long it takes.
    let (world, account) = Plan::default()
        .environment("GW_FAIL", "panic@cpu_job")
        .with_account();
    let failed = world.ask(&count_coded(&account.key, &count_body(1, 1)));
    assert_eq!(failed.status, 500, "a coded body: {}", failed.text());
    assert!(world.log().contains("CpuJob"));
    world.expect(200, &count(&account.key, count_body(1, 1)));
}

#[test]
fn a_text_of_escapes_is_work_for_the_pool_only_if_it_is_translated() {
    for (surface, model, status) in [(Messages, Chat, 500), (Chat, Chat, 200)] {
        let (world, account) = Plan::default()
            .environment("GW_FAIL", "panic@cpu_job")
            .with_account();
        let mut body = surface.body("input=1 output=1", false, 100);
        body["model"] = model.model().into();
        body["messages"][0]["content"] =
            format!("[[sim input=1 output=1]] {}", "\n".repeat(60_000)).into();
        let answer = world.ask(&surface.request(&account.key, &body));
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}

#[test]
fn a_panic_in_the_work_on_a_large_body_is_answered_and_logged_with_the_request() {
    for surface in BOTH {
        let (world, account) = Plan::default()
            .environment("GW_FAIL", "panic@cpu_job")
            .with_account();
        let mut body = surface.body("input=1 output=1", false, 100);
        body["messages"][0]["content"] =
            format!("[[sim input=1 output=1]] {}", "pad ".repeat(80_000)).into();
        let request = surface.request(&account.key, &body);
        let failed = world.ask(&request);
        surface.fails_as(&failed, INTERNAL_ERROR);
        let log = world.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|line| line.contains("panic in"))
            .collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert!(
            lines[0].contains(&failed.request_id()) && lines[0].contains("CpuJob"),
            "{}",
            lines[0]
        );
        // The panic released the job's slot.
        world.expect(200, &request);
    }
}

/// A token count that keeps a thread busy for a while.
fn slow_count(key: &str) -> Request {
    count_coded(key, &count_body(30_000, 100))
}

#[test]
fn jobs_past_the_queues_bound_or_its_deadline_are_refused_and_may_come_again() {
    for (limit, value) in [
        ("cpu_queue_per_account", 1),
        ("cpu_queue", 1),
        ("cpu_queue_seconds", 1),
    ] {
        let (world, account) = Plan::default()
            .limit("cpu_threads", 1)
            .limit(limit, value)
            .with_account();
        let request = slow_count(&account.key).bytes();
        let open: Vec<_> = (0..12)
            .map(|_| {
                let mut connection = world.connect();
                assert!(connection.send(&request));
                connection
            })
            .collect();
        let answers: Vec<_> = open
            .into_iter()
            .map(|mut connection| connection.answer())
            .collect();
        let (served, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == 200);
        // A fast machine may complete all twelve within the deadline.
        assert!(
            !served.is_empty() && (!refused.is_empty() || limit == "cpu_queue_seconds"),
            "{limit}"
        );
        for answer in &refused {
            Messages.failure(answer, 529, "overloaded_error", None);
            assert_eq!(answer.header("retry-after"), Some("2"));
        }
        assert_eq!(
            world.metric("gateway_rejected_total", &["reason=\"cpu_queue\""]),
            refused.len() as f64
        );
        world.expect(200, &slow_count(&account.key));
    }
}

#[test]
fn a_full_queue_refuses_large_bodies_on_every_surface() {
    let (world, account) = Plan::default()
        .limit("cpu_threads", 1)
        .limit("cpu_queue", 1)
        .with_account();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        // One job runs and one waits.
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    world.ask(&slow_count(&account.key));
                }
            });
        }
        wait_until("a job to wait", SOON, || {
            world.metric("gateway_cpu_jobs_waiting", &[]) >= 1.0
        });
        let body = String::from_utf8(count_body(30_000, 100)).unwrap();
        let refused = Case::on_all("CpuQueueFull", &account.key, |_| body.clone());
        may_reach_clients(&world, &[200, 400, 402], || refused.to_vec());
    });
}

#[test]
fn jobs_of_clients_that_left_are_not_begun() {
    let (world, account) = Plan::default()
        .limit("cpu_threads", 1)
        .limit("cpu_queue_seconds", 600)
        .with_account();
    let request = slow_count(&account.key).bytes();
    let open: Vec<_> = (0..8)
        .map(|_| {
            let mut connection = world.connect();
            assert!(connection.send(&request));
            connection
        })
        .collect();
    wait_until("jobs to wait", SOON, || {
        world.metric("gateway_cpu_jobs_waiting", &[]) >= 6.0
    });
    drop::<Vec<Connection>>(open);
    // One job runs. The gateway discards the waiting ones, which takes far less CPU time than
    // running them one after the other.
    let cpu_seconds_of_one_more = || {
        let before = world.metric("process_cpu_seconds_total", &[]);
        world.expect(200, &slow_count(&account.key));
        world.metric("process_cpu_seconds_total", &[]) - before
    };
    let (behind, alone) = (cpu_seconds_of_one_more(), cpu_seconds_of_one_more());
    assert!(behind < alone * 5.0, "{behind} s beside {alone} s");
    assert_eq!(world.metric("gateway_cpu_jobs_waiting", &[]), 0.0);
}

/// Long jobs of many accounts, one after the other in one thread, and a coded body that is short.
#[test]
fn a_short_body_with_a_coding_does_not_wait_for_long_ones() {
    let large = gzip(&count_body(60_000, 450));
    // Less than 2 MiB, whose values take long to read.
    let many_values = count_body(60_000, 1);
    for (long, coding) in [(large, "gzip"), (many_values, "identity")] {
        let (world, account) = Plan::default()
            .limit("cpu_threads", 1)
            .limit("cpu_queue_seconds", 600)
            .with_account();
        let many = (0..8).map(|number| world.account_with(&format!("{number}@example.test"), &[]));
        let requests: Vec<_> = many
            .map(|other| {
                count(&other.key, long.clone())
                    .header("content-encoding", coding)
                    .bytes()
            })
            .collect();
        let open: Vec<_> = requests
            .iter()
            .map(|request| {
                let mut connection = world.connect();
                assert!(connection.send(request));
                connection
            })
            .collect();
        let waiting = || world.metric("gateway_cpu_jobs_waiting", &[]);
        wait_until("jobs to wait", SOON, || waiting() >= 4.0);
        let short = count_coded(&account.key, &count_body(1, 1));
        world.expect(200, &short);
        assert!(waiting() >= 1.0, "the short body came after all long ones");
        drop::<Vec<Connection>>(open);
    }
}

#[test]
fn requests_that_wait_for_a_long_job_are_answered_in_a_drain() {
    let mut world = Plan::default()
        .limit("cpu_threads", 1)
        .limit("drain_seconds", 1)
        .start();
    // Too many values for a short job, which finds that out by reading.
    let body = count_body(30_000, 1);
    let accounts = (0..10).map(|number| world.account_with(&format!("{number}@example.test"), &[]));
    let requests: Vec<_> = accounts
        .map(|account| count(&account.key, body.clone()).bytes())
        .collect();
    let open: Vec<_> = (0..40)
        .map(|number| {
            let mut connection = world.connect();
            assert!(connection.send(&requests[number % requests.len()]));
            connection
        })
        .collect();
    wait_until("jobs to wait", SOON, || {
        world.metric("gateway_cpu_jobs_waiting", &[]) >= 4.0
    });
    // A drain closes a connection whose request has not arrived yet.
    wait_for("all requests to have arrived", SOON, || {
        let waiting = world.metric("gateway_cpu_jobs_waiting", &[]);
        let ended = world.metric("gateway_requests_total", &[]);
        // One runs.
        (waiting + ended + 1.0 >= 40.0).then_some(())
    });
    world.signal("TERM");
    let mut broken = 0;
    for mut connection in open {
        let Some(answer) = connection.try_answer() else {
            broken += 1;
            continue;
        };
        assert!(
            answer.status == 200 || answer.header("retry-after").is_some(),
            "{}",
            answer.text()
        );
    }
    // Nothing interrupts the jobs that run, one short and one long. On a busy machine they may take
    // longer than the grace.
    assert!(broken <= 2, "{broken} broken connections");
    world.wait_end(SOON);
    world.start_gateway();
}

/// Sends the request in a loop until `stop`, whatever the answers are.
fn attack(world: &World, request: &[u8], stop: &AtomicBool, answered: &AtomicU64) {
    let mut connection = world.connect();
    while !stop.load(Ordering::Relaxed) {
        let answer: Option<Answer> = connection
            .send(request)
            .then(|| connection.try_answer())
            .flatten();
        match answer {
            Some(answer) => {
                assert!(
                    matches!(answer.status, 200 | 400 | 402 | 413 | 429 | 529),
                    "{}",
                    answer.text()
                );
                answered.fetch_add(1, Ordering::Relaxed);
                if answer.header("connection") == Some("close") {
                    connection = world.connect();
                }
            }
            None => connection = world.connect(),
        }
    }
}

/// Six loops of one account. Each sends few compressed bytes that expand to many MiB of messages,
/// to an endpoint that costs nothing.
#[test]
fn large_bodies_of_one_account_do_not_hold_up_the_requests_of_another() {
    let (world, attacker) = World::with_account();
    let bystander = Bystander::new(&world);
    // One body has nearly the maximum number of values and of bytes. The other has far more values
    // than the limit.
    let bodies = [count_body(60_000, 450), count_body(1_000_000, 1)];
    let bodies = bodies.map(|body| count_coded(&attacker.key, &body).bytes());
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for index in 0..6 {
            let (world, body, stop, answered) = (&world, &bodies[index % 2], &stop, &answered);
            scope.spawn(move || attack(world, body, stop, answered));
        }
        let _stop = StopOnDrop(&stop);
        wait_until("the attack to begin", SOON, || {
            answered.load(Ordering::Relaxed) >= 2
        });
        bystander.endures(&world, "six loops of token counts of large bodies", |_| ());
    });
    println!("{} answers to the attack", answered.into_inner());
    for gauge in ["gateway_cpu_jobs_waiting", "gateway_bodies_in_flight_bytes"] {
        wait_until(gauge, SOON, || world.metric(gauge, &[]) == 0.0);
    }
    world.close();
}
