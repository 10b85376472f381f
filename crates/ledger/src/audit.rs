//! Audits the ledger: recomputes every debit and checks every invariant, but repairs nothing.
//!
//! The invariants, and the rule that a finding names:
//!
//! * an account is the sum of its entries, and each entry records the balance after it: `balance`,
//!   `running balance`;
//! * a completed request has exactly one debit, in the journal and in the ledger, and no void as
//!   well: `one ending per request`, `once per reference`, `journal`;
//! * no balance is below zero: `never below zero`;
//! * balances cover the holds of running processes, and no hold outlives its process:
//!   `holds`;
//! * a debit equals the cost of its usage at the price of its admission: `cost`, `price version`,
//!   `detail`;
//! * the entries form an unbroken chain and are unchanged: `hash chain`;
//! * credit comes from a source and goes to a destination: `direction`, `trial balance`,
//!   `credited`, `a void costs nothing`;
//! * the refunds of a debit never exceed it: `refund`; an adjustment has a reason: `detail`;
//!   a trial lapses only after its end: `lapse`;
//! * the journal has nothing old that the ledger lacks: `journal`; no journal line is
//!   damaged: `damaged journal`;
//! * every sealed segment is there, signed and undamaged: `segment`; the ledger still has its
//!   postings: `sealed posting`; and no ends of requests there: `sealed ending`;
//! * the ledger exists and is the one written last: `anchor` (`database/anchor.rs`);
//! * the ledger's accounts are in `app.db`: `accounts`;
//! * every paid order has its entries, every purchase its order, and a payment is not taken back
//!   twice: `payment`;
//! * a trial ends when its grant and its sign-up say: `trial end`; every account with a grant
//!   exists: `balance`;
//! * the schema objects that protect entries from changes are in place, and the unique indexes have
//!   the references of all entries: `schema`;
//! * only processes that live, or have a journal, have applied amounts or claims: `claims`;
//! * the aggregates that pages and limits read equal the sums of the entries: `sums`
//!   (`indexer/aggregates.rs`);
//! * a shared store has the same balances as the ledger: `shared balance`
//!   (`shared_credit/admin.rs`).
//!
//! An audit walks the entries in slices (`audit/walk.rs`) while the gateway writes. Accounts and
//! the spending of keys are compared as of the walk's last read. Journals and sign-ups are read
//! before the walk, so the ledger must contain them. The audit's memory grows with accounts, keys,
//! postings and open journal lines, not with the ledger's ends of requests. Each family of rules is
//! a file in `audit/`. This module must not write.

mod balances;
mod chain;
mod debits;
mod endings;
mod files;
mod findings;
mod journals;
mod key_spend;
mod pace;
mod payments;
mod postings;
mod processes;
mod references;
mod schema;
mod sealed_postings;
mod segments;
mod slices;
mod start;
pub mod walk;

use super::journal;
use crate::StoreError;
use crate::audit::walk::{LedgerWalk, WalkItem};
use crate::{IndexFingerprint, Ledger, LedgerEntry};
use balances::BalanceRules;
use chain::ChainRule;
use debits::{EndingRules, EndingView};
pub use files::MAX_AGGREGATES_CHECKED;
pub use files::{verify_accounts, verify_missing_ledger};
pub use findings::{Finding, LedgerAuditReport};
use key_spend::KeySpendRule;
pub use pace::CpuShare;
use pace::Pace;
pub use payments::{PaidOrder, RedeemedCode, ShopRows};
use postings::PostingRules;
use references::ReferenceRules;
use sealed_postings::SealedPostings;
use segments::RulesOfAllEntries;
use slices::for_each_slice;
pub use start::AuditStart;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::path::Path;

/// The entries that an audit reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditScope {
    /// The entries that are not sealed. For each segment, the audit checks only that it exists and
    /// is signed.
    Unsealed,
    /// All entries, including the sealed ones, and `index.db`.
    Everything,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditProgress {
    pub step: AuditStep,
    /// Number of entries, or references, that were checked in this step.
    pub done: u64,
    /// Number of entries, or references, to check in this step.
    pub total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditStep {
    /// Reads the entries in sealed segments.
    Sealed,
    Entries,
    References,
}

pub struct Audit<'a> {
    pub ledger: &'a Ledger,
    pub data_dir: &'a Path,
    pub now_ms: i64,
    pub start: &'a AuditStart,
    pub scope: AuditScope,
    pub share: CpuShare,
    /// Accounts with a grant according to `app.db`, read before the ledger, and the ends of their
    /// trials in ms since 1970. `None` without `app.db`.
    pub granted: Option<HashMap<String, Option<i64>>>,
    /// Reads the orders that were paid and the codes that were redeemed. The audit calls it before
    /// and after it reads the entries. `None` without `app.db`.
    pub shop: &'a dyn Fn() -> Result<Option<ShopRows>, StoreError>,
}

