//! Repairs chat bodies: name of the output limit, sampling, effort, roles, ids of calls.
//!
//! It must not change `system` for a model that prefers `developer`: such models accept both.

use super::{EffortVerdict, Strip, Verdict, effort_of, effort_verdict, is_empty, is_number};
use crate::protocol::form::{Action, At, Effort};
use crate::protocol::request::dialect::is_kept_from_reasoning;
use crate::protocol::rules::known::KnownCapabilities;
use crate::protocol::rules::names;
use crate::protocol::rules::{ChatModel, ParallelToolCalls, ReasoningReplay, ToolCallIds};
use crate::protocol::splice::json_string;
use crate::protocol::tree::Value;
use std::borrow::Cow;
use std::collections::HashMap;

const EFFORT: &str = "reasoning_effort";

impl<'a> Strip<'a> {
    pub(super) fn repair_chat(
        &mut self,
        root: Value<'a>,
        model: &ChatModel,
        known: &KnownCapabilities,
    ) {
        if known.output_limit_field {
            self.limit_name(root, model.output_limit_field);
        }
        let is_auto = root
            .get("tool_choice")
            .is_none_or(|choice| choice.is("auto"));
        self.judge_members(root, "", |name, value| {
            setting(name, value, model, known, is_auto)
        });
        self.chat_effort(root, model, known);
        if known.system_role && model.system_role == "system" {
            self.developer_roles(root);
        }
        if known.reasoning_replay
            && model.reasoning_replay == ReasoningReplay::ReasoningContentInTurn
        {
            self.earlier_reasoning(root);
        }
        if known.tool_call_ids && model.tool_call_ids == ToolCallIds::Nine {
            self.nine_letter_ids(root);
        }
    }

    /// Renames the limit to the one name that the vendor knows.
    fn limit_name(&mut self, root: Value<'a>, own: &'static str) {
        let other = if own == "max_tokens" {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        if root.get(other).is_none() {
            return;
        }
        if root.get(own).is_some() {
            self.warnings.add(Action::Dropped, other);
            self.drop_member(root, other);
            return;
        }
        // A null member of the right name would be a duplicate.
        self.drop_member(root, own);
        self.warnings.add(Action::Renamed, other);
        for (key, _) in root.members().filter(|(key, _)| key.is(other)) {
            self.edits.push((self.key_span(&key), json_string(own)));
        }
    }

    fn chat_effort(&mut self, root: Value<'a>, model: &ChatModel, known: &KnownCapabilities) {
        let given = root.get(EFFORT);
        let has_tools = ["tools", "functions"]
            .iter()
            .any(|name| root.get(name).is_some_and(|list| !is_empty(list)));
        if is_kept_from_reasoning(model, known) && has_tools {
            match given {
                Some(effort) if effort.is("none") => {}
                Some(effort) => {
                    self.warnings.add(Action::Downgraded, EFFORT);
                    self.replace(effort, "none");
                }
                None => {
                    self.drop_member(root, EFFORT);
                    self.warnings.add(Action::Inserted, EFFORT);
                    self.insert_member(root, EFFORT, "\"none\"");
                }
            }
            return;
        }
        let Some(given) = given else { return };
        let effort = effort_of(Some(given));
        if known.reasoning && !model.reasoning {
            if effort != Some(Effort::None) {
                self.warnings.add(Action::Dropped, EFFORT);
            }
            self.drop_member(root, EFFORT);
            return;
        }
        let verdict = if known.efforts {
            effort_verdict(effort, &model.effort_values)
        } else {
            EffortVerdict::Keep
        };
        match verdict {
            EffortVerdict::Keep => {}
            EffortVerdict::Drop => {
                self.warnings.add(Action::Dropped, EFFORT);
                self.drop_member(root, EFFORT);
            }
            EffortVerdict::Lower(level) => {
                self.warnings.add(Action::Downgraded, EFFORT);
                self.replace(given, level.as_str());
            }
        }
    }

    fn developer_roles(&mut self, root: Value<'a>) {
        for (index, message) in root
            .get("messages")
            .into_iter()
            .flat_map(Value::items)
            .enumerate()
        {
            if let Some(role) = message.get("role").filter(|role| role.is("developer")) {
                self.warnings
                    .add(Action::Renamed, format_args!("{}.role", At::Message(index)));
                self.replace(role, "system");
            }
        }
    }

    /// Keeps reasoning only in the current turn: after the last user message.
    fn earlier_reasoning(&mut self, root: Value<'a>) {
        let messages = || root.get("messages").into_iter().flat_map(Value::items);
        let last = messages()
            .enumerate()
            .filter(|(_, message)| message.get("role").is_some_and(|role| role.is("user")));
        let turn = last.map(|(index, _)| index).last().unwrap_or_default();
        let behind = || messages().skip(turn);
        let calls = |message: Value<'_>| {
            message
                .get("tool_calls")
                .is_some_and(|calls| !is_empty(calls))
        };
        let has_calls = behind().any(calls);
        for (index, message) in messages()
            .enumerate()
            .filter(|(index, _)| *index < turn || !has_calls)
        {
            let path = format!("{}.", At::Message(index));
            self.judge_members(message, &path, |name, value| match name {
                "reasoning_content" if is_empty(value) => Verdict::DropSilently,
                "reasoning_content" => Verdict::Drop,
                _ => Verdict::Keep,
            });
        }
    }

