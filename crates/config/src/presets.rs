//! Presets: the addresses, authentication and models of well-known vendors.
//!
//! The table is `presets.yaml`, which is compiled in. A preset provides defaults only, because keys
//! in the config file take precedence. `model-gateway models import` prints the prices for the
//! operator; this file must not apply them.

use super::raw;
use crate::catalog::AliasPattern;
use llm_protocol::profile::VendorProfile;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

const TABLE: &str = include_str!("presets.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresetTable {
    presets: BTreeMap<String, Preset>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    pub name: String,
    pub protocol: raw::VendorProtocol,
    #[serde(default)]
    pub official: bool,
    /// Base address. `None` if each customer has a different one.
    pub url: Option<String>,
    /// Example of the address that the operator must write. Set if `url` is missing.
    pub needs_url: Option<String>,
    pub path: Option<String>,
    pub auth: Option<raw::AuthKey>,
    pub version_header: Option<raw::VersionHeader>,
    /// Environment variable from which the vendor's own tools read the key. `None` for local
    /// servers.
    pub api_key_env: Option<String>,
    /// Capabilities of every model of the vendor.
    #[serde(default)]
    pub capabilities: raw::Capabilities,
    #[serde(default)]
    pub profile: raw::Profile,
    /// Name of another preset with the same models.
    models_of: Option<String>,
    /// Page on which the vendor publishes its prices.
    pub source: Option<String>,
    /// Day on which limits and prices were read.
    pub as_of: Option<String>,
    #[serde(default)]
    models: Vec<KnownModel>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    pub upstream_model: String,
    /// Other names at the vendor, such as names with a date. Each has one `*`.
    #[serde(default)]
    also: Vec<String>,
    #[serde(default)]
    pub kind: raw::ModelKindKey,
    pub context_tokens: u64,
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    #[serde(default)]
    pub capabilities: raw::Capabilities,
    #[serde(default)]
    pub upstream_protocol: Option<raw::UpstreamProtocol>,
    pub price: raw::Price,
}

/// Names of vendors that are not supported, with the reason and an alternative.
const UNSUPPORTED: [(&str, &str); 1] = [(
    "vertex",
    "Google Vertex AI is not supported: its keys are short-lived OAuth tokens. Use `preset: gemini` with an API key of \
     Google AI Studio, or a server in front of Vertex AI that speaks chat completions or messages",
)];

/// Returns the reason why a vendor with this name is not supported, or `None` for other names.
pub fn unsupported(name: &str) -> Option<&'static str> {
    UNSUPPORTED
        .into_iter()
        .find(|(unsupported, _)| *unsupported == name)
        .map(|(_, why)| why)
}

fn table() -> Option<&'static PresetTable> {
    static READ: OnceLock<Option<PresetTable>> = OnceLock::new();
    let read =
        || match serde_saphyr::from_str::<serde_json::Value>(TABLE).map(serde_json::from_value) {
            Ok(Ok(table)) => Some(table),
            // A test parses the table, so a release never reaches this branch.
            Ok(Err(error)) => {
                log::error!("the table of presets cannot be read: {error}");
                None
            }
            Err(error) => {
                log::error!("the table of presets is not YAML: {error}");
                None
            }
        };
    READ.get_or_init(read).as_ref()
}

pub fn find(name: &str) -> Option<&'static Preset> {
    table()?.presets.get(name)
}

/// Returns all names, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    table()
        .into_iter()
        .flat_map(|table| table.presets.keys())
        .map(String::as_str)
}

