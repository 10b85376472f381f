//! Reads tools of every type as functions and custom tools with a qualified name.
//!
//! A namespace becomes a prefix of the names of its members, and tools that a client runs itself
//! become functions. The reader records the original tool under its qualified name: agents identify
//! a call by type, namespace and name, and end the turn if they do not match. The names must not
//! depend on state: the same request always yields the same names.
//!
//! Read next: `read_request/builtin.rs`.

use super::builtin;
use super::settings::refuse_with_code;
use crate::Protocol;
use crate::ir::event::{ClientTool, ToolCallKind};
use crate::ir::{
    CacheBreakpoint, FunctionTool, Opaque, Request, RequestResult, Tool, ToolChoice, ToolKind,
    Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::cache_marker::cache_marker;
use crate::openai::check::{
    MemberType, check_type, optional_object, optional_text, refuse, refuse_type, refuse_value,
    required_text,
};
use crate::openai::tool_names::WEB_SEARCH_MEMBER;
use std::collections::HashMap;

/// Function name of the tool search.
pub(super) const TOOL_SEARCH: &str = "tool_search";

/// Name of the vendor's web search tool.
const WEB_SEARCH: &str = "web_search";

/// Separator between a namespace and a name.
const NAMESPACE_SEPARATOR: &str = "__";

/// Returns the name with its namespace as a prefix.
pub(super) fn qualified_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        None => name.to_owned(),
        Some(namespace) if namespace.ends_with(NAMESPACE_SEPARATOR) => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}{NAMESPACE_SEPARATOR}{name}"),
    }
}

/// Reads the tools and the tool choice. `may_search` says whether the model has a price for
/// searches.
pub(super) fn read<'a>(
    body: JsonValue<'a>,
    may_search: bool,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    let mut tools = ResponsesTools {
        body,
        warnings,
        list: Vec::new(),
        places: HashMap::new(),
        own: HashMap::new(),
        left_out: None,
        may_search,
        search: None,
    };
    tools.read()?;
    tools.apply_choice(request)
}

/// The tools of a request, from all members that define tools.
struct ResponsesTools<'a, 'w> {
    body: JsonValue<'a>,
    warnings: &'w mut Warnings,
    list: Vec<Tool<'a>>,
    /// Index of each tool in the list, by name.
    places: HashMap<String, usize>,
    own: HashMap<String, ClientTool>,
    /// Error for the first hosted tool that was dropped.
    left_out: Option<String>,
    /// True if the model's vendor may run searches.
    may_search: bool,
    /// The vendor's search tool. If there are several, the first one counts.
    search: Option<JsonValue<'a>>,
}

/// A tool definition that is to be added to the list.
struct ResponsesToolEntry<'a, 'n> {
    value: JsonValue<'a>,
    path: &'n str,
    index: usize,
    namespace: Option<&'n Namespace>,
}

struct Namespace {
    name: String,
    description: String,
}

