//! Decides from the summary of a body whether this model is known to refuse a part of the body.
//!
//! This file must not read or change the body: `request/repair.rs` does so for the few bodies that
//! need a repair. In case of doubt, a body needs a repair.
//!
//! Read next: `request/repair.rs`.

use super::repair_hints::{EnumMember, Setting};
use super::summary::RequestSummary;
use crate::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use crate::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ParallelToolCalls, ReasoningReplay,
    ResponsesModel, SamplingSupport, ThinkingType, ToolCallIds, ToolsWithReasoning,
};
use crate::ir::Effort;

impl RequestSummary {
    /// Returns whether the model is known to refuse a part of the body.
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
        let RequestSummary { hints, spans, .. } = self;
        let other_limit = match model.output_limit_field {
            "max_tokens" => spans.max_completion_tokens,
            _ => spans.max_tokens,
        };
        let sampling = [Setting::Temperature, Setting::TopP, Setting::OtherSampling];
        known.output_limit_field && other_limit.is_some_and(|limit| limit.tokens.is_some())
            || known.sampling
                && !model.sampling
                && sampling.iter().any(|setting| hints.has(*setting))
            || known.stop && !model.stop && hints.has(Setting::Stop)
            || known.top_k && !model.top_k && hints.has(Setting::TopK)
            || known.verbosity && !model.verbosity && hints.has(Setting::Verbosity)
            || known.system_role && model.system_role == "system" && hints.developer_turns
            || known.mid_system && !model.mid_system && hints.later_instructions
            || known.turn_order && !model.user_after_tool && hints.user_behind_tool
            || self.has_unsupported_effort(known, model.reasoning, &model.effort_values)
            || known.efforts && self.has_switched_effort(model)
            || !model.takes_effort && hints.effort != EnumMember::Absent
            || may_have_to_disable_reasoning(model, known)
                && (hints.has(Setting::Tools) || hints.has(Setting::Functions))
                && hints.effort != EnumMember::Known(Effort::None)
            || known.reasoning_replay
                && model.reasoning_replay == ReasoningReplay::ReasoningContentInTurn
                && hints.reasoning_content
            || known.parallel_tool_calls
                && model.parallel_tool_calls != ParallelToolCalls::Accepted
                && hints.has(Setting::ParallelToolCalls)
            || known.tool_call_ids
                && model.tool_call_ids == ToolCallIds::Nine
                && hints.other_than_nine
    }

    fn messages_needs_repair(&self, model: &MessagesModel, rules: &RepairRules<'_>) -> bool {
        let (known, hints) = (&rules.known, &self.hints);
        let has = |setting| hints.has(setting);
        let (temperature, top_p) = (has(Setting::Temperature), has(Setting::TopP));
        let is_sampled = match model.sampling {
            SamplingSupport::Free => false,
            SamplingSupport::OneOf => temperature && top_p,
            SamplingSupport::Fixed => temperature || top_p || has(Setting::TopK),
        };
        let is_wrong_thinking = match hints.thinking {
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
        let breaks_off = hints.thinking == EnumMember::Known(ThinkingType::Enabled)
            && hints.is_unthought
            && (hints.is_answered || hints.ends_with_assistant);
        // The pass over the body does not match calls with thinking.
        let may_break_off = model.requires_thinking_with_calls()
            && hints.thinking != EnumMember::Known(ThinkingType::Disabled)
            && self.features.leftovers.tool_results > 0;
        let is_thinking_refused = is_wrong_thinking || exceeds_limit || breaks_off || may_break_off;
        known.sampling && is_sampled
            || known.thinking_types && is_thinking_refused
            || known.efforts && is_unsupported(hints.effort, &model.effort_levels)
            || known.mid_system && !model.mid_system && hints.system_turns
            || known.prefill && !model.prefill && hints.ends_with_assistant
    }

    fn responses_needs_repair(&self, model: &ResponsesModel, known: &KnownCapabilities) -> bool {
        let has = |setting| self.hints.has(setting);
        known.sampling && !model.sampling && (has(Setting::Temperature) || has(Setting::TopP))
            || known.reasoning
                && !model.reasoning
                && (has(Setting::Reasoning) || has(Setting::Include))
            || known.efforts && has(Setting::Reasoning)
            || known.summaries && !model.summaries && has(Setting::Reasoning)
            || known.verbosity && !model.verbosity && has(Setting::Text)
    }

    /// Returns whether the vendor has members of its own that express the requested effort.
    fn has_switched_effort(&self, model: &ChatModel) -> bool {
        match self.hints.effort {
            EnumMember::Known(Effort::None) => !model.reasoning_off.is_empty(),
            EnumMember::Known(_) => !model.reasoning_on.is_empty(),
            EnumMember::Absent | EnumMember::Unknown => false,
        }
    }

    fn has_unsupported_effort(
        &self,
        known: &KnownCapabilities,
        reasons: bool,
        levels: &[Effort],
    ) -> bool {
        match self.hints.effort {
            EnumMember::Absent => false,
            _ if known.reasoning && !reasons => true,
            effort => known.efforts && reasons && is_unsupported(effort, levels),
        }
    }
}

/// Returns whether the model accepts some choice of function tools only if it does not reason.
pub(super) fn may_have_to_disable_reasoning(model: &ChatModel, known: &KnownCapabilities) -> bool {
    known.tools_with_reasoning
        && model.reasoning
        && matches!(
            model.tools_with_reasoning,
            ToolsWithReasoning::EffortNone | ToolsWithReasoning::Unforced
        )
}

fn is_unsupported(effort: EnumMember<Effort>, levels: &[Effort]) -> bool {
    match effort {
        EnumMember::Known(effort) => !levels.contains(&effort),
        EnumMember::Absent | EnumMember::Unknown => false,
    }
}
