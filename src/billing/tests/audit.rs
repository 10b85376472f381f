//! Tests of `verify`: for every invariant, a ledger that violates it and no other finding that can
//! be avoided.

use super::*;
use accounts::db::account_lifecycle::{OpenAccountOutcome, SignUpTerms};
use accounts::db::{AccountRow, AppDb, Role};
use credits::trial::Trial;
use rusqlite::Connection;
use std::fs::Permissions;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A file or folder of the prepared ledger.
struct PreparedFile {
    path: PathBuf,
    permissions: Permissions,
    /// `None` for a folder.
    content: Option<Vec<u8>>,
}

/// Writes a ledger with every kind of entry, closed, to `dir`. Each process creates it once: that
/// takes as long as many audits.
pub(super) fn books(dir: &Path) {
    static PREPARED: LazyLock<Vec<PreparedFile>> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        create_books(dir.path());
        let mut files = Vec::new();
        read_files(dir.path(), Path::new(""), &mut files);
        files
    });
    for file in PREPARED.iter() {
        let path = dir.join(&file.path);
        match &file.content {
            Some(content) => std::fs::write(&path, content).unwrap(),
            None => std::fs::create_dir(&path).unwrap(),
        }
        std::fs::set_permissions(&path, file.permissions.clone()).unwrap();
    }
}

/// Adds what is in the folder `root`/`folder`, each folder before its files.
fn read_files(root: &Path, folder: &Path, files: &mut Vec<PreparedFile>) {
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        let metadata = entry.metadata().unwrap();
        let is_file = metadata.is_file();
        files.push(PreparedFile {
            path: path.clone(),
            permissions: metadata.permissions(),
            content: is_file.then(|| std::fs::read(entry.path()).unwrap()),
        });
        if !is_file {
            read_files(root, &path, files);
        }
    }
}

fn create_books(dir: &Path) {
    let billing = serving(dir);
    let ends_at_ms = clock::now_ms() - 1;
    billing
        .billing()
        .open_account(
            "acct_trial",
            Some(Trial {
                credits: Micro::new(5_000_000),
                ends_at_ms,
            }),
            0,
        )
        .unwrap();
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    for request in ["req_a", "req_b"] {
        let opening = HoldRequest {
            conversation: Some("talk".into()),
            ..opening(request)
        };
        let (hold, _) = billing.reserve(opening, &quote, false, NOW).unwrap();
        hold.settle(usage, RequestOutcome::Completed, false, NOW)
            .wait_on_thread()
            .unwrap();
    }
    let (hold, _) = billing
        .reserve(opening("req_void"), &quote, false, NOW)
        .unwrap();
    hold.release(RequestOutcome::VendorError, NOW);
    wait_for("all ends", || receipts(&billing, 9).len() == 3);
    billing
        .billing()
        .corrections()
        .refund("req_a", Some(Micro::new(500_000)), "r", NOW)
        .unwrap();
    billing
        .billing()
        .corrections()
        .adjust(ACCOUNT, Micro::new(-1), "a", "a mistake", NOW)
        .unwrap();
    wait_for("the lapse", || {
        billing
            .billing()
            .0
            .ledger
            .rows()
            .account("acct_trial", "")
            .unwrap()
            .unwrap()
            .trial
            == Micro::ZERO
    });
    write_index(billing.billing());
    billing.shut_down();
}

/// The rules that the audit reports after `tamper`.
fn rules_after(tamper: &str) -> Vec<&'static str> {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new(), "sound before");
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    connection
        .execute_batch(
            "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF; DROP TRIGGER entry_is_never_changed;
             DROP TRIGGER entry_is_never_removed; DROP INDEX entry_counts_once; DROP INDEX entry_ends_a_request_once;",
        )
        .unwrap();
    connection.execute_batch(tamper).unwrap();
    let mut found = rules(dir.path(), NOW);
    // The triggers and indexes that were dropped above.
    found.retain(|rule| *rule != "schema");
    found
}

