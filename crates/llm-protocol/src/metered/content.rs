//! The content of a metered request, as far as it decides the cost, and the most tokens that a
//! vendor can count for it.
//!
//! It must not read JSON or know a price.

use crate::usage::text_tokens;

/// Tokens that a vendor can add to each input: the marks at its begin and end, and a prefix that
/// names the task. Sources: the model cards of E5, BGE, Nomic and Qwen3 embeddings, read 2026-11.
const MAX_TEMPLATE_TOKENS: u64 = 32;

/// Tokens that a vendor can add to each pair of a query and a document.
const MAX_PAIR_TOKENS: u64 = 128;

/// Tokens of the smallest image. Source: OpenAI's guide to images, detail `low`, read 2026-11.
const MIN_IMAGE_TOKENS: u64 = 85;

const PIECE_TOKENS: u64 = 500;
const PIECES_PER_SEARCH_UNIT: u64 = 100;

/// The content of a request. Sizes are in bytes of UTF-8, of which each is at most one token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredContent {
    /// Size of each input: bytes of a text, or number of token ids.
    pub(super) sizes: Vec<u64>,
    /// The part of the sizes that is token ids.
    pub(super) token_ids: u64,
    /// Bytes of the query that each document is compared to.
    pub(super) query: u64,
    pub(super) images: u64,
}

impl MeteredContent {
    fn size(&self) -> u64 {
        self.sizes.iter().copied().fold(0, u64::saturating_add)
    }

    /// Returns the number of inputs, at least 1: a vendor may count the marks of an empty list.
    fn count(&self) -> u64 {
        u64::try_from(self.sizes.len()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the estimated input tokens: ids as they are, one per 3.5 bytes of text, and the
    /// fewest that an image takes.
    pub fn estimated_tokens(&self) -> u64 {
        let queries = self.query.saturating_mul(self.count());
        let text = self.size().saturating_sub(self.token_ids);
        let images = self.images.saturating_mul(MIN_IMAGE_TOKENS);
        text_tokens(text.saturating_add(queries))
            .saturating_add(self.token_ids)
            .saturating_add(images)
    }

    /// Returns the most search units: one for each 100 pieces of 500 tokens, the query included.
    /// Source: Cohere's page on pricing and its rerank reference, read 2026-11.
    pub(super) fn search_units(&self) -> u64 {
        let pieces = self.sizes.iter().map(|size| {
            let size = size.saturating_add(self.query);
            size.div_ceil(PIECE_TOKENS).max(1)
        });
        let pieces = pieces.fold(0, u64::saturating_add);
        pieces.div_ceil(PIECES_PER_SEARCH_UNIT).max(1)
    }
}

/// The most input tokens of embeddings: the model reads each input by itself.
pub(super) fn embedding_tokens(content: &MeteredContent, context: u64) -> u64 {
    let (size, count) = (content.size(), content.count());
    size.saturating_add(count.saturating_mul(MAX_TEMPLATE_TOKENS))
        .min(count.saturating_mul(context))
}

/// The most input tokens of a rerank request: the model reads the query with each document.
pub(super) fn rerank_tokens(content: &MeteredContent, context: u64) -> u64 {
    let (size, count) = (content.size(), content.count());
    let pairs = count.saturating_mul(content.query.saturating_add(MAX_PAIR_TOKENS));
    size.saturating_add(pairs)
        .min(count.saturating_mul(context))
}

/// The most input tokens of a moderation request. An image counts as a whole context.
pub(super) fn moderation_tokens(content: &MeteredContent, context: u64) -> u64 {
    let added = content.count().saturating_mul(MAX_TEMPLATE_TOKENS);
    let images = content.images.saturating_mul(context);
    content.size().saturating_add(added).saturating_add(images)
}
