//! Collects the faults of a config file, and parses the values that more than one section has:
//! amounts and secrets. Each section adds its own checks to [`ConfigValidator`].
//!
//! Must not know a section.

use super::fault::ConfigFault;
use super::raw;
use super::source::SourceFile;
use super::yaml::YamlNode;
use crate::catalog::Secret;
use credits::money::Micro;
use std::path::Path;

/// Placeholder for an unset variable and for a vendor's key. It is a valid address, so that a
/// vendor whose address comes from the environment keeps its models.
pub(super) const PLACEHOLDER: &str = "http://unset.invalid";

/// Collects faults while it builds the settings. A part with a fault becomes `None`, and validation
/// continues with the rest.
pub(super) struct ConfigValidator {
    lines: YamlNode,
    pub(super) faults: Vec<ConfigFault>,
    pub(super) sources: Vec<SourceFile>,
    /// Puts a placeholder in place of each vendor's key, and does not read the keys.
    pub(super) withholds_vendor_keys: bool,
}

impl ConfigValidator {
    pub(super) fn new(lines: YamlNode) -> Self {
        Self {
            lines,
            faults: Vec::new(),
            sources: Vec::new(),
            withholds_vendor_keys: false,
        }
    }

    pub(super) fn add_fault(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let key = key.into();
        self.faults.push(ConfigFault {
            line: self.lines.line_of(&key),
            key,
            message: message.into(),
        });
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
        self.sources.push(SourceFile::from_path(Path::new(path)));
        match std::fs::read_to_string(path) {
            // An empty variable disables a vendor. An empty file is a fault: it was probably not
            // written completely.
            Ok(text) if text.trim().is_empty() => {
                self.add_fault(key, format!("{path} is empty"));
                None
            }
            Ok(text) => Some(Secret::new(text.trim_end().to_owned())),
            Err(error) => {
                self.add_fault(key, format!("cannot read {path}: {error}"));
                None
            }
        }
    }
}
