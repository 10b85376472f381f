//! Every row of the failure table reaches a client that waits for `100 Continue` before it sends
//! its body, as curl does with a body of more than a megabyte. The tests here bring about most
//! rows. Those that bring about the others call [`reaches_clients`], [`may_reach_clients`] or
//! [`Unfinished`].

use crate::account::Account;
use crate::client::{Connection, Request};
use crate::surface::{Chat, Messages};
use crate::world::{Plan, SOON, Simulator, World, wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const TABLE: &str = include_str!("../../crates/llm-protocol/src/failure/table.txt");
pub const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// Rows that no POST to a surface gets, and why.
const NOT_OF_SURFACES: [(&str, &str); 6] = [
    ("NoWebSocket", "answers a GET"),
    ("ReceiptArchived", "answers a GET"),
    ("TooManyPages", "answers pages"),
    ("TooManyPagesOfAddress", "answers pages"),
    ("TooManyLiveStreams", "answers pages"),
    ("TooManyLiveStreamsOfAddress", "answers pages"),
];

/// Rows whose cause is a world of its own, and the test that brings each about on all surfaces.
const OF_OTHER_TESTS: [(&str, &str); 11] = [
    ("AccountBodies", include_str!("announced_bodies.rs")),
    ("BodiesFull", include_str!("announced_bodies.rs")),
    ("ConnectionBodies", include_str!("announced_bodies.rs")),
    ("BodyTimeout", include_str!("admission.rs")),
    ("CpuQueueFull", include_str!("large_bodies.rs")),
    ("Draining", include_str!("shutdown.rs")),
    ("FilesShort", include_str!("overload.rs")),
    ("MemoryShort", include_str!("overload.rs")),
    ("KeyLookups", include_str!("revocation.rs")),
    ("LedgerBacklog", include_str!("backlog.rs")),
    ("LedgerUnavailable", include_str!("disk.rs")),
];

/// The body of a request to a path.
type BodyOfPath = fn(&str) -> String;

/// A request and the row that answers it.
#[derive(Clone)]
pub struct Case {
    row: &'static str,
    method: &'static str,
    path: String,
    key: String,
    header: String,
    body: String,
    /// Whether the vendor answers. The access log has the reasons of the gateway's own answers.
    is_vendors: bool,
}

impl Case {
    fn new(row: &'static str, path: &str, key: &str, body: String) -> Self {
        let (path, key) = (path.to_owned(), key.to_owned());
        let (method, header, is_vendors) = ("POST", String::new(), false);
        Self {
            row,
            method,
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

    pub fn with_header(self, header: &str) -> Self {
        let header = header.to_owned();
        Self { header, ..self }
    }

    /// One of this size in bytes for each surface, which would be answered otherwise.
    pub fn of_bytes(row: &'static str, key: &str, bytes: usize) -> [Self; 3] {
        Self::on_all(row, key, |path| {
            let text = plain(path);
            let padding = bytes.saturating_sub(text.len());
            text + &" ".repeat(padding)
        })
    }

    /// One for each surface. `body` gets the path.
    pub fn on_all(row: &'static str, key: &str, body: impl Fn(&str) -> String) -> [Self; 3] {
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
    let column = if case.path.ends_with("/messages") {
        row[2]
    } else {
        row[1]
    };
    let status = column.split(' ').next().unwrap();
    let reason = if case.is_vendors { "" } else { row[3] };
    (status.parse().unwrap(), reason)
}

/// The values of curl's `expect` field. With the first one, the control, it sends the body at once.
const EXPECTS: [&str; 2] = ["", " 100-continue"];

/// Sends these requests with curl, each with this `expect` field. Returns the statuses and the
/// request ids.
fn curl(world: &World, expect: &str, cases: &[Case]) -> Vec<(u16, String)> {
    let mut config = String::new();
    for (index, case) in cases.iter().enumerate() {
        let file = world.dir.path().join(format!("body-{index}"));
        std::fs::write(&file, &case.body).unwrap();
        let next = if index == 0 { "" } else { "next\n" };
        let key = match case.key.as_str() {
            "" => String::new(),
            key => format!("header = \"x-api-key: {key}\"\n"),
        };
        let header = match case.header.as_str() {
            "" => String::new(),
            header => format!("header = \"{header}\"\n"),
        };
        write!(
            config,
            "{next}url = \"http://127.0.0.1:{}{}\"\nrequest = {}\nsilent\nmax-time = 60\nexpect100-timeout = 60\n\
             {key}{header}header = \"expect:{expect}\"\noutput = \"/dev/null\"\n\
             data-binary = \"@{}\"\nwrite-out = \"%{{http_code}} %header{{x-request-id}}\\n\"\n",
            world.edge,
            case.path,
            case.method,
            file.display()
        )
        .unwrap();
    }
    let file = world.dir.path().join("curl");
    std::fs::write(&file, config).unwrap();
    let output = Command::new("curl").arg("--config").arg(file).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let answers = output.lines().map(|line| {
        let (status, id) = line.split_once(' ').unwrap_or((line, ""));
        (status.parse().unwrap(), id.to_owned())
    });
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), cases.len(), "{output}");
    answers
}

/// The reasons in the access log for these answers.
fn reasons(log: &Path, answers: &[(u16, String)]) -> Vec<String> {
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
        let is_logged = |(_, id): &(u16, String)| id.is_empty() || reasons.contains_key(id);
        answers.iter().all(is_logged).then_some(reasons)
    });
    let reason = |(_, id): &(u16, String)| reasons.get(id).cloned().unwrap_or_default();
    answers.iter().map(reason).collect()
}

