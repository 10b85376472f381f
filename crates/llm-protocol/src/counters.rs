//! Reads the counters of a usage object, regardless of the values that a vendor sends.
//!
//! This file must not merge or validate: `usage/counters.rs` and `usage/metering.rs` do. An
//! integral number in any form (`1234`, `1234.0`, `1.234e3`, `-0`) is a count. A negative or
//! fractional number, a number beyond 2^53, and any other value is not a count. A usage that is not
//! an object has no counts.
//!
//! Read next: `usage/counters.rs`.

use super::json::{JsonKind, JsonScanner, MAX_COUNT, MAX_RESPONSE_DEPTH, ScanResult};
use crate::usage::{
    CacheWrites, ChatCounters, CompactionPass, MessagesCounters, ServerTool, ServiceTier,
    UnknownUsage,
};

/// Names of a chat vendor's counters in one of its two protocols.
struct CounterNames {
    prompt: &'static str,
    prompt_parts: &'static str,
    completion: &'static str,
    completion_parts: &'static str,
    /// Name of the audio counters, for input and output. The responses protocol has no audio price,
    /// so its audio counts like any other part of the total.
    audio: Option<&'static str>,
    /// Names that some servers use for the cached part of the prompt.
    cache_hits: &'static [&'static str],
}

const CHAT_NAMES: CounterNames = CounterNames {
    prompt: "prompt_tokens",
    prompt_parts: "prompt_tokens_details",
    completion: "completion_tokens",
    completion_parts: "completion_tokens_details",
    audio: Some("audio_tokens"),
    // DeepSeek and Kimi use these names.
    cache_hits: &["prompt_cache_hit_tokens", "cached_tokens"],
};

const RESPONSES_NAMES: CounterNames = CounterNames {
    prompt: "input_tokens",
    prompt_parts: "input_tokens_details",
    completion: "output_tokens",
    completion_parts: "output_tokens_details",
    audio: None,
    cache_hits: &[],
};

#[derive(Clone, Copy)]
enum CacheWriteClass {
    /// Priced as `cache_write_5m`.
    Short,
    /// Priced as `cache_write_1h`.
    Long,
}

/// The price class for each lifetime by which a vendor counts cache writes. The sources are
/// `CacheCreation` of anthropic 2.14 and `ResponseUsage` of openai 3.57 for Python. Each vendor has
/// two lifetimes, and its price list has two prices.
const CACHE_LIFETIMES: [(&str, CacheWriteClass); 4] = [
    ("ephemeral_5m_input_tokens", CacheWriteClass::Short),
    ("ephemeral_1h_input_tokens", CacheWriteClass::Long),
    ("ttl_30m_tokens", CacheWriteClass::Short),
    ("ttl_12h_tokens", CacheWriteClass::Long),
];

/// Types of `iterations` that the gateway accounts for. The vendor's totals include the first type;
/// the second is added to them.
const ITERATIONS: [&str; 2] = ["message", COMPACTION];
const COMPACTION: &str = "compaction";

/// Reads a chat vendor's usage object. Returns `None` if the next value is not an object. Some
/// servers use the counter names of the responses protocol.
pub(crate) fn read_chat_usage(scan: &mut JsonScanner<'_>) -> ScanResult<Option<ChatCounters>> {
    let start = scan.value_start()?;
    let own = read_usage(scan, &CHAT_NAMES)?;
    if own.is_none_or(|counters| counters.is_usage()) {
        return Ok(own);
    }
    let again = &mut JsonScanner::new(scan.text_from(start), MAX_RESPONSE_DEPTH);
    let renamed = read_usage(again, &RESPONSES_NAMES)?.filter(ChatCounters::is_usage);
    // Clients of chat do not read the renamed counters.
    let renamed = renamed.map(|counters| ChatCounters {
        is_irregular: true,
        ..counters
    });
    Ok(renamed.or(own))
}

