//! Reports rate limits to the client: in the headers of its protocol, and in the failure if the
//! client must wait.
//!
//! This file must not count requests.

use accounts::{Principal, RateSettings};
use base::clock::rfc3339;
use config::Settings;
use credits::limits::RequestLimits;
use credits::rates::{
    LimitScope, RateLimitKind, RateLimitStatus, RateLimitStatuses, RateLimitWait, RateQuota,
};
use llm_protocol::Protocol;
use llm_protocol::failure::{ExtraHeaders, Failure, Kind};

/// Returns the limits for a request of this caller. `tokens` returns the number of tokens that the
/// request may use, and is called only if a limit depends on tokens.
pub fn bounds(
    settings: &Settings,
    principal: &Principal,
    tokens: impl FnOnce() -> u64,
) -> RequestLimits {
    let all = &settings.rate_limits;
    let (key, account) = (
        merge_rates(all.key, &principal.settings.rates),
        merge_rates(all.account, &principal.account_rates),
    );
    let counts_tokens = key.tokens_per_minute > 0 || account.tokens_per_minute > 0;
    RequestLimits {
        key,
        account,
        spend: principal.spend_limits(),
        tokens: if counts_tokens { tokens() } else { 0 },
    }
}

/// Returns the effective rates: a setting of a key or account overrides the general one.
pub(super) fn merge_rates(all: config::Rates, own: &RateSettings) -> RateQuota {
    RateQuota {
        requests_per_minute: own.requests_per_minute.unwrap_or(all.requests_per_minute),
        tokens_per_minute: own.tokens_per_minute.unwrap_or(all.tokens_per_minute),
        concurrent: own.concurrent.unwrap_or(all.concurrent),
    }
}

/// Returns the headers with the remaining allowance, or none without a limit.
pub fn headers(
    surface: Protocol,
    meters: &RateLimitStatuses,
    now_ms: i64,
) -> Vec<(&'static str, String)> {
    let requests = match surface {
        Protocol::Chat | Protocol::Responses => [
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
        ],
        Protocol::Messages => [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ],
    };
    let tokens = match surface {
        Protocol::Chat | Protocol::Responses => [
            "x-ratelimit-limit-tokens",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
        ],
        Protocol::Messages => [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ],
    };
    let fields = |names: [&'static str; 3], meter: Option<RateLimitStatus>| {
        let values = meter.map(
            |RateLimitStatus {
                 limit,
                 remaining,
                 reset_ms,
             }| {
                let reset = match surface {
                    Protocol::Chat | Protocol::Responses => format_reset(reset_ms),
                    Protocol::Messages => {
                        rfc3339(now_ms.saturating_add(i64::try_from(reset_ms).unwrap_or(i64::MAX)))
                    }
                };
                [limit.to_string(), remaining.to_string(), reset]
            },
        );
        names.into_iter().zip(values.into_iter().flatten())
    };
    fields(requests, meters.requests)
        .chain(fields(tokens, meters.tokens))
        .collect()
}

/// Formats a time as the official chat vendor does, for example `120ms`, `6s` or `6m0s`. A time
/// above a second is rounded up to whole seconds.
fn format_reset(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    match seconds / 60 {
        _ if (1..1_000).contains(&ms) => format!("{ms}ms"),
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}

/// Returns the failure of a request that must wait.
pub fn limit_failure(surface: Protocol, wait: &RateLimitWait, now_ms: i64) -> Failure {
    let RateLimitWait {
        limited,
        whose,
        limit: most,
        ms,
        meters,
    } = wait;
    let whose = match whose {
        LimitScope::Key => "key",
        LimitScope::Account => "account",
    };
    let (kind, what) = match limited {
        RateLimitKind::Requests => (Kind::RequestsPerMinute, "requests per minute"),
        RateLimitKind::Tokens => (Kind::TokensPerMinute, "tokens per minute"),
        RateLimitKind::Concurrent => (Kind::Concurrent, "concurrent requests"),
    };
    let seconds = u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX);
    let message = format!(
        "Rate limit reached: the limit of this {whose} is {most} {what}. Try again in {seconds} s."
    );
    let mut failure = Failure::new(kind, message).with_retry_after(seconds);
    failure.also = Some(Box::new(ExtraHeaders(headers(surface, meters, now_ms))));
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_told_in_the_words_of_the_protocol() {
        for (ms, text) in [
            (0, "0s"),
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (5_001, "6s"),
            (59_001, "1m0s"),
            (360_000, "6m0s"),
        ] {
            assert_eq!(format_reset(ms), text);
        }
        let meters = RateLimitStatuses {
            requests: Some(RateLimitStatus {
                limit: 10,
                remaining: 9,
                reset_ms: 6_000,
            }),
            tokens: None,
        };
        let chat = headers(Protocol::Chat, &meters, 0);
        let text = |(name, value): (&str, String)| format!("{name}: {value}");
        assert_eq!(
            chat.into_iter().map(text).collect::<Vec<_>>(),
            [
                "x-ratelimit-limit-requests: 10",
                "x-ratelimit-remaining-requests: 9",
                "x-ratelimit-reset-requests: 6s"
            ]
        );
        assert_eq!(
            headers(Protocol::Messages, &meters, 1_709_208_000_000)
                .into_iter()
                .map(text)
                .collect::<Vec<_>>(),
            [
                "anthropic-ratelimit-requests-limit: 10",
                "anthropic-ratelimit-requests-remaining: 9",
                "anthropic-ratelimit-requests-reset: 2024-02-29T12:00:06.000Z"
            ]
        );
        assert_eq!(
            headers(Protocol::Chat, &RateLimitStatuses::default(), 0),
            []
        );
    }
}
