//! Tests `kill -9` at each point of an entry's path from an edge over the shared store into the
//! ledger, and of a post's path back. While the dead process is away, Redis lives, dies, or loses
//! all its data.
//!
//! The process kills itself at a named point (`GW_FAIL`). `chaos.rs` kills at random moments.
//! `kills.rs` covers the points of a request before its end, which are the same here.

use crate::account::{Account, Standing, credits, taken};
use crate::client::{self, Connection, Request};
use crate::shared::Fleet;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{SOON, wait_for};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const FUNDS: i64 = 1_000_000_000;

/// What happens to Redis while the dead process is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Dies,
    ForgetsEverything,
}

const FATES: [Fate; 3] = [Fate::Lives, Fate::Dies, Fate::ForgetsEverything];

/// The entry that the ledger must have for the request in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Void,
    Debit,
}

/// A kill point, and whether the client must (`true`), cannot (`false`) or may (`None`) have the
/// whole answer. A client that has it must be debited.
struct Row {
    point: &'static str,
    has_answer: Option<bool>,
    left: Left,
    /// The edge reaches this point only while it shuts down after a drain.
    at_end: bool,
}

const fn row(point: &'static str, has_answer: Option<bool>, left: Left) -> Row {
    Row {
        point,
        has_answer,
        left,
        at_end: false,
    }
}

const EDGE: &[Row] = &[
    row("after_journal_open", Some(false), Left::Void),
    row("held_there", Some(false), Left::Void),
    row("before_journal_end", Some(false), Left::Void),
    row("after_journal_end", Some(false), Left::Debit),
    row("ending_told", None, Left::Debit),
    row("ending_arrived", None, Left::Debit),
    Row {
        at_end: true,
        ..row("before_reap", Some(true), Left::Debit)
    },
];

const SIDECAR: &[&str] = &["events_read", "events_entered", "events_cleared"];
const POSTS: &[&str] = &["post_entered", "post_told"];

/// How many combinations a test goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Each row once, with the fates in turn.
    EachRow,
    /// Each row with each fate.
    EachFate,
}

fn with_fates<T: Copy>(rows: impl IntoIterator<Item = T>, extent: Extent) -> Vec<(T, Fate)> {
    let all = rows.into_iter().enumerate().flat_map(|(index, row)| {
        let fates = match extent {
            Extent::EachFate => FATES.to_vec(),
            Extent::EachRow => vec![FATES[index % FATES.len()]],
        };
        fates.into_iter().map(move |fate| (row, fate))
    });
    all.collect()
}

struct Books {
    fleet: Fleet,
    account: Account,
    known: usize,
    balance: i64,
}

impl Books {
    fn new() -> Self {
        let fleet = Fleet::new();
        let account = fleet.funded(FUNDS);
        Self {
            fleet,
            account,
            known: 0,
            balance: FUNDS,
        }
    }

    fn meet(&mut self, fate: Fate) {
        match fate {
            Fate::Lives => {}
            Fate::Dies => self.fleet.redis.kill_and_restart(),
            Fate::ForgetsEverything => assert_eq!(self.fleet.redis.cli(&["flushall"]), "OK"),
        }
    }

    /// Ends the first edge, which must leave nothing in its journal, and restarts it so that it
    /// dies at `point`.
    fn edge_fails_at(&mut self, point: &str) {
        let edge = &mut self.fleet.edges[0];
        edge.signal("TERM");
        assert_eq!(edge.wait_end(SOON), 0);
        edge.start_failing(Some(point));
        self.fleet
            .wait_known(&self.fleet.edges[0], &self.account.key);
    }

    fn sidecar_fails_at(&mut self, point: &str) {
        let sidecar = &mut self.fleet.sidecar;
        sidecar.signal("TERM");
        assert_eq!(sidecar.wait_end(SOON), 0);
        sidecar.start_failing(Some(point));
    }

