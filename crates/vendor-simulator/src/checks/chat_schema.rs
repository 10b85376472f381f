//! Implements the chat vendor's checks of JSON schemas, including strict schemas for structured
//! output.
//!
//! This file must not depend on the use of a schema, which error messages name by `of`.

use serde_json::Value;

use super::members::list;
use crate::errors::SimulatedError;

/// Keywords that a strict schema must not contain.
const NOT_STRICT: [&str; 10] = [
    "allOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "uniqueItems",
];

struct SimSchemaCheck<'a> {
    of: &'a str,
    param: &'a str,
    strict: bool,
}

/// Checks that the schema is valid, is an object schema, and defines its members.
pub fn check(of: &str, param: &str, schema: &Value) -> Result<(), SimulatedError> {
    SimSchemaCheck {
        of,
        param,
        strict: false,
    }
    .check_root(schema)
}

/// Checks the schema like [`check`], and also that it is strict.
pub fn check_strict(of: &str, param: &str, schema: &Value) -> Result<(), SimulatedError> {
    SimSchemaCheck {
        of,
        param,
        strict: true,
    }
    .check_root(schema)
}

impl SimSchemaCheck<'_> {
    fn invalid_schema(&self, message: &str) -> SimulatedError {
        let text = format!("Invalid schema for {}: {message}", self.of);
        let code = if self.param.starts_with("tools") {
            Some("invalid_function_parameters")
        } else {
            None
        };
        SimulatedError::from_param(text, self.param, code)
    }

    fn check_root(&self, schema: &Value) -> Result<(), SimulatedError> {
        let kind = schema["type"].as_str();
        if kind != Some("object") {
            let kind = kind.unwrap_or("None");
            return Err(self.invalid_schema(&format!(
                "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
            )));
        }
        if ["oneOf", "anyOf", "allOf", "enum", "not"]
            .iter()
            .any(|name| schema.get(name).is_some())
        {
            return Err(self.invalid_schema(
                "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
            ));
        }
        if !schema["properties"].is_object() {
            return Err(self.invalid_schema("In context=(), object schema missing properties."));
        }
        self.check_node(schema, &mut Vec::new())
    }

    fn check_node(&self, schema: &Value, context: &mut Vec<String>) -> Result<(), SimulatedError> {
        let Some(members) = schema.as_object() else {
            return Ok(());
        };
        let position = format_context(context);
        for name in ["required", "enum"] {
            if members.get(name).is_some_and(|value| !value.is_array()) {
                let shown = if schema[name].is_null() {
                    "None".to_owned()
                } else {
                    schema[name].to_string()
                };
                return Err(self.invalid_schema(&format!("{shown} is not of type 'array'.")));
            }
        }
        if is_of(schema, "array") && schema.get("items").is_none() {
            return Err(self.invalid_schema(&format!(
                "In context={position}, array schema missing items."
            )));
        }
        if self.strict {
            self.check_strict_node(schema, &position)?;
        }
        for name in ["properties", "$defs"] {
            for (member, inner) in schema[name].as_object().into_iter().flatten() {
                self.check_inner(inner, context, &[name, member])?;
            }
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            for (index, inner) in list(&schema[name]).iter().enumerate() {
                self.check_inner(inner, context, &[name, &index.to_string()])?;
            }
        }
        self.check_inner(&schema["items"], context, &["items"])
    }

    fn check_inner(
        &self,
        schema: &Value,
        context: &mut Vec<String>,
        names: &[&str],
    ) -> Result<(), SimulatedError> {
        let depth = context.len();
        context.extend(names.iter().map(|name| format!("'{name}'")));
        let checked = self.check_node(schema, context);
        context.truncate(depth);
        checked
    }

    fn check_strict_node(&self, schema: &Value, position: &str) -> Result<(), SimulatedError> {
        if let Some(name) = NOT_STRICT.iter().find(|name| schema.get(**name).is_some()) {
            return Err(self.invalid_schema(&format!(
                "In context={position}, '{name}' is not permitted."
            )));
        }
        if !is_of(schema, "object") {
            return Ok(());
        }
        if schema["additionalProperties"] != false {
            return Err(self.invalid_schema(&format!(
                "In context={position}, 'additionalProperties' is required to be supplied and to be false."
            )));
        }
        let required = list(&schema["required"]);
        let mut names = schema["properties"]
            .as_object()
            .into_iter()
            .flat_map(|members| members.keys());
        match names.find(|name| !required.iter().any(|required| required == name.as_str())) {
            Some(name) => Err(self.invalid_schema(&format!(
                "In context={position}, 'required' is required to be supplied and to be an array including every key in \
                 properties. Missing '{name}'."
            ))),
            None => Ok(()),
        }
    }
}

fn is_of(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || list(&schema["type"]).iter().any(|listed| listed == kind)
}

/// Formats the context as a tuple, like the vendor.
fn format_context(context: &[String]) -> String {
    match context {
        [] => "()".to_owned(),
        [one] => format!("({one},)"),
        many => format!("({})", many.join(", ")),
    }
}
