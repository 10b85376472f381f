//! Tools and tool choice in the responses protocol's words: flat, and each function says whether it is strict, which here
//! is the default.
//!
//! Read next: `rules/schema.rs`.

use super::{Writer, refused};
use crate::protocol::chat::write_request::tools::{describe, vendor_tool};
use crate::protocol::form::{Action, At, Choice, Function, Refused, Request, Tool, ToolKind};
use crate::protocol::rules::{custom, names, schema};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

impl Writer<'_> {
    /// Writes `tools` and what belongs to them.
    pub(super) fn tools(&mut self, request: &Request<'_>) -> Result<(), Refused> {
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
        if sent.is_empty() {
            return Ok(());
        }
        self.known_choice(&sent, &request.choice)?;
        self.json.key("tools").open_array();
        for tool in &sent {
            match &tool.kind {
                ToolKind::Function(function) => self.function(At::Tool(tool.index), function)?,
                ToolKind::Custom { name, description, format } => {
                    self.custom(tool.index, name, description.as_ref(), *format)
                }
                ToolKind::Vendor { .. } => {}
            }
        }
        self.json.close_array();
        self.choice(&request.choice, &sent);
        match request.parallel_calls {
            _ if request.legacy_functions => drop(self.json.key("parallel_tool_calls").bool(false)),
            Some(parallel) => drop(self.json.key("parallel_tool_calls").bool(parallel)),
            None => {}
        }
        Ok(())
    }

    fn known_choice(&self, sent: &[&Tool<'_>], choice: &Choice<'_>) -> Result<(), Refused> {
        let Choice::Tool(wanted) = choice else { return Ok(()) };
        if sent.iter().any(|tool| name_of(tool).is_some_and(|name| name.is(&wanted.value()))) {
            return Ok(());
        }
        let message = format!("Tool '{}' not found in provided tools", wanted.value());
        Err(refused(self.surface, "tool_choice", &message))
    }

    fn function(&mut self, at: At, function: &Function<'_>) -> Result<(), Refused> {
        let cleaned = schema::for_chat(function.schema)
            .map_err(|_| refused(self.surface, &format!("{at}.input_schema.type"), "Input should be 'object'"))?;
        if cleaned.rewritten {
            self.warnings.add(Action::Rewritten, at);
        }
        let name = self.tool_name(&function.name, format_args!("{at}.name"));
        self.json.open_object().key("type").str("function").key("name").str(&name);
        describe(&mut self.json, function, cleaned.note.as_deref());
        self.json.key("parameters").raw(&cleaned.json);
        let is_strict =
            function.strict && !cleaned.rewritten && function.schema.is_some_and(schema::is_strict_for_chat);
        if function.strict && !is_strict {
            self.warnings.add(Action::Dropped, format_args!("{at}.strict"));
        }
        self.json.key("strict").bool(is_strict).close_object();
        Ok(())
    }

    fn custom(&mut self, index: usize, name: &Text<'_>, description: Option<&Text<'_>>, format: Option<Value<'_>>) {
        let own = name;
        let name = self.tool_name(own, format_args!("{}.custom.name", At::Tool(index)));
        if self.model.functions_only {
            self.recall.custom_tools.push(own.value().into_owned());
            self.json.open_object().key("type").str("function").key("name").str(&name);
            custom::describe(description, format, &mut self.json);
            self.json.key("parameters").raw(custom::SCHEMA).key("strict").bool(false).close_object();
            return;
        }
        self.json.open_object().key("type").str("custom").key("name").str(&name);
        if let Some(description) = description {
            self.json.key("description").text(description);
        }
        // A grammar lies one level deeper on chat.
        let grammar = format.and_then(|format| format.get("grammar"));
        if let Some(grammar) = grammar {
            self.json.key("format").open_object().key("type").str("grammar");
            for member in ["syntax", "definition"] {
                if let Some(value) = grammar.get(member) {
                    self.json.key(member).raw(value.raw());
                }
            }
            self.json.close_object();
        } else if let Some(format) = format {
            self.json.key("format").raw(format.raw());
        }
        self.json.close_object();
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
                self.json.key("tool_choice").open_object().key("type").str("allowed_tools");
                self.json.key("mode").str(if *required { "required" } else { "auto" }).key("tools").open_array();
                names.iter().for_each(|name| self.chosen(name, sent));
                self.json.close_array().close_object();
            }
        }
    }

    fn chosen(&mut self, name: &Text<'_>, sent: &[&Tool<'_>]) {
        let own = sent.iter().find(|tool| name_of(tool).is_some_and(|own| own.is(&name.value())));
        let is_custom =
            own.is_some_and(|tool| matches!(tool.kind, ToolKind::Custom { .. })) && !self.model.functions_only;
        let name = self.tool_name(name, "tool_choice.name");
        self.json.open_object().key("type").str(if is_custom { "custom" } else { "function" });
        self.json.key("name").str(&name).close_object();
    }

    /// The name that the vendor is given.
    pub(super) fn tool_name(&mut self, name: &Text<'_>, at: impl std::fmt::Display) -> String {
        names::tool_name(name.value(), at, self.warnings, self.recall).into_owned()
    }
}

fn name_of<'t>(tool: &'t Tool<'_>) -> Option<&'t Text<'t>> {
    match &tool.kind {
        ToolKind::Function(function) => Some(&function.name),
        ToolKind::Custom { name, .. } => Some(name),
        ToolKind::Vendor { .. } => None,
    }
}
