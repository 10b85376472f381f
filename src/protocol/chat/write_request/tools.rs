//! Writes tools and the tool choice for both protocols of a chat vendor.
//!
//! It must not send a tool whose schema only another vendor's models know: a model would invent its
//! arguments.
//!
//! Read next: `capabilities/schema.rs`.

use super::foreign::Words;
use super::wording::Wording;
use super::{member, refused};
use crate::protocol::Protocol;
use crate::protocol::form::{
    Action, At, Choice, Function, Refused, Request, Tool, ToolKind, Warnings,
};
use crate::protocol::messages::read_request::fields;
use crate::protocol::rules::{Outcome, custom, schema};
use crate::protocol::text::{Json, Text, compact};
use crate::protocol::tree::Value;

/// Returns the tools that can be sent. `model` is the public model id, for the error message.
///
/// # Errors
/// Returns an error if the request needs a tool that runs at another vendor or that only another
/// vendor's models know.
pub(in crate::protocol) fn sent<'t, 'a>(
    request: &'t Request<'a>,
    model: &str,
    warnings: &mut Warnings,
) -> Result<Vec<&'t Tool<'a>>, Refused> {
    let mut sent = Vec::with_capacity(request.tools.len());
    for tool in &request.tools {
        match &tool.kind {
            ToolKind::Vendor { kind, value } => left_out(
                request,
                At::Tool(tool.index),
                (kind, *value),
                model,
                warnings,
            )?,
            ToolKind::Function(_) | ToolKind::Custom { .. } => sent.push(tool),
        }
    }
    Ok(sent)
}

/// Checks a tool of another vendor. Only tool search can be dropped.
fn left_out(
    request: &Request<'_>,
    at: At,
    (kind, value): (&Text<'_>, Value<'_>),
    model: &str,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let kind = kind.value();
    if fields::tool_outcome(&kind) == Some(Outcome::Warn) {
        if let (Choice::Tool(wanted), Some(name)) = (&request.choice, member(value, "name"))
            && wanted.is(&name.value())
        {
            let message = format!("'{}' is not available for model '{model}'", name.value());
            return Err(refused(request.surface, "tool_choice", &message));
        }
        warnings.add(Action::Dropped, at);
        return Ok(());
    }
    if kind == "custom" {
        let message = format!("only 'direct' is available for model '{model}'");
        return Err(refused(
            request.surface,
            &format!("{at}.allowed_callers"),
            &message,
        ));
    }
    Err(refused(
        request.surface,
        &at.to_string(),
        &format!("'{kind}' is not available for model '{model}'"),
    ))
}

/// Writer for tools and the tool choice.
pub(in crate::protocol) struct ToolWriter<'t, 'w> {
    pub surface: Protocol,
    pub wording: Wording,
    /// The vendor supports tools that take plain text.
    pub takes_custom: bool,
    pub words: &'t mut Words<'w>,
    pub json: &'t mut Json,
}

