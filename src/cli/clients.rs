//! Implements `model-gateway clients`, which lists the client programs with a guide, or prints the
//! files of one.
//!
//! The command reads only `base_url` and the catalog, so it needs no key of a vendor. This file
//! must not write to a file.

use crate::client_guides::{
    ClientGuide, ClientKind, ClientSetup, KEY_VARIABLE, SetupContext, SetupKey, VariableValue,
    find_guide, guides,
};
use anyhow::{Context as _, bail};
use clap::Args;
use config::{CommandSettings, suggest};
use llm_protocol::metered::ModelKind;
use serde_json::{Value, json};
use std::io::Write;

#[derive(Debug, Args)]
pub struct ClientsArgs {
    /// Client to set up. Leave it out to list all clients.
    client: Option<String>,
    /// Model that the client uses first. Default: of those that need no translation, the one with
    /// the middle price.
    #[arg(long, value_name = "ID", requires = "client")]
    model: Option<String>,
    /// Environment variable that holds the gateway key.
    #[arg(long, value_name = "NAME", default_value = KEY_VARIABLE)]
    key_env: String,
}

/// # Errors
/// Returns an error if there is no such client or model, if the name of the variable is not valid,
/// or if the config file has faults in `base_url`, `models` or `vendors`.
pub fn run(arguments: &ClientsArgs, settings: &CommandSettings, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let Some(id) = &arguments.client else {
        return list(&mut out, json);
    };
    let Some(guide) = find_guide(id) else {
        let hint = suggest::hint(id, guides().map(|guide| guide.id));
        bail!("there is no guide for client {id:?}{hint} (`model-gateway clients` lists them)");
    };
    let key = SetupKey {
        variable: check_variable(&arguments.key_env)?.to_owned(),
        text: None,
    };
    let models: Vec<_> = settings
        .catalog()?
        .models_of(ModelKind::Chat)
        .cloned()
        .collect();
    if let Some(model) = &arguments.model
        && !models.iter().any(|known| known.id == *model)
    {
        let hint = suggest::hint(model, models.iter().map(|known| known.id.as_str()));
        bail!("the catalog has no model {model:?}{hint}");
    }
    let base_url = settings.base_url()?;
    let context = SetupContext::new(base_url, key, models, arguments.model.as_deref(), guide);
    let context = context.context("the catalog has no models")?;
    let setup = guide.build(&context);
    if json {
        writeln!(out, "{}", setup_json(guide, &context, &setup))?;
    } else {
        print_setup(&mut out, &setup, &context.key)?;
    }
    Ok(())
}

/// Checks that the name of a variable is valid in a shell.
fn check_variable(name: &str) -> anyhow::Result<&str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if !starts_well || !name.chars().all(is_plain) {
        bail!("invalid variable name {name:?}: use letters, digits and _, not a digit first");
    }
    Ok(name)
}

fn list(out: &mut impl Write, json: bool) -> anyhow::Result<()> {
    if json {
        let clients: Vec<_> = guides().map(client_json).collect();
        writeln!(out, "{}", json!({ "clients": clients }))?;
        return Ok(());
    }
    for kind in ClientKind::ALL {
        writeln!(out, "{}:", kind.title())?;
        for guide in guides().filter(|guide| guide.kind == kind) {
            let tried = guide.describe_trial();
            writeln!(out, "  {:<18} {} ({tried})", guide.id, guide.name)?;
        }
    }
    Ok(())
}

fn client_json(guide: &ClientGuide) -> Value {
    json!({
        "id": guide.id,
        "name": guide.name,
        "kind": guide.kind,
        "surfaces": guide.surfaces,
        "tried": guide.trial(),
    })
}

fn setup_json(guide: &ClientGuide, context: &SetupContext<'_>, setup: &ClientSetup) -> Value {
    let texts = setup.environment.iter().filter_map(|(name, value)| {
        let VariableValue::Text(text) = value else {
            return None;
        };
        Some(((*name).to_owned(), Value::from(text.as_str())))
    });
    let with_key = setup.environment.iter();
    let with_key: Vec<_> = with_key
        .filter(|(_, value)| *value == VariableValue::Key)
        .map(|(name, _)| name)
        .collect();
    let models: Vec<_> = context.models().iter().map(|model| &model.id).collect();
    json!({
        "client": client_json(guide),
        "model": context.model().id,
        "models": models,
        "key_variable": context.key.variable,
        "files": setup.files,
        "instead_of_files": setup.instead_of_files,
        "environment": texts.collect::<serde_json::Map<_, _>>(),
        "key_environment": with_key,
        "commands": setup.commands,
        "run": setup.run,
        "terminal": setup.terminal(&context.key),
        "notes": setup.notes,
    })
}

fn print_setup(out: &mut impl Write, setup: &ClientSetup, key: &SetupKey) -> std::io::Result<()> {
    for file in &setup.files {
        writeln!(out, "# {}\n\n{}\n", file.path, file.text)?;
    }
    if let Some(lines) = &setup.instead_of_files {
        writeln!(out, "# In a terminal, instead of the file\n\n{lines}\n")?;
    }
    let terminal = setup.terminal(key);
    if !terminal.is_empty() {
        writeln!(out, "# In a terminal\n\n{terminal}\n")?;
    }
    for note in &setup.notes {
        writeln!(out, "# Note: {note}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_variables_are_valid_in_a_shell() {
        for name in ["GATEWAY_KEY", "_x", "a1"] {
            assert!(check_variable(name).is_ok(), "{name}");
        }
        for name in ["", "1A", "A-B", "A B", "A;id", "Ä"] {
            assert!(check_variable(name).is_err(), "{name}");
        }
    }
}
