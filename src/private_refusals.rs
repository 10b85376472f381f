//! What the private listeners refuse: one count and one line of the log for each.
//!
//! Pages that the edge asks for are the edge's requests, and counted there. This file must not
//! change an answer.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use std::net::IpAddr;

/// Answers a request, and records where it is refused.
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
