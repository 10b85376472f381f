//! Fills in the text of a guide: `guides/ID.txt`, a template with one part for each file, variable,
//! command and note.
//!
//! A line that begins with `@` begins a part. Values cannot begin such a line, because addresses
//! have no white space, and model ids and names of variables consist of letters, digits and a few
//! signs. A client uses the surface of the model's vendor if it can, so that prompt caching and
//! reasoning need no translation. A guide must not contain a setting without evidence that the
//! client reads it.

use super::claude_code::ClaudeSettings;
use super::format::quoted;
use super::guide::ClientGuide;
use super::native::{best_surface, is_native};
use super::setup::{
    ClientSetup, FileFormat, SetupContext, SetupFile, VariableValue, prompt_tokens,
};
use askama::Template;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;

/// Maximum output limit of the greeting in the examples, in tokens.
const MAX_HELLO_TOKENS: u64 = 1_024;

/// The values that templates can name.
#[derive(Template)]
#[template(path = "guides/all.txt")]
pub struct GuideText<'a> {
    guide: &'a ClientGuide,
    context: &'a SetupContext<'a>,
    /// The chosen model.
    model: &'a CatalogModel,
    /// Address for clients that add only `/chat/completions` or `/responses`.
    v1: String,
    /// Expression that reads the key in a shell. The next fields have it in two other languages.
    shell_key: String,
    python_key: String,
    node_key: String,
    hello_tokens: u64,
}

impl<'a> GuideText<'a> {
    pub fn new(guide: &'a ClientGuide, context: &'a SetupContext<'a>) -> Self {
        let (model, variable) = (context.model(), &context.key.variable);
        Self {
            guide,
            context,
            model,
            v1: format!("{}/v1", context.base_url),
            shell_key: format!("\"${variable}\""),
            python_key: format!("os.environ[{}]", quoted(variable)),
            node_key: format!("process.env[{}]", quoted(variable)),
            hello_tokens: model.max_output_tokens.min(MAX_HELLO_TOKENS),
        }
    }

    pub fn build(&self) -> ClientSetup {
        // Rendering into a `String` cannot fail.
        parse(&self.render().unwrap_or_default())
    }

    fn v1_path(&self, path: &str) -> String {
        format!("{}{path}", self.v1)
    }

    fn prompt_tokens(&self, model: &CatalogModel) -> u64 {
        prompt_tokens(model)
    }

    fn others(&self) -> impl Iterator<Item = &CatalogModel> {
        let models = self.context.models().iter().map(AsRef::as_ref);
        models.filter(|model: &&CatalogModel| model.id != self.model.id)
    }

    fn chosen_first(&self) -> impl Iterator<Item = &CatalogModel> {
        std::iter::once(self.model).chain(self.others())
    }

    /// Returns the models grouped by the surface that the client uses with them, without empty
    /// groups.
    fn groups(&self) -> Vec<ModelGroup<'_>> {
        let groups = self.guide.surfaces.iter().map(|surface| {
            let models = self.context.models().iter().map(AsRef::as_ref);
            let fits = |model: &&CatalogModel| best_surface(model, self.guide.surfaces) == *surface;
            ModelGroup {
                surface: *surface,
                models: models.filter(fits).collect(),
            }
        });
        groups.filter(|group| !group.models.is_empty()).collect()
    }

    /// Returns the group of one model.
    fn group(&self, model: &CatalogModel) -> ModelGroup<'_> {
        ModelGroup {
            surface: best_surface(model, self.guide.surfaces),
            models: Vec::new(),
        }
    }

    fn uses_messages(&self, model: &CatalogModel) -> bool {
        self.group(model).is_messages()
    }

    fn maker(&self, model: &CatalogModel) -> &'static str {
        self.group(model).maker()
    }

    fn provider(&self, model: &CatalogModel) -> &'static str {
        self.group(model).provider()
    }

    /// Returns the model with the name of its provider, such as `gateway/beta-5.2`.
    fn qualified(&self, model: &CatalogModel) -> String {
        format!("{}/{}", self.provider(model), model.id)
    }

    fn maker_and_id(&self, model: &CatalogModel) -> String {
        format!("{}/{}", self.maker(model), model.id)
    }

    /// Returns the surface for Copilot CLI, which uses the responses API only for models whose
    /// vendor has no other one.
    fn copilot_surface(&self) -> Protocol {
        if is_native(self.model, Protocol::Chat) {
            Protocol::Chat
        } else {
            best_surface(self.model, &[Protocol::Messages, Protocol::Responses])
        }
    }
}

/// Models that a client uses through the same surface.
struct ModelGroup<'a> {
    surface: Protocol,
    models: Vec<&'a CatalogModel>,
}

impl ModelGroup<'_> {
    fn is_messages(&self) -> bool {
        self.surface == Protocol::Messages
    }

    /// Returns the name that clients use for the maker of the API.
    fn maker(&self) -> &'static str {
        if self.is_messages() {
            "anthropic"
        } else {
            "openai"
        }
    }

    fn provider(&self) -> &'static str {
        if self.is_messages() {
            "gateway-messages"
        } else {
            "gateway"
        }
    }

    fn path(&self) -> &'static str {
        match self.surface {
            Protocol::Chat => "/chat/completions",
            Protocol::Messages => "/messages",
            Protocol::Responses => "/responses",
        }
    }
}

fn parse(text: &str) -> ClientSetup {
    let mut setup = ClientSetup::default();
    for part in text.trim().trim_start_matches('@').split("\n@") {
        let (kind, part) = part.split_once([' ', '\n']).unwrap_or_default();
        match kind {
            "file" => {
                let (path, text) = part.split_once('\n').unwrap_or_default();
                setup.files.push(SetupFile {
                    path: path.to_owned(),
                    format: FileFormat::from_path(path),
                    text: text.to_owned(),
                });
            }
            "set" => {
                let (name, value) = part.split_once(' ').unwrap_or_default();
                let value = VariableValue::Text(value.to_owned());
                setup.environment.push((name.to_owned(), value));
            }
            "key" => setup
                .environment
                .push((part.to_owned(), VariableValue::Key)),
            "instead" => setup.instead_of_files = Some(part.to_owned()),
            "command" => setup.commands.push(part.to_owned()),
            "run" => setup.run = Some(part.to_owned()),
            _ => setup.notes.push(part.replace('\n', " ")),
        }
    }
    setup
}

/// Quoting functions, which a template names after a value: `{{ v1|quoted }}`.
mod filters {
    use super::super::format;
    use askama::Values;
    use std::fmt::Display;

    #[askama::filter_fn]
    pub fn quoted(text: impl Display, _: &dyn Values) -> askama::Result<String> {
        Ok(format::quoted(&text.to_string()))
    }

    #[askama::filter_fn]
    pub fn word(text: impl Display, _: &dyn Values) -> askama::Result<String> {
        Ok(format::shell_word(&text.to_string()))
    }

    #[askama::filter_fn]
    pub fn in_single_quotes(text: impl Display, _: &dyn Values) -> askama::Result<String> {
        Ok(format::in_single_quotes(&text.to_string()))
    }
}
