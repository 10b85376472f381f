//! Failures: every kind on both surfaces, and how the gateway maps a vendor's error.

use crate::payloads::{PUBLIC, UPSTREAM};
use llm_protocol::Protocol::{self, Chat, Messages, Responses};
use llm_protocol::failure::{
    Failure, Kind, VendorError, from_vendor_error, from_vendor_response, refuses_key,
    unknown_form_excerpt,
};
use llm_protocol::profile::VendorProfile;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Kind; chat status, type, code; messages status, type; `retry-after`; on which of the surfaces
/// the error has `x-should-retry: false`.
type Row = (
    Kind,
    (u16, &'static str, Option<&'static str>),
    (u16, &'static str),
    Option<&'static str>,
    [bool; 2],
);

const INVALID: &str = "invalid_request_error";
const NEVER: [bool; 2] = [true, true];
const OPEN: [bool; 2] = [false, false];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    (Kind::InvalidRequest, (400, INVALID, None), (400, INVALID), None, OPEN),
    (Kind::MissingKey, (401, INVALID, Some("invalid_api_key")), (401, "authentication_error"), None, NEVER),
    (Kind::BadKey, (401, INVALID, Some("invalid_api_key")), (401, "authentication_error"), None, NEVER),
    (Kind::KeyExpired, (401, INVALID, Some("invalid_api_key")), (401, "authentication_error"), None, NEVER),
    (Kind::KeyDisabled, (403, INVALID, Some("key_disabled")), (403, "permission_error"), None, NEVER),
    (Kind::AccountSuspended, (403, INVALID, Some("account_suspended")), (403, "permission_error"), None, NEVER),
    (Kind::ModelNotAllowed, (403, INVALID, Some("model_not_allowed")), (403, "permission_error"), None, NEVER),
    (Kind::ModelNotFound, (404, INVALID, Some("model_not_found")), (404, "not_found_error"), None, NEVER),
    (Kind::UnknownPath, (404, INVALID, None), (404, "not_found_error"), None, NEVER),
    (Kind::NotSupported, (404, INVALID, Some("not_supported")), (404, "not_found_error"), None, NEVER),
    (Kind::WrongMethod, (405, INVALID, None), (405, INVALID), None, OPEN),
    (Kind::NoWebSocket, (426, INVALID, Some("web_socket_not_supported")), (426, INVALID), None, OPEN),
    (Kind::InsufficientCredits, (402, "insufficient_quota", Some("insufficient_credits")), (402, "billing_error"), None, NEVER),
    (Kind::TrialExpired, (402, "insufficient_quota", Some("trial_expired")), (402, "billing_error"), None, NEVER),
    (Kind::KeySpendLimit, (402, "insufficient_quota", Some("key_spend_limit")), (402, "billing_error"), None, NEVER),
    (Kind::MemberBudget, (402, "insufficient_quota", Some("member_budget")), (402, "billing_error"), None, NEVER),
    (Kind::RateLimited, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::RequestsPerMinute, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::TokensPerMinute, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::Concurrent, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::TooManyOpen, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::FreeRequests, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::KeyLookups, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::AccountBodies, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::ConnectionBodies, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::BodyTooLarge, (413, INVALID, Some("request_too_large")), (413, "request_too_large"), None, OPEN),
    (Kind::HeaderTooLarge, (431, INVALID, None), (431, INVALID), None, OPEN),
    (Kind::BodyTimeout, (408, INVALID, Some("request_timeout")), (408, INVALID), None, OPEN),
    (Kind::ContextTooLong, (400, INVALID, Some("context_length_exceeded")), (400, INVALID), None, OPEN),
    (Kind::ContentPolicy, (400, INVALID, Some("content_policy_violation")), (400, INVALID), None, OPEN),
    (Kind::UnpricedFeature, (400, INVALID, Some("unpriced_feature")), (400, INVALID), None, OPEN),
    (Kind::ThreadUnsupported, (400, INVALID, Some("thread_unsupported_request")), (400, INVALID), None, OPEN),
    (Kind::IdempotencyRunning, (409, INVALID, Some("idempotency_running")), (409, "conflict_error"), Some("1"), OPEN),
    (Kind::IdempotencyConflict, (422, INVALID, Some("idempotency_conflict")), (422, INVALID), None, OPEN),
    (Kind::IdempotencyResultUnavailable, (409, INVALID, Some("idempotency_result_unavailable")), (409, "conflict_error"), None, NEVER),
    (Kind::Conflict, (409, INVALID, None), (409, "conflict_error"), None, OPEN),
    (Kind::Unprocessable, (422, INVALID, None), (400, INVALID), None, OPEN),
    (Kind::VendorRequestTimeout, (408, INVALID, Some("request_timeout")), (408, INVALID), None, OPEN),
    (Kind::VendorNotFound, (404, INVALID, None), (404, "not_found_error"), None, NEVER),
    (Kind::VendorModelMissing, (404, INVALID, Some("model_not_found")), (404, "not_found_error"), None, NEVER),
    (Kind::VendorRefusedUs, (502, "server_error", Some("upstream_error")), (500, "api_error"), None, NEVER),
    (Kind::VendorQuota, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("30"), OPEN),
    (Kind::UpstreamUnreachable, (502, "server_error", Some("upstream_error")), (500, "api_error"), None, OPEN),
    (Kind::UpstreamTimeout, (504, "server_error", Some("upstream_timeout")), (504, "timeout_error"), None, OPEN),
    (Kind::UpstreamClosed, (502, "server_error", Some("upstream_error")), (500, "api_error"), None, OPEN),
    (Kind::UpstreamFailed, (502, "server_error", Some("upstream_error")), (500, "api_error"), None, OPEN),
    (Kind::UpstreamEventTooLarge, (502, "server_error", Some("upstream_error")), (500, "api_error"), None, OPEN),
    (Kind::Overloaded, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("5"), OPEN),
    (Kind::CpuQueueFull, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::MemoryShort, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::FilesShort, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::BodiesFull, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::TooManyPages, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::TooManyPagesOfAddress, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("2"), OPEN),
    (Kind::TooManyLiveStreams, (503, "server_error", Some("overloaded")), (529, "overloaded_error"), Some("15"), OPEN),
    (Kind::TooManyLiveStreamsOfAddress, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("15"), OPEN),
    (Kind::Draining, (503, "server_error", Some("draining")), (529, "overloaded_error"), Some("1"), OPEN),
    (Kind::LedgerBacklog, (429, "rate_limit_error", Some("rate_limit_exceeded")), (429, "rate_limit_error"), Some("1"), OPEN),
    (Kind::LedgerUnavailable, (503, "server_error", Some("ledger_unavailable")), (529, "overloaded_error"), Some("2"), OPEN),
    (Kind::ReceiptArchived, (503, "server_error", Some("receipt_archived")), (529, "overloaded_error"), None, OPEN),
    (Kind::Internal, (500, "server_error", Some("internal_error")), (500, "api_error"), None, OPEN),
];

