//! Resolves the references in a schema.
//!
//! This file must bound the references that it follows, because schemas may refer to themselves.

use crate::json::JsonValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// Returns the address of a value, which identifies it within its document.
pub(super) fn value_address(value: JsonValue<'_>) -> usize {
    value.raw().as_ptr().addr()
}

pub(super) struct SchemaRefs<'a> {
    root: JsonValue<'a>,
    by_name: HashMap<(&'static str, Cow<'a, str>), JsonValue<'a>>,
    /// Results by schema identity. A large schema is searched once, even if it is referenced often.
    known: HashMap<usize, Option<JsonValue<'a>>>,
}

impl<'a> SchemaRefs<'a> {
    pub fn new(root: JsonValue<'a>) -> Self {
        let mut by_name = HashMap::new();
        for (keyword, start) in [("$defs", "#/$defs/"), ("definitions", "#/definitions/")] {
            for (name, value) in root.get(keyword).into_iter().flat_map(JsonValue::members) {
                by_name.insert((start, name.into_value()), value);
            }
        }
        SchemaRefs {
            root,
            by_name,
            known: HashMap::new(),
        }
    }

    pub fn resolve(&self, reference: &str) -> Option<JsonValue<'a>> {
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
    pub fn follow(&mut self, mut schema: JsonValue<'a>) -> JsonValue<'a> {
        const MAX_HOPS: u32 = 8;
        for _ in 0..MAX_HOPS {
            match self.resolve_ref(schema) {
                Some(named) => schema = named,
                None => break,
            }
        }
        schema
    }

    pub fn resolve_ref(&mut self, schema: JsonValue<'a>) -> Option<JsonValue<'a>> {
        if let Some(known) = self.known.get(&value_address(schema)) {
            return *known;
        }
        let reference = schema.string_of("$ref");
        let named = reference.and_then(|reference| self.resolve(&reference));
        self.known.insert(value_address(schema), named);
        named
    }
}
