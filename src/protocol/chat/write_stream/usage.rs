//! The usage that the caller is told.
//!
//! It must always be numbers: clients add them up. What the vendor left out is estimated; what is billed is not
//! decided here.

use crate::protocol::text::{Json, Text};
use crate::usage::Usage;

/// Of text, in any language a careful mean.
const BYTES_PER_TOKEN: u64 = 4;

/// What was heard of the usage so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    input_estimate: u64,
    usage: Option<Usage>,
    is_final: bool,
    generated_bytes: u64,
}

impl Told {
    pub fn new(input_estimate: u64) -> Self {
        Told { input_estimate, ..Told::default() }
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
        let believed = self.usage.filter(|_| self.is_final).and_then(|usage| usage.believed(self.generated_bytes));
        if let Some(usage) = believed {
            return usage;
        }
        let known = self.usage.unwrap_or_default();
        let input = if known.input_total() == 0 { self.input_estimate } else { known.input };
        let output = self.generated_bytes.div_ceil(BYTES_PER_TOKEN).max(known.output);
        Usage { input, output, ..known }
    }

    pub fn write(&self, json: &mut Json) {
        let usage = self.usage();
        let written = usage.cache_write_5m.saturating_add(usage.cache_write_1h);
        json.open_object().key("prompt_tokens").number(usage.input_total());
        json.key("completion_tokens").number(usage.output);
        json.key("total_tokens").number(usage.input_total().saturating_add(usage.output));
        json.key("prompt_tokens_details").open_object();
        json.key("cached_tokens").number(usage.cache_read).key("cache_write_tokens").number(written);
        json.key("audio_tokens").number(0).close_object();
        json.key("completion_tokens_details").open_object();
        json.key("reasoning_tokens").number(usage.reasoning).key("audio_tokens").number(0);
        json.key("accepted_prediction_tokens").number(0).key("rejected_prediction_tokens").number(0);
        json.close_object().close_object();
    }
}
