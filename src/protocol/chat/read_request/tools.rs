//! Reads the tools of a chat request, both `tools` and the older `functions`, and the tool choice.
//!
//! It must not change a schema or a name: the rules of the target decide that.
//!
//! Read next: `read_request/messages.rs`.

use super::check::{
    Shape, invalid, optional_bool, optional_items, optional_text, required_object, required_text,
    shape, unknown_members, unknown_word, wrong_type,
};
use super::marker;
use crate::protocol::form::{Choice, Function, Refused, Request, Tool, ToolKind, Warnings};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;

pub(super) fn read<'a>(
    body: Value<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let mut names = HashSet::new();
    for (index, value) in optional_items(body, "tools", &"tools")?.enumerate() {
        let tool = tool(index, value, warnings)?;
        unique(&mut names, &tool, "tools", index)?;
        request.tools.push(tool);
    }
    for (index, value) in optional_items(body, "functions", &"functions")?.enumerate() {
        if !request.legacy_functions && !request.tools.is_empty() {
            return Err(invalid(
                "functions",
                "'functions' and 'tools' cannot both be provided.",
            ));
        }
        request.legacy_functions = true;
        shape(value, Shape::Object, format_args!("functions[{index}]"))?;
        let function = function(
            value,
            "functions[]",
            format_args!("functions[{index}]"),
            warnings,
        )?;
        let tool = Tool {
            index,
            kind: ToolKind::Function(function),
            cache: None,
        };
        unique(&mut names, &tool, "functions", index)?;
        request.tools.push(tool);
    }
    request.parallel_calls = optional_bool(body, "parallel_tool_calls", "parallel_tool_calls")?;
    request.choice = choice(body, &names)?;
    Ok(())
}

fn unique<'a>(
    names: &mut HashSet<Cow<'a, str>>,
    tool: &Tool<'a>,
    list: &str,
    index: usize,
) -> Result<(), Refused> {
    let name = match &tool.kind {
        ToolKind::Function(function) => function.name.clone(),
        ToolKind::Custom { name, .. } => name.clone(),
        ToolKind::Vendor { value, .. } => match value.get("name").and_then(Value::text) {
            Some(name) => name,
            None => return Ok(()),
        },
    };
    let name = name.into_value();
    if names.contains(&name) {
        return Err(invalid(
            format_args!("{list}[{index}]"),
            format!("Tool names must be unique: '{name}'."),
        ));
    }
    names.insert(name);
    Ok(())
}

fn tool<'a>(index: usize, value: Value<'a>, warnings: &mut Warnings) -> Result<Tool<'a>, Refused> {
    shape(value, Shape::Object, format_args!("tools[{index}]"))?;
    let kind = required_text(value, "type", format_args!("tools[{index}].type"))?;
    let own = marker(value, format_args!("tools[{index}]"))?;
    if kind.is("function") {
        // Some clients repeat the name here.
        unknown_members(
            value,
            &["type", "function", "cache_control", "name"],
            "tools[]",
            warnings,
        );
        let path = format!("tools[{index}].function");
        let inner = required_object(value, "function", &path)?;
        let cache = own.or(marker(inner, &path)?);
        let function = function(inner, "tools[].function", &path, warnings)?;
        return Ok(Tool {
            index,
            kind: ToolKind::Function(function),
            cache,
        });
    }
    if kind.is("custom") {
        unknown_members(
            value,
            &["type", "custom", "cache_control"],
            "tools[]",
            warnings,
        );
        let path = format!("tools[{index}].custom");
        let inner = required_object(value, "custom", &path)?;
        let cache = own.or(marker(inner, &path)?);
        unknown_members(
            inner,
            &["name", "description", "format", "cache_control"],
            "tools[].custom",
            warnings,
        );
        let kind = ToolKind::Custom {
            name: required_text(inner, "name", format_args!("{path}.name"))?,
            description: optional_text(inner, "description", format_args!("{path}.description"))?,
            format: inner.get("format"),
        };
        return Ok(Tool { index, kind, cache });
    }
    if is_dated(&kind.value()) {
        return Ok(Tool {
            index,
            kind: ToolKind::Vendor { kind, value },
            cache: own,
        });
    }
    Err(unknown_word(
        format_args!("tools[{index}].type"),
        &kind,
        "'function'",
    ))
}