pub(super) fn rules(dir: &Path, now_ms: i64) -> Vec<&'static str> {
    let audit = Audit {
        granted: accounts::db::granted_accounts(dir).unwrap(),
        shop: &|| accounts::db::payments::shop_rows(dir),
        ledger: &Ledger::open_for_audit(dir).unwrap(),
        data_dir: dir,
        now_ms,
        start: &AuditStart::genesis(),
        scope: AuditScope::Everything,
        share: CpuShare::FULL,
    };
    let verdict = ledger::audit::verify(audit, &mut |_| ()).unwrap();
    let mut rules: Vec<_> = verdict
        .findings
        .iter()
        .map(|finding| finding.rule)
        .collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

#[track_caller]
fn is_found(tamper: &str, expected: &[&str]) {
    let found = rules_after(tamper);
    for rule in expected {
        assert!(
            found.contains(rule),
            "{tamper}: {rule} was not found, but {found:?}"
        );
    }
}

#[test]
fn entries_are_immutable_for_whoever_goes_through_the_database() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    assert!(
        connection
            .execute("UPDATE entry SET d_paid = 0 WHERE kind = 'debit'", [])
            .is_err()
    );
    assert!(connection.execute("DELETE FROM entry", []).is_err());
}

#[test]
fn a_balance_that_is_not_the_sum_of_its_entries() {
    is_found(
        "UPDATE account SET paid = paid + 1 WHERE id = 'acct_test'",
        &["balance", "trial balance"],
    );
    is_found(
        "DELETE FROM account WHERE id = 'acct_test'",
        &["balance", "trial balance"],
    );
    is_found(
        "UPDATE account SET credited = 0 WHERE id = 'acct_test'",
        &["credited"],
    );
    is_found(
        "UPDATE entry SET bal_paid = bal_paid + 1 WHERE ref = 'req_b'",
        &["running balance", "hash chain"],
    );
}

#[test]
fn credit_moved_between_accounts_behind_the_ledgers_back() {
    let found = rules_after(
        "UPDATE account SET paid = paid - 5 WHERE id = 'acct_test';
         UPDATE account SET paid = paid + 5 WHERE id = 'acct_trial'",
    );
    assert_eq!(found, ["balance"], "the sum of all is right, each is not");
}

#[test]
fn a_balance_below_zero() {
    is_found(
        "UPDATE account SET paid = -1 WHERE id = 'acct_test'",
        &["never below zero"],
    );
    is_found(
        "UPDATE entry SET d_paid = -99000000 WHERE ref = 'req_a'",
        &["never below zero", "cost"],
    );
}

#[test]
fn a_request_that_ended_twice_or_a_reference_that_counted_twice() {
    let copy = |from: &str, kind: &str, d_paid: &str| {
        format!(
            "INSERT INTO entry (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash)
             SELECT (SELECT max(seq) FROM entry) + 1, {kind}, ref, account, at, {d_paid}, d_trial,
               bal_paid, bal_trial, writeoff, detail, prev, hash FROM entry WHERE ref = '{from}'"
        )
    };
    is_found(
        &copy("req_a", "kind", "d_paid"),
        &["one ending per request", "once per reference"],
    );
    is_found(&copy("req_a", "'void'", "0"), &["one ending per request"]);
    is_found(&copy("first", "kind", "d_paid"), &["once per reference"]);
}

#[test]
fn a_cost_that_is_not_what_the_usage_costs() {
    is_found(
        "UPDATE entry SET d_paid = 0 WHERE ref = 'req_a'",
        &["cost", "hash chain"],
    );
    is_found(
        "UPDATE entry SET writeoff = 1 WHERE ref = 'req_a'",
        &["cost"],
    );
    is_found(
        "UPDATE entry SET detail = replace(detail, '5000', '4999') WHERE ref = 'req_a'",
        &["cost", "hash chain"],
    );
    is_found(
        "UPDATE entry SET detail = '' WHERE ref = 'req_a'",
        &["detail"],
    );
    is_found(
        "UPDATE entry SET d_paid = -1 WHERE kind = 'void'",
        &["a void costs nothing"],
    );
    is_found("DELETE FROM price_version", &["price version"]);
    // The price changes in a class that no debit used, so only the hash reveals it.
    is_found(
        "UPDATE price_version SET json = replace(json, '200', '201')",
        &["price version"],
    );
}

#[test]
fn a_chain_that_was_cut_or_reordered() {
    is_found("DELETE FROM entry WHERE ref = 'req_void'", &["hash chain"]);
    is_found(
        "UPDATE entry SET at = at + 1 WHERE ref = 'req_void'",
        &["hash chain"],
    );
    is_found(
        "UPDATE entry SET hash = zeroblob(32) WHERE ref = 'req_void'",
        &["hash chain"],
    );
    is_found(
        "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)",
        &["balance"],
    );
}