fn header<'a>(headers: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value.as_str())
}

#[test]
fn every_kind_has_its_shape_on_both_surfaces() {
    for (kind, chat, messages, retry_after, never) in TABLE {
        let failure = Failure::from_kind(*kind);
        let rendered = failure.render(Chat, "req_1");
        let body: Value = serde_json::from_slice(&rendered.body).unwrap();
        assert_eq!(rendered.status, chat.0, "{kind:?}");
        assert_eq!(body["error"]["type"], chat.1, "{kind:?}");
        assert_eq!(body["error"]["code"], json!(chat.2), "{kind:?}");
        assert!(body["error"].as_object().unwrap().contains_key("param"));
        assert_eq!(
            header(&rendered.headers, "retry-after"),
            *retry_after,
            "{kind:?}"
        );
        assert_eq!(
            header(&rendered.headers, "x-should-retry").is_some(),
            never[0],
            "{kind:?}"
        );

        let rendered = failure.render(Messages, "req_1");
        let body: Value = serde_json::from_slice(&rendered.body).unwrap();
        assert_eq!(rendered.status, messages.0, "{kind:?}");
        assert_eq!(body["type"], "error");
        assert_eq!(body["request_id"], "req_1");
        assert_eq!(body["error"]["type"], messages.1, "{kind:?}");
        assert_eq!(
            body["error"]["details"]["error_code"],
            json!(chat.2),
            "{kind:?}"
        );
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        assert_eq!(
            header(&rendered.headers, "retry-after"),
            *retry_after,
            "{kind:?}"
        );
        assert_eq!(
            header(&rendered.headers, "x-should-retry").is_some(),
            never[1],
            "{kind:?}"
        );
        assert_eq!(
            header(&rendered.headers, "content-type"),
            Some("application/json")
        );
    }
}

