//! Measures the rate at which endings are committed, averaged over the last seconds of commits.
//!
//! An idle ledger does not show its maximum rate, and a small commit is slow for each of its
//! endings. So the caller must report only commits of many endings. This file must not read a
//! clock.

use std::collections::VecDeque;
use std::time::Duration;

/// Rate that a process assumes at its start, in endings per second. It is low, so that a ledger on
/// a slow disk is not overrun before its rate is measured. The first measurements soon outweigh it.
const START_PER_SECOND: u64 = 250;
const START_MICROS: u64 = 250_000;
/// Minimum rate in endings per second. Without it, a ledger that pauses for a moment would seem to
/// need days.
const MIN_PER_SECOND: u64 = 10;
/// Busy time, in µs, over which the rate is averaged.
const WINDOW_MICROS: u64 = 5_000_000;
/// Minimum busy time between two measurements, in µs. Closer ones are merged, so that the window
/// has a bounded number of them.
const SLICE_MICROS: u64 = 50_000;
/// Maximum busy time of one measurement, in µs. After a disk was blocked, the next commits should
/// determine the rate.
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

    #[cfg(test)]
    pub fn measurements(&self) -> usize {
        self.slices.len()
    }
}
