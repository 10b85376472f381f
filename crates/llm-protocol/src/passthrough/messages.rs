//! Reads an event of a messages stream or a whole messages answer in one skipping pass.
//!
//! This file counts text without copying it. It skips unknown members and treats members of a wrong
//! type as absent.
//!
//! Read next: `body.rs`.

use crate::counters;
use crate::json::{JsonKind, JsonScanner, MAX_RESPONSE_DEPTH, ScanResult, Span};
use crate::messages::bills_refusal;
use crate::usage::{MessagesCounters, MessagesUsage, PerTool, ServerTool};
use std::borrow::Cow;

/// The facts in one event or in a whole answer, which has the members of `message_start.message`.
#[derive(Default, Debug)]
pub(super) struct MessagesEventScan<'a> {
    pub kind: Option<Cow<'a, str>>,
    pub model: Option<Span>,
    pub has_error: bool,
    /// Index of the event's block.
    pub index: u64,
    pub generated_bytes: u64,
    pub usage: Option<MessagesCounters>,
    /// Span of the usage, of any type.
    pub usage_at: Option<Span>,
    /// True if the event has thinking, be it visible, summarised, or only a signature.
    pub has_thinking: bool,
    pub has_stop_reason: bool,
    /// True if the content is a list, as in a whole answer.
    pub has_content: bool,
    is_refusal: bool,
    is_billed_refusal: bool,
    /// True if the event has output other than text: a tool call, redacted thinking or a search.
    has_other_output: bool,
    /// Number of uses of server tools that have a result.
    tool_uses: PerTool<u64>,
}

#[derive(Default, Debug)]
pub(super) struct MessagesStreamState {
    pub usage: MessagesUsage,
    /// The block that has begun and not ended. The protocol has one open block at a time.
    open_block: Option<u64>,
    has_stop_reason: bool,
    is_refusal: bool,
    is_billed_refusal: bool,
    has_other_output: bool,
}

impl MessagesStreamState {
    pub fn record_event(&mut self, event: &MessagesEventScan<'_>, is_start: bool, is_delta: bool) {
        match event.usage {
            Some(counters) if is_start => self.usage.start(&counters),
            Some(counters) if is_delta => self.usage.finish(&counters),
            _ => {}
        }
        self.usage.add_tool_results(&event.tool_uses);
        self.has_stop_reason |= event.has_stop_reason;
        self.is_refusal |= event.is_refusal;
        self.is_billed_refusal |= event.is_billed_refusal;
        self.has_other_output |= event.has_other_output;
    }

    pub fn begin_block(&mut self, index: u64) {
        self.open_block = Some(index);
    }

    pub fn end_block(&mut self) {
        self.open_block = None;
    }

    pub fn open_block(&self) -> Option<u64> {
        self.open_block
    }

    /// Returns whether the stop reason has arrived.
    pub fn has_stopped(&self) -> bool {
        self.has_stop_reason
    }

    pub fn refused_free(&self, generated_bytes: u64) -> bool {
        let is_free = self.is_refusal && !self.is_billed_refusal;
        is_free && !self.has_other_output && generated_bytes == 0
    }
}

/// Reads an event or an answer. Returns `None` if it is not a JSON object.
pub(super) fn parse_event(text: &str) -> Option<MessagesEventScan<'_>> {
    let mut scan = JsonScanner::new(text, MAX_RESPONSE_DEPTH);
    if scan.kind().ok()? != JsonKind::Object {
        return None;
    }
    let mut seen = MessagesEventScan::default();
    scan.object(|scan, key| match key.name().as_ref() {
        "type" => {
            seen.kind = scan.string_or_skip()?.map(|kind| kind.name());
            Ok(())
        }
        "message" => scan.object_or_skip(|scan, key| seen.read_response_member(&key.name(), scan)),
        "delta" => scan.object_or_skip(|scan, key| seen.read_delta_member(&key.name(), scan)),
        "content_block" => seen.read_block(scan),
        "index" => {
            seen.index = scan.count_or_skip()?.unwrap_or(0);
            Ok(())
        }
        "error" => {
            seen.has_error |= scan.kind()? == JsonKind::Object;
            scan.skip()
        }
        name => seen.read_response_member(name, scan),
    })
    .ok()?;
    scan.end().ok()?;
    Some(seen)
}

