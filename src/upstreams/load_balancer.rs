//! Chooses one of several endpoints: by the hash of a conversation, or by weighted round robin.
//!
//! This file must not depend on endpoints or their health. A candidate has only a weight and a seed
//! that distinguishes it from others.

/// A candidate for the choice of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub index: usize,
    pub weight: u32,
    /// Seed of the endpoint, which is equal in all processes.
    pub seed: u64,
}

/// Returns the candidate for this key by rendezvous hashing. Each candidate draws one number per
/// unit of weight, and the largest number wins, so that each candidate gets its share of the keys.
/// If a candidate disappears, only its keys move, and they return with the candidate.
pub fn select_by_hash(key: u64, candidates: &[Candidate]) -> Option<usize> {
    let best = |candidate: &Candidate| {
        let own = mix_bits(key ^ candidate.seed);
        (0..u64::from(candidate.weight))
            .map(|draw| mix_bits(own.wrapping_add(draw)))
            .max()
    };
    candidates
        .iter()
        .max_by_key(|candidate| best(candidate))
        .map(|candidate| candidate.index)
}

/// Smooth weighted round robin. With weights 5, 1, 1 the order is a a b a c a a, in which one
/// candidate is never chosen five times in a row.
#[derive(Debug, Default)]
pub struct SmoothRoundRobin(Vec<i64>);

impl SmoothRoundRobin {
    pub fn next(&mut self, candidates: &[Candidate]) -> Option<usize> {
        let count = candidates
            .iter()
            .map(|candidate| candidate.index.saturating_add(1))
            .max()?;
        self.0.resize(self.0.len().max(count), 0);
        let mut total = 0_i64;
        let mut best: Option<(i64, usize)> = None;
        for candidate in candidates {
            let weight = i64::from(candidate.weight);
            total = total.saturating_add(weight);
            let Some(credit) = self.0.get_mut(candidate.index) else {
                continue;
            };
            *credit = credit.saturating_add(weight);
            if best.is_none_or(|(highest, _)| *credit > highest) {
                best = Some((*credit, candidate.index));
            }
        }
        let (_, index) = best?;
        if let Some(credit) = self.0.get_mut(index) {
            *credit = credit.saturating_sub(total);
        }
        Some(index)
    }
}

/// Mixes 64 bits so that all bits of the result depend on all bits of the input (the finisher of
/// SplitMix64).
pub fn mix_bits(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
