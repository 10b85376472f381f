//! Converts custom tools of the responses surface into functions, for vendors that accept only
//! functions. The function's argument is an object around one string.
//!
//! The conversion must be exact in both directions: the text from the object equals the original,
//! character by character.
//!
//! Read next: `responses/write_stream/item.rs`, which unwraps it.

use crate::json::{CompactJson, JoinedText, JsonStr, JsonValue, JsonWriter};

/// Parameter schema of the function.
pub const INPUT_SCHEMA: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

/// Returns the note that is appended to the tool's own description.
pub fn description_note(format: Option<JsonValue<'_>>) -> String {
    let mut note = "Put the raw text into \"input\".".to_owned();
    let grammar = format.filter(|format| format.member_is("type", "grammar"));
    // Chat nests the grammar one level deeper.
    let grammar = grammar.map(|format| format.get("grammar").unwrap_or(format));
    if let Some(grammar) = grammar {
        let text = |name| grammar.string_of(name).unwrap_or_default();
        note.push_str(&format!(
            "\nThe text must match this {} grammar:\n{}",
            text("syntax"),
            text("definition")
        ));
    }
    note
}

/// Writes the member `description`: the tool's own text, followed by the note.
pub fn write_description(
    words: Option<&JsonStr<'_>>,
    format: Option<JsonValue<'_>>,
    json: &mut JsonWriter,
) {
    let note = JsonStr::from_value(description_note(format));
    let words = words.filter(|words| !words.is_blank());
    let gap = words.map(|_| JsonStr::from_value("\n\n"));
    json.member(
        "description",
        JoinedText(words.into_iter().chain(&gap).chain([&note])),
    );
}

/// Writes the member `format` for chat, where a grammar is in an object of its own.
pub fn write_chat_format(format: JsonValue<'_>, json: &mut JsonWriter) {
    json.key("format");
    if !format.member_is("type", "grammar") || format.get("grammar").is_some() {
        json.value(CompactJson(format.raw()));
        return;
    }
    json.open_typed("grammar").member_object("grammar");
    let members = format.members();
    json.copy_members(members.filter(|(name, value)| !name.is("type") && !value.is_null()));
    json.close_object().close_object();
}

/// Writes the member `format` for responses, where the grammar's members are beside its type.
pub fn write_responses_format(format: JsonValue<'_>, json: &mut JsonWriter) {
    let Some(grammar) = format.get("grammar") else {
        json.member("format", format);
        return;
    };
    json.member_typed("format", "grammar");
    for member in ["syntax", "definition"] {
        json.member_if_some(member, grammar.get(member));
    }
    json.close_object();
}

/// Writes the arguments of a call as a string that contains the object.
pub fn write_arguments(input: &JsonStr<'_>, json: &mut JsonWriter) {
    let mut inner = JsonWriter::default();
    inner.open_object().member("input", input).close_object();
    json.value(std::str::from_utf8(inner.as_bytes()).unwrap_or("{}"));
}
