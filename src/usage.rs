//! Token counts on one convention: input excludes cache reads and cache writes.
//!
//! It must not know JSON, a price or a protocol's framing: it is fed counters, `None` where a vendor gave none
//! that can be believed, and merges them by each protocol's own rules.
//!
//! Read next: `protocol/counters.rs`, which reads the counters from a usage object.

use serde::{Deserialize, Serialize};

/// What one answer used, in tokens.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Input neither read from nor written to a cache.
    pub input: u64,
    pub cache_read: u64,
    /// Written to a cache that lives five minutes (or an unnamed time).
    pub cache_write_5m: u64,
    /// Written to a cache that lives an hour.
    pub cache_write_1h: u64,
    /// All that was generated, reasoning included.
    pub output: u64,
    /// The part of `output` that was reasoning; for information.
    pub reasoning: u64,
}

impl Usage {
    /// No token of any class.
    pub fn is_zero(&self) -> bool {
        *self == Usage::default()
    }

    /// Input of every class together.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
    }

    /// The usage to assume where the vendor did not tell it to the end: two bytes a token, rounded up, on both sides, and
    /// what was `learned` instead of a guess. What a caller is told and what is billed are this same number.
    pub fn estimated(learned: Option<Usage>, body_bytes: u64, generated_bytes: u64) -> Usage {
        let learned = learned.unwrap_or_default();
        let output = generated_bytes.div_ceil(2).max(learned.output);
        let input = if learned.input_total() > 0 { learned.input } else { body_bytes.div_ceil(2) };
        Usage { input, output, ..learned }
    }

    /// This usage, unless it says that nothing was used although `generated_bytes` were delivered: such a vendor
    /// does not count, and the usage is missing.
    pub fn believed(self, generated_bytes: u64) -> Option<Usage> {
        if self.is_zero() && generated_bytes > 0 {
            return None;
        }
        Some(self)
    }
}

/// One usage object of a chat vendor. `None`: absent, or no believable count.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChatCounters {
    /// Includes `cached` and `cache_write`.
    pub prompt: Option<u64>,
    pub cached: Option<u64>,
    pub cache_write: Option<u64>,
    pub completion: Option<u64>,
    pub reasoning: Option<u64>,
}

impl ChatCounters {
    /// `None` unless both sides were counted. A part larger than its whole is clamped to it.
    pub fn usage(&self) -> Option<Usage> {
        let (prompt, output) = (self.prompt?, self.completion?);
        let cache_read = self.cached.unwrap_or(0).min(prompt);
        let uncached = prompt.saturating_sub(cache_read);
        let cache_write_5m = self.cache_write.unwrap_or(0).min(uncached);
        Some(Usage {
            input: uncached.saturating_sub(cache_write_5m),
            cache_read,
            cache_write_5m,
            cache_write_1h: 0,
            output,
            reasoning: self.reasoning.unwrap_or(0).min(output),
        })
    }
}

/// One usage object of a messages vendor. `None`: absent, or no believable count.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessagesCounters {
    pub input: Option<u64>,
    pub cache_read: Option<u64>,
    /// The sum of both classes; the only one that `message_delta` repeats.
    pub cache_write: Option<u64>,
    pub cache_write_5m: Option<u64>,
    pub cache_write_1h: Option<u64>,
    pub output: Option<u64>,
    pub reasoning: Option<u64>,
}

/// The usage of a messages answer as it becomes known, one usage object after the other.
#[derive(Default, Clone, Copy, Debug)]
pub struct MessagesUsage {
    known: Usage,
    input_seen: bool,
    output_final: bool,
}

impl MessagesUsage {
    /// `message_start`: its input counts, its output count is a placeholder.
    pub fn start(&mut self, counters: &MessagesCounters) {
        self.replace(counters);
    }

    /// `message_delta`, or the usage of a whole answer: cumulative, the last one wins counter by counter.
    pub fn settle(&mut self, counters: &MessagesCounters) {
        self.replace(counters);
        self.output_final |= counters.output.is_some();
    }

    /// What the answer used; `None` until both input and final output are known.
    pub fn total(&self) -> Option<Usage> {
        (self.input_seen && self.output_final).then(|| self.so_far())
    }

    /// The input classes and the last output count heard of; `None` until any input was counted.
    pub fn input_learned(&self) -> Option<Usage> {
        self.input_seen.then(|| self.so_far())
    }

    fn so_far(&self) -> Usage {
        Usage { reasoning: self.known.reasoning.min(self.known.output), ..self.known }
    }

    fn replace(&mut self, counters: &MessagesCounters) {
        let known = &mut self.known;
        known.input = counters.input.unwrap_or(known.input);
        known.cache_read = counters.cache_read.unwrap_or(known.cache_read);
        known.output = counters.output.unwrap_or(known.output);
        known.reasoning = counters.reasoning.unwrap_or(known.reasoning);
        self.input_seen |= counters.input.is_some();
        if counters.cache_write_5m.is_some() || counters.cache_write_1h.is_some() {
            known.cache_write_5m = counters.cache_write_5m.unwrap_or(0);
            known.cache_write_1h = counters.cache_write_1h.unwrap_or(0);
        }
        if let Some(sum) = counters.cache_write {
            known.spread_cache_write(sum);
        }
    }
}

impl Usage {
    /// Makes the two write classes add up to `sum`. The difference goes to the class that was used: 1h if only
    /// 1h was, else 5m.
    fn spread_cache_write(&mut self, sum: u64) {
        if self.cache_write_1h > 0 && self.cache_write_5m == 0 {
            self.cache_write_1h = sum;
        } else {
            self.cache_write_1h = self.cache_write_1h.min(sum);
            self.cache_write_5m = sum.saturating_sub(self.cache_write_1h);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn chat_input_excludes_what_was_cached_and_never_wraps() {
        let counters = ChatCounters {
            prompt: Some(10),
            cached: Some(7),
            cache_write: Some(9),
            completion: Some(4),
            reasoning: Some(6),
        };
        let usage = counters.usage().unwrap();
        assert_eq!((usage.input, usage.cache_read, usage.cache_write_5m), (0, 7, 3));
        assert_eq!((usage.output, usage.reasoning), (4, 4));
    }

    #[test]
    fn a_changed_sum_goes_to_the_class_that_was_used() {
        let mut usage = MessagesUsage::default();
        usage.start(&MessagesCounters {
            input: Some(3),
            cache_write_5m: Some(0),
            cache_write_1h: Some(100),
            cache_write: Some(100),
            output: Some(1),
            ..MessagesCounters::default()
        });
        assert_eq!(usage.total(), None);
        usage.settle(&MessagesCounters { cache_write: Some(120), output: Some(9), ..MessagesCounters::default() });
        let total = usage.total().unwrap();
        assert_eq!((total.cache_write_5m, total.cache_write_1h), (0, 120));
        assert_eq!((total.input, total.output), (3, 9));
    }

    #[test]
    fn a_sum_without_a_split_is_five_minutes() {
        let mut usage = MessagesUsage::default();
        usage.settle(&MessagesCounters {
            input: Some(1),
            output: Some(1),
            cache_write: Some(50),
            ..MessagesCounters::default()
        });
        assert_eq!(usage.total().map(|total| total.cache_write_5m), Some(50));
    }
}
