//! Implements rate limits per minute as leaky buckets. Requests fill a bucket, which drains by its
//! limit per minute.
//!
//! A bucket counts in integers of 1/60 000 of a unit, so that it drains by exactly the limit per
//! millisecond. The shared store uses the same arithmetic (`shared_credit/redis/limits.lua`). This
//! file must not read the clock.

/// Number of milliseconds per minute, which is also the number of parts into which a bucket divides
/// one unit.
const MINUTE_MS: u64 = 60_000;

/// Limits per minute and on concurrency. 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateQuota {
    pub requests_per_minute: u64,
    pub tokens_per_minute: u64,
    pub concurrent: u64,
}

impl RateQuota {
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitKind {
    Requests,
    Tokens,
    Concurrent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    Key,
    Account,
}

/// The limit for which a request must wait, and the minimum wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimitWait {
    pub limited: RateLimitKind,
    pub whose: LimitScope,
    pub limit: u64,
    pub ms: u64,
    pub meters: RateLimitStatuses,
}

/// State of one limit, as reported to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimitStatus {
    pub limit: u64,
    pub remaining: u64,
    /// Time in milliseconds until the limit is unused, if no more requests arrive.
    pub reset_ms: u64,
}

/// For each limit, the tighter status of the key's and the account's. `None` without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimitStatuses {
    pub requests: Option<RateLimitStatus>,
    pub tokens: Option<RateLimitStatus>,
}

impl RateLimitStatuses {
    pub fn tighter(self, other: Self) -> Self {
        let tighter = |one: Option<RateLimitStatus>, other: Option<RateLimitStatus>| {
            [one, other]
                .into_iter()
                .flatten()
                .min_by_key(|meter| (meter.remaining, meter.limit))
        };
        Self {
            requests: tighter(self.requests, other.requests),
            tokens: tighter(self.tokens, other.tokens),
        }
    }
}

/// Recent use under one limit.
#[derive(Debug, Clone, Copy, Default)]
struct LeakyBucket {
    used: u64,
    at_ms: i64,
}

impl LeakyBucket {
    /// Returns the level after draining until now. If the clock was set back, the bucket does not
    /// drain, and counting continues from the new time.
    fn level(&mut self, limit: u64, now_ms: i64) -> u64 {
        let elapsed = u64::try_from(now_ms.saturating_sub(self.at_ms)).unwrap_or_default();
        self.used = self.used.saturating_sub(limit.saturating_mul(elapsed));
        self.at_ms = now_ms;
        self.used
    }

    /// Returns the number of milliseconds until `count` more units fit, 0 if they fit now.
    fn wait_ms(&mut self, limit: u64, count: u64, now_ms: i64) -> u64 {
        let level_after = self
            .level(limit, now_ms)
            .saturating_add(count.saturating_mul(MINUTE_MS));
        level_after
            .saturating_sub(limit.saturating_mul(MINUTE_MS))
            .div_ceil(limit.max(1))
    }

    fn add(&mut self, count: u64) {
        self.used = self.used.saturating_add(count.saturating_mul(MINUTE_MS));
    }

    fn subtract(&mut self, count: u64) {
        self.used = self.used.saturating_sub(count.saturating_mul(MINUTE_MS));
    }

    fn status(&mut self, limit: u64, now_ms: i64) -> Option<RateLimitStatus> {
        let used = (limit > 0).then(|| self.level(limit, now_ms))?;
        let remaining = limit.saturating_sub(used.div_ceil(MINUTE_MS));
        Some(RateLimitStatus {
            limit,
            remaining,
            reset_ms: used.div_ceil(limit),
        })
    }
}

/// Recent use by one key or one account.
#[derive(Debug, Clone, Copy, Default)]
pub struct RateCounter {
    requests: LeakyBucket,
    tokens: LeakyBucket,
}

impl RateCounter {
    /// Checks whether one more request of `tokens` tokens may run next to `open` others, without
    /// counting it.
    ///
    /// # Errors
    /// Returns the exceeded limit. If there are several, returns the one with the longest wait.
    pub fn check(
        &mut self,
        rates: &RateQuota,
        whose: LimitScope,
        open: u64,
        tokens: u64,
        now_ms: i64,
    ) -> Result<(), RateLimitWait> {
        let RateQuota {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        } = *rates;
        let mut waits = Vec::new();
        if concurrent > 0 && open >= concurrent {
            waits.push((RateLimitKind::Concurrent, concurrent, 1));
        }
        if requests_per_minute > 0 {
            waits.push((
                RateLimitKind::Requests,
                requests_per_minute,
                self.requests.wait_ms(requests_per_minute, 1, now_ms),
            ));
        }
        if tokens_per_minute > 0 {
            let reserved = counted_tokens(tokens_per_minute, tokens);
            waits.push((
                RateLimitKind::Tokens,
                tokens_per_minute,
                self.tokens.wait_ms(tokens_per_minute, reserved, now_ms),
            ));
        }
        let longest = waits
            .into_iter()
            .filter(|(_, _, ms)| *ms > 0)
            .max_by_key(|(_, _, ms)| *ms);
        longest.map_or(Ok(()), |(limited, limit, ms)| {
            Err(RateLimitWait {
                limited,
                whose,
                limit,
                ms,
                meters: self.statuses(rates, now_ms),
            })
        })
    }

