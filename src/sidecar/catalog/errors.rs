//! Builds the table of errors that a client can receive, with advice for each. The statuses come
//! from the failure definitions.

use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};

pub struct ErrorRow {
    /// The HTTP status; if it differs by surface, as in `503, messages 529`.
    pub status: String,
    pub code: &'static str,
    pub when: &'static str,
    pub action: &'static str,
}

/// Row label for failures without a code, which clients recognize by their error type alone.
const NO_CODE: &str = "none";

const ERROR_TABLE: &[(Kind, &str, &str, &str)] = &[
    (
        Kind::InvalidRequest,
        NO_CODE,
        "The body is not a valid request for this API",
        "Correct what the message says",
    ),
    (
        Kind::UnpricedFeature,
        "unpriced_feature",
        "The request uses a feature that has no price here",
        "Remove the feature that the message names",
    ),
    (
        Kind::ContextTooLong,
        "context_length_exceeded",
        "The input is longer than the model's context",
        "Send fewer turns of the history",
    ),
    (
        Kind::ContentPolicy,
        "content_policy_violation",
        "The vendor refused the input",
        "Change the input",
    ),
    (
        Kind::MissingKey,
        "invalid_api_key",
        "The key is missing, revoked, or not a gateway key",
        "Check the key and its header",
    ),
    (
        Kind::InsufficientCredits,
        "insufficient_credits",
        "The account has too few credits",
        "Add credits or lower the output limit; do not retry",
    ),
    (
        Kind::TrialExpired,
        "trial_expired",
        "The trial has ended and the account has no other credits",
        "Add credits; do not retry",
    ),
    (
        Kind::KeySpendLimit,
        "key_spend_limit",
        "The key has reached its spend limit",
        "Raise the limit, or use another key",
    ),
    (
        Kind::MemberBudget,
        "member_budget",
        "The member of the organisation has spent their budget",
        "Wait for the next period, or ask an owner or admin to raise it",
    ),
    (
        Kind::KeyDisabled,
        "key_disabled",
        "The key is disabled",
        "Enable it on the page of the key, or use another key",
    ),
    (
        Kind::AccountSuspended,
        "account_suspended",
        "The account of the key is suspended, or may not spend for now",
        "Read why on its dashboard, or ask the operator",
    ),
    (
        Kind::ModelNotAllowed,
        "model_not_allowed",
        "The key, or the member of the organisation whose key it is, may not use this model",
        "Use another key or model, or ask who set the allowed models",
    ),
    (
        Kind::ModelNotFound,
        "model_not_found",
        "The model does not exist",
        "Use a name that the message suggests, or one of the table above",
    ),
    (
        Kind::UnknownPath,
        NO_CODE,
        "The path does not exist",
        "Check the base address: with /v1 for chat and responses, without it for messages",
    ),
    (
        Kind::NotSupported,
        "not_supported",
        "The path belongs to an API that the gateway does not serve, such as files",
        "Use one of the paths that the message names, or the vendor itself",
    ),
    (
        Kind::WrongMethod,
        NO_CODE,
        "The path does not support this method",
        "Use POST for requests to a model",
    ),
    (
        Kind::NoWebSocket,
        "web_socket_not_supported",
        "The path does not serve WebSockets",
        "Send a POST request; the client may do so by itself",
    ),
    (
        Kind::BodyTimeout,
        "request_timeout",
        "The body did not arrive in time",
        "Send it again",
    ),
    (
        Kind::IdempotencyRunning,
        "idempotency_running",
        "The same request is still running",
        "Retry until the answer is ready",
    ),
    (
        Kind::IdempotencyResultUnavailable,
        "idempotency_result_unavailable",
        "The request completed, but its answer is no longer stored",
        "See its receipt; to send the request again, use a new idempotency key",
    ),
    (
        Kind::BodyTooLarge,
        "request_too_large",
        "The body is too large",
        "Send a smaller body",
    ),
    (
        Kind::IdempotencyConflict,
        "idempotency_conflict",
        "The idempotency key was used with another body",
        "Use a new idempotency key",
    ),
    (
        Kind::TooManyOpen,
        "rate_limit_exceeded",
        "Too many requests, in total or at the same time",
        "Retry after the time in retry-after",
    ),
    (
        Kind::Internal,
        "internal_error",
        "The gateway failed",
        "Retry; nothing was debited",
    ),
    (
        Kind::UpstreamFailed,
        "upstream_error",
        "The vendor failed or cut the answer off",
        "Retry; nothing was debited",
    ),
    (
        Kind::UpstreamTimeout,
        "upstream_timeout",
        "The vendor did not answer in time",
        "Retry; nothing was debited",
    ),
    (
        Kind::Overloaded,
        "overloaded",
        "The gateway or the vendor is overloaded",
        "Retry after the time in retry-after",
    ),
    (
        Kind::LedgerUnavailable,
        "ledger_unavailable",
        "The gateway cannot reserve credits at the moment",
        "Retry after the time in retry-after",
    ),
    (
        Kind::ReceiptArchived,
        "receipt_archived",
        "The receipt is archived where the gateway cannot read it",
        "Ask the operator, with the request's id",
    ),
    (
        Kind::Draining,
        "draining",
        "The gateway is shutting down or restarting",
        "Retry: another process answers",
    ),
];

pub fn rows() -> Vec<ErrorRow> {
    let row = |(kind, code, when, action): &(Kind, &'static str, &'static str, &'static str)| {
        let failure = Failure::from_kind(*kind);
        let (chat, messages) = (
            failure.status(Protocol::Chat),
            failure.status(Protocol::Messages),
        );
        let status = if chat == messages {
            chat.to_string()
        } else {
            format!("{chat}, messages {messages}")
        };
        ErrorRow {
            status,
            code,
            when,
            action,
        }
    };
    ERROR_TABLE.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_one_that_is_sent() {
        for (kind, code, ..) in ERROR_TABLE {
            let body = Failure::from_kind(*kind)
                .render(Protocol::Chat, "req_1")
                .body;
            let error: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(
                error["error"]["code"].as_str().unwrap_or(NO_CODE),
                *code,
                "{kind:?}"
            );
        }
        let shown = rows();
        assert!(
            shown
                .iter()
                .any(|row| row.status == "503, messages 529" && row.code == "draining")
        );
        assert!(
            shown
                .iter()
                .any(|row| row.status == "402" && row.code == "trial_expired")
        );
    }
}
