//! Records which members that some model of the protocol refuses are in a body, as the one pass
//! over it shows them, and decides whether this model is known to refuse one.
//!
//! It must not read the body a second time, nor change it: `request/repair.rs` does both, for the
//! few bodies that need it. In doubt a body needs it.
//!
//! Read next: `request/repair.rs`.

use super::RequestSummary;
use crate::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use crate::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ParallelToolCalls, ReasoningReplay,
    ResponsesModel, SamplingSupport, ThinkingType, ToolCallIds, ToolsWithReasoning,
};
use crate::ir::Effort;
use crate::json_scanner::{JsonError, JsonKind, JsonScanner};

/// Findings of the pass over a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RepairHints {
    /// Bit set of the members that are present and not null.
    given: u16,
    pub effort: EnumMember<Effort>,
    pub thinking: EnumMember<ThinkingType>,
    /// Whether there is a message of the role `system`.
    pub system_turns: bool,
    /// Whether there is a message of the role `developer`.
    pub developer_turns: bool,
    /// Whether the last message is the assistant's.
    pub ends_with_assistant: bool,
    /// Whether the assistant's last turn has no thinking signed by its vendor.
    is_unthought: bool,
    /// Whether results of that turn's calls follow.
    is_answered: bool,
    /// Whether a message has `reasoning_content`.
    pub reasoning_content: bool,
    /// Whether there is a call id that is not exactly nine letters or digits.
    pub other_than_nine: bool,
}

/// A member whose value is one of a few names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum EnumMember<T> {
    #[default]
    Absent,
    Known(T),
    /// An unknown name or value, which the vendor must validate.
    Unknown,
}

/// A top-level member that a model may refuse.
#[derive(Clone, Copy)]
pub(super) enum Setting {
    Temperature = 1,
    TopP = 1 << 1,
    TopK = 1 << 2,
    /// Any other chat member that affects sampling.
    OtherSampling = 1 << 3,
    Stop = 1 << 4,
    Verbosity = 1 << 5,
    ParallelToolCalls = 1 << 6,
    /// A member of the responses protocol.
    Reasoning = 1 << 7,
    Text = 1 << 8,
    Include = 1 << 9,
    Tools = 1 << 10,
}

impl Setting {
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "temperature" => Setting::Temperature,
            "top_p" => Setting::TopP,
            "top_k" => Setting::TopK,
            "presence_penalty" | "frequency_penalty" | "logit_bias" => Setting::OtherSampling,
            "stop" => Setting::Stop,
            "verbosity" => Setting::Verbosity,
            "parallel_tool_calls" => Setting::ParallelToolCalls,
            "reasoning" => Setting::Reasoning,
            "text" => Setting::Text,
            "include" => Setting::Include,
            "tools" | "functions" => Setting::Tools,
            _ => return None,
        })
    }
}

impl RepairHints {
    pub fn mark_given(&mut self, setting: Setting) {
        self.given |= setting as u16;
    }

    fn has(&self, setting: Setting) -> bool {
        self.given & setting as u16 != 0
    }

    /// Records the role of a message, as written, with its quotes.
    pub fn record_role(&mut self, role: &str) {
        match role {
            "\"assistant\"" => self.ends_with_assistant = true,
            "\"system\"" => self.system_turns = true,
            "\"developer\"" => self.developer_turns = true,
            // Written with escapes it may be any role.
            role if role.contains('\\') => {
                (
                    self.ends_with_assistant,
                    self.system_turns,
                    self.developer_turns,
                ) = (true, true, true);
            }
            _ => {}
        }
    }

    /// Records the end of a message, which may have signed thinking or a tool result.
    pub fn record_message(&mut self, has_thought: bool, has_result: bool) {
        if self.ends_with_assistant {
            (self.is_unthought, self.is_answered) = (!has_thought, false);
        }
        self.is_answered |= has_result;
    }

    /// Reads an effort.
    pub fn read_effort(&mut self, scan: &mut JsonScanner<'_>) -> Result<(), JsonError> {
        self.effort = read_enum(scan, Effort::parse)?;
        Ok(())
    }

    /// Records the value of `thinking.type`.
    pub fn record_thinking(&mut self, kind: Option<&str>) {
        self.thinking = kind
            .and_then(ThinkingType::parse)
            .map_or(EnumMember::Unknown, EnumMember::Known);
    }
}

/// Reads a name; null counts as absent.
fn read_enum<T>(
    scan: &mut JsonScanner<'_>,
    named: fn(&str) -> Option<T>,
) -> Result<EnumMember<T>, JsonError> {
    if scan.kind()? == JsonKind::Null {
        return scan.skip().map(|_| EnumMember::Absent);
    }
    let text = scan.string_or_skip()?;
    Ok(text
        .and_then(|text| named(&text.name()))
        .map_or(EnumMember::Unknown, EnumMember::Known))
}

