//! Words the messages for values of a wrong type and for missing keys. They name the expected type
//! and, if possible, a correction.
//!
//! This file must not print a value that could be a secret.

use super::yaml::{YamlNode, YamlValue};
use serde_json::Value;

/// Examples for required keys, by their path without the indexes of lists.
const EXAMPLES: [(&str, &str); 14] = [
    (
        "listen",
        "{edge: [\"0.0.0.0:8080\"], sidecar: \"127.0.0.1:8081\", admin: \"127.0.0.1:9090\"}",
    ),
    ("listen.edge", "[\"0.0.0.0:8080\"]"),
    ("listen.sidecar", "\"127.0.0.1:8081\""),
    ("listen.admin", "\"127.0.0.1:9090\""),
    ("base_url", "\"https://gateway.example.com\""),
    ("data_dir", "/var/lib/model-gateway"),
    (
        "vendors",
        "{openai: {preset: openai, api_key: \"${OPENAI_API_KEY}\"}}",
    ),
    ("models.id", "gpt-5.2"),
    ("models.upstream_model", "gpt-5.2"),
    ("models.context_tokens", "200000"),
    ("models.max_output_tokens", "64000"),
    (
        "models.price",
        "{input: \"125\", output: \"1000\"}, or {input: \"13\"} for an embedding model",
    ),
    ("models.price.input", "\"125\""),
    ("models.price.output", "\"1000\""),
];

/// Returns the message for a required key that the file lacks.
pub(super) fn missing(path: &str) -> String {
    let plain = without_indexes(path);
    match EXAMPLES.iter().find(|(key, _)| *key == plain) {
        Some((_, example)) => format!("is required, for example: {example}"),
        None if plain == "models" => {
            "is required: `model-gateway models import PRESET` prints the models of a vendor"
                .to_owned()
        }
        None => "is required".to_owned(),
    }
}

fn without_indexes(path: &str) -> String {
    let parts = path.split('[').enumerate();
    let parts = parts.map(|(index, part)| match index {
        0 => part,
        _ => part.split_once(']').map_or("", |(_, rest)| rest),
    });
    parts.collect()
}

