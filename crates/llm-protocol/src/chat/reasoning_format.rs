//! Values of `format` in `reasoning_details`, by which a client returns reasoning to the vendor
//! that made it.

/// `format` value that clients and other gateways know for the reasoning of a messages vendor. An
/// entry without a format counts as this one.
pub(super) const MESSAGES_REASONING_FORMAT: &str = "anthropic-claude-v1";

/// `format` value for the reasoning items of a responses vendor.
pub(super) const RESPONSES_REASONING_FORMAT: &str = "openai-responses-v1";
