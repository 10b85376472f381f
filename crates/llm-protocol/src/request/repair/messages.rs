//! Repairs the sampling, thinking and effort of messages bodies.
//!
//! This module must not change turns: `messages/turns.rs` does.

use super::{
    EffortDecision, ForeignFieldRemover, MemberDecision, decide_effort, is_default_number,
    parse_effort,
};
use crate::capabilities::repair_rules::RepairRules;
use crate::capabilities::{MessagesModel, SamplingSupport, ThinkingType, TurnSummary};
use crate::ir::Effort;
use crate::json::{JsonStr, JsonValue};
use crate::messages::write_request::thinking::{
    MIN_BUDGET_TOKENS, budget_for_effort, clamp_budget, effort_for_budget,
};
use crate::reasoning_token;
use std::borrow::Cow;

pub(super) mod turns;

const THINKING: &str = "thinking";
const NO_THINKING: &str = r#"{"type":"disabled"}"#;
const OUTPUT_CONFIG: &str = "output_config";

/// Minimum `top_p` that excludes nothing that a model would choose.
const TOP_P_NO_EFFECT: f64 = 0.99;

/// The effort of a model if the request enables thinking without a level.
const DEFAULT_EFFORT: Effort = Effort::High;

impl<'a> ForeignFieldRemover<'a> {
    pub(super) fn repair_messages(
        &mut self,
        root: JsonValue<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
        without_thinking: bool,
    ) {
        let known = &rules.known;
        if known.sampling {
            self.repair_messages_sampling(root, model);
        }
        let thinking = root
            .get(THINKING)
            .filter(|thinking| !without_thinking && !thinking.is_null());
        let made = match thinking.filter(|_| known.thinking_types) {
            Some(thinking) => self.repair_thinking(root, thinking, model, rules),
            None => {
                if known.thinking_types
                    && thinking.is_none()
                    && model.thinks_unless_disabled()
                    && (without_thinking || breaks_thinking_off(root, model))
                {
                    self.drop_member(root, THINKING);
                    self.insert_member(root, THINKING, NO_THINKING);
                }
                None
            }
        };
        if known.efforts {
            self.repair_messages_effort(root, model, made);
        }
        if known.mid_system && !model.mid_system {
            self.rewrite_system_turns(root);
        }
        if known.prefill && !model.prefill {
            self.append_continue_turn(root);
        }
    }

    fn repair_messages_sampling(&mut self, root: JsonValue<'a>, model: &MessagesModel) {
        let has_temperature = root.get("temperature").is_some();
        self.filter_members(root, "", |name, value| {
            let is_usual = match name {
                _ if value.is_null() => return MemberDecision::Keep,
                "temperature" => is_default_number(value, 1.0),
                "top_p" => value
                    .number()
                    .is_some_and(|number| number >= TOP_P_NO_EFFECT),
                "top_k" => false,
                _ => return MemberDecision::Keep,
            };
            match model.sampling {
                // The model refuses even the default value.
                SamplingSupport::Fixed if is_usual => MemberDecision::DropSilently,
                SamplingSupport::Fixed => MemberDecision::Drop,
                SamplingSupport::OneOf if name == "top_p" && has_temperature => {
                    MemberDecision::Drop
                }
                SamplingSupport::OneOf | SamplingSupport::Free => MemberDecision::Keep,
            }
        });
    }

