//! Parses a YAML text into a tree that has the line of each value.
//!
//! This file must not depend on the meaning of a key. Next: `reader.rs` (how the tree becomes a
//! config).

use super::fault::ConfigFault;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Spanned};
use std::fmt;

/// A YAML value with its line in the file.
#[derive(Debug)]
pub struct YamlNode {
    pub line: u64,
    pub(super) kind: YamlValue,
}

#[derive(Debug)]
pub(super) enum YamlValue {
    Scalar(Value),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// Returns the line of the deepest existing node along `path` (such as
    /// `models[2].price.input`), counted from 1.
    pub fn line_of(&self, path: &str) -> u64 {
        self.deepest(path).0.line
    }

    /// Returns whether the node at `path` exists.
    pub fn contains(&self, path: &str) -> bool {
        self.deepest(path).1
    }

    /// Returns the deepest existing node along `path`, and whether it is the end of the path.
    fn deepest(&self, path: &str) -> (&Self, bool) {
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
                None => return (node, false),
            }
        }
        (node, true)
    }

    /// Returns the value of a top-level key.
    pub fn section(&self, name: &str) -> Option<Value> {
        let YamlValue::Map(entries) = &self.kind else {
            return None;
        };
        entries
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, node)| node.value())
    }

    pub(super) fn value(&self) -> Value {
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

    pub(super) fn kind_name(&self) -> &'static str {
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

/// Parses a text.
///
/// # Errors
/// Returns an error if the text is not YAML.
pub fn parse(text: &str) -> Result<YamlNode, ConfigFault> {
    // The tree keeps a key that is set twice, so that `shape.rs` can name both lines.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::PassThrough };
    serde_saphyr::from_str_with_options::<Spanned<YamlValue>>(text, options)
        .map(from_spanned)
        .map_err(|error| syntax_fault(text, &error))
}

/// Returns the fault for a text that is not YAML. The two commonest mistakes have special messages.
fn syntax_fault(text: &str, error: &serde_saphyr::Error) -> ConfigFault {
    let line = error.location().map_or(1, |location| location.line());
    let indent = |line: &str| line.len() - line.trim_start().len();
    let tab = (1..)
        .zip(text.lines())
        .take_while(|(number, _)| *number <= line)
        .find(|(_, text)| text[..indent(text)].contains('\t'));
    let at_fault = (1..).zip(text.lines()).find(|(number, _)| *number == line);
    let (line, message) = match (tab, at_fault) {
        (Some((line, _)), _) => (line, "uses a tab: indent with spaces".to_owned()),
        (None, Some((line, text))) if text.contains("{{") => {
            let message = "{{ has no meaning here: write a variable as \"${NAME}\"";
            (line, message.to_owned())
        }
        _ => {
            let text = error.without_snippet().to_string();
            let first = text.lines().next().unwrap_or_default();
            (line, format!("not YAML: {first}"))
        }
    };
    ConfigFault {
        line,
        key: String::new(),
        message,
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