/// Audits a ledger from `start` on. `scope` selects the entries.
///
/// # Errors
/// Returns an error if the ledger or a file beside it cannot be read.
pub fn verify(
    audit: Audit<'_>,
    on_progress: &mut dyn FnMut(AuditProgress),
) -> Result<LedgerAuditReport, StoreError> {
    if audit.scope == AuditScope::Unsealed {
        let (report, _) = check_entries(audit, None, on_progress)?;
        return Ok(report);
    }
    let (ledger, share) = (audit.ledger, audit.share);
    let mut fingerprint = IndexFingerprint::default();
    let keys = fingerprint.keys();
    std::thread::scope(|threads| {
        let read_index = move || ledger.index().index_fingerprint(&keys);
        // At full speed, another thread reads the index at the same time.
        let stored: Box<dyn FnOnce() -> _> = if share.is_full() {
            let thread = threads.spawn(read_index);
            Box::new(|| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        } else {
            Box::new(read_index)
        };
        let all = Some(&mut fingerprint);
        let (mut report, are_all_read) = check_entries(audit, all, on_progress)?;
        if are_all_read {
            files::check_aggregates(ledger, &mut fingerprint, stored(), &mut report)?;
        } else {
            // Without some entries, every sum would look wrong.
            let message = "index.db is not compared with the entries, because some are not at hand";
            report.add_finding("segment", 0, message.into());
        }
        Ok(report)
    })
}

/// Checks all rules but those of `index.db`. If a fingerprint is given, the function reads the
/// sealed entries too, and adds all entries except the latest ones to the fingerprint. Returns
/// false if some sealed entries cannot be read.
fn check_entries(
    audit: Audit<'_>,
    mut fingerprint: Option<&mut IndexFingerprint>,
    on_progress: &mut dyn FnMut(AuditProgress),
) -> Result<(LedgerAuditReport, bool), StoreError> {
    let Audit {
        ledger,
        data_dir,
        now_ms,
        start,
        granted,
        shop,
        ..
    } = audit;
    let shop_before = shop()?;
    // Read the journals before the ledger. The ledger must then contain all their endings except
    // the most recent ones.
    let requests = journal::read_requests(data_dir)?;
    let mut pace = Pace::new(audit.share);
    let mut report = LedgerAuditReport {
        sealed_entries: start.head.seq.unsigned_abs(),
        reads_sealed: fingerprint.is_some(),
        ..LedgerAuditReport::default()
    };
    let mut walk = ledger.checks().walk(start.after_seq())?;
    let sealed = start.head.seq.unsigned_abs();
    let mut on_sealed = report_step(on_progress, AuditStep::Sealed, sealed);
    let reads_all = fingerprint.is_some();
    let sort_in = (reads_all && start.head.seq > 0).then_some(data_dir);
    let mut references = ReferenceRules::new(start.after_seq(), sort_in)?;
    // If the spending at the start is unknown, it must come from the segments.
    let mut keys = KeySpendRule::new(start.keys.as_deref().or(reads_all.then_some(&[])));
    let mut sealed_postings = SealedPostings::default();
    let are_segments_whole = segments::check_segments(
        ledger,
        reads_all,
        RulesOfAllEntries {
            references: &mut references,
            keys: &mut keys,
            sealed_postings: &mut sealed_postings,
        },
        fingerprint.as_deref_mut(),
        &mut pace,
        &mut on_sealed,
        &mut report,
    )?;
    drop(on_sealed);
    let mut audit = LedgerAudit::new(ledger, start, granted, references, keys);
    audit.add_earlier_postings(&walk, start, &mut sealed_postings, &mut report)?;
    sealed_postings.finish(start.head.seq, &mut report);
    segments::check_left_endings(ledger, &walk, &mut report)?;
    audit.walk(
        &mut walk,
        start,
        fingerprint,
        &mut pace,
        on_progress,
        &mut report,
    )?;
    audit.postings.finish(ledger, &walk, &mut report)?;
    if let (Some(before), Some(after)) = (shop_before, shop()?) {
        audit.postings.check_shop(&before, &after, &mut report);
    }
    let total = audit.references.expected_count();
    let mut on_references = report_step(on_progress, AuditStep::References, total);
    audit
        .references
        .finish(&walk, &mut pace, &mut on_references, &mut report)?;
    check_files(ledger, data_dir, &mut report)?;
    let is_served = !journal::live_instance_ids(data_dir)?.is_empty();
    journals::check_requests(&requests, ledger, &walk, is_served, now_ms, &mut report)?;
    processes::check_holds(ledger, data_dir, &mut report)?;
    Ok((report, are_segments_whole))
}

/// Checks the rules about the files of the data directory.
fn check_files(
    ledger: &Ledger,
    data_dir: &Path,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    files::check_ledger_file(ledger, data_dir, report)?;
    journals::check_damage(data_dir, report)?;
    processes::check_claims(ledger, data_dir, report)
}

/// Returns a function that reports the progress of one step. `total` is the number of items to
/// check.
fn report_step(
    on_progress: &mut dyn FnMut(AuditProgress),
    step: AuditStep,
    total: u64,
) -> impl FnMut(u64) {
    move |done| on_progress(AuditProgress { step, done, total })
}

/// The rules that examine every entry.
struct LedgerAudit<'a> {
    chain: ChainRule,
    balances: BalanceRules,
    endings: EndingRules<'a>,
    postings: PostingRules,
    references: ReferenceRules,
    keys: KeySpendRule,
}