/// Detects a dated tool type of the messages protocol, such as `bash_20250124`.
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
    value: Value<'a>,
    pattern: &str,
    path: impl Display,
    warnings: &mut Warnings,
) -> Result<Function<'a>, Refused> {
    let known = [
        "name",
        "description",
        "parameters",
        "strict",
        "cache_control",
    ];
    unknown_members(value, &known, pattern, warnings);
    let schema = value.get("parameters");
    if let Some(schema) = schema {
        shape(schema, Shape::Object, format_args!("{path}.parameters"))?;
    }
    Ok(Function {
        name: required_text(value, "name", format_args!("{path}.name"))?,
        description: optional_text(value, "description", format_args!("{path}.description"))?,
        schema,
        strict: optional_bool(value, "strict", format_args!("{path}.strict"))?.unwrap_or(false),
        examples: None,
    })
}

fn choice<'a>(body: Value<'a>, names: &HashSet<Cow<'a, str>>) -> Result<Choice<'a>, Refused> {
    let (choice, field, list) = match (body.get("tool_choice"), body.get("function_call")) {
        (Some(value), _) => (tool_choice(value)?, "tool_choice", "tools"),
        (None, Some(value)) => (function_call(value)?, "function_call", "functions"),
        (None, None) => return Ok(Choice::Absent),
    };
    let named = match &choice {
        Choice::Absent | Choice::Auto | Choice::None if names.is_empty() => {
            return Ok(Choice::Absent);
        }
        _ if names.is_empty() => {
            return Err(invalid(
                field,
                format!("'{field}' is only allowed when '{list}' are specified."),
            ));
        }
        Choice::Absent | Choice::Auto | Choice::None | Choice::Required => &[],
        Choice::Tool(name) => std::slice::from_ref(name),
        Choice::Allowed { names, .. } => names.as_slice(),
    };
    if let Some(unknown) = named.iter().find(|name| !names.contains(&name.value())) {
        return Err(invalid(
            field,
            format!("Tool choice '{}' not found in '{list}'.", unknown.value()),
        ));
    }
    Ok(choice)
}

fn tool_choice<'a>(value: Value<'a>) -> Result<Choice<'a>, Refused> {
    if let Some(word) = value.text() {
        return match word.value().as_ref() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            _ => Err(unknown_word(
                "tool_choice",
                &word,
                "'none', 'auto', and 'required'",
            )),
        };
    }
    if !value.is_object() {
        return Err(wrong_type(
            "tool_choice",
            "one of a string or an object",
            value,
        ));
    }
    let kind = required_text(value, "type", "tool_choice.type")?;
    match kind.value().as_ref() {
        "function" => named(value, "function", "tool_choice").map(Choice::Tool),
        "custom" => named(value, "custom", "tool_choice").map(Choice::Tool),
        "allowed_tools" => allowed(value),
        _ => Err(unknown_word(
            "tool_choice.type",
            &kind,
            "'allowed_tools', 'function', and 'custom'",
        )),
    }
}

/// Reads the name from `{"type":"function","function":{"name":"…"}}`.
fn named<'a>(value: Value<'a>, member: &str, path: impl Display) -> Result<Text<'a>, Refused> {
    let inner = required_object(value, member, format_args!("{path}.{member}"))?;
    required_text(inner, "name", format_args!("{path}.{member}.name"))
}

fn allowed<'a>(value: Value<'a>) -> Result<Choice<'a>, Refused> {
    let path = "tool_choice.allowed_tools";
    let inner = required_object(value, "allowed_tools", path)?;
    let mode = required_text(inner, "mode", "tool_choice.allowed_tools.mode")?;
    let required = mode.is("required");
    if !required && !mode.is("auto") {
        return Err(unknown_word(
            "tool_choice.allowed_tools.mode",
            &mode,
            "'auto' and 'required'",
        ));
    }
    let mut names = Vec::new();
    for (index, item) in
        optional_items(inner, "tools", &"tool_choice.allowed_tools.tools")?.enumerate()
    {
        let path = format!("tool_choice.allowed_tools.tools[{index}]");
        let member = if item.get("custom").is_some() {
            "custom"
        } else {
            "function"
        };
        names.push(named(item, member, path)?);
    }
    if names.is_empty() {
        return Err(invalid(
            path,
            "[] is too short - 'tool_choice.allowed_tools.tools'",
        ));
    }
    Ok(Choice::Allowed { names, required })
}

fn function_call<'a>(value: Value<'a>) -> Result<Choice<'a>, Refused> {
    match value.text() {
        Some(word) if word.is("auto") => Ok(Choice::Auto),
        Some(word) if word.is("none") => Ok(Choice::None),
        Some(word) => Err(unknown_word("function_call", &word, "'none' and 'auto'")),
        None if value.is_object() => {
            required_text(value, "name", "function_call.name").map(Choice::Tool)
        }
        None => Err(wrong_type(
            "function_call",
            "one of a string or an object",
            value,
        )),
    }
}
