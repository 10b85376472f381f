//! Makes a config from a file with faults of form, so that its other values can be checked in the
//! same pass. It also finds the faults of that pass that only follow from a fault of form.
//!
//! This file must not repair a file: the config is only checked and never used.

use super::fault::ConfigFault;
use super::shape::{is_of_unknown_key, resolve, value_schema};
use super::yaml::{YamlNode, YamlValue, join};
use serde_json::{Map, Value};

/// Objects whose keys do not influence each other's checks, apart from their own.
const INDEPENDENT: [&str; 5] = [
    "",
    "limits",
    "listen",
    "rate_limits.key",
    "rate_limits.account",
];
/// Sections in which an unknown key does not affect the checks of other keys.
const TOLERANT: [&str; 6] = ["", "limits", "listen", "models", "rate_limits", "vendors"];

/// Returns the values of the tree without those that have a fault. A required key has a value of
/// the right type, and a list keeps its length.
pub(super) fn without_faults(tree: &YamlNode, root: &Value, faults: &[ConfigFault]) -> Value {
    PartialReader { root, faults }.object_of(tree, root, "")
}

struct PartialReader<'a> {
    root: &'a Value,
    faults: &'a [ConfigFault],
}

impl PartialReader<'_> {
    fn object_of(&self, node: &YamlNode, schema: &Value, path: &str) -> Value {
        self.value(node, schema, path)
            .unwrap_or_else(|| self.placeholder(schema))
    }

    /// Returns the value of a node, or `None` if the node has a fault.
    fn value(&self, node: &YamlNode, schema: &Value, path: &str) -> Option<Value> {
        if self.faults.iter().any(|fault| fault.key == path) {
            return None;
        }
        let schema = value_schema(self.root, schema, node);
        match &node.kind {
            YamlValue::Scalar(value) => Some(value.clone()),
            YamlValue::List(items) => {
                let items = (0..).zip(items).map(|(index, item): (usize, _)| {
                    self.object_of(item, &schema["items"], &format!("{path}[{index}]"))
                });
                Some(items.collect())
            }
            YamlValue::Map(entries) => Some(self.map(entries, schema, path)),
        }
    }

    fn map(&self, entries: &[(String, YamlNode)], schema: &Value, path: &str) -> Value {
        let mut object = Map::new();
        for (key, node) in entries {
            let path = join(path, key);
            if let Some(property) = schema["properties"].get(key) {
                object.extend(
                    self.value(node, property, &path)
                        .map(|value| (key.clone(), value)),
                );
            } else if schema["additionalProperties"].is_object() {
                // Other sections refer to the name, so the entry must remain.
                let value = self.object_of(node, &schema["additionalProperties"], &path);
                object.insert(key.clone(), value);
            }
        }
        self.add_required(&mut object, schema);
        Value::Object(object)
    }

    fn add_required(&self, object: &mut Map<String, Value>, schema: &Value) {
        let keys = schema["required"].as_array().into_iter().flatten();
        for key in keys.filter_map(Value::as_str) {
            if !object.contains_key(key) {
                let value = self.placeholder(&schema["properties"][key]);
                object.insert(key.to_owned(), value);
            }
        }
    }

    fn placeholder(&self, schema: &Value) -> Value {
        let schema = resolve(self.root, schema);
        if let Some(choice) = schema["anyOf"].get(0) {
            return self.placeholder(choice);
        }
        if let Some(choice) = schema["enum"].get(0) {
            return choice.clone();
        }
        if let Some(choice) = schema["oneOf"].get(0) {
            return resolve(self.root, choice)["const"].clone();
        }
        let kind = &schema["type"];
        match kind.as_str().or_else(|| kind.get(0)?.as_str()) {
            Some("object") => {
                let mut object = Map::new();
                self.add_required(&mut object, schema);
                Value::Object(object)
            }
            Some("array") => Value::Array(Vec::new()),
            Some("string") => "".into(),
            Some("integer" | "number") => 0.into(),
            Some("boolean") => false.into(),
            _ => Value::Null,
        }
    }
}

/// Returns whether `fault` may exist only because of one of the faults of form. `is_set` says
/// whether the file sets a key.
pub(super) fn follows_from(
    fault: &ConfigFault,
    of_form: &[ConfigFault],
    is_set: &dyn Fn(&str) -> bool,
) -> bool {
    let key = &*fault.key;
    of_form.iter().any(|cause| {
        let parent = parent(&cause.key);
        let hides = if is_of_unknown_key(cause) {
            // An unknown key may be the misspelt form of the key whose absence is the fault, at
            // this level or in the whole object.
            is_within(key, parent) && (!TOLERANT.contains(&section(parent)) || !is_set(key))
        } else {
            // A fault in one value can cause faults in its siblings, because checks combine them.
            // Exceptions are independent objects, and `api_key`, which no other check uses.
            let is_alone = INDEPENDENT.contains(&parent) || cause.key.ends_with(".api_key");
            is_within(key, &cause.key) || !is_alone && is_within(key, parent)
        };
        hides || is_within(&cause.key, key) || follows_elsewhere(fault, cause, is_set)
    })
}

