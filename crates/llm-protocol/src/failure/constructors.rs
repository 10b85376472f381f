//! Constructs failures before they are rendered.
//!
//! This file must not depend on a surface, because `failure.rs` renders failures.
//!
//! Read next: `failure/surface_message.rs`.

use super::kind::Kind;
use super::table;
use super::unserved::{SERVED, unserved_api};
use crate::Protocol;
use std::error::Error;
use std::fmt::{Display, Formatter};

/// Maximum `retry-after` in seconds. Official clients treat a longer one as "do not retry at all".
pub(super) const MAX_RETRY_AFTER_SECONDS: u32 = 60;

/// Maximum number of characters of the client's own text that a message repeats.
const MAX_ECHO_CHARS: usize = 200;

/// A failure, before it is rendered for a surface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub kind: Kind,
    /// Text for people. Rendering keeps the text, except for kinds whose text differs by surface.
    pub message: String,
    /// JSON path of the faulty member; only the chat form has a member for it.
    pub param: Option<String>,
    /// A code that is more specific than the code of the kind.
    pub code: Option<String>,
    /// Overrides the kind's own value. At most 60 is sent; 0 is only a vendor's own.
    pub retry_after_seconds: Option<u32>,
    /// The model id that the failure concerns.
    pub model: Option<String>,
    /// Further headers. They are boxed because few failures have any.
    pub also: Option<Box<ExtraHeaders>>,
}