impl<'a> ResponsesTools<'a, '_> {
    fn is_empty(&self) -> bool {
        self.list.is_empty() && self.search.is_none()
    }

    /// Reads `tools`, then the tools that items add.
    fn read(&mut self) -> RequestResult {
        self.add(self.body.get("tools"), "tools", None)?;
        let items = self.body.items_of("input");
        for (index, item) in items.enumerate() {
            let is = |expected| item.member_is("type", expected);
            if is("additional_tools") || is("tool_search_output") {
                self.add(item.get("tools"), &format!("input[{index}].tools"), None)?;
            }
        }
        match self.left_out.take().filter(|_| self.is_empty()) {
            Some(message) => refuse_with_code("tools", message, "unsupported_value"),
            None => Ok(()),
        }
    }

    /// Adds the tools of a list. The tools of a namespace keep the index of the tool that contains
    /// them.
    fn add(
        &mut self,
        tools: Option<JsonValue<'a>>,
        path: &str,
        within: Option<(usize, &Namespace)>,
    ) -> RequestResult {
        let Some(tools) = tools else { return Ok(()) };
        check_type(tools, MemberType::Array, path)?;
        for (number, value) in tools.items().enumerate() {
            self.tool(&ResponsesToolEntry {
                value,
                path: &format!("{path}[{number}]"),
                index: within.map_or(number, |(index, _)| index),
                namespace: within.map(|(_, namespace)| namespace),
            })?;
        }
        Ok(())
    }

    fn tool(&mut self, found: &ResponsesToolEntry<'a, '_>) -> RequestResult {
        let ResponsesToolEntry { value, path, .. } = *found;
        check_type(value, MemberType::Object, path)?;
        let kind = required_text(value, "type", path)?;
        if value
            .get("allowed_callers")
            .is_some_and(|callers| !callers.items().any(|caller| caller.is("direct")))
        {
            let message = format!("{path}: only 'direct' callers are available on this endpoint.");
            return refuse_with_code(
                &format!("{path}.allowed_callers"),
                message,
                "unsupported_value",
            );
        }
        match kind.value().as_ref() {
            "function" => self.function(found),
            "custom" => self.custom(found),
            "namespace" if found.namespace.is_none() => self.namespace(found),
            TOOL_SEARCH => {
                // A tool search at the vendor has no effect in translation, because the tools that
                // it would find are sent directly.
                let is_client = value.member_is("execution", "client");
                if is_client {
                    self.tool_search(found)
                } else {
                    Ok(())
                }
            }
            "programmatic_tool_calling" => {
                self.warnings.dropped(path);
                Ok(())
            }
            word => {
                let is_local = value
                    .find(["environment", "type"])
                    .is_none_or(|it| it.is("local"));
                if let Some(builtin) = builtin::find(word).filter(|_| is_local) {
                    self.builtin(found, builtin);
                    return Ok(());
                }
                let is_cached_only =
                    value.get("external_web_access").and_then(JsonValue::bool) == Some(false);
                if word.starts_with("web_search") && self.may_search && !is_cached_only {
                    self.search.get_or_insert(value);
                    return Ok(());
                }
                self.reject_hosted(word, path)
            }
        }
    }

    /// Handles a tool that a vendor would run. A web search is dropped, because agents offer one
    /// with every request and a model without a search does not claim to have searched.
    fn reject_hosted(&mut self, kind: &str, path: &str) -> RequestResult {
        let model = self.body.string_of("model").unwrap_or_default();
        let message = format!("{path}: '{kind}' is not available for model '{model}'.");
        if kind.starts_with("web_search") {
            self.warnings.dropped(path);
            self.left_out.get_or_insert(message);
            return Ok(());
        }
        match kind {
            "image_generation" | "code_interpreter" | "file_search" | "mcp" | "shell" => {}
            kind if kind.starts_with("computer") => {}
            _ => {
                return refuse_value(format_args!("{path}.type"), &JsonStr::from_value(kind), "");
            }
        }
        refuse_with_code(path, message, "unsupported_value")
    }

    fn namespace(&mut self, found: &ResponsesToolEntry<'a, '_>) -> RequestResult {
        let ResponsesToolEntry {
            value, path, index, ..
        } = *found;
        let namespace = Namespace {
            name: required_name(value, path)?.into_value().into_owned(),
            description: value
                .string_of("description")
                .unwrap_or_default()
                .trim()
                .to_owned(),
        };
        let path = format!("{path}.tools");
        self.add(value.get("tools"), &path, Some((index, &namespace)))
    }

    fn function(&mut self, found: &ResponsesToolEntry<'a, '_>) -> RequestResult {
        let ResponsesToolEntry { value, path, .. } = *found;
        let own = required_name(value, path)?;
        let schema = optional_object(value, "parameters", path)?;
        let function = FunctionTool {
            name: self.register_name(found, &own, ToolCallKind::Function),
            description: full_description(found)?,
            schema,
            // Without `strict`, the responses vendor tries to be strict but promises only its best
            // effort.
            strict: value.get("strict").and_then(JsonValue::bool) == Some(true),
            examples: None,
        };
        let cache = cache_marker(value, path)?;
        self.insert(found, ToolKind::Function(function), cache);
        Ok(())
    }

    fn custom(&mut self, found: &ResponsesToolEntry<'a, '_>) -> RequestResult {
        let ResponsesToolEntry { value, path, .. } = *found;
        let own = required_name(value, path)?;
        let format = optional_object(value, "format", path)?;
        let kind = ToolKind::Custom {
            name: self.register_name(found, &own, ToolCallKind::Custom),
            description: full_description(found)?,
            format,
        };
        let cache = cache_marker(value, path)?;
        self.insert(found, kind, cache);
        Ok(())
    }

    fn tool_search(&mut self, found: &ResponsesToolEntry<'a, '_>) -> RequestResult {
        let ResponsesToolEntry { value, path, .. } = *found;
        let schema = optional_object(value, "parameters", path)?;
        let function = FunctionTool {
            name: self.register_name(
                found,
                &JsonStr::from_value(TOOL_SEARCH),
                ToolCallKind::ToolSearch,
            ),
            description: optional_text(value, "description", path)?,
            schema,
            strict: false,
            examples: None,
        };
        self.insert(found, ToolKind::Function(function), None);
        Ok(())
    }

    fn builtin(&mut self, found: &ResponsesToolEntry<'a, '_>, builtin: &'static builtin::Builtin) {
        let function = FunctionTool {
            name: self.register_name(found, &JsonStr::from_value(builtin.name), builtin.kind),
            description: Some(JsonStr::from_value(builtin.description)),
            schema: builtin.schema(),
            strict: false,
            examples: None,
        };
        self.insert(found, ToolKind::Function(function), None);
    }

    /// Returns the qualified name, and records the original tool for it.
    fn register_name(
        &mut self,
        found: &ResponsesToolEntry<'a, '_>,
        own: &JsonStr<'a>,
        kind: ToolCallKind,
    ) -> JsonStr<'a> {
        let namespace = found.namespace.map(|namespace| namespace.name.as_str());
        if namespace.is_none() && kind == ToolCallKind::Function {
            self.own.remove(own.value().as_ref());
            return own.clone();
        }
        let flat = qualified_name(namespace, &own.value());
        let tool = ClientTool {
            namespace: namespace.map(str::to_owned),
            name: own.value().into_owned(),
            kind,
        };
        self.own.insert(flat.clone(), tool);
        JsonStr::from_value(flat)
    }

    /// Adds a tool to the list. A later tool replaces an earlier one of the same name at its
    /// position, because a tool search that finds a tool again returns its newest definition.
    fn insert(
        &mut self,
        found: &ResponsesToolEntry<'a, '_>,
        kind: ToolKind<'a>,
        cache: Option<CacheBreakpoint>,
    ) {
        let name = match &kind {
            ToolKind::Function(function) => function.name.value().into_owned(),
            ToolKind::Custom { name, .. } => name.value().into_owned(),
            ToolKind::Vendor { .. } => return,
        };
        let tool = Tool {
            index: found.index,
            kind,
            cache,
        };
        match self
            .places
            .get(&name)
            .and_then(|slot| self.list.get_mut(*slot))
        {
            Some(slot) => *slot = tool,
            None => {
                self.places.insert(name, self.list.len());
                self.list.push(tool);
            }
        }
    }

    /// Reads `tool_choice`, and moves the tools into the request.
    fn apply_choice(mut self, request: &mut Request<'a>) -> RequestResult {
        request.choice = self.choice()?;
        if matches!(&request.choice, ToolChoice::Allowed { names, .. } if !names.iter().any(|name| name.is(WEB_SEARCH)))
        {
            self.search = None;
        }
        if let Some(value) = self.search {
            request.extra.push(Opaque {
                origin: Protocol::Responses,
                name: JsonStr::from_value(WEB_SEARCH_MEMBER),
                value,
            });
        }
        request.tools = self.list;
        request.own_tools = self.own;
        Ok(())
    }

    fn choice(&mut self) -> RequestResult<ToolChoice<'a>> {
        let Some(choice) = self.body.get("tool_choice") else {
            return Ok(ToolChoice::Absent);
        };
        if let Some(word) = choice.text() {
            return match word.value().as_ref() {
                // Agents send these choices without tools too.
                "auto" | "none" if self.is_empty() => Ok(ToolChoice::Absent),
                "required" if self.is_empty() => refuse(
                    "tool_choice",
                    "Tool choice 'required' must be specified with 'tools' parameter.",
                ),
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                _ => refuse_value("tool_choice", &word, "'none', 'auto', and 'required'"),
            };
        }
        if !choice.is_object() {
            return refuse_type("tool_choice", "one of a string or an object", choice);
        }
        let kind = required_text(choice, "type", "tool_choice")?;
        if !kind.is("allowed_tools") {
            return self.find_tool(choice, "tool_choice").map(ToolChoice::Tool);
        }
        let mode = required_text(choice, "mode", "tool_choice")?;
        if !mode.is("auto") && !mode.is("required") {
            return refuse_value("tool_choice.mode", &mode, "'auto' and 'required'");
        }
        let mut names = Vec::new();
        for (index, tool) in choice.items_of("tools").enumerate() {
            let path = format!("tool_choice.tools[{index}]");
            if tool
                .string_of("type")
                .is_some_and(|kind| kind.starts_with("web_search"))
                && self.search.is_none()
            {
                self.warnings.dropped(&path);
                continue;
            }
            names.push(self.find_tool(tool, &path)?);
        }
        Ok(ToolChoice::Allowed {
            names,
            required: mode.is("required"),
        })
    }

    /// Returns the qualified name of the tool to which a choice object refers.
    fn find_tool(&self, choice: JsonValue<'a>, path: &str) -> RequestResult<JsonStr<'a>> {
        let kind = required_text(choice, "type", path)?;
        let (own, namespace) = match kind.value().as_ref() {
            "function" | "custom" => {
                let own = required_name(choice, path)?.into_value().into_owned();
                (own, choice.string_of("namespace"))
            }
            word if word.starts_with("web_search") && self.search.is_some() => {
                return Ok(JsonStr::from_value(WEB_SEARCH));
            }
            word => (word.to_owned(), None),
        };
        let flat = qualified_name(namespace.as_deref(), &own);
        if self.places.contains_key(&flat) {
            return Ok(JsonStr::from_value(flat));
        }
        // A bare name identifies a tool if only one namespace has the name.
        let mut like = self.own.iter().filter(|(_, tool)| tool.name == own);
        match (like.next(), like.next()) {
            (Some((flat, _)), None) => Ok(JsonStr::from_value(flat.clone())),
            _ => refuse(path, format!("Tool choice '{own}' not found in 'tools'.")),
        }
    }
}

