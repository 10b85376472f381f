//! Tests the messages vendor's checks.

use serde_json::{Value, json};

use super::{changed, check_all, verdict};
use crate::errors::SimVendor::Messages;
use crate::signature::{SignatureKind, sign};

fn base(model: &str) -> Value {
    json!({"model": model, "max_tokens": 5000, "messages": [{"role": "user", "content": "hi"}]})
}

fn tool(name: &str) -> Value {
    json!({"name": name, "input_schema": {"type": "object", "properties": {}}})
}

fn with_turns(turns: Value) -> Value {
    json!({"tools": [tool("f")], "messages": turns})
}

fn request_with(blocks: Value) -> Value {
    with_turns(json!([{"role": "user", "content": blocks}]))
}

/// A history that ends with the result of a call.
fn called(answer: Value, result: Value) -> Value {
    with_turns(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": result},
    ]))
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "x"})
}

#[test]
fn fields_limits_and_sampling_are_those_of_the_model() {
    let both = json!({"temperature": 0.5, "top_p": 0.5});
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[
            (json!({}), ""),
            (json!({"x_unknown": 1}), "x_unknown: Extra inputs"),
            (json!({"n": 1}), "n: Extra inputs are not permitted"),
            (
                json!({"reasoning_effort": "low"}),
                "reasoning_effort: Extra inputs",
            ),
            (
                json!({"max_tokens": 64_001}),
                "max_tokens: 64001 > 64000, which is the maximum",
            ),
            (json!({"temperature": 1.5}), "temperature: range: 0..1"),
            (json!({"temperature": 0.5, "top_k": 3}), ""),
            (
                both.clone(),
                "`temperature` and `top_p` cannot both be specified",
            ),
            (
                json!({"stop_sequences": ["a", "\n"]}),
                "each stop sequence must contain non-whitespace",
            ),
            (
                json!({"metadata": {"user": "u"}}),
                "metadata.user: Extra inputs",
            ),
            (
                json!({"service_tier": "default"}),
                "service_tier: Input should be",
            ),
            (json!({"output_config": {"effort": "max"}}), ""),
            (
                json!({"output_config": {"effort": "xhigh"}}),
                "does not support effort level 'xhigh'",
            ),
            (
                json!({"system": [{"type": "text", "text": ""}]}),
                "system: text content blocks must be non-empty",
            ),
        ],
    );
    check_all(
        Messages,
        &base("claude-opus-4-7"),
        &[
            (json!({"temperature": 1}), "`temperature` is deprecated"),
            (json!({"temperature": 0.5}), "`temperature` is deprecated"),
            (json!({"top_p": 1}), "`top_p` is deprecated"),
            (json!({"top_k": 0}), "`top_k` is deprecated"),
            (json!({"output_config": {"effort": "xhigh"}}), ""),
        ],
    );
    check_all(
        Messages,
        &base("claude-haiku-4-5-20251001"),
        &[(
            json!({"output_config": {"effort": "low"}}),
            "does not support the effort parameter",
        )],
    );
    check_all(
        Messages,
        &base("sim-large"),
        &[(both, ""), (json!({"max_tokens": 900_000}), "")],
    );
    let filler = changed(&base("claude-opus-4-7"), &json!({"max_tokens": 900_000}));
    assert!(verdict(Messages, &filler, "bytes=9").contains("max_tokens: 900000 > 64000"));
    let extended = changed(&base("m"), &json!({"x_unknown": 1}));
    assert_eq!(verdict(Messages, &extended, ""), "");
}

#[test]
fn thinking_is_checked_by_generation_and_against_what_stands_beside_it() {
    let manual = |more: Value| {
        changed(
            &json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
            &more,
        )
    };
    let forced = json!({"tools": [tool("f")], "tool_choice": {"type": "any"}});
    check_all(
        Messages,
        &base("claude-haiku-4-5-20251001"),
        &[
            (manual(json!({})), ""),
            (
                manual(json!({"max_tokens": 1024})),
                "`max_tokens` must be greater than `thinking.budget_tokens`",
            ),
            (
                manual(json!({"temperature": 0.3})),
                "`temperature` may only be set to 1",
            ),
            (manual(json!({"top_p": 0.3})), "`top_p` must be greater"),
            (manual(json!({"top_k": 3})), "`top_k` must be unset"),
            (
                manual(forced.clone()),
                "Thinking may not be enabled when tool_choice forces tool use.",
            ),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
                "greater than or equal to 1024",
            ),
            (
                json!({"thinking": {"type": "enabled"}}),
                "budget_tokens: Field required",
            ),
            (
                json!({"thinking": {"type": "adaptive"}}),
                "adaptive thinking is not supported",
            ),
            (
                json!({"thinking": {"type": "disabled", "budget_tokens": 1}}),
                "Extra inputs",
            ),
        ],
    );
    let adaptive = changed(&forced, &json!({"thinking": {"type": "adaptive"}}));
    check_all(
        Messages,
        &base("claude-opus-4-7"),
        &[
            (
                manual(json!({})),
                "\"thinking.type.enabled\" is not supported for this model",
            ),
            (
                json!({"thinking": {"type": "adaptive", "display": "summarized"}}),
                "",
            ),
            (adaptive, "Thinking may not be enabled"),
        ],
    );
}

