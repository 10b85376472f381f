//! The model, vendor and endpoint that tests start from. They hold only required values; each test
//! sets the values that it depends on.

use config::catalog::{
    CatalogModel, CatalogVendor, EndpointAuth, HttpVersion, Secret, VendorEndpoint,
};
use credits::price_list::PriceList;
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
use llm_protocol::profile::VendorProfile;
use std::sync::Arc;

pub(crate) fn test_endpoint(host: &str) -> VendorEndpoint {
    VendorEndpoint {
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

pub(crate) fn test_vendor(protocol: Protocol, endpoints: Vec<VendorEndpoint>) -> CatalogVendor {
    CatalogVendor {
        name: "beta".into(),
        protocol,
        profile: VendorProfile::official(protocol).clone(),
        endpoints,
        sticky: true,
        api_key: Secret::new("k".into()),
        version_header: None,
    }
}

pub(crate) fn test_model(protocol: Protocol, price: PriceList) -> CatalogModel {
    CatalogModel {
        id: "beta-5.2".into(),
        aliases: Vec::new(),
        vendor: Arc::new(test_vendor(protocol, Vec::new())),
        upstream_model: "b".into(),
        context_tokens: 100_000,
        max_output_tokens: 8_000,
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
