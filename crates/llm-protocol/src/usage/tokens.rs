//! Defines the usage of one answer in tokens.
//!
//! This file must not depend on a vendor's counters: `usage/metering.rs` does.
//!
//! Read next: `usage/counters.rs`.

use super::passes::{CompactionPass, CompactionPasses};
use super::tier::{InferenceGeo, ServiceTier, Speed};
use serde::{Deserialize, Serialize};

/// Maximum number of bytes per token. The longest entry of each public vocabulary of byte pairs (50
/// 257 to 199 998 entries, counted in 2026-11) has 128 bytes: a run of spaces, or of one character.
/// Answers have 3 to 5 bytes per token, and no answer consists of such runs alone, so the bound
/// also covers the escapes that a server writes.
const MAX_TOKEN_BYTES: u64 = 128;

/// Usage of one answer, in tokens. The fields after `reasoning` are written only if they are set,
/// so that a usage that was stored before these fields existed stays readable.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Input that is neither read from nor written to a cache, and neither audio nor images.
    pub input: u64,
    pub cache_read: u64,
    /// Input written to a cache that lasts five minutes (or an unknown time).
    pub cache_write_5m: u64,
    /// Input written to a cache that lasts an hour.
    pub cache_write_1h: u64,
    /// All generated tokens except audio and images, including reasoning.
    pub output: u64,
    /// Part of `output` that was reasoning. It does not affect the bill.
    pub reasoning: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub audio_input: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub audio_output: u64,
    /// Number of searches that the vendor ran. They are not tokens.
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
    #[serde(default, skip_serializing_if = "is_none")]
    pub image_input: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub image_output: u64,
    /// Units of a rerank model that is not billed by tokens.
    #[serde(default, skip_serializing_if = "is_none")]
    pub search_units: u64,
    /// Generated images of a model that is not billed by tokens.
    #[serde(default, skip_serializing_if = "is_none")]
    pub images: u64,
    /// Spoken characters.
    #[serde(default, skip_serializing_if = "is_none")]
    pub characters: u64,
    /// Transcribed seconds of a model that is not billed by tokens.
    #[serde(default, skip_serializing_if = "is_none")]
    pub seconds: u64,
    /// Service tier that served the answer, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<ServiceTier>,
    /// Region in which the request ran, as reported by the vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_geo: Option<InferenceGeo>,
    /// Speed at which the request ran, as reported by the vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    /// Compaction passes that shortened the conversation first. The classes above include them.
    #[serde(default, skip_serializing_if = "CompactionPasses::is_empty")]
    pub compactions: CompactionPasses,
}

impl From<CompactionPass> for Usage {
    fn from(pass: CompactionPass) -> Self {
        Usage::default().map_classes(&pass, u64::saturating_add)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    pub fn is_zero(&self) -> bool {
        self.with_tier_of(&Usage::default()) == Usage::default()
    }

    /// Returns this usage with `passes` added to its classes.
    #[must_use]
    pub fn with_passes(self, passes: CompactionPasses) -> Usage {
        passes.iter().fold(
            Usage {
                compactions: passes,
                ..self
            },
            |usage, pass| usage.map_classes(pass, u64::saturating_add),
        )
    }

    /// Returns the usage without the compaction passes.
    #[must_use]
    pub fn without_passes(self) -> Usage {
        let own = Usage {
            compactions: CompactionPasses::default(),
            ..self
        };
        self.compactions.iter().fold(own, |usage, pass| {
            usage.map_classes(pass, u64::saturating_sub)
        })
    }

    fn map_classes(self, pass: &CompactionPass, change: fn(u64, u64) -> u64) -> Usage {
        Usage {
            input: change(self.input, pass.input.into()),
            cache_read: change(self.cache_read, pass.cache_read.into()),
            cache_write_5m: change(self.cache_write_5m, pass.cache_write_5m.into()),
            cache_write_1h: change(self.cache_write_1h, pass.cache_write_1h.into()),
            output: change(self.output, pass.output.into()),
            ..self
        }
    }

    /// Returns this usage with the tier, the region and the speed of `other`.
    #[must_use]
    pub fn with_tier_of(self, other: &Usage) -> Usage {
        Usage {
            service_tier: other.service_tier,
            inference_geo: other.inference_geo,
            speed: other.speed,
            ..self
        }
    }

    pub fn from_tier(service_tier: ServiceTier) -> Usage {
        Usage {
            service_tier: Some(service_tier),
            ..Usage::default()
        }
    }

    /// Returns the tokens by class, in the order of a receipt.
    pub fn tokens(&self) -> [(&'static str, u64); 9] {
        [
            ("input", self.input),
            ("cache_read", self.cache_read),
            ("cache_write_5m", self.cache_write_5m),
            ("cache_write_1h", self.cache_write_1h),
            ("audio_input", self.audio_input),
            ("image_input", self.image_input),
            ("output", self.output),
            ("audio_output", self.audio_output),
            ("image_output", self.image_output),
        ]
    }

    /// Returns the total input of all classes.
    pub fn input_total(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write_5m)
            .saturating_add(self.cache_write_1h)
            .saturating_add(self.audio_input)
            .saturating_add(self.image_input)
    }

    /// Returns the total output of all classes.
    pub fn output_total(&self) -> u64 {
        self.output
            .saturating_add(self.audio_output)
            .saturating_add(self.image_output)
    }

    /// Returns the total input and output of all classes.
    pub fn tokens_total(&self) -> u64 {
        self.input_total().saturating_add(self.output_total())
    }

    /// Returns the smallest possible usage, given by the smallest number of tokens that the
    /// generated bytes can be.
    pub fn lower_bound(generated_bytes: u64) -> Usage {
        Usage {
            output: generated_bytes / MAX_TOKEN_BYTES,
            ..Usage::default()
        }
    }

    /// Returns this usage, or `None` if it is zero although `generated_bytes` were delivered. In
    /// that case the vendor does not count.
    pub fn if_plausible(self, generated_bytes: u64) -> Option<Usage> {
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
            service_tier: Some(ServiceTier::from_wire("flex")),
            ..usage
        };
        let written = serde_json::to_string(&usage).unwrap();
        assert_eq!(serde_json::from_str::<Usage>(&written).unwrap(), usage);
        assert!(Usage::from_tier(ServiceTier::from_wire("flex")).is_zero() && !usage.is_zero());
    }

    #[test]
    fn passes_are_a_part_of_the_classes_and_are_kept_beside_them() {
        let pass = CompactionPass {
            input: 60_385,
            cache_read: 5,
            output: 592,
            ..CompactionPass::default()
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
