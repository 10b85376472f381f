//! Creates the data with which tests begin. An ending has only the required fields, and each test
//! sets the fields that it checks. A ledger can have the schema of an older version, or entries
//! that no current process would enter.

#![allow(clippy::unwrap_used, reason = "only tests use it")]

use super::database::{Ledger, MIGRATIONS};
use super::entry::{ENTRY_COLUMNS, EntrySelection, LedgerEntry};
use crate::StoreError;
use crate::entry::ending::{Ending, EndingDetail, RequestOutcome};
use crate::sqlite;
use crate::writer::change::{AppendOutcome, LedgerBatch, LedgerChange};
use crate::writer::trial::Posting;
use credits::money::{CreditSplit, Micro};
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
#[cfg(test)]
use rusqlite::Params;
use rusqlite::{Connection, params};
use std::fs;
use std::path::Path;

/// Copies the columns that every version of the schema has.
const COPY_ROWS: &str = "
    INSERT INTO account (id, paid, trial, trial_ends_at, credited, opened_at)
      SELECT id, paid, trial, trial_ends_at, credited, opened_at FROM newer.account;
    INSERT INTO entry (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash)
      SELECT seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash
      FROM newer.entry ORDER BY seq;
    DETACH newer;";

/// Returns the steps by which SQLite would run a statement.
#[cfg(test)]
pub(crate) fn query_plan(connection: &Connection, sql: &str, values: impl Params) -> String {
    let mut statement = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap();
    let steps = statement
        .query_map(values, |row| row.get::<_, String>(3))
        .unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
}

impl Ledger {
    /// Writes `ledger.db` in `dir` as the program wrote it when it had only the first `version`
    /// migrations. Keeps the accounts and entries of a ledger that is already there, which must be
    /// closed.
    pub fn write_old_version(dir: &Path, version: usize) -> Connection {
        let (path, old_path) = (dir.join("ledger.db"), dir.join("old.db"));
        let mut old = sqlite::open(&old_path, "open an old ledger").unwrap();
        sqlite::migrate(&mut old, &MIGRATIONS[..version], "create an old ledger").unwrap();
        if path.exists() {
            old.execute("ATTACH ?1 AS newer", [path.to_str()]).unwrap();
            old.execute_batch(COPY_ROWS).unwrap();
            assert!(!dir.join("ledger.db-wal").exists(), "the ledger is open");
        }
        old.close().unwrap();
        fs::rename(&old_path, &path).unwrap();
        sqlite::open(&path, "open an old ledger").unwrap()
    }

    /// Opens an account and grants it credits, in µc. The grant's reference is the account.
    pub fn open_funded(&self, account: &str, paid: i64, at_ms: i64) {
        self.rows().open_account(account, None, at_ms).unwrap();
        let grant = Posting {
            kind: "grant",
            reference: account,
            account,
            d_paid: Micro::new(paid),
            d_trial: Micro::ZERO,
            at_ms,
        };
        assert!(self.changes().post(&grant).unwrap());
    }

    /// Returns all entries in order, the sealed ones too.
    pub fn all_entries(&self) -> Vec<LedgerEntry> {
        let mut entries = Vec::new();
        let mut each = |entry| {
            entries.push(entry);
            Ok(())
        };
        self.segments()
            .for_each_selected(&EntrySelection::default(), &mut each)
            .unwrap();
        entries
    }
}

impl LedgerEntry {
    /// Inserts the entry as it is, with its whole detail, and changes nothing else.
    pub fn insert_alone(&self, connection: &Connection) {
        let sql = format!(
            "INSERT INTO entry ({ENTRY_COLUMNS}) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)
             ON CONFLICT DO NOTHING"
        );
        let Self {
            seq,
            kind,
            reference,
            account,
            at_ms,
            d_paid,
            d_trial,
            bal_paid,
            bal_trial,
            writeoff,
            detail,
            prev,
            hash,
        } = self;
        let values = params![
            seq, kind, reference, account, at_ms, d_paid, d_trial, bal_paid, bal_trial, writeoff,
            detail, prev, hash
        ];
        assert_eq!(connection.execute(&sql, values).unwrap(), 1);
    }
}

impl Ledger {
    /// Enters endings that an instance has settled, each with the claim that it frees. Returns the
    /// number of new ones.
    pub fn enter_endings(
        &self,
        endings: &[(&Ending, CreditSplit)],
        instance_id: &str,
    ) -> Result<usize, StoreError> {
        let outcomes = self.append_endings(endings, instance_id)?;
        let new = outcomes.iter().filter(|one| **one == AppendOutcome::Ended);
        Ok(new.count())
    }

    /// Enters endings, all of which must be new.
    pub fn enter_new(&self, endings: &[Ending]) {
        let endings: Vec<_> = endings.iter().map(|one| (one, CreditSplit::ZERO)).collect();
        assert_eq!(self.enter_endings(&endings, "").unwrap(), endings.len());
    }

    pub fn append_endings(
        &self,
        endings: &[(&Ending, CreditSplit)],
        instance_id: &str,
    ) -> Result<Vec<AppendOutcome>, StoreError> {
        let changes: Vec<_> = endings
            .iter()
            .map(|(ending, freed)| LedgerChange::Ending {
                ending,
                freed: *freed,
            })
            .collect();
        self.changes().append(&LedgerBatch {
            instance_id,
            changes: &changes,
        })
    }
}

impl Ending {
    /// Returns an ending without usage and cost.
    pub fn in_test(request_id: &str, account: &str, at_ms: i64, outcome: RequestOutcome) -> Self {
        Self {
            request_id: request_id.into(),
            account: account.into(),
            at_ms,
            paid: Micro::ZERO,
            trial: Micro::ZERO,
            writeoff: Micro::ZERO,
            detail: EndingDetail {
                key_id: "key_1".into(),
                key_shown: "gw-sk-…".into(),
                model: "beta-5.2".into(),
                surface: Protocol::Chat,
                vendor: "beta".into(),
                outcome,
                usage: Usage::default(),
                price_version: "pv_1".into(),
                estimated: false,
                implausible: false,
                conversation: None,
                took_ms: None,
                first_token_ms: None,
                cache_marks: None,
                member: None,
            },
        }
    }
}
