//! Translates between protocols: a request through the canonical form to the vendor's protocol, and
//! the answer back as events, streamed or folded.
//!
//! It must not know the fields of any protocol: it only connects the readers and writers. It has no
//! clock and no source of random numbers: the caller passes both in.
//!
//! Read next: `protocol/ir.rs`, then the folder of the caller's protocol.

use super::answer::{Completion, Fault, StopReason, Whole};
use super::failure::{Failure, Kind, VendorError};
use super::form::answer::{Event, Piece, Recall, Sink, Start, Stop};
use super::form::{Refused, Request, Warnings};
use super::request::DEPTH_MAX;
use super::responses::Voice;
use super::rules::{Accepts, Outcome, Target};
use super::sse::Decoder;
use super::surrogates::{Halves, trailing_half};
use super::text::Text;
use super::tree::{Nodes, Tree};
use super::{Protocol, chat, estimate, messages, responses};
use crate::usage::{
    MeteredUsage, ServiceTier, Usage, UsageBounds, UsageEstimator, VendorCounters, meter,
};
use bytes::Bytes;

/// Maximum nesting depth of an answer. Requests have a lower limit.
pub(super) const ANSWER_DEPTH_MAX: u32 = 128;

/// Maximum node buffer that a stream keeps for its next event.
const IDLE_NODES_MAX: usize = 1024;

/// A request to be translated to the vendor's protocol.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub surface: Protocol,
    pub body: &'a [u8],
    pub target: Target<'a>,
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

#[cfg(test)]
impl<'a> Asked<'a> {
    /// Creates the request as the readers' and writers' unit tests need it: for the vendor that
    /// defined the protocol, without a limit of ours.
    pub(crate) fn in_test(
        surface: Protocol,
        body: &'a [u8],
        max_output_tokens: u64,
        accepts: &'a Accepts,
    ) -> Self {
        let target = Target {
            upstream_model: "upstream-model",
            public_model: "public-model",
            max_output_tokens,
            official: true,
            accepts,
        };
        let account_id = "acct_1";
        let request_id = "req_0";
        let estimator = UsageEstimator::default();
        Asked {
            surface,
            body,
            target,
            account_id,
            output_limit: None,
            strict: false,
            clock: || 0,
            request_id,
            estimator,
        }
    }
}

/// The request in the vendor's protocol.
#[derive(Debug)]
pub struct Translated {
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
    pub recall: Recall,
}

/// Further input of the request writers.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    pub target: Target<'a>,
    pub account_id: &'a str,
    /// Lowered to what the account can pay.
    pub output_limit: Option<u64>,
    /// Whether to leave reasoning out, because the vendor refused it the first time.
    pub without_thinking: bool,
}

/// Output of a request writer.
#[derive(Debug, Default)]
pub struct Written {
    pub body: Vec<u8>,
    pub streams: bool,
    pub carries_thinking: bool,
}

/// Returns the outcome of every member of a surface's requests in translation. Each table explains
/// its path syntax.
pub fn fields(surface: Protocol) -> &'static [(&'static str, Outcome)] {
    match surface {
        Protocol::Chat => chat::read_request::FIELDS,
        Protocol::Messages => messages::read_request::FIELDS,
        Protocol::Responses => responses::read_request::FIELDS,
    }
}

/// Memory in bytes for a request's token tree and all structures built from it, per value. Measured
/// by the peak of the resident memory while 100 000 to 900 000 values were counted: 111 to 144
/// bytes for short messages, 127 to 180 for short text blocks, 30 to 41 for numbers.
const TREE_BYTES_PER_VALUE: u64 = 160;

/// Returns the memory needed to translate or count a request with this number of values, in
/// addition to its texts.
pub fn tree_bytes(values: u64) -> u64 {
    values.saturating_mul(TREE_BYTES_PER_VALUE)
}

