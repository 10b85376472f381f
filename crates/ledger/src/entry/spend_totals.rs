//! Defines a total of debits, and its limits.
//!
//! This file must not run a query.

use credits::money::Micro;

pub const HOUR_MS: i64 = 3_600_000;

/// Maximum number of tokens that a total counts per class of one response. An absurd counter of a
/// vendor must not overflow the totals, because SQLite would refuse the row.
pub(crate) const MAX_TOKENS_COUNTED: u64 = 1 << 40;

/// Maximum of a total of tokens. `MAX_CREDITS_SUM` is the maximum of a total of credits, in µc.
pub(crate) const MAX_TOKENS_SUM: i64 = 1 << 62;
pub(crate) const MAX_CREDITS_SUM: i64 = 9_007_199_254_740_991;

/// A total of debits. Input includes every class of input tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpendTotals {
    pub responses: u64,
    pub credits: Micro,
    pub input: u64,
    pub cache_read: u64,
    pub output: u64,
}

impl SpendTotals {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            responses: self.responses.saturating_add(other.responses),
            credits: self.credits.plus(other.credits),
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            output: self.output.saturating_add(other.output),
        }
    }

    /// Returns the numbers of responses, input, cache reads and output as SQLite integers.
    pub(crate) fn counts(self) -> [i64; 4] {
        [self.responses, self.input, self.cache_read, self.output]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX))
    }
}
