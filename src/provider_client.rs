//! Sends one request to the server of a provider, on a new connection, bounded in time and bytes.
//!
//! This file must not log a header or a body, because they contain secrets and personal data.

use crate::notify::webhooks::machine_tls_config;
use bytes::Bytes;
use config::ProviderAddress;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Bounds of one request.
#[derive(Debug, Clone, Copy)]
pub struct RequestBounds {
    /// Time limit from the name lookup to the end of the answer.
    pub timeout: Duration,
    /// Maximum size of the answer's body, in bytes.
    pub max_answer_bytes: usize,
}

/// Sends a request and returns the status and the body of the answer.
///
/// # Errors
/// Returns why there is no answer. The text contains no secret.
pub async fn send(
    address: &ProviderAddress,
    request: Request<Full<Bytes>>,
    bounds: RequestBounds,
) -> Result<(StatusCode, Bytes), String> {
    let RequestBounds {
        timeout,
        max_answer_bytes,
    } = bounds;
    tokio::time::timeout(timeout, exchange(address, request, max_answer_bytes))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs())))
}

/// Writes the fields of a form.
pub fn encode_form(fields: &[(&str, &str)]) -> String {
    let pairs: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect();
    pairs.join("&")
}

/// Percent-encodes all characters except those that are safe in every part of a URL.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string never fails.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

async fn exchange(
    address: &ProviderAddress,
    mut request: Request<Full<Bytes>>,
    max_answer_bytes: usize,
) -> Result<(StatusCode, Bytes), String> {
    let host = address
        .authority
        .parse()
        .map_err(|_| "its address is no header".to_owned())?;
    request.headers_mut().insert(header::HOST, host);
    let stream = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .map_err(|error| error.to_string())?;
    if !address.is_https {
        return send_on(stream, request, max_answer_bytes).await;
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(machine_tls_config()?)
        .connect(name, stream)
        .await
        .map_err(|error| format!("the TLS handshake failed: {error}"))?;
    send_on(stream, request, max_answer_bytes).await
}

async fn send_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    max_answer_bytes: usize,
) -> Result<(StatusCode, Bytes), String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // The connection's task ends with this function on every path.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| error.to_string())?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, max_answer_bytes)
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok((head.status, body.to_bytes()))
}
