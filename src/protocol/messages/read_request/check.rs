//! Small checks with errors in the wording of the messages API, and a function that picks members
//! of an object in one pass.
//!
//! It must not know the meaning of any member.

use super::fields;
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::{Action, Refused, Warnings};
use crate::protocol::rules::Outcome;
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::fmt::Display;

pub(super) const NO_ARRAY: &str = "Input should be a valid array";
pub(super) const NO_INTEGER: &str = "Input should be a valid integer";

pub(super) fn refused(path: impl Display, message: &str) -> Refused {
    Box::new(Failure::invalid(
        Protocol::Messages,
        &path.to_string(),
        message,
    ))
}

pub(super) fn required(value: Option<Value<'_>>, path: impl Display) -> Result<Value<'_>, Refused> {
    value.ok_or_else(|| refused(path, "Field required"))
}

pub(super) fn text(value: Value<'_>, path: impl Display) -> Result<Text<'_>, Refused> {
    value
        .text()
        .ok_or_else(|| refused(path, "Input should be a valid string"))
}

pub(super) fn object(value: Value<'_>, path: impl Display) -> Result<(), Refused> {
    if value.is_object() {
        Ok(())
    } else {
        Err(refused(path, "Input should be a valid object"))
    }
}

/// Reads a boolean; an absent member is false.
pub(super) fn is_true(value: Option<Value<'_>>, path: impl Display) -> Result<bool, Refused> {
    match value {
        None => Ok(false),
        Some(value) => value
            .bool()
            .ok_or_else(|| refused(path, "Input should be a valid boolean")),
    }
}

/// Returns the members with these names, and passes every other member to `other`. The last of
/// duplicate members wins. A null member counts as absent.
pub(super) fn pick<'a, const N: usize>(
    object: Value<'a>,
    names: [&str; N],
    mut other: impl FnMut(Text<'a>, Value<'a>),
) -> [Option<Value<'a>>; N] {
    let mut found = [None; N];
    for (name, value) in object.members() {
        let slot = names.iter().position(|wanted| name.is(wanted));
        match slot.and_then(|slot| found.get_mut(slot)) {
            Some(found) => *found = (!value.is_null()).then_some(value),
            None if value.is_null() => {}
            None => other(name, value),
        }
    }
    found
}

/// Drops a member that the IR cannot represent: silently if its row says `Drop`, otherwise with a
/// warning. `row` is the path of its parent in the table, `at` the path of its parent in the
/// request.
pub(super) fn left_out(row: &str, at: impl Display, name: &Text<'_>, warnings: &mut Warnings) {
    let name = name.value();
    if fields::outcome(row, &name) != Some(Outcome::Drop) {
        warnings.add(Action::Dropped, format_args!("{at}.{name}"));
    }
}
