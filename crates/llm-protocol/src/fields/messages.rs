//! Contains the outcome of every member of a messages request that the gateway sends to a chat
//! vendor.
//!
//! The code calls [`outcome`] for the members that it drops, refuses or warns about. Mapped members
//! have their own code, and the tests below check that code against the rows. The gateway drops a
//! member without a row, with a warning.
//!
//! In a path, `[]` stands for the items of a list. If the `type` of an item matters, the brackets
//! contain it (`[custom]` includes a tool without a type; `[*]` is a type without a row). A row
//! without rows for its members covers all of them. Blocks inside tool results and documents use
//! the rows of the blocks themselves.
//!
//! Read next: `messages/read_request/blocks.rs`.

use super::rows::{OutcomeRow, find_outcome, parse_rows};
use crate::capabilities::FieldMapping;
use crate::table_text::count_lines;

/// Text of the table: `fields/messages.txt`.
const ROWS: &str = include_str!("messages.txt");

/// Outcome of each member by path, sorted bytewise.
pub const FIELDS: &[OutcomeRow] = &parse_rows::<{ count_lines(ROWS) }>(ROWS);

/// Returns the outcome of the member `name` of the object at `parent`, which is empty for the top
/// level. Returns `None` without a row.
pub(crate) fn outcome(parent: &str, name: &str) -> Option<FieldMapping> {
    let dot = if parent.is_empty() { "" } else { "." };
    let path = parent.bytes().chain(dot.bytes()).chain(name.bytes());
    find_outcome(FIELDS, path)
}

/// Returns the outcome of a block of this type, if one row covers the whole block.
pub(crate) fn block_outcome(kind: &str) -> Option<FieldMapping> {
    typed_row("messages[].content", kind)
}

/// Returns the outcome of a tool of this type, if one row covers the whole tool.
pub(crate) fn tool_outcome(kind: &str) -> Option<FieldMapping> {
    typed_row("tools", kind).or_else(|| is_advisor(kind).then_some(FieldMapping::Warn))
}

/// Returns whether a tool of this type asks a second model, at that model's price. The gateway has
/// no price for such a tool and drops it with a warning, because an agent offers it unasked.
pub(crate) fn is_advisor(kind: &str) -> bool {
    kind.starts_with("advisor_")
}