impl MessagesEventScan<'_> {
    fn read_response_member(&mut self, name: &str, scan: &mut JsonScanner<'_>) -> ScanResult {
        match name {
            "model" => self.model = scan.string_or_skip()?.map(|model| model.span),
            "usage" => {
                let start = scan.value_start()?;
                self.usage = counters::read_messages_usage(scan)?.or(self.usage);
                self.usage_at = Some(scan.span_from(start));
            }
            "stop_reason" => self.read_stop_reason(scan)?,
            "stop_details" => self.read_stop_details(scan)?,
            "content" => {
                self.has_content |= scan.kind()? == JsonKind::Array;
                scan.array_or_skip(|scan| self.read_block(scan))?;
            }
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn read_delta_member(&mut self, name: &str, scan: &mut JsonScanner<'_>) -> ScanResult {
        match name {
            "text" | "thinking" | "partial_json" => self.count_text(scan)?,
            // The vendor sends only the signature of hidden thinking.
            "signature" => {
                self.has_other_output = true;
                scan.skip()?;
            }
            "stop_reason" => self.read_stop_reason(scan)?,
            "stop_details" => self.read_stop_details(scan)?,
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn read_block(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "text" | "thinking" => self.count_text(scan)?,
                "input" => {
                    let span = scan.skip_span()?;
                    // A streamed call opens with `{}` and sends its arguments later.
                    let bytes = span.end.saturating_sub(span.start);
                    if bytes > 2 {
                        self.count_bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
                    }
                }
                "signature" => {
                    let signature = scan.string_or_skip()?;
                    self.has_other_output |= signature.is_some_and(|text| !text.raw.is_empty());
                }
                "type" => {
                    let kind = scan.string_or_skip()?;
                    let is_plain = kind
                        .as_ref()
                        .is_some_and(|kind| matches!(kind.raw, "text" | "thinking"));
                    if let Some(tool) = kind
                        .as_ref()
                        .and_then(|kind| ServerTool::from_result_block(kind.raw))
                    {
                        self.tool_uses.add(tool);
                    }
                    self.has_thinking |= kind
                        .is_some_and(|kind| matches!(kind.raw, "thinking" | "redacted_thinking"));
                    self.has_other_output |= !is_plain;
                }
                _ => scan.skip()?,
            }
            Ok(())
        })
    }

    fn read_stop_details(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        scan.object_or_skip(|scan, key| {
            if key.name() == "category" {
                let category = scan.string_or_skip()?.map(|category| category.name());
                self.is_billed_refusal = bills_refusal(category.as_deref());
                return Ok(());
            }
            scan.skip()
        })
    }

    fn read_stop_reason(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        let reason = scan.string_or_skip()?;
        self.has_stop_reason |= reason.is_some_and(|reason| !reason.raw.is_empty());
        self.is_refusal |= reason.is_some_and(|reason| reason.raw == "refusal");
        Ok(())
    }

    fn count_text(&mut self, scan: &mut JsonScanner<'_>) -> ScanResult {
        if let Some(text) = scan.string_or_skip()? {
            self.count_bytes(text.decoded_bytes());
        }
        Ok(())
    }

    fn count_bytes(&mut self, bytes: u64) {
        self.generated_bytes = self.generated_bytes.saturating_add(bytes);
    }

    /// Returns the final state of a whole answer, which contains its usage and whether a refusal is
    /// free.
    pub fn to_stream_state(&self) -> MessagesStreamState {
        let mut seen = MessagesStreamState::default();
        seen.record_event(self, false, true);
        seen
    }
}
