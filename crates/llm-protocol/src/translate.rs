//! Translates between protocols: a request through the canonical form to the vendor's protocol, and
//! the answer back as events, streamed or folded.
//!
//! It must not know the fields of any protocol: it only connects the readers and writers. It has no
//! clock and no source of random numbers: the caller passes both in.
//!
//! Read next: `ir.rs`, then the folder of the caller's protocol.

use super::capabilities::{FieldMapping, ModelCapabilities, TranslationTarget};
use super::failure::{Failure, Kind, VendorError};
use super::ir::event::{
    Event, EventSink, OutputPart, ResponseContext, ResponseStart, StopReason, UpstreamError,
};
pub use super::ir::write_context::{EncodedRequest, WriteContext};
use super::ir::{BoxedFailure, Request, Warnings};
use super::json::document::{JsonDocument, NodeBuffer};
use super::json::nesting::{MAX_DEPTH, MAX_RESPONSE_DEPTH};
use super::json::string::JsonStr;
use super::responses::EventSequencer;
use super::sse::SseDecoder;
use super::surrogates::{PendingSurrogates, trailing_high_surrogate};
use super::vendor_response::{CompleteResponse, Completion, StopReasonStatus};
use super::{Protocol, chat, estimate, fields, messages, responses};
use crate::usage::{
    MeteredUsage, ServiceTier, Usage, UsageBounds, UsageEstimator, VendorCounters, meter,
};
use bytes::Bytes;

#[cfg(test)]
mod tests;

/// Maximum node buffer that a stream keeps for its next event.
const MAX_IDLE_NODES: usize = 1024;

/// A request to be translated to the vendor's protocol.
#[derive(Clone, Copy, Debug)]
pub struct TranslationRequest<'a> {
    pub surface: Protocol,
    pub body: &'a [u8],
    pub target: TranslationTarget<'a>,
    /// Account id. Its hash distinguishes the end users of different accounts.
    pub account_id: &'a str,
    /// Output limit to send, if the account can pay for less than the caller asked for.
    pub output_limit: Option<u64>,
    /// Whether every warning refuses the request.
    pub strict: bool,
    /// Returns Unix time in seconds, for an answer that states when it began and when it completed.
    pub clock: fn() -> u64,
    /// This request's own id.
    pub request_id: &'a str,
    /// Estimates the usage for the client if the vendor reports none.
    pub estimator: UsageEstimator,
}

/// The request in the vendor's protocol.
#[derive(Debug)]
pub struct TranslatedRequest {
    pub body: Bytes,
    /// Warnings `action:path`, sorted.
    pub warnings: Vec<String>,
    /// Whether the vendor request asks for a stream, independently of the caller.
    pub streams: bool,
    /// Whether a thinking configuration or thinking blocks are sent, which the vendor may refuse
    /// for reasons that only it can check.
    pub carries_thinking: bool,
    /// Whether a thinking budget in it is the caller's own, not one inserted here.
    pub budget_is_given: bool,
    pub recall: ResponseContext,
}

/// Returns the outcome of every member of a surface's requests in translation. Each table explains
/// its path syntax.
pub fn field_mappings(surface: Protocol) -> &'static [(&'static str, FieldMapping)] {
    match surface {
        Protocol::Chat => fields::chat::FIELDS,
        Protocol::Messages => fields::messages::FIELDS,
        Protocol::Responses => fields::responses::FIELDS,
    }
}

/// Memory in bytes for a request's token tree and all structures built from it, per value. Measured
/// by the peak of the resident memory while 100 000 to 900 000 values were counted: 111 to 144
/// bytes for short messages, 127 to 180 for short text blocks, 30 to 41 for numbers.
const DOCUMENT_BYTES_PER_VALUE: u64 = 160;

/// Returns the memory needed to translate or count a request with this number of values, in
/// addition to its texts.
pub fn document_bytes(values: u64) -> u64 {
    values.saturating_mul(DOCUMENT_BYTES_PER_VALUE)
}

/// Returns the vendor's path for answers.
pub fn vendor_path(vendor: Protocol) -> &'static str {
    match vendor {
        Protocol::Chat => "/v1/chat/completions",
        Protocol::Messages => "/v1/messages",
        Protocol::Responses => "/v1/responses",
    }
}