/// Does not compile if a kind is added: the table above then needs a row for it.
fn is_known(kind: Kind) -> bool {
    match kind {
        Kind::InvalidRequest
        | Kind::MissingKey
        | Kind::BadKey
        | Kind::KeyExpired
        | Kind::KeyDisabled
        | Kind::AccountSuspended
        | Kind::ModelNotAllowed
        | Kind::ModelNotFound
        | Kind::UnknownPath
        | Kind::NotSupported
        | Kind::WrongMethod
        | Kind::NoWebSocket
        | Kind::InsufficientCredits
        | Kind::TrialExpired
        | Kind::KeySpendLimit
        | Kind::MemberBudget
        | Kind::RateLimited
        | Kind::RequestsPerMinute
        | Kind::TokensPerMinute
        | Kind::Concurrent
        | Kind::TooManyOpen
        | Kind::FreeRequests
        | Kind::KeyLookups
        | Kind::AccountBodies
        | Kind::ConnectionBodies
        | Kind::BodyTooLarge
        | Kind::HeaderTooLarge
        | Kind::BodyTimeout
        | Kind::ContextTooLong
        | Kind::ContentPolicy
        | Kind::UnpricedFeature
        | Kind::ThreadUnsupported
        | Kind::IdempotencyRunning
        | Kind::IdempotencyConflict
        | Kind::IdempotencyResultUnavailable
        | Kind::Conflict
        | Kind::Unprocessable
        | Kind::VendorRequestTimeout
        | Kind::VendorNotFound
        | Kind::VendorModelMissing
        | Kind::VendorRefusedUs
        | Kind::VendorQuota
        | Kind::UpstreamUnreachable
        | Kind::UpstreamTimeout
        | Kind::UpstreamClosed
        | Kind::UpstreamFailed
        | Kind::UpstreamEventTooLarge
        | Kind::Overloaded
        | Kind::CpuQueueFull
        | Kind::MemoryShort
        | Kind::FilesShort
        | Kind::BodiesFull
        | Kind::TooManyPages
        | Kind::TooManyPagesOfAddress
        | Kind::TooManyLiveStreams
        | Kind::TooManyLiveStreamsOfAddress
        | Kind::Draining
        | Kind::LedgerBacklog
        | Kind::LedgerUnavailable
        | Kind::ReceiptArchived
        | Kind::Internal => true,
    }
}

#[test]
fn the_table_names_each_kind_and_reason_once() {
    assert_eq!(TABLE.len(), 61);
    assert!(TABLE.iter().all(|row| is_known(row.0)));
    let mut reasons: Vec<&str> = TABLE
        .iter()
        .map(|row| Failure::from_kind(row.0).reason())
        .collect();
    reasons.sort_unstable();
    let all = reasons.len();
    reasons.dedup();
    assert_eq!(reasons.len(), all);
}

