//! What the translation of an answer needs to know about its request.
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

/// What the translation of an answer needs to know about the request. It uses no clock and no
/// random numbers; the caller passes those values in.
#[derive(Clone, Debug, Default)]
pub struct ResponseContext {
    /// The model id that the caller used.
    pub public_model: String,
    /// Unix time in seconds at which the answer began.
    pub created: u64,
    /// Seed for ids that the vendor did not give: the request's own id.
    pub seed: String,
    /// The caller's own tool names, by the alias sent to the vendor.
    pub tool_names: HashMap<String, String>,
    /// The caller's own names of its custom tools (chat): their calls are returned as custom calls.
    pub custom_tools: Vec<String>,
    /// Whether calls are returned as `function_call` (chat).
    pub legacy_functions: bool,
    /// Whether the stream ends with usage (chat).
    pub include_usage: bool,
    /// Whether only the prompt asked for a JSON object: the writer then removes one code fence
    /// around a whole text.
    pub unwrap_fence: bool,
    /// Whether the caller set a tier, so that the answer names one (chat).
    pub report_tier: bool,
    /// Whether the client sees the reasoning (messages).
    pub show_thinking: bool,
    /// Maximum output tokens of the answer; 0 if the caller set none.
    pub output_limit: u64,
    /// Estimated input tokens, for members that need a number before the vendor reports one.
    pub input_estimate: u64,
    /// Estimates the usage if the vendor reports none, or only a part.
    pub estimator: UsageEstimator,
    /// Who set the cache markers that the vendor gets, if it gets any (messages).
    pub cache_markers: Option<CacheMarkerOrigin>,
    /// Upper bounds of what the request can use.
    pub usage_bounds: UsageBounds,
    /// How calls of tools other than plain functions are returned (responses), by the caller's flat
    /// name: see [`ResponseContext::client_tool_name`].
    pub own_tools: HashMap<String, ClientTool>,
    /// Ids of the conversation's calls, as the caller knows them.
    pub call_ids: Vec<String>,
    /// The form in which a chat vendor requires its reasoning back.
    pub reasoning_replay: ReasoningReplay,
    /// Where a chat vendor's answers have what must go back to it, beside its reasoning.
    pub state_paths: Vec<String>,
    /// As of [`VendorProfile::usage`](crate::profile::VendorProfile::usage).
    pub usage_paths: Arc<[String]>,
    /// Numbers the events of a stream (responses).
    pub sequencer: Option<EventSequencer>,
}

impl ResponseContext {
    /// Returns the caller's name of a tool for the name that was sent to the vendor.
    pub fn client_tool_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.tool_names.get(name).map_or(name, String::as_str)
    }
}
