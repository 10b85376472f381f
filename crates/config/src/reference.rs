//! Renders the schema of the config file as a page. `model-gateway schema --reference` prints it,
//! and `docs/config.md` contains it.
//!
//! The renderer supports the part of JSON Schema that schemars writes for `raw.rs`. This file must
//! not add facts to the schema.

use super::raw::Limits;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;

const HEAD: &str = "# The config file, key by key

`model-gateway schema --reference` generates this page; a test checks that it is current. `conf/gateway.yaml` shows every key in its place.
`conf/gateway.schema.json` is the same schema for editors, which complete and check keys as you type.
`${NAME}` stands for an environment variable, `${NAME:-default}` for one that may be missing. Unknown keys are faults. `model-gateway check`
names all faults of a file at once, except those that depend on a value with a fault: correct it and check again.
";

pub fn markdown(schema: &Value) -> String {
    let mut page = ReferenceWriter {
        root: schema,
        text: HEAD.to_owned(),
        bounds: HashMap::new(),
        written: Vec::new(),
    };
    for (key, _, min, max) in Limits::default().bounds() {
        page.bounds.insert(key, (min, max));
    }
    page.section("", schema);
    page.text
}

struct ReferenceWriter<'a> {
    root: &'a Value,
    text: String,
    /// Minimum and maximum of each limit.
    bounds: HashMap<&'static str, (u64, u64)>,
    /// The objects that have a section, each with its path.
    written: Vec<(&'a Value, String)>,
}

impl<'a> ReferenceWriter<'a> {
    /// Writes the table of an object's keys, and then the sections of the objects in it.
    fn section(&mut self, path: &str, object: &'a Value) {
        let title = if path.is_empty() {
            "Top level".to_owned()
        } else {
            format!("`{path}`")
        };
        let description = if path.is_empty() {
            ""
        } else {
            object["description"].as_str().unwrap_or_default()
        };
        self.line(&format!("\n## {title}\n"));
        if !description.is_empty() {
            self.line(&format!("{}\n", one_line(description)));
        }
        let known = self
            .written
            .iter()
            .find(|(known, _)| std::ptr::eq(*known, object));
        if let Some((_, first)) = known {
            let line = format!("The keys of `{first}`.");
            self.line(&line);
            return;
        }
        self.written.push((object, path.to_owned()));
        self.line("| key | value | default | |");
        self.line("|---|---|---|---|");
        let mut inner = Vec::new();
        for (key, property) in object["properties"].as_object().into_iter().flatten() {
            let (schema, suffix) = self.resolve(property);
            if schema["properties"].is_object() {
                let prefix = if path.is_empty() {
                    String::new()
                } else {
                    format!("{path}.")
                };
                inner.push((format!("{prefix}{key}{suffix}"), schema));
            }
            let required = object["required"]
                .as_array()
                .is_some_and(|keys| keys.iter().any(|name| name == key));
            self.row(path, key, property, (schema, suffix), required);
        }
        for (path, schema) in inner {
            self.section(&path, schema);
        }
    }

    fn row(
        &mut self,
        path: &str,
        key: &str,
        property: &Value,
        (schema, suffix): (&Value, &str),
        required: bool,
    ) {
        let is_object = schema["properties"].is_object();
        let mut kind = if is_object {
            "see below".to_owned()
        } else {
            self.kind(schema)
        };
        if suffix == "[]" {
            kind = format!("list: {kind}");
        } else if suffix == ".NAME" {
            kind = format!("map: {kind}");
        }
        if let Some((min, max)) = self.bounds.get(key).filter(|_| path == "limits") {
            kind = format!("{min} to {max}");
        }
        let default = match &property["default"] {
            _ if required => "required".to_owned(),
            Value::Null => String::new(),
            Value::Object(members) if members.is_empty() => String::new(),
            Value::Object(_) => "see below".to_owned(),
            default => format!("`{default}`"),
        };
        // The section of an object begins with its description, and a number needs none.
        let has_choices = schema["enum"].is_array() || schema["oneOf"].is_array();
        let own = property["description"].as_str();
        let description = own
            .or_else(|| schema["description"].as_str().filter(|_| has_choices))
            .unwrap_or_default();
        self.line(&format!(
            "| `{key}` | {} | {default} | {} |",
            escape_cell(&kind),
            escape_cell(&one_line(description))
        ));
    }

