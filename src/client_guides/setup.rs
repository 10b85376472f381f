//! What a guide gets, the key and its models, and what it makes: files, variables and commands.
//!
//! Must not know a client.

use super::format::shell_word;
use super::guide::ClientGuide;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use serde::Serialize;
use std::sync::Arc;

/// Default name of the environment variable with the key.
pub const KEY_VARIABLE: &str = "GATEWAY_KEY";

/// The gateway key in a guide.
#[derive(Clone, Debug)]
pub struct SetupKey {
    /// Environment variable that holds the key.
    pub variable: String,
    /// The key itself, only right after it was created.
    pub text: Option<String>,
}

impl SetupKey {
    /// A key that is only in the environment.
    pub fn in_environment() -> Self {
        Self {
            variable: KEY_VARIABLE.to_owned(),
            text: None,
        }
    }

    /// A new key.
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
    /// Place of the chosen model in `models`.
    chosen: usize,
}

impl<'a> SetupContext<'a> {
    /// Returns `None` if there is no model. If `chosen` is not one of the models, the guide uses
    /// the first model that the client's first surface reaches without translation.
    pub fn new(
        base_url: &'a str,
        key: SetupKey,
        models: Vec<Arc<CatalogModel>>,
        chosen: Option<&str>,
        guide: &ClientGuide,
    ) -> Option<Self> {
        let named = models.iter().position(|model| Some(&*model.id) == chosen);
        let first = guide.surfaces.first().copied();
        let native = models
            .iter()
            .position(|model| first.is_some_and(|surface| is_native(model, surface)));
        let chosen = named.or(native).unwrap_or(0);
        (!models.is_empty()).then_some(Self {
            base_url,
            key,
            models,
            chosen,
        })
    }

    /// The model that the client uses unless its user chooses another one.
    pub fn model(&self) -> &CatalogModel {
        &self.models[self.chosen]
    }

    pub fn models(&self) -> &[Arc<CatalogModel>] {
        &self.models
    }

    /// The model with the lowest prices, for small background tasks.
    pub fn cheapest_model(&self) -> &CatalogModel {
        let price = |model: &Arc<CatalogModel>| (model.price.output, model.price.input);
        self.models
            .iter()
            .min_by_key(|model| price(model))
            .unwrap_or(&self.models[self.chosen])
    }
}

/// True if the gateway passes requests of this surface on to the model's vendor untranslated.
pub fn is_native(model: &CatalogModel, surface: Protocol) -> bool {
    let by_responses = model.by_responses.iter();
    model.passes_through(surface)
        || by_responses
            .into_iter()
            .any(|model| model.passes_through(surface))
}

/// The surface that a client uses with a model: the model's own if the client has it.
pub fn best_surface(model: &CatalogModel, offered: &[Protocol]) -> Protocol {
    let own = offered.iter().find(|surface| is_native(model, **surface));
    own.or(offered.first()).copied().unwrap_or(Protocol::Chat)
}

/// Maximum prompt: the context without the output limit, but at least half of the context.
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
    /// Path as users write it, with `~` for the home directory.
    pub path: String,
    pub format: FileFormat,
    pub text: String,
}

impl SetupFile {
    /// True for commands, which users type instead of saving them.
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
    pub environment: Vec<(String, VariableValue)>,
    /// Shell lines to run once.
    pub commands: Vec<String>,
    /// Shell line that starts the client.
    pub run: Option<String>,
    /// Advice for the user, one or two sentences each.
    pub notes: Vec<String>,
}

impl ClientSetup {
    /// The lines for a terminal: the variables, the commands, the start.
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
