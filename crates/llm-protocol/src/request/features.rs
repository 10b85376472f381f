//! The features that make a vendor read or do more than one pass over the body's own bytes.
//!
//! Types only. They must not price anything.
//!
//! Read next: `request/features/read.rs`, which finds them.

use super::content::ContentSize;
use super::vendor_state::FirstReference;
use crate::usage::{InferenceGeo, PerTool, ServiceTier, Speed};

mod read;

/// Features of a body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Number of image blocks or parts, including those in tool results.
    pub images: u32,
    /// Whether there are documents, files or videos, whose tokens cannot be derived from their
    /// bytes. Plain text documents count as text.
    pub documents_or_files: bool,
    /// Whether there is audio input.
    pub audio_input: bool,
    /// Whether the caller asks for audio output.
    pub audio_output: bool,
    /// Whether the vendor must fetch anything from a URL.
    pub url_sources: bool,
    /// The first reference to an object in the vendor account.
    pub vendor_reference: FirstReference,
    /// Whether there are tools that run at the vendor, whose results become input, and that have no
    /// price key.
    pub server_tools: bool,
    /// The first member that asks for such a tool (chat).
    pub server_tool_member: Option<&'static str>,
    /// Offers of server tools with a price key, by tool, merged over all tools of the kind.
    pub tool_offers: PerTool<Option<ToolOffer>>,
    /// Maximum number of server tool calls of all kinds (responses). The larger value if the member
    /// is duplicated.
    pub max_tool_calls: Option<u64>,
    /// Whether the vendor may compact the conversation in extra passes.
    pub compaction: bool,
    /// The service tier, if the caller named one other than the default.
    pub service_tier: Option<ServiceTier>,
    /// Whether the caller named the default tier and no other.
    pub usual_tier: bool,
    /// Whether the request offers tools or the conversation has tool calls. In doubt, true.
    pub tools: bool,
    /// Whether the caller turned reasoning off (chat).
    pub no_reasoning: bool,
    /// Whether the caller gave stop sequences.
    pub stops: bool,
    /// The speed, if not the standard one.
    pub speed: Option<Speed>,
    /// The inference region, if not `global`.
    pub inference_geo: Option<InferenceGeo>,
    /// Whether the caller named the region `global` and no other.
    pub usual_geo: bool,
    /// Whether other models may answer instead.
    pub fallback_models: bool,
    /// Whether there is a `cache_control` anywhere.
    pub cache_markers: bool,
    /// Whether the request asks for a longer lifetime of the cache than the vendor's default.
    pub cache_markers_1h: bool,
    /// Found while the body is read: becomes `has_other_shape` of the summary.
    pub other_shape: bool,
    /// Remains of another vendor's answers that this vendor may refuse. `request/foreign_fields.rs`
    /// reads the body for them. In doubt, true.
    pub leftovers: ForeignFields,
    /// Content of the body, by kind.
    pub content: ContentSize,
}

/// A server tool that the vendor may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ToolOffer {
    /// Maximum number of uses, summed over all tools of the kind; `None` if one of them has no
    /// limit.
    pub max_uses: Option<u64>,
}

/// Possible remains of another vendor's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForeignFields {
    /// A thinking block without a signature of a messages vendor.
    pub unsigned_thinking: bool,
    /// A call id that a messages vendor refuses.
    pub odd_ids: bool,
    /// A call id that is too long for a chat vendor.
    pub long_ids: bool,
    /// A call id that is not exactly nine letters or digits. Some chat vendors accept only those.
    pub other_than_nine: bool,
    /// Number of thinking blocks with a messages vendor's signature.
    pub thoughts: u32,
    /// Number of tool results of the messages protocol.
    pub tool_results: u32,
    /// Members of the messages protocol and of reasoning that the vendor of the chat protocol does
    /// not know.
    pub members: bool,
    /// Members that would make the vendor use the operator's account or store something in it: see
    /// `request/foreign_fields.rs`.
    pub account_members: bool,
    /// Output limits under another name than the surface's, or in a vendor's own options.
    pub second_limits: bool,
    /// A tool that asks a second model.
    pub advisors: bool,
    /// The instructions begin with the line by which one client names itself for billing.
    pub billing_header: bool,
}
