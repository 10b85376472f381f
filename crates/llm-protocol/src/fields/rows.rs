//! Parses a table of outcomes when the crate is compiled, and finds a row in it.
//!
//! A row is a name, a space and `map`, `drop`, `warn` or `refuse`, as in
//! `capabilities::FieldMapping`. Rows are sorted bytewise. This file must not depend on the meaning
//! of a name.

use crate::capabilities::FieldMapping;
use crate::table_text::split_at_byte;

/// The name of a member or type, and its outcome.
pub type OutcomeRow = (&'static str, FieldMapping);

pub(crate) const fn parse_rows<const N: usize>(text: &'static str) -> [OutcomeRow; N] {
    let mut rows = [("", FieldMapping::Drop); N];
    let (mut rest, mut at) = (text, 0);
    while at < N {
        let (name, behind) = split_at_byte(rest, b' ');
        let (outcome, behind) = split_at_byte(behind, b'\n');
        rows[at] = (name, parse_outcome(outcome.as_bytes()));
        rest = behind;
        at += 1;
    }
    rows
}

const fn parse_outcome(name: &[u8]) -> FieldMapping {
    match name {
        b"map" => FieldMapping::Map,
        b"drop" => FieldMapping::Drop,
        b"warn" => FieldMapping::Warn,
        _ => {
            assert!(matches!(name, b"refuse"), "a row has an unknown outcome");
            FieldMapping::Refuse
        }
    }
}

/// Returns the outcome of the row with this name. The name is an iterator over bytes, so that a
/// caller need not join its parts.
pub(crate) fn find_outcome(
    rows: &[OutcomeRow],
    name: impl Iterator<Item = u8> + Clone,
) -> Option<FieldMapping> {
    let row = rows
        .binary_search_by(|(known, _)| known.bytes().cmp(name.clone()))
        .ok()?;
    rows.get(row).map(|(_, outcome)| *outcome)
}
