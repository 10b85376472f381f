//! Tools and tool choice in the chat protocol's words.
//!
//! It must not send a tool whose schema lives inside another vendor's models: a model would invent what it takes.
//!
//! Read next: `rules/schema.rs`.

use super::{Writer, refused};
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::form::{Action, At, Choice, Function, Refused, Request, Tool, ToolKind, Warnings};
use crate::protocol::messages::read_request::fields;
use crate::protocol::rules::schema::Cleaned;
use crate::protocol::rules::{Outcome, ToolsWithReasoning, custom, names, schema};
use crate::protocol::text::{Json, Text, compact};
use crate::protocol::tree::Value;

/// The most tools that a chat vendor takes.
const TOOLS_MAX: usize = 128;

impl Writer<'_> {
    /// Writes `tools` and what belongs to them; true if there is any.
    pub(super) fn tools(&mut self, request: &Request<'_>) -> Result<bool, Refused> {
        let mut sent = Vec::with_capacity(request.tools.len());
        for tool in &request.tools {
            match &tool.kind {
                ToolKind::Vendor { kind, value } => {
                    let model = self.given.target.public_model;
                    vendor_tool(tool, kind, *value, &request.choice, (self.surface, model), self.warnings)?;
                }
                ToolKind::Function(_) | ToolKind::Custom { .. } => sent.push(tool),
            }
        }
        if sent.len() > TOOLS_MAX {
            let message = format!("at most {TOOLS_MAX} tools are available for this model");
            return Err(refused(self.surface, "tools", &message));
        }
        if sent.is_empty() {
            // A chat vendor refuses a choice without tools.
            return Ok(false);
        }
        if self.model.tools_with_reasoning == ToolsWithReasoning::ResponsesOnly {
            let model = self.given.target.public_model;
            let message = format!("Tools are not available for model '{model}' on this endpoint.");
            return Err(Box::new(Failure::new(Kind::InvalidRequest, message).with_param("tools")));
        }
        self.known_choice(&sent, &request.choice)?;
        self.json.key("tools").open_array();
        for tool in sent {
            match &tool.kind {
                ToolKind::Function(function) => self.function(At::Tool(tool.index), function)?,
                ToolKind::Custom { name, description, format } => {
                    let at = At::Tool(tool.index);
                    self.custom(at, name, description.as_ref(), *format);
                }
                ToolKind::Vendor { .. } => {}
            }
        }
        self.json.close_array();
        self.choice(request);
        if request.parallel_calls == Some(false) {
            self.json.key("parallel_tool_calls").bool(false);
        }
        Ok(true)
    }

    fn known_choice(&self, sent: &[&Tool<'_>], choice: &Choice<'_>) -> Result<(), Refused> {
        let Choice::Tool(wanted) = choice else { return Ok(()) };
        let wanted = wanted.value();
        let is_known = sent.iter().any(|tool| match &tool.kind {
            ToolKind::Function(function) => function.name.is(&wanted),
            ToolKind::Custom { name, .. } => name.is(&wanted),
            ToolKind::Vendor { .. } => false,
        });
        if is_known {
            return Ok(());
        }
        Err(refused(self.surface, "tool_choice", &format!("Tool '{wanted}' not found in provided tools")))
    }

    fn function(&mut self, at: At, function: &Function<'_>) -> Result<(), Refused> {
        let cleaned = schema::for_chat(function.schema)
            .map_err(|_| refused(self.surface, &format!("{at}.input_schema.type"), "Input should be 'object'"))?;
        if cleaned.rewritten {
            self.warnings.add(Action::Rewritten, at);
        }
        let name = self.tool_name(&function.name, format_args!("{at}.name"));
        self.json.open_object().key("type").str("function");
        self.json.key("function").open_object().key("name").str(&name);
        describe(&mut self.json, function, cleaned.note.as_deref());
        self.json.key("parameters").raw(&cleaned.json);
        if function.strict {
            self.strict(at, function, &cleaned);
        }
        self.json.close_object().close_object();
        Ok(())
    }

    fn strict(&mut self, at: At, function: &Function<'_>, cleaned: &Cleaned<'_>) {
        if !cleaned.rewritten && function.schema.is_some_and(schema::is_strict_for_chat) {
            self.json.key("strict").bool(true);
        } else {
            self.warnings.add(Action::Dropped, format_args!("{at}.strict"));
        }
    }

    fn custom(&mut self, at: At, name: &Text<'_>, description: Option<&Text<'_>>, format: Option<Value<'_>>) {
        let name = self.tool_name(name, format_args!("{at}.name"));
        if !self.model.custom_tools {
            self.json.open_object().key("type").str("function");
            self.json.key("function").open_object().key("name").str(&name);
            custom::describe(description, format, &mut self.json);
            self.json.key("parameters").raw(custom::SCHEMA).close_object().close_object();
            return;
        }
        self.json.open_object().key("type").str("custom");
        self.json.key("custom").open_object().key("name").str(&name);
        if let Some(description) = description {
            self.json.key("description").text(description);
        }
        if let Some(format) = format {
            custom::write_chat_format(format, &mut self.json);
        }
        self.json.close_object().close_object();
    }

    fn choice(&mut self, request: &Request<'_>) {
        match &request.choice {
            Choice::Absent => {}
            Choice::Auto => drop(self.json.key("tool_choice").str("auto")),
            Choice::None => drop(self.json.key("tool_choice").str("none")),
            Choice::Required => drop(self.json.key("tool_choice").str("required")),
            Choice::Tool(name) => {
                self.json.key("tool_choice");
                self.chosen(name, request);
            }
            Choice::Allowed { names, required } => {
                self.json.key("tool_choice").open_object().key("type").str("allowed_tools");
                let mode = if *required { "required" } else { "auto" };
                self.json.key("allowed_tools").open_object().key("mode").str(mode).key("tools").open_array();
                names.iter().for_each(|name| self.chosen(name, request));
                self.json.close_array().close_object().close_object();
            }
        }
    }

    fn chosen(&mut self, name: &Text<'_>, request: &Request<'_>) {
        let is_custom = self.model.custom_tools
            && request.tools.iter().any(|tool| match &tool.kind {
                ToolKind::Custom { name: custom, .. } => custom.is(&name.value()),
                ToolKind::Function(_) | ToolKind::Vendor { .. } => false,
            });
        let kind = if is_custom { "custom" } else { "function" };
        let name = self.tool_name(name, "tool_choice.name");
        self.json.open_object().key("type").str(kind);
        self.json.key(kind).open_object().key("name").str(&name).close_object().close_object();
    }

    /// The name that the vendor is given.
    pub(super) fn tool_name(&mut self, name: &Text<'_>, at: impl std::fmt::Display) -> String {
        names::tool_name(name.value(), at, self.warnings, self.recall).into_owned()
    }
}

