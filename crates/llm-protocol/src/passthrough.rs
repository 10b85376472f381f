//! Passes answers on if client and vendor use the same protocol. It restores the public model name,
//! observes the usage, and repairs calls that a chat client would misread (`call_repair.rs`).
//!
//! The output must equal the input except for the model's name, usage that the client did not ask
//! for, and such repairs. Only a chunk with calls becomes a tree. This module must not decide what
//! is billed; it reports the observed usage.
//!
//! Read next, in the folder of this module: `chat.rs` and `messages.rs`, which parse one event;
//! then `sse.rs`.

use super::Protocol;
use super::chat::read_stream::DERIVED_FINISH_REASON;
use super::failure::VendorError;
use super::ir::event::UpstreamError;
use super::json::{Span, edit, edit::JsonEdit};
use super::keepalive;
use super::responses::EventSequencer;
use super::sse::{EventTooLarge, SseDecoder, SseEvent};
use super::vendor_response::{Completion, ResponseStream, StopReasonStatus};
use crate::usage::{MeteredUsage, MeteringTerms, Usage, VendorCounters};

mod answer_id;
mod body;
mod call_repair;
mod chat;
mod end_events;
mod messages;
mod responses;
mod split_chars;
#[cfg(test)]
mod tests;
mod usage;

pub use body::{read_usage, rewrite_response, rewrite_token_count};

/// Events of the responses protocol that only confirm the request.
const RESPONSES_OPENING_EVENTS: [&str; 4] = [
    "response.created",
    "response.queued",
    "response.in_progress",
    "keepalive",
];

impl From<EventTooLarge> for UpstreamError {
    fn from(_: EventTooLarge) -> Self {
        UpstreamError::TooLarge
    }
}

/// Passes a stream on from the vendor to the client.
#[derive(Debug)]
pub struct StreamPassthrough {
    decoder: SseDecoder,
    watch: PassthroughState,
    /// True if the stream has ended or failed. Bytes after that are dropped.
    is_over: bool,
}

/// The observed state of the stream. `chat.rs`, `messages.rs` and `responses.rs` parse the parts
/// that are specific to a protocol.
#[derive(Debug)]
struct PassthroughState {
    protocol: Protocol,
    /// The public model id as a JSON string, with its quotes.
    model_json: String,
    terms: MeteringTerms,
    /// The usage that the client has received so far.
    reported: Usage,
    /// True if the client received the estimate that is billed (chat).
    reports_estimate: bool,
    /// True if the client received a usage in a place where it looks for one (chat).
    shows_usage: bool,
    hide_usage: bool,
    started: bool,
    /// True if the client received more than the opening.
    has_content: bool,
    completion: Completion,
    /// True if the vendor's body has ended.
    has_ended: bool,
    generated_bytes: u64,
    shows_thinking: bool,
    split_letters: split_chars::SplitCharJoiner,
    /// Repairs the vendor's calls. `None` passes the calls on unchanged.
    calls: Option<call_repair::CallRepair>,
    chat: chat::ChatStreamState,
    messages: messages::MessagesStreamState,
    responses: responses::ResponsesStreamState,
    /// Numbers the events at the end of a failed responses stream.
    sequencer: Option<EventSequencer>,
}

impl StreamPassthrough {
    /// Creates the passthrough. `hide_usage` removes the usage chunk and `"usage":null`, because a
    /// chat client did not ask for usage. `event_bytes_max` is the maximum size of an event.
    pub fn new(
        protocol: Protocol,
        public_model: &str,
        hide_usage: bool,
        event_bytes_max: usize,
    ) -> Self {
        StreamPassthrough {
            decoder: SseDecoder::new(event_bytes_max),
            watch: PassthroughState {
                protocol,
                model_json: edit::json_string(public_model),
                terms: MeteringTerms::default(),
                reported: Usage::default(),
                reports_estimate: false,
                shows_usage: false,
                hide_usage,
                started: false,
                has_content: false,
                completion: Completion::default(),
                has_ended: false,
                generated_bytes: 0,
                shows_thinking: false,
                split_letters: split_chars::SplitCharJoiner::default(),
                calls: None,
                chat: chat::ChatStreamState::default(),
                messages: messages::MessagesStreamState::default(),
                responses: responses::ResponsesStreamState::default(),
                sequencer: (protocol == Protocol::Responses)
                    .then(|| EventSequencer::from_vendor(public_model)),
            },
            is_over: false,
        }
    }

