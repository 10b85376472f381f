//! Implements `model-gateway models`, which prints the models of a preset for the operator to copy
//! into the config file.
//!
//! This file must not write to a file.

use anyhow::bail;
use clap::Subcommand;
use config::presets;
use config::{ConfigNames, suggest};
use serde_json::json;
use std::io::Write;
use std::path::Path;

fn preset_help() -> String {
    let names: Vec<_> = presets::names().collect();
    format!("Preset: {}", names.join(", "))
}

#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Print a vendor's known models with limits and prices as YAML. Use it to fill the config
    /// file: check the prices, then copy the output.
    Import {
        #[arg(help = preset_help())]
        preset: String,
        /// Name of the vendor in the config file. Default: the name of the preset.
        #[arg(long, value_name = "NAME")]
        vendor: Option<String>,
    },
}

/// # Errors
/// Returns an error if there is no such preset.
pub fn run(command: &ModelsCommand, file: &Path, json: bool) -> anyhow::Result<()> {
    let ModelsCommand::Import {
        preset: name,
        vendor,
    } = command;
    let Some(preset) = presets::find(name) else {
        if let Some(why) = presets::unsupported(name) {
            bail!("{why}");
        }
        let known: Vec<_> = presets::names().collect();
        let suggestion = suggest::nearest(name, known.iter().copied());
        let suggestion = suggestion.map_or_else(String::new, |suggestion| {
            format!(" Did you mean {suggestion:?}?")
        });
        bail!(
            "there is no preset {name:?}.{suggestion} Known: {}",
            known.join(", ")
        );
    };
    let vendor = vendor.as_deref().unwrap_or(name);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if vendor.is_empty() || !vendor.chars().all(is_plain) {
        bail!("invalid vendor name {vendor:?}: use letters, digits, - and _");
    }
    let yaml = preset.to_yaml(name, vendor, &ConfigNames::read(file));
    let mut out = std::io::stdout().lock();
    if json {
        let (as_of, source) = (&preset.as_of, &preset.source);
        writeln!(
            out,
            "{}",
            json!({"preset": name, "vendor": vendor, "as_of": as_of, "source": source, "yaml": yaml})
        )?;
    } else {
        out.write_all(yaml.as_bytes())?;
    }
    Ok(())
}
