//! The trace of a request, if the request is traced.
//!
//! Chance decides whether it is, not the caller. This file must not send anything:
//! `telemetry/traces.rs` does.

use super::context::{RequestContext, Stage};
use crate::clock;
use crate::telemetry::traces::{
    self, AttributeValue, SAMPLE_ALL, SpanId, SpanKind, TraceExportConfig, TraceId, TraceParent,
    TraceSpan,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::{Duration, Instant};

/// Header that carries a trace context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace of one request that is sampled, or whose caller's trace context is passed to the
/// vendor.
pub struct RequestTrace {
    parent: Option<TraceParent>,
    /// Ids of the gateway's own trace. `None` if the request was not sampled.
    own: Option<(TraceId, SpanId)>,
    to_vendors: bool,
    /// Trace context as the caller sent it.
    said: Option<HeaderValue>,
    attempts: Vec<AttemptTrace>,
}

struct AttemptTrace {
    id: SpanId,
    began: Instant,
    endpoint: String,
    /// Status of the response. 0 if there was none.
    status: Option<u16>,
}

impl RequestTrace {
    /// Begins a trace, if this request gets one.
    pub fn from_header(plan: &TraceExportConfig, header: &HeaderMap) -> Option<Box<Self>> {
        let mut told = header.get_all(TRACEPARENT).iter();
        // A repeated header is ignored.
        let said = told.next().filter(|_| told.next().is_none());
        let parent = said.and_then(|value| traces::parse_traceparent(value.to_str().ok()?));
        let ids = || {
            Some((
                parent.map_or_else(random, |parent| Some(parent.trace))?,
                random()?,
            ))
        };
        let own = is_sampled(plan.share).then(ids).flatten();
        let said = said
            .filter(|_| plan.to_vendors && parent.is_some())
            .cloned();
        let is_wanted = own.is_some() || said.is_some();
        is_wanted.then(|| {
            Box::new(Self {
                parent,
                own,
                to_vendors: plan.to_vendors,
                said,
                attempts: Vec::new(),
            })
        })
    }

    /// Begins an attempt at an endpoint.
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
            _ => self.said.clone(),
        }
    }

    /// Records the status of the vendor's header.
    pub fn record_status(&mut self, status: u16) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.status = Some(status);
        }
    }
}

/// Returns the spans of a finished request. `took` is its duration.
pub fn build_spans(ctx: &mut RequestContext, status: u16, took: Duration) -> Vec<TraceSpan> {
    let Some(trace) = ctx.trace.take() else {
        return Vec::new();
    };
    let Some((id, own)) = trace.own else {
        return Vec::new();
    };
    let ended = Duration::from_millis(u64::try_from(clock::now_ms()).unwrap_or_default());
    let began = ended.saturating_sub(took);
    let at = |moment: Instant| began + moment.saturating_duration_since(ctx.arrived);
    let mut spans = vec![TraceSpan {
        name: "request",
        kind: SpanKind::Server,
        trace: id,
        id: own,
        parent: trace.parent.map(|parent| parent.span),
        began,
        ended,
        is_failed: status >= 500,
        facts: request_attributes(ctx, status),
    }];
    // An attempt ends where the next one begins.
    let ends = trace
        .attempts
        .iter()
        .skip(1)
        .map(|next| at(next.began))
        .chain([ended]);
    for (attempt, attempt_ended) in trace.attempts.iter().zip(ends) {
        let status = attempt.status.unwrap_or_default();
        spans.push(TraceSpan {
            name: "attempt",
            kind: SpanKind::Client,
            trace: id,
            id: attempt.id,
            parent: Some(own),
            began: at(attempt.began),
            ended: attempt_ended,
            is_failed: status == 0 || status >= 400,
            facts: vec![
                (
                    "server.address",
                    AttributeValue::Text(attempt.endpoint.clone()),
                ),
                (
                    "http.response.status_code",
                    AttributeValue::Number(status.into()),
                ),
            ],
        });
    }
    spans
}

fn request_attributes(ctx: &RequestContext, status: u16) -> Vec<(&'static str, AttributeValue)> {
    let mut facts = vec![
        (
            "gateway.request_id",
            AttributeValue::Text(ctx.request_id.clone()),
        ),
        (
            "gateway.route",
            AttributeValue::Text(ctx.route.as_str().to_owned()),
        ),
        (
            "http.response.status_code",
            AttributeValue::Number(status.into()),
        ),
    ];
    let surface = ctx.route.surface(ctx.surface);
    if !surface.is_empty() {
        facts.push(("gateway.surface", AttributeValue::Text(surface.to_owned())));
    }
    facts.extend(
        ctx.reason
            .map(|reason| ("gateway.reason", AttributeValue::Text(reason.to_owned()))),
    );
    if let Stage::Call(call) = &ctx.stage {
        facts.push((
            "gen_ai.request.model",
            AttributeValue::Text(call.model.id.clone()),
        ));
        facts.push((
            "gateway.vendor",
            AttributeValue::Text(call.model.vendor.name.clone()),
        ));
        facts.extend(call.billed.map(|(outcome, _)| {
            (
                "gateway.outcome",
                AttributeValue::Text(outcome.as_str().to_owned()),
            )
        }));
    }
    if let Some(phases) = ctx.phases() {
        let named = [
            ("gateway.auth_us", phases.auth),
            ("gateway.body_us", phases.body),
            ("gateway.admit_us", phases.admit),
        ];
        let micros = |time: Duration| {
            AttributeValue::Number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        facts.extend(named.map(|(key, time)| (key, micros(time))));
    }
    facts
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Decides by chance, with a probability of `share` in [`SAMPLE_ALL`] (a million).
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
