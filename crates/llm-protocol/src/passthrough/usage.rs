//! Writes the usage object for a client if the vendor's object differs from the billed usage.
//!
//! This file must not decide what is billed: `usage/metering.rs` does. A usage object that equals
//! the billed usage stays unchanged.

use crate::Protocol;
use crate::chat::write_stream::write_usage as write_chat_usage;
use crate::json::{
    JsonKind, JsonScanner, JsonWriter, MAX_RESPONSE_DEPTH, ScanResult, Span, edit, edit::JsonEdit,
};
use crate::messages::write_stream::write_usage as write_messages_usage;
use crate::responses::write_stream::completion::write_usage as write_responses_usage;
use crate::usage::{
    MeteredUsage, MeteringTerms, Usage, UsageBounds, UsageVerdict, VendorCounters, meter,
};

/// Returns the usage counted so far, without any estimate.
pub(super) fn meter_counted(counters: &VendorCounters, bounds: &UsageBounds) -> MeteredUsage {
    meter(counters, bounds, &Usage::default())
}

/// Returns the usage of the whole answer. Counts that the vendor does not report are estimated.
pub(super) fn meter_billed(
    counters: &VendorCounters,
    terms: &MeteringTerms,
    generated_bytes: u64,
) -> MeteredUsage {
    let known_usage = meter_counted(counters, &terms.bounds).usage;
    meter(
        counters,
        &terms.bounds,
        &terms.estimator.usage(Some(known_usage), generated_bytes),
    )
}

/// Returns the usage object that replaces `raw`, which has these `counters`. Returns `None` if
/// `raw` equals the billed usage. `before` is the usage that the client received before.
pub(super) fn restate_usage(
    protocol: Protocol,
    counters: &VendorCounters,
    metered: &MeteredUsage,
    before: &Usage,
    raw: &str,
) -> Option<String> {
    let is_stated = metered.verdict != UsageVerdict::Estimated
        && match counters {
            VendorCounters::Chat(chat) => chat.matches(&metered.usage),
            VendorCounters::Messages(messages) => messages.matches(&metered.usage, before),
        };
    if is_stated {
        complete_usage(protocol, &metered.usage, raw)
    } else {
        Some(encode_usage(protocol, &metered.usage))
    }
}

pub(super) fn encode_usage(protocol: Protocol, usage: &Usage) -> String {
    let mut json = JsonWriter::default();
    match protocol {
        Protocol::Chat => write_chat_usage(usage, &mut json),
        Protocol::Messages => write_messages_usage(usage, &mut json),
        Protocol::Responses => write_responses_usage(usage, &mut json),
    }
    json.into_string()
}

/// Returns the edit that puts a usage object into an object of the protocol. `at` is the span of
/// the member's value, if the object has the member. Otherwise the edit uses `end`, the position of
/// the object's closing brace.
pub(super) fn usage_edit(
    text: &str,
    at: Option<Span>,
    end: usize,
    usage: String,
) -> JsonEdit<'static> {
    if let Some(at) = at {
        return JsonEdit::new(at, usage);
    }
    let is_empty = text
        .get(..end)
        .unwrap_or_default()
        .trim_end()
        .ends_with('{');
    let comma = if is_empty { "" } else { "," };
    JsonEdit::new(Span::at(end), format!("{comma}\"usage\":{usage}"))
}

/// Returns the position of the closing brace if `text` is an object.
pub(super) fn closing_brace(text: &str) -> usize {
    text.trim_end().len().saturating_sub(1)
}

/// The presence of the standard members in a usage object: the total, and the cached tokens of the
/// prompt, for which some vendors use other names.
#[derive(Default)]
struct UsageMembers {
    null_total: Option<Span>,
    /// Span of the object with the prompt's parts, or of another value in its position.
    parts: Option<Span>,
    parts_are_object: bool,
    parts_are_empty: bool,
    names_cached: bool,
    null_cached: Option<Span>,
}

/// Returns `raw` with the missing standard members added, or `None` if none is missing.
fn complete_usage(protocol: Protocol, usage: &Usage, raw: &str) -> Option<String> {
    let parts_name = match protocol {
        Protocol::Chat => "prompt_tokens_details",
        Protocol::Responses => "input_tokens_details",
        Protocol::Messages => return None,
    };
    if !raw.starts_with('{') {
        // The member is duplicated, and clients read the last one.
        return Some(encode_usage(protocol, usage));
    }
    let members = read_usage_members(raw, parts_name).ok()?;
    let mut edits = Vec::new();
    if let Some(total) = members.null_total {
        edits.push(JsonEdit::new(total, usage.tokens_total().to_string()));
    }
    if usage.cache_read > 0 && !members.names_cached {
        let cached = usage.cache_read.to_string();
        edits.push(match (members.null_cached, members.parts) {
            (Some(null), _) => JsonEdit::new(null, cached),
            (None, Some(parts)) if members.parts_are_object => {
                let inside = parts.start.saturating_add(1);
                let comma = if members.parts_are_empty { "" } else { "," };
                JsonEdit::new(
                    Span::at(inside),
                    format!("\"cached_tokens\":{cached}{comma}"),
                )
            }
            (None, Some(parts)) => JsonEdit::new(parts, format!("{{\"cached_tokens\":{cached}}}")),
            (None, None) => JsonEdit::new(
                Span::at(closing_brace(raw)),
                format!(",\"{parts_name}\":{{\"cached_tokens\":{cached}}}"),
            ),
        });
    }
    if edits.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    edit::apply_edits(raw.as_bytes(), &mut edits, &mut out);
    String::from_utf8(out).ok()
}

