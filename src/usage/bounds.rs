//! What the usage of one request is metered by: the most that it can use, in tokens, and what is
//! assumed of what its vendor does not count.
//!
//! It must not know a price or an account. `billing/rules.rs` derives it from the request.

use super::{PerTool, UsageEstimator};

/// What a vendor's counters are held against, and what stands for those that are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MeteringTerms {
    pub estimator: UsageEstimator,
    pub bounds: UsageBounds,
}

impl MeteringTerms {
    /// No estimate of an output is beyond its bound either.
    pub fn new(estimator: UsageEstimator, bounds: UsageBounds) -> Self {
        Self {
            estimator: estimator.with_max_output(bounds.output),
            bounds,
        }
    }
}

/// The limits of one request. The default limits nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageBounds {
    /// Input that the request can hold, every class together. What is beyond `input_believed` is
    /// billed at this.
    pub input: u64,
    /// Input that is believed: `input`, and what a vendor's own template adds to a prompt.
    pub input_believed: u64,
    /// Output of all choices together.
    pub output: u64,
    /// Input of one pass over the conversation: the model's context.
    pub context: u64,
    /// Output of one pass over the conversation: the model's maximum.
    pub pass_output: u64,
    /// The request allows passes that shorten the conversation.
    pub compaction: bool,
    /// Uses of each server tool that the vendor can have made.
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