/// Finds a chat vendor's usage object at one of `paths`. A path consists of member names from the
/// answer or the chunk, with dots between them. A list on the path stands for each of its items.
pub(crate) fn find_chat_usage(text: &str, paths: &[String]) -> Option<ChatCounters> {
    let at = |path: &String| {
        read_usage_at(&mut JsonScanner::new(text, MAX_RESPONSE_DEPTH), path)
            .ok()
            .flatten()
    };
    paths.iter().find_map(at)
}

fn read_usage_at(scan: &mut JsonScanner<'_>, path: &str) -> ScanResult<Option<ChatCounters>> {
    let mut found = None;
    if scan.kind()? == JsonKind::Array {
        scan.array_or_skip(|scan| {
            found = read_usage_at(scan, path)?.or(found);
            ScanResult::Ok(())
        })?;
    } else if path.is_empty() {
        found = read_chat_usage(scan)?.filter(ChatCounters::is_usage);
    } else {
        let (name, below) = path.split_once('.').unwrap_or((path, ""));
        scan.object_or_skip(|scan, key| {
            match key.name() == name {
                true => found = read_usage_at(scan, below)?.or(found),
                false => scan.skip()?,
            }
            ScanResult::Ok(())
        })?;
    }
    Ok(found)
}

/// Reads a responses vendor's usage object. Returns `None` if the next value is not an object.
pub(crate) fn read_responses_usage(scan: &mut JsonScanner<'_>) -> ScanResult<Option<ChatCounters>> {
    read_usage(scan, &RESPONSES_NAMES)
}

fn read_usage(
    scan: &mut JsonScanner<'_>,
    names: &CounterNames,
) -> ScanResult<Option<ChatCounters>> {
    let mut counters = ChatCounters::default();
    let mut cache_hit = None;
    let mut irregular = false;
    let is_object = scan.kind()? == JsonKind::Object;
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            name if name == names.prompt => counters.prompt = read_count(scan, &mut irregular)?,
            name if name == names.completion => {
                counters.completion = read_count(scan, &mut irregular)?
            }
            "total_tokens" => counters.total = read_count(scan, &mut irregular)?,
            name if names.cache_hits.contains(&name) => {
                cache_hit = read_count(scan, &mut irregular)?;
            }
            name if name == names.prompt_parts => scan.object_or_skip(|scan, key| {
                match key.name().as_ref() {
                    "cached_tokens" => counters.cached = read_count(scan, &mut irregular)?,
                    // Perplexity uses this name of the messages protocol for a part of the input.
                    "cache_read_input_tokens" => cache_hit = read_count(scan, &mut irregular)?,
                    "cache_write_tokens" | "cache_creation_input_tokens" => {
                        counters.cache_writes.sum = read_count(scan, &mut irregular)?;
                    }
                    "cache_write_tokens_details" => {
                        let (writes, unknown) = (&mut counters.cache_writes, &mut counters.unknown);
                        read_cache_writes(scan, writes, unknown, &mut irregular)?;
                    }
                    name if Some(name) == names.audio => {
                        counters.audio_prompt = read_count(scan, &mut irregular)?;
                    }
                    _ => scan.skip()?,
                }
                ScanResult::Ok(())
            })?,
            name if name == names.completion_parts => read_details(
                scan,
                &mut counters,
                &mut irregular,
                |counters, name| match name {
                    "reasoning_tokens" => Some(&mut counters.reasoning),
                    name if Some(name) == names.audio => Some(&mut counters.audio_completion),
                    _ => None,
                },
            )?,
            _ => scan.skip()?,
        }
        ScanResult::Ok(())
    })?;
    counters.cached = counters.cached.or(cache_hit);
    counters.is_irregular = irregular;
    Ok(is_object.then_some(counters))
}

