//! Pairs calls with their results: both vendors require the results directly after the calls.
//!
//! This file must not invent or omit a result: a model would take an invented one for a tool's
//! output. Other blocks may change their position only.
//!
//! Read next: `messages/write_request.rs` and `chat/write_request.rs`, which rely on this order.

use crate::Protocol;
use crate::ir::{
    Block, BlockKind, BoxedFailure, JsonPath, Request, RequestResult, ToolCall, ToolResult, Turn,
    TurnRole, Warnings, invalid_param,
};
use crate::json::JsonStr;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Moves the results of each assistant turn's calls to the front of the user turn directly after
/// it, in the order of the calls. The results may come from anywhere up to the next assistant turn,
/// and a missing user turn is inserted. Each result gets its call's id. Consecutive assistant turns
/// are merged from the first one with calls on, with text before the calls.
///
/// # Errors
/// Returns a failure of the surface if a call has no result or a result has no call.
pub fn pair_tool_results(request: &mut Request<'_>, warnings: &mut Warnings) -> RequestResult {
    let surface = request.surface;
    let mut turns = std::mem::take(&mut request.turns);
    if surface == Protocol::Responses {
        turns = join_parted_calls(turns, warnings);
    }
    let mut pairing = Pairing {
        surface,
        turns: Vec::with_capacity(turns.len()),
        open: OpenCalls::default(),
    };
    let mut turns = turns.into_iter().peekable();
    while let Some(turn) = turns.next() {
        match turn.side {
            TurnRole::Assistant => {
                pairing.close_calls()?;
                let mut run = vec![turn];
                run.extend(std::iter::from_fn(|| {
                    turns.next_if(|next| next.side == TurnRole::Assistant)
                }));
                pairing.push_assistant_turns(run);
            }
            TurnRole::User => pairing.push_user_turn(turn, warnings)?,
            TurnRole::System => pairing.turns.push(turn),
        }
    }
    pairing.close_calls()?;
    request.turns = pairing.turns;
    Ok(())
}

/// Moves messages that stand between the calls of one answer behind the calls. The responses
/// protocol accepts a result anywhere after its call, so an answer extends until all its calls have
/// results.
fn join_parted_calls<'a>(turns: Vec<Turn<'a>>, warnings: &mut Warnings) -> Vec<Turn<'a>> {
    let mut arranged = Vec::with_capacity(turns.len());
    let mut waiting: HashSet<Cow<'a, str>> = HashSet::new();
    let mut held: Vec<Turn<'a>> = Vec::new();
    let mut moved = 0;
    for turn in turns {
        if turn.side == TurnRole::Assistant {
            for message in held.iter().skip(moved).filter(|turn| !has_results(turn)) {
                warnings.rewritten(message.at);
            }
            moved = held.len();
            waiting.extend(turn.blocks.iter().filter_map(call_id));
            arranged.push(turn);
            continue;
        }
        for block in &turn.blocks {
            if let BlockKind::Result(outcome) = &block.kind {
                waiting.remove(&id_value(outcome.id.as_ref()));
            }
        }
        held.push(turn);
        if waiting.is_empty() {
            arranged.append(&mut held);
            moved = 0;
        }
    }
    arranged.append(&mut held);
    arranged
}

struct Pairing<'a> {
    surface: Protocol,
    /// The finished turns, followed by the turns since the last assistant turn without their
    /// results.
    turns: Vec<Turn<'a>>,
    open: OpenCalls<'a>,
}

/// The calls of the last assistant turn.
#[derive(Default)]
struct OpenCalls<'a> {
    /// Index of the assistant turn in `turns`.
    turn: usize,
    calls: Vec<PendingCall<'a>>,
    by_id: HashMap<Cow<'a, str>, CallsById>,
    by_name: HashMap<Cow<'a, str>, Vec<usize>>,
}

struct PendingCall<'a> {
    at: JsonPath,
    id: Option<JsonStr<'a>>,
    name: JsonStr<'a>,
    result: Option<Block<'a>>,
}

/// The calls with one id. There is one call unless the client uses an id twice.
#[derive(Default)]
struct CallsById {
    calls: Vec<usize>,
    answered: usize,
}

impl<'a> Pairing<'a> {
    /// Adds consecutive assistant turns. From the first turn with calls on, they become one turn.
    fn push_assistant_turns(&mut self, run: Vec<Turn<'a>>) {
        // Results must directly follow their calls, so no assistant turn may come between.
        let calling = run.iter().position(has_calls).unwrap_or(run.len());
        let mut run = run.into_iter();
        self.turns.extend(run.by_ref().take(calling));
        if let Some(first) = run.next() {
            let merged = merge_turns(first, run);
            self.open = OpenCalls::from_turn(&merged, self.turns.len());
            self.turns.push(merged);
        }
    }

