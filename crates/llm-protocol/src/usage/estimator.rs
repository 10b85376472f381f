//! Estimates the usage to bill if the vendor did not report all of it.
//!
//! This file must not depend on JSON, a model or a price. Admission computes the estimate of the
//! input.
//!
//! Read next: `request/content.rs` (the content of a request), `billing/estimate.rs` (its
//! estimated tokens).

use super::tokens::Usage;

/// Number of hundredths of a token per byte of text: one token per 3.5 bytes, with a margin of 5 %.
pub const HUNDREDTHS_PER_TEXT_BYTE: u64 = 30;

/// Returns the estimated tokens of a text of `bytes` in UTF-8, rounded up.
pub fn text_tokens(bytes: u64) -> u64 {
    TokenRate::TEXT.tokens_of(bytes)
}

/// The ratio of tokens to bytes in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenRate {
    tokens: u64,
    bytes: u64,
}

/// Minimum length, in bytes, of an answer whose rate is measured. In a shorter answer, the last
/// token alone would decide the rate.
const MIN_MEASURED_BYTES: u64 = 256;

impl TokenRate {
    /// The rate of average text.
    pub const TEXT: Self = Self {
        tokens: HUNDREDTHS_PER_TEXT_BYTE,
        bytes: 100,
    };

    /// Returns the rate of an answer of `bytes` whose vendor counted `tokens`. Returns `None` if
    /// the answer is too short, or has more than one token per two bytes, in which case the vendor
    /// did not show some of the text.
    pub fn from_measurement(tokens: u64, bytes: u64) -> Option<Self> {
        let is_shown = tokens > 0 && tokens <= bytes / 2;
        (bytes >= MIN_MEASURED_BYTES && is_shown).then_some(Self { tokens, bytes })
    }

    fn tokens_of(self, bytes: u64) -> u64 {
        let tokens = u128::from(bytes)
            .saturating_mul(self.tokens.into())
            .div_ceil(u128::from(self.bytes.max(1)));
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }
}

impl Default for TokenRate {
    fn default() -> Self {
        Self::TEXT
    }
}

/// Estimates the usage of one answer. The client receives the same numbers that are billed, so the
/// code that writes a usage object and the code that bills use the same estimator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageEstimator {
    /// Input by class, without any output.
    input: Usage,
    output: TokenRate,
    max_output: MaxOutput,
}

/// Maximum number of tokens of an answer. The default sets no maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MaxOutput(u64);

impl Default for MaxOutput {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl UsageEstimator {
    /// Creates an estimator. `input` is the estimated usage of the request; its output classes are
    /// ignored.
    pub fn new(input: Usage, output: TokenRate) -> Self {
        let input = Usage {
            output: 0,
            reasoning: 0,
            audio_output: 0,
            ..input
        };
        Self {
            input,
            output,
            max_output: MaxOutput::default(),
        }
    }

    /// Limits the output estimate to `tokens`, however long the vendor's text is.
    pub fn with_max_output(self, tokens: u64) -> Self {
        Self {
            max_output: MaxOutput(tokens),
            ..self
        }
    }

    /// Counts all `drafts` that a vendor generates, of which it returns `choices`.
    #[must_use]
    pub fn with_drafts(self, drafts: u64, choices: u64) -> Self {
        let TokenRate { tokens, bytes } = self.output;
        let output = TokenRate {
            tokens: tokens.saturating_mul(drafts),
            bytes: bytes.saturating_mul(choices),
        };
        Self { output, ..self }
    }

    /// Creates an estimator for an input of which no part is known to be cached.
    pub fn from_input_tokens(input: u64) -> Self {
        Self::new(
            Usage {
                input,
                ..Usage::default()
            },
            TokenRate::TEXT,
        )
    }

    pub fn input(&self) -> Usage {
        self.input
    }

    /// Returns the usage of an answer of `generated_bytes`. The input is the vendor's `reported`
    /// input, or else the estimate. The output is estimated from the text, up to the limit, and is
    /// never less than reported.
    pub fn usage(&self, reported: Option<Usage>, generated_bytes: u64) -> Usage {
        let reported = reported.unwrap_or_default();
        let output = self
            .output
            .tokens_of(generated_bytes)
            .min(self.max_output.0)
            .max(reported.output);
        if reported.input_total() > 0 {
            return Usage { output, ..reported };
        }
        let Usage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            audio_input,
            ..
        } = self.input;
        Usage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            audio_input,
            output,
            ..reported
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_to_a_token_for_three_and_a_half_bytes_and_a_margin() {
        assert_eq!(
            [0, 1, 3, 4, 10, 350, 1_000_000].map(text_tokens),
            [0, 1, 1, 2, 3, 105, 300_000]
        );
        assert_eq!(text_tokens(u64::MAX), u64::MAX / 10 * 3 + 2);
    }

    #[test]
    fn what_was_reported_stands_and_the_rest_is_estimated() {
        let cached = Usage {
            input: 10,
            cache_read: 90,
            output: 7,
            ..Usage::default()
        };
        let estimator = UsageEstimator::new(cached, TokenRate::TEXT);
        let nothing = estimator.usage(None, 100);
        assert_eq!(
            (nothing.input, nothing.cache_read, nothing.output),
            (10, 90, 30)
        );
        let input_only = Usage {
            input: 55,
            output: 1,
            ..Usage::default()
        };
        let started = estimator.usage(Some(input_only), 100);
        assert_eq!(
            (started.input, started.cache_read, started.output),
            (55, 0, 30)
        );
        let counted = Usage {
            output: 44,
            reasoning: 9,
            ..input_only
        };
        assert_eq!(estimator.usage(Some(counted), 100), counted);
        let searched = Usage {
            web_searches: 3,
            ..Usage::default()
        };
        let usage = estimator.usage(Some(searched), 0);
        assert_eq!((usage.cache_read, usage.web_searches), (90, 3));
    }

    #[test]
    fn an_estimate_of_the_output_ends_at_its_limit() {
        let estimator = UsageEstimator::from_input_tokens(7).with_max_output(100);
        assert_eq!(
            [0, 330, 334, 100_000].map(|bytes| estimator.usage(None, bytes).output),
            [0, 99, 100, 100]
        );
        let counted = Usage {
            input: 7,
            output: 120,
            ..Usage::default()
        };
        assert_eq!(
            estimator.usage(Some(counted), 100_000),
            counted,
            "whether a counter can be is not judged here"
        );
    }

    #[test]
    fn an_estimate_counts_the_drafts_that_a_vendor_does_not_return() {
        let estimator = UsageEstimator::from_input_tokens(7).with_drafts(6, 4);
        assert_eq!(
            [0, 1, 100, u64::MAX].map(|bytes| estimator.usage(None, bytes).output),
            [0, 1, 45, u64::MAX / 100 * 45 + 7]
        );
    }

    #[test]
    fn a_rate_is_measured_where_all_that_was_counted_was_shown() {
        assert_eq!(TokenRate::from_measurement(64, 255), None);
        assert_eq!(
            TokenRate::from_measurement(64, 256).map(|rate| rate.tokens_of(1_000)),
            Some(250)
        );
        assert_eq!(
            TokenRate::from_measurement(128, 256).map(|rate| rate.tokens_of(10)),
            Some(5)
        );
        assert_eq!(TokenRate::from_measurement(129, 256), None);
        assert_eq!(TokenRate::from_measurement(0, 256), None);
    }
}
