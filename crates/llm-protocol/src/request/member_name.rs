//! Compares names of members in the way of lenient servers, which ignore case, underscores and
//! hyphens.

/// Returns whether both names are equal without case, underscores and hyphens. The comparison stops
/// at the first letter that differs, because each member of a request is compared with dozens of
/// names.
pub(super) fn is_same_name(known: &str, name: &str) -> bool {
    letters(known).eq(letters(name))
}

fn letters(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes()
        .filter(|byte| !matches!(byte, b'_' | b'-'))
        .map(|byte| byte.to_ascii_lowercase())
}
