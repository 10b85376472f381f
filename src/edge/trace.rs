//! Records the trace of a request, if the request is traced.
//!
//! Chance decides that, not the client. This file must not send a trace:
//! `crates/base/src/telemetry/traces.rs` does, once `finish/spans.rs` has built the spans.

use base::telemetry::traces::{self, SAMPLE_ALL, SpanId, TraceExportConfig, TraceId, TraceParent};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Instant;

/// Header that carries a trace context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace of a sampled request, or of one whose trace context goes from client to vendor.
pub struct RequestTrace {
    pub(super) parent: Option<TraceParent>,
    /// Ids of the gateway's own trace. `None` if the request was not sampled.
    pub(super) own: Option<(TraceId, SpanId)>,
    to_vendors: bool,
    /// Trace context that the client sent.
    incoming: Option<HeaderValue>,
    pub(super) attempts: Vec<AttemptTrace>,
}

pub(super) struct AttemptTrace {
    pub(super) id: SpanId,
    pub(super) began: Instant,
    pub(super) endpoint: String,
    pub(super) status: Option<u16>,
}

impl RequestTrace {
    /// Begins a trace if the request is sampled or carries a trace context.
    pub fn from_header(config: &TraceExportConfig, header: &HeaderMap) -> Option<Box<Self>> {
        let mut values = header.get_all(TRACEPARENT).iter();
        // A header that occurs more than once is ignored.
        let incoming = values.next().filter(|_| values.next().is_none());
        let parent = incoming.and_then(|value| traces::parse_traceparent(value.to_str().ok()?));
        let ids = || {
            Some((
                parent.map_or_else(random, |parent| Some(parent.trace))?,
                random()?,
            ))
        };
        let own = is_sampled(config.share).then(ids).flatten();
        let incoming = incoming
            .filter(|_| config.to_vendors && parent.is_some())
            .cloned();
        let is_needed = own.is_some() || incoming.is_some();
        is_needed.then(|| {
            Box::new(Self {
                parent,
                own,
                to_vendors: config.to_vendors,
                incoming,
                attempts: Vec::new(),
            })
        })
    }

    pub fn begin_attempt(&mut self, endpoint: &str) {
        if let (Some(_), Some(id)) = (self.own, random()) {
            self.attempts.push(AttemptTrace {
                id,
                began: Instant::now(),
                endpoint: endpoint.to_owned(),
                status: None,
            });
        }
    }

    /// Returns the trace context that the vendor of the running attempt gets.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        if !self.to_vendors {
            return None;
        }
        match (&self.own, self.attempts.last()) {
            (Some((trace, _)), Some(attempt)) => {
                HeaderValue::from_str(&traces::format_traceparent(trace, &attempt.id)).ok()
            }
            _ => self.incoming.clone(),
        }
    }

    pub fn record_status(&mut self, status: u16) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.status = Some(status);
        }
    }
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Decides by chance whether a request is sampled. The probability is `share` divided by
/// [`SAMPLE_ALL`] (a million).
fn is_sampled(share: u32) -> bool {
    share == SAMPLE_ALL
        || share > 0 && random().is_some_and(|bytes| u32::from_le_bytes(bytes) % SAMPLE_ALL < share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_kept() {
        let chosen = |share| (0..10_000).filter(|_| is_sampled(share)).count();
        assert_eq!((chosen(0), chosen(SAMPLE_ALL)), (0, 10_000));
        let half = chosen(SAMPLE_ALL / 2);
        assert!((4_500..5_500).contains(&half), "{half}");
    }
}
