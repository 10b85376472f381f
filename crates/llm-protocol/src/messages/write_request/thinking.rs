//! Chooses the amount of thinking in the form that the model supports: an effort level, a token
//! budget, or nothing.
//!
//! This file must not change members that the client wrote in the vendor's own form: the vendor
//! validates those.
//!
//! Read next: `write_request/settings.rs`.

use crate::capabilities::{MessagesModel, ThinkingType};
use crate::ir::{Effort, ReasoningSettings, Warnings};
use crate::json::{CompactJson, JsonValue, JsonWriter};

/// Minimum budget that a vendor accepts. As many tokens must remain for the answer.
pub(crate) const MIN_BUDGET_TOKENS: u64 = 1_024;
const MIN_ANSWER_TOKENS: u64 = 1_024;

pub(super) struct ThinkingInputs<'r, 'a> {
    pub reasoning: &'r ReasoningSettings<'a>,
    pub model: &'r MessagesModel,
    pub max_tokens: u64,
    /// True if the tool choice forces a tool call.
    pub is_forced: bool,
    /// Request member that forces the call.
    pub choice_field: &'static str,
    /// True if the model refuses to think in this conversation, because of calls that were made
    /// without thinking.
    pub breaks_off: bool,
    /// True if the vendor refused the reasoning in the first attempt.
    pub without: bool,
    /// True if the request must say whether the vendor shows thinking, even where the client did
    /// not ask for thinking (responses).
    pub says_display: bool,
    /// True if the vendor accepts `display`, which controls whether thinking is shown.
    pub takes_display: bool,
}

/// Decides the mode of thinking in the request to the vendor, and the consequences of that mode.
#[derive(Debug)]
pub(super) struct ThinkingPlan<'a> {
    mode: ThinkingMode<'a>,
    hide: bool,
    takes_display: bool,
    pub effort: Option<Effort>,
    /// True to drop the forced tool choice, which this mode does not allow.
    pub unforce: bool,
    thinks_by_default: bool,
}

#[derive(Debug)]
enum ThinkingMode<'a> {
    Unsaid,
    Disabled,
    BetweenTools,
    Adaptive,
    Budget(u64),
    /// The client's own setting in the vendor's form.
    Verbatim(Option<JsonValue<'a>>),
}

impl ThinkingPlan<'_> {
    /// Returns whether the model thinks before it answers.
    pub fn is_on(&self) -> bool {
        match &self.mode {
            ThinkingMode::Adaptive | ThinkingMode::Budget(_) => true,
            ThinkingMode::Unsaid | ThinkingMode::Verbatim(None) => self.thinks_by_default,
            ThinkingMode::Verbatim(Some(thinking)) => !thinking.member_is("type", "disabled"),
            ThinkingMode::Disabled | ThinkingMode::BetweenTools => false,
        }
    }

    /// Returns whether the gateway turned thinking on.
    pub fn is_turned_on(&self) -> bool {
        matches!(self.mode, ThinkingMode::Adaptive | ThinkingMode::Budget(_))
    }

    pub fn is_verbatim(&self) -> bool {
        matches!(self.mode, ThinkingMode::Verbatim(_))
    }

    pub fn is_set_by_gateway(&self) -> bool {
        matches!(
            self.mode,
            ThinkingMode::Adaptive | ThinkingMode::Budget(_) | ThinkingMode::BetweenTools
        )
    }

    pub fn write(&self, json: &mut JsonWriter) {
        let kind = match &self.mode {
            ThinkingMode::Unsaid | ThinkingMode::Verbatim(None) => return,
            ThinkingMode::Verbatim(Some(thinking)) => {
                json.member("thinking", CompactJson(thinking.raw()));
                return;
            }
            ThinkingMode::Disabled => "disabled",
            ThinkingMode::BetweenTools => "between_tools",
            ThinkingMode::Adaptive => "adaptive",
            ThinkingMode::Budget(_) => "enabled",
        };
        json.member_typed("thinking", kind);
        match &self.mode {
            ThinkingMode::Budget(tokens) => {
                json.member("budget_tokens", *tokens);
                if self.hide && self.takes_display {
                    json.member("display", "omitted");
                }
            }
            // Vendors omit the text of the thinking unless the request asks for it.
            ThinkingMode::Adaptive if self.takes_display => {
                json.member("display", if self.hide { "omitted" } else { "summarized" });
            }
            ThinkingMode::Adaptive
            | ThinkingMode::Unsaid
            | ThinkingMode::Disabled
            | ThinkingMode::BetweenTools
            | ThinkingMode::Verbatim(_) => {}
        }
        json.close_object();
    }
}

