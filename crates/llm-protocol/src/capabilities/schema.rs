//! Adapts the schemas of tools and answers to the target's rules.
//!
//! This module must not copy a schema that needs no change. It must tell a keyword from a property,
//! a default or an example with the same name.
//!
//! Read next: `schema/flatten.rs` (combinators at the top level), `schema/strict.rs`.

use crate::json::{JsonDocument, JsonStr, JsonValue, JsonWriter, MAX_DEPTH, NodeBuffer, RawJson};
use flatten::SchemaFlattener;
use keywords::{KeywordValue, has_type, is_object_schema, keyword_value, write_value};
use std::borrow::Cow;

mod flatten;
mod keywords;
mod references;
mod strict;
#[cfg(test)]
mod tests;

pub use strict::{is_strict_for_chat, restrict_for_messages};

/// A schema adapted to the target.
#[derive(Debug)]
pub struct CleanedSchema<'a> {
    pub json: Cow<'a, str>,
    /// A line to append to the tool's description. It contains the removed combinator.
    pub note: Option<String>,
    /// True if the meaning of the schema changed, so that the client must get a warning.
    pub rewritten: bool,
}

/// The error for a schema whose top level is not an object schema.
#[derive(Debug)]
pub struct NotAnObject;

/// Adapts a schema for a messages vendor. `None` means that the tool has no parameters.
///
/// # Errors
/// Returns an error if the top level has another type than object.
pub fn clean_for_messages(schema: Option<JsonValue<'_>>) -> Result<CleanedSchema<'_>, NotAnObject> {
    clean_schema(schema, SchemaTarget::Messages)
}

/// Adapts a schema for a chat vendor. `None` means that the tool has no parameters.
///
/// # Errors
/// Returns an error if the top level has another type than object.
pub fn clean_for_chat(schema: Option<JsonValue<'_>>) -> Result<CleanedSchema<'_>, NotAnObject> {
    clean_schema(schema, SchemaTarget::Chat)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaTarget {
    Messages,
    /// A chat vendor, which requires `properties` for objects and `items` for arrays.
    Chat,
}

fn clean_schema(
    schema: Option<JsonValue<'_>>,
    vendor: SchemaTarget,
) -> Result<CleanedSchema<'_>, NotAnObject> {
    let Some(schema) = schema.filter(|schema| !schema.is_null()) else {
        let json = Cow::Borrowed(r#"{"type":"object","properties":{}}"#);
        return Ok(CleanedSchema {
            json,
            note: None,
            rewritten: false,
        });
    };
    if !is_object_schema(schema) {
        return Err(NotAnObject);
    }
    if !schema
        .members()
        .any(|(key, _)| COMBINATORS.iter().any(|name| key.is(name)))
    {
        return Ok(CleanedSchema {
            json: clean_top_level(schema, vendor),
            note: None,
            rewritten: false,
        });
    }
    let (flat, note) = SchemaFlattener::flatten(schema);
    let json = match JsonDocument::parse(&flat, MAX_DEPTH.saturating_mul(2), NodeBuffer::new()) {
        Ok(tree) => clean_top_level(tree.root(), vendor).into_owned(),
        Err(_) => flat,
    };
    Ok(CleanedSchema {
        json: Cow::Owned(json),
        note,
        rewritten: true,
    })
}

/// Adapts a schema whose top level has no combinator.
fn clean_top_level(schema: JsonValue<'_>, vendor: SchemaTarget) -> Cow<'_, str> {
    let is_named = schema.member_is("type", "object");
    if is_named && !needs_cleaning(schema, vendor) {
        return Cow::Borrowed(schema.raw());
    }
    let mut json = JsonWriter::with_capacity(schema.raw().len().saturating_add(64));
    json.open_typed("object");
    write_members(schema, vendor, &|key| key.is("type"), &mut json);
    if vendor == SchemaTarget::Chat
        && !has_type(schema, "object")
        && schema.get("properties").is_none()
    {
        json.member("properties", RawJson("{}"));
    }
    json.close_object();
    Cow::Owned(json.into_string())
}

fn is_removed(keyword: &str, value: JsonValue<'_>, vendor: SchemaTarget) -> bool {
    match keyword {
        "$schema" => true,
        "$id" => vendor == SchemaTarget::Messages,
        "required" | "properties" | "items" => value.is_null(),
        _ => false,
    }
}

/// Returns the keywords that the vendor requires for the type and that the schema lacks.
fn missing_keywords(
    schema: JsonValue<'_>,
    vendor: SchemaTarget,
) -> impl Iterator<Item = &'static str> {
    let pairs = [("object", "properties"), ("array", "items")]
        .into_iter()
        .filter(move |(kind, keyword)| {
            vendor == SchemaTarget::Chat && has_type(schema, kind) && schema.get(keyword).is_none()
        });
    pairs.map(|(_, keyword)| keyword)
}

fn needs_cleaning(schema: JsonValue<'_>, vendor: SchemaTarget) -> bool {
    let in_member = |(key, value): (JsonStr<'_>, JsonValue<'_>)| {
        let keyword = key.value();
        is_removed(&keyword, value, vendor)
            || match keyword_value(&keyword) {
                KeywordValue::Schemas => {
                    needs_cleaning(value, vendor)
                        || value.items().any(|item| needs_cleaning(item, vendor))
                }
                KeywordValue::Named => value
                    .members()
                    .any(|(_, named)| needs_cleaning(named, vendor)),
                KeywordValue::Other => false,
            }
    };
    schema.members().any(in_member) || missing_keywords(schema, vendor).next().is_some()
}

fn write_schema(schema: JsonValue<'_>, vendor: SchemaTarget, json: &mut JsonWriter) {
    if !needs_cleaning(schema, vendor) {
        json.value(schema);
        return;
    }
    json.open_object();
    write_members(schema, vendor, &|_| false, json);
    json.close_object();
}

fn write_members(
    schema: JsonValue<'_>,
    vendor: SchemaTarget,
    is_left_out: &dyn Fn(&JsonStr<'_>) -> bool,
    json: &mut JsonWriter,
) {
    for (key, value) in schema.members() {
        let keyword = key.value();
        if is_left_out(&key) || is_removed(&keyword, value, vendor) {
            continue;
        }
        json.key_text(&key);
        write_value(
            &keyword,
            value,
            &|schema, json| write_schema(schema, vendor, json),
            json,
        );
    }
    for keyword in missing_keywords(schema, vendor) {
        json.member(keyword, RawJson("{}"));
    }
}

/// Keywords that neither vendor accepts at the top level.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
