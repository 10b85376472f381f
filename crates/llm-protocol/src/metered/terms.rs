//! What is billed for a metered request: the vendor's own count where it is believable, otherwise
//! an estimate, and never more than the bound that is held for.
//!
//! It must not know a price.

use super::content::MeteredContent;
use super::table::MeteredEndpoint;
use crate::json::scanner::MAX_COUNT;
use crate::usage::{CountedUnit, Excess, MeteredUsage, UnknownUsage, Usage, UsageVerdict};
use serde_json::Value;

/// The unit that a model's price counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BilledUnit {
    InputTokens,
    Counted(CountedUnit),
}

/// A place in an answer that may hold the count: a member of the document and a path in it.
type CountPath = (&'static str, &'static str);

impl BilledUnit {
    /// Where vendors report the count, in the order of preference. OpenAI and its followers have
    /// both of the first two, Jina and Voyage only the second, Cohere the third.
    fn count_paths(self) -> &'static [CountPath] {
        match self {
            Self::InputTokens => &[
                ("usage", "/prompt_tokens"),
                ("usage", "/total_tokens"),
                ("meta", "/billed_units/input_tokens"),
            ],
            // Cohere, as a number with a fraction.
            Self::Counted(CountedUnit::SearchUnit) => &[("meta", "/billed_units/search_units")],
        }
    }

    /// Returns the usage of this many units.
    pub fn usage(self, count: u64) -> Usage {
        match self {
            Self::InputTokens => Usage {
                input: count,
                ..Usage::default()
            },
            Self::Counted(unit) => Usage::from_units(unit, count),
        }
    }

    fn excess(self) -> Excess {
        match self {
            Self::InputTokens => Excess {
                input: true,
                ..Excess::default()
            },
            Self::Counted(_) => Excess {
                units: true,
                ..Excess::default()
            },
        }
    }
}

/// How a request is metered: the unit, the most units that it can use, and the estimate for an
/// answer that reports none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeteredTerms {
    pub endpoint: &'static MeteredEndpoint,
    pub unit: BilledUnit,
    pub bound: u64,
    estimate: u64,
}

impl MeteredTerms {
    /// Creates the terms of a request to a model that reads `context` tokens at once.
    pub fn new(
        endpoint: &'static MeteredEndpoint,
        unit: BilledUnit,
        content: &MeteredContent,
        context: u64,
    ) -> Self {
        let (bound, estimate) = match unit {
            BilledUnit::InputTokens => (
                (endpoint.max_tokens)(content, context),
                content.estimated_tokens(),
            ),
            BilledUnit::Counted(CountedUnit::SearchUnit) => {
                let units = content.search_units();
                (units, units)
            }
        };
        Self {
            endpoint,
            unit,
            bound,
            estimate: estimate.min(bound),
        }
    }

    /// Terms of a request that is not billed, so that nothing bounds its count.
    pub fn unbounded(endpoint: &'static MeteredEndpoint, unit: BilledUnit) -> Self {
        Self {
            endpoint,
            unit,
            bound: u64::MAX,
            estimate: 0,
        }
    }

    /// Returns the usage to bill if the vendor reported none.
    pub fn estimate(&self) -> Usage {
        self.unit.usage(self.estimate)
    }

    /// Returns the usage to bill. `member` returns the JSON text of a member of the answer. A count
    /// of zero, a negative one and one that is no number are estimated; a count above the bound is
    /// billed at the bound.
    pub(super) fn meter<'a>(&self, member: impl Fn(&str) -> Option<&'a [u8]>) -> MeteredUsage {
        let count = |(name, path): &CountPath| {
            let value: Value = serde_json::from_slice(member(name)?).ok()?;
            read_count(value.pointer(path)?)
        };
        let counted = self.unit.count_paths().iter().find_map(count);
        let (units, verdict) = match counted {
            None => (self.estimate, UsageVerdict::Estimated),
            Some(count) if count > self.bound => {
                (self.bound, UsageVerdict::Implausible(self.unit.excess()))
            }
            Some(count) => (count, UsageVerdict::Exact),
        };
        MeteredUsage {
            usage: self.unit.usage(units),
            verdict,
            counted_output: 0,
            unknown: UnknownUsage::default(),
        }
    }
}

/// Returns a count above zero, [`MAX_COUNT`] for a larger one. Some vendors count in floating
/// point; a fraction is rounded up.
fn read_count(value: &Value) -> Option<u64> {
    let whole = match value.as_u64() {
        Some(whole) => whole,
        None => {
            let number = value.as_f64().filter(|number| *number > 0.0)?.ceil();
            format!("{number:.0}").parse().unwrap_or(MAX_COUNT)
        }
    };
    (whole > 0).then_some(whole.min(MAX_COUNT))
}
