//! Reads the tools and the tool choice of a messages request.
//!
//! This file must not inspect a schema: the writer checks whether a vendor accepts the schema.
//!
//! Read next: `openai/tools.rs`.

use super::check::{
    self, bool_or_false, expect_object, optional_string, pick_known, refuse, require_object,
    require_string, unexpected_tag,
};
use crate::ir::{FunctionTool, JsonPath, RequestResult, Tool, ToolChoice, ToolKind, Warnings};
use crate::json::{JsonStr, JsonValue};
use std::collections::HashSet;

pub(super) fn read<'a>(
    value: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Tool<'a>>> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if !value.is_array() {
        return refuse("tools", check::NOT_AN_ARRAY);
    }
    let each = value.items().enumerate();
    let tools: Vec<_> = each
        .map(|(index, value)| tool(index, value, warnings))
        .collect::<Result<_, _>>()?;
    let mut names = HashSet::new();
    for tool in &tools {
        if let ToolKind::Function(function) = &tool.kind
            && !names.insert(function.name.value())
        {
            return refuse("tools", "Tool names must be unique.");
        }
    }
    drop(names);
    Ok(tools)
}

fn tool<'a>(
    index: usize,
    value: JsonValue<'a>,
    warnings: &mut Warnings,
) -> RequestResult<Tool<'a>> {
    let at = JsonPath::Tool(index);
    expect_object(value, at)?;
    // No vendor of another protocol accepts a cache marker on a tool.
    let tool = |kind| Tool {
        index,
        kind,
        cache: None,
    };
    let kind = optional_string(value.get("type"), format_args!("{at}.type"))?;
    if let Some(kind) = kind
        && !kind.is("custom")
    {
        return Ok(tool(ToolKind::Vendor { kind, value }));
    }
    let [_, name, description, schema, strict, examples, callers] = pick_known(
        value,
        [
            "type",
            "name",
            "description",
            "input_schema",
            "strict",
            "input_examples",
            "allowed_callers",
        ],
        "tools[custom]",
        at,
        warnings,
    );
    if let Some(callers) = callers
        && !callers.items().any(|caller| caller.is("direct"))
    {
        // Only code that runs at the vendor may call this tool, which no other protocol can
        // express.
        let kind = JsonStr::from_value("custom");
        return Ok(tool(ToolKind::Vendor { kind, value }));
    }
    let name = require_string(name, format_args!("{at}.name"))?;
    if name.is_empty() {
        return refuse(
            format_args!("{at}.name"),
            "String should have at least 1 character",
        );
    }
    let schema = require_object(schema, format_args!("{at}.input_schema"))?;
    if let Some(examples) = examples
        && !examples.is_array()
    {
        return refuse(format_args!("{at}.input_examples"), check::NOT_AN_ARRAY);
    }
    let function = FunctionTool {
        name,
        description: optional_string(description, format_args!("{at}.description"))?,
        schema: Some(schema),
        strict: bool_or_false(strict, format_args!("{at}.strict"))?,
        examples: examples.filter(|examples| examples.items().next().is_some()),
    };
    Ok(tool(ToolKind::Function(function)))
}

/// Reads the tool choice, and whether the model may call several tools at once.
pub(super) fn choice<'a>(
    value: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<(ToolChoice<'a>, Option<bool>)> {
    let Some(value) = value else {
        return Ok((ToolChoice::Absent, None));
    };
    expect_object(value, "tool_choice")?;
    let names = ["type", "name", "disable_parallel_tool_use"];
    let [kind, name, alone] = pick_known(value, names, "tool_choice", "tool_choice", warnings);
    let kind = require_string(kind, "tool_choice.type")?;
    let choice = match kind.value().as_ref() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Tool(require_string(name, "tool_choice.name")?),
        other => {
            let message = unexpected_tag(other, "'any', 'auto', 'none', 'tool'");
            return refuse("tool_choice", message);
        }
    };
    let path = "tool_choice.disable_parallel_tool_use";
    let parallel_calls = alone
        .map(|alone| bool_or_false(Some(alone), path))
        .transpose()?
        .map(|alone| !alone);
    Ok((choice, parallel_calls))
}
