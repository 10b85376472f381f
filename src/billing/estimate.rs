//! What a request's input is taken to be where its vendor does not report it: by kind of content, or by the turn of the same
//! conversation that was reported last.
//!
//! Pure arithmetic. It must not know accounts or stores; who remembers turns is `billing/turns.rs`.
//!
//! Read next: `protocol/request/content.rs`, `usage/estimator.rs`.

use crate::catalog::Model;
use crate::protocol::request::Content;
use crate::usage::{TokenRate, Usage, UsageEstimator};

/// The fewest input tokens that any vendor caches. Source: the vendors' guides on prompt caching, read 2026-11.
const CACHED_TOKENS_MIN: u64 = 1_024;

/// One turn of a conversation, with the usage that its vendor reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedTurn {
    /// What the content alone would have been estimated at, in tokens.
    estimate: u64,
    /// The input in its classes.
    input: Usage,
    output: TokenRate,
    /// In thousandths, how much of what the turn before could leave in a cache was read from it. `None`: there was no such
    /// turn.
    cache_hits: Option<u64>,
}

impl ReportedTurn {
    /// A turn that held `content` and was answered with `generated_bytes`; `before` is the one before it.
    pub fn new(content: &Content, usage: &Usage, generated_bytes: u64, before: Option<&Self>) -> Self {
        let cache_hits = before.map(|before| {
            let hits = u128::from(usage.cache_read) * 1_000 / u128::from(before.cacheable().max(1));
            u64::try_from(hits.min(1_000)).unwrap_or(1_000)
        });
        let shown = usage.output.saturating_sub(usage.reasoning);
        let output = TokenRate::measured(shown, generated_bytes).unwrap_or_default();
        Self { estimate: content.tokens(), input: Usage { output: 0, reasoning: 0, ..*usage }, output, cache_hits }
    }

    /// All of its input but audio.
    fn tokens(&self) -> u64 {
        self.input.input_total().saturating_sub(self.input.audio_input)
    }

    fn written(&self) -> u64 {
        self.input.cache_write_5m.saturating_add(self.input.cache_write_1h)
    }

    fn is_cached(&self) -> bool {
        self.input.cache_read > 0 || self.written() > 0
    }

    /// What the next turn can find in a cache: where the vendor says what it writes, that and what it read; else everything.
    fn cacheable(&self) -> u64 {
        if self.written() > 0 { self.input.cache_read.saturating_add(self.written()) } else { self.tokens() }
    }

    /// Whether a later turn's cached part follows from this one: it was cached itself, or it had a turn before it, or it
    /// is too small for a cache.
    fn shows_caching(&self) -> bool {
        self.is_cached() || self.cache_hits.is_some() || self.tokens() < CACHED_TOKENS_MIN
    }

    /// The input of a later turn, in its classes.
    fn next(&self, content: &Content, model: &Model) -> Usage {
        let tokens = self.next_tokens(content.tokens()).min(model.context_tokens);
        let hits = self.cache_hits.unwrap_or(if self.is_cached() { 1_000 } else { 0 });
        let cache_read = share(self.cacheable(), hits, 1_000).min(tokens);
        let fresh = tokens.saturating_sub(cache_read);
        // What is new is written to the cache in the proportion of the last turn.
        let of_written = self.input.input.saturating_add(self.written());
        let cache_write_5m = share(fresh, self.input.cache_write_5m, of_written);
        let cache_write_1h =
            share(fresh, self.input.cache_write_1h, of_written).min(fresh.saturating_sub(cache_write_5m));
        let input = fresh.saturating_sub(cache_write_5m).saturating_sub(cache_write_1h);
        Usage { input, cache_read, cache_write_5m, cache_write_1h, ..Usage::default() }
    }

    /// By the last turn's tokens for each of its bytes; what was added comes to no more than by the rule for new content.
    fn next_tokens(&self, estimate: u64) -> u64 {
        let by_rate = share(self.tokens(), estimate, self.estimate);
        match estimate.checked_sub(self.estimate) {
            Some(added) => by_rate.min(self.tokens().saturating_add(added)),
            None => by_rate,
        }
    }
}

