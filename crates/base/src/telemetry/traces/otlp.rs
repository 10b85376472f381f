//! Encodes a batch of spans as OTLP JSON, with ids in hex and times as strings of nanoseconds.
//!
//! This file must not add data to a span.
//!
//! The crate `opentelemetry-otlp` is no replacement, because it requires its SDK and an HTTP or
//! gRPC client.

use super::span::{AttributeValue, TraceSpan, hex};
use serde_json::{Value, json};

/// OTLP's number for `STATUS_CODE_ERROR`.
const OTLP_STATUS_ERROR: u32 = 2;

pub fn encode_document(spans: &[TraceSpan]) -> String {
    let service = [
        text_attribute("service.name", "model-gateway"),
        text_attribute("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let spans: Vec<_> = spans.iter().map(encode_span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": service},
        "scopeSpans": [{"scope": {"name": "model-gateway"}, "spans": spans}],
    }]})
    .to_string()
}

fn encode_span(span: &TraceSpan) -> Value {
    let attributes: Vec<_> = span
        .attributes
        .iter()
        .map(|(key, fact)| encode_attribute(key, fact))
        .collect();
    let mut object = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id),
        "name": span.name,
        "kind": span.kind as u32,
        "startTimeUnixNano": span.began.as_nanos().to_string(),
        "endTimeUnixNano": span.ended.as_nanos().to_string(),
        "attributes": attributes,
    });
    if let Some(parent) = &span.parent {
        object["parentSpanId"] = hex(parent).into();
    }
    if span.is_failed {
        object["status"] = json!({"code": OTLP_STATUS_ERROR});
    }
    object
}

fn encode_attribute(key: &str, fact: &AttributeValue) -> Value {
    match fact {
        AttributeValue::Text(value) => text_attribute(key, value),
        // OTLP JSON writes integers as strings, because they may exceed JavaScript's range.
        AttributeValue::Number(value) => {
            json!({"key": key, "value": {"intValue": value.to_string()}})
        }
    }
}

fn text_attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}
