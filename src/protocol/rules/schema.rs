//! Tool and answer schemas, made to fit what the target takes.
//!
//! It must not copy what it need not change: a schema that fits is sent as it was written. It knows which keywords
//! hold schemas, so that a property, a default or an example that is called like a keyword stays.
//!
//! Read next: `rules/pairing.rs`.

use crate::protocol::request::DEPTH_MAX;
use crate::protocol::text::{Json, Text, compact, escape};
use crate::protocol::tree::{Nodes, Tree, Value};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// A schema for the target.
#[derive(Debug)]
pub struct Cleaned<'a> {
    pub json: Cow<'a, str>,
    /// A line to append to the tool's description: what a removed combinator said.
    pub note: Option<String>,
    /// It says something else than before: to be warned about.
    pub rewritten: bool,
}

/// The top level is no object schema.
#[derive(Debug)]
pub struct NotAnObject;

/// For a messages vendor. `None`: no parameters.
///
/// # Errors
/// The top level has another type.
pub fn for_messages(schema: Option<Value<'_>>) -> Result<Cleaned<'_>, NotAnObject> {
    cleaned(schema, Vendor::Messages)
}

/// For a chat vendor.
///
/// # Errors
/// The top level has another type.
pub fn for_chat(schema: Option<Value<'_>>) -> Result<Cleaned<'_>, NotAnObject> {
    cleaned(schema, Vendor::Chat)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Messages,
    /// Wants `properties` and `items` where the type has them.
    Chat,
}

fn cleaned(schema: Option<Value<'_>>, vendor: Vendor) -> Result<Cleaned<'_>, NotAnObject> {
    let Some(schema) = schema.filter(|schema| !schema.is_null()) else {
        let json = Cow::Borrowed(r#"{"type":"object","properties":{}}"#);
        return Ok(Cleaned { json, note: None, rewritten: false });
    };
    if !is_object_schema(schema) {
        return Err(NotAnObject);
    }
    if !schema.members().any(|(key, _)| COMBINATORS.iter().any(|name| key.is(name))) {
        return Ok(Cleaned { json: top(schema, vendor), note: None, rewritten: false });
    }
    let (flat, note) = Flat::of(schema);
    let json = match Tree::read(&flat, DEPTH_MAX.saturating_mul(2), Nodes::new()) {
        Ok(tree) => top(tree.root(), vendor).into_owned(),
        Err(_) => flat,
    };
    Ok(Cleaned { json: Cow::Owned(json), note, rewritten: true })
}

/// A top level without combinators.
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

/// The type, or one of the types, is this one.
fn has_type(schema: Value<'_>, wanted: &str) -> bool {
    schema.get("type").is_some_and(|kind| kind.is(wanted) || kind.items().any(|kind| kind.is(wanted)))
}

/// Objects fit it, for all that its type says.
fn is_object_schema(schema: Value<'_>) -> bool {
    schema.is_object() && (schema.get("type").is_none() || has_type(schema, "object"))
}

/// What stands in a keyword's value.
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
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => {
            Holds::Named
        }
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

/// Keywords that the vendor wants beside the type.
fn lacking(schema: Value<'_>, vendor: Vendor) -> impl Iterator<Item = &'static str> {
    let pairs = [("object", "properties"), ("array", "items")].into_iter().filter(move |(kind, keyword)| {
        vendor == Vendor::Chat && has_type(schema, kind) && schema.get(keyword).is_none()
    });
    pairs.map(|(_, keyword)| keyword)
}

fn must_change(schema: Value<'_>, vendor: Vendor) -> bool {
    let in_member = |(key, value): (Text<'_>, Value<'_>)| {
        let keyword = key.value();
        is_removed(&keyword, value, vendor)
            || match holds(&keyword) {
                Holds::Schemas => must_change(value, vendor) || value.items().any(|item| must_change(item, vendor)),
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

fn write_members(schema: Value<'_>, vendor: Vendor, is_left_out: &dyn Fn(&Text<'_>) -> bool, json: &mut Json) {
    for (key, value) in schema.members() {
        let keyword = key.value();
        if is_left_out(&key) || is_removed(&keyword, value, vendor) {
            continue;
        }
        write_key(&key, json);
        write_value(&keyword, value, &|schema, json| write_schema(schema, vendor, json), json);
    }
    for keyword in lacking(schema, vendor) {
        json.key(keyword).raw("{}");
    }
}

/// A keyword's value, each schema in it as `write` has it.
fn write_value(keyword: &str, value: Value<'_>, write: &dyn Fn(Value<'_>, &mut Json), json: &mut Json) {
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
                write_key(&name, json);
                write(named, json);
            }
            json.close_object();
        }
        Holds::Named | Holds::Other => {
            json.raw(value.raw());
        }
    }
}

/// A member's name as it was spelled.
fn write_key(key: &Text<'_>, json: &mut Json) {
    match key {
        Text::Token { raw, .. } => json.key(raw),
        Text::Made(name) => {
            let mut inside = Vec::new();
            escape(name, &mut inside);
            json.key(&String::from_utf8_lossy(&inside))
        }
    };
}

/// Not taken at the top level by either vendor.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The longest telling of what a combinator said.
const NOTE_LETTERS_MAX: usize = 1000;

/// The most members that are looked at to flatten one schema: references can name the same ones again and again.
const FLAT_MEMBERS_MAX: usize = 5_000;

/// A top level whose combinators are taken apart into one object. What cannot be said so goes into a note.
struct Flat<'a> {
    references: References<'a>,
    budget: usize,
    notes: Vec<String>,
}

/// What several schemas say together.
#[derive(Default)]
struct Merged<'a> {
    properties: Named<'a>,
    required: Vec<Text<'a>>,
    others: Named<'a>,
    /// What cannot be merged.
    left: Vec<Value<'a>>,
}

/// Values by name in the order they came; several where they differ.
#[derive(Default)]
struct Named<'a> {
    all: Vec<(Text<'a>, Vec<Value<'a>>)>,
    index: HashMap<Cow<'a, str>, usize>,
}

