//! A disk that does not answer: no thread that serves requests waits for it. What needs no disk is
//! served, what began is debited once the disk answers, and a signal ends the process all the same.

use crate::account::{Account, micro};
use crate::client::{self, Answer, Connection, Request};
use crate::crash::FUNDS;
use crate::strace::{FileCall, FileCalls, FrozenDisk};
use crate::surface::{BOTH, Chat, LEDGER_UNAVAILABLE, Messages, Surface};
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::{Value, json};

/// What the threads that serve requests are called.
const EDGE: &str = "edge";

/// Requests of every kind that an edge answers, whole and streamed, right and wrong.
fn mixed_load(world: &World, account: &Account, poor: &Account) {
    let key = &account.key;
    let expect = |request: &Request, status: u16| -> Answer {
        let answer = world.ask(request);
        assert_eq!(answer.status, status, "{}", answer.text());
        answer
    };
    for surface in BOTH {
        let whole = surface.whole(key, "input=10 output=10");
        let id = expect(&whole, 200).request_id();
        world.receipt(account, &id);
        let streamed = expect(&surface.stream(key, "events=8 input=10 output=8"), 200);
        assert!(surface.is_complete(&streamed), "{}", streamed.text());
        let keyed = whole.header("idempotency-key", &format!("{surface:?}"));
        expect(&keyed, 200);
        let again = expect(&keyed, 200);
        assert_eq!(again.header("x-gateway-replayed"), Some("true"));
        let keyed = surface.stream(key, "events=8 input=10 output=8");
        let keyed = keyed.header("idempotency-key", &format!("{surface:?}-streamed"));
        expect(&keyed, 200);
        expect(&surface.whole(key, "status=400"), 400);
        let cut = world.ask(&surface.stream(key, "events=8 cut=4"));
        assert!(!surface.is_complete(&cut), "{}", cut.text());
        expect(&surface.whole("gw-sk-unknown", "input=1"), 401);
        expect(&surface.whole(&poor.key, "input=1 output=1"), 402);
        expect(&Request::post(surface.path(), "{").bearer(key), 400);
        // A client that leaves in the middle of a stream.
        let (leaving, _) = world.begin_stream(&surface.stream(key, "events=8 hold=4"));
        drop(leaving);
        wait_for("the vendor to answer on", SOON, || {
            world.vendor.release();
            (world.metric("gateway_streams_open", &[]) == 0.0).then_some(())
        });
    }
    let count = Messages.body("input=1", false, 10);
    expect(
        &Request::post("/v1/messages/count_tokens", count.to_string()).bearer(key),
        200,
    );
    for path in ["/v1/models", "/v1/credits", "/v1/usage"] {
        expect(&Request::get(path).bearer(key), 200);
    }
    expect(&Request::get("/healthz"), 200);
    expect(&Request::get("/v1/nowhere").bearer(key), 404);
    expect(&Request::get("/dashboard/sign-in"), 200);
    let mut malformed = world.connect();
    assert!(malformed.send(b"GET / HTTP/1.1\r\nbroken\r\n\r\n"));
    assert_eq!(malformed.answer().status, 400);
}

#[test]
fn no_thread_that_serves_requests_reads_writes_or_opens_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (store, log) = ("store: {kind: embedded}", dir.path().join("access.log"));
    let world = Plan::default()
        .edit(
            store,
            &format!("{store}\naccess_log: {:?}", log.display().to_string()),
        )
        .environment("RUST_LOG", "debug")
        .start();
    let (account, poor) = (
        world.funded(FUNDS),
        world.account_with("poor@example.test", &["--no-trial"]),
    );
    // A key whose spending decides too.
    let limit = ["--spend-limit", "100/day"];
    world.json(&[&["key", "set", &account.key_id][..], &limit].concat());
    let Some(calls) = FileCalls::record(&world) else {
        return;
    };
    mixed_load(&world, &account, &poor);
    let calls = calls.end();
    let of = |thread: &str, what: &str| -> Vec<&FileCall> {
        let of_thread = calls.iter().filter(|call| call.thread == thread);
        of_thread.filter(|call| call.call.contains(what)).collect()
    };
    // Control: the recording has the writes of the threads that may wait.
    for (thread, file) in [
        ("journal", "/journal/"),
        ("keys", "idempotency.db"),
        ("ledger-writer", "ledger.db"),
        ("row-reads", "app.db"),
        ("row-reads", "ledger.db"),
        ("row-checks", "app.db-shm"),
        ("row-checks", "ledger.db-shm"),
    ] {
        assert!(!of(thread, file).is_empty(), "{thread}: {calls:#?}");
    }
    let of_edge = of(EDGE, "");
    assert!(of_edge.is_empty(), "{of_edge:#?}");
}

