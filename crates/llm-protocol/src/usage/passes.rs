//! Compaction passes, by which a vendor shortened a conversation before the answer.
//!
//! This file must not depend on a price: `crates/credits/src/pricing.rs` prices each pass by its
//! own size.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Tokens of one pass by class. A count above 32 bits is stored as the maximum of 32 bits.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompactionPass {
    pub input: u32,
    #[serde(default)]
    pub cache_read: u32,
    #[serde(default)]
    pub cache_write_5m: u32,
    #[serde(default)]
    pub cache_write_1h: u32,
    pub output: u32,
}

impl CompactionPass {
    pub fn input_total(&self) -> u64 {
        [
            self.input,
            self.cache_read,
            self.cache_write_5m,
            self.cache_write_1h,
        ]
        .into_iter()
        .map(u64::from)
        .sum()
    }

    fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            output: self.output.saturating_add(other.output),
        }
    }
}

/// The passes of one answer, in order. The type has a fixed size, because it is copied with its
/// usage: the last slot has the sum of all passes from the eighth on.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactionPasses {
    places: [CompactionPass; CompactionPasses::MAX],
    used: u8,
}

impl CompactionPasses {
    pub const MAX: usize = 8;

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn push(&mut self, pass: CompactionPass) {
        let used = usize::from(self.used);
        if let Some(slot) = self.places.get_mut(used) {
            *slot = pass;
            self.used = self.used.saturating_add(1);
        } else if let Some(last) = self.places.last_mut() {
            *last = last.plus(pass);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &CompactionPass> {
        self.places.iter().take(usize::from(self.used))
    }
}

impl IntoIterator for CompactionPasses {
    type Item = CompactionPass;
    type IntoIter =
        std::iter::Take<std::array::IntoIter<CompactionPass, { CompactionPasses::MAX }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.places.into_iter().take(usize::from(self.used))
    }
}

impl Extend<CompactionPass> for CompactionPasses {
    fn extend<I: IntoIterator<Item = CompactionPass>>(&mut self, passes: I) {
        passes.into_iter().for_each(|pass| self.push(pass));
    }
}

impl FromIterator<CompactionPass> for CompactionPasses {
    fn from_iter<I: IntoIterator<Item = CompactionPass>>(passes: I) -> Self {
        let mut all = Self::default();
        all.extend(passes);
        all
    }
}

impl Serialize for CompactionPasses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for CompactionPasses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<CompactionPass>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(input: u32) -> CompactionPass {
        CompactionPass {
            input,
            output: 1,
            ..CompactionPass::default()
        }
    }

    #[test]
    fn passes_beyond_the_last_place_are_added_to_it() {
        let full: CompactionPasses = (1..=8).map(pass).collect();
        assert_eq!(
            (full.iter().count(), full.iter().last()),
            (8, Some(&pass(8)))
        );
        let more: CompactionPasses = (1..=10).map(pass).collect();
        assert_eq!(
            more.iter().last(),
            Some(&CompactionPass {
                input: 27,
                output: 3,
                ..CompactionPass::default()
            })
        );
        assert_eq!(
            more.iter().take(7).collect::<Vec<_>>(),
            full.iter().take(7).collect::<Vec<_>>()
        );
        let huge: CompactionPasses = (0..9).map(|_| pass(u32::MAX)).collect();
        assert_eq!(huge.iter().last().map(|pass| pass.input), Some(u32::MAX));
    }

    #[test]
    fn passes_are_written_as_a_list_and_read_back() {
        let passes: CompactionPasses = [
            pass(3),
            CompactionPass {
                cache_read: 4,
                ..pass(5)
            },
        ]
        .into_iter()
        .collect();
        let json = serde_json::to_string(&passes).unwrap();
        assert_eq!(
            serde_json::from_str::<CompactionPasses>(&json).unwrap(),
            passes
        );
        assert_eq!(
            serde_json::from_str::<CompactionPasses>(r#"[{"input":3,"output":1}]"#)
                .unwrap()
                .iter()
                .next(),
            Some(&pass(3))
        );
        assert_eq!(
            CompactionPass {
                cache_read: 2,
                cache_write_5m: 4,
                cache_write_1h: 8,
                ..pass(1)
            }
            .input_total(),
            15
        );
    }
}
