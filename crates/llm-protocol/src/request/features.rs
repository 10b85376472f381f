//! Defines the features that make a vendor read or do more than one pass over the body's own bytes.
//!
//! This file defines types only, which must not depend on a price.
//!
//! Read next: `request/features/read.rs`, which finds them.

use super::content::ContentSize;
use super::vendor_state::FirstReference;
use crate::usage::{InferenceGeo, PerTool, ServiceTier, Speed};

mod read;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Number of image blocks or parts, including those in tool results.
    pub images: u32,
    /// True if there are documents, files or videos, whose tokens cannot be derived from their
    /// bytes. Plain text documents count as text.
    pub documents_or_files: bool,
    pub audio_input: bool,
    /// True if the caller asks for audio output.
    pub audio_output: bool,
    /// True if the vendor must fetch anything from a URL.
    pub url_sources: bool,
    /// The first reference to an object in the vendor account.
    pub vendor_reference: FirstReference,
    /// True if the request has tools that run at the vendor and have no price key. Their results
    /// become input.
    pub server_tools: bool,
    /// The first member that asks for a tool without a price key (chat).
    pub server_tool_member: Option<&'static str>,
    /// Offers of server tools with a price key, by kind of tool. Several tools of a kind are
    /// merged.
    pub tool_offers: PerTool<Option<ToolOffer>>,
    /// Maximum number of server tool calls of all kinds (responses). If the member is duplicated,
    /// the larger value counts.
    pub max_tool_calls: Option<u64>,
    /// True if the vendor may compact the conversation in extra passes.
    pub compaction: bool,
    /// The service tier. Set if the client named one other than the default.
    pub service_tier: Option<ServiceTier>,
    /// True if the client named the default tier and no other.
    pub usual_tier: bool,
    /// True if the request offers tools or the conversation has tool calls. True in case of doubt.
    pub tools: bool,
    /// True if the client turned reasoning off (chat).
    pub no_reasoning: bool,
    /// True if the client gave stop sequences.
    pub stops: bool,
    /// The speed. Set if it is not the standard one.
    pub speed: Option<Speed>,
    /// The inference region. Set if it is not `global`.
    pub inference_geo: Option<InferenceGeo>,
    /// True if the client named the region `global` and no other.
    pub usual_geo: bool,
    /// True if the request allows other models to answer instead.
    pub fallback_models: bool,
    /// True if the request has a `cache_control` at any level.
    pub cache_markers: bool,
    /// True if the request asks for a longer lifetime of the cache than the vendor's default.
    pub cache_markers_1h: bool,
    /// True if the body has an unusual shape. The summary reports it as `has_other_shape`.
    pub other_shape: bool,
    /// Remains of another vendor's answers that this vendor may refuse, which make
    /// `request/foreign_fields.rs` read the body. True in case of doubt.
    pub leftovers: ForeignFields,
    pub content: ContentSize,
}

/// A server tool that the vendor may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ToolOffer {
    /// Maximum number of uses, summed over all tools of the kind. `None` if one of the tools has no
    /// limit.
    pub max_uses: Option<u64>,
}

/// Kinds of remains of another vendor's answers that the body may contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForeignFields {
    /// True if a thinking block lacks a messages vendor's signature.
    pub unsigned_thinking: bool,
    /// True if a call has an id that a messages vendor refuses.
    pub odd_ids: bool,
    /// True if a call has an id that is too long for a chat vendor.
    pub long_ids: bool,
    /// True if a call has an id other than nine letters or digits, which some chat vendors require.
    pub other_than_nine: bool,
    /// Number of thinking blocks with a messages vendor's signature.
    pub thoughts: u32,
    /// Number of tool results of the messages protocol.
    pub tool_results: u32,
    /// True if the body has members of the messages protocol or of reasoning that the vendor of the
    /// chat protocol does not support.
    pub members: bool,
    /// True if the body has members that would make the vendor use the operator's account or store
    /// something in it. See `request/foreign_fields.rs`.
    pub account_members: bool,
    /// True if the body has output limits under another name than the surface's, or in a vendor's
    /// own options.
    pub second_limits: bool,
    /// True if the request has a tool that asks a second model.
    pub advisors: bool,
    /// True if the instructions begin with the line by which one client identifies itself for
    /// billing.
    pub billing_header: bool,
}
