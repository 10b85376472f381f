//! Checks the rules about files: the ledger is the one written last (`anchor`), its schema protects
//! its entries (`schema`), its totals are right (`sums`), and `app.db` has its accounts
//! (`accounts`).
//!
//! This file must not read entries one by one.

use super::findings::{Finding, LedgerAuditReport};
use crate::StoreError;
use crate::database::anchor::{self, AnchorFault};
use crate::sqlite::missing;
use crate::views::LedgerChecks;
use crate::{IndexFault, IndexFingerprint, Ledger, StoredFingerprint};
use std::path::Path;

/// Maximum number of aggregates to check per table.
pub const MAX_AGGREGATES_CHECKED: u32 = 1_000;

/// Returns a report if accounts exist but the ledger does not. Returns `None` if the ledger exists
/// or never had an entry.
///
/// # Errors
/// Returns an error if the accounts cannot be read.
pub fn verify_missing_ledger(data_dir: &Path) -> Result<Option<LedgerAuditReport>, StoreError> {
    Ok(missing::ledger(data_dir)?.map(|message| {
        let finding = Finding {
            rule: "anchor",
            seq: 0,
            message,
        };
        LedgerAuditReport {
            findings: vec![finding],
            ..LedgerAuditReport::default()
        }
    }))
}

/// Finds accounts that the ledger in `data_dir` has and `app.db` lacks. No key gives access to such
/// an account, and its holder can sign up again.
///
/// # Errors
/// Returns an error if the ledger or `app.db` cannot be read.
pub fn verify_accounts(data_dir: &Path) -> Result<Vec<Finding>, StoreError> {
    let find = |message| Finding {
        rule: "accounts",
        seq: 0,
        message,
    };
    if let Some(message) = missing::app(data_dir)? {
        return Ok(vec![find(message)]);
    }
    let lost = missing::accounts(data_dir)?.into_iter();
    Ok(lost
        .map(|id| {
            find(format!(
                "account {id} is in the ledger but not in app.db, so app.db is older"
            ))
        })
        .collect())
}

impl LedgerChecks<'_> {
    /// Returns why the ledger does not match the anchor in `dir`, or `None` if it does.
    ///
    /// # Errors
    /// Returns an error if the ledger or the anchor cannot be read.
    pub fn anchor_fault(&self, dir: &Path) -> Result<Option<AnchorFault>, StoreError> {
        let named = anchor::read(dir)?;
        self.0
            .read("compare the ledger with its anchor", |connection| {
                anchor::check(connection, named)
            })
    }
}

pub(crate) fn check_ledger_file(
    ledger: &Ledger,
    data_dir: &Path,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    if let Some(fault) = ledger.checks().anchor_fault(data_dir)? {
        report.add_finding("anchor", 0, fault.to_string());
    }
    for fault in ledger.checks().schema_faults()? {
        report.add_finding("schema", 0, fault);
    }
    if let Some(damage) = ledger.index().take_index_damage() {
        let message = format!("index.db was damaged and set aside, and is made anew: {damage}");
        report.add_finding("sums", 0, message);
    }
    Ok(())
}

/// Checks the stored aggregates, which save readers a walk over the entries. The fingerprint must
/// cover all entries.
pub(crate) fn check_aggregates(
    ledger: &Ledger,
    fingerprint: &mut IndexFingerprint,
    stored: StoredFingerprint,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    let Some(fault) = ledger.index().index_fault(fingerprint, stored)? else {
        return Ok(());
    };
    // A search for the wrong rows would set a damaged file aside.
    let wrong = match fault {
        IndexFault::Unreadable(_) => Vec::new(),
        IndexFault::Wrong(_) | IndexFault::FullSum => ledger
            .index()
            .find_wrong_aggregates(MAX_AGGREGATES_CHECKED)
            .unwrap_or_default(),
    };
    if wrong.is_empty() && !matches!(fault, IndexFault::FullSum) {
        let message = format!("index.db {fault}: `ledger reindex` makes it anew");
        report.add_finding("sums", 0, message);
    }
    for wrong in wrong {
        let message = format!(
            "{}: the total of {} differs from the sum of its entries",
            wrong.of, wrong.row
        );
        report.add_finding("sums", 0, message);
    }
    Ok(())
}
