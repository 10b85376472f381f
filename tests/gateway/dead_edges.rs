//! Edges that are gone or will be removed: the contents of their journals reach the ledger and the
//! shared store once, from any machine and however late.

use crate::account::{Account, Standing, taken};
use crate::client::{Answer, Connection};
use crate::shared::Fleet;
use crate::surface::{BOTH, Chat, Messages, Surface};
use crate::world::{SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

const FUNDS: i64 = 100_000_000;

/// Starts a stream; the client has received its first bytes.
fn begun(edge: &World, surface: Surface, key: &str, marker: &str) -> (Connection, Answer) {
    edge.begin_stream(&surface.stream(key, marker))
}

/// Copies the only journal of an edge to another folder.
fn journal_of(edge: &World, to: &Path) -> PathBuf {
    let mut folders = std::fs::read_dir(edge.data_dir().join("journal")).unwrap();
    let folder = folders.next().unwrap().unwrap().path();
    assert!(folders.next().is_none(), "more than one journal");
    assert!(
        std::process::Command::new("cp")
            .arg("-a")
            .args([folder.as_path(), to])
            .status()
            .unwrap()
            .success()
    );
    to.join(folder.file_name().unwrap())
}

/// Deletes the markers of requests. In production, they expire in time.
fn forget_markers(fleet: &Fleet) {
    let markers = fleet.redis.cli(&["--scan", "--pattern", "gw:{p*}:r:*"]);
    assert!(!markers.is_empty());
    for marker in markers.lines() {
        assert_eq!(fleet.redis.cli(&["del", marker]), "1");
    }
}

#[track_caller]
fn is_right(fleet: &Fleet, account: &Account, balance: i64) {
    let settled = Standing {
        balance,
        held: 0,
        available: balance,
    };
    wait_until("the store to say so", SOON, || {
        fleet
            .edges
            .iter()
            .all(|edge| edge.standing(account) == settled)
    });
    assert_eq!(FUNDS - taken(&fleet.sidecar.endings(account)), balance);
    let verdict = fleet.sidecar.json(&["ledger", "verify"]);
    assert_eq!(verdict["findings"], Value::Array(Vec::new()), "{verdict}");
}

/// A machine that died with one request that the ledger has, two that only its journal has, and one
/// that was still running.
struct DeadMachine {
    fleet: Fleet,
    account: Account,
    journal: PathBuf,
    _keep: tempfile::TempDir,
}

const COSTS: fn() -> i64 = || 2 * Chat.cost(10, 5) + Messages.cost(10, 5);

impl DeadMachine {
    fn new() -> Self {
        let mut fleet = Fleet::new();
        let account = fleet.funded(FUNDS);
        let edge = &fleet.edges[0];
        let known = edge.expect(200, &Chat.whole(&account.key, "input=10 output=5"));
        edge.receipt(&account, &known.request_id());
        let open = begun(
            edge,
            Chat,
            &account.key,
            "events=300 gap_ms=100 input=10 output=5",
        );
        let mut last = BOTH.map(|surface| {
            begun(
                edge,
                surface,
                &account.key,
                "events=6 hold=5 input=10 output=5",
            )
        });
        fleet.redis.kill();
        fleet.sidecar.vendor.release();
        for (surface, (connection, answer)) in BOTH.into_iter().zip(&mut last) {
            connection.finish(answer);
            assert!(surface.is_complete(answer), "{}", answer.text());
        }
        fleet.edges[0].kill();
        drop(open);
        fleet.redis.start_again();
        let keep = tempfile::tempdir().unwrap();
        let journal = journal_of(&fleet.edges[0], keep.path());
        std::fs::remove_dir_all(fleet.edges[0].data_dir()).unwrap();
        Self {
            fleet,
            account,
            journal,
            _keep: keep,
        }
    }

    fn replayed(&self) -> Value {
        self.fleet.edges[1].json(&["ledger", "replay", self.journal.to_str().unwrap()])
    }

    /// Starts another machine in the dead one's place.
    fn close(mut self) {
        self.fleet.edges[0].start_gateway();
    }
}

#[test]
fn a_dead_edges_journal_is_replayed_into_the_ledger_and_the_store_from_another_machine() {
    let mut dead = DeadMachine::new();
    let (account, edge) = (&dead.account, &dead.fleet.edges[1]);
    wait_until("the other edge to admit again", SOON, || edge.is_ready());
    // Control: without the replay, the ledger has only the first request, and the credit of the
    // others is still held.
    let standing = wait_for("the store", SOON, || {
        let answer = edge.ask(&crate::client::Request::get("/v1/credits").bearer(&account.key));
        (answer.status == 200).then(|| edge.standing(account))
    });
    assert_eq!(standing.balance, FUNDS - Chat.cost(10, 5));
    assert!(standing.held > 0, "{standing:?}");
    let told = dead.replayed();
    assert_eq!(
        (&told["new"], &told["missing"], &told["unreadable"]),
        (&3.into(), &0.into(), &0.into()),
        "{told}"
    );
    let told = dead.replayed();
    assert_eq!(
        (&told["new"], &told["missing"]),
        (&0.into(), &0.into()),
        "doing it twice changes nothing: {told}"
    );
    dead.fleet.edges[0].start_gateway();
    dead.fleet
        .edges
        .iter()
        .for_each(|edge| dead.fleet.wait_known(edge, &dead.account.key));
    is_right(&dead.fleet, &dead.account, FUNDS - COSTS());
    dead.fleet.edges[0].kill();
    dead.close();
}

#[test]
fn a_journal_that_comes_after_the_markers_have_gone_is_debited_once_all_the_same() {
    let mut dead = DeadMachine::new();
    dead.fleet.edges[0].start_gateway();
    dead.fleet
        .edges
        .iter()
        .for_each(|edge| dead.fleet.wait_known(edge, &dead.account.key));
    // The restoration that follows a restart relies on the markers of the last hour.
    wait_for("the sidecar to know the restarted server", SOON, || {
        let known = "has other data: 0 partitions are empty";
        dead.fleet.sidecar.log().contains(known).then_some(())
    });
    forget_markers(&dead.fleet);
    for _ in 0..2 {
        assert_eq!(dead.replayed()["missing"], 0);
    }
    let endings = dead.fleet.sidecar.endings(&dead.account);
    assert_eq!(
        (endings.len(), taken(&endings)),
        (4, COSTS()),
        "the ledger knows each request for ever"
    );
    let edge = &dead.fleet.edges[1];
    wait_until("the holds to be gone", SOON, || {
        edge.standing(&dead.account).held == 0
    });
    is_right(&dead.fleet, &dead.account, FUNDS - COSTS());
    dead.fleet.edges[0].kill();
    dead.close();
}

fn drain(edge: &World, args: &[&str]) -> (Output, Value) {
    let output = edge.command(&[&["edge", "drain", "--json"], args].concat());
    let told = serde_json::from_slice(&output.stdout);
    let told = told.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output, told)
}

