//! The rules `once per reference` and `one ending per request`.
//!
//! An audit remembers no reference. Instead it reads each unique index in order, where equal
//! references are next to each other. An index can lie only if it has other rows than the table:
//! so a checksum over all references, in any order, is computed from both, and if they differ
//! (rule `schema`) the references are sorted again without the index. The checksum has a key of its
//! own in each audit, so nobody can change rows such that it stays the same. Must not look at
//! amounts.

use super::findings::LedgerAuditReport;
use super::pace::Pace;
use crate::store::StoreError;
use crate::store::ledger::LedgerEntry;
use crate::store::ledger::walk::{LedgerWalk, ReferenceIndex, ReferenceRow};
use std::hash::{BuildHasher as _, RandomState};

pub(super) struct ReferenceRules {
    key: RandomState,
    /// Up to there, the walk omitted ends of requests.
    start: i64,
    counts_once: Checksum,
    ends_once: Checksum,
}

/// Number and checksum of references, in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Checksum {
    count: u64,
    sum: u64,
}

impl Checksum {
    fn add(&mut self, key: &RandomState, row: ReferenceRow<'_>) {
        self.count += 1;
        let hash = key.hash_one((row.kind, row.reference, row.seq));
        self.sum = self.sum.wrapping_add(hash);
    }
}

/// Finds equal references next to each other.
#[derive(Default)]
struct DuplicateFinder {
    kind: String,
    reference: String,
    is_started: bool,
}

impl DuplicateFinder {
    /// Returns true if the row has the reference of the one before.
    fn is_repeated(&mut self, row: ReferenceRow<'_>) -> bool {
        if self.is_started && row.reference == self.reference && row.kind == self.kind {
            return true;
        }
        self.is_started = true;
        if self.kind != row.kind {
            row.kind.clone_into(&mut self.kind);
        }
        row.reference.clone_into(&mut self.reference);
        false
    }
}

impl ReferenceRules {
    /// `start` is the position behind which the walk begins.
    pub fn new(start: i64) -> Self {
        Self {
            key: RandomState::new(),
            start,
            counts_once: Checksum::default(),
            ends_once: Checksum::default(),
        }
    }

    pub fn add(&mut self, entry: &LedgerEntry) {
        let row = ReferenceRow {
            kind: &entry.kind,
            reference: &entry.reference,
            seq: entry.seq,
        };
        self.counts_once.add(&self.key, row);
        if entry.is_ending() {
            self.ends_once
                .add(&self.key, ReferenceRow { kind: "", ..row });
        }
    }

    /// Returns the number of references that [`Self::finish`] checks.
    pub fn expected_count(&self) -> u64 {
        self.counts_once.count + self.ends_once.count
    }

    /// Checks the references of all entries up to the walk's position.
    pub fn finish(
        &self,
        walk: &LedgerWalk,
        pace: &mut Pace,
        on_references: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let mut done = 0;
        for (index, expected) in [
            (ReferenceIndex::CountsOnce, self.counts_once),
            (ReferenceIndex::EndsOnce, self.ends_once),
        ] {
            let mut on_slice = |count: u64| {
                on_references(done + count);
                pace.rest();
            };
            let found = self.read_index(walk, index, &mut on_slice, report)?;
            done += found.count;
            if found == expected {
                continue;
            }
            let message = format!(
                "index {} does not have the references of the entries: it has {}, they have {}",
                index.name(),
                found.count,
                expected.count
            );
            report.add_finding("schema", 0, message);
            let mut duplicates = DuplicateFinder::default();
            walk.sorted_references(index, &mut |row| {
                if duplicates.is_repeated(row) {
                    add_duplicate(index, row, report);
                }
            })?;
        }
        Ok(())
    }

    fn read_index(
        &self,
        walk: &LedgerWalk,
        index: ReferenceIndex,
        on_slice: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<Checksum, StoreError> {
        let (mut found, mut duplicates) = (Checksum::default(), DuplicateFinder::default());
        let mut after = Some((String::new(), String::new()));
        while let Some(last) = after {
            after = walk.references(index, &last, &mut |row| {
                // Entries that were added after the walk, or that it omitted.
                let is_ending = row.kind.is_empty() || matches!(row.kind, "debit" | "void");
                if row.seq > walk.position() || row.seq <= self.start && is_ending {
                    return;
                }
                found.add(&self.key, row);
                if duplicates.is_repeated(row) {
                    add_duplicate(index, row, report);
                }
            })?;
            on_slice(found.count);
        }
        Ok(found)
    }
}

fn add_duplicate(index: ReferenceIndex, row: ReferenceRow<'_>, report: &mut LedgerAuditReport) {
    let ReferenceRow {
        kind,
        reference,
        seq,
    } = row;
    match index {
        ReferenceIndex::CountsOnce => {
            let message = format!("there is an earlier {kind} with reference {reference}");
            report.add_finding("once per reference", seq, message);
        }
        ReferenceIndex::EndsOnce => {
            let message = format!("an earlier entry already ends {reference}");
            report.add_finding("one ending per request", seq, message);
        }
    }
}
