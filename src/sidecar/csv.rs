//! CSV files (RFC 4180) that people open in a spreadsheet.
//!
//! Must not know a page.

/// Writes a text cell. It escapes a text that a spreadsheet would take for a formula.
pub fn write_quoted(text: &mut String, word: &str) {
    text.push('"');
    if word.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        text.push('\'');
    }
    text.push_str(&word.replace('"', "\"\""));
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_a_text_whatever_it_holds() {
        let cell = |word: &str| {
            let mut text = String::new();
            write_quoted(&mut text, word);
            text
        };
        assert_eq!(cell(""), "\"\"");
        assert_eq!(cell("a,b"), "\"a,b\"");
        assert_eq!(cell("a\"b"), "\"a\"\"b\"");
        assert_eq!(cell("a\r\nb"), "\"a\r\nb\"");
        for formula in ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"] {
            assert!(cell(formula).starts_with("\"'"), "{formula:?}");
        }
    }
}
