//! Remembers the last turns of conversations with reported usage, from which later turns are
//! estimated.
//!
//! The memory is bounded and lost with the process; another edge does not share it. Only counts and
//! hashes are stored, never text. The key combines account, conversation and model, so that no
//! account learns anything about another's, and no model is billed by another's tokenizer.

use super::estimate::ReportedTurn;
use llm_protocol::request::ConversationKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of conversations to remember. They take about 5 MB.
pub const MAX_CONVERSATIONS: usize = 8_192;

/// Maximum number of turns to remember per conversation. An agent and its subagents run several
/// threads under one conversation name.
pub const MAX_THREADS: usize = 4;

/// The account, conversation and model of a turn.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TurnKey {
    pub account: Arc<str>,
    pub conversation: ConversationKey,
    pub model: String,
}

/// The last reported turns of each conversation. Cloning it is cheap.
#[derive(Clone, Default)]
pub struct ReportedTurns(Arc<Mutex<Generations>>);

/// The last turn of each thread, oldest first.
type Threads = Vec<ReportedTurn>;

/// Two generations of entries: those used since the old generation was last replaced, and the old
/// one.
#[derive(Default)]
struct Generations {
    young: HashMap<TurnKey, Threads>,
    old: HashMap<TurnKey, Threads>,
}

impl ReportedTurns {
    /// Returns the turn that a request continues. `estimate` is the number of the request's tokens
    /// by content. The result is the longest turn that is not longer than the request, or else the
    /// shortest one.
    pub fn find(&self, key: &TurnKey, estimate: u64) -> Option<ReportedTurn> {
        let mut turns = self.lock();
        let threads = turns.threads(key)?;
        let earlier = threads.iter().filter(|turn| turn.estimate() <= estimate);
        let found = earlier.max_by_key(|turn| turn.estimate());
        found
            .or_else(|| threads.iter().min_by_key(|turn| turn.estimate()))
            .copied()
    }

