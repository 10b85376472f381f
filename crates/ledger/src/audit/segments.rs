//! Checks the rule `segment`: every sealed segment is there, signed and undamaged, and the ledger
//! records the last sealed entry. If the segments are read, the rules of their entries are checked
//! too.
//!
//! This file must not read entries outside of segments.

use super::balances::BalanceRules;
use super::chain::ChainRule;
use super::debits::{EndingRules, EndingView};
use super::findings::LedgerAuditReport;
use super::key_spend::KeySpendRule;
use super::pace::Pace;
use super::references::ReferenceRules;
use super::sealed_postings::{PostingHashes, SealedPostings};
use super::slices::for_each_slice;
use crate::StoreError;
use crate::audit::walk::LedgerWalk;
use crate::entry::chain::ChainHead;
use crate::segment::SealedBalance;
use crate::{IndexFingerprint, Ledger, LedgerEntry, SegmentRecord, entry_hash};

/// The rules that cover the segments and then continue with the entries of the table.
pub(crate) struct RulesOfAllEntries<'a> {
    pub references: &'a mut ReferenceRules,
    pub keys: &'a mut KeySpendRule,
    pub sealed_postings: &'a mut SealedPostings,
}

/// Checks that the segments exist, are signed, and follow each other. With `reads_all`, the
/// function also checks their entries, adds these to the fingerprint, and calls `on_entries` with
/// the number so far. Returns false if some entries cannot be read.
pub(crate) fn check_segments(
    ledger: &Ledger,
    reads_all: bool,
    all: RulesOfAllEntries<'_>,
    mut fingerprint: Option<&mut IndexFingerprint>,
    pace: &mut Pace,
    on_entries: &mut dyn FnMut(u64),
    report: &mut LedgerAuditReport,
) -> Result<bool, StoreError> {
    check_sealed_end(ledger, report)?;
    let mut are_whole = true;
    let mut rules = EntryRules {
        all,
        postings: PostingHashes::new(),
        looked_up_until_ms: i64::MIN,
        chain: ChainRule::new(0, ChainHead::genesis().hash),
        balances: BalanceRules::new(&[]),
        endings: EndingRules::new(ledger),
    };
    for status in ledger.segments().segment_statuses(false)? {
        let segment = &status.segment;
        if let Some(fault) = &status.fault {
            report.add_finding("segment", segment.first, fault.clone());
        }
        if !reads_all {
            rules.all.sealed_postings.add_segment(segment, None);
            continue;
        }
        let recorded = ledger.segments().sealed_balances(segment.last)?;
        let fingerprint = fingerprint.as_deref_mut();
        let is_read = status.fault.is_none()
            && rules.read(ledger, segment, fingerprint, pace, on_entries, report)?;
        let postings = std::mem::take(&mut rules.postings);
        let RulesOfAllEntries {
            keys,
            sealed_postings,
            ..
        } = &mut rules.all;
        sealed_postings.add_segment(segment, is_read.then_some(postings));
        if is_read {
            rules.balances.compare(&recorded, segment.last, report);
        } else {
            keys.give_up();
        }
        are_whole &= is_read;
        rules.go_on_behind(segment, &recorded);
    }
    Ok(are_whole)
}

/// Checks that the segments contain exactly the entries that the ledger records as sealed.
fn check_sealed_end(ledger: &Ledger, report: &mut LedgerAuditReport) -> Result<(), StoreError> {
    let [noted, recorded] = ledger.segments().sealed_ends()?;
    if noted != recorded {
        let message = format!(
            "the ledger is noted as sealed through entry {}, but its segments end with {}; or the times differ",
            noted.0, recorded.0
        );
        report.add_finding("segment", noted.0, message);
    }
    Ok(())
}

struct EntryRules<'a> {
    all: RulesOfAllEntries<'a>,
    /// Postings of the segment that is being read.
    postings: PostingHashes,
    /// Latest time at which a reader may look up an end of a request in the segment.
    looked_up_until_ms: i64,
    chain: ChainRule,
    balances: BalanceRules,
    endings: EndingRules<'a>,
}