/// Asserts a refusal that asks the client to come back.
#[track_caller]
fn refused(surface: Surface, answer: &Answer) {
    surface.fails_as(answer, LEDGER_UNAVAILABLE);
    assert!(
        answer.header("retry-after").is_some(),
        "{:?}",
        answer.headers
    );
}

/// Requests that wait at the vendor, half of each kind.
struct Running {
    surface: Surface,
    connection: Connection,
    /// The part of a stream that came before the freeze.
    begun: Option<Answer>,
}

impl Running {
    fn begin(world: &World, account: &Account) -> Vec<Self> {
        let mut running = Vec::new();
        for surface in BOTH {
            for streams in [true, false, true, false] {
                let mut connection = world.connect();
                let request = match streams {
                    true => surface.stream(&account.key, "events=8 hold=4 input=10 output=8"),
                    false => surface.whole(&account.key, "hold=headers input=10 output=8"),
                };
                assert!(connection.send(&request.bytes()));
                let begun = streams.then(|| {
                    let mut answer = connection.begin();
                    assert!(connection.more(&mut answer));
                    answer
                });
                running.push(Self {
                    surface,
                    connection,
                    begun,
                });
            }
        }
        world.vendor.wait_busy(running.len() as u64);
        running
    }

    /// Reads the answer to its end. Returns its id and whether it is whole.
    fn end(mut self) -> (String, bool) {
        let mut answer = match self.begun {
            Some(begun) => begun,
            None => self.connection.begin(),
        };
        let streams = answer
            .header("content-type")
            .is_some_and(|kind| kind.contains("stream"));
        self.connection.finish(&mut answer);
        let is_whole = match streams {
            true => self.surface.is_complete(&answer),
            false => answer.status == 200,
        };
        (answer.request_id(), is_whole)
    }
}

/// A world that has served, so that it knows the key and the account.
fn served(plan: Plan) -> (World, Account) {
    let world = plan.start();
    let account = world.funded(FUNDS);
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    world.ended(&account, BOTH.len());
    (world, account)
}

/// Lets the disk stand still with the record of a refused request in the middle of its write, so
/// that the records after it wait.
fn freeze(world: &World, account: &Account) -> Option<FrozenDisk> {
    let frozen = FrozenDisk::freeze(world)?;
    refused(
        Chat,
        &world.ask(&Chat.whole(&account.key, "input=1 output=1")),
    );
    wait_until("the journal to be stuck", SOON, || {
        client::ask(world.admin, &Request::get("/readyz")).status == 503
    });
    Some(frozen)
}

/// Lets the vendor answer, until every answer waits for its debit.
fn answer_all(world: &World) {
    world.vendor.release();
    world.wait_metric("gateway_open_holds", &[], 0.0);
}

fn ending_of<'a>(endings: &'a [Value], id: &str) -> &'a Value {
    let of: Vec<_> = endings
        .iter()
        .filter(|ending| ending["request_id"] == id)
        .collect();
    assert_eq!(of.len(), 1, "{id}: {of:?}");
    of[0]
}

#[test]
fn a_frozen_disk_withholds_the_last_bytes_alone_until_it_answers() {
    let (world, account) = served(Plan::default());
    let mut running = Running::begin(&world, &account);
    let Some(frozen) = freeze(&world, &account) else {
        return;
    };
    answer_all(&world);
    // The first one is a stream, whose client leaves.
    let left = running.remove(0);
    let left_id = left.begun.as_ref().unwrap().request_id();
    drop(left);
    wait_until(
        "the debit of the client that left to be withdrawn",
        SOON,
        || {
            world
                .log()
                .contains(&format!("cannot journal the end of request {left_id}"))
        },
    );
    for _ in 0..20 {
        world.expect(200, &Request::get("/healthz"));
        let models = Request::get("/v1/models").bearer(&account.key);
        world.expect(200, &models);
        for surface in BOTH {
            refused(
                surface,
                &world.ask(&surface.whole(&account.key, "input=1 output=1")),
            );
        }
    }
    assert_eq!(
        world.endings(&account).len(),
        BOTH.len(),
        "nothing is debited yet"
    );
    drop(frozen);
    let ended: Vec<_> = running.into_iter().map(Running::end).collect();
    wait_until("the gateway to be ready by itself", SOON, || {
        world.is_ready()
    });
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    // The refused request, whose opening was written late, is void.
    let ended_count = ended.len() + 2 + 2 * BOTH.len();
    world.ended(&account, ended_count);
    let endings = world.endings(&account);
    for (id, is_whole) in ended {
        let ending = ending_of(&endings, &id);
        assert!(is_whole, "{ending}");
        assert_eq!(ending["outcome"], "completed", "{ending}");
    }
    let left = ending_of(&endings, &left_id);
    assert_eq!(
        (left["outcome"].as_str(), micro(&left["credits"])),
        (Some("interrupted"), 0)
    );
    world.close();
}