impl Preset {
    pub fn models(&'static self) -> &'static [KnownModel] {
        &self
            .models_of
            .as_deref()
            .and_then(find)
            .unwrap_or(self)
            .models
    }

    /// Returns the known capabilities of the model with this upstream name.
    pub fn capabilities_of(&'static self, upstream_model: &str) -> raw::Capabilities {
        let is_it = |model: &&KnownModel| {
            model.upstream_model == upstream_model
                || model
                    .also
                    .iter()
                    .filter_map(|text| AliasPattern::parse(text))
                    .any(|also| also.matches(upstream_model))
        };
        // An exact name takes precedence over a pattern of another model.
        let exact = self
            .models()
            .iter()
            .find(|model| model.upstream_model == upstream_model);
        let known = exact.or_else(|| self.models().iter().find(is_it));
        known.map_or_else(
            || self.capabilities.clone(),
            |model| model.capabilities.clone().or(&self.capabilities),
        )
    }
}

impl raw::Profile {
    /// Returns whether `reasoning_effort` may be sent. A strict server with a switch of its own
    /// accepts it only if the profile says so.
    pub fn takes_effort(&self) -> bool {
        let has_switch = self.thinking.on.is_some() || self.thinking.off.is_some();
        let mut request = self.request.iter().flatten();
        !has_switch || self.strict != Some(true) || request.any(|name| name == "reasoning_effort")
    }

    /// Returns the paths of `state`, and for each whether it begins at the message, not at a call.
    pub fn state_paths(&self) -> Vec<(bool, String)> {
        let split = |path: &String| match path.strip_prefix("message.") {
            Some(path) => (true, path.to_owned()),
            None => (VendorProfile::is_reasoning(path), path.clone()),
        };
        self.state.iter().flatten().map(split).collect()
    }

