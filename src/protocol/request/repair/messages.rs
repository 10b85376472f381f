//! Repairs messages bodies: sampling, thinking, effort.
//!
//! It must not touch turns: `messages/turns.rs` does.

use super::{EffortVerdict, Strip, Verdict, effort_of, effort_verdict, is_number};
use crate::protocol::carrier;
use crate::protocol::form::{Action, Effort};
use crate::protocol::messages::write_request::thinking::{
    BUDGET_TOKENS_MIN, budget_of, fitting_budget, level_of,
};
use crate::protocol::rules::known::RepairRules;
use crate::protocol::rules::{MessagesModel, Sampling, ThinkingType};
use crate::protocol::tree::Value;

mod turns;

const THINKING: &str = "thinking";
const CONFIG: &str = "output_config";

/// From this value on, `top_p` excludes nothing that a model would choose.
const TOP_P_ALL: f64 = 0.99;

/// The effort of a model if the request enables thinking without a level.
const USUAL_EFFORT: Effort = Effort::High;

impl<'a> Strip<'a> {
    pub(super) fn repair_messages(
        &mut self,
        root: Value<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
        without_thinking: bool,
    ) {
        let known = &rules.known;
        if known.sampling {
            self.messages_sampling(root, model);
        }
        let thinking = root
            .get(THINKING)
            .filter(|_| known.thinking_types && !without_thinking);
        let made = thinking.and_then(|thinking| self.thinking(root, thinking, model, rules));
        if known.efforts {
            self.messages_effort(root, model, made);
        }
        if known.mid_system && !model.mid_system {
            self.system_turns(root);
        }
        if known.prefill && !model.prefill {
            self.prefill(root);
        }
    }

    fn messages_sampling(&mut self, root: Value<'a>, model: &MessagesModel) {
        let has_temperature = root.get("temperature").is_some();
        self.judge_members(root, "", |name, value| {
            let is_usual = match name {
                _ if value.is_null() => return Verdict::Keep,
                "temperature" => is_number(value, 1.0),
                "top_p" => value.number().is_some_and(|number| number >= TOP_P_ALL),
                "top_k" => false,
                _ => return Verdict::Keep,
            };
            match model.sampling {
                // The model refuses even the default value.
                Sampling::Fixed if is_usual => Verdict::DropSilently,
                Sampling::Fixed => Verdict::Drop,
                Sampling::OneOf if name == "top_p" && has_temperature => Verdict::Drop,
                Sampling::OneOf | Sampling::Free => Verdict::Keep,
            }
        });
    }

    /// Repairs `thinking`. Returns the effort that must replace a removed budget.
    fn thinking(
        &mut self,
        root: Value<'a>,
        thinking: Value<'a>,
        model: &MessagesModel,
        rules: &RepairRules<'_>,
    ) -> Option<Effort> {
        let kind = thinking
            .get("type")
            .and_then(Value::string)
            .and_then(|kind| ThinkingType::named(&kind))?;
        let budget = thinking.get("budget_tokens").and_then(Value::count);
        match kind {
            ThinkingType::Enabled if model.takes(kind) && !breaks_off(root) => {
                self.budget(root, thinking, rules)
            }
            ThinkingType::Enabled if model.takes(ThinkingType::Adaptive) => {
                self.warnings.add(Action::Rewritten, THINKING);
                self.rewrite_thinking(thinking, ThinkingType::Adaptive, None);
                return budget.map(level_of);
            }
            ThinkingType::Enabled => self.drop_thinking(root),
            _ if model.takes(kind) => {}
            ThinkingType::Adaptive if model.is_manual() => self.by_budget(root, thinking, rules),
            ThinkingType::Disabled if model.takes(ThinkingType::BetweenTools) => {
                self.warnings.add(Action::Rewritten, THINKING);
                self.rewrite_thinking(thinking, ThinkingType::BetweenTools, None);
            }
            ThinkingType::Disabled if !model.thinks_by_default => self.drop_member(root, THINKING),
            _ => self.drop_thinking(root),
        }
        None
    }

    fn drop_thinking(&mut self, root: Value<'a>) {
        self.warnings.add(Action::Dropped, THINKING);
        self.drop_member(root, THINKING);
        // The vendor refuses it if thinking is off.
        self.edits_of_thinking(root);
    }

    /// Lowers a budget that leaves no tokens for the answer.
    fn budget(&mut self, root: Value<'a>, thinking: Value<'a>, rules: &RepairRules<'_>) {
        let place = thinking.get("budget_tokens");
        let Some((place, tokens)) = place.and_then(|place| Some((place, place.count()?))) else {
            return;
        };
        let tokens = tokens.min(rules.thinking_budget.unwrap_or(u64::MAX));
        let max_tokens = max_tokens(root, rules);
        if rules.is_interleaved || tokens < max_tokens {
            return;
        }
        match fitting_budget(tokens, max_tokens).or(smallest_budget(max_tokens)) {
            Some(budget) => {
                self.warnings.add(Action::Clamped, "thinking.budget_tokens");
                self.replace_raw(place, budget.to_string());
            }
            None => self.drop_thinking(root),
        }
    }