#[test]
fn credit_out_of_nowhere() {
    is_found(
        "UPDATE entry SET d_paid = 1 WHERE kind = 'debit'",
        &["direction"],
    );
    is_found(
        "UPDATE entry SET d_paid = -1 WHERE kind = 'grant'",
        &["direction"],
    );
    is_found(
        "UPDATE entry SET kind = 'gift' WHERE kind = 'grant'",
        &["direction"],
    );
    is_found(
        "UPDATE entry SET d_trial = 1 WHERE kind = 'lapse'",
        &["direction"],
    );
    is_found(
        "UPDATE entry SET writeoff = 1 WHERE kind = 'grant'",
        &["direction"],
    );
}

#[test]
fn a_refund_beyond_its_debit_and_a_correction_without_its_reason() {
    is_found(
        "UPDATE entry SET d_paid = 1000001 WHERE kind = 'refund'",
        &["refund"],
    );
    is_found(
        "UPDATE entry SET detail = replace(detail, 'req_a', 'req_void') WHERE kind = 'refund'",
        &["refund"],
    );
    is_found(
        "UPDATE entry SET account = 'acct_trial' WHERE kind = 'refund'",
        &["refund"],
    );
    is_found(
        "UPDATE entry SET detail = '' WHERE kind = 'refund'",
        &["detail"],
    );
    is_found(
        "UPDATE entry SET detail = '' WHERE kind = 'adjust'",
        &["detail"],
    );
    is_found(
        "UPDATE account SET trial_ends_at = trial_ends_at + 99999999 WHERE id = 'acct_trial'",
        &["lapse"],
    );
}

#[test]
fn a_sum_that_is_not_what_its_entries_add_up_to_and_how_it_is_made_anew() {
    for tamper in [
        "UPDATE usage_hour SET credits = credits + 1",
        "UPDATE usage_hour SET responses = responses + 1",
        "UPDATE usage_hour SET input = input + 1",
        "UPDATE usage_hour SET cache_read = cache_read + 1",
        "UPDATE usage_hour SET output = output - 1",
        "UPDATE usage_hour SET model = model + 9",
        "UPDATE usage_hour SET api_key = api_key + 9",
        "DELETE FROM usage_hour",
        "INSERT INTO usage_hour SELECT account, hour + 99, model, api_key, member, responses, credits, input, cache_read, output, voids
         FROM usage_hour",
        "UPDATE usage_hour SET voids = voids + 1",
        "UPDATE usage_day SET credits = credits + 1",
        "UPDATE usage_day SET api_key = api_key + 9",
        "UPDATE usage_day SET member = member + 9",
        "DELETE FROM usage_day",
        "UPDATE usage_total SET credits = credits + 1",
        "UPDATE usage_total SET writeoff = writeoff + 1",
        "DELETE FROM usage_total",
        "UPDATE conversation SET credits = credits + 1",
        "UPDATE conversation SET turns = turns + 1",
        "UPDATE conversation SET began_at = began_at - 1",
        "UPDATE conversation SET last_at = last_at + 1",
        "UPDATE conversation SET name = name || 'x'",
        "DELETE FROM conversation",
        "UPDATE activity SET outcome = outcome + 1 WHERE kind < 2",
        "UPDATE activity SET conversation = NULL",
        "DELETE FROM activity WHERE kind = 0",
        "UPDATE posting SET change = change + 1",
        "DELETE FROM posting",
        "UPDATE account SET name = name || 'x'",
        "UPDATE key_spend SET total = total - 1",
        "UPDATE key_spend SET used_at = used_at + 1",
        "DELETE FROM key_spend",
        "INSERT INTO key_spend (key, day, total, used_at) SELECT key, day + 1, total, used_at FROM key_spend",
    ] {
        let dir = tempfile::tempdir().unwrap();
        books(dir.path());
        assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
        let file = if tamper.contains("key_spend") {
            "ledger.db"
        } else {
            "index.db"
        };
        let tampered = Connection::open(dir.path().join(file))
            .unwrap()
            .execute(tamper, [])
            .unwrap();
        assert!(tampered > 0, "{tamper}: there is nothing to change");
        assert_eq!(rules(dir.path(), NOW), ["sums"], "{tamper}");
        let billing = Billing::open(dir.path()).unwrap();
        let reindex = || billing.upkeep().reindex(&mut |_| ()).unwrap();
        assert!(reindex() > 0, "{tamper}");
        assert_eq!(
            rules(dir.path(), NOW),
            Vec::<&str>::new(),
            "{tamper}: made anew"
        );
        assert_eq!(reindex(), 0, "nothing is left to be done");
    }
}

