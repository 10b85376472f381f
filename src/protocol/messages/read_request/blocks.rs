//! Reads instructions, messages and their blocks.
//!
//! It must not join, move or drop a block: the writer handles empty blocks, blocks of unknown types
//! and misplaced results. It drops only what the IR cannot represent, as the table says.
//!
//! Read next: `messages/read_request/tools.rs`, then `capabilities/pairing.rs`.

use super::check::{self, is_true, object, pick, refused, required, text};
use crate::protocol::Protocol;
use crate::protocol::form::{
    Arguments, At, Block, BlockKind, Cache, Call, File, FileContent, Image, ImageSource, Opaque,
    Outcome, OutcomeContent, Refused, Side, Thinking, Turn, Warnings,
};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// Container of a block. It determines which block types are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Turn(Side),
    Result,
    Document,
}

/// Reads `system`: a string or text blocks.
pub(super) fn system<'a>(
    value: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<Vec<Block<'a>>, Refused> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    if let Some(text) = value.text() {
        return Ok(vec![Block {
            at: At::System(0),
            cache: None,
            kind: BlockKind::Text(text),
        }]);
    }
    if !value.is_array() {
        return Err(refused("system", check::NO_ARRAY));
    }
    let each = value.items().enumerate();
    each.map(|(index, value)| {
        let at = At::System(index);
        object(value, at)?;
        if !required(value.get("type"), format_args!("{at}.type"))?.is("text") {
            return Err(refused(format_args!("{at}.type"), "Input should be 'text'"));
        }
        text_block(value, at, "system[text]", warnings)
    })
    .collect()
}

/// Reads `messages`.
pub(super) fn turns<'a>(
    value: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<Vec<Turn<'a>>, Refused> {
    let value = required(value, "messages")?;
    if !value.is_array() {
        return Err(refused("messages", check::NO_ARRAY));
    }
    if value.items().next().is_none() {
        return Err(refused("messages", "at least one message is required"));
    }
    value
        .items()
        .enumerate()
        .map(|(index, message)| turn(index, message, warnings))
        .collect()
}

fn turn<'a>(
    message: usize,
    value: Value<'a>,
    warnings: &mut Warnings,
) -> Result<Turn<'a>, Refused> {
    let at = At::Message(message);
    object(value, at)?;
    let [role, content] = pick(value, ["role", "content"], |name, _| {
        check::left_out("messages[]", at, &name, warnings)
    });
    let role = text(
        required(role, format_args!("{at}.role"))?,
        format_args!("{at}.role"),
    )?;
    let side = match role.value().as_ref() {
        "user" => Side::User,
        "assistant" => Side::Assistant,
        "system" => Side::System,
        _ => {
            return Err(refused(
                format_args!("{at}.role"),
                "Input should be 'user', 'assistant' or 'system'",
            ));
        }
    };
    let content = required(content, format_args!("{at}.content"))?;
    let mut blocks = match content.text() {
        Some(text) => vec![Block {
            at,
            cache: None,
            kind: BlockKind::Text(text),
        }],
        None if !content.is_array() => {
            return Err(refused(
                format_args!("{at}.content"),
                "Input should be a valid string or array",
            ));
        }
        None => {
            let each = content.items().enumerate();
            let mut read =
                |(part, value)| block(value, At::Part(message, part), Place::Turn(side), warnings);
            each.map(&mut read).collect::<Result<Vec<_>, _>>()?
        }
    };
    if blocks.is_empty() {
        // An empty array means the same as an empty string. A turn without any block is one that
        // the pairing step emptied.
        blocks.push(Block {
            at,
            cache: None,
            kind: BlockKind::Text(Text::made("")),
        });
    }
    Ok(Turn {
        side,
        blocks,
        at: At::Message(message),
    })
}

fn block<'a>(
    value: Value<'a>,
    at: At,
    place: Place,
    warnings: &mut Warnings,
) -> Result<Block<'a>, Refused> {
    object(value, at)?;
    let kind = text(
        required(value.get("type"), format_args!("{at}.type"))?,
        format_args!("{at}.type"),
    )?;
    let kind_name = kind.value();
    match kind_name.as_ref() {
        "text" => return text_block(value, at, "messages[].content[text]", warnings),
        "image" => return image(value, at, warnings),
        _ => {}
    }
    if place == Place::Document {
        return Err(refused(at, &not_expected(&kind_name, "'image', 'text'")));
    }
    match (kind_name.as_ref(), place) {
        ("document", _) => document(value, at, warnings),
        ("tool_use", Place::Turn(Side::Assistant)) => call(value, at, warnings),
        ("thinking" | "redacted_thinking", Place::Turn(Side::Assistant)) => {
            thinking(value, at, warnings)
        }
        ("tool_result", Place::Turn(Side::User)) => result(value, at, warnings),
        (kind @ ("tool_use" | "thinking" | "redacted_thinking"), _) => Err(refused(
            at,
            &format!("`{kind}` blocks can only be in `assistant` messages"),
        )),
        ("tool_result", _) => Err(refused(
            at,
            "`tool_result` blocks can only be in `user` messages",
        )),
        _ => Ok(opaque(kind, value, at)),
    }
}

