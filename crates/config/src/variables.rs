//! Substitutes environment variables in the values of the config file. It also finds variables in
//! the syntax of a shell or another program, which the gateway would use literally.
//!
//! This file must not put a value into a fault, because the value may be a secret.

use super::fault::ConfigFault;
use super::yaml::{YamlNode, YamlValue, join};
use serde_json::Value;

/// Keys whose values are texts for readers, which may contain any character.
const FREE_TEXTS: [&str; 3] = ["support", "mail.from", "brand.name"];

/// Substitutes `${NAME}` and `${NAME:-default}` in every string. `env` returns the value of an
/// environment variable for the key at a path.
pub(super) fn substitute(
    node: &mut YamlNode,
    path: &str,
    env: &dyn Fn(&str, &str) -> Option<String>,
    faults: &mut Vec<ConfigFault>,
) {
    let message = match &mut node.kind {
        YamlValue::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                substitute(item, &format!("{path}[{index}]"), env, faults);
            }
            return;
        }
        YamlValue::Map(entries) => {
            for (key, value) in entries {
                substitute(value, &join(path, key), env, faults);
            }
            return;
        }
        YamlValue::Scalar(Value::String(text)) if text.contains("${") => {
            match expand(text, &|name| env(path, name)) {
                Ok(expanded) => {
                    *text = expanded;
                    return;
                }
                Err(message) => message,
            }
        }
        YamlValue::Scalar(Value::String(text))
            if names_foreign_variable(text) && !FREE_TEXTS.contains(&path) =>
        {
            "names an environment variable as other programs do, and would be taken literally: \
             write ${NAME}, with braces"
                .to_owned()
        }
        YamlValue::Scalar(_) => return,
    };
    faults.push(ConfigFault {
        line: node.line,
        key: path.to_owned(),
        message,
    });
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
        if name.is_empty() {
            return Err("`${}` lacks the name of an environment variable: write ${NAME}".into());
        }
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

/// Returns whether the whole text is a variable in the syntax of a shell, of Windows, of a template
/// or of another gateway, or whether a delimited part of the text is a variable of a shell or a
/// template. A dollar sign inside a word, as in a password, does not count.
fn names_foreign_variable(text: &str) -> bool {
    let text = text.trim();
    let is_name = |name: &str| {
        name.len() > 1
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(is_name_letter)
    };
    let is_loud = |name: &str| is_name(name) && !name.contains(|c: char| c.is_ascii_lowercase());
    let prefixed = ["$env:", "$", "os.environ/", "process.env.", "env:", "env."];
    let is_whole = prefixed
        .into_iter()
        .any(|prefix| text.strip_prefix(prefix).is_some_and(is_name));
    let of_windows = text
        .strip_prefix('%')
        .and_then(|text| text.strip_suffix('%'));
    let has_template = text
        .split_once("{{")
        .is_some_and(|(_, rest)| rest.contains("}}"));
    let has_part = text.match_indices('$').any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = &text[at + 1..];
        let end = after
            .find(|c: char| !is_name_letter(c))
            .unwrap_or(after.len());
        !before.is_some_and(is_name_letter) && is_loud(&after[..end])
    });
    is_whole || of_windows.is_some_and(is_loud) || has_template || has_part
}

fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_another_program_is_found_and_a_dollar_sign_in_a_word_is_not() {
        for foreign in [
            "$ALPHA_API_KEY",
            "$alpha_key",
            " $ALPHA_API_KEY ",
            "$env:ALPHA_API_KEY",
            "%ALPHA_API_KEY%",
            "{{ALPHA_API_KEY}}",
            "{{ env.alpha }}",
            "os.environ/ALPHA_API_KEY",
            "env:ALPHA_API_KEY",
            "process.env.ALPHA_API_KEY",
            "https://$HOST/v1",
            "https://gateway.example:$PORT",
            "redis://gateway:$PASSWORD@10.0.0.1:6379",
            "$HOME/data",
        ] {
            assert!(names_foreign_variable(foreign), "{foreign}");
        }
        for literal in [
            "",
            "$",
            "$1.50",
            "sk-a$b",
            "pa$WORD",
            "redis://gateway:pa$WORD@10.0.0.1:6379",
            "redis://gateway:a%20b%21@10.0.0.1",
            "100%",
            "a{b}",
            "https://gateway.example/v1",
            "environment",
            "file:/run/secrets/key",
        ] {
            assert!(!names_foreign_variable(literal), "{literal}");
        }
    }
}