    fn push_user_turn(&mut self, mut turn: Turn<'a>, warnings: &mut Warnings) -> RequestResult {
        let is_result = |block: &mut Block<'_>| matches!(block.kind, BlockKind::Result(_));
        let results: Vec<Block<'a>> = turn.blocks.extract_if(.., is_result).collect();
        let held_only_results = turn.blocks.is_empty() && !results.is_empty();
        for result in results {
            self.bind_result(result, turn.at, warnings)?;
        }
        // The results are inserted into the turn directly after the calls.
        if !held_only_results || self.turns.len() == self.open.turn.saturating_add(1) {
            self.turns.push(turn);
        }
        Ok(())
    }

    fn bind_result(
        &mut self,
        block: Block<'a>,
        at: JsonPath,
        warnings: &mut Warnings,
    ) -> RequestResult {
        let BlockKind::Result(outcome) = &block.kind else {
            return Ok(());
        };
        let Some(index) = self.open.match_call(outcome) else {
            return Err(self.orphaned_result(&block, outcome));
        };
        if let Some(call) = self.open.calls.get_mut(index)
            && call.result.replace(block).is_some()
        {
            warnings.merged(at);
        }
        Ok(())
    }

    /// Ends the span of the last assistant turn by inserting its results after it.
    fn close_calls(&mut self) -> RequestResult {
        let OpenCalls { turn, calls, .. } = std::mem::take(&mut self.open);
        if calls.iter().any(|call| call.result.is_none()) {
            return Err(self.missing_result(&calls));
        }
        if calls.is_empty() {
            return Ok(());
        }
        let message = calls
            .iter()
            .find_map(|call| call.result.as_ref())
            .map_or(0, |result| result.at.container_index());
        let results = calls.into_iter().filter_map(|call| {
            let mut block = call.result?;
            if let BlockKind::Result(outcome) = &mut block.kind {
                outcome.id = call.id;
            }
            Some(block)
        });
        match self
            .turns
            .get_mut(turn.saturating_add(1))
            .filter(|next| next.side == TurnRole::User)
        {
            Some(next) => drop(next.blocks.splice(0..0, results)),
            None => {
                let at = JsonPath::from_turn(self.surface, message);
                let made = Turn {
                    side: TurnRole::User,
                    blocks: results.collect(),
                    at,
                };
                self.turns
                    .insert(turn.saturating_add(1).min(self.turns.len()), made);
            }
        }
        Ok(())
    }

    fn missing_result(&self, calls: &[PendingCall<'_>]) -> BoxedFailure {
        let missing = || calls.iter().filter(|call| call.result.is_none());
        let ids: Vec<Cow<'_, str>> = missing().map(PendingCall::display_id).collect();
        let ids = ids.join(", ");
        let at = missing().next().map_or(0, |call| call.at.container_index());
        let at = JsonPath::from_turn(self.surface, at).to_string();
        let message = match self.surface {
            Protocol::Chat => format!(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
                 'tool_call_id'. The following tool_call_ids did not have response messages: {ids}"
            ),
            Protocol::Responses => {
                let first = missing()
                    .next()
                    .map(PendingCall::display_id)
                    .unwrap_or_default();
                return invalid_input(&format!("No tool output found for function call {first}."));
            }
            Protocol::Messages => format!(
                "`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each `tool_use` \
                 block must have a corresponding `tool_result` block in the next message."
            ),
        };
        invalid_param(self.surface, at, message)
    }

    fn orphaned_result(&self, block: &Block<'_>, outcome: &ToolResult<'_>) -> BoxedFailure {
        let message = match self.surface {
            Protocol::Chat => "Invalid parameter: messages with role 'tool' must be a response to a preceding message \
                               with 'tool_calls'."
                .to_owned(),
            Protocol::Responses => {
                let id = outcome.id.as_ref().map(JsonStr::value).unwrap_or_default();
                let message = format!("No tool call found for function call output with call_id {id}.");
                return invalid_input(&message);
            }
            Protocol::Messages => {
                let id = outcome.id.as_ref().map(JsonStr::value).unwrap_or_default();
                format!("unexpected `tool_use_id` found in `tool_result` blocks: {id}.")
            }
        };
        invalid_param(self.surface, block.at, message)
    }
}

impl<'a> OpenCalls<'a> {
    /// Creates the open calls of the turn with this index.
    fn from_turn(turn: &Turn<'a>, index: usize) -> Self {
        let mut open = OpenCalls {
            turn: index,
            ..OpenCalls::default()
        };
        for block in &turn.blocks {
            let BlockKind::Call(ToolCall { id, name, .. }) = &block.kind else {
                continue;
            };
            let index = open.calls.len();
            open.by_id
                .entry(id_value(id.as_ref()))
                .or_default()
                .calls
                .push(index);
            open.by_name
                .entry(name.clone().into_value())
                .or_default()
                .push(index);
            open.calls.push(PendingCall {
                at: block.at,
                id: id.clone(),
                name: name.clone(),
                result: None,
            });
        }
        open
    }

