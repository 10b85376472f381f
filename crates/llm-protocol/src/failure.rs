//! All failures that the edge can respond with, and their form on each surface.
//!
//! It must not decide *that* something failed, know HTTP types or log. One total match in
//! `failure/table.rs` defines the appearance of each kind; `failure/vendor.rs` interprets a
//! vendor's errors.
//!
//! Read next: `failure/table.rs`, then `failure/vendor.rs`.

use super::Protocol;
use serde::Serialize;

mod responses;
mod scrub;
mod surface_message;
mod table;
mod vendor;

pub use vendor::{
    VendorError, from_vendor_error, from_vendor_response, parse_retry_after as retry_after_seconds,
    refuses_key,
};

/// Maximum `retry-after`: official clients take a longer one as "do not retry at all".
const MAX_RETRY_AFTER_SECONDS: u32 = 60;

/// Declares `FailureKind` and lists its variants in `FailureKind::ALL`.
macro_rules! kinds {
    ($(#[$doc:meta])* pub enum Kind { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        pub enum Kind { $($(#[$variant_doc])* $variant,)* }

        impl Kind {
            /// All kinds, in the order of the declaration.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];
        }
    };
}

kinds! {
/// Kind of a failure, as far as a caller can distinguish it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    InvalidRequest,
    MissingKey,
    BadKey,
    KeyExpired,
    KeyDisabled,
    ModelNotAllowed,
    ModelNotFound,
    UnknownPath,
    WrongMethod,
    InsufficientCredits,
    TrialExpired,
    KeySpendLimit,
    RateLimited,
    /// The key or its account has reached its limit of requests, or of tokens, per minute.
    RequestsPerMinute,
    TokensPerMinute,
    /// The key or its account has reached its limit of concurrent requests.
    Concurrent,
    /// The account has reached its limit of requests in flight.
    TooManyOpen,
    /// The key or its account has reached its limit of free requests per minute.
    FreeRequests,
    /// The requests in flight of the account, or of the connection, have reached the limit of body
    /// bytes in memory.
    AccountBodies,
    ConnectionBodies,
    BodyTooLarge,
    /// The request head has too many bytes or fields.
    HeaderTooLarge,
    /// The client did not send its body in time.
    BodyTimeout,
    ContextTooLong,
    /// A vendor refused the content of the input.
    ContentPolicy,
    UnpricedFeature,
    /// A message thread cannot continue here. The official runner then resends the whole
    /// conversation.
    ThreadUnsupported,
    /// A request with the same idempotency key and body is running.
    IdempotencyRunning,
    /// The idempotency key was used with another body.
    IdempotencyConflict,
    /// The request was completed but its answer is not stored.
    IdempotencyResultUnavailable,
    /// A vendor's 409.
    Conflict,
    /// A vendor's 422.
    Unprocessable,
    /// A vendor's 408.
    VendorRequestTimeout,
    /// A vendor's 404 that does not concern the model.
    VendorNotFound,
    /// A vendor does not know the model that the catalog names. The operator must fix it.
    VendorModelMissing,
    /// A vendor refused the operator's credentials. The operator must fix it.
    VendorRefusedUs,
    /// The operator's account at the vendor is out of credit. The operator must fix it.
    VendorQuota,
    UpstreamUnreachable,
    UpstreamTimeout,
    /// The vendor's body ended before the answer was complete.
    UpstreamClosed,
    /// The vendor failed, or sent an answer that cannot be read.
    UpstreamFailed,
    /// One event of the vendor exceeds the gateway's limit.
    UpstreamEventTooLarge,
    Overloaded,
    /// Too many large bodies wait for a worker thread, or one has waited too long.
    CpuQueueFull,
    /// This process is low on memory.
    MemoryShort,
    /// This process is low on file descriptors.
    FilesShort,
    /// This process has reached its limit of request body bytes in memory.
    BodiesFull,
    /// This process, or this client's address, has reached its limit of open pages.
    TooManyPages,
    TooManyPagesOfAddress,
    /// This process, or this client's address, has reached its limit of dashboard event streams.
    TooManyLiveStreams,
    TooManyLiveStreamsOfAddress,
    Draining,
    LedgerUnavailable,
    Internal,
}
}

impl Kind {
    /// Returns the label for metrics and logs, from a closed set. Several kinds may share one.
    pub fn reason(self) -> &'static str {
        table::failure_row(self).reason
    }

    /// Returns the HTTP status on this surface.
    pub fn status(self, surface: Protocol) -> u16 {
        table::failure_row(self).status_and_type(surface).0
    }

    /// Returns whether the cause is the vendor or the connection to it, not the request: another
    /// endpoint or model may succeed.
    pub fn is_retryable_elsewhere(self) -> bool {
        matches!(
            self,
            Kind::RateLimited
                | Kind::Overloaded
                | Kind::VendorRequestTimeout
                | Kind::VendorRefusedUs
                | Kind::VendorQuota
                | Kind::VendorModelMissing
                | Kind::UpstreamUnreachable
                | Kind::UpstreamTimeout
                | Kind::UpstreamClosed
                | Kind::UpstreamFailed
        )
    }
}