impl ToolWriter<'_, '_> {
    /// Writes the members `tools` and `tool_choice`.
    ///
    /// # Errors
    /// Returns an error if a schema is invalid, or if the choice names a tool that is not sent.
    pub fn write(&mut self, sent: &[&Tool<'_>], choice: &Choice<'_>) -> Result<(), Refused> {
        if let Choice::Tool(wanted) = choice
            && !sent.iter().any(|tool| is_named(tool, wanted))
        {
            let message = format!("Tool '{}' not found in provided tools", wanted.value());
            return Err(refused(self.surface, "tool_choice", &message));
        }
        self.json.key("tools").open_array();
        for tool in sent {
            let at = At::Tool(tool.index);
            match &tool.kind {
                ToolKind::Function(function) => self.function(at, function)?,
                ToolKind::Custom {
                    name,
                    description,
                    format,
                } => self.custom(at, name, description.as_ref(), *format),
                ToolKind::Vendor { .. } => {}
            }
        }
        self.json.close_array();
        self.choice(choice, sent);
        Ok(())
    }

    fn function(&mut self, at: At, function: &Function<'_>) -> Result<(), Refused> {
        let cleaned = schema::for_chat(function.schema).map_err(|_| {
            refused(
                self.surface,
                &format!("{at}.input_schema.type"),
                "Input should be 'object'",
            )
        })?;
        if cleaned.rewritten {
            self.words.warnings.add(Action::Rewritten, at);
        }
        let name = self
            .words
            .tool_name(&function.name, format_args!("{at}.name"));
        self.wording.open("function", self.json);
        self.json.key("name").str(&name);
        describe(self.json, function, cleaned.note.as_deref());
        self.json.key("parameters").raw(&cleaned.json);
        let is_strict = function.strict
            && !cleaned.rewritten
            && function.schema.is_some_and(schema::is_strict_for_chat);
        if function.strict && !is_strict {
            self.words
                .warnings
                .add(Action::Dropped, format_args!("{at}.strict"));
        }
        // If `strict` is absent, the responses protocol treats a function as strict.
        if is_strict || self.wording == Wording::Flat {
            self.json.key("strict").bool(is_strict);
        }
        self.wording.close(self.json);
        Ok(())
    }

    fn custom(
        &mut self,
        at: At,
        name: &Text<'_>,
        description: Option<&Text<'_>>,
        format: Option<Value<'_>>,
    ) {
        let own = name;
        let name = match self.surface {
            Protocol::Chat => self.words.tool_name(own, format_args!("{at}.custom.name")),
            Protocol::Messages | Protocol::Responses => {
                self.words.tool_name(own, format_args!("{at}.name"))
            }
        };
        let kind = if self.takes_custom {
            "custom"
        } else {
            "function"
        };
        self.wording.open(kind, self.json);
        self.json.key("name").str(&name);
        if !self.takes_custom {
            custom::describe(description, format, self.json);
            self.json.key("parameters").raw(custom::SCHEMA);
            if self.wording == Wording::Flat {
                self.json.key("strict").bool(false);
            }
            self.words
                .recall
                .custom_tools
                .push(own.value().into_owned());
        } else {
            if let Some(description) = description {
                self.json.key("description").text(description);
            }
            match (format, self.wording) {
                (Some(format), Wording::Nested) => custom::write_chat_format(format, self.json),
                (Some(format), Wording::Flat) => custom::write_responses_format(format, self.json),
                (None, _) => {}
            }
        }
        self.wording.close(self.json);
    }

    fn choice(&mut self, choice: &Choice<'_>, sent: &[&Tool<'_>]) {
        match choice {
            Choice::Absent => {}
            Choice::Auto => drop(self.json.key("tool_choice").str("auto")),
            Choice::None => drop(self.json.key("tool_choice").str("none")),
            Choice::Required => drop(self.json.key("tool_choice").str("required")),
            Choice::Tool(name) => {
                self.json.key("tool_choice");
                self.chosen(name, sent);
            }
            Choice::Allowed { names, required } => {
                self.json.key("tool_choice");
                self.wording.open("allowed_tools", self.json);
                self.json
                    .key("mode")
                    .str(if *required { "required" } else { "auto" })
                    .key("tools")
                    .open_array();
                names.iter().for_each(|name| self.chosen(name, sent));
                self.json.close_array();
                self.wording.close(self.json);
            }
        }
    }

    fn chosen(&mut self, name: &Text<'_>, sent: &[&Tool<'_>]) {
        let tool = sent.iter().find(|tool| is_named(tool, name));
        let is_custom = self.takes_custom
            && tool.is_some_and(|tool| matches!(tool.kind, ToolKind::Custom { .. }));
        let name = self.words.tool_name(name, "tool_choice.name");
        self.wording
            .open(if is_custom { "custom" } else { "function" }, self.json);
        self.json.key("name").str(&name);
        self.wording.close(self.json);
    }
}

fn is_named(tool: &Tool<'_>, wanted: &Text<'_>) -> bool {
    match &tool.kind {
        ToolKind::Function(Function { name, .. }) | ToolKind::Custom { name, .. } => {
            name.is(&wanted.value())
        }
        ToolKind::Vendor { .. } => false,
    }
}

/// Writes the description, and adds to it what the schema cannot express.
fn describe(json: &mut Json, function: &Function<'_>, note: Option<&str>) {
    let mut lines: Vec<Text<'_>> = Vec::new();
    let own = function
        .description
        .as_ref()
        .filter(|text| !text.is_blank())
        .map(Text::borrowed);
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
