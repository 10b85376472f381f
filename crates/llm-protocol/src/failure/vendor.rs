//! Converts a vendor's error to a failure for the caller.
//!
//! This file must not reveal data that concerns only the vendor and the operator: the vendor's
//! model ids, organisations, keys, addresses, the limits of the operator's account. A message on
//! which the client can act keeps the vendor's text, scrubbed; all others get our own text.
//!
//! Read next: `failure/scrub.rs`.

use super::constructors::{Failure, MAX_RETRY_AFTER_SECONDS, redact};
use super::context_length::{self, ContextOverflow, VENDOR_TEXT};
use super::kind::Kind;
use super::scrub;
use crate::profile::VendorProfile;
use crate::sse::without_byte_order_mark;
use crate::table_text::names_in;
use serde_json::Value;

/// Codes and beginnings of messages that say that the operator's account at the vendor has no
/// credit.
const NO_CREDIT: [&str; 5] = names_in(VENDOR_TEXT, "no credit");
const NO_CREDIT_BEGINNINGS: [&str; 4] = names_in(VENDOR_TEXT, "no credit beginnings");

/// Codes and beginnings of messages that say that the vendor refuses the operator's key.
const REFUSED_KEY: [&str; 2] = names_in(VENDOR_TEXT, "refused key");
const REFUSED_KEY_BEGINNINGS: [&str; 5] = names_in(VENDOR_TEXT, "refused key beginnings");

/// Parts of 403 messages that concern one model. AWS says "You don't have access to the model with
/// the specified model ID" and "not authorized to perform: bedrock:InvokeModel on resource:
/// …foundation-model/…". Google says "Permission … denied on resource '…/models/…'". OpenAI words a
/// missing scope of the key differently: "Missing scopes: model.request".
const MODEL_REFUSALS: [&str; 6] = names_in(VENDOR_TEXT, "model refusals");

/// Maximum number of bytes of an unrecognised body that the log shows.
const MAX_EXCERPT_BYTES: usize = 200;

/// Message for the client if the vendor's error has no known form.
pub(crate) const UNKNOWN_FORM: &str =
    "The model's vendor answered in a form that this gateway does not know.";
const NO_WORDS: &str = "The model's vendor refused the request and did not say why.";

/// A vendor's error object, in any of the usual shapes. The strings come from the vendor and must
/// pass [`from_vendor_error`] before a client sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VendorError {
    pub message: String,
    pub error_type: Option<String>,
    pub code: Option<String>,
    pub param: Option<String>,
    /// Time to wait, in seconds. Some bodies state it instead of the header `retry-after`.
    pub retry_after: Option<String>,
}

/// Names of the members that hold a vendor's message, in any letter case. The first member with a
/// text counts. FastAPI servers (vLLM, SGLang) and Mistral have `detail`, Mistral also below
/// `message`; Cohere, NVIDIA and others have `errors`; Zhipu `msg`; AWS `Message`; Apigee, a
/// gateway, `faultstring` below `fault`. Some frameworks have the name of the status in `error` or
/// `title`, and their message elsewhere.
const WORDS: [&str; 11] = names_in(VENDOR_TEXT, "members with words");

/// Names of the members that identify an error without explaining it.
const NAMES: [&str; 6] = ["type", "code", "status", "param", "object", "id"];

/// Maximum length, in bytes, of a text without JSON that counts as the vendor's message.
const MAX_PLAIN_BYTES: usize = 2_000;

/// Finish reasons that report a failure. Aggregating vendors send `error`, DeepSeek and Zhipu the
/// others.
const FAILURE_REASONS: [&str; 3] = names_in(VENDOR_TEXT, "failure reasons");

/// Returns whether the finish reason of a chat vendor reports a failure.
pub(crate) fn is_failure_reason(reason: &str) -> bool {
    FAILURE_REASONS.contains(&reason)
}

