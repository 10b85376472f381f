//! Repairs chat bodies: the name of the output limit, sampling, effort, roles, and ids of calls.
//!
//! This file must not change `system` for a model that prefers `developer`: such models accept
//! both.

use super::messages::turns;
use super::{
    EffortDecision, ForeignFieldRemover, MemberDecision, decide_effort, is_default_number,
    is_empty_value, parse_effort,
};
use crate::capabilities::identifiers;
use crate::capabilities::repair_rules::KnownCapabilities;
use crate::capabilities::{
    ChatModel, ParallelToolCalls, ReasoningReplay, ToolCallIds, ToolsWithReasoning,
};
use crate::chat::write_request::turns::ACKNOWLEDGEMENT;
use crate::ir::{Effort, JsonPath};
use crate::json::{JsonValue, Span, edit::JsonEdit, edit::json_string};
use crate::request::repair_check::may_have_to_disable_reasoning;
use std::borrow::Cow;
use std::collections::HashMap;

const EFFORT_MEMBER: &str = "reasoning_effort";

impl<'a> ForeignFieldRemover<'a> {
    pub(super) fn repair_chat(
        &mut self,
        root: JsonValue<'a>,
        model: &ChatModel,
        known: &KnownCapabilities,
    ) {
        if known.output_limit_field {
            self.rename_limit(root, model.output_limit_field);
        }
        let is_auto = root
            .get("tool_choice")
            .is_none_or(|choice| choice.is("auto"));
        self.filter_members(root, "", |name, value| {
            decide_setting(name, value, model, known, is_auto)
        });
        self.repair_chat_effort(root, model, known);
        if known.system_role && model.system_role == "system" {
            self.rename_developer_roles(root);
        }
        let moves_instructions = known.mid_system && !model.mid_system;
        let parts_users = known.turn_order && !model.user_after_tool;
        if moves_instructions || parts_users {
            self.arrange_messages(root, moves_instructions, parts_users);
        }
        if known.reasoning_replay
            && model.reasoning_replay == ReasoningReplay::ReasoningContentInTurn
        {
            self.drop_earlier_reasoning(root);
        }
        if known.tool_call_ids && model.tool_call_ids == ToolCallIds::Nine {
            self.rewrite_nine_char_ids(root);
        }
    }

