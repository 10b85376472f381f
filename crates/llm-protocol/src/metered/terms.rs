//! What is billed for a metered request: the vendor's own count where it is believable, otherwise
//! an estimate, and never more than the bound that is held for.
//!
//! It must not know a price.

use super::content::{MeteredContent, MeteredLimits};
use super::table::{MeteredEndpoint, ModelKind};
use crate::json::scanner::MAX_COUNT;
use crate::usage::{CountedUnit, Excess, MeteredUsage, UnknownUsage, Usage, UsageVerdict};
use serde_json::Value;

/// The unit that a model's price counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BilledUnit {
    /// Tokens of each class that the kind of the model has.
    Tokens,
    Counted(CountedUnit),
}

/// A place in an answer that may hold a count: a member of the document and a path in it.
type CountPath = (&'static str, &'static str);

/// A class of tokens in a usage.
type TokenClass = fn(&mut Usage) -> &mut u64;

/// The classes of input and those of output that an endpoint may report.
const INPUT_CLASSES: [TokenClass; 3] = [
    |usage| &mut usage.input,
    |usage| &mut usage.audio_input,
    |usage| &mut usage.image_input,
];
const OUTPUT_CLASSES: [TokenClass; 2] =
    [|usage| &mut usage.output, |usage| &mut usage.image_output];

/// Where vendors report the tokens of a request without media, in the order of preference. OpenAI
/// and its followers have both of the first two, Jina and Voyage only the second, Cohere the third.
const INPUT_TOKENS: [CountPath; 3] = [
    ("usage", "/prompt_tokens"),
    ("usage", "/total_tokens"),
    ("meta", "/billed_units/input_tokens"),
];

/// Where vendors report the tokens of an output: OpenAI, and the servers that answer as to a chat.
const OUTPUT_TOKENS: [CountPath; 2] =
    [("usage", "/output_tokens"), ("usage", "/completion_tokens")];

/// Tokens of a generated image of medium quality, 1 024 × 1 024, for a vendor that reports none.
/// Source: OpenAI's guide to image generation, read 2026-11.
const IMAGE_OUTPUT_TOKENS: u64 = 1_056;

/// Tokens of a second of audio, and of the words that are spoken in it, for a vendor that reports
/// none. Source: OpenAI's prices of a minute and of a token of audio, read 2026-11; speech has two
/// to three words a second.
const AUDIO_TOKENS_PER_SECOND: u64 = 16;
const WORD_TOKENS_PER_SECOND: u64 = 4;

/// What an answer reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MeteredReport {
    /// The vendor's count; nothing, if it reports none.
    pub(super) usage: Usage,
    /// Outputs, such as images.
    pub(super) items: u64,
    /// The length of a transcription, as its text shows.
    pub(super) seconds: Option<u64>,
}

impl MeteredReport {
    /// Adds what a document reports: an answer, or an event that ends one of its outputs. `member`
    /// returns a member of the document.
    pub(super) fn add(&mut self, terms: &MeteredTerms, member: impl Fn(&str) -> Option<Value>) {
        let count = |paths: &[CountPath]| {
            let found = paths.iter().find_map(|(name, path)| {
                let value = member(name)?;
                read_count(value.pointer(path)?)
            });
            found.unwrap_or(0)
        };
        let usage = match (terms.unit, terms.endpoint.kind) {
            (BilledUnit::Counted(unit), _) => Usage::from_units(unit, count(count_paths(unit))),
            // Source: `Usage` of `ImagesResponse` in openai 3.57 for Python.
            (BilledUnit::Tokens, ModelKind::Image) => {
                let input = count(&[("usage", "/input_tokens"), ("usage", "/prompt_tokens")]);
                let output = count(&OUTPUT_TOKENS);
                // Without details, what the text cannot be is images.
                let images = count(&[("usage", "/input_tokens_details/image_tokens")])
                    .max(input.saturating_sub(terms.bound.input))
                    .min(input);
                let text = count(&[("usage", "/output_tokens_details/text_tokens")]).min(output);
                Usage {
                    input: input.saturating_sub(images),
                    image_input: images,
                    output: text,
                    image_output: output.saturating_sub(text),
                    ..Usage::default()
                }
            }
            // Source: `UsageTokens` of `Transcription` in openai 3.57 for Python.
            (BilledUnit::Tokens, ModelKind::Transcription) => {
                let input = count(&[("usage", "/input_tokens"), ("usage", "/prompt_tokens")]);
                let text = count(&[("usage", "/input_token_details/text_tokens")]).min(input);
                Usage {
                    input: text,
                    audio_input: input.saturating_sub(text),
                    output: count(&OUTPUT_TOKENS),
                    ..Usage::default()
                }
            }
            (BilledUnit::Tokens, _) => Usage {
                input: count(&INPUT_TOKENS),
                ..Usage::default()
            },
        };
        let classes = INPUT_CLASSES.iter().chain(&OUTPUT_CLASSES);
        let mut usage = usage;
        for class in classes {
            let sum = class(&mut self.usage);
            *sum = sum.saturating_add(*class(&mut usage)).min(MAX_COUNT);
        }
        for unit in CountedUnit::ALL {
            let sum = self.usage.units_mut(unit);
            *sum = sum.saturating_add(usage.units(unit)).min(MAX_COUNT);
        }
    }
}

/// Where vendors report the count of a unit, in the order of preference.
fn count_paths(unit: CountedUnit) -> &'static [CountPath] {
    match unit {
        // Cohere, as a number with a fraction.
        CountedUnit::SearchUnit => &[("meta", "/billed_units/search_units")],
        // OpenAI, Mistral, and the servers that answer only with `verbose_json`.
        CountedUnit::Second => &[
            ("usage", "/seconds"),
            ("usage", "/prompt_audio_seconds"),
            ("duration", ""),
        ],
        CountedUnit::Image | CountedUnit::Character => &[],
    }
}

