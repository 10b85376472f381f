//! `kill -9` at each point of a request at which money is involved. The tests check the debits and
//! the client's view.
//!
//! The process kills itself at a named point (`GW_FAIL`), so the tests hit every moment exactly.
//! `crash.rs` kills at random moments. `shutdown.rs` and `money.rs` test a price change, the end of
//! a trial and a shortened drain between hold and debit.

use crate::account::{Account, taken};
use crate::client::{self, Connection, End, Request};
use crate::crash::FUNDS;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{SOON, World, command_on, wait_until};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much of its answer a client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// The beginning of a stream.
    Begun,
    End,
}

/// The request's entry in the ledger after the restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Void,
    Debit,
}

/// A point, the permitted client views for a whole answer and for a stream, and the resulting
/// ledger entry.
struct Row {
    point: &'static str,
    whole: &'static [Seen],
    stream: &'static [Seen],
    vendor_calls: u64,
    left: Left,
    /// The process reaches this point while it shuts down after its drain.
    at_end: bool,
}

const fn row(
    point: &'static str,
    whole: &'static [Seen],
    stream: &'static [Seen],
    left: Left,
) -> Row {
    Row {
        point,
        whole,
        stream,
        vendor_calls: 1,
        left,
        at_end: false,
    }
}

const NOTHING: &[Seen] = &[Seen::Nothing];
const BEGUN: &[Seen] = &[Seen::Begun];
const END: &[Seen] = &[Seen::End];
/// The gateway writes the ledger entry while it sends the client's last bytes, so either may come
/// first.
const ANY: &[Seen] = &[Seen::Nothing, Seen::Begun, Seen::End];

const ROWS: &[Row] = &[
    Row {
        vendor_calls: 0,
        ..row("after_auth", NOTHING, NOTHING, Left::Nothing)
    },
    Row {
        vendor_calls: 0,
        ..row("after_reserve", NOTHING, NOTHING, Left::Nothing)
    },
    Row {
        vendor_calls: 0,
        ..row("after_journal_open", NOTHING, NOTHING, Left::Void)
    },
    row("vendor_answered", NOTHING, NOTHING, Left::Void),
    row("mid_stream:3", &[], BEGUN, Left::Void),
    row("before_journal_end", NOTHING, BEGUN, Left::Void),
    row("torn_journal_end", NOTHING, BEGUN, Left::Void),
    row("after_journal_end", NOTHING, BEGUN, Left::Debit),
    row("last_byte_sent", END, END, Left::Debit),
    row("mid_commit", ANY, ANY, Left::Debit),
    row("after_commit", ANY, ANY, Left::Debit),
    Row {
        at_end: true,
        ..row("before_reap", END, END, Left::Debit)
    },
    Row {
        at_end: true,
        ..row("before_checkpoint", END, END, Left::Debit)
    },
    Row {
        at_end: true,
        ..row("after_checkpoint", END, END, Left::Debit)
    },
];

fn rounds() -> usize {
    if crate::is_long() { 5 } else { 1 }
}

fn request(surface: Surface, stream: bool, key: &str) -> Request {
    match stream {
        true => surface.stream(key, "events=4 gap_ms=15 input=10 output=5"),
        false => surface.whole(key, "input=10 output=5"),
    }
}

/// Sends one request. The gateway may die meanwhile.
fn ask(world: &World, surface: Surface, stream: bool, request: &Request) -> Seen {
    let mut connection = world.connect();
    connection.send(&request.bytes());
    let Some(mut answer) = connection.try_begin() else {
        return Seen::Nothing;
    };
    assert_eq!(answer.status, 200, "{}", answer.text());
    connection.finish(&mut answer);
    let is_whole = match stream {
        true => surface.is_complete(&answer),
        false => {
            answer.end() == Some(End::Whole)
                && serde_json::from_slice::<Value>(&answer.body).is_ok()
        }
    };
    assert!(
        stream || is_whole,
        "a part of a whole answer: {}",
        answer.text()
    );
    if is_whole { Seen::End } else { Seen::Begun }
}