    pub fn count_request(&mut self, rates: &RateQuota, tokens: u64, now_ms: i64) {
        if rates.requests_per_minute > 0 {
            self.requests.level(rates.requests_per_minute, now_ms);
            self.requests.add(1);
        }
        if rates.tokens_per_minute > 0 {
            self.tokens.level(rates.tokens_per_minute, now_ms);
            self.tokens
                .add(counted_tokens(rates.tokens_per_minute, tokens));
        }
    }

    /// Replaces the estimated tokens of a request with the actual ones.
    pub fn correct_tokens(&mut self, rates: &RateQuota, tokens: u64, used: u64) {
        if rates.tokens_per_minute > 0 {
            // Add before subtracting, so that tokens above the estimate count in full.
            self.tokens.add(used);
            self.tokens
                .subtract(counted_tokens(rates.tokens_per_minute, tokens));
        }
    }

    pub fn statuses(&mut self, rates: &RateQuota, now_ms: i64) -> RateLimitStatuses {
        RateLimitStatuses {
            requests: self.requests.status(rates.requests_per_minute, now_ms),
            tokens: self.tokens.status(rates.tokens_per_minute, now_ms),
        }
    }
}

/// A use of the gateway that is free of charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeUse {
    /// A token count, which the vendor may compute.
    Count,
    /// A response of the gateway itself.
    Question,
    /// A request that was refused after its body was read.
    Refused,
}

/// Recent free uses by one key or one account. Refused requests count separately from billed ones;
/// otherwise free uses would block billed requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct FreeUseCounter {
    used: LeakyBucket,
    refused: LeakyBucket,
}

impl FreeUseCounter {
    fn bucket(&mut self, what: FreeUse) -> &mut LeakyBucket {
        match what {
            FreeUse::Count | FreeUse::Question => &mut self.used,
            FreeUse::Refused => &mut self.refused,
        }
    }

    /// Returns the number of milliseconds until `count` more units fit under `limit` per minute, 0
    /// if they fit now.
    pub fn wait_ms(&mut self, what: FreeUse, count: u64, limit: u64, now_ms: i64) -> u64 {
        self.bucket(what).wait_ms(limit, count, now_ms)
    }

    pub fn add(&mut self, what: FreeUse, count: u64, limit: u64, now_ms: i64) {
        let bucket = self.bucket(what);
        bucket.level(limit, now_ms);
        bucket.add(count);
    }

    /// Returns whether nothing was used within the last minute, so that the bucket is empty.
    pub fn is_idle(&self, now_ms: i64) -> bool {
        let minute = MINUTE_MS.cast_signed();
        [self.used, self.refused]
            .iter()
            .all(|bucket| bucket.used == 0 || now_ms.saturating_sub(bucket.at_ms) > minute)
    }
}

