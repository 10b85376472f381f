//! Counts and logs the requests that the private listeners refuse, and says which hosts they have.
//!
//! Requests that the edge forwards are counted by the edge. This file must not change an answer.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use std::net::IpAddr;

/// Returns whether a request is for a private host. A host in the target counts in place of the
/// host field (RFC 9112 section 3.2.2). A browser always sends one of the two.
pub fn is_for_private_host(request: &Request, names: &[String]) -> bool {
    let target = request.uri().authority();
    let target = target.map(|authority| authority.as_str().as_bytes());
    let field = request.headers().get(HOST).map(HeaderValue::as_bytes);
    target
        .or(field)
        .is_none_or(|host| is_private_host(host, names))
}

/// Returns whether a host has an address, a name that no stranger can own, or one of
/// `names`. A browser that was led here by a name of a stranger's sends that name.
fn is_private_host(host: &[u8], names: &[String]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn a_host_is_an_address_or_a_name_that_no_stranger_owns() {
        let names = ["edge-1.example.com".to_owned()];
        for host in [
            "127.0.0.1:9090",
            "10.1.2.3",
            "[::1]:9090",
            "[2001:db8::7]",
            "localhost:9090",
            "LOCALHOST",
            "sidecar:9090",
            "Edge-1.example.com:9090",
        ] {
            assert!(is_private_host(host.as_bytes(), &names), "{host}");
        }
        for host in [
            "evil.example",
            "edge-1.example.com.evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "",
            "a b",
            "\u{e9}",
        ] {
            assert!(!is_private_host(host.as_bytes(), &names), "{host}");
        }
    }

    #[test]
    fn the_host_of_a_target_counts_in_place_of_the_host_field() {
        let is_private = |target: &str, field: Option<&str>| {
            let request = Request::builder().uri(target);
            let request = match field {
                Some(host) => request.header(HOST, host),
                None => request,
            };
            is_for_private_host(&request.body(Body::empty()).unwrap(), &[])
        };
        let public = Some("evil.example");
        assert!(is_private("/metrics", None) && is_private("/metrics", Some("127.0.0.1")));
        assert!(!is_private("/metrics", public));
        assert!(is_private("http://127.0.0.1:9090/metrics", public));
        let target = "http://evil.example/metrics";
        assert!(!is_private(target, Some("127.0.0.1")) && !is_private(target, None));
    }
}