/// Replaces a secret in a text. A vendor without a key has an empty secret, which is ignored.
pub(super) fn redact(text: &mut String, secret: &str) {
    if !secret.is_empty() && text.contains(secret) {
        *text = text.replace(secret, "[key]");
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtraHeaders(pub Vec<(&'static str, String)>);

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
        self.retry_after_seconds = Some(seconds.max(1));
        self
    }

    /// Replaces a secret that the vendor may have quoted, in every member.
    pub fn redact_secret(mut self, secret: &str) -> Self {
        let texts = [
            Some(&mut self.message),
            self.param.as_mut(),
            self.code.as_mut(),
        ];
        texts
            .into_iter()
            .flatten()
            .for_each(|text| redact(text, secret));
        self
    }

    /// Returns the label for metrics and logs, from a closed set.
    pub fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    pub fn status(&self, surface: Protocol) -> u16 {
        self.kind.status(surface)
    }
}

/// Writes the reason and the default message of the kind. `message` and `param` are left out,
/// because they may quote a vendor, and a vendor may quote a key.
impl Display for Failure {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let row = table::failure_row(self.kind);
        write!(formatter, "{}: {}", row.reason, row.message)
    }
}

impl Error for Failure {}

/// Constructors of failures that need a value; the others use `Failure::from_kind(kind)`.
impl Failure {
    /// Returns the failure for a body that is JSON but not an object.
    pub(crate) fn body_is_no_object() -> Self {
        Failure::new(
            Kind::InvalidRequest,
            "The request body must be a JSON object.",
        )
    }

    /// Returns the failure for a body that breaks a rule. `param` is the member's JSON path. The
    /// messages form has no member for the path, so its message begins with the dotted path.
    pub fn invalid_param(surface: Protocol, param: impl Display, message: impl Display) -> Self {
        let param = param.to_string();
        let message = match surface {
            Protocol::Chat | Protocol::Responses => message.to_string(),
            Protocol::Messages => format!("{}: {message}", to_dotted_path(&param)),
        };
        Failure::new(Kind::InvalidRequest, message).with_param(param)
    }

    /// Returns the failure for a model that the catalog does not have. `near` lists ids that the
    /// client may have meant.
    pub fn model_not_found(model: &str, near: &[&str]) -> Self {
        let mut failure = Failure::for_model(Kind::ModelNotFound, model);
        if let Some((last, others)) = near.split_last() {
            let mut named: String = others.iter().map(|id| format!("`{id}`, ")).collect();
            if !others.is_empty() {
                named.truncate(named.len() - 2);
                named.push_str(" or ");
            }
            failure.message = format!("did you mean {named}`{last}`?");
        }
        failure
    }

    /// Returns the failure for a key that may not use this model.
    pub fn model_not_allowed(model: &str) -> Self {
        let mut failure = Failure::for_model(Kind::ModelNotAllowed, model);
        let model = failure.model.as_deref().unwrap_or_default();
        failure.message = format!("This key may not use the model `{model}`.");
        failure
    }

    /// Returns the failure for a key whose member of an organisation may not use this model. The
    /// gateway's public address is `base_url`.
    pub fn model_not_allowed_to_member(model: &str, base_url: &str) -> Self {
        let mut failure = Self::model_not_allowed(model);
        let model = failure.model.as_deref().unwrap_or_default();
        failure.message = format!(
            "The member of the organisation whose key this is may not use the model `{model}`. An \
             owner or admin can allow it at {base_url}/dashboard/organisation"
        );
        failure
    }

    /// Returns the failure for a path that does not support this method. `allowed` lists the
    /// supported methods.
    pub fn method_not_allowed(method: &str, path: &str, allowed: &[&str]) -> Self {
        let (method, path) = (truncate_echo(method), truncate_echo(path));
        let allowed = allowed.join(", ");
        let mut failure = Failure::new(
            Kind::WrongMethod,
            format!("{path} does not support {method}. Use {allowed}."),
        );
        failure.also = Some(Box::new(ExtraHeaders(vec![("allow", allowed)])));
        failure
    }

    /// Returns the failure for a path that does not exist or belongs to an API that the gateway
    /// does not serve. `base_url` is the gateway's public address.
    pub fn unknown_path(method: &str, path: &str, base_url: &str) -> Self {
        if let Some(api) = unserved_api(path) {
            let (method, path) = (truncate_echo(method), truncate_echo(path));
            return Failure::new(
                Kind::NotSupported,
                format!(
                    "This gateway does not serve {api} ({method} {path}). It serves {SERVED}, below {base_url}."
                ),
            );
        }
        let hint = match detect_base_url_mistake(path) {
            Some(BaseUrlMistake::ExtraVersion) => {
                " Remove one `/v1` from the client's base address."
            }
            Some(BaseUrlMistake::MissingVersion) => " Add `/v1` to the client's base address.",
            None => "",
        };
        let path = truncate_echo(path);
        let method = truncate_echo(method);
        let message = format!(
            "Unknown path: {method} {path}.{hint} Set the client's base address to {base_url}/v1 (OpenAI SDKs) or {base_url} (Anthropic SDKs)."
        );
        Failure::new(Kind::UnknownPath, message)
    }

    /// Returns the failure for a decoded body larger than `body_bytes_max`.
    pub fn body_too_large(body_bytes_max: u64) -> Self {
        Failure::new(
            Kind::BodyTooLarge,
            format!("The request body is larger than {body_bytes_max} bytes."),
        )
    }

    /// Returns the failure for an input that is longer than the model's context. The gateway
    /// detects this before it calls the vendor.
    pub fn context_too_long(input_tokens: u64, context_tokens: u64) -> Self {
        Failure::new(
            Kind::ContextTooLong,
            format!("prompt is too long: {input_tokens} tokens > {context_tokens} maximum"),
        )
    }

    /// Returns the failure for a requested feature that has no price, so that it cannot be billed.
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
        failure.model = Some(truncate_echo(model));
        failure
    }
}

/// The mistake in the client's base URL that explains an unknown path.
enum BaseUrlMistake {
    ExtraVersion,
    MissingVersion,
}

/// First segments of the API's paths below `/v1`.
const V1_PATHS: [&str; 9] = [
    "chat/completions",
    "messages",
    "responses",
    "embeddings",
    "rerank",
    "moderations",
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
            is_known(below.trim_start_matches("/v1")).map(|_| BaseUrlMistake::ExtraVersion)
        }
        Some(_) => None,
        None => is_known(path).map(|_| BaseUrlMistake::MissingVersion),
    }
}

/// Converts `messages[2].content` to the messages protocol's path form `messages.2.content`.
fn to_dotted_path(param: &str) -> String {
    param.replace('[', ".").replace(']', "")
}

/// Truncates the client's own text for use in a message.
fn truncate_echo(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_ECHO_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_of_a_failure_quotes_neither_the_vendor_nor_the_caller() {
        for kind in Kind::ALL {
            let failure = Failure::new(*kind, "key sk-secret is wrong")
                .with_param("sk-secret")
                .with_code("sk-secret");
            let shown = failure.to_string();
            assert!(!shown.contains("sk-secret"), "{shown}");
            let (reason, message) = shown.split_once(": ").unwrap();
            assert_eq!(reason, failure.reason());
            assert!(!message.is_empty(), "{kind:?}");
        }
    }
}
