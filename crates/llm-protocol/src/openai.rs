//! Contains the code that chat and responses share: type checks, media, parts, tools, refusals,
//! effort, and the text form of content that neither protocol has.
//!
//! This module must not import a reader or a writer of a protocol: `chat/`, `messages/` and
//! `responses/` stand above it.
//!
//! Read next: `openai/check.rs` (reading), `openai/api_variant.rs` (writing).

pub(crate) mod api_variant;
pub(crate) mod billing_header;
pub(crate) mod cache_marker;
pub(crate) mod check;
pub(crate) mod default_values;
pub(crate) mod effort;
pub(crate) mod media;
pub(crate) mod parts;
pub(crate) mod reasoning_summary;
pub(crate) mod settings;
pub(crate) mod text_fallback;
pub(crate) mod tool_names;
pub(crate) mod tools;
pub(crate) mod unsupported;
