//! Writes tools and the tool choice for a messages vendor.
//!
//! This file must not add a tool that the model could call. A stub for a tool of the history cannot
//! be called.
//!
//! Read next: `capabilities/schema.rs`.

use super::block_writer::{BlockWriter, CallPath};
use super::markers::MarkerSection;
use super::turns::{MessagesTurn, MessagesTurnPart};
use crate::Protocol;
use crate::capabilities::{MessagesModel, custom_tool, identifiers, schema};
use crate::ir::event::ResponseContext;
use crate::ir::{
    BlockKind, FunctionTool, Request, RequestResult, Tool, ToolChoice, ToolKind, Warnings,
    invalid_param,
};
use crate::json::{JoinedText, JsonStr, JsonValue, JsonWriter, RawJson, compacted};
use std::borrow::Cow;
use std::collections::HashSet;

/// Schema for a custom tool: an object with the free text.
const CUSTOM_SCHEMA: &str =
    r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}"#;

/// Type of the vendor's own search tool that all models with search accept.
const WEB_SEARCH_TYPE: &str = "web_search_20250305";

/// The tools in the form that the vendor receives.
#[derive(Debug)]
pub(super) struct MessagesTools<'r, 'a> {
    legacy: bool,
    surface: Protocol,
    /// Tools, each with its name at the vendor.
    list: Vec<(&'r Tool<'a>, Cow<'r, str>)>,
    /// Names of tools that the history calls and the request no longer contains.
    stubs: Vec<String>,
    /// The value of chat's `web_search_options`, or the search tool of responses. Set if the model
    /// may search.
    web_search: Option<JsonValue<'a>>,
    /// Maximum number of searches, if the client sets one.
    max_searches: Option<u64>,
    choice: MessagesToolChoice,
    one_at_a_time: bool,
}

/// The form of `tool_choice` that the vendor receives.
#[derive(Clone, PartialEq, Eq, Debug)]
enum MessagesToolChoice {
    Auto,
    None,
    Any,
    Tool(String),
}

impl<'r, 'a> MessagesTools<'r, 'a> {
    pub fn from_request(
        request: &'r Request<'a>,
        arranged: &[MessagesTurn<'r, 'a>],
        web_search: Option<JsonValue<'a>>,
        warnings: &mut Warnings,
        response_context: &mut ResponseContext,
    ) -> Self {
        let allowed: Option<HashSet<Cow<'_, str>>> = match &request.choice {
            ToolChoice::Allowed { names, .. } => Some(names.iter().map(JsonStr::value).collect()),
            ToolChoice::Absent
            | ToolChoice::Auto
            | ToolChoice::None
            | ToolChoice::Required
            | ToolChoice::Tool(_) => None,
        };
        let is_flat = request.surface == Protocol::Responses;
        let list = if request.legacy_functions {
            "functions"
        } else {
            "tools"
        };
        let mut tools = MessagesTools {
            legacy: request.legacy_functions,
            surface: request.surface,
            list: Vec::with_capacity(request.tools.len()),
            stubs: Vec::new(),
            web_search,
            max_searches: request
                .echo
                .iter()
                .find(|(name, _)| *name == "max_tool_calls")
                .and_then(|(_, max)| max.count()),
            choice: MessagesToolChoice::Auto,
            one_at_a_time: request.legacy_functions || request.parallel_calls == Some(false),
        };
        for tool in &request.tools {
            let (name, member) = match &tool.kind {
                ToolKind::Function(function) if request.legacy_functions || is_flat => {
                    (&function.name, "")
                }
                ToolKind::Custom { name, .. } if is_flat => (name, ""),
                ToolKind::Function(function) => (&function.name, ".function"),
                ToolKind::Custom { name, .. } => (name, ".custom"),
                // The vendor defines the name of such a tool.
                ToolKind::Vendor { value, .. } => {
                    let name = value.string_of("name").unwrap_or_default();
                    if allowed
                        .as_ref()
                        .is_none_or(|allowed| allowed.contains(&name))
                    {
                        tools.list.push((tool, name));
                    }
                    continue;
                }
            };
            let name = name.value();
            if allowed
                .as_ref()
                .is_some_and(|allowed| !allowed.contains(&name))
            {
                continue;
            }
            if let ToolKind::Custom { .. } = tool.kind {
                response_context
                    .custom_tools
                    .push(name.clone().into_owned());
            }
            let path = format_args!("{list}[{}]{member}.name", tool.index);
            tools.list.push((
                tool,
                identifiers::alias_tool_name(name, path, warnings, response_context),
            ));
        }
        if tools.list.is_empty() && tools.web_search.is_none() {
            tools.add_stubs(arranged, warnings, response_context);
        }
        tools.choice = tools.resolve_choice(&request.choice, warnings, response_context);
        tools
    }