#[track_caller]
fn are_answered(world: &World, log: &Path, cases: &[Case]) {
    for expect in EXPECTS {
        let answers = curl(world, expect, cases);
        let seen = answers.iter().map(|(status, _)| *status);
        let seen = seen.zip(reasons(log, &answers));
        let wrong: Vec<_> = cases
            .iter()
            .zip(seen)
            .filter(|(case, (status, reason))| due(case) != (*status, reason.as_str()))
            .map(|(case, seen)| (case.row, &case.path, due(case), seen))
            .collect();
        assert!(wrong.is_empty(), "expect:{expect} {wrong:?}");
    }
}

/// Sends these requests of one row with curl, with and without `100-continue`. The gateway must
/// answer each as the row says, and count it under the row's reason.
#[track_caller]
pub fn reaches_clients(world: &World, cases: &[Case]) {
    may_reach_clients(world, &[], || cases.to_vec());
}

/// Like [`reaches_clients`], for a row that does not answer each request. Sends requests until the
/// row has answered one on each surface. The statuses of the others must be in `others`. Returns
/// how many got another status.
#[track_caller]
#[expect(clippy::float_arithmetic, reason = "metrics are floats")]
pub fn may_reach_clients(
    world: &World,
    others: &[u16],
    mut cases: impl FnMut() -> Vec<Case>,
) -> usize {
    let mut of_others = 0;
    for expect in EXPECTS {
        let mut reached = BTreeSet::new();
        wait_for("the row to answer on every surface", SOON, || {
            let cases = cases();
            let label = format!("reason=\"{}\"", due(&cases[0]).1);
            let counted = || world.metric("gateway_rejected_total", &[&label]);
            let before = counted();
            let answers = curl(world, expect, &cases);
            let mut of_row = 0;
            for (case, (status, _)) in cases.iter().zip(answers) {
                let (row, path) = (case.row, &case.path);
                if status == due(case).0 {
                    reached.insert(path.clone());
                    of_row += 1;
                } else {
                    assert!(
                        others.contains(&status),
                        "{row} {path}, expect:{expect}: {status}"
                    );
                    of_others += 1;
                }
            }
            wait_until("its reason to be counted", SOON, || {
                counted() - before >= f64::from(of_row)
            });
            (reached.len() == PATHS.len()).then_some(())
        });
    }
    of_others
}

