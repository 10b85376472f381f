//! Prints a failed command as a JSON document: `{"error": {"code", "message", "faults"}}`.
//!
//! The text on stderr and the exit code are the same with and without `--json`. This file must not
//! decide whether a command failed.

use config::{ConfigError, ConfigFault};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

/// Returns a fault of the config file as JSON.
pub fn fault_json(file: &Path, fault: &ConfigFault) -> Value {
    let ConfigFault { line, key, message } = fault;
    json!({"file": file, "line": line, "key": key, "message": message})
}

/// Returns an error with its causes. The error of a store already contains its cause, so the cause
/// is not repeated.
pub fn describe(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |described, cause| {
            match described.ends_with(&cause) {
                true => described,
                false => format!("{described}: {cause}"),
            }
        })
}

/// Prints the document for a command that failed.
pub fn print_failure(error: &anyhow::Error) {
    let document = match error.downcast_ref::<ConfigError>() {
        Some(config) => {
            let faults = config.faults.iter();
            let faults = faults.map(|fault| fault_json(&config.file, fault));
            let text = config.to_string();
            let message = text.lines().next().unwrap_or_default();
            document("config_faults", message, faults.collect())
        }
        None => document("failed", &describe(error), Vec::new()),
    };
    print(&document);
}

/// Prints the document for invalid arguments, if the arguments request JSON.
pub fn print_usage(error: &clap::Error, arguments: impl Iterator<Item = impl AsRef<OsStr>>) {
    let asks_for_json = arguments
        .take_while(|argument| argument.as_ref() != "--")
        .any(|argument| argument.as_ref() == "--json");
    // Help and version output are not failures.
    if asks_for_json && error.use_stderr() {
        let text = error.render().to_string();
        let text = text.split("\n\nUsage:").next().unwrap_or_default();
        let message = text.trim().trim_start_matches("error: ");
        print(&document("usage", message, Vec::new()));
    }
}

fn document(code: &str, message: &str, faults: Vec<Value>) -> Value {
    json!({"error": {"code": code, "message": message, "faults": faults}})
}

fn print(document: &Value) {
    // If stdout is closed, stderr still receives the text.
    let _ = writeln!(std::io::stdout(), "{document}");
}
