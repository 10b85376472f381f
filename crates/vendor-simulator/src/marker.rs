//! Parses the marker syntax `[[sim key=value …]]`.
//!
//! This file must not interpret a key (`behaviour.rs` does), and must not skip text that it cannot
//! parse.

/// Returns keys and values of the first marker in `text`, in order; empty if there is no marker.
pub fn parse(text: &str) -> Result<Vec<(&str, String)>, String> {
    let mut pairs = Vec::new();
    let Some(mut rest) = after_start(text) else {
        return Ok(pairs);
    };
    loop {
        rest = rest.trim_start();
        if rest.starts_with("]]") {
            return Ok(pairs);
        }
        let (key, after_key) = rest
            .split_once('=')
            .filter(|(key, _)| !key.is_empty() && key.bytes().all(is_key_byte))
            .ok_or_else(|| format!("expected key=value at {:?}", excerpt(rest)))?;
        let (value, after_value) = read_value(key, after_key)?;
        pairs.push((key, value));
        rest = after_value;
    }
}

/// Returns whether `text` contains the start of a marker.
pub fn is_in(text: &str) -> bool {
    after_start(text).is_some()
}

fn after_start(text: &str) -> Option<&str> {
    text.match_indices("[[sim")
        .map(|(at, start)| &text[at + start.len()..])
        .find(|rest| rest.starts_with("]]") || rest.starts_with(char::is_whitespace))
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Parses the value at the start of `text`. Returns the value and the rest of the text.
fn read_value<'a>(key: &str, text: &'a str) -> Result<(String, &'a str), String> {
    let end = match text.as_bytes().first() {
        Some(b'"') => return read_quoted(text).ok_or_else(|| unclosed(key)),
        Some(b'\'') => {
            let inner = &text[1..];
            let end = inner.find('\'').ok_or_else(|| unclosed(key))?;
            return Ok((inner[..end].to_owned(), &inner[end + 1..]));
        }
        Some(b'{' | b'[') => json_end(text).ok_or_else(|| unclosed(key))?,
        _ => {
            let marker_end = text.find("]]").ok_or_else(|| unclosed(key))?;
            text.find(char::is_whitespace)
                .map_or(marker_end, |space| space.min(marker_end))
        }
    };
    Ok((text[..end].to_owned(), &text[end..]))
}

fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

/// Returns the length of the JSON object or array at the start of `text`.
fn json_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

fn excerpt(text: &str) -> String {
    text.chars().take(20).collect()
}

fn unclosed(key: &str) -> String {
    format!("the marker is not closed after '{key}'")
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn values_may_be_words_quoted_or_json() {
        let text = r#"hello [[sim a=1 b="x ]] \"y\"" c='{"k": 1}' d={"k":"}]]"} f=[[1],"]"] e=]] [[sim g=2]]"#;
        let pairs = parse(text).unwrap_or_default();
        let want = [
            ("a", "1"),
            ("b", "x ]] \"y\""),
            ("c", r#"{"k": 1}"#),
            ("d", r#"{"k":"}]]"}"#),
            ("f", r#"[[1],"]"]"#),
            ("e", ""),
        ];
        assert_eq!(pairs, want.map(|(key, value)| (key, value.to_owned())));
    }

    #[test]
    fn an_unreadable_marker_is_an_error_and_a_lookalike_is_none() {
        assert!(parse("[[sim a=1").is_err());
        assert!(parse("[[sim a]]").is_err());
        assert!(parse("[[sim a=\"1]]").is_err());
        assert_eq!(parse("[[simple a=1]]"), Ok(Vec::new()));
        assert_eq!(parse("[[sim]]"), Ok(Vec::new()));
    }
}
