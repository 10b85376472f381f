//! Schedules the sending of endings, and the polling of endings that the shared store has and the
//! ledger may not have yet.
//!
//! This file must not call the store.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of endings in one call. It is small because a script blocks its server.
const MAX_POLLED: usize = 256;
/// Time before its due time at which an ending is included in a call, so one call queries many.
const POLL_WINDOW: Duration = Duration::from_millis(150);
/// Maximum time between two calls. A store that has lost its data must receive these endings again
/// before it admits requests on the credits that they have used.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// An entry to send at a given time. The earliest one comes first.
pub(crate) struct ScheduledEntry<T> {
    pub at: Instant,
    pub entry: T,
}

/// The endings of the partitions that one call can query.
pub(crate) struct PollQueue<T> {
    entries: BinaryHeap<ScheduledEntry<T>>,
    /// Time of the last call.
    asked_at: Instant,
    /// Number of endings to query whether they are due or not.
    suspect: usize,
}

impl<T> PollQueue<T> {
    pub fn new() -> Self {
        Self {
            entries: BinaryHeap::new(),
            asked_at: Instant::now(),
            suspect: 0,
        }
    }

    pub fn push(&mut self, entry: ScheduledEntry<T>) {
        self.entries.push(entry);
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the time at which the next call is due.
    pub fn due_at(&self) -> Option<Instant> {
        let first = self.entries.peek()?.at;
        Some(match self.suspect {
            0 => first.min(self.asked_at + MAX_SILENCE),
            _ => self.asked_at,
        })
    }

    /// Makes every ending due, because the store has lost one or the process ends.
    pub fn suspect_all(&mut self) {
        if self.suspect == 0 {
            self.suspect = self.entries.len();
        }
    }

    /// Takes the endings of the next call, or none if no call is due.
    pub fn take_due(&mut self, now: Instant) -> Vec<ScheduledEntry<T>> {
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

impl<T> PartialEq for ScheduledEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for ScheduledEntry<T> {}

impl<T> PartialOrd for ScheduledEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for ScheduledEntry<T> {
    /// Reverses the order: the heap pops the greatest entry first, so the earliest must be the
    /// greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(now: Instant, due_in: impl IntoIterator<Item = u64>) -> PollQueue<u64> {
        let mut queue = PollQueue::new();
        queue.asked_at = now;
        for seconds in due_in {
            let at = now + Duration::from_secs(seconds);
            queue.push(ScheduledEntry { at, entry: seconds });
        }
        queue
    }

    fn taken(queue: &mut PollQueue<u64>, at: Instant) -> Vec<u64> {
        let due = queue.take_due(at);
        due.into_iter().map(|due| due.entry).collect()
    }

    #[test]
    fn one_call_a_second_is_made_however_late_the_next_ending_is_due() {
        let now = Instant::now();
        let mut queue = queue(now, [20, 10, 30]);
        assert_eq!(queue.due_at(), Some(now + MAX_SILENCE));
        assert_eq!(taken(&mut queue, now), [0; 0]);
        assert_eq!(taken(&mut queue, now + MAX_SILENCE), [10]);
        assert_eq!(taken(&mut queue, now + MAX_SILENCE), [0; 0]);
        assert_eq!(taken(&mut queue, now + 2 * MAX_SILENCE), [20]);
    }

    #[test]
    fn once_an_ending_is_lost_all_are_asked_for_once_at_once() {
        let now = Instant::now();
        let mut queue = queue(now, 100..100 + 2 * MAX_POLLED as u64 + 7);
        queue.suspect_all();
        for size in [MAX_POLLED, MAX_POLLED, 7] {
            let due = queue.take_due(now);
            assert_eq!(due.len(), size);
            // Some are still waiting for the ledger.
            due.into_iter().take(3).for_each(|due| queue.push(due));
            queue.suspect_all();
        }
        queue.suspect = 0;
        assert_eq!(taken(&mut queue, now), [0; 0]);
        assert_eq!(queue.entries.len(), 9);
    }
}
