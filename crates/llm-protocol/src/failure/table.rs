//! Defines the appearance of each kind of failure: ONE total match, so that a new kind cannot be
//! forgotten.
//!
//! It must not depend on anything but the kind.
//!
//! Read next: `failure/vendor.rs`.

use super::kind::Kind;
use crate::Protocol;

pub(super) struct FailureRow {
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

impl FailureRow {
    pub fn status_and_type(&self, surface: Protocol) -> (u16, &'static str) {
        match surface {
            Protocol::Chat | Protocol::Responses => self.chat,
            Protocol::Messages => self.messages,
        }
    }

    /// Returns the default `param`, if the exact member is unknown.
    pub fn param_for(&self, surface: Protocol) -> Option<&'static str> {
        self.param.map(|param| {
            if surface == Protocol::Responses && param == "messages" {
                "input"
            } else {
                param
            }
        })
    }

    fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    fn with_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    fn with_never_retry(mut self) -> Self {
        self.never_retry = true;
        self
    }
}

impl Kind {
    /// Returns the label for metrics and logs, from a closed set. Several kinds may share one.
    pub fn reason(self) -> &'static str {
        failure_row(self).reason
    }

    /// Returns the HTTP status on this surface.
    pub fn status(self, surface: Protocol) -> u16 {
        failure_row(self).status_and_type(surface).0
    }
}