impl<'a> LedgerAudit<'a> {
    fn new(
        ledger: &'a Ledger,
        start: &AuditStart,
        granted: Option<HashMap<String, Option<i64>>>,
        references: ReferenceRules,
        keys: KeySpendRule,
    ) -> Self {
        Self {
            chain: ChainRule::new(start.head.seq, start.head.hash.clone()),
            balances: BalanceRules::new(&start.accounts),
            endings: EndingRules::new(ledger),
            postings: PostingRules::new(granted),
            references,
            keys,
        }
    }

    /// Adds the postings before the start, because later refunds, lapses and references depend on
    /// them. Their sums are in the balances at the start.
    fn add_earlier_postings(
        &mut self,
        walk: &LedgerWalk,
        start: &AuditStart,
        sealed: &mut SealedPostings,
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let mut after = i64::MIN;
        loop {
            let slice = walk.postings_before(start.after_seq(), after)?;
            let Some(last) = slice.last() else {
                return Ok(());
            };
            after = last.seq;
            for entry in &slice {
                self.chain.check_hash(entry, report);
                sealed.check(entry, report);
                self.postings.check(entry, report);
                self.references.add_earlier(entry);
            }
        }
    }

    /// Checks all entries after the start, and then the accounts and the spending of keys as of the
    /// last entry.
    fn walk(
        &mut self,
        walk: &mut LedgerWalk,
        start: &AuditStart,
        fingerprint: Option<&mut IndexFingerprint>,
        pace: &mut Pace,
        on_progress: &mut dyn FnMut(AuditProgress),
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let to_check = |last: i64| u64::try_from(last.saturating_sub(start.head.seq)).unwrap_or(0);
        let mut total = to_check(walk.last_seq()?);
        let sealed = report.entries;
        let mut on_slice = |audit: &mut Self, slice: &[LedgerEntry], report: &mut _| {
            for entry in slice {
                audit.check_entry(entry, report);
            }
            // The ledger grows during the walk.
            total = total.max(slice.last().map_or(0, |last| to_check(last.seq)));
            on_progress(AuditProgress {
                step: AuditStep::Entries,
                done: report.entries - sealed,
                total,
            });
        };
        let mut check = |slice: &[LedgerEntry]| on_slice(self, slice, report);
        for_each_slice(walk, fingerprint, pace, &mut check)?;
        walk.finish(&mut |item| match item {
            WalkItem::Slice(slice) => on_slice(self, &slice, report),
            WalkItem::Account(row) => {
                report.accounts += 1;
                self.balances.check_account(&row, report);
                self.postings.check_account(&row, report);
            }
            WalkItem::KeySpend(row) => self.keys.check(&row, report),
        })?;
        self.balances.finish(report);
        self.keys.finish(report);
        Ok(())
    }

    fn check_entry(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        report.entries += 1;
        self.chain.check(entry, report);
        self.balances.check_entry(entry, report);
        self.references.add(entry);
        if !entry.is_ending() {
            return self.postings.check(entry, report);
        }
        let detail = EndingView::parse(&entry.detail);
        self.endings.check(entry, detail.as_ref(), report);
        if let Some(detail) = detail {
            self.keys.add_all(entry, &detail);
        }
    }
}
