//! Reads the content of a chat message: a string, or parts that each become one block.
//!
//! The reader keeps blank texts, because the writer for the target decides whether to send an empty
//! block. It keeps a part that only chat defines unchanged. It also accepts blocks of the messages
//! protocol among the parts, because many clients send them.
//!
//! Read next: `read_request/reasoning.rs`.

use crate::Protocol;
use crate::ir::{
    Block, BlockKind, File, FileContent, Image, ImageSource, JsonPath, Opaque, RequestResult,
    ToolResult, ToolResultContent, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::cache_marker::cache_marker;
use crate::openai::check::{
    MemberType, check_type, invalid, missing, optional_bool, optional_text, refuse, refuse_type,
    refuse_value, required_object, required_text, warn_unknown_members, warn_unlisted_members,
};
use crate::openai::media;

/// Owner of a content, which determines the allowed parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChatPartContainer {
    Instructions,
    User,
    Assistant,
    /// The result of a tool call.
    Result,
}

/// Reads the content of the message with index `message`.
pub(super) fn content<'a>(
    content: Option<JsonValue<'a>>,
    message: usize,
    container: ChatPartContainer,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Block<'a>>> {
    let Some(content) = content else {
        return Ok(Vec::new());
    };
    if let Some(text) = content.text() {
        return Ok(vec![Block::new(
            JsonPath::Message(message),
            BlockKind::Text(text),
        )]);
    }
    if !content.is_array() {
        let path = format_args!("messages[{message}].content");
        return refuse_type(path, "one of a string or array of objects", content);
    }
    let mut reader = ChatPartReader { warnings };
    reader.parts(content, container, |index| JsonPath::Part(message, index))
}

struct ChatPartReader<'w> {
    warnings: &'w mut Warnings,
}

