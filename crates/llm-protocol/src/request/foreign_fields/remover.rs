//! Collects the edits of one body: removed members and items, each with one comma, replaced values,
//! and their warnings.
//!
//! This file must not decide what is removed: `request/foreign_fields.rs` and `request/repair.rs`
//! do.
//!
//! Read next: `request/rewrite.rs`, which applies the edits.

use crate::ir::Warnings;
use crate::json::{JsonStr, JsonValue, Span, edit, edit::JsonEdit};

#[derive(Clone, Debug, Default)]
pub struct RequestCleanup {
    pub(in crate::request) edits: Vec<JsonEdit<'static>>,
    /// Warnings of the form `action:path`, sorted.
    pub warnings: Vec<String>,
    /// True if the body was repaired, so that the gateway must read its summary again.
    pub is_repaired: bool,
    /// True if the edits insert a thinking budget, which may then be lowered or left out.
    pub makes_budget: bool,
}

#[derive(Default)]
pub(in crate::request) struct ForeignFieldRemover<'a> {
    text: &'a str,
    pub edits: Vec<JsonEdit<'static>>,
    /// Spans of removed members and items, without their commas.
    pub gone: Vec<Span>,
    pub warnings: Warnings,
    /// True if the removed reasoning was put into the history by the gateway itself, which needs no
    /// warning.
    pub drops_gateways_reasoning: bool,
    pub is_repaired: bool,
    pub makes_budget: bool,
}

impl<'a> ForeignFieldRemover<'a> {
    pub fn new(text: &'a str) -> Self {
        ForeignFieldRemover {
            text,
            ..ForeignFieldRemover::default()
        }
    }

    /// Builds the edits. The edit for each removed member includes one comma.
    pub fn finish(self) -> RequestCleanup {
        let ForeignFieldRemover {
            text,
            mut edits,
            mut gone,
            warnings,
            is_repaired,
            makes_budget,
            ..
        } = self;
        gone.sort_unstable_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        let mut gone = gone.into_iter().peekable();
        while let Some(mut run) = gone.next() {
            // Merge removals that lie inside this one or directly after it.
            while let Some(next) =
                gone.next_if(|next| next.start < run.end || next.start == skip_comma(text, run.end))
            {
                run.end = run.end.max(next.end);
            }
            let before = text.get(..run.start).unwrap_or_default().trim_end();
            let cut = match before.strip_suffix(',') {
                Some(before) => Span {
                    start: before.trim_end().len(),
                    end: run.end,
                },
                None => Span {
                    start: run.start,
                    end: skip_comma(text, run.end),
                },
            };
            edits.push(JsonEdit::new(cut, String::new()));
        }
        RequestCleanup {
            edits,
            warnings: warnings.into_tokens(),
            is_repaired,
            makes_budget,
        }
    }

    pub fn remove_members(&mut self, object: JsonValue<'a>, path: &str, foreign: &[&str]) {
        for (key, value) in object.members() {
            let Some(name) = foreign.iter().find(|name| key.is(name)) else {
                continue;
            };
            if !value.is_null() {
                self.warnings.dropped(format_args!("{path}{name}"));
            }
            self.gone.push(self.member_span(&key, value));
        }
    }

    /// Removes the members of these names without a warning, because the client loses none of its
    /// own data.
    pub fn remove_members_silently(&mut self, object: JsonValue<'a>, names: &[&str]) {
        self.drops_gateways_reasoning = true;
        for (key, value) in object.members() {
            if names.iter().any(|name| key.is(name)) {
                self.gone.push(self.member_span(&key, value));
            }
        }
    }

    pub fn replace_string(&mut self, value: JsonValue<'a>, text: &str) {
        let span = self.span(value.raw());
        self.edits
            .push(JsonEdit::new(span, edit::json_string(text)));
    }

    /// Removes an item of an array, or all of an object.
    pub fn remove_value(&mut self, value: JsonValue<'_>) {
        self.gone.push(self.span(value.raw()));
    }

    /// Inserts members before the first one of the object, in front of all removals.
    pub fn insert_inside(&mut self, object: JsonValue<'_>, mut members: String) {
        if !members.is_empty() && object.members().next().is_some() {
            members.push(',');
        }
        let inside = self.span(object.raw()).start.saturating_add(1);
        self.edits
            .insert(0, JsonEdit::new(Span::at(inside), members));
    }

    /// Returns the span of a member, from its name's first quote to its value's end.
    pub fn member_span(&self, key: &JsonStr<'_>, value: JsonValue<'_>) -> Span {
        Span {
            start: self.key_span(key).start,
            end: self.span(value.raw()).end,
        }
    }

    /// Returns the span of a member's name, with its quotes.
    pub fn key_span(&self, key: &JsonStr<'_>) -> Span {
        let Span { start, end } = self.span(key.written());
        Span {
            start: start.saturating_sub(1),
            end: end.saturating_add(1),
        }
    }

    /// Returns the span of a slice of the text.
    pub fn span(&self, piece: &str) -> Span {
        edit::span_of(self.text, piece)
    }
}

/// Returns the position after the comma at `end` and the white space around it, or `end` if no
/// comma follows.
fn skip_comma(text: &str, end: usize) -> usize {
    let rest = text.get(end..).unwrap_or_default();
    let Some(behind) = rest.trim_start().strip_prefix(',') else {
        return end;
    };
    text.len().saturating_sub(behind.trim_start().len())
}
