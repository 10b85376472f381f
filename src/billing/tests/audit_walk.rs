//! Tests how `verify` walks: from any entry on, while everything changes, and without trust in the
//! indexes.

use super::audit::{books, rules};
use super::*;
use accounts::db::account_lifecycle::SignUpTerms;
use accounts::db::{AccountRow, AppDb, Role};
use credits::money::CreditSplit;
use ledger::ChainHead;
use ledger::LedgerEntry;
use ledger::audit::walk::KeySpendRow;
use ledger::segment::SealedBalance;
use rusqlite::Connection;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// The state of the ledger behind the last of `entries`.
fn start_behind(entries: &[LedgerEntry]) -> AuditStart {
    let mut accounts: BTreeMap<&str, SealedBalance> = BTreeMap::new();
    let mut keys: BTreeMap<i64, KeySpendRow> = BTreeMap::new();
    let mut total = Micro::ZERO;
    for entry in entries {
        let account = accounts
            .entry(&entry.account)
            .or_insert_with(|| SealedBalance {
                account: entry.account.clone(),
                paid: Micro::ZERO,
                trial: Micro::ZERO,
                credited: Micro::ZERO,
            });
        (account.paid, account.trial) = (entry.bal_paid, entry.bal_trial);
        account.credited = account.credited.plus(entry.credited());
        if entry.is_ending() {
            total = total.minus(entry.change());
            let (key, day, used_at_ms) = ("key_1".into(), entry.at_ms / 86_400_000, entry.at_ms);
            keys.insert(
                day,
                KeySpendRow {
                    key,
                    day,
                    total,
                    used_at_ms,
                },
            );
        }
    }
    AuditStart {
        head: entries
            .last()
            .map_or_else(ChainHead::genesis, |last| ChainHead {
                seq: last.seq,
                hash: last.hash.clone(),
            }),
        accounts: accounts.into_values().collect(),
        keys: Some(keys.into_values().collect()),
    }
}

fn rules_from(dir: &Path, start: &AuditStart) -> (Vec<&'static str>, u64) {
    let ledger = Ledger::open_for_audit(dir).unwrap();
    let share = CpuShare::from_percent(50);
    let audit = Audit {
        granted: accounts::db::granted_accounts(dir).unwrap(),
        shop: &|| accounts::db::payments::shop_rows(dir),
        ledger: &ledger,
        data_dir: dir,
        now_ms: NOW,
        start,
        scope: AuditScope::Everything,
        share,
    };
    let report = ledger::audit::verify(audit, &mut |_| ()).unwrap();
    let mut rules: Vec<_> = report.findings.iter().map(|found| found.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    (rules, report.entries)
}

#[test]
fn an_audit_can_begin_behind_any_entry() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let all = Ledger::open_for_audit(dir.path()).unwrap().all_entries();
    assert!(all.iter().any(|entry| entry.kind == "refund"));
    for count in 0..=all.len() {
        let start = start_behind(&all[..count]);
        let left = (all.len() - count) as u64;
        assert_eq!(rules_from(dir.path(), &start), (vec![], left), "{count}");
    }
    let start = start_behind(&all[..5]);
    let mut other = start.clone();
    other.head.hash[0] ^= 1;
    assert_eq!(rules_from(dir.path(), &other).0, ["hash chain"]);
    let account = |change: fn(&mut SealedBalance)| {
        let mut other = start.clone();
        let known = |account: &&mut SealedBalance| account.account == ACCOUNT;
        change(other.accounts.iter_mut().find(known).unwrap());
        rules_from(dir.path(), &other).0
    };
    let paid = account(|account| account.paid = account.paid.plus(Micro::new(1)));
    assert_eq!(paid, ["balance", "running balance", "trial balance"]);
    let credited = account(|account| account.credited = Micro::ZERO);
    assert_eq!(credited, ["credited"]);
    let mut other = start.clone();
    other.keys = Some(Vec::new());
    assert_eq!(rules_from(dir.path(), &other).0, ["sums"]);
}