fn not_expected(kind: &str, expected: &str) -> String {
    format!(
        "Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}"
    )
}

/// Keeps a block that only this protocol has, or whose type is unknown.
fn opaque<'a>(kind: Text<'a>, value: Value<'a>, at: At) -> Block<'a> {
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

fn cache(marker: Option<Value<'_>>) -> Option<Cache> {
    let lifetime = marker?.get("ttl");
    Some(match lifetime {
        Some(lifetime) if lifetime.is("5m") => Cache::FiveMinutes,
        Some(lifetime) if lifetime.is("1h") => Cache::OneHour,
        _ => Cache::Usual,
    })
}

fn text_block<'a>(
    value: Value<'a>,
    at: At,
    row: &str,
    warnings: &mut Warnings,
) -> Result<Block<'a>, Refused> {
    let [_, said, marker] = pick(value, ["type", "text", "cache_control"], |name, _| {
        check::left_out(row, at, &name, warnings);
    });
    let said = text(
        required(said, format_args!("{at}.text.text"))?,
        format_args!("{at}.text.text"),
    )?;
    Ok(Block {
        at,
        cache: cache(marker),
        kind: BlockKind::Text(said),
    })
}

fn image<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<Block<'a>, Refused> {
    let [kind, source, marker] = pick(value, ["type", "source", "cache_control"], |name, _| {
        check::left_out("messages[].content[image]", at, &name, warnings);
    });
    let path = format_args!("{at}.image.source");
    let source = required(source, path)?;
    object(source, path)?;
    let source_kind = text(
        required(source.get("type"), format_args!("{path}.type"))?,
        format_args!("{path}.type"),
    )?;
    let source = match source_kind.value().as_ref() {
        "base64" => {
            let media_type = member_text(source, "media_type", path)?;
            if !IMAGE_TYPES.iter().any(|known| media_type.is(known)) {
                let message =
                    "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'";
                return Err(refused(format_args!("{path}.media_type"), message));
            }
            ImageSource::Base64 {
                media_type,
                data: base64(source, path)?,
            }
        }
        "url" => ImageSource::Url(member_text(source, "url", path)?),
        // A file in the vendor's own storage.
        "file" => {
            return Ok(opaque(
                kind.and_then(Value::text).unwrap_or(Text::made("image")),
                value,
                at,
            ));
        }
        other => {
            return Err(refused(
                path,
                &not_expected(other, "'base64', 'file', 'url'"),
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

fn document<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<Block<'a>, Refused> {
    let [kind, source, title, context, citations, marker] = pick(
        value,
        [
            "type",
            "source",
            "title",
            "context",
            "citations",
            "cache_control",
        ],
        |name, _| check::left_out("messages[].content[document]", at, &name, warnings),
    );
    let path = format_args!("{at}.document.source");
    let source = required(source, path)?;
    object(source, path)?;
    let source_kind = text(
        required(source.get("type"), format_args!("{path}.type"))?,
        format_args!("{path}.type"),
    )?;
    let content = match source_kind.value().as_ref() {
        "base64" => {
            if !member_text(source, "media_type", path)?.is("application/pdf") {
                return Err(refused(
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
        "file" => {
            return Ok(opaque(
                kind.and_then(Value::text).unwrap_or(Text::made("document")),
                value,
                at,
            ));
        }
        other => {
            return Err(refused(
                path,
                &not_expected(other, "'base64', 'content', 'file', 'text', 'url'"),
            ));
        }
    };
    let file = File {
        title: title
            .map(|title| text(title, format_args!("{at}.document.title")))
            .transpose()?,
        context: context
            .map(|context| text(context, format_args!("{at}.document.context")))
            .transpose()?,
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
    source: Value<'a>,
    at: At,
    warnings: &mut Warnings,
) -> Result<FileContent<'a>, Refused> {
    let path = format_args!("{at}.document.source.content");
    let content = required(source.get("content"), path)?;
    if let Some(text) = content.text() {
        return Ok(FileContent::Text(text));
    }
    if !content.is_array() {
        return Err(refused(path, "Input should be a valid string or array"));
    }
    let nested = |index| match at {
        At::Part(message, part) => At::Nested(message, part, index),
        other => other,
    };
    let each = content.items().enumerate();
    let blocks = each.map(|(index, value)| block(value, nested(index), Place::Document, warnings));
    Ok(FileContent::Blocks(blocks.collect::<Result<_, _>>()?))
}

fn wants_citations(citations: Option<Value<'_>>, at: At) -> Result<bool, Refused> {
    is_true(
        citations.and_then(|citations| citations.get("enabled")),
        format_args!("{at}.document.citations.enabled"),
    )
}

fn member_text<'a>(
    object: Value<'a>,
    name: &str,
    path: std::fmt::Arguments<'_>,
) -> Result<Text<'a>, Refused> {
    text(
        required(object.get(name), format_args!("{path}.{name}"))?,
        format_args!("{path}.{name}"),
    )
}

fn base64<'a>(source: Value<'a>, path: std::fmt::Arguments<'_>) -> Result<Text<'a>, Refused> {
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
        Err(refused(format_args!("{path}.data"), "Invalid base64 data"))
    }
}

fn call<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<Block<'a>, Refused> {
    let [kind, id, name, input, toolset] = pick(
        value,
        ["type", "id", "name", "input", "toolset_name"],
        |name, _| {
            check::left_out("messages[].content[tool_use]", at, &name, warnings);
        },
    );
    if toolset.is_some() {
        return Ok(opaque(
            kind.and_then(Value::text).unwrap_or(Text::made("tool_use")),
            value,
            at,
        ));
    }
    let path = format_args!("{at}.tool_use.input");
    let input = required(input, path)?;
    object(input, path)?;
    let call = Call {
        id: Some(text(
            required(id, format_args!("{at}.tool_use.id"))?,
            format_args!("{at}.tool_use.id"),
        )?),
        name: text(
            required(name, format_args!("{at}.tool_use.name"))?,
            format_args!("{at}.tool_use.name"),
        )?,
        arguments: Arguments::Json(input),
        is_custom: false,
    };
    Ok(Block {
        at,
        cache: None,
        kind: BlockKind::Call(call),
    })
}

fn thinking<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<Block<'a>, Refused> {
    if let Some(data) = value.get("data") {
        let data = text(data, format_args!("{at}.redacted_thinking.data"))?;
        return Ok(Block {
            at,
            cache: None,
            kind: BlockKind::Thinking(Thinking::Hidden { data }),
        });
    }
    let [kind, said, signature] = pick(value, ["type", "thinking", "signature"], |name, _| {
        check::left_out("messages[].content[thinking]", at, &name, warnings);
    });
    if kind.is_some_and(|kind| kind.is("redacted_thinking")) {
        return Err(refused(
            format_args!("{at}.redacted_thinking.data"),
            "Field required",
        ));
    }
    let path = format_args!("{at}.thinking.thinking");
    let said = text(required(said, path)?, path)?;
    let signature = signature
        .map(|signature| text(signature, format_args!("{at}.thinking.signature")))
        .transpose()?;
    Ok(Block {
        at,
        cache: None,
        kind: BlockKind::Thinking(Thinking::Shown {
            text: said,
            signature,
        }),
    })
}

fn result<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<Block<'a>, Refused> {
    let [_, id, content, is_error] = pick(
        value,
        ["type", "tool_use_id", "content", "is_error"],
        |name, _| {
            check::left_out("messages[].content[tool_result]", at, &name, warnings);
        },
    );
    let path = format_args!("{at}.tool_result");
    let id = text(
        required(id, format_args!("{path}.tool_use_id"))?,
        format_args!("{path}.tool_use_id"),
    )?;
    let outcome = Outcome {
        id: Some(id),
        name: None,
        content: result_content(content, at, warnings)?,
        is_error: is_true(is_error, format_args!("{path}.is_error"))?,
    };
    Ok(Block {
        at,
        cache: None,
        kind: BlockKind::Result(outcome),
    })
}

fn result_content<'a>(
    content: Option<Value<'a>>,
    at: At,
    warnings: &mut Warnings,
) -> Result<OutcomeContent<'a>, Refused> {
    let Some(content) = content else {
        return Ok(OutcomeContent::Nothing);
    };
    if let Some(text) = content.text() {
        return Ok(OutcomeContent::Text(text));
    }
    if !content.is_array() {
        return Err(refused(
            format_args!("{at}.tool_result.content"),
            "Input should be a valid string or array",
        ));
    }
    let nested = |index| match at {
        At::Part(message, part) => At::Nested(message, part, index),
        other => other,
    };
    let each = content.items().enumerate();
    let blocks = each.map(|(index, value)| block(value, nested(index), Place::Result, warnings));
    Ok(OutcomeContent::Blocks(blocks.collect::<Result<_, _>>()?))
}
