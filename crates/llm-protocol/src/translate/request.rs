//! Translates a request: the reader of its protocol, then the writer of the vendor's.
//!
//! This file connects reader and writer, and must not depend on a member of either protocol.
//!
//! Read next: `ir.rs`, then the folder of the caller's protocol.

use crate::capabilities::{ModelCapabilities, TranslationTarget};
use crate::failure::{Failure, Kind};
use crate::ir::event::ResponseContext;
use crate::ir::write_context::{EncodedRequest, WriteContext};
use crate::ir::{BlockKind, Request, RequestResult, Warnings};
use crate::json::{JsonDocument, MAX_DEPTH, NodeBuffer};
use crate::responses::EventSequencer;
use crate::usage::UsageEstimator;
use crate::{Protocol, chat, estimate, messages, responses};
use bytes::Bytes;

#[derive(Clone, Copy, Debug)]
pub struct TranslationRequest<'a> {
    pub surface: Protocol,
    pub body: &'a [u8],
    pub target: TranslationTarget<'a>,
    /// Account id. Its hash distinguishes the end users of different accounts.
    pub account_id: &'a str,
    /// Output limit to send, if the account can pay for less than the caller asked for.
    pub output_limit: Option<u64>,
    /// True if any warning refuses the request.
    pub strict: bool,
    /// Returns the Unix time in seconds. An answer states when it began and when it completed.
    pub clock: fn() -> u64,
    /// This request's own id.
    pub request_id: &'a str,
    /// Estimates the usage for the client if the vendor reports none.
    pub estimator: UsageEstimator,
}

#[derive(Debug)]
pub struct TranslatedRequest {
    pub body: Bytes,
    /// Warnings of the form `action:path`, sorted.
    pub warnings: Vec<String>,
    /// True if the gateway requests a stream from the vendor, which does not depend on the client.
    pub streams: bool,
    /// True if the request has a thinking configuration or thinking blocks, which the vendor may
    /// refuse for reasons that only it can check.
    pub carries_thinking: bool,
    /// True if the request's thinking budget comes from the client, not from the gateway.
    pub has_client_budget: bool,
    pub response_context: ResponseContext,
}

/// Translates a request to the vendor's protocol. `without_thinking` leaves the reasoning out, for
/// a retry after the vendor refused it.
///
/// # Errors
/// Returns a failure if the request breaks a rule of its surface, or requires a feature that the
/// model lacks.
///
/// # Examples
///
/// From each protocol to each other one:
///
/// ```
/// use llm_protocol::Protocol::{self, Chat, Messages, Responses};
/// use llm_protocol::capabilities::{
///     ChatModel, MessagesModel, ModelCapabilities, ResponsesModel, TranslationTarget,
/// };
/// use llm_protocol::profile::VendorProfile;
/// use llm_protocol::translate::{TranslatedRequest, TranslationRequest, translate_request};
/// use llm_protocol::usage::UsageEstimator;
///
/// fn translate(surface: Protocol, vendor: Protocol, body: &str) -> TranslatedRequest {
///     let accepts = match vendor {
///         Chat => ModelCapabilities::Chat(ChatModel::default()),
///         Messages => ModelCapabilities::Messages(MessagesModel::default()),
///         Responses => ModelCapabilities::Responses(ResponsesModel::default()),
///     };
///     let request = TranslationRequest {
///         surface,
///         body: body.as_bytes(),
///         target: TranslationTarget {
///             upstream_model: "vendor-model",
///             public_model: "m",
///             max_output_tokens: 1_000,
///             profile: VendorProfile::official(vendor),
///             accepts: &accepts,
///         },
///         account_id: "account-1",
///         output_limit: None,
///         strict: false,
///         clock: || 0,
///         request_id: "request-1",
///         estimator: UsageEstimator::default(),
///     };
///     translate_request(&request, false).unwrap()
/// }
///
/// const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hello"}]}"#;
/// const MESSAGES: &str =
///     r#"{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"Hello"}]}"#;
/// const RESPONSES: &str = r#"{"model":"m","input":"Hello"}"#;
///
/// let to_messages = r#""max_tokens":1000"#;
/// let to_chat = r#""messages":[{"role":"user","content":"Hello"}]"#;
/// let to_responses = r#""input":[{"type":"message","role":"user""#;
/// for (surface, body, vendor, expected) in [
///     (Chat, CHAT, Messages, to_messages),
///     (Messages, MESSAGES, Chat, to_chat),
///     (Chat, CHAT, Responses, to_responses),
///     (Responses, RESPONSES, Chat, to_chat),
///     (Messages, MESSAGES, Responses, to_responses),
///     (Responses, RESPONSES, Messages, to_messages),
/// ] {
///     let translated = translate(surface, vendor, body);
///     let body = std::str::from_utf8(&translated.body).unwrap();
///     assert!(body.contains(expected), "{surface} to {vendor}: {body}");
///     assert!(body.contains(r#""model":"vendor-model""#) && body.contains("Hello"));
/// }
/// ```
pub fn translate_request(
    input: &TranslationRequest<'_>,
    without_thinking: bool,
) -> Result<TranslatedRequest, Failure> {
    let tree = parse_body(input.body)?;
    let mut warnings = Warnings::default();
    let may_search = input.target.accepts.may_search();
    let mut request = read_request(input.surface, &tree, may_search, &mut warnings)
        .map_err(|refused| *refused)?;
    let mut response_context = response_context(input, &mut request);
    let TranslationRequest {
        target,
        account_id,
        output_limit,
        ..
    } = *input;
    let write_context = WriteContext {
        target,
        account_id,
        output_limit,
        without_thinking,
    };
    let encoded = encode(
        &mut request,
        &write_context,
        &mut warnings,
        &mut response_context,
    )
    .map_err(|refused| *refused)?;
    if input.surface == Protocol::Responses {
        response_context.show_thinking = !request.reasoning.hide;
    }
    response_context.reasoning_replay = target.accepts.reasoning_replay();
    response_context.maker_signature = match target.accepts {
        ModelCapabilities::Messages(_) => target.profile.maker_signature(),
        ModelCapabilities::Chat(_) | ModelCapabilities::Responses(_) => None,
    };
    response_context.state_paths = target
        .profile
        .state_beside(response_context.reasoning_replay.member());
    response_context.usage_paths = target.profile.usage.clone();
    let has_client_budget = request.reasoning.is_verbatim;
    let warnings = warnings.into_tokens();
    if let (true, Some(token)) = (input.strict, warnings.first()) {
        return Err(Failure::new(
            Kind::InvalidRequest,
            format!("Strict mode: {token}"),
        ));
    }
    let EncodedRequest {
        body,
        streams,
        carries_thinking,
    } = encoded;
    Ok(TranslatedRequest {
        body: body.into(),
        warnings,
        streams,
        carries_thinking,
        has_client_budget,
        response_context,
    })
}

