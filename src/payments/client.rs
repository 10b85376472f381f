//! Sends one request to the payment provider's API, on a new connection.
//!
//! This file must not log a header or a body, because they contain the secret key and personal
//! data.

use super::provider::ProviderError;
use crate::notify::webhooks::machine_tls_config;
use bytes::Bytes;
use config::payments::ProviderAddress;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Time limit of a request, from the name lookup to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of an answer, in bytes: 1 MiB.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Sends a request and returns the status and the body of the answer.
pub async fn send(
    address: &ProviderAddress,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), ProviderError> {
    tokio::time::timeout(REQUEST_TIMEOUT, exchange(address, request))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))
        .map_err(ProviderError::Unavailable)
}

async fn exchange(
    address: &ProviderAddress,
    mut request: Request<Full<Bytes>>,
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
        return send_on(stream, request).await;
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(machine_tls_config()?)
        .connect(name, stream)
        .await
        .map_err(|error| format!("the TLS handshake failed: {error}"))?;
    send_on(stream, request).await
}

async fn send_on(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
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
    let body = Limited::new(body, MAX_ANSWER_BYTES)
        .collect()
        .await
        .map_err(|error| error.to_string())?;
    Ok((head.status, body.to_bytes()))
}
