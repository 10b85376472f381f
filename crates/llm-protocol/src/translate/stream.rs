//! Translates a vendor's stream, event by event.
//!
//! This file must not hold back output that may be sent. The caller writes its journal before it
//! releases the bytes of the last event.
//!
//! Read next: `translate/observer.rs`.

use super::observer::StreamObserver;
use crate::chat::read_stream::ChatAnswerPlaces;
use crate::ir::event::{
    AnswerReader, Event, EventSink, ReadResult, ResponseContext, StopReason, UpstreamError,
};
use crate::json::NodeBuffer;
use crate::sse::SseDecoder;
use crate::usage::{MeteredUsage, Usage};
use crate::vendor_response::ResponseStream;
use crate::{Protocol, chat, messages, responses};

/// Maximum node buffer that a stream keeps for its next event.
const MAX_IDLE_NODES: usize = 1024;

/// Translation of a vendor's stream for a client of another protocol.
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
/// use llm_protocol::translate::StreamTranslation;
/// use llm_protocol::vendor_response::ResponseStream as _;
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
/// fn translate(vendor: Protocol, surface: Protocol, events: &[&str]) -> String {
///     let context = context(surface, vendor);
///     let mut stream = StreamTranslation::new(vendor, surface, context, true, 1_048_576);
///     let mut out = Vec::new();
///     for event in events {
///         stream.push(format!("data: {event}\n\n").as_bytes(), &mut out).unwrap();
///     }
///     assert!(stream.is_complete());
///     String::from_utf8(out).unwrap()
/// }
///
/// const FROM_CHAT: [&str; 4] = [
///     r#"{"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]}"#,
///     r#"{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
///     r#"{"id":"c1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#,
///     "[DONE]",
/// ];
/// const FROM_MESSAGES: [&str; 6] = [
///     r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":5}}}"#,
///     r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
///     r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#,
///     r#"{"type":"content_block_stop","index":0}"#,
///     concat!(
///         r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"#,
///         r#""usage":{"output_tokens":2}}"#,
///     ),
///     r#"{"type":"message_stop"}"#,
/// ];
/// const FROM_RESPONSES: [&str; 4] = [
///     r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#,
///     concat!(
///         r#"{"type":"response.output_item.added","output_index":0,"#,
///         r#""item":{"id":"msg_1","type":"message","role":"assistant","content":[]}}"#,
///     ),
///     concat!(
///         r#"{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"#,
///         r#""content_index":0,"delta":"Hi"}"#,
///     ),
///     concat!(
///         r#"{"type":"response.completed","response":{"id":"resp_1","status":"completed","#,
///         r#""output":[],"usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7}}}"#,
///     ),
/// ];
///
/// let to_chat = r#""delta":{"content":"Hi"}"#;
/// let to_messages = r#""delta":{"type":"text_delta","text":"Hi"}"#;
/// let to_responses = r#""delta":"Hi""#;
/// assert!(translate(Messages, Chat, &FROM_MESSAGES).contains(to_chat));
/// assert!(translate(Chat, Messages, &FROM_CHAT).contains(to_messages));
/// assert!(translate(Responses, Chat, &FROM_RESPONSES).contains(to_chat));
/// assert!(translate(Chat, Responses, &FROM_CHAT).contains(to_responses));
/// assert!(translate(Responses, Messages, &FROM_RESPONSES).contains(to_messages));
/// assert!(translate(Messages, Responses, &FROM_MESSAGES).contains(to_responses));
/// ```
#[derive(Debug)]
pub struct StreamTranslation {
    decoder: SseDecoder,
    reader: Box<dyn AnswerReader>,
    observer: StreamObserver,
    nodes: NodeBuffer,
    is_over: bool,
}