    /// Returns the call that a result answers: the first open one with its id, or else the last
    /// answered one. A result that names a function answers the closest open call of that function.
    fn match_call(&mut self, outcome: &ToolResult<'a>) -> Option<usize> {
        let is_answered = |index: &usize| {
            self.calls
                .get(*index)
                .is_none_or(|call| call.result.is_some())
        };
        if let (None, Some(name)) = (&outcome.id, &outcome.name) {
            let waiting = self.by_name.get_mut(&name.clone().into_value())?;
            while waiting.pop_if(|index| is_answered(index)).is_some() {}
            return waiting.pop();
        }
        let waiting = self.by_id.get_mut(&id_value(outcome.id.as_ref()))?;
        while waiting.calls.get(waiting.answered).is_some_and(is_answered) {
            waiting.answered = waiting.answered.saturating_add(1);
        }
        waiting
            .calls
            .get(waiting.answered)
            .or(waiting.calls.last())
            .copied()
    }
}

impl PendingCall<'_> {
    /// Returns the call's name for an error message: its id, or the function of a legacy call,
    /// which has no id.
    fn display_id(&self) -> Cow<'_, str> {
        self.id
            .as_ref()
            .filter(|id| !id.is_empty())
            .unwrap_or(&self.name)
            .value()
    }
}

/// Returns an error for the responses surface, which names the whole input instead of a path.
fn invalid_input(message: &str) -> BoxedFailure {
    invalid_param(Protocol::Responses, "input", message)
}

/// Returns the id's value. A missing id counts as an empty one.
fn id_value<'a>(id: Option<&JsonStr<'a>>) -> Cow<'a, str> {
    id.cloned().map(JsonStr::into_value).unwrap_or_default()
}

fn call_id<'a>(block: &Block<'a>) -> Option<Cow<'a, str>> {
    match &block.kind {
        BlockKind::Call(call) => Some(id_value(call.id.as_ref())),
        _ => None,
    }
}

fn has_results(turn: &Turn<'_>) -> bool {
    let is_result = |block: &Block<'_>| matches!(block.kind, BlockKind::Result(_));
    turn.blocks.iter().any(is_result)
}

fn has_calls(turn: &Turn<'_>) -> bool {
    turn.blocks.iter().any(is_call)
}

fn is_call(block: &Block<'_>) -> bool {
    matches!(block.kind, BlockKind::Call(_))
}

/// Merges several turns. The blocks before the first call of each turn move before the first call
/// of the merged turn.
fn merge_turns<'a>(mut first: Turn<'a>, later: impl Iterator<Item = Turn<'a>>) -> Turn<'a> {
    let mut calls = split_at_calls(&mut first);
    for mut turn in later {
        let more = split_at_calls(&mut turn);
        first.blocks.append(&mut turn.blocks);
        calls.extend(more);
    }
    first.blocks.extend(calls);
    first
}

