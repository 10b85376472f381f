//! Token counts on one convention: input excludes cache reads, cache writes and audio, output
//! excludes audio.
//!
//! It must not know JSON, a price or a protocol's framing.
//!
//! Read next: `usage/counters.rs`, what a vendor counts; `usage/metering.rs`, what its counters
//! mean; `protocol/counters.rs`, which reads them from a usage object; `usage/estimator.rs`, what
//! is assumed without them.

mod bounds;
mod counters;
mod estimator;
mod metering;
mod passes;
mod server_tool;
mod tier;

pub use bounds::{MeteringTerms, UsageBounds};
pub use counters::{ChatCounters, MessagesCounters, MessagesUsage, VendorCounters};
pub use estimator::{HUNDREDTHS_PER_TEXT_BYTE, TokenRate, UsageEstimator, text_tokens};
pub use metering::{Excess, MeteredUsage, UsageVerdict, meter};
pub use passes::{Pass, Passes};
use serde::{Deserialize, Serialize};
pub use server_tool::{PerTool, ServerTool};
pub use tier::{InferenceGeo, ServiceTier, Speed};

/// The most bytes that a token stands for. The longest entry of each public vocabulary of byte
/// pairs (50 257 to 199 998 entries, counted in 2026-11) has 128: a run of spaces, or of one sign.
/// Answers have 3 to 5 bytes a token, and no answer is made of such runs alone, so the bound also
/// bears what a server writes with escapes.
const TOKEN_BYTES_MAX: u64 = 128;

/// What one answer used, in tokens. The members after `reasoning` are written where they say
/// something, so that what was kept before they were known reads as what is kept now.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Input neither read from nor written to a cache, and no audio.
    pub input: u64,
    pub cache_read: u64,
    /// Written to a cache that lives five minutes (or an unnamed time).
    pub cache_write_5m: u64,
    /// Written to a cache that lives an hour.
    pub cache_write_1h: u64,
    /// All that was generated but audio, reasoning included.
    pub output: u64,
    /// The part of `output` that was reasoning; for information.
    pub reasoning: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub audio_input: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub audio_output: u64,
    /// Searches that the vendor ran, not tokens.
    #[serde(default, skip_serializing_if = "is_none")]
    pub web_searches: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub web_fetches: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub code_executions: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub tool_searches: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub mcp_calls: u64,
    /// The tier that served it, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<ServiceTier>,
    /// Where the vendor says that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_geo: Option<InferenceGeo>,
    /// How fast the vendor says that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// The passes that shortened the conversation first. The classes above include them.
    #[serde(default, skip_serializing_if = "Passes::is_empty")]
    pub compactions: Passes,
}

/// What one pass used, for itself.
impl From<Pass> for Usage {
    fn from(pass: Pass) -> Self {
        Usage::default().each_class_of(&pass, u64::saturating_add)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Nothing of any class.
    pub fn is_zero(&self) -> bool {
        self.served_as(&Usage::default()) == Usage::default()
    }

    /// This usage with `passes` added to its classes.
    #[must_use]
    pub fn with_passes(self, passes: Passes) -> Usage {
        passes.iter().fold(
            Usage {
                compactions: passes,
                ..self
            },
            |usage, pass| usage.each_class_of(pass, u64::saturating_add),
        )
    }

    /// What was used beside the passes that shortened the conversation.
    #[must_use]
    pub fn without_passes(self) -> Usage {
        let own = Usage {
            compactions: Passes::default(),
            ..self
        };
        self.compactions.iter().fold(own, |usage, pass| {
            usage.each_class_of(pass, u64::saturating_sub)
        })
    }

    fn each_class_of(self, pass: &Pass, change: fn(u64, u64) -> u64) -> Usage {
        Usage {
            input: change(self.input, pass.input.into()),
            cache_read: change(self.cache_read, pass.cache_read.into()),
            cache_write_5m: change(self.cache_write_5m, pass.cache_write_5m.into()),
            cache_write_1h: change(self.cache_write_1h, pass.cache_write_1h.into()),
            output: change(self.output, pass.output.into()),
            ..self
        }
    }

    /// This usage, served in the tier, the region and at the speed of `other`.
    #[must_use]
    pub fn served_as(self, other: &Usage) -> Usage {
        Usage {
            service_tier: other.service_tier,
            inference_geo: other.inference_geo,
            speed: other.speed,
            ..self
        }
    }

    /// What is known where only the tier is.
    pub fn of_tier(service_tier: ServiceTier) -> Usage {
        Usage {
            service_tier: Some(service_tier),
            ..Usage::default()
        }
    }

    /// Tokens by class, in the order a receipt lists them.
    pub fn tokens(&self) -> [(&'static str, u64); 7] {
        [
            ("input", self.input),
            ("cache_read", self.cache_read),
            ("cache_write_5m", self.cache_write_5m),
            ("cache_write_1h", self.cache_write_1h),
            ("audio_input", self.audio_input),
            ("output", self.output),
            ("audio_output", self.audio_output),
        ]
    }

    /// Input of every class together.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
            .saturating_add(self.audio_input)
    }

    /// Output of every class together.
    pub fn output_total(&self) -> u64 {
        self.output.saturating_add(self.audio_output)
    }

    /// Input and output of every class together.
    pub fn tokens_total(&self) -> u64 {
        self.input_total().saturating_add(self.output_total())
    }

    /// The least that was used for certain: as few tokens as the generated bytes can be.
    pub fn at_least(generated_bytes: u64) -> Usage {
        Usage {
            output: generated_bytes / TOKEN_BYTES_MAX,
            ..Usage::default()
        }
    }

    /// This usage, unless it says that nothing was used although `generated_bytes` were delivered:
    /// such a vendor does not count, and the usage is missing.
    pub fn believed(self, generated_bytes: u64) -> Option<Usage> {
        if self.is_zero() && generated_bytes > 0 {
            return None;
        }
        Some(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_before_there_were_features_reads_and_writes_as_it_did() {
        let kept = r#"{"input":1,"cache_read":2,"cache_write_5m":3,"cache_write_1h":4,"output":5,"reasoning":6}"#;
        let usage: Usage = serde_json::from_str(kept).unwrap();
        assert_eq!(serde_json::to_string(&usage).unwrap(), kept);
        let usage = Usage {
            audio_output: 7,
            service_tier: Some(ServiceTier::said("flex")),
            ..usage
        };
        let written = serde_json::to_string(&usage).unwrap();
        assert_eq!(serde_json::from_str::<Usage>(&written).unwrap(), usage);
        assert!(Usage::of_tier(ServiceTier::said("flex")).is_zero() && !usage.is_zero());
    }

    #[test]
    fn passes_are_a_part_of_the_classes_and_are_kept_beside_them() {
        let pass = Pass {
            input: 60_385,
            cache_read: 5,
            output: 592,
            ..Pass::default()
        };
        let own = Usage {
            input: 682,
            cache_write_1h: 9,
            output: 1_320,
            reasoning: 20,
            ..Usage::default()
        };
        let whole = own.with_passes([pass, pass].into_iter().collect());
        assert_eq!(
            (whole.input, whole.cache_read, whole.output),
            (121_452, 10, 2_504)
        );
        assert_eq!(
            (
                whole.cache_write_1h,
                whole.reasoning,
                whole.compactions.iter().count()
            ),
            (9, 20, 2)
        );
        assert_eq!(whole.without_passes(), own);
        let written = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Usage>(&written).unwrap(), whole);
    }
}