/// A world, its only account, and the number of endings seen so far.
struct Books {
    world: World,
    account: Account,
    known: usize,
    slowest: Duration,
}

impl Books {
    fn new() -> Self {
        let (world, account) = World::with_funds(FUNDS);
        Self {
            world,
            account,
            known: 0,
            slowest: Duration::ZERO,
        }
    }

    /// Restarts the gateway so that it dies at `point`.
    fn fail_at(&mut self, point: &str) {
        self.world.kill();
        self.world.start_failing(Some(point));
    }

    fn start(&mut self) {
        self.slowest = self.slowest.max(self.world.start_gateway());
    }

    /// The endings since the last call, newest first. Asserts that the ledger is consistent and
    /// nothing is held.
    #[track_caller]
    fn new_endings(&mut self) -> Vec<Value> {
        let standing = self.world.standing(&self.account);
        let mut endings = self.world.endings(&self.account);
        assert_eq!(
            (standing.balance, standing.held),
            (FUNDS - taken(&endings), 0),
            "{standing:?}"
        );
        let verdict = self.world.json(&["ledger", "verify"]);
        assert_eq!(verdict["findings"], Value::Array(Vec::new()), "{verdict}");
        let known = std::mem::replace(&mut self.known, endings.len());
        assert!(endings.len() >= known, "{endings:?}");
        endings.truncate(endings.len() - known);
        endings
    }

    fn forget_the_journal(&self) {
        for boot in std::fs::read_dir(self.world.data_dir().join("journal")).unwrap() {
            std::fs::remove_dir_all(boot.unwrap().path()).unwrap();
        }
    }

    fn close(self) {
        let journal = std::fs::read_dir(self.world.data_dir().join("journal")).unwrap();
        let damaged = journal
            .flatten()
            .filter(|entry| entry.path().extension().is_some())
            .count();
        assert_eq!(damaged, 0, "a journal was taken for damaged");
        self.world.close();
    }
}

/// Asserts that the endings match `left` and that the debit is `cost`.
#[track_caller]
fn is_left(endings: &[Value], left: Left, cost: i64, what: &str) {
    let outcomes: Vec<_> = endings
        .iter()
        .map(|ending| ending["outcome"].as_str().unwrap())
        .collect();
    let expected: &[&str] = match left {
        Left::Nothing => &[],
        Left::Void => &["interrupted"],
        Left::Debit => &["completed"],
    };
    assert_eq!(outcomes, expected, "{what}: {endings:?}");
    let credits = if left == Left::Debit { cost } else { 0 };
    assert_eq!(taken(endings), credits, "{what}: {endings:?}");
}

/// Tests every row on one surface, for whole answers and streams.
fn dies_everywhere(surface: Surface, rounds: usize) {
    let mut books = Books::new();
    let mut deaths = 0;
    for row in (0..rounds).flat_map(|_| ROWS) {
        for (stream, expected) in [(false, row.whole), (true, row.stream)] {
            if expected.is_empty() {
                continue;
            }
            books.fail_at(row.point);
            let calls = books.world.vendor.calls();
            let request = request(surface, stream, &books.account.key);
            let seen = ask(&books.world, surface, stream, &request);
            if row.at_end {
                books.world.signal("TERM");
            }
            books.world.wait_killed();
            books.start();
            let what = format!("{surface:?} {} stream: {stream}", row.point);
            assert!(expected.contains(&seen), "{what}: the client saw {seen:?}");
            is_left(&books.new_endings(), row.left, surface.cost(10, 5), &what);
            assert_eq!(
                books.world.vendor.calls() - calls,
                row.vendor_calls,
                "{what}"
            );
            deaths += 1;
        }
    }
    eprintln!(
        "{surface:?}: {deaths} deaths, slowest restart {:?}",
        books.slowest
    );
    books.close();
}

#[test]
fn a_death_anywhere_debits_a_chat_request_once_or_not_at_all() {
    dies_everywhere(Chat, 1);
}

#[test]
#[ignore = "long kills: a kill at each point of a request, ten times for each surface, about 8 minutes"]
fn ten_deaths_anywhere_debit_a_request_once_or_not_at_all() {
    for surface in BOTH {
        dies_everywhere(surface, 10);
    }
}