/// Removes and returns the first call and everything after it.
fn split_at_calls<'a>(turn: &mut Turn<'a>) -> Vec<Block<'a>> {
    let calls = turn
        .blocks
        .iter()
        .position(is_call)
        .unwrap_or(turn.blocks.len());
    turn.blocks.split_off(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::ir::{ToolArguments, ToolResultContent};

    fn block(at: JsonPath, kind: BlockKind<'static>) -> Block<'static> {
        Block::new(at, kind)
    }

    fn text(text: &'static str) -> BlockKind<'static> {
        BlockKind::Text(JsonStr::from_value(text))
    }

    fn call(id: &'static str) -> BlockKind<'static> {
        let id = (!id.is_empty()).then(|| JsonStr::from_value(id));
        let arguments = ToolArguments::Text(JsonStr::from_value("{}"));
        BlockKind::Call(ToolCall {
            id,
            name: JsonStr::from_value("look"),
            arguments,
            is_custom: false,
        })
    }

    fn result(id: &'static str, content: &'static str) -> BlockKind<'static> {
        let content = ToolResultContent::Text(JsonStr::from_value(content));
        BlockKind::Result(ToolResult {
            id: Some(JsonStr::from_value(id)),
            name: None,
            content,
            is_error: false,
        })
    }

    fn named(name: &'static str, content: &'static str) -> BlockKind<'static> {
        let content = ToolResultContent::Text(JsonStr::from_value(content));
        BlockKind::Result(ToolResult {
            id: None,
            name: Some(JsonStr::from_value(name)),
            content,
            is_error: false,
        })
    }

    fn request(
        surface: Protocol,
        turns: Vec<(TurnRole, Vec<BlockKind<'static>>)>,
    ) -> Request<'static> {
        let turn = |(message, (side, kinds)): (usize, (TurnRole, Vec<BlockKind<'static>>))| {
            let at = |part| {
                if side == TurnRole::Assistant {
                    JsonPath::Call(message, part)
                } else {
                    JsonPath::Part(message, part)
                }
            };
            let blocks = kinds
                .into_iter()
                .enumerate()
                .map(|(part, kind)| block(at(part), kind))
                .collect();
            Turn {
                side,
                blocks,
                at: JsonPath::Message(message),
            }
        };
        Request {
            turns: turns.into_iter().enumerate().map(turn).collect(),
            ..Request::new(surface)
        }
    }

    /// Returns the resulting turns, one line each, and the warnings.
    fn paired(
        turns: Vec<(TurnRole, Vec<BlockKind<'static>>)>,
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        paired_on(Protocol::Chat, turns)
    }

    fn paired_on(
        surface: Protocol,
        turns: Vec<(TurnRole, Vec<BlockKind<'static>>)>,
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let mut request = request(surface, turns);
        let mut warnings = Warnings::default();
        pair_tool_results(&mut request, &mut warnings).map_err(|refused| *refused)?;
        let describe = |block: &Block<'_>| match &block.kind {
            BlockKind::Text(text) => text.value().into_owned(),
            BlockKind::Call(call) => format!("call {}", id_value(call.id.as_ref())),
            BlockKind::Result(ToolResult {
                id,
                content: ToolResultContent::Text(text),
                ..
            }) => {
                format!("{}={}", id_value(id.as_ref()), text.value())
            }
            _ => "?".to_owned(),
        };
        let line = |turn: &Turn<'_>| {
            let blocks: Vec<String> = turn.blocks.iter().map(describe).collect();
            format!("{:?}: {}", turn.side, blocks.join(", "))
        };
        Ok((
            request.turns.iter().map(line).collect(),
            warnings.into_tokens(),
        ))
    }

    use TurnRole::{Assistant, System, User};

    #[test]
    fn results_stand_in_front_in_the_order_of_the_calls() {
        let (turns, warnings) = paired(vec![
            (User, vec![text("hi")]),
            (Assistant, vec![text("one"), call("a"), call("b")]),
            (User, vec![text("wait")]),
            (System, vec![text("rule")]),
            (User, vec![result("b", "2")]),
            (User, vec![text("so"), result("a", "1"), text("?")]),
            (Assistant, vec![text("done")]),
        ])
        .unwrap();
        assert_eq!(
            turns,
            [
                "User: hi",
                "Assistant: one, call a, call b",
                "User: a=1, b=2, wait",
                "System: rule",
                "User: so, ?",
                "Assistant: done"
            ]
        );
        assert!(warnings.is_empty());
    }

    #[test]
    fn instructions_before_the_results_stay_behind_them() {
        let (turns, _) = paired(vec![
            (Assistant, vec![call("a")]),
            (System, vec![text("rule")]),
            (User, vec![result("a", "1")]),
        ])
        .unwrap();
        assert_eq!(turns, ["Assistant: call a", "User: a=1", "System: rule"]);
    }

    #[test]
    fn text_between_a_call_and_its_result_goes_before_the_call() {
        let (turns, _) = paired(vec![
            (Assistant, vec![text("early")]),
            (Assistant, vec![text("first"), call("a")]),
            (Assistant, vec![text("late")]),
            (Assistant, vec![text("more"), call("b")]),
            (User, vec![result("a", "1")]),
            (User, vec![result("b", "2")]),
        ])
        .unwrap();
        assert_eq!(
            turns,
            [
                "Assistant: early",
                "Assistant: first, late, more, call a, call b",
                "User: a=1, b=2"
            ]
        );
    }

    #[test]
    fn ids_may_repeat_and_the_last_of_two_results_wins() {
        let (turns, warnings) = paired(vec![
            (Assistant, vec![call("a"), call("a")]),
            (User, vec![result("a", "1"), result("a", "2")]),
            (Assistant, vec![call("a")]),
            (User, vec![result("a", "3")]),
            (User, vec![result("a", "4")]),
        ])
        .unwrap();
        assert_eq!(
            turns,
            [
                "Assistant: call a, call a",
                "User: a=1, a=2",
                "Assistant: call a",
                "User: a=4"
            ]
        );
        assert_eq!(warnings, ["merged:messages[4]"]);
    }

    #[test]
    fn a_function_message_answers_the_closest_open_call_of_its_name() {
        let (turns, _) = paired(vec![
            (Assistant, vec![call("")]),
            (User, vec![named("look", "1")]),
            (Assistant, vec![call("fc_2")]),
            (User, vec![named("look", "2")]),
        ])
        .unwrap();
        assert_eq!(
            turns,
            [
                "Assistant: call ",
                "User: =1",
                "Assistant: call fc_2",
                "User: fc_2=2"
            ]
        );
        let twice = vec![
            (Assistant, vec![call("")]),
            (User, vec![named("look", "1"), named("look", "2")]),
        ];
        assert_eq!(
            paired(twice).unwrap_err().param.as_deref(),
            Some("messages[1].content[1]")
        );
    }

    #[test]
    fn a_missing_result_is_refused_in_the_words_of_the_surface() {
        let turns = || {
            vec![
                (User, vec![text("hi")]),
                (Assistant, vec![call("a"), call("b"), call("c")]),
                (User, vec![result("b", "2")]),
                (Assistant, vec![text("next")]),
                (User, vec![result("a", "1"), result("c", "3")]),
            ]
        };
        let failure = paired(turns()).unwrap_err();
        assert_eq!(
            failure.message,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'. The following tool_call_ids did not have response messages: a, c"
        );
        assert_eq!(failure.param.as_deref(), Some("messages[1]"));
        let failure = paired_on(Protocol::Messages, turns()).unwrap_err();
        assert_eq!(
            failure.message,
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a, c. Each \
             `tool_use` block must have a corresponding `tool_result` block in the next message."
        );
        for last in [
            vec![(Assistant, vec![call("a")])],
            vec![(Assistant, vec![call("a")]), (System, vec![])],
        ] {
            assert!(paired(last).is_err());
        }
    }

    #[test]
    fn a_message_between_two_calls_of_the_responses_surface_goes_behind_their_results() {
        let turns = || {
            vec![
                (User, vec![text("hi")]),
                (Assistant, vec![call("a")]),
                (User, vec![text("wait")]),
                (System, vec![text("rule")]),
                (Assistant, vec![call("b")]),
                (User, vec![result("a", "1")]),
                (Assistant, vec![call("c")]),
                (User, vec![result("b", "2")]),
                (User, vec![result("c", "3")]),
                (User, vec![text("next")]),
                (Assistant, vec![text("so")]),
            ]
        };
        let (turns_out, warnings) = paired_on(Protocol::Responses, turns()).unwrap();
        assert_eq!(
            turns_out,
            [
                "User: hi",
                "Assistant: call a, call b, call c",
                "User: a=1, b=2, c=3, wait",
                "System: rule",
                "User: next",
                "Assistant: so"
            ]
        );
        assert_eq!(warnings, ["rewritten:messages[2]", "rewritten:messages[3]"]);
        // The other surfaces' own vendors refuse it.
        assert!(paired(turns()).is_err());
        // A call without any result is still refused.
        let mut unanswered = turns();
        unanswered.remove(7);
        let failure = paired_on(Protocol::Responses, unanswered).unwrap_err();
        assert_eq!(failure.message, "No tool output found for function call b.");
    }

    #[test]
    fn a_result_without_a_call_is_refused_in_the_words_of_the_surface() {
        let turns = || {
            vec![
                (Assistant, vec![call("a")]),
                (User, vec![result("a", "1")]),
                (Assistant, vec![text("so")]),
                (User, vec![text("ok"), result("a", "2")]),
            ]
        };
        let failure = paired(turns()).unwrap_err();
        assert_eq!(
            failure.message,
            "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
        );
        assert_eq!(failure.param.as_deref(), Some("messages[3].content[1]"));
        let failure = paired_on(Protocol::Messages, turns()).unwrap_err();
        assert_eq!(
            failure.message,
            "messages.3.content.1: unexpected `tool_use_id` found in `tool_result` blocks: a."
        );
        assert!(paired(vec![(User, vec![result("x", "1")])]).is_err());
    }
}