/// Returns the number of tokens to count for a request before its usage is known. A request for
/// more than a minute's limit counts as one full minute, because otherwise it could never run.
pub fn counted_tokens(tokens_per_minute: u64, tokens: u64) -> u64 {
    tokens.min(tokens_per_minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn rates(requests_per_minute: u64, tokens_per_minute: u64, concurrent: u64) -> RateQuota {
        RateQuota {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        }
    }

    fn ask(
        gauge: &mut RateCounter,
        rates: &RateQuota,
        tokens: u64,
        now_ms: i64,
    ) -> Result<(), (RateLimitKind, u64)> {
        gauge
            .check(rates, LimitScope::Key, 0, tokens, now_ms)
            .map_err(|wait| (wait.limited, wait.ms))?;
        gauge.count_request(rates, tokens, now_ms);
        Ok(())
    }

    #[test]
    fn ten_a_minute_are_ten_at_once_and_then_one_every_six_seconds() {
        let (mut gauge, ten) = (RateCounter::default(), rates(10, 0, 0));
        for _ in 0..10 {
            assert_eq!(ask(&mut gauge, &ten, 0, NOW), Ok(()));
        }
        assert_eq!(
            ask(&mut gauge, &ten, 0, NOW),
            Err((RateLimitKind::Requests, 6_000))
        );
        assert_eq!(
            ask(&mut gauge, &ten, 0, NOW + 5_999),
            Err((RateLimitKind::Requests, 1))
        );
        assert_eq!(ask(&mut gauge, &ten, 0, NOW + 6_000), Ok(()));
        assert_eq!(
            ask(&mut gauge, &ten, 0, NOW + 6_000),
            Err((RateLimitKind::Requests, 6_000))
        );
        let idle = NOW + 3_600_000;
        assert_eq!(
            (0..64)
                .filter(|_| ask(&mut gauge, &ten, 0, idle).is_ok())
                .count(),
            10,
            "what is not used is not saved"
        );
    }

    #[test]
    fn what_a_minute_admits_is_exact_for_a_limit_that_divides_nothing() {
        let (mut gauge, seven) = (RateCounter::default(), rates(7, 0, 0));
        let admitted = (0..600_000)
            .step_by(10)
            .filter(|ms| ask(&mut gauge, &seven, 0, NOW + ms).is_ok())
            .count();
        assert_eq!(
            admitted,
            7 + 69,
            "seven at once, and seven in each of the ten minutes but for the last one's last"
        );
    }

    #[test]
    fn what_is_refused_is_counted_apart_from_what_is_free() {
        let mut gauge = FreeUseCounter::default();
        gauge.add(FreeUse::Count, 10, 20, NOW);
        gauge.add(FreeUse::Question, 1, 20, NOW);
        assert_eq!(gauge.wait_ms(FreeUse::Count, 9, 20, NOW), 0);
        assert_eq!(gauge.wait_ms(FreeUse::Count, 10, 20, NOW), 3_000);
        assert_eq!(gauge.wait_ms(FreeUse::Refused, 20, 20, NOW), 0);
        gauge.add(FreeUse::Refused, 21, 20, NOW);
        assert_eq!(gauge.wait_ms(FreeUse::Refused, 1, 20, NOW), 6_000);
        assert_eq!(
            (gauge.is_idle(NOW + 60_000), gauge.is_idle(NOW + 60_001)),
            (false, true)
        );
    }

    #[test]
    fn tokens_are_counted_as_estimated_and_then_as_used() {
        let (mut gauge, thousand) = (RateCounter::default(), rates(0, 1_000, 0));
        assert_eq!(ask(&mut gauge, &thousand, 900, NOW), Ok(()));
        assert_eq!(
            ask(&mut gauge, &thousand, 200, NOW),
            Err((RateLimitKind::Tokens, 6_000))
        );
        gauge.correct_tokens(&thousand, 900, 100);
        assert_eq!(
            gauge.statuses(&thousand, NOW).tokens,
            Some(RateLimitStatus {
                limit: 1_000,
                remaining: 900,
                reset_ms: 6_000
            })
        );
        assert_eq!(ask(&mut gauge, &thousand, 900, NOW), Ok(()));
        gauge.correct_tokens(&thousand, 900, 1_900);
        assert_eq!(
            ask(&mut gauge, &thousand, 1, NOW),
            Err((RateLimitKind::Tokens, 60_060)),
            "more than estimated is waited for"
        );
    }

    #[test]
    fn a_request_for_more_than_a_minutes_tokens_waits_for_a_whole_minute() {
        let (mut gauge, thousand) = (RateCounter::default(), rates(0, 1_000, 0));
        assert_eq!(ask(&mut gauge, &thousand, 1_000_000, NOW), Ok(()));
        assert_eq!(
            ask(&mut gauge, &thousand, 1_000_000, NOW),
            Err((RateLimitKind::Tokens, 60_000))
        );
        assert_eq!(ask(&mut gauge, &thousand, 1_000_000, NOW + 60_000), Ok(()));
    }

    #[test]
    fn a_clock_that_is_set_back_neither_empties_a_bucket_nor_closes_it_for_long() {
        let (mut gauge, one) = (RateCounter::default(), rates(1, 0, 0));
        assert_eq!(ask(&mut gauge, &one, 0, NOW), Ok(()));
        let back = NOW - 3_600_000;
        assert_eq!(
            ask(&mut gauge, &one, 0, back),
            Err((RateLimitKind::Requests, 60_000))
        );
        assert_eq!(ask(&mut gauge, &one, 0, back + 60_000), Ok(()));
    }

    #[test]
    fn the_limit_that_must_be_waited_for_longest_is_told_and_the_tighter_of_two_is_shown() {
        let (mut gauge, both) = (RateCounter::default(), rates(60, 10, 5));
        for _ in 0..60 {
            gauge.count_request(&both, 0, NOW);
        }
        gauge.count_request(&both, 10, NOW);
        let wait = gauge
            .check(&both, LimitScope::Account, 5, 10, NOW)
            .unwrap_err();
        assert_eq!(
            (wait.limited, wait.whose, wait.limit, wait.ms),
            (RateLimitKind::Tokens, LimitScope::Account, 10, 60_000)
        );
        let meter = |limit, remaining| {
            Some(RateLimitStatus {
                limit,
                remaining,
                reset_ms: 0,
            })
        };
        let key = RateLimitStatuses {
            requests: meter(10, 4),
            tokens: None,
        };
        let account = RateLimitStatuses {
            requests: meter(100, 3),
            tokens: meter(7, 7),
        };
        assert_eq!(
            key.tighter(account),
            RateLimitStatuses {
                requests: meter(100, 3),
                tokens: meter(7, 7)
            }
        );
        let wait = gauge
            .check(&rates(0, 0, 5), LimitScope::Key, 5, 0, NOW)
            .unwrap_err();
        assert_eq!((wait.limited, wait.ms), (RateLimitKind::Concurrent, 1));
        assert_eq!(
            gauge.check(&rates(0, 0, 5), LimitScope::Key, 4, 0, NOW),
            Ok(())
        );
        assert_eq!(
            gauge.check(
                &RateQuota::default(),
                LimitScope::Key,
                u64::MAX,
                u64::MAX,
                NOW
            ),
            Ok(())
        );
    }
}