    /// Sets the terms by which the request's usage is metered, and the number of choices that the
    /// client requested.
    #[must_use]
    pub fn with_request(mut self, terms: MeteringTerms, choices: u64) -> Self {
        self.watch.terms = terms;
        self.watch.chat.expect_choices(choices);
        self
    }

    /// Says that the answer is one of the completions API, whose own events the gateway may add.
    #[must_use]
    pub fn with_text_form(mut self, is_text: bool) -> Self {
        self.watch.chat.is_text = is_text;
        self
    }

    /// Repairs a chat vendor's calls that a chat client would misread. `seed` provides the ids of
    /// calls without one; `None` turns the repair off.
    #[must_use]
    pub fn with_call_repair(mut self, seed: Option<&str>) -> Self {
        self.watch.calls = seed.map(call_repair::CallRepair::new);
        self
    }

    /// Ends an answer that lacks its last event.
    fn end_without_last_event(
        &mut self,
        fault: Option<UpstreamError>,
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        let usage = self.usage();
        self.watch.completion.check_end(usage.is_some(), fault)?;
        let PassthroughState {
            protocol,
            model_json,
            chat,
            messages,
            ..
        } = &self.watch;
        match protocol {
            Protocol::Chat => {
                let usage = self.watch.unreported_usage();
                end_events::write_chat_end(chat, model_json, usage.as_ref(), out);
            }
            Protocol::Messages => end_events::write_messages_stop(messages, out),
            // In the responses protocol, the event with the stop reason is the last event.
            Protocol::Responses => {}
        }
        self.watch.completion.record_last_event()
    }

    fn process_events(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        while !self.watch.completion.is_complete() {
            let Some(event) = self.decoder.next_event()? else {
                break;
            };
            self.watch.handle_event(&event, out)?;
        }
        Ok(())
    }
}

impl ResponseStream for StreamPassthrough {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        if self.is_over {
            return Ok(());
        }
        self.decoder.feed(bytes);
        let outcome = self
            .process_events(out)
            .or_else(|fault| self.end_without_last_event(Some(fault), out));
        self.is_over = outcome.is_err() || self.is_complete();
        outcome
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        if self.is_over {
            return if self.is_complete() {
                Ok(())
            } else {
                Err(UpstreamError::Cut)
            };
        }
        self.is_over = true;
        // Some vendors omit the last blank line. A truncated line is detected, because it is not
        // valid JSON.
        self.decoder.close();
        self.watch.has_ended = true;
        let fault = self.process_events(out).err();
        if self.is_complete() {
            return Ok(());
        }
        if fault.is_none() && self.watch.protocol == Protocol::Chat {
            self.watch.derive_finish_reasons(false, out);
        }
        self.end_without_last_event(
            fault.filter(|fault| matches!(fault, UpstreamError::Vendor(_))),
            out,
        )
    }

    fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        let PassthroughState {
            protocol,
            model_json,
            hide_usage,
            chat,
            messages,
            responses,
            ..
        } = &self.watch;
        match protocol {
            Protocol::Chat => {
                end_events::write_chat_end(chat, model_json, (!hide_usage).then_some(usage), out)
            }
            Protocol::Messages => end_events::write_messages_end(messages, usage, out),
            Protocol::Responses => {
                end_events::write_responses_end(responses, model_json, usage, out)
            }
        }
        self.watch.completion = Completion::from_gateway_end();
        self.is_over = true;
    }

    fn is_complete(&self) -> bool {
        self.watch.completion.is_complete()
    }

    fn is_finishing(&self) -> bool {
        self.watch.completion.is_finishing()
    }

    fn has_started(&self) -> bool {
        self.watch.started
    }

    fn has_content(&self) -> bool {
        self.watch.has_content
    }

    fn usage(&self) -> Option<MeteredUsage> {
        self.watch.usage()
    }

    fn usage_so_far(&self) -> Option<Usage> {
        self.watch.known_usage()
    }

    fn counted_output(&self) -> u64 {
        self.watch
            .counted_usage()
            .map_or(0, |metered| metered.counted_output)
    }

    fn generated_bytes(&self) -> u64 {
        self.watch.generated_bytes
    }

    fn shows_thinking(&self) -> bool {
        self.watch.shows_thinking
    }

    fn refused_free(&self) -> bool {
        self.watch.messages.refused_free(self.watch.generated_bytes)
    }

    fn sequencer(&self) -> Option<&EventSequencer> {
        self.watch.sequencer.as_ref()
    }
}

