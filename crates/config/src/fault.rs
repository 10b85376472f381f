//! Defines the faults of a config file, each with its line and key, and the error that lists them.
//!
//! This file must not read a file.

use super::source::SourceFile;
use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    pub line: u64,
    /// Path of the key, such as `models[2].price.input`. Empty for the file as a whole.
    pub key: String,
    pub message: String,
}

/// The error for a config file that cannot be used, with all of its faults.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    pub file: PathBuf,
    pub faults: Vec<ConfigFault>,
    /// The files that were read or would have been read.
    pub sources: Vec<SourceFile>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        write!(
            f,
            "{}: {count} fault{}",
            self.file.display(),
            if count == 1 { "" } else { "s" }
        )?;
        for ConfigFault { line, key, message } in &self.faults {
            let key = if key.is_empty() {
                String::new()
            } else {
                format!("{key}: ")
            };
            // A file that cannot be read has no lines.
            let line = match line {
                0 => String::new(),
                line => format!("{line}:"),
            };
            write!(f, "\n{}:{line} {key}{message}", self.file.display())?;
        }
        Ok(())
    }
}
