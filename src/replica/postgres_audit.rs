//! Compares the ledger in PostgreSQL with the copy in the data directory, and moves the ledger in
//! both directions, for an operator's commands.
//!
//! A serving process must not use this file.

use super::{PushReport, hold, push};
use accounts::db::AppDb;
use ledger::StoreError;
use ledger::audit::Finding;
use ledger::instance_lock;
use ledger::postgres::{Domain, Position, PostgresHome};
use ledger::{EntryHasher, Ledger};
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the rule in findings.
const RULE: &str = "postgresql";
/// Maximum number of findings about accounts.
const MAX_FINDINGS: usize = 100;

fn finding(seq: i64, message: String) -> Finding {
    Finding {
        rule: RULE,
        seq,
        message,
    }
}

/// Returns the differences: entries of the copy that PostgreSQL lacks, or that are different there.
/// A copy that is behind is not a finding. With `reads_all`, every entry in PostgreSQL is read, to
/// check its hash, and that each account's balance is the one after its last entry.
///
/// # Errors
/// Returns an error if PostgreSQL or the copy cannot be read.
pub fn verify_postgres(
    home: &PostgresHome,
    data_dir: &Path,
    reads_all: bool,
) -> Result<Vec<Finding>, StoreError> {
    let ours = Ledger::open_for_audit(data_dir)?.rows().heads()?.last;
    let theirs = home.holding(Domain::Ledger)?.position;
    let mut findings = Vec::new();
    if ours.seq > theirs.seq {
        findings.push(finding(
            ours.seq,
            format!(
                "PostgreSQL lacks entries {} to {}, which this data directory has: `model-gateway ledger push` gives them to it",
                theirs.seq + 1,
                ours.seq
            ),
        ));
    } else if ours.seq > 0
        && home
            .entry_at(ours.seq)?
            .is_none_or(|entry| entry.hash != ours.hash)
    {
        findings.push(finding(
            ours.seq,
            "PostgreSQL has another entry in its place".to_owned(),
        ));
    }
    if reads_all {
        findings.extend(verify_entries(home)?);
    }
    Ok(findings)
}

/// Brings the copies in `data_dir` up to date.
///
/// # Errors
/// Returns an error if PostgreSQL cannot be reached, or lacks data of the copies.
pub fn catch_up_with_postgres(data_dir: &Path, home: &PostgresHome) -> Result<(), StoreError> {
    let ledger = Ledger::open_with_home(data_dir, Some(home))?;
    hold::catch_up(&ledger, &AppDb::open(data_dir, Some(home))?)
}

/// Sends PostgreSQL the missing data of the ledger and the accounts in `data_dir`, whose files
/// become copies.
///
/// # Errors
/// Returns an error if a gateway uses `data_dir`, if PostgreSQL has another ledger or a holder, or
/// if one side cannot be read or written.
pub fn push_to_postgres(data_dir: &Path, home: &PostgresHome) -> Result<PushReport, StoreError> {
    let _alone = instance_lock::acquire(data_dir)?;
    for warning in home.prepare()?.warnings {
        log::warn!("{warning}");
    }
    hold::adopt(data_dir)?;
    let ledger = Ledger::open_with_home(data_dir, Some(home))?;
    push::push(&ledger, &AppDb::open(data_dir, Some(home))?)
}

/// Makes the copies in `data_dir` the home of the ledger, without PostgreSQL.
///
/// # Errors
/// Returns an error if a gateway uses `data_dir`, if another data directory holds the ledger, or if
/// one side cannot be read or written.
pub fn detach_from_postgres(data_dir: &Path, home: &PostgresHome) -> Result<(), StoreError> {
    let _alone = instance_lock::acquire(data_dir)?;
    let ledger = Ledger::open_with_home(data_dir, Some(home))?;
    hold::detach(&ledger, &AppDb::open(data_dir, Some(home))?)
}

fn verify_entries(home: &PostgresHome) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let mut hasher = EntryHasher::default();
    let (mut seq, mut prev) = (0, vec![0; 32]);
    let mut balances: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    loop {
        let page = home.page(Domain::Ledger, seq, -1)?;
        for entry in &page.entries {
            let follows = entry.seq == seq + 1 && entry.prev == prev;
            if !follows || hasher.hash(entry).as_slice() != entry.hash {
                let says = "is not chained to the one before it in PostgreSQL: somebody changed or removed one";
                findings.push(finding(entry.seq, says.to_owned()));
                return Ok(findings);
            }
            (seq, prev) = (entry.seq, entry.hash.clone());
            let balance = balances.entry(entry.account.clone()).or_default();
            *balance = (entry.bal_paid.get(), entry.bal_trial.get());
        }
        if !page.is_last {
            continue;
        }
        let Position { seq: end, hash, .. } = &page.holding.position;
        if (*end, hash) != (seq, &prev) {
            findings.push(finding(
                *end,
                format!("PostgreSQL says that it is the last one, and entry {seq} is"),
            ));
        }
        for account in page.accounts {
            let expected = balances.remove(&account.id).unwrap_or_default();
            if (account.paid, account.trial) != expected && findings.len() < MAX_FINDINGS {
                findings.push(finding(
                    0,
                    format!(
                        "account {} has {} + {} µc in PostgreSQL, and {} + {} µc after its last entry",
                        account.id, account.paid, account.trial, expected.0, expected.1
                    ),
                ));
            }
        }
        for account in balances.keys().take(MAX_FINDINGS) {
            findings.push(finding(
                0,
                format!("PostgreSQL has no account {account}, which has entries"),
            ));
        }
        return Ok(findings);
    }
}
