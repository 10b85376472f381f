//! Small checks with errors in the wording of the messages API, and a function that picks members
//! of an object in one pass.
//!
//! The functions must not depend on the meaning of a member.

use crate::Protocol;
use crate::capabilities::FieldMapping;
use crate::failure::Failure;
use crate::fields::messages as messages_fields;
use crate::ir::{BoxedFailure, RequestResult, Warnings};
use crate::json::{JsonStr, JsonValue};
use std::fmt::Display;

pub(super) const NOT_AN_ARRAY: &str = "Input should be a valid array";
pub(super) const NOT_AN_INTEGER: &str = "Input should be a valid integer";

pub(super) fn invalid_param(path: impl Display, message: impl Display) -> BoxedFailure {
    Failure::invalid_param(Protocol::Messages, path, message).into()
}

pub(super) fn refuse<T>(path: impl Display, message: impl Display) -> RequestResult<T> {
    Err(invalid_param(path, message))
}

pub(super) fn unexpected_tag(kind: &str, expected: &str) -> String {
    format!(
        "Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}"
    )
}

pub(super) fn require(
    value: Option<JsonValue<'_>>,
    path: impl Display,
) -> RequestResult<JsonValue<'_>> {
    value.ok_or_else(|| invalid_param(path, "Field required"))
}

pub(super) fn expect_string(
    value: JsonValue<'_>,
    path: impl Display,
) -> RequestResult<JsonStr<'_>> {
    value
        .text()
        .ok_or_else(|| invalid_param(path, "Input should be a valid string"))
}

pub(super) fn require_string(
    value: Option<JsonValue<'_>>,
    path: impl Display,
) -> RequestResult<JsonStr<'_>> {
    expect_string(require(value, &path)?, &path)
}

pub(super) fn require_object(
    value: Option<JsonValue<'_>>,
    path: impl Display,
) -> RequestResult<JsonValue<'_>> {
    let value = require(value, &path)?;
    expect_object(value, &path)?;
    Ok(value)
}

pub(super) fn optional_string(
    value: Option<JsonValue<'_>>,
    path: impl Display,
) -> RequestResult<Option<JsonStr<'_>>> {
    value.map(|value| expect_string(value, path)).transpose()
}

pub(super) fn expect_object(value: JsonValue<'_>, path: impl Display) -> RequestResult {
    if value.is_object() {
        Ok(())
    } else {
        refuse(path, "Input should be a valid object")
    }
}

/// Reads a boolean. An absent member counts as false.
pub(super) fn bool_or_false(
    value: Option<JsonValue<'_>>,
    path: impl Display,
) -> RequestResult<bool> {
    match value {
        None => Ok(false),
        Some(value) => value
            .bool()
            .ok_or_else(|| invalid_param(path, "Input should be a valid boolean")),
    }
}

/// Returns the members with these names, and passes every other member to `other`. The last of
/// duplicate members wins. A null member counts as absent.
pub(super) fn pick_members<'a, const N: usize>(
    object: JsonValue<'a>,
    names: [&str; N],
    mut other: impl FnMut(JsonStr<'a>, JsonValue<'a>),
) -> [Option<JsonValue<'a>>; N] {
    let mut found = [None; N];
    for (name, value) in object.members() {
        let slot = names.iter().position(|expected| name.is(expected));
        match slot.and_then(|slot| found.get_mut(slot)) {
            Some(found) => *found = (!value.is_null()).then_some(value),
            None if value.is_null() => {}
            None => other(name, value),
        }
    }
    found
}

/// Returns the members with these names, and drops all others: silently if the table says `Drop`,
/// otherwise with a warning. `row` is the path of the object in the table, and `at` its path in the
/// request.
pub(super) fn pick_known<'a, const N: usize>(
    object: JsonValue<'a>,
    names: [&str; N],
    row: impl Display,
    at: impl Display,
    warnings: &mut Warnings,
) -> [Option<JsonValue<'a>>; N] {
    pick_members(object, names, |name, _| {
        let name = name.value();
        if messages_fields::outcome(&row.to_string(), &name) != Some(FieldMapping::Drop) {
            warnings.dropped(format_args!("{at}.{name}"));
        }
    })
}
