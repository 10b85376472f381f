//! Writes tools and the tool choice for both protocols of a chat vendor.
//!
//! This file must not send a tool whose schema only another vendor's models know, because a model
//! would invent the arguments.
//!
//! Read next: `capabilities/schema.rs`.

use super::api_variant::ApiVariant;
use super::text_fallback::TextFallback;
use crate::Protocol;
use crate::capabilities::{FieldMapping, custom_tool, schema};
use crate::fields::messages as messages_fields;
use crate::ir::{
    FunctionTool, JsonPath, Request, RequestResult, Tool, ToolChoice, ToolKind, Warnings,
    invalid_param, refuse,
};
use crate::json::{JoinedText, JsonStr, JsonValue, JsonWriter, RawJson, compacted};

/// Returns the tools that can be sent. `model` is the public model id, for the error message.
///
/// # Errors
/// Returns an error if the request needs a tool that runs at another vendor or whose schema only
/// another vendor's models know.
pub(crate) fn sendable_tools<'t, 'a>(
    request: &'t Request<'a>,
    model: &str,
    warnings: &mut Warnings,
) -> RequestResult<Vec<&'t Tool<'a>>> {
    let mut sent = Vec::with_capacity(request.tools.len());
    for tool in &request.tools {
        match &tool.kind {
            ToolKind::Vendor { kind, value } => check_vendor_tool(
                request,
                JsonPath::Tool(tool.index),
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
fn check_vendor_tool(
    request: &Request<'_>,
    at: JsonPath,
    (kind, value): (&JsonStr<'_>, JsonValue<'_>),
    model: &str,
    warnings: &mut Warnings,
) -> RequestResult {
    let kind = kind.value();
    if messages_fields::tool_outcome(&kind) == Some(FieldMapping::Warn) {
        if let (ToolChoice::Tool(chosen), Some(name)) = (&request.choice, value.text_of("name"))
            && chosen.is(&name.value())
        {
            let message = format!("'{}' is not available for model '{model}'", name.value());
            return refuse(request.surface, "tool_choice", message);
        }
        warnings.dropped(at);
        return Ok(());
    }
    if kind == "custom" {
        let message = format!("only 'direct' is available for model '{model}'");
        let path = format_args!("{at}.allowed_callers");
        return refuse(request.surface, path, message);
    }
    let message = format_args!("'{kind}' is not available for model '{model}'");
    refuse(request.surface, at, message)
}

pub(crate) struct ToolWriter<'t, 'w> {
    pub surface: Protocol,
    pub variant: ApiVariant,
    /// True if the vendor supports tools that take plain text.
    pub takes_custom: bool,
    /// True if the vendor supports `strict` in a function.
    pub takes_strict: bool,
    pub fallback: &'t mut TextFallback<'w>,
    pub json: &'t mut JsonWriter,
}

impl ToolWriter<'_, '_> {
    /// Writes the members `tools` and `tool_choice`.
    ///
    /// # Errors
    /// Returns an error if a schema is invalid, or if the choice names a tool that is not sent.
    pub fn write(&mut self, sent: &[&Tool<'_>], choice: &ToolChoice<'_>) -> RequestResult {
        if let ToolChoice::Tool(chosen) = choice
            && !sent.iter().any(|tool| has_name(tool, chosen))
        {
            let message = format!("Tool '{}' not found in provided tools", chosen.value());
            return refuse(self.surface, "tool_choice", message);
        }
        self.json.member_array("tools");
        for tool in sent {
            let at = JsonPath::Tool(tool.index);
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

    fn function(&mut self, at: JsonPath, function: &FunctionTool<'_>) -> RequestResult {
        let cleaned = schema::clean_for_chat(function.schema).map_err(|_| {
            let path = format_args!("{at}.input_schema.type");
            invalid_param(self.surface, path, "Input should be 'object'")
        })?;
        if cleaned.rewritten {
            self.fallback.warnings.rewritten(at);
        }
        let name = self
            .fallback
            .tool_name(&function.name, format_args!("{at}.name"));
        self.variant.open("function", self.json);
        self.json.member("name", &name);
        write_description(self.json, function, cleaned.note.as_deref());
        self.json.member("parameters", RawJson(&cleaned.json));
        let is_strict = function.strict
            && self.takes_strict
            && !cleaned.rewritten
            && function.schema.is_some_and(schema::is_strict_for_chat);
        if function.strict && !is_strict {
            self.fallback.warnings.dropped(format_args!("{at}.strict"));
        }
        // The responses protocol treats a function without `strict` as strict.
        if is_strict || self.variant == ApiVariant::Flat {
            self.json.member("strict", is_strict);
        }
        self.variant.close(self.json);
        Ok(())
    }

    fn custom(
        &mut self,
        at: JsonPath,
        name: &JsonStr<'_>,
        description: Option<&JsonStr<'_>>,
        format: Option<JsonValue<'_>>,
    ) {
        let own = name;
        let name = match self.surface {
            Protocol::Chat => self
                .fallback
                .tool_name(own, format_args!("{at}.custom.name")),
            Protocol::Messages | Protocol::Responses => {
                self.fallback.tool_name(own, format_args!("{at}.name"))
            }
        };
        let kind = if self.takes_custom {
            "custom"
        } else {
            "function"
        };
        self.variant.open(kind, self.json);
        self.json.member("name", &name);
        if !self.takes_custom {
            custom_tool::write_description(description, format, self.json);
            self.json
                .member("parameters", RawJson(custom_tool::INPUT_SCHEMA));
            if self.variant == ApiVariant::Flat {
                self.json.member("strict", false);
            }
            self.fallback
                .response_context
                .custom_tools
                .push(own.value().into_owned());
        } else {
            self.json.member_if_some("description", description);
            match (format, self.variant) {
                (Some(format), ApiVariant::Nested) => {
                    custom_tool::write_chat_format(format, self.json)
                }
                (Some(format), ApiVariant::Flat) => {
                    custom_tool::write_responses_format(format, self.json)
                }
                (None, _) => {}
            }
        }
        self.variant.close(self.json);
    }

    fn choice(&mut self, choice: &ToolChoice<'_>, sent: &[&Tool<'_>]) {
        match choice {
            ToolChoice::Absent => {}
            ToolChoice::Auto => drop(self.json.member("tool_choice", "auto")),
            ToolChoice::None => drop(self.json.member("tool_choice", "none")),
            ToolChoice::Required => drop(self.json.member("tool_choice", "required")),
            ToolChoice::Tool(name) => {
                self.json.key("tool_choice");
                self.write_tool_reference(name, sent);
            }
            ToolChoice::Allowed { names, required } => {
                self.json.key("tool_choice");
                self.variant.open("allowed_tools", self.json);
                self.json
                    .member("mode", if *required { "required" } else { "auto" })
                    .member_array("tools");
                names
                    .iter()
                    .for_each(|name| self.write_tool_reference(name, sent));
                self.json.close_array();
                self.variant.close(self.json);
            }
        }
    }

    fn write_tool_reference(&mut self, name: &JsonStr<'_>, sent: &[&Tool<'_>]) {
        let tool = sent.iter().find(|tool| has_name(tool, name));
        let is_custom = self.takes_custom
            && tool.is_some_and(|tool| matches!(tool.kind, ToolKind::Custom { .. }));
        let name = self.fallback.tool_name(name, "tool_choice.name");
        self.variant
            .open(if is_custom { "custom" } else { "function" }, self.json);
        self.json.member("name", &name);
        self.variant.close(self.json);
    }
}

fn has_name(tool: &Tool<'_>, chosen: &JsonStr<'_>) -> bool {
    match &tool.kind {
        ToolKind::Function(FunctionTool { name, .. }) | ToolKind::Custom { name, .. } => {
            name.is(&chosen.value())
        }
        ToolKind::Vendor { .. } => false,
    }
}

/// Writes the description, followed by the constraints that the schema cannot express.
fn write_description(json: &mut JsonWriter, function: &FunctionTool<'_>, note: Option<&str>) {
    let mut lines: Vec<JsonStr<'_>> = Vec::new();
    let own = function
        .description
        .as_ref()
        .filter(|text| !text.is_blank())
        .map(JsonStr::reborrow);
    let examples = function
        .examples
        .map(|examples| JsonStr::from_value(format!("Examples: {}", compacted(examples.raw()))));
    for line in own
        .into_iter()
        .chain(note.map(JsonStr::from_value))
        .chain(examples)
    {
        if !lines.is_empty() {
            lines.push(JsonStr::from_value("\n"));
        }
        lines.push(line);
    }
    if !lines.is_empty() {
        json.member("description", JoinedText(&lines));
    }
}