/// Returns whether `fault` may follow from a fault in another section.
fn follows_elsewhere(
    fault: &ConfigFault,
    cause: &ConfigFault,
    is_set: &dyn Fn(&str) -> bool,
) -> bool {
    let is_unknown = is_of_unknown_key(cause);
    match section(&fault.key) {
        // The kind of store decides which listeners are on this machine.
        "listen" => {
            let may_be_store = is_unknown && parent(&cause.key).is_empty() && !is_set("store");
            section(&cause.key) == "store" || may_be_store
        }
        // The vendors decide which keys have an effect for a model.
        "models" if fault.message.starts_with("has no effect") => {
            ["models", "vendors"].contains(&section(&cause.key))
        }
        "models" if fault.key.ends_with("].vendor") => cause.key == "vendors",
        "models" if fault.key.contains("].fallback[") => is_of_models(cause, "id"),
        "limits" => is_of_models(cause, "max_output_tokens") && fault.key.ends_with("tokens"),
        _ => false,
    }
}

/// Returns whether the fault concerns a model, all of them, or this key of one.
fn is_of_models(fault: &ConfigFault, name: &str) -> bool {
    let Some(rest) = fault.key.strip_prefix("models") else {
        return false;
    };
    let in_model = rest.split_once(']').map_or("", |(_, rest)| rest);
    in_model.is_empty() || in_model.strip_prefix('.') == Some(name)
}

fn section(key: &str) -> &str {
    key.split(['.', '[']).next().unwrap_or_default()
}

fn parent(key: &str) -> &str {
    key.rfind(['.', '[']).map_or("", |at| &key[..at])
}

fn is_within(key: &str, outer: &str) -> bool {
    key.strip_prefix(outer)
        .is_some_and(|rest| outer.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const SHIPPED: &str = include_str!("../../../conf/local.yaml");

    fn faults(edits: &[(&str, &str)], more: &str) -> Vec<String> {
        let mut text = SHIPPED.to_owned();
        for (from, to) in edits {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
        let faults = parse(&format!("{text}{more}\n"), &|_| None).unwrap_err();
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert!(lines.is_sorted(), "{lines:?}");
        faults.into_iter().map(|fault| fault.key).collect()
    }

    #[test]
    fn a_fault_of_form_does_not_hide_the_faults_of_other_sections() {
        let negative = ("output: \"2500\"}", "output: \"-5\"}");
        assert_eq!(
            faults(&[negative], "limits: {attempts: 99, body_byts: 3}"),
            [
                "models[0].price.output",
                "limits.body_byts",
                "limits.attempts"
            ]
            .map(String::from)
        );
        let wrong = [
            ("data_dir: \"data\"", "data_dir: \"${UNSET}\""),
            ("trial_days: 7", "trial_days: [7]"),
            ("api_key: \"sim-beta-key\"", "api_key: \"${UNSET}\""),
            ("id: beta-5.5", "id: beta-5.5\n    colour: blue"),
            ("upstream_model: gpt-5.5", "upstream_model: \"\""),
            negative,
        ];
        let mut found = faults(
            &wrong,
            "suport: x\ncors: {origins: [nowhere]}\nlimits: {attempts: 0}",
        );
        found.sort();
        assert_eq!(
            found,
            [
                "cors.origins[0]",
                "data_dir",
                "limits.attempts",
                "models[0].price.output",
                "models[4].colour",
                "models[4].upstream_model",
                "signup.trial_days",
                "suport",
                "vendors.beta.api_key",
            ]
        );
    }

    #[test]
    fn what_only_follows_from_a_fault_of_form_is_not_named() {
        let one = |from: &str, to: &str, key: &str| {
            assert_eq!(faults(&[(from, to)], ""), [key], "{to}");
        };
        one(
            "api_key: \"sim-beta-key\"",
            "api_ky: x",
            "vendors.beta.api_ky",
        );
        one(
            "max_output_tokens: 64000",
            "max_output_tokens: -1",
            "models[0].max_output_tokens",
        );
        one(
            "  - id: beta-5.5",
            "    fallback: [\"5.5\"]\n  - id: 5.5",
            "models[4].id",
        );
        one(
            "sidecar: \"127.0.0.1:8081\"",
            "sidecar: 8081",
            "listen.sidecar",
        );
        one(
            "store: {kind: embedded}",
            "store: {kind: paper, url: \"redis://a\"}",
            "store.kind",
        );
        assert_eq!(
            faults(&[("vendors:", "vendrs:")], ""),
            ["vendors", "vendrs"]
        );
        assert_eq!(
            faults(
                &[
                    ("store: {kind: embedded}", "stor: {kind: redis}"),
                    ("sidecar: \"127.0.0.1:8081\"", "sidecar: \"127.0.0.1:8080\""),
                ],
                ""
            ),
            ["stor"]
        );
        assert_eq!(
            faults(
                &[("max_output_tokens: 128000", "max_output_tokens: many")],
                "limits: {min_output_tokens: 100000}"
            ),
            ["models[3].max_output_tokens"]
        );
    }
}