    /// Replaces the ids of calls and of their results; equal ids stay equal.
    fn nine_letter_ids(&mut self, root: Value<'a>) {
        let mut made: HashMap<Cow<'a, str>, String> = HashMap::new();
        for message in root.get("messages").into_iter().flat_map(Value::items) {
            let calls = message.get("tool_calls").into_iter().flat_map(Value::items);
            let ids = calls
                .filter_map(|call| call.get("id"))
                .chain(message.get("tool_call_id"));
            for place in ids {
                let Some(id) = place.string().filter(|id| !names::is_nine(id)) else {
                    continue;
                };
                let nine = made
                    .entry(id.clone())
                    .or_insert_with(|| names::nine_letter_call_id(id).into_owned());
                self.edits.push((self.span(place.raw()), json_string(nine)));
            }
        }
    }
}

/// Decides about a top-level member that depends on no other.
fn setting(
    name: &str,
    value: Value<'_>,
    model: &ChatModel,
    known: &KnownCapabilities,
    is_auto: bool,
) -> Verdict {
    let is_sampled = !known.sampling || model.sampling;
    let (is_refused, asks_nothing) = match name {
        "temperature" | "top_p" => (!is_sampled && !is_number(value, 1.0), false),
        "presence_penalty" | "frequency_penalty" => (!is_sampled && !is_number(value, 0.0), false),
        "logit_bias" => (!is_sampled && !value.is_null(), is_empty(value)),
        "stop" => (
            known.stop && !model.stop && !value.is_null(),
            is_empty(value),
        ),
        "verbosity" => (
            known.verbosity && !model.verbosity && !value.is_null(),
            false,
        ),
        "top_k" => (known.top_k && !model.top_k && !value.is_null(), false),
        "parallel_tool_calls" => {
            let is_refused = known.parallel_tool_calls
                && match model.parallel_tool_calls {
                    ParallelToolCalls::Accepted => false,
                    ParallelToolCalls::WithAutoChoice => !is_auto,
                    ParallelToolCalls::Refused => true,
                };
            (is_refused && !value.is_null(), value.bool() == Some(true))
        }
        _ => return Verdict::Keep,
    };
    match (is_refused, asks_nothing) {
        (false, _) => Verdict::Keep,
        (true, true) => Verdict::DropSilently,
        (true, false) => Verdict::Drop,
    }
}