/// Reads an object of counters, if the next value is an object. `counter_for` returns the counter
/// for a name.
fn read_details<C>(
    scan: &mut JsonScanner<'_>,
    counters: &mut C,
    irregular: &mut bool,
    counter_for: impl for<'c> Fn(&'c mut C, &str) -> Option<&'c mut Option<u64>>,
) -> ScanResult {
    scan.object_or_skip(|scan, key| {
        match counter_for(counters, &key.name()) {
            Some(count) => *count = read_count(scan, irregular)?,
            None => scan.skip()?,
        }
        Ok(())
    })
}

/// Reads the cache writes by lifetime, if the next value is an object.
fn read_cache_writes(
    scan: &mut JsonScanner<'_>,
    writes: &mut CacheWrites,
    unknown: &mut UnknownUsage,
    irregular: &mut bool,
) -> ScanResult {
    scan.object_or_skip(|scan, key| {
        let name = key.name();
        let class = CACHE_LIFETIMES.iter().find(|(known, _)| name == *known);
        // A value that is not a count cannot be a lifetime either.
        let mut is_odd = false;
        let is_known = class.is_some();
        let count = read_count(scan, if is_known { irregular } else { &mut is_odd })?;
        let part = match class {
            Some((_, CacheWriteClass::Short)) => &mut writes.short,
            Some((_, CacheWriteClass::Long)) => &mut writes.long,
            None => &mut writes.unknown,
        };
        unknown.cache_lifetime |= !is_known && count.is_some_and(|count| count > 0);
        if let Some(count) = count {
            *part = Some(part.unwrap_or(0).saturating_add(count));
        }
        Ok(())
    })
}

/// Reads the next value as a count. Sets `irregular` if the value is neither digits only nor null.
fn read_count(scan: &mut JsonScanner<'_>, irregular: &mut bool) -> ScanResult<Option<u64>> {
    let kind = scan.kind()?;
    let span = scan.skip_span()?;
    let plain = scan.count(span).filter(|_| kind == JsonKind::Number);
    *irregular |= plain.is_none() && kind != JsonKind::Null;
    let number = scan.text_from(span.start);
    Ok(plain.or_else(|| parse_integer(number).filter(|_| kind == JsonKind::Number)))
}

/// Returns the value of a JSON number, if it is an integer from 0 to 2^53.
fn parse_integer(number: &str) -> Option<u64> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    // Number of zeros after the significant digits that belong to the integer.
    let trailing = i64::try_from(
        digits
            .len()
            .checked_sub(digits.trim_end_matches('0').len())?,
    )
    .ok()?;
    let exponent: i64 = exponent.parse().ok()?;
    let zeros = exponent
        .checked_sub(i64::try_from(fraction.len()).ok()?)?
        .checked_add(trailing)?;
    let factor = 10_u64.checked_pow(u32::try_from(zeros).ok()?)?;
    let count = significant.parse::<u64>().ok()?.checked_mul(factor)?;
    (!is_negative && count <= MAX_COUNT).then_some(count)
}

/// Reads the tier that the vendor reports. Returns `None` if the next value is not a string or is
/// empty.
pub(crate) fn read_tier(scan: &mut JsonScanner<'_>) -> ScanResult<Option<ServiceTier>> {
    let word = scan
        .string_or_skip()?
        .map(|word| word.name())
        .filter(|word| !word.is_empty());
    Ok(word.map(|word| ServiceTier::from_wire(&word)))
}

fn server_tool_by_key(key: &str) -> Option<ServerTool> {
    ServerTool::ALL.into_iter().find(|tool| tool.key() == key)
}

