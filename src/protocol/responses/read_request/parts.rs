//! Reads the content of a message and the output of a call: a string, or parts that each become one
//! block.
//!
//! It must not look up data that a vendor stores: it can read only what the request contains.
//!
//! Read next: `read_request/history.rs`.

use super::settings::refused;
use crate::protocol::Protocol;
use crate::protocol::chat::read_request::check::{
    Shape, invalid, optional_text, required_text, shape, unknown_word, wrong_type,
};
use crate::protocol::chat::read_request::{marker, media};
use crate::protocol::form::{
    Action, At, Block, BlockKind, File, FileContent, Image, Opaque, OutcomeContent, Refused, Side,
    Warnings,
};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

/// Placeholder for content that only another vendor can read.
const UNREADABLE: &str = "[content not readable here]";

/// Reads the content of a message.
pub(super) fn content<'a>(
    message: Value<'a>,
    index: usize,
    side: Side,
    warnings: &mut Warnings,
) -> Result<Vec<Block<'a>>, Refused> {
    let Some(content) = message.get("content") else {
        return Ok(Vec::new());
    };
    if let Some(text) = content.text() {
        return Ok(vec![Block {
            at: At::Item(index),
            cache: None,
            kind: BlockKind::Text(text),
        }]);
    }
    let path = format_args!("input[{index}].content");
    if !content.is_array() {
        return Err(wrong_type(
            path,
            "one of a string or array of objects",
            content,
        ));
    }
    let parts = content.items().enumerate();
    parts
        .map(|(number, value)| part(value, At::ItemPart(index, number), Some(side), warnings))
        .collect()
}

/// Reads the output of a call.
pub(super) fn output<'a>(
    item: Value<'a>,
    index: usize,
    warnings: &mut Warnings,
) -> Result<OutcomeContent<'a>, Refused> {
    let Some(output) = item.get("output") else {
        return Ok(OutcomeContent::Nothing);
    };
    if let Some(text) = output.text() {
        return Ok(OutcomeContent::Text(text));
    }
    if !output.is_array() {
        let path = format_args!("input[{index}].output");
        return Err(wrong_type(
            path,
            "one of a string or array of objects",
            output,
        ));
    }
    let parts = output.items().enumerate();
    let blocks: Result<Vec<_>, _> = parts
        .map(|(number, value)| part(value, At::ItemOutput(index, number), None, warnings))
        .collect();
    blocks.map(OutcomeContent::Blocks)
}

/// Reads one part. `side` is that of the message that contains it, or `None` for the output of a
/// call.
fn part<'a>(
    value: Value<'a>,
    at: At,
    side: Option<Side>,
    warnings: &mut Warnings,
) -> Result<Block<'a>, Refused> {
    shape(value, Shape::Object, at)?;
    let name = required_text(value, "type", format_args!("{at}.type"))?;
    let takes_media = side.is_none_or(|side| side == Side::User);
    let kind = match name.value().as_ref() {
        "input_text" | "output_text" | "text" | "summary_text" => {
            BlockKind::Text(required_text(value, "text", format_args!("{at}.text"))?)
        }
        "refusal" if side == Some(Side::Assistant) => BlockKind::Refusal(required_text(
            value,
            "refusal",
            format_args!("{at}.refusal"),
        )?),
        "input_image" if takes_media => image(value, at, warnings)?,
        "input_file" if takes_media => file(value, at)?,
        "input_audio" if takes_media => BlockKind::Opaque(Opaque {
            origin: Protocol::Chat,
            name: name.clone(),
            value,
        }),
        "encrypted_content" => {
            warnings.add(Action::Rewritten, At::Item(at.message()));
            BlockKind::Text(Text::made(UNREADABLE))
        }
        "input_image" | "input_file" | "input_audio" => {
            let role = if side == Some(Side::System) {
                "system"
            } else {
                "assistant"
            };
            let message = format!(
                "Invalid value: '{}' in a message with role '{role}'.",
                name.value()
            );
            return Err(invalid(format_args!("{at}.type"), message));
        }
        _ => return Err(unknown_word(format_args!("{at}.type"), &name, "")),
    };
    Ok(Block {
        at,
        cache: marker(value, at)?,
        kind,
    })
}

fn image<'a>(value: Value<'a>, at: At, warnings: &mut Warnings) -> Result<BlockKind<'a>, Refused> {
    if value.get("file_id").is_some() {
        return Err(no_file_id(at));
    }
    let path = format!("{at}.image_url");
    let url = required_text(value, "image_url", &path)?;
    let source = media::image(url).map_err(|message| invalid(path, message))?;
    Ok(BlockKind::Image(Image {
        source,
        detail: media::detail(value, at, warnings),
    }))
}

fn file<'a>(value: Value<'a>, at: At) -> Result<BlockKind<'a>, Refused> {
    if value.get("file_id").is_some() {
        return Err(no_file_id(at));
    }
    let title = optional_text(value, "filename", format_args!("{at}.filename"))?
        .filter(|title| !title.is_empty());
    let content = match optional_text(value, "file_url", format_args!("{at}.file_url"))? {
        Some(url) => FileContent::Url(url),
        None => {
            let path = format!("{at}.file_data");
            let data = required_text(value, "file_data", &path)?;
            media::file(data, title.as_ref()).map_err(|message| invalid(path, message))?
        }
    };
    Ok(BlockKind::File(File {
        title,
        context: None,
        content,
        wants_citations: false,
    }))
}

fn no_file_id(at: At) -> Refused {
    let message = "file_id is not available for this model; send the data instead.";
    refused(&format!("{at}.file_id"), message, "unsupported_value")
}
