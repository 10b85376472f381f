//! The rule `segment`: every sealed segment is at hand, signed and undamaged; and, if all of them
//! are to be read, the rules of their entries.
//!
//! Must not look at entries that no segment has.

use super::balances::BalanceRules;
use super::chain::ChainRule;
use super::debits::{EndingRules, EndingView};
use super::findings::LedgerAuditReport;
use super::pace::Pace;
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
    pace: &mut Pace,
    on_entries: &mut dyn FnMut(u64),
    report: &mut LedgerAuditReport,
) -> Result<(), StoreError> {
    let mut rules = EntryRules {
        chain: ChainRule::new(0, ChainHead::genesis().hash),
        balances: BalanceRules::new(&[]),
        endings: EndingRules::new(ledger),
    };
    for status in ledger.segment_statuses(false)? {
        let segment = &status.segment;
        if let Some(fault) = &status.fault {
            report.add_finding("segment", segment.first, fault.clone());
        } else if reads_all {
            rules.check_segment(ledger, segment, pace, on_entries, report)?;
        }
        if reads_all {
            rules.go_on_behind(ledger, segment)?;
        }
    }
    Ok(())
}

struct EntryRules<'a> {
    chain: ChainRule,
    balances: BalanceRules,
    endings: EndingRules<'a>,
}

impl EntryRules<'_> {
    fn check_segment(
        &mut self,
        ledger: &Ledger,
        segment: &SegmentRecord,
        pace: &mut Pace,
        on_entries: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let reader = match ledger.open_segment(segment) {
            Ok(reader) => reader,
            Err(StoreError::SegmentUnavailable(reason)) => {
                report.add_finding("segment", segment.first, reason);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for entry in reader.entries() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(fault) => {
                    report.add_finding("segment", segment.first, fault.to_string());
                    return Ok(());
                }
            };
            self.check_entry(&entry, report);
            if report.entries.is_multiple_of(SLICE_ENTRIES) {
                on_entries(report.entries);
                pace.rest();
            }
        }
        let balances = ledger.sealed_balances(segment.last)?;
        let recorded = balances
            .iter()
            .map(|row| (row.account.as_str(), [row.paid, row.trial, row.credited]));
        self.balances.compare(recorded, segment.last, report);
        Ok(())
    }

    fn check_entry(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        report.entries += 1;
        self.chain.check(entry, report);
        self.balances.check_entry(entry, report);
        if entry.is_ending() {
            let detail = EndingView::parse(&entry.detail);
            self.endings.check(entry, detail.as_ref(), report);
        }
    }

    /// Goes on with what the ledger recorded at the end of the segment, so that a fault of one is
    /// not reported for the next ones.
    fn go_on_behind(&mut self, ledger: &Ledger, segment: &SegmentRecord) -> Result<(), StoreError> {
        self.chain = ChainRule::new(segment.last, segment.last_hash.clone());
        let balances = ledger.sealed_balances(segment.last)?;
        let accounts: Vec<_> = balances
            .into_iter()
            .map(|balance| AccountStart {
                account: balance.account,
                paid: balance.paid,
                trial: balance.trial,
                credited: balance.credited,
            })
            .collect();
        self.balances = BalanceRules::new(&accounts);
        Ok(())
    }
}
