//! Reads the facts that admission needs from a request body, in one skipping pass, and defines the
//! few edits made to it.
//!
//! This module must not build a tree. It checks only the members that decide who pays, the maximum
//! cost and the destination; the vendor checks the rest. A body is refused if two parsers could
//! read those members differently (duplicates, other letter case), because the gateway would then
//! bill for another request than the vendor reads.
//!
//! Read next: `request/summary.rs` (the facts), `request/features.rs` (what makes a request cost
//! more than its bytes), `request/rewrite.rs`, `request/vendor_state.rs` (objects in the vendor
//! account), `request/extensions.rs` (members that only some vendors know),
//! `request/foreign_fields.rs` (remains of another vendor's answer), `request/repair_check.rs`
//! (what this model refuses), `request/completion.rs` (prompts in the place of messages),
//! `request/content.rs` (content by kind), `request/conversation.rs` (which conversation it belongs
//! to).

use super::Protocol;
use super::capabilities::CompletionsApi;
use super::failure::{Failure, Kind as FailureKind};
use super::ir::Effort;
pub use super::json::nesting::MAX_DEPTH;
use super::json::{JsonError, JsonKind, JsonScanner, MAX_COUNT, Span, separators};
use crate::usage::ServiceTier;
pub use content::{ContentSize, MAX_IMAGE_TOKENS};
use conversation::spans::MessageSpans;
use repair_hints::{EnumMember, Setting};
use summary::{OutputLimitMember, StreamOptions};
use vendor_state::VendorObject;

mod body;
mod completion;
mod content;
mod conversation;
mod extensions;
mod features;
mod foreign_fields;
mod member_name;
mod repair;
mod repair_check;
mod repair_hints;
mod rewrite;
mod summary;
mod vendor_state;

pub use body::RequestBody;
pub use conversation::{ConversationKey, SESSION_HEADERS};
pub use features::{Features, ForeignFields, ToolOffer};
pub use foreign_fields::finished::{without_members, without_refused};
pub use foreign_fields::{
    PassthroughContext, RequestCleanup, clean_request, clean_responses_request, needs_cleaning,
    remove_reasoning,
};
pub use repair::alternation::alternate_roles;
pub use rewrite::{RequestEdits, rewrite, rewrite_cleaned, splice};
pub use summary::{CompletionInput, OutputLimit, RequestSummary};

/// Maximum number of choices on the chat surface.
const MAX_CHOICES: u64 = 128;

/// Estimates the number of object members and array items in a body that was not read yet, at most
/// `most`. [`RequestSummary::values`] is exact.
pub fn estimate_values(body: &[u8], most: usize) -> usize {
    separators::count_separators(body, most)
}

/// Reads the body.
///
/// Returns 400 for invalid JSON, a value that is not an object, nesting deeper than [`MAX_DEPTH`],
/// no `model`, a billing member that is duplicated or has the wrong type, a number out of its
/// range. A null member counts as absent.
pub fn read_summary(protocol: Protocol, body: &[u8]) -> Result<RequestSummary, Failure> {
    read_summary_bounded(protocol, body, u64::MAX)
}

/// Reads the body like [`read_summary`], and also refuses with 400 a body with more than
/// `values_max` object members and array items. Each value takes memory in the structures that are
/// built from a body.
pub fn read_summary_bounded(
    protocol: Protocol,
    body: &[u8],
    values_max: u64,
) -> Result<RequestSummary, Failure> {
    read(protocol, None, body, values_max)
}

/// Reads a completions body like [`read_summary`]. The number of its values has no limit, because
/// nothing is built from them: a prompt of token ids has many.
pub fn read_completion(api: CompletionsApi, body: &[u8]) -> Result<RequestSummary, Failure> {
    let completion = Some(CompletionInput::new(api));
    read(Protocol::Chat, completion, body, u64::MAX)
}

