//! Flattens combined schemas at the top level into one object, because neither vendor accepts
//! `allOf`, `anyOf` or `oneOf` there.
//!
//! This file must not lose a constraint that one object cannot express. Such a constraint becomes a
//! note in the description.
//!
//! The crate `jsonschema-schema` is no replacement: it merges `allOf` alone, and works on a typed
//! copy of the schema.
//!
//! Read next: `strict.rs` in this folder.

use super::keywords::is_object_schema;
use super::references::{SchemaRefs, value_address};
use crate::json::{JsonStr, JsonValue, JsonWriter, compacted};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Maximum length of the note about a combinator.
const MAX_NOTE_CHARS: usize = 1000;

/// Maximum number of members visited to flatten one schema. References can repeat the same members.
const MAX_FLATTENED_MEMBERS: usize = 5_000;

/// Maximum number of variants kept for one property.
const MAX_VARIANTS: usize = 16;

/// Flattens a top level with combinators into one object. Constraints that the object cannot
/// express become notes.
pub(super) struct SchemaFlattener<'a> {
    references: SchemaRefs<'a>,
    /// Results by schema identity. Each schema is visited once, although references may repeat.
    targets: HashMap<usize, SchemaInfo<'a>>,
    budget: usize,
    notes: Vec<String>,
}

#[derive(Clone, Copy)]
struct SchemaInfo<'a> {
    schema: JsonValue<'a>,
    is_object: bool,
    /// True if all keywords of the schema can be merged with those of other schemas.
    is_mergeable: bool,
    members: usize,
}

#[derive(Default)]
struct MergedSchema<'a> {
    properties: NamedValues<'a>,
    required: Vec<JsonStr<'a>>,
    others: NamedValues<'a>,
    left: Vec<JsonValue<'a>>,
}

/// Values by name, in order of arrival. A name has several values if schemas differ.
#[derive(Default)]
struct NamedValues<'a> {
    all: Vec<(JsonStr<'a>, Vec<JsonValue<'a>>)>,
    index: HashMap<Cow<'a, str>, usize>,
}

impl<'a> NamedValues<'a> {
    fn add(&mut self, name: JsonStr<'a>, value: JsonValue<'a>) {
        let next = self.all.len();
        let index = *self.index.entry(name.clone().into_value()).or_insert(next);
        match self.all.get_mut(index) {
            Some((_, values)) if values.len() >= MAX_VARIANTS => {}
            Some((_, values)) if values.iter().any(|known| known.raw() == value.raw()) => {}
            Some((_, values)) => values.push(value),
            None => self.all.push((name, vec![value])),
        }
    }

    /// Writes each name once. `combinator` joins the values of a name that has several.
    fn write(&self, combinator: &str, json: &mut JsonWriter) {
        for (name, values) in &self.all {
            json.key_text(name);
            if let [only] = values.as_slice() {
                json.value(only);
                continue;
            }
            json.open_object().member_array(combinator);
            for value in values {
                json.value(value);
            }
            json.close_array().close_object();
        }
    }
}

impl<'a> SchemaFlattener<'a> {
    pub(super) fn flatten(schema: JsonValue<'a>) -> (String, Option<String>) {
        let mut flat = SchemaFlattener {
            references: SchemaRefs::new(schema),
            targets: HashMap::new(),
            budget: MAX_FLATTENED_MEMBERS,
            notes: Vec::new(),
        };
        let mut merged = flat.merge_all_of(schema);
        if !merged.left.is_empty() {
            let left: Vec<&str> = merged.left.iter().map(|part| part.raw()).collect();
            flat.add_note("All", &format!("[{}]", left.join(",")));
        }
        let has_properties = !merged.properties.all.is_empty();
        for (keyword, count) in [("anyOf", "At least one"), ("oneOf", "Exactly one")] {
            let Some(branches) = schema.get(keyword) else {
                continue;
            };
            flat.add_note(count, branches.raw());
            if !has_properties {
                flat.merge_branches(branches, &mut merged);
            }
        }
        let mut json = JsonWriter::with_capacity(schema.raw().len());
        json.open_typed("object");
        merged
            .others
            .all
            .iter_mut()
            .for_each(|(_, values)| values.truncate(1));
        merged.others.write("", &mut json);
        json.member_object("properties");
        merged
            .properties
            .write(if has_properties { "allOf" } else { "anyOf" }, &mut json);
        json.close_object();
        let mut seen = HashSet::new();
        merged
            .required
            .retain(|name| seen.insert(name.value().into_owned()));
        if !merged.required.is_empty() {
            json.member_list("required", &merged.required);
        }
        json.close_object();
        (
            json.into_string(),
            (!flat.notes.is_empty()).then(|| flat.notes.join("\n")),
        )
    }