/// A tool of another vendor: of those only the search among tools can be done without. `asked`: the surface and the
/// model's public id, for the words of a refusal.
pub(in crate::protocol) fn vendor_tool(
    tool: &Tool<'_>,
    kind: &Text<'_>,
    value: Value<'_>,
    choice: &Choice<'_>,
    (surface, model): (Protocol, &str),
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let at = At::Tool(tool.index);
    let kind = kind.value();
    if fields::tool_outcome(&kind) == Some(Outcome::Warn) {
        if let (Choice::Tool(wanted), Some(name)) = (choice, super::member(value, "name"))
            && wanted.is(&name.value())
        {
            let message = format!("'{}' is not available for model '{model}'", name.value());
            return Err(refused(surface, "tool_choice", &message));
        }
        warnings.add(Action::Dropped, at);
        return Ok(());
    }
    if kind == "custom" {
        let message = format!("only 'direct' is available for model '{model}'");
        return Err(refused(surface, &format!("{at}.allowed_callers"), &message));
    }
    Err(refused(surface, &at.to_string(), &format!("'{kind}' is not available for model '{model}'")))
}

/// Writes the description with what the schema cannot say there.
pub(in crate::protocol) fn describe(json: &mut Json, function: &Function<'_>, note: Option<&str>) {
    let mut lines: Vec<Text<'_>> = Vec::new();
    let own = function.description.as_ref().filter(|text| !text.is_blank()).map(Text::borrowed);
    let examples = function.examples.map(|examples| {
        let mut line = b"Examples: ".to_vec();
        compact(examples.raw(), &mut line);
        Text::made(String::from_utf8(line).unwrap_or_default())
    });
    for line in own.into_iter().chain(note.map(Text::made)).chain(examples) {
        if !lines.is_empty() {
            lines.push(Text::made("\n"));
        }
        lines.push(line);
    }
    if !lines.is_empty() {
        json.key("description").joined(&lines);
    }
}