fn read(
    protocol: Protocol,
    completion: Option<CompletionInput>,
    body: &[u8],
    values_max: u64,
) -> Result<RequestSummary, Failure> {
    let unread = |broken| scan_failure(broken, values_max);
    let text = std::str::from_utf8(body).map_err(|fault| invalid_json(fault.valid_up_to()))?;
    let mut scan = JsonScanner::new(text, MAX_DEPTH).with_values_max(values_max);
    if scan.kind() != Ok(JsonKind::Object) {
        // The body may be a valid JSON array or number, which gets another message than invalid
        // JSON.
        return Err(match scan.skip().and_then(|_| scan.end()) {
            Ok(()) => invalid_request("The request body must be a JSON object."),
            Err(broken) => unread(broken),
        });
    }
    let mut reader = SummaryReader {
        protocol,
        text,
        summary: RequestSummary {
            choices: 1,
            completion,
            ..RequestSummary::default()
        },
        present: [false; BILLING_MEMBERS.len()],
    };
    reader.summary.spans.inside = scan.position().saturating_add(1);
    let outcome = scan
        .object(|scan, key| reader.member(scan, &key.name()))
        .and_then(|_| scan.end().map_err(RequestParseError::Broken));
    match outcome {
        Err(RequestParseError::Broken(broken)) => Err(unread(broken)),
        Err(RequestParseError::Refused(failure)) => Err(*failure),
        Ok(()) => {
            reader.summary.values = scan.values();
            reader.finish(body.len(), scan.escape_bytes())
        }
    }
}

/// The members that decide the bill. The reader refuses duplicates and other letter case.
const BILLING_MEMBERS: [&str; 15] = [
    "model",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "n",
    "thinking",
    "messages",
    "tools",
    "service_tier",
    "max_output_tokens",
    "input",
    "prompt",
    "best_of",
    "suffix",
];

/// Numbers of members at the end of the list that only the responses protocol and completions have,
/// and that only completions have.
const NOT_CHATS_COUNT: usize = 5;
const ONLY_COMPLETIONS_COUNT: usize = 3;

/// The reason why reading stopped.
pub(crate) enum RequestParseError {
    Broken(JsonError),
    Refused(Box<Failure>),
}

pub(crate) type ParseResult<T = ()> = Result<T, RequestParseError>;

impl From<JsonError> for RequestParseError {
    fn from(broken: JsonError) -> Self {
        RequestParseError::Broken(broken)
    }
}

struct SummaryReader<'a> {
    protocol: Protocol,
    text: &'a str,
    summary: RequestSummary,
    present: [bool; BILLING_MEMBERS.len()],
}