/// What is assumed of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputEstimate {
    pub estimator: UsageEstimator,
    /// A cache may have held much of the input, and only the vendor's own report would say how much.
    pub is_doubtful: bool,
}

impl InputEstimate {
    /// By the turn of its conversation that was `reported` last, else by kind of content; never above the model's context.
    pub fn new(content: &Content, model: &Model, reported: Option<&ReportedTurn>) -> Self {
        let by_content = Usage { input: content.tokens().min(model.context_tokens), ..Usage::default() };
        let input = reported.map_or(by_content, |turn| turn.next(content, model));
        let room = model.context_tokens.saturating_sub(input.input_total());
        let input = Usage { audio_input: content.audio_tokens().min(room), ..input };
        let is_known = reported.is_some_and(ReportedTurn::shows_caching);
        let may_be_cached = by_content.input >= CACHED_TOKENS_MIN && model.price.input > model.price.cache_read;
        let output = reported.map(|turn| turn.output).unwrap_or_default();
        Self { estimator: UsageEstimator::new(input, output), is_doubtful: may_be_cached && !is_known }
    }
}

/// `whole` × `part` ÷ `all`, rounded down; 0 where `all` is.
fn share(whole: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(whole).saturating_mul(part.into()).checked_div(all.into()).unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Price;
    use crate::money::Micro;
    use crate::protocol::Protocol;
    use crate::protocol::request;

    fn model() -> Model {
        let prices = [5_000_000, 500_000, 6_250_000, 10_000_000, 25_000_000].map(Micro::new);
        Model::in_test(Protocol::Messages, Price::new(prices))
    }

    /// A text that comes to so many tokens by the rule.
    fn text(tokens: usize) -> Content {
        let around = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#.len();
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
            "x".repeat(tokens * 10 / 3 - around)
        );
        request::read(Protocol::Messages, body.as_bytes()).unwrap().features.content
    }

    fn input([input, cache_read, cache_write_5m, cache_write_1h]: [u64; 4]) -> Usage {
        Usage { input, cache_read, cache_write_5m, cache_write_1h, ..Usage::default() }
    }

    fn classes(usage: Usage) -> [u64; 4] {
        [usage.input, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h]
    }

    /// What is assumed of a turn of `now` tokens by the rule, after turns of so many by the rule and as reported.
    fn after(turns: &[(usize, [u64; 4])], now: usize) -> InputEstimate {
        let mut last: Option<ReportedTurn> = None;
        for (tokens, reported) in turns {
            last = Some(ReportedTurn::new(&text(*tokens), &input(*reported), 0, last.as_ref()));
        }
        InputEstimate::new(&text(now), &model(), last.as_ref())
    }

    fn assumed(turns: &[(usize, [u64; 4])], now: usize) -> [u64; 4] {
        classes(after(turns, now).estimator.input())
    }

    #[test]
    fn a_conversation_without_a_reported_turn_is_estimated_by_its_content() {
        assert_eq!(assumed(&[], 6_000), [6_000, 0, 0, 0]);
        assert_eq!(assumed(&[], 600_000), [100_000, 0, 0, 0], "never above the context");
        assert!(after(&[], 1_024).is_doubtful);
        assert!(!after(&[], 1_023).is_doubtful, "too small for any cache");
        let flat = Model { price: Price::new([5, 5, 5, 5, 5].map(Micro::new)).into(), ..model() };
        assert!(!InputEstimate::new(&text(6_000), &flat, None).is_doubtful, "cached or not, it costs the same");
    }

    #[test]
    fn a_later_turn_has_the_tokens_for_each_byte_of_the_one_before() {
        // Four bytes a token where the rule has 3.33.
        assert_eq!(assumed(&[(6_000, [5_000, 0, 0, 0])], 6_000), [5_000, 0, 0, 0]);
        assert_eq!(assumed(&[(6_000, [5_000, 0, 0, 0])], 12_000), [10_000, 0, 0, 0]);
        assert_eq!(assumed(&[(6_000, [5_000, 0, 0, 0])], 3_000), [2_500, 0, 0, 0]);
        // A thread that the vendor keeps is not in the bytes: what is added comes to what it is.
        assert_eq!(assumed(&[(60, [50_000, 0, 0, 0])], 600), [50_540, 0, 0, 0]);
        assert_eq!(assumed(&[(60, [50_000, 0, 0, 0])], 600_000), [100_000, 0, 0, 0]);
        // The context is the bound of all classes together.
        assert_eq!(assumed(&[(60_000, [0, 90_000, 0, 0])], 120_000), [10_000, 90_000, 0, 0]);
    }

    #[test]
    fn what_the_turn_before_left_in_the_cache_is_read_from_it() {
        // A vendor that caches unasked: all of the turn before is found again, and what is new is not.
        assert_eq!(assumed(&[(6_000, [1_000, 4_000, 0, 0])], 12_000), [5_000, 5_000, 0, 0]);
        // One that is asked to: what it read and what it wrote; new text is written as it was.
        assert_eq!(assumed(&[(6_000, [0, 1_000, 4_000, 0])], 12_000), [0, 5_000, 5_000, 0]);
        assert_eq!(assumed(&[(6_000, [0, 1_000, 0, 4_000])], 12_000), [0, 5_000, 0, 5_000]);
        assert_eq!(assumed(&[(6_000, [1_000, 0, 3_000, 1_000])], 12_000), [1_200, 4_000, 3_600, 1_200]);
        // A turn that is shorter than what was cached has nothing else.
        assert_eq!(assumed(&[(6_000, [0, 1_000, 4_000, 0])], 3_000), [0, 2_500, 0, 0]);
    }

    #[test]
    fn a_cache_that_was_missed_is_taken_to_be_missed_again() {
        let first = (6_000, [5_000, 0, 0, 0]);
        assert_eq!(assumed(&[first, (12_000, [10_000, 0, 0, 0])], 12_000), [10_000, 0, 0, 0]);
        // Half of the turn before was found, so half of this one will be.
        assert_eq!(assumed(&[first, (12_000, [7_500, 2_500, 0, 0])], 12_000), [5_000, 5_000, 0, 0]);
        assert_eq!(assumed(&[first, (12_000, [5_000, 5_000, 0, 0])], 12_000), [0, 10_000, 0, 0]);
        let doubts = |turns: &[_]| after(turns, 12_000).is_doubtful;
        assert!(doubts(&[first]), "the first turn shows no cache, but fills one");
        assert!(!doubts(&[first, (12_000, [10_000, 0, 0, 0])]));
        assert!(!doubts(&[(6_000, [4_000, 1_000, 0, 0])]));
        assert!(!doubts(&[(6_000, [0, 0, 5_000, 0])]));
        assert!(!doubts(&[(1_000, [900, 0, 0, 0])]), "too small for a cache");
    }

    #[test]
    fn output_is_estimated_at_the_rate_of_the_turn_before() {
        let estimated = |usage: Usage, bytes| {
            let turn = ReportedTurn::new(&text(60), &usage, bytes, None);
            InputEstimate::new(&text(60), &model(), Some(&turn)).estimator.usage(None, 1_000).output
        };
        let output = |output, reasoning| Usage { output, reasoning, ..input([60, 0, 0, 0]) };
        assert_eq!(estimated(output(250, 0), 1_000), 250);
        assert_eq!(estimated(output(1_250, 1_000), 1_000), 250, "what was reasoned is not in what was shown");
        assert_eq!(estimated(output(1_250, 0), 1_000), 300, "some of it was not shown");
        assert_eq!(estimated(output(10, 0), 40), 300, "too little to measure by");
    }
}