/// Returns the member with this name in any letter case.
fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let mut members = object.as_object()?.iter();
    let found = members.find(|(other, _)| other.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

/// Returns the message in a value: a text, a list, or an object that may name a place in `loc`.
fn words_of(found: &Value) -> Option<String> {
    let text = match found {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().filter_map(words_of).collect();
            items.join("; ")
        }
        Value::Object(members) => {
            let words = WORDS.iter().find_map(|name| {
                let value = member(found, name)?;
                words_of(value).or_else(|| words_by_field(value).filter(|_| *name == "errors"))
            })?;
            let place: Vec<_> = members
                .get("loc")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|part| {
                    part.as_str()
                        .map_or_else(|| part.to_string(), str::to_owned)
                })
                .collect();
            match place.is_empty() {
                true => words,
                false => format!("{}: {words}", place.join(".")),
            }
        }
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// Returns the messages in an object whose member names are fields of the request.
fn words_by_field(found: &Value) -> Option<String> {
    let fields = found.as_object()?.iter();
    let words = fields.filter_map(|(field, value)| Some(format!("{field}: {}", words_of(value)?)));
    Some(words.collect::<Vec<_>>().join("; ")).filter(|words| !words.is_empty())
}

/// Returns the longest text that may be a message. A text without spaces is an id.
fn longest_words(found: &Value) -> Option<&str> {
    let is_words = |text: &&str| text.contains(char::is_whitespace) || !text.is_ascii();
    match found {
        Value::String(text) => Some(text.as_str()).filter(is_words),
        Value::Array(items) => items
            .iter()
            .filter_map(longest_words)
            .max_by_key(|text| text.len()),
        Value::Object(members) => {
            let members = members
                .iter()
                .filter(|(name, _)| !NAMES.contains(&name.as_str()));
            members
                .filter_map(|(_, value)| longest_words(value))
                .max_by_key(|text| text.len())
        }
        _ => None,
    }
}

/// Appends the message of the vendor behind an aggregating vendor. OpenRouter reports that message
/// as `metadata.raw`.
fn with_raw(message: String, error: &Value) -> String {
    let raw = error.pointer("/metadata/raw").and_then(Value::as_str);
    let inner = raw.map(|raw| {
        VendorError::parse(raw.as_bytes())
            .map(|inner| inner.message)
            .filter(|words| !words.is_empty())
            .unwrap_or_else(|| raw.to_owned())
    });
    match inner.filter(|inner| !inner.is_empty() && !message.contains(inner.as_str())) {
        Some(inner) => format!("{message}: {inner}"),
        None => message,
    }
}

/// Returns the time to wait from Google's `RetryInfo`, in seconds.
fn retry_delay(error: &Value) -> Option<String> {
    let details = error.get("details").and_then(Value::as_array)?;
    let delay = details
        .iter()
        .find_map(|detail| detail.get("retryDelay").and_then(Value::as_str))?;
    delay.strip_suffix('s').map(str::to_owned)
}

/// Returns the message in a short answer of unknown form: a text that is not a page, or the longest
/// text in a JSON document.
fn plain_error(body: &[u8]) -> Option<VendorError> {
    let text = std::str::from_utf8(without_byte_order_mark(body))
        .ok()?
        .trim();
    if text.len() > MAX_PLAIN_BYTES {
        return None;
    }
    let document = serde_json::from_str::<Value>(text);
    let words = match &document {
        Ok(document) => longest_words(document)?,
        Err(_) if text.is_empty() || text.starts_with(['<', '{', '[']) => return None,
        Err(_) => text,
    };
    Some(VendorError {
        message: words.to_owned(),
        ..VendorError::default()
    })
}

impl VendorError {
    /// Parses an error of any known shape: `{"error":{…}}`, `{"error":"…"}`, and [`WORDS`] in the
    /// document itself, alone or as the first item of a list. Returns `None` without an error
    /// object.
    pub fn parse(body: &[u8]) -> Option<VendorError> {
        let body: Value = serde_json::from_slice(without_byte_order_mark(body)).ok()?;
        // Google's servers send a list that contains one error.
        let body = body
            .as_array()
            .and_then(|list| list.first())
            .unwrap_or(&body);
        let object = member(body, "error").filter(|error| error.is_object());
        let error = object.unwrap_or(body);
        let word = |name: &str| match member(error, name) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        // The messages protocol has a more specific code one level down.
        let detail = error.pointer("/details/error_code").and_then(Value::as_str);
        let found = VendorError {
            message: words_of(error)
                .map(|message| with_raw(message, error))
                .unwrap_or_default(),
            error_type: word("type").or_else(|| word("status")),
            code: word("code").or_else(|| detail.map(str::to_owned)),
            param: word("param"),
            retry_after: retry_delay(error),
        };
        let empty = found.message.is_empty() && found.code.is_none();
        (!empty || object.is_some()).then_some(found)
    }

    /// Returns the error of an answer whose finish reason reports a failure.
    pub(crate) fn from_finish_reason(answer: &[u8]) -> Option<VendorError> {
        let answer: Value = serde_json::from_slice(answer).ok()?;
        let choices = answer.get("choices")?.as_array()?.iter();
        let mut reasons = choices.filter_map(|choice| choice.get("finish_reason")?.as_str());
        let reason = reasons.find(|reason| is_failure_reason(reason))?;
        Some(VendorError {
            code: Some(reason.to_owned()),
            ..VendorError::default()
        })
    }

    /// Parses an error of any known shape, or else a short text. An error of unknown form has no
    /// message.
    pub fn parse_any(body: &[u8]) -> VendorError {
        VendorError::parse(body)
            .or_else(|| plain_error(body))
            .unwrap_or_default()
    }

    /// Returns the error's message on one line for the operator's log. The line contains neither
    /// `secret`, the vendor's key, nor the data that a client must not see.
    pub fn words_for_log(&self, upstream_model: &str, public_model: &str, secret: &str) -> String {
        let codes = [&self.code, &self.error_type];
        let code = codes.into_iter().flatten().next();
        let said = if self.message.trim().is_empty() {
            code
        } else {
            Some(&self.message)
        };
        let mut text = said.cloned().unwrap_or_default();
        redact(&mut text, secret);
        scrub::scrub_message(&text, upstream_model, public_model)
    }

    fn has_code(&self, words: &[&str]) -> bool {
        [&self.error_type, &self.code]
            .into_iter()
            .flatten()
            .any(|word| words.contains(&word.as_str()))
    }

    fn message_begins(&self, words: &[&str]) -> bool {
        let message = self.message.trim_start().to_lowercase();
        words.iter().any(|word| message.starts_with(word))
    }

    fn message_contains(&self, words: &[&str]) -> bool {
        let message = self.message.to_ascii_lowercase();
        words.iter().any(|word| message.contains(word))
    }

    /// Returns the status that the vendor would have sent if it had not sent a 200 before.
    fn implied_status(&self) -> u16 {
        let number = self.code.as_deref().and_then(|code| code.parse().ok());
        match number {
            Some(status @ 400..=599) => status,
            _ if self.has_code(&[
                "overloaded_error",
                "overloaded",
                "server_overloaded",
                "server_is_overloaded",
                "insufficient_system_resource",
            ]) =>
            {
                529
            }
            _ if self.has_code(&["rate_limit_error", "rate_limit_exceeded", "slow_down"]) => 429,
            _ if self.has_code(&["timeout_error"]) => 504,
            _ if self.is_refused_key()
                || self.has_code(&["authentication_error", "permission_error"]) =>
            {
                401
            }
            _ if self.has_no_credit() => 402,
            _ if self.has_code(&["not_found_error", "model_not_found"]) => 404,
            _ if self.has_code(&[
                "invalid_request_error",
                "context_length_exceeded",
                "invalid_prompt",
            ]) =>
            {
                400
            }
            _ if self.is_content_policy_error() || self.is_image_error() => 400,
            _ if self.has_code(&["request_too_large"]) => 413,
            _ => 500,
        }
    }

    fn is_quota_error(&self) -> bool {
        self.has_no_credit()
            || self.message_contains(&["credit balance is too low", "exceeded your current quota"])
    }

    fn has_no_credit(&self) -> bool {
        self.has_code(&NO_CREDIT) || self.message_begins(&NO_CREDIT_BEGINNINGS)
    }

    fn is_refused_key(&self) -> bool {
        self.has_code(&REFUSED_KEY) || self.message_begins(&REFUSED_KEY_BEGINNINGS)
    }

    /// Returns whether the vendor refuses the operator's key or account, so that every other
    /// request would fail too. The check uses the vendor's own codes and the start of the message.
    /// It ignores the rest of the message, which may quote the client.
    fn is_key_error(&self, status: u16) -> bool {
        let is_told = self.has_no_credit() || self.is_refused_key();
        match status {
            401 | 402 => true,
            // A 403 may concern the model or the client's content. A message about a model counts
            // even if it may quote the client: the next request shows whether the key is refused.
            403 => {
                is_told
                    || !self.refuses_model()
                        && !self.is_content_policy_error()
                        && !self.message_contains(&["flagged"])
            }
            400..=499 => is_told,
            _ => false,
        }
    }

    /// Returns whether an error inside a 200 refuses the operator's key or account.
    pub fn refuses_key(&self) -> bool {
        self.is_key_error(self.implied_status())
    }

    /// Returns whether the request needs more tokens than the limit per minute. Some vendors report
    /// that like a body that is too large.
    fn is_rate_limit_error(&self) -> bool {
        self.has_code(&["rate_limit_exceeded", "rate_limit_error"])
            || self.message_contains(&["tokens per minute"])
    }

    /// Returns the numbers of a request that needs more tokens than the limit per minute, as in
    /// "Limit 6000, Requested 12345". Waiting does not help such a request.
    fn minute_overflow(&self) -> Option<ContextOverflow> {
        if !self.is_rate_limit_error() {
            return None;
        }
        let number = |name: &str| {
            let (_, behind) = self.message.split_once(name)?;
            let digits = behind
                .split(|letter: char| !letter.is_ascii_digit())
                .next()?;
            digits.parse::<u64>().ok()
        };
        let (maximum, tokens) = (number("Limit ")?, number("Requested ")?);
        (tokens > maximum).then_some(ContextOverflow { tokens, maximum })
    }

    fn is_context_length_error(&self, profile: &VendorProfile) -> bool {
        let mut of_vendor = profile.full_context.iter();
        self.has_code(&context_length::CODES)
            || context_length::is_overflow(&self.message)
            || of_vendor.any(|words| self.message_contains(&[&words.to_ascii_lowercase()]))
    }

    fn is_content_policy_error(&self) -> bool {
        let is_policy = self
            .code
            .as_deref()
            .is_some_and(|code| code.contains("_policy"));
        is_policy || self.has_code(&["content_filter", "content_policy_violation"])
    }

    /// Returns whether an image could not be read. The code of the failed response shows this.
    fn is_image_error(&self) -> bool {
        self.code
            .as_deref()
            .is_some_and(|code| code.starts_with("image_") || code.contains("_image"))
    }

    /// Returns true if a 403 refuses one model only, and not the whole account.
    fn refuses_model(&self) -> bool {
        self.has_code(&["model_not_found"]) || self.message_contains(&MODEL_REFUSALS)
    }

    fn is_model_error(&self) -> bool {
        self.has_code(&["model_not_found"]) || self.message_contains(&["model"])
    }
}

/// Converts a vendor's response with an error status to a failure. `retry_after` is the vendor's
/// header, in seconds. The function parses every shape for every vendor protocol, because proxies
/// between the gateway and a vendor use shapes of their own. `body` may be HTML or empty.
pub fn from_vendor_response(
    profile: &VendorProfile,
    status: u16,
    retry_after: Option<&str>,
    body: &[u8],
    upstream_model: &str,
    public_model: &str,
) -> Failure {
    // A proxy's own text, such as for a 502, is useless to the client.
    let is_clients = matches!(status, 400 | 404 | 409 | 413 | 422);
    let error = VendorError::parse(body).or_else(|| plain_error(body).filter(|_| is_clients));
    let kind = classify(profile, status, error.as_ref());
    let has_words = error.is_some();
    let error = error.unwrap_or_default();
    let mut failure = build_failure(kind, &error, upstream_model, public_model);
    match kind {
        Kind::InvalidRequest if !has_words => failure.message = NO_WORDS.to_owned(),
        Kind::UpstreamFailed if !has_words && !body.is_empty() => {
            failure.message = UNKNOWN_FORM.to_owned();
        }
        _ => {}
    }
    if matches!(failure.kind, Kind::RateLimited | Kind::Overloaded) {
        let wait = retry_after.or(error.retry_after.as_deref());
        failure.retry_after_seconds = wait.and_then(parse_retry_after);
    }
    failure
}

/// Converts an error object inside a 200 to a failure. The client gets the failure's status if
/// nothing was sent yet, and an error frame otherwise.
pub fn from_vendor_error(
    profile: &VendorProfile,
    error: &VendorError,
    upstream_model: &str,
    public_model: &str,
) -> Failure {
    let kind = classify(profile, error.implied_status(), Some(error));
    build_failure(kind, error, upstream_model, public_model)
}

/// Returns the start of a body of unknown form for the log, or `None` if the body has the form of
/// an error. `secret` is the vendor's key.
pub fn unknown_form_excerpt(
    body: &[u8],
    upstream_model: &str,
    public_model: &str,
    secret: &str,
) -> Option<String> {
    if VendorError::parse(body).is_some() {
        return None;
    }
    // If a key begins inside the excerpt, read to the end of the key, so that it can be recognised.
    let start = body.get(..MAX_EXCERPT_BYTES + secret.len()).unwrap_or(body);
    let mut text = String::from_utf8_lossy(start).into_owned();
    redact(&mut text, secret);
    text.truncate(text.floor_char_boundary(MAX_EXCERPT_BYTES));
    Some(scrub::scrub_message(&text, upstream_model, public_model))
}

/// Shortens a message to this number of characters, and puts it on one line.
pub fn shorten_words(words: &str, max_chars: usize) -> String {
    let mut line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = line.char_indices().nth(max_chars) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

/// Returns whether a vendor's response with an error status refuses the operator's key or account,
/// not this request. Without an error object, the function ignores statuses that a proxy between
/// the gateway and the vendor may set: a firewall's 403 may concern the client's content.
pub fn refuses_key(status: u16, body: &[u8]) -> bool {
    match VendorError::parse(body) {
        Some(error) => error.is_key_error(status),
        None => matches!(status, 401 | 402),
    }
}

fn classify(profile: &VendorProfile, status: u16, error: Option<&VendorError>) -> Kind {
    // Without an error object, only the statuses that a load balancer or proxy sets by itself are
    // meaningful.
    let Some(error) = error else {
        return match status {
            401 | 403 => Kind::VendorRefusedUs,
            400 => Kind::InvalidRequest,
            402 => Kind::VendorQuota,
            408 => Kind::VendorRequestTimeout,
            409 => Kind::Conflict,
            413 => Kind::BodyTooLarge,
            422 => Kind::Unprocessable,
            429 => Kind::RateLimited,
            503 | 529 => Kind::Overloaded,
            504 | 524 => Kind::UpstreamTimeout,
            _ => Kind::UpstreamFailed,
        };
    };
    match status {
        403 if error.is_content_policy_error() || error.message_contains(&["flagged"]) => {
            Kind::ContentPolicy
        }
        402 => Kind::VendorQuota,
        // Google's "exceeded your current quota" is a limit per minute if the error has a time to
        // wait.
        429 if error.retry_after.is_some() => Kind::RateLimited,
        400 | 401 | 403 | 429 if error.is_quota_error() => Kind::VendorQuota,
        400..=499 if error.has_no_credit() => Kind::VendorQuota,
        400..=499 if error.is_refused_key() => Kind::VendorRefusedUs,
        403 if error.refuses_model() => Kind::VendorModelMissing,
        401 | 403 => Kind::VendorRefusedUs,
        400 if error.has_code(&["thread_unsupported_request"]) => Kind::ThreadUnsupported,
        400 | 413 | 422 if error.is_context_length_error(profile) => Kind::ContextTooLong,
        400 | 422 if error.is_content_policy_error() => Kind::ContentPolicy,
        400 => Kind::InvalidRequest,
        // Some vendors answer 410 for a model that they have retired.
        404 | 410 if error.is_model_error() => Kind::VendorModelMissing,
        404 | 410 if error.error_type.is_some() => Kind::VendorNotFound,
        408 => Kind::VendorRequestTimeout,
        409 => Kind::Conflict,
        413 | 429 if error.minute_overflow().is_some() => Kind::ContextTooLong,
        413 if error.is_rate_limit_error() => Kind::RateLimited,
        413 => Kind::BodyTooLarge,
        422 => Kind::Unprocessable,
        429 => Kind::RateLimited,
        503 | 529 => Kind::Overloaded,
        504 | 524 => Kind::UpstreamTimeout,
        // If the vendor does not know a path, method or encoding, the gateway made the mistake, not
        // the caller.
        415 => Kind::UpstreamFailed,
        404..=407 | 410 | 411 if error.error_type.is_none() => Kind::UpstreamFailed,
        // No SDK has a class for any other status, but each has one for 400.
        401..=499 => Kind::InvalidRequest,
        _ => Kind::UpstreamFailed,
    }
}

/// Builds the failure. It contains the vendor's message if that concerns the client.
fn build_failure(
    kind: Kind,
    error: &VendorError,
    upstream_model: &str,
    public_model: &str,
) -> Failure {
    // The vendor's own message describes the operator's account.
    if let Some(ContextOverflow { tokens, maximum }) = error.minute_overflow()
        && kind == Kind::ContextTooLong
    {
        return Failure::context_too_long(tokens, maximum);
    }
    let mut failure = Failure::from_kind(kind);
    let tellable = matches!(
        kind,
        Kind::InvalidRequest
            | Kind::ContextTooLong
            | Kind::ContentPolicy
            | Kind::ThreadUnsupported
            | Kind::Unprocessable
            | Kind::Conflict
            | Kind::BodyTooLarge
            | Kind::VendorModelMissing
            | Kind::VendorNotFound
    );
    if kind == Kind::VendorModelMissing {
        failure.model = Some(public_model.to_owned());
    }
    if tellable && !error.message.trim().is_empty() {
        failure.message = scrub::scrub_message(&error.message, upstream_model, public_model);
    }
    let is_vendors = matches!(
        kind,
        Kind::InvalidRequest | Kind::Unprocessable | Kind::Conflict | Kind::VendorNotFound
    );
    let scrubbed = |word: &String| scrub::scrub_message(word, upstream_model, public_model);
    if is_vendors {
        failure.code = error.code.as_ref().map(scrubbed);
    }
    if is_vendors || kind == Kind::BodyTooLarge {
        failure.param = error.param.as_ref().map(scrubbed);
    }
    failure
}

/// Parses `retry-after` as whole seconds, rounded up, capped at the longest wait that clients
/// accept. A date is not parsed, because this crate has no clock.
pub fn parse_retry_after(retry_after: &str) -> Option<u32> {
    let (whole, fraction) = retry_after
        .trim()
        .split_once('.')
        .unwrap_or((retry_after.trim(), ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = u32::from(fraction.bytes().any(|byte| byte != b'0'));
    let seconds: u64 = whole.parse().ok()?;
    let capped = u32::try_from(seconds).unwrap_or(MAX_RETRY_AFTER_SECONDS);
    Some(capped.saturating_add(part).min(MAX_RETRY_AFTER_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_method_is_the_vendors_own_only_with_an_error_object() {
        let error = br#"{"error":{"message":"No.","type":"invalid_request_error"}}"#;
        for (status, own, of_a_proxy) in [
            (405, Kind::InvalidRequest, Kind::UpstreamFailed),
            (406, Kind::InvalidRequest, Kind::UpstreamFailed),
            (407, Kind::InvalidRequest, Kind::UpstreamFailed),
            (411, Kind::InvalidRequest, Kind::UpstreamFailed),
            (415, Kind::UpstreamFailed, Kind::UpstreamFailed),
            (418, Kind::InvalidRequest, Kind::UpstreamFailed),
        ] {
            let kind = |body: &[u8]| {
                let profile = VendorProfile::default();
                from_vendor_response(&profile, status, None, body, "up", "public").kind
            };
            assert_eq!(
                (kind(error), kind(b"<html>")),
                (own, of_a_proxy),
                "{status}"
            );
        }
    }

    #[test]
    fn words_for_the_log_are_one_short_line_without_keys() {
        for (words, short) in [
            ("four", "four"),
            ("a\n b", "a b"),
            ("fives", "five…"),
            ("", ""),
        ] {
            assert_eq!(shorten_words(words, 4), short);
        }
        let log = |body: &str| {
            VendorError::parse_any(body.as_bytes()).words_for_log("up-1", "public", "s3cret")
        };
        let body = r#"{"error":{"message":"up-1 of org-Ab12: s3cret is wrong","code":"bad"}}"#;
        assert_eq!(log(body), "public of [organization]: [key] is wrong");
        assert_eq!(log(r#"{"error":{"code":"bad"}}"#), "bad");
        assert_eq!(log("<html>s3cret</html>"), "");
    }
}
