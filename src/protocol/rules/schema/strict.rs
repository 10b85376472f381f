//! The strict modes of both vendors: rewrites a schema for a messages vendor's strict mode, and
//! checks one against a chat vendor's.
//!
//! It must not change what a schema allows: a keyword that must be removed is moved to the
//! description of its node.
//!
//! Read next: `pairing.rs` in the parent folder.

use super::{Holds, References, has_type, holds, place, text_of, write_value};
use crate::protocol::request::DEPTH_MAX;
use crate::protocol::text::{Json, Text, compact};
use crate::protocol::tree::{Nodes, Tree, Value};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Rewrites a cleaned schema for a messages vendor's strict mode. Returns `None` if that is
/// impossible (recursive, or with open objects).
pub fn restricted(json: &str) -> Option<String> {
    let tree = Tree::read(json, DEPTH_MAX.saturating_mul(2), Nodes::new()).ok()?;
    let root = tree.root();
    let mut closed = Closed {
        references: References::of(root),
        done: HashMap::new(),
    };
    if !closed.holds(root, 0) {
        return None;
    }
    let mut out = Json::with_capacity(json.len().saturating_add(64));
    write_restricted(root, &mut out);
    Some(text_of(out))
}

/// Checks a schema for properties that the strict mode does not support.
struct Closed<'a> {
    references: References<'a>,
    /// Schemas visited, by identity; the value is true once the visit has ended.
    done: HashMap<usize, bool>,
}

impl<'a> Closed<'a> {
    /// Returns whether no object is open and no reference is recursive.
    fn holds(&mut self, schema: Value<'a>, depth: u32) -> bool {
        // Deeper than any text may nest: a long chain of references, which no vendor accepts
        // either.
        if depth > DEPTH_MAX.saturating_mul(2) {
            return false;
        }
        if !schema.is_object() {
            return true;
        }
        match self.done.insert(place(schema), false) {
            None => {}
            Some(true) => {
                self.done.insert(place(schema), true);
                return true;
            }
            Some(false) => return false,
        }
        let is_open = schema
            .get("additionalProperties")
            .is_some_and(|open| open.bool() != Some(false));
        let has_patterns = schema
            .get("patternProperties")
            .is_some_and(|named| named.members().next().is_some());
        let leads_on = schema.get("$ref").is_none_or(|reference| {
            let named = reference
                .string()
                .and_then(|reference| self.references.named(&reference));
            named.is_some_and(|named| self.holds(named, depth.saturating_add(1)))
        });
        let is_closed =
            !is_open && !has_patterns && leads_on && self.all_hold(schema, depth.saturating_add(1));
        self.done.insert(place(schema), is_closed);
        is_closed
    }

    fn all_hold(&mut self, schema: Value<'a>, depth: u32) -> bool {
        schema
            .members()
            .filter(|(key, _)| is_strict_keyword(&key.value()) || key.is("oneOf"))
            .all(|(key, value)| match holds(&key.value()) {
                Holds::Named => value.members().all(|(_, named)| self.holds(named, depth)),
                Holds::Schemas => {
                    self.holds(value, depth) && value.items().all(|item| self.holds(item, depth))
                }
                Holds::Other => true,
            })
    }
}

/// Returns whether a messages vendor's strict mode knows the keyword; for some keywords it allows
/// only certain values.
fn is_strict_keyword(keyword: &str) -> bool {
    matches!(
        keyword,
        "type"
            | "enum"
            | "const"
            | "anyOf"
            | "allOf"
            | "$ref"
            | "$defs"
            | "definitions"
            | "properties"
            | "required"
    ) || matches!(
        keyword,
        "items" | "description" | "title" | "minItems" | "format"
    )
}

const STRICT_FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "uri",
    "ipv4",
    "ipv6",
    "uuid",
];

/// Treatment of a keyword in the strict mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strict {
    Kept,
    /// `oneOf` becomes `anyOf`.
    Loosened,
    /// Moved to the description.
    Told,
    Dropped,
}