    /// Adds stubs for tools that the history calls, because the vendor refuses calls to tools that
    /// the request does not list.
    fn add_stubs(
        &mut self,
        arranged: &[MessagesTurn<'_, '_>],
        warnings: &mut Warnings,
        response_context: &mut ResponseContext,
    ) {
        let mut seen = HashSet::new();
        for block in arranged
            .iter()
            .flat_map(|turn| &turn.pieces)
            .filter_map(MessagesTurnPart::block)
        {
            let BlockKind::Call(call) = &block.kind else {
                continue;
            };
            let path = CallPath {
                at: block.at,
                call,
                of: "name",
            };
            let name =
                identifiers::alias_tool_name(call.name.value(), path, warnings, response_context)
                    .into_owned();
            if seen.insert(name.clone()) {
                self.stubs.push(name);
            }
        }
        if !self.stubs.is_empty() {
            warnings.inserted("tools");
        }
    }

    fn resolve_choice(
        &self,
        choice: &ToolChoice<'_>,
        warnings: &mut Warnings,
        response_context: &mut ResponseContext,
    ) -> MessagesToolChoice {
        if !self.stubs.is_empty() {
            return MessagesToolChoice::None;
        }
        match choice {
            ToolChoice::Absent
            | ToolChoice::Auto
            | ToolChoice::Allowed {
                required: false, ..
            } => MessagesToolChoice::Auto,
            ToolChoice::None => MessagesToolChoice::None,
            ToolChoice::Required | ToolChoice::Allowed { required: true, .. } => {
                MessagesToolChoice::Any
            }
            ToolChoice::Tool(name) => {
                // The list contains a tool with that name, so the warning about a new name was
                // added with the tool.
                MessagesToolChoice::Tool(
                    identifiers::alias_tool_name(
                        name.value(),
                        self.choice_field(),
                        warnings,
                        response_context,
                    )
                    .into_owned(),
                )
            }
        }
    }

    /// Returns whether the model must call a tool.
    pub fn is_forced(&self) -> bool {
        matches!(
            self.choice,
            MessagesToolChoice::Any | MessagesToolChoice::Tool(_)
        )
    }