impl<'a> Named<'a> {
    fn add(&mut self, name: Text<'a>, value: Value<'a>) {
        let next = self.all.len();
        let index = *self.index.entry(name.clone().into_value()).or_insert(next);
        match self.all.get_mut(index) {
            Some((_, values)) if values.iter().any(|known| known.raw() == value.raw()) => {}
            Some((_, values)) => values.push(value),
            None => self.all.push((name, vec![value])),
        }
    }

    /// Each name once. `combinator` joins what was said in more than one way.
    fn write(&self, combinator: &str, json: &mut Json) {
        for (name, values) in &self.all {
            write_key(name, json);
            if let [only] = values.as_slice() {
                json.raw(only.raw());
                continue;
            }
            json.open_object().key(combinator).open_array();
            for value in values {
                json.raw(value.raw());
            }
            json.close_array().close_object();
        }
    }
}

impl<'a> Flat<'a> {
    fn of(schema: Value<'a>) -> (String, Option<String>) {
        let mut flat = Flat { references: References::of(schema), budget: FLAT_MEMBERS_MAX, notes: Vec::new() };
        let mut merged = flat.merged(schema);
        if !merged.left.is_empty() {
            let left: Vec<&str> = merged.left.iter().map(|part| part.raw()).collect();
            flat.note("All", &format!("[{}]", left.join(",")));
        }
        let has_properties = !merged.properties.all.is_empty();
        for (keyword, count) in [("anyOf", "At least one"), ("oneOf", "Exactly one")] {
            let Some(branches) = schema.get(keyword) else { continue };
            flat.note(count, branches.raw());
            if !has_properties {
                flat.unite(branches, &mut merged);
            }
        }
        let mut json = Json::with_capacity(schema.raw().len());
        json.open_object().key("type").str("object");
        merged.others.all.iter_mut().for_each(|(_, values)| values.truncate(1));
        merged.others.write("", &mut json);
        json.key("properties").open_object();
        merged.properties.write(if has_properties { "allOf" } else { "anyOf" }, &mut json);
        json.close_object();
        let mut given = HashSet::new();
        merged.required.retain(|name| given.insert(name.value().into_owned()));
        if !merged.required.is_empty() {
            json.key("required").open_array();
            for name in &merged.required {
                json.text(name);
            }
            json.close_array();
        }
        json.close_object();
        (text_of(json), (!flat.notes.is_empty()).then(|| flat.notes.join("\n")))
    }

