//! Reads a YAML text into a checked value, and finds all faults of form in one pass, each with its
//! line and key.
//!
//! Three steps: the text becomes a tree (`yaml.rs`), `${ENV}` is substituted (`variables.rs`), and
//! the tree is checked against the JSON Schema of `raw.rs` (`shape.rs`). This file must not depend
//! on the meaning of a key.

use super::fault::ConfigFault;
use super::yaml::{YamlNode, parse};
use super::{partial, raw, shape, variables};
use serde_json::Value;

/// Reads `text`, and returns the config with its tree and all faults of form: unset variables,
/// unknown or missing keys, wrong types. A config with faults lacks the faulty values, so it serves
/// only to find more faults. `env` returns the value of an environment variable.
///
/// # Errors
/// Returns the faults of form if no further check is possible: the text is not YAML or not a map.
pub fn read_config(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(raw::Config, YamlNode, Vec<ConfigFault>), Vec<ConfigFault>> {
    let (tree, faults) = read_tree(text, &|_, name| env(name))?;
    if faults.iter().any(|fault| fault.key.is_empty()) {
        return Err(faults);
    }
    let value = if faults.is_empty() {
        tree.value()
    } else {
        partial::without_faults(&tree, &schema(), &faults)
    };
    match serde_json::from_value(value) {
        Ok(config) => Ok((config, tree, faults)),
        Err(error) if faults.is_empty() => Err(vec![ConfigFault {
            line: tree.line,
            key: String::new(),
            message: error.to_string(),
        }]),
        Err(_) => Err(faults),
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
    let mut tree = parse(text).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    variables::substitute(&mut tree, "", env, &mut faults);
    shape::check_shape(&tree, &schema(), &mut faults);
    Ok((tree, faults))
}

pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(raw::Config).to_value();
    let limits = raw::Limits::default().bounds();
    let limits = limits
        .into_iter()
        .map(|(key, _, min, max)| ("Limits", key, min, max));
    for (section, key, min, max) in raw::RANGES.into_iter().chain(limits) {
        let number = &mut schema["$defs"][section]["properties"][key];
        number["minimum"] = min.into();
        number["maximum"] = max.into();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::RENAMED_KEYS;

    #[test]
    fn a_renamed_key_is_refused_and_its_fault_has_the_new_name() {
        let shipped = include_str!("../../../conf/local.yaml");
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
            let (_, _, faults) = read(&section.replace("KEY", name)).unwrap();
            let line = shipped.lines().count() as u64 + 1;
            let message = format!("this key is now called {new:?}");
            let key = old.to_owned();
            assert_eq!(faults, [ConfigFault { line, key, message }]);
            let (_, _, faults) = read(&section.replace("KEY", new)).unwrap();
            assert_eq!(faults, [], "{new}");
        }
    }
}
