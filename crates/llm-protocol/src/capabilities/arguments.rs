//! Converts a call's arguments between a JSON object (messages) and JSON in a string (chat).
//! Malformed arguments are preserved.
//!
//! This file must not guess or repair. It wraps arguments that cannot be parsed, so that the tool
//! sees the error. A shell command that was cut off may be another valid command.
//!
//! Read next: `schema.rs` in this folder.

use super::custom_tool;
use crate::ir::{ToolArguments, ToolCall};
use crate::json::{CompactJson, JsonKind, JsonScanner, JsonStr, JsonValue, JsonWriter, compacted};

/// Name of the only member in an object that wraps malformed arguments.
const INVALID_ARGUMENTS: &str = "_invalid_arguments";

/// Maximum nesting depth of arguments; deeper ones count as malformed. The limit is below that of a
/// request by the number of levels around the arguments.
const MAX_ARGUMENT_DEPTH: u32 = 56;

/// Writes the arguments as the value of `input`: the object itself, `{}` if they are empty, else
/// `{"_invalid_arguments": "…"}`. Returns true in the last case. [`write_arguments`] reverses it.
pub fn write_input(arguments: &JsonStr<'_>, json: &mut JsonWriter) -> bool {
    let value = arguments.value();
    let value = value.trim_ascii();
    if is_object(value) {
        json.value(CompactJson(value));
        return false;
    }
    json.open_object();
    let is_broken = !value.is_empty() && value != "null";
    if is_broken {
        json.member(INVALID_ARGUMENTS, arguments);
    }
    json.close_object();
    is_broken
}

/// Writes the arguments of a call that was cut off as the value of `input`: the object itself if it
/// is complete, else `{"_invalid_arguments": "…"}`. Empty arguments count as incomplete. A client
/// therefore cannot take them for complete arguments.
pub fn write_truncated_input(arguments: &JsonStr<'_>, json: &mut JsonWriter) {
    if is_object(arguments.value().trim_ascii()) {
        write_input(arguments, json);
    } else {
        json.open_object()
            .member(INVALID_ARGUMENTS, arguments)
            .close_object();
    }
}

/// Writes the arguments of a call for a vendor of the chat or responses protocol. `is_custom` says
/// whether the call is sent as a call of a custom tool.
pub fn write_call_arguments(call: &ToolCall<'_>, is_custom: bool, json: &mut JsonWriter) {
    match &call.arguments {
        ToolArguments::Json(input) => write_arguments(*input, json),
        ToolArguments::Text(text) if call.is_custom && !is_custom => {
            custom_tool::write_arguments(text, json)
        }
        // A blank string is not valid JSON.
        ToolArguments::Text(text) if text.is_blank() && !is_custom => drop(json.value("{}")),
        ToolArguments::Text(text) => drop(json.value(text)),
    }
}

/// Writes `input` as the value of `arguments`: a string of compact JSON, or the text of
/// `_invalid_arguments` if that is its only member.
pub fn write_arguments(input: JsonValue<'_>, json: &mut JsonWriter) {
    let mut members = input.members();
    if let (Some((key, value)), None) = (members.next(), members.next())
        && key.is(INVALID_ARGUMENTS)
        && let Some(raw) = value.text()
    {
        // Servers that parse the arguments of earlier calls as JSON refuse an empty text.
        if raw.is_empty() {
            json.value("{}")
        } else {
            json.value(&raw)
        };
        return;
    }
    if input.is_null() {
        json.value("{}");
        return;
    }
    json.value(unescape_non_ascii(compacted(input.raw())));
}

