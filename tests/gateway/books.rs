//! The ledger in an operator's hands: export, refunds, adjustments, backup and restore, all next to
//! a running gateway.

use crate::account::{Account, audit, micro};
use crate::client::Request;
use crate::crash::{FUNDS, Habit, under_load};
use crate::surface::{BOTH, Chat};
use crate::world::{SOON, World, wait_until};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::process::Command;
use std::time::{Duration, Instant};

impl World {
    /// Runs a command that must be refused; returns the error text.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        assert!(output.stdout.is_empty());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Returns what a command prints. It must succeed.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Checks the hash chain of an export, using only the export.
#[track_caller]
fn follow(lines: &[Value]) {
    let mut prev = "0".repeat(64);
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    };
    for (index, line) in lines.iter().enumerate() {
        let text = |name: &str| {
            line[name]
                .as_str()
                .unwrap_or_else(|| panic!("{name}: {line}"))
        };
        assert_eq!(line["seq"], index as u64 + 1);
        assert_eq!(text("prev"), prev, "{line}");
        let amounts = ["d_paid", "d_trial", "bal_paid", "bal_trial", "writeoff"]
            .map(|name| micro(&line[name]));
        let (kind, reference, account, detail) =
            (text("kind"), text("ref"), text("account"), text("detail"));
        let said = format!(
            "{}\x1f{kind}\x1f{reference}\x1f{account}\x1f{}\x1f{amounts:?}\x1f{detail}",
            line["seq"], line["at_ms"]
        );
        let mut hash = Sha256::new();
        hash.update(bytes(&prev));
        hash.update(said);
        prev = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(text("hash"), prev, "{line}");
    }
}