impl PassthroughState {
    /// Returns the counters of the whole answer, if they have arrived.
    fn final_counters(&self) -> Option<VendorCounters> {
        match self.protocol {
            Protocol::Chat => self.chat.counters(),
            Protocol::Messages => self.messages.usage.total(),
            Protocol::Responses => self.responses.counters(),
        }
    }

    fn usage(&self) -> Option<MeteredUsage> {
        Some(usage::meter_billed(
            &self.final_counters()?,
            &self.terms,
            self.generated_bytes,
        ))
    }

    /// Returns the usage counted so far, without any estimate.
    fn counted_usage(&self) -> Option<MeteredUsage> {
        let so_far = match self.protocol {
            Protocol::Messages => self.messages.usage.so_far(),
            Protocol::Chat | Protocol::Responses => None,
        };
        Some(usage::meter_counted(
            &so_far.or_else(|| self.final_counters())?,
            &self.terms.bounds,
        ))
    }

    /// Returns the usage that is counted so far or known from other members.
    fn known_usage(&self) -> Option<Usage> {
        self.counted_usage()
            .map(|metered| metered.usage)
            .or_else(|| match self.protocol {
                Protocol::Chat => self.chat.usage_so_far(),
                Protocol::Messages => None,
                Protocol::Responses => self.responses.usage_so_far(),
            })
    }

    /// Returns the usage that is billed if the vendor reports none.
    fn estimated_usage(&self) -> Usage {
        self.terms
            .estimator
            .usage(self.known_usage(), self.generated_bytes)
    }

    /// Returns the usage that the client requested and has not received by the end of the answer
    /// (chat).
    fn unreported_usage(&self) -> Option<Usage> {
        let is_read = self.hide_usage || self.reports_estimate || self.shows_usage;
        let counted = || self.usage().map(|metered| metered.usage);
        (!is_read).then(|| counted().unwrap_or_else(|| self.estimated_usage()))
    }

    /// Returns the usage object that replaces the one at `at` in `text`. `is_end` says that the
    /// vendor generates nothing after this object.
    fn restate_usage(
        &mut self,
        counters: Option<VendorCounters>,
        (text, at): (&str, Option<Span>),
        is_end: bool,
    ) -> Option<String> {
        let counters = counters?;
        let metered = self
            .usage()
            .filter(|_| is_end)
            .or_else(|| self.counted_usage())?;
        let before = std::mem::replace(&mut self.reported, metered.usage);
        let raw = at.unwrap_or_default().slice(text);
        usage::restate_usage(self.protocol, &counters, &metered, &before, raw)
    }

    fn handle_event(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        let data = event.data.unwrap_or_default().trim_ascii();
        if data.is_empty() {
            // By the rules of event streams this is not an event. Comments and blank lines are
            // passed on, but not the incomplete start of an event if the vendor broke off.
            if !self.has_ended {
                out.extend_from_slice(event.raw);
            }
            return Ok(());
        }
        if data.starts_with(b":") {
            // A proxy wrapped a comment as data. Clients fail on it, and dropping it loses nothing.
            return Ok(());
        }
        match self.protocol {
            Protocol::Chat => self.handle_chat_event(event, data, out)?,
            Protocol::Messages => self.handle_messages_event(event, out)?,
            Protocol::Responses => self.handle_responses_event(event, data, out)?,
        }
        self.started = true;
        Ok(())
    }

