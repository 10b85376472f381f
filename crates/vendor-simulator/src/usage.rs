//! Encodes token counts in each vendor's format.
//!
//! This file must not count tokens (`answer.rs` does), or decide where in an answer a report
//! appears.

use super::behaviour::UsageMode;

/// True token counts. The reported counts depend on the mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimUsage {
    pub mode: UsageMode,
    pub input: u64,
    pub cache_read: u64,
    pub write_5m: u64,
    pub write_1h: u64,
    pub output: u64,
    pub reasoning: u64,
    /// Number of searches that the vendor ran itself.
    pub searches: u64,
    /// For chat: audio tokens of the input. The next field has those of the output.
    pub audio_input: u64,
    pub audio_output: u64,
}

impl SimUsage {
    fn cache_written(&self) -> u64 {
        self.write_5m.saturating_add(self.write_1h)
    }

    /// Returns the input tokens, including cached tokens and audio.
    fn prompt(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_written())
            .saturating_add(self.audio_input)
    }

    fn completion(&self) -> u64 {
        self.output.saturating_add(self.audio_output)
    }

    /// Returns a count as a JSON token; `None` if the usage is not reported.
    pub fn count(&self, count: u64) -> Option<String> {
        (self.mode != UsageMode::None).then(|| self.format_count(count))
    }

    fn format_count(&self, count: u64) -> String {
        match self.mode {
            UsageMode::Zero => "0".to_owned(),
            UsageMode::Negative => format!("-{}", count.max(1)),
            UsageMode::Huge => "9223372036854775808".to_owned(),
            UsageMode::Nan => "NaN".to_owned(),
            _ => count.to_string(),
        }
    }

    /// Returns the usage if only the first `done` of `all` parts of the output were produced.
    pub fn partial(mut self, done: usize, all: usize) -> Self {
        let share = |count: u64| {
            let part = u128::from(count) * done.min(all) as u128 / all.max(1) as u128;
            u64::try_from(part).unwrap_or(count)
        };
        self.output = share(self.output);
        self.reasoning = share(self.reasoning);
        self.audio_output = share(self.audio_output);
        self
    }

    /// Encodes the chat vendor's report.
    pub fn chat(&self) -> String {
        let total = self.prompt().saturating_add(self.completion());
        let written = match self.cache_written() {
            0 => String::new(),
            written => format!(r#","cache_write_tokens":{}"#, self.format_count(written)),
        };
        format!(
            r#"{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{},"audio_tokens":{}{written}}},"completion_tokens_details":{{"reasoning_tokens":{},"audio_tokens":{},"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#,
            self.format_count(self.prompt()),
            self.format_count(self.completion()),
            self.format_count(total),
            self.format_count(self.cache_read),
            self.format_count(self.audio_input),
            self.format_count(self.reasoning),
            self.format_count(self.audio_output),
        )
    }

    /// Encodes the responses vendor's report.
    pub fn responses(&self) -> String {
        let total = self.prompt().saturating_add(self.completion());
        format!(
            r#"{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}}"#,
            self.format_count(self.prompt()),
            self.format_count(self.cache_read),
            self.format_count(self.cache_written()),
            self.format_count(self.completion()),
            self.format_count(self.reasoning),
            self.format_count(total),
        )
    }

    /// Encodes the messages vendor's report in a complete answer.
    pub fn messages_whole(&self, tier: Option<&str>) -> String {
        let split = match self.mode {
            UsageMode::NoSplit => String::new(),
            _ => format!(
                r#""cache_creation":{{"ephemeral_5m_input_tokens":{},"ephemeral_1h_input_tokens":{}}},"#,
                self.format_count(self.write_5m),
                self.format_count(self.write_1h),
            ),
        };
        let tier = tier
            .map(|tier| format!(r#","service_tier":"{tier}""#))
            .unwrap_or_default();
        format!(
            r#"{{{},{split}"output_tokens":{}{}{}{tier}}}"#,
            self.messages_input(),
            self.format_count(self.output),
            self.thinking_tokens(),
            self.search_requests(),
        )
    }

    /// Encodes the messages vendor's report at the start of a stream. Its output count is a
    /// placeholder of about one token, unless no other report follows.
    pub fn messages_start(&self, tier: Option<&str>) -> String {
        let begun = Self {
            output: self.output.min(1),
            reasoning: 0,
            searches: 0,
            ..*self
        };
        match self.mode {
            UsageMode::Start => self.messages_whole(tier),
            UsageMode::Late => Self {
                input: 0,
                cache_read: 0,
                write_5m: 0,
                write_1h: 0,
                ..begun
            }
            .messages_whole(tier),
            _ => begun.messages_whole(tier),
        }
    }

    /// Encodes the messages vendor's report later in a stream.
    pub fn messages_so_far(&self) -> String {
        let input = match self.mode {
            UsageMode::Early => String::new(),
            _ => format!("{},", self.messages_input()),
        };
        format!(
            r#"{{{input}"output_tokens":{}{}{}}}"#,
            self.format_count(self.output),
            self.thinking_tokens(),
            self.search_requests(),
        )
    }

    fn messages_input(&self) -> String {
        format!(
            r#""input_tokens":{},"cache_creation_input_tokens":{},"cache_read_input_tokens":{}"#,
            self.format_count(self.input),
            self.format_count(self.cache_written()),
            self.format_count(self.cache_read),
        )
    }

    fn search_requests(&self) -> String {
        match self.searches {
            0 => String::new(),
            count => format!(
                r#","server_tool_use":{{"web_search_requests":{}}}"#,
                self.format_count(count)
            ),
        }
    }

    fn thinking_tokens(&self) -> String {
        match self.reasoning {
            0 => String::new(),
            count => format!(
                r#","output_tokens_details":{{"thinking_tokens":{}}}"#,
                self.format_count(count)
            ),
        }
    }
}
