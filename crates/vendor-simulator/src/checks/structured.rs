//! Implements the messages vendor's checks of a schema for structured output.
//!
//! This file must not check that the schema is valid (`messages_tools.rs`).

use serde_json::Value;

use super::members::list;
use super::messages_errors::invalid_request;
use crate::errors::SimulatedError;

/// Keywords that structured output does not support.
const REFUSED: [&str; 14] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "oneOf",
    "not",
];

pub fn check(path: &str, schema: &Value) -> Result<(), SimulatedError> {
    let Some(members) = schema.as_object() else {
        return Ok(());
    };
    let kind = schema["type"].as_str().unwrap_or("any");
    if let Some(name) = REFUSED.iter().find(|name| members.contains_key(**name)) {
        return Err(invalid_request(format!(
            "{path}: For '{kind}' type, property '{name}' is not supported"
        )));
    }
    if members
        .get("minItems")
        .is_some_and(|count| !matches!(count.as_u64(), Some(0 | 1)))
    {
        return Err(invalid_request(format!(
            "{path}: For 'array' type, 'minItems' values other than 0 or 1 are not supported"
        )));
    }
    if kind == "object" && schema["additionalProperties"] != false {
        return Err(invalid_request(format!(
            "{path}: For 'object' type, 'additionalProperties' must be explicitly set to false"
        )));
    }
    for name in ["properties", "$defs", "definitions"] {
        for inner in schema[name]
            .as_object()
            .into_iter()
            .flat_map(|members| members.values())
        {
            check(path, inner)?;
        }
    }
    for name in ["anyOf", "allOf"] {
        for inner in list(&schema[name]) {
            check(path, inner)?;
        }
    }
    check(path, &schema["items"])
}
