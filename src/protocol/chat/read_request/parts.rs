//! Reads the content of a chat message: a string, or parts that each become one block.
//!
//! It keeps blank texts: the writer for the target decides whether to send an empty block. It keeps
//! a part that only chat defines as it is. It also accepts blocks of the messages protocol among
//! the parts, because many clients send them.
//!
//! Read next: `read_request/reasoning.rs`.

use super::check::{
    Shape, invalid, missing, optional_bool, optional_text, required_object, required_text, shape,
    unknown_besides, unknown_members, unknown_word, wrong_type,
};
use super::{marker, media};
use crate::protocol::Protocol;
use crate::protocol::form::{
    At, Block, BlockKind, File, FileContent, Image, ImageSource, Opaque, Outcome, OutcomeContent,
    Refused, Warnings,
};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

/// Owner of the content. It determines which parts are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Instructions,
    User,
    Assistant,
    /// Result of a tool call.
    Result,
}

/// Reads the content of the message with index `message`.
pub(super) fn content<'a>(
    content: Option<Value<'a>>,
    message: usize,
    place: Place,
    warnings: &mut Warnings,
) -> Result<Vec<Block<'a>>, Refused> {
    let Some(content) = content else {
        return Ok(Vec::new());
    };
    if let Some(text) = content.text() {
        return Ok(vec![Block {
            at: At::Message(message),
            cache: None,
            kind: BlockKind::Text(text),
        }]);
    }
    if !content.is_array() {
        let path = format_args!("messages[{message}].content");
        return Err(wrong_type(
            path,
            "one of a string or array of objects",
            content,
        ));
    }
    let mut blocks = Vec::new();
    for (index, value) in content.items().enumerate() {
        blocks.extend(part(value, At::Part(message, index), place, warnings)?);
    }
    Ok(blocks)
}

/// Reads one part. Returns `None` for a reasoning part, which is read with the message.
fn part<'a>(
    value: Value<'a>,
    at: At,
    place: Place,
    warnings: &mut Warnings,
) -> Result<Option<Block<'a>>, Refused> {
    shape(value, Shape::Object, at)?;
    let name = required_text(value, "type", format_args!("{at}.type"))?;
    let kind = match (name.value().as_ref(), place) {
        ("text", _) => {
            known(value, &["text", "citations"], warnings);
            BlockKind::Text(required_text(value, "text", format_args!("{at}.text"))?)
        }
        (_, Place::Instructions) => {
            return Err(invalid(
                at,
                format!("{at}: system messages may contain only text."),
            ));
        }
        ("refusal", Place::Assistant) => {
            known(value, &["refusal"], warnings);
            BlockKind::Refusal(required_text(
                value,
                "refusal",
                format_args!("{at}.refusal"),
            )?)
        }
        ("thinking" | "redacted_thinking", Place::Assistant) => return Ok(None),
        ("image_url", Place::User | Place::Result) => image(value, at, warnings)?,
        ("file", Place::User | Place::Result) => file(value, at, warnings)?,
        ("input_audio", Place::User | Place::Result) => {
            known(value, &["input_audio"], warnings);
            opaque(Protocol::Chat, &name, value)
        }
        ("image", Place::User | Place::Result) => {
            messages_image(value).unwrap_or(opaque_block(&name, value))
        }
        ("document", Place::User | Place::Result) => {
            messages_document(value).unwrap_or(opaque_block(&name, value))
        }
        ("search_result", Place::User | Place::Result) => opaque_block(&name, value),
        ("tool_result", Place::User) => messages_result(value, at, warnings)?,
        _ => return Err(unknown_word(format_args!("{at}.type"), &name, "")),
    };
    Ok(Some(Block {
        at,
        cache: marker(value, at)?,
        kind,
    }))
}

/// Warns about members that are neither in `own` nor common to all parts.
fn known(value: Value<'_>, own: &[&str], warnings: &mut Warnings) {
    const COMMON: [&str; 3] = ["type", "cache_control", "prompt_cache_breakpoint"];
    unknown_besides(value, &COMMON, own, "messages[].content[]", warnings);
}

fn opaque<'a>(origin: Protocol, name: &Text<'a>, value: Value<'a>) -> BlockKind<'a> {
    BlockKind::Opaque(Opaque {
        origin,
        name: name.clone(),
        value,
    })
}

fn opaque_block<'a>(name: &Text<'a>, value: Value<'a>) -> BlockKind<'a> {
    opaque(Protocol::Messages, name, value)
}

