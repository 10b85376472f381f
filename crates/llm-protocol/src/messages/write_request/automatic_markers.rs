//! Adds cache markers to a request without any. A messages vendor caches only a marked prefix:
//! without markers, each step of a conversation pays the full price for all earlier steps.
//!
//! | request | markers of the gateway |
//! |---|---|
//! | the caller set a marker, or asked for explicit ones | none |
//! | shorter than the least prompt that the model's vendor caches | none |
//! | no earlier answer, no tool that the model may choose, no cache key | none |
//! | any other | last tool, last instructions, end of each of the last two turns of the user |
//!
//! A cache write costs more than plain input and pays only if a later request reads it, so the
//! third row covers requests that may be the only ones. The next request reads the cache up to the
//! end of the last turn. The turn before is marked too, because a vendor looks only 20 blocks back
//! from a marker, and one step of an agent can be longer. The markers on tools and instructions
//! stay valid when a client changes its history. Source: the vendor's guide on prompt caching, read
//! 2026-11.
//!
//! This module must not add more than the four that a request may have.

use super::markers;
use crate::Protocol;
use crate::capabilities::MessagesModel;
use crate::ir::{Block, BlockKind, CacheBreakpoint, Request, ToolChoice, ToolKind, TurnRole};
use crate::json::JsonValue;

/// Number of the user's last turns that get a marker.
const MARKED_TURNS: usize = 2;

/// Returns whether the gateway marks the request. The caller must ask before it removes blocks,
/// because a client's marker counts on any block.
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
        // A forced tool call often serves to get one structured answer, which is not repeated.
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

pub(super) fn set(request: &mut Request<'_>) {
    // Some of the vendor's own tools must not have a marker.
    let is_own = |kind: &ToolKind<'_>| !matches!(kind, ToolKind::Vendor { .. });
    let mut tools = request.tools.iter_mut().rev();
    if let Some(tool) = tools.find(|tool| is_own(&tool.kind)) {
        tool.cache = Some(CacheBreakpoint::Usual);
    }
    mark_last(&mut request.system);
    let mut turns = request.turns.iter_mut().rev().peekable();
    for _ in 0..MARKED_TURNS {
        // Consecutive messages of the user become one turn.
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

/// Marks the last block that may have a marker. Returns false if there is none.
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
