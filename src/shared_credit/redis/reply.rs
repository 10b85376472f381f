//! Parses a script's reply.
//!
//! This file must not decide what a reply means for a request.

use credits::money::{CreditSplit, Micro};
use credits::rates::{
    LimitScope, RateLimitKind, RateLimitStatus, RateLimitStatuses, RateLimitWait,
};
use ledger::StoreError;

pub(crate) struct ScriptReply {
    pub operation: &'static str,
    pub values: Vec<String>,
}

impl ScriptReply {
    pub(crate) fn status(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }

    pub(crate) fn text(&self, index: usize) -> Result<&str, StoreError> {
        self.values
            .get(index)
            .map(String::as_str)
            .ok_or_else(|| self.unexpected_reply())
    }

    pub(crate) fn amount(&self, index: usize) -> Result<Micro, StoreError> {
        parse_amount(self.text(index)?)
    }

    pub(crate) fn parts(&self, index: usize) -> Result<CreditSplit, StoreError> {
        Ok(CreditSplit {
            paid: self.amount(index)?,
            trial: self.amount(index + 1)?,
        })
    }

    fn count(&self, index: usize) -> Result<u64, StoreError> {
        self.text(index)?
            .parse()
            .map_err(|_| self.unexpected_reply())
    }

    /// Parses the remaining limits, beginning at value `first`: requests and tokens of the key, and
    /// then of the account. The result is empty if the request was a repeat or has no limits.
    pub(crate) fn rate_limits(&self, first: usize) -> Result<RateLimitStatuses, StoreError> {
        if self.values.len() <= first {
            return Ok(RateLimitStatuses::default());
        }
        let meter = |index: usize| {
            let (limit, remaining, reset_ms) = (
                self.count(index)?,
                self.count(index + 1)?,
                self.count(index + 2)?,
            );
            Ok::<_, StoreError>((limit > 0).then_some(RateLimitStatus {
                limit,
                remaining,
                reset_ms,
            }))
        };
        let of_key = RateLimitStatuses {
            requests: meter(first)?,
            tokens: meter(first + 3)?,
        };
        let of_account = RateLimitStatuses {
            requests: meter(first + 6)?,
            tokens: meter(first + 9)?,
        };
        Ok(of_key.tighter(of_account))
    }

    pub(crate) fn wait(&self) -> Result<RateLimitWait, StoreError> {
        let whose = match self.text(1)? {
            "key" => LimitScope::Key,
            "account" => LimitScope::Account,
            _ => return Err(self.unexpected_reply()),
        };
        let limited = match self.text(2)? {
            "requests" => RateLimitKind::Requests,
            "tokens" => RateLimitKind::Tokens,
            "concurrent" => RateLimitKind::Concurrent,
            _ => return Err(self.unexpected_reply()),
        };
        Ok(RateLimitWait {
            limited,
            whose,
            limit: self.count(3)?,
            ms: self.count(4)?,
            meters: self.rate_limits(5)?,
        })
    }

    pub(crate) fn unexpected_reply(&self) -> StoreError {
        StoreError::Unusable(format!(
            "cannot {}: the shared store answered [{}]",
            self.operation,
            self.values.join(", ")
        ))
    }
}

pub(crate) fn parse_amount(text: &str) -> Result<Micro, StoreError> {
    text.parse().map(Micro::new).map_err(|_| {
        StoreError::Unusable(format!(
            "the shared store has {text:?} where an amount must be"
        ))
    })
}
