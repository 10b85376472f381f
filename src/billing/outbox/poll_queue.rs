//! The endings that the shared store has and the ledger may not have yet: when to ask for which.
//!
//! Must not call the store.

use super::ScheduledEntry;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of endings in one call: a script blocks its server while it runs.
const MAX_POLLED: usize = 256;
/// How much earlier than due a call takes an ending along, so that one call asks for many.
const POLL_WINDOW: Duration = Duration::from_millis(150);
/// Longest time without a call: a store that has lost its data must be told again before it admits
/// requests on the credits that these endings have used.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// The endings of those partitions that one call can ask for.
pub(super) struct PollQueue {
    entries: BinaryHeap<ScheduledEntry>,
    /// When the last call was made.
    asked_at: Instant,
    /// Number of endings to ask for whether they are due or not.
    suspect: usize,
}

impl PollQueue {
    pub fn new() -> Self {
        Self {
            entries: BinaryHeap::new(),
            asked_at: Instant::now(),
            suspect: 0,
        }
    }

    pub fn push(&mut self, entry: ScheduledEntry) {
        self.entries.push(entry);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// When the next call is due.
    pub fn due_at(&self) -> Option<Instant> {
        let first = self.entries.peek()?.at;
        Some(match self.suspect {
            0 => first.min(self.asked_at + MAX_SILENCE),
            _ => self.asked_at,
        })
    }

    /// Makes every ending due: the store has lost one, or this process ends.
    pub fn suspect_all(&mut self) {
        if self.suspect == 0 {
            self.suspect = self.entries.len();
        }
    }

    /// Takes the endings of the next call; none if no call is due.
    pub fn take_due(&mut self, now: Instant) -> Vec<ScheduledEntry> {
        let mut taken = Vec::new();
        if self.due_at().is_none_or(|due_at| due_at > now) {
            return taken;
        }
        self.asked_at = now;
        while taken.len() < MAX_POLLED {
            let is_next = taken.is_empty()
                || self.suspect > 0
                || self
                    .entries
                    .peek()
                    .is_some_and(|due| due.at <= now + POLL_WINDOW);
            if !is_next {
                break;
            }
            let Some(entry) = self.entries.pop() else {
                self.suspect = 0;
                break;
            };
            taken.push(entry);
            self.suspect = self.suspect.saturating_sub(1);
        }
        taken
    }
}
