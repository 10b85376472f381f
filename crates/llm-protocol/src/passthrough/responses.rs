//! Reads an event of a responses stream or a whole response in one skipping pass.
//!
//! This file counts text without copying it. It skips unknown members and treats members of a wrong
//! type as absent.
//!
//! Read next: `body.rs`.

use super::answer_id::AnswerId;
use crate::counters;
use crate::json::{JsonKind, JsonScanner, MAX_RESPONSE_DEPTH, ScanResult, Span};
use crate::usage::{ChatCounters, PerTool, ServerTool, ServiceTier, Usage, VendorCounters};
use std::borrow::Cow;

/// The facts in one event or in a whole response.
#[derive(Default, Debug)]
pub(super) struct ResponsesEventScan<'a> {
    pub kind: Option<Cow<'a, str>>,
    sequence: Option<u64>,
    pub delta_bytes: u64,
    /// True if the event concerns reasoning.
    pub has_reasoning: bool,
    /// The server tool, if the event's item is a call of a server tool.
    tool_call: Option<ServerTool>,
    /// The response in the event, or the whole body.
    pub response: ResponsesBodyScan,
}

/// The facts in a response, which may be incomplete.
#[derive(Default, Debug)]
pub(super) struct ResponsesBodyScan {
    pub is_present: bool,
    id: Option<Span>,
    created: u64,
    pub model: Option<Span>,
    pub has_error: bool,
    is_failed: bool,
    /// True if the status is final: `completed` or `incomplete`.
    pub has_ended: bool,
    /// True if the output is a list.
    pub has_output: bool,
    usage: Option<ChatCounters>,
    /// Span of the usage, of any type.
    pub usage_at: Option<Span>,
    pub closing_brace: usize,
    pub tier: Option<ServiceTier>,
    uses_reported: PerTool<Option<u64>>,
    /// Number of calls of server tools in the output.
    tool_calls: PerTool<u64>,
    /// Number of UTF-8 bytes of the texts and arguments in the output.
    pub output_bytes: u64,
}

impl ResponsesBodyScan {
    pub fn counters(&self) -> Option<ChatCounters> {
        let counters = self.usage.filter(ChatCounters::is_usage)?;
        let tool_uses = self.uses_reported.or(&self.tool_calls);
        Some(ChatCounters {
            service_tier: self.tier,
            tool_uses,
            ..counters
        })
    }

    /// Returns whether the response is an error instead of an answer.
    pub fn is_failure(&self) -> bool {
        self.is_failed || self.has_error
    }
}

#[derive(Default, Debug)]
pub(super) struct ResponsesStreamState {
    pub id: AnswerId,
    next_sequence: u64,
    usage: Option<ChatCounters>,
    tier: Option<ServiceTier>,
    /// Number of finished calls of server tools.
    tool_calls: PerTool<u64>,
}

impl ResponsesStreamState {
    /// Adds an event; `text` is its JSON.
    pub fn record_event(&mut self, event: &ResponsesEventScan<'_>, text: &str) {
        let counted = self.next_sequence.saturating_add(1);
        self.next_sequence = event
            .sequence
            .map_or(counted, |number| number.saturating_add(1));
        let response = &event.response;
        self.id.record(text, response.id, response.created);
        self.tier = response.tier.or(self.tier);
        if let Some(tool) = event
            .tool_call
            .filter(|_| event.kind.as_deref() == Some("response.output_item.done"))
        {
            self.tool_calls.add(tool);
        }
        if let Some(counters) = response.counters() {
            self.usage.get_or_insert_default().merge(&counters);
        }
    }

    pub fn counters(&self) -> Option<VendorCounters> {
        self.usage.map(VendorCounters::Chat)
    }

    /// Returns the usage that is known before the vendor reports any: the tier, and the uses of
    /// server tools.
    pub fn usage_so_far(&self) -> Option<Usage> {
        let is_known = self.tier.is_some() || !self.tool_calls.is_zero();
        is_known.then(|| {
            Usage {
                service_tier: self.tier,
                ..Usage::default()
            }
            .with_uses(self.tool_calls)
        })
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }
}

