//! Judges the names that people give to keys, organisations and the product.
//!
//! Others read these names, so a name must not look like another one, or turn the text around it.
//! This file must not know what a name is of.

/// Returns whether a reader sees each character of a name where it stands: it has no control
/// characters, no invisible ones, and none that change the direction of the text.
pub fn is_readable(name: &str) -> bool {
    !name
        .chars()
        .any(|char| char.is_control() || is_hidden(char))
}

/// Returns whether a character is one of Unicode's format characters (Cf), separators of lines and
/// paragraphs, or letters without a glyph.
fn is_hidden(char: char) -> bool {
    matches!(
        char,
        '\u{ad}'
            | '\u{34f}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::is_readable;

    #[test]
    fn a_name_has_no_character_that_nobody_sees() {
        for good in [
            "Acme",
            "B\u{fc}cher & S\u{f6}hne",
            "\u{682a}\u{5f0f}",
            "\u{2764}\u{fe0f}",
        ] {
            assert!(is_readable(good), "{good}");
        }
        for bad in [
            '\0',
            '\n',
            '\u{7f}',
            '\u{85}',
            '\u{ad}',
            '\u{61c}',
            '\u{115f}',
            '\u{180e}',
            '\u{200b}',
            '\u{200d}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{2800}',
            '\u{3164}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{e0041}',
        ] {
            assert!(!is_readable(&format!("Ac{bad}me")), "{bad:?}");
        }
    }
}