    /// For a model that thinks only with a budget: sets the budget by the effort, within the output
    /// limit.
    fn by_budget(&mut self, root: Value<'a>, thinking: Value<'a>, rules: &RepairRules<'_>) {
        let effort = effort_of(root.get(CONFIG).and_then(|config| config.get("effort")))
            .unwrap_or(USUAL_EFFORT);
        let choice = root
            .get("tool_choice")
            .and_then(|choice| choice.get("type"));
        let is_forced = choice.is_some_and(|kind| kind.is("any") || kind.is("tool"));
        let budget = fitting_budget(budget_of(effort), max_tokens(root, rules));
        match budget.filter(|_| !is_forced && !breaks_off(root)) {
            Some(budget) => {
                self.makes_budget = true;
                self.warnings.add(Action::Rewritten, THINKING);
                self.rewrite_thinking(thinking, ThinkingType::Enabled, Some(budget));
            }
            None => self.drop_thinking(root),
        }
    }

    /// Rewrites the object with another type. A model with adaptive thinking shows its thinking
    /// only if the request asks for it.
    fn rewrite_thinking(&mut self, thinking: Value<'a>, kind: ThinkingType, budget: Option<u64>) {
        let mut json = format!(r#"{{"type":"{}""#, kind.as_str());
        if let Some(budget) = budget {
            json.push_str(&format!(r#","budget_tokens":{budget}"#));
        }
        let display = thinking.get("display").map(Value::raw);
        if let Some(display) =
            display.or((kind == ThinkingType::Adaptive).then_some("\"summarized\""))
        {
            json.push_str(&format!(r#","display":{display}"#));
        }
        json.push('}');
        self.replace_raw(thinking, json);
    }

    /// `made`: the effort that must replace a removed budget.
    fn messages_effort(&mut self, root: Value<'a>, model: &MessagesModel, made: Option<Effort>) {
        const PATH: &str = "output_config.effort";
        let config = root.get(CONFIG);
        let Some(given) = config.and_then(|config| config.get("effort")) else {
            if let Some(level) = made.and_then(|level| level.nearest(&model.effort_levels)) {
                self.insert_effort(root, level);
            }
            return;
        };
        match effort_verdict(effort_of(Some(given)), &model.effort_levels) {
            EffortVerdict::Keep => {}
            EffortVerdict::Lower(level) => {
                self.warnings.add(Action::Downgraded, PATH);
                self.replace(given, level.as_str());
            }
            EffortVerdict::Drop => {
                self.warnings.add(Action::Dropped, PATH);
                match config.filter(|config| config.members().any(|(key, _)| !key.is("effort"))) {
                    Some(config) => self.drop_member(config, "effort"),
                    None => self.drop_member(root, CONFIG),
                }
            }
        }
    }

    fn insert_effort(&mut self, root: Value<'a>, level: Effort) {
        let level = format!("\"{}\"", level.as_str());
        match root.get(CONFIG) {
            Some(config) => {
                self.drop_member(config, "effort");
                self.insert_member(config, "effort", &level);
            }
            None => {
                self.drop_member(root, CONFIG);
                self.insert_member(root, CONFIG, &format!(r#"{{"effort":{level}}}"#));
            }
        }
    }
}

fn max_tokens(root: Value<'_>, rules: &RepairRules<'_>) -> u64 {
    let given = root
        .get("max_tokens")
        .and_then(Value::count)
        .unwrap_or(rules.max_output_tokens);
    given.min(rules.output_limit.unwrap_or(u64::MAX))
}

/// Returns the smallest budget that a vendor accepts, if it is below the limit.
fn smallest_budget(max_tokens: u64) -> Option<u64> {
    (BUDGET_TOKENS_MIN < max_tokens).then_some(BUDGET_TOKENS_MIN)
}

fn blocks(message: Value<'_>) -> impl Iterator<Item = Value<'_>> {
    message.get("content").into_iter().flat_map(Value::items)
}

/// Returns whether the last turn answers calls that were made without signed reasoning. A model
/// that thinks with a budget refuses to continue thinking there.
fn breaks_off(root: Value<'_>) -> bool {
    let messages: Vec<Value<'_>> = root
        .get("messages")
        .into_iter()
        .flat_map(Value::items)
        .collect();
    let is_assistant =
        |message: &Value<'_>| message.get("role").is_some_and(|role| role.is("assistant"));
    let Some(last) = messages.iter().rposition(is_assistant) else {
        return false;
    };
    let is = |block: Value<'_>, wanted: &str| block.get("type").is_some_and(|kind| kind.is(wanted));
    let behind = messages.iter().skip(last.saturating_add(1)).copied();
    let answers = behind
        .clone()
        .flat_map(blocks)
        .any(|block| is(block, "tool_result"));
    let is_last = behind.count() == 0;
    let first = messages
        .get(last)
        .and_then(|message| blocks(*message).next());
    let begins_with_thought = first.is_some_and(|block| {
        let signature = block.get("signature").and_then(Value::text);
        is(block, "redacted_thinking")
            || is(block, "thinking")
                && signature.is_some_and(|signature| carrier::is_vendors(&signature.value()))
    });
    (answers || is_last) && !begins_with_thought
}
