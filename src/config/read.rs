//! Reads a YAML file into a checked value, and finds all faults in one pass, each with its line and
//! key.
//!
//! Two steps. First it reads the text into a tree that remembers lines, and substitutes `${ENV}`.
//! Then it checks the tree against the JSON Schema of `raw.rs`, so that it reports unknown keys,
//! missing keys and wrong types all together instead of one at a time. Must not know what any key
//! means.

use super::{Fault, raw, suggest};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;

/// A YAML value that knows the line it was written on.
#[derive(Debug)]
pub struct Node {
    pub line: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Line of the deepest existing node along `path` (`models[2].price.input`), counted from 1.
    pub fn line_of(&self, path: &str) -> u64 {
        let mut node = self;
        for step in path.split(['.', '[']) {
            let next = match &node.kind {
                Kind::Map(entries) => entries
                    .iter()
                    .find(|(key, _)| key == step)
                    .map(|(_, node)| node),
                Kind::List(items) => step
                    .trim_end_matches(']')
                    .parse()
                    .ok()
                    .and_then(|index: usize| items.get(index)),
                Kind::Scalar(_) => None,
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
        let Kind::Map(entries) = &self.kind else {
            return None;
        };
        entries
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, node)| node.value())
    }

    fn value(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List(items) => items.iter().map(Node::value).collect(),
            Kind::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, node)| (key.clone(), node.value()))
                    .collect(),
            ),
        }
    }

    fn kind_name(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar(Value::Null) => "null",
            Kind::Scalar(Value::Bool(_)) => "boolean",
            Kind::Scalar(Value::Number(number)) if number.is_f64() => "number",
            Kind::Scalar(Value::Number(_)) => "integer",
            Kind::Scalar(_) => "string",
            Kind::List(_) => "array",
            Kind::Map(_) => "object",
        }
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Kind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML value")
            }
            fn visit_unit<E>(self) -> Result<Kind, E> {
                Ok(Kind::Scalar(Value::Null))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
                Ok(Kind::Scalar(value.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element::<Spanned<Kind>>()? {
                    items.push(node(item));
                }
                Ok(Kind::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Spanned<String>>()? {
                    let mut value = node(map.next_value::<Spanned<Kind>>()?);
                    value.line = key.referenced.line();
                    entries.push((key.value, value));
                }
                Ok(Kind::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

fn node(spanned: Spanned<Kind>) -> Node {
    Node {
        line: spanned.referenced.line(),
        kind: spanned.value,
    }
}

/// Reads `text`. `env` returns the value of an environment variable.
///
/// # Errors
/// Returns all faults of form: invalid YAML, unset variables, unknown or missing keys, wrong types.
pub fn read(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(raw::Config, Node), Vec<Fault>> {
    let (tree, faults) = read_tree(text, &|_, name| env(name))?;
    if !faults.is_empty() {
        return Err(faults);
    }
    match serde_json::from_value(tree.value()) {
        Ok(config) => Ok((config, tree)),
        Err(error) => Err(vec![Fault {
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
) -> Result<(Node, Vec<Fault>), Vec<Fault>> {
    let mut tree = match serde_saphyr::from_str::<Spanned<Kind>>(text) {
        Ok(spanned) => node(spanned),
        Err(error) => {
            let line = error.location().map_or(1, |location| location.line());
            let message = error
                .to_string()
                .lines()
                .next()
                .unwrap_or("not YAML")
                .to_owned();
            return Err(vec![Fault {
                line,
                key: String::new(),
                message,
            }]);
        }
    };
    let mut faults = Vec::new();
    substitute(&mut tree, "", env, &mut faults);
    let schema = schema();
    Check {
        root: &schema,
        faults: &mut faults,
    }
    .node(&tree, &schema, "");
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
    node: &mut Node,
    path: &str,
    env: &dyn Fn(&str, &str) -> Option<String>,
    faults: &mut Vec<Fault>,
) {
    match &mut node.kind {
        Kind::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                substitute(item, &format!("{path}[{index}]"), env, faults);
            }
        }
        Kind::Map(entries) => {
            for (key, value) in entries {
                substitute(value, &join(path, key), env, faults);
            }
        }
        Kind::Scalar(Value::String(text)) if text.contains("${") => {
            match expand(text, &|name| env(path, name)) {
                Ok(expanded) => *text = expanded,
                Err(message) => faults.push(Fault {
                    line: node.line,
                    key: path.to_owned(),
                    message,
                }),
            }
        }
        Kind::Scalar(_) => {}
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
struct Check<'a> {
    root: &'a Value,
    faults: &'a mut Vec<Fault>,
}

impl Check<'_> {
    fn node(&mut self, node: &Node, schema: &Value, path: &str) {
        let schema = resolve(self.root, schema);
        let null = matches!(node.kind, Kind::Scalar(Value::Null));
        if let Some(choices) = schema["anyOf"].as_array() {
            // schemars writes an optional key as "T or null". Of several alternatives, use the one
            // with this type.
            let fits =
                |choice: &&Value| type_fits(&resolve(self.root, choice)["type"], node.kind_name());
            let mut forms = choices.iter().filter(|choice| choice["type"] != "null");
            let inner = forms.clone().find(fits).or_else(|| forms.next());
            if let (false, Some(inner)) = (null, inner) {
                self.node(node, inner, path);
            }
            return;
        }
        if !type_fits(&schema["type"], node.kind_name()) {
            let message = format!(
                "expected {}, found {}",
                type_names(&schema["type"]),
                node.kind_name()
            );
            return self.fault(node.line, path, message);
        }
        let choices = schema["enum"]
            .as_array()
            .cloned()
            .or_else(|| one_of(self.root, schema));
        if let (Some(choices), Kind::Scalar(value)) = (choices, &node.kind)
            && !choices.contains(value)
        {
            let names: Vec<_> = choices
                .iter()
                .map(|choice| choice.as_str().map_or(choice.to_string(), Into::into))
                .collect();
            let meant = value
                .as_str()
                .map(|word| suggest::hint(word, choices.iter().filter_map(Value::as_str)));
            let message = format!(
                "expected one of: {}{}",
                names.join(", "),
                meant.unwrap_or_default()
            );
            return self.fault(node.line, path, message);
        }
        match &node.kind {
            Kind::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.node(item, &schema["items"], &format!("{path}[{index}]"));
                }
            }
            Kind::Map(entries) => self.map(node, entries, schema, path),
            Kind::Scalar(_) => {}
        }
    }

    fn map(&mut self, node: &Node, entries: &[(String, Node)], schema: &Value, path: &str) {
        for (key, value) in entries {
            let here = join(path, key);
            if let Some(property) = schema["properties"].get(key) {
                self.node(value, property, &here);
            } else if schema["additionalProperties"].is_object() {
                self.node(value, &schema["additionalProperties"], &here);
            } else {
                let known: Vec<_> = schema["properties"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(key, _)| key.as_str())
                    .collect();
                let message = match suggest::nearest(key, known.iter().copied()) {
                    Some(meant) => format!(
                        "unknown key; did you mean {meant:?}? Known here: {}",
                        known.join(", ")
                    ),
                    None => format!("unknown key; known here: {}", known.join(", ")),
                };
                self.fault(value.line, &here, message);
            }
        }
        for key in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !entries.iter().any(|(name, _)| name == key) {
                self.fault(node.line, &join(path, key), "missing".into());
            }
        }
    }

    fn fault(&mut self, line: u64, key: &str, message: String) {
        self.faults.push(Fault {
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

fn type_fits(wanted: &Value, found: &str) -> bool {
    let fits = |wanted: &str| wanted == found || (wanted == "number" && found == "integer");
    match wanted {
        Value::String(name) => fits(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    }
}

fn type_names(wanted: &Value) -> String {
    match wanted {
        Value::String(name) => name.clone(),
        Value::Array(names) => names
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "a value".into(),
    }
}
