//! Reads the counters of a usage object; tolerant of whatever a vendor puts there.
//!
//! It must not merge or judge: `usage.rs` does. A counter that is negative, fractional, beyond 2^53, a string or
//! null is absent; a usage that is not an object says nothing.
//!
//! Read next: `usage.rs`.

use super::scan::{Broken, Scan};
use crate::usage::{ChatCounters, MessagesCounters, ServerTool, ServiceTier};

/// What a chat vendor's counters are called in one of its two protocols.
struct Names {
    prompt: &'static str,
    prompt_parts: &'static str,
    completion: &'static str,
    completion_parts: &'static str,
    /// Of both sides. Responses sells no audio: what a vendor says of it there is a part of the whole like any other.
    audio: Option<&'static str>,
    /// What some servers say in the place of a part of the prompt.
    cache_hit: Option<&'static str>,
}

const CHAT: Names = Names {
    prompt: "prompt_tokens",
    prompt_parts: "prompt_tokens_details",
    completion: "completion_tokens",
    completion_parts: "completion_tokens_details",
    audio: Some("audio_tokens"),
    cache_hit: Some("prompt_cache_hit_tokens"),
};

const RESPONSES: Names = Names {
    prompt: "input_tokens",
    prompt_parts: "input_tokens_details",
    completion: "output_tokens",
    completion_parts: "output_tokens_details",
    audio: None,
    cache_hit: None,
};

/// The usage object of a chat vendor; `None` if the next value is none.
pub(crate) fn chat(scan: &mut Scan<'_>) -> Result<Option<ChatCounters>, Broken> {
    named(scan, &CHAT)
}

/// The usage object of a responses vendor; `None` if the next value is none.
pub(crate) fn responses(scan: &mut Scan<'_>) -> Result<Option<ChatCounters>, Broken> {
    named(scan, &RESPONSES)
}

fn named(scan: &mut Scan<'_>, names: &Names) -> Result<Option<ChatCounters>, Broken> {
    let mut counters = ChatCounters::default();
    let mut cache_hit = None;
    let is_object = scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            name if name == names.prompt => counters.prompt = scan.count_or_skip()?,
            name if name == names.completion => counters.completion = scan.count_or_skip()?,
            "total_tokens" => counters.total = scan.count_or_skip()?,
            name if Some(name) == names.cache_hit => cache_hit = scan.count_or_skip()?,
            name if name == names.prompt_parts => parts(scan, &mut counters, |counters, name| match name {
                "cached_tokens" => Some(&mut counters.cached),
                "cache_write_tokens" => Some(&mut counters.cache_write),
                name if Some(name) == names.audio => Some(&mut counters.audio_prompt),
                _ => None,
            })?,
            name if name == names.completion_parts => parts(scan, &mut counters, |counters, name| match name {
                "reasoning_tokens" => Some(&mut counters.reasoning),
                name if Some(name) == names.audio => Some(&mut counters.audio_completion),
                _ => None,
            })?,
            _ => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    counters.cached = counters.cached.or(cache_hit);
    Ok(is_object.then_some(counters))
}

/// An object of counters, if the next value is one: `place` says where the count of a name belongs.
fn parts<C>(
    scan: &mut Scan<'_>,
    counters: &mut C,
    place: impl for<'c> Fn(&'c mut C, &str) -> Option<&'c mut Option<u64>>,
) -> Result<(), Broken> {
    scan.object_or_skip(|scan, key| {
        match place(counters, &key.name()) {
            Some(count) => *count = scan.count_or_skip()?,
            None => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    Ok(())
}

/// The tier that a vendor says it served; `None` if the next value is no word.
pub(crate) fn tier(scan: &mut Scan<'_>) -> Result<Option<ServiceTier>, Broken> {
    let word = scan.text_or_skip()?.map(|word| word.name()).filter(|word| !word.is_empty());
    Ok(word.map(|word| ServiceTier::said(&word)))
}

fn tool_of_key(key: &str) -> Option<ServerTool> {
    ServerTool::ALL.into_iter().find(|tool| tool.key() == key)
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
            "cache_creation" => parts(scan, &mut counters, |counters, name| match name {
                "ephemeral_5m_input_tokens" => Some(&mut counters.cache_write_5m),
                "ephemeral_1h_input_tokens" => Some(&mut counters.cache_write_1h),
                _ => None,
            })?,
            "service_tier" => counters.service_tier = tier(scan)?,
            "inference_geo" => counters.inference_geo = tier(scan)?,
            "speed" => counters.speed = tier(scan)?,
            "server_tool_use" => parts(scan, &mut counters, |counters, name| {
                let tool = name.strip_suffix("_requests").and_then(tool_of_key)?;
                Some(counters.tool_uses.get_mut(tool))
            })?,
            "output_tokens_details" => parts(scan, &mut counters, |counters, name| {
                (name == "thinking_tokens").then_some(&mut counters.reasoning)
            })?,
            _ => drop(scan.skip()?),
        }
        Ok::<(), Broken>(())
    })?;
    Ok(is_object.then_some(counters))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, by: fn(&mut Scan<'_>) -> Result<Option<ChatCounters>, Broken>) -> ChatCounters {
        by(&mut Scan::new(json, 8)).unwrap().unwrap()
    }

    #[test]
    fn a_vendors_two_protocols_say_the_same_counters_in_their_own_words() {
        let parts = ChatCounters {
            prompt: Some(100),
            cached: Some(60),
            cache_write: Some(10),
            completion: Some(50),
            reasoning: Some(20),
            ..ChatCounters::default()
        };
        let told = r#"{"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 20}}"#;
        assert_eq!(read(told, chat), parts);
        let renamed = told.replace("prompt_", "input_").replace("completion_", "output_");
        assert_eq!(read(&renamed, responses), parts);
        // Neither is read by the other's words.
        assert_eq!(read(told, responses), ChatCounters::default());
        assert_eq!(read(&renamed, chat), ChatCounters::default());
    }

    #[test]
    fn audio_and_a_cache_hit_beside_the_parts_are_chats_alone() {
        let told = r#"{"prompt_tokens": 9, "prompt_cache_hit_tokens": 3, "prompt_tokens_details": {"audio_tokens": 4},
            "completion_tokens": 8, "completion_tokens_details": {"audio_tokens": 5}}"#;
        let own = read(told, chat);
        assert_eq!((own.cached, own.audio_prompt, own.audio_completion), (Some(3), Some(4), Some(5)));
        let renamed = told.replace("prompt_tokens", "input_tokens").replace("completion_tokens", "output_tokens");
        let whole = ChatCounters { prompt: Some(9), completion: Some(8), ..ChatCounters::default() };
        assert_eq!(read(&renamed, responses), whole);
        let hit = renamed.replace("prompt_cache_hit_tokens", "input_cache_hit_tokens");
        assert_eq!(read(&hit, responses), whole);
    }
}