#[test]
fn a_signal_ends_a_gateway_whose_disk_does_not_answer() {
    let (mut world, account) = served(Plan::default().limit("drain_seconds", 1));
    let running = Running::begin(&world, &account);
    let count = running.len();
    let Some(frozen) = freeze(&world, &account) else {
        return;
    };
    answer_all(&world);
    world.signal("TERM");
    // strace keeps the thread that it holds up.
    let status = format!("/proc/{}/status", world.pid());
    wait_for("every other thread to end", SOON, || {
        let status = std::fs::read_to_string(&status).unwrap();
        status.contains("State:\tZ").then_some(())
    });
    drop(frozen);
    assert_eq!(world.wait_end(SOON), 1);
    assert!(
        world
            .log()
            .contains("stopped without writing the last files"),
        "{}",
        world.log()
    );
    let ended: Vec<_> = running.into_iter().map(Running::end).collect();
    world.start_gateway();
    // The journal never got the opening of the refused request.
    world.ended(&account, BOTH.len() + count);
    let endings = world.endings(&account);
    for (id, is_whole) in ended {
        let ending = ending_of(&endings, &id);
        assert!(!is_whole, "{ending}");
        let expected = json!(["interrupted", "0"]);
        assert_eq!(json!([ending["outcome"], ending["credits"]]), expected);
    }
    world.works(Chat, &account.key);
    world.close();
}

#[test]
fn a_database_that_answers_nobody_stops_no_status_page() {
    let world = Plan::default().start();
    let root = world.account_with("root@example.test", &["--no-trial", "--admin"]);
    let look = Request::get("/admin/v1/accounts").bearer(&root.key);
    assert_eq!(client::ask(world.admin, &look).status, 200);
    let page = Request::get("/dashboard").header("cookie", "gw-session=none");
    // The pages that read no file.
    let sign_in = client::ask(world.sidecar, &Request::get("/dashboard/sign-in")).text();
    let style = sign_in
        .split('"')
        .find(|part| part.starts_with("/dashboard/static/"));
    let pages = [
        "/dashboard/sign-in",
        "/dashboard/sign-up",
        "/docs",
        "/docs/models.json",
    ];
    let Some(frozen) = FrozenDisk::freeze_reads(&world, ".db") else {
        return;
    };
    // More than there are threads for them.
    let ask_all = |port: u16, request: &Request| -> Vec<Connection> {
        let ask = |_| {
            let mut connection = Connection::open(port);
            assert!(connection.send(&request.bytes()));
            connection
        };
        (0..8).map(ask).collect()
    };
    let mut waiting = ask_all(world.admin, &look);
    waiting.extend(ask_all(world.sidecar, &page));
    for _ in 0..20 {
        for path in ["/healthz", "/metrics"] {
            assert_eq!(client::ask(world.admin, &Request::get(path)).status, 200);
        }
        assert!(matches!(world.readiness().0, 200 | 503));
        for page in pages.into_iter().chain(style) {
            let answer = client::ask(world.sidecar, &Request::get(page));
            assert_eq!(answer.status, 200, "{page}");
        }
    }
    drop(frozen);
    for connection in &mut waiting {
        assert!(matches!(connection.answer().status, 200 | 303));
    }
    world.close();
}

/// Number of endings that may wait for the ledger for a second, at the rate that a process assumes
/// at its start.
const BACKLOG_OF_A_SECOND: usize = 250;

/// Lets writes of the ledger stand still, with as many endings behind them as may wait.
fn freeze_full_backlog(world: &World, account: &Account) -> Option<FrozenDisk> {
    let hold = Chat.whole(&account.key, "hold=headers input=1 output=1");
    let begin = |_| {
        let mut connection = world.connect();
        assert!(connection.send(&hold.bytes()));
        connection
    };
    let mut held: Vec<_> = (0..=BACKLOG_OF_A_SECOND).map(begin).collect();
    world.vendor.wait_busy(held.len() as u64);
    let frozen = FrozenDisk::freeze_writes_of(world, "ledger.db")?;
    world.vendor.release();
    for connection in &mut held {
        assert_eq!(connection.answer().status, 200);
    }
    Some(frozen)
}

/// Freezes a file that every request needs, if the machine can.
type Freeze = fn(&World, &Account) -> Option<FrozenDisk>;

