//! Reads instructions, messages and their blocks.
//!
//! This file must not join, move or drop a block: the writer handles empty blocks, blocks of
//! unknown types and misplaced results. It drops only members that the IR cannot represent, by the
//! rows of the table.
//!
//! Read next: `messages/read_request/tools.rs`, then `capabilities/pairing.rs`.

use super::check::{
    self, bool_or_false, expect_object, optional_string, pick_known, refuse, require,
    require_object, require_string, unexpected_tag,
};
use crate::Protocol;
use crate::ir::{
    Block, BlockKind, CacheBreakpoint, File, FileContent, Image, ImageSource, JsonPath, Opaque,
    RequestResult, Thinking, ToolArguments, ToolCall, ToolResult, ToolResultContent, Turn,
    TurnRole, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use std::fmt::{self, Display};

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

const NOT_TEXT_OR_ARRAY: &str = "Input should be a valid string or array";

/// Container of a block, which determines the allowed block types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MessagesBlockContainer {
    Turn(TurnRole),
    Result,
    Document,
}

/// Reads `system`, which is a string or a list of text blocks.
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
        return refuse("system", check::NOT_AN_ARRAY);
    }
    let each = value.items().enumerate();
    each.map(|(index, value)| {
        let at = JsonPath::System(index);
        expect_object(value, at)?;
        if !require(value.get("type"), format_args!("{at}.type"))?.is("text") {
            return refuse(format_args!("{at}.type"), "Input should be 'text'");
        }
        let reader = BlockReader {
            kind: "text",
            value,
            at,
            warnings,
        };
        reader.text()
    })
    .collect()
}

pub(super) fn turns<'a>(
    value: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Turn<'a>>> {
    let value = require(value, "messages")?;
    if !value.is_array() {
        return refuse("messages", check::NOT_AN_ARRAY);
    }
    if value.items().next().is_none() {
        return refuse("messages", "at least one message is required");
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
    let [role, content] = pick_known(value, ["role", "content"], "messages[]", at, warnings);
    let role = require_string(role, format_args!("{at}.role"))?;
    let side = match role.value().as_ref() {
        "user" => TurnRole::User,
        "assistant" => TurnRole::Assistant,
        "system" => TurnRole::System,
        _ => {
            return refuse(
                format_args!("{at}.role"),
                "Input should be 'user', 'assistant' or 'system'",
            );
        }
    };
    let content = require(content, format_args!("{at}.content"))?;
    let mut blocks: Vec<_> = match content.text() {
        Some(text) => vec![Block::new(at, BlockKind::Text(text))],
        None if !content.is_array() => {
            return refuse(format_args!("{at}.content"), NOT_TEXT_OR_ARRAY);
        }
        None => {
            let container = MessagesBlockContainer::Turn(side);
            let each = content.items().enumerate();
            each.map(|(part, value)| {
                block(value, JsonPath::Part(message, part), container, warnings)
            })
            .collect::<Result<_, _>>()?
        }
    };
    if blocks.is_empty() {
        // An empty array means the same as an empty string. A turn without blocks would look like
        // one that the pairing step emptied.
        blocks.push(Block::new(at, BlockKind::Text(JsonStr::from_value(""))));
    }
    Ok(Turn { side, blocks, at })
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
    let reader = BlockReader {
        kind: &kind_name,
        value,
        at,
        warnings,
    };
    match (kind_name.as_ref(), container) {
        ("text", _) => reader.text(),
        ("image", _) => reader.image(),
        (kind, MessagesBlockContainer::Document) => {
            refuse(at, unexpected_tag(kind, "'image', 'text'"))
        }
        ("document", _) => reader.document(),
        ("tool_use", MessagesBlockContainer::Turn(TurnRole::Assistant)) => reader.call(),
        ("thinking" | "redacted_thinking", MessagesBlockContainer::Turn(TurnRole::Assistant)) => {
            reader.thinking()
        }
        ("tool_result", MessagesBlockContainer::Turn(TurnRole::User)) => reader.result(),
        (kind @ ("tool_use" | "thinking" | "redacted_thinking"), _) => refuse(
            at,
            format_args!("`{kind}` blocks can only be in `assistant` messages"),
        ),
        ("tool_result", _) => refuse(at, "`tool_result` blocks can only be in `user` messages"),
        _ => Ok(opaque(kind, value, at)),
    }
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
        cache: value.get("cache_control").map(CacheBreakpoint::from_marker),
        kind: BlockKind::Opaque(opaque),
    }
}

