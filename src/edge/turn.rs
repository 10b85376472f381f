//! A call as a turn of its conversation: the input that is assumed until its vendor reports it, and
//! what is remembered of it for the turns to come.
//!
//! Must not decide what is billed: that is `edge/meter.rs` and `edge/reply.rs`.

use crate::billing::estimate::{InputEstimate, ReportedTurn};
use crate::billing::turns::{ReportedTurns, TurnKey};
use crate::catalog::Model;
use crate::protocol::Protocol;
use crate::protocol::request::{Content, ConversationKey};
use crate::usage::{Usage, UsageEstimator};
use std::sync::Arc;

/// One turn, of one model.
#[derive(Clone)]
pub struct Turn {
    turns: ReportedTurns,
    key: TurnKey,
    content: Content,
    before: Option<ReportedTurn>,
    estimate: InputEstimate,
    /// The vendor reports the input when its stream begins.
    is_reported_early: bool,
}

impl Turn {
    pub fn new(
        turns: &ReportedTurns,
        account: &Arc<str>,
        conversation: ConversationKey,
        content: Content,
        model: &Model,
    ) -> Self {
        let key = TurnKey {
            account: Arc::clone(account),
            conversation,
            model: model.id.clone(),
        };
        let before = turns.find(&key, content.tokens());
        let estimate = InputEstimate::new(&content, model, before.as_ref());
        let is_reported_early = model.protocol() == Protocol::Messages;
        Self {
            turns: turns.clone(),
            key,
            content,
            before,
            estimate,
            is_reported_early,
        }
    }

    /// The same request, of another model.
    pub fn with_model(&self, model: &Model) -> Self {
        Self::new(
            &self.turns,
            &self.key.account,
            self.key.conversation,
            self.content,
            model,
        )
    }

    pub fn conversation(&self) -> ConversationKey {
        self.key.conversation
    }

    pub fn estimator(&self) -> UsageEstimator {
        self.estimate.estimator
    }

    /// Before the answer begins: only its vendor will say how much of the input it had in its
    /// cache, and only at the end.
    pub fn is_doubtful(&self) -> bool {
        self.estimate.is_doubtful && !self.is_reported_early
    }

    /// The same of an answer of which so much was `reported`.
    pub fn is_still_doubtful(&self, reported: Option<Usage>) -> bool {
        self.estimate.is_doubtful && reported.is_none_or(|usage| usage.input_total() == 0)
    }

    /// The vendor reported all of it.
    pub fn remember(&self, usage: &Usage, generated_bytes: u64) {
        if usage.input_total() > 0 {
            let turn =
                ReportedTurn::new(&self.content, usage, generated_bytes, self.before.as_ref());
            self.turns.remember(&self.key, turn, self.before.as_ref());
        }
    }
}
