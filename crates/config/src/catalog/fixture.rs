//! Creates the model, vendor and endpoint with which tests begin. They have only required values,
//! and each test sets the values on which it depends.

use super::{
    CatalogModel, CatalogVendor, EndpointAuth, HttpVersion, PriceList, Secret, VendorEndpoint,
};
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
use llm_protocol::metered::ModelKind;
use llm_protocol::profile::VendorProfile;
use std::sync::Arc;

impl VendorEndpoint {
    pub fn in_test(host: &str) -> Self {
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
            auth: EndpointAuth::Bearer,
            http_version: HttpVersion::Auto,
            weight: 1,
            max_concurrent: None,
            health_check: None,
        }
    }
}

impl CatalogVendor {
    pub fn in_test(protocol: Protocol, endpoints: Vec<VendorEndpoint>) -> Self {
        Self {
            name: "beta".into(),
            protocol,
            profile: VendorProfile::official(protocol).clone(),
            endpoints,
            sticky: true,
            api_key: Secret::new("k".into()),
            version_header: None,
        }
    }
}

impl CatalogModel {
    pub fn in_test(protocol: Protocol, price: PriceList) -> Self {
        Self {
            id: "beta-5.2".into(),
            aliases: Vec::new(),
            vendor: Arc::new(CatalogVendor::in_test(protocol, Vec::new())),
            upstream_model: "b".into(),
            context_tokens: 100_000,
            max_output_tokens: 8_000,
            max_audio_seconds: 7_200,
            kind: ModelKind::Chat,
            accepts: match protocol {
                Protocol::Messages => ModelCapabilities::Messages(Default::default()),
                Protocol::Chat => ModelCapabilities::Chat(Default::default()),
                Protocol::Responses => ModelCapabilities::Responses(Default::default()),
            },
            repairs: KnownCapabilities::NONE,
            price: Arc::new(price),
            fallback: Vec::new(),
            by_responses: None,
        }
    }
}
