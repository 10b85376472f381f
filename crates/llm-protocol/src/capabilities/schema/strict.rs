//! Rewrites a schema for a messages vendor's strict mode, and checks a schema against a chat
//! vendor's strict mode.
//!
//! This file must not lose a constraint: a keyword that the strict mode does not support moves to
//! the description of its node.
//!
//! Read next: `pairing.rs` in the parent folder.

use super::keywords::{KeywordValue, has_type, keyword_value, write_value};
use super::references::{SchemaRefs, value_address};
use crate::json::{
    JoinedText, JsonDocument, JsonStr, JsonValue, JsonWriter, MAX_DEPTH, NodeBuffer, compacted,
};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Rewrites a cleaned schema for a messages vendor's strict mode. Returns `None` if the schema is
/// recursive or has open objects, which the mode does not support.
pub fn restrict_for_messages(json: &str) -> Option<String> {
    let tree = JsonDocument::parse(json, MAX_DEPTH.saturating_mul(2), NodeBuffer::new()).ok()?;
    let root = tree.root();
    let mut closed = ClosedSchemaCheck {
        references: SchemaRefs::new(root),
        done: HashMap::new(),
    };
    if !closed.is_closed(root, 0) {
        return None;
    }
    let mut out = JsonWriter::with_capacity(json.len().saturating_add(64));
    write_restricted(root, &mut out);
    Some(out.into_string())
}

/// Checks that all objects are closed and that no reference is recursive.
struct ClosedSchemaCheck<'a> {
    references: SchemaRefs<'a>,
    /// Schemas by identity. The value is false while the visit goes on, and true afterwards.
    done: HashMap<usize, bool>,
}

impl<'a> ClosedSchemaCheck<'a> {
    fn is_closed(&mut self, schema: JsonValue<'a>, depth: u32) -> bool {
        // JSON cannot nest this deep, so this is a long chain of references, which no vendor
        // accepts.
        if depth > MAX_DEPTH.saturating_mul(2) {
            return false;
        }
        if !schema.is_object() {
            return true;
        }
        match self.done.insert(value_address(schema), false) {
            None => {}
            Some(true) => {
                self.done.insert(value_address(schema), true);
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
                .and_then(|reference| self.references.resolve(&reference));
            named.is_some_and(|named| self.is_closed(named, depth.saturating_add(1)))
        });
        let is_closed = !is_open
            && !has_patterns
            && leads_on
            && self.are_children_closed(schema, depth.saturating_add(1));
        self.done.insert(value_address(schema), is_closed);
        is_closed
    }

    fn are_children_closed(&mut self, schema: JsonValue<'a>, depth: u32) -> bool {
        schema
            .members()
            .filter(|(key, _)| is_strict_keyword(&key.value()) || key.is("oneOf"))
            .all(|(key, value)| match keyword_value(&key.value()) {
                KeywordValue::Named => value
                    .members()
                    .all(|(_, named)| self.is_closed(named, depth)),
                KeywordValue::Schemas => {
                    self.is_closed(value, depth)
                        && value.items().all(|item| self.is_closed(item, depth))
                }
                KeywordValue::Other => true,
            })
    }
}

/// Returns whether a messages vendor's strict mode supports the keyword with its value.
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

