//! Estimates a request's input if its vendor does not report it: by kind of content, or from the
//! last reported turn of the same conversation.
//!
//! The estimate is pure arithmetic. This file must not depend on accounts or stores;
//! `billing/reported_turns.rs` stores the turns.
//!
//! Read next: `crates/llm-protocol/src/request/content.rs`,
//! `crates/llm-protocol/src/usage/estimator.rs`.

use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::request::ContentSize;
use llm_protocol::usage::{TokenRate, Usage, UsageEstimator};

/// Minimum number of input tokens that any vendor caches. The source is the vendors' guides on
/// prompt caching, read 2026-11.
const MIN_CACHED_TOKENS: u64 = 1_024;

/// One turn of a conversation, with the usage that its vendor reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedTurn {
    /// Estimate from the content alone, in tokens.
    estimate: u64,
    usage: Usage,
    output: TokenRate,
    cache: VendorCache,
    /// True if the vendor's cache also holds the conversation's responses.
    caches_output: bool,
}

/// The knowledge about a vendor's cache from the reports of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VendorCache {
    /// No report could show a cache yet, because a first turn cannot hit one.
    Unknown,
    /// A turn was read from a cache or written to one.
    Seen,
    /// A turn repeated a turn that was long enough for any cache, without a hit.
    Absent,
}

impl VendorCache {
    fn new(content: &ContentSize, is_seen: bool, before: Option<&ReportedTurn>) -> Self {
        let Some(before) = before.filter(|_| !is_seen) else {
            return if is_seen { Self::Seen } else { Self::Unknown };
        };
        let repeats = before.fills_cache() && content.estimated_tokens() >= before.estimate;
        if before.cache == Self::Unknown && repeats {
            Self::Absent
        } else {
            before.cache
        }
    }
}

impl ReportedTurn {
    /// Creates a turn with `content`, whose response had `generated_bytes`. `before` is the
    /// previous turn.
    pub fn new(
        content: &ContentSize,
        usage: &Usage,
        generated_bytes: u64,
        before: Option<&Self>,
    ) -> Self {
        let output =
            TokenRate::from_measurement(visible_output(usage), generated_bytes).unwrap_or_default();
        let mut turn = Self {
            estimate: content.estimated_tokens(),
            usage: *usage,
            output,
            cache: VendorCache::Unknown,
            caches_output: before.is_some_and(|before| usage.cache_read > before.tokens()),
        };
        turn.cache = VendorCache::new(
            content,
            usage.cache_read > 0 || turn.cache_written_tokens() > 0,
            before,
        );
        turn.caches_output |= before.is_some_and(|before| before.caches_output);
        turn
    }

    /// Returns the estimate from the content alone, in tokens.
    pub(super) fn estimate(&self) -> u64 {
        self.estimate
    }

    /// Returns the number of all input tokens except audio.
    fn tokens(&self) -> u64 {
        self.usage
            .input_total()
            .saturating_sub(self.usage.audio_input)
    }

    fn cache_written_tokens(&self) -> u64 {
        self.usage
            .cache_write_5m
            .saturating_add(self.usage.cache_write_1h)
    }

    /// Returns whether the turn is long enough for any vendor's cache.
    fn fills_cache(&self) -> bool {
        self.tokens() >= MIN_CACHED_TOKENS
    }

    /// Returns whether to assume that the vendor's cache holds this turn although no report has
    /// shown a cache yet. A vendor that caches automatically has done so by now. A messages vendor
    /// caches only on request, and reports that in the first turn.
    fn assumes_cache(&self, model: &CatalogModel) -> bool {
        let is_cheaper = model.price.cache_read < model.price.input;
        let is_unasked = model.protocol() != Protocol::Messages;
        self.cache == VendorCache::Unknown && is_cheaper && is_unasked && self.fills_cache()
    }

    /// Returns the number of tokens that the next turn finds in the cache. If the vendor reports
    /// cache writes, these are the written and the read tokens; otherwise all tokens. A turn that
    /// came too late for the cache has still filled it for the next one.
    fn cacheable(&self, model: &CatalogModel) -> u64 {
        match self.cache_written_tokens() {
            _ if self.cache != VendorCache::Seen && !self.assumes_cache(model) => 0,
            0 if self.caches_output => self.tokens().saturating_add(visible_output(&self.usage)),
            0 => self.tokens(),
            written => self.usage.cache_read.saturating_add(written),
        }
    }