#[test]
fn an_index_that_hides_an_entry_hides_no_repetition() {
    for (index, columns, rule) in [
        ("entry_counts_once", "kind, ref", "once per reference"),
        ("entry_ends_a_request_once", "ref", "one ending per request"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        books(dir.path());
        let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
        let text: String = connection
            .query_row(
                "SELECT sql FROM sqlite_schema WHERE name = ?1",
                [index],
                |row| row.get(0),
            )
            .unwrap();
        // The index has its name and its text, but not the row of one debit.
        let debit = "SELECT seq FROM entry WHERE ref = 'req_b' AND kind = 'debit'";
        let seq: i64 = connection.query_row(debit, [], |row| row.get(0)).unwrap();
        connection
            .execute_batch(&format!(
                "DROP INDEX {index};
                 CREATE UNIQUE INDEX {index} ON entry ({columns})
                   WHERE seq <> {seq} AND kind IN ('debit', 'void', 'grant');
                 PRAGMA writable_schema = ON;"
            ))
            .unwrap();
        connection
            .execute(
                "UPDATE sqlite_schema SET sql = ?1 WHERE name = ?2",
                [&text, index],
            )
            .unwrap();
        drop(connection);
        let found = rules(dir.path(), NOW);
        assert!(found.contains(&"schema"), "{index}: {found:?}");
        assert!(!found.contains(&rule), "{index}: {found:?}");
        let other = if index == "entry_counts_once" {
            "entry_ends_a_request_once"
        } else {
            "entry_counts_once"
        };
        let kind = if columns == "ref" { "'void'" } else { "kind" };
        let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
        connection
            .execute_batch(&format!(
                "DROP INDEX {other};
                 INSERT INTO entry (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash)
                 SELECT (SELECT max(seq) FROM entry) + 1, {kind}, ref, account, at, 0, 0,
                   bal_paid, bal_trial, writeoff, detail, prev, hash FROM entry NOT INDEXED WHERE seq = {seq}"
            ))
            .unwrap();
        let found = rules(dir.path(), NOW);
        assert!(found.contains(&rule), "{index}: {found:?}");
    }
}

/// What the threads of the next test share.
struct Load<'a> {
    billing: &'a CreditService,
    accounts: Vec<String>,
    settled: Mutex<VecDeque<String>>,
    is_over: AtomicBool,
}

impl Load<'_> {
    /// Calls `turn` with 0, 1, … until the test is over. The pause leaves the audits the CPU that
    /// they need to come to an end.
    fn repeat(&self, mut turn: impl FnMut(usize)) {
        let mut number = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            turn(number);
            number += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn account(&self, number: usize) -> &str {
        &self.accounts[number * 7 % self.accounts.len()]
    }

    /// Ends requests: debits, and a void for each seventh.
    fn settle(&self, thread: usize) {
        let (quote, usage) = one_credit();
        self.repeat(|number| {
            let (request, now_ms) = (format!("req_{thread}_{number}"), clock::now_ms());
            let request_of = HoldRequest {
                account: self.account(number + thread).into(),
                key_id: format!("key_{}", number % 11).into(),
                ..opening(&request)
            };
            // An adjustment can have used the account's credits up.
            let Ok((hold, _)) = self.billing.reserve(request_of, &quote, true, now_ms) else {
                return;
            };
            if number % 7 == 0 {
                return hold.release(RequestOutcome::VendorError, now_ms);
            }
            let tiny = Usage {
                input: 1,
                output: 0,
                ..usage
            };
            hold.settle(tiny, RequestOutcome::Completed, false, now_ms)
                .wait_on_thread()
                .unwrap();
            self.settled.lock().unwrap().push_back(request);
        });
    }

    /// Posts top-ups, adjustments and refunds.
    fn post(&self) {
        self.repeat(|number| {
            let (account, now_ms) = (self.account(number), clock::now_ms());
            let reference = format!("post_{number}");
            let settled = self.settled.lock().unwrap().pop_front();
            let tiny = Micro::new(10);
            // Some are refused: a debit that is not in the ledger yet, credits that are held.
            let _ = match number % 4 {
                0 => self
                    .billing
                    .billing()
                    .corrections()
                    .grant(account, tiny, &reference, now_ms)
                    .is_ok(),
                1 => self
                    .billing
                    .billing()
                    .corrections()
                    .adjust(account, tiny, &reference, "r", now_ms)
                    .is_ok(),
                2 => {
                    let minus = Micro::new(-10);
                    self.billing
                        .billing()
                        .corrections()
                        .adjust(account, minus, &reference, "r", now_ms)
                        .is_ok()
                }
                _ => settled.is_some_and(|request| {
                    self.billing
                        .billing()
                        .corrections()
                        .refund(&request, None, &reference, now_ms)
                        .is_ok()
                }),
            };
        });
    }

    /// Opens accounts whose trials are over at once, so that the gateway posts their lapses.
    fn sign_up(&self, dir: &Path) {
        let db = AppDb::open(dir, None).unwrap();
        self.repeat(|number| {
            let (id, now_ms) = (format!("acct_new_{number}"), clock::now_ms());
            let trial = Trial {
                credits: Micro::new(5_000),
                ends_at_ms: now_ms,
            };
            let row = AccountRow {
                email: format!("{id}@example.com"),
                id,
                role: Role::Member,
                active: true,
                deleted: false,
                created_at_ms: now_ms,
                trial: Some((trial.credits, trial.ends_at_ms)),
                granted: false,
                organisation: None,
            };
            db.people()
                .insert_account(&row, None, None, &SignUpTerms::default())
                .unwrap();
            self.billing
                .billing()
                .open_account(&row.id, Some(trial), now_ms)
                .unwrap();
            db.people().mark_granted(&row.id, now_ms).unwrap();
        });
    }
}

