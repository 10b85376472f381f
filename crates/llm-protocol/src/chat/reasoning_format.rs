//! Defines the values of `format` in `reasoning_details`. A client uses the format to return
//! reasoning to the vendor that made it.

/// The `format` value for a messages vendor's reasoning, which clients and other gateways know. An
/// entry without a format has this one.
pub(super) const MESSAGES_REASONING_FORMAT: &str = "anthropic-claude-v1";

/// The `format` value for the reasoning items of a responses vendor.
pub(super) const RESPONSES_REASONING_FORMAT: &str = "openai-responses-v1";