#[test]
fn an_ending_that_stays_in_the_journal_or_is_told_otherwise_there() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let done =
        |request, credits| JournalRecord::End(ending(request, RequestOutcome::Completed, credits));
    let folder = die_with(dir.path(), &[done("req_late", 1)]);
    assert_eq!(
        rules(dir.path(), NOW + 60_000),
        Vec::<&str>::new(),
        "on its way"
    );
    assert_eq!(rules(dir.path(), NOW + 60_001), ["journal"], "stuck");
    std::fs::remove_dir_all(&folder).unwrap();
    // In the ledger, the first request has a debit of one credit and the second a void.
    for record in [done("req_a", 2), done("req_void", 1)] {
        let folder = die_with(dir.path(), &[record]);
        assert_eq!(rules(dir.path(), NOW), ["journal"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_hold_that_outlives_its_process_or_that_no_balance_covers() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let billing = serving(dir.path());
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
    let mirror = Connection::open(dir.path().join("holds.db")).unwrap();
    mirror
        .execute_batch("INSERT INTO held VALUES ('boot_gone', 'acct_test', 1, 0, 0, 0)")
        .unwrap();
    assert_eq!(rules(dir.path(), NOW), ["holds"], "a dead boot's");
    let instance_id = ledger::journal::live_instance_ids(dir.path())
        .unwrap()
        .pop()
        .unwrap();
    mirror
        .execute("UPDATE held SET boot = ?1, paid = 8499999", [&instance_id])
        .unwrap();
    assert_eq!(
        rules(dir.path(), NOW),
        Vec::<&str>::new(),
        "covered to the last µc"
    );
    mirror
        .execute("UPDATE held SET paid = 8500000", [])
        .unwrap();
    assert_eq!(rules(dir.path(), NOW), ["holds"], "one more");
    mirror.execute("UPDATE held SET paid = -1", []).unwrap();
    assert_eq!(rules(dir.path(), NOW), ["holds"]);
    // An interrupted request that a start should have voided.
    mirror.execute("DELETE FROM held", []).unwrap();
    die_with(
        dir.path(),
        &[JournalRecord::Open(ending(
            "req_open",
            RequestOutcome::Interrupted,
            0,
        ))],
    );
    assert_eq!(rules(dir.path(), NOW + 60_001), ["journal"]);
    billing.shut_down();
}

#[test]
fn a_claim_that_outlives_its_process_or_that_no_balance_covers() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    // Stepwise: the housekeeping of a real gateway would remove the planted rows.
    let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
    let ledger = Connection::open(dir.path().join("ledger.db")).unwrap();
    ledger
        .execute_batch("INSERT INTO claim VALUES ('boot_gone', 'acct_test', 1, 0)")
        .unwrap();
    assert_eq!(rules(dir.path(), NOW), ["claims"], "a dead boot's");
    ledger.execute_batch("DELETE FROM claim").unwrap();
    let mirror = Connection::open(dir.path().join("holds.db")).unwrap();
    mirror
        .execute(
            "INSERT INTO held VALUES (?1, 'acct_test', 8000000, 0, 0, 0)",
            [billing.instance_id()],
        )
        .unwrap();
    let guest = ledger::journal::InstanceDir::create(dir.path()).unwrap();
    ledger
        .execute(
            "INSERT INTO claim VALUES (?1, 'acct_test', 499999, 0)",
            [&guest.instance_id],
        )
        .unwrap();
    assert_eq!(
        rules(dir.path(), NOW),
        Vec::<&str>::new(),
        "covered to the last µc, together"
    );
    ledger
        .execute("UPDATE claim SET paid = 500000", [])
        .unwrap();
    assert_eq!(rules(dir.path(), NOW), ["holds"], "one more");
}

#[test]
fn what_protects_the_entries_was_dropped_or_changed() {
    for tamper in [
        "DROP TRIGGER entry_is_never_changed",
        "DROP TRIGGER entry_is_never_removed",
        "DROP INDEX entry_counts_once",
        "DROP INDEX entry_ends_a_request_once",
        "DROP TRIGGER entry_is_never_changed;
         CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry WHEN 0 BEGIN SELECT RAISE(ABORT, ''); END",
        "CREATE TRIGGER gift AFTER INSERT ON entry BEGIN UPDATE account SET paid = paid + 1; END",
    ] {
        let dir = tempfile::tempdir().unwrap();
        books(dir.path());
        assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
        Connection::open(dir.path().join("ledger.db")).unwrap().execute_batch(tamper).unwrap();
        assert_eq!(rules(dir.path(), NOW), ["schema"], "{tamper}");
    }
}

#[test]
fn rows_in_the_name_of_processes_that_never_were() {
    for tamper in [
        "INSERT INTO claim VALUES ('boot_gone', 'acct_test', 1, 0)",
        "INSERT INTO applied VALUES ('boot_gone', 'acct_test', -1, 0)",
        "INSERT INTO applied_key VALUES ('boot_gone', 'key_1', 0)",
    ] {
        let dir = tempfile::tempdir().unwrap();
        books(dir.path());
        assert_eq!(
            rules(dir.path(), NOW),
            Vec::<&str>::new(),
            "a process that ended leaves none"
        );
        Connection::open(dir.path().join("ledger.db"))
            .unwrap()
            .execute_batch(tamper)
            .unwrap();
        assert_eq!(rules(dir.path(), NOW), ["claims"], "{tamper}");
    }
}

#[test]
fn a_trial_that_ends_otherwise_than_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let billing = Billing::open(dir.path()).unwrap();
    let trial = Trial {
        credits: Micro::new(5),
        ends_at_ms: NOW,
    };
    billing.open_account("acct_runs", Some(trial), 0).unwrap();
    let set = |ends: &str| {
        let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
        let sql = format!("UPDATE account SET trial_ends_at = {ends} WHERE id = 'acct_runs'");
        assert_eq!(connection.execute(&sql, []).unwrap(), 1);
    };
    for other in ["trial_ends_at + 1", "NULL"] {
        assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
        set(other);
        assert_eq!(rules(dir.path(), NOW), ["trial end"], "{other}");
        set(&NOW.to_string());
    }
}