    fn handle_chat_event(
        &mut self,
        event: &SseEvent<'_>,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        if data == b"[DONE]" {
            self.derive_finish_reasons(true, out);
            self.completion.record_last_event()?;
            if let Some(usage) = self.unreported_usage() {
                end_events::write_chat_usage_chunk(&self.chat, &self.model_json, &usage, out);
            }
            out.extend_from_slice(event.raw);
            return Ok(());
        }
        let text = event_text(event);
        let Some(chunk) =
            chat::parse_chunk(text, &self.terms.usage_paths, self.chat.takes_message())
        else {
            return self.forward_unreadable(event, out);
        };
        if chunk.is_error || event.name == b"error" {
            return Err(UpstreamError::from_error_body(
                event.data.unwrap_or_default(),
            ));
        }
        self.has_content |= !chunk.is_opening();
        self.generated_bytes = self.generated_bytes.saturating_add(chunk.generated_bytes);
        self.shows_thinking |= chunk.has_reasoning;
        self.chat.record_chunk(&chunk, text);
        self.completion.set_stop_reason(self.chat.stop_reason());
        if self.chat.continues_after_stop() {
            self.completion.withdraw_stop_reason();
        }
        if self.hide_usage && chunk.is_usage_only() {
            return Ok(());
        }
        // Usage in a vendor's own place is repeated at the end, in the place where clients look for
        // it.
        self.shows_usage |=
            chunk.usage_at.is_some() && chunk.null_usage.is_none() && chunk.counters().is_some();
        let hidden = chunk
            .null_usage
            .filter(|_| self.hide_usage)
            .map(|span| JsonEdit::new(span, ""));
        let restated = match chunk.has_empty_usage() {
            true => Some(self.replace_empty_usage(&chunk)),
            false => self.restate_usage(
                chunk.counters().map(VendorCounters::Chat),
                (text, chunk.usage_at),
                self.completion.has_stopped(),
            ),
        };
        let restated = chunk.usage_at.zip(restated);
        let restated = restated.map(|(span, usage)| JsonEdit::new(span, usage));
        let more = self.repair_chunk(&chunk, text, out)?;
        self.forward(event, chunk.model, hidden.or(restated), more, out);
        Ok(())
    }

    /// Returns the edits that rename the deltas and repair the calls of a chunk.
    fn repair_chunk(
        &mut self,
        chunk: &chat::ChatChunk,
        text: &str,
        out: &mut Vec<u8>,
    ) -> Result<Vec<JsonEdit<'static>>, UpstreamError> {
        let is_misnamed = !chunk.renamed_keys.is_empty();
        let renamed = chunk.renamed_keys.iter();
        let mut edits: Vec<_> = renamed
            .map(|(key, name)| JsonEdit::new(*key, *name))
            .collect();
        if let Some(calls) = &mut self.calls {
            let form = call_repair::AnswerForm {
                is_whole: false,
                is_misnamed,
            };
            let repair = calls.repair(chunk, text, form)?;
            edits.extend(repair.edits);
            for warning in repair.warnings {
                keepalive::write_warning(warning, out);
            }
        }
        Ok(edits)
    }

    /// Writes the finish reasons that a chat vendor left out.
    fn derive_finish_reasons(&mut self, is_done: bool, out: &mut Vec<u8>) {
        let derived = self.chat.derive_finish_reasons(is_done);
        if derived.is_empty() {
            return;
        }
        keepalive::write_warning(DERIVED_FINISH_REASON, out);
        for (index, reason) in derived {
            end_events::write_finish_chunk(&self.chat, &self.model_json, index, reason, out);
        }
        self.completion.set_stop_reason(self.chat.stop_reason());
    }

    fn handle_messages_event(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        let text = event_text(event);
        let Some(seen) = messages::parse_event(text) else {
            return self.forward_unreadable(event, out);
        };
        // The newest clients use the type in the JSON, and all others the event's name. Either one
        // can report an error or the end.
        let is = |word: &str| seen.kind.as_deref() == Some(word) || event.name == word.as_bytes();
        if is("error") || (seen.kind.is_none() && seen.has_error) {
            return Err(UpstreamError::from_error_body(
                event.data.unwrap_or_default(),
            ));
        }
        self.has_content |= !is("message_start") && !is("ping");
        self.generated_bytes = self.generated_bytes.saturating_add(seen.generated_bytes);
        self.shows_thinking |= seen.has_thinking;
        if is("content_block_start") {
            self.messages.begin_block(seen.index);
        } else if is("content_block_stop") {
            self.messages.end_block();
        }
        if self.messages.has_stopped() && seen.generated_bytes > 0 {
            self.completion.withdraw_stop_reason();
        }
        self.messages
            .record_event(&seen, is("message_start"), is("message_delta"));
        self.completion
            .set_stop_reason(StopReasonStatus::from_bool(self.messages.has_stopped()));
        if is("message_stop") {
            self.completion.record_last_event()?;
        }
        let model = seen.model.filter(|_| is("message_start"));
        let counters = seen
            .usage
            .filter(|_| is("message_start") || is("message_delta"))
            .map(VendorCounters::Messages);
        let has_stopped = self.messages.has_stopped();
        let restated = if is("message_delta") && has_stopped && self.lacks_usage() {
            Some(usage::encode_usage(self.protocol, &self.estimated_usage()))
        } else {
            self.restate_usage(counters, (text, seen.usage_at), has_stopped)
        };
        let end = usage::closing_brace(text);
        let restated = restated.map(|usage| usage::usage_edit(text, seen.usage_at, end, usage));
        self.forward(event, model, restated, Vec::new(), out);
        Ok(())
    }
}

