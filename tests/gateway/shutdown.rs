//! Tests signals: a drain finishes running requests and accepts no new ones, and a reload of an
//! invalid config changes nothing.

use crate::account::micro;
use crate::client::{self, Connection, End, Request};
use crate::failure_table::Unfinished;
use crate::surface::{BOTH, Chat, DRAINING, Messages};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn an_idle_gateway_ends_at_once() {
    for signal in ["TERM", "INT"] {
        let (mut world, account) = World::with_account();
        // An idle keep-alive connection does not delay the end.
        let mut idle = world.connect();
        let request = Chat.whole(&account.key, "input=10 output=10");
        let request = request.header("idempotency-key", "k");
        assert_eq!(idle.ask(&request).status, 200);
        let began = Instant::now();
        world.signal(signal);
        assert_eq!(world.wait_end(SOON), 0);
        // It takes a moment. The idle connection would delay the end by `keepalive_seconds`, which
        // is more than a minute, and a drain lasts up to two.
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{signal}: {:?}",
            began.elapsed()
        );
        assert!(
            world
                .data_dir()
                .join("journal")
                .read_dir()
                .unwrap()
                .next()
                .is_none(),
            "a journal was left behind"
        );
        let files = world.data_dir().read_dir().unwrap().map(Result::unwrap);
        let logs: Vec<_> = files
            .filter(|file| file.file_name().to_string_lossy().ends_with("-wal"))
            .filter(|log| log.metadata().unwrap().len() > 0)
            .map(|log| log.file_name())
            .collect();
        assert!(logs.is_empty(), "files that lack their logs: {logs:?}");
        world.start_gateway();
        assert_eq!(world.endings(&account).len(), 1);
    }
}

#[test]
fn each_process_with_personal_data_has_a_thread_that_empties_the_logs_of_databases() {
    let (alone, edge) = (World::new(), Plan::default().shared().start());
    let sidecar = &edge.beside.as_ref().unwrap().sidecar;
    for (world, has_data) in [(&alone, true), (sidecar, true), (&edge, false)] {
        assert_eq!(world.has_thread("database-logs"), has_data);
    }
}

#[test]
fn a_drain_finishes_the_running_streams_and_takes_nothing_new() {
    let (mut world, account) = World::with_account();
    let streams = BOTH.map(|surface| {
        let (connection, answer) = world
            .begin_stream(&surface.stream(&account.key, "events=20 hold=5 input=100 output=40"));
        (surface, connection, answer)
    });
    let mut waiting = world.connect();
    waiting.send(
        &Chat
            .whole(&account.key, "hold=headers input=100 output=40")
            .bytes(),
    );
    wait_until("three calls", SOON, || world.vendor.calls() == 3);
    let mut idle = world.connect();
    assert_eq!(
        idle.ask(&Request::get("/v1/credits").bearer(&account.key))
            .status,
        200
    );
    world.signal("TERM");
    wait_until("readiness to end", SOON, || {
        client::try_ask(world.admin, &Request::get("/readyz"))
            .is_some_and(|answer| answer.status == 503)
    });
    assert_eq!(
        client::ask(world.admin, &Request::get("/healthz")).status,
        200
    );
    // New connections are refused, or get the answer that the gateway is draining.
    for surface in BOTH {
        let Some(mut connection) = Connection::try_open(world.edge) else {
            continue;
        };
        connection.send(&surface.whole(&account.key, "input=1").bytes());
        if let Some(answer) = connection.try_answer() {
            surface.fails_as(&answer, DRAINING);
            assert!(answer.header("retry-after").is_some());
        }
    }
    idle.send(&Chat.whole(&account.key, "input=1").bytes());
    assert!(idle.try_answer().is_none_or(|answer| answer.status == 503));
    world.vendor.release();
    for (surface, mut connection, mut answer) in streams {
        surface.completes(&mut connection, &mut answer);
    }
    assert_eq!(waiting.answer().status, 200);
    assert_eq!(world.wait_end(SOON), 0);
    assert_eq!(world.vendor.calls(), 3);
    world.start_gateway();
    let endings = world.endings(&account);
    assert_eq!(endings.len(), 3);
    assert!(
        endings
            .iter()
            .all(|ending| ending["outcome"] == "completed"),
        "{endings:?}"
    );
    let cost = 2 * Chat.cost(100, 40) + Messages.cost(100, 40);
    assert_eq!(world.standing(&account).balance, 300_000_000 - cost);
}

