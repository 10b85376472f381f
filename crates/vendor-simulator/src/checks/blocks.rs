//! Implements the messages vendor's checks of a single block of a turn.
//!
//! This file must not examine the neighbouring blocks (`turns.rs` and `pairing.rs` do).

use serde_json::Value;

use super::members::{is_word, list, unknown_member};
use super::messages_errors::{check_members, extra_input, invalid_request};
use crate::errors::SimulatedError;
use crate::signature::{SignatureKind, decode, is_ours};

const MAX_ID_BYTES: usize = 256;
const MAX_NAME_BYTES: usize = 128;
const USER_BLOCKS: [&str; 7] = [
    "text",
    "image",
    "document",
    "tool_result",
    "search_result",
    "container_upload",
    "compaction",
];
const ASSISTANT_BLOCKS: [&str; 11] = [
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_listing",
    "container_upload",
    "compaction",
    "fallback",
    "document",
];
const RESULT_BLOCKS: [&str; 6] = [
    "text",
    "image",
    "document",
    "search_result",
    "tool_reference",
    "browser_state",
];

/// Magic bytes of image formats.
const MAGIC: [(&[u8], &str); 4] = [
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
];

pub fn check(path: &str, block: &Value, role: &str) -> Result<(), SimulatedError> {
    let kind = block["type"].as_str().unwrap_or_default();
    let is_allowed = match role {
        "user" => USER_BLOCKS.contains(&kind),
        "assistant" => {
            ASSISTANT_BLOCKS.contains(&kind)
                || (kind.ends_with("_tool_result") && kind != "tool_result")
        }
        _ => matches!(kind, "text" | "tool_addition" | "tool_removal"),
    };
    if !is_allowed {
        return Err(misplaced(path, kind));
    }
    if let Some(extra) = fields(kind).and_then(|known| unknown_member(block, known)) {
        return Err(extra_input(&format!("{path}.{kind}.{extra}")));
    }
    match kind {
        "text" => check_text("messages", block),
        "thinking" => check_thinking(path, block),
        "redacted_thinking" => check_redacted(path, block),
        "tool_use" => check_call(&format!("{path}.tool_use"), block),
        "tool_result" => check_result(&format!("{path}.tool_result"), block),
        "image" => check_image(&format!("{path}.image.source"), &block["source"]),
        "document" => check_document(&format!("{path}.document.source"), &block["source"]),
        _ => Ok(()),
    }
}

fn fields(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "text" => &["type", "text", "cache_control", "citations"],
        "thinking" => &["type", "thinking", "signature"],
        "redacted_thinking" => &["type", "data"],
        "tool_use" => &[
            "type",
            "id",
            "name",
            "input",
            "cache_control",
            "caller",
            "toolset_name",
        ],
        "tool_result" => &[
            "type",
            "tool_use_id",
            "content",
            "is_error",
            "cache_control",
        ],
        "image" => &["type", "source", "cache_control", "transformations"],
        "document" => &[
            "type",
            "source",
            "title",
            "context",
            "citations",
            "cache_control",
        ],
        _ => return None,
    })
}

fn misplaced(path: &str, kind: &str) -> SimulatedError {
    let turn = path.split(".content").next().unwrap_or(path);
    match kind {
        "tool_result" => invalid_request(format!(
            "{turn}: `tool_result` blocks can only be in `user` messages"
        )),
        "tool_use" | "thinking" | "redacted_thinking" | "server_tool_use" => invalid_request(
            format!("{turn}: `{kind}` blocks can only be in `assistant` messages"),
        ),
        "" => invalid_request(format!("{path}.type: Field required")),
        _ => invalid_request(format!(
            "{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags: 'document', \
             'image', 'redacted_thinking', 'search_result', 'server_tool_use', 'text', 'thinking', 'tool_result', \
             'tool_use', 'web_search_tool_result'"
        )),
    }
}

/// Rejects a text block without text. In error messages, the block has the name `position`.
pub fn check_text(position: &str, block: &Value) -> Result<(), SimulatedError> {
    let Some(text) = block["text"].as_str() else {
        return Err(invalid_request(format!(
            "{position}: text content blocks must have a `text` field"
        )));
    };
    if text.is_empty() {
        let marked = block
            .get("cache_control")
            .is_some_and(|mark| !mark.is_null());
        return Err(invalid_request(match marked {
            true => format!("{position}: cache_control cannot be set for empty text blocks"),
            false => format!("{position}: text content blocks must be non-empty"),
        }));
    }
    if text.trim().is_empty() {
        Err(blank_text(position))
    } else {
        Ok(())
    }
}

/// Returns the error for a text of only whitespace.
pub fn blank_text(position: &str) -> SimulatedError {
    invalid_request(format!(
        "{position}: text content blocks must contain non-whitespace text"
    ))
}

fn check_thinking(path: &str, block: &Value) -> Result<(), SimulatedError> {
    let (text, signature) = (block["thinking"].as_str(), block["signature"].as_str());
    let Some(text) = text else {
        return Err(invalid_request(format!(
            "{path}.thinking.thinking: Field required"
        )));
    };
    let Some(signature) = signature else {
        return Err(invalid_request(format!(
            "{path}.thinking.signature: Field required"
        )));
    };
    match is_ours(SignatureKind::Thinking, text, signature) {
        true => Ok(()),
        false => Err(invalid_request(format!(
            "{path}: Invalid `signature` in `thinking` block"
        ))),
    }
}

