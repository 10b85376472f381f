//! Compares names of members as lenient servers do: without case, underscores and hyphens.

/// Returns whether both names are equal without case, underscores and hyphens. It stops at the
/// first letter that differs: each member of a request is compared with dozens of names.
pub(super) fn is_same_name(known: &str, name: &str) -> bool {
    letters(known).eq(letters(name))
}

fn letters(name: &str) -> impl Iterator<Item = u8> + '_ {
    name.bytes()
        .filter(|byte| !matches!(byte, b'_' | b'-'))
        .map(|byte| byte.to_ascii_lowercase())
}
