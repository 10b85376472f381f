//! What a request's input is taken to be where its vendor does not report it: by kind of content,
//! or by the turn of the same conversation that was reported last.
//!
//! Pure arithmetic. It must not know accounts or stores; who remembers turns is `billing/turns.rs`.
//!
//! Read next: `protocol/request/content.rs`, `usage/estimator.rs`.

use crate::catalog::Model;
use crate::protocol::Protocol;
use crate::protocol::request::Content;
use crate::usage::{TokenRate, Usage, UsageEstimator};

/// The fewest input tokens that any vendor caches. Source: the vendors' guides on prompt caching,
/// read 2026-11.
const CACHED_TOKENS_MIN: u64 = 1_024;

/// One turn of a conversation, with the usage that its vendor reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedTurn {
    /// What the content alone would have been estimated at, in tokens.
    estimate: u64,
    usage: Usage,
    output: TokenRate,
    cache: VendorCache,
    /// The vendor's cache holds its answers as well.
    caches_output: bool,
}

/// What the reports of a conversation show of its vendor's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VendorCache {
    /// No report could show it yet: in a first turn nothing can be found.
    Unknown,
    /// A turn was read from a cache, or written to one.
    Seen,
    /// A turn repeated one that was long enough for any cache, and nothing of it was found.
    Absent,
}

impl VendorCache {
    fn new(content: &Content, is_seen: bool, before: Option<&ReportedTurn>) -> Self {
        let Some(before) = before.filter(|_| !is_seen) else {
            return if is_seen { Self::Seen } else { Self::Unknown };
        };
        let repeats = before.fills_cache() && content.tokens() >= before.estimate;
        if before.cache == Self::Unknown && repeats {
            Self::Absent
        } else {
            before.cache
        }
    }
}

impl ReportedTurn {
    /// A turn that held `content` and was answered with `generated_bytes`; `before` is the one
    /// before it.
    pub fn new(
        content: &Content,
        usage: &Usage,
        generated_bytes: u64,
        before: Option<&Self>,
    ) -> Self {
        let output = TokenRate::measured(shown(usage), generated_bytes).unwrap_or_default();
        let mut turn = Self {
            estimate: content.tokens(),
            usage: *usage,
            output,
            cache: VendorCache::Unknown,
            caches_output: before.is_some_and(|before| usage.cache_read > before.tokens()),
        };
        turn.cache = VendorCache::new(content, usage.cache_read > 0 || turn.written() > 0, before);
        turn.caches_output |= before.is_some_and(|before| before.caches_output);
        turn
    }

    /// What its content alone comes to, in tokens.
    pub(super) fn estimate(&self) -> u64 {
        self.estimate
    }

    /// All of its input but audio.
    fn tokens(&self) -> u64 {
        self.usage
            .input_total()
            .saturating_sub(self.usage.audio_input)
    }

    fn written(&self) -> u64 {
        self.usage
            .cache_write_5m
            .saturating_add(self.usage.cache_write_1h)
    }

    /// It is long enough for any vendor's cache.
    fn fills_cache(&self) -> bool {
        self.tokens() >= CACHED_TOKENS_MIN
    }

    /// Nobody has seen the vendor's cache yet, and one that caches unasked has this turn in it by
    /// now. Vendors of the messages protocol cache what they are asked to, and report it in the
    /// first turn.
    fn assumes_cache(&self, model: &Model) -> bool {
        let is_cheaper = model.price.cache_read < model.price.input;
        let is_unasked = model.protocol() != Protocol::Messages;
        self.cache == VendorCache::Unknown && is_cheaper && is_unasked && self.fills_cache()
    }

    /// What the next turn finds in the cache: where the vendor says what it writes, that and what
    /// it read; else everything. A turn that missed the cache, because it came too late, has filled
    /// it for the next one all the same.
    fn cacheable(&self, model: &Model) -> u64 {
        match self.written() {
            _ if self.cache != VendorCache::Seen && !self.assumes_cache(model) => 0,
            0 if self.caches_output => self.tokens().saturating_add(shown(&self.usage)),
            0 => self.tokens(),
            written => self.usage.cache_read.saturating_add(written),
        }
    }