    pub fn choice_field(&self) -> &'static str {
        if self.legacy {
            "function_call"
        } else {
            "tool_choice"
        }
    }

    /// Replaces a forced choice by `auto`.
    pub fn unforce(&mut self) {
        self.choice = MessagesToolChoice::Auto;
    }

    pub fn marker_count(&self) -> usize {
        self.list
            .iter()
            .filter(|(tool, _)| tool.cache.is_some())
            .count()
    }

    /// Writes the members `tools` and `tool_choice`.
    pub fn write(&self, writer: &mut BlockWriter<'_>, model: &MessagesModel) -> RequestResult {
        if self.list.is_empty() && self.stubs.is_empty() && self.web_search.is_none() {
            return Ok(());
        }
        writer.json.member_array("tools");
        for (tool, name) in &self.list {
            writer.json.open_object();
            match &tool.kind {
                ToolKind::Function(function) => {
                    self.function(writer, tool.index, name, function, model)?
                }
                ToolKind::Custom {
                    description,
                    format,
                    ..
                } if self.surface == Protocol::Responses => {
                    // The answer returns the input inside the object unchanged, so no warning is
                    // needed.
                    writer.json.member("name", name);
                    custom_tool::write_description(description.as_ref(), *format, &mut writer.json);
                    writer
                        .json
                        .member("input_schema", RawJson(custom_tool::INPUT_SCHEMA));
                }
                ToolKind::Custom {
                    description,
                    format,
                    ..
                } => {
                    writer
                        .warnings
                        .rewritten(format_args!("tools[{}]", tool.index));
                    write_wrapped_custom_tool(
                        &mut writer.json,
                        name,
                        description.as_ref(),
                        *format,
                    );
                }
                ToolKind::Vendor { value, .. } => {
                    let members = value.members();
                    writer
                        .json
                        .copy_members(members.filter(|(key, _)| !key.is("cache_control")));
                }
            }
            writer.cache_control(tool.cache, MarkerSection::Tools);
            writer.json.close_object();
        }
        for name in &self.stubs {
            let json = writer.json.open_object().member("name", name);
            json.member("description", "Not available in this turn.");
            json.member("input_schema", RawJson(r#"{"type":"object"}"#))
                .close_object();
        }
        if let Some(options) = self.web_search {
            write_web_search(&mut writer.json, options, self.max_searches);
        }
        writer.json.close_array();
        self.write_choice(&mut writer.json);
        Ok(())
    }

    fn write_choice(&self, json: &mut JsonWriter) {
        let kind = match &self.choice {
            MessagesToolChoice::Auto if !self.one_at_a_time => return,
            MessagesToolChoice::Auto => "auto",
            MessagesToolChoice::None => "none",
            MessagesToolChoice::Any => "any",
            MessagesToolChoice::Tool(_) => "tool",
        };
        json.member_typed("tool_choice", kind);
        if let MessagesToolChoice::Tool(name) = &self.choice {
            json.member("name", name);
        }
        if self.one_at_a_time && self.choice != MessagesToolChoice::None {
            json.member("disable_parallel_tool_use", true);
        }
        json.close_object();
    }

    fn function(
        &self,
        writer: &mut BlockWriter<'_>,
        index: usize,
        name: &str,
        function: &FunctionTool<'_>,
        model: &MessagesModel,
    ) -> RequestResult {
        let (list, member) = if self.legacy {
            ("functions", "")
        } else {
            ("tools", ".function")
        };
        let cleaned =
            schema::clean_for_messages(function.schema).map_err(|schema::NotAnObject| {
                let path = format!("{list}[{index}]{member}.parameters");
                let message = format!("{path}: schema must be of type 'object'.");
                invalid_param(self.surface, path, message)
            })?;
        if cleaned.rewritten {
            writer.warnings.rewritten(format_args!("{list}[{index}]"));
        }
        writer.json.member("name", name);
        write_description(
            &mut writer.json,
            function.description.as_ref(),
            cleaned.note.as_deref(),
            "\n",
        );
        writer.json.key("input_schema");
        if !function.strict {
            writer.json.value(RawJson(&cleaned.json));
            return Ok(());
        }
        match Some(&cleaned.json)
            .filter(|_| model.structured)
            .and_then(|json| schema::restrict_for_messages(json))
        {
            Some(restricted) => {
                writer
                    .json
                    .value(RawJson(&restricted))
                    .member("strict", true);
            }
            None => {
                writer
                    .warnings
                    .dropped(format_args!("{list}[{index}].strict"));
                writer.json.value(RawJson(&cleaned.json));
            }
        }
        Ok(())
    }
}

/// Writes the member `description`: the client's text, a gap, and the constraints that the schema
/// no longer expresses.
fn write_description(
    json: &mut JsonWriter,
    words: Option<&JsonStr<'_>>,
    note: Option<&str>,
    gap: &'static str,
) {
    let words = words.filter(|words| !words.is_empty());
    if words.is_none() && note.is_none() {
        return;
    }
    let gap = words.and(note).map(|_| JsonStr::from_value(gap));
    let note = note.map(JsonStr::from_value);
    json.member(
        "description",
        JoinedText(words.into_iter().chain(&gap).chain(&note)),
    );
}

/// Writes a tool that takes free text as a tool that takes an object with one string.
fn write_wrapped_custom_tool(
    json: &mut JsonWriter,
    name: &str,
    words: Option<&JsonStr<'_>>,
    format: Option<JsonValue<'_>>,
) {
    json.member("name", name);
    // The format allows any text, so it needs no note.
    let format = format.filter(|format| !format.member_is("type", "text"));
    let note = format.map(|format| {
        format!(
            "The input must follow this format: {}",
            compacted(format.raw())
        )
    });
    write_description(json, words, note.as_deref(), "\n\n");
    json.member("input_schema", RawJson(CUSTOM_SCHEMA));
}

/// Writes the search tool. `options` come from chat or from the search tool of responses.
fn write_web_search(json: &mut JsonWriter, options: JsonValue<'_>, max_uses: Option<u64>) {
    json.open_typed(WEB_SEARCH_TYPE)
        .member("name", "web_search");
    json.member_if_some("max_uses", max_uses.filter(|uses| *uses > 0));
    let domains = options.find(["filters", "allowed_domains"]);
    let mut domains = domains
        .into_iter()
        .flat_map(JsonValue::items)
        .filter_map(JsonValue::text)
        .peekable();
    if domains.peek().is_some() {
        json.member_list("allowed_domains", domains);
    }
    let location = options
        .get("user_location")
        .filter(|location| location.is_object());
    let location = location.map(|location| location.get("approximate").unwrap_or(location));
    if let Some(location) = location {
        json.member_typed("user_location", "approximate");
        let members = location.members();
        json.copy_members(members.filter(|(key, value)| !key.is("type") && !value.is_null()));
        json.close_object();
    }
    json.close_object();
}