/// Returns the message for a value whose type is not among those in `expected`.
pub(super) fn message(node: &YamlNode, expected: &Value, path: &str) -> String {
    let names: Vec<_> = match expected {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_expected = |name: &str| names.contains(&name);
    let words: Vec<_> = names
        .iter()
        .filter(|name| **name != "null")
        .map(|name| plain_name(name))
        .collect();
    let found = plain_name(node.kind_name());
    let hint = match &node.kind {
        YamlValue::Scalar(Value::Null) if is_expected("object") => {
            Some("indent the keys below it".to_owned())
        }
        YamlValue::Scalar(Value::Null) => Some("write one".to_owned()),
        YamlValue::Scalar(Value::String(text)) if is_expected("integer") => {
            whole_number(text, path)
        }
        YamlValue::Scalar(Value::String(_)) if is_expected("boolean") => {
            Some("write true or false, without quotes".to_owned())
        }
        YamlValue::Scalar(Value::String(text)) if is_expected("array") => {
            let shown = if path.starts_with("listen.") {
                text
            } else {
                "…"
            };
            Some(format!("write it in brackets: [{shown:?}]"))
        }
        YamlValue::Scalar(Value::Number(_)) if is_expected("integer") => {
            Some("write it without a fraction".to_owned())
        }
        YamlValue::Scalar(Value::Number(_) | Value::Bool(_)) if is_expected("string") => {
            Some("write it in quotes".to_owned())
        }
        YamlValue::Map(entries) if is_template(entries) => {
            Some("write a variable as \"${NAME}\"".to_owned())
        }
        YamlValue::Map(_) if is_expected("array") => {
            Some("begin each entry with a dash and a space".to_owned())
        }
        YamlValue::List(_) if is_expected("object") => {
            Some("write names before the entries, without dashes".to_owned())
        }
        _ => None,
    };
    let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
    format!("must be {}, not {found}{hint}", words.join(" or "))
}

/// Returns the message for a whole number that the key's type cannot hold; the schema has that
/// range. Narrower ranges are checked with the section.
pub(super) fn range_fault(node: &YamlNode, schema: &Value) -> Option<String> {
    let YamlValue::Scalar(Value::Number(number)) = &node.kind else {
        return None;
    };
    let (of_type, format) = (&schema["type"], schema["format"].as_str()?);
    let is_integer = |name: &Value| name == "integer";
    if !is_integer(of_type) && !of_type.as_array()?.iter().any(is_integer) {
        return None;
    }
    let of_format = match format {
        "uint16" => u16::MAX.into(),
        "uint32" => u32::MAX.into(),
        _ => u64::MAX,
    };
    // YAML has no larger whole numbers, so such a number is parsed as a fraction of the same size.
    let is_huge = || number.as_f64().is_some_and(|number| number.abs() >= 1e18);
    let is_outside = match number.as_u64() {
        Some(number) => number > of_format,
        None => number.is_i64() || is_huge(),
    };
    let min = schema["minimum"].as_u64().unwrap_or(0);
    let max = schema["maximum"].as_u64().unwrap_or(of_format);
    is_outside.then(|| format!("must be {min} to {max}, not {number}"))
}

fn plain_name(name: &str) -> &str {
    match name {
        "object" => "keys with values",
        "array" => "a list",
        "string" => "a text",
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "null" => "nothing",
        other => other,
    }
}

/// Returns whether the map is the YAML interpretation of `{{NAME}}`.
fn is_template(entries: &[(String, YamlNode)]) -> bool {
    entries.len() == 1
        && entries
            .iter()
            .all(|(_, node)| matches!(node.kind, YamlValue::Scalar(Value::Null)))
}

/// Returns the correction for a number with a unit or with separators.
fn whole_number(text: &str, path: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, ',' | '_' | ' '))
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let number: u64 = digits.parse().ok()?;
    if unit.is_empty() {
        return Some(format!("write {number}, without quotes or separators"));
    }
    let (units, of): (&[(&[&str], u64)], _) = if path.ends_with("_bytes") {
        let units: &[(&[&str], u64)] = &[
            (&["b", "byte", "bytes"], 1),
            (&["k", "kb", "kib"], 1 << 10),
            (&["m", "mb", "mib"], 1 << 20),
            (&["g", "gb", "gib"], 1 << 30),
            (&["t", "tb", "tib"], 1 << 40),
        ];
        (units, "bytes")
    } else if path.ends_with("_seconds") {
        let units: &[(&[&str], u64)] = &[
            (&["s", "sec", "second", "seconds"], 1),
            (&["m", "min", "minute", "minutes"], 60),
            (&["h", "hour", "hours"], 3_600),
            (&["d", "day", "days"], 86_400),
        ];
        (units, "seconds")
    } else if path.ends_with("_percent") {
        (&[(&["%", "percent"], 1)], "percent")
    } else {
        return None;
    };
    let (_, factor) = units.iter().find(|(names, _)| names.contains(&unit))?;
    let number = number.checked_mul(*factor)?;
    Some(format!("write the number of {of}: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_unit_is_written_without_it() {
        for (text, path, hint) in [
            (
                "32MB",
                "limits.body_bytes",
                "write the number of bytes: 33554432",
            ),
            (
                "1 GiB",
                "limits.memory_bytes",
                "write the number of bytes: 1073741824",
            ),
            (
                "512b",
                "limits.body_bytes",
                "write the number of bytes: 512",
            ),
            (
                "10s",
                "limits.idle_seconds",
                "write the number of seconds: 10",
            ),
            (
                "5 min",
                "limits.idle_seconds",
                "write the number of seconds: 300",
            ),
            (
                "20%",
                "limits.retry_budget_percent",
                "write the number of percent: 20",
            ),
            (
                "64",
                "limits.attempts",
                "write 64, without quotes or separators",
            ),
            (
                "200,000",
                "models[0].context_tokens",
                "write 200000, without quotes or separators",
            ),
        ] {
            assert_eq!(whole_number(text, path).as_deref(), Some(hint), "{text}");
        }
        for (text, path) in [
            ("many", "limits.attempts"),
            ("32MB", "limits.idle_seconds"),
            ("10s", "limits.attempts"),
            ("99999999999999999999", "limits.attempts"),
            ("17179869184T", "limits.body_bytes"),
        ] {
            assert_eq!(whole_number(text, path), None, "{text}");
        }
    }

    #[test]
    fn an_example_is_found_at_any_index() {
        assert_eq!(
            without_indexes("models[12].price.output"),
            "models.price.output"
        );
        assert!(missing("models[12].price.output").contains("\"1000\""));
        assert_eq!(missing("store.kind"), "is required");
    }
}
