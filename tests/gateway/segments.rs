//! Sealed entries of a serving gateway: exports, receipts, refunds and audits before and after,
//! deaths at every step, and folders and files that cannot be used.

use crate::account::{Account, credits};
use crate::client::{Connection, Request};
use crate::crash::FUNDS;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps at which a process can die, and the command that reaches them.
const DEATHS: [(&str, &str); 7] = [
    ("segment_renamed", "seal"),
    ("before_segment_record", "seal"),
    ("after_segment_record", "seal"),
    ("mid_segment_delete", "seal"),
    ("mid_archive_copy", "archive"),
    ("before_archive_record", "archive"),
    ("after_archive_record", "archive"),
];
/// Later than every entry of a test.
const LATER: &str = "2100-01-01";

/// Sends requests one after the other; returns their ids. All are in the ledger then.
fn settle(world: &World, account: &Account, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count)
        .map(|_| {
            let answer = world.expect(200, &Chat.whole(&account.key, "input=10 output=5"));
            answer.header("x-request-id").unwrap().to_owned()
        })
        .collect();
    for id in &ids {
        world.receipt(account, id);
    }
    ids
}

fn receipt(world: &World, account: &Account, id: &str) -> (u16, Value) {
    let answer = world.ask(&Request::get(&format!("/v1/receipts/{id}")).bearer(&account.key));
    (answer.status, answer.json())
}

fn run(world: &World, args: &[&str]) -> Output {
    world.command(args)
}

fn export(world: &World) -> Vec<u8> {
    let output = run(world, &["ledger", "export"]);
    assert!(output.status.success(), "{}", said(&output));
    output.stdout
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[track_caller]
fn has_no_findings(world: &World) {
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(verdict["findings"], Value::Array(Vec::new()), "{verdict}");
}

fn segments(world: &World) -> Vec<(String, PathBuf)> {
    let output = run(world, &["ledger", "segments", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = list["segments"].as_array().unwrap();
    rows.iter()
        .map(|row| {
            let file = world
                .data_dir()
                .join("segments")
                .join(row["file"].as_str().unwrap());
            (row["state"].as_str().unwrap().to_owned(), file)
        })
        .collect()
}

#[test]
fn a_seal_beside_a_serving_gateway_changes_no_export_receipt_refund_or_audit() {
    let (world, account) = World::with_funds(FUNDS);
    let ids = settle(&world, &account, 20);
    // The vendor's id of an answer is stored beside the ledger, a moment later.
    let receipts = wait_for("the ids of the answers", SOON, || {
        let receipts: Vec<_> = ids.iter().map(|id| receipt(&world, &account, id)).collect();
        let are_whole = receipts.iter().all(|(_, it)| it["answer_id"].is_string());
        are_whole.then_some(receipts)
    });
    // The ids of an account's last 10 000 answers are kept, so the load is another account's.
    let other = world.account_with("load@example.test", &["--no-trial"]);
    world.grant(&other, &credits(FUNDS), "load");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                count += settle(&world, &other, 5).len();
            }
            count
        });
        for _ in 0..3 {
            let before = export(&world);
            let sealed = world.json(&["ledger", "seal"]);
            assert!(
                !sealed.as_array().unwrap().is_empty(),
                "the load adds entries"
            );
            assert!(export(&world).starts_with(&before), "an entry changed");
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    let before = export(&world);
    world.json(&["ledger", "seal"]);
    assert_eq!(export(&world), before);
    for (id, known) in ids.iter().zip(&receipts) {
        assert_eq!(receipt(&world, &account, id), *known);
    }
    assert_eq!(receipt(&world, &account, "req_none").0, 404);
    let refund = |credits: &str, reference: &str| {
        run(
            &world,
            &["ledger", "refund", &ids[3], credits, "--ref", reference],
        )
    };
    assert!(refund("0.000001", "ticket-1").status.success());
    let refused = refund("1000", "ticket-2");
    assert!(
        said(&refused).contains("already refunded"),
        "{}",
        said(&refused)
    );
    has_no_findings(&world);
    let list = run(&world, &["ledger", "segments", "--full"]);
    assert!(list.status.success(), "{}", said(&list));
}

/// Runs a command that kills itself at `point`, then kills the gateway too.
fn dies_at(world: &mut World, point: &str, args: &[&str]) {
    let output = run(world, &[args, &["--fail", point]].concat());
    assert_eq!(output.status.code(), None, "{point}: {}", said(&output));
    world.kill();
    world.start_gateway();
}

#[test]
fn a_death_at_any_step_of_a_seal_or_of_an_archive_loses_no_entry() {
    let archive = tempfile::tempdir().unwrap();
    let (mut world, account) = World::with_funds(FUNDS);
    let folder = archive.path().to_str().unwrap().to_owned();
    for (point, command) in DEATHS {
        let ids = settle(&world, &account, 4);
        let seal = ["ledger", "seal"];
        let archive = ["ledger", "archive", "--before", LATER, &folder];
        let args = match command {
            "archive" => &archive[..],
            _ => &seal[..],
        };
        if command == "archive" {
            world.json(&seal);
        }
        let before = export(&world);
        dies_at(&mut world, point, args);
        assert_eq!(export(&world), before, "{point}");
        has_no_findings(&world);
        world.json(args);
        assert_eq!(export(&world), before, "{point}, finished");
        for id in &ids {
            assert_eq!(receipt(&world, &account, id).0, 200, "{point}");
        }
        has_no_findings(&world);
        let list = segments(&world);
        assert!(
            list.iter()
                .all(|(state, _)| state == "here" || state == "archived"),
            "{point}: {list:?}"
        );
        let left = std::fs::read_dir(world.data_dir().join("segments")).unwrap();
        let left: Vec<_> = left
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".partial") || name.ends_with(".unknown"))
            .collect();
        assert_eq!(left, [""; 0], "{point}");
    }
}