/// Reads an event. Returns `None` if it is not a JSON object.
pub(super) fn parse_event(text: &str) -> Option<ResponsesEventScan<'_>> {
    let mut scan = JsonScanner::new(text, MAX_RESPONSE_DEPTH);
    if scan.kind().ok()? != JsonKind::Object {
        return None;
    }
    let mut seen = ResponsesEventScan::default();
    let outcome: ScanResult<_> = scan.object(|scan, key| {
        match key.name().as_ref() {
            "type" => seen.kind = scan.string_or_skip()?.map(|kind| kind.name()),
            "sequence_number" => seen.sequence = scan.count_or_skip()?,
            "delta" => {
                seen.delta_bytes = scan
                    .string_or_skip()?
                    .map_or(0, |delta| delta.decoded_bytes())
            }
            "response" => read_response(scan, &mut seen.response)?,
            "item" => {
                let mut item = OutputItemScan::default();
                scan.object_or_skip(|scan, key| item.read_member(&key.name(), scan))?;
                seen.has_reasoning |= item.is_reasoning;
                seen.tool_call = item.billed_call();
            }
            _ => scan.skip()?,
        }
        Ok(())
    });
    outcome.and_then(|_| scan.end()).ok()?;
    seen.has_reasoning |= seen
        .kind
        .as_deref()
        .is_some_and(|kind| kind.starts_with("response.reasoning"));
    Some(seen)
}

/// Reads a whole response. Returns `None` if it is not a JSON object.
pub(super) fn parse_body(text: &str) -> Option<ResponsesBodyScan> {
    let mut scan = JsonScanner::new(text, MAX_RESPONSE_DEPTH);
    if scan.kind().ok()? != JsonKind::Object {
        return None;
    }
    let mut whole = ResponsesBodyScan::default();
    read_response(&mut scan, &mut whole)
        .and_then(|()| scan.end())
        .ok()?;
    Some(whole)
}

fn read_response(scan: &mut JsonScanner<'_>, response: &mut ResponsesBodyScan) -> ScanResult {
    response.is_present |= scan.kind()? == JsonKind::Object;
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "id" => response.id = scan.string_or_skip()?.map(|id| id.span),
            "created_at" => response.created = scan.count_or_skip()?.unwrap_or(0),
            "model" => response.model = scan.string_or_skip()?.map(|model| model.span),
            "status" => {
                let status = scan.string_or_skip()?;
                response.is_failed =
                    status.is_some_and(|status| matches!(status.raw, "failed" | "cancelled"));
                response.has_ended =
                    status.is_some_and(|status| matches!(status.raw, "completed" | "incomplete"));
            }
            "error" => {
                response.has_error = scan.kind()? != JsonKind::Null;
                scan.skip()?;
            }
            "usage" => {
                let start = scan.value_start()?;
                response.usage = counters::read_responses_usage(scan)?.or(response.usage);
                response.usage_at = Some(scan.span_from(start));
            }
            "service_tier" => response.tier = counters::read_tier(scan)?.or(response.tier),
            "tool_usage" => response.uses_reported.web_search = read_search_count(scan)?,
            "output" => {
                response.has_output = scan.kind()? == JsonKind::Array;
                let (bytes, calls) = (&mut response.output_bytes, &mut response.tool_calls);
                scan.array_or_skip(|scan| {
                    read_output(scan, bytes).map(|item| item.count_call(calls))
                })?;
            }
            _ => scan.skip()?,
        }
        Ok(())
    })?;
    response.closing_brace = scan.position().saturating_sub(1);
    Ok(())
}

/// The facts about an output item that affect the bill.
#[derive(Default)]
struct OutputItemScan {
    is_reasoning: bool,
    tool: Option<ServerTool>,
    /// True if a search only opened a page or searched within a page, which is not billed.
    has_other_action: bool,
}

impl OutputItemScan {
    fn read_member(&mut self, name: &str, scan: &mut JsonScanner<'_>) -> ScanResult {
        match name {
            "type" => {
                let kind = scan.string_or_skip()?;
                self.is_reasoning = kind.as_ref().is_some_and(|kind| kind.raw == "reasoning");
                self.tool = kind.and_then(|kind| ServerTool::from_call_item(kind.raw));
            }
            "action" => scan.object_or_skip(|scan, key| {
                if key.name() != "type" {
                    return scan.skip();
                }
                let kind = scan.string_or_skip()?;
                self.has_other_action = kind.is_some_and(|kind| kind.raw != "search");
                Ok(())
            })?,
            _ => scan.skip()?,
        }
        Ok(())
    }

