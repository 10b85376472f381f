//! Rewrites a request that came to the chat surface in the shape of another protocol.
//!
//! Cursor posts whole responses bodies to `/chat/completions`, the responses protocol's tools
//! beside chat's, and for models named `claude-*` the messages protocol's tools, calls and results.
//! It reads the answer as a chat client (BerriAI/litellm#34029, automazeio/vibeproxy#411,
//! gabrii/Cursor-Azure-GPT-5#69).
//!
//! | shape                                         | becomes                                      |
//! |-----------------------------------------------|----------------------------------------------|
//! | `input` and no `messages`                     | the chat request of the same meaning         |
//! | a tool with a `name` and no wrapper           | the same in `function` or `custom`           |
//! | `tool_choice` with a `name` and no wrapper    | the same in `function` or `custom`           |
//! | a part `tool_use`                             | an entry of `tool_calls`                     |
//! | a part `tool_result`                          | a message of the role `tool` before the rest |
//! | parts `input_text`, `output_text`             | `text`                                       |
//! | parts `input_image` and `image` with a source | `image_url`                                  |
//!
//! This file must not validate the request: the reader of the surface reads the result.

use super::{TranslationRequest, translate_request};
use crate::Protocol;
use crate::capabilities::{ChatModel, ModelCapabilities, TranslationTarget};
use crate::failure::Failure;
use crate::ir::Effort;
use crate::json::{JsonNull, JsonStr, JsonValue, JsonWriter};
use crate::profile::VendorProfile;
use crate::usage::UsageEstimator;
use bytes::Bytes;
use std::sync::LazyLock;

/// Members that a rewritten responses body keeps beyond the base.
static PROFILE: LazyLock<VendorProfile> = LazyLock::new(|| VendorProfile {
    request: [
        "parallel_tool_calls",
        "prompt_cache_key",
        "service_tier",
        "stream_options",
    ]
    .map(str::to_owned)
    .to_vec(),
    ..VendorProfile::default()
});

/// Capabilities that allow everything that a chat request can express.
static MODEL: LazyLock<ModelCapabilities> = LazyLock::new(|| {
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    ModelCapabilities::Chat(ChatModel {
        reasoning: true,
        effort_values: efforts.into_iter().filter_map(Effort::parse).collect(),
        verbosity: true,
        custom_tools: true,
        ..ChatModel::default()
    })
});

/// Rewrites a body that belongs to another protocol, in parts or as a whole. Returns the chat
/// request and the warnings for the client.
///
/// # Errors
/// Returns a failure if a responses body breaks a rule of its protocol.
pub fn rewrite_as_chat(
    body: &[u8],
    model: &str,
    account_id: &str,
) -> Result<(Bytes, Vec<String>), Failure> {
    let tree = super::request::parse_body(body)?;
    if tree.root().get("messages").is_none() && tree.root().get("input").is_some() {
        return rewrite_responses_body(body, model, account_id);
    }
    let mut json = JsonWriter::with_capacity(body.len());
    let mut warnings = Vec::new();
    json.open_object();
    for (key, value) in tree.root().members() {
        json.key_text(&key);
        let before = json.as_bytes().len();
        match key.value().as_ref() {
            "tools" if value.is_array() => {
                json.open_array();
                value.items().for_each(|tool| write_tool(tool, &mut json));
                json.close_array();
            }
            "tool_choice" => write_tool_choice(value, &mut json),
            "messages" if value.is_array() => {
                json.open_array();
                for message in value.items() {
                    write_message(message, &mut json);
                }
                json.close_array();
            }
            _ => drop(json.value(value)),
        }
        let is_same = json.as_bytes().get(before..) == Some(value.raw().as_bytes());
        if !is_same && matches!(key.value().as_ref(), "tools" | "tool_choice" | "messages") {
            warnings.push(format!("rewritten:{}", key.value()));
        }
    }
    json.close_object();
    Ok((json.into_bytes().into(), warnings))
}

