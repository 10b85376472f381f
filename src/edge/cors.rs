//! Cross-origin requests of browsers (CORS): which pages may call the API, and what they may send
//! and read.
//!
//! Off unless `cors.origins` lists an origin. It applies only to API paths, never to pages and
//! never to cookies: no response allows credentials, and a page sends its key in a header that it
//! sets itself.

use super::context::RequestContext;
use super::respond;
use crate::config::{CorsOrigins, Settings};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

/// Methods that the API's paths support.
const ALLOWED_METHODS: &str = "GET, POST, OPTIONS";
/// How long a browser may cache the response to a preflight, in seconds: the longest time that any
/// browser accepts.
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

/// CORS headers for each response to a request.
pub struct CorsHeaders {
    /// `None` if the request has no origin, or one that may not call.
    allow_origin: Option<HeaderValue>,
}

impl CorsHeaders {
    /// Returns `None` if no page of another origin may call the API.
    pub fn from_request(origins: &CorsOrigins, headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let origin = given.next().filter(|_| given.next().is_none());
        let allow_origin = match origins {
            CorsOrigins::None => return None,
            CorsOrigins::Any => origin.map(|_| HeaderValue::from_static("*")),
            CorsOrigins::Listed(listed) => origin
                .filter(|origin| listed.iter().any(|one| one.as_bytes() == origin.as_bytes()))
                .cloned(),
        };
        Some(Self { allow_origin })
    }

    /// Adds the header fields that every response has.
    pub fn apply(&self, head: &mut ResponseHeader) -> Result<()> {
        head.insert_header(header::VARY, "origin")?;
        if let Some(origin) = &self.allow_origin {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
            // Expose every field: without credentials a page may read all of them.
            head.insert_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, "*")?;
        }
        Ok(())
    }
}

/// Whether the request only asks which methods and headers a page may send.
pub fn is_preflight(session: &Session, ctx: &RequestContext) -> bool {
    ctx.cors.is_some() && session.req_header().method == Method::OPTIONS
}

/// Answers a preflight. A browser whose page may not call gets no header that would allow it.
pub async fn answer_preflight(
    session: &mut Session,
    ctx: &mut RequestContext,
    settings: &Settings,
) -> Result<()> {
    ctx.status = 204;
    let mut head = ResponseHeader::build_no_case(204, Some(10))?;
    if ctx
        .cors
        .as_ref()
        .is_some_and(|cors| cors.allow_origin.is_some())
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

/// Returns those of the requested header fields that are allowed. If none is requested, returns all
/// fields that this file lists by name.
fn allowed_headers(session: &Session, settings: &Settings) -> String {
    let asked = session
        .req_header()
        .headers
        .get_all(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let asked = asked
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let names: Vec<_> = asked
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

    fn allow_origin(origins: &CorsOrigins, given: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for origin in given {
            headers.append(header::ORIGIN, origin.parse().unwrap());
        }
        let cors = CorsHeaders::from_request(origins, &headers)?;
        cors.allow_origin
            .map(|origin| origin.to_str().unwrap().to_owned())
    }

    #[test]
    fn an_origin_is_compared_as_a_whole() {
        let listed = CorsOrigins::Listed(vec![
            "https://app.example".into(),
            "http://localhost:3000".into(),
        ]);
        for origin in ["https://app.example", "http://localhost:3000"] {
            assert_eq!(allow_origin(&listed, &[origin]).as_deref(), Some(origin));
            assert_eq!(
                allow_origin(&CorsOrigins::Any, &[origin]).as_deref(),
                Some("*")
            );
            assert_eq!(allow_origin(&CorsOrigins::None, &[origin]), None);
        }
        for origin in [
            "https://app.example.evil",
            "https://evil.app.example",
            "http://app.example",
            "null",
            "",
        ] {
            assert_eq!(allow_origin(&listed, &[origin]), None, "{origin}");
        }
        assert_eq!(
            allow_origin(&listed, &["https://app.example", "https://app.example"]),
            None
        );
        assert_eq!(allow_origin(&listed, &[]), None);
    }

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
