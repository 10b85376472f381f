//! Every row of the failure table reaches a client that waits for `100 Continue` before it sends
//! its body, as curl does with a body of more than a megabyte.

use crate::client::Connection;
use crate::surface::{Chat, Messages};
use crate::world::{Plan, SOON, Simulator, World, wait_for};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const TABLE: &str = include_str!("../../crates/llm-protocol/src/failure/table.txt");
const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// Rows that no request of this test brings about, and why.
const ELSEWHERE: [(&str, &str); 26] = [
    ("NoWebSocket", "answers a GET"),
    ("MemberBudget", "`limits.rs`: needs an organisation"),
    ("FreeRequests", "`free_requests.rs`: no surface is free"),
    ("KeyLookups", "`revocation.rs`: needs a shared store"),
    ("AccountBodies", "`announced_bodies.rs`: needs many bodies"),
    ("ConnectionBodies", "`announced_bodies.rs`: needs HTTP/2"),
    ("BodiesFull", "`announced_bodies.rs`: needs many bodies"),
    (
        "HeaderTooLarge",
        "`malformed.rs`: before any `100 Continue`",
    ),
    ("BodyTimeout", "`bodies.rs`, also with `Expect`"),
    ("ThreadUnsupported", "`tenancy.rs`: one surface has threads"),
    ("IdempotencyResultUnavailable", "`idempotency.rs`"),
    ("UpstreamClosed", "`failure.rs`: in a stream that has begun"),
    (
        "UpstreamEventTooLarge",
        "`failure.rs`: in a stream that has begun",
    ),
    ("CpuQueueFull", "`large_bodies.rs`: needs busy threads"),
    (
        "MemoryShort",
        "`overload.rs`: needs a process without memory",
    ),
    (
        "FilesShort",
        "`overload.rs`: needs a process without descriptors",
    ),
    ("TooManyPages", "answers pages"),
    ("TooManyPagesOfAddress", "answers pages"),
    ("TooManyLiveStreams", "answers pages"),
    ("TooManyLiveStreamsOfAddress", "answers pages"),
    ("Draining", "`shutdown.rs`, also with `Expect`"),
    ("LedgerBacklog", "`backlog.rs`: needs a slow ledger"),
    ("ReceiptArchived", "answers a GET"),
    ("VendorNotFound", "`vendor_refusals.rs`"),
    ("Internal", "`panics.rs`, also with `Expect`"),
    (
        "LedgerUnavailable",
        "`frozen_disk.rs`: needs a disk that hangs",
    ),
];

/// The body of a request to a path.
type BodyOfPath = fn(&str) -> String;

/// A request and the row that answers it.
struct Case {
    row: &'static str,
    path: &'static str,
    key: String,
    header: &'static str,
    body: String,
    /// Whether the vendor answers. The access log has the reasons of the gateway's own answers.
    is_vendors: bool,
}

impl Case {
    fn new(row: &'static str, path: &'static str, key: &str, body: String) -> Self {
        let (key, header, is_vendors) = (key.to_owned(), "", false);
        Self {
            row,
            path,
            key,
            header,
            body,
            is_vendors,
        }
    }

    /// Lets the simulated vendor give the answer.
    fn of_vendor(self) -> Self {
        let is_vendors = true;
        Self { is_vendors, ..self }
    }

    /// One for each surface. `body` gets the path.
    fn on_all(row: &'static str, key: &str, body: impl Fn(&str) -> String) -> [Self; 3] {
        PATHS.map(|path| Self::new(row, path, key, body(path)))
    }
}

/// A body that makes the simulated vendor behave as `marker` says. All go to one vendor.
fn body(path: &str, marker: &str) -> Value {
    let text = format!("[[sim {marker}]] hello");
    let mut body = match path {
        "/v1/responses" => json!({"input": text, "max_output_tokens": 1_000}),
        "/v1/messages" => Messages.body(marker, false, 1_000),
        _ => Chat.body(marker, false, 1_000),
    };
    body["model"] = Chat.model().into();
    body
}

/// The row's status on this path, and its reason in the access log.
fn due(case: &Case) -> (u16, &'static str) {
    let rows = TABLE.lines().skip(1);
    let mut rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let row = rows.find(|row| row[0] == case.row).expect("a row");
    let column = if case.path == "/v1/messages" {
        row[2]
    } else {
        row[1]
    };
    let status = column.split(' ').next().unwrap();
    let reason = if case.is_vendors { "" } else { row[3] };
    (status.parse().unwrap(), reason)
}

