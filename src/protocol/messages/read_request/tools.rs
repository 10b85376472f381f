//! Reads the tools and the tool choice of a messages request.
//!
//! It must not look into a schema: the writer checks whether a vendor accepts it.
//!
//! Read next: `chat/write_request/tools.rs`.

use super::check::{self, is_true, object, pick, refused, required, text};
use crate::protocol::form::{At, Choice, Function, Refused, Tool, ToolKind, Warnings};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::collections::HashSet;

pub(super) fn read<'a>(
    value: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<Vec<Tool<'a>>, Refused> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if !value.is_array() {
        return Err(refused("tools", check::NO_ARRAY));
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
            return Err(refused("tools", "Tool names must be unique."));
        }
    }
    drop(names);
    Ok(tools)
}

fn tool<'a>(index: usize, value: Value<'a>, warnings: &mut Warnings) -> Result<Tool<'a>, Refused> {
    let at = At::Tool(index);
    object(value, at)?;
    let kind = value
        .get("type")
        .map(|kind| text(kind, format_args!("{at}.type")))
        .transpose()?;
    if let Some(kind) = kind
        && !kind.is("custom")
    {
        return Ok(Tool {
            index,
            kind: ToolKind::Vendor { kind, value },
            cache: None,
        });
    }
    let [_, name, description, schema, strict, examples, callers] = pick(
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
        |name, _| check::left_out("tools[custom]", at, &name, warnings),
    );
    if let Some(callers) = callers
        && !callers.items().any(|caller| caller.is("direct"))
    {
        // Only code that runs at the vendor may call this tool, which no other protocol can
        // express.
        return Ok(Tool {
            index,
            kind: ToolKind::Vendor {
                kind: Text::made("custom"),
                value,
            },
            cache: None,
        });
    }
    let name = text(
        required(name, format_args!("{at}.name"))?,
        format_args!("{at}.name"),
    )?;
    if name.is_empty() {
        return Err(refused(
            format_args!("{at}.name"),
            "String should have at least 1 character",
        ));
    }
    let schema = required(schema, format_args!("{at}.input_schema"))?;
    object(schema, format_args!("{at}.input_schema"))?;
    if let Some(examples) = examples
        && !examples.is_array()
    {
        return Err(refused(
            format_args!("{at}.input_examples"),
            check::NO_ARRAY,
        ));
    }
    let function = Function {
        name,
        description: description
            .map(|text| check::text(text, format_args!("{at}.description")))
            .transpose()?,
        schema: Some(schema),
        strict: is_true(strict, format_args!("{at}.strict"))?,
        examples: examples.filter(|examples| examples.items().next().is_some()),
    };
    // No vendor of another protocol accepts a cache marker on a tool.
    Ok(Tool {
        index,
        kind: ToolKind::Function(function),
        cache: None,
    })
}

/// Reads the tool choice, and whether the model may call several tools at once.
pub(super) fn choice<'a>(
    value: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<(Choice<'a>, Option<bool>), Refused> {
    let Some(value) = value else {
        return Ok((Choice::Absent, None));
    };
    object(value, "tool_choice")?;
    let [kind, name, alone] = pick(
        value,
        ["type", "name", "disable_parallel_tool_use"],
        |name, _| {
            check::left_out("tool_choice", "tool_choice", &name, warnings);
        },
    );
    let kind = text(required(kind, "tool_choice.type")?, "tool_choice.type")?;
    let choice = match kind.value().as_ref() {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => Choice::Tool(text(
            required(name, "tool_choice.name")?,
            "tool_choice.name",
        )?),
        other => {
            let message = format!(
                "Input tag '{other}' found using 'type' does not match any of the expected tags: \
                 'any', 'auto', 'none', 'tool'"
            );
            return Err(refused("tool_choice", &message));
        }
    };
    let path = "tool_choice.disable_parallel_tool_use";
    let parallel_calls = alone
        .map(|alone| is_true(Some(alone), path))
        .transpose()?
        .map(|alone| !alone);
    Ok((choice, parallel_calls))
}