#[test]
fn a_request_that_the_vendor_has_and_has_not_answered_is_void() {
    let mut books = Books::new();
    for surface in BOTH.into_iter().cycle().take(2 * rounds()) {
        for stream in [false, true] {
            let calls = books.world.vendor.calls();
            let body = surface.body("hang=headers", stream, 1_000);
            let mut connection = books.world.connect();
            connection.send(&surface.request(&books.account.key, &body).bytes());
            wait_until("the vendor's call", SOON, || {
                books.world.vendor.calls() > calls
            });
            books.world.kill();
            assert!(connection.try_begin().is_none(), "the client got an answer");
            books.start();
            is_left(
                &books.new_endings(),
                Left::Void,
                0,
                &format!("{surface:?} stream: {stream}"),
            );
        }
    }
    books.close();
}

/// A control without the journal: an ending that only the journal held is lost, although the client
/// has the whole answer.
#[test]
fn without_the_journal_a_death_behind_the_last_byte_loses_the_debit() {
    let mut books = Books::new();
    for surface in BOTH {
        for stream in [false, true] {
            books.fail_at("last_byte_sent");
            let request = request(surface, stream, &books.account.key);
            assert_eq!(ask(&books.world, surface, stream, &request), Seen::End);
            books.world.wait_killed();
            books.forget_the_journal();
            books.start();
            is_left(
                &books.new_endings(),
                Left::Nothing,
                0,
                "without the journal",
            );
        }
    }
    books.close();
}

#[test]
fn a_death_in_the_middle_of_a_commit_takes_all_of_the_batch_and_the_replay_brings_all() {
    let mut books = Books::new();
    for _ in 0..rounds() {
        books.fail_at("mid_commit:3");
        let (world, key) = (&books.world, &books.account.key);
        std::thread::scope(|scope| {
            for index in 0..6 {
                scope.spawn(move || {
                    let mut connection = Connection::try_open(world.edge)?;
                    connection.send(
                        &BOTH[index % 2]
                            .whole(key, "delay_ms=30 input=10 output=5")
                            .bytes(),
                    );
                    connection.try_answer()
                });
            }
        });
        books.world.wait_killed();
        books.start();
        // Some requests may have died before their end. An ended request has a debit, and the
        // others are void.
        let endings = books.new_endings();
        assert_eq!(endings.len(), 6, "{endings:?}");
        let debits = endings
            .iter()
            .filter(|ending| ending["outcome"] == "completed")
            .count();
        assert!(debits >= 3, "{endings:?}");
    }
    books.close();
}

#[test]
fn a_replay_that_dies_is_made_again_and_counts_once() {
    let mut books = Books::new();
    for surface in BOTH.into_iter().cycle().take(2 * rounds()) {
        books.fail_at("after_journal_end");
        ask(
            &books.world,
            surface,
            false,
            &request(surface, false, &books.account.key),
        );
        books.world.wait_killed();
        for point in ["mid_commit", "after_commit"] {
            books.world.begin_gateway(Some(point));
            books.world.wait_killed();
        }
        books.start();
        is_left(
            &books.new_endings(),
            Left::Debit,
            surface.cost(10, 5),
            "after three deaths",
        );
    }
    books.close();
}

#[test]
fn a_death_before_a_covered_file_of_the_journal_is_removed_debits_nothing_again() {
    let mut world = crate::world::Plan::default()
        .limit("journal_segment_bytes", 65_536)
        .start();
    let account = world.funded(FUNDS);
    world.kill();
    world.start_failing(Some("before_reap"));
    let began = Instant::now();
    let mut seen = Vec::new();
    while let Some(answer) =
        client::try_ask(world.edge, &Chat.whole(&account.key, "input=10 output=5"))
    {
        assert_eq!(answer.status, 200, "{}", answer.text());
        seen.push(answer.request_id());
        assert!(began.elapsed() < SOON, "no file of the journal was removed");
        if Connection::try_open(world.edge).is_none() {
            break;
        }
    }
    world.wait_killed();
    world.start_gateway();
    let endings = world.endings(&account);
    let debited = |id: &String| {
        endings
            .iter()
            .filter(|ending| ending["request_id"] == id.as_str())
            .count()
    };
    assert!(
        seen.iter().all(|id| debited(id) == 1),
        "{} answers, {} endings",
        seen.len(),
        endings.len()
    );
    assert!(
        endings.len() <= seen.len() + 1,
        "{} answers, {} endings",
        seen.len(),
        endings.len()
    );
    assert_eq!(world.standing(&account).balance, FUNDS - taken(&endings));
}