    /// Estimates the input of a later turn by class.
    fn next(&self, content: &ContentSize, model: &CatalogModel) -> Usage {
        let tokens = self
            .next_tokens(content.estimated_tokens())
            .max(content.min_tokens())
            .min(model.context_tokens);
        let cache_read = self.cacheable(model).min(tokens);
        let fresh = tokens.saturating_sub(cache_read);
        // The new input is assumed to be written to the cache in the same proportion as in the last
        // turn.
        let of_written = self.usage.input.saturating_add(self.cache_written_tokens());
        let cache_write_5m = proportion(fresh, self.usage.cache_write_5m, of_written);
        let cache_write_1h = proportion(fresh, self.usage.cache_write_1h, of_written);
        let input = fresh
            .saturating_sub(cache_write_5m)
            .saturating_sub(cache_write_1h);
        Usage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            ..Usage::default()
        }
    }

    /// Estimates the next turn at the last turn's tokens per byte. The added content counts at most
    /// as much as by the rule for new content.
    fn next_tokens(&self, estimate: u64) -> u64 {
        let by_rate = proportion(self.tokens(), estimate, self.estimate);
        match estimate.checked_sub(self.estimate) {
            Some(added) => by_rate.min(self.tokens().saturating_add(added)),
            None => by_rate,
        }
    }
}

/// Returns the number of output tokens that the client received.
fn visible_output(usage: &Usage) -> u64 {
    usage.output.saturating_sub(usage.reasoning)
}

/// Assumptions about one request's usage.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputEstimate {
    pub estimator: UsageEstimator,
    /// True if the gateway cannot know if a cache held most of the input, which is large enough for
    /// a cache. Only the vendor's own report can show that.
    pub is_doubtful: bool,
}

impl InputEstimate {
    /// Estimates the input from the last `reported` turn of the conversation, or else by kind of
    /// content. The estimate is at most the model's context.
    pub fn new(
        content: &ContentSize,
        model: &CatalogModel,
        reported: Option<&ReportedTurn>,
    ) -> Self {
        let by_content = Usage {
            input: content.estimated_tokens().min(model.context_tokens),
            ..Usage::default()
        };
        let input = reported.map_or(by_content, |turn| turn.next(content, model));
        let remaining_context = model.context_tokens.saturating_sub(input.input_total());
        // An assumed cache hit is still doubtful, because the vendor's report would show for later
        // turns whether it happened.
        let is_assumed = reported.is_some_and(|turn| turn.assumes_cache(model));
        let cached = if is_assumed { 0 } else { input.cache_read };
        let fresh = input.input_total().saturating_sub(cached);
        let is_mostly_fresh = fresh >= MIN_CACHED_TOKENS && fresh > cached;
        let is_doubtful = is_mostly_fresh && model.price.input > model.price.cache_read;
        let input = Usage {
            audio_input: content.audio_tokens().min(remaining_context),
            ..input
        };
        let output = reported.map(|turn| turn.output).unwrap_or_default();
        Self {
            estimator: UsageEstimator::new(input, output),
            is_doubtful,
        }
    }
}