/// Returns the vendor's path for answers.
pub fn path(vendor: Protocol) -> &'static str {
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
pub fn request(asked: &Asked<'_>, without_thinking: bool) -> Result<Translated, Failure> {
    let tree = read_tree(asked.body)?;
    let mut warnings = Warnings::default();
    let may_search = asked.target.accepts.may_search();
    let mut request =
        read(asked.surface, &tree, may_search, &mut warnings).map_err(|refused| *refused)?;
    let created = (asked.clock)();
    let mut recall = Recall {
        public_model: asked.target.public_model.to_owned(),
        created,
        seed: asked.request_id.to_owned(),
        include_usage: request.include_usage,
        input_estimate: estimate::input_tokens(&request),
        estimator: asked.estimator,
        own_tools: std::mem::take(&mut request.own_tools),
        output_limit: request.limit.map_or(0, |limit| {
            limit.tokens.min(asked.output_limit.unwrap_or(u64::MAX))
        }),
        ..Recall::default()
    };
    if asked.surface == Protocol::Responses {
        recall.voice = Some(Voice::new(
            &request,
            asked.clock,
            asked.target.public_model,
            asked.request_id,
        ));
    }
    let Asked {
        target,
        account_id,
        output_limit,
        ..
    } = *asked;
    let given = Given {
        target,
        account_id,
        output_limit,
        without_thinking,
    };
    let written = match target.accepts {
        Accepts::Messages(model) => {
            messages::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
        Accepts::Chat(model) => {
            chat::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
        Accepts::Responses(model) => {
            responses::write_request::write(&mut request, model, &given, &mut warnings, &mut recall)
        }
    };
    let written = written.map_err(|refused| *refused)?;
    if asked.surface == Protocol::Responses {
        recall.show_thinking = !request.reasoning.hide;
        recall.reasoning_replay = target.accepts.replay();
    }
    let budget_is_given = request.reasoning.is_verbatim;
    let warnings = warnings.into_tokens();
    if let (true, Some(token)) = (asked.strict, warnings.first()) {
        return Err(Failure::new(
            Kind::InvalidRequest,
            format!("Strict mode: {token}"),
        ));
    }
    let Written {
        body,
        streams,
        carries_thinking,
    } = written;
    Ok(Translated {
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
    let tree = read_tree(body)?;
    let request =
        read(surface, &tree, true, &mut Warnings::default()).map_err(|refused| *refused)?;
    Ok(estimate::input_tokens(&request))
}

fn read_tree(body: &[u8]) -> Result<Tree<'_>, Failure> {
    let not_json = || Failure::new(Kind::InvalidRequest, "The request body is not valid JSON.");
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    Tree::read(text, DEPTH_MAX, Nodes::new()).map_err(|_| not_json())
}

fn read<'a>(
    surface: Protocol,
    tree: &'a Tree<'a>,
    may_search: bool,
    warnings: &mut Warnings,
) -> Result<Request<'a>, Refused> {
    match surface {
        Protocol::Chat => chat::read_request::read(tree.root(), warnings),
        Protocol::Messages => messages::read_request::read(tree.root(), warnings),
        Protocol::Responses => responses::read_request::read(tree.root(), may_search, warnings),
    }
}

/// Translation of a vendor's stream for a client of another protocol.
#[derive(Debug)]
pub struct StreamTranslation {
    decoder: Decoder,
    reader: Reader,
    tally: Tally,
    nodes: Nodes,
    is_over: bool,
}

#[derive(Debug)]
enum Reader {
    Chat(chat::read_stream::Reader),
    Messages(messages::read_stream::Reader),
    Responses(responses::read_stream::Reader),
}

#[derive(Debug)]
enum Writer {
    ChatStream(chat::write_stream::Stream),
    ChatWhole(chat::write_stream::Whole),
    MessagesStream(messages::write_stream::Stream),
    MessagesWhole(messages::write_stream::Whole),
    ResponsesStream(responses::write_stream::Stream),
    ResponsesWhole(responses::write_stream::Whole),
}

/// Observes the events and forwards them to the writer.
#[derive(Debug)]
struct Tally {
    writer: Writer,
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
    halves: Halves<u32>,
}

impl Sink for Tally {
    fn event(&mut self, event: Event<'_>) {
        match &event {
            Event::Delta { slot, text } => return self.delta(*slot, text),
            Event::Close { slot } => {
                if let Some(half) = self.halves.take(slot) {
                    self.pass(Event::Delta {
                        slot: *slot,
                        text: Text::token(&half, true),
                    });
                }
            }
            Event::Stop(_) | Event::End => {
                for (slot, half) in self.halves.take_all() {
                    self.pass(Event::Delta {
                        slot,
                        text: Text::token(&half, true),
                    });
                }
            }
            _ => {}
        }
        self.pass(event);
    }
}

impl Tally {
    /// Handles a text delta; joins split surrogate pairs.
    fn delta(&mut self, slot: u32, text: &Text<'_>) {
        let Text::Token { raw, escaped, .. } = text else {
            return self.pass(Event::Delta {
                slot,
                text: text.borrowed(),
            });
        };
        let joined = self.halves.take(&slot).map(|half| half + raw);
        let raw = joined.as_deref().unwrap_or(raw);
        let half = if *escaped { trailing_half(raw) } else { None };
        let (whole, half) = raw.split_at(half.unwrap_or(raw.len()));
        if !half.is_empty() {
            self.halves.hold(slot, half);
        }
        match (joined.is_some() || !half.is_empty(), whole.is_empty()) {
            (_, true) => {}
            (true, false) => self.pass(Event::Delta {
                slot,
                text: Text::token(whole, true),
            }),
            (false, false) => self.pass(Event::Delta {
                slot,
                text: text.borrowed(),
            }),
        }
    }

    fn pass(&mut self, event: Event<'_>) {
        match &event {
            Event::Start(start) => {
                self.started = true;
                self.tier = start
                    .tier
                    .as_ref()
                    .map(|tier| ServiceTier::said(&tier.value()));
            }
            Event::Delta { text, .. } => {
                self.count(text);
                if self.completion.has_stopped() {
                    self.completion.withdraw_stop_reason();
                }
            }
            Event::Open { piece, .. } => {
                self.has_other_output |= !matches!(piece, Piece::Text | Piece::Thinking);
                self.shows_thinking |= matches!(piece, Piece::Thinking | Piece::Hidden { .. });
            }
            Event::Signature { .. } => self.has_other_output = true,
            Event::Stop(stop) => {
                self.completion.set_stop_reason(StopReason::All);
                self.is_refusal = matches!(stop, Stop::Refusal { .. });
            }
            Event::Counters { counters, is_final } => {
                self.counters = Some(**counters);
                self.is_final |= *is_final;
                return self.send_usage();
            }
            Event::End => {
                self.is_cut = self.completion.last_event().is_err();
                if self.is_cut {
                    return;
                }
                // An estimate may depend on everything generated.
                if !self.is_limited {
                    self.send_usage();
                }
            }
            Event::Usage { .. } | Event::Citation { .. } | Event::Close { .. } => {}
        }
        self.has_content |= !matches!(event, Event::Start(_) | Event::Usage { .. });
        self.write(event);
    }

    fn new(vendor: Protocol, surface: Protocol, recall: Recall, streamed: bool) -> Self {
        let (estimator, bounds) = (recall.estimator, recall.usage_bounds);
        let writer = match (surface, streamed) {
            (Protocol::Chat, true) => Writer::ChatStream(chat::write_stream::Stream::new(recall)),
            (Protocol::Chat, false) => Writer::ChatWhole(chat::write_stream::Whole::new(recall)),
            (Protocol::Messages, true) => {
                Writer::MessagesStream(messages::write_stream::Stream::new(recall))
            }
            (Protocol::Messages, false) => {
                Writer::MessagesWhole(messages::write_stream::Whole::new(recall))
            }
            (Protocol::Responses, true) => {
                Writer::ResponsesStream(responses::write_stream::Stream::new(recall))
            }
            (Protocol::Responses, false) => {
                Writer::ResponsesWhole(responses::write_stream::Whole::new(recall))
            }
        };
        Tally {
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
            halves: Halves::default(),
        }
    }

    /// Returns whether the answer is complete and the writer has all of it.
    fn completed(&self) -> bool {
        self.completion.is_complete() && !self.overflowed()
    }

    /// Checks for errors that show only after an event was read.
    fn check(&self) -> Result<(), Fault> {
        if self.overflowed() {
            return Err(Fault::TooLarge);
        }
        if self.is_cut { Err(Fault::Cut) } else { Ok(()) }
    }

    fn count(&mut self, text: &Text<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    fn write(&mut self, event: Event<'_>) {
        match &mut self.writer {
            Writer::ChatStream(writer) => writer.event(event),
            Writer::ChatWhole(writer) => writer.event(event),
            Writer::MessagesStream(writer) => writer.event(event),
            Writer::MessagesWhole(writer) => writer.event(event),
            Writer::ResponsesStream(writer) => writer.event(event),
            Writer::ResponsesWhole(writer) => writer.event(event),
        }
    }

    /// Sends the usage known so far to the writer.
    fn send_usage(&mut self) {
        let final_usage = self.usage().map(|metered| metered.usage);
        if let Some(usage) = final_usage.or_else(|| self.counted().map(|metered| metered.usage)) {
            self.write(Event::Usage {
                usage,
                is_final: final_usage.is_some(),
            });
        }
    }

    /// Returns the usage counted so far, without any estimate.
    fn counted(&self) -> Option<MeteredUsage> {
        Some(meter(
            self.counters.as_ref()?,
            &self.bounds,
            &Usage::default(),
        ))
    }

    /// Returns the usage as far as it is known.
    fn learned(&self) -> Option<Usage> {
        self.counted()
            .map(|metered| metered.usage)
            .or_else(|| self.tier.map(Usage::of_tier))
    }

    /// Returns the usage once the vendor has reported final counts.
    fn usage(&self) -> Option<MeteredUsage> {
        let counters = self.counters.as_ref().filter(|_| self.is_final)?;
        let estimate = self.estimator.usage(self.learned(), self.generated_bytes);
        Some(meter(counters, &self.bounds, &estimate))
    }

    fn refused_free(&self) -> bool {
        let is_nothing = !self.has_other_output && self.generated_bytes == 0;
        self.vendor == Protocol::Messages && self.is_refusal && is_nothing
    }

    /// Returns whether the writer would have to buffer more than its limit.
    fn overflowed(&self) -> bool {
        match &self.writer {
            Writer::ChatStream(writer) => writer.overflowed(),
            Writer::ChatWhole(writer) => writer.overflowed(),
            Writer::MessagesStream(writer) => writer.overflowed(),
            Writer::MessagesWhole(writer) => writer.overflowed(),
            Writer::ResponsesStream(writer) => writer.overflowed(),
            Writer::ResponsesWhole(writer) => writer.overflowed(),
        }
    }

    /// Appends what may be sent now. A whole answer yields nothing until it is complete.
    fn take(&mut self, out: &mut Vec<u8>) {
        let completed = self.completed();
        match &mut self.writer {
            Writer::ChatStream(writer) => writer.take(out),
            Writer::MessagesStream(writer) => writer.take(out),
            Writer::ResponsesStream(writer) => writer.take(out),
            Writer::ChatWhole(writer) if completed => out.extend_from_slice(&writer.body()),
            Writer::MessagesWhole(writer) if completed => out.extend_from_slice(&writer.body()),
            Writer::ResponsesWhole(writer) if completed => out.extend_from_slice(&writer.body()),
            Writer::ChatWhole(_) | Writer::MessagesWhole(_) | Writer::ResponsesWhole(_) => {}
        }
    }
}

impl StreamTranslation {
    /// `streamed`: the caller also wants a stream; otherwise the answer is folded into one body.
    /// `event_bytes_max`: maximum size of a vendor's event.
    pub fn new(
        vendor: Protocol,
        surface: Protocol,
        recall: Recall,
        streamed: bool,
        event_bytes_max: usize,
    ) -> Self {
        let reader = match vendor {
            Protocol::Chat => Reader::Chat(chat::read_stream::Reader::default()),
            Protocol::Messages => Reader::Messages(messages::read_stream::Reader::default()),
            Protocol::Responses => Reader::Responses(responses::read_stream::Reader::default()),
        };
        StreamTranslation {
            decoder: Decoder::new(event_bytes_max),
            reader,
            tally: Tally::new(vendor, surface, recall, streamed),
            nodes: Nodes::new(),
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
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.is_over {
            return Ok(());
        }
        self.decoder.feed(bytes);
        let outcome = self.pass().or_else(|fault| self.end(Some(fault)));
        self.tally.take(out);
        self.is_over = outcome.is_err() || self.tally.completed();
        outcome
    }

    /// Handles the end of the vendor's body. Appends to `out` what a complete answer still lacks at
    /// its end.
    ///
    /// # Errors
    /// Returns an error if the answer is not complete: the vendor's error if its last event is one,
    /// else [`UpstreamError::Cut`]; or [`UpstreamError::TooLarge`].
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.is_over {
            return if self.tally.completed() {
                Ok(())
            } else {
                Err(Fault::Cut)
            };
        }
        self.is_over = true;
        // Some vendors omit the last blank line. A truncated line is not valid JSON, so it is
        // detected.
        self.decoder.close();
        let fault = self.pass().err();
        let outcome = match fault.filter(|fault| matches!(fault, Fault::Vendor(_))) {
            _ if self.tally.completed() => Ok(()),
            fault => self.end(fault),
        };
        self.tally.take(out);
        outcome
    }

    /// Ends an answer whose last event is missing.
    fn end(&mut self, fault: Option<Fault>) -> Result<(), Fault> {
        if self.tally.overflowed() {
            return Err(Fault::TooLarge);
        }
        self.tally
            .completion
            .end(self.tally.usage().is_some(), fault)?;
        match &mut self.reader {
            Reader::Chat(reader) => reader.finish(&mut self.tally),
            Reader::Messages(reader) => reader.finish(&mut self.tally),
            // Its stop reason is its last event.
            Reader::Responses(_) => {}
        }
        self.tally.check()
    }

    fn pass(&mut self) -> Result<(), Fault> {
        while !self.tally.completed() {
            let event = match self.decoder.next() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => return Err(Fault::TooLarge),
            };
            let data = event.data.unwrap_or_default().trim_ascii();
            // By the rules of event streams, empty data is not an event; a comment wrapped as data
            // is not one either.
            if data.is_empty() || data.starts_with(b":") {
                continue;
            }
            let nodes = std::mem::take(&mut self.nodes);
            let (nodes, outcome) = match &mut self.reader {
                Reader::Chat(reader) => reader.event(event.name, data, nodes, &mut self.tally),
                Reader::Messages(reader) => reader.event(event.name, data, nodes, &mut self.tally),
                Reader::Responses(reader) => reader.event(event.name, data, nodes, &mut self.tally),
            };
            // One large event must not enlarge the memory of a long stream permanently.
            self.nodes = if nodes.capacity() > IDLE_NODES_MAX {
                Nodes::new()
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
            Event::Stop(Stop::MaxTokens),
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
    pub fn completed(&self) -> bool {
        self.tally.completed()
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
    pub fn started(&self) -> bool {
        self.tally.started
    }

    /// Returns the usage once the vendor has reported final counts.
    pub fn usage(&self) -> Option<MeteredUsage> {
        self.tally.usage()
    }

    /// Returns the output as the vendor counts it so far. It may exceed the request's upper bound.
    pub fn counted_output(&self) -> u64 {
        self.tally
            .counted()
            .map_or(0, |metered| metered.counted_output)
    }

    /// Returns the usage so far, if the vendor reports it before the end.
    pub fn input_learned(&self) -> Option<Usage> {
        self.tally.learned()
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
pub fn whole(
    vendor: Protocol,
    surface: Protocol,
    recall: Recall,
    streamed: bool,
    body: &[u8],
) -> Result<Whole, Fault> {
    let text = std::str::from_utf8(body).map_err(|_| Fault::NotJson)?;
    let tree = Tree::read(text, ANSWER_DEPTH_MAX, Nodes::new()).map_err(|_| Fault::NotJson)?;
    let mut tally = Tally::new(vendor, surface, recall, streamed);
    match vendor {
        Protocol::Chat => chat::read_stream::whole(tree.root(), &mut tally)?,
        Protocol::Messages => messages::read_stream::whole(tree.root(), &mut tally)?,
        Protocol::Responses => responses::read_stream::whole(tree.root(), &mut tally)?,
    }
    // A whole body cannot be cut off in transit; it lacks a stop reason.
    tally.check().map_err(|fault| {
        if fault == Fault::Cut {
            Fault::Empty
        } else {
            fault
        }
    })?;
    let mut out = Vec::with_capacity(body.len());
    tally.take(&mut out);
    Ok(Whole {
        body: out.into(),
        usage: tally.usage(),
        learned: tally.learned(),
        generated_bytes: tally.generated_bytes,
        refused_free: tally.refused_free(),
    })
}

/// Returns whether the vendor refuses the reasoning that came with a request, for a reason that
/// only it can check, such as a signature.
pub fn refuses_thinking(error_body: &[u8]) -> bool {
    let error = VendorError::read(error_body).unwrap_or_default();
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
pub fn means_limit_reached(error_body: &[u8]) -> bool {
    let message = VendorError::read(error_body).unwrap_or_default().message;
    message.starts_with(
        "Could not finish the message because max_tokens or model output limit was reached",
    )
}

/// Returns an answer that reached its output limit before any output.
pub fn nothing_said(
    vendor: Protocol,
    surface: Protocol,
    recall: Recall,
    streamed: bool,
) -> Vec<u8> {
    let usage = Usage {
        input: recall.input_estimate,
        output: recall.output_limit,
        ..Usage::default()
    };
    let mut tally = Tally::new(vendor, surface, recall, streamed);
    tally.event(Event::Start(Start::default()));
    tally.event(Event::Stop(Stop::MaxTokens));
    tally.event(Event::Usage {
        usage,
        is_final: true,
    });
    tally.event(Event::End);
    let mut out = Vec::new();
    tally.take(&mut out);
    out
}