fn check_redacted(path: &str, block: &Value) -> Result<(), SimulatedError> {
    match is_ours(
        SignatureKind::Redacted,
        "",
        block["data"].as_str().unwrap_or_default(),
    ) {
        true => Ok(()),
        false => Err(invalid_request(format!(
            "{path}: Invalid `data` in `redacted_thinking` block"
        ))),
    }
}

fn check_call(path: &str, block: &Value) -> Result<(), SimulatedError> {
    check_id(&format!("{path}.id"), &block["id"])?;
    if !block["name"]
        .as_str()
        .is_some_and(|name| is_word(name, MAX_NAME_BYTES))
    {
        return Err(invalid_request(format!(
            "{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,{MAX_NAME_BYTES}}}$'"
        )));
    }
    match block.get("input") {
        Some(Value::Object(_)) => Ok(()),
        Some(_) => Err(invalid_request(format!(
            "{path}.input: Input should be a valid dictionary"
        ))),
        None => Err(invalid_request(format!("{path}.input: Field required"))),
    }
}

fn check_id(path: &str, id: &Value) -> Result<(), SimulatedError> {
    match id.as_str() {
        Some(id) if is_word(id, MAX_ID_BYTES) => Ok(()),
        Some(_) => Err(invalid_request(format!(
            "{path}: String should match pattern '^[a-zA-Z0-9_-]+$'"
        ))),
        None => Err(invalid_request(format!("{path}: Field required"))),
    }
}

fn check_result(path: &str, block: &Value) -> Result<(), SimulatedError> {
    check_id(&format!("{path}.tool_use_id"), &block["tool_use_id"])?;
    if block.get("is_error").is_some_and(|flag| !flag.is_boolean()) {
        return Err(invalid_request(format!(
            "{path}.is_error: Input should be a valid boolean"
        )));
    }
    match block.get("content") {
        None | Some(Value::String(_)) => return Ok(()),
        Some(Value::Array(_)) => {}
        Some(_) => {
            return Err(invalid_request(format!(
                "{path}.content: Input should be a valid list"
            )));
        }
    }
    for (index, inner) in list(&block["content"]).iter().enumerate() {
        let kind = inner["type"].as_str().unwrap_or_default();
        if !RESULT_BLOCKS.contains(&kind) {
            return Err(invalid_request(format!(
                "{path}.content.{index}: Input tag '{kind}' found using 'type' does not match any of the expected \
                 tags: 'document', 'image', 'search_result', 'text', 'tool_reference'"
            )));
        }
        if USER_BLOCKS.contains(&kind) {
            check(&format!("{path}.content.{index}"), inner, "user")?;
        }
    }
    Ok(())
}

fn check_image(path: &str, source: &Value) -> Result<(), SimulatedError> {
    match source["type"].as_str() {
        Some("base64") => {
            check_members(
                &format!("{path}.base64"),
                source,
                &["type", "media_type", "data"],
            )?;
            check_image_data(&format!("{path}.base64"), source)
        }
        Some("url")
            if source["url"]
                .as_str()
                .is_some_and(|url| url.starts_with("https://")) =>
        {
            Ok(())
        }
        Some("url") => Err(invalid_request(format!(
            "{path}.url.url: Only HTTPS URLs are supported."
        ))),
        Some("file") => Ok(()),
        _ => Err(invalid_request(format!(
            "{path}: Input should be a base64, url or file source"
        ))),
    }
}

fn check_image_data(path: &str, source: &Value) -> Result<(), SimulatedError> {
    let media_type = source["media_type"].as_str().unwrap_or_default();
    if !MAGIC.iter().any(|(_, known)| *known == media_type) {
        return Err(invalid_request(format!(
            "{path}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        )));
    }
    let Some(bytes) = source["data"]
        .as_str()
        .and_then(decode)
        .filter(|bytes| !bytes.is_empty())
    else {
        return Err(invalid_request(format!("{path}: invalid base64 data")));
    };
    match MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        Some((_, found)) if *found != media_type => Err(invalid_request(format!(
            "{path}.data: The image was specified using the {media_type} media type, but the image appears to be a \
             {found} image"
        ))),
        _ => Ok(()),
    }
}

fn check_document(path: &str, source: &Value) -> Result<(), SimulatedError> {
    let media_type = source["media_type"].as_str();
    let data = source["data"].as_str();
    match source["type"].as_str() {
        Some("base64") if media_type != Some("application/pdf") => Err(invalid_request(format!(
            "{path}.base64.media_type: Input should be 'application/pdf'"
        ))),
        Some("base64") if data.and_then(decode).is_none() => Err(invalid_request(format!(
            "{path}.base64: invalid base64 data"
        ))),
        Some("text") if media_type != Some("text/plain") => Err(invalid_request(format!(
            "{path}.text.media_type: Input should be 'text/plain'"
        ))),
        Some("text") if data.is_none() => {
            Err(invalid_request(format!("{path}.text.data: Field required")))
        }
        Some("base64" | "text" | "content" | "url" | "file") => Ok(()),
        _ => Err(invalid_request(format!(
            "{path}: Input should be a base64, text, content, url or file source"
        ))),
    }
}