fn journals(edge: &World) -> usize {
    std::fs::read_dir(edge.data_dir().join("journal"))
        .unwrap()
        .count()
}

#[test]
fn a_drained_edge_has_finished_its_requests_and_the_ledger_has_them_all() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(FUNDS);
    let (mut connection, mut answer) = begun(
        &fleet.edges[0],
        Chat,
        &account.key,
        "events=10 gap_ms=100 input=10 output=5",
    );
    let (output, told) = std::thread::scope(|scope| {
        let drained = scope.spawn(|| drain(&fleet.edges[0], &[]));
        fleet.edges[0].wait_log("draining");
        connection.finish(&mut answer);
        drained.join().unwrap()
    });
    assert!(Chat.is_complete(&answer), "{}", answer.text());
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(
        (&told["drained"], &told["missing"]),
        (&true.into(), &0.into()),
        "{told}"
    );
    assert_eq!(fleet.edges[0].wait_end(SOON), 0);
    assert_eq!(journals(&fleet.edges[0]), 0);
    let endings = fleet.sidecar.endings(&account);
    assert_eq!((endings.len(), taken(&endings)), (1, Chat.cost(10, 5)));
    let (output, _) = drain(&fleet.edges[0], &[]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "there is nothing to drain any more"
    );
    fleet.edges[0].start_gateway();
}

#[test]
fn a_drain_without_the_sidecar_says_what_is_left_and_another_one_brings_it() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(FUNDS);
    fleet.sidecar.kill();
    fleet.edges[0].works(Chat, &account.key);
    let (output, told) = drain(&fleet.edges[0], &["--within-seconds", "8"]);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(
        (&told["drained"], &told["missing"], &told["running"]),
        (&false.into(), &1.into(), &0.into()),
        "{told}"
    );
    assert_eq!(fleet.edges[0].wait_end(SOON), 0);
    assert_eq!(
        journals(&fleet.edges[0]),
        1,
        "what the ledger lacks is kept"
    );
    fleet.sidecar.start_gateway();
    let (output, told) = drain(&fleet.edges[0], &[]);
    assert_eq!(
        (output.status.code(), &told["drained"]),
        (Some(0), &true.into()),
        "{told}"
    );
    assert_eq!(journals(&fleet.edges[0]), 0);
    fleet.edges[0].start_gateway();
    is_right(&fleet, &account, FUNDS - Chat.cost(10, 10));
}

#[test]
fn a_successor_brings_what_a_predecessor_left_that_died_after_it_had_handed_over() {
    let mut fleet = Fleet::new();
    let account = fleet.funded(FUNDS);
    let open = begun(
        &fleet.edges[0],
        Chat,
        &account.key,
        "events=300 gap_ms=100 input=10 output=5",
    );
    let mut old = fleet.edges[0].upgrade();
    assert!(fleet.edges[0].standing(&account).held > 0);
    old.kill().unwrap();
    old.wait().unwrap();
    drop(open);
    wait_until("the hold to be given back", SOON, || {
        fleet.edges[0].standing(&account).held == 0
    });
    wait_until("its ending", SOON, || {
        fleet.sidecar.endings(&account).len() == 1
    });
    assert_eq!(fleet.sidecar.endings(&account)[0]["outcome"], "interrupted");
    wait_until("its journal to be gone", SOON, || {
        journals(&fleet.edges[0]) == 1
    });
    is_right(&fleet, &account, FUNDS);
}
