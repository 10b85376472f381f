//! An answer as server-sent events: a transcription, a picture or speech that is sent while it is
//! made.
//!
//! It must not change an event.

use crate::Protocol;
use crate::metered::terms::{MeteredReport, MeteredTerms};
use crate::sse::SseDecoder;
use crate::usage::Usage;
use crate::vendor_response::UpstreamError;
use serde_json::Value;

/// Endings of the types of events that end an output and report its usage:
/// `transcript.text.done`, `image_generation.completed`, `speech.audio.done`. Source: the types of
/// openai 3.57 for Python.
const ENDS: [&str; 2] = [".done", ".completed"];

/// Events that may be kept back, as a multiple of the largest event.
const MAX_KEPT_EVENTS: usize = 2;

/// An answer whose events pass, but for the last one that ends an output and what follows it.
///
/// It is complete at `[DONE]`, or where its body ends without a cut: the servers of other vendors
/// have no event of [`ENDS`].
#[derive(Debug)]
pub(super) struct EventsAnswer {
    terms: MeteredTerms,
    decoder: SseDecoder,
    kept_max: usize,
    report: MeteredReport,
    /// The last usage outside of such an event: vLLM counts up in each chunk.
    running: Usage,
    has_content: bool,
    is_done: bool,
    /// From the last event that ends an output.
    kept: Vec<u8>,
}

impl EventsAnswer {
    pub(super) fn new(terms: MeteredTerms, event_bytes: usize) -> Self {
        Self {
            terms,
            decoder: SseDecoder::new(event_bytes),
            kept_max: event_bytes.saturating_mul(MAX_KEPT_EVENTS),
            report: MeteredReport::default(),
            running: Usage::default(),
            has_content: false,
            is_done: false,
            kept: Vec::new(),
        }
    }

    pub(super) fn push(
        &mut self,
        piece: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<MeteredReport>, UpstreamError> {
        self.decoder.feed(piece);
        self.read_events(out)?;
        if end {
            // What follows the last blank line is an event too.
            self.decoder.close();
            self.read_events(out)?;
        }
        if !end && !self.is_done {
            return Ok(None);
        }
        if !self.has_content {
            return Err(UpstreamError::Cut);
        }
        if self.report.usage.is_zero() {
            self.report.usage = self.running;
        }
        Ok(Some(self.report))
    }

    fn read_events(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        while !self.is_done {
            if self.kept.len() > self.kept_max {
                return Err(UpstreamError::TooLarge);
            }
            let event = self.decoder.next_event();
            let Some(event) = event.map_err(|_| UpstreamError::TooLarge)? else {
                return Ok(());
            };
            self.is_done = event.data == Some(b"[DONE]");
            let Some(data) = event.data.filter(|_| !self.is_done) else {
                // Nothing of a comment or a mark is lost.
                let to = if self.kept.is_empty() && !self.is_done {
                    &mut *out
                } else {
                    &mut self.kept
                };
                to.extend_from_slice(event.raw);
                continue;
            };
            let Ok(Value::Object(data)) = serde_json::from_slice(data) else {
                UpstreamError::check_unreadable(Protocol::Chat, event.name, data)?;
                return Err(UpstreamError::NotJson);
            };
            let named = String::from_utf8_lossy(event.name);
            let kind = data.get("type").and_then(Value::as_str).unwrap_or(&named);
            if kind == "error" || data.get("error").is_some_and(|error| !error.is_null()) {
                let body = Value::Object(data.clone()).to_string();
                return Err(UpstreamError::from_error_body(body.as_bytes()));
            }
            let ends = ENDS.iter().any(|ending| kind.ends_with(ending));
            let choices = data.get("choices").and_then(Value::as_array);
            let is_last = |choice: &Value| choice["finish_reason"].is_string();
            let finishes = choices.is_some_and(|choices| choices.iter().all(is_last));
            // A chunk of the usage has no choice, and follows the last one that has.
            if choices.is_none_or(|choices| !choices.is_empty()) {
                self.has_content = true;
                out.append(&mut self.kept);
            }
            if !ends {
                let mut report = MeteredReport::default();
                report.add(&self.terms, |name| data.get(name).cloned());
                if !report.usage.is_zero() {
                    self.running = report.usage;
                }
            }
            if ends {
                self.report.items = self.report.items.saturating_add(1);
                self.report.add(&self.terms, |name| data.get(name).cloned());
            }
            if ends || finishes {
                self.kept.extend_from_slice(event.raw);
            } else {
                out.extend_from_slice(event.raw);
            }
        }
        Ok(())
    }

    pub(super) fn take_last(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }
}
