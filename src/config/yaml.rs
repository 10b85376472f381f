//! Reads a YAML file into a checked value, and finds all faults in one pass, each with its line and
//! key.
//!
//! Two steps. First it reads the text into a tree that remembers lines, and substitutes `${ENV}`.
//! Then it checks the tree against the JSON Schema of `raw.rs`, so that it reports unknown keys,
//! missing keys and wrong types all together instead of one at a time. Must not know what any key
//! means.

use super::fault::ConfigFault;
use super::{raw, suggest};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;

/// A YAML value that knows the line it was written on.
#[derive(Debug)]
pub struct YamlNode {
    pub line: u64,
    kind: YamlValue,
}

#[derive(Debug)]
enum YamlValue {
    Scalar(Value),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// Line of the deepest existing node along `path` (`models[2].price.input`), counted from 1.
    pub fn line_of(&self, path: &str) -> u64 {
        let mut node = self;
        for step in path.split(['.', '[']) {
            let next = match &node.kind {
                YamlValue::Map(entries) => entries
                    .iter()
                    .find(|(key, _)| key == step)
                    .map(|(_, node)| node),
                YamlValue::List(items) => step
                    .trim_end_matches(']')
                    .parse()
                    .ok()
                    .and_then(|index: usize| items.get(index)),
                YamlValue::Scalar(_) => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.line
    }

    /// The value of a top-level key.
    pub fn section(&self, name: &str) -> Option<Value> {
        let YamlValue::Map(entries) = &self.kind else {
            return None;
        };
        entries
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, node)| node.value())
    }

    fn value(&self) -> Value {
        match &self.kind {
            YamlValue::Scalar(value) => value.clone(),
            YamlValue::List(items) => items.iter().map(YamlNode::value).collect(),
            YamlValue::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, node)| (key.clone(), node.value()))
                    .collect(),
            ),
        }
    }

    fn kind_name(&self) -> &'static str {
        match &self.kind {
            YamlValue::Scalar(Value::Null) => "null",
            YamlValue::Scalar(Value::Bool(_)) => "boolean",
            YamlValue::Scalar(Value::Number(number)) if number.is_f64() => "number",
            YamlValue::Scalar(Value::Number(_)) => "integer",
            YamlValue::Scalar(_) => "string",
            YamlValue::List(_) => "array",
            YamlValue::Map(_) => "object",
        }
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct YamlVisitor;
        impl<'de> Visitor<'de> for YamlVisitor {
            type Value = YamlValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML value")
            }
            fn visit_unit<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(Value::Null))
            }
            fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlValue, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<Spanned<YamlValue>>()? {
                    items.push(from_spanned(item));
                }
                Ok(YamlValue::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    let mut value = from_spanned(map.next_value::<Spanned<YamlValue>>()?);
                    value.line = key.referenced.line();
                    entries.push((key.value, value));
                }
                Ok(YamlValue::Map(entries))
            }
        }
        deserializer.deserialize_any(YamlVisitor)
    }
}

fn from_spanned(spanned: Spanned<YamlValue>) -> YamlNode {
    YamlNode {
        line: spanned.referenced.line(),
        kind: spanned.value,
    }
}

/// Reads `text`. `env` returns the value of an environment variable.
///
/// # Errors
/// Returns all faults of form: invalid YAML, unset variables, unknown or missing keys, wrong types.
pub fn read_config(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(raw::Config, YamlNode), Vec<ConfigFault>> {
    let (tree, faults) = read_tree(text, &|_, name| env(name))?;
    if !faults.is_empty() {
        return Err(faults);
    }
    match serde_json::from_value(tree.value()) {
        Ok(config) => Ok((config, tree)),
        Err(error) => Err(vec![ConfigFault {
            line: tree.line,
            key: String::new(),
            message: error.to_string(),
        }]),
    }
}

/// Reads `text` into a tree, and returns the tree with its faults of form. `env` returns the value
/// of an environment variable for the key at a path.
///
/// # Errors
/// Returns an error if the text is not YAML.
pub fn read_tree(
    text: &str,
    env: &dyn Fn(&str, &str) -> Option<String>,
) -> Result<(YamlNode, Vec<ConfigFault>), Vec<ConfigFault>> {
    let mut tree = match serde_saphyr::from_str::<Spanned<YamlValue>>(text) {
        Ok(spanned) => from_spanned(spanned),
        Err(error) => {
            let line = error.location().map_or(1, |location| location.line());
            let message = error
                .to_string()
                .lines()
                .next()
                .unwrap_or("not YAML")
                .to_owned();
            return Err(vec![ConfigFault {
                line,
                key: String::new(),
                message,
            }]);
        }
    };
    let mut faults = Vec::new();
    substitute(&mut tree, "", env, &mut faults);
    let schema = schema();
    SchemaValidator {
        root: &schema,
        faults: &mut faults,
    }
    .check_node(&tree, &schema, "");
    Ok((tree, faults))
}

/// The JSON Schema of the config file.
pub fn schema() -> Value {
    schemars::schema_for!(raw::Config).to_value()
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Substitutes `${NAME}` and `${NAME:-default}` in every string.
fn substitute(
    node: &mut YamlNode,
    path: &str,
    env: &dyn Fn(&str, &str) -> Option<String>,
    faults: &mut Vec<ConfigFault>,
) {
    match &mut node.kind {
        YamlValue::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                substitute(item, &format!("{path}[{index}]"), env, faults);
            }
        }
        YamlValue::Map(entries) => {
            for (key, value) in entries {
                substitute(value, &join(path, key), env, faults);
            }
        }
        YamlValue::Scalar(Value::String(text)) if text.contains("${") => {
            match expand(text, &|name| env(path, name)) {
                Ok(expanded) => *text = expanded,
                Err(message) => faults.push(ConfigFault {
                    line: node.line,
                    key: path.to_owned(),
                    message,
                }),
            }
        }
        YamlValue::Scalar(_) => {}
    }
}

fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let (name, tail) = after.split_once('}').ok_or("`${` without `}`")?;
        let (name, default) = match name.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (name, None),
        };
        let value = env(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) => out.push_str(&value),
            (None, Some(default)) => out.push_str(default),
            (None, None) => return Err(format!("environment variable {name} is not set")),
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

/// Checks a tree against a schema. Supports the part of JSON Schema that schemars writes for
/// `raw.rs`.
struct SchemaValidator<'a> {
    root: &'a Value,
    faults: &'a mut Vec<ConfigFault>,
}

impl SchemaValidator<'_> {
    fn check_node(&mut self, node: &YamlNode, schema: &Value, path: &str) {
        let schema = resolve(self.root, schema);
        let null = matches!(node.kind, YamlValue::Scalar(Value::Null));
        if let Some(choices) = schema["anyOf"].as_array() {
            // schemars writes an optional key as "T or null". Of several alternatives, use the one
            // with this type.
            let fits =
                |choice: &&Value| type_fits(&resolve(self.root, choice)["type"], node.kind_name());
            let mut forms = choices.iter().filter(|choice| choice["type"] != "null");
            let inner = forms.clone().find(fits).or_else(|| forms.next());
            if let (false, Some(inner)) = (null, inner) {
                self.check_node(node, inner, path);
            }
            return;
        }
        if !type_fits(&schema["type"], node.kind_name()) {
            let message = format!(
                "expected {}, found {}",
                type_names(&schema["type"]),
                node.kind_name()
            );
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
        for (key, value) in entries {
            let key_path = join(path, key);
            if let Some(property) = schema["properties"].get(key) {
                self.check_node(value, property, &key_path);
            } else if schema["additionalProperties"].is_object() {
                self.check_node(value, &schema["additionalProperties"], &key_path);
            } else {
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
                self.add_fault(node.line, &join(path, key), "missing".into());
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

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"]
        .as_str()
        .and_then(|name| name.strip_prefix('#'))
    {
        Some(pointer) => root.pointer(pointer).unwrap_or(schema),
        None => schema,
    }
}

/// Values of an enum whose variants have descriptions.
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

fn type_names(expected: &Value) -> String {
    match expected {
        Value::String(name) => name.clone(),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "a value".into(),
    }
}

/// Keys that were renamed: the path of the old one, and its new name.
const RENAMED_KEYS: [(&str, &str); 5] = [
    ("watch", "auto_reload"),
    ("limits.drain_hidden_seconds", "drain_reasoning_seconds"),
    ("limits.name_refresh_seconds", "dns_refresh_seconds"),
    ("limits.name_stale_seconds", "dns_stale_seconds"),
    ("telemetry.traces.sample", "sample_ratio"),
];

fn unknown_key_message(path: &str, key: &str, known: &[&str]) -> String {
    if let Some((_, new)) = RENAMED_KEYS.iter().find(|(old, _)| *old == path) {
        return format!("this key is now called {new:?}");
    }
    let known_keys = known.join(", ");
    match suggest::nearest(key, known.iter().copied()) {
        Some(suggestion) => {
            format!("unknown key; did you mean {suggestion:?}? Known here: {known_keys}")
        }
        None => format!("unknown key; known here: {known_keys}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_key_is_refused_and_its_fault_has_the_new_name() {
        let shipped = include_str!("../../conf/local.yaml");
        let read = |section: &str| read_config(&format!("{shipped}{section}\n"), &|_| None);
        let renamed = [
            ("watch", "auto_reload", "KEY: true"),
            (
                "limits.drain_hidden_seconds",
                "drain_reasoning_seconds",
                "limits: {KEY: 60}",
            ),
            (
                "limits.name_refresh_seconds",
                "dns_refresh_seconds",
                "limits: {KEY: 60}",
            ),
            (
                "limits.name_stale_seconds",
                "dns_stale_seconds",
                "limits: {KEY: 60}",
            ),
            (
                "telemetry.traces.sample",
                "sample_ratio",
                "telemetry: {traces: {endpoint: \"http://127.0.0.1:4318/v1/traces\", KEY: \"0.01\"}}",
            ),
        ];
        assert_eq!(renamed.len(), RENAMED_KEYS.len());
        for (old, new, section) in renamed {
            let name = old.rsplit('.').next().unwrap();
            let faults = read(&section.replace("KEY", name)).unwrap_err();
            let line = shipped.lines().count() as u64 + 1;
            let message = format!("this key is now called {new:?}");
            let key = old.to_owned();
            assert_eq!(faults, [ConfigFault { line, key, message }]);
            assert!(read(&section.replace("KEY", new)).is_ok(), "{new}");
        }
    }
}
