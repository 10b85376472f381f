//! Reads the tools of a chat request, both `tools` and the older `functions`, and the tool choice.
//!
//! This file must not change a schema or a name. The rules of the target decide about changes.
//!
//! Read next: `read_request/messages.rs`.

use crate::ir::{
    FunctionTool, JsonPath, Request, RequestResult, Tool, ToolChoice, ToolKind, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::cache_marker::cache_marker;
use crate::openai::check::{
    MemberType, check_type, optional_bool, optional_items, optional_object, optional_text, refuse,
    refuse_type, refuse_value, required_object, required_text, warn_unknown_members,
};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;

pub(super) fn read<'a>(
    body: JsonValue<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    let mut names = HashSet::new();
    for (index, value) in optional_items(body, "tools", &"")?.enumerate() {
        let tool = tool(index, value, warnings)?;
        check_unique_name(&mut names, &tool, "tools", index)?;
        request.tools.push(tool);
    }
    for (index, value) in optional_items(body, "functions", &"")?.enumerate() {
        if !request.legacy_functions && !request.tools.is_empty() {
            return refuse(
                "functions",
                "'functions' and 'tools' cannot both be provided.",
            );
        }
        request.legacy_functions = true;
        let path = format_args!("functions[{index}]");
        check_type(value, MemberType::Object, path)?;
        let function = function(value, "functions[]", path, warnings)?;
        let tool = Tool {
            index,
            kind: ToolKind::Function(function),
            cache: None,
        };
        check_unique_name(&mut names, &tool, "functions", index)?;
        request.tools.push(tool);
    }
    request.parallel_calls = optional_bool(body, "parallel_tool_calls", "")?;
    request.choice = choice(body, &names)?;
    Ok(())
}

fn check_unique_name<'a>(
    names: &mut HashSet<Cow<'a, str>>,
    tool: &Tool<'a>,
    list: &str,
    index: usize,
) -> RequestResult {
    let name = match &tool.kind {
        ToolKind::Function(function) => function.name.clone(),
        ToolKind::Custom { name, .. } => name.clone(),
        ToolKind::Vendor { value, .. } => match value.text_of("name") {
            Some(name) => name,
            None => return Ok(()),
        },
    };
    let name = name.into_value();
    if names.contains(&name) {
        return refuse(
            format_args!("{list}[{index}]"),
            format!("Tool names must be unique: '{name}'."),
        );
    }
    names.insert(name);
    Ok(())
}

fn tool<'a>(
    index: usize,
    value: JsonValue<'a>,
    warnings: &mut Warnings,
) -> RequestResult<Tool<'a>> {
    let at = JsonPath::Tool(index);
    check_type(value, MemberType::Object, at)?;
    let kind = required_text(value, "type", at)?;
    let own = cache_marker(value, at)?;
    if is_dated(&kind.value()) {
        return Ok(Tool {
            index,
            kind: ToolKind::Vendor { kind, value },
            cache: own,
        });
    }
    let is_custom = kind.is("custom");
    if !is_custom && !kind.is("function") {
        return refuse_value(format_args!("{at}.type"), &kind, "'function'");
    }
    let (name, known) = match is_custom {
        true => ("custom", ["type", "custom", "cache_control"].as_slice()),
        // Some clients repeat the tool's name beside the type.
        false => (
            "function",
            ["type", "function", "cache_control", "name"].as_slice(),
        ),
    };
    warn_unknown_members(value, known, "tools[]", warnings);
    let inner = required_object(value, name, at)?;
    let path = format!("{at}.{name}");
    let cache = own.or(cache_marker(inner, &path)?);
    let kind = if is_custom {
        let known = ["name", "description", "format", "cache_control"];
        warn_unknown_members(inner, &known, "tools[].custom", warnings);
        ToolKind::Custom {
            name: required_text(inner, "name", &path)?,
            description: optional_text(inner, "description", &path)?,
            format: inner.get("format"),
        }
    } else {
        ToolKind::Function(function(inner, "tools[].function", &path, warnings)?)
    };
    Ok(Tool { index, kind, cache })
}

