//! Translates a vendor's whole answer, and recognises errors that need a special treatment.
//!
//! This file must not translate streams: `translate/stream.rs` does.

use super::observer::StreamObserver;
use crate::chat::read_stream::ChatAnswerPlaces;
use crate::failure::VendorError;
use crate::ir::event::{
    Event, EventSink, ReadResult, ResponseContext, ResponseStart, StopReason, UpstreamError,
};
use crate::json::{JsonDocument, MAX_RESPONSE_DEPTH, NodeBuffer};
use crate::usage::Usage;
use crate::vendor_response::CompleteResponse;
use crate::{Protocol, chat, messages, responses};

/// Reads a vendor's whole answer and writes it in the caller's protocol.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not a complete answer.
///
/// # Examples
///
/// From each protocol to each other one. `context` returns the
/// [`TranslatedRequest::response_context`] of a request that said "Hello":
///
/// [`TranslatedRequest::response_context`]: super::TranslatedRequest::response_context
///
/// ```
/// use llm_protocol::Protocol::{self, Chat, Messages, Responses};
/// use llm_protocol::translate::translate_response;
/// # use llm_protocol::capabilities::{
/// #     ChatModel, MessagesModel, ModelCapabilities, ResponsesModel, TranslationTarget,
/// # };
/// # use llm_protocol::ir::event::ResponseContext;
/// # use llm_protocol::profile::VendorProfile;
/// # use llm_protocol::translate::{TranslationRequest, translate_request};
/// # use llm_protocol::usage::UsageEstimator;
/// #
/// # // The context that the translation of the request returned.
/// # fn context(surface: Protocol, vendor: Protocol) -> ResponseContext {
/// #     let body = match surface {
/// #         Chat => CHAT,
/// #         Messages => MESSAGES,
/// #         Responses => RESPONSES,
/// #     };
/// #     let accepts = match vendor {
/// #         Chat => ModelCapabilities::Chat(ChatModel::default()),
/// #         Messages => ModelCapabilities::Messages(MessagesModel::default()),
/// #         Responses => ModelCapabilities::Responses(ResponsesModel::default()),
/// #     };
/// #     let request = TranslationRequest {
/// #         surface,
/// #         body: body.as_bytes(),
/// #         target: TranslationTarget {
/// #             upstream_model: "vendor-model",
/// #             public_model: "m",
/// #             max_output_tokens: 1_000,
/// #             profile: VendorProfile::official(vendor),
/// #             accepts: &accepts,
/// #         },
/// #         account_id: "account-1",
/// #         output_limit: None,
/// #         strict: false,
/// #         clock: || 0,
/// #         request_id: "request-1",
/// #         estimator: UsageEstimator::default(),
/// #     };
/// #     translate_request(&request, false).unwrap().response_context
/// # }
/// # const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hello"}]}"#;
/// # const MESSAGES: &str =
/// #     r#"{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"Hello"}]}"#;
/// # const RESPONSES: &str = r#"{"model":"m","input":"Hello"}"#;
/// #
///
/// fn translate(vendor: Protocol, surface: Protocol, body: &str) -> String {
///     let context = context(surface, vendor);
///     let answer = translate_response(vendor, surface, context, false, body.as_bytes()).unwrap();
///     String::from_utf8(answer.body.to_vec()).unwrap()
/// }
///
/// const FROM_CHAT: &str = r#"{"id":"c1","choices":[{"index":0,"finish_reason":"stop",
///     "message":{"role":"assistant","content":"Hi"}}],
///     "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
/// const FROM_MESSAGES: &str = r#"{"id":"msg_1","type":"message","role":"assistant",
///     "content":[{"type":"text","text":"Hi"}],"stop_reason":"end_turn",
///     "usage":{"input_tokens":5,"output_tokens":2}}"#;
/// const FROM_RESPONSES: &str = r#"{"id":"resp_1","object":"response","status":"completed",
///     "output":[{"id":"msg_1","type":"message","role":"assistant","status":"completed",
///         "content":[{"type":"output_text","text":"Hi","annotations":[]}]}],
///     "usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7}}"#;
///
/// let to_chat = r#""content":"Hi""#;
/// let to_messages = r#""text":"Hi""#;
/// let to_responses = r#""type":"output_text""#;
/// assert!(translate(Messages, Chat, FROM_MESSAGES).contains(to_chat));
/// assert!(translate(Chat, Messages, FROM_CHAT).contains(to_messages));
/// assert!(translate(Responses, Chat, FROM_RESPONSES).contains(to_chat));
/// assert!(translate(Chat, Responses, FROM_CHAT).contains(to_responses));
/// assert!(translate(Responses, Messages, FROM_RESPONSES).contains(to_messages));
/// assert!(translate(Messages, Responses, FROM_MESSAGES).contains(to_responses));
/// ```
pub fn translate_response(
    vendor: Protocol,
    surface: Protocol,
    response_context: ResponseContext,
    streamed: bool,
    body: &[u8],
) -> ReadResult<CompleteResponse> {
    let text = std::str::from_utf8(body).map_err(|_| UpstreamError::NotJson)?;
    let tree = JsonDocument::parse(text, MAX_RESPONSE_DEPTH, NodeBuffer::new())
        .map_err(|_| UpstreamError::NotJson)?;
    let places = ChatAnswerPlaces::new(&response_context);
    let maker_signature = response_context.maker_signature.clone();
    let mut observer = StreamObserver::new(surface, response_context, streamed);
    match vendor {
        Protocol::Chat => chat::read_stream::read_body(tree.root(), places, &mut observer)?,
        Protocol::Messages => {
            messages::read_stream::read_body(tree.root(), maker_signature, &mut observer)?;
        }
        Protocol::Responses => responses::read_stream::read_body(tree.root(), &mut observer)?,
    }
    // A whole body that is not complete was not cut off in transit, but lacks a stop reason.
    observer.check().map_err(|fault| {
        if fault == UpstreamError::Cut {
            UpstreamError::Empty
        } else {
            fault
        }
    })?;
    let mut out = Vec::with_capacity(body.len());
    observer.take(&mut out);
    Ok(CompleteResponse {
        body: out.into(),
        usage: observer.usage(),
        known_usage: observer.known_usage(),
        generated_bytes: observer.generated_bytes,
        refused_free: observer.refused_free(),
        warnings: observer.warnings,
    })
}