impl EntryRules<'_> {
    /// Reads and checks the entries. Returns false if some entries cannot be read.
    fn read(
        &mut self,
        ledger: &Ledger,
        segment: &SegmentRecord,
        fingerprint: Option<&mut IndexFingerprint>,
        pace: &mut Pace,
        on_entries: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<bool, StoreError> {
        let reader = match ledger.segments().open_segment(segment) {
            Ok(reader) => reader,
            Err(StoreError::SegmentUnavailable(reason)) => {
                report.add_finding("segment", segment.first, reason);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.looked_up_until_ms = i64::MIN;
        let mut blocks = reader.entry_blocks();
        let checked = for_each_slice(&mut blocks, fingerprint, pace, &mut |block| {
            for entry in block {
                self.check_entry(entry, report);
            }
            on_entries(report.entries);
        });
        if let Err(fault) = checked {
            report.add_finding("segment", segment.first, fault.to_string());
            return Ok(false);
        }
        if self.looked_up_until_ms > segment.ended_until_ms {
            let message = "ledger.db does not look for the latest ends of requests in it".into();
            report.add_finding("segment", segment.first, message);
        }
        // The index and the balances are checked too, although no rule of an entry needs them.
        if let Err(fault) = reader.check_sealed(&segment.sha256) {
            report.add_finding("segment", segment.first, fault.to_string());
        }
        Ok(true)
    }

    fn check_entry(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        report.entries += 1;
        // The reader has computed the hash from the entry's content.
        self.chain.check_link(entry, report);
        self.balances.check_entry(entry, report);
        self.all.references.add_to_all(entry);
        if !entry.is_ending() {
            self.postings.insert(entry.seq, entry.hash.clone());
            return;
        }
        let until_ms = entry.looked_up_until_ms();
        self.looked_up_until_ms = self.looked_up_until_ms.max(until_ms);
        let detail = EndingView::parse(&entry.detail);
        self.endings.check(entry, detail.as_ref(), report);
        if let Some(detail) = detail {
            self.all.keys.add_all(entry, &detail);
        }
    }

    /// Continues from the ledger's record of the end of the segment, so that a fault of one segment
    /// is not reported again for the next ones.
    fn go_on_behind(&mut self, segment: &SegmentRecord, recorded: &[SealedBalance]) {
        self.chain = ChainRule::new(segment.last, segment.last_hash.clone());
        self.balances = BalanceRules::new(recorded);
    }
}

/// Checks that the ledger contains no sealed ends of requests, because a reader would find such an
/// end in the ledger first. A segment whose ends are still being removed is an exception: both have
/// the same ends.
pub(crate) fn check_left_endings(
    ledger: &Ledger,
    walk: &LedgerWalk,
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    let segments = ledger.segments().segment_records()?;
    let Some(sealed) = segments.last().map(|last| last.last) else {
        return Ok(());
    };
    let mut after = i64::MIN;
    loop {
        let slice = walk.endings_before(sealed, after)?;
        let Some(last) = slice.last() else {
            return Ok(());
        };
        after = last.seq;
        for entry in slice {
            let segment = segments.get(segments.partition_point(|one| one.last < entry.seq));
            let is_leaving = segment.is_some_and(|one| one.first <= entry.seq && !one.is_emptied);
            let is_sealed = || match ledger.segments().sealed_entries_at(&[entry.seq]) {
                Ok(sealed) => sealed.iter().any(|one| one.hash == entry_hash(&entry)),
                // The rule `segment` reports the error.
                Err(_) => true,
            };
            if !is_leaving || !is_sealed() {
                let message = "ledger.db has an end of a request where the ends are sealed".into();
                report.add_finding("sealed ending", entry.seq, message);
            }
        }
    }
}
