//! Prints a preset as YAML that the operator checks and copies into the config file.
//!
//! This file must not write a file or change a price.

use super::presets::{KnownModel, Preset};
use super::raw;
use super::source::{PIPE_READ_LIMIT, read_config};
use llm_protocol::metered::ModelKind;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

/// Names that the config file already uses. Empty if the file cannot be read.
#[derive(Debug, Default)]
pub struct ConfigNames {
    vendors: HashSet<String>,
    /// Ids and upstream names of models.
    ids: HashSet<String>,
}

impl ConfigNames {
    /// Reads only the names. The file may have faults, and its variables need not be set.
    pub fn read(file: &Path) -> Self {
        let text = read_config(file, PIPE_READ_LIMIT).unwrap_or_default();
        let Ok(value) = serde_saphyr::from_str::<serde_json::Value>(&text) else {
            return Self::default();
        };
        let vendors = value["vendors"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone());
        let models = value["models"].as_array().into_iter().flatten();
        let names =
            models.flat_map(|model| [model["id"].as_str(), model["upstream_model"].as_str()]);
        let ids = names.flatten().map(str::to_owned);
        Self {
            vendors: vendors.collect(),
            ids: ids.collect(),
        }
    }
}

impl Preset {
    /// Returns the entry of the vendor and one entry for each known model, except those that
    /// already exist.
    pub fn to_yaml(&'static self, preset: &str, vendor: &str, existing: &ConfigNames) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write_yaml(&mut text, preset, vendor, existing);
        text
    }

    fn write_yaml(
        &'static self,
        out: &mut String,
        preset: &str,
        vendor: &str,
        existing: &ConfigNames,
    ) -> Result<(), std::fmt::Error> {
        writeln!(
            out,
            "# {}: output of `model-gateway models import {preset}`.",
            self.name
        )?;
        if let (Some(as_of), Some(source)) = (&self.as_of, &self.source) {
            writeln!(
                out,
                "# Limits and prices come from public lists of {as_of}, not from the vendor."
            )?;
            writeln!(
                out,
                "# They may have changed: compare each with {source} before you use it."
            )?;
            writeln!(
                out,
                "# Prices are credits per 1 000 000 tokens or 1 000 search units, for 1 credit = 1 US cent."
            )?;
        }
        if existing.vendors.contains(vendor) {
            writeln!(
                out,
                "# The config file already has a vendor {vendor:?}; its entry is not repeated here."
            )?;
        } else {
            writeln!(out, "vendors:\n  {vendor}:\n    preset: {preset}")?;
            if let Some(example) = &self.needs_url {
                writeln!(out, "    endpoints: [{{url: {example:?}}}]")?;
            }
            if let Some(variable) = &self.api_key_env {
                writeln!(out, "    api_key: \"${{{variable}:-}}\"")?;
            }
        }
        if self.models().is_empty() {
            writeln!(
                out,
                "# The models of this server are not known. Write one entry for each:"
            )?;
            writeln!(
                out,
                "models:\n  # - id: my-model\n  #   vendor: {vendor}\n  #   upstream_model: my-model"
            )?;
            writeln!(
                out,
                "  #   context_tokens: 32768\n  #   max_output_tokens: 8192"
            )?;
            return writeln!(out, "  #   price: {{input: \"0\", output: \"0\"}}");
        }
        let (known, new): (Vec<_>, Vec<_>) = self
            .models()
            .iter()
            .partition(|model| existing.ids.contains(&model.upstream_model));
        for model in known {
            let name = &model.upstream_model;
            writeln!(out, "# The config file already has the model {name:?}.")?;
        }
        if !new.is_empty() {
            writeln!(out, "models:")?;
        }
        new.into_iter()
            .try_for_each(|model| self.write_model(out, vendor, model))
    }

    fn write_model(
        &self,
        out: &mut String,
        vendor: &str,
        model: &KnownModel,
    ) -> Result<(), std::fmt::Error> {
        let name = &model.upstream_model;
        writeln!(
            out,
            "  - id: {name}\n    vendor: {vendor}\n    upstream_model: {name}"
        )?;
        if model.upstream_protocol.is_some() {
            writeln!(out, "    upstream_protocol: responses")?;
        }
        if model.kind != raw::ModelKindKey::Chat {
            writeln!(out, "    kind: {}", ModelKind::from(model.kind).as_str())?;
        }
        writeln!(out, "    context_tokens: {}", model.context_tokens)?;
        if let Some(max_output_tokens) = model.max_output_tokens {
            writeln!(out, "    max_output_tokens: {max_output_tokens}")?;
        }
        let from = [&self.as_of, &self.source]
            .map(|text| text.as_deref().unwrap_or_default())
            .join(", ");
        writeln!(out, "    price: {}   # {from}", price(&model.price))
    }
}

fn price(price: &raw::Price) -> String {
    let mut members = members(&[
        ("input", price.input.as_ref()),
        ("cache_read", price.cache_read.as_ref()),
        ("cache_write_5m", price.cache_write_5m.as_ref()),
        ("cache_write_1h", price.cache_write_1h.as_ref()),
        ("output", price.output.as_ref()),
        ("audio_input", price.audio_input.as_ref()),
        ("audio_output", price.audio_output.as_ref()),
        ("web_search", price.web_search.as_ref()),
        ("web_fetch", price.web_fetch.as_ref()),
        ("code_execution", price.code_execution.as_ref()),
        ("tool_search", price.tool_search.as_ref()),
        ("mcp", price.mcp.as_ref()),
        ("search_unit", price.search_unit.as_ref()),
        ("image", price.image.as_ref()),
        ("image_input", price.image_input.as_ref()),
        ("image_output", price.image_output.as_ref()),
        ("character", price.character.as_ref()),
        ("second", price.second.as_ref()),
    ]);
    let tiers = price.tiers.iter().flatten().map(|tier| {
        let prices = self::members(&[
            ("input", tier.input.as_ref()),
            ("cache_read", tier.cache_read.as_ref()),
            ("cache_write_5m", tier.cache_write_5m.as_ref()),
            ("cache_write_1h", tier.cache_write_1h.as_ref()),
            ("output", tier.output.as_ref()),
        ]);
        format!(
            "{{above_input_tokens: {}, {}}}",
            tier.above_input_tokens,
            prices.join(", ")
        )
    });
    let tiers: Vec<_> = tiers.collect();
    if !tiers.is_empty() {
        members.push(format!("tiers: [{}]", tiers.join(", ")));
    }
    format!("{{{}}}", members.join(", "))
}

fn members(prices: &[(&str, Option<&raw::Decimal>)]) -> Vec<String> {
    prices
        .iter()
        .filter_map(|(name, price)| {
            let raw::Decimal(text) = price.as_ref()?;
            Some(format!("{name}: {text:?}"))
        })
        .collect()
}