#[test]
fn frames_end_a_stream_in_its_own_shape() {
    let frame = |kind, surface| {
        String::from_utf8(Failure::new(kind, "a\nb").encode_stream_error(surface, "req_1")).unwrap()
    };
    assert_eq!(
        frame(Kind::UpstreamClosed, Chat),
        "data: {\"error\":{\"message\":\"a\\nb\",\"type\":\"server_error\",\"param\":null,\"code\":\"upstream_closed\"}}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(
        frame(Kind::UpstreamTimeout, Messages),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\",\"message\":\"a\\nb\"},\"request_id\":\"req_1\"}\n\n"
    );
    for (kind, code, error_type) in [
        (Kind::Overloaded, "overloaded", "overloaded_error"),
        (Kind::RateLimited, "rate_limit_exceeded", "rate_limit_error"),
        (Kind::Internal, "upstream_error", "api_error"),
    ] {
        assert!(frame(kind, Chat).contains(&format!("\"code\":\"{code}\"")));
        assert!(frame(kind, Messages).contains(&format!("\"type\":\"{error_type}\"")));
    }
}

#[test]
fn words_that_clients_look_for_are_there() {
    let message = |failure: &Failure, surface| {
        let body: Value = serde_json::from_slice(&failure.render(surface, "r").body).unwrap();
        body["error"]["message"].as_str().unwrap().to_owned()
    };
    let missing = Failure::model_not_found("x/y", &[]);
    assert_eq!(
        message(&missing, Chat),
        "The model `x/y` does not exist or you do not have access to it."
    );
    assert_eq!(message(&missing, Messages), "model: x/y");
    let long = Failure::context_too_long(300, 200);
    assert_eq!(
        message(&long, Messages),
        "prompt is too long: 300 tokens > 200 maximum"
    );
    assert_eq!(
        message(&long, Chat),
        "This model's maximum context length is 200 tokens. However, your messages resulted in 300 tokens."
    );
    let thread = Failure::from_kind(Kind::ThreadUnsupported).render(Messages, "r");
    let body: Value = serde_json::from_slice(&thread.body).unwrap();
    assert_eq!(
        body["error"]["details"],
        json!({"error_code": "thread_unsupported_request", "unsupported": ["model"]})
    );
    assert_eq!(
        header(
            &Failure::from_kind(Kind::RateLimited)
                .with_retry_after(900)
                .render(Chat, "r")
                .headers,
            "retry-after"
        ),
        Some("60")
    );
}

/// The failure that a vendor's answer without a time to wait becomes.
fn failed_at(protocol: Protocol, status: u16, body: &str) -> Failure {
    let profile = VendorProfile::official(protocol);
    from_vendor_response(profile, status, None, body.as_bytes(), UPSTREAM, PUBLIC)
}

fn vendor(protocol: Protocol, status: u16, body: &str) -> Failure {
    from_vendor_response(
        VendorProfile::official(protocol),
        status,
        Some("7.5"),
        body.as_bytes(),
        UPSTREAM,
        PUBLIC,
    )
}