fn strict(keyword: &str, value: Value<'_>, has_any_of: bool) -> Strict {
    match keyword {
        "$schema" | "$id" | "additionalProperties" => Strict::Dropped,
        "const" => Strict::Kept,
        "default" => Strict::Told,
        _ if value.is_null() => Strict::Dropped,
        "description" if !value.is_string() => Strict::Dropped,
        "items" if !value.is_object() => Strict::Told,
        "minItems" if value.count().is_none_or(|count| count > 1) => Strict::Told,
        "format" if !STRICT_FORMATS.iter().any(|format| value.is(format)) => Strict::Told,
        "oneOf" if !has_any_of => Strict::Loosened,
        _ if is_strict_keyword(keyword) => Strict::Kept,
        _ => Strict::Told,
    }
}

fn write_restricted(schema: Value<'_>, json: &mut Json) {
    if !schema.is_object() {
        json.raw(schema.raw());
        return;
    }
    let has_any_of = schema.get("anyOf").is_some();
    let told = told_of(schema, has_any_of);
    json.open_object();
    let mut is_told = told.is_empty();
    for (key, value) in schema.members() {
        let keyword = key.value();
        let written = match strict(&keyword, value, has_any_of) {
            Strict::Kept => keyword.as_ref(),
            Strict::Loosened => "anyOf",
            Strict::Told | Strict::Dropped => continue,
        };
        json.key(written);
        match value
            .text()
            .filter(|_| keyword == "description" && !is_told)
        {
            Some(description) => {
                let gap = if description.is_empty() { "" } else { "\n\n" };
                json.joined([&description, &Text::made(gap), &Text::made(told.as_str())]);
                is_told = true;
            }
            None => write_value(
                written,
                value,
                &|schema, json| write_restricted(schema, json),
                json,
            ),
        }
    }
    if !is_told {
        json.key("description").str(&told);
    }
    if has_type(schema, "object") || schema.get("properties").is_some() {
        json.key("additionalProperties").bool(false);
    }
    json.close_object();
}

/// Returns the keywords to be removed, as one line: `{minimum: 1, maximum: 5}`.
fn told_of(schema: Value<'_>, has_any_of: bool) -> String {
    let mut told = Vec::new();
    for (key, value) in schema.members() {
        let keyword = key.value();
        if strict(&keyword, value, has_any_of) == Strict::Told {
            let mut line = format!("{keyword}: ").into_bytes();
            compact(value.raw(), &mut line);
            told.push(String::from_utf8_lossy(&line).into_owned());
        }
    }
    if told.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", told.join(", "))
    }
}

/// Returns whether a chat vendor's strict mode accepts the schema: every object is closed and every
/// property required.
pub fn is_strict_for_chat(schema: Value<'_>) -> bool {
    has_type(schema, "object") && schema.get("anyOf").is_none() && is_strict(schema)
}

/// Formats that a chat vendor's strict mode knows.
const CHAT_FORMATS: [&str; 9] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
];

fn is_strict(schema: Value<'_>) -> bool {
    if !["type", "anyOf", "$ref"]
        .iter()
        .any(|keyword| schema.get(keyword).is_some())
    {
        return false;
    }
    if has_type(schema, "object") || schema.get("properties").is_some() {
        let is_closed = schema.get("additionalProperties").and_then(Value::bool) == Some(false);
        let required: HashSet<Cow<'_, str>> = schema
            .get("required")
            .into_iter()
            .flat_map(Value::items)
            .filter_map(Value::string)
            .collect();
        let mut properties = schema
            .get("properties")
            .into_iter()
            .flat_map(Value::members);
        if !is_closed || !properties.all(|(name, _)| required.contains(&name.value())) {
            return false;
        }
    }
    schema
        .members()
        .filter(|(_, value)| !value.is_null())
        .all(|(key, value)| match key.value().as_ref() {
            "properties" | "$defs" | "definitions" => {
                value.members().all(|(_, named)| is_strict(named))
            }
            "anyOf" => value.items().all(is_strict),
            "items" => is_strict(value),
            "format" => CHAT_FORMATS.iter().any(|format| value.is(format)),
            "type"
            | "enum"
            | "const"
            | "$ref"
            | "required"
            | "additionalProperties"
            | "description"
            | "title" => true,
            "pattern" | "multipleOf" | "minimum" | "maximum" | "exclusiveMinimum"
            | "exclusiveMaximum" => true,
            "minItems" | "maxItems" | "$schema" => true,
            _ => false,
        })
}