/// Sends these requests with curl, each with this `expect` field. Returns the statuses and the
/// reasons in the access log.
fn curl(world: &World, log: &Path, expect: &str, cases: &[Case]) -> Vec<(u16, String)> {
    let mut config = String::new();
    for (index, case) in cases.iter().enumerate() {
        let file = world.dir.path().join(format!("body-{index}"));
        std::fs::write(&file, &case.body).unwrap();
        let next = if index == 0 { "" } else { "next\n" };
        let key = match case.key.as_str() {
            "" => String::new(),
            key => format!("header = \"x-api-key: {key}\"\n"),
        };
        let header = match case.header {
            "" => String::new(),
            header => format!("header = \"{header}\"\n"),
        };
        write!(
            config,
            "{next}url = \"http://127.0.0.1:{}{}\"\nsilent\nmax-time = 60\nexpect100-timeout = 60\n\
             {key}{header}header = \"expect:{expect}\"\noutput = \"/dev/null\"\n\
             data-binary = \"@{}\"\nwrite-out = \"%{{http_code}} %header{{x-request-id}}\\n\"\n",
            world.edge,
            case.path,
            file.display()
        )
        .unwrap();
    }
    let file = world.dir.path().join("curl");
    std::fs::write(&file, config).unwrap();
    let output = Command::new("curl").arg("--config").arg(file).output();
    let answers = String::from_utf8(output.unwrap().stdout).unwrap();
    let answers: Vec<_> = answers
        .lines()
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .collect();
    let reasons = wait_for("every answer to be logged", SOON, || {
        let text = std::fs::read_to_string(log).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let reasons: HashMap<_, _> = lines
            .filter_map(|line| {
                let id = line["request_id"].as_str()?.to_owned();
                Some((id, line["reason"].as_str().unwrap_or_default().to_owned()))
            })
            .collect();
        let is_logged = |(_, id): &(&str, &str)| id.is_empty() || reasons.contains_key(*id);
        answers.iter().all(is_logged).then_some(reasons)
    });
    answers
        .into_iter()
        .map(|(status, id)| {
            let reason = reasons.get(id).cloned().unwrap_or_default();
            (status.parse().unwrap(), reason)
        })
        .collect()
}

#[track_caller]
fn are_answered(world: &World, log: &Path, cases: &[Case]) {
    // The control: curl sends the body at once.
    for expect in ["", " 100-continue"] {
        let answers = curl(world, log, expect, cases);
        assert_eq!(answers.len(), cases.len());
        let wrong: Vec<_> = cases
            .iter()
            .zip(&answers)
            .filter(|(case, (status, reason))| due(case) != (*status, reason.as_str()))
            .map(|(case, answer)| (case.row, case.path, due(case), answer))
            .collect();
        assert!(wrong.is_empty(), "expect:{expect} {wrong:?}");
    }
}

/// Begins requests that the vendor does not answer before it is released.
fn hold(world: &World, requests: impl Iterator<Item = Case>) -> Vec<Connection> {
    // One by one, because a request that arrives counts too.
    let held: Vec<_> = requests
        .zip(1..)
        .map(|(case, count)| {
            let request = crate::client::Request::post(case.path, case.body).bearer(&case.key);
            let request = match case.header.split_once(": ") {
                Some((name, value)) => request.header(name, value),
                None => request,
            };
            let mut connection = world.connect();
            assert!(connection.send(&request.bytes()));
            world.vendor.wait_busy(count);
            connection
        })
        .collect();
    held
}

