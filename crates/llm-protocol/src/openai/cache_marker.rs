//! Reads the cache marker of a part, message, call, item or tool.
//!
//! This file must not count markers: `messages/write_request/marker_budget.rs` does.

use super::check::{cache_control, optional_object};
use crate::ir::{CacheBreakpoint, RequestResult};
use crate::json::JsonValue;

/// Reads the cache marker of a part, message, call or tool. `prompt_cache_breakpoint` is the chat
/// API's own member; many clients send `cache_control` instead.
pub(crate) fn cache_marker(
    of: JsonValue<'_>,
    path: impl std::fmt::Display,
) -> RequestResult<Option<CacheBreakpoint>> {
    if let Some(marker) = of.get("cache_control") {
        return cache_control(marker, format_args!("{path}.cache_control")).map(Some);
    }
    let Some(breakpoint) = optional_object(of, "prompt_cache_breakpoint", path)? else {
        return Ok(None);
    };
    if !breakpoint.member_is("mode", "explicit") {
        return Ok(None);
    }
    // The messages protocol has no lifetime of 12 hours, so use its longest one.
    let is_long = breakpoint.member_is("ttl", "12h");
    Ok(Some(if is_long {
        CacheBreakpoint::OneHour
    } else {
        CacheBreakpoint::Usual
    }))
}
