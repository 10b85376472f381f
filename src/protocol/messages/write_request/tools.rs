//! Writes tools and the tool choice for a messages vendor.
//!
//! It must not invent a tool that the model could call: the stub for a tool of the history cannot
//! be called.
//!
//! Read next: `capabilities/schema.rs`.

use super::markers::Place;
use super::scribe::{CallPath, Scribe};
use super::turns::{Arranged, Piece};
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::answer::Recall;
use crate::protocol::form::{
    Action, BlockKind, Choice, Function, Refused, Request, Tool, ToolKind, Warnings,
};
use crate::protocol::rules::{MessagesModel, custom, names, schema};
use crate::protocol::text::{Json, Text};
use crate::protocol::tree::Value;
use std::borrow::Cow;
use std::collections::HashSet;

/// Schema for a custom tool: an object with the free text.
const CUSTOM_SCHEMA: &str =
    r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}"#;

/// Type of the vendor's own search tool that all models with search accept.
const WEB_SEARCH_TYPE: &str = "web_search_20250305";

/// Tools as they are sent.
#[derive(Debug)]
pub(super) struct Tools<'r, 'a> {
    legacy: bool,
    surface: Protocol,
    /// Tools, each with the name that the vendor receives.
    list: Vec<(&'r Tool<'a>, Cow<'r, str>)>,
    /// Names of tools that the history calls and the request no longer contains.
    stubs: Vec<String>,
    /// `web_search_options` of chat, or the search tool of responses, if the model may search.
    web_search: Option<Value<'a>>,
    /// Maximum number of searches that the caller allows.
    max_searches: Option<u64>,
    choice: Sent,
    one_at_a_time: bool,
}

/// `tool_choice` as it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Sent {
    Auto,
    None,
    Any,
    Tool(String),
}