struct BlockReader<'a, 'w> {
    /// Type of the block, which is part of the paths in errors.
    kind: &'w str,
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &'w mut Warnings,
}

impl<'a, 'w> BlockReader<'a, 'w> {
    /// Returns the members with these names, and drops all others.
    fn pick<const N: usize>(&mut self, names: [&str; N]) -> [Option<JsonValue<'a>>; N] {
        let row = format_args!("messages[].content[{}]", self.kind);
        pick_known(self.value, names, row, self.at, self.warnings)
    }

    /// Returns the path of a member for errors.
    fn path(&self, name: &str) -> impl Display {
        let (at, kind) = (self.at, self.kind);
        fmt::from_fn(move |to| write!(to, "{at}.{kind}.{name}"))
    }

    fn invalid<T>(&self, name: &str, message: impl Display) -> RequestResult<T> {
        refuse(self.path(name), message)
    }

    fn string(&self, value: Option<JsonValue<'a>>, name: &str) -> RequestResult<JsonStr<'a>> {
        require_string(value, self.path(name))
    }

    fn flag(&self, value: Option<JsonValue<'a>>, name: &str) -> RequestResult<bool> {
        bool_or_false(value, self.path(name))
    }

    fn base64(&self, source: JsonValue<'a>) -> RequestResult<JsonStr<'a>> {
        let data = self.string(source.get("data"), "source.data")?;
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
            self.invalid("source.data", "Invalid base64 data")
        }
    }

    fn text(mut self) -> RequestResult<Block<'a>> {
        let [_, content, marker] = self.pick(["type", "text", "cache_control"]);
        let content = self.string(content, "text")?;
        Ok(Block {
            at: self.at,
            cache: marker.map(CacheBreakpoint::from_marker),
            kind: BlockKind::Text(content),
        })
    }

