//! Validates the endpoints of a vendor: addresses, paths, query parameters, header fields,
//! authentication and health checks.
//!
//! This file must not open a connection. Next: `catalog/endpoint.rs` (the result).

use super::base_url::{BaseUrl, parse_base_url};
use super::presets::Preset;
use super::raw;
use super::validator::{VendorSection, header_fault};
use crate::catalog::{ActiveHealthCheck, EndpointAuth, HttpVersion, Secret, VendorEndpoint};
use http::HeaderName;
use llm_protocol::Protocol;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of query parameters that are added to each request.
const MAX_QUERY_PARAMETERS: usize = 16;
const MAX_HEADERS: usize = 32;

/// Ends of addresses of calls that generate nothing, or that the gateway does not use. `/models` is
/// not listed, because it is the base address of some vendors.
const OTHER_CALLS: [&str; 5] = [
    "/v1/models",
    "/completions",
    "/embeddings",
    "/messages/count_tokens",
    "/responses/input_tokens",
];

/// Header fields that `headers` cannot set, with the reason.
const RESERVED_HEADERS: [(&str, &[&str]); 4] = [
    (
        "belongs to one connection",
        &[
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
            "expect",
        ],
    ),
    (
        "is set by the gateway for each request",
        &[
            "host",
            "content-length",
            "content-type",
            "content-encoding",
            "accept",
            "accept-encoding",
            "x-client-request-id",
            "traceparent",
        ],
    ),
    (
        "carries the vendor's key: use `api_key` and `auth`",
        &["authorization", "x-api-key", "api-key"],
    ),
    (
        "is passed on from the client's request",
        &["anthropic-beta"],
    ),
];

pub(super) struct VendorDefaults<'a> {
    protocol: Protocol,
    preset: Option<&'static Preset>,
    path: Option<String>,
    path_key: String,
    query: Vec<(String, Secret)>,
    headers: Vec<(String, Secret)>,
    pub(super) auth: EndpointAuth,
    http_version: HttpVersion,
    version_header: Option<&'a str>,
}

