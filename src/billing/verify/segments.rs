//! The rule `segment`: every sealed segment is at hand, signed and undamaged; and, if all of them
//! are to be read, the rules of their entries.
//!
//! Must not look at entries that no segment has.

use super::balances::BalanceRules;
use super::chain::ChainRule;
use super::debits::{EndingRules, EndingView};
use super::findings::LedgerAuditReport;
use super::pace::Pace;
use super::references::ReferenceRules;
use super::start::AccountStart;
use crate::store::StoreError;
use crate::store::ledger::anchor::ChainHead;
use crate::store::ledger::{Ledger, LedgerEntry, SegmentRecord};

/// How many entries are checked between two rests.
const SLICE_ENTRIES: u64 = 4_096;

/// Checks that the segments are at hand: their signatures, and that they follow each other. With
/// `reads_all`, reads and checks their entries too, and calls `on_entries` with the number so far.
pub(super) fn check_segments(
    ledger: &Ledger,
    reads_all: bool,
    references: &mut ReferenceRules,
    pace: &mut Pace,
    on_entries: &mut dyn FnMut(u64),
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    let mut rules = EntryRules {
        references,
        chain: ChainRule::new(0, ChainHead::genesis().hash),
        balances: BalanceRules::new(&[]),
        endings: EndingRules::new(ledger),
    };
    for status in ledger.segment_statuses(false)? {
        let segment = &status.segment;
        if let Some(fault) = &status.fault {
            report.add_finding("segment", segment.first, fault.clone());
        }
        if !reads_all {
            continue;
        }
        let recorded = AccountStart::at_segment_end(ledger, segment.last)?;
        if status.fault.is_none() && rules.read(ledger, segment, pace, on_entries, report)? {
            rules.balances.compare(&recorded, segment.last, report);
        }
        rules.go_on_behind(segment, &recorded);
    }
    Ok(())
}

struct EntryRules<'a> {
    references: &'a mut ReferenceRules,
    chain: ChainRule,
    balances: BalanceRules,
    endings: EndingRules<'a>,
}

impl EntryRules<'_> {
    /// Reads and checks the entries. Returns false if some cannot be read.
    fn read(
        &mut self,
        ledger: &Ledger,
        segment: &SegmentRecord,
        pace: &mut Pace,
        on_entries: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<bool, StoreError> {
        let reader = match ledger.open_segment(segment) {
            Ok(reader) => reader,
            Err(StoreError::SegmentUnavailable(reason)) => {
                report.add_finding("segment", segment.first, reason);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        for entry in reader.entries() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(fault) => {
                    report.add_finding("segment", segment.first, fault.to_string());
                    return Ok(false);
                }
            };
            self.check_entry(&entry, report);
            if report.entries.is_multiple_of(SLICE_ENTRIES) {
                on_entries(report.entries);
                pace.rest();
            }
        }
        Ok(true)
    }

    fn check_entry(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        report.entries += 1;
        self.chain.check(entry, report);
        self.balances.check_entry(entry, report);
        self.references.add_to_all(entry);
        if entry.is_ending() {
            let detail = EndingView::parse(&entry.detail);
            self.endings.check(entry, detail.as_ref(), report);
        }
    }

    /// Goes on with what the ledger recorded at the end of the segment, so that a fault of one is
    /// not reported for the next ones.
    fn go_on_behind(&mut self, segment: &SegmentRecord, recorded: &[AccountStart]) {
        self.chain = ChainRule::new(segment.last, segment.last_hash.clone());
        self.balances = BalanceRules::new(recorded);
    }
}
