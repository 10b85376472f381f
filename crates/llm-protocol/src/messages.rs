//! Messages protocol: its request reader, request writer, stream reader and stream writer.
//!
//! Read next: `messages/read_request.rs`.

pub mod read_request;
pub mod read_stream;
pub mod write_request;
pub mod write_stream;

/// Categories of refusals that the vendor bills although it generated nothing, since 2026-09-24.
/// Other refusals before any output are free. The source is the vendor's page on refusals; the
/// categories are those of `RefusalStopDetails` in anthropic 2.14 for Python.
const BILLED_REFUSALS: [&str; 3] = ["bio", "frontier_llm", "reasoning_extraction"];

/// Returns whether the vendor bills a refusal of this category that comes before any output.
pub(crate) fn bills_refusal(category: Option<&str>) -> bool {
    category.is_some_and(|category| BILLED_REFUSALS.contains(&category))
}
