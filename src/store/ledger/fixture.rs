//! What tests begin with: an ending with only the required fields, of which each test sets those
//! that it checks; and a ledger with the schema of an older version.

use super::database::{Ledger, MIGRATIONS};
use super::ending::{Ending, EndingDetail, RequestOutcome};
use crate::store::sqlite;
use credits::money::Micro;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use rusqlite::Connection;
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

impl Ledger {
    /// Writes `ledger.db` in `dir` as the program wrote it when it had only the first `version`
    /// migrations. Keeps the accounts and entries of a ledger that is already there, which must be
    /// closed.
    pub(crate) fn write_old_version(dir: &Path, version: usize) -> Connection {
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
}

impl Ending {
    /// An ending without usage and cost.
    pub(crate) fn in_test(
        request_id: &str,
        account: &str,
        at_ms: i64,
        outcome: RequestOutcome,
    ) -> Self {
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
            },
        }
    }
}
