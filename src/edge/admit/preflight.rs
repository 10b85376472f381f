//! Answers CORS preflights, in which a browser asks which methods and headers a page of another
//! origin may send.
//!
//! This file must not decide which origins may call: `edge/cors.rs` does.

use crate::edge::respond;
use crate::edge::state::RequestContext;
use bytes::Bytes;
use config::Settings;
use http::{Method, header};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

const ALLOWED_METHODS: &str = "GET, HEAD, POST, OPTIONS";
/// Time in seconds for which a browser may cache the response to a preflight. It is the longest
/// time that any browser accepts.
const MAX_AGE_SECONDS: u32 = 7_200;
/// Maximum number of header names in the response to one preflight.
const MAX_NAMES: usize = 64;

/// Header fields that official SDKs send from a browser.
const ALLOWED_HEADERS: [&str; 14] = [
    "authorization",
    "x-api-key",
    "content-type",
    "accept",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "idempotency-key",
    "x-client-request-id",
    "traceparent",
    "tracestate",
];
/// Prefixes of other allowed header fields.
const ALLOWED_HEADER_PREFIXES: [&str; 4] = ["anthropic-", "openai-", "x-stainless-", "x-gateway-"];

/// Returns whether the request is a preflight, which asks for allowed methods and headers only.
pub fn is_preflight(session: &Session, ctx: &RequestContext) -> bool {
    ctx.record.cors.is_some() && session.req_header().method == Method::OPTIONS
}

/// Answers a preflight. A browser whose page may not call gets no header that would allow it.
pub async fn answer_preflight(
    session: &mut Session,
    ctx: &mut RequestContext,
    settings: &Settings,
) -> Result<()> {
    ctx.record.status = 204;
    let mut head = ResponseHeader::build_no_case(204, Some(10))?;
    if ctx
        .record
        .cors
        .as_ref()
        .is_some_and(|cors| cors.allows_origin())
    {
        head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS)?;
        head.insert_header(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            allowed_headers(session, settings),
        )?;
        head.insert_header(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECONDS)?;
    }
    head.insert_header(header::ALLOW, ALLOWED_METHODS)?;
    respond::send_response(session, ctx, head, Bytes::new()).await
}

/// Returns the requested header fields that are allowed. If the request names none, returns all
/// fields that this file lists.
fn allowed_headers(session: &Session, settings: &Settings) -> String {
    let requested = session
        .req_header()
        .headers
        .get_all(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let requested = requested
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let names: Vec<_> = requested
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    if names.is_empty() {
        return ALLOWED_HEADERS.join(", ");
    }
    let allowed = names
        .iter()
        .filter(|name| is_allowed(name, &settings.version_headers))
        .take(MAX_NAMES);
    allowed.map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn is_allowed(name: &str, version_headers: &[String]) -> bool {
    let is_token = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_known =
        ALLOWED_HEADERS.contains(&name) || version_headers.iter().any(|version| version == name);
    is_token
        && (is_known
            || ALLOWED_HEADER_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sdks_send_is_allowed_and_nothing_that_is_the_gateways_to_say() {
        let version_headers = ["compat-version".to_owned()];
        for name in [
            "authorization",
            "x-stainless-os",
            "openai-organization",
            "x-gateway-strict",
            "compat-version",
            "x-api-key",
        ] {
            assert!(is_allowed(name, &version_headers), "{name}");
        }
        for name in [
            "cookie",
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "host",
            "x-stainless-a b",
            "*",
        ] {
            assert!(!is_allowed(name, &version_headers), "{name}");
        }
    }
}