/// Adds endings that cost nothing, so that a walk has several slices. Returns the time of each
/// commit.
fn fill(ledger: &Ledger, account: &str, numbers: std::ops::Range<usize>) -> Vec<Duration> {
    let endings: Vec<_> = numbers
        .map(|number| {
            let request = format!("req_fill_{number}");
            let plain = Ending::in_test(&request, account, NOW, RequestOutcome::Completed);
            Ending {
                detail: EndingDetail {
                    price_version: model().price.version.clone(),
                    ..plain.detail
                },
                ..plain
            }
        })
        .collect();
    let commit = |some: &[Ending]| {
        let pairs: Vec<_> = some.iter().map(|one| (one, CreditSplit::ZERO)).collect();
        let began = Instant::now();
        ledger.enter_endings(&pairs, "").unwrap();
        began.elapsed()
    };
    endings.chunks(256).map(commit).collect()
}

/// The kinds of entries.
const KINDS: [&str; 7] = [
    "trial", "grant", "refund", "adjust", "lapse", "debit", "void",
];

#[test]
fn an_audit_in_slices_finds_nothing_while_everything_changes() {
    const MIN_REPORTS: usize = 2;
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    let accounts: Vec<_> = (0..40).map(|number| format!("acct_{number}")).collect();
    for account in &accounts {
        billing.billing().open_account(account, None, NOW).unwrap();
        billing
            .billing()
            .corrections()
            .grant(account, Micro::new(2_000_000), account, NOW)
            .unwrap();
    }
    fill(&billing.billing().0.ledger, &accounts[0], 0..9_000);
    let load = Load {
        billing: &billing,
        accounts,
        settled: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let operator = Billing::open(dir.path()).unwrap();
    let ledger = &operator.0.ledger;
    let missing_kind = || {
        let entries = ledger.all_entries();
        let has = |kind: &&str| entries.iter().any(|entry| entry.kind == **kind);
        KINDS.into_iter().find(|kind| !has(kind))
    };
    let mut reports = Vec::new();
    std::thread::scope(|scope| {
        let (load, dir) = (&load, dir.path());
        for thread in 0..2 {
            scope.spawn(move || load.settle(thread));
        }
        scope.spawn(move || load.post());
        scope.spawn(move || load.sign_up(dir));
        let began = Instant::now();
        let is_enough = |reports: usize| reports >= MIN_REPORTS && missing_kind().is_none();
        while !is_enough(reports.len()) && began.elapsed() < Duration::from_secs(120) {
            // In turns, as the command and as the page do it.
            let (billing, percent) =
                [(&operator, 100), (load.billing.billing(), 60)][reports.len() % 2];
            let share = CpuShare::from_percent(percent);
            let report = billing.verify_with_progress(
                clock::now_ms(),
                AuditScope::Everything,
                share,
                &mut |_| (),
            );
            reports.push(report);
        }
        load.is_over.store(true, Ordering::Relaxed);
    });
    for report in &reports {
        let findings = &report.as_ref().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
    billing.shut_down();
    let last = billing.billing().verify(clock::now_ms()).unwrap();
    assert!(last.findings.is_empty(), "{:?}", last.findings);
    assert!(reports.len() >= MIN_REPORTS);
    assert!(last.refunds > 0 && last.adjustments > 0 && last.accounts > 40);
    assert_eq!(missing_kind(), None);
}