/// Requests on each surface, with and without `100-continue`, half of whose bodies never come.
pub struct Unfinished(Vec<(&'static str, bool, Connection)>);

impl Unfinished {
    /// Sends what comes of them, once the gateway asks those for it that wait.
    pub fn begin(world: &World, key: &str) -> Self {
        let kinds = PATHS
            .into_iter()
            .flat_map(|path| [(path, false), (path, true)]);
        let begun = kinds.map(|(path, waits)| {
            let body = body(path, "input=1 output=1").to_string();
            let half = body.len() / 2;
            let mut request = Request::post(path, body).bearer(key);
            if waits {
                request = request.header("expect", "100-continue");
            }
            let mut connection = world.connect();
            assert!(connection.send(&request.head()));
            if waits {
                let interim = connection.head().expect("an interim response");
                assert!(interim.starts_with("HTTP/1.1 100 "), "{interim}");
            }
            assert!(connection.send(&request.framed_body()[..half]));
            (path, waits, connection)
        });
        Self(begun.collect())
    }

    /// Asserts that this row answers each.
    #[track_caller]
    pub fn are_answered_by(self, row: &'static str) {
        for (path, waits, mut connection) in self.0 {
            let status = connection.answer().status;
            let case = Case::new(row, path, "", String::new());
            assert_eq!(status, due(&case).0, "{path}, waits: {waits}");
        }
    }
}

/// Begins requests that the vendor does not answer before it is released.
fn hold(world: &World, requests: impl Iterator<Item = Case>) -> Vec<Connection> {
    // One by one, because a request that arrives counts too.
    let held: Vec<_> = requests
        .zip(1..)
        .map(|(case, count)| {
            let request = Request::post(&case.path, case.body).bearer(&case.key);
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

/// In bytes.
const LARGEST_BODY: usize = 1_500_000;
const LARGEST_EVENT: usize = 65_536;
/// What a request says for which [`breaking_vendor`] exceeds that.
const LARGE: &str = "large=1";

/// A vendor that streams messages whether it was asked for a stream or not, and ends the first
/// event of each early or never. Returns its port. Its thread ends with the test.
fn breaking_vendor() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut call in listener.incoming().map_while(Result::ok) {
            let mut request = Vec::new();
            let mut piece = [0; 65_536];
            while !request.ends_with(b"}") {
                match call.read(&mut piece) {
                    Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let is_large = String::from_utf8_lossy(&request).contains(LARGE);
            let event = r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#;
            let rest = match is_large {
                true => "x".repeat(LARGEST_EVENT + 1),
                false => "\n\n".to_owned(),
            };
            let _ = write!(
                call,
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
                 event: message_start\ndata: {event}{rest}"
            );
        }
    });
    port
}

fn plain(path: &str) -> String {
    body(path, "input=1 output=1").to_string()
}

/// Requests to which the vendors answer with failures.
fn vendor_cases(key: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (marker, row) in [
        ("status=400", "InvalidRequest"),
        ("status=400 error_body=context", "ContextTooLong"),
        ("status=400 error_body=policy", "ContentPolicy"),
        (
            "status=400 error_code=thread_unsupported_request",
            "ThreadUnsupported",
        ),
        ("status=401", "VendorRefusedUs"),
        ("status=402", "VendorQuota"),
        ("status=404", "VendorModelMissing"),
        (
            "status=404 error_code=none text='no such file'",
            "VendorNotFound",
        ),
        ("status=408", "VendorRequestTimeout"),
        ("status=409", "Conflict"),
        ("status=413", "BodyTooLarge"),
        ("status=422", "Unprocessable"),
        ("status=429", "RateLimited"),
        ("status=500", "UpstreamFailed"),
        ("status=504", "UpstreamTimeout"),
        ("status=529", "Overloaded"),
    ] {
        let of = |path: &str| body(path, marker).to_string();
        cases.extend(Case::on_all(row, key, of).map(Case::of_vendor));
    }
    // Of a size for which curl waits by itself.
    let large = "x".repeat(1_100_000);
    let large = |path: &str| body(path, &format!("status=400]] {large}")).to_string();
    cases.extend(Case::on_all("InvalidRequest", key, large).map(Case::of_vendor));
    let cut = |path: &str| body(path, "cut=1").to_string();
    cases.extend(Case::on_all("UpstreamFailed", key, cut));
    for (row, marker) in [
        ("UpstreamClosed", "cut=1"),
        ("UpstreamEventTooLarge", LARGE),
    ] {
        cases.extend(Case::on_all(row, key, |path| {
            let mut body = body(path, marker);
            body["model"] = Messages.model().into();
            body.to_string()
        }));
    }
    cases
}

/// Requests that nobody could serve.
fn faulty_cases(key: &str) -> Vec<Case> {
    let mut cases = Vec::new();
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
        cases.extend(Case::on_all(row, key, body));
    }
    let too_large = Case::of_bytes("BodyTooLarge", key, LARGEST_BODY + 1);
    let chunked = |case: Case| case.with_header("transfer-encoding: chunked");
    cases.extend(too_large.clone().into_iter().chain(too_large.map(chunked)));
    let long = format!("x-long: {}", "x".repeat(40_000));
    let long = Case::on_all("HeaderTooLarge", key, plain).map(|case| case.with_header(&long));
    cases.extend(long);
    for (row, folder) in [("UnknownPath", "nowhere"), ("NotSupported", "videos")] {
        for end in ["completions", "messages", "responses"] {
            cases.push(Case::new(
                row,
                &format!("/v1/{folder}/{end}"),
                key,
                plain(""),
            ));
        }
    }
    let put = |case: Case| Case {
        method: "PUT",
        ..case
    };
    cases.extend(Case::on_all("WrongMethod", key, plain).map(put));
    cases
}

/// A key of a member who may spend nothing of an organisation's credits.
fn key_of_member_without_budget(world: &World, person: &Account) -> String {
    let made = world.json(&["org", "create", "Acme", "--owner", &person.id]);
    let organisation = made["account_id"].as_str().unwrap();
    let create = [
        "key",
        "create",
        "--account",
        organisation,
        "--name",
        "member's",
    ];
    let made = world.json(&[&create[..], &["--member", &person.id]].concat());
    for change in [
        &["account", "grant", organisation, "5", "--ref", "funds"][..],
        &[
            "org",
            "member",
            "set",
            organisation,
            &person.id,
            "--budget-credits",
            "0",
            "--budget-per",
            "day",
        ],
    ] {
        world.json(change);
    }
    made["key"].as_str().unwrap().to_owned()
}

/// Returns the requests, one for each surface.
fn panicking_cases_reach_clients() -> [Case; 3] {
    let panics = format!("panics@after_auth:{}", PATHS.len() * EXPECTS.len());
    let world = Plan::default().environment("GW_FAIL", panics).start();
    let cases = Case::on_all("Internal", &world.account().key, plain);
    reaches_clients(&world, &cases);
    world.close();
    cases
}

#[test]
fn a_client_that_waits_for_100_continue_gets_every_failure_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = ("store: {kind: embedded}", dir.path().join("access.log"));
    let mut world = Plan::default()
        .limit("cool_down_max_seconds", 0)
        .limit("open_requests_per_account", 6)
        .limit("body_bytes", LARGEST_BODY as u64)
        .limit("idempotency_body_bytes", 1_024)
        .limit("event_bytes", LARGEST_EVENT as u64)
        .endpoints_of(&[breaking_vendor()], &[])
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

    let mut cases = [vendor_cases(&rich.key), faulty_cases(&rich.key)].concat();
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
        ("MemberBudget", &key_of_member_without_budget(&world, &rich)),
        ("RequestsPerMinute", &per_minute),
        ("TokensPerMinute", &tokens),
        ("Concurrent", &concurrent),
        ("TooManyOpen", &busy.key),
    ];
    for (row, key) in keys {
        cases.extend(Case::on_all(row, key, plain));
    }
    let running = |row, body: &dyn Fn(&str) -> String| {
        let cases = Case::on_all(row, &rich.key, body);
        cases.map(|case| case.with_header("idempotency-key: running"))
    };
    let held_body = |path: &str| body(path, "hold=headers input=1 output=1").to_string();
    cases.extend(running("IdempotencyRunning", &held_body));
    cases.extend(running("IdempotencyConflict", &plain));
    let unstored = |path: &str| body(path, "bytes=2000 output=500").to_string();
    let unstored = Case::on_all("IdempotencyResultUnavailable", &rich.key, unstored)
        .map(|case| case.with_header("idempotency-key: unstored"));
    for key in [&per_minute, &tokens] {
        world.expect(200, &Chat.whole(key, "input=1 output=1"));
    }
    let of_busy = (0..6).map(|_| Case::new("", PATHS[0], &busy.key, held_body(PATHS[0])));
    let of_key = [Case::new("", PATHS[0], &concurrent, held_body(PATHS[0]))];
    let of_keyed = running("", &held_body);
    let first = curl(&world, "", &unstored);
    assert!(first.iter().all(|(status, _)| *status == 200), "{first:?}");
    cases.extend(unstored);
    let held = hold(&world, of_busy.chain(of_key).chain(of_keyed));
    wait_for("the key to expire", SOON, || {
        let models = Request::get("/v1/models").bearer(&expired);
        (world.ask(&models).status == 401).then_some(())
    });
    are_answered(&world, &log, &cases);
    world.vendor.release();
    drop(held);
    // Each with a body that costs nothing, so that they reach the limit of such requests.
    let unread = key(&["--requests-per-minute", "1"]);
    let unread = Case::on_all("FreeRequests", &unread, |_| "nonsense".to_owned());
    may_reach_clients(&world, &[400], || unread.to_vec());
    // Nobody listens at the old vendor's port.
    world.vendor = Simulator::start(None);
    let unreachable = Case::on_all("UpstreamUnreachable", &rich.key, plain);
    are_answered(&world, &log, &unreachable);
    world.close();
    let panicking = panicking_cases_reach_clients();
    let tried = [&cases[..], &unread, &unreachable, &panicking].concat();
    are_all(tried.iter().map(|case| case.row));
}

/// Asserts that these rows and those of the lists above are all of the table.
fn are_all(tried: impl Iterator<Item = &'static str>) {
    for (row, test) in OF_OTHER_TESTS {
        assert!(test.contains(&format!("\"{row}\"")), "{row} has no test");
    }
    let elsewhere = NOT_OF_SURFACES.into_iter().chain(OF_OTHER_TESTS);
    let known: BTreeSet<_> = tried.chain(elsewhere.map(|(row, _)| row)).collect();
    let rows = TABLE.lines().skip(1);
    let rows: BTreeSet<_> = rows.map(|row| row.split(' ').next().unwrap()).collect();
    let missing: Vec<_> = rows.symmetric_difference(&known).collect();
    assert!(
        missing.is_empty(),
        "a row is neither tried nor named: {missing:?}"
    );
}