    /// Sends a request. Returns whether the client got the whole answer.
    fn ask(&self, surface: Surface, stream: bool) -> bool {
        let key = &self.account.key;
        let request = match stream {
            true => surface.stream(key, "events=4 gap_ms=15 input=10 output=5"),
            false => surface.whole(key, "input=10 output=5"),
        };
        let mut connection = Connection::open(self.fleet.edges[0].edge);
        connection.send(&request.bytes());
        let Some(mut answer) = connection.try_begin() else {
            return false;
        };
        assert_eq!(answer.status, 200, "{}", answer.text());
        connection.finish(&mut answer);
        match stream {
            true => surface.is_complete(&answer),
            false => serde_json::from_slice::<Value>(&answer.body).is_ok(),
        }
    }

    /// Checks that exactly one more request has its entry in the ledger, with this cost, that
    /// nothing is held, and that the ledger and the store agree.
    #[track_caller]
    fn has_one_more(&mut self, left: Left, cost: i64, what: &str) {
        let sidecar = &self.fleet.sidecar;
        let endings = wait_for(&format!("the ending: {what}"), SOON, || {
            Some(sidecar.endings(&self.account)).filter(|endings| endings.len() > self.known)
        });
        assert_eq!(endings.len(), self.known + 1, "{what}: {endings:?}");
        let (outcome, cost) = if left == Left::Debit {
            ("completed", cost)
        } else {
            ("interrupted", 0)
        };
        assert_eq!(
            (&endings[0]["outcome"], taken(&endings[..1])),
            (&outcome.into(), cost),
            "{what}"
        );
        self.known += 1;
        self.balance -= cost;
        self.are_right(what);
        assert_eq!(
            self.fleet.sidecar.endings(&self.account).len(),
            self.known,
            "{what}: nothing came after it"
        );
    }

    #[track_caller]
    fn are_right(&self, what: &str) {
        let settled = Standing {
            balance: self.balance,
            held: 0,
            available: self.balance,
        };
        let credits = Request::get("/v1/credits").bearer(&self.account.key);
        for edge in &self.fleet.edges {
            wait_for(&format!("an edge to say so: {what}"), SOON, || {
                let is_there = client::ask(edge.edge, &credits).status == 200;
                (is_there && edge.standing(&self.account) == settled).then_some(())
            });
        }
        let verdict = self.fleet.sidecar.json(&["ledger", "verify"]);
        assert_eq!(
            verdict["findings"],
            Value::Array(Vec::new()),
            "{what}: {verdict}"
        );
    }
}

#[test]
fn an_edge_that_dies_on_an_endings_way_debits_it_once_or_not_at_all() {
    kill_an_edge(Extent::EachRow);
}

#[test]
#[ignore = "long installation: a kill of an edge at each point, with each fate of Redis, about 5 minutes"]
fn an_edge_that_dies_with_each_fate_of_redis_debits_once_or_not_at_all() {
    kill_an_edge(Extent::EachFate);
}

fn kill_an_edge(extent: Extent) {
    let mut books = Books::new();
    let kinds = BOTH
        .into_iter()
        .flat_map(|surface| [(surface, false), (surface, true)]);
    let mut kinds = kinds.cycle();
    for (row, fate) in with_fates(EDGE, extent) {
        let Row {
            point,
            has_answer,
            left,
            at_end,
        } = *row;
        let requests = if extent == Extent::EachFate { 4 } else { 1 };
        for (surface, stream) in kinds.by_ref().take(requests) {
            let what = format!("{point}, Redis {fate:?}, {surface:?}, stream: {stream}");
            books.edge_fails_at(point);
            let whole = books.ask(surface, stream);
            assert!(
                has_answer.is_none_or(|has| has == whole),
                "{what}: the client's answer was whole: {whole}"
            );
            if at_end {
                books.fleet.edges[0].signal("TERM");
            }
            books.fleet.edges[0].wait_killed();
            books.meet(fate);
            books.fleet.edges[0].start_gateway();
            books.has_one_more(left, surface.cost(10, 5), &what);
        }
    }
}

#[test]
fn a_sidecar_that_dies_on_an_endings_way_enters_it_once() {
    kill_the_sidecar(Extent::EachRow);
}