#[test]
fn an_idempotency_key_is_spent_exactly_where_the_dead_process_had_debited() {
    let mut books = Books::new();
    for surface in BOTH {
        for (point, left) in [
            ("after_journal_open", Left::Void),
            ("before_journal_end", Left::Void),
            ("after_journal_end", Left::Debit),
            ("last_byte_sent", Left::Debit),
        ] {
            books.fail_at(point);
            let key = format!("{surface:?}-{point}");
            let request =
                request(surface, false, &books.account.key).header("idempotency-key", &key);
            let seen = ask(&books.world, surface, false, &request);
            books.world.wait_killed();
            books.start();
            is_left(&books.new_endings(), left, surface.cost(10, 5), &key);
            let again = books.world.ask(&request);
            let expected = match (left, seen) {
                (Left::Debit, Seen::End) => (200, Some("true")),
                (Left::Debit, _) => (409, None),
                _ => (200, None),
            };
            assert_eq!(
                (again.status, again.header("x-gateway-replayed")),
                expected,
                "{key}: {}",
                again.text()
            );
            let debits = usize::from(left != Left::Debit);
            wait_until("the repeat's ending", SOON, || {
                books.world.endings(&books.account).len() == books.known + debits
            });
            books.new_endings();
        }
    }
    books.close();
}

/// A power cut loses unsynced data: the journal, which is never synced, and with it the commit in
/// progress.
#[test]
fn a_power_cut_loses_no_more_than_the_commit_that_was_being_made() {
    let mut books = Books::new();
    books.fail_at("mid_commit:4");
    let mut committed = Vec::new();
    for index in 0..3 {
        let answer = books
            .world
            .ask(&BOTH[index % 2].whole(&books.account.key, "input=10 output=5"));
        committed.push(answer.request_id());
        books.world.receipt(&books.account, &answer.request_id());
    }
    ask(
        &books.world,
        Chat,
        false,
        &request(Chat, false, &books.account.key),
    );
    books.world.wait_killed();
    books.forget_the_journal();
    books.start();
    let mut ids: Vec<_> = books
        .new_endings()
        .iter()
        .map(|end| end["request_id"].as_str().unwrap().to_owned())
        .collect();
    ids.reverse();
    assert_eq!(ids, committed);
    books.close();
}

/// The ledger's write-ahead log, cut off at any byte: the entries before the cut are there, in
/// order and valid.
#[test]
fn a_ledger_whose_log_is_torn_anywhere_has_a_sound_beginning_of_it() {
    let mut books = Books::new();
    // A clean shutdown moves the account and its funds into the database file, so the log holds
    // only the debits.
    books.world.signal("TERM");
    assert_eq!(books.world.wait_end(SOON), 0);
    books.start();
    for index in 0..6 {
        let answer = books
            .world
            .ask(&BOTH[index % 2].whole(&books.account.key, "input=10 output=5"));
        books.world.receipt(&books.account, &answer.request_id());
    }
    let all: Vec<_> = books
        .new_endings()
        .iter()
        .map(|ending| ending["request_id"].clone())
        .rev()
        .collect();
    assert_eq!(all.len(), 6);
    let copy = tempfile::tempdir().unwrap();
    let data = books.world.data_dir();
    let log = std::fs::read(data.join("ledger.db-wal")).unwrap();
    let config = copy.path().join("gateway.yaml");
    let text = std::fs::read_to_string(&books.world.config).unwrap();
    let at = copy.path().join("data");
    std::fs::write(
        &config,
        text.replace(&data.display().to_string(), &at.display().to_string()),
    )
    .unwrap();
    let parts = if crate::is_long() { 400 } else { 24 };
    let mut counts = Vec::new();
    for part in 0..=parts {
        // Also cuts inside pages, not only at their boundaries.
        let length = (log.len() * part / parts).saturating_sub(part * 7 % 5);
        let ids = torn_at(&data, &at, &config, &books.account, &log[..length]);
        assert!(all.starts_with(&ids), "{length}: {ids:?}");
        counts.push(ids.len());
    }
    assert!(counts.is_sorted() && counts[0] == 0, "{counts:?}");
    assert!(
        counts.iter().any(|count| (1..6).contains(count)),
        "{counts:?}"
    );
    assert_eq!(torn_at(&data, &at, &config, &books.account, &log), all);
    books.close();
}