    /// The input of a later turn, in its classes.
    fn next(&self, content: &Content, model: &Model) -> Usage {
        let tokens = self
            .next_tokens(content.tokens())
            .max(content.tokens_min())
            .min(model.context_tokens);
        let cache_read = self.cacheable(model).min(tokens);
        let fresh = tokens.saturating_sub(cache_read);
        // What is new is written to the cache in the proportion of the last turn.
        let of_written = self.usage.input.saturating_add(self.written());
        let cache_write_5m = share(fresh, self.usage.cache_write_5m, of_written);
        let cache_write_1h = share(fresh, self.usage.cache_write_1h, of_written);
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

    /// By the last turn's tokens for each of its bytes; what was added comes to no more than by the
    /// rule for new content.
    fn next_tokens(&self, estimate: u64) -> u64 {
        let by_rate = share(self.tokens(), estimate, self.estimate);
        match estimate.checked_sub(self.estimate) {
            Some(added) => by_rate.min(self.tokens().saturating_add(added)),
            None => by_rate,
        }
    }
}

/// The output that the client was shown.
fn shown(usage: &Usage) -> u64 {
    usage.output.saturating_sub(usage.reasoning)
}

/// What is assumed of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputEstimate {
    pub estimator: UsageEstimator,
    /// Of most of the input nobody knows whether a cache held it, and it is so much that one may
    /// have: only the vendor's own report would say.
    pub is_doubtful: bool,
}

impl InputEstimate {
    /// By the turn of its conversation that was `reported` last, else by kind of content; never
    /// above the model's context.
    pub fn new(content: &Content, model: &Model, reported: Option<&ReportedTurn>) -> Self {
        let by_content = Usage {
            input: content.tokens().min(model.context_tokens),
            ..Usage::default()
        };
        let input = reported.map_or(by_content, |turn| turn.next(content, model));
        let room = model.context_tokens.saturating_sub(input.input_total());
        // What is only assumed to be in a cache stays doubtful: the vendor's report would settle it
        // for the turns to come.
        let is_assumed = reported.is_some_and(|turn| turn.assumes_cache(model));
        let cached = if is_assumed { 0 } else { input.cache_read };
        let fresh = input.input_total().saturating_sub(cached);
        let is_mostly_fresh = fresh >= CACHED_TOKENS_MIN && fresh > cached;
        let is_doubtful = is_mostly_fresh && model.price.input > model.price.cache_read;
        let input = Usage {
            audio_input: content.audio_tokens().min(room),
            ..input
        };
        let output = reported.map(|turn| turn.output).unwrap_or_default();
        Self {
            estimator: UsageEstimator::new(input, output),
            is_doubtful,
        }
    }
}