/// Returns whether the type is a dated tool type of the messages protocol, such as `bash_20250124`.
fn is_dated(kind: &str) -> bool {
    kind.rsplit_once('_').is_some_and(|(name, date)| {
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        is_name
            && date.len() == 8
            && date.starts_with("20")
            && date.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn function<'a>(
    value: JsonValue<'a>,
    pattern: &str,
    path: impl Display,
    warnings: &mut Warnings,
) -> RequestResult<FunctionTool<'a>> {
    let known = [
        "name",
        "description",
        "parameters",
        "strict",
        "cache_control",
    ];
    warn_unknown_members(value, &known, pattern, warnings);
    let schema = optional_object(value, "parameters", &path)?;
    Ok(FunctionTool {
        name: required_text(value, "name", &path)?,
        description: optional_text(value, "description", &path)?,
        schema,
        strict: optional_bool(value, "strict", &path)?.unwrap_or(false),
        examples: None,
    })
}

fn choice<'a>(body: JsonValue<'a>, names: &HashSet<Cow<'a, str>>) -> RequestResult<ToolChoice<'a>> {
    let (choice, field, list) = match (body.get("tool_choice"), body.get("function_call")) {
        (Some(value), _) => (tool_choice(value)?, "tool_choice", "tools"),
        (None, Some(value)) => (function_call(value)?, "function_call", "functions"),
        (None, None) => return Ok(ToolChoice::Absent),
    };
    let named = match &choice {
        ToolChoice::Absent | ToolChoice::Auto | ToolChoice::None if names.is_empty() => {
            return Ok(ToolChoice::Absent);
        }
        _ if names.is_empty() => {
            return refuse(
                field,
                format!("'{field}' is only allowed when '{list}' are specified."),
            );
        }
        ToolChoice::Absent | ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => &[],
        ToolChoice::Tool(name) => std::slice::from_ref(name),
        ToolChoice::Allowed { names, .. } => names.as_slice(),
    };
    if let Some(unknown) = named.iter().find(|name| !names.contains(&name.value())) {
        return refuse(
            field,
            format!("Tool choice '{}' not found in '{list}'.", unknown.value()),
        );
    }
    Ok(choice)
}

fn tool_choice<'a>(value: JsonValue<'a>) -> RequestResult<ToolChoice<'a>> {
    if let Some(word) = value.text() {
        return match word.value().as_ref() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => refuse_value("tool_choice", &word, "'none', 'auto', and 'required'"),
        };
    }
    if !value.is_object() {
        return refuse_type("tool_choice", "one of a string or an object", value);
    }
    let kind = required_text(value, "type", "tool_choice")?;
    match kind.value().as_ref() {
        "function" => tool_name(value, "function", "tool_choice").map(ToolChoice::Tool),
        "custom" => tool_name(value, "custom", "tool_choice").map(ToolChoice::Tool),
        "allowed_tools" => allowed_tools(value),
        _ => refuse_value(
            "tool_choice.type",
            &kind,
            "'allowed_tools', 'function', and 'custom'",
        ),
    }
}

/// Reads the name from `{"type":"function","function":{"name":"…"}}`.
fn tool_name<'a>(
    value: JsonValue<'a>,
    member: &str,
    path: impl Display,
) -> RequestResult<JsonStr<'a>> {
    let inner = required_object(value, member, &path)?;
    required_text(inner, "name", format_args!("{path}.{member}"))
}

fn allowed_tools<'a>(value: JsonValue<'a>) -> RequestResult<ToolChoice<'a>> {
    let path = "tool_choice.allowed_tools";
    let inner = required_object(value, "allowed_tools", "tool_choice")?;
    let mode = required_text(inner, "mode", "tool_choice.allowed_tools")?;
    let required = mode.is("required");
    if !required && !mode.is("auto") {
        return refuse_value(
            "tool_choice.allowed_tools.mode",
            &mode,
            "'auto' and 'required'",
        );
    }
    let mut names = Vec::new();
    for (index, item) in optional_items(inner, "tools", &"tool_choice.allowed_tools")?.enumerate() {
        let path = format!("tool_choice.allowed_tools.tools[{index}]");
        let member = if item.get("custom").is_some() {
            "custom"
        } else {
            "function"
        };
        names.push(tool_name(item, member, path)?);
    }
    if names.is_empty() {
        return refuse(path, "[] is too short - 'tool_choice.allowed_tools.tools'");
    }
    Ok(ToolChoice::Allowed { names, required })
}

fn function_call<'a>(value: JsonValue<'a>) -> RequestResult<ToolChoice<'a>> {
    match value.text() {
        Some(word) if word.is("auto") => Ok(ToolChoice::Auto),
        Some(word) if word.is("none") => Ok(ToolChoice::None),
        Some(word) => refuse_value("function_call", &word, "'none' and 'auto'"),
        None if value.is_object() => {
            required_text(value, "name", "function_call").map(ToolChoice::Tool)
        }
        None => refuse_type("function_call", "one of a string or an object", value),
    }
}
