//! The turns of conversations that vendors reported last: what an unreported turn of the same conversation is estimated by.
//!
//! In memory alone, and bounded: a process that starts anew, or another edge, begins without. Kept are counts and hashes,
//! never text. A turn is found under its account, its conversation and its model together, so that no account learns
//! anything of another's, and no model is billed by another's tokenizer.

use super::estimate::ReportedTurn;
use crate::protocol::request::ConversationKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Conversations that are remembered at most: some 4 MB.
pub const CONVERSATIONS_MAX: usize = 16_384;

/// Whose turn it is, and of which model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TurnKey {
    pub account: Arc<str>,
    pub conversation: ConversationKey,
    pub model: String,
}

/// The last reported turn of each conversation. Cheap to clone.
#[derive(Clone, Default)]
pub struct ReportedTurns(Arc<Mutex<Generations>>);

/// What was written or read since the older half was last dropped, and that half.
#[derive(Default)]
struct Generations {
    young: HashMap<TurnKey, ReportedTurn>,
    old: HashMap<TurnKey, ReportedTurn>,
}

impl ReportedTurns {
    pub fn find(&self, key: &TurnKey) -> Option<ReportedTurn> {
        let mut turns = self.lock();
        if let Some(turn) = turns.young.get(key) {
            return Some(*turn);
        }
        let (key, turn) = turns.old.remove_entry(key)?;
        turns.insert(key, turn);
        Some(turn)
    }

    /// The newest turn takes the place of the one before it.
    pub fn remember(&self, key: TurnKey, turn: ReportedTurn) {
        let mut turns = self.lock();
        turns.old.remove(&key);
        turns.insert(key, turn);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, key: TurnKey, turn: ReportedTurn) {
        if self.young.len() >= CONVERSATIONS_MAX / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;
    use crate::protocol::request;
    use crate::usage::Usage;

    fn key(account: &str, session: usize, model: &str) -> TurnKey {
        let body = br#"{"model":"m","messages":[]}"#;
        let outline = request::read(Protocol::Chat, body).unwrap();
        let session = session.to_string();
        let header = |name: &str| (name == "x-session-id").then_some(session.as_str());
        let conversation = outline.conversation(account, header, body);
        TurnKey { account: account.into(), conversation, model: model.into() }
    }

    fn turn(input: u64) -> ReportedTurn {
        ReportedTurn::new(&Default::default(), &Usage { input, ..Usage::default() }, 0, None)
    }

    #[test]
    fn a_turn_is_found_by_its_account_its_conversation_and_its_model() {
        let turns = ReportedTurns::default();
        turns.remember(key("acct_1", 1, "m"), turn(5));
        assert_eq!(turns.find(&key("acct_1", 1, "m")), Some(turn(5)));
        for other in [key("acct_2", 1, "m"), key("acct_1", 2, "m"), key("acct_1", 1, "n")] {
            assert_eq!(turns.find(&other), None, "{other:?}");
        }
        // Even where two accounts' conversations had the same key.
        let stolen = TurnKey { account: "acct_2".into(), ..key("acct_1", 1, "m") };
        assert_eq!(turns.find(&stolen), None);
        turns.remember(key("acct_1", 1, "m"), turn(6));
        assert_eq!(turns.find(&key("acct_1", 1, "m")), Some(turn(6)));
    }

    #[test]
    fn the_conversations_that_were_not_used_for_longest_are_forgotten_at_the_limit() {
        let turns = ReportedTurns::default();
        let kept = || {
            let turns = turns.lock();
            turns.young.len() + turns.old.len()
        };
        for session in 0..CONVERSATIONS_MAX {
            turns.remember(key("acct_1", session, "m"), turn(1));
        }
        assert_eq!(kept(), CONVERSATIONS_MAX);
        assert_eq!(turns.find(&key("acct_1", 0, "m")), Some(turn(1)), "all are known up to the limit");
        assert!(kept() <= CONVERSATIONS_MAX);
        for session in 0..CONVERSATIONS_MAX / 2 {
            turns.remember(key("acct_2", session, "m"), turn(2));
            assert!(turns.find(&key("acct_1", 0, "m")).is_some(), "what is in use is kept");
            assert!(kept() <= CONVERSATIONS_MAX);
        }
        assert_eq!(turns.find(&key("acct_1", 1, "m")), None);
        assert_eq!(turns.find(&key("acct_2", CONVERSATIONS_MAX / 2 - 1, "m")), Some(turn(2)));
    }
}
