//! Adds cache markers to the request of a caller that set none. A messages vendor caches only what
//! is marked: without markers, each step of a conversation pays the full price for all before it.
//!
//! | request | markers of the gateway |
//! |---|---|
//! | the caller set a marker, or asked for explicit ones | none |
//! | shorter than the least prompt that the model's vendor caches | none |
//! | no earlier answer, no tool that the model may choose, no cache key | none |
//! | any other | last tool, last instructions, end of each of the last two turns of the user |
//!
//! A write costs more than plain input, and pays only if a later request reads it: the third row is
//! for requests that may be the only ones. The end of the last turn is what the next request reads;
//! there it is the end of the turn before. That is marked too, because a vendor looks only 20
//! blocks back from a marker, and one step of an agent can be longer. The others survive where a
//! client changes its history. Source: the vendor's guide on prompt caching, read 2026-11.
//!
//! This module must not add more than the four that a request may have.

use super::markers;
use crate::Protocol;
use crate::capabilities::MessagesModel;
use crate::ir::{Block, BlockKind, CacheBreakpoint, Request, ToolChoice, ToolKind, TurnRole};
use crate::json::JsonValue;

/// Turns of the user with a marker.
const MARKED_TURNS: usize = 2;

/// Returns whether the gateway marks the request. Asked before anything is removed from it: a
/// caller's marker counts wherever it stands.
pub(super) fn is_wanted(request: &Request<'_>, model: &MessagesModel, input_tokens: u64) -> bool {
    request.surface != Protocol::Messages
        && model
            .min_cache_tokens
            .is_some_and(|least| input_tokens >= least)
        && !is_marked(request)
        && is_repeated(request)
}

fn is_marked(request: &Request<'_>) -> bool {
    let turns = request.turns.iter().flat_map(|turn| &turn.blocks);
    let is_explicit = |options: JsonValue<'_>| options.member_is("mode", "explicit");
    request
        .system
        .iter()
        .chain(turns)
        .any(|block| markers::count_markers(block) > 0)
        || request.tools.iter().any(|tool| tool.cache.is_some())
        || member(request, "cache_control").is_some()
        || member(request, "prompt_cache_options").is_some_and(is_explicit)
}

/// Returns whether a later request will probably begin like this one.
fn is_repeated(request: &Request<'_>) -> bool {
    let is_free_choice = match &request.choice {
        ToolChoice::Absent | ToolChoice::Auto => true,
        ToolChoice::Allowed { required, .. } => !required,
        // One that must be called is the way to get one structured answer.
        ToolChoice::None | ToolChoice::Required | ToolChoice::Tool(_) => false,
    };
    let has_answer = request
        .turns
        .iter()
        .any(|turn| turn.side == TurnRole::Assistant);
    has_answer
        || is_free_choice && !request.tools.is_empty()
        || member(request, "prompt_cache_key")
            .and_then(JsonValue::text)
            .is_some_and(|key| !key.is_empty())
}

fn member<'a>(request: &Request<'a>, name: &str) -> Option<JsonValue<'a>> {
    let mut extra = request.extra.iter();
    extra
        .find(|opaque| opaque.name.is(name))
        .map(|opaque| opaque.value)
}

/// Sets the markers.
pub(super) fn set(request: &mut Request<'_>) {
    // A marker on some of the vendor's own tools is refused.
    let is_own = |kind: &ToolKind<'_>| !matches!(kind, ToolKind::Vendor { .. });
    let mut tools = request.tools.iter_mut().rev();
    if let Some(tool) = tools.find(|tool| is_own(&tool.kind)) {
        tool.cache = Some(CacheBreakpoint::Usual);
    }
    mark_last(&mut request.system);
    let mut turns = request.turns.iter_mut().rev().peekable();
    for _ in 0..MARKED_TURNS {
        // Consecutive messages become one turn.
        while turns
            .next_if(|turn| turn.side == TurnRole::Assistant)
            .is_some()
        {}
        let mut is_marked = false;
        while let Some(turn) = turns.next_if(|turn| turn.side != TurnRole::Assistant) {
            is_marked |= !is_marked && turn.side == TurnRole::User && mark_last(&mut turn.blocks);
        }
    }
}

/// Marks the last block that may have a marker, and returns whether there is one.
fn mark_last(blocks: &mut [Block<'_>]) -> bool {
    let may_have = |block: &&mut Block<'_>| match &block.kind {
        BlockKind::Text(_) | BlockKind::Image(_) | BlockKind::File(_) | BlockKind::Result(_) => {
            true
        }
        BlockKind::Refusal(_)
        | BlockKind::Thinking(_)
        | BlockKind::Call(_)
        | BlockKind::Opaque(_) => false,
    };
    let last = blocks.iter_mut().rev().find(may_have);
    let is_found = last.is_some();
    if let Some(block) = last {
        block.cache = Some(CacheBreakpoint::Usual);
    }
    is_found
}

#[cfg(test)]
mod tests;
