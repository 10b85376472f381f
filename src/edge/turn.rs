//! Represents a request as one turn of its conversation: the estimate of the input until the vendor
//! reports it, and the record for the next turns.
//!
//! This file must not decide what is billed: `edge/settlement.rs` and `response/debit.rs` do.

use crate::billing::estimate::{InputEstimate, ReportedTurn};
use crate::billing::reported_turns::{ReportedTurns, TurnKey};
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::request::{ContentSize, ConversationKey};
use llm_protocol::usage::{Usage, UsageEstimator};
use std::sync::Arc;

/// One turn of a conversation, at one model.
#[derive(Clone)]
pub struct MeteredTurn {
    turns: ReportedTurns,
    key: TurnKey,
    content: ContentSize,
    before: Option<ReportedTurn>,
    estimate: InputEstimate,
    /// Number of answers that the vendor generates, and of those that it returns.
    drafts: (u64, u64),
    /// True if the vendor reports the input when its stream begins.
    is_reported_early: bool,
}

impl MeteredTurn {
    pub fn new(
        turns: &ReportedTurns,
        account: &Arc<str>,
        conversation: ConversationKey,
        content: ContentSize,
        model: &CatalogModel,
    ) -> Self {
        let key = TurnKey {
            account: Arc::clone(account),
            conversation,
            model: model.id.clone(),
        };
        let before = turns.find(&key, content.estimated_tokens());
        let estimate = InputEstimate::new(&content, model, before.as_ref());
        let is_reported_early = model.protocol() == Protocol::Messages;
        Self {
            turns: turns.clone(),
            key,
            content,
            before,
            estimate,
            drafts: (1, 1),
            is_reported_early,
        }
    }

    /// Says how many answers the vendor generates, and how many of them it returns.
    #[must_use]
    pub fn with_drafts(self, drafts: u64, choices: u64) -> Self {
        Self {
            drafts: (drafts, choices.max(1)),
            ..self
        }
    }

    pub fn with_model(&self, model: &CatalogModel) -> Self {
        let turn = Self::new(
            &self.turns,
            &self.key.account,
            self.key.conversation,
            self.content,
            model,
        );
        Self {
            drafts: self.drafts,
            ..turn
        }
    }

    pub fn conversation(&self) -> ConversationKey {
        self.key.conversation
    }

    pub fn estimator(&self) -> UsageEstimator {
        let (drafts, choices) = self.drafts;
        self.estimate.estimator.with_drafts(drafts, choices)
    }

    /// Returns whether the estimate is uncertain before the response begins: only the vendor knows
    /// how much of the input was in its cache, and some vendors report that only at the end.
    pub fn is_estimate_uncertain(&self) -> bool {
        self.estimate.is_doubtful && !self.is_reported_early
    }

    /// Returns whether the estimate is still uncertain, given the usage that the vendor has
    /// `reported` so far.
    pub fn is_estimate_still_uncertain(&self, reported: Option<Usage>) -> bool {
        self.estimate.is_doubtful && reported.is_none_or(|usage| usage.input_total() == 0)
    }

    /// Remembers the turn, if the vendor reported its complete usage.
    pub fn remember(&self, usage: &Usage, generated_bytes: u64) {
        if usage.input_total() > 0 {
            let (drafts, choices) = self.drafts;
            let generated_bytes = generated_bytes.saturating_mul(drafts) / choices;
            let turn =
                ReportedTurn::new(&self.content, usage, generated_bytes, self.before.as_ref());
            self.turns.remember(&self.key, turn, self.before.as_ref());
        }
    }
}
