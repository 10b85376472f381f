//! The model, vendor and endpoint that tests start from. They hold only required values; each test
//! sets the values that it depends on.

use super::{Auth, Endpoint, HttpVersion, Model, Price, Secret, Vendor};
use crate::protocol::Protocol;
use crate::protocol::rules::Accepts;
use crate::protocol::rules::known::KnownCapabilities;
use std::sync::Arc;

impl Endpoint {
    pub(crate) fn in_test(host: &str) -> Self {
        Self {
            tls: true,
            host: host.into(),
            port: 443,
            authority: host.into(),
            prefix: String::new(),
            adds_v1: true,
            path: None,
            query: Vec::new(),
            headers: Vec::new(),
            auth: Auth::Bearer,
            http_version: HttpVersion::Auto,
            weight: 1,
            max_concurrent: None,
            health_check: None,
        }
    }
}

impl Vendor {
    pub(crate) fn in_test(protocol: Protocol, endpoints: Vec<Endpoint>) -> Self {
        Self {
            name: "beta".into(),
            protocol,
            official: true,
            endpoints,
            sticky: true,
            api_key: Secret::new("k".into()),
            version_header: None,
        }
    }
}

impl Model {
    pub(crate) fn in_test(protocol: Protocol, price: Price) -> Self {
        Self {
            id: "beta-5.2".into(),
            aliases: Vec::new(),
            vendor: Arc::new(Vendor::in_test(protocol, Vec::new())),
            upstream_model: "b".into(),
            context_tokens: 100_000,
            max_output_tokens: 8_000,
            accepts: match protocol {
                Protocol::Messages => Accepts::Messages(Default::default()),
                Protocol::Chat => Accepts::Chat(Default::default()),
                Protocol::Responses => Accepts::Responses(Default::default()),
            },
            repairs: KnownCapabilities::NONE,
            price: Arc::new(price),
            fallback: Vec::new(),
            by_responses: None,
        }
    }
}
