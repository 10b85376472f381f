//! Validates the entries of `vendors` and fills in what their presets define.
//!
//! Must not open a connection. Next: `config/presets.rs` (the defaults), `config/endpoint.rs` (the
//! endpoints).

use super::presets::{self, Preset};
use super::validator::{ConfigValidator, PLACEHOLDER, header_fault};
use super::{raw, suggest};
use crate::catalog::{CatalogVendor, EndpointAuth, Secret};
use http::{HeaderName, HeaderValue};
use llm_protocol::Protocol;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Maximum number of endpoints of one vendor: each request looks at all of them.
const MAX_ENDPOINTS: usize = 32;

/// An entry of `vendors`.
pub(super) struct VendorEntry {
    /// `None` if the vendor is disabled or has a fault.
    pub vendor: Option<Arc<CatalogVendor>>,
    pub preset: Option<&'static Preset>,
}

impl ConfigValidator {
    /// The vendors by name.
    pub(super) fn vendors(
        &mut self,
        vendors: BTreeMap<String, raw::Vendor>,
    ) -> HashMap<String, VendorEntry> {
        let mut entries = HashMap::new();
        for (name, vendor) in vendors {
            let key = format!("vendors.{name}");
            let preset = vendor
                .preset
                .as_deref()
                .map(|preset| self.preset(&key, preset));
            let vendor = match preset {
                Some(None) => None,
                preset => self.vendor(&name, vendor, preset.flatten()).map(Arc::new),
            };
            entries.insert(
                name,
                VendorEntry {
                    vendor,
                    preset: preset.flatten(),
                },
            );
        }
        entries
    }

    fn preset(&mut self, key: &str, name: &str) -> Option<&'static Preset> {
        let found = presets::find(name);
        if found.is_none() {
            let key = format!("{key}.preset");
            match presets::unsupported(name) {
                Some(why) => self.add_fault(key, why),
                None => {
                    let known: Vec<_> = presets::names().collect();
                    let suggestion = suggest::nearest(name, known.iter().copied());
                    let suggestion = suggestion.map_or_else(String::new, |suggestion| {
                        format!(" Did you mean {suggestion:?}?")
                    });
                    self.add_fault(
                        key,
                        format!(
                            "there is no preset {name:?}.{suggestion} Known: {}",
                            known.join(", ")
                        ),
                    );
                }
            }
        }
        found
    }

    fn vendor(
        &mut self,
        name: &str,
        mut vendor: raw::Vendor,
        preset: Option<&'static Preset>,
    ) -> Option<CatalogVendor> {
        let key = format!("vendors.{name}");
        let Some(protocol) = vendor.protocol.or(preset.map(|preset| preset.protocol)) else {
            self.add_fault(
                format!("{key}.protocol"),
                "is required: messages, chat or responses; or name a `preset`",
            );
            return None;
        };
        let protocol = protocol_of(protocol);
        let listed = std::mem::take(&mut vendor.endpoints);
        let listed = if listed.is_empty() {
            preset.and_then(preset_endpoint).into_iter().collect()
        } else {
            listed
        };
        if !(1..=MAX_ENDPOINTS).contains(&listed.len()) {
            let message = match preset
                .and_then(|preset| preset.needs_url.as_deref())
                .filter(|_| listed.is_empty())
            {
                Some(example) => format!(
                    "is required: each customer of this vendor has a different address, such as [{{url: {example:?}}}]"
                ),
                None => format!("needs 1 to {MAX_ENDPOINTS} endpoints"),
            };
            self.add_fault(format!("{key}.endpoints"), message);
        }
        let header = vendor
            .version_header
            .as_ref()
            .or_else(|| preset.and_then(|preset| preset.version_header.as_ref()));
        let version_header =
            header.map(|header| (header.name.to_ascii_lowercase(), header.value.clone()));
        let defaults = self.defaults(
            &key,
            &vendor,
            (protocol, preset),
            version_header.as_ref().map(|(name, _)| &**name),
        );
        let validate = |(index, endpoint)| {
            self.endpoint(&format!("{key}.endpoints[{index}]"), endpoint, &defaults)
        };
        let endpoints: Vec<_> = listed.iter().enumerate().map(validate).collect();
        let wants_key = endpoints
            .iter()
            .flatten()
            .any(|endpoint| endpoint.auth != EndpointAuth::None);
        // The authentication of an endpoint with a fault is unknown.
        let are_all_valid = !endpoints.is_empty() && endpoints.iter().all(Option::is_some);
        let wants_key = wants_key || !are_all_valid && defaults.auth != EndpointAuth::None;
        let api_key = self.api_key(
            &format!("{key}.api_key"),
            vendor.api_key.as_deref(),
            wants_key,
        )?;
        if let Some((name, value)) = &version_header
            && (HeaderName::from_bytes(name.as_bytes()).is_err()
                || HeaderValue::from_str(value).is_err())
        {
            self.add_fault(
                format!("{key}.version_header"),
                "not a valid header name and value",
            );
        }
        Some(CatalogVendor {
            name: name.to_owned(),
            protocol,
            official: vendor
                .official
                .unwrap_or(preset.is_some_and(|preset| preset.official)),
            endpoints: endpoints.into_iter().collect::<Option<_>>()?,
            sticky: vendor.sticky,
            api_key,
            version_header,
        })
    }

    /// The vendor's key. `None` if it has a fault or is empty, which disables the vendor.
    fn api_key(&mut self, key: &str, written: Option<&str>, is_required: bool) -> Option<Secret> {
        let Some(written) = written else {
            if is_required {
                self.add_fault(
                    key,
                    "is required: the vendor's key, as in \"${API_KEY}\"; or `auth: none` if the server needs no key",
                );
                return None;
            }
            return Some(Secret::new(String::new()));
        };
        if self.withholds_vendor_keys {
            return Some(Secret::new(PLACEHOLDER.into()));
        }
        let api_key = self.secret(key, written)?;
        if api_key.reveal().is_empty() && is_required {
            return None;
        }
        if let Some(fault) = header_fault(api_key.reveal()) {
            self.add_fault(key, fault);
        } else if !api_key.reveal().is_empty() && !is_required {
            self.add_fault(
                key,
                "has no effect: `auth` is none, so the gateway never sends it",
            );
        }
        Some(api_key)
    }
}

fn protocol_of(written: raw::VendorProtocol) -> Protocol {
    match written {
        raw::VendorProtocol::Chat => Protocol::Chat,
        raw::VendorProtocol::Messages => Protocol::Messages,
        raw::VendorProtocol::Responses => Protocol::Responses,
    }
}

/// The endpoint of a preset that has an address.
fn preset_endpoint(preset: &'static Preset) -> Option<raw::Endpoint> {
    Some(raw::Endpoint {
        url: preset.url.clone()?,
        path: None,
        query: BTreeMap::new(),
        headers: BTreeMap::new(),
        auth: None,
        http_version: None,
        weight: 1,
        max_concurrent: None,
        health_check: None,
    })
}
