//! Tracks partitions whose data the store has lost, and how long their accounts wait for the edges'
//! reports.
//!
//! Requests that ended before the loss may be in the edges' journals alone. An account that is
//! seeded before the edges report them could spend their credits again. This file must not call the
//! store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum time for which accounts are not seeded, so that edges can report ended requests again.
/// Edges poll for their reports every second.
const REPORT_WAIT: Duration = Duration::from_secs(2);
/// Time for which to wait for further reports after each report.
const REPORT_QUIET: Duration = Duration::from_millis(500);
/// Maximum time for which accounts are not seeded.
const MAX_REPORT_WAIT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct LostPartitions(BTreeMap<u32, LostPartition>);

struct LostPartition {
    /// The server's time when the loss was detected, in ms since 1970.
    noticed_ms: i64,
    seed_from: Instant,
    latest: Instant,
}

impl LostPartitions {
    pub fn add(&mut self, partition: u32, noticed_ms: i64, now: Instant) {
        let lost = LostPartition {
            noticed_ms,
            seed_from: now + REPORT_WAIT,
            latest: now + MAX_REPORT_WAIT,
        };
        self.0.insert(partition, lost);
    }

    /// Returns whether accounts of the partition must not be seeded yet.
    pub fn awaits_reports(&mut self, partition: u32, now: Instant) -> bool {
        let awaits = self
            .0
            .get(&partition)
            .is_some_and(|lost| now < lost.seed_from);
        if !awaits {
            self.0.remove(&partition);
        }
        awaits
    }

    /// Records that an edge has reported a request that ended at `at_ms` without a hold.
    pub fn note_report(&mut self, partition: u32, at_ms: i64, now: Instant) {
        if let Some(lost) = self.0.get_mut(&partition)
            // Requests that were running at the loss end later, and do not count.
            && at_ms <= lost.noticed_ms
        {
            lost.seed_from = lost.seed_from.max(now + REPORT_QUIET).min(lost.latest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_wait_for_reports_of_what_had_ended_and_not_for_ever() {
        let (now, mut lost) = (Instant::now(), LostPartitions::default());
        assert!(!lost.awaits_reports(3, now), "nothing was lost");
        lost.add(3, 1_000, now);
        assert!(lost.awaits_reports(3, now) && !lost.awaits_reports(4, now));
        let late = now + REPORT_WAIT - Duration::from_millis(1);
        lost.note_report(3, 1_001, late);
        assert!(
            !lost.awaits_reports(3, now + REPORT_WAIT),
            "it ran until now"
        );
        lost.add(3, 1_000, now);
        let mut at = now;
        while at < now + MAX_REPORT_WAIT {
            lost.note_report(3, 1_000, at);
            assert!(lost.awaits_reports(3, at));
            at += REPORT_QUIET / 2;
        }
        assert!(!lost.awaits_reports(3, at));
    }
}