    /// Repairs `thinking`. Returns the effort that must replace a removed budget.
    fn repair_thinking(
        &mut self,
        root: JsonValue<'a>,
        thinking: JsonValue<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
    ) -> Option<Effort> {
        let kind = thinking
            .string_of("type")
            .and_then(|kind| ThinkingType::parse(&kind))?;
        let budget = thinking.get("budget_tokens").and_then(JsonValue::count);
        match kind {
            ThinkingType::Enabled
                if model.accepts_thinking_type(kind) && !breaks_thinking_off(root, model) =>
            {
                self.clamp_thinking_budget(root, thinking, model, rules)
            }
            ThinkingType::Enabled if model.accepts_thinking_type(ThinkingType::Adaptive) => {
                self.warnings.rewritten(THINKING);
                self.rewrite_thinking(thinking, ThinkingType::Adaptive, None);
                return budget.map(effort_for_budget);
            }
            ThinkingType::Enabled => self.turn_thinking_off(root, thinking, model),
            _ if model.accepts_thinking_type(kind) => {}
            ThinkingType::Adaptive if model.requires_thinking_budget() => {
                self.set_budget_from_effort(root, thinking, model, rules)
            }
            ThinkingType::Disabled if model.accepts_thinking_type(ThinkingType::BetweenTools) => {
                self.warnings.rewritten(THINKING);
                self.rewrite_thinking(thinking, ThinkingType::BetweenTools, None);
            }
            ThinkingType::Disabled if !model.thinks_by_default => self.drop_member(root, THINKING),
            _ => self.turn_thinking_off(root, thinking, model),
        }
        None
    }

    /// Turns off the thinking for which the client asked.
    fn turn_thinking_off(
        &mut self,
        root: JsonValue<'a>,
        thinking: JsonValue<'a>,
        model: &MessagesModel,
    ) {
        self.warnings.dropped(THINKING);
        match model.thinks_unless_disabled() {
            true => self.replace_raw(thinking, NO_THINKING.to_owned()),
            false => self.drop_member(root, THINKING),
        }
        // The vendor refuses this edit if thinking is off.
        self.remove_thinking_edits(root);
    }

    /// Lowers a budget that leaves no tokens for the answer.
    fn clamp_thinking_budget(
        &mut self,
        root: JsonValue<'a>,
        thinking: JsonValue<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
    ) {
        let node = thinking.get("budget_tokens");
        let Some((node, tokens)) = node.and_then(|node| Some((node, node.count()?))) else {
            return;
        };
        let tokens = tokens.min(rules.thinking_budget.unwrap_or(u64::MAX));
        let max_tokens = max_tokens(root, rules);
        if rules.is_interleaved || tokens < max_tokens {
            return;
        }
        match clamp_budget(tokens, max_tokens).or(min_budget(max_tokens)) {
            Some(budget) => {
                self.warnings.clamped("thinking.budget_tokens");
                self.replace_raw(node, budget.to_string());
            }
            None => self.turn_thinking_off(root, thinking, model),
        }
    }

    /// Sets the budget by the effort, within the output limit, for a model that thinks only with a
    /// budget.
    fn set_budget_from_effort(
        &mut self,
        root: JsonValue<'a>,
        thinking: JsonValue<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
    ) {
        let effort = parse_effort(root.find([OUTPUT_CONFIG, "effort"])).unwrap_or(DEFAULT_EFFORT);
        let choice = root.find(["tool_choice", "type"]);
        let is_forced = choice.is_some_and(|kind| kind.is("any") || kind.is("tool"));
        let budget = clamp_budget(budget_for_effort(effort), max_tokens(root, rules));
        match budget.filter(|_| !is_forced && !breaks_thinking_off(root, model)) {
            Some(budget) => {
                self.makes_budget = true;
                self.warnings.rewritten(THINKING);
                self.rewrite_thinking(thinking, ThinkingType::Enabled, Some(budget));
            }
            None => self.turn_thinking_off(root, thinking, model),
        }
    }