/// Replaces escapes of characters beyond ASCII with the characters. Vendors write the characters
/// themselves, and a history that differs from the model's own answer would miss the vendor's
/// cache.
fn unescape_non_ascii(json: String) -> String {
    if !json.contains("\\u") {
        return json;
    }
    let mut out = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let (letter, length) = decode_escape(escape);
        match letter {
            Some(letter) => out.push(letter),
            None => out.push_str(escape.get(..length).unwrap_or(escape)),
        }
        rest = escape.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Decodes the escape at the start of the text, if it stands for a character beyond ASCII. Returns
/// the character and the escape's length; other escapes and half a surrogate pair yield no
/// character.
fn decode_escape(escape: &str) -> (Option<char>, usize) {
    let Some(unit) = code_unit(escape) else {
        return (None, 2);
    };
    let second = || escape.get(6..).and_then(code_unit);
    let letter = match unit {
        0xd800..=0xdbff => second().and_then(|low| char::decode_utf16([unit, low]).next()?.ok()),
        _ => char::from_u32(u32::from(unit)).filter(|letter| !letter.is_ascii()),
    };
    (
        letter,
        if letter.is_some_and(|letter| letter.len_utf16() == 2) {
            12
        } else {
            6
        },
    )
}

fn code_unit(escape: &str) -> Option<u16> {
    u16::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// Returns whether the text is one JSON object and nothing else.
fn is_object(text: &str) -> bool {
    JsonScanner::new(text, MAX_ARGUMENT_DEPTH).kind() == Ok(JsonKind::Object) && is_json(text)
}

fn is_json(text: &str) -> bool {
    let mut scan = JsonScanner::new(text, MAX_ARGUMENT_DEPTH);
    scan.skip().and_then(|_| scan.end()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{JsonDocument, NodeBuffer};
    use proptest::prelude::*;

    fn input(arguments: &JsonStr<'_>) -> (String, bool) {
        let mut json = JsonWriter::default();
        let is_broken = write_input(arguments, &mut json);
        (String::from_utf8(json.into_bytes()).unwrap(), is_broken)
    }

    fn arguments(input: &str) -> String {
        let tree = JsonDocument::parse(input, 128, NodeBuffer::new()).unwrap();
        let mut json = JsonWriter::default();
        write_arguments(tree.root(), &mut json);
        serde_json::from_slice(json.as_bytes()).unwrap()
    }

    #[test]
    fn an_object_is_itself_nothing_is_empty_and_the_rest_is_wrapped() {
        for (raw, expected, is_broken) in [
            (r#"{"city":"Paris"}"#, r#"{"city":"Paris"}"#, false),
            ("{ \"a\" : [1,\n 2] }\n", r#"{"a":[1,2]}"#, false),
            ("", "{}", false),
            (" \n", "{}", false),
            ("null", "{}", false),
            (
                r#"{"city":"Par"#,
                r#"{"_invalid_arguments":"{\"city\":\"Par"}"#,
                true,
            ),
            ("[1]", r#"{"_invalid_arguments":"[1]"}"#, true),
            ("{}{}", r#"{"_invalid_arguments":"{}{}"}"#, true),
        ] {
            assert_eq!(
                input(&JsonStr::from_value(raw)),
                (expected.to_owned(), is_broken),
                "{raw}"
            );
        }
        let token = JsonStr::from_token(r#"{\"n\":\"caf\u00e9 \\ud800\"}"#, true);
        assert_eq!(input(&token), (r#"{"n":"café \ud800"}"#.to_owned(), false));
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert!(input(&JsonStr::from_value(deep)).1);
    }

    #[test]
    fn arguments_are_compact_in_order_and_spelled_out() {
        assert_eq!(
            arguments(" { \"b\" : 1.0, \"a\" : [ \"x y\" ] } "),
            r#"{"b":1.0,"a":["x y"]}"#
        );
        assert_eq!(
            arguments(r#"{"a":"caf\u00e9 \ud83d\ude00 \u000a \ud83d \\u00e9"}"#),
            r#"{"a":"café 😀 \u000a \ud83d \\u00e9"}"#
        );
        assert_eq!(arguments("{}"), "{}");
        assert_eq!(arguments("null"), "{}");
        assert_eq!(
            arguments(r#"{"_invalid_arguments":7}"#),
            r#"{"_invalid_arguments":7}"#
        );
        assert_eq!(
            arguments(r#"{"_invalid_arguments":"{","a":1}"#),
            r#"{"_invalid_arguments":"{","a":1}"#
        );
    }

    #[test]
    fn arguments_that_were_cut_are_never_an_object_of_the_tools() {
        let cut = |raw: &str| {
            let mut json = JsonWriter::default();
            write_truncated_input(&JsonStr::from_value(raw), &mut json);
            String::from_utf8(json.into_bytes()).unwrap()
        };
        assert_eq!(cut(""), r#"{"_invalid_arguments":""}"#);
        assert_eq!(cut("{"), r#"{"_invalid_arguments":"{"}"#);
        assert_eq!(
            cut(r#"{"a":1,"b"#),
            r#"{"_invalid_arguments":"{\"a\":1,\"b"}"#
        );
        assert_eq!(cut("null"), r#"{"_invalid_arguments":"null"}"#);
        assert_eq!(cut(r#" {"a": 1}"#), r#"{"a":1}"#);
        assert_eq!(arguments(&cut("")), "{}");
        assert_eq!(arguments(&cut("{\"a")), "{\"a");
    }

    proptest! {
        #[test]
        fn broken_arguments_survive_a_round_trip(raw in ".*") {
            let text = JsonStr::from_value(raw.as_str());
            let (written, is_broken) = input(&text);
            if is_broken {
                prop_assert_eq!(arguments(&written), raw);
            }
        }

        #[test]
        fn wherever_arguments_are_cut_they_are_wrapped(at in 1_usize..60) {
            let whole = r#"{"k":[1.5e3,"a\n\u00e9é",null,{"x":{}}],"long":"text","z":-0.5}"#;
            let end = (1..=at).rev().find(|end| whole.is_char_boundary(*end)).unwrap_or(1);
            let mut json = JsonWriter::default();
            write_truncated_input(&JsonStr::from_value(&whole[..end]), &mut json);
            let written = String::from_utf8(json.into_bytes()).unwrap();
            prop_assert!(written.starts_with(r#"{"_invalid_arguments":"{"#), "{}", written);
            prop_assert_eq!(arguments(&written), &whole[..end]);
        }
    }
}
