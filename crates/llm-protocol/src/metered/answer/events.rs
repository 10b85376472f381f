//! An answer as server-sent events: a transcription, a picture or speech that is sent while it is
//! made.
//!
//! It must not change an event.

use crate::metered::terms::{MeteredReport, MeteredTerms};
use crate::sse::SseDecoder;
use crate::vendor_response::UpstreamError;
use serde_json::Value;

/// Endings of the types of events that end an output and report its usage:
/// `transcript.text.done`, `image_generation.completed`, `speech.audio.done`. Source: the types of
/// openai 3.57 for Python.
const ENDS: [&str; 2] = [".done", ".completed"];

/// An answer whose events pass, but for the last one that ends an output and what follows it.
#[derive(Debug)]
pub(super) struct EventsAnswer {
    terms: MeteredTerms,
    decoder: SseDecoder,
    report: MeteredReport,
    /// From the last event that ends an output.
    kept: Vec<u8>,
}

impl EventsAnswer {
    pub(super) fn new(terms: MeteredTerms, event_bytes: usize) -> Self {
        Self {
            terms,
            decoder: SseDecoder::new(event_bytes),
            report: MeteredReport::default(),
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
        if !end {
            return Ok(None);
        }
        // What follows the last blank line is an event too.
        self.decoder.close();
        self.read_events(out)?;
        match self.kept.is_empty() {
            true => Err(UpstreamError::Cut),
            false => Ok(Some(self.report)),
        }
    }

    fn read_events(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        loop {
            let event = self.decoder.next_event();
            let Some(event) = event.map_err(|_| UpstreamError::TooLarge)? else {
                return Ok(());
            };
            let Some(data) = event.data.filter(|data| *data != b"[DONE]") else {
                // Nothing of a comment or a mark is lost, and neither ends an output.
                let to = if self.kept.is_empty() {
                    &mut *out
                } else {
                    &mut self.kept
                };
                to.extend_from_slice(event.raw);
                continue;
            };
            let Ok(Value::Object(data)) = serde_json::from_slice(data) else {
                return Err(match event.name {
                    b"error" => UpstreamError::from_error_body(data),
                    _ => UpstreamError::NotJson,
                });
            };
            let named = String::from_utf8_lossy(event.name);
            let kind = data.get("type").and_then(Value::as_str).unwrap_or(&named);
            if kind == "error" || data.get("error").is_some_and(|error| !error.is_null()) {
                let body = Value::Object(data.clone()).to_string();
                return Err(UpstreamError::from_error_body(body.as_bytes()));
            }
            let ends = ENDS.iter().any(|ending| kind.ends_with(ending));
            out.append(&mut self.kept);
            if ends {
                self.report.items = self.report.items.saturating_add(1);
                self.report.add(&self.terms, |name| data.get(name).cloned());
                self.kept.extend_from_slice(event.raw);
            } else {
                out.extend_from_slice(event.raw);
            }
        }
    }

    pub(super) fn take_last(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }
}
