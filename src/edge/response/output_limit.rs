//! Responses that exceed their output limit: whether one does, and what is then billed.
//!
//! This file must not end a response: `response/stream.rs` does.

use super::debit::ResponseUsage;
use crate::billing::Hold;
use config::catalog::CatalogModel;
use llm_protocol::usage::{MeteringTerms, Usage, UsageBounds};

/// Whether a response has exceeded its output limit because the vendor ignores it. The vendors that
/// defined the protocols respect it. The gateway believes the vendor's token count if that many
/// tokens can have been delivered; otherwise it counts only the bytes, at the smallest possible
/// number of tokens.
pub(super) fn exceeds_output_limit(
    model: &CatalogModel,
    bounds: &UsageBounds,
    counted_output: u64,
    generated_bytes: u64,
) -> bool {
    let max_output = bounds.output;
    let certain = Usage::lower_bound(generated_bytes).output;
    let is_counted = counted_output > max_output && counted_output <= generated_bytes;
    !model.vendor.profile.honours_output_limit && (certain > max_output || is_counted)
}

/// Returns the usage to bill for a response that is ended at its hold.
pub(super) fn usage_at_hold(
    hold: Option<&Hold>,
    terms: &MeteringTerms,
    so_far: &ResponseUsage,
) -> Option<Usage> {
    let ResponseUsage {
        usage,
        reported_usage,
        generated_bytes,
        ..
    } = *so_far;
    let usage = usage.map(|metered| metered.usage);
    Some(hold?.clamp_usage(
        usage.unwrap_or_else(|| terms.estimator.usage(reported_usage, generated_bytes)),
    ))
}
