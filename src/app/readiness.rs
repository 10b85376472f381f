//! Answers `/readyz`, which reports whether this process should receive new work, and if not, all
//! reasons.
//!
//! Each reason has a code for programs and a sentence for people. This file must not decide about
//! refusals; it queries the components that refuse work.

use super::server_handle::ServerHandle;
use crate::billing::admission::Admission;
use crate::billing::backlog::LedgerBacklog;
use crate::billing::{check_reads, write_counts};
use crate::edge::resource_guard::Shortage;
use crate::pulse::{Pulse, RefusalProbe, Vitals};
use crate::shared_credit::ledger_ingest::LedgerIngest;
use crate::shared_credit::store_health::StoreHealthMonitor;
use crate::sidecar::Sidecar;
use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::future::{Ready, ready};
use std::sync::Arc;
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
pub fn handler(
    reasons: impl Fn() -> Vec<UnreadyReason> + Clone,
) -> impl Fn(HeaderMap) -> Ready<Response> + Clone {
    move |headers| ready(build_response(reasons(), &headers))
}

/// Returns the reasons why a process cannot work. `code` is that of a process that serves nobody.
pub fn pulse_reasons(pulse: &Pulse, code: &'static str) -> Vec<UnreadyReason> {
    let stop = pulse.stop_reason().map(|stop| (code, stop));
    let reasons = stop.into_iter().chain(pulse.refusals());
    reasons.map(|(code, why)| reason(code, why)).collect()
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

/// Returns what an edge needs to admit a request. `store` is the shared store, if there is one.
pub fn edge_vitals(
    admission: &Arc<dyn Admission>,
    store: Option<Arc<StoreHealthMonitor>>,
) -> Vitals {
    let (checked, asked) = (Arc::clone(admission), Arc::clone(admission));
    let store = store.map(|store| {
        let refusal: RefusalProbe = Box::new(move || store.outage_reason());
        ("store", refusal)
    });
    let ledger: RefusalProbe = Box::new(move || {
        let refusal =
            "completed requests do not reach the ledger, or the journal cannot be written";
        (!asked.is_healthy()).then(|| refusal.to_owned())
    });
    Vitals {
        writes: admission.write_counts(),
        consequence: "no request can be admitted",
        reason: "edge_stopped",
        check: Box::new(move || {
            let admission = Arc::clone(&checked);
            Box::pin(async move {
                if admission.backlog().is_some_and(LedgerBacklog::is_full) {
                    return Err("too many ended requests wait for the ledger".to_owned());
                }
                let reads = admission.check_reads().await;
                reads.map_err(|error| error.to_string())
            })
        }),
        refusals: store.into_iter().chain([("ledger", ledger)]).collect(),
    }
}

/// Returns what a sidecar in a process of its own needs to serve a page.
pub fn sidecar_vitals(state: &Sidecar, ingest: Arc<LedgerIngest>) -> Vitals {
    let (accounts, billing) = (state.accounts.clone(), state.billing.clone());
    let mut writes = write_counts(&accounts, &billing);
    writes.push(("ledger.db", ingest.write_count()));
    let ledger: RefusalProbe =
        Box::new(move || (!ingest.is_healthy()).then(|| ingest.last_error()));
    Vitals {
        writes,
        consequence: "no page can be served",
        reason: "pages_stopped",
        check: Box::new(move || {
            let reads = check_reads(accounts.clone(), billing.clone());
            Box::pin(async { reads.await.map_err(|error| error.to_string()) })
        }),
        refusals: vec![("ledger", ledger)],
    }
}

impl ServerHandle {
    /// Returns the reasons not to send new work to this process, or an empty list if it is ready.
    pub(super) fn unready_reasons(&self) -> Vec<UnreadyReason> {
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
        reasons.extend(pulse_reasons(&self.pulse, "edge"));
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
