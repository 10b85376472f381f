//! Chooses the amount of thinking in the form that the model supports: an effort level, a token
//! budget, or nothing.
//!
//! It must not change what the caller wrote in the vendor's own form: the vendor validates that.
//!
//! Read next: `write_request/settings.rs`.

use crate::protocol::form::{Action, Effort, Reasoning, Warnings};
use crate::protocol::rules::{MessagesModel, ThinkingType};
use crate::protocol::text::Json;
use crate::protocol::tree::Value;

/// Minimum budget that a vendor accepts, and minimum number of tokens that must remain for the
/// answer.
pub(in crate::protocol) const BUDGET_TOKENS_MIN: u64 = 1_024;
const ANSWER_TOKENS_MIN: u64 = 1_024;

/// Inputs of the decision.
pub(super) struct Asked<'r, 'a> {
    pub reasoning: &'r Reasoning<'a>,
    pub model: &'r MessagesModel,
    pub max_tokens: u64,
    /// The tool choice forces a tool call.
    pub is_forced: bool,
    /// Request member that forces it.
    pub choice_field: &'static str,
    /// The last turn answers calls that the model made without signed reasoning.
    pub breaks_off: bool,
    /// The vendor refused the reasoning in the first attempt.
    pub without: bool,
    /// The caller decides whether to show thinking that it did not ask for (responses).
    pub says_display: bool,
}

/// Decision: what the request to the vendor contains.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    mode: Mode<'a>,
    hide: bool,
    pub effort: Option<Effort>,
    /// Forcing a tool is not allowed in this mode.
    pub unforce: bool,
    thinks_by_default: bool,
}

#[derive(Debug)]
enum Mode<'a> {
    Unsaid,
    Disabled,
    BetweenTools,
    Adaptive,
    Budget(u64),
    /// Set by the caller in the vendor's own form.
    Verbatim(Option<Value<'a>>),
}

impl Plan<'_> {
    /// Returns whether the model thinks before it answers.
    pub fn is_on(&self) -> bool {
        match &self.mode {
            Mode::Adaptive | Mode::Budget(_) => true,
            Mode::Unsaid | Mode::Verbatim(None) => self.thinks_by_default,
            Mode::Verbatim(Some(thinking)) => {
                !thinking.get("type").is_some_and(|kind| kind.is("disabled"))
            }
            Mode::Disabled | Mode::BetweenTools => false,
        }
    }

    /// Returns whether the gateway set a budget.
    pub fn is_manual(&self) -> bool {
        matches!(self.mode, Mode::Budget(_))
    }

    pub fn is_verbatim(&self) -> bool {
        matches!(self.mode, Mode::Verbatim(_))
    }

    /// Returns whether the gateway enabled thinking.
    pub fn is_ours(&self) -> bool {
        matches!(
            self.mode,
            Mode::Adaptive | Mode::Budget(_) | Mode::BetweenTools
        )
    }

    /// Writes the member `thinking`.
    pub fn write(&self, json: &mut Json) {
        let kind = match &self.mode {
            Mode::Unsaid | Mode::Verbatim(None) => return,
            Mode::Verbatim(Some(thinking)) => {
                json.key("thinking").compact(thinking.raw());
                return;
            }
            Mode::Disabled => "disabled",
            Mode::BetweenTools => "between_tools",
            Mode::Adaptive => "adaptive",
            Mode::Budget(_) => "enabled",
        };
        json.key("thinking").open_object().key("type").str(kind);
        match &self.mode {
            Mode::Budget(tokens) => {
                json.key("budget_tokens").number(*tokens);
                if self.hide {
                    json.key("display").str("omitted");
                }
            }
            // Vendors omit the text unless the request asks for it.
            Mode::Adaptive => {
                json.key("display")
                    .str(if self.hide { "omitted" } else { "summarized" });
            }
            Mode::Unsaid | Mode::Disabled | Mode::BetweenTools | Mode::Verbatim(_) => {}
        }
        json.close_object();
    }
}

