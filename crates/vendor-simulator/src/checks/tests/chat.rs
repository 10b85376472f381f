//! Tests the chat vendor's checks.

use serde_json::{Value, json};

use super::{changed, check_all, verdict};
use crate::errors::SimVendor::Chat;

fn base(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

fn tool(name: &str) -> Value {
    with_schema(name, json!({"type": "object", "properties": {}}))
}

fn with_schema(name: &str, schema: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": schema}})
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "x"})
}

fn request_with(message: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}, message]})
}

#[test]
fn a_reasoning_model_takes_no_sampling_and_no_stops() {
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (
                json!({"max_tokens": 100}),
                "Use 'max_completion_tokens' instead.",
            ),
            (
                json!({"max_completion_tokens": 128_000, "temperature": 1, "top_p": 1}),
                "",
            ),
            (
                json!({"max_completion_tokens": 128_001}),
                "max_completion_tokens is too large: 128001",
            ),
            (json!({"max_completion_tokens": 0}), "Expected a value >= 1"),
            (
                json!({"max_completion_tokens": 1, "max_tokens": 1}),
                "at the same time is not supported",
            ),
            (
                json!({"temperature": 0.5}),
                "'temperature' does not support 0.5 with this model",
            ),
            (json!({"temperature": 3}), "decimal above maximum value"),
            (
                json!({"top_p": 0.5}),
                "'top_p' is not supported with this model",
            ),
            (
                json!({"stop": ["a"]}),
                "'stop' is not supported with this model",
            ),
            (json!({"reasoning_effort": "xhigh"}), ""),
            (
                json!({"reasoning_effort": "minimal"}),
                "does not support 'minimal'",
            ),
            (
                json!({"tools": [tool("f")], "reasoning_effort": "high"}),
                "",
            ),
        ],
    );
    let refused = "Function tools with reasoning_effort are not supported for gpt-5.5 in /v1/chat/completions.";
    check_all(
        Chat,
        &base("gpt-5.5"),
        &[
            (json!({"tools": [tool("f")]}), refused),
            (
                json!({"tools": [tool("f")], "reasoning_effort": "low"}),
                refused,
            ),
            (
                json!({"tools": [tool("f")], "reasoning_effort": "none"}),
                "",
            ),
            (json!({"reasoning_effort": "low"}), ""),
        ],
    );
    check_all(
        Chat,
        &base("gpt-4o"),
        &[
            (json!({"stop": "a", "temperature": 0.5}), ""),
            (
                json!({"stop": ["a", "b", "c", "d", "e"]}),
                "maximum length 4",
            ),
            (
                json!({"reasoning_effort": "low"}),
                "Unrecognized request argument supplied: reasoning_effort",
            ),
        ],
    );
    let old_name = changed(&base("gpt-5.2"), &json!({"max_tokens": 100}));
    assert!(verdict(Chat, &old_name, "").contains("Use 'max_completion_tokens' instead."));
    let tiny = changed(&base("gpt-5.2"), &json!({"max_completion_tokens": 1}));
    assert!(verdict(Chat, &tiny, "min_output=16").contains("Could not finish the message"));
    let options = json!({"stream_options": {"x": 0}, "stream": true});
    assert_eq!(verdict(Chat, &changed(&base("m"), &options), ""), "");
    assert!(verdict(Chat, &changed(&base("gpt-4o"), &options), "").contains("'stream_options.x'"));
}

#[test]
fn fields_of_other_vendors_are_unknown() {
    let long = "x".repeat(65);
    let marked = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]);
    let request_with =
        |name: &str| request_with(json!({"role": "assistant", "content": "a", name: []}));
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (json!({"x_unknown": 1}), "Unknown parameter: 'x_unknown'."),
            (json!({"top_k": 1}), "Unknown parameter: 'top_k'."),
            (json!({"thinking": {}}), "Unknown parameter: 'thinking'."),
            (json!({"safety_identifier": long}), "maximum length 64"),
            (request_with("annotations"), ""),
            (
                request_with("reasoning_content"),
                "Unknown parameter: 'messages[1].reasoning_content'.",
            ),
            (
                request_with("reasoning_details"),
                "Unknown parameter: 'messages[1].reasoning_details'.",
            ),
            (
                request_with("thinking_blocks"),
                "Unknown parameter: 'messages[1].thinking_blocks'.",
            ),
            (
                json!({"messages": [{"role": "user", "content": marked}]}),
                "'messages[0].content[0].cache_control'",
            ),
            (
                json!({"tools": [changed(&tool("f"), &json!({"cache_control": {}}))]}),
                "'tools[0].cache_control'",
            ),
        ],
    );
}

