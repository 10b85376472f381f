//! Checks the rule `sealed posting`: the ledger still has every posting of its segments, unchanged.
//! Refunds and lapses are looked up in the ledger, so a posting must not be in a segment alone.
//!
//! The rule compares the hashes of a segment that was read, and otherwise only the number of
//! postings. The memory grows with the postings. This file must not look at ends of requests.

use super::findings::LedgerAuditReport;
use crate::{LedgerEntry, SegmentRecord};
use std::collections::HashMap;

/// Hashes of postings, by position.
pub(crate) type PostingHashes = HashMap<i64, Vec<u8>>;

#[derive(Default)]
pub(crate) struct SealedPostings(Vec<SegmentPostings>);

struct SegmentPostings {
    first: i64,
    last: i64,
    expected: i64,
    found: i64,
    /// Postings that have not been found in the ledger yet. `None` if the segment was not read.
    unseen: Option<PostingHashes>,
}

impl SealedPostings {
    /// Adds the next segment. `postings` has the hashes in the segment's file, or is `None` if the
    /// file was not read.
    pub fn add_segment(&mut self, segment: &SegmentRecord, postings: Option<PostingHashes>) {
        self.0.push(SegmentPostings {
            first: segment.first,
            last: segment.last,
            expected: segment.last - segment.first + 1 - segment.endings,
            found: 0,
            unseen: postings,
        });
    }

    /// Checks a posting of the ledger. All segments must have been added.
    pub fn check(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        let index = self.0.partition_point(|segment| segment.last < entry.seq);
        let Some(segment) = self.0.get_mut(index) else {
            return;
        };
        segment.found += 1;
        if let Some(unseen) = &mut segment.unseen
            && unseen.remove(&entry.seq).as_ref() != Some(&entry.hash)
        {
            let message = "ledger.db has another entry here than the segment".into();
            report.add_finding("sealed posting", entry.seq, message);
        }
    }

    /// Reports postings that the ledger lacks. All postings of the ledger up to the entry `through`
    /// must have been checked.
    pub fn finish(&mut self, through: i64, report: &mut LedgerAuditReport) {
        for segment in self.0.drain(..) {
            if segment.last > through {
                return;
            }
            let SegmentPostings {
                expected, found, ..
            } = segment;
            match segment.unseen {
                Some(unseen) => {
                    let mut missing: Vec<_> = unseen.into_keys().collect();
                    missing.sort_unstable();
                    for seq in missing {
                        let message = "ledger.db lacks this entry, which its segment has".into();
                        report.add_finding("sealed posting", seq, message);
                    }
                }
                None if expected != found => {
                    let message = format!(
                        "ledger.db has {found} postings of the entries {} to {}, but {expected} were sealed",
                        segment.first, segment.last
                    );
                    report.add_finding("sealed posting", segment.first, message);
                }
                None => {}
            }
        }
    }
}