impl ChatPartReader<'_> {
    /// Reads the parts of a list. `at` returns the path of the part with an index.
    fn parts<'a>(
        &mut self,
        list: JsonValue<'a>,
        container: ChatPartContainer,
        at: impl Fn(usize) -> JsonPath,
    ) -> RequestResult<Vec<Block<'a>>> {
        let mut blocks = Vec::new();
        for (index, value) in list.items().enumerate() {
            blocks.extend(self.part(value, at(index), container)?);
        }
        Ok(blocks)
    }

    /// Reads one part. `None` for a reasoning part, which the reader of the message handles.
    fn part<'a>(
        &mut self,
        value: JsonValue<'a>,
        at: JsonPath,
        container: ChatPartContainer,
    ) -> RequestResult<Option<Block<'a>>> {
        check_type(value, MemberType::Object, at)?;
        let name = required_text(value, "type", at)?;
        let kind = match (name.value().as_ref(), container) {
            ("text", _) => {
                self.warn_unknown(value, &["text", "citations"]);
                BlockKind::Text(required_text(value, "text", at)?)
            }
            (_, ChatPartContainer::Instructions) => {
                return refuse(at, format!("{at}: system messages may contain only text."));
            }
            ("refusal", ChatPartContainer::Assistant) => {
                self.warn_unknown(value, &["refusal"]);
                BlockKind::Refusal(required_text(value, "refusal", at)?)
            }
            ("thinking" | "redacted_thinking", ChatPartContainer::Assistant) => return Ok(None),
            ("image_url", ChatPartContainer::User | ChatPartContainer::Result) => {
                self.image(value, at)?
            }
            ("file", ChatPartContainer::User | ChatPartContainer::Result) => {
                self.file(value, at)?
            }
            ("input_audio", ChatPartContainer::User | ChatPartContainer::Result) => {
                self.warn_unknown(value, &["input_audio"]);
                opaque(Protocol::Chat, &name, value)
            }
            ("image", ChatPartContainer::User | ChatPartContainer::Result) => {
                messages_image(value).unwrap_or(messages_opaque(&name, value))
            }
            ("document", ChatPartContainer::User | ChatPartContainer::Result) => {
                messages_document(value).unwrap_or(messages_opaque(&name, value))
            }
            ("search_result", ChatPartContainer::User | ChatPartContainer::Result) => {
                messages_opaque(&name, value)
            }
            ("tool_result", ChatPartContainer::User) => self.messages_result(value, at)?,
            _ => return refuse_value(format_args!("{at}.type"), &name, ""),
        };
        Ok(Some(Block {
            at,
            cache: cache_marker(value, at)?,
            kind,
        }))
    }

    /// Warns about members that are neither in `own` nor common to all parts.
    fn warn_unknown(&mut self, value: JsonValue<'_>, own: &[&str]) {
        const COMMON: [&str; 3] = ["type", "cache_control", "prompt_cache_breakpoint"];
        warn_unlisted_members(value, &COMMON, own, "messages[].content[]", self.warnings);
    }

    fn image<'a>(&mut self, value: JsonValue<'a>, at: JsonPath) -> RequestResult<BlockKind<'a>> {
        self.warn_unknown(value, &["image_url"]);
        let path = format!("{at}.image_url");
        let inner = required_object(value, "image_url", at)?;
        warn_unknown_members(
            inner,
            &["url", "detail"],
            "messages[].content[].image_url",
            self.warnings,
        );
        let url = required_text(inner, "url", &path)?;
        let source = media::parse_image_url(url).map_err(|message| invalid(&path, message))?;
        Ok(BlockKind::Image(Image {
            source,
            detail: media::image_detail(inner, &path, self.warnings),
        }))
    }

    fn file<'a>(&mut self, value: JsonValue<'a>, at: JsonPath) -> RequestResult<BlockKind<'a>> {
        self.warn_unknown(value, &["file"]);
        let path = format!("{at}.file");
        let inner = required_object(value, "file", at)?;
        warn_unknown_members(
            inner,
            &["file_data", "file_id", "filename"],
            "messages[].content[].file",
            self.warnings,
        );
        let title = optional_text(inner, "filename", &path)?;
        let Some(data) = optional_text(inner, "file_data", &path)? else {
            return match inner.get("file_id") {
                Some(_) => Ok(opaque(Protocol::Chat, &JsonStr::from_value("file"), value)),
                None => Err(missing(format_args!("{path}.file_data"))),
            };
        };
        let content = media::parse_file_data(data, title.as_ref())
            .map_err(|message| invalid(path, message))?;
        let title = title.filter(|title| !title.is_empty());
        Ok(BlockKind::File(File {
            title,
            context: None,
            content,
            wants_citations: false,
        }))
    }

    fn messages_result<'a>(
        &mut self,
        value: JsonValue<'a>,
        at: JsonPath,
    ) -> RequestResult<BlockKind<'a>> {
        self.warn_unknown(value, &["tool_use_id", "content", "is_error"]);
        let content = match value.get("content") {
            None => ToolResultContent::Nothing,
            Some(content) if content.is_string() => content
                .text()
                .map_or(ToolResultContent::Nothing, ToolResultContent::Text),
            Some(content) => {
                check_type(content, MemberType::Array, format_args!("{at}.content"))?;
                let (message, index) = match at {
                    JsonPath::Part(message, index) => (message, index),
                    _ => (0, 0),
                };
                let nested = |nested| JsonPath::Nested(message, index, nested);
                ToolResultContent::Blocks(self.parts(content, ChatPartContainer::Result, nested)?)
            }
        };
        Ok(BlockKind::Result(ToolResult {
            id: optional_text(value, "tool_use_id", at)?.filter(|id| !id.is_empty()),
            name: None,
            content,
            is_error: optional_bool(value, "is_error", at)?.unwrap_or(false),
        }))
    }
}

fn opaque<'a>(origin: Protocol, name: &JsonStr<'a>, value: JsonValue<'a>) -> BlockKind<'a> {
    BlockKind::Opaque(Opaque {
        origin,
        name: name.clone(),
        value,
    })
}

fn messages_opaque<'a>(name: &JsonStr<'a>, value: JsonValue<'a>) -> BlockKind<'a> {
    opaque(Protocol::Messages, name, value)
}

/// Returns whether all members of the object are among `names`.
fn has_only(value: JsonValue<'_>, names: &[&str]) -> bool {
    value
        .members()
        .all(|(name, value)| value.is_null() || names.iter().any(|known| name.is(known)))
}

/// Reads an image block of the messages protocol if the IR can represent all of it. Otherwise
/// returns `None`, and the caller keeps the block unchanged.
fn messages_image(value: JsonValue<'_>) -> Option<BlockKind<'_>> {
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

fn messages_document(value: JsonValue<'_>) -> Option<BlockKind<'_>> {
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
        title: value.text_of("title"),
        context: value.text_of("context"),
        content,
        wants_citations: citations
            .and_then(|citations| citations.get("enabled")?.bool())
            .unwrap_or(false),
    }))
}
