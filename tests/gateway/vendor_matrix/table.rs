//! The outcome as the table of `docs/vendors.md`.

use super::Vendor;
use super::cells::{Cell, KINDS, Kind, Outcome};
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/vendors.md");
const START: &str = "<!-- the matrix: VENDOR_MATRIX=print -->\n";
const END: &str = "<!-- end of the matrix -->";

fn title(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Plain => Some("text and usage"),
        Kind::Tools => Some("tools"),
        Kind::Parallel => Some("parallel calls"),
        Kind::Images => Some("images"),
        Kind::Pdf => Some("PDFs"),
        Kind::ThinkingOn => Some("thinking on"),
        Kind::ThinkingOff => Some("off"),
        Kind::LateSystem => Some("late system message"),
        Kind::Switch => Some("change of vendor"),
        Kind::Errors => Some("errors"),
    }
}

/// ✔ translated on every surface, ◐ with a named loss on some, ✘ refused on some.
pub fn render(vendors: &[Vendor], outcomes: &[(&Cell<'_>, Outcome)]) -> String {
    let titles: Vec<&str> = KINDS.into_iter().filter_map(title).collect();
    let mut lines = vec![
        format!("| preset | {} |", titles.join(" | ")),
        format!("|---|{}", "---|".repeat(titles.len())),
    ];
    let mut notes: Vec<String> = Vec::new();
    for vendor in vendors {
        let mut line = format!("| `{}` |", vendor.preset);
        for kind in KINDS {
            let of = outcomes
                .iter()
                .filter(|(cell, _)| cell.kind == kind && cell.vendor.preset == vendor.preset);
            let (mut refused, mut lost) = (BTreeSet::new(), BTreeSet::new());
            for (_, outcome) in of {
                refused.extend(
                    outcome
                        .refusal
                        .iter()
                        .map(|refusal| refusal.replace('`', "'")),
                );
                lost.extend(outcome.losses.iter().map(|loss| without_places(loss)));
            }
            let (mark, why) = match (refused.is_empty(), lost.is_empty()) {
                (false, _) => ("✘", refused),
                (true, false) => ("◐", lost),
                (true, true) => ("✔", BTreeSet::new()),
            };
            line.push_str(&format!(" {mark}{} |", note(&mut notes, &why)));
        }
        lines.push(line);
    }
    lines.push(String::new());
    lines.extend(
        notes
            .iter()
            .enumerate()
            .map(|(index, note)| format!("{}. {note}", index + 1)),
    );
    lines.join("\n") + "\n"
}

/// A warning without the index of what it is about: `rewritten:messages`.
fn without_places(warning: &str) -> String {
    let mut left = String::new();
    let mut is_index = false;
    for letter in warning.chars() {
        is_index |= letter == '[';
        if !is_index {
            left.push(letter);
        }
        is_index &= letter != ']';
    }
    left
}

/// The number of a note; notes that say the same share it.
fn note(notes: &mut Vec<String>, why: &BTreeSet<String>) -> String {
    if why.is_empty() {
        return String::new();
    }
    let text = why
        .iter()
        .map(|why| format!("`{why}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let known = notes.iter().position(|note| *note == text);
    let index = known.unwrap_or_else(|| {
        notes.push(text);
        notes.len() - 1
    });
    format!(" {}", index + 1)
}

/// Checks that the document has the table.
pub fn check(vendors: &[Vendor], outcomes: &[(&Cell<'_>, Outcome)]) {
    let table = render(vendors, outcomes);
    let shown = DOCUMENT
        .split_once(START)
        .and_then(|(_, rest)| rest.split_once(END))
        .map_or("", |(table, _)| table);
    assert_eq!(
        shown.trim(),
        table.trim(),
        "docs/vendors.md differs: write the table that VENDOR_MATRIX=print prints"
    );
}