    /// Stores `turn` in place of `before`, or of the oldest turn.
    pub fn remember(&self, key: &TurnKey, turn: ReportedTurn, before: Option<&ReportedTurn>) {
        let mut turns = self.lock();
        let Some(threads) = turns.threads(key) else {
            return turns.insert(key.clone(), vec![turn]);
        };
        match threads.iter().position(|kept| Some(kept) == before) {
            Some(at) => drop(threads.remove(at)),
            None if threads.len() >= MAX_THREADS => drop(threads.remove(0)),
            None => threads.reserve_exact(1),
        }
        threads.push(turn);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    /// Returns a conversation's threads, and moves them to the new generation.
    fn threads(&mut self, key: &TurnKey) -> Option<&mut Threads> {
        if let Some((key, threads)) = self.old.remove_entry(key) {
            self.insert(key, threads);
        }
        self.young.get_mut(key)
    }

    fn insert(&mut self, key: TurnKey, threads: Threads) {
        if self.young.len() >= MAX_CONVERSATIONS / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llm_protocol::Protocol;
    use llm_protocol::request::{self, ContentSize};
    use llm_protocol::usage::Usage;

    const ANY: u64 = 0;

    fn key(account: &str, session: usize, model: &str) -> TurnKey {
        let body = br#"{"model":"m","messages":[]}"#;
        let summary = request::read_summary(Protocol::Chat, body).unwrap();
        let session = session.to_string();
        let header = |name: &str| (name == "x-session-id").then_some(session.as_str());
        let conversation = summary.conversation_key(account, header, body);
        TurnKey {
            account: account.into(),
            conversation,
            model: model.into(),
        }
    }

    /// A turn for which the vendor counted `input` tokens.
    fn turn(input: u64) -> ReportedTurn {
        ReportedTurn::new(
            &ContentSize::default(),
            &Usage {
                input,
                ..Usage::default()
            },
            0,
            None,
        )
    }

    /// A turn whose request has `letters` letters and for which the vendor counted `input` tokens.
    fn long_turn(letters: usize, input: u64) -> ReportedTurn {
        let body = format!(r#"{{"model":"m","user":"{}"}}"#, "x".repeat(letters));
        let content = request::read_summary(Protocol::Chat, body.as_bytes())
            .unwrap()
            .features
            .content;
        ReportedTurn::new(
            &content,
            &Usage {
                input,
                ..Usage::default()
            },
            0,
            None,
        )
    }

    #[test]
    fn a_turn_is_found_by_its_account_its_conversation_and_its_model() {
        let turns = ReportedTurns::default();
        turns.remember(&key("acct_1", 1, "m"), turn(5), None);
        assert_eq!(turns.find(&key("acct_1", 1, "m"), ANY), Some(turn(5)));
        for other in [
            key("acct_2", 1, "m"),
            key("acct_1", 2, "m"),
            key("acct_1", 1, "n"),
        ] {
            assert_eq!(turns.find(&other, ANY), None, "{other:?}");
        }
        // This holds even if two accounts' conversations had the same key.
        let stolen = TurnKey {
            account: "acct_2".into(),
            ..key("acct_1", 1, "m")
        };
        assert_eq!(turns.find(&stolen, ANY), None);
        turns.remember(&key("acct_1", 1, "m"), turn(6), Some(&turn(5)));
        assert_eq!(turns.find(&key("acct_1", 1, "m"), ANY), Some(turn(6)));
    }

    #[test]
    fn a_subagent_of_the_same_session_does_not_hide_the_long_thread() {
        let (turns, key) = (ReportedTurns::default(), key("acct_1", 1, "m"));
        let (long, short) = (long_turn(90_000, 1), long_turn(3_000, 2));
        turns.remember(&key, long, None);
        turns.remember(&key, short, None);
        let found = |letters| turns.find(&key, long_turn(letters, 0).estimate());
        assert_eq!(found(91_000), Some(long));
        assert_eq!(found(90_000), Some(long), "asked again");
        assert_eq!(found(5_000), Some(short));
        assert_eq!(found(100), Some(short), "shorter than all");
        let longer = long_turn(92_000, 3);
        turns.remember(&key, longer, Some(&long));
        assert_eq!(
            (found(95_000), found(91_000)),
            (Some(longer), Some(short)),
            "it goes on with the long one"
        );
    }

    #[test]
    fn the_oldest_threads_of_a_conversation_are_forgotten_at_the_limit() {
        let (turns, key) = (ReportedTurns::default(), key("acct_1", 1, "m"));
        for thread in 1..=MAX_THREADS {
            turns.remember(&key, long_turn(thread * 1_000, 1), None);
        }
        let shortest = |turns: &ReportedTurns| turns.find(&key, ANY);
        assert_eq!(
            shortest(&turns),
            Some(long_turn(1_000, 1)),
            "all are known up to the limit"
        );
        turns.remember(&key, long_turn(9_000, 1), None);
        assert_eq!(shortest(&turns), Some(long_turn(2_000, 1)));
        assert_eq!(turns.lock().young[&key].len(), MAX_THREADS);
    }

    #[test]
    fn the_conversations_that_were_not_used_for_longest_are_forgotten_at_the_limit() {
        let turns = ReportedTurns::default();
        let kept = || {
            let turns = turns.lock();
            turns.young.len() + turns.old.len()
        };
        for session in 0..MAX_CONVERSATIONS {
            turns.remember(&key("acct_1", session, "m"), turn(1), None);
        }
        assert_eq!(kept(), MAX_CONVERSATIONS);
        assert_eq!(
            turns.find(&key("acct_1", 0, "m"), ANY),
            Some(turn(1)),
            "all are known up to the limit"
        );
        assert!(kept() <= MAX_CONVERSATIONS);
        for session in 0..MAX_CONVERSATIONS / 2 {
            turns.remember(&key("acct_2", session, "m"), turn(2), None);
            assert!(
                turns.find(&key("acct_1", 0, "m"), ANY).is_some(),
                "what is in use is kept"
            );
            assert!(kept() <= MAX_CONVERSATIONS);
        }
        assert_eq!(turns.find(&key("acct_1", 1, "m"), ANY), None);
        assert_eq!(
            turns.find(&key("acct_2", MAX_CONVERSATIONS / 2 - 1, "m"), ANY),
            Some(turn(2))
        );
    }
}