#[test]
fn a_vendor_error_is_judged_by_status_and_words() {
    let chat = |kind: &str, code: &str, message: &str| {
        json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            .to_string()
    };
    let rows = [
        (
            400,
            chat(INVALID, "unsupported_value", "m"),
            Kind::InvalidRequest,
        ),
        (
            400,
            chat(INVALID, "context_length_exceeded", "m"),
            Kind::ContextTooLong,
        ),
        (
            400,
            chat(INVALID, "", "prompt is too long: 3 tokens > 2 maximum"),
            Kind::ContextTooLong,
        ),
        (
            400,
            chat(INVALID, "content_filter", "m"),
            Kind::ContentPolicy,
        ),
        (
            400,
            chat(INVALID, "", "Your credit balance is too low"),
            Kind::VendorQuota,
        ),
        // Vendors that report a fault of the account as one of the request, or as a rate.
        (
            400,
            json!([{"error": {
                "code": 400,
                "message": "API key not valid. Please pass a valid API key.",
                "status": "INVALID_ARGUMENT"
            }}])
            .to_string(),
            Kind::VendorRefusedUs,
        ),
        (
            400,
            json!({"code": "m", "error": "Incorrect API key provided: k***."}).to_string(),
            Kind::VendorRefusedUs,
        ),
        (
            498,
            json!({"message": "invalid api token"}).to_string(),
            Kind::VendorRefusedUs,
        ),
        (400, chat("Arrearage", "Arrearage", "m"), Kind::VendorQuota),
        (
            429,
            chat("", "1113", "Insufficient balance or no resource package."),
            Kind::VendorQuota,
        ),
        (
            429,
            chat("exceeded_current_quota_error", "", "m"),
            Kind::VendorQuota,
        ),
        (
            400,
            chat(INVALID, "", "The tool said: incorrect API key provided"),
            Kind::InvalidRequest,
        ),
        (400, "<html>".to_owned(), Kind::InvalidRequest),
        (409, String::new(), Kind::Conflict),
        (422, "<html>".to_owned(), Kind::Unprocessable),
        (
            401,
            chat(INVALID, "invalid_api_key", "m"),
            Kind::VendorRefusedUs,
        ),
        (403, String::new(), Kind::VendorRefusedUs),
        (
            403,
            chat("permission_error", "", "Missing scopes: model.request."),
            Kind::VendorRefusedUs,
        ),
        (
            403,
            chat("billing_error", "", "No credit for this model."),
            Kind::VendorQuota,
        ),
        (
            403,
            chat(INVALID, "content_policy_violation", "The model refuses."),
            Kind::ContentPolicy,
        ),
        (
            403,
            r#"{"message":"You don't have access to the model with the specified model ID."}"#
                .to_owned(),
            Kind::VendorModelMissing,
        ),
        (
            403,
            r#"[{"error":{"code":403,"status":"PERMISSION_DENIED","message":"Permission 'p' denied on resource '//h/projects/p/models/m'."}}]"#
                .to_owned(),
            Kind::VendorModelMissing,
        ),
        (402, String::new(), Kind::VendorQuota),
        (
            404,
            chat(INVALID, "model_not_found", "m"),
            Kind::VendorModelMissing,
        ),
        (
            404,
            chat("not_found_error", "", "model: x"),
            Kind::VendorModelMissing,
        ),
        (
            404,
            chat("not_found_error", "", "File not found"),
            Kind::VendorNotFound,
        ),
        (
            404,
            json!({"detail": "Not Found"}).to_string(),
            Kind::UpstreamFailed,
        ),
        (405, chat(INVALID, "", "m"), Kind::InvalidRequest),
        (405, "<html>".to_owned(), Kind::UpstreamFailed),
        // A model that was retired, an object that was deleted, a path that was removed.
        (
            410,
            chat(INVALID, "", "The model `m` has been retired."),
            Kind::VendorModelMissing,
        ),
        (410, chat(INVALID, "", "Gone"), Kind::VendorNotFound),
        (410, json!({"detail": "Gone"}).to_string(), Kind::UpstreamFailed),
        (415, chat(INVALID, "", "m"), Kind::UpstreamFailed),
        (418, chat(INVALID, "", "m"), Kind::InvalidRequest),
        (451, chat(INVALID, "", "m"), Kind::InvalidRequest),
        (408, String::new(), Kind::VendorRequestTimeout),
        (409, chat("conflict_error", "", "m"), Kind::Conflict),
        (413, String::new(), Kind::BodyTooLarge),
        (413, chat("request_too_large", "", "m"), Kind::BodyTooLarge),
        // This 413 is about tokens per minute, not about the body.
        (
            413,
            chat(
                "tokens",
                "rate_limit_exceeded",
                "on tokens per minute (TPM): Limit 6000",
            ),
            Kind::RateLimited,
        ),
        (422, chat(INVALID, "", "m"), Kind::Unprocessable),
        (429, chat("rate_limit_error", "", "m"), Kind::RateLimited),
        (
            429,
            chat("insufficient_quota", "insufficient_quota", "m"),
            Kind::VendorQuota,
        ),
        // Google's words for a limit per minute: an empty account has no time to wait.
        (
            429,
            json!([{"error": {
                "code": 429,
                "message": "You exceeded your current quota, please check your plan.",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"retryDelay": "34s"}]
            }}])
            .to_string(),
            Kind::RateLimited,
        ),
        (500, chat("server_error", "", "m"), Kind::UpstreamFailed),
        (503, String::new(), Kind::Overloaded),
        (529, "<html>".to_owned(), Kind::Overloaded),
        (524, String::new(), Kind::UpstreamTimeout),
        (302, String::new(), Kind::UpstreamFailed),
        (200, "{}".to_owned(), Kind::UpstreamFailed),
    ];
    for (status, body, kind) in rows {
        assert_eq!(vendor(Chat, status, &body).kind, kind, "{status} {body}");
        let is_account = matches!(kind, Kind::VendorRefusedUs | Kind::VendorQuota);
        if matches!(status, 400 | 403 | 429 | 498) && !body.is_empty() {
            assert_eq!(refuses_key(status, body.as_bytes()), is_account, "{body}");
        }
    }
    assert_eq!(vendor(Chat, 429, "").retry_after_seconds, Some(8));
    let late = from_vendor_response(
        VendorProfile::official(Chat),
        503,
        Some("86400"),
        b"",
        UPSTREAM,
        PUBLIC,
    );
    assert_eq!(late.retry_after_seconds, Some(60));
    let at_once = from_vendor_response(
        VendorProfile::official(Chat),
        429,
        Some("0"),
        b"",
        UPSTREAM,
        PUBLIC,
    );
    let headers = at_once.render(Chat, "r").headers;
    assert_eq!(header(&headers, "retry-after"), Some("0"));
    let of_file = r#"{"error":{"message":"m","type":"t","code":"c","param":"file"}}"#;
    let failure = vendor(Chat, 413, of_file);
    assert_eq!(
        (failure.param.as_deref(), failure.code),
        (Some("file"), None)
    );
    assert_eq!(
        from_vendor_response(
            VendorProfile::official(Chat),
            503,
            Some("soon"),
            b"",
            UPSTREAM,
            PUBLIC
        )
        .retry_after_seconds,
        None
    );
}

