//! Counts the outcomes of the attempts at one endpoint in the last minutes, and the times until
//! their answers began. The memory is fixed.
//!
//! Time is divided into slots, of which the oldest is overwritten. This file must not read a clock.

use std::time::{Duration, Instant};

const SLOT: Duration = Duration::from_secs(30);
/// Number of slots, including the current one. They cover the last five minutes.
const SLOTS: usize = 10;
/// Number of buckets per power of two, which bounds the error of a percentile to 1/16.
const SUB_BUCKETS: u64 = 8;
/// Number of buckets for times in milliseconds, up to 2^22 ms, which is longer than any request
/// lasts.
const BUCKETS: usize = 8 * 20;

/// Attempts at an endpoint in the last [`WINDOW_SECONDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RecentAttempts {
    pub window_seconds: u64,
    /// Number of attempts that ended.
    pub ended: u64,
    /// Number of ended attempts that the vendor failed.
    pub failed: u64,
    /// Median time from the choice of the endpoint to the header of a successful answer, in
    /// milliseconds. `None` without a successful answer.
    pub first_byte_p50_ms: Option<u64>,
    pub first_byte_p95_ms: Option<u64>,
}

/// Length of the time that [`RecentAttempts`] covers, in seconds.
pub const WINDOW_SECONDS: u64 = SLOT.as_secs() * SLOTS as u64;

pub(super) struct RecentOutcomes {
    began: Instant,
    slots: Box<[Slot; SLOTS]>,
}

#[derive(Clone, Copy)]
struct Slot {
    number: u64,
    ended: u32,
    failed: u32,
    first_bytes: [u32; BUCKETS],
}

const EMPTY: Slot = Slot {
    number: 0,
    ended: 0,
    failed: 0,
    first_bytes: [0; BUCKETS],
};

impl RecentOutcomes {
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            slots: Box::new([EMPTY; SLOTS]),
        }
    }

    pub fn record_end(&mut self, has_failed: bool, now: Instant) {
        let slot = self.slot(now);
        slot.ended = slot.ended.saturating_add(1);
        slot.failed = slot.failed.saturating_add(u32::from(has_failed));
    }

    pub fn record_first_byte(&mut self, after: Duration, now: Instant) {
        let bucket = bucket(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        if let Some(count) = self.slot(now).first_bytes.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
    }

    pub fn summarize(&self, now: Instant) -> RecentAttempts {
        let current = self.number(now);
        let is_recent = |slot: &&Slot| slot.number + SLOTS as u64 > current;
        let mut all = EMPTY;
        let (mut ended, mut failed) = (0, 0);
        for slot in self.slots.iter().filter(is_recent) {
            ended += u64::from(slot.ended);
            failed += u64::from(slot.failed);
            for (sum, count) in all.first_bytes.iter_mut().zip(slot.first_bytes) {
                *sum = sum.saturating_add(count);
            }
        }
        RecentAttempts {
            window_seconds: WINDOW_SECONDS,
            ended,
            failed,
            first_byte_p50_ms: percentile(&all.first_bytes, 50),
            first_byte_p95_ms: percentile(&all.first_bytes, 95),
        }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / SLOT.as_secs()
    }

    /// Returns the slot of this time, and empties it if it belongs to an earlier round.
    fn slot(&mut self, now: Instant) -> &mut Slot {
        let number = self.number(now);
        let index = usize::try_from(number).unwrap_or_default() % SLOTS;
        let slot = &mut self.slots[index];
        if slot.number != number {
            *slot = EMPTY;
            slot.number = number;
        }
        slot
    }
}

/// Returns the bucket of a time. Each power of two has [`SUB_BUCKETS`] buckets, and each smaller
/// time its own.
fn bucket(ms: u64) -> usize {
    let index = match ms.checked_ilog2() {
        Some(power) if power >= 3 => {
            let shift = power - 3;
            u64::from(shift) * SUB_BUCKETS + (ms >> shift)
        }
        _ => ms,
    };
    usize::try_from(index)
        .unwrap_or(usize::MAX)
        .min(BUCKETS - 1)
}

/// Returns the middle of a bucket, in milliseconds.
fn bucket_middle(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB_BUCKETS {
        return index;
    }
    let shift = index / SUB_BUCKETS - 1;
    let low = (index - shift * SUB_BUCKETS) << shift;
    low + (1 << shift) / 2
}

fn percentile(buckets: &[u32; BUCKETS], percent: u64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|count| u64::from(*count)).sum();
    let rank = (total * percent).div_ceil(100);
    let mut seen = 0;
    let mut cumulated = buckets.iter().map(|count| {
        seen += u64::from(*count);
        seen
    });
    let found = cumulated.position(|seen| seen >= rank && total > 0)?;
    Some(bucket_middle(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_own_middle_and_errs_by_less_than_a_sixteenth() {
        for ms in [0, 1, 7, 8, 15, 16, 17, 100, 999, 1_000, 65_535, 3_600_000] {
            let middle = bucket_middle(bucket(ms));
            assert_eq!(bucket(middle), bucket(ms), "{ms}");
            assert!(ms.abs_diff(middle) * 16 <= ms, "{ms} is shown as {middle}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn only_the_last_five_minutes_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut recent = RecentOutcomes::new(start);
        assert_eq!(recent.summarize(start).first_byte_p50_ms, None);
        recent.record_end(true, at(0));
        for (ms, second) in [(10, 0), (12, 60), (12, 61), (900, 299)] {
            recent.record_first_byte(Duration::from_millis(ms), at(second));
            recent.record_end(false, at(second));
        }
        let all = recent.summarize(at(299));
        assert_eq!((all.ended, all.failed), (5, 1));
        assert_eq!(all.first_byte_p50_ms, Some(12));
        assert!(
            all.first_byte_p95_ms
                .is_some_and(|ms| ms.abs_diff(900) < 57)
        );
        let later = recent.summarize(at(300));
        assert_eq!(
            (later.ended, later.failed),
            (3, 0),
            "the first slot is too old"
        );
        recent.record_end(true, at(300));
        assert_eq!(recent.summarize(at(300)).ended, 4);
        assert_eq!(recent.summarize(at(3_000)).ended, 0);
    }
}
