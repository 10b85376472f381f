//! Contains the outcome of each member of a chat request that the gateway sends to a messages
//! vendor.
//!
//! The table must be complete, so that somebody has decided about every member the official client
//! can send. A member without a row is dropped with a warning. Paths have no indexes. Where the
//! value of a member changes its outcome, code decides (`messages/write_request/extras.rs`). The
//! tests below check that code and the reader against the rows.
//!
//! Read next: `chat/read_request/messages.rs`.

use super::rows::{OutcomeRow, find_outcome, parse_rows};
use crate::capabilities::FieldMapping;
use crate::table_text::count_lines;

/// Text of the table: `fields/chat.txt`.
const ROWS: &str = include_str!("chat.txt");

/// Outcome of each member by path, sorted bytewise.
pub const FIELDS: &[OutcomeRow] = &parse_rows::<{ count_lines(ROWS) }>(ROWS);

/// Returns the outcome of the member at `path`, or `None` if the table has no row for it.
pub(crate) fn outcome(path: &str) -> Option<FieldMapping> {
    find_outcome(FIELDS, path.bytes())
}

/// Returns whether a top-level member of this name has a row.
pub(crate) fn is_top_level(name: &str) -> bool {
    !name.contains(['.', '[']) && outcome(name).is_some()
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

    /// Top-level members that the official client can send.
    const OF_THE_CLIENT: &str = "messages model audio frequency_penalty function_call functions logit_bias logprobs \
        max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls prediction \
        presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort \
        response_format safety_identifier seed service_tier stop store stream stream_options temperature \
        tool_choice tools top_logprobs top_p user verbosity web_search_options";

    #[test]
    fn the_rows_are_sorted_and_cover_the_official_client() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for name in OF_THE_CLIENT.split_ascii_whitespace() {
            assert!(outcome(name).is_some(), "{name}");
        }
        assert_eq!(outcome("modell"), None);
    }

    /// Translates the request for a model with every capability.
    fn translated(request: &Value, may_search: bool) -> Result<TranslatedRequest, String> {
        let accepts = ModelCapabilities::Messages(MessagesModel {
            sampling: SamplingSupport::Free,
            thinking_types: vec![ThinkingType::Adaptive, ThinkingType::Disabled],
            effort_levels: Effort::ALL.to_vec(),
            prefill: true,
            mid_system: true,
            structured: true,
            server_tools: may_search
                .then(|| "web_search".to_owned())
                .into_iter()
                .collect(),
            min_cache_tokens: Some(0),
            ..MessagesModel::default()
        });
        let body = request.to_string();
        let input = TranslationRequest::in_test(Protocol::Chat, body.as_bytes(), 64_000, &accepts);
        translate::translate_request(&input, false).map_err(|failure| failure.message)
    }

    /// Everything in which the caller could notice a difference: the vendor's body, and the setting
    /// that shapes the answer.
    fn shown(request: &Value) -> Result<(String, bool), String> {
        let translated = translated(request, true)?;
        Ok((
            String::from_utf8(translated.body.to_vec()).unwrap(),
            translated.response_context.include_usage,
        ))
    }

    /// Requests that together contain every mapped member.
    fn wholes() -> [Value; 5] {
        let marker = json!({"type": "ephemeral"});
        let schema = json!({"type": "object", "properties": {}});
        let today = json!({
            "model": "public-model", "max_completion_tokens": 9000, "stream": true, "stream_options": {"include_usage": true}, "service_tier": "default", "stop": ["x"],
            "safety_identifier": "u", "reasoning_effort": "low", "parallel_tool_calls": false,
            "inference_geo": "us", "speed": "fast",
            "response_format": {
                "type": "json_schema", "json_schema": {"name": "n", "description": "d", "schema": schema}
            },
            "web_search_options": {"user_location": {"type": "approximate", "approximate": {"city": "Rome"}}},
            "tools": [
                {"type": "function", "function": {
                    "name": "a", "description": "d", "parameters": {"properties": {"x": {}}}, "strict": true,
                }},
                {"type": "custom", "custom": {
                    "name": "b", "description": "d", "format": {"type": "grammar"}
                }},
            ],
            "messages": [
                {"role": "user", "cache_control": marker, "content": [
                    {"type": "text", "text": "t", "prompt_cache_breakpoint": {"mode": "explicit"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a.pdf"}},
                ]},
                {"role": "assistant", "refusal": "no",
                 "content": [{"type": "text", "text": "t"}, {"type": "refusal", "refusal": "r"}],
                 "reasoning_details": [{"type": "reasoning.encrypted", "data": "d"}],
                 "tool_calls": [
                    {"type": "function", "id": "1", "cache_control": marker,
                     "function": {"name": "a", "arguments": "{\"a\":1}"}},
                    {"type": "custom", "id": "2", "custom": {"name": "b", "input": "i"}},
                ]},
                {"role": "tool", "tool_call_id": "1", "content": "r", "is_error": true},
                {"role": "tool", "tool_call_id": "2", "content": "r"},
            ],
        });
        let older = json!({
            "model": "public-model", "max_tokens": 9000, "user": "u", "cache_control": marker,
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
            "functions": [{"name": "a", "description": "d", "parameters": {"properties": {"x": {}}}}],
            "function_call": "none",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "t", "cache_control": marker}]},
                {"role": "assistant", "thinking_blocks": [{"type": "redacted_thinking", "data": "d"}],
                 "function_call": {"name": "a", "arguments": "{\"a\":1}"}},
                {"role": "function", "name": "a", "content": "r"},
            ],
        });
        let function = json!({"name": "a", "cache_control": marker});
        let other = json!({
            "model": "public-model", "metadata": {"user_id": "u"}, "tool_choice": "none",
            "reasoning": {"effort": "low", "exclude": true, "max_tokens": 5000, "enabled": false},
            "tools": [
                {"type": "function", "cache_control": marker, "function": {"name": "b"}},
                {"type": "function", "function": function},
            ],
            "messages": [{"role": "user", "content": "t"}],
        });
        let keyed = json!({
            "model": "public-model", "prompt_cache_key": "k", "temperature": 0.5, "top_p": 0.5, "top_k": 5,
            "messages": [{"role": "user", "content": "t"}],
        });
        let mut explicit = keyed.clone();
        explicit["prompt_cache_options"] = json!({"mode": "explicit"});
        [today, older, keyed, explicit, other]
    }

    /// Returns every object that may hold the last member of the path.
    fn holders<'v>(value: &'v mut Value, path: &str) -> Vec<&'v mut Value> {
        let Some((first, rest)) = path.split_once('.') else {
            return vec![value];
        };
        match first.strip_suffix("[]") {
            None => value
                .get_mut(first)
                .map(|value| holders(value, rest))
                .unwrap_or_default(),
            Some(list) => {
                let items = value.get_mut(list).and_then(Value::as_array_mut);
                items
                    .into_iter()
                    .flatten()
                    .flat_map(|item| holders(item, rest))
                    .collect()
            }
        }
    }

    fn last(path: &str) -> &str {
        path.rsplit('.').next().unwrap()
    }

    /// Mapped members whose removal changes nothing: the target's own name replaces `model`, and
    /// the test requests also contain a newer member that wins, or switch the feature off.
    const SILENT: [&str; 4] = [
        "model",
        "reasoning.effort",
        "reasoning.max_tokens",
        "reasoning.exclude",
    ];

    #[test]
    fn what_is_mapped_makes_a_difference() {
        for (path, _) in FIELDS
            .iter()
            .filter(|(path, outcome)| *outcome == FieldMapping::Map && !SILENT.contains(path))
        {
            let mut made = Vec::new();
            for whole in wholes() {
                let before = shown(&whole).unwrap();
                let count = holders(&mut whole.clone(), path).len();
                for index in 0..count {
                    let mut request = whole.clone();
                    let mut holders = holders(&mut request, path);
                    let removed = holders[index]
                        .as_object_mut()
                        .and_then(|members| members.remove(last(path)));
                    made.extend(removed.map(|_| shown(&request).as_ref() != Ok(&before)));
                }
            }
            assert!(made.contains(&true), "{path}: {made:?}");
        }
        for (path, value) in [
            ("effort", json!("high")),
            ("max_tokens", json!(20_000)),
            ("exclude", json!(true)),
        ] {
            let [.., mut request] = wholes();
            request["reasoning"] = json!({"effort": "low"});
            let before = shown(&request).unwrap();
            if path == "max_tokens" {
                request["reasoning"] = json!({});
            }
            request["reasoning"][path] = value;
            assert_ne!(shown(&request).unwrap(), before, "reasoning.{path}");
        }
    }

    #[test]
    fn what_is_mapped_goes_without_a_word() {
        let expected: [&[&str]; 5] = [&["rewritten:tools[1]"], &[], &[], &[], &[]];
        for (whole, expected) in wholes().iter().zip(expected) {
            assert_eq!(translated(whole, true).unwrap().warnings, expected);
        }
    }

    /// Value to send for a row that is not mapped.
    fn sample(path: &str) -> Value {
        match last(path) {
            "frequency_penalty" | "presence_penalty" => json!(0.5),
            "n" | "seed" | "top_logprobs" | "index" => json!(2),
            "logprobs" | "store" | "include_obfuscation" | "strict" => json!(true),
            "logit_bias" => json!({"50256": -100}),
            "modalities" => json!(["text", "audio"]),
            "verbosity" | "detail" | "search_context_size" => json!("low"),
            "name" | "prompt_cache_retention" | "reasoning" | "reasoning_content" => json!("x"),
            "file_id" => json!("file-1"),
            _ => json!({"a": 1}),
        }
    }

    #[test]
    fn what_is_not_mapped_is_dropped_told_or_refused() {
        for (path, outcome) in FIELDS
            .iter()
            .filter(|(_, outcome)| *outcome != FieldMapping::Map)
        {
            let [mut request, ..] = wholes();
            if path.starts_with("web_search_options.") {
                request["web_search_options"] = json!({});
            }
            let may_search = *path != "web_search_options";
            if !may_search {
                request.as_object_mut().unwrap().remove(*path);
            }
            let before = translated(&request, true).unwrap();
            let holder = match *path {
                "messages[].content[].input_audio" => {
                    request["messages"][0]["content"][0] = json!({"type": "input_audio"});
                    &mut request["messages"][0]["content"][0]
                }
                "messages[].content[].file.file_id" => {
                    request["messages"][0]["content"][2]["file"] = json!({});
                    &mut request["messages"][0]["content"][2]["file"]
                }
                path => {
                    let holders = holders(&mut request, path);
                    let is_assistant = |value: &&mut Value| value["role"] == "assistant";
                    let is_message = path.starts_with("messages[].")
                        && !path["messages[].".len()..].contains('.');
                    holders
                        .into_iter()
                        .find(|value| !is_message || is_assistant(value))
                        .unwrap()
                }
            };
            holder[last(path)] = sample(path);
            let translated = translated(&request, may_search);
            match outcome {
                FieldMapping::Map => {}
                FieldMapping::Refuse => assert!(translated.is_err(), "{path}"),
                FieldMapping::Drop | FieldMapping::Warn => {
                    let translated =
                        translated.unwrap_or_else(|message| panic!("{path}: {message}"));
                    assert_eq!(translated.body, before.body, "{path}");
                    let added: Vec<_> = translated
                        .warnings
                        .iter()
                        .filter(|token| !before.warnings.contains(token))
                        .collect();
                    assert_eq!(
                        added.len(),
                        usize::from(*outcome == FieldMapping::Warn),
                        "{path}: {added:?}"
                    );
                    assert!(
                        added.iter().all(|token| token.ends_with(last(path))),
                        "{path}: {added:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_has_no_row_is_told() {
        for (path, token) in [
            ("shade", "dropped:shade"),
            ("messages[].shade", "dropped:messages[].shade"),
            (
                "messages[].content[].shade",
                "dropped:messages[].content[].shade",
            ),
            (
                "messages[].tool_calls[].shade",
                "dropped:messages[].tool_calls[].shade",
            ),
            ("tools[].shade", "dropped:tools[].shade"),
            ("tools[].function.shade", "dropped:tools[].function.shade"),
        ] {
            let [mut request, ..] = wholes();
            holders(&mut request, path).remove(0)["shade"] = json!("x");
            let warnings = translated(&request, true).unwrap().warnings;
            assert!(
                warnings.iter().any(|warning| warning == token),
                "{path}: {warnings:?}"
            );
        }
    }
}