/// Reads a messages vendor's usage object. Returns `None` if the next value is not an object.
pub(crate) fn read_messages_usage(
    scan: &mut JsonScanner<'_>,
) -> ScanResult<Option<MessagesCounters>> {
    let mut counters = MessagesCounters::default();
    let mut irregular = false;
    let is_object = scan.kind()? == JsonKind::Object;
    scan.object_or_skip(|scan, key| {
        match key.name().as_ref() {
            "service_tier" => counters.service_tier = read_tier(scan)?,
            "inference_geo" => counters.inference_geo = read_tier(scan)?,
            "speed" => counters.speed = read_tier(scan)?,
            "server_tool_use" => {
                read_details(scan, &mut counters, &mut irregular, |counters, name| {
                    let tool = name
                        .strip_suffix("_requests")
                        .and_then(server_tool_by_key)?;
                    Some(counters.tool_uses.get_mut(tool))
                })?
            }
            "iterations" => scan.array_or_skip(|scan| {
                let pass = read_compaction_pass(scan, &mut counters.unknown, &mut irregular)?;
                counters.compactions.extend(pass);
                ScanResult::Ok(())
            })?,
            name => read_token_count(name, scan, &mut counters, &mut irregular)?,
        }
        ScanResult::Ok(())
    })?;
    counters.is_irregular = irregular;
    Ok(is_object.then_some(counters))
}

/// Reads a token count that an answer and each of its iterations have in common.
fn read_token_count(
    name: &str,
    scan: &mut JsonScanner<'_>,
    counters: &mut MessagesCounters,
    irregular: &mut bool,
) -> ScanResult {
    match name {
        "input_tokens" => counters.input = read_count(scan, irregular)?,
        "output_tokens" => counters.output = read_count(scan, irregular)?,
        "cache_read_input_tokens" => counters.cache_read = read_count(scan, irregular)?,
        "cache_creation_input_tokens" => counters.cache_writes.sum = read_count(scan, irregular)?,
        "cache_creation" => {
            let (writes, unknown) = (&mut counters.cache_writes, &mut counters.unknown);
            read_cache_writes(scan, writes, unknown, irregular)?;
        }
        "output_tokens_details" => read_details(scan, counters, irregular, |counters, name| {
            (name == "thinking_tokens").then_some(&mut counters.reasoning)
        })?,
        _ => scan.skip()?,
    }
    Ok(())
}