    fn image(mut self) -> RequestResult<Block<'a>> {
        let [_, source, marker] = self.pick(["type", "source", "cache_control"]);
        let source = require_object(source, self.path("source"))?;
        let source_kind = self.string(source.get("type"), "source.type")?;
        let source = match source_kind.value().as_ref() {
            "base64" => {
                let media_type = self.string(source.get("media_type"), "source.media_type")?;
                if !IMAGE_TYPES.iter().any(|known| media_type.is(known)) {
                    let message =
                        "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'";
                    return self.invalid("source.media_type", message);
                }
                ImageSource::Base64 {
                    media_type,
                    data: self.base64(source)?,
                }
            }
            "url" => ImageSource::Url(self.string(source.get("url"), "source.url")?),
            // The image is a file in the vendor's own storage.
            "file" => return Ok(self.opaque("image")),
            other => {
                return self.invalid("source", unexpected_tag(other, "'base64', 'file', 'url'"));
            }
        };
        let detail = None;
        Ok(Block {
            at: self.at,
            cache: marker.map(CacheBreakpoint::from_marker),
            kind: BlockKind::Image(Image { source, detail }),
        })
    }

    fn document(mut self) -> RequestResult<Block<'a>> {
        let [_, source, title, context, citations, marker] = self.pick([
            "type",
            "source",
            "title",
            "context",
            "citations",
            "cache_control",
        ]);
        let source = require_object(source, self.path("source"))?;
        let source_kind = self.string(source.get("type"), "source.type")?;
        let content = match source_kind.value().as_ref() {
            "base64" => {
                let media_type = self.string(source.get("media_type"), "source.media_type")?;
                if !media_type.is("application/pdf") {
                    return self.invalid("source.media_type", "Input should be 'application/pdf'");
                }
                FileContent::Pdf(self.base64(source)?)
            }
            "text" => FileContent::Text(self.string(source.get("data"), "source.data")?),
            "content" => self.document_content(source)?,
            "url" => FileContent::Url(self.string(source.get("url"), "source.url")?),
            // The document is a file in the vendor's own storage.
            "file" => return Ok(self.opaque("document")),
            other => {
                let expected = "'base64', 'content', 'file', 'text', 'url'";
                return self.invalid("source", unexpected_tag(other, expected));
            }
        };
        let wants_citations = citations.and_then(|citations| citations.get("enabled"));
        let file = File {
            title: optional_string(title, self.path("title"))?,
            context: optional_string(context, self.path("context"))?,
            content,
            wants_citations: self.flag(wants_citations, "citations.enabled")?,
        };
        Ok(Block {
            at: self.at,
            cache: marker.map(CacheBreakpoint::from_marker),
            kind: BlockKind::File(file),
        })
    }

    fn document_content(&mut self, source: JsonValue<'a>) -> RequestResult<FileContent<'a>> {
        let name = "source.content";
        let content = require(source.get("content"), self.path(name))?;
        Ok(match content.text() {
            Some(text) => FileContent::Text(text),
            None => {
                FileContent::Blocks(self.nested(content, name, MessagesBlockContainer::Document)?)
            }
        })
    }

    /// Reads the blocks in the member `name` of this block.
    fn nested(
        &mut self,
        content: JsonValue<'a>,
        name: &str,
        container: MessagesBlockContainer,
    ) -> RequestResult<Vec<Block<'a>>> {
        if !content.is_array() {
            return self.invalid(name, NOT_TEXT_OR_ARRAY);
        }
        let at = self.at;
        let nested = |index| match at {
            JsonPath::Part(message, part) => JsonPath::Nested(message, part, index),
            other => other,
        };
        let each = content.items().enumerate();
        each.map(|(index, value)| block(value, nested(index), container, self.warnings))
            .collect()
    }

    /// Keeps the whole block unchanged.
    fn opaque(&self, kind: &'static str) -> Block<'a> {
        opaque(JsonStr::from_value(kind), self.value, self.at)
    }

    fn call(mut self) -> RequestResult<Block<'a>> {
        let [_, id, name, input, toolset] =
            self.pick(["type", "id", "name", "input", "toolset_name"]);
        if toolset.is_some() {
            return Ok(self.opaque("tool_use"));
        }
        let input = require_object(input, self.path("input"))?;
        let call = ToolCall {
            id: Some(self.string(id, "id")?),
            name: self.string(name, "name")?,
            arguments: ToolArguments::Json(input),
            is_custom: false,
        };
        Ok(Block::new(self.at, BlockKind::Call(call)))
    }

    /// Reads a `thinking` or a `redacted_thinking` block. A block with `data` is a redacted one.
    fn thinking(mut self) -> RequestResult<Block<'a>> {
        let data = self.value.get("data");
        let thinking = if data.is_some()
            || self
                .value
                .get("type")
                .is_some_and(|kind| kind.is("redacted_thinking"))
        {
            self.kind = "redacted_thinking";
            Thinking::Hidden {
                data: self.string(data, "data")?,
            }
        } else {
            let [_, text, signature] = self.pick(["type", "thinking", "signature"]);
            Thinking::Shown {
                text: self.string(text, "thinking")?,
                signature: optional_string(signature, self.path("signature"))?,
            }
        };
        Ok(Block::new(self.at, BlockKind::Thinking(thinking)))
    }

    fn result(mut self) -> RequestResult<Block<'a>> {
        let [_, id, content, is_error] = self.pick(["type", "tool_use_id", "content", "is_error"]);
        let outcome = ToolResult {
            id: Some(self.string(id, "tool_use_id")?),
            name: None,
            content: self.result_content(content)?,
            is_error: self.flag(is_error, "is_error")?,
        };
        Ok(Block::new(self.at, BlockKind::Result(outcome)))
    }

    fn result_content(
        &mut self,
        content: Option<JsonValue<'a>>,
    ) -> RequestResult<ToolResultContent<'a>> {
        let Some(content) = content else {
            return Ok(ToolResultContent::Nothing);
        };
        if let Some(text) = content.text() {
            return Ok(ToolResultContent::Text(text));
        }
        let blocks = self.nested(content, "content", MessagesBlockContainer::Result)?;
        Ok(ToolResultContent::Blocks(blocks))
    }
}