impl StreamTranslation {
    /// Creates the translation. `streamed` says whether the client wants a stream; otherwise the
    /// answer is folded into one body. `event_bytes_max` is the maximum size of a vendor's event.
    pub fn new(
        vendor: Protocol,
        surface: Protocol,
        response_context: ResponseContext,
        streamed: bool,
        event_bytes_max: usize,
    ) -> Self {
        let reader: Box<dyn AnswerReader> = match vendor {
            Protocol::Chat => {
                let places = ChatAnswerPlaces::new(&response_context);
                Box::new(chat::read_stream::ChatStreamReader::new(places))
            }
            Protocol::Messages => {
                let maker_signature = response_context.maker_signature.clone();
                Box::new(messages::read_stream::MessagesStreamReader::new(
                    maker_signature,
                ))
            }
            Protocol::Responses => {
                Box::new(responses::read_stream::ResponsesStreamReader::default())
            }
        };
        StreamTranslation {
            decoder: SseDecoder::new(event_bytes_max),
            reader,
            observer: StreamObserver::new(surface, response_context, streamed),
            nodes: NodeBuffer::new(),
            is_over: false,
        }
    }

    /// Ends an answer that lacks its last event.
    fn end_without_last_event(&mut self, fault: Option<UpstreamError>) -> ReadResult {
        if self.observer.overflowed() {
            return Err(UpstreamError::TooLarge);
        }
        self.observer
            .completion
            .check_end(self.observer.usage().is_some(), fault)?;
        self.reader.finish(&mut self.observer);
        self.observer.check()
    }

    fn process_events(&mut self) -> ReadResult {
        while !self.observer.is_complete() {
            let event = match self.decoder.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => return Err(UpstreamError::TooLarge),
            };
            let data = event.data.unwrap_or_default().trim_ascii();
            // By the rules of event streams, empty data is not an event; a comment wrapped as data
            // is not one either.
            if data.is_empty() || data.starts_with(b":") {
                continue;
            }
            let nodes = std::mem::take(&mut self.nodes);
            let (nodes, outcome) = self
                .reader
                .event(event.name, data, nodes, &mut self.observer);
            // One large event must not enlarge the memory of a long stream permanently.
            self.nodes = if nodes.capacity() > MAX_IDLE_NODES {
                NodeBuffer::new()
            } else {
                nodes
            };
            outcome?;
            self.observer.check()?;
        }
        Ok(())
    }

    /// Returns the changes of the answer that a client must learn of. A streaming client gets them
    /// as comments.
    pub fn warnings(&self) -> &[&'static str] {
        &self.observer.warnings
    }
}

impl ResponseStream for StreamTranslation {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> ReadResult {
        if self.is_over {
            return Ok(());
        }
        self.decoder.feed(bytes);
        let outcome = self
            .process_events()
            .or_else(|fault| self.end_without_last_event(Some(fault)));
        self.observer.take(out);
        self.is_over = outcome.is_err() || self.observer.is_complete();
        outcome
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> ReadResult {
        if self.is_over {
            return if self.observer.is_complete() {
                Ok(())
            } else {
                Err(UpstreamError::Cut)
            };
        }
        self.is_over = true;
        // Some vendors omit the last blank line. A truncated line is not valid JSON, so it is
        // detected.
        self.decoder.close();
        let fault = self.process_events().err();
        if fault.is_none() {
            self.reader.end_of_body(&mut self.observer);
        }
        let outcome = match fault.filter(|fault| matches!(fault, UpstreamError::Vendor(_))) {
            _ if self.observer.is_complete() => Ok(()),
            fault => self.end_without_last_event(fault),
        };
        self.observer.take(out);
        outcome
    }

    fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.observer.is_limited = true;
        for event in [
            Event::Stop(StopReason::MaxTokens),
            Event::Usage {
                usage: *usage,
                is_final: true,
            },
            Event::End,
        ] {
            self.observer.event(event);
        }
        self.observer.take(out);
        self.is_over = true;
    }

    fn is_complete(&self) -> bool {
        self.observer.is_complete()
    }

    fn is_finishing(&self) -> bool {
        self.observer.completion.is_finishing()
    }

    fn has_started(&self) -> bool {
        self.observer.started
    }

    fn has_content(&self) -> bool {
        self.observer.has_content
    }

    fn usage(&self) -> Option<MeteredUsage> {
        self.observer.usage()
    }

    fn usage_so_far(&self) -> Option<Usage> {
        self.observer.known_usage()
    }

    fn counted_output(&self) -> u64 {
        self.observer
            .counted_usage()
            .map_or(0, |metered| metered.counted_output)
    }

