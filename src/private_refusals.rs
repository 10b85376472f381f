//! Counts and logs the requests that the private listeners refuse, and says which hosts they have.
//!
//! Requests that the edge forwards are counted by the edge. This file must not change an answer.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use std::net::IpAddr;

/// Returns whether a host header has an address, a name that no stranger can own, or one of
/// `names`. A browser that was led here by a name of a stranger's sends that name.
pub fn is_private_host(host: &[u8], names: &[String]) -> bool {
    Authority::try_from(host).is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        let is_known = || names.iter().any(|name| name.eq_ignore_ascii_case(host));
        host.parse::<IpAddr>().is_ok() || !host.contains('.') || is_known()
    })
}

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
