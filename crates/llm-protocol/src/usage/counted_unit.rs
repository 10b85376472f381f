//! Units that a vendor bills in the place of tokens, such as the searches of a rerank model.
//!
//! It must not know JSON or a price. Price lists and quotes have one slot for each unit.

use super::tokens::Usage;

/// A unit with a price key of its own, per 1 000 units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedUnit {
    /// One query with up to 100 documents of up to 500 tokens, as Cohere defines it.
    SearchUnit,
    /// One generated image.
    Image,
    /// One character of a text that is spoken.
    Character,
    /// One second of audio that is transcribed.
    Second,
}

impl CountedUnit {
    /// Every unit, in the order of a receipt.
    pub const ALL: [Self; 4] = [Self::SearchUnit, Self::Image, Self::Character, Self::Second];

    /// Price key, which is also the class of its line on a receipt.
    pub fn key(self) -> &'static str {
        match self {
            Self::SearchUnit => "search_unit",
            Self::Image => "image",
            Self::Character => "character",
            Self::Second => "second",
        }
    }

    /// The units of a limit, as messages name them.
    pub fn plural(self) -> &'static str {
        match self {
            Self::SearchUnit => "search units",
            Self::Image => "images",
            Self::Character => "characters",
            Self::Second => "seconds",
        }
    }
}

impl Usage {
    /// Returns the number of these units.
    pub fn units(&self, unit: CountedUnit) -> u64 {
        let mut usage = *self;
        *usage.units_mut(unit)
    }

    /// Returns a usage of only these units.
    pub fn from_units(unit: CountedUnit, count: u64) -> Self {
        let mut usage = Self::default();
        *usage.units_mut(unit) = count;
        usage
    }

    /// Returns the number of these units, for a change.
    pub fn units_mut(&mut self, unit: CountedUnit) -> &mut u64 {
        match unit {
            CountedUnit::SearchUnit => &mut self.search_units,
            CountedUnit::Image => &mut self.images,
            CountedUnit::Character => &mut self.characters,
            CountedUnit::Second => &mut self.seconds,
        }
    }
}
