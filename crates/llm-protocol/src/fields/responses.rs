//! Contains the outcome of each member of a responses request that the gateway sends to a vendor of
//! another protocol.
//!
//! The code calls [`outcome`] for the top-level members that it drops, refuses or warns about.
//! Mapped members have their own code, and the tests check that code against the rows. The gateway
//! drops a member without a row, with a warning. A row without rows for its members covers all of
//! them. Items, parts and tools depend on their types: see `responses/read_request/items.rs`,
//! `responses/read_request/parts.rs` and `responses/read_request/tools.rs`.
//!
//! Read next: `responses/read_request/items.rs`.

use super::rows::{OutcomeRow, find_outcome, parse_rows};
use crate::capabilities::FieldMapping;
use crate::table_text::count_lines;

/// Text of the table: `fields/responses.txt`.
const ROWS: &str = include_str!("responses.txt");

/// Outcome of each member by path, sorted bytewise.
pub const FIELDS: &[OutcomeRow] = &parse_rows::<{ count_lines(ROWS) }>(ROWS);

/// Returns the outcome of the member at `path`, or `None` if the table has no row for it.
pub(crate) fn outcome(path: &str) -> Option<FieldMapping> {
    find_outcome(FIELDS, path.bytes())
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, outcome};
    use crate::Protocol;
    use crate::capabilities::{
        FieldMapping, MessagesModel, ModelCapabilities, SamplingSupport, ThinkingType,
    };
    use crate::ir::Effort;
    use crate::translate::{self, TranslatedRequest, TranslationRequest};
    use serde_json::{Value, json};

    #[test]
    fn the_rows_are_sorted() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(outcome("modell"), None);
    }

    /// Translates the request for a model that accepts as much as any model does.
    fn translated(request: &Value) -> Result<TranslatedRequest, String> {
        let accepts = ModelCapabilities::Messages(MessagesModel {
            sampling: SamplingSupport::Free,
            thinking_types: vec![ThinkingType::Adaptive, ThinkingType::Disabled],
            effort_levels: Effort::ALL.to_vec(),
            mid_system: true,
            structured: true,
            min_cache_tokens: Some(0),
            ..MessagesModel::default()
        });
        let body = request.to_string();
        let input =
            TranslationRequest::in_test(Protocol::Responses, body.as_bytes(), 64_000, &accepts);
        translate::translate_request(&input, false).map_err(|failure| failure.message)
    }

    /// Everything in which the caller could notice a difference: the vendor's body, and whether the
    /// answer shows the reasoning. Returns the error message if the request is refused.
    fn shown(request: &Value) -> Result<(String, bool), String> {
        let translated = translated(request)?;
        Ok((
            String::from_utf8(translated.body.to_vec()).unwrap(),
            translated.response_context.show_thinking,
        ))
    }

    /// Requests that together contain every mapped member.
    fn wholes() -> [Value; 3] {
        let usual = json!({
            "model": "public-model", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 900, "stream": true,
            "temperature": 0.5, "top_p": 0.5, "top_k": 5, "parallel_tool_calls": false, "prompt_cache_key": "k",
            "reasoning": {"effort": "low", "summary": "auto"}, "safety_identifier": "u", "service_tier": "default",
            "inference_geo": "us", "speed": "fast", "tool_choice": "required",
            "text": {"format": {"type": "json_object"}, "verbosity": "low"},
            "tools": [{"type": "function", "name": "f"}],
        });
        let own = json!({
            "model": "public-model", "input": "Hi", "user": "u", "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
        });
        let explicit = json!({
            "model": "public-model", "input": "Hi", "prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"},
            "reasoning": {"effort": "low", "generate_summary": "auto"},
        });
        [usual, own, explicit]
    }

    fn without(request: &Value, path: &str) -> Option<Value> {
        let mut request = request.clone();
        let (holder, last) = match path.split_once('.') {
            Some((first, last)) => (request.get_mut(first)?, last),
            None => (&mut request, path),
        };
        holder.as_object_mut()?.remove(last)?;
        Some(request)
    }

    #[test]
    fn what_is_mapped_makes_a_difference() {
        // The target's own name replaces `model`; without `input` there is no request;
        // `text.verbosity` only causes a warning.
        let silent = ["model", "input", "text.verbosity"];
        for (path, _) in FIELDS
            .iter()
            .filter(|(path, outcome)| *outcome == FieldMapping::Map && !silent.contains(path))
        {
            let changed: Vec<bool> = wholes()
                .iter()
                .filter_map(|whole| Some(shown(&without(whole, path)?) != shown(whole)))
                .collect();
            assert!(changed.contains(&true), "{path}: {changed:?}");
        }
    }

    /// Value to send for a row that is not mapped.
    fn sample(path: &str) -> Value {
        match path {
            "background" | "store" | "prompt_cache_options.prewarm" => json!(true),
            "top_logprobs" | "max_tool_calls" => json!(2),
            "include" => json!(["reasoning.encrypted_content"]),
            "context_management" => json!([{"type": "compaction"}]),
            "stream_options" => json!({"include_obfuscation": true}),
            "reasoning.mode" | "reasoning.context" | "truncation" | "prompt_cache_retention" => {
                json!("x")
            }
            _ => json!({"a": "b"}),
        }
    }

    #[test]
    fn what_is_not_mapped_is_dropped_told_or_refused() {
        let base = json!({"model": "public-model", "input": "Hi", "stream": true, "reasoning": {"summary": "auto"},
                          "prompt_cache_options": {"ttl": "1h"}});
        let before = translated(&base).unwrap();
        assert_eq!(before.warnings, [""; 0]);
        for (path, outcome) in FIELDS
            .iter()
            .filter(|(_, outcome)| *outcome != FieldMapping::Map)
        {
            let mut request = base.clone();
            match path.split_once('.') {
                Some((first, last)) => request[first][last] = sample(path),
                None => request[*path] = sample(path),
            }
            match (outcome, translated(&request)) {
                (FieldMapping::Refuse, translated) => assert!(translated.is_err(), "{path}"),
                (outcome, translated) => {
                    let translated =
                        translated.unwrap_or_else(|message| panic!("{path}: {message}"));
                    assert_eq!(translated.body, before.body, "{path}");
                    let expected: Vec<String> = (*outcome == FieldMapping::Warn)
                        .then(|| format!("dropped:{path}"))
                        .into_iter()
                        .collect();
                    assert_eq!(translated.warnings, expected, "{path}");
                }
            }
        }
        let mut request = base;
        request["shade"] = json!(1);
        assert_eq!(translated(&request).unwrap().warnings, ["dropped:shade"]);
    }
}
