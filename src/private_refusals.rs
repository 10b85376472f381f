//! Counts and logs the requests that the private listeners refuse.
//!
//! Requests that the edge forwards are counted by the edge. This file must not change an answer.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use std::net::IpAddr;

/// Answers a request, and records a refusal.
pub async fn observe(
    reason: RefusalReason,
    client: Option<IpAddr>,
    request: Request,
    next: Next,
) -> Response {
    let method = loggable_method(request.method().as_str().as_bytes());
    let path = loggable_path(request.uri().path().as_bytes());
    let response = next.run(request).await;
    let status = response.status();
    if status.is_client_error() {
        let status = status.as_u16();
        refusals::record(
            reason,
            client,
            format_args!("{method} {path}: answered with {status}"),
        );
    }
    response
}
