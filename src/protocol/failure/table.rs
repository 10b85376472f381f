//! Defines the appearance of each kind of failure: ONE total match, so that a new kind cannot be
//! forgotten.
//!
//! It must not depend on anything but the kind.
//!
//! Read next: `protocol/failure/vendor.rs`.

use super::Kind;
use crate::protocol::Protocol;

pub(super) struct Row {
    /// Status and error type on the chat surface.
    chat: (u16, &'static str),
    /// Status and error type on the messages surface.
    messages: (u16, &'static str),
    /// `error.code` of chat, `error.details.error_code` of messages.
    pub code: Option<&'static str>,
    pub param: Option<&'static str>,
    /// Seconds to wait before a retry, if waiting helps.
    pub retry_after: Option<u32>,
    /// Whether to send `x-should-retry: false` although clients would retry the status.
    pub never_retry: bool,
    /// Label for metrics and logs.
    pub reason: &'static str,
    /// Default message.
    pub message: &'static str,
}

impl Row {
    pub fn on(&self, surface: Protocol) -> (u16, &'static str) {
        match surface {
            Protocol::Chat | Protocol::Responses => self.chat,
            Protocol::Messages => self.messages,
        }
    }

    /// Returns the default `param`, if the exact member is unknown.
    pub fn param_on(&self, surface: Protocol) -> Option<&'static str> {
        self.param.map(|param| {
            if surface == Protocol::Responses && param == "messages" {
                "input"
            } else {
                param
            }
        })
    }

    fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    fn never_retry(mut self) -> Self {
        self.never_retry = true;
        self
    }
}

/// Returns the appearance of a kind.
#[allow(clippy::too_many_lines)] // One table, read as one.
pub(super) fn row(kind: Kind) -> Row {
    match kind {
        Kind::InvalidRequest => caller(400, "invalid_request", "The request is not valid."),
        Kind::MissingKey => unauthorized(
            "missing_key",
            "You did not provide an API key. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
        ),
        Kind::BadKey => unauthorized("bad_key", "The API key is not valid."),
        Kind::KeyExpired => unauthorized("key_expired", "The API key has expired."),
        Kind::KeyDisabled => forbidden(
            "key_disabled",
            "This API key, or the account it belongs to, is disabled.",
        ),
        Kind::ModelNotAllowed => {
            forbidden("model_not_allowed", "This key may not use the model.").param("model")
        }
        Kind::ModelNotFound => model_missing("model_not_found"),
        Kind::UnknownPath => missing("unknown_path", "Unknown path."),
        Kind::WrongMethod => caller(
            405,
            "wrong_method",
            "This path does not answer to this method.",
        ),
        Kind::InsufficientCredits => unpaid(
            "insufficient_credits",
            "The available credits do not cover this request. Add credits, or ask for a lower output limit.",
        ),
        Kind::TrialExpired => unpaid("trial_expired", "The trial is over. Add credits to go on."),
        Kind::KeySpendLimit => unpaid("key_spend_limit", "This key has reached its spend limit."),
        Kind::RateLimited => limited("rate_limited", "Too many requests. Try again shortly."),
        Kind::RequestsPerMinute => {
            limited("requests_per_minute", "Too many requests within a minute.")
        }
        Kind::TokensPerMinute => limited("tokens_per_minute", "Too many tokens within a minute."),
        Kind::Concurrent => limited("concurrent_requests", "Too many requests run at one time."),
        Kind::TooManyOpen => limited(
            "too_many_open",
            "Too many requests of this account are open at once.",
        ),
        Kind::FreeRequests => limited(
            "free_requests_per_minute",
            "Too many requests that cost nothing within a minute.",
        ),
        Kind::AccountBodies => limited(
            "account_bodies",
            "The requests in flight of this account hold too many bytes of request bodies.",
        ),
        Kind::ConnectionBodies => limited(
            "connection_bodies",
            "The requests in flight of this client connection hold too many bytes of request bodies.",
        ),
        Kind::BodyTooLarge => Row {
            messages: (413, "request_too_large"),
            ..caller(413, "body_too_large", "The request body is too large.")
        }
        .code("request_too_large"),
        Kind::HeaderTooLarge => caller(
            431,
            "header_too_large",
            "The request's header is too large.",
        ),
        Kind::BodyTimeout => caller(
            408,
            "body_timeout",
            "The request body did not arrive in time.",
        )
        .code("request_timeout"),
        Kind::ContextTooLong => caller(400, "context_too_long", "prompt is too long")
            .code("context_length_exceeded")
            .param("messages"),
        Kind::ContentPolicy => caller(
            400,
            "content_policy",
            "The vendor refused the input for its content.",
        )
        .code("content_policy_violation"),
        Kind::UnpricedFeature => caller(
            400,
            "unpriced_feature",
            "This feature has no price here and cannot be used.",
        )
        .code("unpriced_feature"),
        Kind::ThreadUnsupported => caller(
            400,
            "thread_unsupported",
            "This message thread cannot be continued here. Send the whole conversation.",
        )
        .code("thread_unsupported_request"),
        Kind::IdempotencyRunning => conflict(
            "idempotency_running",
            "A request with this idempotency key is still running.",
        )
        .code("idempotency_running")
        .retry_after(1),
        Kind::IdempotencyConflict => caller(
            422,
            "idempotency_conflict",
            "This idempotency key was used with another body.",
        )
        .code("idempotency_conflict"),
        Kind::IdempotencyResultUnavailable => conflict(
            "idempotency_result_unavailable",
            "The request with this idempotency key was completed, and its answer is not kept.",
        )
        .code("idempotency_result_unavailable")
        .never_retry(),
        Kind::Conflict => conflict("vendor_conflict", "The vendor reported a conflict."),
        Kind::Unprocessable => Row {
            messages: (400, "invalid_request_error"),
            ..caller(
                422,
                "vendor_unprocessable",
                "The vendor could not process the request.",
            )
        },
        Kind::VendorRequestTimeout => caller(
            408,
            "vendor_request_timeout",
            "The vendor did not receive the request in time.",
        )
        .code("request_timeout"),
        Kind::VendorNotFound => missing(
            "vendor_not_found",
            "The vendor does not know something that the request names.",
        ),
        Kind::VendorModelMissing => model_missing("vendor_model_missing"),
        Kind::VendorRefusedUs => upstream(
            "vendor_refused_us",
            "The model's vendor cannot be used at the moment.",
        )
        .never_retry(),
        Kind::VendorQuota => busy(
            "vendor_quota",
            "overloaded",
            "The model's vendor has no capacity for us at the moment.",
        )
        .retry_after(30),
        Kind::UpstreamUnreachable => upstream(
            "upstream_unreachable",
            "The model's vendor could not be reached.",
        ),
        Kind::UpstreamTimeout => Row {
            chat: (504, "server_error"),
            messages: (504, "timeout_error"),
            ..upstream(
                "upstream_timeout",
                "The model's vendor did not answer in time.",
            )
        }
        .code("upstream_timeout"),
        Kind::UpstreamClosed => upstream(
            "upstream_closed",
            "The model's vendor ended its answer early.",
        ),
        Kind::UpstreamFailed => upstream("upstream_failed", "The model's vendor failed to answer."),
        Kind::UpstreamEventTooLarge => upstream(
            "upstream_event_too_large",
            "The model's vendor sent an event that is too large.",
        ),
        Kind::Overloaded => busy(
            "overloaded",
            "overloaded",
            "The model is overloaded at the moment. Try again shortly.",
        )
        .retry_after(5),
        Kind::CpuQueueFull => busy(
            "cpu_queue",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::MemoryShort => busy(
            "memory",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::FilesShort => busy(
            "files",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::BodiesFull => busy(
            "bodies_full",
            "overloaded",
            "This gateway holds as many request bodies as it can at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::TooManyPages => busy(
            "pages",
            "overloaded",
            "Too many pages are open at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::TooManyPagesOfAddress => limited(
            "pages_per_address",
            "Too many pages are open from your address. Try again shortly.",
        )
        .retry_after(2),
        Kind::TooManyLiveStreams => busy(
            "live_streams",
            "overloaded",
            "Too many live balances are open at the moment. Reload the page.",
        )
        .retry_after(15),
        Kind::TooManyLiveStreamsOfAddress => limited(
            "live_streams_per_address",
            "Too many live balances are open from your address. Reload the page.",
        )
        .retry_after(15),
        Kind::Draining => busy(
            "draining",
            "draining",
            "This gateway is shutting down. Try again.",
        )
        .retry_after(1),
        Kind::LedgerUnavailable => busy(
            "ledger_unavailable",
            "ledger_unavailable",
            "The credit ledger cannot be reached at the moment. Try again shortly.",
        )
        .retry_after(2),
        Kind::Internal => Row {
            chat: (500, "server_error"),
            messages: (500, "api_error"),
            ..upstream("internal", "The gateway failed.")
        }
        .code("internal_error"),
    }
}

/// Returns the chat `code` and the messages `type` of an error frame inside a stream. All refusals
/// with the same status share one code.
pub(super) fn frame_words(kind: Kind) -> (&'static str, &'static str) {
    match (row(kind).chat.0, kind) {
        (503, _) => ("overloaded", "overloaded_error"),
        (429, _) => ("rate_limit_exceeded", "rate_limit_error"),
        (_, Kind::UpstreamClosed) => ("upstream_closed", "api_error"),
        (_, Kind::UpstreamTimeout) => ("upstream_timeout", "timeout_error"),
        _ => ("upstream_error", "api_error"),
    }
}

/// Returns the code of a failure inside a stream of the responses surface. Its clients use it to
/// decide whether to retry.
pub(super) fn responses_code(kind: Kind) -> &'static str {
    match (row(kind).chat.0, kind) {
        (503, _) => OVERLOADED,
        (429, _) => "rate_limit_exceeded",
        (_, Kind::ContextTooLong) => "context_length_exceeded",
        // A retry would fail in the same way.
        (
            _,
            Kind::InvalidRequest
            | Kind::ContentPolicy
            | Kind::Unprocessable
            | Kind::UpstreamEventTooLarge
            | Kind::VendorRefusedUs
            | Kind::Internal,
        ) => "invalid_prompt",
        _ => "server_error",
    }
}

/// Code for missing capacity at which clients of the responses surface stop.
pub(super) const OVERLOADED: &str = "server_is_overloaded";

/// An error of the caller: the same status and type on all surfaces.
fn caller(status: u16, reason: &'static str, message: &'static str) -> Row {
    Row {
        chat: (status, "invalid_request_error"),
        messages: (status, "invalid_request_error"),
        code: None,
        param: None,
        retry_after: None,
        never_retry: false,
        reason,
        message,
    }
}

fn unauthorized(reason: &'static str, message: &'static str) -> Row {
    Row {
        messages: (401, "authentication_error"),
        ..caller(401, reason, message)
    }
    .code("invalid_api_key")
}

fn forbidden(code: &'static str, message: &'static str) -> Row {
    Row {
        messages: (403, "permission_error"),
        ..caller(403, code, message)
    }
    .code(code)
}

fn missing(reason: &'static str, message: &'static str) -> Row {
    Row {
        messages: (404, "not_found_error"),
        ..caller(404, reason, message)
    }
}

fn model_missing(reason: &'static str) -> Row {
    missing(
        reason,
        "The model does not exist or you do not have access to it.",
    )
    .code("model_not_found")
    .param("model")
}

fn unpaid(code: &'static str, message: &'static str) -> Row {
    Row {
        chat: (402, "insufficient_quota"),
        messages: (402, "billing_error"),
        ..caller(402, code, message)
    }
    .code(code)
}

fn limited(reason: &'static str, message: &'static str) -> Row {
    Row {
        chat: (429, "rate_limit_error"),
        messages: (429, "rate_limit_error"),
        ..caller(429, reason, message)
    }
    .code("rate_limit_exceeded")
    .retry_after(1)
}

fn conflict(reason: &'static str, message: &'static str) -> Row {
    Row {
        messages: (409, "conflict_error"),
        ..caller(409, reason, message)
    }
}

fn upstream(reason: &'static str, message: &'static str) -> Row {
    Row {
        chat: (502, "server_error"),
        messages: (500, "api_error"),
        ..caller(502, reason, message)
    }
    .code("upstream_error")
}

fn busy(reason: &'static str, code: &'static str, message: &'static str) -> Row {
    Row {
        chat: (503, "server_error"),
        messages: (529, "overloaded_error"),
        ..caller(503, reason, message)
    }
    .code(code)
}