/// Lists the tools that a tool search found, one per line.
pub(super) fn list_found_tools(tools: Option<JsonValue<'_>>) -> String {
    let mut lines = Vec::new();
    let line = |namespace: Option<&str>, tool: JsonValue<'_>| {
        let name = tool.string_of("name").unwrap_or_default();
        let description = tool.string_of("description").unwrap_or_default();
        format!(
            "- {}: {}",
            qualified_name(namespace, &name),
            description.lines().next().unwrap_or_default()
        )
    };
    for tool in tools.into_iter().flat_map(JsonValue::items) {
        if tool.member_is("type", "namespace") {
            let namespace = tool.string_of("name");
            let members = tool.items_of("tools");
            lines.extend(members.map(|member| line(namespace.as_deref(), member)));
        } else {
            lines.push(line(None, tool));
        }
    }
    lines.join("\n")
}

fn required_name<'a>(of: JsonValue<'a>, path: &str) -> RequestResult<JsonStr<'a>> {
    let name = required_text(of, "name", path)?;
    if name.is_empty() {
        return refuse(
            format_args!("{path}.name"),
            format!("Invalid '{path}.name': empty string."),
        );
    }
    Ok(name)
}

/// Returns the description of the tool's namespace, followed by the tool's own.
fn full_description<'a>(found: &ResponsesToolEntry<'a, '_>) -> RequestResult<Option<JsonStr<'a>>> {
    let own = optional_text(found.value, "description", found.path)?;
    let Some(namespace) = found
        .namespace
        .filter(|namespace| !namespace.description.is_empty())
    else {
        return Ok(own);
    };
    let first: Vec<&str> = namespace.description.lines().map(str::trim).collect();
    let first = first.join(" ");
    Ok(Some(match own.filter(|own| !own.is_blank()) {
        None => JsonStr::from_value(first),
        Some(own) => JsonStr::from_value(format!("{first}\n{}", own.value())),
    }))
}
