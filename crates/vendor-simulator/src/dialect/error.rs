//! Builds a vendor's errors from templates of status, message and shape.
//!
//! This file must not decide when an error occurs (`check.rs` and the marker do).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::errors::SimulatedError;

/// The vendor's error templates by kind, and the body that most of them share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DialectErrors {
    body: Value,
    kinds: BTreeMap<ErrorKind, ErrorTemplate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request contains an unknown member.
    Member,
    /// A member has a value that the vendor does not accept.
    Value,
    Role,
    Order,
    /// The state of the vendor's own calls is missing.
    State,
    /// The input exceeds the model's context.
    Context,
    /// The request is refused for any other reason.
    Invalid,
    RateLimit,
    Failure,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorTemplate {
    status: u16,
    message: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
    /// Additional members of this kind of error.
    body: Option<Value>,
}

impl DialectErrors {
    /// Builds an error of this kind. The pairs in `names` are the values of placeholders.
    pub fn build(&self, kind: ErrorKind, names: &[(&str, &str)]) -> SimulatedError {
        let found = self
            .kinds
            .get(&kind)
            .or_else(|| self.kinds.get(&ErrorKind::Invalid));
        let Some(template) = found else {
            return SimulatedError::new(500, "the dialect does not describe this error");
        };
        let message = fill(&template.message, names);
        let status = template.status.to_string();
        let words: Vec<(&str, Option<&str>)> = names
            .iter()
            .map(|&(name, value)| (name, Some(value)))
            .chain([
                ("message", Some(message.as_str())),
                ("type", template.kind.as_deref()),
                ("code", template.code.as_deref()),
                ("status", Some(status.as_str())),
            ])
            .collect();
        let body = fill_value(template.body.as_ref().unwrap_or(&self.body), &words);
        SimulatedError::from_body(template.status, body.to_string())
    }
}

/// Replaces `{name}` in a text.
fn fill(text: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

/// Replaces `{name}` in all texts. A text that is one placeholder becomes its value, which is a
/// number for the status, and `null` for a missing value.
fn fill_value(template: &Value, words: &[(&str, Option<&str>)]) -> Value {
    match template {
        Value::String(text) if text == "{status}" => words
            .iter()
            .find(|(name, _)| *name == "status")
            .and_then(|(_, value)| value.and_then(|value| value.parse::<u16>().ok()))
            .map_or(Value::Null, Value::from),
        Value::String(text) => {
            let alone = words.iter().find(|(name, _)| {
                text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) == Some(name)
            });
            match alone {
                Some((_, value)) => value.map_or(Value::Null, Value::from),
                None => {
                    let known: Vec<(&str, &str)> = words
                        .iter()
                        .filter_map(|&(name, value)| Some((name, value?)))
                        .collect();
                    Value::from(fill(text, &known))
                }
            }
        }
        Value::Array(items) => items.iter().map(|item| fill_value(item, words)).collect(),
        Value::Object(members) => {
            let filled = members
                .iter()
                .map(|(name, value)| (name.clone(), fill_value(value, words)));
            Value::Object(Map::from_iter(filled))
        }
        other => other.clone(),
    }
}