/// Reads an entry of `iterations`, and returns the entry if it is a compaction pass, which the
/// answer's own counters leave out. Notes a type of pass that the gateway does not know.
fn read_compaction_pass(
    scan: &mut JsonScanner<'_>,
    unknown: &mut UnknownUsage,
    irregular: &mut bool,
) -> ScanResult<Option<CompactionPass>> {
    let mut counters = MessagesCounters::default();
    let mut is_compaction = false;
    scan.object_or_skip(|scan, key| match key.name().as_ref() {
        "type" => {
            if let Some(kind) = scan.string_or_skip()?.map(|kind| kind.name()) {
                is_compaction = kind == COMPACTION;
                unknown.iteration |= !ITERATIONS.contains(&kind.as_ref());
            }
            Ok(())
        }
        name => read_token_count(name, scan, &mut counters, irregular),
    })?;
    let kept = |count: Option<u64>| u32::try_from(count.unwrap_or(0)).unwrap_or(u32::MAX);
    let (short, long) = counters.cache_writes.classes();
    unknown.cache_lifetime |= is_compaction && counters.unknown.cache_lifetime;
    Ok(is_compaction.then(|| CompactionPass {
        input: kept(counters.input),
        cache_read: kept(counters.cache_read),
        cache_write_5m: kept(Some(short)),
        cache_write_1h: kept(Some(long)),
        output: kept(counters.output),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integral_number_in_any_form_is_a_count() {
        for (number, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0e7", Some(0)),
            ("0e99999999999999999999", Some(0)),
            ("1234", Some(1_234)),
            ("1234.0", Some(1_234)),
            ("1.234e3", Some(1_234)),
            ("1.2340E+3", Some(1_234)),
            ("12340e-1", Some(1_234)),
            ("10.50e1", Some(105)),
            ("1e3", Some(1_000)),
            ("9007199254740992", Some(1 << 53)),
            ("9007199254740992.0", Some(1 << 53)),
            ("9007199254740993.0", None),
            ("9007199254740993", None),
            ("1e16", None),
            ("1e400", None),
            ("1e99999999999999999999", None),
            ("1.5", None),
            ("1.2345e3", None),
            ("1e-1", None),
            ("-1", None),
            ("-12.0", None),
        ] {
            assert_eq!(parse_integer(number), expected, "{number}");
        }
    }

    #[test]
    fn a_counter_that_is_no_count_leaves_the_others_and_is_noted() {
        let odd = |value: &str| {
            read(
                &format!(r#"{{"prompt_tokens":{value},"completion_tokens":5,"total_tokens":9}}"#),
                read_chat_usage,
            )
        };
        let plain = ChatCounters {
            completion: Some(5),
            total: Some(9),
            ..ChatCounters::default()
        };
        assert_eq!(
            odd("4"),
            ChatCounters {
                prompt: Some(4),
                ..plain
            }
        );
        assert_eq!(odd("null"), plain);
        for value in ["-4", "4.5", "\"4\"", "true", "[]", "{}", "1e99"] {
            assert_eq!(
                odd(value),
                ChatCounters {
                    is_irregular: true,
                    ..plain
                },
                "{value}"
            );
        }
        for value in ["4.0", "0.4e1", "40e-1"] {
            assert_eq!(
                odd(value),
                ChatCounters {
                    prompt: Some(4),
                    is_irregular: true,
                    ..plain
                },
                "{value}"
            );
        }
        let within = r#"{"prompt_tokens_details":{"cached_tokens":"4"}}"#;
        assert!(read(within, read_chat_usage).is_irregular);
    }

    #[test]
    fn compaction_passes_are_read_with_their_own_classes_and_no_other_iteration_is() {
        let usage = r#"{"input_tokens": 682, "output_tokens": 1320, "iterations": [
            {"type": "compaction", "input_tokens": 60385, "output_tokens": 592, "cache_read_input_tokens": 7,
             "cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 5, "x": "1"}},
            {"type": "message", "input_tokens": 682, "output_tokens": 1320}, 7, {"input_tokens": 1}]}"#;
        let counters = read_messages_usage(&mut JsonScanner::new(usage, 8))
            .unwrap()
            .unwrap();
        let pass = CompactionPass {
            input: 60_385,
            cache_read: 7,
            cache_write_1h: 5,
            output: 592,
            ..CompactionPass::default()
        };
        assert_eq!((counters.input, counters.output), (Some(682), Some(1_320)));
        assert_eq!(counters.compactions.iter().collect::<Vec<_>>(), [&pass]);
        assert!(!counters.is_irregular);
    }

    #[test]
    fn cache_writes_have_the_price_class_of_their_lifetime() {
        let writes = |details: &str| {
            let usage = format!(
                r#"{{"input_tokens":100,"input_tokens_details":{{"cached_tokens":10,
                "cache_write_tokens_details":{details},"cache_write_tokens":50}},"output_tokens":1}}"#
            );
            let responses = read(&usage, read_responses_usage);
            let chat = usage
                .replace("\"input_", "\"prompt_")
                .replace("\"output_", "\"completion_");
            assert_eq!(read(&chat, read_chat_usage), responses, "{details}");
            let messages = format!(
                r#"{{"input_tokens":1,"cache_creation":{details},"cache_creation_input_tokens":50}}"#
            );
            let messages = read_messages_usage(&mut JsonScanner::new(&messages, 8));
            let messages = messages.unwrap().unwrap();
            assert_eq!(messages.cache_writes, responses.cache_writes, "{details}");
            assert_eq!(messages.unknown, responses.unknown, "{details}");
            (
                responses.cache_writes.classes(),
                responses.unknown.cache_lifetime,
            )
        };
        for (details, classes) in [
            (r#"{"ttl_30m_tokens":50,"ttl_12h_tokens":0}"#, (50, 0)),
            (r#"{"ttl_30m_tokens":20,"ttl_12h_tokens":30}"#, (20, 30)),
            (r#"{"ttl_12h_tokens":50}"#, (0, 50)),
            (
                r#"{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30}"#,
                (20, 30),
            ),
            (
                r#"{"ttl_12h_tokens":0,"ttl_7d_tokens":0,"note":"x"}"#,
                (50, 0),
            ),
            ("{}", (50, 0)),
            ("null", (50, 0)),
        ] {
            assert_eq!(writes(details), (classes, false), "{details}");
        }
        for (details, classes) in [
            (r#"{"ttl_7d_tokens":50}"#, (0, 50)),
            (
                r#"{"ttl_30m_tokens":20,"ttl_12h_tokens":10,"ttl_7d_tokens":20}"#,
                (20, 30),
            ),
        ] {
            assert_eq!(writes(details), (classes, true), "{details}");
        }
    }

    #[test]
    fn a_pass_of_a_type_without_a_price_is_noted() {
        for (kind, is_unknown) in [
            ("message", false),
            ("compaction", false),
            ("advisor_message", true),
            ("fallback_message", true),
            ("a_new_one", true),
        ] {
            let usage = format!(
                r#"{{"output_tokens":1,"iterations":[{{"type":"{kind}","input_tokens":5}},{{"type":"message"}},{{}}]}}"#
            );
            let counters = read_messages_usage(&mut JsonScanner::new(&usage, 8));
            assert_eq!(
                counters.unwrap().unwrap().unknown.iteration,
                is_unknown,
                "{kind}"
            );
        }
    }

    fn read(
        json: &str,
        by: fn(&mut JsonScanner<'_>) -> ScanResult<Option<ChatCounters>>,
    ) -> ChatCounters {
        by(&mut JsonScanner::new(json, 8)).unwrap().unwrap()
    }

    #[test]
    fn a_vendors_two_protocols_say_the_same_counters_in_their_own_words() {
        let parts = ChatCounters {
            prompt: Some(100),
            cached: Some(60),
            cache_writes: CacheWrites {
                sum: Some(10),
                ..CacheWrites::default()
            },
            completion: Some(50),
            reasoning: Some(20),
            ..ChatCounters::default()
        };
        let body = r#"{"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 20}}"#;
        assert_eq!(read(body, read_chat_usage), parts);
        let renamed = body
            .replace("prompt_", "input_")
            .replace("completion_", "output_");
        assert_eq!(read(&renamed, read_responses_usage), parts);
        let perplexity = renamed
            .replace("cached_tokens", "cache_read_input_tokens")
            .replace("cache_write_tokens", "cache_creation_input_tokens");
        assert_eq!(read(&perplexity, read_responses_usage), parts);
        // A chat answer may have the other's names, though no chat client reads them.
        assert_eq!(read(body, read_responses_usage), ChatCounters::default());
        let renamed_in_chat = ChatCounters {
            is_irregular: true,
            ..parts
        };
        assert_eq!(read(&renamed, read_chat_usage), renamed_in_chat);
        let beside = renamed.replace('}', r#", "prompt_tokens": 7}"#);
        assert_eq!(read(&beside, read_chat_usage).prompt, Some(7));
    }

    #[test]
    fn audio_and_a_cache_hit_beside_the_parts_are_chats_alone() {
        let body = r#"{"prompt_tokens": 9, "prompt_cache_hit_tokens": 3, "prompt_tokens_details": {"audio_tokens": 4},
            "completion_tokens": 8, "completion_tokens_details": {"audio_tokens": 5}}"#;
        let own = read(body, read_chat_usage);
        assert_eq!(
            (own.cached, own.audio_prompt, own.audio_completion),
            (Some(3), Some(4), Some(5))
        );
        let renamed = body
            .replace("prompt_tokens", "input_tokens")
            .replace("completion_tokens", "output_tokens");
        let whole = ChatCounters {
            prompt: Some(9),
            completion: Some(8),
            ..ChatCounters::default()
        };
        assert_eq!(read(&renamed, read_responses_usage), whole);
        let hit = renamed.replace("prompt_cache_hit_tokens", "input_cache_hit_tokens");
        assert_eq!(read(&hit, read_responses_usage), whole);
    }
}