fn rewrite_responses_body(
    body: &[u8],
    model: &str,
    account_id: &str,
) -> Result<(Bytes, Vec<String>), Failure> {
    let request = TranslationRequest {
        surface: Protocol::Responses,
        body,
        target: TranslationTarget {
            upstream_model: model,
            public_model: model,
            max_output_tokens: u64::MAX,
            profile: &PROFILE,
            accepts: &MODEL,
        },
        account_id,
        output_limit: None,
        strict: false,
        clock: || 0,
        request_id: "",
        estimator: UsageEstimator::default(),
    };
    let translated = translate_request(&request, false)?;
    let mut warnings = translated.warnings;
    // A responses stream has its usage without a request for it, so the rewritten request must ask
    // for usage.
    warnings.retain(|warning| warning != "dropped:stream_options.include_usage");
    warnings.push("rewritten:input".to_owned());
    Ok((translated.body, warnings))
}

fn is_object(value: JsonValue<'_>, name: &str) -> bool {
    value.get(name).is_some_and(JsonValue::is_object)
}

/// Returns whether a tool or tool choice lacks the object that holds the name in a chat request.
/// Tools of other types run at a vendor.
fn lacks_wrapper(value: JsonValue<'_>) -> bool {
    let kind = value.get("type");
    let is_own = kind.is_none_or(|kind| {
        kind.is_null()
            || ["function", "custom", "tool"]
                .iter()
                .any(|own| kind.is(own))
    });
    let is_wrapped = ["function", "custom"]
        .iter()
        .any(|name| is_object(value, name));
    let has_name = value.get("name").is_some_and(JsonValue::is_string);
    is_own && has_name && !is_wrapped
}

fn write_tool(tool: JsonValue<'_>, json: &mut JsonWriter) {
    if !lacks_wrapper(tool) {
        json.value(tool);
        return;
    }
    // The messages protocol also calls its functions custom, and gives them a schema.
    let is_custom = tool.member_is("type", "custom") && !is_object(tool, "input_schema");
    let kind = if is_custom { "custom" } else { "function" };
    json.open_typed(kind);
    json.member_if_some("cache_control", tool.get("cache_control"));
    json.member_object(kind);
    for (key, value) in tool.members() {
        match key.value().as_ref() {
            "type" | "cache_control" => {}
            "input_schema" => drop(json.member("parameters", value)),
            "format" if is_custom && value.member_is("type", "grammar") => {
                write_grammar(value, json);
            }
            _ => drop(json.key_text(&key).value(value)),
        }
    }
    json.close_object().close_object();
}

fn write_grammar(format: JsonValue<'_>, json: &mut JsonWriter) {
    if is_object(format, "grammar") {
        json.member("format", format);
        return;
    }
    json.member_typed("format", "grammar");
    json.member_object("grammar");
    for (key, value) in format.members() {
        if !key.is("type") {
            json.key_text(&key).value(value);
        }
    }
    json.close_object().close_object();
}

fn write_tool_choice(choice: JsonValue<'_>, json: &mut JsonWriter) {
    let kind = |name: &str| choice.member_is("type", name);
    if lacks_wrapper(choice) {
        let kind = if kind("custom") { "custom" } else { "function" };
        json.open_typed(kind).member_object(kind);
        if let Some(name) = choice.text_of("name") {
            json.member("name", &name);
        }
        json.close_object().close_object();
    } else if kind("any") {
        json.value("required");
    } else if kind("auto") || kind("none") {
        json.value(if kind("auto") { "auto" } else { "none" });
    } else {
        json.value(choice);
    }
}

fn part_kind<'v>(part: JsonValue<'v>) -> JsonStr<'v> {
    let kind = part.text_of("type");
    kind.unwrap_or_else(|| JsonStr::from_value(""))
}