fn ended(world: &World, account: &Account, count: usize) -> String {
    world.ended(account, count)["request_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn an_export_proves_itself_and_can_be_narrowed() {
    let (world, account) = World::with_account();
    let other = world.account_with("other@example.test", &[]);
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    let request = ended(&world, &account, 2);
    world.json(&["ledger", "refund", &request, "--ref", "a \"quoted\", ref"]);
    world.json(&[
        "ledger",
        "adjust",
        &account.email,
        "-1.5",
        "--ref",
        "a1",
        "--reason",
        "lines\nof reason",
    ]);
    let lines = world.json(&["ledger", "export"]);
    let lines = lines.as_array().unwrap();
    assert_eq!(lines.len(), 6);
    follow(lines);
    let kinds: Vec<_> = lines
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["trial", "trial", "debit", "debit", "refund", "adjust"]
    );
    let shown = world.json(&["ledger", "show", &account.id]);
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), 5);
    for row in shown {
        let line = &lines[usize::try_from(row["seq"].as_u64().unwrap()).unwrap() - 1];
        for name in ["hash", "prev", "kind", "ref", "at"] {
            assert_eq!(row[name], line[name]);
        }
    }
    assert_eq!(
        (&shown[0]["reason"], &shown[1]["request_id"]),
        (&"lines\nof reason".into(), &request.as_str().into())
    );
    let of_other = world.json(&["ledger", "export", "--account", "other@example.test"]);
    assert_eq!(
        of_other.as_array().unwrap().as_slice(),
        [lines[1].clone()].as_slice()
    );
    assert_eq!(lines[1]["account"], other.id.as_str());
    let at = lines[3]["at"].as_str().unwrap();
    let count = |args: &[&str]| {
        world
            .json(&[&["ledger", "export"], args].concat())
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count(&["--from", at]) + count(&["--to", at]), 6);
    assert_eq!(
        (
            count(&["--to", "2020-01-01"]),
            count(&["--from", "2020-01-01"])
        ),
        (0, 6)
    );
    assert_eq!(
        world
            .command(&["ledger", "export", "--from", "yesterday"])
            .status
            .code(),
        Some(2)
    );
    let csv = world.text(&["ledger", "export", "--format", "csv"]);
    assert_eq!(csv.lines().next().unwrap().split(',').count(), 14);
    assert!(
        csv.contains(",refund,\"a \"\"quoted\"\", ref\",") && csv.contains(",-1.5,0,"),
        "{csv}"
    );
    assert_eq!(csv.matches("\r\n").count(), 7);
    let text = world.text(&["ledger", "show", &account.id, "--last", "2"]);
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn refunds_and_adjustments_count_once_beside_a_running_gateway() {
    let (world, account) = World::with_account();
    world.works(Chat, &account.key);
    let request = ended(&world, &account, 1);
    let left = world.standing(&account).balance;
    let cost = 300_000_000 - left;
    let refund = ["ledger", "refund", &request, "0.000001", "--ref", "t1"];
    for counted in [true, false] {
        let told = world.json(&refund);
        assert_eq!(
            (&told["counted"], micro(&told["credits"])),
            (&counted.into(), 1)
        );
        assert_eq!(world.standing(&account).balance, left + 1);
    }
    assert!(
        world
            .refused(&["ledger", "refund", &request, "--ref", "t1", "0.000002"])
            .contains("something else")
    );
    assert!(
        world
            .refused(&["ledger", "refund", &request, "--ref", "t2", "300"])
            .contains("its debit was")
    );
    assert!(
        world
            .refused(&["ledger", "refund", "req_none", "--ref", "t2"])
            .contains("no debit")
    );
    assert_eq!(
        micro(&world.json(&["ledger", "refund", &request, "--ref", "t2"])["credits"]),
        cost - 1
    );
    assert_eq!(world.standing(&account).balance, 300_000_000);
    // An adjustment cannot take the credit that a running stream holds.
    let mut connection = world.connect();
    let body = Chat.body("events=8 hold=5 input=10 output=10", true, 1_000);
    connection.send(&Chat.request(&account.key, &body).bytes());
    let mut answer = connection.begin();
    let standing = world.standing(&account);
    assert!(standing.held > 0);
    crate::world::wait_until("the mirror", crate::world::SOON, || {
        world.shown(&account).held == standing.held
    });
    let adjust = |amount: i64, reference: &str| {
        let amount = format!("-{}", crate::account::credits(amount));
        world.command(&[
            "ledger",
            "adjust",
            &account.id,
            &amount,
            "--ref",
            reference,
            "--reason",
            "a test",
        ])
    };
    assert_eq!(adjust(standing.available + 1, "a1").status.code(), Some(1));
    assert!(adjust(standing.available, "a1").status.success());
    assert!(
        adjust(standing.available, "a1").status.success(),
        "the same again is no error"
    );
    assert_eq!(world.standing(&account).available, 0);
    world.vendor.release();
    connection.finish(&mut answer);
    let refused = world.ask(&Request::get("/v1/credits").bearer(&account.key));
    assert_eq!(refused.status, 200);
    ended(&world, &account, 2);
    let verdict = world.json(&["ledger", "verify"]);
    assert_eq!(
        (&verdict["refunds"], &verdict["adjustments"]),
        (&2.into(), &1.into()),
        "{verdict}"
    );
}