/// How a request is metered: the unit, the most that it can use, and the estimate for an answer
/// that reports nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeteredTerms {
    pub endpoint: &'static MeteredEndpoint,
    pub unit: BilledUnit,
    pub bound: Usage,
    estimate: Usage,
}

impl MeteredTerms {
    /// Creates the terms of a request to a model with these limits.
    pub fn new(
        endpoint: &'static MeteredEndpoint,
        unit: BilledUnit,
        content: &MeteredContent,
        limits: &MeteredLimits,
    ) -> Self {
        let (bound, estimate) = match unit {
            BilledUnit::Tokens => (
                content.max_tokens(endpoint.kind, limits),
                estimated_tokens(endpoint.kind, content),
            ),
            BilledUnit::Counted(unit) => {
                let bound = content.max_units(unit, limits);
                let estimate = content.estimated_units(unit).unwrap_or(bound);
                (
                    Usage::from_units(unit, bound),
                    Usage::from_units(unit, estimate),
                )
            }
        };
        Self {
            endpoint,
            unit,
            bound,
            estimate: cap(estimate, &bound).0,
        }
    }

    /// Returns the usage to bill if the vendor reported none.
    pub fn estimate(&self) -> Usage {
        self.estimate
    }

    /// Returns the estimate for an answer, of which a report may show the size.
    fn estimate_of(&self, report: &MeteredReport) -> Usage {
        match (self.unit, report.seconds) {
            (BilledUnit::Counted(unit @ CountedUnit::Second), Some(seconds)) => {
                let seconds = seconds.max(self.estimate.units(unit));
                Usage::from_units(unit, seconds)
            }
            (BilledUnit::Tokens, _) if self.endpoint.kind == ModelKind::Image => Usage {
                image_output: report
                    .items
                    .saturating_mul(IMAGE_OUTPUT_TOKENS)
                    .max(self.estimate.image_output),
                ..self.estimate
            },
            _ => self.estimate,
        }
    }

    /// Returns the usage to bill. A count of zero, a negative one and one that is no number are
    /// estimated, the input and the output each by itself: a vendor may count a prompt and not the
    /// images. A count above the bound is billed at the bound.
    pub(super) fn bill(&self, report: &MeteredReport) -> MeteredUsage {
        let shown = match self.unit {
            // What was asked for is what is billed.
            BilledUnit::Counted(CountedUnit::Character) => self.bound,
            BilledUnit::Counted(CountedUnit::Image) => {
                Usage::from_units(CountedUnit::Image, report.items)
            }
            BilledUnit::Counted(_) | BilledUnit::Tokens => report.usage,
        };
        let (mut usage, excess) = cap(shown, &self.bound);
        let estimate = cap(self.estimate_of(report), &self.bound).0;
        let is_estimated = fill(&mut usage, &estimate) || shown.is_zero();
        let verdict = match (excess == Excess::default(), is_estimated) {
            (false, _) => UsageVerdict::Implausible(excess),
            (true, true) => UsageVerdict::Estimated,
            (true, false) => UsageVerdict::Exact,
        };
        MeteredUsage {
            usage,
            verdict,
            counted_output: 0,
            unknown: UnknownUsage::default(),
        }
    }
}

/// Returns the estimated usage in tokens, for a vendor that reports none.
fn estimated_tokens(kind: ModelKind, content: &MeteredContent) -> Usage {
    let usage = Usage {
        input: content.estimated_tokens(),
        ..Usage::default()
    };
    let seconds = content.audio.seconds.unwrap_or(0);
    match kind {
        ModelKind::Image => Usage {
            image_output: content.outputs().saturating_mul(IMAGE_OUTPUT_TOKENS),
            ..usage
        },
        ModelKind::Transcription => Usage {
            audio_input: seconds.saturating_mul(AUDIO_TOKENS_PER_SECOND),
            output: seconds.saturating_mul(WORD_TOKENS_PER_SECOND),
            ..usage
        },
        _ => usage,
    }
}

/// Takes the input, the output and each unit from `estimate` if `usage` has none of it. Returns
/// whether this changed anything.
fn fill(usage: &mut Usage, estimate: &Usage) -> bool {
    let (before, mut estimate) = (*usage, *estimate);
    for side in [&INPUT_CLASSES[..], &OUTPUT_CLASSES[..]] {
        if side.iter().all(|class| *class(usage) == 0) {
            side.iter()
                .for_each(|class| *class(usage) = *class(&mut estimate));
        }
    }
    for unit in CountedUnit::ALL {
        let count = usage.units_mut(unit);
        *count = if *count == 0 {
            estimate.units(unit)
        } else {
            *count
        };
    }
    *usage != before
}

/// Lowers each count to that of `bound`, and says which were above it.
fn cap(mut usage: Usage, bound: &Usage) -> (Usage, Excess) {
    let (mut bound, mut excess) = (*bound, Excess::default());
    let mut lower = |classes: &[TokenClass]| {
        classes.iter().fold(false, |is_above, class| {
            let (count, most) = (class(&mut usage), *class(&mut bound));
            let is_more = *count > most;
            *count = most.min(*count);
            is_above || is_more
        })
    };
    excess.input = lower(&INPUT_CLASSES);
    excess.output = lower(&OUTPUT_CLASSES);
    for unit in CountedUnit::ALL {
        let (count, most) = (usage.units_mut(unit), bound.units(unit));
        excess.units |= *count > most;
        *count = most.min(*count);
    }
    (usage, excess)
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
