//! Joins the parts of a reasoning summary to one text, and splits the text again.
//!
//! This file must not split a text that a client changed.

use crate::json::JsonStr;

/// Separator between the parts of a summary that are sent as one text.
pub(crate) const SUMMARY_SEPARATOR: &str = "\n\n";

/// Splits a summary into parts of these lengths. Returns `None` if the client has changed the text.
pub(crate) fn split_summary<'a>(text: &JsonStr<'a>, lengths: &[u64]) -> Option<Vec<JsonStr<'a>>> {
    let mut parts = Vec::with_capacity(lengths.len());
    let mut rest = text.clone();
    for (index, length) in lengths.iter().enumerate() {
        if index > 0 {
            let (gap, behind) = rest.split_at_code_point(2);
            if !gap.is(SUMMARY_SEPARATOR) {
                return None;
            }
            rest = behind;
        }
        let (part, behind) = rest.split_at_code_point(*length);
        if part.code_points() != *length {
            return None;
        }
        parts.push(part);
        rest = behind;
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::split_summary;
    use crate::json::JsonStr;

    fn parts(text: &str, lengths: &[u64]) -> Option<Vec<String>> {
        let parts = split_summary(&JsonStr::from_value(text), lengths)?;
        Some(parts.iter().map(|part| part.value().into_owned()).collect())
    }

    #[test]
    fn a_summary_is_cut_where_it_was_joined_and_nowhere_else() {
        let summary_parts = |parts: &[&str]| {
            Some(
                parts
                    .iter()
                    .map(|part| (*part).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(parts("", &[]), summary_parts(&[]));
        assert_eq!(parts("", &[0]), summary_parts(&[""]));
        assert_eq!(parts("hm", &[2]), summary_parts(&["hm"]));
        assert_eq!(
            parts("größe\n\n🦀\n\n\n\n", &[5, 1, 0, 0]),
            summary_parts(&["größe", "🦀", "", ""])
        );
        assert_eq!(
            parts("größe\n\n🦀\n\n", &[5, 1, 0]),
            summary_parts(&["größe", "🦀", ""])
        );
        for (text, lengths) in [
            ("hm", &[1][..]),
            ("hm", &[3]),
            ("hm, so", &[2, 2]),
            ("h", &[]),
            ("a\n\nb ", &[1, 1]),
        ] {
            assert_eq!(parts(text, lengths), None, "{text}");
        }
    }
}
