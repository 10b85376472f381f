//! Adapts tool and answer schemas to what the target accepts.
//!
//! It must not copy what it need not change: a schema that fits is sent as written. It knows which
//! keywords hold schemas, so that it leaves a property, a default or an example with a keyword's
//! name unchanged.
//!
//! Read next: `schema/flatten.rs` (combinators at the top level), `schema/strict.rs`.

use crate::protocol::request::DEPTH_MAX;
use crate::protocol::text::{Json, Text};
use crate::protocol::tree::{Nodes, Tree, Value};
use flat::Flat;
use std::borrow::Cow;
use std::collections::HashMap;

mod flat;
mod strict;
#[cfg(test)]
mod tests;

pub use strict::{is_strict_for_chat, restricted};

/// A schema adapted to the target.
#[derive(Debug)]
pub struct Cleaned<'a> {
    pub json: Cow<'a, str>,
    /// A line to append to the tool's description: the content of a removed combinator.
    pub note: Option<String>,
    /// Whether the meaning changed, which needs a warning.
    pub rewritten: bool,
}

/// Error: the top level is not an object schema.
#[derive(Debug)]
pub struct NotAnObject;

/// Adapts a schema for a messages vendor. `None`: no parameters.
///
/// # Errors
/// Returns an error if the top level has another type.
pub fn for_messages(schema: Option<Value<'_>>) -> Result<Cleaned<'_>, NotAnObject> {
    cleaned(schema, Vendor::Messages)
}

/// Adapts a schema for a chat vendor. `None`: no parameters.
///
/// # Errors
/// Returns an error if the top level has another type.
pub fn for_chat(schema: Option<Value<'_>>) -> Result<Cleaned<'_>, NotAnObject> {
    cleaned(schema, Vendor::Chat)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Messages,
    /// Requires `properties` for objects and `items` for arrays.
    Chat,
}

fn cleaned(schema: Option<Value<'_>>, vendor: Vendor) -> Result<Cleaned<'_>, NotAnObject> {
    let Some(schema) = schema.filter(|schema| !schema.is_null()) else {
        let json = Cow::Borrowed(r#"{"type":"object","properties":{}}"#);
        return Ok(Cleaned {
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
        return Ok(Cleaned {
            json: top(schema, vendor),
            note: None,
            rewritten: false,
        });
    }
    let (flat, note) = Flat::of(schema);
    let json = match Tree::read(&flat, DEPTH_MAX.saturating_mul(2), Nodes::new()) {
        Ok(tree) => top(tree.root(), vendor).into_owned(),
        Err(_) => flat,
    };
    Ok(Cleaned {
        json: Cow::Owned(json),
        note,
        rewritten: true,
    })
}

/// Adapts a top level without combinators.
fn top(schema: Value<'_>, vendor: Vendor) -> Cow<'_, str> {
    let is_named = schema.get("type").is_some_and(|kind| kind.is("object"));
    if is_named && !must_change(schema, vendor) {
        return Cow::Borrowed(schema.raw());
    }
    let mut json = Json::with_capacity(schema.raw().len().saturating_add(64));
    json.open_object().key("type").str("object");
    write_members(schema, vendor, &|key| key.is("type"), &mut json);
    if vendor == Vendor::Chat && !has_type(schema, "object") && schema.get("properties").is_none() {
        json.key("properties").raw("{}");
    }
    json.close_object();
    Cow::Owned(text_of(json))
}

fn text_of(json: Json) -> String {
    String::from_utf8(json.into_bytes()).unwrap_or_default()
}

/// Returns whether the type, or one of the types, is `wanted`.
fn has_type(schema: Value<'_>, wanted: &str) -> bool {
    schema
        .get("type")
        .is_some_and(|kind| kind.is(wanted) || kind.items().any(|kind| kind.is(wanted)))
}

/// Returns whether the schema's type allows objects.
fn is_object_schema(schema: Value<'_>) -> bool {
    schema.is_object() && (schema.get("type").is_none() || has_type(schema, "object"))
}

/// Content of a keyword's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// A schema, or an array of them.
    Schemas,
    /// Schemas by name.
    Named,
    Other,
}

fn holds(keyword: &str) -> Holds {
    match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
        | "dependencies" => Holds::Named,
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
        | "contentSchema" => Holds::Schemas,
        _ => Holds::Other,
    }
}

fn is_removed(keyword: &str, value: Value<'_>, vendor: Vendor) -> bool {
    match keyword {
        "$schema" => true,
        "$id" => vendor == Vendor::Messages,
        "required" | "properties" | "items" => value.is_null(),
        _ => false,
    }
}

/// Returns the keywords that the vendor requires for the type and that the schema lacks.
fn lacking(schema: Value<'_>, vendor: Vendor) -> impl Iterator<Item = &'static str> {
    let pairs = [("object", "properties"), ("array", "items")]
        .into_iter()
        .filter(move |(kind, keyword)| {
            vendor == Vendor::Chat && has_type(schema, kind) && schema.get(keyword).is_none()
        });
    pairs.map(|(_, keyword)| keyword)
}

fn must_change(schema: Value<'_>, vendor: Vendor) -> bool {
    let in_member = |(key, value): (Text<'_>, Value<'_>)| {
        let keyword = key.value();
        is_removed(&keyword, value, vendor)
            || match holds(&keyword) {
                Holds::Schemas => {
                    must_change(value, vendor)
                        || value.items().any(|item| must_change(item, vendor))
                }
                Holds::Named => value.members().any(|(_, named)| must_change(named, vendor)),
                Holds::Other => false,
            }
    };
    schema.members().any(in_member) || lacking(schema, vendor).next().is_some()
}

fn write_schema(schema: Value<'_>, vendor: Vendor, json: &mut Json) {
    if !must_change(schema, vendor) {
        json.raw(schema.raw());
        return;
    }
    json.open_object();
    write_members(schema, vendor, &|_| false, json);
    json.close_object();
}

fn write_members(
    schema: Value<'_>,
    vendor: Vendor,
    is_left_out: &dyn Fn(&Text<'_>) -> bool,
    json: &mut Json,
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
    for keyword in lacking(schema, vendor) {
        json.key(keyword).raw("{}");
    }
}

/// Writes a keyword's value, with each schema in it written by `write`.
fn write_value(
    keyword: &str,
    value: Value<'_>,
    write: &dyn Fn(Value<'_>, &mut Json),
    json: &mut Json,
) {
    match holds(keyword) {
        Holds::Schemas if value.is_array() => {
            json.open_array();
            value.items().for_each(|item| write(item, json));
            json.close_array();
        }
        Holds::Schemas => write(value, json),
        Holds::Named if value.is_object() => {
            json.open_object();
            for (name, named) in value.members() {
                json.key_text(&name);
                write(named, json);
            }
            json.close_object();
        }
        Holds::Named | Holds::Other => {
            json.raw(value.raw());
        }
    }
}

/// Keywords that neither vendor accepts at the top level.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Returns the identity of a value among those of one document.
fn place(value: Value<'_>) -> usize {
    value.raw().as_ptr().addr()
}

/// Targets of the references in a schema.
struct References<'a> {
    root: Value<'a>,
    by_name: HashMap<(&'static str, Cow<'a, str>), Value<'a>>,
    /// Results by schema identity: a large schema is searched once, however often it is referenced.
    known: HashMap<usize, Option<Value<'a>>>,
}

impl<'a> References<'a> {
    fn of(root: Value<'a>) -> Self {
        let mut by_name = HashMap::new();
        for (keyword, start) in [("$defs", "#/$defs/"), ("definitions", "#/definitions/")] {
            for (name, value) in root.get(keyword).into_iter().flat_map(Value::members) {
                by_name.insert((start, name.into_value()), value);
            }
        }
        References {
            root,
            by_name,
            known: HashMap::new(),
        }
    }

    fn named(&self, reference: &str) -> Option<Value<'a>> {
        if reference == "#" {
            return Some(self.root);
        }
        ["#/$defs/", "#/definitions/"]
            .into_iter()
            .find_map(|start| {
                let name = reference
                    .strip_prefix(start)?
                    .replace("~1", "/")
                    .replace("~0", "~");
                self.by_name.get(&(start, Cow::Owned(name))).copied()
            })
    }

    /// Returns the schema itself, or the schema that it refers to.
    fn followed(&mut self, mut schema: Value<'a>) -> Value<'a> {
        const HOPS_MAX: u32 = 8;
        for _ in 0..HOPS_MAX {
            match self.reference(schema) {
                Some(named) => schema = named,
                None => break,
            }
        }
        schema
    }

    fn reference(&mut self, schema: Value<'a>) -> Option<Value<'a>> {
        if let Some(known) = self.known.get(&place(schema)) {
            return *known;
        }
        let reference = schema.get("$ref").and_then(Value::string);
        let named = reference.and_then(|reference| self.named(&reference));
        self.known.insert(place(schema), named);
        named
    }
}