fn read_usage_members(raw: &str, parts_name: &str) -> ScanResult<UsageMembers> {
    let (mut scan, mut members) = (
        JsonScanner::new(raw, MAX_RESPONSE_DEPTH),
        UsageMembers::default(),
    );
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "total_tokens" => {
                let kind = scan.kind()?;
                let span = scan.skip_span()?;
                members.null_total = (kind == JsonKind::Null).then_some(span);
            }
            name if name == parts_name => {
                let start = scan.value_start()?;
                members.parts_are_empty = true;
                (members.names_cached, members.null_cached) = (false, None);
                members.parts_are_object = scan.kind()? == JsonKind::Object;
                scan.object_or_skip(|scan, key| {
                    members.parts_are_empty = false;
                    let kind = scan.kind()?;
                    let span = scan.skip_span()?;
                    if key.name() == "cached_tokens" {
                        members.names_cached = kind != JsonKind::Null;
                        members.null_cached = (kind == JsonKind::Null).then_some(span);
                    }
                    ScanResult::Ok(())
                })?;
                members.parts = Some(scan.span_from(start));
            }
            _ => scan.skip()?,
        }
        ScanResult::Ok(())
    })?;
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cache_read: u64) -> Usage {
        Usage {
            input: 50 - cache_read,
            cache_read,
            output: 10,
            ..Usage::default()
        }
    }

    #[test]
    fn a_usage_object_gets_the_standard_members_that_it_lacks_and_keeps_its_own() {
        for (raw, expected) in [
            (
                r#"{"prompt_cache_hit_tokens":40,"total_tokens":60}"#,
                r#"{"prompt_cache_hit_tokens":40,"total_tokens":60,"prompt_tokens_details":{"cached_tokens":40}}"#,
            ),
            (
                r#"{"total_tokens": null,"prompt_tokens_details":{"audio_tokens":0},"x":1 }"#,
                r#"{"total_tokens": 60,"prompt_tokens_details":{"cached_tokens":40,"audio_tokens":0},"x":1 }"#,
            ),
            (
                r#"{"prompt_tokens_details":{}}"#,
                r#"{"prompt_tokens_details":{"cached_tokens":40}}"#,
            ),
            (
                r#"{"prompt_tokens_details":null}"#,
                r#"{"prompt_tokens_details":{"cached_tokens":40}}"#,
            ),
            (
                r#"{"prompt_tokens_details":{"cached_tokens":null,"a":1}}"#,
                r#"{"prompt_tokens_details":{"cached_tokens":40,"a":1}}"#,
            ),
        ] {
            assert_eq!(
                complete_usage(Protocol::Chat, &usage(40), raw).as_deref(),
                Some(expected),
                "{raw}"
            );
            assert_eq!(
                complete_usage(Protocol::Chat, &usage(40), expected),
                None,
                "again"
            );
        }
        let whole = r#"{"total_tokens":60,"prompt_tokens_details":{"cached_tokens":40}}"#;
        assert_eq!(complete_usage(Protocol::Chat, &usage(40), whole), None);
        assert_eq!(complete_usage(Protocol::Chat, &usage(0), "{}"), None);
        assert_eq!(complete_usage(Protocol::Messages, &usage(40), "{}"), None);
        let responses = r#"{"input_tokens":50,"input_tokens_details":{"cached_tokens":40},"total_tokens":null}"#;
        let expected =
            r#"{"input_tokens":50,"input_tokens_details":{"cached_tokens":40},"total_tokens":60}"#;
        assert_eq!(
            complete_usage(Protocol::Responses, &usage(40), responses).as_deref(),
            Some(expected)
        );
    }

    #[test]
    fn a_usage_object_takes_the_place_of_what_is_none_or_stands_at_the_end() {
        let slice_at = |text: &str, at: Option<Span>| {
            let edit = usage_edit(text, at, closing_brace(text), "7".into());
            let mut out = Vec::new();
            edit::apply_edits(text.as_bytes(), &mut [edit], &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            slice_at(r#"{"usage":null,"a":1}"#, Some(Span { start: 9, end: 13 })),
            r#"{"usage":7,"a":1}"#
        );
        assert_eq!(slice_at("{\"a\":1 }\n", None), "{\"a\":1 ,\"usage\":7}\n");
        assert_eq!(slice_at("{ }", None), "{ \"usage\":7}");
    }
}
