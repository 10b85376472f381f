//! Reads the content of a message and the output of a call: a string, or parts that each become one
//! block.
//!
//! This file must not refer to data that a vendor stores.
//!
//! Read next: `read_request/history.rs`.

use super::settings::refuse_with_code;
use crate::Protocol;
use crate::ir::{
    Block, BlockKind, File, FileContent, Image, JsonPath, Opaque, RequestResult, ToolResultContent,
    TurnRole, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::cache_marker::cache_marker;
use crate::openai::check::{
    MemberType, check_type, invalid, optional_text, refuse, refuse_type, refuse_value,
    required_text,
};
use crate::openai::media;

/// Placeholder for content that only another vendor can read.
const UNREADABLE_PLACEHOLDER: &str = "[content not readable here]";

pub(super) fn content<'a>(
    message: JsonValue<'a>,
    index: usize,
    side: TurnRole,
    warnings: &mut Warnings,
) -> RequestResult<Vec<Block<'a>>> {
    let Some(content) = message.get("content") else {
        return Ok(Vec::new());
    };
    if let Some(text) = content.text() {
        return Ok(vec![Block::new(
            JsonPath::Item(index),
            BlockKind::Text(text),
        )]);
    }
    let path = format_args!("input[{index}].content");
    if !content.is_array() {
        return refuse_type(path, "one of a string or array of objects", content);
    }
    let parts = content.items().enumerate();
    parts
        .map(|(number, value)| {
            part(
                value,
                JsonPath::ItemPart(index, number),
                Some(side),
                warnings,
            )
        })
        .collect()
}

pub(super) fn output<'a>(
    item: JsonValue<'a>,
    index: usize,
    warnings: &mut Warnings,
) -> RequestResult<ToolResultContent<'a>> {
    let Some(output) = item.get("output") else {
        return Ok(ToolResultContent::Nothing);
    };
    if let Some(text) = output.text() {
        return Ok(ToolResultContent::Text(text));
    }
    if !output.is_array() {
        let path = format_args!("input[{index}].output");
        return refuse_type(path, "one of a string or array of objects", output);
    }
    let parts = output.items().enumerate();
    let blocks: Result<Vec<_>, _> = parts
        .map(|(number, value)| part(value, JsonPath::ItemOutput(index, number), None, warnings))
        .collect();
    blocks.map(ToolResultContent::Blocks)
}

/// Reads one part. `side` is the side of the message that contains it, or `None` for the output of
/// a call.
fn part<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    side: Option<TurnRole>,
    warnings: &mut Warnings,
) -> RequestResult<Block<'a>> {
    check_type(value, MemberType::Object, at)?;
    let name = required_text(value, "type", at)?;
    let takes_media = side.is_none_or(|side| side == TurnRole::User);
    let kind = match name.value().as_ref() {
        "input_text" | "output_text" | "text" | "summary_text" => {
            BlockKind::Text(required_text(value, "text", at)?)
        }
        "refusal" if side == Some(TurnRole::Assistant) => {
            BlockKind::Refusal(required_text(value, "refusal", at)?)
        }
        "input_image" if takes_media => image(value, at, warnings)?,
        "input_file" if takes_media => file(value, at)?,
        "input_audio" if takes_media => BlockKind::Opaque(Opaque {
            origin: Protocol::Chat,
            name: name.clone(),
            value,
        }),
        "encrypted_content" => {
            warnings.rewritten(JsonPath::Item(at.container_index()));
            BlockKind::Text(JsonStr::from_value(UNREADABLE_PLACEHOLDER))
        }
        "input_image" | "input_file" | "input_audio" => {
            let role = if side == Some(TurnRole::System) {
                "system"
            } else {
                "assistant"
            };
            let message = format!(
                "Invalid value: '{}' in a message with role '{role}'.",
                name.value()
            );
            return refuse(format_args!("{at}.type"), message);
        }
        _ => return refuse_value(format_args!("{at}.type"), &name, ""),
    };
    Ok(Block {
        at,
        cache: cache_marker(value, at)?,
        kind,
    })
}

fn image<'a>(
    value: JsonValue<'a>,
    at: JsonPath,
    warnings: &mut Warnings,
) -> RequestResult<BlockKind<'a>> {
    if value.get("file_id").is_some() {
        return no_file_id(at);
    }
    let url = required_text(value, "image_url", at)?;
    let refuse = |message| invalid(format_args!("{at}.image_url"), message);
    let source = media::parse_image_url(url).map_err(refuse)?;
    Ok(BlockKind::Image(Image {
        source,
        detail: media::image_detail(value, at, warnings),
    }))
}

fn file<'a>(value: JsonValue<'a>, at: JsonPath) -> RequestResult<BlockKind<'a>> {
    if value.get("file_id").is_some() {
        return no_file_id(at);
    }
    let title = optional_text(value, "filename", at)?.filter(|title| !title.is_empty());
    let content = match optional_text(value, "file_url", at)? {
        Some(url) => FileContent::Url(url),
        None => {
            let data = required_text(value, "file_data", at)?;
            let refuse = |message| invalid(format_args!("{at}.file_data"), message);
            media::parse_file_data(data, title.as_ref()).map_err(refuse)?
        }
    };
    Ok(BlockKind::File(File {
        title,
        context: None,
        content,
        wants_citations: false,
    }))
}

fn no_file_id<T>(at: JsonPath) -> RequestResult<T> {
    let message = "file_id is not available for this model; send the data instead.";
    refuse_with_code(&format!("{at}.file_id"), message, "unsupported_value")
}