#[test]
fn thinking_that_was_not_signed_here_is_refused_wherever_it_stands() {
    let signature = sign(SignatureKind::Thinking, "hm", "1");
    let thought = |text: &str, signature: &str| json!({"type": "thinking", "thinking": text, "signature": signature});
    let redacted =
        json!({"type": "redacted_thinking", "data": sign(SignatureKind::Redacted, "", "1")});
    let text = json!({"type": "text", "text": "a"});
    let turn = |first: Value| called(json!([first, text, call("a")]), json!([result("a")]));
    let manual = |change: Value| {
        changed(
            &change,
            &json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        )
    };
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[
            (turn(thought("hm", &signature)), ""),
            (turn(redacted.clone()), ""),
            (
                turn(thought("hm.", &signature)),
                "messages.1.content.0: Invalid `signature` in `thinking` block",
            ),
            (
                turn(thought("hm", "gw1.")),
                "Invalid `signature` in `thinking` block",
            ),
            (
                turn(json!({"type": "thinking", "thinking": "hm"})),
                "thinking.signature: Field required",
            ),
            (
                turn(json!({"type": "redacted_thinking", "data": "x"})),
                "Invalid `data` in `redacted_thinking` block",
            ),
            (
                called(json!([call("a"), redacted]), json!([result("a")])),
                "cannot be `thinking`",
            ),
            (manual(turn(thought("hm", &signature))), ""),
            (
                manual(turn(text.clone())),
                "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`",
            ),
        ],
    );
}

#[test]
fn blocks_must_say_something_in_a_form_that_is_known() {
    let image = |kind: &str, data: &str| {
        request_with(
            json!([{"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}]),
        )
    };
    let png = "iVBORw0KGgoAAAA=";
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[
            (
                request_with(json!("")),
                "messages.0: all messages must have non-empty content",
            ),
            (
                request_with(json!(" ")),
                "messages: text content blocks must contain non-whitespace text",
            ),
            (
                request_with(json!([])),
                "all messages must have non-empty content",
            ),
            (
                request_with(json!([{"type": "text", "text": ""}])),
                "messages: text content blocks must be non-empty",
            ),
            (
                request_with(json!([{"type": "text", "text": "\n"}])),
                "must contain non-whitespace text",
            ),
            (
                request_with(json!([{"type": "text", "text": "a", "index": 0}])),
                "content.0.text.index: Extra inputs",
            ),
            (
                request_with(json!([{"type": "image_url", "image_url": {}}])),
                "Input tag 'image_url' found",
            ),
            (
                request_with(json!([call("a")])),
                "`tool_use` blocks can only be in `assistant` messages",
            ),
            (image("image/png", png), ""),
            (
                image("image/jpeg", png),
                "the image appears to be a image/png image",
            ),
            (image("image/jpg", png), "media_type: Input should be"),
            (image("image/png", "%"), "invalid base64 data"),
            (
                with_turns(json!([{"role": "user", "content": "a", "name": "b"}])),
                "messages.0.name: Extra inputs",
            ),
            (
                with_turns(json!([{"role": "tool", "content": "a"}])),
                "messages.0.role: Input should be",
            ),
            (
                with_turns(
                    json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]),
                ),
                "Unexpected role \"system\"",
            ),
        ],
    );
    let late =
        with_turns(json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]));
    check_all(Messages, &base("claude-opus-4-8"), &[(late, "")]);
}

