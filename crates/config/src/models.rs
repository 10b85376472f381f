//! Validates the section `models`, and builds the catalog.
//!
//! This file must not look up a model for a request: `catalog.rs` does. Next: `price.rs`,
//! `capabilities.rs`, `aliases.rs`.

use super::validator::ModelSection;
use super::vendors::VendorEntry;
use super::{capabilities, price, raw, suggest};
use crate::catalog::{Catalog, CatalogModel, CatalogVendor, VendorEndpoint};
use credits::price_list::PriceList;
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::capabilities::repair_rules::KnownCapabilities;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of fallbacks of one model. The number is small because the gateway quotes each of
/// them at admission.
pub const MAX_FALLBACKS: usize = 3;

impl ModelSection<'_> {
    fn check_fallbacks(&mut self, models: &[raw::Model]) {
        let ids: HashSet<_> = models.iter().map(|model| model.id.as_str()).collect();
        let is_chat = |id: &str| {
            let named = models.iter().find(|model| model.id == id);
            named.is_none_or(|model| model.kind == raw::ModelKindKey::Chat)
        };
        for (index, model) in models.iter().enumerate() {
            let key = format!("models[{index}].fallback");
            if model.fallback.len() > MAX_FALLBACKS {
                self.0.add_fault(
                    key.clone(),
                    format!("at most {MAX_FALLBACKS} models are allowed"),
                );
            }
            let mut seen = HashSet::from([model.id.as_str()]);
            for (position, id) in model.fallback.iter().enumerate() {
                let key = format!("{key}[{position}]");
                if !ids.contains(id.as_str()) {
                    let owner = models.iter().find(|model| model.aliases.contains(id));
                    let suggestion = match owner {
                        Some(raw::Model { id, .. }) => {
                            format!("; it is an alias of {id:?}: use that id")
                        }
                        None => suggest::hint(id, ids.iter().copied()),
                    };
                    self.0
                        .add_fault(key, format!("no model has the id {id:?}{suggestion}"));
                } else if !is_chat(id) {
                    self.0.add_fault(
                        key,
                        format!("{id:?} is not `kind: chat`, so it cannot answer instead"),
                    );
                } else if !seen.insert(id) {
                    self.0.add_fault(
                        key,
                        format!("{id:?} would be tried twice for one request: remove it"),
                    );
                }
            }
        }
    }

    /// Checks that requests to at least one model can be clamped, if the file sets the minimum
    /// output.
    pub(super) fn check_min_output(&mut self, min_output_tokens: u64, models: &[raw::Model]) {
        const KEY: &str = "limits.min_output_tokens";
        let of_models = models.iter().filter_map(|model| model.max_output_tokens);
        let max_output = of_models.max();
        if let Some(max_output) = max_output
            && min_output_tokens > max_output
            && self.0.is_set(KEY)
        {
            self.0.add_fault(
                KEY,
                format!(
                    "{min_output_tokens} is above max_output_tokens of every model, at most \
                     {max_output}: no request could ever be clamped"
                ),
            );
        }
    }

    pub(super) fn catalog(
        &mut self,
        models: Vec<raw::Model>,
        vendors: &HashMap<String, VendorEntry>,
    ) -> Catalog {
        self.check_fallbacks(&models);
        self.check_aliases(&models);
        let mut ids = HashSet::new();
        let mut usable = Vec::new();
        for (index, model) in models.into_iter().enumerate() {
            let key = format!("models[{index}]");
            let (id, vendor) = (&model.id, &model.vendor);
            if !ids.insert(id.clone()) {
                self.0
                    .add_fault(format!("{key}.id"), format!("{id:?} is listed twice"));
            }
            self.check_model(&key, &model);
            self.check_kind(&key, &model);
            let price = self.price(&format!("{key}.price"), &model.price, model.context_tokens);
            match vendors.get(&model.vendor) {
                None => {
                    let suggestion =
                        suggest::hint(&model.vendor, vendors.keys().map(String::as_str));
                    self.0.add_fault(
                        format!("{key}.vendor"),
                        format!("no vendor is named {vendor:?}{suggestion}"),
                    );
                }
                Some(VendorEntry { vendor: None, .. }) => {}
                Some(
                    entry @ VendorEntry {
                        vendor: Some(vendor),
                        preset,
                        profile,
                        own_roles,
                    },
                ) => {
                    self.check_kind_of_vendor(&key, &model, entry);
                    self.check_route(&key, &model, vendor);
                    self.check_roles(&key, &model, *own_roles);
                    let known = preset.map(|preset| preset.capabilities_of(&model.upstream_model));
                    let built = price
                        .map(|price| build_model(model, (vendor, profile), price, known.as_ref()));
                    if let Some(built) = &built
                        && let Some(member) = built.accepts.refused_replay(&vendor.profile)
                    {
                        let name = &vendor.name;
                        let message = format!(
                            "the reasoning must return as {member}, which the profile of vendor {name:?} refuses"
                        );
                        self.0
                            .add_fault(format!("{key}.capabilities.reasoning_replay"), message);
                    }
                    usable.extend(built);
                }
            }
        }
        if usable.is_empty() && self.0.faults.is_empty() {
            self.0.add_fault(
                "models",
                "no model can be served: every vendor's api_key is empty",
            );
        }
        Catalog::new(usable)
    }

    /// Checks the names and limits of a model.
    fn check_model(&mut self, key: &str, model: &raw::Model) {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._:-/@".contains(c);
        if model.id.is_empty() || model.id.len() > 128 || !model.id.chars().all(plain) {
            self.0.add_fault(
                format!("{key}.id"),
                "must be 1 to 128 letters, digits and . _ : - / @",
            );
        }
        if model.upstream_model.is_empty() || !model.upstream_model.chars().all(plain) {
            self.0.add_fault(
                format!("{key}.upstream_model"),
                "must be letters, digits and . _ : - / @",
            );
        }
        if let Some(seconds) = model.max_audio_seconds {
            let place = ("Model", "max_audio_seconds");
            self.0.check_range(key, place, seconds);
        }
        let max_output = model.max_output_tokens;
        if max_output == Some(0) || model.context_tokens == 0 {
            self.0
                .add_fault(key, "context_tokens and max_output_tokens must be above 0");
        }
        if max_output > Some(100_000_000) || model.context_tokens > 100_000_000 {
            self.0.add_fault(
                key,
                "context_tokens and max_output_tokens must be at most 100000000",
            );
        }
        if let Some(max_output) = max_output.filter(|tokens| *tokens > model.context_tokens) {
            self.0.add_fault(
                format!("{key}.max_output_tokens"),
                format!(
                    "{max_output} is above context_tokens, which is {}: the output is a part of the context",
                    model.context_tokens
                ),
            );
        }
    }

    /// Compares a model with the config file's settings for its vendor's messages.
    fn check_roles(&mut self, key: &str, model: &raw::Model, roles: raw::Roles) {
        let raw::Capabilities {
            system_role,
            mid_system,
            ..
        } = &model.capabilities;
        let contradictions = [
            (
                "system_role",
                *system_role == Some(raw::SystemRole::Developer) && roles.developer == Some(false),
                "`roles.developer: false`",
            ),
            (
                "mid_system",
                *mid_system == Some(true) && roles.system == Some(raw::SystemPlace::First),
                "`roles.system: first`",
            ),
        ];
        for (name, is_contradicted, role) in contradictions {
            if is_contradicted {
                let vendor = &model.vendor;
                let message = format!(
                    "contradicts {role} in the profile of vendor {vendor:?}: leave out one of them"
                );
                self.0
                    .add_fault(format!("{key}.capabilities.{name}"), message);
            }
        }
    }

    /// Checks the keys of a model that its vendor's protocol or endpoints do not support.
    fn check_route(&mut self, key: &str, model: &raw::Model, vendor: &CatalogVendor) {
        if model.kind != raw::ModelKindKey::Chat {
            // `check_kind` has checked them.
            return;
        }
        let also = model
            .upstream_protocol
            .map(|raw::UpstreamProtocol::Responses| Protocol::Responses);
        if also.is_some() && vendor.protocol == Protocol::Messages {
            self.0.add_fault(
                format!("{key}.upstream_protocol"),
                "not allowed: vendors with `protocol: messages` support no other protocol",
            );
        } else if also.is_some() && !vendor.endpoints.iter().all(VendorEndpoint::has_other_paths) {
            let message = "cannot be used: the `path` of the vendor's endpoint does not end in /chat/completions, so the \
                           path of responses is unknown";
            self.0
                .add_fault(format!("{key}.upstream_protocol"), message);
        }
        if model.capabilities.completions.is_some()
            && !vendor.endpoints.iter().all(VendorEndpoint::has_other_paths)
        {
            let message = "cannot be used: the `path` of the vendor's endpoint does not end in /chat/completions, so the \
                           path of completions is unknown";
            self.0
                .add_fault(format!("{key}.capabilities.completions"), message);
        }
        for name in capabilities::misplaced_keys([Some(vendor.protocol), also], &model.capabilities)
        {
            let message = format!(
                "has no effect for a model of a {} vendor: remove it",
                vendor.protocol
            );
            self.0
                .add_fault(format!("{key}.capabilities.{name}"), message);
        }
        for name in price::misplaced_keys([Some(vendor.protocol), also], &model.price) {
            let message = format!("has no effect: a {} vendor never bills it", vendor.protocol);
            self.0.add_fault(format!("{key}.price.{name}"), message);
        }
    }
}

