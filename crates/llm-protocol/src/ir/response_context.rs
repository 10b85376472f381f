//! Holds the facts about a request that the translation of its answer needs.
//!
//! This file must not borrow from the request: it lives until the answer has ended.
//!
//! Read next: `ir/event.rs`.

use super::CacheMarkerOrigin;
use super::client_tool::ClientTool;
use crate::capabilities::ReasoningReplay;
use crate::responses::EventSequencer;
use crate::usage::{UsageBounds, UsageEstimator};
use std::collections::HashMap;
use std::sync::Arc;

/// The facts about a request that the translation of its answer needs. The caller also provides the
/// time and a seed, so that the translation uses neither a clock nor random numbers.
#[derive(Clone, Debug, Default)]
pub struct ResponseContext {
    /// The model id in the client's request.
    pub public_model: String,
    /// Unix time, in seconds, at which the answer began.
    pub created: u64,
    /// Seed for ids that the vendor did not give. It is the request's own id.
    pub seed: String,
    /// The client's own tool names, by the alias that the vendor got.
    pub tool_names: HashMap<String, String>,
    /// The client's own names of its custom tools (chat), whose calls are returned as custom calls.
    pub custom_tools: Vec<String>,
    /// True if calls are returned as `function_call` (chat).
    pub legacy_functions: bool,
    /// True if the stream ends with usage (chat).
    pub include_usage: bool,
    /// True if only the prompt asked for a JSON object. The writer then removes a code fence around
    /// the whole text.
    pub unwrap_fence: bool,
    /// True if the client set a tier, so that the answer must name one (chat).
    pub report_tier: bool,
    /// True if the client sees the reasoning (messages).
    pub show_thinking: bool,
    /// Maximum number of output tokens of the answer; 0 if the client set no limit.
    pub output_limit: u64,
    /// Estimated number of input tokens, for members that need a number before the vendor reports
    /// one.
    pub input_estimate: u64,
    /// Estimates the usage if the vendor reports none or only a part.
    pub estimator: UsageEstimator,
    /// The origin of the cache markers in the vendor's request, if it has any (messages).
    pub cache_markers: Option<CacheMarkerOrigin>,
    /// Upper bounds of the request's usage.
    pub usage_bounds: UsageBounds,
    /// Describes how the calls of other tools than plain functions are returned (responses), by the
    /// client's flat name. See [`ResponseContext::client_tool_name`].
    pub own_tools: HashMap<String, ClientTool>,
    /// Ids of the conversation's calls in the client's spelling.
    pub call_ids: Vec<String>,
    /// The form in which a chat vendor requires its reasoning back.
    pub reasoning_replay: ReasoningReplay,
    /// The signature of thinking that the vendor does not sign (messages).
    pub maker_signature: Option<String>,
    /// Paths of the state that a chat vendor wants back, in addition to its reasoning.
    pub state_paths: Vec<String>,
    /// The paths of [`VendorProfile::usage`](crate::profile::VendorProfile::usage).
    pub usage_paths: Arc<[String]>,
    /// Numbers the events of a stream (responses).
    pub sequencer: Option<EventSequencer>,
}

impl ResponseContext {
    /// Returns the client's name of a tool, given the name that the vendor got.
    pub fn client_tool_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.tool_names.get(name).map_or(name, String::as_str)
    }
}