#[test]
fn sums_that_are_wrong_are_found_and_made_anew_beside_a_running_gateway() {
    let (world, account) = World::with_funds(FUNDS);
    world.works(Chat, &account.key);
    ended(&world, &account, 1);
    // Writes to the index what only the gateway's memory has.
    assert!(world.command(&["ledger", "reindex"]).status.success());
    let open = |name| rusqlite::Connection::open(world.data_dir().join(name)).unwrap();
    let (ledger, index) = (open("ledger.db"), open("index.db"));
    let tables = [
        "usage_hour",
        "usage_day",
        "usage_total",
        "conversation",
        "key_spend",
    ];
    for table in tables {
        let credits = if table == "key_spend" {
            "total"
        } else {
            "credits"
        };
        let file = if table == "key_spend" {
            &ledger
        } else {
            &index
        };
        let changed = file
            .execute(&format!("UPDATE {table} SET {credits} = {credits} + 1"), [])
            .unwrap();
        assert_eq!(changed, 1, "{table}");
        let output = world.command(&["ledger", "verify", "--all"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{table}: {text}");
        assert!(
            text.contains(&format!("sums: {table}: ")) && text.contains("1 findings in "),
            "{text}"
        );
        let verdict = world.json(&["ledger", "verify", "--rebuild-aggregates"]);
        assert_eq!(verdict["findings"], serde_json::json!([]), "{table}");
    }
    world.works(Chat, &account.key);
    let log = world.json(&["audit", "show", "--last", "10"]);
    let rebuilt = log
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["act"] == "ledger.rebuild-aggregates")
        .count();
    assert_eq!(rebuilt, tables.len(), "{log}");
}

#[test]
fn a_backup_under_load_restores_every_answer_that_was_complete_before_it() {
    let (mut world, account) = World::with_funds(FUNDS);
    let copy = world.dir.path().join("backup");
    let keyed = Chat
        .whole(&account.key, "input=10 output=10")
        .header("idempotency-key", "before-the-backup");
    let answered = world.expect(200, &keyed);
    let mut began = None;
    let mut took = Duration::ZERO;
    let answer_more = |world: &World, count: f64| {
        let answered = || world.metric("gateway_requests_total", &["status=\"200\""]);
        let enough = answered() + count;
        wait_until("answers", 3 * SOON, || answered() >= enough);
    };
    let log = under_load(
        world.edge,
        &account.key,
        &[Habit::Whole, Habit::Stream, Habit::Abort],
        || {
            answer_more(&world, 400.0);
            let now = Instant::now();
            began = Some(now);
            world.json(&["ledger", "backup", copy.to_str().unwrap()]);
            took = now.elapsed();
            answer_more(&world, 100.0);
            world.kill();
        },
    );
    assert!(
        world
            .refused(&["ledger", "backup", copy.to_str().unwrap()])
            .contains("already exists")
    );
    // Restore into an empty directory and run a gateway on it.
    let restored = world.dir.path().join("restored");
    assert!(
        std::process::Command::new("cp")
            .arg("-a")
            .args([&copy, &restored])
            .status()
            .unwrap()
            .success()
    );
    let config = std::fs::read_to_string(&world.config).unwrap();
    let (old, new) = (
        world.data_dir().display().to_string(),
        restored.display().to_string(),
    );
    std::fs::write(&world.config, config.replace(&old, &new)).unwrap();
    world.start_gateway();
    let endings = world.endings(&account);
    let completed: std::collections::HashSet<_> = endings
        .iter()
        .filter(|ending| ending["outcome"] == "completed")
        .map(|ending| ending["request_id"].as_str().unwrap())
        .collect();
    let before: Vec<_> = log
        .finished
        .iter()
        .filter(|(at, _)| Some(*at) < began)
        .map(|(_, id)| id)
        .collect();
    let missing = before
        .iter()
        .filter(|id| !completed.contains(id.as_str()))
        .count();
    println!(
        "{} answers complete before the backup ({took:?} with its process), {} after; {missing} missing, {} debits",
        before.len(),
        log.finished.len() - before.len(),
        completed.len()
    );
    assert_eq!(missing, 0);
    assert!(
        before.len() > 100 && log.finished.len() > before.len(),
        "no load around the backup"
    );
    let again = world.ask(&keyed);
    assert_eq!(
        (again.header("x-gateway-replayed"), again.request_id()),
        (Some("true"), answered.request_id())
    );
    audit(&world);
    follow(world.json(&["ledger", "export"]).as_array().unwrap());
    world.works(Chat, &account.key);
}

/// Files that a process has open although they are deleted.
fn deleted_files(pid: u32) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let names = open.filter_map(|entry| {
        Some(
            std::fs::read_link(entry.ok()?.path())
                .ok()?
                .display()
                .to_string(),
        )
    });
    names.filter(|name| name.ends_with("(deleted)")).collect()
}

#[test]
fn whoever_reads_the_files_beside_the_gateway_takes_nothing_away() {
    let (mut world, account) = World::with_account();
    world.works(Chat, &account.key);
    // Another program. When it closes the file, it believes that nobody else has the file open.
    let read = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM sqlite_master').fetchall(); c.close()";
    for file in ["ledger.db", "app.db", "holds.db", "idempotency.db"] {
        let read = Command::new("python3")
            .args(["-c", read])
            .arg(world.data_dir().join(file))
            .output()
            .unwrap();
        assert!(
            read.status.success(),
            "{}",
            String::from_utf8_lossy(&read.stderr)
        );
    }
    assert_eq!(deleted_files(world.pid()), Vec::<String>::new());
    for _ in 0..3 {
        world.works(Chat, &account.key);
    }
    let before = world.ended(&account, 4);
    world.kill();
    world.start_gateway();
    assert_eq!(
        (world.ended(&account, 4), world.endings(&account).len()),
        (before, 4)
    );
}
