//! Tests a vendor's endpoint for `model-gateway vendors test`: DNS, TLS, HTTP version, key, models,
//! one small request.
//!
//! It connects as client requests do (same connector, TLS, ALPN and header fields), so the result
//! applies to them too. It serves no client and bills no account. This file must not print
//! anything; a report contains no secret.

mod report;

use super::upstream::target;
use crate::catalog::{CatalogModel, CatalogVendor, VendorEndpoint};
use crate::config::Limits;
use bytes::Bytes;
use http::{Method, header};
use llm_protocol::capabilities::{ChatModel, ModelCapabilities, ResponsesModel};
use llm_protocol::translate;
use pingora::connectors::http::Connector;
use pingora::http::RequestHeader;
use pingora::protocols::http::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
pub use report::{EndpointReport, ModelList, TestRequest, VendorKeyStatus};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of a DNS lookup.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limits of a whole exchange. `limits.first_byte_seconds` applies if it is shorter.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest response body. The longest model lists have about a megabyte.
const MAX_BODY_BYTES: usize = 16_777_216;
/// Maximum number of addresses that are tried, as for client requests.
const MAX_ADDRESSES: usize = super::upstream::MAX_ADDRESSES_PER_ENDPOINT;
/// Maximum number of unlisted models that get a test request: the vendor may know them under this
/// name all the same.
const MAX_UNLISTED: usize = 4;
/// Output limit of a test request, in tokens. Some reasoning models refuse a small one.
const MAX_OUTPUT_TOKENS: u64 = 16;
const MAX_OUTPUT_TOKENS_REASONING: u64 = 1_024;

/// Tests one endpoint. `models`: the models of its vendor, in the order of the config file.
pub async fn test_endpoint(
    vendor: &CatalogVendor,
    endpoint: &VendorEndpoint,
    models: &[Arc<CatalogModel>],
    limits: &Limits,
) -> EndpointReport {
    let mut report = EndpointReport::new(vendor, endpoint);
    let probe = EndpointProbe {
        connector: Connector::new(None),
        vendor,
        endpoint,
        limits,
    };
    let Some(address) = probe.find_reachable_address(&mut report).await else {
        return report;
    };
    let listed = probe.list_models(address, &mut report).await;
    let is_listed = |model: &CatalogModel| {
        listed
            .as_ref()
            .is_none_or(|listed| listed.contains(&model.upstream_model))
    };
    let (listed_models, unlisted): (Vec<_>, Vec<_>) =
        models.iter().partition(|model| is_listed(model));
    if let Some(counts) = &mut report.models {
        counts.unlisted = unlisted
            .iter()
            .map(|model| model.upstream_model.clone())
            .collect();
    }
    for model in listed_models
        .into_iter()
        .take(1)
        .chain(unlisted.into_iter().take(MAX_UNLISTED))
    {
        for model in std::iter::once(model).chain(&model.by_responses) {
            if report.key == VendorKeyStatus::Refused {
                return report;
            }
            probe.send_test_request(address, model, &mut report).await;
        }
    }
    report
}

struct EndpointProbe<'a> {
    connector: Connector,
    vendor: &'a CatalogVendor,
    endpoint: &'a VendorEndpoint,
    limits: &'a Limits,
}

/// The response to one request.
struct ProbeResponse {
    status: u16,
    body: Vec<u8>,
}

impl ProbeResponse {
    fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

impl EndpointProbe<'_> {
    /// Resolves the host and returns the first address that accepts a connection.
    async fn find_reachable_address(&self, report: &mut EndpointReport) -> Option<SocketAddr> {
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
        // A backstop for what Pingora does not time: the HTTP/2 handshake.
        match tokio::time::timeout(connect * 2, self.connector.get_http_session(&peer)).await {
            Ok(session) => Ok(session?.0),
            Err(_) => Error::e_explain(ErrorType::ConnectTimedout, "a connection"),
        }
    }

