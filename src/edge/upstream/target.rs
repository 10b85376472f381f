//! What the config says of every request to an endpoint: its path, its fixed fields, the vendor's key, its version of HTTP.
//!
//! The one place where a vendor's key enters a header. Must not know what is asked.

use crate::catalog::{Auth, Endpoint, HttpVersion, Secret};
use http::{HeaderName, HeaderValue, Method, header};
use pingora::http::RequestHeader;
use pingora::protocols::ALPN;
use pingora::{Error, ErrorType, Result};

/// A header with nothing but the endpoint's path and host. `usual_path` is that of the protocol's own vendor.
///
/// # Errors
/// The endpoint has no such path, or it does not fit into a header.
pub fn request(method: Method, endpoint: &Endpoint, usual_path: &str) -> Result<RequestHeader> {
    let Some(target) = endpoint.target(usual_path) else {
        return Error::e_explain(
            ErrorType::InternalError,
            format!("{} has no path for {usual_path}", endpoint.label()),
        );
    };
    let mut fresh = RequestHeader::build_no_case(method, target.as_bytes(), Some(16))?;
    fresh.insert_header(header::HOST, &endpoint.authority)?;
    Ok(fresh)
}

/// Puts in the endpoint's fixed fields and the key.
///
/// # Errors
/// A configured value does not fit into a header.
pub fn authorize(fresh: &mut RequestHeader, endpoint: &Endpoint, key: &Secret) -> Result<()> {
    for (name, value) in &endpoint.headers {
        fresh.insert_header(field_name(name)?, sensitive(value.reveal())?)?;
    }
    match &endpoint.auth {
        Auth::Bearer => {
            let value = sensitive(&format!("Bearer {}", key.reveal()))?;
            fresh.insert_header(header::AUTHORIZATION, value)
        }
        Auth::Header(name) => fresh.insert_header(field_name(name)?, sensitive(key.reveal())?),
        Auth::None => Ok(()),
    }
}

/// Which versions of HTTP are offered. Without TLS nothing is negotiated.
pub fn alpn(endpoint: &Endpoint) -> ALPN {
    match (endpoint.http_version, endpoint.tls) {
        (HttpVersion::Auto, true) => ALPN::H2H1,
        (HttpVersion::Auto, false) | (HttpVersion::Http1, _) => ALPN::H1,
        (HttpVersion::Http2, _) => ALPN::H2,
    }
}

fn field_name(name: &str) -> Result<HeaderName> {
    let invalid = |error| Error::because(ErrorType::InvalidHTTPHeader, "the name of a configured header field", error);
    HeaderName::from_bytes(name.as_bytes()).map_err(invalid)
}

/// A value that whoever prints a header leaves out.
fn sensitive(value: &str) -> Result<HeaderValue> {
    let invalid = |error| Error::because(ErrorType::InvalidHTTPHeader, "a configured value in a header", error);
    let mut value = HeaderValue::from_str(value).map_err(invalid)?;
    value.set_sensitive(true);
    Ok(value)
}