impl<'r, 'a> Tools<'r, 'a> {
    pub fn plan(
        request: &'r Request<'a>,
        arranged: &[Arranged<'r, 'a>],
        web_search: Option<Value<'a>>,
        warnings: &mut Warnings,
        recall: &mut Recall,
    ) -> Self {
        let allowed: Option<HashSet<Cow<'_, str>>> = match &request.choice {
            Choice::Allowed { names, .. } => Some(names.iter().map(Text::value).collect()),
            Choice::Absent | Choice::Auto | Choice::None | Choice::Required | Choice::Tool(_) => {
                None
            }
        };
        let is_flat = request.surface == Protocol::Responses;
        let list = if request.legacy_functions {
            "functions"
        } else {
            "tools"
        };
        let mut tools = Tools {
            legacy: request.legacy_functions,
            surface: request.surface,
            list: Vec::with_capacity(request.tools.len()),
            stubs: Vec::new(),
            web_search,
            max_searches: request
                .echo
                .iter()
                .find(|(name, _)| *name == "max_tool_calls")
                .and_then(|(_, most)| most.count()),
            choice: Sent::Auto,
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
                // The vendor defines the name.
                ToolKind::Vendor { value, .. } => {
                    let name = value
                        .get("name")
                        .and_then(Value::string)
                        .unwrap_or_default();
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
                recall.custom_tools.push(name.clone().into_owned());
            }
            let path = format_args!("{list}[{}]{member}.name", tool.index);
            tools
                .list
                .push((tool, names::tool_name(name, path, warnings, recall)));
        }
        if tools.list.is_empty() && tools.web_search.is_none() {
            tools.stand_in(arranged, warnings, recall);
        }
        tools.choice = tools.sent(&request.choice, warnings, recall);
        tools
    }

    /// Adds stubs for tools that the history calls: the vendor refuses calls to tools that the
    /// request does not list.
    fn stand_in(
        &mut self,
        arranged: &[Arranged<'_, '_>],
        warnings: &mut Warnings,
        recall: &mut Recall,
    ) {
        let mut seen = HashSet::new();
        for block in arranged
            .iter()
            .flat_map(|turn| &turn.pieces)
            .filter_map(Piece::block)
        {
            let BlockKind::Call(call) = &block.kind else {
                continue;
            };
            let path = CallPath {
                at: block.at,
                call,
                of: "name",
            };
            let name = names::tool_name(call.name.value(), path, warnings, recall).into_owned();
            if seen.insert(name.clone()) {
                self.stubs.push(name);
            }
        }
        if !self.stubs.is_empty() {
            warnings.add(Action::Inserted, "tools");
        }
    }

    fn sent(&self, choice: &Choice<'_>, warnings: &mut Warnings, recall: &mut Recall) -> Sent {
        if !self.stubs.is_empty() {
            return Sent::None;
        }
        match choice {
            Choice::Absent
            | Choice::Auto
            | Choice::Allowed {
                required: false, ..
            } => Sent::Auto,
            Choice::None => Sent::None,
            Choice::Required | Choice::Allowed { required: true, .. } => Sent::Any,
            Choice::Tool(name) => {
                // The list contains a tool with that name, so a warning about a new name was
                // already added there.
                Sent::Tool(
                    names::tool_name(name.value(), self.choice_field(), warnings, recall)
                        .into_owned(),
                )
            }
        }
    }

    /// Returns whether the model must call a tool.
    pub fn is_forced(&self) -> bool {
        matches!(self.choice, Sent::Any | Sent::Tool(_))
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
        self.choice = Sent::Auto;
    }

    pub fn markers(&self) -> usize {
        self.list
            .iter()
            .filter(|(tool, _)| tool.cache.is_some())
            .count()
    }

    /// Writes the members `tools` and `tool_choice`.
    pub fn write(&self, scribe: &mut Scribe<'_>, model: &MessagesModel) -> Result<(), Refused> {
        if self.list.is_empty() && self.stubs.is_empty() && self.web_search.is_none() {
            return Ok(());
        }
        scribe.json.key("tools").open_array();
        for (tool, name) in &self.list {
            scribe.json.open_object();
            match &tool.kind {
                ToolKind::Function(function) => {
                    self.function(scribe, tool.index, name, function, model)?
                }
                ToolKind::Custom {
                    description,
                    format,
                    ..
                } if self.surface == Protocol::Responses => {
                    // Nothing is lost: the answer returns the input inside the object unchanged.
                    scribe.json.key("name").str(name);
                    custom::describe(description.as_ref(), *format, &mut scribe.json);
                    scribe.json.key("input_schema").raw(custom::SCHEMA);
                }
                ToolKind::Custom {
                    description,
                    format,
                    ..
                } => {
                    scribe
                        .warnings
                        .add(Action::Rewritten, format_args!("tools[{}]", tool.index));
                    in_an_object(&mut scribe.json, name, description.as_ref(), *format);
                }
                ToolKind::Vendor { value, .. } => {
                    for (key, value) in value.members().filter(|(key, _)| !key.is("cache_control"))
                    {
                        scribe.json.key_text(&key).compact(value.raw());
                    }
                }
            }
            scribe.marker(tool.cache, Place::Tools);
            scribe.json.close_object();
        }
        for name in &self.stubs {
            let json = scribe.json.open_object().key("name").str(name);
            json.key("description").str("Not available in this turn.");
            json.key("input_schema")
                .raw(r#"{"type":"object"}"#)
                .close_object();
        }
        if let Some(options) = self.web_search {
            web_search(&mut scribe.json, options, self.max_searches);
        }
        scribe.json.close_array();
        self.write_choice(&mut scribe.json);
        Ok(())
    }

    fn write_choice(&self, json: &mut Json) {
        let kind = match &self.choice {
            Sent::Auto if !self.one_at_a_time => return,
            Sent::Auto => "auto",
            Sent::None => "none",
            Sent::Any => "any",
            Sent::Tool(_) => "tool",
        };
        json.key("tool_choice").open_object().key("type").str(kind);
        if let Sent::Tool(name) = &self.choice {
            json.key("name").str(name);
        }
        if self.one_at_a_time && self.choice != Sent::None {
            json.key("disable_parallel_tool_use").bool(true);
        }
        json.close_object();
    }

    fn function(
        &self,
        scribe: &mut Scribe<'_>,
        index: usize,
        name: &str,
        function: &Function<'_>,
        model: &MessagesModel,
    ) -> Result<(), Refused> {
        let (list, member) = if self.legacy {
            ("functions", "")
        } else {
            ("tools", ".function")
        };
        let cleaned = schema::for_messages(function.schema).map_err(|schema::NotAnObject| {
            let path = format!("{list}[{index}]{member}.parameters");
            let message = format!("{path}: schema must be of type 'object'.");
            Box::new(Failure::invalid(self.surface, &path, &message))
        })?;
        if cleaned.rewritten {
            scribe
                .warnings
                .add(Action::Rewritten, format_args!("{list}[{index}]"));
        }
        scribe.json.key("name").str(name);
        description(
            &mut scribe.json,
            function.description.as_ref(),
            cleaned.note.as_deref(),
            "\n",
        );
        scribe.json.key("input_schema");
        if !function.strict {
            scribe.json.raw(&cleaned.json);
            return Ok(());
        }
        match Some(&cleaned.json)
            .filter(|_| model.structured)
            .and_then(|json| schema::restricted(json))
        {
            Some(restricted) => {
                scribe.json.raw(&restricted).key("strict").bool(true);
            }
            None => {
                scribe
                    .warnings
                    .add(Action::Dropped, format_args!("{list}[{index}].strict"));
                scribe.json.raw(&cleaned.json);
            }
        }
        Ok(())
    }
}

