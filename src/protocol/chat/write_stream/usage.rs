//! The usage that the caller is told.
//!
//! It must always be numbers: clients add them up. What the vendor left out is estimated, as it is
//! for the bill.

use crate::protocol::text::{Json, Text};
use crate::usage::{Usage, UsageEstimator};

/// What was heard of the usage so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    estimator: UsageEstimator,
    usage: Option<Usage>,
    is_final: bool,
    generated_bytes: u64,
}

impl Told {
    pub fn new(estimator: UsageEstimator) -> Self {
        Told {
            estimator,
            ..Told::default()
        }
    }

    pub fn learn(&mut self, usage: Usage, is_final: bool) {
        self.usage = Some(usage);
        self.is_final |= is_final;
    }

    pub fn count(&mut self, text: &Text<'_>) {
        self.generated_bytes = self.generated_bytes.saturating_add(text.decoded_bytes());
    }

    /// The vendor's last word, or what comes nearest.
    fn usage(&self) -> Usage {
        let believed = self
            .usage
            .filter(|_| self.is_final)
            .and_then(|usage| usage.believed(self.generated_bytes));
        if let Some(usage) = believed {
            return usage;
        }
        self.estimator.usage(self.usage, self.generated_bytes)
    }

    pub fn write(&self, json: &mut Json) {
        write(&self.usage(), json);
    }
}

/// A usage object with every member that clients read.
pub fn write(usage: &Usage, json: &mut Json) {
    let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
    json.open_object()
        .key("prompt_tokens")
        .number(usage.input_total());
    json.key("completion_tokens").number(usage.output_total());
    json.key("total_tokens")
        .number(usage.input_total().saturating_add(usage.output_total()));
    json.key("prompt_tokens_details").open_object();
    json.key("cached_tokens")
        .number(usage.cache_read)
        .key("cache_write_tokens")
        .number(written);
    json.key("audio_tokens")
        .number(usage.audio_input)
        .close_object();
    json.key("completion_tokens_details").open_object();
    json.key("reasoning_tokens")
        .number(usage.reasoning)
        .key("audio_tokens")
        .number(usage.audio_output);
    json.key("accepted_prediction_tokens")
        .number(0)
        .key("rejected_prediction_tokens")
        .number(0);
    json.close_object().close_object();
}