    fn header(&self, method: Method, usual_path: &str) -> Result<RequestHeader> {
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

    /// Sends a request over a new connection and reads the whole response within `timeout`.
    async fn exchange(
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
            let status = session
                .response_header()
                .map_or(0, |header| header.status.as_u16());
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
            Ok(ProbeResponse { status, body })
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

    /// Names of the models that the vendor lists; `None` if it has no list.
    async fn list_models(
        &self,
        address: SocketAddr,
        report: &mut EndpointReport,
    ) -> Option<HashSet<String>> {
        if !self.endpoint.has_other_paths() {
            return None;
        }
        let response = match self.header(Method::GET, "/v1/models") {
            Ok(header) => {
                self.exchange(address, header, Bytes::new(), LIST_TIMEOUT)
                    .await
            }
            Err(error) => Err(error),
        };
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                report.add_note(format!(
                    "could not list the vendor's models: {}",
                    self.describe(&error, None)
                ));
                return None;
            }
        };
        if matches!(response.status, 401 | 403) {
            report.key = VendorKeyStatus::Refused;
            report.add_fault(format!(
                "the vendor refused the key ({}): {}",
                response.status,
                self.message(&response)
            ));
            return None;
        }
        let value = response.json().filter(|_| response.is_good());
        let listed = value
            .as_ref()
            .and_then(|value| value.get("data").unwrap_or(value).as_array());
        let Some(listed) = listed else {
            report.add_note(format!(
                "the vendor has no list of models there (status {})",
                response.status
            ));
            return None;
        };
        report.key = report.key.or(VendorKeyStatus::Accepted);
        report.models = Some(ModelList {
            count: listed.len(),
            unlisted: Vec::new(),
        });
        let ids = listed.iter().filter_map(|model| model["id"].as_str());
        // Gemini lists resource names, `models/NAME`.
        Some(
            ids.flat_map(|id| [id, id.strip_prefix("models/").unwrap_or(id)])
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Sends one small generation request.
    async fn send_test_request(
        &self,
        address: SocketAddr,
        model: &CatalogModel,
        report: &mut EndpointReport,
    ) {
        let usual_path = translate::vendor_path(model.protocol());
        let body = Bytes::from(test_request_body(model).to_string());
        let began = Instant::now();
        let response = match self.header(Method::POST, usual_path) {
            Ok(mut header) => match set_body_headers(&mut header, body.len()) {
                Ok(()) => self.exchange(address, header, body, ANSWER_TIMEOUT).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let name = &model.upstream_model;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                return report.add_fault(format!(
                    "{name} did not answer: {}",
                    self.describe(&error, Some(address))
                ));
            }
        };
        let milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let value = response.json();
        let usage = value.as_ref().map(|value| &value["usage"]);
        let count = |names: [&str; 2]| {
            usage.and_then(|usage| names.into_iter().find_map(|name| usage[name].as_u64()))
        };
        let (input, output) = (
            count(["input_tokens", "prompt_tokens"]),
            count(["output_tokens", "completion_tokens"]),
        );
        let status = response.status;
        report.requests.push(TestRequest {
            model: name.clone(),
            protocol: model.protocol(),
            status,
            input,
            output,
            milliseconds,
        });
        match status {
            200..300 if value.is_none() => {
                let path = self.endpoint.display_url(usual_path).unwrap_or_default();
                report.add_fault(format!(
                    "{path} did not answer with JSON: check the address"
                ));
            }
            200..300 => {
                report.key = report.key.or(VendorKeyStatus::Accepted);
                if input.is_none() || output.is_none() {
                    report.add_note(format!(
                        "{name} reported no usage: the gateway will bill estimates for it"
                    ));
                }
            }
            401 | 403 => {
                report.key = VendorKeyStatus::Refused;
                report.add_fault(format!(
                    "the vendor refused the key ({status}): {}",
                    self.message(&response)
                ));
            }
            404 => {
                let path = self.endpoint.display_url(usual_path).unwrap_or_default();
                report.add_fault(format!(
                    "the vendor does not know {path} or the model {name} (404): {}",
                    self.message(&response)
                ));
            }
            _ => report.add_fault(format!(
                "the vendor refused a request to {name} ({status}): {}",
                self.message(&response)
            )),
        }
    }

    /// The vendor's error message in one line, without secrets.
    fn message(&self, response: &ProbeResponse) -> String {
        let secrets = std::iter::once(&self.vendor.api_key)
            .chain(self.endpoint.headers.iter().map(|(_, value)| value))
            .chain(self.endpoint.query.iter().map(|(_, value)| value));
        report::error_message(&response.body, secrets.map(|secret| secret.reveal()))
    }

    fn describe(&self, error: &Error, address: Option<SocketAddr>) -> String {
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

fn set_body_headers(header: &mut RequestHeader, body_bytes: usize) -> Result<()> {
    header.insert_header(header::CONTENT_TYPE, "application/json")?;
    header.insert_header(header::CONTENT_LENGTH, body_bytes)
}

/// The body of a small generation request in the model's protocol.
fn test_request_body(model: &CatalogModel) -> Value {
    let (name, text) = (&model.upstream_model, "Say ok.");
    let messages = json!([{"role": "user", "content": text}]);
    let limit = |reasons: bool| {
        if reasons {
            MAX_OUTPUT_TOKENS_REASONING
        } else {
            MAX_OUTPUT_TOKENS
        }
    };
    match &model.accepts {
        ModelCapabilities::Messages(accepts) => {
            json!({"model": name, "max_tokens": limit(accepts.thinks_by_default), "messages": messages})
        }
        ModelCapabilities::Chat(ChatModel {
            reasoning,
            output_limit_field,
            ..
        }) => {
            let mut body = json!({"model": name, "messages": messages});
            body[*output_limit_field] = limit(*reasoning).into();
            body
        }
        ModelCapabilities::Responses(ResponsesModel { reasoning, .. }) => {
            json!({"model": name, "max_output_tokens": limit(*reasoning), "input": text, "store": false})
        }
    }
}
