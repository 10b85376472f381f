//! Writes JSON by hand: quoting, and the vendors' formatting.
//!
//! This file must not reorder keys (a parsed tree would) or interpret numbers (one fault is a bare
//! NaN).

/// Quotes `text` as a JSON string, including the quotes.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Formats compact JSON like the chat vendor, with `indent` spaces per level and a newline at the
/// end.
pub fn pretty(compact: &str, indent: usize) -> String {
    let mut out = String::with_capacity(compact.len() + compact.len() / 4);
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    let mut after_open = false;
    for character in compact.chars() {
        if in_string {
            out.push(character);
            in_string = escaped || character != '"';
            escaped = character == '\\' && !escaped;
            continue;
        }
        let closes = matches!(character, '}' | ']');
        if after_open && !closes {
            break_line(&mut out, depth * indent);
        }
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !after_open {
                    break_line(&mut out, depth * indent);
                }
            }
            '"' => in_string = true,
            _ => {}
        }
        out.push(character);
        match character {
            ',' => break_line(&mut out, depth * indent),
            ':' => out.push(' '),
            _ => {}
        }
        after_open = matches!(character, '{' | '[');
    }
    out.push('\n');
    out
}

fn break_line(out: &mut String, spaces: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', spaces));
}

#[cfg(test)]
mod tests {
    use super::pretty;

    #[test]
    fn the_layout_keeps_strings_and_empty_containers() {
        let text = r#"{"a":[],"b":{"c":"x,\"{"},"d":[1,NaN]}"#;
        let want = "{\n  \"a\": [],\n  \"b\": {\n    \"c\": \"x,\\\"{\"\n  },\n  \"d\": [\n    1,\n    NaN\n  ]\n}\n";
        assert_eq!(pretty(text, 2), want);
    }
}
