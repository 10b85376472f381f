//! Checks the rules `once per reference` and `one ending per request`.
//!
//! An audit does not keep references in memory. It reads each unique index of the table in order,
//! where equal references are neighbours. An index might have other rows than the table, so a
//! checksum over all references is computed from both. If the checksums differ (rule `schema`), the
//! references are sorted again without the index. Each audit has a random key for its checksum, so
//! nobody can change rows without changing the checksum. Sealed entries are in no index: if they
//! are read, all references are sorted in a temporary file. This file must not look at amounts.

use super::findings::LedgerAuditReport;
use super::pace::Pace;
use crate::LedgerEntry;
use crate::StoreError;
use crate::audit::walk::{
    LedgerWalk, ReferenceIndex, ReferenceRow, ReferenceSorter, RepeatedReference,
};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;

pub(crate) struct ReferenceRules {
    key: RandomState,
    /// Position up to which the walk omitted ends of requests.
    start: i64,
    /// All references, including sealed ones. `None` if sealed entries are not read.
    all: Option<ReferenceSorter>,
    /// The first failure to add a reference to `all`.
    failure: Option<StoreError>,
    counts_once: Checksum,
    ends_once: Checksum,
}

/// Number and checksum of references. Their order does not matter.
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

/// Finds equal references that are neighbours.
#[derive(Default)]
struct DuplicateFinder {
    kind: String,
    reference: String,
    is_started: bool,
}

impl DuplicateFinder {
    /// Returns whether the row has the same reference as the previous one.
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
    /// Creates the rules. The walk begins after the position `start`. If earlier entries come from
    /// segments, `sort_in` is the folder for a temporary file.
    ///
    /// # Errors
    /// Returns an error if the temporary file cannot be created.
    pub fn new(start: i64, sort_in: Option<&Path>) -> Result<Self, StoreError> {
        Ok(Self {
            key: RandomState::new(),
            start,
            all: sort_in.map(ReferenceSorter::new).transpose()?,
            failure: None,
            counts_once: Checksum::default(),
            ends_once: Checksum::default(),
        })
    }

    /// Adds an entry, sealed or not, to the references that are sorted in the temporary file.
    pub fn add_to_all(&mut self, entry: &LedgerEntry) {
        let Some(all) = &mut self.all else { return };
        let kind = if entry.is_ending() { "" } else { &entry.kind };
        let added = all.add(ReferenceRow {
            kind,
            reference: &entry.reference,
            seq: entry.seq,
        });
        if let Err(error) = added {
            (self.all, self.failure) = (None, Some(error));
        }
    }

    /// Adds an entry of the table that the walk reads.
    pub fn add(&mut self, entry: &LedgerEntry) {
        self.add_to_all(entry);
        self.add_earlier(entry);
    }

    /// Adds an entry of the table that precedes the walk and that a segment also contains.
    pub fn add_earlier(&mut self, entry: &LedgerEntry) {
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
        let sorted = self.all.as_ref().map_or(0, ReferenceSorter::count);
        self.counts_once.count + self.ends_once.count + sorted
    }

    /// Checks the references of all entries up to the walk's position.
    pub fn finish(
        &mut self,
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
        let mut on_sorted = |count: u64| {
            on_references(done + count);
            pace.rest();
        };
        self.compare_all(&mut on_sorted, report)
    }

    /// Finds repeated references of which at least one belongs to a sealed entry. The indexes find
    /// all others.
    fn compare_all(
        &mut self,
        on_slice: &mut dyn FnMut(u64),
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let Some(all) = self.all.take() else {
            return Ok(());
        };
        all.find_repeated(on_slice, &mut |repeated| {
            if repeated.first_seq <= self.start {
                add_repeated(repeated, report);
            }
        })
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
                // These entries were added after the walk, or omitted by the walk.
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

fn add_repeated(repeated: RepeatedReference, report: &mut LedgerAuditReport) {
    let RepeatedReference {
        first_seq,
        seq,
        is_ending,
    } = repeated;
    if is_ending {
        let message = format!("entry {first_seq} already ends the same request");
        report.add_finding("one ending per request", seq, message);
    } else {
        let message = format!("entry {first_seq} is of the same kind and has the same reference");
        report.add_finding("once per reference", seq, message);
    }
}
