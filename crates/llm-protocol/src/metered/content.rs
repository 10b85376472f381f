//! The content of a metered request, as far as it decides the cost, and the most tokens that a
//! vendor can count for it.
//!
//! It must not read JSON or know a price.

use super::table::ModelKind;
use crate::usage::{CountedUnit, Usage, text_tokens};

/// Tokens that a vendor can add to each input: the marks at its begin and end, and a prefix that
/// names the task. Sources: the model cards of E5, BGE, Nomic and Qwen3 embeddings, read 2026-11.
const MAX_TEMPLATE_TOKENS: u64 = 32;

/// Tokens that a vendor can add to each pair of a query and a document.
const MAX_PAIR_TOKENS: u64 = 128;

/// Tokens of the smallest image. Source: OpenAI's guide to images, detail `low`, read 2026-11.
const MIN_IMAGE_TOKENS: u64 = 85;

/// Tokens that previews of a streamed image add to it. Source: 272 became 372 with one of them in
/// <https://github.com/maximhq/bifrost/issues/4777>; a request may ask for three.
const PREVIEW_TOKENS: u64 = 300;

/// The fewest bytes of a second of audio: speech at 2 kbit/s.
const MIN_AUDIO_BYTES_PER_SECOND: u64 = 250;

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
    /// Characters of a text to speak.
    pub(super) characters: u64,
    /// Bytes of the files of a form.
    pub(super) file_bytes: u64,
    /// Length of the audio, by its container.
    pub(super) audio: AudioLength,
    /// Outputs that the request asks for, if it says how many.
    pub(super) outputs: Option<u64>,
}

/// The length of an audio file in seconds, by its container.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AudioLength {
    pub seconds: Option<u64>,
    /// Whether no decoder can find more in it.
    pub is_exact: bool,
}

/// The limits of a model that bound what a request can cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeteredLimits {
    pub context_tokens: u64,
    pub max_output_tokens: u64,
    pub max_audio_seconds: u64,
}

impl MeteredContent {
    fn size(&self) -> u64 {
        self.sizes.iter().copied().fold(0, u64::saturating_add)
    }

    /// Returns the number of inputs, at least 1: a vendor may count the marks of an empty list.
    fn count(&self) -> u64 {
        u64::try_from(self.sizes.len()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the estimated input tokens: ids as they are, 0.3 per byte of text, and the fewest
    /// that an image takes.
    pub fn estimated_tokens(&self) -> u64 {
        let queries = self.query.saturating_mul(self.count());
        let text = self.size().saturating_sub(self.token_ids);
        let images = self.images.saturating_mul(MIN_IMAGE_TOKENS);
        text_tokens(text.saturating_add(queries))
            .saturating_add(self.token_ids)
            .saturating_add(images)
    }

    pub(super) fn outputs(&self) -> u64 {
        self.outputs.unwrap_or(1)
    }

    /// Returns the most of these units that a vendor can count.
    pub(super) fn max_units(&self, unit: CountedUnit, limits: &MeteredLimits) -> u64 {
        match unit {
            CountedUnit::SearchUnit => self.search_units(),
            CountedUnit::Image => self.outputs(),
            CountedUnit::Character => self.characters,
            CountedUnit::Second => {
                let by_size = self.file_bytes.div_ceil(MIN_AUDIO_BYTES_PER_SECOND);
                let exact = self.audio.seconds.filter(|_| self.audio.is_exact);
                exact
                    .unwrap_or(by_size)
                    .clamp(1, limits.max_audio_seconds.max(1))
            }
        }
    }

    /// Returns the estimated number of these units; `None`, if nothing in the request shows it.
    pub(super) fn estimated_units(&self, unit: CountedUnit) -> Option<u64> {
        match unit {
            CountedUnit::SearchUnit | CountedUnit::Image | CountedUnit::Character => None,
            CountedUnit::Second => self.audio.seconds.map(|seconds| seconds.max(1)),
        }
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

    /// Returns the most tokens that a vendor can count, for a model of this kind.
    pub(super) fn max_tokens(&self, kind: ModelKind, limits: &MeteredLimits) -> Usage {
        let (size, count) = (self.size(), self.count());
        let contexts = count.saturating_mul(limits.context_tokens);
        let marked = size.saturating_add(count.saturating_mul(MAX_TEMPLATE_TOKENS));
        let input = |input| Usage {
            input,
            ..Usage::default()
        };
        match kind {
            // The model reads each input by itself.
            ModelKind::Embedding => input(marked.min(contexts)),
            // The model reads the query with each document.
            ModelKind::Rerank => {
                let pairs = count.saturating_mul(self.query.saturating_add(MAX_PAIR_TOKENS));
                input(size.saturating_add(pairs).min(contexts))
            }
            // An image counts as a whole context.
            ModelKind::Moderation => {
                let images = self.images.saturating_mul(limits.context_tokens);
                input(marked.saturating_add(images))
            }
            // The images that the request edits count as a whole context.
            ModelKind::Image => {
                let output = self.outputs().saturating_mul(limits.max_output_tokens);
                let previews = self.outputs().saturating_mul(PREVIEW_TOKENS);
                Usage {
                    image_input: match self.file_bytes {
                        0 => 0,
                        _ => limits.context_tokens,
                    },
                    output,
                    image_output: output.saturating_add(previews),
                    ..input(size.saturating_add(MAX_TEMPLATE_TOKENS))
                }
            }
            // The audio counts as a whole context.
            ModelKind::Transcription => Usage {
                audio_input: limits.context_tokens,
                output: limits.max_output_tokens,
                ..input(size.saturating_add(MAX_TEMPLATE_TOKENS))
            },
            // Speech is billed by characters.
            ModelKind::Speech | ModelKind::Chat => Usage::default(),
        }
    }
}
