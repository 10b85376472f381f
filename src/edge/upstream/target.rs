//! Sets the configured parts of every request to an endpoint: path, query, fixed header fields,
//! key, HTTP version.
//!
//! No other file puts a vendor's key into a header. This file must not depend on the body of a
//! request.

use config::catalog::{EndpointAuth, HttpVersion, Secret, VendorEndpoint};
use http::{HeaderName, HeaderValue, Method, Uri, header};
use pingora::http::RequestHeader;
use pingora::protocols::ALPN;
use pingora::{Error, ErrorType, Result};

/// Builds a request header with the endpoint's path and host. `usual_path` is the standard path,
/// such as `/v1/messages`.
///
/// # Errors
/// Returns an error if the endpoint has no path for this call, or if a configured value is not a
/// valid header value.
pub fn build_request_header(
    method: Method,
    endpoint: &VendorEndpoint,
    usual_path: &str,
) -> Result<RequestHeader> {
    let Some(target) = endpoint.target(usual_path) else {
        return Error::e_explain(
            ErrorType::InternalError,
            format!("endpoint {} has no path for {usual_path}", endpoint.label()),
        );
    };
    let mut upstream_header = RequestHeader::build_no_case(method, target.as_bytes(), Some(16))?;
    upstream_header.insert_header(header::HOST, &endpoint.authority)?;
    Ok(upstream_header)
}

/// Moves the host into `:authority`, where HTTP/2 expects it: some servers (nginx) refuse a request
/// with both. Pingora does this for requests that it proxies, but not for those that its connector
/// sends.
///
/// # Errors
/// Returns an error if the host or the path does not fit into a URI.
pub fn use_authority(header: &mut RequestHeader, tls: bool) -> Result<()> {
    let Some(host) = header.remove_header(&header::HOST) else {
        return Ok(());
    };
    let path = header
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let uri = Uri::builder()
        .scheme(if tls { "https" } else { "http" })
        .authority(host.as_bytes())
        .path_and_query(path);
    let invalid = |error| {
        Error::because(
            ErrorType::InvalidHTTPHeader,
            "the address of an HTTP/2 request",
            error,
        )
    };
    header.set_uri(uri.build().map_err(invalid)?);
    Ok(())
}

/// Adds the endpoint's fixed header fields and the key.
///
/// # Errors
/// Returns an error if a configured value is not a valid header value.
pub fn add_credentials(
    upstream_header: &mut RequestHeader,
    endpoint: &VendorEndpoint,
    key: &Secret,
) -> Result<()> {
    for (name, value) in &endpoint.headers {
        upstream_header.insert_header(field_name(name)?, sensitive_value(value.reveal())?)?;
    }
    match &endpoint.auth {
        EndpointAuth::Bearer => {
            let value = sensitive_value(&format!("Bearer {}", key.reveal()))?;
            upstream_header.insert_header(header::AUTHORIZATION, value)
        }
        EndpointAuth::Header(name) => {
            upstream_header.insert_header(field_name(name)?, sensitive_value(key.reveal())?)
        }
        EndpointAuth::None => Ok(()),
    }
}

/// Returns the HTTP versions to offer. Without TLS the versions are not negotiated.
pub fn alpn(endpoint: &VendorEndpoint) -> ALPN {
    match (endpoint.http_version, endpoint.tls) {
        (HttpVersion::Auto, true) => ALPN::H2H1,
        (HttpVersion::Auto, false) | (HttpVersion::Http1, _) => ALPN::H1,
        (HttpVersion::Http2, _) => ALPN::H2,
    }
}

fn field_name(name: &str) -> Result<HeaderName> {
    let invalid = |error| {
        Error::because(
            ErrorType::InvalidHTTPHeader,
            "the name of a configured header field",
            error,
        )
    };
    HeaderName::from_bytes(name.as_bytes()).map_err(invalid)
}

/// Returns a header value that debug output does not show.
fn sensitive_value(value: &str) -> Result<HeaderValue> {
    let invalid = |error| {
        Error::because(
            ErrorType::InvalidHTTPHeader,
            "a configured value in a header",
            error,
        )
    };
    let mut value = HeaderValue::from_str(value).map_err(invalid)?;
    value.set_sensitive(true);
    Ok(value)
}
