//! Reads the members of a JSON body.
//!
//! This file must not depend on a vendor.

use serde_json::Value;

pub fn non_null<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).filter(|value| !value.is_null())
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the first member of an object that is not in the list of known ones.
pub fn unknown_member<'a>(value: &'a Value, known: &[&str]) -> Option<&'a str> {
    let names = value.as_object()?.keys().map(String::as_str);
    names.into_iter().find(|name| !known.contains(name))
}

/// Returns whether the text consists of letters, digits, `_` and `-`, and is not too long.
pub fn is_word(text: &str, max: usize) -> bool {
    let is_word_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=max).contains(&text.len()) && text.bytes().all(is_word_byte)
}
