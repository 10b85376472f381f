//! Detects a response that exceeds its output limit, and computes the usage to bill for it.
//!
//! This file must not end a response: `response/stream.rs` does.

use super::debit::ResponseUsage;
use crate::billing::Hold;
use config::catalog::CatalogModel;
use llm_protocol::usage::{MeteringTerms, Usage, UsageBounds};

/// Returns whether a response has exceeded its output limit because the vendor ignores the limit.
/// The vendors that defined the protocols respect it. The gateway uses the vendor's token count if
/// the delivered bytes can contain that many tokens; otherwise it counts the smallest number of
/// tokens that the bytes can be.
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
