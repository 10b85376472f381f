//! Checks types for the chat completions API, with errors in the wording that its clients know.
//!
//! This file must not name a particular member.
//!
//! Read next: `chat/read_request/messages.rs`.

use crate::Protocol;
use crate::failure::Failure;
use crate::ir::{BoxedFailure, CacheBreakpoint, Effort, RequestResult, Warnings};
use crate::json::{JsonStr, JsonValue};
use std::fmt::Display;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberType {
    Object,
    Array,
    String,
    Integer,
    Number,
    Bool,
}

impl MemberType {
    /// All types, in an order in which an integer precedes a number.
    const ALL: [MemberType; 6] = [
        MemberType::Object,
        MemberType::Array,
        MemberType::String,
        MemberType::Integer,
        MemberType::Number,
        MemberType::Bool,
    ];

    fn matches(self, value: JsonValue<'_>) -> bool {
        match self {
            MemberType::Object => value.is_object(),
            MemberType::Array => value.is_array(),
            MemberType::String => value.is_string(),
            MemberType::Integer => is_integer(value),
            MemberType::Number => value.number().is_some(),
            MemberType::Bool => value.bool().is_some(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            MemberType::Object => "an object",
            MemberType::Array => "an array",
            MemberType::String => "a string",
            MemberType::Integer => "an integer",
            MemberType::Number => "a decimal number",
            MemberType::Bool => "a boolean",
        }
    }
}

fn is_integer(value: JsonValue<'_>) -> bool {
    value.number().is_some()
        && value
            .raw()
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
}

pub(crate) fn check_type(
    value: JsonValue<'_>,
    shape: MemberType,
    path: impl Display,
) -> RequestResult {
    if shape.matches(value) {
        Ok(())
    } else {
        refuse_type(path, shape.description(), value)
    }
}

pub(crate) fn invalid(path: impl Display, message: impl Display) -> BoxedFailure {
    Failure::invalid_param(Protocol::Chat, path, message)
        .with_code("invalid_value")
        .into()
}

pub(crate) fn refuse<T>(path: impl Display, message: impl Display) -> RequestResult<T> {
    Err(invalid(path, message))
}

pub(crate) fn refuse_type<T>(
    path: impl Display,
    expected: &str,
    value: JsonValue<'_>,
) -> RequestResult<T> {
    Err(wrong_type(path, expected, value))
}

/// Refuses a value that is not in the member's enumeration. `supported` lists the accepted values;
/// it is empty if there are many.
pub(crate) fn refuse_value<T>(
    path: impl Display,
    word: &JsonStr<'_>,
    supported: &str,
) -> RequestResult<T> {
    let word: String = word.chars().take(MAX_ECHOED_VALUE_CHARS).collect();
    let supported = if supported.is_empty() {
        String::new()
    } else {
        format!(" Supported values are: {supported}.")
    };
    refuse(path, format!("Invalid value: '{word}'.{supported}"))
}

pub(crate) fn wrong_type(path: impl Display, expected: &str, value: JsonValue<'_>) -> BoxedFailure {
    let found = MemberType::ALL.iter().find(|shape| shape.matches(value));
    let got = found.map_or("null", |shape| shape.description());
    let path = path.to_string();
    let message = format!("Invalid type for '{path}': expected {expected}, but got {got} instead.");
    Failure::invalid_param(Protocol::Chat, path, message)
        .with_code("invalid_type")
        .into()
}

pub(crate) fn missing(path: impl Display) -> BoxedFailure {
    let path = path.to_string();
    let message = format!("Missing required parameter: '{path}'.");
    Failure::invalid_param(Protocol::Chat, path, message)
        .with_code("missing_required_parameter")
        .into()
}

/// Maximum number of characters of a client's value that an error message repeats.
const MAX_ECHOED_VALUE_CHARS: usize = 64;

/// Returns the path of a member. `within` is the path of its object, which is empty for the body.
pub(crate) fn member_path(within: impl Display, name: &str) -> String {
    let mut path = within.to_string();
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
    path
}

/// Reads an optional member of this type. In this file, `within` is the path of the object.
fn optional_member<'a, T>(
    of: JsonValue<'a>,
    name: &str,
    within: impl Display,
    shape: MemberType,
    read: impl FnOnce(JsonValue<'a>) -> Option<T>,
) -> RequestResult<Option<T>> {
    let Some(value) = of.get(name) else {
        return Ok(None);
    };
    let wrong = || wrong_type(member_path(within, name), shape.description(), value);
    read(value).ok_or_else(wrong).map(Some)
}

pub(crate) fn optional_text<'a>(
    of: JsonValue<'a>,
    name: &str,
    within: impl Display,
) -> RequestResult<Option<JsonStr<'a>>> {
    optional_member(of, name, within, MemberType::String, JsonValue::text)
}

