//! The input of a guide (the key and its models), and its output (files, variables and commands).
//!
//! This file must not depend on a client.

use super::format::shell_word;
use super::guide::{ClientGuide, ModelRole};
use super::native::is_native;
use super::usual_turn::comparable_cost;
use config::catalog::CatalogModel;
use serde::Serialize;
use std::sync::Arc;

/// Default name of the environment variable with the key.
pub const KEY_VARIABLE: &str = "GATEWAY_KEY";

/// The gateway key in a guide.
#[derive(Clone, Debug)]
pub struct SetupKey {
    /// Environment variable that holds the key.
    pub variable: String,
    /// The key itself. Set only right after the key was created.
    pub text: Option<String>,
}

impl SetupKey {
    /// Returns a key that is only in the environment.
    pub fn in_environment() -> Self {
        Self {
            variable: KEY_VARIABLE.to_owned(),
            text: None,
        }
    }

    /// Returns a new key with its text.
    pub fn with_text(text: &str) -> Self {
        Self {
            text: Some(text.to_owned()),
            ..Self::in_environment()
        }
    }
}

/// The values that a guide fills in.
pub struct SetupContext<'a> {
    /// Address of the gateway without a path.
    pub base_url: &'a str,
    pub key: SetupKey,
    /// Models that the key may use, in the order of the catalog.
    models: Vec<Arc<CatalogModel>>,
    /// Index of the chosen model in `models`.
    chosen: usize,
    /// True if programs can sign in to the gateway, without a key of a person.
    pub has_logins: bool,
}

impl<'a> SetupContext<'a> {
    /// Creates the context. Returns `None` if there is no model. If `chosen` is not one of the
    /// models, the guide uses a model that the client's first surface reaches without translation.
    /// Of these, it uses the one with the middle price.
    pub fn new(
        base_url: &'a str,
        key: SetupKey,
        models: Vec<Arc<CatalogModel>>,
        chosen: Option<&str>,
        guide: &ClientGuide,
    ) -> Option<Self> {
        let named = models.iter().position(|model| Some(&*model.id) == chosen);
        let first = guide.surfaces.first().copied();
        let needs_no_translation =
            |model: &CatalogModel| first.is_some_and(|surface| is_native(model, surface));
        let chosen = named
            .or_else(|| middle_price(&models, needs_no_translation))
            .or_else(|| middle_price(&models, |_| true))?;
        Some(Self {
            base_url,
            key,
            models,
            chosen,
            has_logins: false,
        })
    }

    pub fn with_logins(self, has_logins: bool) -> Self {
        Self { has_logins, ..self }
    }

    /// Returns the model that the client uses unless its user chooses another one.
    pub fn model(&self) -> &CatalogModel {
        &self.models[self.chosen]
    }

    pub fn models(&self) -> &[Arc<CatalogModel>] {
        &self.models
    }

    /// Returns the model with the lowest price, for small background tasks.
    pub fn cheapest_model(&self) -> &CatalogModel {
        self.models
            .iter()
            .min_by_key(|model| comparable_cost(model))
            .unwrap_or(&self.models[self.chosen])
    }

    /// Returns the model that the client should use in a role. A tier gets the model whose upstream
    /// has the tier in its name, the chosen one before others. Other tiers get the model with the
    /// middle price, so that no name leads to the most expensive model by default.
    pub fn model_for(&self, role: ModelRole) -> &CatalogModel {
        match role {
            ModelRole::Chosen => self.model(),
            ModelRole::Small => self.cheapest_model(),
            ModelRole::Tier(tier) => {
                let chosen = Some(self.chosen).filter(|_| is_of_tier(self.model(), tier));
                let named = || self.models.iter().position(|model| is_of_tier(model, tier));
                let found = chosen
                    .or_else(named)
                    .or_else(|| middle_price(&self.models, |_| true));
                &self.models[found.unwrap_or(self.chosen)]
            }
        }
    }
}

/// Returns whether the name of the vendor's model contains this word, as `claude-opus-4-7` contains
/// `opus`.
fn is_of_tier(model: &CatalogModel, tier: &str) -> bool {
    let words = model
        .upstream_model
        .split(|letter: char| !letter.is_ascii_alphanumeric());
    words
        .into_iter()
        .any(|word| word.eq_ignore_ascii_case(tier))
}

/// Returns the index of the model with the middle price among those that `fits` accepts. Of two in
/// the middle, it is the cheaper one, and of equal prices the first.
fn middle_price(
    models: &[Arc<CatalogModel>],
    fits: impl Fn(&CatalogModel) -> bool,
) -> Option<usize> {
    let mut places: Vec<_> = (0..models.len())
        .filter(|place| fits(&models[*place]))
        .collect();
    places.sort_by_key(|place| comparable_cost(&models[*place]));
    places.get(places.len().saturating_sub(1) / 2).copied()
}

/// Returns the maximum number of tokens in a prompt: the context without the output limit, but at
/// least half of the context.
pub fn prompt_tokens(model: &CatalogModel) -> u64 {
    let context = model.context_tokens;
    context
        .saturating_sub(model.max_output_tokens)
        .max(context / 2)
}

/// The language of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    Json,
    Toml,
    Yaml,
    Shell,
    Python,
    JavaScript,
}

impl FileFormat {
    pub fn from_path(path: &str) -> Self {
        match path.rsplit('.').next() {
            Some("json") => Self::Json,
            Some("toml") => Self::Toml,
            Some("yaml" | "yml") => Self::Yaml,
            Some("py") => Self::Python,
            Some("mjs") => Self::JavaScript,
            _ => Self::Shell,
        }
    }
}

/// A file that the user creates or extends.
#[derive(Debug, Serialize)]
pub struct SetupFile {
    /// Path in the form that users write, with `~` for the home directory.
    pub path: String,
    pub format: FileFormat,
    pub text: String,
}

impl SetupFile {
    /// Returns whether the text consists of commands, which users type instead of saving them.
    pub fn is_commands(&self) -> bool {
        self.format == FileFormat::Shell
    }
}

/// Value of an environment variable.
#[derive(Debug, PartialEq, Eq)]
pub enum VariableValue {
    /// The gateway key.
    Key,
    Text(String),
}

/// The result of a guide.
#[derive(Debug, Default)]
pub struct ClientSetup {
    pub files: Vec<SetupFile>,
    /// Shell lines with the same effect as the files, for one terminal.
    pub instead_of_files: Option<String>,
    pub environment: Vec<(String, VariableValue)>,
    /// Shell lines to run once.
    pub commands: Vec<String>,
    /// Shell line that starts the client.
    pub run: Option<String>,
    /// Advice for the user, one or two sentences each.
    pub notes: Vec<String>,
}

impl ClientSetup {
    /// Returns the lines to paste into a terminal: they set the variables, run the commands and
    /// start the client.
    pub fn terminal(&self, key: &SetupKey) -> String {
        let new_key = key.text.as_ref();
        let mut lines: Vec<_> = new_key
            .map(|text| format!("export {}={}", key.variable, shell_word(text)))
            .into_iter()
            .collect();
        for (name, value) in &self.environment {
            match value {
                VariableValue::Key if *name == key.variable => {}
                VariableValue::Key => lines.push(format!("export {name}=\"${}\"", key.variable)),
                VariableValue::Text(text) => {
                    lines.push(format!("export {name}={}", shell_word(text)));
                }
            }
        }
        lines.extend(self.commands.iter().cloned());
        lines.extend(self.run.clone());
        lines.join("\n")
    }
}