#[test]
fn a_trial_end_or_an_account_that_is_not_as_its_sign_up_has_it() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let db = AppDb::open(dir.path(), None).unwrap();
    let account = |id: &str, trial| AccountRow {
        id: id.into(),
        email: format!("{id}@example.com"),
        role: Role::Member,
        active: true,
        deleted: false,
        created_at_ms: 0,
        trial,
        granted: true,
        organisation: None,
    };
    let enter = |row: &AccountRow| {
        assert_eq!(
            db.people()
                .insert_account(row, None, None, &SignUpTerms::default())
                .unwrap(),
            OpenAccountOutcome::Done
        )
    };
    enter(&account("acct_test", None));
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
    enter(&account("acct_lost", None));
    assert_eq!(
        rules(dir.path(), NOW),
        Vec::<&str>::new(),
        "a sign-up that is not completed"
    );
    db.people().mark_granted("acct_lost", NOW).unwrap();
    assert_eq!(
        rules(dir.path(), NOW),
        ["balance"],
        "an account without a balance"
    );
    Billing::open(dir.path())
        .unwrap()
        .open_account("acct_lost", None, 0)
        .unwrap();
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
    // If the grant does not record its trial's end yet, the sign-up does.
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    assert_eq!(
        connection
            .execute(
                "UPDATE account SET trial_ends_at = 5 WHERE id = 'acct_lost'",
                []
            )
            .unwrap(),
        1
    );
    assert_eq!(rules(dir.path(), NOW), ["trial end"]);
}