/// Returns the part of the response's context that is known before the request is written. The
/// function takes the gateway's own tools out of `request`.
fn response_context(input: &TranslationRequest<'_>, request: &mut Request<'_>) -> ResponseContext {
    let created = (input.clock)();
    let mut context = ResponseContext {
        public_model: input.target.public_model.to_owned(),
        created,
        seed: input.request_id.to_owned(),
        include_usage: request.include_usage,
        input_estimate: estimate::estimate_input_tokens(request),
        estimator: input.estimator,
        own_tools: std::mem::take(&mut request.own_tools),
        call_ids: call_ids(request),
        output_limit: request.limit.map_or(0, |limit| {
            limit.tokens.min(input.output_limit.unwrap_or(u64::MAX))
        }),
        ..ResponseContext::default()
    };
    if input.surface == Protocol::Responses {
        context.sequencer = Some(EventSequencer::new(
            request,
            input.clock,
            input.target.public_model,
            input.request_id,
        ));
    }
    context
}

fn encode(
    request: &mut Request<'_>,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
    context: &mut ResponseContext,
) -> RequestResult<EncodedRequest> {
    match write_context.target.accepts {
        ModelCapabilities::Messages(model) => {
            messages::write_request::write(request, model, write_context, warnings, context)
        }
        ModelCapabilities::Chat(model) => {
            chat::write_request::write(request, model, write_context, warnings, context)
        }
        ModelCapabilities::Responses(model) => {
            responses::write_request::write(request, model, write_context, warnings, context)
        }
    }
}

fn call_ids(request: &Request<'_>) -> Vec<String> {
    let blocks = request.turns.iter().flat_map(|turn| &turn.blocks);
    let ids = blocks.filter_map(|block| match &block.kind {
        BlockKind::Call(call) => call.id.as_ref(),
        _ => None,
    });
    ids.map(|id| id.value().into_owned()).collect()
}

/// Returns the estimated input tokens of a request, rounded up.
///
/// # Errors
/// Returns a failure if the body breaks a rule of its surface.
pub fn count_tokens(surface: Protocol, body: &[u8]) -> Result<u64, Failure> {
    let tree = parse_body(body)?;
    let request =
        read_request(surface, &tree, true, &mut Warnings::default()).map_err(|refused| *refused)?;
    Ok(estimate::estimate_input_tokens(&request))
}

pub(super) fn parse_body(body: &[u8]) -> Result<JsonDocument<'_>, Failure> {
    let not_json = || Failure::new(Kind::InvalidRequest, "The request body is not valid JSON.");
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()).map_err(|_| not_json())
}

fn read_request<'a>(
    surface: Protocol,
    tree: &'a JsonDocument<'a>,
    may_search: bool,
    warnings: &mut Warnings,
) -> RequestResult<Request<'a>> {
    match surface {
        Protocol::Chat => chat::read_request::read(tree.root(), warnings),
        Protocol::Messages => messages::read_request::read(tree.root(), warnings),
        Protocol::Responses => responses::read_request::read(tree.root(), may_search, warnings),
    }
}
