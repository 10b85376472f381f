//! Answers, counts and logs malformed requests, which never reach a hook of `edge.rs`.
//!
//! This file must not decide that a request is malformed: `edge/framing.rs` does.

use super::recorders::Recorders;
use super::route::surface_for_path;
use super::state::record::{RequestRecord, RouteLabel};
use base::clock;
use base::telemetry::METRICS;
use base::telemetry::access::AccessRecord;
use base::telemetry::refusals::RefusalReason;
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use std::net::IpAddr;
use std::time::Duration;

/// Label of requests that were refused as malformed. `Stage::Answered` uses the same label.
pub const MALFORMED: &str = "malformed";

/// Message for a request with the method CONNECT.
pub const NO_TUNNELS: &str = "The gateway does not support CONNECT.";

/// A response to bytes that Pingora did not accept as a request.
pub struct MalformedResponse {
    pub request_id: String,
    /// `None` if the path of the request is unknown.
    pub surface: Option<Protocol>,
    pub status: u16,
    /// The whole response, as HTTP/1.1.
    pub bytes: Vec<u8>,
}

/// Builds the response to an HTTP/1 request for which no context exists. The connection closes
/// after the response.
pub fn build_malformed_response(failure: &Failure, path: &str, is_head: bool) -> MalformedResponse {
    let request_id = RequestRecord::new().request_id;
    let surface = surface_for_path(path).unwrap_or(Protocol::Chat);
    let rendered = failure.render(surface, &request_id);
    let status =
        http::StatusCode::from_u16(rendered.status).unwrap_or(http::StatusCode::BAD_REQUEST);
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in &rendered.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let length = rendered.body.len();
    head.push_str(&format!(
        "x-request-id: {request_id}\r\nrequest-id: {request_id}\r\n"
    ));
    head.push_str(&format!(
        "content-length: {length}\r\nconnection: close\r\n\r\n"
    ));
    let body = if is_head { Vec::new() } else { rendered.body };
    MalformedResponse {
        request_id,
        surface: Some(surface),
        status: rendered.status,
        bytes: [head.into_bytes(), body].concat(),
    }
}

impl MalformedResponse {
    /// Describes an answer that the HTTP/2 library made by itself and that consists of a status
    /// alone.
    pub fn bare(status: u16) -> Self {
        Self {
            request_id: RequestRecord::new().request_id,
            surface: None,
            status,
            bytes: Vec::new(),
        }
    }
}

/// Counts a malformed request, and writes it to the access log. `took` is the time since the
/// request arrived, 0 if unknown.
pub fn record_malformed(
    recorders: &Recorders,
    response: &MalformedResponse,
    reason: RefusalReason,
    client: Option<IpAddr>,
    (method, path): (String, String),
    took: Duration,
) {
    let route = RouteLabel::Malformed.as_str();
    let surface = response.surface.map_or("", Protocol::as_str);
    METRICS
        .requests
        .with_label_values(&[route, surface, "", &response.status.to_string()])
        .inc();
    if recorders.access.is_on() {
        recorders.access.write(AccessRecord {
            at_ms: clock::now_ms()
                .saturating_sub(i64::try_from(took.as_millis()).unwrap_or(i64::MAX)),
            request_id: response.request_id.clone(),
            client,
            method,
            path,
            route,
            handler: MALFORMED,
            surface,
            status: response.status,
            reason: Some(reason.as_str()),
            account: None,
            key_id: None,
            call: None,
            auth_us: None,
            total_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        });
    }
}