/// `whole` × `part` ÷ `all`, rounded down; 0 where `all` is.
fn share(whole: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(whole)
        .saturating_mul(part.into())
        .checked_div(all.into())
        .unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::billing::pricing;
    use crate::catalog::Price;
    use crate::money::Micro;
    use crate::protocol::request;
    use proptest::prelude::*;

    fn model() -> Model {
        model_of(Protocol::Messages)
    }

    fn model_of(protocol: Protocol) -> Model {
        let prices = [5_000_000, 500_000, 6_250_000, 10_000_000, 25_000_000].map(Micro::new);
        Model::in_test(protocol, Price::new(prices))
    }

    /// A text that comes to so many tokens by the rule.
    fn text(tokens: usize) -> Content {
        let around = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#.len();
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
            "x".repeat(tokens * 10 / 3 - around)
        );
        request::read(Protocol::Messages, body.as_bytes())
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

    /// What is assumed of a turn of `now` tokens by the rule, after turns of so many by the rule
    /// and as reported.
    fn after(turns: &[(usize, [u64; 4])], now: usize) -> InputEstimate {
        after_of(&model(), turns, now)
    }

    fn after_of(model: &Model, turns: &[(usize, [u64; 4])], now: usize) -> InputEstimate {
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
        let flat = Model {
            price: Price::new([5, 5, 5, 5, 5].map(Micro::new)).into(),
            ..model()
        };
        assert!(
            !InputEstimate::new(&text(6_000), &flat, None).is_doubtful,
            "cached or not, it costs the same"
        );
    }

    #[test]
    fn a_later_turn_has_the_tokens_for_each_byte_of_the_one_before() {
        // Four bytes a token where the rule has 3.33.
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
        // A thread that the vendor keeps is not in the bytes: what is added comes to what it is.
        assert_eq!(assumed(&[(60, [50_000, 0, 0, 0])], 600), [50_540, 0, 0, 0]);
        assert_eq!(
            assumed(&[(60, [50_000, 0, 0, 0])], 600_000),
            [100_000, 0, 0, 0]
        );
        // The context is the bound of all classes together.
        assert_eq!(
            assumed(&[(60_000, [0, 90_000, 0, 0])], 120_000),
            [10_000, 90_000, 0, 0]
        );
    }

    #[test]
    fn what_the_turn_before_left_in_the_cache_is_read_from_it() {
        // A vendor that caches unasked: all of the turn before is found again, and what is new is
        // not.
        assert_eq!(
            assumed(&[(6_000, [1_000, 4_000, 0, 0])], 12_000),
            [5_000, 5_000, 0, 0]
        );
        // One that is asked to: what it read and what it wrote; new text is written as it was.
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
        // One that was seen to find more than the turn before keeps its answers too.
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
        // A turn that is shorter than what was cached has nothing else.
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
        let of = |model: &Model, turns: &[_], now| {
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
        let flat = Model {
            price: Price::new([5, 5, 5, 5, 5].map(Micro::new)).into(),
            ..model_of(Protocol::Chat)
        };
        assert_eq!(of(&flat, &[first], 7_200), ([6_000, 0, 0, 0], false));
        // It repeated the first turn, and nothing of it was found: this vendor does not cache,
        // until it shows that it does.
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
        // One that is shorter than the first did not repeat it; the first was too short to show
        // anything.
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
        // 6 kB that a vendor counted as 3 tokens: what follows has at least one for 16 bytes.
        let turns = [(1_800, [3, 0, 0, 0])];
        let fewest = text(32_400).tokens_min();
        assert_eq!((fewest, assumed(&turns, 32_400)), (6_750, [6_750, 0, 0, 0]));
        assert_eq!(assumed(&[(1_800, [0, 3, 0, 0])], 32_400), [6_747, 3, 0, 0]);
        // A template of 8 000 tokens around a word is there once.
        assert_eq!(assumed(&[(60, [8_000, 0, 0, 0])], 3_060), [11_000, 0, 0, 0]);
    }

    /// How a vendor counts, in a conversation that only grows: the rule's tokens for each of its
    /// own, in percent, and what it caches.
    #[derive(Clone, Copy, Debug)]
    enum Caching {
        Nothing,
        /// Blocks of the input, and of the answer too.
        Unasked {
            block: u64,
            answers: bool,
        },
        Asked,
    }

    /// The turns of a conversation as a vendor reports them, each with the rule's tokens of its
    /// content.
    fn reported(caching: Caching, percent: u64, turns: &[(usize, u64)]) -> Vec<(usize, Usage)> {
        let (mut content, mut kept, mut reports) = (0, 0, Vec::new());
        for (added, output) in turns {
            content += *added;
            let tokens = content as u64 * percent / 100;
            let hit = if kept < CACHED_TOKENS_MIN {
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
            // The answer is a part of the next request.
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
                // Nothing was generated yet: the whole answer costs its output besides.
                let left = pricing::cost(&estimate.estimator.input(), &model.price).get();
                let whole = pricing::cost(usage, &model.price).get();
                // The first turn that finds an answer in the cache is the first to show that
                // answers are kept there.
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