/// Returns `whole` × `part` ÷ `all`, rounded down, or 0 if `all` is 0.
fn proportion(whole: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(whole)
        .saturating_mul(part.into())
        .checked_div(all.into())
        .unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::money::Micro;
    use credits::price_list::PriceList;
    use credits::pricing;
    use llm_protocol::request;
    use proptest::prelude::*;

    fn model() -> CatalogModel {
        model_of(Protocol::Messages)
    }

    fn model_of(protocol: Protocol) -> CatalogModel {
        let prices = [5_000_000, 500_000, 6_250_000, 10_000_000, 25_000_000].map(Micro::new);
        CatalogModel::in_test(protocol, PriceList::new(prices))
    }

    /// A text that the rule estimates at `tokens` tokens.
    fn text(tokens: usize) -> ContentSize {
        let around = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#.len();
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
            "x".repeat(tokens * 10 / 3 - around)
        );
        request::read_summary(Protocol::Messages, body.as_bytes())
            .unwrap()
            .features
            .content
    }

    fn input([input, cache_read, cache_write_5m, cache_write_1h]: [u64; 4]) -> Usage {
        Usage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            ..Usage::default()
        }
    }

    fn classes(usage: Usage) -> [u64; 4] {
        [
            usage.input,
            usage.cache_read,
            usage.cache_write_5m,
            usage.cache_write_1h,
        ]
    }

    /// The estimate for a turn of `now` tokens by the rule, after turns given as tokens by the rule
    /// and reported input classes.
    fn after(turns: &[(usize, [u64; 4])], now: usize) -> InputEstimate {
        after_of(&model(), turns, now)
    }

    fn after_of(model: &CatalogModel, turns: &[(usize, [u64; 4])], now: usize) -> InputEstimate {
        let mut last: Option<ReportedTurn> = None;
        for (tokens, reported) in turns {
            last = Some(ReportedTurn::new(
                &text(*tokens),
                &input(*reported),
                0,
                last.as_ref(),
            ));
        }
        InputEstimate::new(&text(now), model, last.as_ref())
    }

    fn assumed(turns: &[(usize, [u64; 4])], now: usize) -> [u64; 4] {
        classes(after(turns, now).estimator.input())
    }

    #[test]
    fn a_conversation_without_a_reported_turn_is_estimated_by_its_content() {
        assert_eq!(assumed(&[], 6_000), [6_000, 0, 0, 0]);
        assert_eq!(
            assumed(&[], 600_000),
            [100_000, 0, 0, 0],
            "never above the context"
        );
        assert!(after(&[], 1_024).is_doubtful);
        assert!(!after(&[], 1_023).is_doubtful, "too small for any cache");
        let flat = CatalogModel {
            price: PriceList::new([5, 5, 5, 5, 5].map(Micro::new)).into(),
            ..model()
        };
        assert!(
            !InputEstimate::new(&text(6_000), &flat, None).is_doubtful,
            "cached or not, it costs the same"
        );
    }

    #[test]
    fn a_later_turn_has_the_tokens_for_each_byte_of_the_one_before() {
        // The vendor counts four bytes per token, the rule 3.33.
        assert_eq!(
            assumed(&[(6_000, [5_000, 0, 0, 0])], 6_000),
            [5_000, 0, 0, 0]
        );
        assert_eq!(
            assumed(&[(6_000, [5_000, 0, 0, 0])], 12_000),
            [10_000, 0, 0, 0]
        );
        assert_eq!(
            assumed(&[(6_000, [5_000, 0, 0, 0])], 3_000),
            [2_500, 0, 0, 0]
        );
        // A thread stored by the vendor is not in the bytes, so the added content counts by the
        // rule.
        assert_eq!(assumed(&[(60, [50_000, 0, 0, 0])], 600), [50_540, 0, 0, 0]);
        assert_eq!(
            assumed(&[(60, [50_000, 0, 0, 0])], 600_000),
            [100_000, 0, 0, 0]
        );
        // The context limits the sum of all classes.
        assert_eq!(
            assumed(&[(60_000, [0, 90_000, 0, 0])], 120_000),
            [10_000, 90_000, 0, 0]
        );
    }

    #[test]
    fn what_the_turn_before_left_in_the_cache_is_read_from_it() {
        // A vendor that caches automatically: the next turn finds all of this one in the cache, and
        // only the new part is not cached.
        assert_eq!(
            assumed(&[(6_000, [1_000, 4_000, 0, 0])], 12_000),
            [5_000, 5_000, 0, 0]
        );
        // A vendor that caches on request: the cache holds what it read and wrote, and new text is
        // written in the same proportion.
        assert_eq!(
            assumed(&[(6_000, [0, 1_000, 4_000, 0])], 12_000),
            [0, 5_000, 5_000, 0]
        );
        assert_eq!(
            assumed(&[(6_000, [0, 1_000, 0, 4_000])], 12_000),
            [0, 5_000, 0, 5_000]
        );
        assert_eq!(
            assumed(&[(6_000, [1_000, 0, 3_000, 1_000])], 12_000),
            [1_200, 4_000, 3_600, 1_200]
        );
        // A vendor whose cache held more than the previous turn also caches its responses.
        let answered = |output| {
            let usage = |counts| Usage {
                output,
                ..input(counts)
            };
            let first = ReportedTurn::new(&text(6_000), &usage([0, 5_000, 0, 0]), 0, None);
            let second =
                ReportedTurn::new(&text(9_600), &usage([1_000, 7_000, 0, 0]), 0, Some(&first));
            classes(
                InputEstimate::new(&text(14_400), &model(), Some(&second))
                    .estimator
                    .input(),
            )
        };
        assert_eq!(answered(2_000), [2_000, 10_000, 0, 0]);
        // A turn shorter than the cached part consists of cached input only.
        assert_eq!(
            assumed(&[(6_000, [0, 1_000, 4_000, 0])], 3_000),
            [0, 2_500, 0, 0]
        );
    }

    #[test]
    fn a_turn_that_missed_the_cache_has_filled_it() {
        let (first, late) = ((6_000, [5_000, 0, 0, 0]), (12_000, [10_000, 0, 0, 0]));
        let cached = (9_000, [2_500, 5_000, 0, 0]);
        assert_eq!(assumed(&[cached, late], 12_000), [0, 10_000, 0, 0]);
        assert_eq!(
            assumed(
                &[(6_000, [0, 0, 5_000, 0]), (12_000, [0, 0, 10_000, 0])],
                12_000
            ),
            [0, 10_000, 0, 0]
        );
        assert_eq!(
            assumed(&[first, late], 12_000),
            [10_000, 0, 0, 0],
            "of a vendor that was never seen to cache"
        );
        let doubts = |turns: &[_]| after(turns, 12_000).is_doubtful;
        assert!(
            doubts(&[first]) && doubts(&[first, late]),
            "it may have filled a cache"
        );
        assert!(
            !doubts(&[cached]) && !doubts(&[cached, late]) && !doubts(&[(6_000, [0, 0, 5_000, 0])])
        );
        assert!(
            doubts(&[(1_000, [0, 900, 0, 0])]),
            "a short turn says little of a long one"
        );
    }

    #[test]
    fn a_vendor_that_caches_unasked_is_assumed_to_have_the_first_turn_in_its_cache() {
        let chat = model_of(Protocol::Chat);
        let first = (6_000, [5_000, 0, 0, 0]);
        let of = |model: &CatalogModel, turns: &[_], now| {
            let estimate = after_of(model, turns, now);
            (classes(estimate.estimator.input()), estimate.is_doubtful)
        };
        assert_eq!(
            of(&chat, &[first], 7_200),
            ([1_000, 5_000, 0, 0], true),
            "the report would be better"
        );
        assert_eq!(
            of(&chat, &[(1_200, [1_023, 0, 0, 0])], 1_200),
            ([1_023, 0, 0, 0], false),
            "too small for any cache"
        );
        assert_eq!(
            of(&chat, &[(1_200, [1_024, 0, 0, 0])], 1_200),
            ([0, 1_024, 0, 0], true)
        );
        assert_eq!(
            of(&model(), &[first], 7_200),
            ([6_000, 0, 0, 0], true),
            "it caches what it is asked to, and says so"
        );
        let flat = CatalogModel {
            price: PriceList::new([5, 5, 5, 5, 5].map(Micro::new)).into(),
            ..model_of(Protocol::Chat)
        };
        assert_eq!(of(&flat, &[first], 7_200), ([6_000, 0, 0, 0], false));
        // The turn repeated the first one and did not hit: this vendor does not cache, until a
        // report shows that it does.
        let missed = (7_200, [6_000, 0, 0, 0]);
        assert_eq!(of(&chat, &[first, missed], 8_400), ([7_000, 0, 0, 0], true));
        assert_eq!(
            of(&chat, &[first, missed, (8_400, [7_000, 0, 0, 0])], 8_400),
            ([7_000, 0, 0, 0], true)
        );
        let found = (8_400, [1_000, 6_000, 0, 0]);
        assert_eq!(
            of(&chat, &[first, missed, found], 9_600),
            ([1_000, 7_000, 0, 0], false)
        );
        // A turn shorter than the first did not repeat it; a first turn that is too short cannot
        // reveal a cache.
        assert_eq!(
            of(&chat, &[first, (4_800, [4_000, 0, 0, 0])], 6_000),
            ([1_000, 4_000, 0, 0], true)
        );
        assert_eq!(
            of(
                &chat,
                &[(900, [900, 0, 0, 0]), (4_800, [4_800, 0, 0, 0])],
                6_000
            ),
            ([1_200, 4_800, 0, 0], true)
        );
    }

    #[test]
    fn no_reported_turn_makes_the_next_one_implausible() {
        // A vendor counted 6 kB as 3 tokens: the next estimate still has at least one token per 16
        // bytes.
        let turns = [(1_800, [3, 0, 0, 0])];
        let fewest = text(32_400).min_tokens();
        assert_eq!((fewest, assumed(&turns, 32_400)), (6_750, [6_750, 0, 0, 0]));
        assert_eq!(assumed(&[(1_800, [0, 3, 0, 0])], 32_400), [6_747, 3, 0, 0]);
        // A template of 8 000 tokens around one word counts once.
        assert_eq!(assumed(&[(60, [8_000, 0, 0, 0])], 3_060), [11_000, 0, 0, 0]);
    }

    /// How a vendor caches in a conversation that only grows.
    #[derive(Clone, Copy, Debug)]
    enum Caching {
        Nothing,
        /// Blocks of the input, and optionally of the response.
        Unasked {
            block: u64,
            answers: bool,
        },
        Asked,
    }

    /// The turns of a conversation as a vendor reports them, each with its content's tokens by the
    /// rule. `percent` is the vendor's tokens per 100 tokens of the rule.
    fn reported(caching: Caching, percent: u64, turns: &[(usize, u64)]) -> Vec<(usize, Usage)> {
        let (mut content, mut kept, mut reports) = (0, 0, Vec::new());
        for (added, output) in turns {
            content += *added;
            let tokens = content as u64 * percent / 100;
            let hit = if kept < MIN_CACHED_TOKENS {
                0
            } else {
                kept.min(tokens)
            };
            let usage = match caching {
                Caching::Nothing => input([tokens, 0, 0, 0]),
                Caching::Unasked { block, .. } => {
                    input([tokens - hit / block * block, hit / block * block, 0, 0])
                }
                Caching::Asked => input([3, hit, (tokens - hit).saturating_sub(3), 0]),
            };
            kept = match caching {
                Caching::Unasked { answers: true, .. } => tokens + output,
                Caching::Unasked { .. } => tokens,
                Caching::Asked => usage.cache_read + usage.cache_write_5m,
                Caching::Nothing => 0,
            };
            reports.push((
                content,
                Usage {
                    output: *output,
                    ..usage
                },
            ));
            // The response is part of the next request.
            content += (output * 100 / percent) as usize;
        }
        reports
    }

    proptest! {
        #[test]
        fn leaving_a_known_conversation_early_costs_at_most_a_tenth_more_than_its_answer(
            caching in prop_oneof![
                Just(Caching::Nothing),
                (prop::sample::select(vec![1_u64, 64, 128]), any::<bool>())
                    .prop_map(|(block, answers)| Caching::Unasked { block, answers }),
                Just(Caching::Asked),
            ],
            percent in 50_u64..=150,
            turns in prop::collection::vec((40_usize..3_000, 1_u64..2_000), 3..12),
        ) {
            let reports = reported(caching, percent, &turns);
            let mut last: Option<ReportedTurn> = None;
            for (number, (content, usage)) in reports.iter().enumerate() {
                let content = text(*content);
                let model = match caching {
                    Caching::Asked => model(),
                    Caching::Nothing | Caching::Unasked { .. } => model_of(Protocol::Chat),
                };
                let estimate = InputEstimate::new(&content, &model, last.as_ref());
                // Nothing was generated yet; the output of the whole response would cost extra.
                let left = pricing::cost(&estimate.estimator.input(), &model.price).get();
                let whole = pricing::cost(usage, &model.price).get();
                // The first turn that finds a response in the cache is the first to reveal that
                // responses are cached.
                let is_known = last.is_some_and(|last: ReportedTurn| last.caches_output)
                    || !matches!(caching, Caching::Unasked { answers: true, .. });
                if last.is_some() && !estimate.is_doubtful && is_known {
                    prop_assert!(left * 10 <= whole * 11, "turn {number} of {reports:?}: {left} of {whole}");
                }
                last = Some(ReportedTurn::new(&content, usage, 0, last.as_ref()));
            }
        }
    }

    #[test]
    fn output_is_estimated_at_the_rate_of_the_turn_before() {
        let estimated = |usage: Usage, bytes| {
            let turn = ReportedTurn::new(&text(60), &usage, bytes, None);
            InputEstimate::new(&text(60), &model(), Some(&turn))
                .estimator
                .usage(None, 1_000)
                .output
        };
        let output = |output, reasoning| Usage {
            output,
            reasoning,
            ..input([60, 0, 0, 0])
        };
        assert_eq!(estimated(output(250, 0), 1_000), 250);
        assert_eq!(
            estimated(output(1_250, 1_000), 1_000),
            250,
            "what was reasoned is not in what was shown"
        );
        assert_eq!(
            estimated(output(1_250, 0), 1_000),
            300,
            "some of it was not shown"
        );
        assert_eq!(
            estimated(output(10, 0), 40),
            300,
            "too little to measure by"
        );
    }
}
