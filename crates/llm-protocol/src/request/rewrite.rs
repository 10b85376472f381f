//! Applies the few edits to a body for passthrough; everything else stays byte-identical.
//!
//! This file must not parse: [`super::read_summary`] stored the spans in the summary. A summary of
//! another body produces a wrong body but never a panic.
//!
//! Read next: `passthrough.rs`, the way back.

use super::body::{MIN_SHARED_BYTES, RequestBody};
use super::foreign_fields::remover::RequestCleanup;
use super::summary::{OutputLimitMember, RequestSummary, StreamOptions};
use crate::json::{Span, edit, edit::JsonEdit};
use bytes::Bytes;

/// Changes to a body before the gateway sends it to its vendor.
#[derive(Clone, Copy, Debug)]
pub struct RequestEdits<'a> {
    /// The vendor's own name for the model.
    pub model: &'a str,
    /// Maximum for each limit in the body. A lower limit is not raised, and a missing limit is
    /// inserted.
    pub output_limit: Option<u64>,
    /// Name of the limit to insert: `max_tokens` or `max_completion_tokens`.
    pub output_limit_field: &'a str,
    /// Replaces the thinking budget, if the body has one.
    pub thinking_budget: Option<u64>,
    /// True to set `stream_options.include_usage` in chat streams. The other options stay
    /// unchanged.
    pub include_usage: bool,
}

/// Applies the edits. Returns the same `Bytes` if nothing changes.
pub fn rewrite(body: &Bytes, summary: &RequestSummary, edits: &RequestEdits<'_>) -> Bytes {
    rewrite_cleaned(body, summary, edits, RequestCleanup::default())
}

/// Applies the edits together with the removals in `stripped`.
pub fn rewrite_cleaned(
    body: &Bytes,
    summary: &RequestSummary,
    edits: &RequestEdits<'_>,
    stripped: RequestCleanup,
) -> Bytes {
    EditBuilder::collect(summary, edits, stripped).apply(body, summary.spans.inside)
}

/// Applies the edits like [`rewrite_cleaned`], without a copy of long parts that do not change.
pub fn splice(
    body: &Bytes,
    summary: &RequestSummary,
    edits: &RequestEdits<'_>,
    stripped: RequestCleanup,
) -> RequestBody {
    let changes = EditBuilder::collect(summary, edits, stripped);
    let inside = summary.spans.inside;
    if body.len() < MIN_SHARED_BYTES {
        return changes.apply(body, inside).into();
    }
    let mut edits = changes.into_edits(inside);
    edits.sort_by_key(|edit| edit.span.start);
    RequestBody::splice(body, &edits)
}

/// Applies the removals and replacements of `cleanup`, and no other edits.
pub(super) fn apply_cleanup(body: &Bytes, cleanup: RequestCleanup) -> Bytes {
    let changes = EditBuilder {
        replaced: cleanup.edits,
        inserted: String::new(),
    };
    changes.apply(body, 0)
}

struct EditBuilder {
    replaced: Vec<JsonEdit<'static>>,
    /// Members to insert after the opening brace, each followed by a comma. An object with a model
    /// is never empty.
    inserted: String,
}

impl EditBuilder {
    fn collect(
        summary: &RequestSummary,
        edits: &RequestEdits<'_>,
        stripped: RequestCleanup,
    ) -> Self {
        let mut changes = Self {
            replaced: stripped.edits,
            inserted: String::new(),
        };
        if edits.model != summary.model {
            changes.replace(summary.spans.model, edit::json_string(edits.model));
        }
        if let Some(limit) = edits.output_limit {
            changes.set_output_limit(summary, limit, edits.output_limit_field);
        }
        if let (Some(budget), Some(span)) = (edits.thinking_budget, summary.spans.thinking_budget)
            && summary.thinking_budget != Some(budget)
        {
            changes.replace(span, budget.to_string());
        }
        if edits.include_usage && !summary.include_usage {
            changes.set_include_usage(summary.spans.stream_options);
        }
        changes
    }

    fn replace(&mut self, span: Span, text: String) {
        self.replaced.push(JsonEdit::new(span, text));
    }

    fn insert(&mut self, member: &str, value: &str) {
        let name = edit::json_string(member);
        self.inserted.push_str(&format!("{name}:{value},"));
    }

    fn set_output_limit(&mut self, summary: &RequestSummary, tokens: u64, field: &str) {
        let limits = [
            summary.spans.max_tokens,
            summary.spans.max_completion_tokens,
            summary.spans.max_output_tokens,
        ];
        for OutputLimitMember {
            span,
            tokens: requested,
        } in limits.into_iter().flatten()
        {
            if requested.is_some_and(|requested| requested > tokens) {
                self.replace(span, tokens.to_string());
            }
        }
        if summary.output_limit.is_some() {
            return;
        }
        // Replace a null member of that name, because a second member of the name would be
        // ambiguous.
        let null = match field {
            "max_completion_tokens" => summary.spans.max_completion_tokens,
            "max_output_tokens" => summary.spans.max_output_tokens,
            _ => summary.spans.max_tokens.filter(|_| field == "max_tokens"),
        };
        match null {
            Some(limit) => self.replace(limit.span, tokens.to_string()),
            None => self.insert(field, &tokens.to_string()),
        }
    }

    fn set_include_usage(&mut self, options: Option<StreamOptions>) {
        const MEMBER: &str = r#""include_usage":true"#;
        match options {
            None => self.insert("stream_options", &format!("{{{MEMBER}}}")),
            Some(StreamOptions::Null(span)) => self.replace(span, format!("{{{MEMBER}}}")),
            Some(StreamOptions::Object {
                include_usage: Some(span),
                ..
            }) => {
                self.replace(span, "true".to_owned());
            }
            Some(StreamOptions::Object {
                inside, is_empty, ..
            }) => {
                let comma = if is_empty { "" } else { "," };
                self.replace(Span::at(inside), format!("{MEMBER}{comma}"));
            }
        }
    }

    /// Returns the edits, with the insertion at the offset `inside`.
    fn into_edits(self, inside: usize) -> Vec<JsonEdit<'static>> {
        let mut replaced = self.replaced;
        if !self.inserted.is_empty() {
            // This edit must be first, because the first member may be removed.
            replaced.insert(0, JsonEdit::new(Span::at(inside), self.inserted));
        }
        replaced
    }

    fn apply(self, body: &Bytes, inside: usize) -> Bytes {
        let mut replaced = self.into_edits(inside);
        if replaced.is_empty() {
            return body.clone();
        }
        let added: usize = replaced.iter().map(|edit| edit.text.len()).sum();
        let mut rewritten = Vec::with_capacity(body.len().saturating_add(added));
        edit::apply_edits(body, &mut replaced, &mut rewritten);
        Bytes::from(rewritten)
    }
}
