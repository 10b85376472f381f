//! Defines the summary of a request body: the facts that determine the payer, the maximum cost and
//! the destination, and the spans of the members that may be edited.
//!
//! This file defines types only. It must not read a body: `request.rs` does.
//!
//! Read next: `request/features.rs`.

use super::conversation::spans::ConversationSpans;
use super::features::Features;
use super::repair_hints::{RepairHints, Setting};
use crate::capabilities::CompletionsApi;
use crate::json::Span;

#[derive(Clone, Debug, Default)]
pub struct RequestSummary {
    pub model: String,
    pub stream: bool,
    pub output_limit: Option<OutputLimit>,
    /// Value of `thinking.budget_tokens` if the type is `enabled` (messages).
    pub thinking_budget: Option<u64>,
    /// Value of `stream_options.include_usage` (chat).
    pub include_usage: bool,
    /// Value of `n`, which is 1 by default, for each prompt (chat).
    pub choices: u64,
    /// Set for a completions request.
    pub completion: Option<CompletionInput>,
    pub features: Features,
    /// True if a chat request has an `input`, or tools, calls, results or parts in the shape of
    /// another protocol: see `translate/chat_shape.rs`. True in case of doubt.
    pub has_other_shape: bool,
    /// Warnings about rewriting that happened before the body was read.
    pub rewritten: Vec<String>,
    /// Number of object members and array items in the whole body.
    pub values: u64,
    /// Bytes that unescaping saves, summed over all strings of the body.
    pub escape_bytes: usize,
    pub(super) hints: RepairHints,
    pub(super) spans: MemberSpans,
    pub(super) conversation: ConversationSpans,
}

/// The output limit in a body. Null counts as no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputLimit {
    /// Name of the member. If the body has both, the name is `max_completion_tokens`.
    pub field: &'static str,
    /// Limit in tokens. If the body has both members, the larger limit counts, because a vendor may
    /// apply either.
    pub tokens: u64,
}

impl RequestSummary {
    /// Returns whether the request has `functions`, the older form of `tools` (chat).
    pub fn has_functions(&self) -> bool {
        self.hints.has(Setting::Functions)
    }

    /// Returns whether the vendor's API reports the usage of each stream, and has no option for it.
    pub fn reports_usage_unasked(&self) -> bool {
        self.completion
            .is_some_and(|completion| completion.api == CompletionsApi::Fim)
    }

    /// Returns the number of answers that the vendor generates, of which it may return fewer.
    pub fn drafts(&self) -> u64 {
        self.completion
            .map_or(self.choices, |completion| completion.drafts)
    }

    /// Returns whether the request only puts the prompt into the vendor's cache and generates
    /// nothing (messages).
    pub fn is_prewarming(&self) -> bool {
        self.spans
            .max_tokens
            .is_some_and(|limit| limit.tokens == Some(0))
    }
}

/// The part of a completions request that decides its cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionInput {
    pub api: CompletionsApi,
    pub prompts: u64,
    /// Number of texts that the vendor generates, of which it may return fewer.
    pub drafts: u64,
    pub(super) best_of: u64,
    pub(super) suffix_bytes: u64,
}

impl CompletionInput {
    pub(super) fn new(api: CompletionsApi) -> Self {
        Self {
            api,
            prompts: 1,
            drafts: 1,
            best_of: 1,
            suffix_bytes: 0,
        }
    }

    /// Returns the most input tokens of the request, for a model that reads `context` tokens at
    /// once. The vendor reads the suffix with each prompt. `text_bytes`: the size of the body,
    /// which has more bytes around each prompt than a vendor adds tokens to it.
    pub fn max_input_tokens(&self, text_bytes: u64, context: u64) -> u64 {
        let repeated = self.prompts.saturating_sub(1);
        text_bytes
            .saturating_add(repeated.saturating_mul(self.suffix_bytes))
            .min(self.prompts.saturating_mul(context))
    }
}

/// Spans of the members that may be edited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberSpans {
    /// Position right after the opening brace.
    pub inside: usize,
    pub model: Span,
    pub max_tokens: Option<OutputLimitMember>,
    pub max_completion_tokens: Option<OutputLimitMember>,
    pub max_output_tokens: Option<OutputLimitMember>,
    pub thinking_budget: Option<Span>,
    pub stream_options: Option<StreamOptions>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OutputLimitMember {
    pub span: Span,
    /// Limit in tokens. `None` if the member is null.
    pub tokens: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum StreamOptions {
    Null(Span),
    Object {
        /// Position right after the opening brace.
        inside: usize,
        is_empty: bool,
        include_usage: Option<Span>,
    },
}
