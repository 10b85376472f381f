//! Collects the faults of a config file, and parses the values that more than one section has:
//! amounts and secrets. Each section adds its own checks to [`ConfigValidator`].
//!
//! Must not know a section.

use super::fault::ConfigFault;
use super::raw;
use super::source::{FileChecks, SourceFile, cannot_read};
use super::yaml::YamlNode;
use crate::catalog::Secret;
use credits::money::Micro;
use std::path::Path;

/// Placeholder for an unset variable, for a vendor's key and for a value in a file that is not
/// read. It is a valid address, so that a vendor whose address comes from the environment keeps its
/// models.
pub(super) const PLACEHOLDER: &str = "http://unset.invalid";

/// Collects faults while it builds the settings. A part with a fault becomes `None`, and validation
/// continues with the rest.
pub(super) struct ConfigValidator {
    lines: YamlNode,
    pub(super) faults: Vec<ConfigFault>,
    /// Flaws with which the gateway starts all the same.
    pub(super) warnings: Vec<ConfigFault>,
    pub(super) sources: Vec<SourceFile>,
    /// Puts a placeholder in place of each vendor's key, and does not read the keys.
    pub(super) withholds_vendor_keys: bool,
    pub(super) file_checks: FileChecks,
}

impl ConfigValidator {
    pub(super) fn new(lines: YamlNode) -> Self {
        Self {
            lines,
            faults: Vec::new(),
            warnings: Vec::new(),
            sources: Vec::new(),
            withholds_vendor_keys: false,
            file_checks: FileChecks::Secrets,
        }
    }

    pub(super) fn add_fault(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let key = key.into();
        self.faults.push(ConfigFault {
            line: self.line_of(&key),
            key,
            message: message.into(),
        });
    }

    pub(super) fn line_of(&self, key: &str) -> u64 {
        self.lines.line_of(key)
    }

    /// Whether the file sets this key.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.lines.contains(key)
    }

    pub(super) fn parse_amount(&mut self, key: &str, text: &raw::Decimal) -> Option<Micro> {
        match text.0.parse::<Micro>() {
            Ok(amount) if amount >= Micro::ZERO => Some(amount),
            Ok(_) => {
                self.add_fault(key, "must not be negative");
                None
            }
            Err(error) => {
                self.add_fault(key, error.to_string());
                None
            }
        }
    }

    pub(super) fn secret(&mut self, key: &str, text: &str) -> Option<Secret> {
        let Some(path) = text.strip_prefix("file:") else {
            return Some(Secret::new(text.to_owned()));
        };
        if self.file_checks == FileChecks::None {
            return Some(Secret::new(PLACEHOLDER.to_owned()));
        }
        self.sources.push(SourceFile::from_path(Path::new(path)));
        match std::fs::read_to_string(path) {
            // An empty variable disables a vendor. An empty file is a fault: it was probably not
            // written completely.
            Ok(text) if text.trim().is_empty() => {
                self.add_fault(key, format!("the file {path} is empty"));
                None
            }
            Ok(text) => Some(Secret::new(text.trim_end().to_owned())),
            Err(error) => {
                self.add_fault(key, cannot_read(Path::new(path), &error));
                None
            }
        }
    }
}