    /// Rewrites the object with another type. A model with adaptive thinking shows its thinking
    /// only if the request asks for it.
    fn rewrite_thinking(
        &mut self,
        thinking: JsonValue<'a>,
        kind: ThinkingType,
        budget: Option<u64>,
    ) {
        let mut json = format!(r#"{{"type":"{}""#, kind.as_str());
        if let Some(budget) = budget {
            json.push_str(&format!(r#","budget_tokens":{budget}"#));
        }
        let display = thinking.get("display").map(JsonValue::raw);
        if let Some(display) =
            display.or((kind == ThinkingType::Adaptive).then_some("\"summarized\""))
        {
            json.push_str(&format!(r#","display":{display}"#));
        }
        json.push('}');
        self.replace_raw(thinking, json);
    }

    /// Repairs the effort. `made` is the effort that must replace a removed budget.
    fn repair_messages_effort(
        &mut self,
        root: JsonValue<'a>,
        model: &MessagesModel,
        made: Option<Effort>,
    ) {
        const PATH: &str = "output_config.effort";
        let config = root.get(OUTPUT_CONFIG);
        let Some(effort_value) = config.and_then(|config| config.get("effort")) else {
            if let Some(level) = made.and_then(|level| level.nearest(&model.effort_levels)) {
                self.insert_effort(root, level);
            }
            return;
        };
        match decide_effort(parse_effort(Some(effort_value)), &model.effort_levels) {
            EffortDecision::Keep => {}
            EffortDecision::Lower(level) => {
                self.warnings.downgraded(PATH);
                self.replace_string(effort_value, level.as_str());
            }
            EffortDecision::Drop => {
                self.warnings.dropped(PATH);
                match config.filter(|config| config.members().any(|(key, _)| !key.is("effort"))) {
                    Some(config) => self.drop_member(config, "effort"),
                    None => self.drop_member(root, OUTPUT_CONFIG),
                }
            }
        }
    }

    fn insert_effort(&mut self, root: JsonValue<'a>, level: Effort) {
        let level = format!("\"{}\"", level.as_str());
        match root.get(OUTPUT_CONFIG) {
            Some(config) => {
                self.drop_member(config, "effort");
                self.insert_member(config, "effort", &level);
            }
            None => {
                self.drop_member(root, OUTPUT_CONFIG);
                self.insert_member(root, OUTPUT_CONFIG, &format!(r#"{{"effort":{level}}}"#));
            }
        }
    }
}

fn max_tokens(root: JsonValue<'_>, rules: &RepairRules<'_>) -> u64 {
    let requested = root
        .get("max_tokens")
        .and_then(JsonValue::count)
        .unwrap_or(rules.max_output_tokens);
    requested.min(rules.output_limit.unwrap_or(u64::MAX))
}

/// Returns the smallest budget that a vendor accepts, if it is below the limit.
fn min_budget(max_tokens: u64) -> Option<u64> {
    (MIN_BUDGET_TOKENS < max_tokens).then_some(MIN_BUDGET_TOKENS)
}

fn content_blocks(message: JsonValue<'_>) -> impl Iterator<Item = JsonValue<'_>> {
    message.items_of("content")
}

/// Returns whether the model refuses to think in this conversation.
fn breaks_thinking_off(root: JsonValue<'_>, model: &MessagesModel) -> bool {
    let messages: Vec<JsonValue<'_>> = root.items_of("messages").collect();
    let is_assistant = |message: &JsonValue<'_>| message.member_is("role", "assistant");
    let turns = messages.chunk_by(|one, next| is_assistant(one) && is_assistant(next));
    let summaries = turns.map(|turn| {
        let blocks = || turn.iter().copied().flat_map(content_blocks);
        let has = |kind: &str| blocks().any(|block| block.member_is("type", kind));
        let is_thinking = |block: &JsonValue<'_>| block.member_is("type", THINKING);
        TurnSummary {
            is_assistant: turn.iter().all(is_assistant),
            has_calls: has("tool_use"),
            has_results: has("tool_result"),
            has_thinking: blocks()
                .filter(is_thinking)
                .any(|block| !signature(block).starts_with(reasoning_token::TOKEN_PREFIX)),
            begins_with_thinking: blocks().next().is_some_and(|block| {
                block.member_is("type", "redacted_thinking")
                    || is_thinking(&block)
                        && reasoning_token::is_vendor_signature(&signature(block))
            }),
        }
    });
    model.breaks_thinking_off(&summaries.collect::<Vec<_>>())
}

fn signature(block: JsonValue<'_>) -> Cow<'_, str> {
    let signature = block.text_of("signature").map(JsonStr::into_value);
    signature.unwrap_or_default()
}