    /// Fills each unset key from `other`.
    pub fn or(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or_default();
        // An empty list takes back the state of `other`, and what belongs to it.
        let is_stateless = self.state.as_ref().is_some_and(Vec::is_empty);
        Self {
            request: self.request.or(other.request),
            drop: self.drop.or(other.drop),
            strict: self.strict.or(other.strict),
            thinking: raw::ProfileThinking {
                on: self.thinking.on.or(other.thinking.on),
                off: self.thinking.off.or(other.thinking.off),
                shown: self.thinking.shown.or(other.thinking.shown),
            },
            state: self.state.or(other.state),
            state_placeholder: self
                .state_placeholder
                .or(other.state_placeholder.filter(|_| !is_stateless)),
            state_in_answers: self
                .state_in_answers
                .or(other.state_in_answers.filter(|_| !is_stateless)),
            service_tiers: self.service_tiers.or(other.service_tiers),
            usage: self.usage.or(other.usage),
            betas: self.betas.or(other.betas),
            errors: raw::ProfileErrors {
                full_context: self.errors.full_context.or(other.errors.full_context),
            },
            roles: raw::Roles {
                system: self.roles.system.or(other.roles.system),
                developer: self.roles.developer.or(other.roles.developer),
                user_after_tool: self.roles.user_after_tool.or(other.roles.user_after_tool),
                alternate: self.roles.alternate.or(other.roles.alternate),
                prefix: self.roles.prefix.or(other.roles.prefix),
            },
        }
    }
}

impl raw::Capabilities {
    /// Fills each unset key from `other`.
    pub fn or(self, other: &Self) -> Self {
        let other = other.clone();
        Self {
            sampling: self.sampling.or(other.sampling),
            thinking_types: self.thinking_types.or(other.thinking_types),
            thinking_default: self.thinking_default.or(other.thinking_default),
            effort_levels: self.effort_levels.or(other.effort_levels),
            prefill: self.prefill.or(other.prefill),
            mid_system: self.mid_system.or(other.mid_system),
            structured: self.structured.or(other.structured),
            server_tools: self.server_tools.or(other.server_tools),
            min_cache_tokens: self.min_cache_tokens.or(other.min_cache_tokens),
            output_limit_field: self.output_limit_field.or(other.output_limit_field),
            reasoning: self.reasoning.or(other.reasoning),
            effort_values: self.effort_values.or(other.effort_values),
            tools_with_reasoning: self.tools_with_reasoning.or(other.tools_with_reasoning),
            stop: self.stop.or(other.stop),
            cache_breakpoints: self.cache_breakpoints.or(other.cache_breakpoints),
            verbosity: self.verbosity.or(other.verbosity),
            system_role: self.system_role.or(other.system_role),
            reasoning_replay: self.reasoning_replay.or(other.reasoning_replay),
            top_k: self.top_k.or(other.top_k),
            custom_tools: self.custom_tools.or(other.custom_tools),
            parallel_tool_calls: self.parallel_tool_calls.or(other.parallel_tool_calls),
            tool_call_ids: self.tool_call_ids.or(other.tool_call_ids),
            completions: self.completions.or(other.completions),
            summaries: self.summaries.or(other.summaries),
            functions_only: self.functions_only.or(other.functions_only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_every_known_model_has_a_dated_price_and_its_source() {
        let (readme, page) = (
            include_str!("../../../README.md"),
            include_str!("../../../docs/vendors.md"),
        );
        let count = format!("[{} vendor presets]", names().count());
        assert!(
            readme.contains(&count),
            "README has another number: {count}"
        );
        for name in names() {
            let preset = find(name).unwrap();
            // The page says which ones have another preset with this end.
            let listed = format!("`{}`", name.strip_suffix("-messages").unwrap_or(name));
            assert!(page.contains(&listed), "docs/vendors.md lacks {listed}");
            assert_eq!(preset.url.is_some(), preset.needs_url.is_none(), "{name}");
            if preset.models().is_empty() {
                assert!(
                    preset.auth == Some(raw::AuthKey::None) || preset.source.is_some(),
                    "{name}: a server of one's own, or a vendor without a price of its own"
                );
                continue;
            }
            assert!(
                preset
                    .source
                    .as_ref()
                    .is_some_and(|source| source.starts_with("https://")),
                "{name}"
            );
            let as_of: jiff::civil::Date = preset.as_of.as_deref().unwrap().parse().unwrap();
            assert!(as_of.year() >= 2026, "{name}");
            assert!(preset.api_key_env.is_some(), "{name}");
            for model in preset.models() {
                assert!(
                    model
                        .also
                        .iter()
                        .all(|also| AliasPattern::parse(also).is_some()),
                    "{}",
                    model.upstream_model
                );
            }
        }
        assert!(unsupported("vertex").is_some() && find("vertex").is_none());
    }

    /// A vendor without a preset is possible by config alone.
    #[test]
    fn the_examples_of_the_documentation_are_configs_without_faults() {
        let head = include_str!("../../../conf/local.yaml");
        let head = head.split("vendors:").next().unwrap();
        let examples = include_str!("../../../docs/vendors.md").split("```yaml\n");
        let examples: Vec<_> = examples
            .skip(1)
            .map(|rest| rest.split("```").next())
            .collect();
        assert_eq!(examples.len(), 2);
        for example in examples.into_iter().flatten() {
            let settings = crate::parse(&format!("{head}{example}"), &|_| Some("key".into()))
                .unwrap_or_else(|faults| panic!("{faults:?}\n{example}"));
            let profile = &settings.catalog.models()[0].vendor.profile;
            assert!(profile.takes("stream_options") && !profile.takes("n"));
        }
    }

    /// `import` prints a config that loads without faults, for every preset.
    #[test]
    fn what_a_preset_knows_is_a_config_without_faults() {
        for name in names() {
            let preset = find(name).unwrap();
            let mut text = include_str!("../../../conf/local.yaml")
                .split("vendors:")
                .next()
                .unwrap()
                .to_owned();
            text += &preset.to_yaml(name, name, &crate::ConfigNames::default());
            if preset.models().is_empty() {
                text = text.replace("\n  # ", "\n  ");
            }
            let settings = crate::parse(&text, &|_| Some("key".into())).unwrap_or_else(|faults| {
                panic!("{name}: {faults:?}\n{text}");
            });
            assert_eq!(
                settings.catalog.models().len(),
                preset.models().len().max(1),
                "{name}"
            );
        }
    }
}