    /// Renames the limit to the name that the vendor accepts.
    fn rename_limit(&mut self, root: JsonValue<'a>, own: &'static str) {
        let other = if own == "max_tokens" {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        if root.get(other).is_none() {
            return;
        }
        if root.get(own).is_some() {
            self.warnings.dropped(other);
            self.drop_member(root, other);
            return;
        }
        // A null member with the right name would be a duplicate.
        self.drop_member(root, own);
        self.warnings.renamed(other);
        for (key, _) in root.members().filter(|(key, _)| key.is(other)) {
            self.edits
                .push(JsonEdit::new(self.key_span(&key), json_string(own)));
        }
    }

    fn repair_chat_effort(
        &mut self,
        root: JsonValue<'a>,
        model: &ChatModel,
        known: &KnownCapabilities,
    ) {
        let effort_value = root.get(EFFORT_MEMBER);
        let has_tools = ["tools", "functions"]
            .iter()
            .any(|name| root.get(name).is_some_and(|list| !is_empty_value(list)));
        let must_disable = may_have_to_disable_reasoning(model, known)
            && has_tools
            && (model.tools_with_reasoning == ToolsWithReasoning::EffortNone
                || forces_tool(root.get("tool_choice")));
        let is_off = effort_value.is_some_and(|effort| effort.is("none"));
        match effort_value {
            _ if must_disable && !is_off => self.turn_reasoning_off(root, effort_value, model),
            _ if must_disable && model.reasoning_off.is_empty() => {}
            Some(effort) if known.reasoning && !model.reasoning => {
                if !effort.is("none") {
                    self.warnings.dropped(EFFORT_MEMBER);
                }
                self.drop_member(root, EFFORT_MEMBER);
            }
            Some(effort) => self.fit_effort(root, effort, model, known.efforts),
            None => {}
        }
    }

    /// Turns reasoning off, by the vendor's own members or by the effort.
    fn turn_reasoning_off(
        &mut self,
        root: JsonValue<'a>,
        effort_value: Option<JsonValue<'a>>,
        model: &ChatModel,
    ) {
        let none = [(EFFORT_MEMBER.to_owned(), "\"none\"".to_owned())];
        let switch = match (model.reasoning_off.as_slice(), effort_value) {
            ([], Some(effort)) => {
                self.warnings.downgraded(EFFORT_MEMBER);
                return self.replace_string(effort, "none");
            }
            ([], None) => &none,
            (switch, _) => switch,
        };
        if effort_value.is_some() {
            self.warnings.downgraded(EFFORT_MEMBER);
        }
        self.drop_member(root, EFFORT_MEMBER);
        for (name, json) in switch {
            if name == EFFORT_MEMBER || root.get(name).is_none() {
                self.warnings.inserted(name);
                self.insert_member(root, name, json);
            }
        }
    }

    /// Fits the effort to the values of the model, and adds the vendor's own members for it.
    /// `is_known`: the values are known.
    fn fit_effort(
        &mut self,
        root: JsonValue<'a>,
        effort_value: JsonValue<'a>,
        model: &ChatModel,
        is_known: bool,
    ) {
        let effort = parse_effort(Some(effort_value));
        let verdict = match is_known {
            true => decide_effort(effort, &model.effort_values),
            false => EffortDecision::Keep,
        };
        let is_off = match verdict {
            EffortDecision::Keep => effort == Some(Effort::None),
            EffortDecision::Lower(level) => level == Effort::None,
            EffortDecision::Drop => false,
        };
        let switch = match effort {
            _ if !is_known => &[],
            _ if is_off => model.reasoning_off.as_slice(),
            Some(effort) if effort != Effort::None => &model.reasoning_on,
            _ => &[],
        };
        let is_absent = |(name, _): &&(String, String)| root.get(name).is_none();
        for (name, json) in switch.iter().filter(is_absent) {
            self.warnings.inserted(name);
            self.insert_member(root, name, json);
        }
        let is_switched_off = is_off && !switch.is_empty();
        // Leaving out `none` loses nothing if the vendor has members of its own.
        let is_unasked =
            effort == Some(Effort::None) && !(switch.is_empty() && model.reasoning_on.is_empty());
        match verdict {
            EffortDecision::Drop => self.warnings.dropped(EFFORT_MEMBER),
            EffortDecision::Keep if is_switched_off => {}
            EffortDecision::Keep if model.takes_effort => return,
            EffortDecision::Lower(level) if !is_switched_off && model.takes_effort => {
                self.warnings.downgraded(EFFORT_MEMBER);
                return self.replace_string(effort_value, level.as_str());
            }
            EffortDecision::Lower(_) if is_switched_off => {
                self.warnings.downgraded(EFFORT_MEMBER);
            }
            EffortDecision::Keep | EffortDecision::Lower(_) if is_unasked => {}
            EffortDecision::Keep | EffortDecision::Lower(_) => {
                self.warnings.downgraded(EFFORT_MEMBER);
            }
        }
        self.drop_member(root, EFFORT_MEMBER);
    }

    fn rename_developer_roles(&mut self, root: JsonValue<'a>) {
        for (index, message) in root.items_of("messages").enumerate() {
            if let Some(role) = message.get("role").filter(|role| role.is("developer")) {
                self.warnings
                    .renamed(format_args!("{}.role", JsonPath::Message(index)));
                self.replace_string(role, "system");
            }
        }
    }

    /// Joins the instructions in front of the conversation to one message. Returns the number of
    /// joined messages.
    fn join_leading_instructions(&mut self, messages: &[JsonValue<'a>]) -> usize {
        let leading = messages
            .iter()
            .take_while(|message| is_instruction(**message))
            .count();
        if leading > 1 {
            let contents = messages.iter().take(leading);
            let parts: Vec<String> = contents
                .filter_map(|message| message.get("content"))
                .flat_map(turns::text_blocks)
                .collect();
            let joined = format!(r#"{{"role":"system","content":[{}]}}"#, parts.join(","));
            let first = messages.first().map(|first| self.span(first.raw()));
            let last = messages.get(leading - 1).map(|last| self.span(last.raw()));
            if let (Some(first), Some(last)) = (first, last) {
                let whole = Span {
                    start: first.start,
                    end: last.end,
                };
                self.forget_edits_in(whole);
                self.edits.push(JsonEdit::new(whole, joined));
            }
        }
        leading
    }

    /// Arranges the messages like translation. `moves_instructions` turns later instructions into
    /// reminders in the user's name, behind the results that must directly follow their calls.
    /// `parts_users` inserts an assistant's message between a tool's message and a user's.
    fn arrange_messages(
        &mut self,
        root: JsonValue<'a>,
        moves_instructions: bool,
        parts_users: bool,
    ) {
        let messages: Vec<_> = root.items_of("messages").collect();
        let (mut moves, mut leading) = (vec![None; messages.len()], messages.len());
        if moves_instructions {
            leading = self.join_leading_instructions(&messages);
            moves = turns::results_behind(&messages, is_instruction, |message| {
                has_role(message, "tool")
            });
        }
        let mut order: Vec<_> = messages.iter().copied().zip(moves).enumerate().collect();
        order.sort_by_key(|(index, (_, result))| (result.unwrap_or(*index), result.is_some()));
        let mut is_behind_tool = false;
        for (index, (message, result)) in order {
            let span = self.span(message.raw());
            let mut reminder = None;
            if is_instruction(message) && index >= leading {
                self.warnings.rewritten(JsonPath::Message(index));
                self.forget_edits_in(span);
                reminder = message.get("content").and_then(turns::reminder_message);
                if reminder.is_none() {
                    self.gone.push(span);
                    continue;
                }
            }
            let mut before = String::new();
            let is_user = has_role(message, "user") || is_instruction(message);
            if parts_users && is_behind_tool && is_user {
                self.warnings.inserted(JsonPath::Message(index));
                before = format!(r#"{{"role":"assistant","content":"{ACKNOWLEDGEMENT}"}},"#);
            }
            is_behind_tool = has_role(message, "tool");
            match (reminder, result.and_then(|result| messages.get(result))) {
                (Some(reminder), Some(result)) => {
                    self.gone.push(span);
                    let end = self.span(result.raw()).end;
                    self.edits
                        .push(JsonEdit::new(Span::at(end), format!(",{before}{reminder}")));
                }
                (Some(reminder), None) => self
                    .edits
                    .push(JsonEdit::new(span, format!("{before}{reminder}"))),
                (None, _) if before.is_empty() => {}
                (None, _) => {
                    self.edits
                        .insert(0, JsonEdit::new(Span::at(span.start), before));
                }
            }
        }
    }

    /// Drops the earlier edits inside this span, which is replaced as a whole.
    fn forget_edits_in(&mut self, whole: Span) {
        let is_inside = |span: &Span| whole.start <= span.start && span.end <= whole.end;
        self.edits.retain(|edit| !is_inside(&edit.span));
        self.gone.retain(|span| !is_inside(span));
    }

    /// Keeps the reasoning after the last user message, which belongs to the current turn, and
    /// drops all earlier reasoning.
    fn drop_earlier_reasoning(&mut self, root: JsonValue<'a>) {
        let messages = || root.items_of("messages");
        let last = messages()
            .enumerate()
            .filter(|(_, message)| message.member_is("role", "user"));
        let turn = last.map(|(index, _)| index).last().unwrap_or_default();
        let behind = || messages().skip(turn);
        let calls = |message: JsonValue<'_>| {
            message
                .get("tool_calls")
                .is_some_and(|calls| !is_empty_value(calls))
        };
        let has_calls = behind().any(calls);
        for (index, message) in messages()
            .enumerate()
            .filter(|(index, _)| *index < turn || !has_calls)
        {
            let path = format!("{}.", JsonPath::Message(index));
            self.filter_members(message, &path, |name, value| match name {
                "reasoning_content" if is_empty_value(value) => MemberDecision::DropSilently,
                "reasoning_content" => MemberDecision::Drop,
                _ => MemberDecision::Keep,
            });
        }
    }

    /// Replaces the ids of calls and of their results. Equal ids stay equal.
    fn rewrite_nine_char_ids(&mut self, root: JsonValue<'a>) {
        let mut made: HashMap<Cow<'a, str>, String> = HashMap::new();
        for message in root.items_of("messages") {
            let calls = message.items_of("tool_calls");
            let ids = calls
                .filter_map(|call| call.get("id"))
                .chain(message.get("tool_call_id"));
            for node in ids {
                let Some(id) = node.string().filter(|id| !identifiers::is_nine_char_id(id)) else {
                    continue;
                };
                let nine = made
                    .entry(id.clone())
                    .or_insert_with(|| identifiers::nine_char_call_id(id).into_owned());
                self.edits
                    .push(JsonEdit::new(self.span(node.raw()), json_string(nine)));
            }
        }
    }
}

/// Returns whether a choice makes the model call a tool.
fn forces_tool(choice: Option<JsonValue<'_>>) -> bool {
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else {
        return false;
    };
    let mode = choice.find(["allowed_tools", "mode"]).unwrap_or(choice);
    !mode.is("auto") && !mode.is("none")
}

fn has_role(message: JsonValue<'_>, role: &str) -> bool {
    message.member_is("role", role)
}

fn is_instruction(message: JsonValue<'_>) -> bool {
    has_role(message, "system") || has_role(message, "developer")
}

/// Decides about a top-level member that depends on no other.
fn decide_setting(
    name: &str,
    value: JsonValue<'_>,
    model: &ChatModel,
    known: &KnownCapabilities,
    is_auto: bool,
) -> MemberDecision {
    let is_sampled = !known.sampling || model.sampling;
    let (is_refused, asks_nothing) = match name {
        "temperature" | "top_p" => (!is_sampled && !is_default_number(value, 1.0), false),
        "presence_penalty" | "frequency_penalty" => {
            (!is_sampled && !is_default_number(value, 0.0), false)
        }
        "logit_bias" => (!is_sampled && !value.is_null(), is_empty_value(value)),
        "stop" => (
            known.stop && !model.stop && !value.is_null(),
            is_empty_value(value),
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
        _ => return MemberDecision::Keep,
    };
    match (is_refused, asks_nothing) {
        (false, _) => MemberDecision::Keep,
        (true, true) => MemberDecision::DropSilently,
        (true, false) => MemberDecision::Drop,
    }
}
