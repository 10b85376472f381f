//! Classifies the keywords of a schema by whether they hold schemas, and reads the types that a
//! schema allows.
//!
//! This file must not depend on a vendor.
//! Read next: `schema/references.rs`.

use crate::json::{JsonValue, JsonWriter};

/// Returns whether the schema's type, or one of its types, is `expected`.
pub(super) fn has_type(schema: JsonValue<'_>, expected: &str) -> bool {
    schema
        .get("type")
        .is_some_and(|kind| kind.is(expected) || kind.items().any(|kind| kind.is(expected)))
}

pub(super) fn is_object_schema(schema: JsonValue<'_>) -> bool {
    schema.is_object() && (schema.get("type").is_none() || has_type(schema, "object"))
}

/// The place of nested schemas in a keyword's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeywordValue {
    /// The value is a schema, or an array of schemas.
    Schemas,
    /// The value is an object of schemas by name.
    Named,
    Other,
}

pub(super) fn keyword_value(keyword: &str) -> KeywordValue {
    match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
        | "dependencies" => KeywordValue::Named,
        "allOf"
        | "anyOf"
        | "oneOf"
        | "not"
        | "if"
        | "then"
        | "else"
        | "items"
        | "prefixItems"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "contentSchema" => KeywordValue::Schemas,
        _ => KeywordValue::Other,
    }
}

/// Writes a keyword's value. `write` writes each schema inside the value.
pub(super) fn write_value(
    keyword: &str,
    value: JsonValue<'_>,
    write: &dyn Fn(JsonValue<'_>, &mut JsonWriter),
    json: &mut JsonWriter,
) {
    match keyword_value(keyword) {
        KeywordValue::Schemas if value.is_array() => {
            json.open_array();
            value.items().for_each(|item| write(item, json));
            json.close_array();
        }
        KeywordValue::Schemas => write(value, json),
        KeywordValue::Named if value.is_object() => {
            json.open_object();
            for (name, named) in value.members() {
                json.key_text(&name);
                write(named, json);
            }
            json.close_object();
        }
        KeywordValue::Named | KeywordValue::Other => {
            json.value(value);
        }
    }
}
