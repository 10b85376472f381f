//! Limits the open event streams and downloads, per person and in total: in an organisation, no
//! member takes those of the others.
//!
//! This file must not depend on the content of a stream.

use config::Limits;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
pub struct StreamCounts {
    open: Mutex<HashMap<String, u64>>,
}

/// The slot of one open stream or download. It is released on drop.
pub struct StreamSlot {
    streams: Arc<StreamCounts>,
    person: String,
}

impl StreamSlot {
    /// Acquires a slot; `None` if the person (by account id) or the process is at its limit.
    pub fn try_acquire(streams: &Arc<StreamCounts>, person: &str, limits: &Limits) -> Option<Self> {
        let mut open = streams.open.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.live_streams > 0 && open.values().sum::<u64>() >= limits.live_streams {
            return None;
        }
        let count = open.get(person).copied().unwrap_or(0);
        if count >= limits.live_streams_per_account {
            return None;
        }
        open.insert(person.to_owned(), count + 1);
        Some(Self {
            streams: Arc::clone(streams),
            person: person.to_owned(),
        })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self
            .streams
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.person) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.person);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_and_everybody_have_a_number_of_streams_and_places_are_given_back() {
        let streams = Arc::new(StreamCounts::default());
        let limits = Limits {
            live_streams_per_account: 8,
            live_streams: 9,
            ..Limits::default()
        };
        let take = |person| StreamSlot::try_acquire(&streams, person, &limits);
        let places: Vec<_> = (0..8).map(|_| take("a").unwrap()).collect();
        assert!(take("a").is_none());
        let other = take("b").expect("another person has their own");
        assert!(take("c").is_none(), "nine are all there may be");
        drop((places, other));
        assert!(take("a").is_some());
        assert!(
            streams.open.lock().unwrap().is_empty(),
            "nothing is left behind"
        );
    }
}