fn typed_row(list: &str, kind: &str) -> Option<FieldMapping> {
    let row = list.bytes().chain("[".bytes()).chain(kind.bytes());
    find_outcome(FIELDS, row.chain("]".bytes()))
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, outcome};
    use crate::Protocol;
    use crate::capabilities::{ChatModel, FieldMapping, ModelCapabilities, ReasoningReplay};
    use crate::ir::Effort;
    use crate::translate::{self, TranslationRequest};
    use serde_json::{Value, json};

    type TranslationOutcome = Result<(Value, Vec<String>, bool), String>;

    /// Translates the request for a vendor that accepts as much as any vendor does. Returns the
    /// body, the warnings, and whether the answer shows the reasoning.
    fn translated(request: &Value, replay: ReasoningReplay) -> TranslationOutcome {
        let accepts = ModelCapabilities::Chat(ChatModel {
            reasoning: true,
            effort_values: Effort::ALL.to_vec(),
            cache_breakpoints: true,
            reasoning_replay: replay,
            ..ChatModel::default()
        });
        let body = request.to_string();
        let input =
            TranslationRequest::in_test(Protocol::Messages, body.as_bytes(), 100_000, &accepts);
        let translated =
            translate::translate_request(&input, false).map_err(|failure| failure.message)?;
        let body = serde_json::from_slice(&translated.body).map_err(|error| error.to_string())?;
        Ok((
            body,
            translated.warnings,
            translated.response_context.show_thinking,
        ))
    }

    fn both(request: &Value) -> [TranslationOutcome; 2] {
        [
            ReasoningReplay::ReasoningContent,
            ReasoningReplay::ReasoningDetails,
        ]
        .map(|replay| translated(request, replay))
    }

    const MARKER: &str = r#"{"type":"ephemeral"}"#;

    /// A request that contains every mapped member, in as few blocks as possible.
    fn whole() -> Value {
        let marker: Value = serde_json::from_str(MARKER).unwrap();
        let schema = json!({"type": "object", "properties": {}});
        let signature =
            crate::reasoning_token::encode_details(r#"[{"type":"reasoning.encrypted"}]"#);
        json!({
            "model": "public-model", "max_tokens": 50_000, "stream": true, "temperature": 0.5, "top_p": 0.5,
            "service_tier": "standard_only", "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 20_000, "display": "omitted"},
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
            "system": [{"type": "text", "text": "s", "cache_control": marker}],
            "tools": [{
                "type": "custom", "name": "a", "description": "d", "input_schema": schema, "strict": true,
                "input_examples": [{}]
            }],
            "tool_choice": {"type": "tool", "name": "a", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "t", "cache_control": marker},
                    {"type": "image", "cache_control": marker,
                     "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                    {"type": "document", "title": "t", "context": "c", "cache_control": marker,
                     "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
                    {"type": "document", "source": {"type": "content", "content": "c"}},
                    {"type": "search_result", "source": "s", "title": "t", "cache_control": marker,
                     "content": [{"type": "text", "text": "t"}]},
                    {"type": "compaction", "content": "c", "cache_control": marker},
                ]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "t", "signature": signature},
                    {"type": "redacted_thinking", "data": "d"},
                    {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}},
                    {"type": "tool_use", "id": "toolu_2", "name": "a", "input": {}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "r", "is_error": true},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": [
                        {"type": "tool_reference", "tool_name": "a"}, {"type": "browser_state", "tabs": []},
                    ]},
                ]},
            ],
        })
    }

    /// Returns the first object with this `type` anywhere in the request.
    fn typed<'v>(value: &'v mut Value, kind: &str, has: &str) -> Option<&'v mut Value> {
        let is_it = value.get("type").is_some_and(|found| found == kind)
            && (has.is_empty() || reach(value, has).is_some());
        if is_it {
            return Some(value);
        }
        match value {
            Value::Array(items) => items.iter_mut().find_map(|item| typed(item, kind, has)),
            Value::Object(members) => members
                .values_mut()
                .find_map(|member| typed(member, kind, has)),
            _ => None,
        }
    }

    fn reach<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
        path.split('.')
            .try_fold(value, |value, name| value.get(name))
    }

    /// Sets a member by its path, or removes it.
    fn set(value: &mut Value, path: &str, to: Option<Value>) {
        let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
        let parent =
            parents
                .split('.')
                .filter(|name| !name.is_empty())
                .fold(value, |value, name| {
                    if value.get(name).is_none() {
                        value[name] = json!({});
                    }
                    &mut value[name]
                });
        let members = parent.as_object_mut().unwrap();
        match to {
            Some(to) => drop(members.insert(name.to_owned(), to)),
            None => drop(members.remove(name)),
        }
    }

    /// Returns the object that a row is about and the path of the member in it, or `None` if the
    /// row covers a whole block or tool.
    fn find_member<'v>(
        request: &'v mut Value,
        path: &str,
        has: bool,
    ) -> Option<(&'v mut Value, String)> {
        let Some((list, rest)) = path.split_once('[') else {
            return Some((request, path.to_owned()));
        };
        let (kind, member) = rest.split_once(']')?;
        let member = member.strip_prefix('.')?;
        if kind.is_empty() {
            let Some((_, inner)) = member.split_once('[') else {
                return Some((&mut request[list][0], member.to_owned()));
            };
            let (kind, member) = inner.split_once(']')?;
            let member = member.strip_prefix('.')?.to_owned();
            let expected = if has { member.clone() } else { String::new() };
            return Some((typed(&mut request[list], kind, &expected)?, member));
        }
        Some((typed(&mut request[list], kind, "")?, member.to_owned()))
    }

    /// Value to send for a row that is not mapped.
    fn sample(path: &str) -> Value {
        match path.rsplit('.').next().unwrap() {
            "top_k" => json!(5),
            "speed" => json!("fast"),
            "allowed_callers" => json!(["code_execution_20250825"]),
            "citations" if path.contains("text") => json!([{"type": "char_location"}]),
            "citations" => json!({"enabled": true}),
            "toolset_name" => json!("browser"),
            "tool_changes" => json!([{"type": "tool_addition"}]),
            _ => json!({"a": 1}),
        }
    }

    /// A request with a block or a tool of this type.
    fn with_whole(path: &str) -> Value {
        let (list, kind) = path.rsplit_once('[').unwrap();
        let kind = kind.trim_end_matches(']').replace('*', "hologram");
        let value = json!({
            "type": kind, "id": "srvtoolu_1", "tool_use_id": "srvtoolu_1", "name": "n", "input": {}, "content": "c",
            "data": "d", "tool_name": "a",
        });
        let mut request = whole();
        let turn = match kind.as_str() {
            _ if list == "tools" => request["tools"].as_array_mut(),
            "tool_reference" | "browser_state" => {
                request["messages"][2]["content"][1]["content"].as_array_mut()
            }
            _ => request["messages"][1]["content"].as_array_mut(),
        };
        turn.unwrap().push(value);
        request
    }

    #[test]
    fn the_rows_are_sorted() {
        assert!(FIELDS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(outcome("", "model"), Some(FieldMapping::Map));
        assert_eq!(
            outcome("messages[].content[image]", "transformations"),
            Some(FieldMapping::Drop)
        );
        assert_eq!(outcome("", "modell"), None);
    }

    #[test]
    fn the_whole_request_is_mapped_without_a_word() {
        for translated in both(&whole()) {
            let (_, warnings, _) = translated.unwrap();
            // The schema of the one tool is not strict.
            assert_eq!(warnings, ["dropped:tools[0].strict"]);
        }
    }

    /// Rows whose member does not reach the vendor, or states the default.
    const SILENT: [&str; 3] = ["model", "tools[custom].type", "output_config.effort"];

    #[test]
    fn the_code_does_what_the_rows_say() {
        for (path, outcome) in FIELDS {
            let mut request = whole();
            let Some((object, member)) =
                find_member(&mut request, path, *outcome == FieldMapping::Map)
            else {
                check_whole(path, *outcome);
                continue;
            };
            match outcome {
                FieldMapping::Map if SILENT.contains(path) || path.starts_with("output_format") => {
                    continue;
                }
                FieldMapping::Map => {
                    assert!(
                        reach(object, &member).is_some(),
                        "{path}: the whole request does not say it"
                    );
                    set(object, &member, None);
                    assert_ne!(
                        both(&request),
                        both(&whole()),
                        "{path}: it makes no difference"
                    );
                    continue;
                }
                _ => set(object, &member, Some(sample(path))),
            }
            if member == "source.url" || member == "source.file_id" {
                let kind = member.rsplit('.').next().unwrap().trim_end_matches("_id");
                set(object, "source.type", Some(json!(kind)));
            }
            check(path, *outcome, &request, &member);
        }
    }

    fn check(path: &str, outcome: FieldMapping, request: &Value, member: &str) {
        for (translated, before) in both(request).into_iter().zip(both(&whole())) {
            let before = before.unwrap();
            match outcome {
                FieldMapping::Map => {}
                FieldMapping::Drop => assert_eq!(translated.unwrap(), before, "{path}"),
                FieldMapping::Warn => {
                    let (body, warnings, _) = translated.unwrap();
                    assert_eq!(body, before.0, "{path}");
                    let added: Vec<_> = warnings
                        .iter()
                        .filter(|warning| !before.1.contains(warning))
                        .collect();
                    assert_eq!(added.len(), 1, "{path}: {warnings:?}");
                    assert!(
                        added[0].starts_with("dropped:") && added[0].ends_with(member),
                        "{path}: {added:?}"
                    );
                }
                FieldMapping::Refuse => assert!(translated.is_err(), "{path}"),
            }
        }
    }

    fn check_whole(path: &str, outcome: FieldMapping) {
        for (translated, before) in both(&with_whole(path)).into_iter().zip(both(&whole())) {
            let before = before.unwrap();
            match outcome {
                FieldMapping::Map => assert_ne!(translated.unwrap(), before, "{path}"),
                FieldMapping::Drop => assert_eq!(translated.unwrap(), before, "{path}"),
                FieldMapping::Warn => assert_ne!(translated.unwrap().1, before.1, "{path}"),
                FieldMapping::Refuse => assert!(translated.is_err(), "{path}"),
            }
        }
    }

    #[test]
    fn a_member_without_a_row_is_left_out_with_a_warning() {
        for (path, token) in [
            ("new", "dropped:new"),
            ("thinking.new", "dropped:thinking.new"),
            ("output_config.new", "dropped:output_config.new"),
            ("metadata.new", "dropped:metadata.new"),
            ("tool_choice.new", "dropped:tool_choice.new"),
            ("system[text].new", "dropped:system[0].new"),
            ("tools[custom].new", "dropped:tools[0].new"),
            ("messages[].new", "dropped:messages[0].new"),
            (
                "messages[].content[text].new",
                "dropped:messages[0].content[0].new",
            ),
            (
                "messages[].content[image].new",
                "dropped:messages[0].content[1].new",
            ),
            (
                "messages[].content[document].new",
                "dropped:messages[0].content[3].new",
            ),
            (
                "messages[].content[thinking].new",
                "dropped:messages[1].content[0].new",
            ),
            (
                "messages[].content[tool_use].new",
                "dropped:messages[1].content[2].new",
            ),
            (
                "messages[].content[tool_result].new",
                "dropped:messages[2].content[0].new",
            ),
        ] {
            let mut request = whole();
            let (object, member) = find_member(&mut request, path, false).unwrap();
            set(object, &member, Some(json!({"a": 1})));
            for translated in both(&request) {
                assert!(
                    translated.unwrap().1.iter().any(|warning| warning == token),
                    "{path}"
                );
            }
        }
    }
}
