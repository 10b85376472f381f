//! Builds the spans of a finished request: one for the request, and one for each attempt.
//!
//! This file must not send spans: `crates/base/src/telemetry/traces.rs` does.

use crate::edge::state::{RequestContext, Stage};
use base::clock;
use base::telemetry::traces::{AttributeValue, SpanKind, TraceSpan};
use std::time::{Duration, Instant};

/// Returns the spans of a finished request. `took` is its duration.
pub(super) fn build_spans(ctx: &mut RequestContext, status: u16, took: Duration) -> Vec<TraceSpan> {
    let Some(trace) = ctx.record.trace.take() else {
        return Vec::new();
    };
    let Some((id, own)) = trace.own else {
        return Vec::new();
    };
    let ended = Duration::from_millis(u64::try_from(clock::now_ms()).unwrap_or_default());
    let began = ended.saturating_sub(took);
    let at = |moment: Instant| began + moment.saturating_duration_since(ctx.record.arrived);
    let mut spans = vec![TraceSpan {
        name: "request",
        kind: SpanKind::Server,
        trace: id,
        id: own,
        parent: trace.parent.map(|parent| parent.span),
        began,
        ended,
        is_failed: status >= 500,
        attributes: request_attributes(ctx, status),
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
            attributes: vec![
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
    let mut attributes = vec![
        (
            "gateway.request_id",
            AttributeValue::Text(ctx.record.request_id.clone()),
        ),
        (
            "gateway.route",
            AttributeValue::Text(ctx.record.route.as_str().to_owned()),
        ),
        (
            "http.response.status_code",
            AttributeValue::Number(status.into()),
        ),
    ];
    let surface = ctx.record.route.surface(ctx.record.surface);
    if !surface.is_empty() {
        attributes.push(("gateway.surface", AttributeValue::Text(surface.to_owned())));
    }
    attributes.extend(
        ctx.record
            .reason
            .map(|reason| ("gateway.reason", AttributeValue::Text(reason.to_owned()))),
    );
    if let Stage::Admitted(call) = &ctx.stage {
        attributes.push((
            "gen_ai.request.model",
            AttributeValue::Text(call.model.id.clone()),
        ));
        attributes.push((
            "gateway.vendor",
            AttributeValue::Text(call.model.vendor.name.clone()),
        ));
        attributes.extend(call.billed.map(|(outcome, _)| {
            (
                "gateway.outcome",
                AttributeValue::Text(outcome.as_str().to_owned()),
            )
        }));
    }
    if let Stage::Admitted(call) = &ctx.stage {
        let phases = call.phases(ctx.record.arrived);
        let named = [
            ("gateway.auth_us", phases.auth),
            ("gateway.body_us", phases.body),
            ("gateway.admit_us", phases.admit),
        ];
        let micros = |time: Duration| {
            AttributeValue::Number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
        };
        attributes.extend(named.map(|(key, time)| (key, micros(time))));
    }
    attributes
}