/// The endings of a copy of the data directory whose ledger has this write-ahead log.
fn torn_at(data: &Path, at: &Path, config: &Path, account: &Account, log: &[u8]) -> Vec<Value> {
    let _ = std::fs::remove_dir_all(at);
    std::fs::create_dir(at).unwrap();
    for file in ["app.db", "app.db-wal", "ledger.db"] {
        if data.join(file).exists() {
            std::fs::copy(data.join(file), at.join(file)).unwrap();
        }
    }
    std::fs::write(at.join("ledger.db-wal"), log).unwrap();
    let json = |args: &[&str]| -> (bool, Value) {
        let output = command_on(config, args);
        (
            output.status.success(),
            serde_json::from_slice(&output.stdout).unwrap(),
        )
    };
    // The copy lacks the anchor and the journals. `verify` may report only that.
    let (_, verdict) = json(&["ledger", "verify", "--json"]);
    let rules: Vec<_> = verdict["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| &finding["rule"])
        .collect();
    assert!(
        rules
            .iter()
            .all(|rule| **rule == "anchor" || **rule == "claims"),
        "{} bytes: {verdict}",
        log.len()
    );
    assert!(
        rules.iter().any(|rule| **rule == "anchor"),
        "{} bytes: {verdict}",
        log.len()
    );
    let (is_read, rows) = json(&["ledger", "show", &account.id, "--last", "1000", "--json"]);
    assert!(is_read, "{rows}");
    let debits = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "debit");
    debits.map(|row| row["request_id"].clone()).rev().collect()
}

#[test]
fn an_unknown_fail_point_is_refused_with_the_names() {
    let output = std::process::Command::new(crate::world::binary())
        .arg("run")
        .env("GW_FAIL", "nowhere")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let name = |row: &Row| row.point.split(':').next().unwrap().to_owned();
    assert!(ROWS.iter().all(|row| told.contains(&name(row))), "{told}");
}

#[test]
fn a_sign_up_that_dies_between_its_two_files_has_its_grant_once() {
    let mut world = World::new();
    for (round, point) in ["account_kept", "account_granted"]
        .repeat(rounds())
        .into_iter()
        .enumerate()
    {
        world.kill();
        world.start_failing(Some(point));
        let email = format!("new-{round}@example.test");
        let form = format!("email=new-{round}%40example.test&password=correct+horse+battery");
        let sign_up = Request::form("/dashboard/sign-up", &form);
        assert!(
            client::try_ask(world.edge, &sign_up).is_none_or(|answer| answer.status >= 500),
            "{point}"
        );
        world.wait_killed();
        world.start_gateway();
        let (key_id, key) = world.key(&email, "test");
        let account = Account {
            id: email.clone(),
            email,
            key,
            key_id,
        };
        let grants = world.json(&["ledger", "show", &account.id]);
        assert_eq!(
            grants.to_string().matches("\"kind\":\"trial\"").count(),
            1,
            "{point}: {grants}"
        );
        assert_eq!(world.standing(&account).balance, 300_000_000, "{point}");
        assert_eq!(
            world
                .ask(&Chat.whole(&account.key, "input=10 output=5"))
                .status,
            200,
            "{point}"
        );
    }
}