/// Translates a request to the vendor's protocol. `without_thinking`: retry after the vendor
/// refused the reasoning.
///
/// # Errors
/// Returns a failure if the request breaks a rule of its surface, or requires a feature that the
/// model lacks.
pub fn translate_request(
    asked: &TranslationRequest<'_>,
    without_thinking: bool,
) -> Result<TranslatedRequest, Failure> {
    let tree = parse_body(asked.body)?;
    let mut warnings = Warnings::default();
    let may_search = asked.target.accepts.may_search();
    let mut request = read_request(asked.surface, &tree, may_search, &mut warnings)
        .map_err(|refused| *refused)?;
    let created = (asked.clock)();
    let mut recall = ResponseContext {
        public_model: asked.target.public_model.to_owned(),
        created,
        seed: asked.request_id.to_owned(),
        include_usage: request.include_usage,
        input_estimate: estimate::estimate_input_tokens(&request),
        estimator: asked.estimator,
        own_tools: std::mem::take(&mut request.own_tools),
        output_limit: request.limit.map_or(0, |limit| {
            limit.tokens.min(asked.output_limit.unwrap_or(u64::MAX))
        }),
        ..ResponseContext::default()
    };
    if asked.surface == Protocol::Responses {
        recall.voice = Some(EventSequencer::new(
            &request,
            asked.clock,
            asked.target.public_model,
            asked.request_id,
        ));
    }
    let TranslationRequest {
        target,
        account_id,
        output_limit,
        ..
    } = *asked;
    let given = WriteContext {
        target,
        account_id,
        output_limit,
        without_thinking,
    };
    let written = match target.accepts {
        ModelCapabilities::Messages(model) => {
            messages::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
        ModelCapabilities::Chat(model) => {
            chat::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
        ModelCapabilities::Responses(model) => {
            responses::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
    };
    let written = written.map_err(|refused| *refused)?;
    if asked.surface == Protocol::Responses {
        recall.show_thinking = !request.reasoning.hide;
        recall.reasoning_replay = target.accepts.reasoning_replay();
    }
    let budget_is_given = request.reasoning.is_verbatim;
    let warnings = warnings.into_tokens();
    if let (true, Some(token)) = (asked.strict, warnings.first()) {
        return Err(Failure::new(
            Kind::InvalidRequest,
            format!("Strict mode: {token}"),
        ));
    }
    let EncodedRequest {
        body,
        streams,
        carries_thinking,
    } = written;
    Ok(TranslatedRequest {
        body: body.into(),
        warnings,
        streams,
        carries_thinking,
        budget_is_given,
        recall,
    })
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

fn parse_body(body: &[u8]) -> Result<JsonDocument<'_>, Failure> {
    let not_json = || Failure::new(Kind::InvalidRequest, "The request body is not valid JSON.");
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    JsonDocument::parse(text, MAX_DEPTH, NodeBuffer::new()).map_err(|_| not_json())
}

fn read_request<'a>(
    surface: Protocol,
    tree: &'a JsonDocument<'a>,
    may_search: bool,
    warnings: &mut Warnings,
) -> Result<Request<'a>, BoxedFailure> {
    match surface {
        Protocol::Chat => chat::read_request::read(tree.root(), warnings),
        Protocol::Messages => messages::read_request::read(tree.root(), warnings),
        Protocol::Responses => responses::read_request::read(tree.root(), may_search, warnings),
    }
}

/// Translation of a vendor's stream for a client of another protocol.
#[derive(Debug)]
pub struct StreamTranslation {
    decoder: SseDecoder,
    reader: VendorReader,
    tally: StreamObserver,
    nodes: NodeBuffer,
    is_over: bool,
}

#[derive(Debug)]
enum VendorReader {
    Chat(chat::read_stream::ChatStreamReader),
    Messages(messages::read_stream::MessagesStreamReader),
    Responses(responses::read_stream::ResponsesStreamReader),
}

#[derive(Debug)]
enum SurfaceWriter {
    ChatStream(chat::write_stream::ChatStreamWriter),
    ChatWhole(chat::write_stream::ChatBodyWriter),
    MessagesStream(messages::write_stream::MessagesStreamWriter),
    MessagesWhole(messages::write_stream::MessagesBodyWriter),
    ResponsesStream(responses::write_stream::ResponsesStreamWriter),
    ResponsesWhole(responses::write_stream::ResponsesBodyWriter),
}

/// Observes the events and forwards them to the writer.
#[derive(Debug)]
struct StreamObserver {
    writer: SurfaceWriter,
    vendor: Protocol,
    started: bool,
    has_content: bool,
    completion: Completion,
    /// Whether the last event came without a stop reason.
    is_cut: bool,
    generated_bytes: u64,
    counters: Option<VendorCounters>,
    is_final: bool,
    tier: Option<ServiceTier>,
    estimator: UsageEstimator,
    bounds: UsageBounds,
    /// Whether the gateway ended the answer and set its usage.
    is_limited: bool,
    is_refusal: bool,
    has_other_output: bool,
    shows_thinking: bool,
    /// Split surrogate pairs, by slot.
    halves: PendingSurrogates<u32>,
}

impl EventSink for StreamObserver {
    fn event(&mut self, event: Event<'_>) {
        match &event {
            Event::Delta { slot, text } => return self.forward_delta(*slot, text),
            Event::Close { slot } => {
                if let Some(half) = self.halves.take(slot) {
                    self.forward(Event::Delta {
                        slot: *slot,
                        text: JsonStr::from_token(&half, true),
                    });
                }
            }
            Event::Stop(_) | Event::End => {
                for (slot, half) in self.halves.take_all() {
                    self.forward(Event::Delta {
                        slot,
                        text: JsonStr::from_token(&half, true),
                    });
                }
            }
            _ => {}
        }
        self.forward(event);
    }
}

impl StreamObserver {
    /// Handles a text delta; joins split surrogate pairs.
    fn forward_delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        let JsonStr::Token { raw, escaped, .. } = text else {
            return self.forward(Event::Delta {
                slot,
                text: text.reborrow(),
            });
        };
        let joined = self.halves.take(&slot).map(|half| half + raw);
        let raw = joined.as_deref().unwrap_or(raw);
        let half = if *escaped {
            trailing_high_surrogate(raw)
        } else {
            None
        };
        let (whole, half) = raw.split_at(half.unwrap_or(raw.len()));
        if !half.is_empty() {
            self.halves.insert(slot, half);
        }
        match (joined.is_some() || !half.is_empty(), whole.is_empty()) {
            (_, true) => {}
            (true, false) => self.forward(Event::Delta {
                slot,
                text: JsonStr::from_token(whole, true),
            }),
            (false, false) => self.forward(Event::Delta {
                slot,
                text: text.reborrow(),
            }),
        }
    }

    fn forward(&mut self, event: Event<'_>) {
        match &event {
            Event::Start(start) => {
                self.started = true;
                self.tier = start
                    .tier
                    .as_ref()
                    .map(|tier| ServiceTier::from_wire(&tier.value()));
            }
            Event::Delta { text, .. } => {
                self.count_text(text);
                if self.completion.has_stopped() {
                    self.completion.withdraw_stop_reason();
                }
            }
            Event::Open { piece, .. } => {
                self.has_other_output |= !matches!(piece, OutputPart::Text | OutputPart::Thinking);
                self.shows_thinking |=
                    matches!(piece, OutputPart::Thinking | OutputPart::Hidden { .. });
            }
            Event::Signature { .. } => self.has_other_output = true,
            Event::Stop(stop) => {
                self.completion.set_stop_reason(StopReasonStatus::All);
                self.is_refusal = matches!(stop, StopReason::Refusal { .. });
            }
            Event::Counters { counters, is_final } => {
                self.counters = Some(**counters);
                self.is_final |= *is_final;
                return self.write_usage();
            }
            Event::End => {
                self.is_cut = self.completion.record_last_event().is_err();
                if self.is_cut {
                    return;
                }
                // An estimate may depend on everything generated.
                if !self.is_limited {
                    self.write_usage();
                }
            }
            Event::Usage { .. } | Event::Citation { .. } | Event::Close { .. } => {}
        }
        self.has_content |= !matches!(event, Event::Start(_) | Event::Usage { .. });
        self.write_event(event);
    }

    fn new(vendor: Protocol, surface: Protocol, recall: ResponseContext, streamed: bool) -> Self {
        let (estimator, bounds) = (recall.estimator, recall.usage_bounds);
        let writer = match (surface, streamed) {
            (Protocol::Chat, true) => {
                SurfaceWriter::ChatStream(chat::write_stream::ChatStreamWriter::new(recall))
            }
            (Protocol::Chat, false) => {
                SurfaceWriter::ChatWhole(chat::write_stream::ChatBodyWriter::new(recall))
            }
            (Protocol::Messages, true) => SurfaceWriter::MessagesStream(
                messages::write_stream::MessagesStreamWriter::new(recall),
            ),
            (Protocol::Messages, false) => SurfaceWriter::MessagesWhole(
                messages::write_stream::MessagesBodyWriter::new(recall),
            ),
            (Protocol::Responses, true) => SurfaceWriter::ResponsesStream(
                responses::write_stream::ResponsesStreamWriter::new(recall),
            ),
            (Protocol::Responses, false) => SurfaceWriter::ResponsesWhole(
                responses::write_stream::ResponsesBodyWriter::new(recall),
            ),
        };
        StreamObserver {
            writer,
            vendor,
            started: false,
            has_content: false,
            completion: Completion::default(),
            is_cut: false,
            generated_bytes: 0,
            counters: None,
            is_final: false,
            tier: None,
            estimator,
            bounds,
            is_limited: false,
            is_refusal: false,
            has_other_output: false,
            shows_thinking: false,
            halves: PendingSurrogates::default(),
        }
    }

    /// Returns whether the answer is complete and the writer has all of it.
    fn is_complete(&self) -> bool {
        self.completion.is_complete() && !self.overflowed()
    }

    /// Checks for errors that show only after an event was read.
    fn check(&self) -> Result<(), UpstreamError> {
        if self.overflowed() {
            return Err(UpstreamError::TooLarge);
        }
        if self.is_cut {
            Err(UpstreamError::Cut)
        } else {
            Ok(())
        }
    }

    fn count_text(&mut self, text: &JsonStr<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    fn write_event(&mut self, event: Event<'_>) {
        match &mut self.writer {
            SurfaceWriter::ChatStream(writer) => writer.event(event),
            SurfaceWriter::ChatWhole(writer) => writer.event(event),
            SurfaceWriter::MessagesStream(writer) => writer.event(event),
            SurfaceWriter::MessagesWhole(writer) => writer.event(event),
            SurfaceWriter::ResponsesStream(writer) => writer.event(event),
            SurfaceWriter::ResponsesWhole(writer) => writer.event(event),
        }
    }

    /// Sends the usage known so far to the writer.
    fn write_usage(&mut self) {
        let final_usage = self.usage().map(|metered| metered.usage);
        if let Some(usage) =
            final_usage.or_else(|| self.counted_usage().map(|metered| metered.usage))
        {
            self.write_event(Event::Usage {
                usage,
                is_final: final_usage.is_some(),
            });
        }
    }

    /// Returns the usage counted so far, without any estimate.
    fn counted_usage(&self) -> Option<MeteredUsage> {
        Some(meter(
            self.counters.as_ref()?,
            &self.bounds,
            &Usage::default(),
        ))
    }

    /// Returns the usage as far as it is known.
    fn known_usage(&self) -> Option<Usage> {
        self.counted_usage()
            .map(|metered| metered.usage)
            .or_else(|| self.tier.map(Usage::from_tier))
    }

    /// Returns the usage once the vendor has reported final counts.
    fn usage(&self) -> Option<MeteredUsage> {
        let counters = self.counters.as_ref().filter(|_| self.is_final)?;
        let estimate = self
            .estimator
            .usage(self.known_usage(), self.generated_bytes);
        Some(meter(counters, &self.bounds, &estimate))
    }

    fn refused_free(&self) -> bool {
        let is_nothing = !self.has_other_output && self.generated_bytes == 0;
        self.vendor == Protocol::Messages && self.is_refusal && is_nothing
    }

    /// Returns whether the writer would have to buffer more than its limit.
    fn overflowed(&self) -> bool {
        match &self.writer {
            SurfaceWriter::ChatStream(writer) => writer.overflowed(),
            SurfaceWriter::ChatWhole(writer) => writer.overflowed(),
            SurfaceWriter::MessagesStream(writer) => writer.overflowed(),
            SurfaceWriter::MessagesWhole(writer) => writer.overflowed(),
            SurfaceWriter::ResponsesStream(writer) => writer.overflowed(),
            SurfaceWriter::ResponsesWhole(writer) => writer.overflowed(),
        }
    }

    /// Appends what may be sent now. A whole answer yields nothing until it is complete.
    fn take(&mut self, out: &mut Vec<u8>) {
        let completed = self.is_complete();
        match &mut self.writer {
            SurfaceWriter::ChatStream(writer) => writer.take(out),
            SurfaceWriter::MessagesStream(writer) => writer.take(out),
            SurfaceWriter::ResponsesStream(writer) => writer.take(out),
            SurfaceWriter::ChatWhole(writer) if completed => out.extend_from_slice(&writer.body()),
            SurfaceWriter::MessagesWhole(writer) if completed => {
                out.extend_from_slice(&writer.body())
            }
            SurfaceWriter::ResponsesWhole(writer) if completed => {
                out.extend_from_slice(&writer.body())
            }
            SurfaceWriter::ChatWhole(_)
            | SurfaceWriter::MessagesWhole(_)
            | SurfaceWriter::ResponsesWhole(_) => {}
        }
    }
}

impl StreamTranslation {
    /// `streamed`: the caller also wants a stream; otherwise the answer is folded into one body.
    /// `event_bytes_max`: maximum size of a vendor's event.
    pub fn new(
        vendor: Protocol,
        surface: Protocol,
        recall: ResponseContext,
        streamed: bool,
        event_bytes_max: usize,
    ) -> Self {
        let reader = match vendor {
            Protocol::Chat => VendorReader::Chat(chat::read_stream::ChatStreamReader::default()),
            Protocol::Messages => {
                VendorReader::Messages(messages::read_stream::MessagesStreamReader::default())
            }
            Protocol::Responses => {
                VendorReader::Responses(responses::read_stream::ResponsesStreamReader::default())
            }
        };
        StreamTranslation {
            decoder: SseDecoder::new(event_bytes_max),
            reader,
            tally: StreamObserver::new(vendor, surface, recall, streamed),
            nodes: NodeBuffer::new(),
            is_over: false,
        }
    }

    /// Reads the vendor's `bytes` and appends to `out` what the gateway may send on. The bytes of
    /// the terminal event are in `out` when [`StreamTranslation::is_complete`] turns true within
    /// this call: the caller must write its journal before it releases `out`. After an error or the
    /// terminal event, further bytes are dropped.
    ///
    /// # Errors
    /// Returns an [`UpstreamError`] if the stream cannot continue. Nothing of the faulty event was
    /// sent on.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        if self.is_over {
            return Ok(());
        }
        self.decoder.feed(bytes);
        let outcome = self
            .process_events()
            .or_else(|fault| self.end_without_last_event(Some(fault)));
        self.tally.take(out);
        self.is_over = outcome.is_err() || self.tally.is_complete();
        outcome
    }

    /// Handles the end of the vendor's body. Appends to `out` what a complete answer still lacks at
    /// its end.
    ///
    /// # Errors
    /// Returns an error if the answer is not complete: the vendor's error if its last event is one,
    /// else [`UpstreamError::Cut`]; or [`UpstreamError::TooLarge`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        if self.is_over {
            return if self.tally.is_complete() {
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
        let outcome = match fault.filter(|fault| matches!(fault, UpstreamError::Vendor(_))) {
            _ if self.tally.is_complete() => Ok(()),
            fault => self.end_without_last_event(fault),
        };
        self.tally.take(out);
        outcome
    }

    /// Ends an answer whose last event is missing.
    fn end_without_last_event(
        &mut self,
        fault: Option<UpstreamError>,
    ) -> Result<(), UpstreamError> {
        if self.tally.overflowed() {
            return Err(UpstreamError::TooLarge);
        }
        self.tally
            .completion
            .check_end(self.tally.usage().is_some(), fault)?;
        match &mut self.reader {
            VendorReader::Chat(reader) => reader.finish(&mut self.tally),
            VendorReader::Messages(reader) => reader.finish(&mut self.tally),
            // Its stop reason is its last event.
            VendorReader::Responses(_) => {}
        }
        self.tally.check()
    }

    fn process_events(&mut self) -> Result<(), UpstreamError> {
        while !self.tally.is_complete() {
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
            let (nodes, outcome) = match &mut self.reader {
                VendorReader::Chat(reader) => {
                    reader.event(event.name, data, nodes, &mut self.tally)
                }
                VendorReader::Messages(reader) => {
                    reader.event(event.name, data, nodes, &mut self.tally)
                }
                VendorReader::Responses(reader) => {
                    reader.event(event.name, data, nodes, &mut self.tally)
                }
            };
            // One large event must not enlarge the memory of a long stream permanently.
            self.nodes = if nodes.capacity() > MAX_IDLE_NODES {
                NodeBuffer::new()
            } else {
                nodes
            };
            outcome?;
            self.tally.check()?;
        }
        Ok(())
    }

    /// Ends the answer here, at the output limit. `usage` is the usage reported to the client.
    pub fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        self.tally.is_limited = true;
        for event in [
            Event::Stop(StopReason::MaxTokens),
            Event::Usage {
                usage: *usage,
                is_final: true,
            },
            Event::End,
        ] {
            self.tally.event(event);
        }
        self.tally.take(out);
        self.is_over = true;
    }

    /// Returns whether the answer is complete and its last byte was written to `out`.
    pub fn is_complete(&self) -> bool {
        self.tally.is_complete()
    }

    /// Returns whether the stop reason has come and the last event has not.
    pub fn is_finishing(&self) -> bool {
        self.tally.completion.is_finishing()
    }

    /// Returns whether more than the answer's opening has come.
    pub fn has_content(&self) -> bool {
        self.tally.has_content
    }

    /// Returns whether any event of the answer has come.
    pub fn has_started(&self) -> bool {
        self.tally.started
    }

    /// Returns the usage once the vendor has reported final counts.
    pub fn usage(&self) -> Option<MeteredUsage> {
        self.tally.usage()
    }

    /// Returns the output as the vendor counts it so far. It may exceed the request's upper bound.
    pub fn counted_output(&self) -> u64 {
        self.tally
            .counted_usage()
            .map_or(0, |metered| metered.counted_output)
    }

    /// Returns the usage so far, if the vendor reports it before the end.
    pub fn usage_so_far(&self) -> Option<Usage> {
        self.tally.known_usage()
    }

    /// UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub fn generated_bytes(&self) -> u64 {
        self.tally.generated_bytes
    }

    /// Returns whether any thinking was seen, if only its signature.
    pub fn shows_thinking(&self) -> bool {
        self.tally.shows_thinking
    }

    /// Returns whether a messages vendor refused before any output. The vendor documents this as
    /// free.
    pub fn refused_free(&self) -> bool {
        self.tally.refused_free()
    }
}