    fn add_note(&mut self, count: &str, parts: &str) {
        let text: String = compacted(parts).chars().take(MAX_NOTE_CHARS).collect();
        self.notes
            .push(format!("{count} of these must hold: {text}"));
    }

    /// Returns the facts about the schema, or about the schema that it refers to.
    fn schema_info(&mut self, schema: JsonValue<'a>) -> SchemaInfo<'a> {
        let schema = self.references.follow(schema);
        *self
            .targets
            .entry(value_address(schema))
            .or_insert_with(|| SchemaInfo {
                schema,
                is_object: is_object_schema(schema),
                is_mergeable: schema.members().all(|(key, _)| is_mergeable(&key.value())),
                members: schema.members().count(),
            })
    }

    /// Takes `members` from the budget of visited members. Returns false if the budget is too
    /// small.
    fn take_budget(&mut self, members: usize) -> bool {
        let fits = members < self.budget;
        self.budget = self.budget.saturating_sub(members.saturating_add(1));
        fits
    }

    /// Merges the schema with all schemas in its `allOf`.
    fn merge_all_of(&mut self, schema: JsonValue<'a>) -> MergedSchema<'a> {
        let (mut merged, mut seen, mut parts) =
            (MergedSchema::default(), HashSet::new(), vec![schema]);
        let mut is_first = true;
        while let Some(part) = parts.pop().filter(|_| self.budget > 0) {
            let target = self.schema_info(part);
            // The first schema may have a reference beside its own members.
            let named = if is_first { part } else { target.schema };
            if !seen.insert(value_address(named))
                || !self.take_budget(if is_first {
                    named.members().count()
                } else {
                    target.members
                })
            {
                continue;
            }
            let is_object = if is_first {
                is_object_schema(named)
            } else {
                target.is_object
            };
            let is_expressible = target.is_object && target.is_mergeable;
            if !is_first && !is_expressible {
                merged.left.push(part);
            }
            if is_object {
                self.merge_part(named, is_first, &mut merged);
                let more = named.items_of("allOf");
                let behind = parts.len();
                parts.extend(more.take(self.budget));
                parts.get_mut(behind..).unwrap_or_default().reverse();
            }
            is_first = false;
        }
        merged
    }

    fn merge_part(&mut self, part: JsonValue<'a>, with_all: bool, merged: &mut MergedSchema<'a>) {
        for (key, value) in part.members() {
            match key.value().as_ref() {
                "type" | "allOf" | "anyOf" | "oneOf" => {}
                "properties" => {
                    for (name, property) in value.members().take(self.budget) {
                        self.budget = self.budget.saturating_sub(1);
                        merged.properties.add(name, property);
                    }
                }
                "required" => {
                    let before = merged.required.len();
                    merged
                        .required
                        .extend(value.items().filter_map(JsonValue::text).take(self.budget));
                    self.budget = self.budget.saturating_sub(merged.required.len() - before);
                }
                keyword if with_all || is_mergeable(keyword) => merged.others.add(key, value),
                _ => {}
            }
        }
    }

    /// Adds the properties of all branches that are objects. A property is required if all these
    /// branches require it.
    fn merge_branches(&mut self, branches: JsonValue<'a>, merged: &mut MergedSchema<'a>) {
        let mut required: Option<Vec<JsonStr<'a>>> = None;
        let mut seen = HashSet::new();
        for branch in branches.items().take(self.budget) {
            let target = self.schema_info(branch);
            // A repeated schema adds nothing.
            if !self.take_budget(0)
                || !target.is_object
                || !seen.insert(value_address(target.schema))
            {
                continue;
            }
            let branch = self.merge_all_of(target.schema);
            for (name, values) in branch.properties.all {
                values
                    .into_iter()
                    .for_each(|value| merged.properties.add(name.clone(), value));
            }
            let own: HashSet<Cow<'_, str>> = branch.required.iter().map(JsonStr::value).collect();
            required = Some(match required {
                Some(all) => all
                    .into_iter()
                    .filter(|name| own.contains(&name.value()))
                    .collect(),
                None => branch.required.clone(),
            });
        }
        // Some branches were not read, so no property is known to be required.
        merged
            .required
            .extend(required.filter(|_| self.budget > 0).unwrap_or_default());
    }
}

/// Returns whether object schemas with this keyword can be merged. The first value of a keyword
/// that only describes is kept.
fn is_mergeable(keyword: &str) -> bool {
    matches!(
        keyword,
        "type"
            | "properties"
            | "required"
            | "allOf"
            | "additionalProperties"
            | "title"
            | "description"
            | "default"
    ) || matches!(
        keyword,
        "examples" | "$comment" | "deprecated" | "$schema" | "$id" | "$defs" | "definitions"
    )
}
