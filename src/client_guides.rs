//! Set-up of client programs: for each client, the files, variables and commands that point it at
//! this gateway, with the models of a key and their limits.
//!
//! A guide is a function from an address and models to texts: the dashboard, the documentation and
//! `model-gateway clients` show the same ones. Key, address and model ids are configured text, so
//! `format.rs` escapes each for the language of its file. Only the `export` line contains a key,
//! and the client's own file if the client reads no variable. Must not do I/O and must not know a
//! page. Next: `terminal_agents.rs`, `claude_code.rs`, `applications.rs`, `libraries.rs` (the
//! guides), `tried.rs` (versions that ran with these files).

mod applications;
mod claude_code;
mod format;
mod libraries;
mod terminal_agents;
#[cfg(test)]
mod tests;
mod tried;

use crate::catalog::CatalogModel;
use format::shell_word;
use llm_protocol::Protocol;
use serde::Serialize;
use std::sync::Arc;
pub use tried::ClientTrial;

/// Default name of the environment variable with the key.
pub const KEY_VARIABLE: &str = "GATEWAY_KEY";

/// Kind of a client. The pages group clients by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientKind {
    TerminalAgent,
    Editor,
    ChatApp,
    CommandLine,
    Library,
}

impl ClientKind {
    /// In the order in which the pages list them.
    pub const ALL: [Self; 5] = [
        Self::TerminalAgent,
        Self::Editor,
        Self::ChatApp,
        Self::CommandLine,
        Self::Library,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::TerminalAgent => "Terminal agents",
            Self::Editor => "Editors",
            Self::ChatApp => "Chat applications",
            Self::CommandLine => "Command line",
            Self::Library => "Libraries",
        }
    }
}

/// A client program and how to set it up.
pub struct ClientGuide {
    /// Part of the page's address, and the argument of `model-gateway clients`.
    pub id: &'static str,
    pub name: &'static str,
    pub kind: ClientKind,
    /// Surfaces that the client can use, the one for most models first.
    pub surfaces: &'static [Protocol],
    build: fn(&SetupContext<'_>) -> ClientSetup,
}

impl ClientGuide {
    pub fn build(&self, context: &SetupContext<'_>) -> ClientSetup {
        (self.build)(context)
    }

    /// The version that ran with these files; `None` if none did.
    pub fn trial(&self) -> Option<&'static ClientTrial> {
        tried::find(self.id)
    }

    /// The version that ran with these files, as pages and the command line show it.
    pub fn describe_trial(&self) -> String {
        self.trial()
            .map_or_else(|| "not tried".to_owned(), ClientTrial::describe)
    }
}

/// All guides, by kind.
pub fn guides() -> impl Iterator<Item = &'static ClientGuide> {
    terminal_agents::GUIDES
        .iter()
        .chain(applications::GUIDES)
        .chain(libraries::GUIDES)
}

/// The guide with this id.
pub fn find_guide(id: &str) -> Option<&'static ClientGuide> {
    guides().find(|guide| guide.id == id)
}

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
    fn cheapest_model(&self) -> &CatalogModel {
        let price = |model: &Arc<CatalogModel>| (model.price.output, model.price.input);
        self.models
            .iter()
            .min_by_key(|model| price(model))
            .unwrap_or(&self.models[self.chosen])
    }

    /// Address for clients that add only `/chat/completions` or `/responses`.
    fn v1(&self) -> String {
        format!("{}/v1", self.base_url)
    }

    /// The key's variable in shell syntax.
    fn shell_key(&self) -> String {
        format!("\"${}\"", self.key.variable)
    }
}

/// True if the gateway passes requests of this surface on to the model's vendor untranslated.
fn is_native(model: &CatalogModel, surface: Protocol) -> bool {
    let by_responses = model.by_responses.iter();
    model.passes_through(surface)
        || by_responses
            .into_iter()
            .any(|model| model.passes_through(surface))
}

/// The surface that a client uses with a model: the model's own if the client has it.
fn best_surface(model: &CatalogModel, offered: &[Protocol]) -> Protocol {
    let own = offered.iter().find(|surface| is_native(model, **surface));
    own.or(offered.first()).copied().unwrap_or(Protocol::Chat)
}

/// Maximum prompt: the context without the output limit, but at least half of the context.
fn prompt_tokens(model: &CatalogModel) -> u64 {
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

/// A file that the user creates or extends.
#[derive(Debug, Serialize)]
pub struct SetupFile {
    /// Path as users write it, with `~` for the home directory.
    pub path: &'static str,
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
    pub environment: Vec<(&'static str, VariableValue)>,
    /// Shell lines to run once.
    pub commands: Vec<String>,
    /// Shell line that starts the client.
    pub run: Option<String>,
    /// Advice for the user, one or two sentences each.
    pub notes: Vec<String>,
}

impl ClientSetup {
    fn with_file(mut self, path: &'static str, format: FileFormat, text: String) -> Self {
        self.files.push(SetupFile { path, format, text });
        self
    }

    fn with_variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let value = VariableValue::Text(value.into());
        self.environment.push((name, value));
        self
    }

    fn with_key_variable(mut self, name: &'static str) -> Self {
        self.environment.push((name, VariableValue::Key));
        self
    }

    fn with_command(mut self, line: String) -> Self {
        self.commands.push(line);
        self
    }

    fn with_run(mut self, line: impl Into<String>) -> Self {
        self.run = Some(line.into());
        self
    }

    fn with_note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

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