/// Reads a vendor's whole answer and writes it in the caller's protocol.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not a complete answer.
pub fn translate_response(
    vendor: Protocol,
    surface: Protocol,
    recall: ResponseContext,
    streamed: bool,
    body: &[u8],
) -> Result<CompleteResponse, UpstreamError> {
    let text = std::str::from_utf8(body).map_err(|_| UpstreamError::NotJson)?;
    let tree = JsonDocument::parse(text, MAX_RESPONSE_DEPTH, NodeBuffer::new())
        .map_err(|_| UpstreamError::NotJson)?;
    let mut tally = StreamObserver::new(vendor, surface, recall, streamed);
    match vendor {
        Protocol::Chat => chat::read_stream::read_body(tree.root(), &mut tally)?,
        Protocol::Messages => messages::read_stream::read_body(tree.root(), &mut tally)?,
        Protocol::Responses => responses::read_stream::read_body(tree.root(), &mut tally)?,
    }
    // A whole body cannot be cut off in transit; it lacks a stop reason.
    tally.check().map_err(|fault| {
        if fault == UpstreamError::Cut {
            UpstreamError::Empty
        } else {
            fault
        }
    })?;
    let mut out = Vec::with_capacity(body.len());
    tally.take(&mut out);
    Ok(CompleteResponse {
        body: out.into(),
        usage: tally.usage(),
        learned: tally.known_usage(),
        generated_bytes: tally.generated_bytes,
        refused_free: tally.refused_free(),
    })
}

/// Returns whether the vendor refuses the reasoning that came with a request, for a reason that
/// only it can check, such as a signature.
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

/// Returns whether a reasoning model of a chat vendor ran into the output limit before any output.
/// The vendor reports that as an error.
pub fn is_limit_reached_error(error_body: &[u8]) -> bool {
    let message = VendorError::parse(error_body).unwrap_or_default().message;
    message.starts_with(
        "Could not finish the message because max_tokens or model output limit was reached",
    )
}

/// Returns an answer that reached its output limit before any output.
pub fn empty_response_at_limit(
    vendor: Protocol,
    surface: Protocol,
    recall: ResponseContext,
    streamed: bool,
) -> Vec<u8> {
    let usage = Usage {
        input: recall.input_estimate,
        output: recall.output_limit,
        ..Usage::default()
    };
    let mut tally = StreamObserver::new(vendor, surface, recall, streamed);
    tally.event(Event::Start(ResponseStart::default()));
    tally.event(Event::Stop(StopReason::MaxTokens));
    tally.event(Event::Usage {
        usage,
        is_final: true,
    });
    tally.event(Event::End);
    let mut out = Vec::new();
    tally.take(&mut out);
    out
}