#[test]
fn a_ledger_that_is_older_than_its_anchor_or_missing() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
    let ledger = dir.path().join("ledger.db");
    let older = std::fs::read(&ledger).unwrap();
    let billing = Billing::open(dir.path()).unwrap();
    billing
        .corrections()
        .adjust(ACCOUNT, Micro::new(1), "later", "a mistake", NOW)
        .unwrap();
    billing.0.ledger.checkpoint().unwrap();
    drop(billing);
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new());
    std::fs::write(&ledger, older).unwrap();
    assert_eq!(rules(dir.path(), NOW), ["anchor"]);
    assert!(
        CreditService::serve(dir.path(), &Limits::default(), None).is_err(),
        "nor does a gateway start"
    );
    Billing::accept_ledger(dir.path()).unwrap();
    assert_eq!(rules(dir.path(), NOW), Vec::<&str>::new(), "accepted");
    assert!(
        ledger::audit::verify_missing_ledger(dir.path())
            .unwrap()
            .is_none()
    );
    let row = AccountRow {
        id: ACCOUNT.into(),
        email: "a@example.com".into(),
        role: Role::Member,
        active: true,
        deleted: false,
        created_at_ms: 0,
        trial: None,
        granted: true,
        organisation: None,
    };
    let opened = AppDb::open(dir.path(), None)
        .unwrap()
        .people()
        .insert_account(&row, None, None, &SignUpTerms::default());
    assert_eq!(opened.unwrap(), OpenAccountOutcome::Done);
    std::fs::remove_file(&ledger).unwrap();
    let verdict = ledger::audit::verify_missing_ledger(dir.path())
        .unwrap()
        .unwrap();
    assert!(
        verdict.findings[0].message.contains("ledger.db is missing"),
        "{:?}",
        verdict.findings
    );
    let refused = CreditService::serve(dir.path(), &Limits::default(), None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains("ledger.db is missing") && refused.contains("backup"),
        "{refused}"
    );
    assert!(!ledger.exists(), "none is made in its place");
}

#[test]
fn a_journal_with_a_damaged_line_and_the_answer_that_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let done = |request: &str| JournalRecord::End(ending(request, RequestOutcome::Completed, 1));
    let opened =
        |request: &str| JournalRecord::Open(ending(request, RequestOutcome::Interrupted, 0));
    let folder = die_with(
        dir.path(),
        &[
            opened("req_one"),
            done("req_one"),
            opened("req_more"),
            done("req_more"),
        ],
    );
    let log = folder.join("000001.log");
    let mut bytes = std::fs::read(&log).unwrap();
    let lines: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at..].starts_with(b" end\t"))
        .collect();
    bytes[lines[0] + 30] ^= 4;
    for at in 30..40 {
        bytes[lines[1] + at] ^= 5;
    }
    std::fs::write(&log, bytes).unwrap();
    let billing = serving(dir.path());
    assert!(
        billing
            .billing()
            .receipts()
            .was_debited(ACCOUNT, "req_one")
            .unwrap(),
        "one flipped bit frees no answer"
    );
    assert!(
        !billing
            .billing()
            .receipts()
            .was_debited(ACCOUNT, "req_more")
            .unwrap()
    );
    billing.shut_down();
    let verdict = billing.billing().verify(NOW).unwrap();
    let found: Vec<_> = verdict
        .findings
        .iter()
        .filter(|finding| finding.rule == "damaged journal")
        .collect();
    assert!(
        found.len() == 1 && found[0].message.contains("1 unreadable lines, and 1 that"),
        "{:?}",
        verdict.findings
    );
}

#[test]
fn a_running_gateway_under_load_is_sound_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 100);
    let (quote, usage) = one_credit();
    let quote = &quote;
    let running = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (billing, running) = (&billing, &running);
            scope.spawn(move || {
                for turn in 0..300 {
                    let (request, now_ms) = (format!("req_{thread}_{turn}"), clock::now_ms());
                    let (hold, _) = billing
                        .reserve(opening(&request), quote, true, now_ms)
                        .unwrap();
                    let tiny = Usage {
                        input: 1,
                        output: 0,
                        ..usage
                    };
                    hold.settle(tiny, RequestOutcome::Completed, false, now_ms)
                        .wait_on_thread()
                        .unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let operator = Billing::open(dir.path()).unwrap();
        while running.load(Ordering::Relaxed) > 0 {
            let findings = operator.verify(clock::now_ms()).unwrap().findings;
            assert!(findings.is_empty(), "{findings:?}");
        }
    });
    billing.shut_down();
}