#[test]
#[ignore = "long installation: a kill of the sidecar at each point, with each fate of Redis, about a minute"]
fn a_sidecar_that_dies_with_each_fate_of_redis_enters_an_ending_once() {
    kill_the_sidecar(Extent::EachFate);
}

fn kill_the_sidecar(extent: Extent) {
    let mut books = Books::new();
    let mut surfaces = BOTH.into_iter().cycle();
    for (point, fate) in with_fates(SIDECAR.iter().copied(), extent) {
        let surface = surfaces.next().unwrap();
        books.sidecar_fails_at(point);
        assert!(books.ask(surface, false));
        books.fleet.sidecar.wait_killed();
        books.meet(fate);
        books.fleet.sidecar.start_gateway();
        books.has_one_more(
            Left::Debit,
            surface.cost(10, 5),
            &format!("{point}, Redis {fate:?}"),
        );
    }
}

#[test]
fn a_sidecar_that_dies_between_a_grant_and_the_store_grants_it_once() {
    let mut books = Books::new();
    for (round, (point, fate)) in with_fates(POSTS.iter().copied().cycle().take(4), Extent::EachRow)
        .into_iter()
        .enumerate()
    {
        books.sidecar_fails_at(point);
        let id = books.account.id.clone();
        let grant = [
            "account",
            "grant",
            &id,
            "5",
            "--ref",
            &format!("more-{round}"),
        ];
        assert_eq!(books.fleet.sidecar.json(&grant)["counted"], true);
        books.fleet.sidecar.wait_killed();
        books.meet(fate);
        books.fleet.sidecar.start_gateway();
        books.balance += 5_000_000;
        books.are_right(&format!("{point}, Redis {fate:?}"));
        assert_eq!(books.fleet.sidecar.json(&grant)["counted"], false);
    }
    books.are_right("and nothing was counted again");
}

#[test]
fn a_command_that_dies_between_the_store_and_the_ledger_takes_once_when_it_is_run_again() {
    let mut books = Books::new();
    for (round, fate) in FATES.into_iter().enumerate() {
        let (amount, reference) = (format!("-{}", credits(5_000_000)), format!("less-{round}"));
        let id = books.account.id.clone();
        let adjust = [
            "ledger", "adjust", &id, &amount, "--ref", &reference, "--reason", "a test", "--json",
        ];
        let mut command = Command::new(crate::world::binary());
        command
            .args(adjust)
            .arg("-c")
            .arg(&books.fleet.sidecar.config)
            .env("GW_FAIL", "taken_there");
        assert_eq!(command.output().unwrap().status.signal(), Some(9));
        assert_eq!(
            books.fleet.edges[0].standing(&books.account).balance,
            books.balance - 5_000_000,
            "taken there"
        );
        books.meet(fate);
        wait_for("the account to be in the store", SOON, || {
            let credits = Request::get("/v1/credits").bearer(&books.account.key);
            (client::ask(books.fleet.edges[0].edge, &credits).status == 200).then_some(())
        });
        for counted in [true, false] {
            assert_eq!(
                books.fleet.sidecar.json(&adjust[..adjust.len() - 1])["counted"],
                counted,
                "{fate:?}"
            );
        }
        books.balance -= 5_000_000;
        books.are_right(&format!("Redis {fate:?}"));
    }
}

/// The control: an entry that the edge sent to Redis, and that Redis lost before the sidecar read
/// it, is in the journal only. Without the journal it is lost.
#[test]
fn without_the_journal_an_ending_that_redis_forgot_is_lost() {
    let mut books = Books::new();
    books.fleet.sidecar.kill();
    books.edge_fails_at("ending_told");
    books.ask(Chat, false);
    books.fleet.edges[0].wait_killed();
    std::fs::remove_dir_all(books.fleet.edges[0].data_dir().join("journal")).unwrap();
    books.meet(Fate::ForgetsEverything);
    books.fleet.sidecar.start_gateway();
    books.fleet.edges[0].start_gateway();
    books.are_right("as if it had never been");
    assert!(books.fleet.sidecar.endings(&books.account).is_empty());
}