impl VendorSection<'_> {
    /// Reads the settings that apply to all endpoints of a vendor.
    pub(super) fn defaults<'a>(
        &mut self,
        key: &str,
        vendor: &raw::Vendor,
        (protocol, preset): (Protocol, Option<&'static Preset>),
        version_header: Option<&'a str>,
    ) -> VendorDefaults<'a> {
        let of_preset = preset.and_then(|preset| preset.auth.as_ref());
        // By default local servers need no key. A key in the file is sent in the usual way of the
        // protocol.
        let of_preset =
            of_preset.filter(|auth| **auth != raw::AuthKey::None || vendor.api_key.is_none());
        let auth = match vendor.auth.as_ref() {
            Some(auth) => self.auth(&format!("{key}.auth"), auth),
            None => of_preset.and_then(|auth| self.auth(key, auth)),
        };
        let path_key = format!("{key}.path");
        VendorDefaults {
            protocol,
            preset,
            path: vendor
                .path
                .as_ref()
                .and_then(|path| self.path(&path_key, path)),
            path_key,
            query: self.query(&format!("{key}.query"), &vendor.query),
            headers: self.headers(&format!("{key}.headers"), &vendor.headers, version_header),
            auth: auth.unwrap_or_else(|| EndpointAuth::default_for(protocol)),
            http_version: vendor.http_version.map(http_version).unwrap_or_default(),
            version_header,
        }
    }

    fn check_endpoint_limits(&mut self, key: &str, endpoint: &raw::Endpoint) {
        let max_concurrent = endpoint.max_concurrent.map(u64::from);
        let limits = [
            ("weight", Some(endpoint.weight.into())),
            ("max_concurrent", max_concurrent),
        ];
        for (name, value) in limits {
            if let Some(value) = value {
                self.0.check_range(key, ("Endpoint", name), value);
            }
        }
    }

    pub(super) fn endpoint(
        &mut self,
        key: &str,
        endpoint: &raw::Endpoint,
        defaults: &VendorDefaults<'_>,
    ) -> Option<VendorEndpoint> {
        self.check_endpoint_limits(key, endpoint);
        let health_check = endpoint
            .health_check
            .as_ref()
            .map(|check| self.health_check(key, check));
        let path_key = format!("{key}.path");
        let own_path = endpoint
            .path
            .as_ref()
            .and_then(|path| self.path(&path_key, path));
        let query = self.query(&format!("{key}.query"), &endpoint.query);
        let headers = self.headers(
            &format!("{key}.headers"),
            &endpoint.headers,
            defaults.version_header,
        );
        let auth = endpoint
            .auth
            .as_ref()
            .and_then(|auth| self.auth(&format!("{key}.auth"), auth));
        let address = self.parse_base_address(&format!("{key}.url"), &endpoint.url)?;
        let (prefix, adds_v1) = split_base_path(&address.path, defaults.protocol);
        let path_key = if own_path.is_some() {
            &path_key
        } else {
            &defaults.path_key
        };
        let written_path = own_path.or_else(|| defaults.path.clone());
        let is_of_preset = defaults
            .preset
            .is_some_and(|preset| preset.url.as_ref() == Some(&endpoint.url));
        if written_path.is_some() && !address.path.is_empty() && !is_of_preset {
            let message = format!(
                "must be the whole path, but `url` has a path too ({}): move that path here",
                address.path
            );
            self.0.add_fault(path_key.as_str(), message);
        }
        // A `url` with a path replaces the path of the preset.
        let of_preset = defaults
            .preset
            .and_then(|preset| preset.path.clone())
            .filter(|_| address.path.is_empty());
        Some(VendorEndpoint {
            tls: address.tls,
            host: address.host,
            port: address.port,
            authority: address.authority,
            prefix,
            adds_v1,
            path: written_path.or(of_preset),
            query: merge_by_name(&defaults.query, query),
            headers: merge_by_name(&defaults.headers, headers),
            auth: auth.unwrap_or_else(|| defaults.auth.clone()),
            http_version: endpoint
                .http_version
                .map_or(defaults.http_version, http_version),
            weight: endpoint.weight,
            max_concurrent: endpoint.max_concurrent,
            health_check,
        })
    }

    fn parse_base_address(&mut self, key: &str, url: &str) -> Option<BaseUrl> {
        if let Some((base, _)) = url.split_once('#') {
            let message = format!("has a fragment, which no server receives: use {base:?}");
            self.0.add_fault(key, message);
            return None;
        }
        let Some(address) = parse_base_url(url) else {
            let message = match url.split_once('?') {
                Some(_) => "contains a query: set it as `query: {NAME: VALUE}`".to_owned(),
                None => format!("not an http:// or https:// base address: {url:?}"),
            };
            self.0.add_fault(key, message);
            return None;
        };
        let path = address.path.to_ascii_lowercase();
        let added = ["/chat/completions", "/messages", "/responses"];
        if let Some(suffix) = added.into_iter().find(|suffix| path.ends_with(suffix)) {
            let base = url.trim_end_matches('/');
            let base = &base[..base.len() - suffix.len()];
            self.0.add_fault(
                key,
                format!("ends in {suffix}, which the gateway adds: use {base:?}"),
            );
        } else if let Some(suffix) = OTHER_CALLS
            .into_iter()
            .find(|suffix| path.ends_with(suffix))
        {
            let base = url.trim_end_matches('/');
            let base = &base[..base.len() - suffix.len()];
            let version = if suffix.starts_with("/v1/") {
                "/v1"
            } else {
                ""
            };
            let base = format!("{base}{version}");
            let message = format!("is the address of another call ({suffix}): use {base:?}");
            self.0.add_fault(key, message);
        }
        Some(address)
    }

    fn path(&mut self, key: &str, path: &str) -> Option<String> {
        let wrong = if !path.starts_with('/') {
            Some(format!(
                "must begin with /: {path:?}; did you mean \"/{path}\"?"
            ))
        } else if path.contains('?') {
            Some("contains a query: set it as `query: {NAME: VALUE}`".to_owned())
        } else if path.parse::<http::uri::PathAndQuery>().is_err() || path.contains('#') {
            Some(format!("not a path: {path:?}"))
        } else {
            None
        };
        match wrong {
            Some(message) => {
                self.0.add_fault(key, message);
                None
            }
            None => Some(path.to_owned()),
        }
    }

    fn query(&mut self, key: &str, written: &BTreeMap<String, String>) -> Vec<(String, Secret)> {
        if written.len() > MAX_QUERY_PARAMETERS {
            self.0.add_fault(
                key,
                format!("at most {MAX_QUERY_PARAMETERS} parameters are allowed"),
            );
        }
        if written.contains_key("") {
            self.0.add_fault(key, "has a parameter without a name");
        }
        written
            .iter()
            .map(|(name, value)| (name.clone(), Secret::new(value.clone())))
            .collect()
    }

    fn headers(
        &mut self,
        key: &str,
        written: &BTreeMap<String, String>,
        version_header: Option<&str>,
    ) -> Vec<(String, Secret)> {
        if written.len() > MAX_HEADERS {
            self.0.add_fault(
                key,
                format!("at most {MAX_HEADERS} header fields are allowed"),
            );
        }
        let mut headers: Vec<(String, Secret)> = Vec::new();
        for (name, value) in written {
            let key = format!("{key}.{name}");
            let name = name.to_ascii_lowercase();
            let reserved = RESERVED_HEADERS
                .iter()
                .find(|(_, names)| names.contains(&&*name))
                .map(|(why, _)| *why);
            let is_version = version_header == Some(&*name);
            if let Some(why) =
                reserved.or(is_version.then_some("is the version header: use `version_header`"))
            {
                self.0
                    .add_fault(key, format!("cannot be set here: it {why}"));
            } else if HeaderName::from_bytes(name.as_bytes()).is_err() {
                self.0.add_fault(key, "not a valid header name");
            } else if headers.iter().any(|(other, _)| *other == name) {
                self.0
                    .add_fault(key, "is listed twice: header names are case-insensitive");
            } else if let Some(value) = self.0.secret(&key, value) {
                if let Some(fault) = header_fault(value.reveal()) {
                    self.0.add_fault(key, fault);
                }
                headers.push((name, value));
            }
        }
        headers
    }

    fn auth(&mut self, key: &str, auth: &raw::AuthKey) -> Option<EndpointAuth> {
        let name = match auth {
            raw::AuthKey::Bearer => return Some(EndpointAuth::Bearer),
            raw::AuthKey::None => return Some(EndpointAuth::None),
            raw::AuthKey::XApiKey => "x-api-key",
            raw::AuthKey::ApiKey => "api-key",
            raw::AuthKey::Header { header } => header,
        };
        let name = name.to_ascii_lowercase();
        let carries_key = |why: &str| why.starts_with("carries");
        let reserved = RESERVED_HEADERS
            .iter()
            .find(|(why, names)| !carries_key(why) && names.contains(&&*name));
        if let Some((why, _)) = reserved {
            self.0.add_fault(
                format!("{key}.header"),
                format!("cannot carry the key: it {why}"),
            );
        } else if HeaderName::from_bytes(name.as_bytes()).is_err() {
            self.0.add_fault(
                format!("{key}.header"),
                format!("not a valid header name: {name:?}"),
            );
        }
        Some(EndpointAuth::Header(name))
    }

    fn health_check(&mut self, key: &str, check: &raw::HealthCheck) -> ActiveHealthCheck {
        let section = format!("{key}.health_check");
        for (name, value) in [
            ("interval_seconds", check.interval_seconds),
            ("timeout_seconds", check.timeout_seconds),
            ("passes_after", check.passes_after.into()),
            ("fails_after", check.fails_after.into()),
        ] {
            self.0.check_range(&section, ("HealthCheck", name), value);
        }
        let path: Result<http::uri::PathAndQuery, _> = check.path.parse();
        let written = &check.path;
        if path.is_err() || !written.starts_with('/') {
            self.0.add_fault(
                format!("{section}.path"),
                format!("not a path: {written:?}"),
            );
        }
        ActiveHealthCheck {
            path: check.path.clone(),
            interval: Duration::from_secs(check.interval_seconds),
            timeout: Duration::from_secs(check.timeout_seconds),
            passes_after: check.passes_after,
            fails_after: check.fails_after,
        }
    }
}

