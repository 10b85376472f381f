//! Reads instructions, messages and their blocks.
//!
//! It must not join, move or drop a block: the writer handles empty blocks, blocks of unknown types
//! and misplaced results. It drops only what the IR cannot represent, as the table says.
//!
//! Read next: `messages/read_request/tools.rs`, then `capabilities/pairing.rs`.

use super::check::{
    self, bool_or_false, expect_object, expect_string, invalid_param, optional_string,
    pick_members, require, require_object, require_string,
};
use crate::Protocol;
use crate::ir::{
    Block, BlockKind, CacheBreakpoint, File, FileContent, Image, ImageSource, JsonPath, Opaque,
    RequestResult, Thinking, ToolArguments, ToolCall, ToolResult, ToolResultContent, Turn,
    TurnRole, Warnings,
};
use crate::json::{JsonStr, JsonValue};

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// Container of a block. It determines which block types are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessagesBlockContainer {
    Turn(TurnRole),
    Result,
    Document,
}

/// Reads `system`: a string or text blocks.
pub(super) fn system<'a>(
    value: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Block<'a>>> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if let Some(text) = value.text() {
        return Ok(vec![Block::new(JsonPath::System(0), BlockKind::Text(text))]);
    }
    if !value.is_array() {
        return Err(invalid_param("system", check::NOT_AN_ARRAY));
    }
    let each = value.items().enumerate();
    each.map(|(index, value)| {
        let at = JsonPath::System(index);
        expect_object(value, at)?;
        if !require(value.get("type"), format_args!("{at}.type"))?.is("text") {
            return Err(invalid_param(
                format_args!("{at}.type"),
                "Input should be 'text'",
            ));
        }
        text_block(value, at, "system[text]", warnings)
    })
    .collect()
}

/// Reads `messages`.
pub(super) fn turns<'a>(
    value: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Turn<'a>>> {
    let value = require(value, "messages")?;
    if !value.is_array() {
        return Err(invalid_param("messages", check::NOT_AN_ARRAY));
    }
    if value.items().next().is_none() {
        return Err(invalid_param(
            "messages",
            "at least one message is required",
        ));
    }
    value
        .items()
        .enumerate()
        .map(|(index, message)| turn(index, message, warnings))
        .collect()
}

fn turn<'a>(
    message: usize,
    value: JsonValue<'a>,
    warnings: &mut Warnings,
) -> RequestResult<Turn<'a>> {
    let at = JsonPath::Message(message);
    expect_object(value, at)?;
    let [role, content] = pick_members(value, ["role", "content"], |name, _| {
        check::warn_dropped_member("messages[]", at, &name, warnings)
    });
    let role = require_string(role, format_args!("{at}.role"))?;
    let side = match role.value().as_ref() {
        "user" => TurnRole::User,
        "assistant" => TurnRole::Assistant,
        "system" => TurnRole::System,
        _ => {
            return Err(invalid_param(
                format_args!("{at}.role"),
                "Input should be 'user', 'assistant' or 'system'",
            ));
        }
    };
    let content = require(content, format_args!("{at}.content"))?;
    let mut blocks = match content.text() {
        Some(text) => vec![Block::new(at, BlockKind::Text(text))],
        None if !content.is_array() => {
            return Err(invalid_param(
                format_args!("{at}.content"),
                "Input should be a valid string or array",
            ));
        }
        None => {
            let each = content.items().enumerate();
            let mut read = |(part, value)| {
                block(
                    value,
                    JsonPath::Part(message, part),
                    MessagesBlockContainer::Turn(side),
                    warnings,
                )
            };
            each.map(&mut read).collect::<Result<Vec<_>, _>>()?
        }
    };
    if blocks.is_empty() {
        // An empty array means the same as an empty string. A turn without any block is one that
        // the pairing step emptied.
        blocks.push(Block::new(at, BlockKind::Text(JsonStr::from_value(""))));
    }
    Ok(Turn {
        side,
        blocks,
        at: JsonPath::Message(message),
    })
}

fn block<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    container: MessagesBlockContainer,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    expect_object(value, at)?;
    let kind = require_string(value.get("type"), format_args!("{at}.type"))?;
    let kind_name = kind.value();
    match kind_name.as_ref() {
        "text" => return text_block(value, at, "messages[].content[text]", warnings),
        "image" => return image(value, at, warnings),
        _ => {}
    }
    if container == MessagesBlockContainer::Document {
        return Err(invalid_param(
            at,
            &unexpected_tag(&kind_name, "'image', 'text'"),
        ));
    }
    match (kind_name.as_ref(), container) {
        ("document", _) => document(value, at, warnings),
        ("tool_use", MessagesBlockContainer::Turn(TurnRole::Assistant)) => {
            call(value, at, warnings)
        }
        ("thinking" | "redacted_thinking", MessagesBlockContainer::Turn(TurnRole::Assistant)) => {
            thinking(value, at, warnings)
        }
        ("tool_result", MessagesBlockContainer::Turn(TurnRole::User)) => {
            result(value, at, warnings)
        }
        (kind @ ("tool_use" | "thinking" | "redacted_thinking"), _) => Err(invalid_param(
            at,
            &format!("`{kind}` blocks can only be in `assistant` messages"),
        )),
        ("tool_result", _) => Err(invalid_param(
            at,
            "`tool_result` blocks can only be in `user` messages",
        )),
        _ => Ok(opaque(kind, value, at)),
    }
}