    fn billed_call(&self) -> Option<ServerTool> {
        self.tool
            .filter(|tool| *tool != ServerTool::WebSearch || !self.has_other_action)
    }

    fn count_call(&self, calls: &mut PerTool<u64>) {
        if let Some(tool) = self.billed_call() {
            calls.add(tool);
        }
    }
}

fn read_search_count(scan: &mut JsonScanner<'_>) -> ScanResult<Option<u64>> {
    let mut searches = None;
    scan.object_or_skip(|scan, key| {
        if key.name() != "web_search" {
            return scan.skip();
        }
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "num_requests" => searches = scan.count_or_skip()?,
                _ => scan.skip()?,
            }
            Ok(())
        })
    })?;
    Ok(searches)
}

/// Reads an item and adds the bytes of all generated text in it, at any level.
fn read_output(scan: &mut JsonScanner<'_>, bytes: &mut u64) -> ScanResult<OutputItemScan> {
    let mut item = OutputItemScan::default();
    match scan.kind()? {
        JsonKind::Array => scan.array(|scan| read_output(scan, bytes).map(drop))?,
        JsonKind::Object => scan.object(|scan, key| match key.name().as_ref() {
            "text" | "arguments" | "input" | "refusal" => {
                let text_bytes = scan
                    .string_or_skip()?
                    .map_or(0, |text| text.decoded_bytes());
                *bytes = bytes.saturating_add(text_bytes);
                Ok(())
            }
            "content" | "summary" => read_output(scan, bytes).map(drop),
            name => item.read_member(name, scan),
        })?,
        _ => scan.skip()?,
    }
    Ok(item)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const USAGE: &str = r#""usage":{"input_tokens":9,"output_tokens":4}"#;
    const OUTPUT: &str = r#"[{"type":"web_search_call","action":{"type":"search","query":"x"}},
        {"action":{"type":"open_page","url":"https://x"},"type":"web_search_call"},{"type":"web_search_call"},
        {"type":"code_interpreter_call","code":"1","container_id":"c"},{"type":"mcp_list_tools","tools":[]},
        {"type":"mcp_call","arguments":"{}"},{"type":"mcp_call","arguments":"{}"},
        {"type":"message","content":[{"type":"output_text","text":"mcp_call"}]}]"#;

    fn uses(uses: PerTool<u64>) -> [u64; 3] {
        [uses.web_search, uses.code_execution, uses.mcp]
    }

    #[test]
    fn calls_of_server_tools_are_counted_by_their_items_where_the_vendor_does_not_count_them() {
        let whole = |more: &str| {
            let text = format!(r#"{{"status":"completed",{more}"output":{OUTPUT},{USAGE}}}"#);
            uses(parse_body(&text).unwrap().counters().unwrap().tool_uses)
        };
        assert_eq!(whole(""), [2, 1, 2], "a page that is opened is no search");
        assert_eq!(
            whole(r#""tool_usage":{"web_search":{"num_requests":5}},"#),
            [5, 1, 2]
        );
        assert_eq!(
            whole(r#""tool_usage":{"web_search":{"num_requests":0}},"#),
            [0, 1, 2]
        );
        let text = format!(r#"{{"status":"completed","output":{OUTPUT},{USAGE}}}"#);
        assert_eq!(parse_body(&text).unwrap().output_bytes, 12);
    }

    #[test]
    fn what_a_stream_used_is_known_before_its_end() {
        let mut seen = ResponsesStreamState::default();
        for kind in ["response.output_item.added", "response.output_item.done"] {
            for item in [
                r#"{"type":"mcp_call"}"#,
                r#"{"type":"code_interpreter_call"}"#,
                r#"{"type":"reasoning"}"#,
            ] {
                let text = format!(r#"{{"type":"{kind}","item":{item}}}"#);
                seen.record_event(&parse_event(&text).unwrap(), &text);
            }
        }
        let usage = seen.usage_so_far().unwrap();
        assert_eq!(
            [usage.web_searches, usage.code_executions, usage.mcp_calls],
            [0, 1, 1]
        );
        assert!(ResponsesStreamState::default().usage_so_far().is_none());
    }
}