impl SummaryReader<'_> {
    fn member(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        self.check_unique(name)?;
        if self.completion_member(scan, name)? {
            return Ok(());
        }
        if let Some(setting) = Setting::from_name(name)
            && scan.kind()? != JsonKind::Null
        {
            self.summary.hints.mark_present(setting);
        }
        let object = match VendorObject::from_top_level_member(self.protocol, name) {
            None => VendorObject::from_value(self.protocol, name, scan.kind()?),
            object => object,
        };
        if let Some(object) = object {
            let reference = &mut self.summary.features.vendor_reference;
            return Ok(reference.record(object, scan)?);
        }
        match (name, self.protocol) {
            ("model", _) => self.model(scan)?,
            ("stream", _) => self.summary.stream = self.boolean(scan, name)?.unwrap_or(false),
            ("max_tokens", _) => self.summary.spans.max_tokens = Some(self.limit(scan, name)?),
            ("max_completion_tokens", Protocol::Chat) => {
                self.summary.spans.max_completion_tokens = Some(self.limit(scan, name)?);
            }
            ("n", Protocol::Chat) => {
                let (count, _) = self.number(scan, name, 1, MAX_CHOICES)?;
                self.summary.choices = count.unwrap_or(1);
            }
            ("stream_options", Protocol::Chat) => self.stream_options(scan)?,
            ("thinking", Protocol::Messages) => self.thinking(scan)?,
            ("output_config", Protocol::Messages) => self.output_config(scan)?,
            ("reasoning_effort", Protocol::Chat) => {
                self.summary.hints.read_effort(scan)?;
                self.summary.features.no_reasoning |=
                    self.summary.hints.effort == EnumMember::Known(Effort::None);
            }
            ("max_output_tokens", Protocol::Responses) => {
                self.summary.spans.max_output_tokens = Some(self.limit(scan, name)?);
            }
            ("messages", _) => self.messages(scan, name)?,
            ("input", Protocol::Responses) => self.input(scan, name)?,
            ("tools", _) => self.list(scan, name)?,
            ("service_tier", _) => self.service_tier(scan)?,
            ("billing_policy", Protocol::Messages) => self.billing_policy(scan)?,
            // A list of items may reference stored items.
            ("instructions", Protocol::Responses)
                if !matches!(scan.kind()?, JsonKind::String | JsonKind::Null) =>
            {
                return Err(self.wrong_type(name, "a string"));
            }
            ("system" | "instructions" | "metadata" | "session_id" | "prompt_cache_key", _) => {
                let is_present = scan.kind()? != JsonKind::Null;
                let start = scan.position();
                self.features(scan, name)?;
                if is_present {
                    self.summary
                        .conversation
                        .record_member(name, scan.span_from(start));
                }
            }
            _ => self.features(scan, name)?,
        }
        Ok(())
    }

    fn features(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        let features = &mut self.summary.features;
        Ok(features.read_member(self.protocol, name, scan)?)
    }

    /// Returns whether the next value is of this kind. Null is skipped, and any other value
    /// refused.
    fn is_kind(
        &self,
        scan: &mut JsonScanner<'_>,
        kind: JsonKind,
        (param, expected): (&str, &str),
    ) -> ParseResult<bool> {
        match scan.kind()? {
            found if found == kind => Ok(true),
            JsonKind::Null => Ok(scan.skip().map(|_| false)?),
            _ => Err(self.wrong_type(param, expected)),
        }
    }

    /// Refuses a billing member that is duplicated or that differs from the known name only in
    /// case. Some servers ignore the case and would read the misspelt member.
    fn check_unique(&mut self, name: &str) -> ParseResult {
        let of_others = match (self.summary.completion, self.protocol) {
            (Some(_), _) => 0,
            (None, Protocol::Responses) => ONLY_COMPLETIONS_COUNT,
            (None, Protocol::Chat | Protocol::Messages) => NOT_CHATS_COUNT,
        };
        let known = BILLING_MEMBERS.len().saturating_sub(of_others);
        for (member, present) in BILLING_MEMBERS.iter().zip(&mut self.present).take(known) {
            if *member == name {
                if std::mem::replace(present, true) {
                    return Err(self.refuse(name, "This member occurs more than once."));
                }
                return Ok(());
            }
            if member.eq_ignore_ascii_case(name) {
                return Err(self.refuse(name, &format!("Unknown member; did you mean '{member}'?")));
            }
        }
        Ok(())
    }

    fn model(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        if self.is_kind(scan, JsonKind::String, ("model", "a string"))? {
            let text = scan.string()?;
            let Some(value) = text.value() else {
                return Err(self.wrong_type("model", "a string"));
            };
            self.summary.model = value.into_owned();
            self.summary.spans.model = text.span;
        }
        Ok(())
    }

    fn boolean(&self, scan: &mut JsonScanner<'_>, param: &str) -> ParseResult<Option<bool>> {
        let value = match scan.kind()? {
            JsonKind::True => Some(true),
            JsonKind::False => Some(false),
            JsonKind::Null => None,
            _ => return Err(self.wrong_type(param, "a boolean")),
        };
        scan.skip()?;
        Ok(value)
    }

    fn limit(&self, scan: &mut JsonScanner<'_>, param: &str) -> ParseResult<OutputLimitMember> {
        // Messages vendors define 0: they generate no output and put the prompt into the cache. The
        // source is the vendor's guide to prompt caching ("Pre-warming the cache"), read 2026-11.
        // For completions it returns the `logprobs` of a prompt with `echo`.
        let takes_zero = self.protocol == Protocol::Messages || self.summary.completion.is_some();
        let min = u64::from(!takes_zero);
        let (tokens, span) = self.number(scan, param, min, MAX_COUNT)?;
        Ok(OutputLimitMember { span, tokens })
    }

    /// Reads an integer from `min` to `max` and its span, or `None` for null.
    fn number(
        &self,
        scan: &mut JsonScanner<'_>,
        param: &str,
        min: u64,
        max: u64,
    ) -> ParseResult<(Option<u64>, Span)> {
        let kind = scan.kind()?;
        if !matches!(kind, JsonKind::Number | JsonKind::Null) {
            return Err(self.wrong_type(param, "an integer"));
        }
        let span = scan.skip_span()?;
        if kind == JsonKind::Null {
            return Ok((None, span));
        }
        match scan.count(span) {
            Some(count) if (min..=max).contains(&count) => Ok((Some(count), span)),
            _ => Err(self.refuse(param, &format!("Expected an integer from {min} to {max}."))),
        }
    }

    fn stream_options(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        let kind = scan.kind()?;
        if kind == JsonKind::Null {
            let span = scan.skip_span()?;
            self.summary.spans.stream_options = Some(StreamOptions::Null(span));
            return Ok(());
        }
        if kind != JsonKind::Object {
            return Err(self.wrong_type("stream_options", "an object"));
        }
        let inside = scan.position().saturating_add(1);
        let (mut is_empty, mut include_usage, mut requested) = (true, None, None);
        scan.object(|scan, key| {
            is_empty = false;
            if key.name() != "include_usage" {
                return Ok(scan.skip()?);
            }
            let param = "stream_options.include_usage";
            if include_usage.is_some() {
                return Err(self.refuse(param, "This member occurs more than once."));
            }
            requested = self.boolean(scan, param)?;
            // The scanner's position is the end of `true`, `false` and `null`.
            let length = match requested {
                Some(false) => 5,
                Some(true) | None => 4,
            };
            let end = scan.position();
            include_usage = Some(Span {
                start: end.saturating_sub(length),
                end,
            });
            Ok(())
        })?;
        self.summary.include_usage = requested.unwrap_or(false);
        self.summary.spans.stream_options = Some(StreamOptions::Object {
            inside,
            is_empty,
            include_usage,
        });
        Ok(())
    }

    fn thinking(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        if !self.is_kind(scan, JsonKind::Object, ("thinking", "an object"))? {
            return Ok(());
        }
        let (mut kinds, mut budgets) = (0_u32, 0_u32);
        let (mut is_enabled, mut budget) = (false, None);
        scan.object(|scan, key| {
            match key.name().as_ref() {
                "type" => {
                    kinds = kinds.saturating_add(1);
                    let kind = scan.string_or_skip()?.map(|kind| kind.name());
                    is_enabled = kind.as_deref() == Some("enabled");
                    self.summary.hints.record_thinking(kind.as_deref());
                }
                "budget_tokens" => {
                    budgets = budgets.saturating_add(1);
                    budget = Some(self.number(scan, "thinking.budget_tokens", 0, MAX_COUNT)?);
                }
                _ => scan.skip()?,
            }
            ParseResult::Ok(())
        })?;
        if kinds > 1 || budgets > 1 {
            return Err(self.refuse("thinking", "A member occurs more than once."));
        }
        if let Some((Some(tokens), span)) = budget.filter(|_| is_enabled) {
            self.summary.thinking_budget = Some(tokens);
            self.summary.spans.thinking_budget = Some(span);
        }
        Ok(())
    }

    fn output_config(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        let hints = &mut self.summary.hints;
        scan.object_or_skip(|scan, key| match key.name().as_ref() {
            "effort" => Ok(hints.read_effort(scan)?),
            _ => Ok(scan.skip()?),
        })
    }

    fn list(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        match self.is_kind(scan, JsonKind::Array, (name, "an array"))? {
            true => self.features(scan, name),
            false => Ok(()),
        }
    }

    /// Reads the turns of the conversation.
    fn messages(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        if scan.kind()? != JsonKind::Array {
            return self.list(scan, name);
        }
        let RequestSummary {
            features,
            conversation,
            hints,
            ..
        } = &mut self.summary;
        let text = self.text;
        scan.array(|scan| {
            let mut head = MessageSpans::default();
            hints.ends_with_assistant = false;
            let before = features.leftovers;
            features.read_message(scan, |name, span| {
                head.record_member(name, span);
                match name {
                    "role" => hints.record_role(span.slice(text)),
                    "reasoning_content" => hints.reasoning_content = true,
                    _ => {}
                }
            })?;
            let now = features.leftovers;
            hints.record_message(
                now.thoughts > before.thoughts,
                now.tool_results > before.tool_results,
            );
            conversation.record_message(head);
            ParseResult::Ok(())
        })
    }

    /// Reads the input: a list of items, or a string, which is one user message.
    fn input(&mut self, scan: &mut JsonScanner<'_>, name: &str) -> ParseResult {
        match scan.kind()? {
            JsonKind::Array => return self.messages(scan, name),
            JsonKind::String => {
                let mut head = MessageSpans::default();
                let start = scan.position();
                self.features(scan, name)?;
                head.record_member("content", scan.span_from(start));
                self.summary.conversation.record_message(head);
            }
            _ => self.features(scan, name)?,
        }
        Ok(())
    }

    fn service_tier(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        if !self.is_kind(scan, JsonKind::String, ("service_tier", "a string"))? {
            return Ok(());
        }
        let tier = scan.string()?.name();
        let usual = match self.protocol {
            Protocol::Chat | Protocol::Responses => "default",
            Protocol::Messages => "standard_only",
        };
        let features = &mut self.summary.features;
        match tier.as_ref() {
            "auto" => {}
            tier if tier == usual => features.usual_tier = true,
            tier => features.service_tier = Some(ServiceTier::from_wire(tier)),
        }
        Ok(())
    }

    /// Refuses a request for which another organization would pay. This account is billed by the
    /// gateway, which removes the profile that names the other organization.
    fn billing_policy(&mut self, scan: &mut JsonScanner<'_>) -> ParseResult {
        let mut is_own = true;
        scan.object_or_skip(|scan, key| {
            if key.name() != "bill_to" {
                return scan.skip();
            }
            let kind = scan.kind()?;
            let payer = scan.string_or_skip()?.map(|payer| payer.name());
            is_own = kind == JsonKind::Null || payer.is_some_and(|payer| payer == "self");
            Ok(())
        })?;
        if is_own {
            return Ok(());
        }
        Err(self.refuse("billing_policy.bill_to", "Input should be 'self'"))
    }

    fn finish(mut self, body_bytes: usize, escape_bytes: usize) -> Result<RequestSummary, Failure> {
        self.finish_completion()?;
        let mut summary = self.summary;
        summary.features.content.finish(body_bytes, escape_bytes);
        summary.escape_bytes = escape_bytes;
        let other_shape = std::mem::take(&mut summary.features.other_shape);
        summary.has_other_shape =
            other_shape && self.protocol == Protocol::Chat && summary.completion.is_none();
        summary.hints.other_than_nine = summary.features.leftovers.other_than_nine;
        if summary.model.is_empty() {
            let message = match self.protocol {
                Protocol::Chat => "you must provide a model parameter",
                Protocol::Responses => "Missing required parameter: 'model'.",
                Protocol::Messages => "Field required",
            };
            let failure = Failure::invalid_param(self.protocol, "model", message);
            return Err(failure.with_code("missing_required_parameter"));
        }
        if let Some(reference) = summary.features.vendor_reference.0 {
            return Err(reference.to_failure(self.protocol, self.text));
        }
        if self.protocol == Protocol::Responses {
            let limit = summary
                .spans
                .max_output_tokens
                .and_then(|limit| limit.tokens);
            summary.output_limit = limit.map(|tokens| OutputLimit {
                field: "max_output_tokens",
                tokens,
            });
            return Ok(summary);
        }
        if self.protocol == Protocol::Messages && summary.is_prewarming() && summary.stream {
            let message = "0 is not supported with stream=true.";
            return Err(Failure::invalid_param(self.protocol, "max_tokens", message));
        }
        let newer = summary
            .spans
            .max_completion_tokens
            .and_then(|limit| limit.tokens);
        let older = summary.spans.max_tokens.and_then(|limit| limit.tokens);
        let field = if newer.is_some() {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        summary.output_limit = newer.max(older).map(|tokens| OutputLimit { field, tokens });
        Ok(summary)
    }

    fn wrong_type(&self, param: &str, expected: &str) -> RequestParseError {
        let message = match self.protocol {
            Protocol::Chat | Protocol::Responses => {
                format!("Invalid type for '{param}': expected {expected}.")
            }
            Protocol::Messages => {
                let noun = expected.split_once(' ').map_or(expected, |(_, noun)| noun);
                format!("Input should be a valid {noun}")
            }
        };
        self.refuse(param, &message)
    }

    fn refuse(&self, param: &str, message: &str) -> RequestParseError {
        let failure = Failure::invalid_param(self.protocol, param, message);
        RequestParseError::Refused(failure.into())
    }
}

pub(crate) fn scan_failure(broken: JsonError, values_max: u64) -> Failure {
    match broken {
        JsonError::Syntax { at } => invalid_json(at),
        JsonError::TooDeep => invalid_request("The request body is nested too deeply."),
        JsonError::TooMany => {
            invalid_request("An object in the request body has too many members.")
        }
        JsonError::TooManyValues => invalid_request(&format!(
            "The request body has more than {values_max} JSON values, the limit of this gateway."
        )),
    }
}

pub(crate) fn invalid_json(at: usize) -> Failure {
    invalid_request(&format!(
        "The request body is not valid JSON (at byte {at})."
    ))
}

fn invalid_request(message: &str) -> Failure {
    Failure::new(FailureKind::InvalidRequest, message)
}