impl RequestSummary {
    /// Returns whether the model is known to refuse something in the body.
    pub fn needs_repair(&self, rules: &RepairRules<'_>) -> bool {
        if rules.known == KnownCapabilities::NONE {
            return false;
        }
        match rules.accepts {
            ModelCapabilities::Chat(model) => self.chat_needs_repair(model, &rules.known),
            ModelCapabilities::Messages(model) => self.messages_needs_repair(model, rules),
            ModelCapabilities::Responses(model) => self.responses_needs_repair(model, &rules.known),
        }
    }

    fn chat_needs_repair(&self, model: &ChatModel, known: &KnownCapabilities) -> bool {
        let RequestSummary { dialect, spans, .. } = self;
        let other_limit = match model.output_limit_field {
            "max_tokens" => spans.max_completion_tokens,
            _ => spans.max_tokens,
        };
        let sampling = [Setting::Temperature, Setting::TopP, Setting::OtherSampling];
        known.output_limit_field && other_limit.is_some_and(|limit| limit.tokens.is_some())
            || known.sampling
                && !model.sampling
                && sampling.iter().any(|setting| dialect.has(*setting))
            || known.stop && !model.stop && dialect.has(Setting::Stop)
            || known.top_k && !model.top_k && dialect.has(Setting::TopK)
            || known.verbosity && !model.verbosity && dialect.has(Setting::Verbosity)
            || known.system_role && model.system_role == "system" && dialect.developer_turns
            || self.has_unsupported_effort(known, model.reasoning, &model.effort_values)
            || must_disable_reasoning(model, known)
                && dialect.has(Setting::Tools)
                && dialect.effort != EnumMember::Known(Effort::None)
            || known.reasoning_replay
                && model.reasoning_replay == ReasoningReplay::ReasoningContentInTurn
                && dialect.reasoning_content
            || known.parallel_tool_calls
                && model.parallel_tool_calls != ParallelToolCalls::Accepted
                && dialect.has(Setting::ParallelToolCalls)
            || known.tool_call_ids
                && model.tool_call_ids == ToolCallIds::Nine
                && dialect.other_than_nine
    }

    fn messages_needs_repair(&self, model: &MessagesModel, rules: &RepairRules<'_>) -> bool {
        let (known, dialect) = (&rules.known, &self.dialect);
        let has = |setting| dialect.has(setting);
        let (temperature, top_p) = (has(Setting::Temperature), has(Setting::TopP));
        let is_sampled = match model.sampling {
            SamplingSupport::Free => false,
            SamplingSupport::OneOf => temperature && top_p,
            SamplingSupport::Fixed => temperature || top_p || has(Setting::TopK),
        };
        let is_wrong_thinking = match dialect.thinking {
            EnumMember::Known(kind) => !model.accepts_thinking_type(kind),
            EnumMember::Absent | EnumMember::Unknown => false,
        };
        let exceeds_limit =
            self.thinking_budget
                .zip(self.output_limit)
                .is_some_and(|(budget, limit)| {
                    !rules.is_interleaved
                        && budget >= limit.tokens.min(rules.output_limit.unwrap_or(u64::MAX))
                });
        let breaks_off = dialect.thinking == EnumMember::Known(ThinkingType::Enabled)
            && dialect.is_unthought
            && (dialect.is_answered || dialect.ends_with_assistant);
        known.sampling && is_sampled
            || known.thinking_types && (is_wrong_thinking || exceeds_limit || breaks_off)
            || known.efforts && is_unsupported(dialect.effort, &model.effort_levels)
            || known.mid_system && !model.mid_system && dialect.system_turns
            || known.prefill && !model.prefill && dialect.ends_with_assistant
    }

    fn responses_needs_repair(&self, model: &ResponsesModel, known: &KnownCapabilities) -> bool {
        let has = |setting| self.dialect.has(setting);
        known.sampling && !model.sampling && (has(Setting::Temperature) || has(Setting::TopP))
            || known.reasoning
                && !model.reasoning
                && (has(Setting::Reasoning) || has(Setting::Include))
            || known.efforts && has(Setting::Reasoning)
            || known.summaries && !model.summaries && has(Setting::Reasoning)
            || known.verbosity && !model.verbosity && has(Setting::Text)
    }

    fn has_unsupported_effort(
        &self,
        known: &KnownCapabilities,
        reasons: bool,
        levels: &[Effort],
    ) -> bool {
        match self.dialect.effort {
            EnumMember::Absent => false,
            _ if known.reasoning && !reasons => true,
            effort => known.efforts && reasons && is_unsupported(effort, levels),
        }
    }
}

/// Returns whether the model accepts function tools only if it does not reason.
pub(super) fn must_disable_reasoning(model: &ChatModel, known: &KnownCapabilities) -> bool {
    known.tools_with_reasoning
        && model.reasoning
        && model.tools_with_reasoning == ToolsWithReasoning::EffortNone
}

fn is_unsupported(effort: EnumMember<Effort>, levels: &[Effort]) -> bool {
    match effort {
        EnumMember::Known(effort) => !levels.contains(&effort),
        EnumMember::Absent | EnumMember::Unknown => false,
    }
}
