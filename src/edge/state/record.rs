//! Holds the data of a request that exists at every stage.
//!
//! This file must not write a log or a metric.

use crate::edge::cors::CorsHeaders;
use crate::edge::trace::RequestTrace;
use accounts::KeyIdentity;
use config::address::ClientAddress;
use config::catalog::CatalogModel;
use llm_protocol::{Protocol, failure};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Maximum length of an unknown model's name that is kept, in characters.
const MAX_MODEL_CHARS: usize = 100;

/// Data for the metrics, the log and the traces, and the parts that every response has.
pub struct RequestRecord {
    /// Id of the request: `req_` and 32 hex digits.
    pub request_id: String,
    pub arrived: Instant,
    /// Origin of the request. Set once the header has arrived, unless the peer has disconnected.
    pub caller: Option<ClientAddress>,
    /// Method and path for the log. Set only with an access log.
    pub target: Option<Box<(String, String)>>,
    pub trace: Option<Box<RequestTrace>>,
    /// CORS headers for the response. Set only on API paths for which the config allows origins.
    pub cors: Option<CorsHeaders>,
    pub wants_web_socket: bool,
    /// Protocol that determines the shape of a failure.
    pub surface: Protocol,
    /// Label of the request in the metrics and the log.
    pub route: RouteLabel,
    /// Status of the response, 0 while there is none.
    pub status: u16,
    /// The reason for a refusal or failure, in one word.
    pub reason: Option<&'static str>,
    /// True if the request is for a model. Paths that the gateway answers itself are not.
    pub asks_model: bool,
    /// What a free request asks for; empty for a billed one.
    pub asked_for: &'static str,
    pub model: OnceLock<Arc<CatalogModel>>,
    /// The name of a model that the client sent, if the catalog has none.
    pub asked_model: OnceLock<String>,
    /// The key, if the gateway recognised and refused it.
    pub refused_key: Option<Box<KeyIdentity>>,
    /// Code and message of the failure that the client got.
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
            asked_for: "",
            model: OnceLock::new(),
            asked_model: OnceLock::new(),
            refused_key: None,
            failure: None,
        }
    }

    /// Records the name of a model that the key may not use or that does not exist, so that the
    /// account holder sees it.
    pub fn note_unknown_model(&self, name: &str) {
        if !name.is_empty() {
            let name = failure::shorten_words(name, MAX_MODEL_CHARS);
            let _ = self.asked_model.set(name);
        }
    }

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
            asked_for: self.asked_for,
            model: std::mem::take(&mut self.model),
            asked_model: std::mem::take(&mut self.asked_model),
            refused_key: self.refused_key.take(),
            failure: self.failure.take(),
        }
    }
}

/// The label that keeps pages and health checks apart from API requests. They outnumber API
/// requests and would dilute an error ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteLabel {
    Api,
    Page,
    Health,
    /// The request was ambiguous or malformed.
    Malformed,
}

impl RouteLabel {
    /// Returns the label for `gateway_requests_total` and for the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            RouteLabel::Api => "api",
            RouteLabel::Page => "page",
            RouteLabel::Health => "health",
            RouteLabel::Malformed => "malformed",
        }
    }

    /// Returns the label of the surface, which pages and health checks do not have.
    pub fn surface(self, surface: Protocol) -> &'static str {
        match self {
            RouteLabel::Page | RouteLabel::Health => "",
            RouteLabel::Api | RouteLabel::Malformed => surface.as_str(),
        }
    }
}