fn write_message(message: JsonValue<'_>, json: &mut JsonWriter) {
    let parts = || message.items_of("content");
    let foreign = |part: JsonValue<'_>| {
        let kind = part_kind(part);
        let is_image = kind.is("image") && is_object(part, "source");
        is_image
            || [
                "tool_use",
                "tool_result",
                "input_text",
                "output_text",
                "input_image",
            ]
            .iter()
            .any(|name| kind.is(name))
    };
    if !parts().any(foreign) {
        json.value(message);
        return;
    }
    for result in parts().filter(|part| part_kind(*part).is("tool_result")) {
        write_tool_result(result, json);
    }
    let is_call = |part: &JsonValue<'_>| part_kind(*part).is("tool_use");
    let is_content = |part: &JsonValue<'_>| !is_call(part) && !part_kind(*part).is("tool_result");
    // The images of a result move to a user's message, because a tool's message has only texts.
    let images = || {
        parts()
            .filter(|part| part_kind(*part).is("tool_result"))
            .flat_map(|result| result.items_of("content"))
            .filter(|part| part_kind(*part).is("image"))
    };
    let has_calls = parts().any(|part| is_call(&part));
    let has_content = parts().any(|part| is_content(&part)) || images().next().is_some();
    if !has_calls && !has_content {
        return;
    }
    json.open_object();
    for (key, value) in message.members() {
        match key.value().as_ref() {
            "content" if !has_content => drop(json.member("content", JsonNull)),
            "content" => {
                json.member_array("content");
                images().for_each(|part| write_part(part, json));
                parts()
                    .filter(is_content)
                    .for_each(|part| write_part(part, json));
                json.close_array();
            }
            "tool_calls" if has_calls => {}
            _ => drop(json.key_text(&key).value(value)),
        }
    }
    if has_calls {
        let own = message.get("tool_calls").into_iter();
        json.member_array("tool_calls");
        own.flat_map(JsonValue::items).for_each(|call| {
            json.value(call);
        });
        for call in parts().filter(is_call) {
            write_call(call, json);
        }
        json.close_array();
    }
    json.close_object();
}

fn write_call(call: JsonValue<'_>, json: &mut JsonWriter) {
    json.open_object();
    json.member_if_some("id", call.get("id"));
    json.member("type", "function").member_object("function");
    json.member_if_some("name", call.get("name"));
    let input = call.get("input").map_or("{}", JsonValue::raw);
    json.member("arguments", input)
        .close_object()
        .close_object();
}

fn write_tool_result(result: JsonValue<'_>, json: &mut JsonWriter) {
    json.open_object().member("role", "tool");
    json.member_if_some("tool_call_id", result.get("tool_use_id"));
    json.key("content");
    match result.get("content") {
        Some(content) if content.is_array() => {
            json.open_array();
            let parts = content.items().filter(|part| !part_kind(*part).is("image"));
            parts.for_each(|part| write_part(part, json));
            json.close_array();
        }
        Some(content) if content.is_string() => drop(json.value(content)),
        _ => drop(json.value("")),
    }
    json.close_object();
}

fn write_part(part: JsonValue<'_>, json: &mut JsonWriter) {
    let kind = part_kind(part);
    let source = part.get("source").filter(|_| kind.is("image"));
    if kind.is("input_text") || kind.is("output_text") {
        json.open_typed("text");
        for name in ["text", "cache_control"] {
            json.member_if_some(name, part.get(name));
        }
        json.close_object();
    } else if let Some(url) = part.get("image_url").filter(|_| kind.is("input_image")) {
        json.open_typed("image_url").key("image_url");
        if url.is_string() {
            json.open_object().member("url", url);
            json.member_if_some("detail", part.get("detail"));
            json.close_object();
        } else {
            json.value(url);
        }
        json.close_object();
    } else if let Some(url) = source.and_then(image_url) {
        json.open_typed("image_url");
        json.member_object("image_url").member("url", &url);
        json.close_object().close_object();
    } else {
        json.value(part);
    }
}