#[test]
fn a_request_whose_body_is_still_coming_is_answered_in_a_drain() {
    let (mut world, account) = World::with_account();
    let request = Chat
        .whole(&account.key, "input=10 output=10")
        .header("expect", "100-continue");
    let mut connection = world.connect();
    connection.send(&request.head());
    assert!(
        connection
            .head()
            .expect("an interim answer")
            .starts_with("HTTP/1.1 100 ")
    );
    world.signal("TERM");
    wait_until("new connections to be refused", SOON, || {
        Connection::try_open(world.edge).is_none()
    });
    connection.send(&request.framed_body());
    let answer = connection
        .try_answer()
        .expect("an answer: 200, or 503 with a wait, but no broken connection");
    assert!(answer.status == 200 || answer.status == 503 && answer.header("retry-after").is_some());
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
}

#[test]
fn a_drain_waits_for_a_client_that_left_too() {
    let (mut world, account) = Plan::default()
        .limit("drain_after_client_seconds", 100)
        .with_account();
    let (mut connection, mut answer) =
        world.begin(&Messages.stream(&account.key, "events=10 gap_ms=400 input=100 output=40"));
    connection.until(&mut answer, "data: {");
    drop(connection);
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    world.start_gateway();
    let receipt = world.receipt(&account, &answer.request_id());
    assert_eq!(
        (receipt["outcome"].as_str(), micro(&receipt["credits"])),
        (Some("client_left"), Messages.cost(100, 40))
    );
}

#[test]
fn what_outlasts_the_drain_ends_with_an_error_and_a_stream_pays_for_what_was_generated() {
    let (mut world, account) = Plan::default().limit("drain_seconds", 2).with_account();
    let marker = "events=200 gap_ms=100 input=100 output=400";
    let body = json!({
        "model": Chat.model(), "stream": true, "max_output_tokens": 1_000, "input": format!("[[sim {marker}]] hello"),
    });
    let responses = Request::post("/v1/responses", body.to_string()).bearer(&account.key);
    let requests = [
        (Chat.stream(&account.key, marker), Chat, Chat.error_frame()),
        (
            Messages.stream(&account.key, marker),
            Messages,
            Messages.error_frame(),
        ),
        (responses, Chat, "event: response.failed\n"),
    ];
    let streams = requests.map(|(request, prices, error)| {
        let (mut connection, mut answer) = world.begin(&request);
        connection.until(&mut answer, "data: {");
        (prices, error, connection, answer)
    });
    let wholes = BOTH.map(|surface| {
        let mut connection = world.connect();
        connection.send(
            &surface
                .whole(&account.key, "delay_ms=20000 input=100 output=40")
                .bytes(),
        );
        (surface, connection)
    });
    let unfinished = Unfinished::begin(&world, &account.key);
    world.wait_metric("gateway_client_connections", &[], 11.0);
    world.vendor.wait_busy(5);
    let began = Instant::now();
    world.signal("TERM");
    let mut ids = Vec::new();
    for (prices, error, mut connection, mut answer) in streams {
        connection.finish(&mut answer);
        let text = answer.text();
        assert!(
            answer.end() != Some(End::Cut),
            "the body has its proper end: {text}"
        );
        let last = text
            .split_once(error)
            .unwrap_or_else(|| panic!("no {error:?} in {text}"))
            .1;
        assert!(
            last.contains("shutting down") && last.len() < 2_000,
            "{last}"
        );
        ids.push((prices, answer.request_id()));
    }
    let mut free = Vec::new();
    for (surface, mut connection) in wholes {
        let answer = connection.answer();
        surface.fails_as(&answer, DRAINING);
        assert!(answer.header("retry-after").is_some());
        free.push(answer.request_id());
    }
    unfinished.are_answered_by("Draining");
    assert_eq!(world.wait_end(SOON), 0);
    assert!(
        began.elapsed() >= Duration::from_millis(1_900),
        "not before its time: {:?}",
        began.elapsed()
    );
    let log = world.log();
    assert!(
        log.trim_end()
            .lines()
            .last()
            .unwrap()
            .contains("11 requests were cut"),
        "{log}"
    );
    world.start_gateway();
    for (surface, id) in ids {
        let receipt = world.receipt(&account, &id);
        assert_eq!(
            receipt["outcome"], "gateway_ended",
            "{surface:?}: {receipt}"
        );
        let credits = micro(&receipt["credits"]);
        assert!(
            credits > 0 && credits < surface.cost(100, 400),
            "{surface:?}: {receipt}"
        );
    }
    for id in free {
        let receipt = world.receipt(&account, &id);
        assert_eq!(
            (receipt["outcome"].as_str(), micro(&receipt["credits"])),
            (Some("interrupted"), 0),
            "{receipt}"
        );
    }
    assert_eq!(world.standing(&account).held, 0);
}

