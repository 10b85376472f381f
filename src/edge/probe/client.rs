//! Implements the connection of `vendors test` and `vendors learn` to one endpoint. It uses the
//! connector, TLS, ALPN and header fields of client requests, with limits on time and size.
//!
//! This file must not depend on the content of a request.

use super::report::{self, EndpointReport};
use crate::edge::upstream::{self, target};
use bytes::Bytes;
use config::Limits;
use config::catalog::{CatalogVendor, VendorEndpoint};
use http::{HeaderMap, Method, header};
use llm_protocol::sse::{self, SseDecoder};
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of a whole answer. `limits.first_byte_seconds` applies if it is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of a response body, in bytes. The longest model lists have about a megabyte.
const MAX_BODY_BYTES: usize = 16_777_216;
/// Maximum number of addresses that are tried. Client requests have the same limit.
const MAX_ADDRESSES: usize = upstream::MAX_ADDRESSES_PER_ENDPOINT;

pub struct VendorClient<'a> {
    connector: Connector,
    pub vendor: &'a CatalogVendor,
    pub endpoint: &'a VendorEndpoint,
    limits: &'a Limits,
}

pub struct ProbeResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl ProbeResponse {
    pub fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Returns the events of a stream, or the whole answer as one event.
    pub fn events(&self) -> Vec<Value> {
        events(&self.body)
    }
}

/// Returns the JSON events of a stream, or the whole body as one event. Other parts are left out.
pub fn events(body: &[u8]) -> Vec<Value> {
    let body = sse::without_byte_order_mark(body);
    if sse::begins_with_event(body, false) != Some(true) {
        return serde_json::from_slice(body).into_iter().collect();
    }
    let mut decoder = SseDecoder::new(body.len());
    decoder.feed(body);
    decoder.close();
    let mut events = Vec::new();
    while let Ok(Some(event)) = decoder.next_event() {
        let data = event.data.map(serde_json::from_slice);
        events.extend(data.and_then(Result::ok));
    }
    events
}

impl<'a> VendorClient<'a> {
    pub fn new(
        vendor: &'a CatalogVendor,
        endpoint: &'a VendorEndpoint,
        limits: &'a Limits,
    ) -> Self {
        Self {
            connector: Connector::new(None),
            vendor,
            endpoint,
            limits,
        }
    }

    /// Resolves the host and returns the first address that accepts a connection.
    pub async fn find_reachable_address(&self, report: &mut EndpointReport) -> Option<SocketAddr> {
        let VendorEndpoint { host, port, .. } = self.endpoint;
        let found = tokio::time::timeout(
            RESOLVE_TIMEOUT,
            tokio::net::lookup_host((host.as_str(), *port)),
        )
        .await;
        report.addresses = match found {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => {
                report.add_fault(format!("cannot resolve the name {host}: {error}"));
                return None;
            }
            Err(_) => {
                report.add_fault(format!(
                    "the name {host} was not resolved within {} s",
                    RESOLVE_TIMEOUT.as_secs()
                ));
                return None;
            }
        };
        let mut failed = format!("the name {host} has no address");
        for address in report.addresses.iter().copied().take(MAX_ADDRESSES) {
            match self.connect(address).await {
                Ok(session) => {
                    let is_h2 = matches!(session, HttpSession::H2(_));
                    report.http = Some(if is_h2 { "HTTP/2" } else { "HTTP/1.1" });
                    let tls = session
                        .digest()
                        .and_then(|digest| digest.ssl_digest.as_ref());
                    report.tls = tls.map(|tls| tls.version.replace('_', "."));
                    return Some(address);
                }
                Err(error) => failed = self.describe(&error, Some(address)),
            }
        }
        report.add_fault(failed);
        None
    }

    async fn connect(&self, address: SocketAddr) -> Result<HttpSession> {
        let mut peer = HttpPeer::new(address, self.endpoint.tls, self.endpoint.host.clone());
        let connect = Duration::from_secs(self.limits.connect_seconds);
        peer.options.connection_timeout = Some(connect);
        peer.options.total_connection_timeout = Some(connect);
        peer.options.alpn = target::alpn(self.endpoint);
        // The timeout also covers the HTTP/2 handshake, which Pingora does not limit.
        match tokio::time::timeout(connect * 2, self.connector.get_http_session(&peer)).await {
            Ok(session) => Ok(session?.0),
            Err(_) => Error::e_explain(ErrorType::ConnectTimedout, "a connection"),
        }
    }