fn unexpected_tag(kind: &str, expected: &str) -> String {
    format!(
        "Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}"
    )
}

/// Keeps a block that only this protocol has, or whose type is unknown.
fn opaque<'a>(kind: JsonStr<'a>, value: JsonValue<'a>, at: JsonPath) -> Block<'a> {
    let opaque = Opaque {
        origin: Protocol::Messages,
        name: kind,
        value,
    };
    Block {
        at,
        cache: cache(value.get("cache_control")),
        kind: BlockKind::Opaque(opaque),
    }
}

fn cache(marker: Option<JsonValue<'_>>) -> Option<CacheBreakpoint> {
    let lifetime = marker?.get("ttl");
    Some(match lifetime {
        Some(lifetime) if lifetime.is("5m") => CacheBreakpoint::FiveMinutes,
        Some(lifetime) if lifetime.is("1h") => CacheBreakpoint::OneHour,
        _ => CacheBreakpoint::Usual,
    })
}

fn text_block<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    row: &str,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    let [_, content, marker] = pick_members(value, ["type", "text", "cache_control"], |name, _| {
        check::warn_dropped_member(row, at, &name, warnings);
    });
    let content = require_string(content, format_args!("{at}.text.text"))?;
    Ok(Block {
        at,
        cache: cache(marker),
        kind: BlockKind::Text(content),
    })
}

fn image<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    let [_, source, marker] =
        pick_members(value, ["type", "source", "cache_control"], |name, _| {
            check::warn_dropped_member("messages[].content[image]", at, &name, warnings);
        });
    let path = format_args!("{at}.image.source");
    let source = require_object(source, path)?;
    let source_kind = require_string(source.get("type"), format_args!("{path}.type"))?;
    let source = match source_kind.value().as_ref() {
        "base64" => {
            let media_type = member_text(source, "media_type", path)?;
            if !IMAGE_TYPES.iter().any(|known| media_type.is(known)) {
                let message =
                    "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'";
                return Err(invalid_param(format_args!("{path}.media_type"), message));
            }
            ImageSource::Base64 {
                media_type,
                data: base64(source, path)?,
            }
        }
        "url" => ImageSource::Url(member_text(source, "url", path)?),
        // A file in the vendor's own storage.
        "file" => return Ok(opaque(JsonStr::from_value("image"), value, at)),
        other => {
            return Err(invalid_param(
                path,
                &unexpected_tag(other, "'base64', 'file', 'url'"),
            ));
        }
    };
    Ok(Block {
        at,
        cache: cache(marker),
        kind: BlockKind::Image(Image {
            source,
            detail: None,
        }),
    })
}

fn document<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    let [_, source, title, context, citations, marker] = pick_members(
        value,
        [
            "type",
            "source",
            "title",
            "context",
            "citations",
            "cache_control",
        ],
        |name, _| check::warn_dropped_member("messages[].content[document]", at, &name, warnings),
    );
    let path = format_args!("{at}.document.source");
    let source = require_object(source, path)?;
    let source_kind = require_string(source.get("type"), format_args!("{path}.type"))?;
    let content = match source_kind.value().as_ref() {
        "base64" => {
            if !member_text(source, "media_type", path)?.is("application/pdf") {
                return Err(invalid_param(
                    format_args!("{path}.media_type"),
                    "Input should be 'application/pdf'",
                ));
            }
            FileContent::Pdf(base64(source, path)?)
        }
        "text" => FileContent::Text(member_text(source, "data", path)?),
        "content" => document_content(source, at, warnings)?,
        "url" => FileContent::Url(member_text(source, "url", path)?),
        // A file in the vendor's own storage.
        "file" => return Ok(opaque(JsonStr::from_value("document"), value, at)),
        other => {
            return Err(invalid_param(
                path,
                &unexpected_tag(other, "'base64', 'content', 'file', 'text', 'url'"),
            ));
        }
    };
    let file = File {
        title: optional_string(title, format_args!("{at}.document.title"))?,
        context: optional_string(context, format_args!("{at}.document.context"))?,
        content,
        wants_citations: wants_citations(citations, at)?,
    };
    Ok(Block {
        at,
        cache: cache(marker),
        kind: BlockKind::File(file),
    })
}

