//! Files that were damaged, lost or swapped while the gateway was stopped, and clocks that were
//! changed: what the operator sees, and that no answer becomes free unnoticed.

use crate::account::Account;
use crate::client::Request;
use crate::surface::Chat;
use crate::world::{Plan, SOON, SettableClock, World, wait_for, wait_until};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl World {
    fn stop(&mut self) {
        self.signal("TERM");
        assert_eq!(self.wait_end(SOON), 0);
    }

    /// Runs the gateway, which must refuse to start; returns its error text.
    fn start_refused(&self) -> String {
        let output = self.command(&["run"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The rules and messages of the audit's findings. Asserts that the exit code is 1 exactly if
    /// there are findings.
    fn findings(&self) -> Vec<String> {
        let output = self.command(&["--json", "ledger", "verify"]);
        let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = verdict["findings"].as_array().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())));
        let text = |finding: &serde_json::Value| {
            format!(
                "{}: {}",
                finding["rule"].as_str().unwrap(),
                finding["message"].as_str().unwrap()
            )
        };
        findings.iter().map(text).collect()
    }

    /// Checks that the audit has one finding, which begins like this.
    #[track_caller]
    fn finds_only(&self, start: &str) {
        let findings = self.findings();
        let is_found = findings.len() == 1 && findings[0].starts_with(start);
        assert!(is_found, "{findings:?}");
    }

    /// Names in the data folder that begin with `prefix`.
    fn files(&self, prefix: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.data_dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    fn spend(&self, account: &Account) -> String {
        self.works(Chat, &account.key).request_id()
    }
}

#[test]
fn a_damaged_mirror_and_idempotency_store_stop_no_start() {
    let (mut world, account) = World::with_funds(10_000_000);
    world.spend(&account);
    for garbage in [true, false] {
        world.stop();
        for name in ["holds.db", "idempotency.db"] {
            let path = world.data_dir().join(name);
            // Empty the write-ahead log first: its pages would replace the damaged ones.
            let connection = rusqlite::Connection::open(&path).unwrap();
            connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
                .unwrap();
            drop(connection);
            let mut bytes = std::fs::read(&path).unwrap();
            let (from, to) = if garbage {
                (0, bytes.len())
            } else {
                // The second page.
                let page = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
                (page, 2 * page)
            };
            bytes[from..to].fill(0xa5);
            std::fs::write(path, bytes).unwrap();
        }
        world.start_gateway();
        world.spend(&account);
        for name in ["holds.db", "idempotency.db"] {
            let label = format!("file=\"{name}\"");
            assert_eq!(
                world.metric("gateway_damaged_files_total", &[&label]),
                1.0,
                "{name}"
            );
            let aside = world.files(&format!("{name}.damaged-"));
            assert_eq!(aside.len(), if garbage { 1 } else { 2 }, "{aside:?}");
            assert!(
                aside.iter().all(|name| world.log().contains(name.as_str())),
                "the log names {aside:?}"
            );
        }
        assert!(world.log().contains("ERROR"));
    }
}

#[test]
fn a_missing_ledger_is_named_and_none_is_made_in_its_place() {
    let (mut world, account) = World::with_funds(10_000_000);
    world.spend(&account);
    world.stop();
    let ledger = world.data_dir().join("ledger.db");
    let aside = world.data_dir().join("elsewhere");
    std::fs::rename(&ledger, &aside).unwrap();
    let refused = world.start_refused();
    for part in [
        "ledger.db is missing",
        "restore",
        "backup",
        "--accept-older-ledger",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    let findings = world.findings();
    assert!(
        findings.len() == 1
            && findings[0].starts_with("anchor: ")
            && findings[0].contains("ledger.db is missing")
    );
    assert!(!ledger.exists(), "none was made");
    std::fs::rename(&aside, &ledger).unwrap();
    world.start_gateway();
    world.spend(&account);
}

#[test]
fn missing_accounts_are_named_and_nobody_signs_up_twice() {
    let (mut world, account) = World::with_funds(10_000_000);
    world.spend(&account);
    world.stop();
    let app = world.data_dir().join("app.db");
    let connection = rusqlite::Connection::open(&app).unwrap();
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(connection);
    let kept = std::fs::read(&app).unwrap();
    let remove = || {
        world
            .files("app.db")
            .iter()
            .for_each(|name| std::fs::remove_file(world.data_dir().join(name)).unwrap())
    };
    for is_empty in [false, true] {
        remove();
        if is_empty {
            std::fs::write(&app, []).unwrap();
        }
        let refused = world.start_refused();
        for part in ["app.db is missing", "restore", "backup"] {
            assert!(refused.contains(part), "{refused}");
        }
        world.finds_only("accounts: ");
        let again = world.command(&["account", "create", "--email", &account.email]);
        assert!(!again.status.success(), "{again:?}");
        assert!(
            world.files("app.db").len() == usize::from(is_empty),
            "none was made"
        );
    }
    // A database that was created anew: it has no account.
    remove();
    std::fs::write(&app, &kept).unwrap();
    let connection = rusqlite::Connection::open(&app).unwrap();
    connection
        .execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM account")
        .unwrap();
    drop(connection);
    assert!(world.start_refused().contains("app.db has no account"));
    remove();
    std::fs::write(&app, kept).unwrap();
    assert_eq!(world.findings(), Vec::<String>::new());
    world.start_gateway();
    world.spend(&account);
}

#[test]
fn a_lost_or_empty_anchor_hides_no_older_ledger() {
    let (mut world, account) = World::with_funds(10_000_000);
    world.spend(&account);
    world.stop();
    let (ledger, anchor) = (
        world.data_dir().join("ledger.db"),
        world.data_dir().join("ledger.anchor"),
    );
    let older = std::fs::read(&ledger).unwrap();
    world.start_gateway();
    world.spend(&account);
    world.stop();
    let newest = (
        std::fs::read(&ledger).unwrap(),
        std::fs::read(&anchor).unwrap(),
    );
    for (bytes, what) in [
        (None, "ledger.anchor is missing"),
        (Some(Vec::new()), "ledger.anchor is empty"),
    ] {
        std::fs::write(&ledger, &older).unwrap();
        match bytes {
            Some(bytes) => std::fs::write(&anchor, bytes).unwrap(),
            None => std::fs::remove_file(&anchor).unwrap(),
        }
        let refused = world.start_refused();
        assert!(
            refused.contains(what) && refused.contains("--accept-older-ledger"),
            "{refused}"
        );
        world.finds_only(&format!("anchor: {what}"));
    }
    // The newest ledger is sound once its anchor is back. Without the anchor, the operator has to
    // accept the ledger.
    std::fs::write(&ledger, newest.0).unwrap();
    std::fs::write(&anchor, newest.1).unwrap();
    assert_eq!(world.findings(), Vec::<String>::new());
    std::fs::remove_file(&anchor).unwrap();
    world.start_accepting();
    world.spend(&account);
}

#[test]
fn databases_without_their_tables_stop_no_start_and_no_audit() {
    let (mut world, account) = World::with_funds(10_000_000);
    world.spend(&account);
    world.stop();
    for (name, tables) in [
        ("holds.db", ["held", "question"]),
        ("idempotency.db", ["answer", "asked"]),
    ] {
        let connection = rusqlite::Connection::open(world.data_dir().join(name)).unwrap();
        connection
            .execute_batch(&tables.map(|table| format!("DROP TABLE {table};")).concat())
            .unwrap();
    }
    world.finds_only("holds: holds.db is damaged");
    world.start_gateway();
    world.spend(&account);
    for name in ["holds.db", "idempotency.db"] {
        let label = format!("file=\"{name}\"");
        assert_eq!(
            world.metric("gateway_damaged_files_total", &[&label]),
            1.0,
            "{name}"
        );
        assert_eq!(world.files(&format!("{name}.damaged-")).len(), 1, "{name}");
    }
    world.stop();
    assert_eq!(world.findings(), Vec::<String>::new());
    std::fs::write(world.data_dir().join("holds.db"), "garbage".repeat(1_000)).unwrap();
    world.finds_only("holds: holds.db is damaged");
    world.start_gateway();
}

#[test]
fn an_older_ledger_is_refused_by_name_until_the_operator_accepts_it() {
    let (mut world, account) = World::with_funds(10_000_000);
    let kept = world.spend(&account);
    world.stop();
    let ledger = world.data_dir().join("ledger.db");
    let older = std::fs::read(&ledger).unwrap();
    world.start_gateway();
    let lost = world.spend(&account);
    world.stop();
    assert_eq!(world.findings(), Vec::<String>::new());
    let newest = std::fs::read(&ledger).unwrap();
    std::fs::write(&ledger, older).unwrap();
    let refused = world.start_refused();
    // The older ledger has a grant and a debit, the newest has another debit.
    for part in [
        "ledger.db is older",
        "entry 2 (#",
        "names entry 3 (#",
        "--accept-older-ledger",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    world.finds_only("anchor: ledger.db is older");
    // Commands refuse to post to it, too: a new entry would hide the missing ones.
    let posted = world.command(&["account", "grant", &account.id, "1", "--ref", "late"]);
    assert!(!posted.status.success());
    assert!(
        String::from_utf8(posted.stderr)
            .unwrap()
            .contains("ledger.db is older")
    );
    std::fs::write(&ledger, &newest).unwrap();
    world.start_gateway();
    world.stop();
    let ids = |world: &World| -> Vec<String> {
        let endings = world.endings(&account);
        endings
            .iter()
            .map(|ending| ending["request_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&world), [lost, kept.clone()]);
    let backup = world.data_dir().join("backup");
    assert!(
        world
            .command(&["ledger", "backup", backup.to_str().unwrap()])
            .status
            .success()
    );
    world.start_gateway();
    world.spend(&account);
    world.stop();
    // The operator restores a backup on purpose.
    std::fs::copy(backup.join("ledger.db"), &ledger).unwrap();
    assert!(world.start_refused().contains("ledger.db is older"));
    world.start_accepting();
    let next = world.spend(&account);
    wait_until("the debit to be entered", SOON, || ids(&world)[0] == next);
    assert_eq!(ids(&world).len(), 3);
    std::fs::remove_dir_all(backup).unwrap();
}

/// The log file of the only journal that is left.
fn left_log(data_dir: &Path) -> PathBuf {
    let mut boots = std::fs::read_dir(data_dir.join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    boots
        .find(|folder| folder.extension().is_none())
        .unwrap()
        .join("000001.log")
}

/// Removes the damaged journals, as an operator does after a look at them.
fn remove_damaged(data_dir: &Path) {
    for folder in std::fs::read_dir(data_dir.join("journal")).unwrap() {
        let path = folder.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "damaged")
        {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}

/// Flips bits of the last end record in the only journal that is left.
fn damage_end(data_dir: &Path, bytes_hit: usize) {
    let log = left_log(data_dir);
    let mut bytes = std::fs::read(&log).unwrap();
    let end = b" end\t";
    let at = (0..bytes.len())
        .rev()
        .find(|at| bytes[*at..].starts_with(end))
        .expect("an end in the journal");
    for index in 0..bytes_hit {
        bytes[at + 40 + 3 * index] ^= 2;
    }
    std::fs::write(log, bytes).unwrap();
}

#[test]
fn an_end_that_was_damaged_in_the_journal_is_repaired_or_told() {
    let (mut world, account) = World::with_funds(10_000_000);
    for (bytes_hit, outcome, is_debited) in [(1, "repaired", true), (4, "lost", false)] {
        world.stop();
        world.start_failing(Some("last_byte_sent"));
        let request = world.spend(&account);
        world.wait_killed();
        damage_end(&world.data_dir(), bytes_hit);
        world.start_gateway();
        let label = format!("outcome=\"{outcome}\"");
        world.has_metric("gateway_damaged_journal_lines_total", &[&label], 1.0);
        let endings = world.endings(&account);
        let ending = endings
            .iter()
            .find(|ending| ending["request_id"] == request.as_str())
            .unwrap();
        assert_eq!(ending["kind"] == "debit", is_debited, "{ending}");
        world.finds_only("damaged journal: ");
        remove_damaged(&world.data_dir());
        assert_eq!(world.findings(), Vec::<String>::new());
    }
}

#[test]
fn a_journal_that_lost_its_file_or_a_line_is_found() {
    let (mut world, account) = World::with_funds(10_000_000);
    type Loss<'a> = &'a dyn Fn(&Path);
    let without_open = |log: &Path| {
        let text = std::fs::read_to_string(log).unwrap();
        let lines = text
            .split_inclusive("\n\n")
            .filter(|line| !line.contains(" open\t"));
        std::fs::write(log, lines.collect::<String>()).unwrap();
    };
    let losses: [(Loss<'_>, &str); 3] = [
        (
            &|log| std::fs::remove_file(log).unwrap(),
            "0 lines and 1 files are missing",
        ),
        (
            &|log| std::fs::write(log, []).unwrap(),
            "0 lines and 1 files are missing",
        ),
        (&without_open, "1 lines and 0 files are missing"),
    ];
    for (lose, message) in losses {
        world.stop();
        world.start_failing(Some("last_byte_sent"));
        world.spend(&account);
        world.wait_killed();
        lose(&left_log(&world.data_dir()));
        let findings = world.findings();
        assert!(
            findings.iter().any(|finding| finding.ends_with(message)),
            "{findings:?}"
        );
        world.start_gateway();
        world.has_metric(
            "gateway_damaged_journal_lines_total",
            &[r#"outcome="missing""#],
            1.0,
        );
        let findings = world.findings();
        assert!(
            findings.len() == 1 && findings[0].ends_with(message),
            "kept until somebody looked: {findings:?}"
        );
        remove_damaged(&world.data_dir());
        assert_eq!(world.findings(), Vec::<String>::new());
    }
}

#[test]
fn with_journal_sync_an_end_is_on_disk_before_the_last_byte() {
    for is_synced in [true, false] {
        let mut plan = Plan::default();
        if is_synced {
            plan = plan.edit(
                "store: {kind: embedded}",
                "store: {kind: embedded}\nlimits: {journal_sync: true}",
            );
        }
        let mut world = plan.start();
        let account = world.funded(10_000_000);
        world.stop();
        world.start_failing(Some("before_journal_sync"));
        let mut connection = world.connect();
        connection.send(&Chat.whole(&account.key, "input=10 output=5").bytes());
        let whole = connection.try_begin().is_some_and(|mut answer| {
            connection.finish(&mut answer);
            serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok()
        });
        assert_eq!(whole, !is_synced, "an answer before its end was synced");
        if is_synced {
            world.wait_killed();
            world.start_gateway();
        }
        world.spend(&account);
    }
}

#[test]
fn a_clock_that_is_days_ahead_for_seconds_ends_no_trial() {
    let Some(clock) = SettableClock::new() else {
        return;
    };
    let set = |offset: &str| clock.set(offset);
    let (mut world, account) = Plan::default().clock(&clock).with_account();
    let paid = world.spend(&account);
    for restart in [false, true] {
        if restart {
            world.stop();
        }
        // The clock is set past the end of the trial.
        set("+8d");
        if restart {
            world.start_gateway();
        }
        let ahead = Instant::now();
        wait_for("the trial to be over by that clock", SOON, || {
            let credits = world
                .ask(&Request::get("/v1/credits").bearer(&account.key))
                .json();
            (credits["trial"]["active"] == false).then_some(())
        });
        // Time for several checks by the ledger writer, which checks once a second.
        wait_until("three seconds", SOON, || {
            ahead.elapsed() > Duration::from_secs(3)
        });
        set("+0");
        world.spend(&account);
    }
    world.ended(&account, 3);
    let rows = world.json(&["ledger", "show", &account.id]);
    let kinds: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["debit", "debit", "debit", "trial"], "no lapse");
    // The monotonic clock measures a request that runs while the clock is set.
    let (mut running, mut answer) =
        world.begin_stream(&Chat.stream(&account.key, "events=5 gap_ms=200 input=10 output=5"));
    set("+8d");
    running.finish(&mut answer);
    set("+0");
    let took = world.receipt(&account, &answer.request_id())["took_ms"]
        .as_u64()
        .unwrap();
    assert!((800..60_000).contains(&took), "took {took} ms");
    assert_ne!(paid, answer.request_id());
}
