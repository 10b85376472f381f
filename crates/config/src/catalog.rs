//! Defines the catalog, which consists of models, their routes to vendors, and their prices.
//!
//! The catalog is built from the config and immutable. A reload builds a new one; a running request
//! keeps the catalog of its admission. This module must not do I/O. Next: `catalog/endpoint.rs` (a
//! vendor's addresses), `catalog/alias.rs` (aliases), `catalog/secret.rs` (keys, which are never
//! printed), `crates/credits/src/price_list.rs` (price lists).

mod alias;
mod endpoint;
#[cfg(any(test, feature = "fixtures"))]
mod fixture;
mod secret;

use crate::suggest::similar;
pub use alias::AliasPattern;
use credits::price_list::PriceList;
pub use endpoint::{ActiveHealthCheck, EndpointAuth, HttpVersion, VendorEndpoint};
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use llm_protocol::capabilities::{
    ChatModel, CompletionsApi, ModelCapabilities, ResponsesModel, ThinkingType, ToolsWithReasoning,
};
use llm_protocol::metered::{BilledUnit, MeteredLimits, ModelKind};
use llm_protocol::profile::VendorProfile;
use llm_protocol::request::RequestSummary;
use llm_protocol::usage::CountedUnit;
pub use secret::Secret;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum length in bytes of a name that [`Catalog::near_names`] compares. The length must be
/// bounded because a client chooses the name.
const MAX_NEAR_BYTES: usize = 128;

/// All configured models, in the order of the config file.
#[derive(Debug, Default)]
pub struct Catalog {
    models: Vec<Arc<CatalogModel>>,
    by_id: HashMap<String, Arc<CatalogModel>>,
    by_alias: HashMap<String, Arc<CatalogModel>>,
    /// Aliases with a `*`, the longest first.
    by_pattern: Vec<(AliasPattern, Arc<CatalogModel>)>,
}

/// A catalog id and the route behind it.
#[derive(Debug)]
pub struct CatalogModel {
    pub id: String,
    /// Other names that clients may use, in the spelling of the config. They are exact names, or
    /// names with one `*`.
    pub aliases: Vec<String>,
    pub vendor: Arc<CatalogVendor>,
    /// The vendor's name for the model.
    pub upstream_model: String,
    pub context_tokens: u64,
    /// 0 for models that generate no tokens, or are not billed by them.
    pub max_output_tokens: u64,
    /// Longest audio of a transcription, in seconds.
    pub max_audio_seconds: u64,
    pub kind: ModelKind,
    /// Capabilities that translation uses.
    pub accepts: ModelCapabilities,
    /// Capabilities that the repair of requests without translation uses. None are known if the
    /// config has `repair: false`.
    pub repairs: KnownCapabilities,
    pub price: Arc<PriceList>,
    /// Ids of the fallback models, in the order in which the gateway tries them.
    pub fallback: Vec<String>,
    /// The same model over the responses API. Set if its chat vendor also serves it there.
    pub by_responses: Option<Arc<CatalogModel>>,
}

impl CatalogModel {
    /// Returns the protocol that the gateway uses with the model's vendor.
    pub fn protocol(&self) -> Protocol {
        self.accepts.protocol()
    }

    /// Returns whether the gateway passes requests of this surface through with a few edits. It
    /// translates all others.
    pub fn passes_through(&self, surface: Protocol) -> bool {
        let says_all = !matches!(
            &self.accepts,
            ModelCapabilities::Responses(ResponsesModel {
                functions_only: true,
                ..
            })
        );
        self.protocol() == surface && says_all
    }

    /// Selects the API variant of the model for this request, because a chat vendor may serve two.
    /// The gateway uses the client's own protocol, except where the chat API would switch reasoning
    /// off. The choice depends on the request alone, and may differ for the next turn.
    pub fn select_variant(
        self: &Arc<Self>,
        surface: Protocol,
        request: &RequestSummary,
    ) -> &Arc<CatalogModel> {
        let (Some(by_responses), ModelCapabilities::Chat(model)) =
            (&self.by_responses, &self.accepts)
        else {
            return self;
        };
        let features = &request.features;
        let reasons_better = model.tools_with_reasoning != ToolsWithReasoning::Any;
        match surface {
            Protocol::Responses => by_responses,
            // The responses API has no stop sequences, but clients that use tools do not need them.
            Protocol::Messages if reasons_better && (features.tools || !features.stops) => {
                by_responses
            }
            Protocol::Chat if reasons_better && features.tools && !features.no_reasoning => {
                by_responses
            }
            Protocol::Messages | Protocol::Chat => self,
        }
    }