/// Enables web search for a messages model if and only if its price list has a price for searches.
fn set_search_by_price(mut accepts: ModelCapabilities, price: &PriceList) -> ModelCapabilities {
    if let ModelCapabilities::Messages(model) = &mut accepts {
        model.set_web_search(price.features.web_search.is_some());
    }
    accepts
}

/// Turns the gateway's cache markers off if the operator does not want them, or the vendor does not
/// accept them.
fn set_cache_marks(
    mut accepts: ModelCapabilities,
    cache_marks: raw::CacheMarks,
    vendor: &CatalogVendor,
) -> ModelCapabilities {
    if let ModelCapabilities::Messages(model) = &mut accepts
        && (cache_marks == raw::CacheMarks::Off || !vendor.profile.takes_cache_markers())
    {
        model.min_cache_tokens = None;
    }
    accepts
}

/// Longest audio in seconds, if the config does not say: two hours.
const DEFAULT_AUDIO_SECONDS: u64 = 7_200;

/// Builds a model. `known` has the model's capabilities from the vendor's preset.
fn build_model(
    mut model: raw::Model,
    (vendor, profile): (&Arc<CatalogVendor>, &raw::Profile),
    price: PriceList,
    known: Option<&raw::Capabilities>,
) -> CatalogModel {
    let price = Arc::new(price);
    if let Some(known) = known {
        model.capabilities = std::mem::take(&mut model.capabilities).or(known);
    }
    let by = |protocol| CatalogModel {
        id: model.id.clone(),
        aliases: model.aliases.clone(),
        vendor: Arc::clone(vendor),
        upstream_model: model.upstream_model.clone(),
        context_tokens: model.context_tokens,
        max_output_tokens: model.max_output_tokens.unwrap_or(0),
        max_audio_seconds: model.max_audio_seconds.unwrap_or(DEFAULT_AUDIO_SECONDS),
        kind: model.kind.into(),
        accepts: set_cache_marks(
            set_search_by_price(
                capabilities::resolve(&model.id, protocol, &model.capabilities, profile),
                &price,
            ),
            model.cache_marks,
            vendor,
        ),
        repairs: match model.repair {
            true => {
                let roles = profile.roles;
                capabilities::known_capabilities(&model.id, protocol, &model.capabilities, roles)
            }
            false => KnownCapabilities::NONE,
        },
        price: Arc::clone(&price),
        fallback: model.fallback.clone(),
        by_responses: None,
    };
    let has_both = model.upstream_protocol.is_some() && vendor.protocol == Protocol::Chat;
    let by_responses = has_both.then(|| Arc::new(by(Protocol::Responses)));
    CatalogModel {
        by_responses,
        ..by(vendor.protocol)
    }
}