#[test]
fn results_follow_their_calls() {
    let history = |rest: &[Value]| {
        let calls =
            json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]});
        let opening = [json!({"role": "user", "content": "hi"}), calls];
        let messages = [&opening, rest].concat();
        json!({"messages": messages})
    };
    let user = json!({"role": "user", "content": "and"});
    let long = "x".repeat(41);
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (history(&[result("b"), result("a"), user.clone()]), ""),
            (history(&[result("a")]), "did not have response messages: b"),
            (
                history(&[result("a"), user.clone(), result("b")]),
                "did not have response messages: b",
            ),
            (
                history(&[result("a"), result("b"), result("c")]),
                "'tool_call_id' of 'c' not found",
            ),
            (
                request_with(result("a")),
                "must be a response to a preceeding message",
            ),
            (
                request_with(json!({"role": "assistant", "tool_calls": [call(&long)]})),
                "maximum length 40",
            ),
            (
                request_with(json!({"role": "assistant", "tool_calls": []})),
                "Invalid 'messages[1].tool_calls': empty array",
            ),
            (
                request_with(json!({"role": "assistant", "content": null})),
                "expected a string, got null",
            ),
        ],
    );
}

#[test]
fn parts_are_those_of_their_role() {
    let user = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let file =
        |data: &str| json!({"type": "file", "file": {"filename": "a.pdf", "file_data": data}});
    let tool =
        |part: Value| request_with(json!({"role": "tool", "tool_call_id": "a", "content": [part]}));
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (user(image("https://x.test/a.png")), ""),
            (user(image("data:image/png;base64,iVBORw0KGgo=")), ""),
            (
                user(image("data:image/png;base64,%")),
                "Invalid base64 image_url.",
            ),
            (
                user(image("data:image/tiff;base64,AAAA")),
                "Only image types are supported",
            ),
            (user(file("data:application/pdf;base64,JVBERi0=")), ""),
            (user(file("JVBERi0=")), "application/pdf MIME type"),
            (
                user(json!({"type": "thinking", "thinking": "a"})),
                "Invalid value: 'thinking'.",
            ),
            (
                tool(image("https://x.test/a.png")),
                "Image URLs are only allowed for messages with role 'user'",
            ),
            (
                json!({"messages": [{"role": "model", "content": "a"}]}),
                "Invalid value: 'model'.",
            ),
            (
                json!({"messages": [{"role": "user", "content": []}]}),
                "empty array",
            ),
        ],
    );
}

#[test]
fn tools_have_names_and_schemas_that_the_vendor_can_hold_to() {
    let schema = |schema: Value| json!({"tools": [with_schema("f", schema)]});
    let strict = |schema: Value| {
        let mut tool = with_schema("f", schema);
        tool["function"]["strict"] = true.into();
        json!({"tools": [tool]})
    };
    let inner = |inner: Value| json!({"type": "object", "properties": {"a": inner}});
    let closed = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false});
    let half = json!({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": false});
    let all_of = changed(&closed, &json!({"properties": {"a": {"allOf": [{}]}}}));
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (
                json!({"tools": [tool("f")], "tool_choice": "required", "parallel_tool_calls": false}),
                "",
            ),
            (json!({"tools": []}), "Invalid 'tools': empty array"),
            (json!({"tools": vec![tool("f"); 129]}), "maximum length 128"),
            (
                json!({"tools": [tool("a.b")]}),
                "tools[0].function.name': string does not match pattern",
            ),
            (
                json!({"tools": [tool(&"x".repeat(65))]}),
                "maximum length 64",
            ),
            (
                json!({"tools": [{"type": "web_search"}]}),
                "Invalid value: 'web_search'.",
            ),
            (
                json!({"tool_choice": "auto"}),
                "'tool_choice' is only allowed when 'tools' are specified",
            ),
            (
                json!({"parallel_tool_calls": true}),
                "only allowed when 'tools' are specified",
            ),
            (
                json!({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
                "Tool choice 'g' not found",
            ),
            (
                schema(json!({})),
                "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.",
            ),
            (
                schema(json!({"type": "object"})),
                "In context=(), object schema missing properties.",
            ),
            (
                schema(inner(json!({"type": "array"}))),
                "In context=('properties', 'a'), array schema missing items.",
            ),
            (
                schema(changed(&inner(json!({})), &json!({"anyOf": [{}]}))),
                "at the top level",
            ),
            (
                json!({"tools": [with_schema("f", json!({"type": "object", "properties": {}, "required": null}))]}),
                "None is not of type 'array'.",
            ),
            (strict(closed), ""),
            (
                strict(inner(json!({}))),
                "'additionalProperties' is required to be supplied and to be false",
            ),
            (strict(half), "Missing 'a'."),
            (
                strict(all_of),
                "In context=('properties', 'a'), 'allOf' is not permitted.",
            ),
        ],
    );
}

#[test]
fn an_output_schema_is_checked_like_a_tools() {
    let format = |strict: bool, schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "output", "strict": strict, "schema": schema}}});
    let open = json!({"type": "object", "properties": {"a": {}}});
    check_all(
        Chat,
        &base("gpt-5.2"),
        &[
            (format(false, open.clone()), ""),
            (
                format(true, open),
                "Invalid schema for response_format 'output': In context=(), 'additionalProperties'",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
                "json_schema.name",
            ),
            (
                json!({"response_format": {"type": "yaml"}}),
                "Supported values are",
            ),
        ],
    );
}
