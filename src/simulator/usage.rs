//! Token counts, and how each vendor writes them.
//!
//! It must not count (`answer.rs` does), nor place a report in an answer.

use super::behaviour::UsageMode;

/// True token counts; what the wire says of them depends on the mode.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub mode: UsageMode,
    pub input: u64,
    pub cache_read: u64,
    pub write_5m: u64,
    pub write_1h: u64,
    pub output: u64,
    pub reasoning: u64,
}

impl Usage {
    fn written(&self) -> u64 {
        self.write_5m.saturating_add(self.write_1h)
    }

    /// Input with everything that was cached.
    fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.written())
    }

    /// The JSON token for a count.
    fn shown(&self, count: u64) -> String {
        match self.mode {
            UsageMode::Zero => "0".to_owned(),
            UsageMode::Negative => format!("-{}", count.max(1)),
            UsageMode::Huge => "9223372036854775808".to_owned(),
            UsageMode::Nan => "NaN".to_owned(),
            _ => count.to_string(),
        }
    }

    /// The same with only the first `done` of `all` parts of the output produced.
    pub fn partial(mut self, done: usize, all: usize) -> Self {
        let share = |count: u64| {
            let part = u128::from(count) * done.min(all) as u128 / all.max(1) as u128;
            u64::try_from(part).unwrap_or(count)
        };
        self.output = share(self.output);
        self.reasoning = share(self.reasoning);
        self
    }

    /// The chat vendor's report.
    pub fn chat(&self) -> String {
        let total = self.prompt().saturating_add(self.output);
        let written = match self.written() {
            0 => String::new(),
            written => format!(r#","cache_write_tokens":{}"#, self.shown(written)),
        };
        format!(
            r#"{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{},"audio_tokens":0{written}}},"completion_tokens_details":{{"reasoning_tokens":{},"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#,
            self.shown(self.prompt()),
            self.shown(self.output),
            self.shown(total),
            self.shown(self.cache_read),
            self.shown(self.reasoning),
        )
    }

    /// The messages vendor's report in an answer and at the start of a stream.
    pub fn messages_whole(&self) -> String {
        format!(
            r#"{{"input_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{},"cache_creation":{{"ephemeral_5m_input_tokens":{},"ephemeral_1h_input_tokens":{}}},"output_tokens":{}{},"service_tier":"standard"}}"#,
            self.shown(self.input),
            self.shown(self.written()),
            self.shown(self.cache_read),
            self.shown(self.write_5m),
            self.shown(self.write_1h),
            self.shown(self.output),
            self.thinking_tokens(),
        )
    }

    /// The messages vendor's report later in a stream.
    pub fn messages_so_far(&self) -> String {
        format!(
            r#"{{"input_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{},"output_tokens":{}{}}}"#,
            self.shown(self.input),
            self.shown(self.written()),
            self.shown(self.cache_read),
            self.shown(self.output),
            self.thinking_tokens(),
        )
    }

    fn thinking_tokens(&self) -> String {
        match self.reasoning {
            0 => String::new(),
            count => format!(r#","output_tokens_details":{{"thinking_tokens":{}}}"#, self.shown(count)),
        }
    }
}