#[test]
fn a_gateway_is_not_ready_while_what_every_request_needs_does_not_answer() {
    let plan = Plan::default()
        .limit("ledger_backlog_seconds", 1)
        .limit("open_requests_per_account", 512);
    let (world, account) = served(plan);
    let request = Chat.whole(&account.key, "input=1 output=1");
    let freezes: [(&str, Freeze); 3] = [
        ("read app.db: the disk", |world, _| {
            FrozenDisk::freeze_reads(world, "app.db")
        }),
        ("read ledger.db: the disk", |world, _| {
            FrozenDisk::freeze_reads(world, "ledger.db")
        }),
        ("wait for the ledger", freeze_full_backlog),
    ];
    for (why, freeze) in freezes {
        let Some(frozen) = freeze(&world, &account) else {
            return;
        };
        wait_until("the gateway not to be ready", SOON, || {
            let (status, body) = world.readiness();
            let reason = &body["reasons"][0];
            let message = reason["message"].as_str().unwrap_or_default();
            status == 503 && reason["code"] == "edge" && message.contains(why)
        });
        refused(Chat, &world.ask(&request));
        drop(frozen);
        wait_until("the gateway to be ready", SOON, || world.is_ready());
        world.works(Chat, &account.key);
    }
    world.close();
}

#[test]
fn a_sidecar_is_not_ready_while_its_databases_do_not_answer() {
    let edge = Plan::default().shared().start();
    let sidecar = &edge.beside.as_ref().unwrap().sidecar;
    wait_until("the sidecar to be ready", SOON, || sidecar.is_ready());
    for database in ["app.db", "ledger.db"] {
        let Some(frozen) = FrozenDisk::freeze_pages(sidecar, database) else {
            return;
        };
        let why = format!("no page can be served: cannot read {database}: the disk");
        wait_until("the sidecar not to be ready", SOON, || {
            let (status, body) = sidecar.readiness();
            let reasons = body["reasons"].as_array().unwrap();
            let is_named = |reason: &Value| {
                let message = reason["message"].as_str().unwrap();
                reason["code"] == "pages" && message.starts_with(&why)
            };
            status == 503 && reasons.iter().any(is_named)
        });
        drop(frozen);
        wait_until("the sidecar to be ready", SOON, || sidecar.is_ready());
    }
    edge.close();
}

#[test]
fn writes_that_hang_are_reported_and_stop_no_request() {
    let (world, account) = served(Plan::default());
    let form = "email=ada@example.test&password=a+long+password";
    world.expect(303, &Request::form("/dashboard/sign-up", form));
    for (file, needs_it) in [
        ("app.db", Request::form("/dashboard/sign-in", form)),
        ("ledger.db", Chat.whole(&account.key, "input=1 output=1")),
    ] {
        let label = format!("file=\"{file}\"");
        assert_eq!(world.metric("gateway_stuck_writes", &[&label]), 0.0);
        let Some(frozen) = FrozenDisk::freeze_writes_of(&world, file) else {
            return;
        };
        let mut waiting = world.connect();
        assert!(waiting.send(&needs_it.bytes()));
        world.wait_metric("gateway_stuck_writes", &[&label], 1.0);
        world.wait_log(&format!("a write to {file} has not ended"));
        assert!(world.is_ready(), "{:?}", world.readiness());
        world.works(Chat, &account.key);
        world.expect(200, &Request::get("/dashboard/sign-in"));
        drop(frozen);
        assert!(matches!(waiting.answer().status, 200 | 303), "{file}");
        world.wait_metric("gateway_stuck_writes", &[&label], 0.0);
    }
    world.close();
}

#[test]
fn a_key_that_cannot_be_checked_pays_for_nothing_and_holds_up_nobody_else() {
    let (world, account) = served(Plan::default());
    let request = Chat.whole(&account.key, "input=1 output=1");
    let Some(frozen) = FrozenDisk::freeze_checks(&world) else {
        return;
    };
    wait_until("the last check to be too old", SOON, || {
        world.ask(&request).status != 200
    });
    // More than there are threads that serve requests.
    let mut waiting: Vec<_> = (0..16).map(|_| world.connect()).collect();
    for connection in &mut waiting {
        assert!(connection.send(&request.bytes()));
    }
    for _ in 0..20 {
        world.expect(200, &Request::get("/healthz"));
    }
    world.json(&["key", "revoke", &account.key_id]);
    for connection in &mut waiting {
        refused(Chat, &connection.answer());
    }
    drop(frozen);
    let answer = wait_for("the disk to answer", SOON, || {
        let answer = world.ask(&request);
        (answer.status != 503).then_some(answer)
    });
    assert_eq!(answer.status, 401, "{}", answer.text());
    world.close();
}
