//! Items of the history that no other vendor's model accepts in their original form. They become
//! text or are dropped.
//!
//! This file must not refuse an item, because an agent repeats it for the rest of its session.
//!
//! Read next: `read_request/tools.rs`.

use crate::json::{JsonValue, compacted};

/// Note that replaces an earlier compaction, which only the vendor that made it can read.
pub(super) const COMPACTION_NOTE: &str = "[An earlier part of this conversation was compacted by another provider and cannot be read here.]";

/// Maximum length of a hosted tool's arguments or result as text, in characters.
const MAX_FALLBACK_CHARS: usize = 2_000;

/// Converts a message between agents to text, and returns whether a part of the message was
/// unreadable.
pub(super) fn agent_message(item: JsonValue<'_>) -> (String, bool) {
    let mut text = String::from("<agent_message");
    for name in ["author", "recipient"] {
        if let Some(value) = item.string_of(name) {
            let value = value
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&quot;");
            text.push_str(&format!(" {name}=\"{value}\""));
        }
    }
    text.push_str(">\n");
    let mut is_sealed = false;
    match item.get("content") {
        Some(content) if content.is_string() => {
            text.push_str(&content.string().unwrap_or_default())
        }
        content => {
            for part in content.into_iter().flat_map(JsonValue::items) {
                if part.member_is("type", "encrypted_content") {
                    is_sealed = true;
                    text.push_str("[content not readable here]");
                } else {
                    text.push_str(&part.string_of("text").unwrap_or_default());
                }
            }
        }
    }
    text.push_str("\n</agent_message>");
    (text, is_sealed)
}

/// Describes the call of a tool that ran at another vendor. Returns `None` for an item that is
/// meaningless to a model.
pub(super) fn hosted_call(kind: &str, item: JsonValue<'_>) -> Option<String> {
    let name = match kind {
        "mcp_list_tools" | "program" | "program_output" => return None,
        "mcp_call" => item.string_of("name").unwrap_or_default().into_owned(),
        _ => kind
            .trim_end_matches("_call")
            .trim_end_matches("_output")
            .to_owned(),
    };
    let query = ["action", "arguments", "queries", "code"]
        .iter()
        .find_map(|member| item.get(member));
    let gave = ["output", "results", "outputs"]
        .iter()
        .find_map(|member| item.get(member));
    let query = query.map(truncated_text).unwrap_or_default();
    let mut text = format!("[used {name}: {query}]");
    if let Some(gave) = gave.map(truncated_text).filter(|gave| !gave.is_empty()) {
        text.push('\n');
        text.push_str(&gave);
    }
    Some(text)
}

/// Returns a string as it is and any other value as JSON, truncated.
fn truncated_text(value: JsonValue<'_>) -> String {
    let whole = value
        .string()
        .map(std::borrow::Cow::into_owned)
        .unwrap_or_else(|| compacted(value.raw()));
    whole.chars().take(MAX_FALLBACK_CHARS).collect()
}

/// Converts the output of a shell to the text that a person would see.
pub(super) fn shell_output(item: JsonValue<'_>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for part in item.items_of("output") {
        for name in ["stdout", "stderr"] {
            let text = part.string_of(name).unwrap_or_default();
            if !text.is_empty() {
                lines.push(text.trim_end_matches('\n').to_owned());
            }
        }
        let outcome = part.get("outcome");
        match outcome.and_then(|outcome| outcome.get("type")) {
            Some(kind) if kind.is("timeout") => lines.push("timed out".to_owned()),
            _ => {
                if let Some(code) = outcome.and_then(|outcome| outcome.get("exit_code")) {
                    lines.push(format!("exit code {}", code.raw()));
                }
            }
        }
    }
    lines.join("\n")
}