/// Returns whether the vendor refuses the reasoning in a request for a reason that only the vendor
/// can check, such as a signature.
pub fn refuses_thinking(error_body: &[u8]) -> bool {
    let error = VendorError::parse(error_body).unwrap_or_default();
    let says = |word: &str| error.message.contains(word);
    let by_messages =
        says("thinking") && (says("signature") || says("Expected") || says("cannot be modified"));
    let by_responses = error.code.as_deref() == Some("invalid_encrypted_content")
        || (says("ncrypted content") && says("could not be verified"))
        || (says("Item with id") && says("not found"))
        || says("required following item")
        || says("required 'reasoning' item");
    by_messages || by_responses
}

/// Returns whether a reasoning model of a chat vendor reached the output limit before any output,
/// which the vendor reports as an error.
pub fn is_limit_reached_error(error_body: &[u8]) -> bool {
    let message = VendorError::parse(error_body).unwrap_or_default().message;
    message.starts_with(
        "Could not finish the message because max_tokens or model output limit was reached",
    )
}

/// Returns an empty answer with the stop reason of the output limit.
pub fn empty_response_at_limit(
    surface: Protocol,
    response_context: ResponseContext,
    streamed: bool,
) -> Vec<u8> {
    let usage = Usage {
        input: response_context.input_estimate,
        output: response_context.output_limit,
        ..Usage::default()
    };
    let mut observer = StreamObserver::new(surface, response_context, streamed);
    observer.event(Event::Start(ResponseStart::default()));
    observer.event(Event::Stop(StopReason::MaxTokens));
    observer.event(Event::Usage {
        usage,
        is_final: true,
    });
    observer.event(Event::End);
    let mut out = Vec::new();
    observer.take(&mut out);
    out
}