    fn note(&mut self, count: &str, parts: &str) {
        let mut text = Vec::new();
        compact(parts, &mut text);
        let text = String::from_utf8(text).unwrap_or_default();
        let text: String = text.chars().take(NOTE_LETTERS_MAX).collect();
        self.notes.push(format!("{count} of these must hold: {text}"));
    }

    /// The schema and all that its `allOf` adds.
    fn merged(&mut self, schema: Value<'a>) -> Merged<'a> {
        let (mut merged, mut seen, mut parts) = (Merged::default(), HashSet::new(), vec![schema]);
        let mut is_first = true;
        while let Some(part) = parts.pop().filter(|_| self.budget > 0) {
            let named = if is_first { part } else { self.references.followed(part) };
            if !seen.insert(place(named)) {
                continue;
            }
            let is_whole = is_object_schema(named) && named.members().all(|(key, _)| is_mergeable(&key.value()));
            if !is_whole && !is_first {
                merged.left.push(part);
            }
            if is_object_schema(named) {
                self.take(named, is_first, &mut merged);
                let more = named.get("allOf").into_iter().flat_map(Value::items);
                let behind = parts.len();
                parts.extend(more.take(self.budget));
                parts.get_mut(behind..).unwrap_or_default().reverse();
            }
            is_first = false;
        }
        merged
    }

    fn take(&mut self, part: Value<'a>, with_all: bool, merged: &mut Merged<'a>) {
        for (key, value) in part.members() {
            self.budget = self.budget.saturating_sub(1);
            match key.value().as_ref() {
                "type" | "allOf" | "anyOf" | "oneOf" => {}
                "properties" => {
                    for (name, property) in value.members().take(self.budget) {
                        self.budget = self.budget.saturating_sub(1);
                        merged.properties.add(name, property);
                    }
                }
                "required" => merged.required.extend(value.items().filter_map(Value::text).take(self.budget)),
                keyword if with_all || is_mergeable(keyword) => merged.others.add(key, value),
                _ => {}
            }
        }
    }

    /// Adds the properties of all branches that are objects; required is what each of them requires.
    fn unite(&mut self, branches: Value<'a>, merged: &mut Merged<'a>) {
        let mut required: Option<Vec<Text<'a>>> = None;
        for branch in branches.items() {
            let branch = self.references.followed(branch);
            if !is_object_schema(branch) {
                continue;
            }
            let branch = self.merged(branch);
            for (name, values) in branch.properties.all {
                values.into_iter().for_each(|value| merged.properties.add(name.clone(), value));
            }
            let own: HashSet<Cow<'_, str>> = branch.required.iter().map(Text::value).collect();
            required = Some(match required {
                Some(all) => all.into_iter().filter(|name| own.contains(&name.value())).collect(),
                None => branch.required.clone(),
            });
        }
        // With some branches unread, nothing is known to be required.
        merged.required.extend(required.filter(|_| self.budget > 0).unwrap_or_default());
    }
}

/// Two object schemas can be said as one where they hold nothing else. What only describes counts the first time.
fn is_mergeable(keyword: &str) -> bool {
    matches!(
        keyword,
        "type" | "properties" | "required" | "allOf" | "additionalProperties" | "title" | "description" | "default"
    ) || matches!(keyword, "examples" | "$comment" | "deprecated" | "$schema" | "$id" | "$defs" | "definitions")
}

/// Which value it is, among those of one tree.
fn place(value: Value<'_>) -> usize {
    value.raw().as_ptr().addr()
}

/// What the references in a schema name.
struct References<'a> {
    root: Value<'a>,
    by_name: HashMap<(&'static str, Cow<'a, str>), Value<'a>>,
}

impl<'a> References<'a> {
    fn of(root: Value<'a>) -> Self {
        let mut by_name = HashMap::new();
        for (keyword, start) in [("$defs", "#/$defs/"), ("definitions", "#/definitions/")] {
            for (name, value) in root.get(keyword).into_iter().flat_map(Value::members) {
                by_name.insert((start, name.into_value()), value);
            }
        }
        References { root, by_name }
    }