impl PassthroughState {
    /// Returns whether the answer has ended without any billable count from the vendor.
    fn lacks_usage(&self) -> bool {
        self.final_counters().is_none() && !self.messages.refused_free(self.generated_bytes)
    }

    /// Returns the replacement for the usage in a chunk without counts: the estimate if no other
    /// usage can follow, otherwise null.
    fn replace_empty_usage(&mut self, chunk: &chat::ChatChunk) -> String {
        if !chunk.is_usage_only() || !self.completion.has_stopped() {
            return "null".to_owned();
        }
        self.reports_estimate = true;
        usage::encode_usage(self.protocol, &self.estimated_usage())
    }

    /// Passes an event on with the public model name at `model`, this edit of the usage, and `more`
    /// edits, which few events have.
    fn forward(
        &mut self,
        event: &SseEvent<'_>,
        model: Option<Span>,
        usage: Option<JsonEdit<'static>>,
        more: Vec<JsonEdit<'static>>,
        out: &mut Vec<u8>,
    ) {
        let model = model.map(|span| JsonEdit::new(span, self.model_json.as_str()));
        let mut joined = self.split_letters.edits(self.protocol, event_text(event));
        joined.extend(more);
        edit::write_edited_event(event, [model, usage], joined, out);
    }

    /// Passes an event on unchanged if its name allows any content.
    fn forward_unreadable(
        &mut self,
        event: &SseEvent<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        UpstreamError::check_unreadable(self.protocol, event.name, event.data.unwrap_or_default())?;
        self.has_content = true;
        out.extend_from_slice(event.raw);
        Ok(())
    }

    fn handle_responses_event(
        &mut self,
        event: &SseEvent<'_>,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UpstreamError> {
        if data == b"[DONE]" {
            // The event comes from the chat protocol, and clients of this protocol do not expect
            // it.
            return Ok(());
        }
        let text = event_text(event);
        let Some(seen) = responses::parse_event(text) else {
            return self.forward_unreadable(event, out);
        };
        let kind = seen.kind.as_deref().unwrap_or_default();
        let is = |word: &str| kind == word || event.name == word.as_bytes();
        let is_end = is("response.completed") || is("response.incomplete");
        if is("error") || is("response.failed") || is_end && seen.response.has_error {
            return Err(vendor_error_from(event));
        }
        self.has_content |= !RESPONSES_OPENING_EVENTS.contains(&kind);
        self.generated_bytes = self.generated_bytes.saturating_add(seen.delta_bytes);
        self.shows_thinking |= seen.has_reasoning;
        self.responses.record_event(&seen, text);
        if let Some(sequencer) = &self.sequencer {
            sequencer.observe_vendor(
                self.responses.id.json().trim_matches('"'),
                self.responses.next_sequence(),
            );
        }
        if is_end {
            // Items may arrive complete, without deltas.
            self.generated_bytes = self.generated_bytes.max(seen.response.output_bytes);
            self.completion.set_stop_reason(StopReasonStatus::All);
            self.completion.record_last_event()?;
        }
        let restated = if is_end && seen.response.is_present && self.lacks_usage() {
            Some(usage::encode_usage(self.protocol, &self.estimated_usage()))
        } else {
            let counters = seen.response.counters().map(VendorCounters::Chat);
            self.restate_usage(counters, (text, seen.response.usage_at), is_end)
        };
        let (at, end) = (seen.response.usage_at, seen.response.closing_brace);
        let restated = restated.map(|usage| usage::usage_edit(text, at, end, usage));
        self.forward(event, seen.response.model, restated, Vec::new(), out);
        Ok(())
    }
}

/// Returns the vendor's error in an event that contains a failed response or is an error.
fn vendor_error_from(event: &SseEvent<'_>) -> UpstreamError {
    let data: Option<serde_json::Value> =
        serde_json::from_slice(event.data.unwrap_or_default()).ok();
    let failed = data
        .as_ref()
        .and_then(|data| data.get("response"))
        .map(ToString::to_string);
    let error = failed.and_then(|response| VendorError::parse(response.as_bytes()));
    error.map_or_else(
        || UpstreamError::from_error_body(event.data.unwrap_or_default()),
        UpstreamError::Vendor,
    )
}

/// Returns the event's data. Data that is not UTF-8 becomes an empty text, which no JSON parser
/// accepts.
fn event_text<'a>(event: &SseEvent<'a>) -> &'a str {
    std::str::from_utf8(event.data.unwrap_or_default()).unwrap_or_default()
}
