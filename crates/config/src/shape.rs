//! Checks the tree of a config file against the JSON Schema of `raw.rs`, so that unknown keys,
//! missing keys and wrong types are reported all together instead of one at a time.
//!
//! The check supports the part of JSON Schema that schemars writes for `raw.rs`. This file must not
//! depend on the meaning of a value.

use super::fault::ConfigFault;
use super::yaml::{YamlNode, YamlValue, join};
use super::{suggest, wrong_type};
use serde_json::Value;

/// Adds the faults of form to `faults`.
pub(super) fn check_shape(tree: &YamlNode, schema: &Value, faults: &mut Vec<ConfigFault>) {
    let mut validator = SchemaValidator {
        root: schema,
        faults,
    };
    if matches!(tree.kind, YamlValue::Scalar(Value::Null)) {
        let message = "the file is empty: conf/gateway.yaml is an example".to_owned();
        return validator.add_fault(1, "", message);
    }
    validator.check_node(tree, schema, "");
}

struct SchemaValidator<'a> {
    root: &'a Value,
    faults: &'a mut Vec<ConfigFault>,
}

impl SchemaValidator<'_> {
    fn check_node(&mut self, node: &YamlNode, schema: &Value, path: &str) {
        let schema = resolve(self.root, schema);
        let null = matches!(node.kind, YamlValue::Scalar(Value::Null));
        if schema["anyOf"].is_array() {
            if !null {
                self.check_node(node, value_schema(self.root, schema, node), path);
            }
            return;
        }
        if let Some(message) = wrong_type::range_fault(node, schema) {
            return self.add_fault(node.line, path, message);
        }
        if !type_fits(&schema["type"], node.kind_name()) {
            let message = wrong_type::message(node, &schema["type"], path);
            return self.add_fault(node.line, path, message);
        }
        let choices = schema["enum"]
            .as_array()
            .cloned()
            .or_else(|| one_of(self.root, schema));
        if let (Some(choices), YamlValue::Scalar(value)) = (choices, &node.kind)
            && !choices.contains(value)
        {
            let names: Vec<_> = choices
                .iter()
                .map(|choice| choice.as_str().map_or(choice.to_string(), Into::into))
                .collect();
            let suggestion = value
                .as_str()
                .map(|word| suggest::hint(word, choices.iter().filter_map(Value::as_str)));
            let message = format!(
                "expected one of: {}{}",
                names.join(", "),
                suggestion.unwrap_or_default()
            );
            return self.add_fault(node.line, path, message);
        }
        match &node.kind {
            YamlValue::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.check_node(item, &schema["items"], &format!("{path}[{index}]"));
                }
            }
            YamlValue::Map(entries) => self.check_map(node, entries, schema, path),
            YamlValue::Scalar(_) => {}
        }
    }

    fn check_map(
        &mut self,
        node: &YamlNode,
        entries: &[(String, YamlNode)],
        schema: &Value,
        path: &str,
    ) {
        for (index, (key, value)) in entries.iter().enumerate() {
            let key_path = join(path, key);
            let before = &entries[..index];
            if let Some((_, first)) = before.iter().find(|(other, _)| other == key) {
                let message = format!("is set twice, first on line {}: remove one", first.line);
                self.add_fault(value.line, &key_path, message);
                continue;
            }
            if let Some(property) = schema["properties"].get(key) {
                self.check_node(value, property, &key_path);
            } else if schema["additionalProperties"].is_object() {
                self.check_node(value, &schema["additionalProperties"], &key_path);
            } else if schema["additionalProperties"] != true {
                let known: Vec<_> = schema["properties"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(key, _)| key.as_str())
                    .collect();
                let message = unknown_key_message(&key_path, key, &known);
                self.add_fault(value.line, &key_path, message);
            }
        }
        for key in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !entries.iter().any(|(name, _)| name == key) {
                let path = join(path, key);
                self.add_fault(node.line, &path, wrong_type::missing(&path));
            }
        }
    }

    fn add_fault(&mut self, line: u64, key: &str, message: String) {
        self.faults.push(ConfigFault {
            line,
            key: key.to_owned(),
            message,
        });
    }
}

/// Returns the schema for a value. schemars writes an optional key as "T or null". Of several
/// alternatives, the result is the one with the type of the value.
pub(super) fn value_schema<'a>(root: &'a Value, schema: &'a Value, node: &YamlNode) -> &'a Value {
    let schema = resolve(root, schema);
    let Some(choices) = schema["anyOf"].as_array() else {
        return schema;
    };
    let fits = |choice: &&Value| type_fits(&resolve(root, choice)["type"], node.kind_name());
    let mut forms = choices.iter().filter(|choice| choice["type"] != "null");
    let inner = forms.clone().find(fits).or_else(|| forms.next());
    inner.map_or(schema, |inner| value_schema(root, inner, node))
}

pub(super) fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"]
        .as_str()
        .and_then(|name| name.strip_prefix('#'))
    {
        Some(pointer) => root.pointer(pointer).unwrap_or(schema),
        None => schema,
    }
}

/// Returns the values of an enum whose variants have descriptions.
fn one_of(root: &Value, schema: &Value) -> Option<Vec<Value>> {
    let choices = schema["oneOf"].as_array()?;
    Some(
        choices
            .iter()
            .map(|choice| resolve(root, choice)["const"].clone())
            .collect(),
    )
}

fn type_fits(expected: &Value, found: &str) -> bool {
    let fits = |expected: &str| expected == found || (expected == "number" && found == "integer");
    match expected {
        Value::String(name) => fits(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    }
}

/// Renamed keys: the path of the old key, and its new name.
pub(super) const RENAMED_KEYS: [(&str, &str); 5] = [
    ("watch", "auto_reload"),
    ("limits.drain_hidden_seconds", "drain_reasoning_seconds"),
    ("limits.name_refresh_seconds", "dns_refresh_seconds"),
    ("limits.name_stale_seconds", "dns_stale_seconds"),
    ("telemetry.traces.sample", "sample_ratio"),
];

pub(super) fn is_of_unknown_key(fault: &ConfigFault) -> bool {
    [UNKNOWN_KEY, RENAMED_KEY]
        .into_iter()
        .any(|begin| fault.message.starts_with(begin))
}

const UNKNOWN_KEY: &str = "unknown key";
const RENAMED_KEY: &str = "this key is now called";

fn unknown_key_message(path: &str, key: &str, known: &[&str]) -> String {
    if let Some((_, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == path) {
        return format!("{RENAMED_KEY} {new:?}");
    }
    let known_keys = known.join(", ");
    match suggest::nearest(key, known.iter().copied()) {
        Some(suggestion) => {
            format!("{UNKNOWN_KEY}; did you mean {suggestion:?}? Known here: {known_keys}")
        }
        None => format!("{UNKNOWN_KEY}; known here: {known_keys}"),
    }
}
