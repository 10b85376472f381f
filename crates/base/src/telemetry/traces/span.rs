//! Defines a span and its ids.
//!
//! A span must not contain a text of a client: see `traces.rs`.

use std::fmt::Write as _;
use std::time::Duration;

pub type TraceId = [u8; 16];
pub type SpanId = [u8; 8];

/// Span kind, with OTLP's numbers.
#[derive(Debug, Clone, Copy)]
pub enum SpanKind {
    Server = 2,
    Client = 3,
}

#[derive(Debug)]
pub enum AttributeValue {
    Text(String),
    Number(u64),
}

/// One operation, with its start and end.
#[derive(Debug)]
pub struct TraceSpan {
    pub name: &'static str,
    pub kind: SpanKind,
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    /// Start time, since 1970.
    pub began: Duration,
    pub ended: Duration,
    pub is_failed: bool,
    pub attributes: Vec<(&'static str, AttributeValue)>,
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
