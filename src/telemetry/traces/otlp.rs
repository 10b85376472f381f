//! Encodes a batch of spans as OTLP JSON: ids in hex, times in nanoseconds as strings.
//!
//! Must not add anything that a span does not hold.

use super::{Fact, Span, hex};
use serde_json::{Value, json};

/// `STATUS_CODE_ERROR`
const FAILED: u32 = 2;

pub fn document(spans: &[Span]) -> String {
    let service = [
        text("service.name", "model-gateway"),
        text("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let spans: Vec<_> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": service},
        "scopeSpans": [{"scope": {"name": "model-gateway"}, "spans": spans}],
    }]})
    .to_string()
}

fn span(span: &Span) -> Value {
    let facts: Vec<_> = span
        .facts
        .iter()
        .map(|(key, fact)| attribute(key, fact))
        .collect();
    let mut told = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id),
        "name": span.name,
        "kind": span.kind as u32,
        "startTimeUnixNano": span.began.as_nanos().to_string(),
        "endTimeUnixNano": span.ended.as_nanos().to_string(),
        "attributes": facts,
    });
    if let Some(parent) = &span.parent {
        told["parentSpanId"] = hex(parent).into();
    }
    if span.is_failed {
        told["status"] = json!({"code": FAILED});
    }
    told
}

fn attribute(key: &str, fact: &Fact) -> Value {
    match fact {
        Fact::Text(value) => text(key, value),
        // This format writes integers as strings, because they may exceed JavaScript's range.
        Fact::Number(value) => json!({"key": key, "value": {"intValue": value.to_string()}}),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}