#[test]
fn every_call_has_its_result_at_the_start_of_the_next_message() {
    let text = json!({"type": "text", "text": "a"});
    let missing =
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: b.";
    let orphan = "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: c.";
    let apart = with_turns(json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call("a"), call("b")]},
        {"role": "user", "content": [result("a")]},
        {"role": "user", "content": [result("b")]},
    ]));
    let calls = json!([text, call("a"), call("b")]);
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[
            (
                called(calls.clone(), json!([result("b"), result("a"), text])),
                "",
            ),
            (
                called(calls.clone(), json!([result("a"), text, result("b")])),
                missing,
            ),
            (called(calls, json!([result("a")])), missing),
            (apart, missing),
            (
                called(json!([call("a")]), json!([result("a"), result("c")])),
                orphan,
            ),
            (
                called(json!([call("a")]), json!([result("a"), result("a")])),
                "must have a single result",
            ),
            (
                called(json!([call("a"), call("a")]), json!([result("a")])),
                "ids must be unique",
            ),
            (
                called(json!([call("a.b:0")]), json!([result("a.b:0")])),
                "tool_use.id: String should match pattern",
            ),
        ],
    );
    let mut without = changed(
        &base("m"),
        &called(json!([call("a")]), json!([result("a")])),
    );
    without.as_object_mut().unwrap().remove("tools");
    assert!(verdict(Messages, &without, "").contains("must define tools"));
    let thread = json!({"thread": {"type": "continue"}, "messages": [{"role": "user", "content": [result("a")]}]});
    check_all(Messages, &base("m"), &[(thread, "")]);
}

#[test]
fn the_last_turn_is_the_users_or_an_answer_that_can_be_continued() {
    let last = |text: &str| {
        with_turns(
            json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}]),
        )
    };
    let first = with_turns(
        json!([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]),
    );
    check_all(
        Messages,
        &base("claude-haiku-4-5-20251001"),
        &[
            (last("a"), ""),
            (
                last("a\n"),
                "final assistant content cannot end with trailing whitespace",
            ),
            (first, "first message must use the \"user\" role"),
        ],
    );
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[(last("a"), "does not support assistant message prefill")],
    );
}

#[test]
fn tools_have_names_and_schemas_that_the_vendor_can_hold_to() {
    let schema = |schema: Value| json!({"tools": [{"name": "f", "input_schema": schema}]});
    let strict =
        |schema: Value| json!({"tools": [{"name": "f", "strict": true, "input_schema": schema}]});
    let closed = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "additionalProperties": false});
    let choice = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
    check_all(
        Messages,
        &base("claude-sonnet-4-6"),
        &[
            (
                json!({"tools": [tool("f"), {"type": "web_search_20250305", "name": "web_search"}]}),
                "",
            ),
            (
                json!({"tools": [tool("a.b")]}),
                "tools.0.custom.name: String should match pattern",
            ),
            (
                json!({"tools": [tool("f"), tool("f")]}),
                "Tool names must be unique",
            ),
            (
                json!({"tools": [{"type": "function", "function": {}}]}),
                "Input tag 'function' found",
            ),
            (
                json!({"tools": [{"name": "f", "parameters": {}}]}),
                "tools.0.custom.parameters: Extra inputs",
            ),
            (
                json!({"tools": [{"name": "f"}]}),
                "input_schema: Field required",
            ),
            (
                schema(json!({"properties": {}})),
                "input_schema.type: Field required",
            ),
            (
                schema(json!({"type": "array"})),
                "input_schema.type: Input should be 'object'",
            ),
            (
                schema(json!({"type": "object", "anyOf": [{}]})),
                "does not support oneOf, allOf, or anyOf",
            ),
            (
                schema(json!({"type": "object", "required": null})),
                "JSON schema is invalid",
            ),
            (schema(json!({"type": "object"})), ""),
            (
                strict(json!({"type": "object", "properties": {}})),
                "'additionalProperties' must be explicitly set",
            ),
            (strict(closed), "property 'minimum' is not supported"),
            (
                json!({"tool_choice": {"type": "auto"}}),
                "may only be specified while providing tools",
            ),
            (json!({"tools": [], "tool_choice": {"type": "auto"}}), ""),
            (
                choice(json!({"type": "tool", "name": "g"})),
                "Tool 'g' not found in provided tools",
            ),
            (choice(json!({"type": "tool", "name": "f"})), ""),
            (
                choice(json!({"type": "function"})),
                "tool_choice: Input tag 'function'",
            ),
            (
                choice(json!({"type": "none", "disable_parallel_tool_use": true})),
                "Extra inputs",
            ),
        ],
    );
}

#[test]
fn four_cache_marks_are_enough() {
    let mark = json!({"type": "ephemeral"});
    let marked = |mark: &Value, count: usize| {
        let block = json!({"type": "text", "text": "a", "cache_control": mark});
        request_with(Value::Array(vec![block; count]))
    };
    check_all(
        Messages,
        &base("m"),
        &[
            (marked(&mark, 4), ""),
            (
                marked(&mark, 5),
                "A maximum of 4 blocks with cache_control may be provided. Found 5.",
            ),
            (
                marked(&json!({"type": "ephemeral", "scope": "global"}), 1),
                "cache_control.ephemeral.scope: Extra inputs",
            ),
            (
                marked(&json!({"type": "ephemeral", "ttl": "12h"}), 1),
                "ttl: Input should be '5m' or '1h'",
            ),
        ],
    );
}