    /// Follows references, options, lists and maps to the schema of a key's value. Returns that
    /// schema, and the suffix for the value's path.
    fn resolve(&self, schema: &'a Value) -> (&'a Value, &'static str) {
        if let Some(name) = schema["$ref"]
            .as_str()
            .and_then(|path| path.strip_prefix("#/$defs/"))
        {
            return self.resolve(&self.root["$defs"][name]);
        }
        if let Some(first) = schema["anyOf"]
            .as_array()
            .and_then(|choices| choices.first())
        {
            return self.resolve(first);
        }
        if schema["items"].is_object() {
            return (self.resolve(&schema["items"]).0, "[]");
        }
        if schema["additionalProperties"].is_object() {
            return (self.resolve(&schema["additionalProperties"]).0, ".NAME");
        }
        (schema, "")
    }

    fn kind(&self, schema: &Value) -> String {
        let values = |values: &[Value]| {
            values
                .iter()
                .map(|value| format!("`{value}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        if let Some(choices) = schema["enum"].as_array() {
            return values(choices);
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            return values(
                &choices
                    .iter()
                    .map(|choice| choice["const"].clone())
                    .collect::<Vec<_>>(),
            );
        }
        match &schema["type"] {
            Value::String(kind) => kind.clone(),
            Value::Array(kinds) => {
                let kinds = kinds
                    .iter()
                    .filter_map(Value::as_str)
                    .filter(|kind| *kind != "null");
                kinds.collect::<Vec<_>>().join(" or ")
            }
            _ => String::new(),
        }
    }

    fn line(&mut self, line: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Escapes a text for a cell of a table, because a bar would end the cell.
fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_the_docs_is_the_schema() {
        let page = super::markdown(&crate::schema());
        let kept = include_str!("../../../docs/config.md");
        assert!(
            page == kept,
            "docs/config.md is old: model-gateway schema --reference > docs/config.md"
        );
    }

    #[test]
    fn the_schema_file_is_the_schema_and_every_shipped_config_names_it() {
        let schema = format!("{:#}\n", crate::schema());
        assert!(
            schema == include_str!("../../../conf/gateway.schema.json"),
            "conf/gateway.schema.json is old: model-gateway schema > conf/gateway.schema.json"
        );
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (folder, count) in [("conf", 2), ("deploy", 2)] {
            let folder = root.join(folder);
            let mut named = 0;
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let is_config = path.extension().is_some_and(|name| name == "yaml")
                    && !path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with("compose."));
                if is_config {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let first = text.lines().next().unwrap();
                    let schema = first
                        .strip_prefix("# yaml-language-server: $schema=")
                        .unwrap();
                    assert!(folder.join(schema).exists(), "{}", path.display());
                    named += 1;
                }
            }
            assert_eq!(named, count, "{}", folder.display());
        }
    }

    #[test]
    fn every_key_of_the_shipped_file_is_on_the_page() {
        let page = super::markdown(&crate::schema());
        let shipped = include_str!("../../../conf/gateway.yaml");
        let keys = shipped.lines().filter_map(|line| {
            let (key, _) = line.trim_start().trim_start_matches("- ").split_once(':')?;
            key.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                .then_some(key)
        });
        let named = ["alpha", "beta"];
        for key in keys.filter(|key| !named.contains(key)) {
            assert!(
                page.contains(&format!("| `{key}` |")),
                "{key} is not in the reference"
            );
        }
    }
}
