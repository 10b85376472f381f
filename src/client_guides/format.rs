//! Quoting for the languages of set-up files.
//!
//! Everything that is quoted here can contain any character. This file must not know a client.

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
        format!("'{}'", in_single_quotes(text))
    }
}

/// A text as it stands between single quotes of a shell.
pub fn in_single_quotes(text: &str) -> String {
    text.replace('\'', "'\\''")
}
