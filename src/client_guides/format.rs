//! Quotes texts for the languages of set-up files.
//!
//! A quoted text may contain any character. This file must not depend on a client.

use std::fmt::Write;

/// Returns a text in double quotes that JSON, TOML, YAML, Python and JavaScript read in the same
/// way.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            // All of these characters are in the basic plane, so four digits suffice.
            '\u{2028}' | '\u{2029}' | '\u{feff}' => push_escape(&mut quoted, letter),
            _ if letter.is_control() => push_escape(&mut quoted, letter),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn push_escape(text: &mut String, letter: char) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "\\u{:04x}", u32::from(letter));
}

/// Returns one word of a shell command, in double quotes if it is plain, and in single quotes
/// otherwise.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._:/@=+,-".contains(letter);
    if text.chars().all(is_plain) {
        format!("\"{text}\"")
    } else {
        format!("'{}'", in_single_quotes(text))
    }
}

/// Returns a text in the form that it must have between single quotes of a shell.
pub fn in_single_quotes(text: &str) -> String {
    text.replace('\'', "'\\''")
}