/// Returns the appearance of a kind.
#[allow(clippy::too_many_lines)] // One table, read as one.
pub(super) fn failure_row(kind: Kind) -> FailureRow {
    match kind {
        Kind::InvalidRequest => client_error(400, "invalid_request", "The request is not valid."),
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
            forbidden("model_not_allowed", "This key may not use the model.").with_param("model")
        }
        Kind::ModelNotFound => model_not_found("model_not_found"),
        Kind::UnknownPath => not_found("unknown_path", "Unknown path."),
        Kind::WrongMethod => client_error(
            405,
            "wrong_method",
            "This path does not support this method.",
        ),
        Kind::NoWebSocket => client_error(
            426,
            "no_web_socket",
            "This path does not serve WebSockets. Send a POST request, and `stream: true` for a stream.",
        )
        .with_code("web_socket_not_supported"),
        Kind::InsufficientCredits => payment_required(
            "insufficient_credits",
            "The available credits do not cover this request. Add credits, or set a lower output limit.",
        ),
        Kind::TrialExpired => payment_required(
            "trial_expired",
            "The trial has ended. Add credits to continue.",
        ),
        Kind::KeySpendLimit => {
            payment_required("key_spend_limit", "This key has reached its spend limit.")
        }
        Kind::RateLimited => {
            too_many_requests("rate_limited", "Too many requests. Try again shortly.")
        }
        Kind::RequestsPerMinute => {
            too_many_requests("requests_per_minute", "Too many requests in one minute.")
        }
        Kind::TokensPerMinute => {
            too_many_requests("tokens_per_minute", "Too many tokens in one minute.")
        }
        Kind::Concurrent => {
            too_many_requests("concurrent_requests", "Too many concurrent requests.")
        }
        Kind::TooManyOpen => too_many_requests(
            "too_many_open",
            "This account has too many running requests.",
        ),
        Kind::FreeRequests => too_many_requests(
            "free_requests_per_minute",
            "Too many free requests in one minute.",
        ),
        Kind::KeyLookups => too_many_requests(
            "key_lookups",
            "Too many unknown API keys arrive at this gateway to check this one. Try again shortly.",
        ),
        Kind::AccountBodies => too_many_requests(
            "account_bodies",
            "The running requests of this account have too many bytes of request bodies.",
        ),
        Kind::ConnectionBodies => too_many_requests(
            "connection_bodies",
            "The running requests of this client connection have too many bytes of request bodies.",
        ),
        Kind::BodyTooLarge => FailureRow {
            messages: (413, "request_too_large"),
            ..client_error(413, "body_too_large", "The request body is too large.")
        }
        .with_code("request_too_large"),
        Kind::HeaderTooLarge => client_error(
            431,
            "header_too_large",
            "The request's header is too large.",
        ),
        Kind::BodyTimeout => client_error(
            408,
            "body_timeout",
            "The request body did not arrive in time.",
        )
        .with_code("request_timeout"),
        Kind::ContextTooLong => client_error(400, "context_too_long", "prompt is too long")
            .with_code("context_length_exceeded")
            .with_param("messages"),
        Kind::ContentPolicy => client_error(
            400,
            "content_policy",
            "The vendor refused the input because of its content.",
        )
        .with_code("content_policy_violation"),
        Kind::UnpricedFeature => client_error(
            400,
            "unpriced_feature",
            "This gateway has no price for this feature, so you cannot use it here.",
        )
        .with_code("unpriced_feature"),
        Kind::ThreadUnsupported => client_error(
            400,
            "thread_unsupported",
            "This message thread cannot be continued here. Send the whole conversation.",
        )
        .with_code("thread_unsupported_request"),
        Kind::IdempotencyRunning => conflict(
            "idempotency_running",
            "A request with this idempotency key is still running.",
        )
        .with_code("idempotency_running")
        .with_retry_after(1),
        Kind::IdempotencyConflict => client_error(
            422,
            "idempotency_conflict",
            "This idempotency key was already used with a different request body. Use a new key.",
        )
        .with_code("idempotency_conflict"),
        Kind::IdempotencyResultUnavailable => conflict(
            "idempotency_result_unavailable",
            "The request with this idempotency key has completed, but its response is not stored.",
        )
        .with_code("idempotency_result_unavailable")
        .with_never_retry(),
        Kind::Conflict => conflict("vendor_conflict", "The vendor reported a conflict."),
        Kind::Unprocessable => FailureRow {
            messages: (400, "invalid_request_error"),
            ..client_error(
                422,
                "vendor_unprocessable",
                "The vendor could not process the request.",
            )
        },
        Kind::VendorRequestTimeout => client_error(
            408,
            "vendor_request_timeout",
            "The vendor did not receive the request in time.",
        )
        .with_code("request_timeout"),
        Kind::VendorNotFound => not_found(
            "vendor_not_found",
            "The vendor did not find something that the request refers to.",
        ),
        Kind::VendorModelMissing => model_not_found("vendor_model_missing"),
        Kind::VendorRefusedUs => bad_gateway(
            "vendor_refused_us",
            "The model's vendor is not available at the moment.",
        )
        .with_never_retry(),
        Kind::VendorQuota => service_unavailable(
            "vendor_quota",
            "overloaded",
            "The model's vendor has no capacity at the moment.",
        )
        .with_retry_after(30),
        Kind::UpstreamUnreachable => bad_gateway(
            "upstream_unreachable",
            "The model's vendor could not be reached.",
        ),
        Kind::UpstreamTimeout => FailureRow {
            chat: (504, "server_error"),
            messages: (504, "timeout_error"),
            ..bad_gateway(
                "upstream_timeout",
                "The model's vendor did not answer in time.",
            )
        }
        .with_code("upstream_timeout"),
        Kind::UpstreamClosed => bad_gateway(
            "upstream_closed",
            "The model's vendor ended its answer early.",
        ),
        Kind::UpstreamFailed => bad_gateway(
            "upstream_failed",
            "The model's vendor did not answer correctly.",
        ),
        Kind::UpstreamEventTooLarge => bad_gateway(
            "upstream_event_too_large",
            "The model's vendor sent an event that is too large.",
        ),
        Kind::Overloaded => service_unavailable(
            "overloaded",
            "overloaded",
            "The model is overloaded at the moment. Try again shortly.",
        )
        .with_retry_after(5),
        Kind::CpuQueueFull => service_unavailable(
            "cpu_queue",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::MemoryShort => service_unavailable(
            "memory",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::FilesShort => service_unavailable(
            "files",
            "overloaded",
            "This gateway is overloaded at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::BodiesFull => service_unavailable(
            "bodies_full",
            "overloaded",
            "This gateway has no room for more request bodies at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::TooManyPages => service_unavailable(
            "pages",
            "overloaded",
            "Too many pages are open at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::TooManyPagesOfAddress => too_many_requests(
            "pages_per_address",
            "Too many pages are open from your address. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::TooManyLiveStreams => service_unavailable(
            "live_streams",
            "overloaded",
            "Too many live balances are open at the moment. Reload the page.",
        )
        .with_retry_after(15),
        Kind::TooManyLiveStreamsOfAddress => too_many_requests(
            "live_streams_per_address",
            "Too many live balances are open from your address. Reload the page.",
        )
        .with_retry_after(15),
        Kind::Draining => service_unavailable(
            "draining",
            "draining",
            "This gateway is shutting down. Try again shortly.",
        )
        .with_retry_after(1),
        Kind::LedgerBacklog => too_many_requests(
            "ledger_backlog",
            "This gateway is busy, and this account sends more than its share of the requests. Try again shortly.",
        ),
        Kind::LedgerUnavailable => service_unavailable(
            "ledger_unavailable",
            "ledger_unavailable",
            "The credit ledger is not available at the moment. Try again shortly.",
        )
        .with_retry_after(2),
        Kind::ReceiptArchived => service_unavailable(
            "receipt_archived",
            "receipt_archived",
            "The receipt of this request is archived and cannot be read at the moment. Ask the operator of this gateway, with the request's id.",
        ),
        Kind::Internal => FailureRow {
            chat: (500, "server_error"),
            messages: (500, "api_error"),
            ..bad_gateway(
                "internal",
                "Something went wrong in the gateway. Try again.",
            )
        }
        .with_code("internal_error"),
    }
}

/// Returns the chat `code` and the messages `type` of an error frame inside a stream. All
/// refusals with the same status share one code.
pub(super) fn stream_error_codes(kind: Kind) -> (&'static str, &'static str) {
    match (failure_row(kind).chat.0, kind) {
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
    match (failure_row(kind).chat.0, kind) {
        (503, _) => OVERLOADED_CODE,
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
pub(super) const OVERLOADED_CODE: &str = "server_is_overloaded";

/// An error of the caller: the same status and type on all surfaces.
fn client_error(status: u16, reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
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

fn unauthorized(reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        messages: (401, "authentication_error"),
        ..client_error(401, reason, message)
    }
    .with_code("invalid_api_key")
}

fn forbidden(code: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        messages: (403, "permission_error"),
        ..client_error(403, code, message)
    }
    .with_code(code)
}

fn not_found(reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        messages: (404, "not_found_error"),
        ..client_error(404, reason, message)
    }
}

fn model_not_found(reason: &'static str) -> FailureRow {
    not_found(
        reason,
        "The model does not exist or you do not have access to it.",
    )
    .with_code("model_not_found")
    .with_param("model")
}

fn payment_required(code: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        chat: (402, "insufficient_quota"),
        messages: (402, "billing_error"),
        ..client_error(402, code, message)
    }
    .with_code(code)
}

fn too_many_requests(reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        chat: (429, "rate_limit_error"),
        messages: (429, "rate_limit_error"),
        ..client_error(429, reason, message)
    }
    .with_code("rate_limit_exceeded")
    .with_retry_after(1)
}

fn conflict(reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        messages: (409, "conflict_error"),
        ..client_error(409, reason, message)
    }
}

fn bad_gateway(reason: &'static str, message: &'static str) -> FailureRow {
    FailureRow {
        chat: (502, "server_error"),
        messages: (500, "api_error"),
        ..client_error(502, reason, message)
    }
    .with_code("upstream_error")
}

fn service_unavailable(
    reason: &'static str,
    code: &'static str,
    message: &'static str,
) -> FailureRow {
    FailureRow {
        chat: (503, "server_error"),
        messages: (529, "overloaded_error"),
        ..client_error(503, reason, message)
    }
    .with_code(code)
}