#[test]
fn a_vendor_error_keeps_its_words_but_not_its_secrets() {
    let body = format!(
        r#"{{"error":{{"message":"Model {UPSTREAM}: bad temperature, see https://vendor.example/x","param":"temperature","code":"unsupported_value"}}}}"#
    );
    let failure = vendor(Chat, 400, &body);
    assert_eq!(
        failure.message,
        format!("Model {PUBLIC}: bad temperature, see [address]")
    );
    assert_eq!(failure.param.as_deref(), Some("temperature"));
    let key = r#"{"error":{"message":"Incorrect API key provided: sk-abc123","type":"authentication_error"}}"#;
    assert!(!vendor(Messages, 401, key).message.contains("sk-"));
    let limit =
        r#"{"error":{"message":"rate limit for org-Ab12Cd34 is 50","type":"rate_limit_error"}}"#;
    assert!(!vendor(Messages, 429, limit).message.contains("org-"));
}

#[test]
fn the_excerpt_of_an_unknown_body_has_no_part_of_the_key() {
    let key = "0123456789abcdef";
    for before in 0..=210 {
        let page = format!("<{}{key}>{}", "x".repeat(before), "y".repeat(100));
        let excerpt = unknown_form_excerpt(page.as_bytes(), UPSTREAM, PUBLIC, key).unwrap();
        assert!(excerpt.len() <= 200 && !excerpt.contains("01"), "{excerpt}");
    }
    let umlauts = "ü".repeat(300);
    let excerpt = unknown_form_excerpt(umlauts.as_bytes(), UPSTREAM, PUBLIC, "").unwrap();
    assert_eq!(excerpt, "ü".repeat(100));
    assert_eq!(
        unknown_form_excerpt(b"{\"error\":{}}", UPSTREAM, PUBLIC, key),
        None
    );
}

