//! What is known of every request, at each stage.
//!
//! This file must not decide anything.

use crate::edge::cors::CorsHeaders;
use crate::edge::trace::RequestTrace;
use accounts::KeyIdentity;
use config::address::ClientAddress;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What is counted, logged and traced of a request, and what each response to it contains.
pub struct RequestRecord {
    /// `req_` and 32 hex digits.
    pub request_id: String,
    pub arrived: Instant,
    /// Origin of the request, known once its header has arrived; unless its peer has disconnected
    /// already.
    pub caller: Option<ClientAddress>,
    /// Method and path for the log. Set only with an access log.
    pub target: Option<Box<(String, String)>>,
    /// Trace of the request, if it is traced.
    pub trace: Option<Box<RequestTrace>>,
    /// CORS headers for the response. Set only on the API's paths, and if some page may call them.
    pub cors: Option<CorsHeaders>,
    /// The client asked for a WebSocket.
    pub wants_web_socket: bool,
    /// Protocol that determines the shape of a failure.
    pub surface: Protocol,
    /// What the request is counted and logged as.
    pub route: RouteLabel,
    /// Status of the response, 0 while there is none.
    pub status: u16,
    /// Why the request was refused or failed, in one word.
    pub reason: Option<&'static str>,
    /// Whether the request is for a model, not for a path that the gateway answers itself.
    pub asks_model: bool,
    /// The model, once it is known.
    pub model: OnceLock<Arc<CatalogModel>>,
    /// A key that the gateway recognised and refused.
    pub refused_key: Option<Box<KeyIdentity>>,
    /// The failure that the client got, as it is: code and message.
    pub failure: Option<Box<(String, String)>>,
}

impl RequestRecord {
    pub fn new() -> Self {
        Self {
            request_id: format!("req_{}", uuid::Uuid::now_v7().simple()),
            arrived: Instant::now(),
            caller: None,
            target: None,
            trace: None,
            cors: None,
            wants_web_socket: false,
            surface: Protocol::Chat,
            route: RouteLabel::Api,
            status: 0,
            reason: None,
            asks_model: false,
            model: OnceLock::new(),
            refused_key: None,
            failure: None,
        }
    }

    /// Moves the record out.
    pub(super) fn take(&mut self) -> Self {
        Self {
            request_id: std::mem::take(&mut self.request_id),
            arrived: self.arrived,
            caller: self.caller.take(),
            target: self.target.take(),
            trace: self.trace.take(),
            cors: self.cors.take(),
            wants_web_socket: self.wants_web_socket,
            surface: self.surface,
            route: self.route,
            status: self.status,
            reason: self.reason,
            asks_model: self.asks_model,
            model: std::mem::take(&mut self.model),
            refused_key: self.refused_key.take(),
            failure: self.failure.take(),
        }
    }
}

/// The label that keeps pages and health checks apart from the API: they outnumber it, and would
/// dilute a ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteLabel {
    Api,
    Page,
    Health,
    /// Not a request that could be read in one way.
    Malformed,
}

impl RouteLabel {
    /// The label of `gateway_requests_total`, and the member of the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            RouteLabel::Api => "api",
            RouteLabel::Page => "page",
            RouteLabel::Health => "health",
            RouteLabel::Malformed => "malformed",
        }
    }

    /// The surface's label; pages and health checks have none.
    pub fn surface(self, surface: Protocol) -> &'static str {
        match self {
            RouteLabel::Page | RouteLabel::Health => "",
            RouteLabel::Api | RouteLabel::Malformed => surface.as_str(),
        }
    }
}
