//! Splits the text of a table or a list into its parts, when the crate is compiled.
//!
//! A text that does not fit its table is a compile error. This file must not depend on a particular
//! table.

/// Returns the texts before and after the first occurrence of the byte.
pub(crate) const fn split_at_byte(text: &str, byte: u8) -> (&str, &str) {
    let mut end = 0;
    while text.as_bytes()[end] != byte {
        end += 1;
    }
    let (before, rest) = text.split_at(end);
    (before, rest.split_at(1).1)
}

/// Returns the number of lines, each of which must end with a line feed.
pub(crate) const fn count_lines(text: &str) -> usize {
    let (bytes, mut at, mut count) = (text.as_bytes(), 0, 0);
    while at < bytes.len() {
        if bytes[at] == b'\n' {
            count += 1;
        }
        at += 1;
    }
    count
}

/// Returns the `N` names in a section of a list. Each line after `[section]` has one name, and
/// lines that begin with `#` are comments.
pub(crate) const fn names_in<const N: usize>(
    text: &'static str,
    section: &str,
) -> [&'static str; N] {
    let (mut names, mut count) = ([""; N], 0);
    let (mut rest, mut is_inside) = (text, false);
    while !rest.is_empty() {
        let (line, behind) = split_at_byte(rest, b'\n');
        match line.as_bytes() {
            [] | [b'#', ..] => {}
            [b'[', name @ .., b']'] => is_inside = equals(name, section.as_bytes()),
            _ if is_inside => {
                names[count] = line;
                count += 1;
            }
            _ => {}
        }
        rest = behind;
    }
    assert!(count == N, "the section has another number of names");
    names
}

pub(crate) const fn equals(left: &[u8], right: &[u8]) -> bool {
    let mut at = 0;
    while at < left.len() && at < right.len() && left[at] == right[at] {
        at += 1;
    }
    at == left.len() && at == right.len()
}