fn document_content<'a>(
    source: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<FileContent<'a>> {
    let path = format_args!("{at}.document.source.content");
    let content = require(source.get("content"), path)?;
    if let Some(text) = content.text() {
        return Ok(FileContent::Text(text));
    }
    if !content.is_array() {
        return Err(invalid_param(
            path,
            "Input should be a valid string or array",
        ));
    }
    let blocks = nested_blocks(content, at, MessagesBlockContainer::Document, warnings)?;
    Ok(FileContent::Blocks(blocks))
}

/// Reads the blocks inside the block at `at`.
fn nested_blocks<'a>(
    content: JsonValue<'a>,
    at: JsonPath,
    container: MessagesBlockContainer,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Block<'a>>> {
    let nested = |index| match at {
        JsonPath::Part(message, part) => JsonPath::Nested(message, part, index),
        other => other,
    };
    let each = content.items().enumerate();
    each.map(|(index, value)| block(value, nested(index), container, warnings))
        .collect()
}

fn wants_citations(citations: Option<JsonValue<'_>>, at: JsonPath) -> RequestResult<bool> {
    bool_or_false(
        citations.and_then(|citations| citations.get("enabled")),
        format_args!("{at}.document.citations.enabled"),
    )
}

fn member_text<'a>(
    object: JsonValue<'a>,
    name: &str,
    path: std::fmt::Arguments<'_>,
) -> RequestResult<JsonStr<'a>> {
    require_string(object.get(name), format_args!("{path}.{name}"))
}

fn base64<'a>(source: JsonValue<'a>, path: std::fmt::Arguments<'_>) -> RequestResult<JsonStr<'a>> {
    let data = member_text(source, "data", path)?;
    let value = data.value();
    let letters = value.trim_end_matches('=');
    let is_base64 = value.len() - letters.len() <= 2
        && letters
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    drop(value);
    if is_base64 {
        Ok(data)
    } else {
        Err(invalid_param(
            format_args!("{path}.data"),
            "Invalid base64 data",
        ))
    }
}

fn call<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    let [_, id, name, input, toolset] = pick_members(
        value,
        ["type", "id", "name", "input", "toolset_name"],
        |name, _| {
            check::warn_dropped_member("messages[].content[tool_use]", at, &name, warnings);
        },
    );
    if toolset.is_some() {
        return Ok(opaque(JsonStr::from_value("tool_use"), value, at));
    }
    let path = format_args!("{at}.tool_use.input");
    let input = require_object(input, path)?;
    let call = ToolCall {
        id: Some(require_string(id, format_args!("{at}.tool_use.id"))?),
        name: require_string(name, format_args!("{at}.tool_use.name"))?,
        arguments: ToolArguments::Json(input),
        is_custom: false,
    };
    Ok(Block::new(at, BlockKind::Call(call)))
}

fn thinking<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    if let Some(data) = value.get("data") {
        let data = expect_string(data, format_args!("{at}.redacted_thinking.data"))?;
        return Ok(Block::new(
            at,
            BlockKind::Thinking(Thinking::Hidden { data }),
        ));
    }
    let [kind, content, signature] =
        pick_members(value, ["type", "thinking", "signature"], |name, _| {
            check::warn_dropped_member("messages[].content[thinking]", at, &name, warnings);
        });
    if kind.is_some_and(|kind| kind.is("redacted_thinking")) {
        return Err(invalid_param(
            format_args!("{at}.redacted_thinking.data"),
            "Field required",
        ));
    }
    let path = format_args!("{at}.thinking.thinking");
    let content = require_string(content, path)?;
    let signature = optional_string(signature, format_args!("{at}.thinking.signature"))?;
    Ok(Block::new(
        at,
        BlockKind::Thinking(Thinking::Shown {
            text: content,
            signature,
        }),
    ))
}

fn result<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    let [_, id, content, is_error] = pick_members(
        value,
        ["type", "tool_use_id", "content", "is_error"],
        |name, _| {
            check::warn_dropped_member("messages[].content[tool_result]", at, &name, warnings);
        },
    );
    let path = format_args!("{at}.tool_result");
    let id = require_string(id, format_args!("{path}.tool_use_id"))?;
    let outcome = ToolResult {
        id: Some(id),
        name: None,
        content: result_content(content, at, warnings)?,
        is_error: bool_or_false(is_error, format_args!("{path}.is_error"))?,
    };
    Ok(Block::new(at, BlockKind::Result(outcome)))
}

fn result_content<'a>(
    content: Option<JsonValue<'a>>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<ToolResultContent<'a>> {
    let Some(content) = content else {
        return Ok(ToolResultContent::Nothing);
    };
    if let Some(text) = content.text() {
        return Ok(ToolResultContent::Text(text));
    }
    if !content.is_array() {
        return Err(invalid_param(
            format_args!("{at}.tool_result.content"),
            "Input should be a valid string or array",
        ));
    }
    let blocks = nested_blocks(content, at, MessagesBlockContainer::Result, warnings)?;
    Ok(ToolResultContent::Blocks(blocks))
}