fn http_version(written: raw::HttpVersionKey) -> HttpVersion {
    match written {
        raw::HttpVersionKey::Auto => HttpVersion::Auto,
        raw::HttpVersionKey::One => HttpVersion::Http1,
        raw::HttpVersionKey::Two => HttpVersion::Http2,
    }
}

/// Merges two lists by name. The values in `own` take precedence.
fn merge_by_name(
    defaults: &[(String, Secret)],
    own: Vec<(String, Secret)>,
) -> Vec<(String, Secret)> {
    let is_own = |name: &String| own.iter().any(|(other, _)| other == name);
    let defaults: Vec<_> = defaults
        .iter()
        .filter(|(name, _)| !is_own(name))
        .cloned()
        .collect();
    defaults.into_iter().chain(own).collect()
}

/// Splits the path of a base address into the prefix without a final `/v1`, and whether `/v1` must
/// be added to the prefix. A path with another version gets no `/v1`. SDKs of the messages protocol
/// always add `/v1`, so for that protocol only a final version counts.
fn split_base_path(path: &str, protocol: Protocol) -> (String, bool) {
    if let Some(prefix) = path.strip_suffix("/v1") {
        return (prefix.to_owned(), true);
    }
    let mut versions = path
        .rsplit('/')
        .enumerate()
        .filter(|(_, segment)| is_version(segment));
    let names_version = versions.any(|(index, _)| index == 0 || protocol != Protocol::Messages);
    (path.to_owned(), !names_version)
}