    /// Returns the rules for repairing a request that needs no translation.
    pub fn repair_rules(&self) -> RepairRules<'_> {
        RepairRules {
            accepts: &self.accepts,
            known: self.repairs,
            max_output_tokens: self.max_output_tokens,
            output_limit: None,
            thinking_budget: None,
            is_interleaved: false,
        }
    }

    /// True if it serves the three protocols.
    pub fn is_chat(&self) -> bool {
        self.kind == ModelKind::Chat
    }

    /// The API that continues prompts with the model, if its vendor has one at a known path.
    pub fn completions(&self) -> Option<CompletionsApi> {
        let api = match &self.accepts {
            ModelCapabilities::Chat(model) => model.completions,
            ModelCapabilities::Messages(_) | ModelCapabilities::Responses(_) => None,
        };
        api.filter(|api| self.is_chat() && self.vendor.serves(api.path()))
    }

    /// The paths that take requests to the model beside those of the three protocols, or in their
    /// place if it is no chat model.
    pub fn other_paths(&self) -> impl Iterator<Item = &'static str> {
        let completions = self.completions().map(CompletionsApi::path);
        self.kind.metered_paths().chain(completions)
    }

    /// The unit that its price counts, for kinds other than chat.
    pub fn billed_unit(&self) -> BilledUnit {
        let is_priced = |unit: &CountedUnit| self.price.features.unit_price(*unit).is_some();
        CountedUnit::ALL
            .into_iter()
            .find(is_priced)
            .map_or(BilledUnit::Tokens, BilledUnit::Counted)
    }

    /// The limits that bound a request to it, for kinds other than chat.
    pub fn metered_limits(&self) -> MeteredLimits {
        MeteredLimits {
            context_tokens: self.context_tokens,
            max_output_tokens: self.max_output_tokens,
            max_audio_seconds: self.max_audio_seconds,
        }
    }

    /// Returns the name of the output limit that the gateway sets if the client set none.
    pub fn output_limit_field(&self) -> &'static str {
        match &self.accepts {
            ModelCapabilities::Messages(_) => "max_tokens",
            ModelCapabilities::Chat(model) => model.output_limit_field,
            ModelCapabilities::Responses(_) => "max_output_tokens",
        }
    }

    /// Returns whether the model may reason without showing all of it. The visible output is then a
    /// poor measure of the number of generated tokens.
    pub fn hides_reasoning(&self) -> bool {
        match &self.accepts {
            ModelCapabilities::Messages(model) => {
                model.thinks_by_default
                    || model
                        .thinking_types
                        .iter()
                        .any(|kind| *kind != ThinkingType::Disabled)
            }
            ModelCapabilities::Chat(ChatModel { reasoning, .. })
            | ModelCapabilities::Responses(ResponsesModel { reasoning, .. }) => *reasoning,
        }
    }
}

#[derive(Debug)]
pub struct CatalogVendor {
    pub name: String,
    pub protocol: Protocol,
    /// The members and features that its server accepts.
    pub profile: VendorProfile,
    pub endpoints: Vec<VendorEndpoint>,
    /// True if all turns of a conversation use the same endpoint while it is healthy.
    pub sticky: bool,
    /// Key of the vendor. Empty if no endpoint requires one.
    pub api_key: Secret,
    /// Name of the version header, and its value for clients that send none (messages vendors).
    pub version_header: Option<(String, String)>,
}

impl CatalogVendor {
    /// Returns whether every endpoint has a path for this call.
    pub fn serves(&self, usual_path: &str) -> bool {
        self.endpoints
            .iter()
            .all(|endpoint| endpoint.target(usual_path).is_some())
    }
}

