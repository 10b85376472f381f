//! Type checks for the chat completions API, and errors in the wording that its clients know.
//!
//! It must not know any particular member.
//!
//! Read next: `read_request/messages.rs`.

use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::{Action, Cache, Refused, Warnings};
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::fmt::Display;

/// JSON type that a member must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::protocol) enum Shape {
    Object,
    Array,
    String,
    Integer,
    Number,
    Bool,
}

impl Shape {
    fn holds(self, value: Value<'_>) -> bool {
        match self {
            Shape::Object => value.is_object(),
            Shape::Array => value.is_array(),
            Shape::String => value.is_string(),
            Shape::Integer => is_integer(value),
            Shape::Number => value.number().is_some(),
            Shape::Bool => value.bool().is_some(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Shape::Object => "an object",
            Shape::Array => "an array",
            Shape::String => "a string",
            Shape::Integer => "an integer",
            Shape::Number => "a decimal number",
            Shape::Bool => "a boolean",
        }
    }
}

fn is_integer(value: Value<'_>) -> bool {
    value.number().is_some()
        && value
            .raw()
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// Checks that the value has this type.
pub(in crate::protocol) fn shape(
    value: Value<'_>,
    shape: Shape,
    path: impl Display,
) -> Result<(), Refused> {
    if shape.holds(value) {
        Ok(())
    } else {
        Err(wrong_type(path, shape.words(), value))
    }
}

pub(in crate::protocol) fn invalid(path: impl Display, message: impl AsRef<str>) -> Refused {
    Box::new(
        Failure::invalid(Protocol::Chat, &path.to_string(), message.as_ref())
            .with_code("invalid_value"),
    )
}

pub(in crate::protocol) fn wrong_type(
    path: impl Display,
    expected: &str,
    value: Value<'_>,
) -> Refused {
    let got = if value.is_object() {
        "an object"
    } else if value.is_array() {
        "an array"
    } else if value.is_string() {
        "a string"
    } else if value.bool().is_some() {
        "a boolean"
    } else if is_integer(value) {
        "an integer"
    } else if value.number().is_some() {
        "a decimal number"
    } else {
        "null"
    };
    let path = path.to_string();
    let message = format!("Invalid type for '{path}': expected {expected}, but got {got} instead.");
    Box::new(Failure::invalid(Protocol::Chat, &path, &message).with_code("invalid_type"))
}

pub(in crate::protocol) fn missing(path: impl Display) -> Refused {
    let path = path.to_string();
    let message = format!("Missing required parameter: '{path}'.");
    Box::new(
        Failure::invalid(Protocol::Chat, &path, &message).with_code("missing_required_parameter"),
    )
}

/// Error for a value that is not in the member's enumeration. `supported` lists the accepted
/// values; it is empty if there are many.
pub(in crate::protocol) fn unknown_word(
    path: impl Display,
    word: &Text<'_>,
    supported: &str,
) -> Refused {
    let word: String = word.letters().take(WORD_LETTERS_MAX).collect();
    let supported = if supported.is_empty() {
        String::new()
    } else {
        format!(" Supported values are: {supported}.")
    };
    invalid(path, format!("Invalid value: '{word}'.{supported}"))
}

/// Maximum number of characters of a client's value that an error message repeats.
const WORD_LETTERS_MAX: usize = 64;

/// Reads a string member that may be absent.
pub(in crate::protocol) fn optional_text<'a>(
    of: Value<'a>,
    name: &str,
    path: impl Display,
) -> Result<Option<Text<'a>>, Refused> {
    match of.get(name) {
        None => Ok(None),
        Some(value) => value
            .text()
            .map(Some)
            .ok_or_else(|| wrong_type(path, "a string", value)),
    }
}

pub(in crate::protocol) fn optional_bool(
    of: Value<'_>,
    name: &str,
    path: impl Display,
) -> Result<Option<bool>, Refused> {
    match of.get(name) {
        None => Ok(None),
        Some(value) => value
            .bool()
            .map(Some)
            .ok_or_else(|| wrong_type(path, "a boolean", value)),
    }
}

pub(in crate::protocol) fn required_text<'a>(
    of: Value<'a>,
    name: &str,
    path: impl Display,
) -> Result<Text<'a>, Refused> {
    match of.get(name) {
        None => Err(missing(path)),
        Some(value) => value
            .text()
            .ok_or_else(|| wrong_type(path, "a string", value)),
    }
}

pub(in crate::protocol) fn required_object<'a>(
    of: Value<'a>,
    name: &str,
    path: impl Display,
) -> Result<Value<'a>, Refused> {
    let value = of.get(name).ok_or_else(|| missing(&path))?;
    shape(value, Shape::Object, path)?;
    Ok(value)
}

/// Iterates over the items of an array that may be absent.
pub(in crate::protocol) fn optional_items<'a>(
    of: Value<'a>,
    name: &str,
    path: &dyn Display,
) -> Result<impl Iterator<Item = Value<'a>> + use<'a>, Refused> {
    let value = of.get(name);
    if let Some(value) = value {
        shape(value, Shape::Array, path)?;
    }
    Ok(value.into_iter().flat_map(Value::items))
}

/// Warns about every member that is not in `known`. The path has no indexes: a client that adds its
/// own member to one message adds it to all of them.
pub(in crate::protocol) fn unknown_members(
    of: Value<'_>,
    known: &[&str],
    path: &str,
    warnings: &mut Warnings,
) {
    unknown_besides(of, known, &[], path, warnings);
}

/// Does what [`warn_unknown_members`] does, with two lists of known members.
pub(in crate::protocol) fn unknown_besides(
    of: Value<'_>,
    common: &[&str],
    own: &[&str],
    path: &str,
    warnings: &mut Warnings,
) {
    for (name, value) in of.members() {
        let name = name.value();
        let is_known = common.contains(&name.as_ref()) || own.contains(&name.as_ref());
        if !is_known && !value.is_null() {
            warnings.add(Action::Dropped, format_args!("{path}.{name}"));
        }
    }
}

/// Reads a `cache_control` object.
pub(in crate::protocol) fn marker(value: Value<'_>, path: impl Display) -> Result<Cache, Refused> {
    shape(value, Shape::Object, &path)?;
    let kind = required_text(value, "type", format_args!("{path}.type"))?;
    if !kind.is("ephemeral") {
        return Err(unknown_word(
            format_args!("{path}.type"),
            &kind,
            "'ephemeral'",
        ));
    }
    match optional_text(value, "ttl", format_args!("{path}.ttl"))? {
        None => Ok(Cache::Usual),
        Some(ttl) if ttl.is("5m") => Ok(Cache::FiveMinutes),
        Some(ttl) if ttl.is("1h") => Ok(Cache::OneHour),
        Some(ttl) => Err(unknown_word(
            format_args!("{path}.ttl"),
            &ttl,
            "'5m' and '1h'",
        )),
    }
}