/// A failure, before it is rendered for a surface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub kind: Kind,
    /// Text for people. It is rendered unchanged, except for kinds whose text differs by surface.
    pub message: String,
    /// JSON path of the faulty member; only the chat form has a member for it.
    pub param: Option<String>,
    /// A finer code than that of the kind.
    pub code: Option<String>,
    /// Overrides the kind's own value. Values from 1 to 60 are sent.
    pub retry_after_seconds: Option<u32>,
    /// The model id that the failure concerns.
    pub model: Option<String>,
    /// Further headers; boxed, because few failures have any.
    pub also: Option<Box<ExtraHeaders>>,
}

/// Further headers of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtraHeaders(pub Vec<(&'static str, String)>);

/// A failure as an HTTP response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RenderedFailure {
    pub status: u16,
    pub body: Vec<u8>,
    /// `content-type`, and if they apply, `retry-after` and `x-should-retry`.
    pub headers: Vec<(&'static str, String)>,
}

impl Failure {
    /// Creates a failure of this kind with its default message.
    pub fn from_kind(kind: Kind) -> Self {
        Failure::new(kind, table::failure_row(kind).message)
    }

    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after_seconds: None,
            model: None,
            also: None,
        }
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Replaces a secret that the vendor has quoted, in every member.
    pub fn redact_secret(mut self, secret: &str) -> Self {
        let texts = [
            Some(&mut self.message),
            self.param.as_mut(),
            self.code.as_mut(),
        ];
        for text in texts
            .into_iter()
            .flatten()
            .filter(|text| !secret.is_empty() && text.contains(secret))
        {
            *text = text.replace(secret, "[key]");
        }
        self
    }

    /// Returns the label for metrics and logs, from a closed set.
    pub fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// Returns the HTTP status on this surface.
    pub fn status(&self, surface: Protocol) -> u16 {
        self.kind.status(surface)
    }

    /// Renders the failure as a response, if no byte of a 200 was sent yet.
    pub fn render(&self, surface: Protocol, request_id: &str) -> RenderedFailure {
        let row = table::failure_row(self.kind);
        let (status, error_type) = row.status_and_type(surface);
        let message = surface_message::message_for_surface(self, surface);
        let code = match surface {
            Protocol::Responses => responses::error_code(self, &row, status),
            Protocol::Chat | Protocol::Messages => self.code.as_deref().or(row.code),
        };
        let body = match surface {
            Protocol::Chat | Protocol::Responses => to_json(&ChatErrorBody {
                error: ChatErrorObject {
                    message: &message,
                    r#type: error_type,
                    param: self.param.as_deref().or(row.param_for(surface)),
                    code,
                },
            }),
            Protocol::Messages => to_json(&MessagesErrorBody {
                r#type: "error",
                error: MessagesErrorObject {
                    r#type: error_type,
                    message: &message,
                    details: code.map(|error_code| MessagesErrorDetails {
                        error_code,
                        unsupported: (self.kind == Kind::ThreadUnsupported).then_some(["model"]),
                    }),
                },
                request_id,
            }),
        };
        RenderedFailure {
            status,
            body,
            headers: self.headers(&row, status),
        }
    }

    /// Returns the last frame of a stream whose 200 was sent; nothing may follow it.
    pub fn encode_stream_error(&self, surface: Protocol, request_id: &str) -> Vec<u8> {
        let (code, error_type) = table::stream_error_codes(self.kind);
        let message = surface_message::message_for_surface(self, surface);
        let (before, body, after): (&[u8], _, &[u8]) = match surface {
            Protocol::Chat => (
                b"data: ",
                to_json(&ChatErrorBody {
                    error: ChatErrorObject {
                        message: &message,
                        r#type: "server_error",
                        param: None,
                        code: Some(code),
                    },
                }),
                b"\n\ndata: [DONE]\n\n",
            ),
            Protocol::Responses => return responses::encode_stream_error(self, request_id),
            Protocol::Messages => (
                b"event: error\ndata: ",
                to_json(&MessagesErrorBody {
                    r#type: "error",
                    error: MessagesErrorObject {
                        r#type: error_type,
                        message: &message,
                        details: None,
                    },
                    request_id,
                }),
                b"\n\n",
            ),
        };
        [before, &body, after].concat()
    }

    fn headers(&self, row: &table::FailureRow, status: u16) -> Vec<(&'static str, String)> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if row.retry_after.is_some() || self.retry_after_seconds.is_some() {
            let seconds = self.retry_after_seconds.or(row.retry_after).unwrap_or(1);
            let seconds = seconds.clamp(1, MAX_RETRY_AFTER_SECONDS);
            headers.push(("retry-after", seconds.to_string()));
        }
        // A retry cannot help, and clients other than the official SDKs retry unless it is
        // forbidden.
        if matches!(status, 401..=404) || row.never_retry {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        headers.extend(self.also.iter().flat_map(|also| also.0.iter().cloned()));
        headers
    }
}

