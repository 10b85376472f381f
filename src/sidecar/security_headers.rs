//! Implements middleware for all requests and responses. It refuses changes that another site's
//! page requests, and sets headers that make injected scripts useless.

use super::error::PageError;
use super::state::SidecarState;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

const SECURITY_HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Adds the security headers. A response without a caching header gets `no-store`.
pub async fn add_security_headers(
    State(app): State<Arc<SidecarState>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if app.settings.load().base_url.starts_with("https://") {
        headers.insert(
            header::STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static("max-age=31536000"),
        );
    }
    response
}

/// Refuses a change that another site's page requests in the user's name.
pub async fn require_same_origin(
    State(app): State<Arc<SidecarState>>,
    request: Request,
    next: Next,
) -> Result<Response, PageError> {
    let safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if !safe && !is_same_origin(request.headers(), &app.settings.load().base_url) {
        return Err(PageError::CrossSite);
    }
    Ok(next.run(request).await)
}

/// Returns whether a request comes from the gateway's own pages. Browsers report the origin in
/// `Sec-Fetch-Site` on https and loopback, and in `Origin` on every POST. A request with neither
/// header does not come from a browser, so it cannot misuse a user's cookie. A signed-in form needs
/// its token in any case.
fn is_same_origin(headers: &HeaderMap, base_url: &str) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin" || site == "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let own_host = origin.split_once("://").map(|(_, authority)| authority);
    origin.eq_ignore_ascii_case(origin_of(base_url))
        || matches!((own_host, host), (Some(own), Some(host)) if own.eq_ignore_ascii_case(host))
}

fn origin_of(url: &str) -> &str {
    let start = url.find("://").map_or(0, |index| index + 3);
    let end = url
        .get(start..)
        .and_then(|rest| rest.find('/'))
        .map_or(url.len(), |index| start + index);
    url.get(..end).unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_comes_from_our_own_pages() {
        let is_allowed = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| {
                    (
                        HeaderName::from_static(name),
                        HeaderValue::from_static(value),
                    )
                })
                .collect();
            is_same_origin(&headers, "https://gw.example/base")
        };
        assert!(is_allowed(&[
            ("sec-fetch-site", "same-origin"),
            ("origin", "null")
        ]));
        assert!(is_allowed(&[("origin", "https://gw.example")]));
        assert!(is_allowed(&[
            ("origin", "http://10.0.0.1:8080"),
            ("host", "10.0.0.1:8080")
        ]));
        assert!(is_allowed(&[]));
        for bad in ["cross-site", "same-site", ""] {
            assert!(
                !is_allowed(&[("sec-fetch-site", bad), ("origin", "https://gw.example")]),
                "{bad}"
            );
        }
        for bad in [
            "https://evil.example",
            "null",
            "http://gw.example",
            "https://gw.example.evil.example",
            "",
        ] {
            assert!(
                !is_allowed(&[("origin", bad), ("host", "10.0.0.1")]),
                "{bad}"
            );
        }
    }
}
