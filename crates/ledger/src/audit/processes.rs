//! Checks the rules about processes: balances cover the holds of running processes, and no hold
//! outlives its process (`holds`); only processes that live, or have a journal, have applied
//! amounts or claims (`claims`).
//!
//! Holds change all the time, and their mirror lags, so an apparent violation is checked again.
//! This file must not write.

use super::super::journal;
use super::findings::LedgerAuditReport;
use crate::Ledger;
use crate::StoreError;
use crate::journal::holds_mirror::HoldsMirror;
use credits::money::Micro;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

/// Maximum number of rechecks before a violation is reported. The mirror lags by about 20 ms, so a
/// single check can be wrong.
const MAX_RECHECKS: u32 = 4;
const RECHECK_INTERVAL: Duration = Duration::from_millis(60);

/// Checks the records of processes that have ended.
pub(crate) fn check_claims(
    ledger: &Ledger,
    data_dir: &Path,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    let strange = || {
        ledger
            .checks()
            .unknown_instance_records(&journal::instance_ids(data_dir)?)
    };
    // A process that shuts down removes its journal slightly before its rows.
    if recheck(|| Ok(strange()?.first().cloned()))?.is_some() {
        for row in strange()? {
            report.add_finding("claims", 0, row);
        }
    }
    for row in ledger.checks().amounts_of_no_instance()? {
        report.add_finding("claims", 0, row);
    }
    Ok(())
}

/// Checks that balances cover the holds of living processes, and that dead processes hold
/// nothing while others live.
pub(crate) fn check_holds(
    ledger: &Ledger,
    data_dir: &Path,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    if let Some(damage) = HoldsMirror::find_damage(data_dir)? {
        report.add_finding(
            "holds",
            0,
            format!("holds.db is damaged ({damage}): the next start creates it again"),
        );
        return Ok(());
    }
    let mirror = HoldsMirror::open(data_dir)?;
    let live = journal::live_instance_ids(data_dir)?;
    let mut accounts = HashSet::new();
    for (account, claim) in mirror.all_claims()? {
        if live.contains(&claim.instance_id) {
            accounts.insert(account);
        } else if !live.is_empty() {
            let held = claim.held.total();
            report.add_finding(
                "holds",
                0,
                format!(
                    "{held} of {account} are reserved by instance {}, which has ended",
                    claim.instance_id
                ),
            );
        }
    }
    for account in accounts {
        if let Some(message) = recheck(|| find_uncovered(ledger, &mirror, &live, &account))? {
            report.add_finding("holds", 0, message);
        }
    }
    Ok(())
}

/// Returns why the account's holds cannot be right, or `None` if they can. The mirror is read
/// before the ledger: amounts that the older mirror holds are still held, or applied, when the
/// ledger is read.
fn find_uncovered(
    ledger: &Ledger,
    mirror: &HoldsMirror,
    live: &[String],
    account: &str,
) -> Result<Option<String>, StoreError> {
    let (mut claimed, mut posted) = (0_i128, None);
    for claim in mirror
        .claims_of(account)?
        .iter()
        .filter(|claim| live.contains(&claim.instance_id))
    {
        if claim.held.paid < Micro::ZERO || claim.held.trial < Micro::ZERO {
            return Ok(Some(format!(
                "instance {} has a negative reservation of account {account}",
                claim.instance_id
            )));
        }
        let Some(row) = ledger.rows().account(account, &claim.instance_id)? else {
            return Ok(Some(format!(
                "account {account} has reservations but is not in the ledger"
            )));
        };
        let sum = |parts: [Micro; 2]| {
            parts
                .iter()
                .map(|part| i128::from(part.get()))
                .sum::<i128>()
        };
        claimed += sum([claim.held.paid, claim.held.trial])
            + sum([claim.settled.paid, claim.settled.trial])
            - sum([row.applied_paid, row.applied_trial])
            + sum([row.claimed_paid, row.claimed_trial]);
        posted = Some(sum([row.paid, row.trial]));
    }
    let breach = posted.filter(|posted| claimed > *posted);
    Ok(breach.map(|posted| {
        format!("{claimed} µc of account {account} are reserved, but it has only {posted} µc")
    }))
}

/// Returns a violation only if every check finds it. Data that merely arrive late are right at one
/// of the checks.
fn recheck(
    look: impl Fn() -> Result<Option<String>, StoreError>,
) -> Result<Option<String>, StoreError> {
    let mut breach = look()?;
    for _ in 1..MAX_RECHECKS {
        if breach.is_none() {
            break;
        }
        std::thread::sleep(RECHECK_INTERVAL);
        breach = look()?;
    }
    Ok(breach)
}