    fn named(&self, reference: &str) -> Option<Value<'a>> {
        if reference == "#" {
            return Some(self.root);
        }
        ["#/$defs/", "#/definitions/"].into_iter().find_map(|start| {
            let name = reference.strip_prefix(start)?.replace("~1", "/").replace("~0", "~");
            self.by_name.get(&(start, Cow::Owned(name))).copied()
        })
    }

    /// The schema itself, or what it refers to.
    fn followed(&self, mut schema: Value<'a>) -> Value<'a> {
        const HOPS_MAX: u32 = 8;
        for _ in 0..HOPS_MAX {
            let reference = schema.get("$ref").and_then(Value::string);
            match reference.and_then(|reference| self.named(&reference)) {
                Some(named) => schema = named,
                None => break,
            }
        }
        schema
    }
}

/// The restriction that a messages vendor's strict mode needs, applied to a cleaned schema; `None` if it cannot be
/// (recursive, or with open objects).
pub fn restricted(json: &str) -> Option<String> {
    let tree = Tree::read(json, DEPTH_MAX.saturating_mul(2), Nodes::new()).ok()?;
    let root = tree.root();
    let mut closed = Closed { references: References::of(root), done: HashMap::new() };
    if !closed.holds(root, 0) {
        return None;
    }
    let mut out = Json::with_capacity(json.len().saturating_add(64));
    write_restricted(root, &mut out);
    Some(text_of(out))
}

/// Looks for what the strict mode cannot do.
struct Closed<'a> {
    references: References<'a>,
    /// By place: was it left again.
    done: HashMap<usize, bool>,
}

impl<'a> Closed<'a> {
    /// No object is open and no reference leads back.
    fn holds(&mut self, schema: Value<'a>, depth: u32) -> bool {
        // Deeper than any text may nest: a long chain of references, which no vendor takes either.
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
        let is_open = schema.get("additionalProperties").is_some_and(|open| open.bool() != Some(false));
        let has_patterns = schema.get("patternProperties").is_some_and(|named| named.members().next().is_some());
        let leads_on = schema.get("$ref").is_none_or(|reference| {
            let named = reference.string().and_then(|reference| self.references.named(&reference));
            named.is_some_and(|named| self.holds(named, depth.saturating_add(1)))
        });
        let is_closed = !is_open && !has_patterns && leads_on && self.all_hold(schema, depth.saturating_add(1));
        self.done.insert(place(schema), is_closed);
        is_closed
    }

    fn all_hold(&mut self, schema: Value<'a>, depth: u32) -> bool {
        schema.members().filter(|(key, _)| is_strict_keyword(&key.value()) || key.is("oneOf")).all(|(key, value)| {
            match holds(&key.value()) {
                Holds::Named => value.members().all(|(_, named)| self.holds(named, depth)),
                Holds::Schemas => self.holds(value, depth) && value.items().all(|item| self.holds(item, depth)),
                Holds::Other => true,
            }
        })
    }
}

/// Keywords that a messages vendor's strict mode knows; of some only certain values.
fn is_strict_keyword(keyword: &str) -> bool {
    matches!(
        keyword,
        "type" | "enum" | "const" | "anyOf" | "allOf" | "$ref" | "$defs" | "definitions" | "properties" | "required"
    ) || matches!(keyword, "items" | "description" | "title" | "minItems" | "format")
}

const STRICT_FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// What becomes of a keyword in the strict mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strict {
    Kept,
    /// `oneOf`, said as `anyOf`.
    Loosened,
    /// Told in the description.
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
        match value.text().filter(|_| keyword == "description" && !is_told) {
            Some(description) => {
                let gap = if description.is_empty() { "" } else { "\n\n" };
                json.joined([&description, &Text::made(gap), &Text::made(told.as_str())]);
                is_told = true;
            }
            None => write_value(written, value, &|schema, json| write_restricted(schema, json), json),
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

/// The keywords that must go, as one line: `{minimum: 1, maximum: 5}`.
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
    if told.is_empty() { String::new() } else { format!("{{{}}}", told.join(", ")) }
}