/// Constructors of failures that need a value; the others use `Failure::from_kind(kind)`.
impl Failure {
    /// A body that breaks a rule. `param` is the member's JSON path. The messages form has no
    /// member for it, so its message begins with the dotted path.
    pub fn invalid_param(surface: Protocol, param: &str, message: &str) -> Self {
        let message = match surface {
            Protocol::Chat | Protocol::Responses => message.to_owned(),
            Protocol::Messages => format!("{}: {message}", surface_message::to_dotted_path(param)),
        };
        Failure::new(Kind::InvalidRequest, message).with_param(param)
    }

    /// The catalog does not have the model.
    pub fn model_not_found(model: &str) -> Self {
        Failure::for_model(Kind::ModelNotFound, model)
    }

    /// The key may not use this model.
    pub fn model_not_allowed(model: &str) -> Self {
        let mut failure = Failure::for_model(Kind::ModelNotAllowed, model);
        let model = failure.model.as_deref().unwrap_or_default();
        failure.message = format!("This key may not use the model `{model}`.");
        failure
    }

    /// The path exists but does not support this method. `allowed`: the methods that it supports.
    pub fn method_not_allowed(method: &str, path: &str, allowed: &[&str]) -> Self {
        let (method, path) = (
            surface_message::truncate_echo(method),
            surface_message::truncate_echo(path),
        );
        let allowed = allowed.join(", ");
        let mut failure = Failure::new(
            Kind::WrongMethod,
            format!("{path} does not support {method}. Use {allowed}."),
        );
        failure.also = Some(Box::new(ExtraHeaders(vec![("allow", allowed)])));
        failure
    }

    /// The path does not exist. `base_url`: the gateway's public address.
    pub fn unknown_path(method: &str, path: &str, base_url: &str) -> Self {
        let hint = match detect_base_url_mistake(path) {
            Some(BaseUrlMistake::OneTooMany) => " Remove one `/v1` from the client's base address.",
            Some(BaseUrlMistake::Missing) => " Add `/v1` to the client's base address.",
            None => "",
        };
        let path = surface_message::truncate_echo(path);
        let method = surface_message::truncate_echo(method);
        let message = format!(
            "Unknown path: {method} {path}.{hint} Set the client's base address to {base_url}/v1 (OpenAI SDKs) or {base_url} (Anthropic SDKs)."
        );
        Failure::new(Kind::UnknownPath, message)
    }

    /// The decoded body is larger than `body_bytes_max`.
    pub fn body_too_large(body_bytes_max: u64) -> Self {
        Failure::new(
            Kind::BodyTooLarge,
            format!("The request body is larger than {body_bytes_max} bytes."),
        )
    }

    /// The input is longer than the model's context. The gateway knows this before it calls the
    /// vendor.
    pub fn context_too_long(input_tokens: u64, context_tokens: u64) -> Self {
        Failure::new(
            Kind::ContextTooLong,
            format!("prompt is too long: {input_tokens} tokens > {context_tokens} maximum"),
        )
    }

    /// The requested feature has no price, so it cannot be billed.
    pub fn unpriced_feature(surface: Protocol, param: &str) -> Self {
        let mut failure = Failure::invalid_param(
            surface,
            param,
            "This gateway has no price for this feature, so you cannot use it here.",
        );
        failure.kind = Kind::UnpricedFeature;
        failure
    }

    fn for_model(kind: Kind, model: &str) -> Self {
        let mut failure = Failure::from_kind(kind);
        failure.model = Some(surface_message::truncate_echo(model));
        failure
    }
}

/// The mistake in the client's base URL that led to an unknown path.
enum BaseUrlMistake {
    OneTooMany,
    Missing,
}

/// First segments of the API's paths below `/v1`.
const V1_PATHS: [&str; 6] = [
    "chat/completions",
    "messages",
    "responses",
    "models",
    "credits",
    "receipts",
];

fn detect_base_url_mistake(path: &str) -> Option<BaseUrlMistake> {
    let is_known = |below: &str| {
        let below = below.strip_prefix('/')?;
        V1_PATHS.into_iter().find(|known| {
            below
                .strip_prefix(known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    match path.strip_prefix("/v1") {
        Some(below) if below.starts_with("/v1/") => {
            is_known(below.trim_start_matches("/v1")).map(|_| BaseUrlMistake::OneTooMany)
        }
        Some(_) => None,
        None => is_known(path).map(|_| BaseUrlMistake::Missing),
    }
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    // The body has only strings and options, so this cannot fail. If it did, an empty body would be
    // the honest response.
    serde_json::to_vec(body).unwrap_or_default()
}

#[derive(Serialize)]
struct ChatErrorBody<'a> {
    error: ChatErrorObject<'a>,
}

#[derive(Serialize)]
struct ChatErrorObject<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

#[derive(Serialize)]
struct MessagesErrorBody<'a> {
    r#type: &'a str,
    error: MessagesErrorObject<'a>,
    request_id: &'a str,
}

#[derive(Serialize)]
struct MessagesErrorObject<'a> {
    r#type: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<MessagesErrorDetails<'a>>,
}

#[derive(Serialize)]
struct MessagesErrorDetails<'a> {
    error_code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<[&'a str; 1]>,
}