/// Returns whether the segment is a version, such as `v1`, `v4`, `v1beta` or `v2alpha1`.
fn is_version(segment: &str) -> bool {
    let Some(rest) = segment.strip_prefix('v') else {
        return false;
    };
    let digits = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let stage = rest.get(rest.len() - digits(rest)..).unwrap_or_default();
    let is_stage = ["alpha", "beta", "preview"]
        .into_iter()
        .filter_map(|word| stage.strip_prefix(word))
        .any(|n| digits(n) == 0);
    digits(rest) < rest.len() && (stage.is_empty() || is_stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_in_the_address_is_not_doubled() {
        use Protocol::{Chat, Messages};
        for (path, protocol, prefix, adds_v1) in [
            ("", Chat, "", true),
            ("/v1", Chat, "", true),
            ("/openai/v1", Chat, "/openai", true),
            ("/api/paas/v4", Chat, "/api/paas/v4", false),
            ("/v1beta/openai", Chat, "/v1beta/openai", false),
            (
                "/v1/account/gateway/openai",
                Chat,
                "/v1/account/gateway/openai",
                false,
            ),
            (
                "/v1/account/gateway/anthropic",
                Messages,
                "/v1/account/gateway/anthropic",
                true,
            ),
            ("/anthropic/v1", Messages, "/anthropic", true),
            ("/vendor", Chat, "/vendor", true),
            ("/v2ray", Chat, "/v2ray", true),
            ("/v", Chat, "/v", true),
            ("/v2alpha1", Messages, "/v2alpha1", false),
        ] {
            assert_eq!(
                split_base_path(path, protocol),
                (prefix.to_owned(), adds_v1),
                "{path}"
            );
        }
    }
}
