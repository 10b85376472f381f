//! Observes the completeness and the usage of an answer on the way to the writer of the client's
//! protocol, and joins split surrogate pairs.
//!
//! This file must not change an event, except to join the halves of a pair.
//!
//! Read next: `vendor_response/completion.rs`.

use crate::capabilities::identifiers::CallIdAllocator;
use crate::chat::write_stream::{ChatBodyWriter, ChatStreamWriter};
use crate::ir::event::{
    AnswerWriter, Event, EventSink, OutputPart, ReadResult, ResponseContext, StopReason,
    UpstreamError,
};
use crate::json::JsonStr;
use crate::messages::write_stream::{MessagesBodyWriter, MessagesStreamWriter};
use crate::responses::write_stream::ResponsesAnswerBuilder;
use crate::surrogates::{PendingSurrogates, trailing_high_surrogate};
use crate::usage::{
    MeteredUsage, ServiceTier, Usage, UsageBounds, UsageEstimator, VendorCounters, meter,
};
use crate::vendor_response::{Completion, StopReasonStatus};
use crate::{Protocol, keepalive};

/// Observes the events and forwards them to the writer.
#[derive(Debug)]
pub(super) struct StreamObserver {
    writer: Box<dyn AnswerWriter>,
    is_stream: bool,
    pub started: bool,
    pub has_content: bool,
    pub completion: Completion,
    /// True if the last event came without a stop reason.
    is_cut: bool,
    pub generated_bytes: u64,
    counters: Option<VendorCounters>,
    is_final: bool,
    tier: Option<ServiceTier>,
    estimator: UsageEstimator,
    bounds: UsageBounds,
    /// True if the gateway ended the answer and set its usage.
    pub is_limited: bool,
    is_free_refusal: bool,
    has_other_output: bool,
    pub shows_thinking: bool,
    pub warnings: Vec<&'static str>,
    /// Ids of the calls in the conversation and in this answer so far.
    call_ids: CallIdAllocator,
    /// The output of a stream up to its last warning, and that warning.
    before_warning: Vec<u8>,
    /// Halves of surrogate pairs, by slot.
    halves: PendingSurrogates<u32>,
}

impl EventSink for StreamObserver {
    fn event(&mut self, event: Event<'_>) {
        match &event {
            Event::Delta { slot, text } => return self.forward_delta(*slot, text),
            Event::Open {
                slot,
                piece:
                    OutputPart::Call {
                        id: Some(id),
                        name,
                        is_custom,
                    },
            } => {
                // Clients and vendors identify a call by its id, and some vendors count from 0 in
                // each answer.
                let id = self.call_ids.make_unique(id.value().into_owned());
                return self.forward(Event::Open {
                    slot: *slot,
                    piece: OutputPart::Call {
                        id: Some(JsonStr::from_value(&id)),
                        name: name.reborrow(),
                        is_custom: *is_custom,
                    },
                });
            }
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
        let Some(raw) = text.token() else {
            return self.forward(Event::Delta {
                slot,
                text: text.reborrow(),
            });
        };
        let joined = self.halves.take(&slot).map(|half| half + raw);
        let raw = joined.as_deref().unwrap_or(raw);
        let half = if text.is_escaped() {
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
                self.is_free_refusal = matches!(
                    stop,
                    StopReason::Refusal {
                        is_billed: false,
                        ..
                    }
                );
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
                // The estimate may depend on all generated text, so it must wait for the end.
                if !self.is_limited {
                    self.write_usage();
                }
            }
            Event::Warning(warning) => {
                return self.add_warning(warning);
            }
            Event::Usage { .. } | Event::Citation { .. } | Event::Close { .. } => {}
        }
        self.has_content |= !matches!(event, Event::Start(_) | Event::Usage { .. });
        self.writer.event(event);
    }

    pub fn new(surface: Protocol, response_context: ResponseContext, streamed: bool) -> Self {
        let (estimator, bounds) = (response_context.estimator, response_context.usage_bounds);
        let mut call_ids = CallIdAllocator::default();
        for id in &response_context.call_ids {
            call_ids.make_unique(id.clone());
        }
        let writer: Box<dyn AnswerWriter> = match (surface, streamed) {
            (Protocol::Chat, true) => Box::new(ChatStreamWriter::new(response_context)),
            (Protocol::Chat, false) => Box::new(ChatBodyWriter::new(response_context)),
            (Protocol::Messages, true) => Box::new(MessagesStreamWriter::new(response_context)),
            (Protocol::Messages, false) => Box::new(MessagesBodyWriter::new(response_context)),
            (Protocol::Responses, _) => {
                Box::new(ResponsesAnswerBuilder::new(response_context, streamed))
            }
        };
        StreamObserver {
            writer,
            is_stream: streamed,
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
            is_free_refusal: false,
            has_other_output: false,
            shows_thinking: false,
            warnings: Vec::new(),
            call_ids,
            before_warning: Vec::new(),
            halves: PendingSurrogates::default(),
        }
    }

    /// Returns whether the answer is complete and the writer has all of it.
    pub fn is_complete(&self) -> bool {
        self.completion.is_complete() && !self.overflowed()
    }

    /// Checks for errors that appear only after an event was read.
    pub fn check(&self) -> ReadResult {
        if self.overflowed() {
            return Err(UpstreamError::TooLarge);
        }
        if self.is_cut {
            Err(UpstreamError::Cut)
        } else {
            Ok(())
        }
    }

    /// Records a warning. In a stream the warning follows the event that caused it, however the
    /// vendor's bytes are split.
    fn add_warning(&mut self, warning: &'static str) {
        if self.warnings.contains(&warning) {
            return;
        }
        self.warnings.push(warning);
        if self.is_stream {
            let mut out = Vec::new();
            self.take(&mut out);
            keepalive::write_warning(warning, &mut out);
            self.before_warning = out;
        }
    }

    fn count_text(&mut self, text: &JsonStr<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    /// Sends the usage known so far to the writer.
    fn write_usage(&mut self) {
        let final_usage = self.usage().map(|metered| metered.usage);
        if let Some(usage) =
            final_usage.or_else(|| self.counted_usage().map(|metered| metered.usage))
        {
            self.writer.event(Event::Usage {
                usage,
                is_final: final_usage.is_some(),
            });
        }
    }

    /// Returns the usage counted so far, without any estimate.
    pub fn counted_usage(&self) -> Option<MeteredUsage> {
        Some(meter(
            self.counters.as_ref()?,
            &self.bounds,
            &Usage::default(),
        ))
    }

    pub fn known_usage(&self) -> Option<Usage> {
        self.counted_usage()
            .map(|metered| metered.usage)
            .or_else(|| self.tier.map(Usage::from_tier))
    }

    /// Returns the usage once the vendor has reported final counts.
    pub fn usage(&self) -> Option<MeteredUsage> {
        let counters = self.counters.as_ref().filter(|_| self.is_final)?;
        let estimate = self
            .estimator
            .usage(self.known_usage(), self.generated_bytes);
        Some(meter(counters, &self.bounds, &estimate))
    }

    pub fn refused_free(&self) -> bool {
        let is_nothing = !self.has_other_output && self.generated_bytes == 0;
        self.is_free_refusal && is_nothing
    }

    /// Returns whether the writer would have to buffer more than its limit.
    pub fn overflowed(&self) -> bool {
        self.writer.overflowed()
    }

    /// Appends the output that may be sent now. A whole answer has no output until it is complete.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        let completed = self.is_complete();
        out.append(&mut self.before_warning);
        if self.is_stream || completed {
            self.writer.take(out);
        }
    }
}
