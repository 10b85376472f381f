//! Checks the rule `hash chain`: each entry follows its predecessor and has the hash of its
//! content.
//!
//! This file must not look at amounts.

use super::findings::LedgerAuditReport;
use crate::{EntryHasher, LedgerEntry};

pub(crate) struct ChainRule {
    seq: i64,
    hash: Vec<u8>,
    hasher: EntryHasher,
}

impl ChainRule {
    /// Begins after the entry `seq`, which has this hash.
    pub fn new(seq: i64, hash: Vec<u8>) -> Self {
        Self {
            seq,
            hash,
            hasher: EntryHasher::default(),
        }
    }

    pub fn check(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        self.check_link(entry, report);
        self.check_hash(entry, report);
    }

    /// Checks that an entry follows its predecessor.
    pub fn check_link(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        if entry.seq != self.seq + 1 || entry.prev != self.hash {
            report.add_finding(
                "hash chain",
                entry.seq,
                "the entry does not follow the one before it".into(),
            );
        }
        self.seq = entry.seq;
        self.hash.clear();
        self.hash.extend_from_slice(&entry.hash);
    }

    /// Checks the hash of an entry whose predecessor was not read.
    pub fn check_hash(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        if self.hasher.hash(entry).as_slice() != entry.hash {
            report.add_finding(
                "hash chain",
                entry.seq,
                "the entry was changed after it was written".into(),
            );
        }
    }
}