/// Writes the member `description`: the caller's text, then a gap and what the schema no longer
/// expresses.
fn description(json: &mut Json, words: Option<&Text<'_>>, note: Option<&str>, gap: &'static str) {
    let words = words.filter(|words| !words.is_empty());
    if words.is_none() && note.is_none() {
        return;
    }
    let gap = words.and(note).map(|_| Text::made(gap));
    let note = note.map(Text::made);
    json.key("description")
        .joined(words.into_iter().chain(&gap).chain(&note));
}

/// Writes a tool that takes free text as a tool that takes an object with one string.
fn in_an_object(json: &mut Json, name: &str, words: Option<&Text<'_>>, format: Option<Value<'_>>) {
    json.key("name").str(name);
    // The format allows any text, so it needs no note.
    let format = format.filter(|format| !format.get("type").is_some_and(|kind| kind.is("text")));
    let note = format.map(|format| {
        let mut compact = Json::default();
        compact.compact(format.raw());
        format!(
            "The input must follow this format: {}",
            String::from_utf8_lossy(compact.as_bytes())
        )
    });
    description(json, words, note.as_deref(), "\n\n");
    json.key("input_schema").raw(CUSTOM_SCHEMA);
}

/// Writes the search tool. `options` come from chat or from the search tool of responses.
fn web_search(json: &mut Json, options: Value<'_>, max_uses: Option<u64>) {
    json.open_object()
        .key("type")
        .str(WEB_SEARCH_TYPE)
        .key("name")
        .str("web_search");
    if let Some(max_uses) = max_uses.filter(|uses| *uses > 0) {
        json.key("max_uses").number(max_uses);
    }
    let domains = options
        .get("filters")
        .and_then(|filters| filters.get("allowed_domains"));
    let mut domains = domains
        .into_iter()
        .flat_map(Value::items)
        .filter_map(Value::text)
        .peekable();
    if domains.peek().is_some() {
        json.key("allowed_domains").open_array();
        for domain in domains {
            json.text(&domain);
        }
        json.close_array();
    }
    let place = options
        .get("user_location")
        .filter(|place| place.is_object());
    let place = place.map(|place| place.get("approximate").unwrap_or(place));
    if let Some(place) = place {
        json.key("user_location")
            .open_object()
            .key("type")
            .str("approximate");
        for (key, value) in place
            .members()
            .filter(|(key, value)| !key.is("type") && !value.is_null())
        {
            json.key_text(&key).compact(value.raw());
        }
        json.close_object();
    }
    json.close_object();
}