    fn generated_bytes(&self) -> u64 {
        self.observer.generated_bytes
    }

    fn shows_thinking(&self) -> bool {
        self.observer.shows_thinking
    }

    fn refused_free(&self) -> bool {
        self.observer.refused_free()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::passthrough::StreamPassthrough;

    /// The default of `limits.event_bytes`.
    const EVENT_BYTES: usize = 33_554_432;

    /// Streams of a call whose arguments, of 1.3 MB, come in one event and in the terminal one.
    fn stream_of_large_call(vendor: Protocol) -> String {
        let arguments = format!(r#"{{\"text\":\"{}\"}}"#, "x".repeat(1_300_000));
        let events = match vendor {
            Protocol::Chat => vec![
                format!(
                    r#"{{"id":"c","choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"call_1","function":{{"name":"f","arguments":"{arguments}"}}}}]}},"finish_reason":"tool_calls"}}],"usage":{{"prompt_tokens":5,"completion_tokens":2}}}}"#
                ),
                "[DONE]".to_owned(),
            ],
            Protocol::Messages => vec![
                r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":5,"output_tokens":1}}}"#.to_owned(),
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}}"#.to_owned(),
                format!(
                    r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":"{arguments}"}}}}"#
                ),
                r#"{"type":"content_block_stop","index":0}"#.to_owned(),
                r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}"#.to_owned(),
                r#"{"type":"message_stop"}"#.to_owned(),
            ],
            Protocol::Responses => {
                let item = format!(
                    r#"{{"id":"fc_1","type":"function_call","call_id":"call_1","name":"f","arguments":"{arguments}","status":"completed"}}"#
                );
                vec![
                    r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#.to_owned(),
                    r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"fc_1","type":"function_call","call_id":"call_1","name":"f","arguments":"","status":"in_progress"}}"#.to_owned(),
                    format!(
                        r#"{{"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":0,"delta":"{arguments}"}}"#
                    ),
                    format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#),
                    format!(
                        r#"{{"type":"response.completed","response":{{"id":"resp_1","status":"completed","output":[{item}],"usage":{{"input_tokens":5,"output_tokens":2,"total_tokens":7}}}}}}"#
                    ),
                ]
            }
        };
        events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect()
    }

    const PROTOCOLS: [Protocol; 3] = [Protocol::Chat, Protocol::Messages, Protocol::Responses];

    #[test]
    fn the_arguments_of_a_call_may_come_in_one_large_event() {
        for vendor in PROTOCOLS {
            let bytes = stream_of_large_call(vendor);
            for surface in PROTOCOLS {
                let context = ResponseContext::default();
                let mut stream =
                    StreamTranslation::new(vendor, surface, context, true, EVENT_BYTES);
                let mut out = Vec::new();
                for piece in bytes.as_bytes().chunks(65_536) {
                    stream.push(piece, &mut out).unwrap();
                }
                assert!(stream.is_complete(), "{vendor} to {surface}");
                assert!(
                    out.len() > 1_300_000,
                    "{vendor} to {surface}: {}",
                    out.len()
                );
            }
            let mut pass = StreamPassthrough::new(vendor, "m", false, EVENT_BYTES);
            let mut out = Vec::new();
            for piece in bytes.as_bytes().chunks(65_536) {
                pass.push(piece, &mut out).unwrap();
            }
            assert!(pass.is_complete() && out.len() > 1_300_000, "{vendor}");
        }
    }

    #[test]
    fn an_event_is_never_larger_than_its_limit() {
        for vendor in PROTOCOLS {
            let event = stream_of_large_call(vendor);
            let largest = event.split_inclusive("\n\n").map(str::len).max().unwrap();
            for (limit, expected) in [
                (largest, Ok(())),
                (largest - 1, Err(UpstreamError::TooLarge)),
            ] {
                let context = ResponseContext::default();
                let mut stream =
                    StreamTranslation::new(vendor, Protocol::Chat, context, true, limit);
                let outcome = stream.push(event.as_bytes(), &mut Vec::new());
                assert_eq!(outcome, expected, "{vendor} {limit}");
            }
        }
    }
}
