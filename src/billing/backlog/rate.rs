//! The rate at which endings are committed: an average over the last seconds of commits.
//!
//! An idle ledger says nothing about how fast it could be, and a commit of few endings is slow for
//! each of them. So the caller reports only commits of many. This file must not read a clock.

use std::collections::VecDeque;
use std::time::Duration;

/// Rate that a process assumes at its start, in endings per second, and the busy time that it
/// counts for: the first measurements soon outweigh it. It is low, so that a ledger on a slow disk
/// is not overrun before it is measured; a fast one is measured before it slows anything.
const START_PER_SECOND: u64 = 250;
const START_MICROS: u64 = 250_000;
/// Lowest rate. Without it, a ledger that pauses for a moment would seem to need days.
const MIN_PER_SECOND: u64 = 10;
/// Busy time over which the rate is averaged.
const WINDOW_MICROS: u64 = 5_000_000;
/// Measurements closer together than this are merged, so that the window contains a bounded number
/// of them.
const SLICE_MICROS: u64 = 50_000;
/// Busy time that one measurement counts for at most: after a disk that hung, the next commits show
/// how fast the ledger is.
const MAX_SLICE_MICROS: u64 = 2_500_000;
/// Endings are counted in thousandths, so that a shortened measurement keeps its rate.
const SCALE: u64 = 1_000;

/// A moving average of the rate of commits.
pub struct CommitRate {
    slices: VecDeque<RateSlice>,
}

#[derive(Debug, Clone, Copy)]
struct RateSlice {
    thousandths: u64,
    micros: u64,
}

impl Default for CommitRate {
    fn default() -> Self {
        let start = RateSlice {
            thousandths: START_PER_SECOND * SCALE * START_MICROS / 1_000_000,
            micros: START_MICROS,
        };
        Self {
            slices: VecDeque::from([start]),
        }
    }
}

impl CommitRate {
    /// Adds `endings` that were committed in `busy` time. Returns the new rate.
    pub fn record(&mut self, endings: usize, busy: Duration) -> u64 {
        let micros = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX).max(1);
        let thousandths = u64::try_from(endings)
            .unwrap_or(u64::MAX)
            .saturating_mul(SCALE);
        let counted = micros.min(MAX_SLICE_MICROS);
        let share = u128::from(thousandths) * u128::from(counted) / u128::from(micros);
        let added = RateSlice {
            thousandths: u64::try_from(share).unwrap_or(u64::MAX),
            micros: counted,
        };
        match self.slices.back_mut() {
            Some(last) if last.micros < SLICE_MICROS => {
                last.thousandths = last.thousandths.saturating_add(added.thousandths);
                last.micros = last.micros.saturating_add(added.micros);
            }
            _ => self.slices.push_back(added),
        }
        let mut total = self.total();
        while let Some(oldest) = self.slices.front()
            && total.micros.saturating_sub(oldest.micros) >= WINDOW_MICROS
        {
            total.micros -= oldest.micros;
            self.slices.pop_front();
        }
        self.per_second()
    }

    /// The average, in endings per second.
    pub fn per_second(&self) -> u64 {
        let RateSlice {
            thousandths,
            micros,
        } = self.total();
        let rate = u128::from(thousandths) * 1_000_000 / u128::from(SCALE * micros.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX).max(MIN_PER_SECOND)
    }

    fn total(&self) -> RateSlice {
        let none = RateSlice {
            thousandths: 0,
            micros: 0,
        };
        self.slices.iter().fold(none, |sum, slice| RateSlice {
            thousandths: sum.thousandths.saturating_add(slice.thousandths),
            micros: sum.micros.saturating_add(slice.micros),
        })
    }

    /// Number of measurements in memory.
    #[cfg(test)]
    pub fn measurements(&self) -> usize {
        self.slices.len()
    }
}