proptest! {
    #![proptest_config(crate::cases(1000))]

    #[test]
    fn no_vendor_answer_panics_or_shows_a_secret(
        status: u16,
        before in "\\PC{0,20}",
        after in "[ .,:'\"]\\PC{0,20}",
        raw in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let message = format!("{before} {UPSTREAM}-v2 sk-Ab12Cd34Ef56{after}");
        let body = json!({"error": {"message": message, "type": "invalid_request_error", "param": UPSTREAM}});
        for failure in [vendor(Chat, status, &body.to_string()), vendor(Chat, 400, &body.to_string())] {
            for surface in [Chat, Messages] {
                let shown = [failure.render(surface, "r").body, failure.encode_stream_error(surface, "r")].concat();
                let shown = String::from_utf8(shown).unwrap();
                prop_assert!(!shown.contains(UPSTREAM) && !shown.contains("Ab12Cd34"), "{}", shown);
            }
        }
        from_vendor_response(VendorProfile::official(Messages), status, Some(&before), &raw, &after, PUBLIC).render(Messages, &before);
    }
}

/// Each vendor has its own shape of an error. A 4xx means that a retry cannot help, and the words
/// say what would.
#[test]
fn a_4xx_keeps_its_class_and_its_words_in_every_shape() {
    for (status, body, words) in [
        (
            400,
            r#"[{"error":{"code":400,"message":"Invalid JSON payload.","status":"INVALID_ARGUMENT"}}]"#,
            "Invalid JSON",
        ),
        (
            404,
            r#"[{"error":{"code":404,"message":"models/x is not found","status":"NOT_FOUND"}}]"#,
            "is not found",
        ),
        (
            422,
            r#"{"detail":[{"type":"missing","loc":["body","tools",0],"msg":"Field required"}]}"#,
            "body.tools.0: Field required",
        ),
        (400, r#"{"detail":"prompt is empty"}"#, "prompt is empty"),
        (
            422,
            r#"{"object":"error","message":{"detail":[{"loc":["body","x"],"msg":"Extra inputs"}]},"code":null}"#,
            "Extra inputs",
        ),
        (
            400,
            r#"{"errors":[{"message":"bad max_tokens"},"and more"]}"#,
            "bad max_tokens; and more",
        ),
        (
            400,
            r#"{"error":{"message":"Provider returned error","metadata":{"raw":"{\"error\":{\"message\":\"no tools\"}}"}}}"#,
            "no tools",
        ),
        (
            400,
            "Bad request: unknown parameter foo",
            "unknown parameter foo",
        ),
        (400, r#"{"fault":{"text":"bad seed"}}"#, "bad seed"),
        (
            400,
            r#"{"fault":{"faultstring":"bad body","detail":{"errorcode":"x.y"}}}"#,
            "bad body",
        ),
        (400, r#"{"reason":"no seed"}"#, "no seed"),
        (400, r#"{"Message":"bad input"}"#, "bad input"),
        (400, r#"{"code":1214,"msg":"bad tools"}"#, "bad tools"),
        (
            422,
            r#"{"errors":{"seed":["is too large"],"top_k":["is gone"]}}"#,
            "seed: is too large; top_k: is gone",
        ),
        (
            400,
            r#"{"statusCode":400,"message":["seed is no number"],"error":"Bad Request"}"#,
            "seed is no number",
        ),
        (400, r#"{"error":"Bad Request: no model"}"#, "no model"),
        (400, r#""a text alone""#, "a text alone"),
        (
            400,
            "\u{feff}{\"error\":{\"message\":\"behind a mark\"}}",
            "behind a mark",
        ),
        (400, "\u{feff}plain words", "plain words"),
        // In no known form: the longest text in it.
        (
            400,
            r#"{"id":"req_0123456789abcdef","outcome":{"ok":false,"why":["the seed is odd","no"]}}"#,
            "the seed is odd",
        ),
        (422, r#"{"x":"参数错误"}"#, "参数错误"),
    ] {
        let failure = failed_at(Chat, status, body);
        for surface in [Chat, Messages, Responses] {
            let rendered = failure.render(surface, "req_1");
            let text = String::from_utf8(rendered.body).unwrap();
            assert!(
                (400..500).contains(&rendered.status) && text.contains(words),
                "{surface}: {} {text}",
                rendered.status
            );
        }
    }
    // A page of a proxy says nothing to a caller, nor does its text beside a 5xx, nor a long
    // document.
    let long = json!({"prompt": "Header Too ".repeat(200)}).to_string();
    for (status, body) in [
        (400, long.as_str()),
        (502, r#"{"why": "10.0.0.1 is down"}"#),
        (400, "<html>Request Header Too Large</html>"),
        (502, "upstream at 10.0.0.1 is down"),
    ] {
        let failure = failed_at(Chat, status, body);
        let text = String::from_utf8(failure.render(Chat, "req_1").body).unwrap();
        assert!(
            !text.contains("Header Too") && !text.contains("10.0.0.1"),
            "{text}"
        );
    }
    // An id is no word, and a document without words is refused without words.
    let silent = vendor(Chat, 400, r#"{"id":"req_1","type":"bad request"}"#);
    assert!(silent.message.contains("did not say why"), "{silent:?}");
    // No wait helps a request that is larger than the limit per minute.
    for status in [413, 429] {
        let large = r#"{"error":{"message":"Request too large for model `up` in organization `org_01ab` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 12345","type":"tokens","code":"rate_limit_exceeded"}}"#;
        let failure = failed_at(Messages, status, large);
        let rendered = failure.render(Messages, "req_1");
        let error: Value = serde_json::from_slice(&rendered.body).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert_eq!(
            (rendered.status, message),
            (400, "prompt is too long: 12345 tokens > 6000 maximum")
        );
        let later = large.replace("12345", "5000");
        let failure = from_vendor_response(
            VendorProfile::official(Chat),
            status,
            Some("7"),
            later.as_bytes(),
            UPSTREAM,
            PUBLIC,
        );
        assert_eq!(
            (failure.kind, failure.retry_after_seconds),
            (Kind::RateLimited, Some(7))
        );
    }
    let busy =
        r#"[{"error":{"code":429,"message":"m","details":[{"@type":"t","retryDelay":"34s"}]}}]"#;
    let failure = failed_at(Chat, 429, busy);
    assert_eq!(failure.retry_after_seconds, Some(34));
}

#[test]
fn a_full_context_is_known_by_the_words_of_the_profile_too() {
    let words = VendorProfile {
        full_context: vec!["Too Much to Read".to_owned()],
        ..VendorProfile::default()
    };
    let body = br#"{"error":{"message":"That is too much to read: 9 pages."}}"#;
    let kind = |profile: &VendorProfile, status| {
        from_vendor_response(profile, status, None, body, UPSTREAM, PUBLIC).kind
    };
    for status in [400, 413, 422] {
        assert_eq!(kind(&words, status), Kind::ContextTooLong, "{status}");
    }
    assert_eq!(kind(&words, 409), Kind::Conflict);
    assert_eq!(kind(VendorProfile::compatible(), 400), Kind::InvalidRequest);
    let error = VendorError::parse(body).unwrap();
    let inside = VendorError {
        code: Some("400".to_owned()),
        ..error
    };
    assert_eq!(
        from_vendor_error(&words, &inside, UPSTREAM, PUBLIC).kind,
        Kind::ContextTooLong
    );
}
