//! Splits the text of a table into its rows and columns, when the crate is compiled.
//!
//! A text that does not fit its table is an error of the compiler. It must not know any table.

/// Returns the texts before and after the first such byte.
pub(crate) const fn split_at_byte(text: &str, byte: u8) -> (&str, &str) {
    let mut end = 0;
    while text.as_bytes()[end] != byte {
        end += 1;
    }
    let (before, rest) = text.split_at(end);
    (before, rest.split_at(1).1)
}

/// Returns the number of lines, each of which ends with a line feed.
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