#[test]
fn a_client_that_waits_for_100_continue_gets_every_failure_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = ("store: {kind: embedded}", dir.path().join("access.log"));
    let mut world = Plan::default()
        .limit("cool_down_max_seconds", 0)
        .limit("open_requests_per_account", 6)
        .trial_days("0.00001")
        .edit(
            store,
            &format!("{store}\naccess_log: {:?}", log.display().to_string()),
        )
        .start();
    let [rich, busy, suspended] = ["rich", "busy", "suspended"].map(|name| {
        let account = world.account_with(&format!("{name}@example.test"), &[]);
        world.grant(&account, "1000", name);
        account
    });
    world.json(&["account", "suspend", &suspended.email]);
    let trial = world.account_with("trial@example.test", &[]);
    let poor = world.account_with("poor@example.test", &["--no-trial"]);
    let key = |settings: &[&str]| {
        let create = ["key", "create", "--account", &rich.id, "--name", "limited"];
        let made = world.json(&[&create[..], settings].concat());
        made["key"].as_str().unwrap().to_owned()
    };
    let expired = key(&["--expires-in", "1s"]);
    let disabled = world.key(&rich.id, "disabled");
    world.json(&["key", "disable", &disabled.0]);
    let per_minute = key(&["--requests-per-minute", "1"]);
    let tokens = key(&["--tokens-per-minute", "1"]);
    let concurrent = key(&["--concurrent", "1"]);

    let plain = |path: &str| body(path, "input=1 output=1").to_string();
    let mut cases = Vec::new();
    let statuses = [
        ("status=400", "InvalidRequest"),
        ("status=400 error_body=context", "ContextTooLong"),
        ("status=400 error_body=policy", "ContentPolicy"),
        ("status=401", "VendorRefusedUs"),
        ("status=402", "VendorQuota"),
        ("status=404", "VendorModelMissing"),
        ("status=408", "VendorRequestTimeout"),
        ("status=409", "Conflict"),
        ("status=413", "BodyTooLarge"),
        ("status=422", "Unprocessable"),
        ("status=429", "RateLimited"),
        ("status=500", "UpstreamFailed"),
        ("status=504", "UpstreamTimeout"),
        ("status=529", "Overloaded"),
    ];
    for (marker, row) in statuses {
        let of = |path: &str| body(path, marker).to_string();
        cases.extend(Case::on_all(row, &rich.key, of).map(Case::of_vendor));
    }
    // Of a size for which curl waits by itself.
    let large = "x".repeat(1_100_000);
    let large = |path: &str| body(path, &format!("status=400]] {large}")).to_string();
    let large = Case::on_all("InvalidRequest", &rich.key, large);
    cases.extend(large.map(Case::of_vendor));
    let cut = |path: &str| body(path, "cut=1").to_string();
    cases.extend(Case::on_all("UpstreamFailed", &rich.key, cut));
    let keys = [
        ("MissingKey", ""),
        ("BadKey", "gw-sk-unknown"),
        ("KeyExpired", &expired),
        ("KeyDisabled", &disabled.1),
        ("AccountSuspended", &suspended.key),
        ("ModelNotAllowed", &key(&["--models", "alpha-opus-4-7"])),
        ("InsufficientCredits", &poor.key),
        ("TrialExpired", &trial.key),
        ("KeySpendLimit", &key(&["--spend-limit", "0/day"])),
        ("RequestsPerMinute", &per_minute),
        ("TokensPerMinute", &tokens),
        ("Concurrent", &concurrent),
        ("TooManyOpen", &busy.key),
    ];
    for (row, key) in keys {
        cases.extend(Case::on_all(row, key, plain));
    }
    let bodies: [(_, BodyOfPath); 3] = [
        ("InvalidRequest", |_| "nonsense".to_owned()),
        ("ModelNotFound", |_| json!({"model": "none"}).to_string()),
        ("UnpricedFeature", |path| {
            let mut body = body(path, "");
            body["service_tier"] = "flex".into();
            if path == "/v1/messages" {
                body["model"] = Messages.model().into();
                body["tools"] = json!([{"type": "web_search_20250305", "name": "web_search"}]);
                body.as_object_mut().unwrap().remove("service_tier");
            }
            body.to_string()
        }),
    ];
    for (row, body) in bodies {
        cases.extend(Case::on_all(row, &rich.key, body));
    }
    let running = |row, body: &dyn Fn(&str) -> String| {
        let cases = Case::on_all(row, &rich.key, body);
        cases.map(|case| Case {
            header: "idempotency-key: running",
            ..case
        })
    };
    let held_body = |path: &str| body(path, "hold=headers input=1 output=1").to_string();
    cases.extend(running("IdempotencyRunning", &held_body));
    cases.extend(running("IdempotencyConflict", &plain));
    for (row, path) in [
        ("UnknownPath", "/v1/nowhere"),
        ("NotSupported", "/v1/videos"),
        ("WrongMethod", "/v1/models"),
    ] {
        cases.push(Case::new(row, path, &rich.key, plain("")));
    }

    for key in [&per_minute, &tokens] {
        let first = world.ask(&Chat.whole(key, "input=1 output=1"));
        assert_eq!(first.status, 200, "{}", first.text());
    }
    let of_busy = (0..6).map(|_| Case::new("", PATHS[0], &busy.key, held_body(PATHS[0])));
    let of_key = [Case::new("", PATHS[0], &concurrent, held_body(PATHS[0]))];
    let of_keyed = running("", &held_body);
    let held = hold(&world, of_busy.chain(of_key).chain(of_keyed));
    wait_for("the key to expire", SOON, || {
        let models = crate::client::Request::get("/v1/models").bearer(&expired);
        (world.ask(&models).status == 401).then_some(())
    });
    are_answered(&world, &log, &cases);
    world.vendor.release();
    drop(held);
    // Nobody listens at the old vendor's port.
    world.vendor = Simulator::start(None);
    let unreachable = Case::on_all("UpstreamUnreachable", &rich.key, plain);
    are_answered(&world, &log, &unreachable);
    world.close();

    let rows = TABLE
        .lines()
        .skip(1)
        .map(|row| row.split(' ').next().unwrap());
    let tried = cases.iter().chain(&unreachable).map(|case| case.row);
    let known: Vec<_> = tried
        .collect::<BTreeSet<_>>()
        .into_iter()
        .chain(ELSEWHERE.map(|(row, _)| row))
        .collect();
    let mut untold: Vec<_> = rows.clone().filter(|row| !known.contains(row)).collect();
    untold.extend(
        known
            .iter()
            .filter(|row| !rows.clone().any(|known| known == **row)),
    );
    assert!(
        untold.is_empty(),
        "a row is neither tried nor named: {untold:?}"
    );
}
