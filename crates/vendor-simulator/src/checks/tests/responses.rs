//! Tests the responses vendor's checks.

use serde_json::{Value, json};

use super::check_all;
use crate::errors::SimVendor::Responses;
use crate::signature::{SignatureKind, sign};

fn base(model: &str) -> Value {
    json!({"model": model, "input": [{"role": "user", "content": "hi"}]})
}

fn input(items: &[Value]) -> Value {
    let user = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]});
    json!({"input": std::iter::once(&user).chain(items).collect::<Vec<_>>()})
}

fn call(id: &str) -> Value {
    json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})
}

fn output(id: &str) -> Value {
    json!({"type": "function_call_output", "call_id": id, "output": "x"})
}

fn request_with(text: &str) -> Value {
    json!({"role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

fn thought(id: &str, sealed: &str) -> Value {
    json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": sealed})
}

#[test]
fn a_request_is_held_to_its_fields_and_limits() {
    check_all(
        Responses,
        &base("gpt-5.5"),
        &[
            (
                json!({"store": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"}),
                "",
            ),
            (json!({"messages": []}), "Unknown parameter: 'messages'"),
            (json!({"x_extra": 1}), "Unknown parameter: 'x_extra'"),
            (
                json!({"temperature": 1}),
                "'temperature' is not supported with this model",
            ),
            (
                json!({"input": null}),
                "Missing required parameter: 'input'",
            ),
            (json!({"input": "hi"}), ""),
            (json!({"input": 7}), "Invalid type for 'input'"),
            (
                json!({"previous_response_id": "resp_1"}),
                "Previous response with id 'resp_1' not found",
            ),
            (json!({"max_output_tokens": 16}), ""),
            (
                json!({"max_output_tokens": 15}),
                "Expected a value >= 16, but got 15",
            ),
            (json!({"max_output_tokens": 128_001}), "too large: 128001"),
            (
                json!({"prompt_cache_key": "k".repeat(65)}),
                "string too long",
            ),
            (
                json!({"stream_options": {"include_obfuscation": false}}),
                "only allowed when 'stream' is enabled",
            ),
            (
                json!({"stream": true, "stream_options": {"include_usage": true}}),
                "'stream_options.include_usage'",
            ),
            (
                json!({"include": ["everything"]}),
                "Invalid value: 'everything'",
            ),
            (
                json!({"temperature": 0.5}),
                "'temperature' is not supported with this model",
            ),
            (
                json!({"top_logprobs": 2}),
                "'top_logprobs' is not supported",
            ),
            (
                json!({"reasoning": {"effort": "low", "summary": "auto"}}),
                "",
            ),
            (
                json!({"reasoning": {"effort": "huge"}}),
                "'huge' is not supported",
            ),
            (
                json!({"reasoning": {"summary": "long"}}),
                "'reasoning.summary'",
            ),
            (
                json!({"text": {"verbosity": "low", "format": {"type": "json_object"}}}),
                "",
            ),
            (
                json!({"text": {"format": {"type": "json_schema", "name": "o"}}}),
                "'text.format.schema'",
            ),
            (json!({"text": {"verbosity": "loud"}}), "'text.verbosity'"),
        ],
    );
    check_all(
        Responses,
        &base("gpt-4o"),
        &[
            (json!({"temperature": 0.5}), ""),
            (
                json!({"reasoning": {"effort": "low"}}),
                "'reasoning.effort' is not supported",
            ),
            (
                json!({"include": ["reasoning.encrypted_content"]}),
                "Encrypted content is not supported",
            ),
        ],
    );
}

#[test]
fn tools_are_flat_and_strict_unless_they_say_otherwise() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let tool = |strict: Value| json!({"tools": [{"type": "function", "name": "f", "parameters": schema, "strict": strict}]});
    let mut chosen = tool(json!(false));
    chosen["tool_choice"] = json!({"type": "function", "name": "g"});
    check_all(
        Responses,
        &base("gpt-5.5"),
        &[
            (tool(json!(false)), ""),
            (tool(json!(true)), "'additionalProperties' is required"),
            (tool(json!(null)), "'additionalProperties' is required"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
                "parameter: 'tools[0].name'",
            ),
            (
                json!({"tools": [{"type": "custom", "name": "c", "format": {"type": "text"}}]}),
                "",
            ),
            (
                json!({"tools": [{"type": "strange"}]}),
                "Invalid value: 'strange'",
            ),
            (
                json!({"tools": [{"type": "web_search"}], "tool_choice": "auto"}),
                "",
            ),
            (chosen, "Tool choice 'g' not found"),
            (json!({"tool_choice": "required"}), "'tool_choice'"),
        ],
    );
}

#[test]
fn items_are_held_to_their_forms_and_calls_to_their_outputs() {
    let long = "c".repeat(65);
    let image =
        |url: &str| json!({"role": "user", "content": [{"type": "input_image", "image_url": url}]});
    check_all(
        Responses,
        &base("gpt-5.5"),
        &[
            (
                input(&[call("c1"), call("c2"), output("c2"), output("c1")]),
                "",
            ),
            (
                input(&[call("c1")]),
                "No tool output found for function call c1.",
            ),
            (
                input(&[output("c1")]),
                "No tool call found for function call output with call_id c1.",
            ),
            (input(&[call(&long), output(&long)]), "maximum length 64"),
            (
                input(&[
                    json!({"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
                ]),
                "'output_text'",
            ),
            (
                input(&[json!({"role": "user", "content": [{"type": "text", "text": "x"}]})]),
                "Invalid value: 'text'",
            ),
            (
                input(&[json!({"role": "tool", "content": "x"})]),
                "Invalid value: 'tool'",
            ),
            (
                input(&[json!({"type": "item_reference", "id": "msg_1"})]),
                "Item with id 'msg_1' not found",
            ),
            (
                input(&[json!({"type": "strange"})]),
                "Invalid value: 'strange'",
            ),
            (input(&[image("data:image/png;base64,aGk=")]), ""),
            (input(&[image("data:image/png;base64,")]), "Invalid base64"),
            (input(&[image("ftp://x")]), "Expected a valid URL"),
            (
                input(&[
                    json!({"type": "function_call", "id": "call_1", "call_id": "c", "name": "f", "arguments": "{}"}),
                    output("c"),
                ]),
                "begins with 'fc'",
            ),
        ],
    );
}

#[test]
fn reasoning_comes_back_whole_and_before_what_it_led_to() {
    let sealed = sign(SignatureKind::Reasoning, "", "1");
    let mine = || thought("rs_Sim100", &sealed);
    let answer =
        json!({"type": "message", "id": "msg_Sim101r", "role": "assistant", "content": "x"});
    check_all(
        Responses,
        &base("gpt-5.5"),
        &[
            (input(&[mine(), request_with("x")]), ""),
            (input(&[mine(), mine(), call("c"), output("c")]), ""),
            (input(&[mine(), answer.clone()]), ""),
            (input(&[answer]), "without its required 'reasoning' item"),
            (input(&[mine()]), "without its required following item"),
            (
                input(&[mine(), json!({"role": "user", "content": "x"})]),
                "without its required following item",
            ),
            (
                input(&[thought("rs_1", "gw1.m.e30"), request_with("x")]),
                "could not be verified",
            ),
            (
                input(&[
                    thought("rs_1", &sealed.replace(&sealed[20..24], "AAAA")),
                    request_with("x"),
                ]),
                "could not be verified",
            ),
            (
                input(&[
                    json!({"type": "reasoning", "id": "rs_1", "summary": []}),
                    request_with("x"),
                ]),
                "Item with id 'rs_1' not found",
            ),
            (
                input(&[
                    json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}),
                    request_with("x"),
                ]),
                "",
            ),
            (
                input(&[
                    json!({"type": "reasoning", "id": "rs_1", "encrypted_content": sealed}),
                    request_with("x"),
                ]),
                "summary",
            ),
        ],
    );
}