pub(crate) fn optional_bool(
    of: JsonValue<'_>,
    name: &str,
    within: impl Display,
) -> RequestResult<Option<bool>> {
    optional_member(of, name, within, MemberType::Bool, JsonValue::bool)
}

pub(crate) fn optional_object<'a>(
    of: JsonValue<'a>,
    name: &str,
    within: impl Display,
) -> RequestResult<Option<JsonValue<'a>>> {
    let object = |value: JsonValue<'a>| value.is_object().then_some(value);
    optional_member(of, name, within, MemberType::Object, object)
}

pub(crate) fn required_text<'a>(
    of: JsonValue<'a>,
    name: &str,
    within: impl Display,
) -> RequestResult<JsonStr<'a>> {
    optional_text(of, name, &within)?.ok_or_else(|| missing(member_path(&within, name)))
}

pub(crate) fn required_object<'a>(
    of: JsonValue<'a>,
    name: &str,
    within: impl Display,
) -> RequestResult<JsonValue<'a>> {
    optional_object(of, name, &within)?.ok_or_else(|| missing(member_path(&within, name)))
}

/// Iterates over the items of an optional array.
pub(crate) fn optional_items<'a>(
    of: JsonValue<'a>,
    name: &str,
    within: &dyn Display,
) -> RequestResult<impl Iterator<Item = JsonValue<'a>> + use<'a>> {
    let array = |value: JsonValue<'a>| value.is_array().then(|| value.items());
    let items = optional_member(of, name, within, MemberType::Array, array)?;
    Ok(items.into_iter().flatten())
}

/// Warns about every member that is not in `known`. The path has no indexes, because a client that
/// adds its own member to one message usually adds it to all.
pub(crate) fn warn_unknown_members(
    of: JsonValue<'_>,
    known: &[&str],
    path: &str,
    warnings: &mut Warnings,
) {
    warn_unlisted_members(of, known, &[], path, warnings);
}

/// Does what [`warn_unknown_members`] does, with two lists of known members.
pub(crate) fn warn_unlisted_members(
    of: JsonValue<'_>,
    common: &[&str],
    own: &[&str],
    path: &str,
    warnings: &mut Warnings,
) {
    for (name, value) in of.members() {
        let name = name.value();
        let is_known = common.contains(&name.as_ref()) || own.contains(&name.as_ref());
        if !is_known && !value.is_null() {
            warnings.dropped(format_args!("{path}.{name}"));
        }
    }
}

pub(crate) fn parse_effort(word: &JsonStr<'_>, path: impl Display) -> RequestResult<Effort> {
    const EFFORTS: &str = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'";
    match Effort::parse(&word.value()) {
        Some(effort) => Ok(effort),
        None => refuse_value(path, word, EFFORTS),
    }
}

pub(crate) fn cache_control(
    value: JsonValue<'_>,
    path: impl Display,
) -> RequestResult<CacheBreakpoint> {
    check_type(value, MemberType::Object, &path)?;
    let kind = required_text(value, "type", &path)?;
    if !kind.is("ephemeral") {
        return refuse_value(format_args!("{path}.type"), &kind, "'ephemeral'");
    }
    let cache = CacheBreakpoint::from_marker(value);
    match optional_text(value, "ttl", &path)? {
        Some(ttl) if cache.lifetime().is_none() => {
            refuse_value(format_args!("{path}.ttl"), &ttl, "'5m' and '1h'")
        }
        _ => Ok(cache),
    }
}