pub(super) fn plan<'a>(asked: &Asked<'_, 'a>, warnings: &mut Warnings) -> Plan<'a> {
    let Asked {
        reasoning, model, ..
    } = *asked;
    let mut plan = Plan {
        mode: Mode::Unsaid,
        hide: reasoning.hide,
        effort: None,
        unforce: false,
        thinks_by_default: model.thinks_by_default,
    };
    let is_wanted = reasoning.budget_tokens.is_some()
        || reasoning.effort.is_some_and(|level| level != Effort::None);
    if asked.without {
        if is_wanted {
            warnings.add(Action::Dropped, reasoning.effort_field);
        }
        if reasoning.thinking.is_some() {
            warnings.add(Action::Dropped, "thinking");
        }
        off(&mut plan, asked, warnings);
        unforced(&mut plan, asked, warnings);
    } else if reasoning.is_verbatim {
        plan.mode = Mode::Verbatim(reasoning.thinking);
    } else if is_wanted {
        on(&mut plan, asked, warnings);
        unforced(&mut plan, asked, warnings);
    } else if reasoning.effort == Some(Effort::None) {
        off(&mut plan, asked, warnings);
        unforced(&mut plan, asked, warnings);
    } else {
        if asked.says_display && model.thinks_by_default && model.takes(ThinkingType::Adaptive) {
            plan.mode = Mode::Adaptive;
        }
        unforced(&mut plan, asked, warnings);
    }
    plan
}

fn off(plan: &mut Plan<'_>, asked: &Asked<'_, '_>, warnings: &mut Warnings) {
    let model = asked.model;
    if !model.takes(ThinkingType::Adaptive) && !model.thinks_by_default {
        return;
    }
    if model.takes(ThinkingType::Disabled) {
        plan.mode = Mode::Disabled;
    } else if model.takes(ThinkingType::BetweenTools) {
        plan.mode = Mode::BetweenTools;
    } else {
        plan.effort = model.effort_levels.iter().copied().min();
        if asked.reasoning.effort == Some(Effort::None) {
            warnings.add(Action::Downgraded, asked.reasoning.effort_field);
        }
    }
}

fn on(plan: &mut Plan<'_>, asked: &Asked<'_, '_>, warnings: &mut Warnings) {
    let Asked {
        reasoning, model, ..
    } = *asked;
    let field = reasoning.effort_field;
    if model.takes(ThinkingType::Adaptive) {
        plan.mode = Mode::Adaptive;
        // `low` is the lowest level of this protocol.
        let level = reasoning
            .effort
            .or(reasoning.budget_tokens.map(level_of))
            .map(|level| level.max(Effort::Low));
        plan.effort = level.and_then(|level| level.nearest(&model.effort_levels));
        if plan.effort.is_some() && plan.effort != level {
            warnings.add(Action::Downgraded, field);
        }
        return;
    }
    let wanted = reasoning
        .budget_tokens
        .or(reasoning.effort.map(budget_of))
        .unwrap_or_default();
    let budget = fitting_budget(wanted, asked.max_tokens);
    match budget.filter(|_| model.is_manual() && !asked.breaks_off) {
        Some(budget) => plan.mode = Mode::Budget(budget),
        None => warnings.add(Action::Dropped, field),
    }
}

/// Reduces a budget so that tokens remain for the answer. Returns `None` if the rest is below the
/// minimum budget.
pub(in crate::protocol) fn fitting_budget(wanted: u64, max_tokens: u64) -> Option<u64> {
    Some(wanted.min(max_tokens.saturating_sub(ANSWER_TOKENS_MIN)))
        .filter(|budget| *budget >= BUDGET_TOKENS_MIN)
}

pub(in crate::protocol) fn budget_of(level: Effort) -> u64 {
    match level {
        Effort::None => 0,
        Effort::Minimal => 1_024,
        Effort::Low => 4_096,
        Effort::Medium => 10_240,
        Effort::High => 24_576,
        Effort::Xhigh | Effort::Max => 32_768,
    }
}

pub(in crate::protocol) fn level_of(budget_tokens: u64) -> Effort {
    match budget_tokens {
        0..4_096 => Effort::Low,
        4_096..16_384 => Effort::Medium,
        16_384..=32_768 => Effort::High,
        _ => Effort::Xhigh,
    }
}

/// Resolves the conflict between a forced tool and thinking, which exclude each other.
fn unforced(plan: &mut Plan<'_>, asked: &Asked<'_, '_>, warnings: &mut Warnings) {
    if !asked.is_forced || !plan.is_on() {
        return;
    }
    if !asked.model.takes(ThinkingType::Disabled) {
        plan.unforce = true;
        warnings.add(Action::Downgraded, asked.choice_field);
        return;
    }
    // A caller who left thinking to the model loses nothing that it asked for.
    if plan.is_ours() {
        warnings.add(Action::Dropped, asked.reasoning.effort_field);
    }
    plan.mode = Mode::Disabled;
    plan.effort = None;
}