pub(super) fn plan_thinking<'a>(
    inputs: &ThinkingInputs<'_, 'a>,
    warnings: &mut Warnings,
) -> ThinkingPlan<'a> {
    let ThinkingInputs {
        reasoning, model, ..
    } = *inputs;
    let mut plan = ThinkingPlan {
        mode: ThinkingMode::Unsaid,
        hide: reasoning.hide,
        takes_display: inputs.takes_display,
        effort: None,
        unforce: false,
        thinks_by_default: model.thinks_by_default,
    };
    let is_requested = reasoning.budget_tokens.is_some()
        || reasoning.effort.is_some_and(|level| level != Effort::None);
    if inputs.without {
        if is_requested {
            warnings.dropped(reasoning.effort_field);
        }
        if reasoning.thinking.is_some() {
            warnings.dropped("thinking");
        }
        disable(&mut plan, inputs, warnings);
        resolve_forced_tool(&mut plan, inputs, warnings);
    } else if reasoning.is_verbatim {
        plan.mode = ThinkingMode::Verbatim(reasoning.thinking);
    } else if is_requested {
        enable(&mut plan, inputs, warnings);
        resolve_forced_tool(&mut plan, inputs, warnings);
    } else if reasoning.effort == Some(Effort::None) {
        disable(&mut plan, inputs, warnings);
        resolve_forced_tool(&mut plan, inputs, warnings);
    } else {
        if inputs.says_display
            && model.thinks_by_default
            && model.accepts_thinking_type(ThinkingType::Adaptive)
        {
            plan.mode = ThinkingMode::Adaptive;
        }
        resolve_forced_tool(&mut plan, inputs, warnings);
    }
    if inputs.breaks_off
        && plan.is_on()
        && model.requires_thinking_with_calls()
        && model.thinks_unless_disabled()
    {
        if matches!(plan.mode, ThinkingMode::Verbatim(Some(_))) {
            warnings.dropped("thinking");
        }
        plan.mode = ThinkingMode::Disabled;
    }
    plan
}

fn disable(plan: &mut ThinkingPlan<'_>, inputs: &ThinkingInputs<'_, '_>, warnings: &mut Warnings) {
    let model = inputs.model;
    if !model.accepts_thinking_type(ThinkingType::Adaptive) && !model.thinks_by_default {
        return;
    }
    if model.accepts_thinking_type(ThinkingType::Disabled) {
        plan.mode = ThinkingMode::Disabled;
    } else if model.accepts_thinking_type(ThinkingType::BetweenTools) {
        plan.mode = ThinkingMode::BetweenTools;
    } else {
        plan.effort = model.effort_levels.iter().copied().min();
        if inputs.reasoning.effort == Some(Effort::None) {
            warnings.downgraded(inputs.reasoning.effort_field);
        }
    }
}

fn enable(plan: &mut ThinkingPlan<'_>, inputs: &ThinkingInputs<'_, '_>, warnings: &mut Warnings) {
    let ThinkingInputs {
        reasoning, model, ..
    } = *inputs;
    let field = reasoning.effort_field;
    if model.accepts_thinking_type(ThinkingType::Adaptive) {
        plan.mode = ThinkingMode::Adaptive;
        // `low` is the lowest level in this protocol.
        let level = reasoning
            .effort
            .or(reasoning.budget_tokens.map(effort_for_budget))
            .map(|level| level.max(Effort::Low));
        plan.effort = level.and_then(|level| level.nearest(&model.effort_levels));
        if plan.effort != level {
            warnings.downgraded(field);
        }
        return;
    }
    let requested = reasoning
        .budget_tokens
        .or(reasoning.effort.map(budget_for_effort))
        .unwrap_or_default();
    let budget = clamp_budget(requested, inputs.max_tokens);
    match budget.filter(|_| model.requires_thinking_budget() && !inputs.breaks_off) {
        Some(budget) => plan.mode = ThinkingMode::Budget(budget),
        None => {
            warnings.dropped(field);
            disable(plan, inputs, warnings);
        }
    }
}

/// Reduces a budget so that tokens remain for the answer. Returns `None` if the rest is below the
/// minimum budget.
pub(crate) fn clamp_budget(requested: u64, max_tokens: u64) -> Option<u64> {
    Some(requested.min(max_tokens.saturating_sub(MIN_ANSWER_TOKENS)))
        .filter(|budget| *budget >= MIN_BUDGET_TOKENS)
}

pub(crate) fn budget_for_effort(level: Effort) -> u64 {
    match level {
        Effort::None => 0,
        Effort::Minimal => 1_024,
        Effort::Low => 4_096,
        Effort::Medium => 10_240,
        Effort::High => 24_576,
        Effort::Xhigh | Effort::Max => 32_768,
    }
}

pub(crate) fn effort_for_budget(budget_tokens: u64) -> Effort {
    match budget_tokens {
        0..4_096 => Effort::Low,
        4_096..16_384 => Effort::Medium,
        16_384..=32_768 => Effort::High,
        _ => Effort::Xhigh,
    }
}

/// Resolves the conflict between a forced tool and thinking, which exclude each other.
fn resolve_forced_tool(
    plan: &mut ThinkingPlan<'_>,
    inputs: &ThinkingInputs<'_, '_>,
    warnings: &mut Warnings,
) {
    if !inputs.is_forced || !plan.is_on() {
        return;
    }
    if !inputs.model.accepts_thinking_type(ThinkingType::Disabled) {
        plan.unforce = true;
        warnings.downgraded(inputs.choice_field);
        return;
    }
    // A client that did not ask for thinking loses nothing.
    if plan.is_set_by_gateway() {
        warnings.dropped(inputs.reasoning.effort_field);
    }
    plan.mode = ThinkingMode::Disabled;
    plan.effort = None;
}
