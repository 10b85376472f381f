//! Collects the faults of a config file, and parses the values that more than one section has:
//! amounts and secrets. Each section adds its own checks to [`ConfigValidator`].
//!
//! This file must not depend on a section.

use super::fault::ConfigFault;
use super::raw;
use super::source::{FileChecks, SourceFile, cannot_read};
use super::yaml::YamlNode;
use crate::catalog::Secret;
use base::regular_file::read_regular_text;
use credits::money::Micro;
use std::path::Path;

/// Placeholder for an unset variable, for a vendor's key, and for a value in a file that is not
/// read. It is a valid address, so that a vendor whose address comes from the environment keeps its
/// models.
pub(super) const PLACEHOLDER: &str = "http://unset.invalid";

/// Collects faults while it builds the settings. A part with a fault becomes `None`, and validation
/// continues with the rest.
pub(super) struct ConfigValidator {
    lines: YamlNode,
    pub(super) faults: Vec<ConfigFault>,
    pub(super) warnings: Vec<ConfigFault>,
    pub(super) sources: Vec<SourceFile>,
    /// True to put a placeholder in place of each vendor's and provider's secret, without reading
    /// it.
    pub(super) withholds_vendor_keys: bool,
    pub(super) file_checks: FileChecks,
}

/// Methods for the sections by which clients, browsers and operators reach the gateway.
pub(super) struct NetworkSection<'a>(pub(super) &'a mut ConfigValidator);

/// Methods for the section `vendors`, with its endpoints.
pub(super) struct VendorSection<'a>(pub(super) &'a mut ConfigValidator);

/// Methods for the section `models`, with aliases and prices.
pub(super) struct ModelSection<'a>(pub(super) &'a mut ConfigValidator);

impl ConfigValidator {
    pub(super) fn network(&mut self) -> NetworkSection<'_> {
        NetworkSection(self)
    }

    pub(super) fn vendors(&mut self) -> VendorSection<'_> {
        VendorSection(self)
    }

    pub(super) fn models(&mut self) -> ModelSection<'_> {
        ModelSection(self)
    }

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
            line: self.lines.line_of(&key),
            key,
            message: message.into(),
        });
    }

    /// Adds a fault that does not prevent a start.
    pub(super) fn add_warning(&mut self, key: String, message: impl Into<String>) {
        self.warnings.push(ConfigFault {
            line: self.lines.line_of(&key),
            key,
            message: message.into(),
        });
    }

    /// Checks a number of a section against the range in the schema. `of` is the type of the
    /// section in `raw.rs`.
    pub(super) fn check_range(&mut self, section: &str, (of, name): (&str, &str), value: u64) {
        let range = raw::RANGES
            .iter()
            .find(|(type_name, key, ..)| (*type_name, *key) == (of, name));
        if let Some((.., min, max)) = range.filter(|(.., min, max)| !(min..=max).contains(&&value))
        {
            let says = format!("must be {min} to {max}, not {value}");
            self.add_fault(format!("{section}.{name}"), says);
        }
    }

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
                let message = match plain_amount(&text.0) {
                    Some(amount) => {
                        format!("write {amount}: a number with a point, without a sign")
                    }
                    None => error.to_string(),
                };
                self.add_fault(key, message);
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
        match read_regular_text(Path::new(path)) {
            // An empty variable disables a vendor. An empty file is a fault, because it was
            // probably not written completely.
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

/// Returns the amount that was probably meant by a text with a comma, a currency sign or
/// separators.
fn plain_amount(text: &str) -> Option<Micro> {
    let signs = ['$', '€', '£', '¥', '_', ' ', '\'', '\u{a0}', '\u{202f}'];
    let text = text.replace(signs, "");
    let is_grouped = |text: &str| {
        let mut groups = text.split(',').skip(1);
        groups.all(|group| {
            group
                .split('.')
                .next()
                .is_some_and(|group| group.len() == 3)
        })
    };
    let text = match text.matches(',').count() {
        0 => text,
        // A single comma before three digits may be a decimal point or a separator.
        1 if !text.contains('.') && is_grouped(&text) => return None,
        1 if !text.contains('.') => text.replace(',', "."),
        _ if is_grouped(&text) => text.replace(',', ""),
        _ => return None,
    };
    text.parse().ok().filter(|amount| *amount >= Micro::ZERO)
}

/// Describes the character that a header field cannot contain.
pub(super) fn header_fault(value: &str) -> Option<&'static str> {
    let value_has = |is_bad: fn(char) -> bool| value.contains(is_bad);
    if value_has(|letter| matches!(letter, '\n' | '\r')) {
        Some("contains a line break: remove it")
    } else if value.trim() != value {
        Some("begins or ends with a space: remove it")
    } else if value_has(char::is_control) {
        Some("contains a control character: remove it")
    } else if !value.is_ascii() {
        Some("contains a character that is not ASCII: remove it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amount_that_was_probably_meant_is_found() {
        for (text, meant) in [
            ("1,5", "1.5"),
            ("$1.50", "1.5"),
            ("1.50 €", "1.5"),
            ("1 000", "1000"),
            ("1,000.25", "1000.25"),
            ("1,000,000", "1000000"),
        ] {
            let amount = plain_amount(text).map(|amount| amount.to_string());
            assert_eq!(amount.as_deref(), Some(meant), "{text}");
        }
        for text in ["1,000", "much", "", "-$1", "1,00,0", "1.0000001", "$"] {
            assert_eq!(plain_amount(text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_in_a_pipe_is_a_fault_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        let text = include_str!("../../../conf/local.yaml")
            .replace("\"sim-beta-key\"", &format!("\"file:{}\"", pipe.display()));
        let faults = crate::parse(&text, &|_| None).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].key, "vendors.beta.api_key");
        assert!(faults[0].message.contains("is not a regular file"));
    }

    #[test]
    fn a_header_field_carries_one_line_of_ascii() {
        for (value, word) in [
            ("a\nb", "line break"),
            ("a\r", "line break"),
            (" a", "space"),
            ("a\t", "space"),
            ("a\u{7}b", "control character"),
            ("ä", "ASCII"),
        ] {
            let fault = header_fault(value).unwrap();
            assert!(fault.contains(word), "{value:?}: {fault}");
        }
        for value in ["", "sk-1", "Basic abc=="] {
            assert_eq!(header_fault(value), None, "{value}");
        }
    }
}
