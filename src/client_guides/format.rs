//! Quoting for the languages of set-up files, and JSON and YAML whose members keep their order.
//!
//! Everything that is quoted here can contain any character. Must not know a client.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::fmt::Write;

/// A text in double quotes, as JSON, TOML, YAML, Python and JavaScript all read it.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            // All of these are in the basic plane, so four digits name them.
            '\u{2028}' | '\u{2029}' | '\u{feff}' => push_escape(&mut quoted, letter),
            _ if letter.is_control() => push_escape(&mut quoted, letter),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn push_escape(text: &mut String, letter: char) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\\u{:04x}", u32::from(letter));
}

/// One word of a shell command: in double quotes if it is plain, else in single quotes.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._:/@=+,-".contains(letter);
    if text.chars().all(is_plain) {
        format!("\"{text}\"")
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// A JSON value whose members keep their order.
#[derive(Clone, Debug)]
pub enum OrderedValue {
    Text(String),
    Number(u64),
    Flag(bool),
    List(Vec<OrderedValue>),
    Object(Vec<(String, OrderedValue)>),
}

impl From<&str> for OrderedValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for OrderedValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for OrderedValue {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<u64> for OrderedValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for OrderedValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Vec<OrderedValue>> for OrderedValue {
    fn from(items: Vec<OrderedValue>) -> Self {
        Self::List(items)
    }
}

/// An object with members in this order.
pub fn object<const N: usize>(members: [(&str, OrderedValue); N]) -> OrderedValue {
    OrderedValue::Object(
        members
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    )
}

impl Serialize for OrderedValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (name, value) in members {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl OrderedValue {
    /// Indented JSON. It fits a file of its own.
    pub fn to_json(&self) -> String {
        // `{:#}` on a `serde_json::Value` would sort the members. Serialization of this type into
        // a string cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// YAML in block style. All texts are quoted, so that `no`, `1.0` and `a: b` stay texts.
    pub fn to_yaml(&self) -> String {
        let mut text = String::new();
        self.write_yaml(&mut text, 0, false);
        text.truncate(text.trim_end().len());
        text
    }

    /// `after_dash`: the first line continues a line that ends with `- `.
    fn write_yaml(&self, text: &mut String, depth: usize, after_dash: bool) {
        let margin = "  ".repeat(depth);
        match self {
            Self::List(items) => {
                for item in items {
                    text.push_str(&margin);
                    text.push_str("- ");
                    item.write_yaml(text, depth + 1, true);
                }
            }
            Self::Object(members) => {
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 || !after_dash {
                        text.push_str(&margin);
                    }
                    text.push_str(&yaml_name(name));
                    if value.is_block() {
                        text.push_str(":\n");
                        value.write_yaml(text, depth + 1, false);
                    } else {
                        text.push_str(": ");
                        value.write_yaml(text, depth, false);
                    }
                }
            }
            Self::Text(scalar) => {
                text.push_str(&quoted(scalar));
                text.push('\n');
            }
            Self::Number(number) => {
                text.push_str(&number.to_string());
                text.push('\n');
            }
            Self::Flag(flag) => {
                text.push_str(if *flag { "true\n" } else { "false\n" });
            }
        }
    }

    fn is_block(&self) -> bool {
        matches!(self, Self::List(_) | Self::Object(_))
    }
}

fn yaml_name(name: &str) -> String {
    let is_word = |letter: char| letter.is_ascii_alphabetic() || letter == '-' || letter == '_';
    if name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(is_word) {
        name.to_owned()
    } else {
        quoted(name)
    }
}
