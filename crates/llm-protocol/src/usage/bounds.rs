//! Defines the terms for metering one request: its maximum usage, and the estimate for counters
//! that its vendor does not report.
//!
//! This file must not depend on a price or an account. `billing/quote.rs` derives the terms from
//! the request.

use super::estimator::UsageEstimator;
use super::server_tool::PerTool;
use std::sync::Arc;

/// The bounds against which a vendor's counters are checked, and the estimator for missing
/// counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteringTerms {
    pub estimator: UsageEstimator,
    pub bounds: UsageBounds,
    /// The paths of [`VendorProfile::usage`](crate::profile::VendorProfile::usage).
    pub usage_paths: Arc<[String]>,
}

impl MeteringTerms {
    /// Creates the terms. The output bound also limits the output estimate.
    pub fn new(estimator: UsageEstimator, bounds: UsageBounds) -> Self {
        Self {
            estimator: estimator.with_max_output(bounds.output),
            bounds,
            usage_paths: Arc::default(),
        }
    }

    /// Sets the paths of the usage in the vendor's answers.
    #[must_use]
    pub fn with_usage_paths(self, usage_paths: Arc<[String]>) -> Self {
        Self {
            usage_paths,
            ..self
        }
    }
}

/// The maximum usage of one request. The default sets no maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageBounds {
    /// Maximum input of the request, all classes together. The bill for input above
    /// `input_believed` is capped at this number.
    pub input: u64,
    /// Maximum input that counts as plausible: `input`, plus the tokens that a vendor's own
    /// template adds to a prompt.
    pub input_believed: u64,
    /// Maximum output of all choices together.
    pub output: u64,
    /// Maximum input of one pass over the conversation: the model's context.
    pub context: u64,
    /// Maximum output of one pass over the conversation: the model's maximum.
    pub pass_output: u64,
    /// True if the request allows compaction passes.
    pub compaction: bool,
    /// Maximum number of uses of each server tool by the vendor.
    pub tool_uses: PerTool<u64>,
}

impl Default for UsageBounds {
    fn default() -> Self {
        Self {
            input: u64::MAX,
            input_believed: u64::MAX,
            output: u64::MAX,
            context: u64::MAX,
            pass_output: u64::MAX,
            compaction: true,
            tool_uses: PerTool {
                web_search: u64::MAX,
                web_fetch: u64::MAX,
                code_execution: u64::MAX,
                tool_search: u64::MAX,
                mcp: u64::MAX,
            },
        }
    }
}
