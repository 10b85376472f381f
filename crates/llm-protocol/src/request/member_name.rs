//! Compares names of members as lenient servers do: without case, underscores and hyphens.

/// Returns whether both names are equal without case, underscores and hyphens.
pub(super) fn is_same_name(known: &str, name: &str) -> bool {
    let letters = |name: &str| {
        name.bytes()
            .filter(|byte| !matches!(byte, b'_' | b'-'))
            .map(|byte| byte.to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    // No known name has more than nine underscores.
    known.len() <= name.len().saturating_add(9) && name.len() <= known.len().saturating_add(9) && {
        letters(known) == letters(name)
    }
}
