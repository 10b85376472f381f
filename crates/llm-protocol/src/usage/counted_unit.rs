//! Units that a vendor bills in the place of tokens, such as the searches of a rerank model.
//!
//! It must not know JSON or a price. Price lists and quotes have one slot for each unit.

use super::tokens::Usage;

/// A unit with a price key of its own, per 1 000 units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedUnit {
    /// One query with up to 100 documents of up to 500 tokens, as Cohere defines it.
    SearchUnit,
}

impl CountedUnit {
    /// Every unit, in the order of a receipt.
    pub const ALL: [Self; 1] = [Self::SearchUnit];

    /// Price key, which is also the class of its line on a receipt.
    pub fn key(self) -> &'static str {
        match self {
            Self::SearchUnit => "search_unit",
        }
    }
}

impl Usage {
    /// Returns the number of these units.
    pub fn units(&self, unit: CountedUnit) -> u64 {
        match unit {
            CountedUnit::SearchUnit => self.search_units,
        }
    }

    /// Returns a usage of only these units.
    pub fn from_units(unit: CountedUnit, count: u64) -> Self {
        match unit {
            CountedUnit::SearchUnit => Self {
                search_units: count,
                ..Self::default()
            },
        }
    }
}
