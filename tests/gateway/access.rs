//! The access log line and the `server-timing` response header of each request.

use crate::account::micro;
use crate::client::Request;
use crate::surface::{BOTH, Chat, Messages};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use tempfile::TempDir;

/// A world whose gateway writes an access log, the path of that log, and the directory that holds
/// only the log.
pub fn logging() -> (World, PathBuf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let store = "store: {kind: embedded}";
    let world = Plan::default()
        .edit(
            store,
            &format!("{store}\naccess_log: {:?}", path.display().to_string()),
        )
        .start();
    (world, path, dir)
}

fn lines(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The log lines by request id. Waits for `count` lines and fails if there are more.
fn by_request(path: &PathBuf, count: usize) -> HashMap<String, Value> {
    let lines = wait_for("every request to be told", SOON, || {
        Some(lines(path)).filter(|lines| lines.len() >= count)
    });
    assert_eq!(lines.len(), count, "{lines:#?}");
    let by_request: HashMap<_, _> = lines
        .into_iter()
        .map(|line| (line["request_id"].as_str().unwrap().to_owned(), line))
        .collect();
    assert_eq!(by_request.len(), count, "a request is told twice");
    by_request
}

#[test]
fn every_request_has_one_line_that_says_what_it_cost_and_no_secret() {
    let (world, path, _dir) = logging();
    let account = world.account();
    let mut told = Vec::new();
    for surface in BOTH {
        for (request, stream) in [
            (surface.whole(&account.key, "input=7 output=9"), false),
            (surface.stream(&account.key, "input=7 output=9"), true),
        ] {
            let answer = world.ask(&request);
            assert_eq!(answer.status, 200);
            told.push((answer.request_id(), surface, stream));
        }
    }
    let refused = world.ask(&Chat.whole(&format!("{}x", account.key), "CANARY"));
    let lost = world.ask(&Request::get("/v1/none?CANARY=1").bearer(&account.key));
    let failed = world.ask(&Messages.whole(&account.key, "status=500"));
    let page = world.ask(&Request::get("/docs?CANARY=1"));
    assert_eq!(
        (refused.status, lost.status, failed.status, page.status),
        (401, 404, 500, 200)
    );
    let lines = by_request(&path, told.len() + 4);
    for (request_id, surface, stream) in told {
        let line = &lines[&request_id];
        let receipt = world.receipt(&account, &request_id);
        assert_eq!(line["credits"], receipt["credits"], "{line}");
        assert_eq!(micro(&line["credits"]), surface.cost(7, 9));
        for (member, value) in [
            ("route", Value::from("api")),
            ("handler", "call".into()),
            ("outcome", "completed".into()),
            ("status", 200.into()),
            ("model", surface.model().into()),
            ("stream", stream.into()),
            ("attempts", 1.into()),
            ("account", account.id.as_str().into()),
            ("client", "127.0.0.1".into()),
        ] {
            assert_eq!(line[member], value, "{member} in {line}");
        }
        let us = |member: &str| {
            line[member]
                .as_u64()
                .unwrap_or_else(|| panic!("{member} in {line}"))
        };
        let to_header = us("auth_us") + us("body_us") + us("admit_us") + us("vendor_us");
        assert!(to_header <= us("total_us") + 4, "{line}");
        assert!(to_header <= us("first_byte_us") + 4, "{line}");
    }
    let line = |answer: &crate::client::Answer| &lines[&answer.request_id()];
    assert_eq!(
        (&line(&refused)["reason"], line(&refused).get("account")),
        (&"bad_key".into(), None)
    );
    assert_eq!(
        (&line(&lost)["handler"], &line(&lost)["status"]),
        (&"rejected".into(), &404.into())
    );
    assert_eq!(
        (&line(&failed)["outcome"], &line(&failed)["credits"]),
        (&"vendor_error".into(), &"0".into())
    );
    assert_eq!(line(&page)["route"], "page");
    assert_eq!(line(&page).get("surface"), None);
    let text = std::fs::read_to_string(&path).unwrap();
    for secret in [
        account.key.as_str(),
        "CANARY",
        "hello",
        "sim-alpha-key",
        "sim-beta-key",
    ] {
        assert!(!text.contains(secret), "{secret} is in the access log");
    }
    world.close();
}

#[test]
fn a_line_has_the_method_and_the_path_and_nothing_in_it_that_is_secret() {
    let (world, path, _dir) = logging();
    let account = world.account();
    let long = format!("/v1/{}", "a/".repeat(200));
    let asked = [
        (
            Request::get("/v1/none?token=CANARY"),
            "GET",
            "/v1/none".to_owned(),
        ),
        (
            Request::get(&format!("/v1/{}/x", account.key)),
            "GET",
            "/v1/[masked]/x".to_owned(),
        ),
        (
            Request::new("PATCH", "/v1/chat/completions"),
            "PATCH",
            "/v1/chat/completions".to_owned(),
        ),
        (Request::get(&long), "GET", long[..128].to_owned()),
        (Request::get("/a%0ab"), "GET", "/a%0ab".to_owned()),
        (Request::get("/docs"), "GET", "/docs".to_owned()),
    ];
    let answers: Vec<_> = asked
        .iter()
        .map(|(request, ..)| world.ask(request).request_id())
        .collect();
    // A request that Pingora rejects.
    let mut connection = world.connect();
    connection.send(b"GET /v1/\x1b[0m HTTP/1.1\r\nbad field: 1\r\n\r\n");
    let malformed = connection.answer().request_id();
    let lines = by_request(&path, asked.len() + 1);
    for ((_, method, path), id) in asked.iter().zip(&answers) {
        assert_eq!(
            (lines[id]["method"].as_str(), lines[id]["path"].as_str()),
            (Some(*method), Some(path.as_str()))
        );
    }
    let line = &lines[&malformed];
    assert_eq!(
        (&line["route"], &line["path"]),
        (&"malformed".into(), &"/v1/\\x1b[0m".into()),
        "{line}"
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("CANARY") && !text.contains(&account.key),
        "{text}"
    );
    world.close();
}

#[test]
fn a_client_that_left_has_a_line_and_the_last_lines_are_written_before_the_end() {
    let (mut world, path, _dir) = logging();
    let account = world.account();
    let (mut connection, mut answer) =
        world.begin(&Chat.stream(&account.key, "events=50 gap_ms=100"));
    connection.until(&mut answer, "data:");
    drop(connection);
    world.wait_metric("gateway_open_holds", &[], 0.0);
    let last = world.works(Messages, &account.key);
    world.leave();
    let lines = by_request(&path, 2);
    assert_eq!(lines[&answer.request_id()]["outcome"], "client_left");
    assert_eq!(lines[&last.request_id()]["outcome"], "completed");
    crate::account::audit(&world);
}

#[test]
fn a_log_that_was_moved_away_is_begun_anew_at_a_hangup() {
    let (world, path, _dir) = logging();
    let account = world.account();
    let first = world.works(Chat, &account.key);
    by_request(&path, 1);
    let moved = path.with_extension("1");
    std::fs::rename(&path, &moved).unwrap();
    world.signal("HUP");
    wait_until("a new file", SOON, || path.exists());
    let second = world.works(Chat, &account.key);
    assert!(by_request(&moved, 1).contains_key(&first.request_id()));
    assert!(by_request(&path, 1).contains_key(&second.request_id()));
    world.close();
}

#[test]
fn an_answer_says_where_its_time_went() {
    let (world, account) = World::with_account();
    for surface in BOTH {
        for request in [
            surface.whole(&account.key, "delay_ms=120"),
            surface.stream(&account.key, "delay_ms=120"),
        ] {
            let answer = world.ask(&request);
            let timing = answer
                .header("server-timing")
                .expect("a server-timing header")
                .to_owned();
            let parts: Vec<_> = timing
                .split(", ")
                .map(|part| part.split_once(";dur=").expect("a duration"))
                .collect();
            assert_eq!(
                parts.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
                ["auth", "body", "admit", "vendor"]
            );
            let ms = parts
                .iter()
                .map(|(_, ms)| ms.parse::<f64>().unwrap())
                .collect::<Vec<_>>();
            assert!(
                ms[3] >= 100.0 && ms[..3].iter().all(|ms| *ms < 20_000.0),
                "{timing}"
            );
        }
    }
    assert_eq!(
        world
            .ask(&Chat.whole("gw-sk-none", ""))
            .header("server-timing"),
        None
    );
}
