//! Which of several endpoints: the one that a conversation belongs to, or the one whose turn it is.
//!
//! Must not know what an endpoint is, nor whether it is healthy: only its weight, and the seed that
//! tells it from others.

/// An endpoint that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub index: usize,
    pub weight: u32,
    /// The same in every process.
    pub seed: u64,
}

/// The candidate that this key belongs to, by rendezvous: every candidate draws as many numbers as
/// it weighs, and the largest wins. So each gets its share of the keys; and where one goes away,
/// its keys alone move, and come back with it.
pub fn by_key(key: u64, candidates: &[Candidate]) -> Option<usize> {
    let best = |candidate: &Candidate| {
        let own = mix(key ^ candidate.seed);
        (0..u64::from(candidate.weight))
            .map(|draw| mix(own.wrapping_add(draw)))
            .max()
    };
    candidates
        .iter()
        .max_by_key(|candidate| best(candidate))
        .map(|candidate| candidate.index)
}

/// Smooth turns: of weights 5, 1, 1 the order is a a b a c a a, never five of a kind in a row.
#[derive(Debug, Default)]
pub struct Turns(Vec<i64>);

impl Turns {
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
            if best.is_none_or(|(most, _)| *credit > most) {
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

/// Spreads 64 bits over 64 bits (the finisher of SplitMix64).
pub fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