#[test]
fn a_lame_duck_is_unready_and_serves_until_its_time_is_over() {
    // The control: with 0 seconds the listener closes at once.
    for seconds in [0, 6] {
        let (mut world, account) = Plan::default()
            .limit("lame_duck_seconds", seconds)
            .with_account();
        let mut running = world.connect();
        running.send(
            &Chat
                .whole(&account.key, "hold=headers input=10 output=10")
                .bytes(),
        );
        world.vendor.wait_busy(1);
        let began = Instant::now();
        world.signal("TERM");
        let unready = wait_for("readiness to end", SOON, || {
            client::try_ask(world.admin, &Request::get("/readyz"))
                .filter(|answer| answer.status == 503)
        });
        let accepts = || Connection::try_open(world.edge);
        if seconds == 0 {
            assert!(unready.text().contains("draining"), "{}", unready.text());
            wait_until("the listener to close", SOON, || accepts().is_none());
        } else {
            assert!(
                unready.text().contains("about to shut down"),
                "{}",
                unready.text()
            );
            for surface in BOTH {
                let mut connection = accepts().expect("the listener accepts");
                connection.send(&surface.whole(&account.key, "input=10 output=10").bytes());
                let answer = connection.answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
                assert_eq!(
                    answer.header("connection"),
                    Some("close"),
                    "whoever asks again asks another"
                );
            }
            wait_until("the listener to close", SOON, || accepts().is_none());
            assert!(
                began.elapsed() > Duration::from_millis(5_500),
                "{:?}",
                began.elapsed()
            );
        }
        world.vendor.release();
        assert_eq!(running.answer().status, 200);
        assert_eq!(world.wait_end(SOON), 0);
        let log = world.log();
        assert!(
            log.trim_end()
                .lines()
                .last()
                .unwrap()
                .contains("0 were cut"),
            "{log}"
        );
        world.start_gateway();
    }
}

#[test]
fn a_second_signal_ends_the_time_of_a_lame_duck() {
    let mut world = Plan::default().limit("lame_duck_seconds", 60).start();
    world.signal("TERM");
    let unready = || {
        client::try_ask(world.admin, &Request::get("/readyz"))
            .is_some_and(|answer| answer.status == 503)
    };
    wait_until("readiness to end", SOON, unready);
    assert!(Connection::try_open(world.edge).is_some());
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    let config = std::fs::read_to_string(&world.config).unwrap();
    std::fs::write(
        &world.config,
        config.replace("lame_duck_seconds: 60", "lame_duck_seconds: 0"),
    )
    .unwrap();
    world.start_gateway();
}

#[test]
fn a_reload_changes_the_price_of_the_next_request_and_a_bad_file_changes_nothing() {
    let (world, account) = World::with_account();
    let reloads = |result: &str| {
        world.metric(
            "gateway_config_reloads_total",
            &[&format!("result=\"{result}\"")],
        )
    };
    let reload = |text: &str, result: &str| {
        let before = reloads(result);
        std::fs::write(&world.config, text).unwrap();
        world.signal("HUP");
        wait_until("the reload", SOON, || reloads(result) > before);
    };
    let cost = |model_price: (i64, i64)| 1_000 * model_price.0 + 100 * model_price.1;
    let ask = || {
        let answer = world.ask(&Messages.whole(&account.key, "input=1000 output=100"));
        micro(&world.receipt(&account, &answer.request_id())["credits"])
    };
    let shipped = std::fs::read_to_string(&world.config).unwrap();
    let dearer = shipped.replace("output: \"500\"}", "output: \"700\"}");
    assert_ne!(dearer, shipped);
    assert_eq!(ask(), cost((100, 500)));
    // A request is billed at the price under which it was admitted.
    let (mut running, mut answer) =
        world.begin(&Messages.stream(&account.key, "events=10 gap_ms=100 input=1000 output=100"));
    reload(&dearer, "ok");
    assert_eq!(ask(), cost((100, 700)));
    running.finish(&mut answer);
    assert_eq!(
        micro(&world.receipt(&account, &answer.request_id())["credits"]),
        cost((100, 500))
    );
    // Broken config files, one after the other: the higher price stays in force.
    for bad in [
        "",
        "listen: [",
        &dearer.replace("price:", "prize:"),
        &dearer.replace("\"700\"", "\"-700\""),
    ] {
        reload(bad, "refused");
        assert_eq!(ask(), cost((100, 700)));
    }
    // A reload removes models and adds new ones.
    reload(&dearer.replace("id: beta-5.5", "id: beta-6"), "ok");
    let model = |id: &str| {
        world
            .ask(&Request::get(&format!("/v1/models/{id}")).bearer(&account.key))
            .status
    };
    assert_eq!((model("beta-5.5"), model("beta-6")), (404, 200));
    reload(&shipped, "ok");
    assert_eq!(ask(), cost((100, 500)));
    assert_eq!(reloads("refused"), 4.0);
}
