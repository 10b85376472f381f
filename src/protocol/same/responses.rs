//! What an event of a responses stream or a whole response says, read in one skipping pass.
//!
//! It must not copy text: it counts. Unknown members are skipped, members of a wrong type count as absent.
//!
//! Read next: `same/whole.rs`.

use super::DEPTH_MAX;
use crate::protocol::counters;
use crate::protocol::scan::{Broken, Kind, Scan, Span};
use crate::usage::{ChatCounters, ServiceTier, Usage};
use std::borrow::Cow;

/// The longest id of a response that is remembered, in bytes.
const ID_BYTES_MAX: usize = 256;

/// One event, or a whole response.
#[derive(Default, Debug)]
pub(super) struct EventSeen<'a> {
    /// The member `type` of an event.
    pub kind: Option<Cow<'a, str>>,
    sequence: Option<u64>,
    pub delta_bytes: u64,
    /// It is about reasoning.
    pub has_reasoning: bool,
    /// The response in it, or all of it.
    pub response: Response,
}

/// A response, as far as it stands.
#[derive(Default, Debug)]
pub(super) struct Response {
    pub is_given: bool,
    id: Option<Span>,
    created: u64,
    pub model: Option<Span>,
    pub has_error: bool,
    is_failed: bool,
    usage: Option<ChatCounters>,
    pub tier: Option<ServiceTier>,
    searches: u64,
    /// Of the texts and arguments in its output.
    pub output_bytes: u64,
}

impl Response {
    /// What it used, as it says.
    pub fn counted(&self) -> Option<Usage> {
        let usage = self.usage?.usage()?;
        Some(Usage { service_tier: self.tier, web_searches: self.searches, ..usage })
    }

    /// It is an error and no answer.
    pub fn is_failure(&self) -> bool {
        self.is_failed || self.has_error
    }
}

/// What the events of a stream said so far.
#[derive(Default, Debug)]
pub(super) struct Seen {
    /// As a JSON string, with its quotes.
    id_json: String,
    created: u64,
    next_sequence: u64,
    usage: Option<Usage>,
    tier: Option<ServiceTier>,
}

impl Seen {
    /// `text` is the event's.
    pub fn event(&mut self, event: &EventSeen<'_>, text: &str) {
        let counted = self.next_sequence.saturating_add(1);
        self.next_sequence = event.sequence.map_or(counted, |number| number.saturating_add(1));
        let response = &event.response;
        if self.id_json.is_empty()
            && let Some(id) =
                response.id.and_then(|id| text.get(id.start..id.end)).filter(|id| id.len() <= ID_BYTES_MAX)
        {
            id.clone_into(&mut self.id_json);
            self.created = response.created;
        }
        self.tier = response.tier.or(self.tier);
        self.usage = response.counted().or(self.usage);
    }

    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// What is known before the usage is told: the tier.
    pub fn so_far(&self) -> Option<Usage> {
        self.tier.map(Usage::of_tier)
    }

    pub fn id_json(&self) -> &str {
        if self.id_json.is_empty() { "\"\"" } else { &self.id_json }
    }

    pub fn created(&self) -> u64 {
        self.created
    }

    /// The number of the event that would come next.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }
}

/// Reads an event; `None` if it is not a JSON object.
pub(super) fn read(text: &str) -> Option<EventSeen<'_>> {
    let mut scan = Scan::new(text, DEPTH_MAX);
    if scan.kind().ok()? != Kind::Object {
        return None;
    }
    let mut seen = EventSeen::default();
    let outcome: Result<_, Broken> = scan.object(|scan, key| {
        match key.name().as_ref() {
            "type" => seen.kind = scan.text_or_skip()?.map(|kind| kind.name()),
            "sequence_number" => seen.sequence = scan.count_or_skip()?,
            "delta" => seen.delta_bytes = scan.text_or_skip()?.map_or(0, |delta| delta.decoded_bytes()),
            "response" => response(scan, &mut seen.response)?,
            "item" => {
                scan.object_or_skip(|scan, key| {
                    if key.name() == "type" {
                        let kind = scan.text_or_skip()?;
                        seen.has_reasoning |= kind.is_some_and(|kind| kind.raw == "reasoning");
                        return Ok(());
                    }
                    scan.skip().map(drop)
                })?;
            }
            _ => drop(scan.skip()?),
        }
        Ok(())
    });
    outcome.and_then(|_| scan.end()).ok()?;
    seen.has_reasoning |= seen.kind.as_deref().is_some_and(|kind| kind.starts_with("response.reasoning"));
    Some(seen)
}

/// Reads a whole response; `None` if it is not a JSON object.
pub(super) fn read_whole(text: &str) -> Option<Response> {
    let mut scan = Scan::new(text, DEPTH_MAX);
    if scan.kind().ok()? != Kind::Object {
        return None;
    }
    let mut whole = Response::default();
    response(&mut scan, &mut whole).and_then(|()| scan.end()).ok()?;
    Some(whole)
}

fn response(scan: &mut Scan<'_>, response: &mut Response) -> Result<(), Broken> {
    response.is_given |= scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "id" => response.id = scan.text_or_skip()?.map(|id| id.span),
            "created_at" => response.created = scan.count_or_skip()?.unwrap_or(0),
            "model" => response.model = scan.text_or_skip()?.map(|model| model.span),
            "status" => {
                let status = scan.text_or_skip()?;
                response.is_failed = status.is_some_and(|status| matches!(status.raw, "failed" | "cancelled"));
            }
            "error" => {
                response.has_error = scan.kind()? != Kind::Null;
                scan.skip()?;
            }
            "usage" => response.usage = counters::responses(scan)?.or(response.usage),
            "service_tier" => response.tier = counters::tier(scan)?.or(response.tier),
            "tool_usage" => response.searches = searches(scan)?,
            "output" => output(scan, &mut response.output_bytes)?,
            _ => drop(scan.skip()?),
        }
        Ok(())
    })?;
    Ok(())
}

fn searches(scan: &mut Scan<'_>) -> Result<u64, Broken> {
    let mut searches = 0;
    scan.object_or_skip(|scan, key| {
        if key.name() != "web_search" {
            return scan.skip().map(drop);
        }
        scan.object_or_skip(|scan, key| {
            match key.name().as_ref() {
                "num_requests" => searches = scan.count_or_skip()?.unwrap_or(0),
                _ => drop(scan.skip()?),
            }
            Ok::<(), Broken>(())
        })
        .map(drop)
    })?;
    Ok(searches)
}

/// The bytes of what was generated, wherever it stands in the items.
fn output(scan: &mut Scan<'_>, bytes: &mut u64) -> Result<(), Broken> {
    match scan.kind()? {
        Kind::Array => scan.array(|scan| output(scan, bytes)).map(drop),
        Kind::Object => scan
            .object(|scan, key| match key.name().as_ref() {
                "text" | "arguments" | "input" | "refusal" => {
                    let told = scan.text_or_skip()?.map_or(0, |text| text.decoded_bytes());
                    *bytes = bytes.saturating_add(told);
                    Ok(())
                }
                "content" | "summary" => output(scan, bytes),
                _ => scan.skip().map(drop),
            })
            .map(drop),
        _ => scan.skip().map(drop),
    }
}