impl Catalog {
    pub fn new(models: Vec<CatalogModel>) -> Self {
        let models: Vec<_> = models.into_iter().map(Arc::new).collect();
        let by_id = models
            .iter()
            .map(|model| (model.id.clone(), Arc::clone(model)))
            .collect();
        let (mut by_alias, mut by_pattern) = (HashMap::new(), Vec::new());
        for model in &models {
            for alias in &model.aliases {
                match AliasPattern::parse(alias) {
                    Some(pattern) => by_pattern.push((pattern, Arc::clone(model))),
                    None => _ = by_alias.insert(alias.clone(), Arc::clone(model)),
                }
            }
        }
        by_pattern.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.length()));
        Self {
            models,
            by_id,
            by_alias,
            by_pattern,
        }
    }

    pub fn by_id(&self, id: &str) -> Option<&Arc<CatalogModel>> {
        self.by_id.get(id)
    }

    /// Returns the model with this name: by id, else by exact alias, else by the longest alias with
    /// a `*`.
    pub fn find(&self, name: &str) -> Option<&Arc<CatalogModel>> {
        let by_pattern = || {
            self.by_pattern
                .iter()
                .find(|(pattern, _)| pattern.matches(name))
                .map(|(_, model)| model)
        };
        self.by_id
            .get(name)
            .or_else(|| self.by_alias.get(name))
            .or_else(by_pattern)
    }

    pub fn models(&self) -> &[Arc<CatalogModel>] {
        &self.models
    }

    /// The models of this kind, in the order of the config file.
    pub fn models_of(&self, kind: ModelKind) -> impl Iterator<Item = &Arc<CatalogModel>> {
        self.models.iter().filter(move |model| model.kind == kind)
    }

    /// Returns the price list of each model, by the model's id.
    pub fn prices(&self) -> impl Iterator<Item = (&str, &PriceList)> {
        let models = self.models.iter();
        models.map(|model| (model.id.as_str(), &*model.price))
    }

    /// Returns up to `max` names that a client who wrote `name` may have meant, among the models
    /// that it `may_use`. Names with a similar spelling come first, the nearest one before all
    /// others, and then names with a word in common. A model is listed once.
    pub fn near_names(
        &self,
        name: &str,
        may_use: impl Fn(&CatalogModel) -> bool,
        max: usize,
    ) -> Vec<&str> {
        if name.len() > MAX_NEAR_BYTES {
            return Vec::new();
        }
        let usable = self.models.iter().filter(|model| may_use(model));
        let names: Vec<(&str, &str)> = usable
            .flat_map(|model| {
                let exact = model.aliases.iter().filter(|alias| !alias.contains('*'));
                let names = std::iter::once(&model.id).chain(exact);
                names.map(|name| (name.as_str(), model.id.as_str()))
            })
            .collect();
        let words = |text: &str| -> Vec<String> {
            text.split(|letter: char| !letter.is_alphanumeric())
                .filter(|word| word.chars().any(char::is_alphabetic))
                .map(str::to_lowercase)
                .collect()
        };
        let asked = words(name);
        let shared = |known: &str| {
            words(known)
                .iter()
                .filter(|word| asked.contains(word))
                .count()
        };
        let mut related: Vec<_> = names
            .iter()
            .map(|(known, _)| (shared(known), *known))
            .filter(|(count, _)| *count > 0)
            .collect();
        related.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        let alike = similar(name, names.iter().map(|(known, _)| *known));
        let all = alike
            .into_iter()
            .chain(related.into_iter().map(|(_, known)| known));
        let mut found: Vec<(&str, &str)> = Vec::new();
        for known in all {
            let model = names.iter().find(|(name, _)| *name == known);
            let Some(&(known, id)) = model.filter(|_| found.len() < max) else {
                continue;
            };
            if !found.iter().any(|(_, found)| *found == id) {
                found.push((known, id));
            }
        }
        found.into_iter().map(|(known, _)| known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::price_list::PriceList;

    fn catalog(names: &[(&str, &[&str])]) -> Catalog {
        let model = |(id, aliases): &(&str, &[&str])| CatalogModel {
            id: (*id).to_owned(),
            aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
            ..CatalogModel::in_test(
                Protocol::Chat,
                PriceList::new([credits::money::Micro::ZERO; 5]),
            )
        };
        Catalog::new(names.iter().map(model).collect())
    }

    #[test]
    fn near_names_are_spelt_alike_or_share_a_word_and_are_the_callers_own() {
        let catalog = catalog(&[
            ("alpha-opus-4-7", &["opus", "claude-*"]),
            ("alpha-sonnet-4-6", &[]),
            ("beta-5.2", &[]),
            ("beta-5.2-mini", &[]),
            ("beta-5.2-nano", &[]),
        ]);
        for (name, near) in [
            ("alpha-opus-4.7", &["alpha-opus-4-7"][..]),
            ("anthropic/opus-4-7", &["alpha-opus-4-7"]),
            ("BETA-5.2", &["beta-5.2", "beta-5.2-mini", "beta-5.2-nano"]),
            ("gemini", &[]),
            ("4-7", &[]),
            (
                &format!("{}-opus", "a".repeat(MAX_NEAR_BYTES - 5)),
                &["alpha-opus-4-7"],
            ),
            (&format!("{}-opus", "a".repeat(MAX_NEAR_BYTES - 4)), &[]),
        ] {
            assert_eq!(
                catalog.near_names(name, |model| model.id != "alpha-sonnet-4-6", 3),
                near,
                "{name}"
            );
        }
    }
}
