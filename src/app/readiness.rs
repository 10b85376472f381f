//! Answers `/readyz`, which reports whether this process should receive new work, and if not, all
//! reasons.
//!
//! Each reason has a code for programs and a sentence for people. This file must not decide about
//! refusals; it queries the components that refuse work.

use super::server_handle::ServerHandle;
use crate::edge::resource_guard::Shortage;
use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::future::{Ready, ready};
use std::sync::atomic::Ordering;

/// A reason to send new work to another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadyReason {
    pub code: &'static str,
    pub message: String,
}

fn reason(code: &'static str, message: impl Into<String>) -> UnreadyReason {
    UnreadyReason {
        code,
        message: message.into(),
    }
}

#[derive(Serialize)]
struct ReadinessBody {
    ready: bool,
    reasons: Vec<UnreadyReason>,
}

/// Responds with 200 or 503, as JSON if the client accepts it, and otherwise as text.
pub fn handler(handle: ServerHandle) -> impl Fn(HeaderMap) -> Ready<Response> + Clone {
    move |headers| ready(build_response(handle.unready_reasons(), &headers))
}

fn build_response(reasons: Vec<UnreadyReason>, headers: &HeaderMap) -> Response {
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if accept.contains("application/json") {
        return (
            status,
            Json(ReadinessBody {
                ready: reasons.is_empty(),
                reasons,
            }),
        )
            .into_response();
    }
    let messages: Vec<_> = reasons.into_iter().map(|reason| reason.message).collect();
    let text = if messages.is_empty() {
        "ready\n".into()
    } else {
        format!("not ready: {}\n", messages.join("; "))
    };
    (status, text).into_response()
}

impl ServerHandle {
    /// Returns the reasons not to send new work to this process, or an empty list if it is ready.
    fn unready_reasons(&self) -> Vec<UnreadyReason> {
        if !self.ready.load(Ordering::Acquire) {
            return vec![reason("starting", "the gateway does not listen yet")];
        }
        let mut reasons = Vec::new();
        if self.draining.load(Ordering::Acquire) {
            reasons.push(reason("draining", "the gateway is draining"));
        }
        if self.shutdown.is_lame_duck() {
            reasons.push(reason(
                "lame_duck",
                "the gateway is about to shut down, but still serves requests",
            ));
        }
        if let Some(trouble) = self
            .store_health
            .as_ref()
            .and_then(|monitor| monitor.outage_reason())
        {
            reasons.push(reason("store", trouble));
        }
        if let Some(stop) = self.pulse.stop_reason() {
            reasons.push(reason("edge", stop));
        }
        if !self.admission.is_healthy() {
            reasons.push(reason(
                "ledger",
                "completed requests do not reach the ledger, or the journal cannot be written",
            ));
        }
        match self.pressure.recent_shortage() {
            Some(Shortage::Memory) => {
                reasons.push(reason(
                    "memory",
                    "memory is nearly used up, so the gateway refuses new requests",
                ));
            }
            Some(Shortage::Files) => {
                reasons.push(reason(
                    "descriptors",
                    "open files are nearly at their limit, so the gateway refuses new requests",
                ));
            }
            None => {}
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reasons_are_text_or_json() {
        let body = |reasons, accept: Option<&'static str>| async move {
            let accept = accept.map(|accept| (header::ACCEPT, accept.parse().unwrap()));
            let response = build_response(reasons, &accept.into_iter().collect());
            let status = response.status().as_u16();
            let bytes = axum::body::to_bytes(response.into_body(), 1_024)
                .await
                .unwrap();
            (status, String::from_utf8(bytes.to_vec()).unwrap())
        };
        let reasons = vec![
            reason("draining", "the gateway is draining"),
            reason("memory", "memory is nearly used up"),
        ];
        assert_eq!(body(Vec::new(), None).await, (200, "ready\n".into()));
        let text = "not ready: the gateway is draining; memory is nearly used up\n";
        assert_eq!(body(reasons.clone(), Some("*/*")).await, (503, text.into()));
        let (status, json) = body(reasons, Some("application/json")).await;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((status, json["ready"].as_bool()), (503, Some(false)));
        assert_eq!(json["reasons"][1]["code"], "memory");
    }
}
