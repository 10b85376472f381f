//! Counts the commas between the values of a text, before anything parses it.
//!
//! This file must not check the text: the scanner does. The count is meaningless for a text that is
//! not JSON.

use super::scanner::string_scanner::StringScanner;

/// Counts the commas outside strings, and stops at `most`. An array or object has one comma less
/// than values, so a text has about as many values as commas.
pub(crate) fn count_separators(text: &[u8], most: usize) -> usize {
    let mut ends = StringScanner::new(text);
    let (mut at, mut found) = (0_usize, 0_usize);
    while found < most {
        match text.get(at) {
            Some(b',') => found = found.saturating_add(1),
            Some(b'"') => at = end_of_string(text, &mut ends, at.saturating_add(1)),
            Some(_) => {}
            None => break,
        }
        at = at.saturating_add(1);
    }
    found
}

/// Returns the position of the quote that ends the string whose content begins at `at`, or the end
/// of the text.
fn end_of_string(text: &[u8], ends: &mut StringScanner<'_>, mut at: usize) -> usize {
    loop {
        at = ends.next_special(at);
        match text.get(at) {
            Some(b'\\') => at = at.saturating_add(2),
            Some(b'"') | None => return at,
            Some(_) => at = at.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn commas_in_strings_do_not_count() {
        for (text, separators) in [
            ("", 0),
            (r#"{"a":1,"b":[true,null]}"#, 2),
            (r##"["a, b, c","\",",",","\\","x"]"##, 4),
            (r#"["never ended, and so on"#, 0),
            (r#"["ends with a backslash,\"#, 0),
            ("[\"a control\ncharacter, inside\",1]", 1),
        ] {
            assert_eq!(count_separators(text.as_bytes(), 100), separators, "{text}");
        }
    }

    #[test]
    fn the_count_stops_at_the_limit() {
        let text = "[1,1,1,1,1]";
        assert_eq!(count_separators(text.as_bytes(), 3), 3);
        assert_eq!(count_separators(text.as_bytes(), 4), 4);
        assert_eq!(count_separators(text.as_bytes(), 5), 4);
    }

    /// Separators of a value: one less than the values of each array and object.
    fn separators(value: &Value) -> usize {
        let (own, inner): (usize, usize) = match value {
            Value::Array(items) => (items.len(), items.iter().map(separators).sum()),
            Value::Object(members) => (members.len(), members.values().map(separators).sum()),
            _ => (0, 0),
        };
        own.saturating_sub(1) + inner
    }

    proptest! {
        #[test]
        fn a_text_has_one_separator_less_than_values_in_each_array(
            texts in prop::collection::vec("[a-z,\\\\\"\\[\\]{}: é]{0,90}", 0..20),
            copies in 1_usize..4,
        ) {
            let inner = serde_json::json!({"list": texts, "n": 1});
            let value = serde_json::json!(vec![inner; copies]);
            let text = value.to_string();
            prop_assert_eq!(count_separators(text.as_bytes(), usize::MAX), separators(&value));
        }
    }
}