/// A chat vendor's strict mode takes it: every object closed, every property required.
pub fn is_strict_for_chat(schema: Value<'_>) -> bool {
    has_type(schema, "object") && schema.get("anyOf").is_none() && is_strict(schema)
}

/// Formats that a chat vendor's strict mode knows.
const CHAT_FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

fn is_strict(schema: Value<'_>) -> bool {
    if !["type", "anyOf", "$ref"].iter().any(|keyword| schema.get(keyword).is_some()) {
        return false;
    }
    if has_type(schema, "object") || schema.get("properties").is_some() {
        let is_closed = schema.get("additionalProperties").and_then(Value::bool) == Some(false);
        let required: HashSet<Cow<'_, str>> =
            schema.get("required").into_iter().flat_map(Value::items).filter_map(Value::string).collect();
        let mut properties = schema.get("properties").into_iter().flat_map(Value::members);
        if !is_closed || !properties.all(|(name, _)| required.contains(&name.value())) {
            return false;
        }
    }
    schema.members().filter(|(_, value)| !value.is_null()).all(|(key, value)| match key.value().as_ref() {
        "properties" | "$defs" | "definitions" => value.members().all(|(_, named)| is_strict(named)),
        "anyOf" => value.items().all(is_strict),
        "items" => is_strict(value),
        "format" => CHAT_FORMATS.iter().any(|format| value.is(format)),
        "type" | "enum" | "const" | "$ref" | "required" | "additionalProperties" | "description" | "title" => true,
        "pattern" | "multipleOf" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => true,
        "minItems" | "maxItems" | "$schema" => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value as Any, json};

    fn read(text: &str) -> Tree<'_> {
        Tree::read(text, DEPTH_MAX, Nodes::new()).unwrap()
    }

    fn clean(schema: &Any, vendor: Vendor) -> (Any, Option<String>, bool) {
        let text = schema.to_string();
        let tree = read(&text);
        let Cleaned { json, note, rewritten } = cleaned(Some(tree.root()), vendor).unwrap();
        (serde_json::from_str(&json).unwrap(), note, rewritten)
    }

    #[test]
    fn a_schema_that_fits_is_the_senders_own() {
        let text = r#"{ "type":"object", "properties": {"$id":{"type":"string","default":{"required":null}}} }"#;
        let tree = read(text);
        for vendor in [Vendor::Messages, Vendor::Chat] {
            let cleaned = cleaned(Some(tree.root()), vendor).unwrap();
            assert!(matches!(cleaned.json, Cow::Borrowed(json) if json == text));
        }
        assert_eq!(for_messages(None).unwrap().json, r#"{"type":"object","properties":{}}"#);
        assert_eq!(for_chat(None).unwrap().json, r#"{"type":"object","properties":{}}"#);
    }

    #[test]
    fn what_a_messages_vendor_minds_is_removed() {
        let given = json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "required": null,
            "properties": {"a": {"type": "object", "required": null}, "$schema": {"type": "string"}}
        });
        let wanted = json!({"type": "object", "properties": {"a": {"type": "object"}, "$schema": {"type": "string"}}});
        assert_eq!(clean(&given, Vendor::Messages), (wanted, None, false));
        let listed = clean(&json!({"type": ["object", "null"]}), Vendor::Messages);
        assert_eq!(listed.0, json!({"type": "object"}));
    }

    #[test]
    fn what_a_chat_vendor_misses_is_put_in() {
        let given = json!({
            "$schema": "x",
            "properties": {
                "list": {"type": ["array", "null"]},
                "map": {"type": "object", "additionalProperties": {"type": "array"}},
                "any": {"anyOf": [{"type": "object"}, {"type": "string"}]}
            }
        });
        let wanted = json!({
            "type": "object",
            "properties": {
                "list": {"type": ["array", "null"], "items": {}},
                "map": {"type": "object", "additionalProperties": {"type": "array", "items": {}}, "properties": {}},
                "any": {"anyOf": [{"type": "object", "properties": {}}, {"type": "string"}]}
            }
        });
        assert_eq!(clean(&given, Vendor::Chat).0, wanted);
        assert_eq!(clean(&json!({}), Vendor::Chat).0, json!({"type": "object", "properties": {}}));
    }

    #[test]
    fn only_objects_are_parameters() {
        for schema in [json!({"type": "string"}), json!({"type": ["array", "null"]}), json!(true), json!([])] {
            let text = schema.to_string();
            assert!(for_messages(Some(read(&text).root())).is_err(), "{text}");
            assert!(for_chat(Some(read(&text).root())).is_err(), "{text}");
        }
    }

    #[test]
    fn all_of_is_merged() {
        let given = json!({
            "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
            "allOf": [
                {"$ref": "#/$defs/Base"},
                {"properties": {"a": {"minLength": 1}, "c": {"type": "null"}}, "required": ["c", "a"]},
                {"if": {"required": ["c"]}, "then": {"required": ["b"]}}
            ],
            "$defs": {"Base": {"type": "object", "properties": {"b": {"type": "number"}}, "description": "Base."}}
        });
        let (json, note, rewritten) = clean(&given, Vendor::Messages);
        assert_eq!(
            json,
            json!({
                "type": "object", "description": "Base.",
                "properties": {
                    "a": {"allOf": [{"type": "string"}, {"minLength": 1}]},
                    "b": {"type": "number"},
                    "c": {"type": "null"}
                },
                "required": ["a", "c"],
                "$defs": given["$defs"]
            })
        );
        let left = r#"All of these must hold: [{"if":{"required":["c"]},"then":{"required":["b"]}}]"#;
        assert_eq!(note.as_deref(), Some(left));
        assert!(rewritten);
    }

    #[test]
    fn alternatives_become_a_note_and_their_properties_stay() {
        let branches = json!([
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind", "x"]},
            {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
            {"type": "null"}
        ]);
        let (json, note, rewritten) = clean(&json!({"anyOf": branches}), Vendor::Messages);
        let properties = json!({"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "x": {}});
        assert_eq!(json, json!({"type": "object", "properties": properties, "required": ["kind"]}));
        assert_eq!(note, Some(format!("At least one of these must hold: {branches}")));
        assert!(rewritten);
        let given = json!({
            "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]
        });
        let (json, note, _) = clean(&given, Vendor::Chat);
        assert_eq!(json, json!({"type": "object", "properties": given["properties"]}));
        let told = r#"Exactly one of these must hold: [{"required":["a"]},{"required":["b"]}]"#;
        assert_eq!(note.as_deref(), Some(told));
        let long = json!({"anyOf": [{"description": "é".repeat(2000)}]});
        assert_eq!(clean(&long, Vendor::Chat).1.unwrap().chars().count(), 1000 + 33);
    }

    fn restrict(schema: &Any) -> Option<Any> {
        Some(serde_json::from_str(&restricted(&schema.to_string())?).unwrap())
    }

    #[test]
    fn the_strict_mode_gets_what_it_knows_and_is_told_the_rest() {
        let given = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1, "description": "How many."},
                "when": {"type": "string", "format": "date"},
                "id": {"type": "string", "format": "byte", "pattern": "^a b$"},
                "tags": {"type": "array", "items": {"oneOf": [{"type": "string"}, {"const": null}]}, "minItems": 2},
                "none": {"type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 0, "default": null}
            },
            "required": ["n"],
            "$defs": {"P": {"type": "object", "properties": {"minimum": {"type": "string"}}}}
        });
        let wanted = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": "How many.\n\n{minimum: 1}"},
                "when": {"type": "string", "format": "date"},
                "id": {"type": "string", "description": "{format: \"byte\", pattern: \"^a b$\"}"},
                "tags": {
                    "type": "array", "items": {"anyOf": [{"type": "string"}, {"const": null}]},
                    "description": "{minItems: 2}"
                },
                "none": {
                    "type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 0, "description": "{default: null}"
                }
            },
            "required": ["n"],
            "$defs": {
                "P": {"type": "object", "properties": {"minimum": {"type": "string"}}, "additionalProperties": false}
            },
            "additionalProperties": false
        });
        let text = r#"{"type":"integer","minimum":1,"maximum":5,"description":"How many."}"#;
        let told = r#"{"type":"integer","description":"How many.\n\n{minimum: 1, maximum: 5}"}"#;
        assert_eq!(restricted(text).as_deref(), Some(told));
        assert_eq!(restrict(&given), Some(wanted));
    }

    #[test]
    fn what_leads_back_or_is_open_cannot_be_strict() {
        for schema in [
            json!({"type": "object", "properties": {"next": {"$ref": "#"}}}),
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"items": {"$ref": "#/$defs/A"}}}}}}),
            json!({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}}),
            json!({"properties": {"a": {"type": "object", "additionalProperties": true}}}),
            json!({"items": {"additionalProperties": {"type": "string"}}}),
            json!({"patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {"$ref": "https://example.com/schema.json"}}}),
        ] {
            assert_eq!(restrict(&schema), None, "{schema}");
        }
        let twice = json!({
            "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}},
            "additionalProperties": false, "$defs": {"A": {"type": "string"}}
        });
        assert_eq!(restrict(&twice), Some(twice));
    }

    #[test]
    fn a_chat_vendors_strict_mode_wants_everything_closed_and_required() {
        let strict = |schema: Any| is_strict_for_chat(read(&schema.to_string()).root());
        let closed = json!({
            "type": "object", "additionalProperties": false, "required": ["a", "b"],
            "properties": {
                "a": {"type": ["string", "null"]},
                "b": {"type": "array", "items": {"$ref": "#/$defs/P"}}
            },
            "$defs": {"P": {"type": "object", "properties": {}, "additionalProperties": false}}
        });
        assert!(strict(closed.clone()));
        for (place, value) in [
            ("/additionalProperties", json!(true)),
            ("/required", json!(["a"])),
            ("/properties/a", json!({})),
            ("/properties/a", json!({"type": "string", "default": "x"})),
            ("/properties/a", json!({"oneOf": [{"type": "string"}]})),
            ("/$defs/P", json!({"type": "object"})),
        ] {
            let mut other = closed.clone();
            *other.pointer_mut(place).unwrap() = value;
            assert!(!strict(other), "{place}");
        }
        assert!(!strict(json!({"anyOf": [closed]})));
    }

    /// Schemas, more or less.
    fn schemas() -> impl Strategy<Value = Any> {
        let kinds = vec!["object", "array", "string", "number", "null"];
        let leaf = prop_oneof![
            proptest::sample::select(kinds).prop_map(|kind| json!({ "type": kind })),
            Just(json!({})),
            Just(json!(null)),
            Just(json!({"$ref": "#/$defs/A"})),
            Just(json!({"required": null, "$schema": "x", "$id": "y", "default": {"$id": 1}})),
        ];
        leaf.prop_recursive(4, 40, 4, |inner| {
            let keys = ["properties", "$defs", "items", "anyOf", "oneOf", "allOf", "not", "additionalProperties"];
            let member = (proptest::sample::select(keys.to_vec()), proptest::collection::vec(inner, 1..4));
            proptest::collection::vec(member, 1..4).prop_map(|members| {
                let value = |(key, values): (&str, Vec<Any>)| {
                    let value = match key {
                        "properties" | "$defs" => {
                            Any::Object(["A", "required", "$id"].map(str::to_owned).into_iter().zip(values).collect())
                        }
                        "anyOf" | "oneOf" | "allOf" => Any::Array(values),
                        _ => values.into_iter().next().unwrap_or_default(),
                    };
                    (key.to_owned(), value)
                };
                Any::Object(members.into_iter().map(value).collect())
            })
        })
    }

    proptest! {
        #[test]
        fn cleaning_twice_is_cleaning_once(schema in schemas()) {
            let text = schema.to_string();
            let tree = read(&text);
            for vendor in [Vendor::Messages, Vendor::Chat] {
                let Ok(once) = cleaned(Some(tree.root()), vendor) else { continue };
                let again = Tree::read(&once.json, 200, Nodes::new()).unwrap();
                let twice = cleaned(Some(again.root()), vendor).unwrap();
                prop_assert!(matches!(twice.json, Cow::Borrowed(_)), "{}", once.json);
                prop_assert!(!twice.rewritten && twice.note.is_none());
            }
        }

        #[test]
        fn restricting_twice_is_restricting_once(schema in schemas()) {
            if let Some(once) = restricted(&schema.to_string()) {
                prop_assert_eq!(restricted(&once), Some(once));
            }
        }
    }
}