fn image<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<BlockKind<'a>, Refused> {
    known(value, &["image_url"], warnings);
    let path = format!("{at}.image_url");
    let inner = required_object(value, "image_url", &path)?;
    unknown_members(
        inner,
        &["url", "detail"],
        "messages[].content[].image_url",
        warnings,
    );
    let url = required_text(inner, "url", format_args!("{path}.url"))?;
    let source = media::image(url).map_err(|message| invalid(&path, message))?;
    Ok(BlockKind::Image(Image {
        source,
        detail: media::detail(inner, &path, warnings),
    }))
}

fn file<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<BlockKind<'a>, Refused> {
    known(value, &["file"], warnings);
    let path = format!("{at}.file");
    let inner = required_object(value, "file", &path)?;
    unknown_members(
        inner,
        &["file_data", "file_id", "filename"],
        "messages[].content[].file",
        warnings,
    );
    let title = optional_text(inner, "filename", format_args!("{path}.filename"))?;
    let Some(data) = optional_text(inner, "file_data", format_args!("{path}.file_data"))? else {
        return match inner.get("file_id") {
            Some(_) => Ok(opaque(Protocol::Chat, &Text::made("file"), value)),
            None => Err(missing(format_args!("{path}.file_data"))),
        };
    };
    let content = media::file(data, title.as_ref()).map_err(|message| invalid(path, message))?;
    let title = title.filter(|title| !title.is_empty());
    Ok(BlockKind::File(File {
        title,
        context: None,
        content,
        wants_citations: false,
    }))
}

/// Checks that the object has no members other than `names`.
fn has_only(value: Value<'_>, names: &[&str]) -> bool {
    value
        .members()
        .all(|(name, value)| value.is_null() || names.iter().any(|known| name.is(known)))
}

/// Reads an image block of the messages protocol if the IR can represent all of it. Otherwise
/// returns `None`, and the caller keeps the block as it is.
fn messages_image(value: Value<'_>) -> Option<BlockKind<'_>> {
    let source = value.get("source")?;
    if !has_only(value, &["type", "source", "cache_control"]) {
        return None;
    }
    let kind = source.get("type")?;
    if kind.is("base64") && has_only(source, &["type", "media_type", "data"]) {
        let (media_type, data) = (
            source.get("media_type")?.text()?,
            source.get("data")?.text()?,
        );
        return Some(BlockKind::Image(Image {
            source: ImageSource::Base64 { media_type, data },
            detail: None,
        }));
    }
    if kind.is("url") && has_only(source, &["type", "url"]) {
        let source = ImageSource::Url(source.get("url")?.text()?);
        return Some(BlockKind::Image(Image {
            source,
            detail: None,
        }));
    }
    None
}

fn messages_document(value: Value<'_>) -> Option<BlockKind<'_>> {
    let source = value.get("source")?;
    let known = has_only(
        value,
        &[
            "type",
            "source",
            "title",
            "context",
            "citations",
            "cache_control",
        ],
    );
    if !known || !has_only(source, &["type", "media_type", "data"]) {
        return None;
    }
    let data = source.get("data")?.text()?;
    let content = match source.get("media_type")?.text()?.value().as_ref() {
        "application/pdf" if source.get("type")?.is("base64") => FileContent::Pdf(data),
        "text/plain" if source.get("type")?.is("text") => FileContent::Text(data),
        _ => return None,
    };
    let citations = value.get("citations");
    if citations.is_some_and(|citations| !has_only(citations, &["enabled"])) {
        return None;
    }
    Some(BlockKind::File(File {
        title: value.get("title").and_then(Value::text),
        context: value.get("context").and_then(Value::text),
        content,
        wants_citations: citations
            .and_then(|citations| citations.get("enabled")?.bool())
            .unwrap_or(false),
    }))
}

fn messages_result<'a>(
    value: Value<'a>,
    at: At,
    warnings: &mut Warnings,
) -> Result<BlockKind<'a>, Refused> {
    known(value, &["tool_use_id", "content", "is_error"], warnings);
    let content = match value.get("content") {
        None => OutcomeContent::Nothing,
        Some(content) if content.is_string() => content
            .text()
            .map_or(OutcomeContent::Nothing, OutcomeContent::Text),
        Some(content) => {
            shape(content, Shape::Array, format_args!("{at}.content"))?;
            let (message, index) = match at {
                At::Part(message, index) => (message, index),
                _ => (0, 0),
            };
            let mut blocks = Vec::new();
            for (nested, value) in content.items().enumerate() {
                blocks.extend(part(
                    value,
                    At::Nested(message, index, nested),
                    Place::Result,
                    warnings,
                )?);
            }
            OutcomeContent::Blocks(blocks)
        }
    };
    Ok(BlockKind::Result(Outcome {
        id: optional_text(value, "tool_use_id", format_args!("{at}.tool_use_id"))?
            .filter(|id| !id.is_empty()),
        name: None,
        content,
        is_error: optional_bool(value, "is_error", format_args!("{at}.is_error"))?.unwrap_or(false),
    }))
}
