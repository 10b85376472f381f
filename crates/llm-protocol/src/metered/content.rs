//! The content of a metered request, as far as it decides the cost, and the most tokens that a
//! vendor can count for it.
//!
//! It must not read JSON or know a price.

use crate::usage::text_tokens;

/// Tokens that a vendor can add to each input: the marks at its begin and end, and a prefix that
/// names the task. Sources: the model cards of E5, BGE, Nomic and Qwen3 embeddings, read 2026-11.
const MAX_TEMPLATE_TOKENS: u64 = 32;

/// The content of a request. Sizes are in bytes of UTF-8, of which each is at most one token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredContent {
    /// Size of each input: bytes of a text, or number of token ids.
    pub(super) sizes: Vec<u64>,
    /// The part of the sizes that is token ids.
    pub(super) token_ids: u64,
}

impl MeteredContent {
    fn size(&self) -> u64 {
        self.sizes.iter().copied().fold(0, u64::saturating_add)
    }

    fn count(&self) -> u64 {
        u64::try_from(self.sizes.len()).unwrap_or(u64::MAX)
    }

    /// Returns the estimated input tokens: ids as they are, and one per 3.5 bytes of text.
    pub fn estimated_tokens(&self) -> u64 {
        text_tokens(self.size().saturating_sub(self.token_ids)).saturating_add(self.token_ids)
    }
}

/// The most input tokens of embeddings: the model reads each input by itself.
pub(super) fn embedding_tokens(content: &MeteredContent, context: u64) -> u64 {
    let (size, count) = (content.size(), content.count());
    size.saturating_add(count.saturating_mul(MAX_TEMPLATE_TOKENS))
        .min(count.saturating_mul(context))
}