fn image_url(source: JsonValue<'_>) -> Option<String> {
    let text = |name| source.string_of(name);
    match text("type")?.as_ref() {
        "url" => text("url").map(std::borrow::Cow::into_owned),
        "base64" => Some(format!(
            "data:{};base64,{}",
            text("media_type")?,
            text("data")?
        )),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rewritten(body: &Value) -> (Value, Vec<String>) {
        let (bytes, warnings) =
            rewrite_as_chat(body.to_string().as_bytes(), "m", "acct_1").unwrap();
        (serde_json::from_slice(&bytes).unwrap(), warnings)
    }

    #[test]
    fn a_responses_body_becomes_the_chat_request_of_the_same_meaning() {
        let (chat, warnings) = rewritten(&json!({
            "model": "m", "stream": true, "instructions": "Be brief.", "store": false,
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}, "max_output_tokens": 900,
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "done"},
            ],
            "tools": [
                {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
                {"type": "custom", "name": "ApplyPatch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
            ],
        }));
        assert_eq!(
            chat["messages"][0],
            json!({"role": "system", "content": "Be brief."})
        );
        assert_eq!(chat["messages"][1]["content"], json!("Hi"));
        assert_eq!(
            chat["messages"][2]["tool_calls"][0]["function"]["name"],
            json!("f")
        );
        assert_eq!(chat["messages"][3]["tool_call_id"], json!("call_1"));
        assert_eq!(chat["tools"][0]["function"]["name"], json!("f"));
        assert_eq!(chat["tools"][1]["custom"]["name"], json!("ApplyPatch"));
        assert_eq!(
            [
                "model",
                "stream",
                "reasoning_effort",
                "max_completion_tokens"
            ]
            .map(|name| &chat[name]),
            [&json!("m"), &json!(true), &json!("high"), &json!(900)]
        );
        assert_eq!(chat["stream_options"], json!({"include_usage": true}));
        assert_eq!(chat.get("safety_identifier"), None);
        assert!(
            warnings.contains(&"rewritten:input".to_owned()),
            "{warnings:?}"
        );
    }

    #[test]
    fn calls_results_and_tools_of_the_messages_protocol_become_those_of_chat() {
        let (chat, warnings) = rewritten(&json!({
            "model": "m",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                        {"type": "text", "text": "seen"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                    ]},
                    {"type": "text", "text": "Go on."},
                ]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "ok"}]},
            ],
            "tools": [
                {"name": "f", "description": "d", "input_schema": {"type": "object"}},
                {"type": "function", "function": {"name": "g"}},
                {"type": "custom", "name": "ApplyPatch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            "tool_choice": {"type": "tool", "name": "f"},
        }));
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        let expected = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}], "tool_calls": [call("toolu_1", "{\"a\":1}")]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": [{"type": "text", "text": "seen"}]},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                {"type": "text", "text": "Go on."},
            ]},
            {"role": "assistant", "content": null, "tool_calls": [call("toolu_2", "{}")]},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "ok"},
        ]);
        assert_eq!(chat["messages"], expected);
        let expected = json!([
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
            {"type": "custom", "custom": {"name": "ApplyPatch", "format":
                {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}}},
            {"type": "web_search_20250305", "name": "web_search"},
        ]);
        assert_eq!(chat["tools"], expected);
        assert_eq!(
            chat["tool_choice"],
            json!({"type": "function", "function": {"name": "f"}})
        );
        assert_eq!(
            warnings,
            [
                "rewritten:messages",
                "rewritten:tool_choice",
                "rewritten:tools"
            ]
        );
    }

    #[test]
    fn a_chat_request_stays() {
        let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"}"#;
        let (same, warnings) = rewrite_as_chat(body.as_bytes(), "m", "acct_1").unwrap();
        assert_eq!((same, warnings), (body.into(), Vec::new()));
    }
}