#[test]
fn a_full_segment_is_sealed_by_the_gateway_itself_and_a_death_is_made_good() {
    let mut world = Plan::default()
        .edit(
            "store: {kind: embedded}",
            "store: {kind: embedded}\nledger: {seal: {entries: 1000}}",
        )
        .start();
    let account = world.funded(FUNDS);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..130 {
                    world.expect(200, &Chat.whole(&account.key, "input=1 output=1"));
                }
            });
        }
    });
    let ids = settle(&world, &account, 1);
    let before = export(&world);
    world.kill();
    for point in ["segment_renamed", "mid_segment_delete"] {
        world.begin_gateway(Some(point));
        world.wait_killed();
        assert_eq!(export(&world), before, "{point}");
    }
    world.start_gateway();
    wait_for("the gateway to seal", SOON, || {
        let log = run(&world, &["ledger", "segments", "--json"]).stdout;
        let list: Value = serde_json::from_slice(&log).unwrap();
        (list["segments"][0]["is_emptied"] == true).then_some(())
    });
    assert_eq!(export(&world), before);
    assert_eq!(receipt(&world, &account, &ids[0]).0, 200);
    has_no_findings(&world);
    world.wait_metric("gateway_ledger_segments", &["state=\"here\""], 1.0);
}

#[test]
fn a_missing_segment_is_named_everywhere_and_works_again_once_it_is_back() {
    let (mut world, account) = World::with_funds(FUNDS);
    let ids = settle(&world, &account, 6);
    world.json(&["ledger", "seal"]);
    let before = export(&world);
    let (_, path) = segments(&world).remove(0);
    let away = world.dir.path().join("away.segment");
    std::fs::rename(&path, &away).unwrap();
    world.kill();
    world.start_gateway();
    let file = path.file_name().unwrap().to_str().unwrap();
    let list = run(&world, &["ledger", "segments"]);
    assert!(
        !list.status.success() && said(&list).contains("missing"),
        "{}",
        said(&list)
    );
    let (status, error) = receipt(&world, &account, &ids[2]);
    assert_eq!(
        (status, &error["error"]["code"]),
        (503, &Value::from("receipt_archived")),
        "{error}"
    );
    let refund = run(&world, &["ledger", "refund", &ids[2], "--ref", "t"]);
    for output in [run(&world, &["ledger", "export"]), refund] {
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains(file) && text.contains("put the file into"),
            "{text}"
        );
    }
    let verdict = run(&world, &["ledger", "verify", "--json"]);
    let verdict: Value = serde_json::from_slice(&verdict.stdout).unwrap();
    let rules: Vec<_> = verdict["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["segment"], "{verdict}");
    settle(&world, &account, 2);
    wait_until("the log line", SOON, || world.log().contains(file));
    std::fs::rename(&away, &path).unwrap();
    assert!(export(&world).starts_with(&before));
    assert_eq!(receipt(&world, &account, &ids[2]).0, 200);
    has_no_findings(&world);
}

