//! Remembers the members that a vendor's server has recently refused, by model. The gateway leaves
//! them out of later requests for a time.
//!
//! This file must not read a clock, a request or an answer.

use std::time::{Duration, Instant};

/// Time for which a refusal is remembered.
const MEMORY: Duration = Duration::from_secs(3_600);

/// Maximum number of refusals that are remembered for one vendor. A further one replaces the
/// oldest.
const MAX_REFUSALS: usize = 256;

#[derive(Debug, Default)]
pub struct LearnedMembers(Vec<Refusal>);

#[derive(Debug)]
struct Refusal {
    upstream_model: String,
    member: &'static str,
    until: Instant,
}

impl LearnedMembers {
    /// Records a refusal. Returns whether the refusal was unknown.
    pub fn record(&mut self, upstream_model: &str, member: &'static str, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|refusal| {
            refusal.until > now
                && !(refusal.member == member && refusal.upstream_model == upstream_model)
        });
        let is_new = self.0.len() == before;
        if self.0.len() >= MAX_REFUSALS {
            self.0.remove(0);
        }
        self.0.push(Refusal {
            upstream_model: upstream_model.to_owned(),
            member,
            until: now + MEMORY,
        });
        is_new
    }

    /// Returns the members that the model's server refuses.
    pub fn of_model(&self, upstream_model: &str, now: Instant) -> Vec<&'static str> {
        let known = self
            .0
            .iter()
            .filter(|refusal| refusal.until > now && refusal.upstream_model == upstream_model);
        known.map(|refusal| refusal.member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_its_model_and_for_an_hour() {
        let (mut learned, now) = (LearnedMembers::default(), Instant::now());
        assert!(learned.record("a", "user", now));
        assert!(!learned.record("a", "user", now), "known");
        assert!(learned.record("b", "seed", now));
        assert_eq!(learned.of_model("a", now), ["user"]);
        assert_eq!(learned.of_model("c", now), [""; 0]);
        assert_eq!(learned.of_model("a", now + MEMORY), [""; 0]);
        for number in 0..MAX_REFUSALS {
            learned.record(&number.to_string(), "user", now);
        }
        assert_eq!(learned.0.len(), MAX_REFUSALS);
        assert_eq!(learned.of_model("a", now), [""; 0], "the oldest goes first");
    }
}