    pub fn header(&self, method: Method, usual_path: &str) -> Result<RequestHeader> {
        let mut header = target::build_request_header(method, self.endpoint, usual_path)?;
        header.insert_header(header::ACCEPT, "application/json")?;
        header.insert_header(header::ACCEPT_ENCODING, "identity")?;
        header.insert_header(
            header::USER_AGENT,
            concat!("model-gateway/", env!("CARGO_PKG_VERSION")),
        )?;
        if let Some((name, version)) = &self.vendor.version_header {
            header.insert_header(name.clone(), version)?;
        }
        target::add_credentials(&mut header, self.endpoint, &self.vendor.api_key)?;
        Ok(header)
    }

    /// Sends the JSON body of a request to a model, and reads the whole answer. Error texts are
    /// meant for the operator.
    pub async fn generate(
        &self,
        address: SocketAddr,
        usual_path: &str,
        body: Bytes,
    ) -> std::result::Result<ProbeResponse, String> {
        self.post(address, usual_path, "application/json", body)
            .await
    }

    /// Sends a body of this content type, and reads the whole answer. Error texts are meant for the
    /// operator.
    pub async fn post(
        &self,
        address: SocketAddr,
        usual_path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> std::result::Result<ProbeResponse, String> {
        let exchange = async {
            let mut header = self.header(Method::POST, usual_path)?;
            header.insert_header(header::ACCEPT, "*/*")?;
            header.insert_header(header::CONTENT_TYPE, content_type)?;
            header.insert_header(header::CONTENT_LENGTH, body.len())?;
            self.exchange(address, header, body, ANSWER_TIMEOUT).await
        };
        let response = exchange.await;
        response.map_err(|error| self.describe(&error, Some(address)))
    }

    /// Sends a request over a new connection and reads the whole response within `timeout`.
    pub async fn exchange(
        &self,
        address: SocketAddr,
        mut header: RequestHeader,
        body: Bytes,
        timeout: Duration,
    ) -> Result<ProbeResponse> {
        let exchange = async {
            let mut session = self.connect(address).await?;
            if matches!(session, HttpSession::H2(_)) {
                target::use_authority(&mut header, self.endpoint.tls)?;
            }
            session.write_request_header(Box::new(header)).await?;
            if !body.is_empty() {
                session.write_request_body(body, true).await?;
            }
            session.finish_request_body().await?;
            session.read_response_header().await?;
            let (status, headers) = session
                .response_header()
                .map(|header| (header.status.as_u16(), header.headers.clone()))
                .unwrap_or_default();
            let mut body = Vec::new();
            while let Some(piece) = session.read_response_body().await? {
                if body.len() + piece.len() > MAX_BODY_BYTES {
                    return Error::e_explain(
                        ErrorType::ReadError,
                        "the response body is too large",
                    );
                }
                body.extend_from_slice(&piece);
            }
            Ok(ProbeResponse {
                status,
                headers,
                body,
            })
        };
        let timeout = timeout.min(Duration::from_secs(self.limits.first_byte_seconds));
        match tokio::time::timeout(timeout, exchange).await {
            Ok(response) => response,
            Err(_) => Error::e_explain(
                ErrorType::ReadTimedout,
                format!("no answer within {} s", timeout.as_secs()),
            ),
        }
    }

    /// Returns the vendor's error message in one line, without secrets.
    pub fn message(&self, response: &ProbeResponse) -> String {
        let secrets = std::iter::once(&self.vendor.api_key)
            .chain(self.endpoint.headers.iter().map(|(_, value)| value))
            .chain(self.endpoint.query.iter().map(|(_, value)| value));
        report::error_message(&response.body, secrets.map(|secret| secret.reveal()))
    }

    pub fn describe(&self, error: &Error, address: Option<SocketAddr>) -> String {
        let address = address.map_or_else(
            || self.endpoint.authority.clone(),
            |address| address.to_string(),
        );
        report::describe_error(
            error,
            &self.endpoint.host,
            &address,
            self.limits.connect_seconds,
        )
    }
}