const MESSAGES_STRICT_FORMATS: [&str; 10] = [
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum StrictRule {
    Kept,
    /// `oneOf` becomes `anyOf`.
    Loosened,
    /// The keyword is moved to the description.
    Described,
    Dropped,
}

fn strict_rule(keyword: &str, value: JsonValue<'_>, has_any_of: bool) -> StrictRule {
    match keyword {
        "$schema" | "$id" | "additionalProperties" => StrictRule::Dropped,
        "const" => StrictRule::Kept,
        "default" => StrictRule::Described,
        _ if value.is_null() => StrictRule::Dropped,
        "description" if !value.is_string() => StrictRule::Dropped,
        "items" if !value.is_object() => StrictRule::Described,
        "minItems" if value.count().is_none_or(|count| count > 1) => StrictRule::Described,
        "format"
            if !MESSAGES_STRICT_FORMATS
                .iter()
                .any(|format| value.is(format)) =>
        {
            StrictRule::Described
        }
        "oneOf" if !has_any_of => StrictRule::Loosened,
        _ if is_strict_keyword(keyword) => StrictRule::Kept,
        _ => StrictRule::Described,
    }
}

fn write_restricted(schema: JsonValue<'_>, json: &mut JsonWriter) {
    if !schema.is_object() {
        json.value(schema);
        return;
    }
    let has_any_of = schema.get("anyOf").is_some();
    let note = dropped_keywords_note(schema, has_any_of);
    json.open_object();
    let mut is_note_written = note.is_empty();
    for (key, value) in schema.members() {
        let keyword = key.value();
        let written = match strict_rule(&keyword, value, has_any_of) {
            StrictRule::Kept => keyword.as_ref(),
            StrictRule::Loosened => "anyOf",
            StrictRule::Described | StrictRule::Dropped => continue,
        };
        json.key(written);
        match value
            .text()
            .filter(|_| keyword == "description" && !is_note_written)
        {
            Some(description) => {
                let gap = if description.is_empty() { "" } else { "\n\n" };
                json.value(JoinedText([
                    &description,
                    &JsonStr::from_value(gap),
                    &JsonStr::from_value(note.as_str()),
                ]));
                is_note_written = true;
            }
            None => write_value(
                written,
                value,
                &|schema, json| write_restricted(schema, json),
                json,
            ),
        }
    }
    if !is_note_written {
        json.member("description", &note);
    }
    if has_type(schema, "object") || schema.get("properties").is_some() {
        json.member("additionalProperties", false);
    }
    json.close_object();
}

/// Returns the removed keywords in one line, such as `{minimum: 1, maximum: 5}`.
fn dropped_keywords_note(schema: JsonValue<'_>, has_any_of: bool) -> String {
    let mut keywords = Vec::new();
    for (key, value) in schema.members() {
        let keyword = key.value();
        if strict_rule(&keyword, value, has_any_of) == StrictRule::Described {
            keywords.push(format!("{keyword}: {}", compacted(value.raw())));
        }
    }
    if keywords.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", keywords.join(", "))
    }
}

/// Returns whether a chat vendor's strict mode accepts the schema, because every object is closed
/// and every property required.
pub fn is_strict_for_chat(schema: JsonValue<'_>) -> bool {
    has_type(schema, "object") && schema.get("anyOf").is_none() && is_strict_schema(schema)
}

/// Formats that a chat vendor's strict mode supports.
const CHAT_STRICT_FORMATS: [&str; 9] = [
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

fn is_strict_schema(schema: JsonValue<'_>) -> bool {
    if !["type", "anyOf", "$ref"]
        .iter()
        .any(|keyword| schema.get(keyword).is_some())
    {
        return false;
    }
    if has_type(schema, "object") || schema.get("properties").is_some() {
        let is_closed = schema.get("additionalProperties").and_then(JsonValue::bool) == Some(false);
        let required: HashSet<Cow<'_, str>> = schema
            .items_of("required")
            .filter_map(JsonValue::string)
            .collect();
        let mut properties = schema
            .get("properties")
            .into_iter()
            .flat_map(JsonValue::members);
        if !is_closed || !properties.all(|(name, _)| required.contains(&name.value())) {
            return false;
        }
    }
    schema
        .members()
        .filter(|(_, value)| !value.is_null())
        .all(|(key, value)| match key.value().as_ref() {
            "properties" | "$defs" | "definitions" => {
                value.members().all(|(_, named)| is_strict_schema(named))
            }
            "anyOf" => value.items().all(is_strict_schema),
            "items" => is_strict_schema(value),
            "format" => CHAT_STRICT_FORMATS.iter().any(|format| value.is(format)),
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