/// A request that ran when its gateway died may have ended in a segment that is away since then.
#[test]
fn requests_that_wait_for_a_missing_segment_are_counted_until_it_is_back() {
    let (mut world, account) = World::with_funds(FUNDS);
    let mut client = Connection::open(world.edge);
    let request = Chat.stream(&account.key, "events=9000 gap_ms=20 input=10 output=5");
    assert!(client.send(&request.bytes()));
    let mut answer = client.begin();
    client.until(&mut answer, "data:");
    settle(&world, &account, 6);
    world.json(&["ledger", "seal"]);
    let (_, path) = segments(&world).remove(0);
    let away = world.dir.path().join("away.segment");
    std::fs::rename(&path, &away).unwrap();
    let counts = |world: &World, waiting: f64| {
        wait_until("the metric", SOON, || {
            world.metric("gateway_withheld_endings", &[]) == waiting
        });
    };
    world.kill();
    world.start_gateway();
    // The last of the six is not sealed, and the ledger cannot tell whether it has the others.
    counts(&world, 6.0);
    assert_eq!(world.metric("gateway_interrupted_total", &[]), 0.0);
    std::fs::rename(&away, &path).unwrap();
    world.kill();
    world.start_gateway();
    counts(&world, 0.0);
    assert_eq!(world.metric("gateway_interrupted_total", &[]), 1.0);
    has_no_findings(&world);
}

/// A small disk of its own, or a read-only one.
struct ArchiveDisk(tempfile::TempDir);

impl ArchiveDisk {
    /// `None` if this machine cannot mount one.
    fn mount(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        is_mounted.then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for ArchiveDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn an_archive_that_is_missing_full_or_read_only_changes_nothing() {
    let (world, account) = World::with_funds(FUNDS);
    let ids = settle(&world, &account, 12);
    world.json(&["ledger", "seal"]);
    let before = export(&world);
    let refused = |folder: &Path, reason: &str| {
        let folder = folder.to_str().unwrap();
        let output = run(&world, &["ledger", "archive", "--before", LATER, folder]);
        let text = said(&output);
        assert!(
            !output.status.success() && text.contains(reason) && text.contains(folder),
            "{text}"
        );
        assert_eq!(segments(&world)[0].0, "here");
        assert_eq!(export(&world), before);
    };
    refused(
        &world.dir.path().join("nowhere"),
        "does not exist; create it",
    );
    match ArchiveDisk::mount("size=8k,mode=0700") {
        Some(disk) => {
            std::fs::write(disk.path().join("ballast"), vec![b'x'; 8 << 10]).unwrap();
            refused(disk.path(), "No space left");
            let left = std::fs::read_dir(disk.path()).unwrap().count();
            assert_eq!(left, 1, "its space is free again");
        }
        None => eprintln!("no tmpfs can be mounted here: a full archive is not tested"),
    }
    match ArchiveDisk::mount("ro,size=1m") {
        Some(disk) => refused(disk.path(), "Read-only file system"),
        None => eprintln!("no tmpfs can be mounted here: a read-only archive is not tested"),
    }
    settle(&world, &account, 1);
    assert_eq!(receipt(&world, &account, &ids[0]).0, 200);
}
