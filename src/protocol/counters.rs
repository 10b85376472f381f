//! Reads the counters of a usage object; tolerant of whatever a vendor puts there.
//!
//! It must not merge or judge: `usage.rs` does. A counter that is negative, fractional, beyond 2^53, a string or
//! null is absent; a usage that is not an object says nothing.
//!
//! Read next: `usage.rs`.

use super::scan::{Broken, Scan};
use crate::usage::{ChatCounters, MessagesCounters, ServiceTier};

/// The usage object of a chat vendor; `None` if the next value is none.
pub(crate) fn chat(scan: &mut Scan<'_>) -> Result<Option<ChatCounters>, Broken> {
    let mut counters = ChatCounters::default();
    let mut cache_hit = None;
    let is_object = scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "prompt_tokens" => counters.prompt = scan.count_or_skip()?,
            "completion_tokens" => counters.completion = scan.count_or_skip()?,
            "prompt_cache_hit_tokens" => cache_hit = scan.count_or_skip()?,
            "prompt_tokens_details" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "cached_tokens" => counters.cached = scan.count_or_skip()?,
                        "cache_write_tokens" => counters.cache_write = scan.count_or_skip()?,
                        "audio_tokens" => counters.audio_prompt = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            "completion_tokens_details" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "reasoning_tokens" => counters.reasoning = scan.count_or_skip()?,
                        "audio_tokens" => counters.audio_completion = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            _ => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    counters.cached = counters.cached.or(cache_hit);
    Ok(is_object.then_some(counters))
}

/// The usage object of a responses vendor: chat's counters under other names; `None` if the next value is none.
pub(crate) fn responses(scan: &mut Scan<'_>) -> Result<Option<ChatCounters>, Broken> {
    let mut counters = ChatCounters::default();
    let is_object = scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "input_tokens" => counters.prompt = scan.count_or_skip()?,
            "output_tokens" => counters.completion = scan.count_or_skip()?,
            "input_tokens_details" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "cached_tokens" => counters.cached = scan.count_or_skip()?,
                        "cache_write_tokens" => counters.cache_write = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            "output_tokens_details" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "reasoning_tokens" => counters.reasoning = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            _ => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    Ok(is_object.then_some(counters))
}

/// The tier that a vendor says it served; `None` if the next value is no word.
pub(crate) fn tier(scan: &mut Scan<'_>) -> Result<Option<ServiceTier>, Broken> {
    let word = scan.text_or_skip()?.map(|word| word.name()).filter(|word| !word.is_empty());
    Ok(word.map(|word| ServiceTier::said(&word)))
}

/// The usage object of a messages vendor; `None` if the next value is none.
pub(crate) fn messages(scan: &mut Scan<'_>) -> Result<Option<MessagesCounters>, Broken> {
    let mut counters = MessagesCounters::default();
    let is_object = scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "input_tokens" => counters.input = scan.count_or_skip()?,
            "output_tokens" => counters.output = scan.count_or_skip()?,
            "cache_read_input_tokens" => counters.cache_read = scan.count_or_skip()?,
            "cache_creation_input_tokens" => counters.cache_write = scan.count_or_skip()?,
            "cache_creation" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "ephemeral_5m_input_tokens" => {
                            counters.cache_write_5m = scan.count_or_skip()?;
                        }
                        "ephemeral_1h_input_tokens" => {
                            counters.cache_write_1h = scan.count_or_skip()?;
                        }
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            "service_tier" => counters.service_tier = tier(scan)?,
            "server_tool_use" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "web_search_requests" => counters.web_searches = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            "output_tokens_details" => {
                scan.object_or_skip(|scan, key| {
                    match key.name().as_ref() {
                        "thinking_tokens" => counters.reasoning = scan.count_or_skip()?,
                        _ => drop(scan.skip()?),
                    }
                    Ok::<(), Broken>(())
                })?;
            }
            _ => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    Ok(is_object.then_some(counters))
}
