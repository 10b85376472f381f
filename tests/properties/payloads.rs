//! Payloads as the two kinds of vendors send them. The vendor's own model name is
//! `up-model-20260101`.
//!
//! This file asserts nothing. Read next: `properties/streams.rs`.

pub const UPSTREAM: &str = "up-model-20260101";
pub const PUBLIC: &str = "alpha/\"opus\"";

/// The public name as a JSON string.
pub fn public_json() -> String {
    serde_json::to_string(PUBLIC).unwrap()
}

/// The stream that the gateway must send if it only renames the model.
pub fn renamed(stream: &str) -> String {
    stream.replace(&format!("\"{UPSTREAM}\""), &public_json())
}

pub const CHAT_TEXT: &str = r#": keep-alive

data: {"id":"c-1","object":"chat.completion.chunk","created":1790000000,"model":"up-model-20260101","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x1"}

data: {"id":"c-1","object":"chat.completion.chunk","created":1790000000,"model":"up-model-20260101","choices":[{"index":0,"delta":{"content":"H\u00e9llo \"you\"\n"},"finish_reason":null}],"usage":null}

data: {"id":"c-1","model":"up-model-20260101","usage":null,"choices":[{"index":0,"delta":{"content":" 世界 \ud83d\ude00"},"finish_reason":null}]}

data: {"id":"c-1","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{},"finish_reason":"stop"}] , "usage":null }

data: {"id":"c-1","object":"chat.completion.chunk","model":"up-model-20260101","choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":340,"total_tokens":1540,"prompt_tokens_details":{"cached_tokens":1000,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":300,"audio_tokens":0}}}

data: [DONE]

"#;

pub const CHAT_TOOLS: &str = r#"data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"Let me see"},"finish_reason":null}]}

data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"read_file","arguments":""}}]},"finish_reason":null}]}

data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":"}}]},"finish_reason":null}]}

data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"/tmp/x\"}"}},{"index":1,"id":"call_2","type":"function","function":{"name":"list","arguments":"{}"}}]},"finish_reason":null}]}

data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"c-2","object":"chat.completion.chunk","model":"up-model-20260101","choices":[],"usage":{"prompt_tokens":50,"completion_tokens":20,"total_tokens":70}}

data: [DONE]

"#;

pub const MESSAGES_THINKING: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"up-model-20260101","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":100},"output_tokens":1,"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"The model is \"up-model\"…"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3h"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Sure.\n"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"get","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\": 1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: something_new
data: what it may be

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":26,"cache_read_input_tokens":2000,"cache_creation_input_tokens":120,"output_tokens":89,"output_tokens_details":{"thinking_tokens":40}}}

event: message_stop
data: {"type":"message_stop"}

"#;

pub const MESSAGES_REFUSAL: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_2","type":"message","role":"assistant","model":"up-model-20260101","content":[],"stop_reason":null,"usage":{"input_tokens":11,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"refusal","stop_sequence":null},"usage":{"output_tokens":0}}

event: message_stop
data: {"type":"message_stop"}

"#;

pub const CHAT_WHOLE: &str = r#"{
  "id": "c-3", "object": "chat.completion", "model": "up-model-20260101",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "up-model-20260101 \u0041", "refusal": null,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    "finish_reason": "tool_calls"}],
  "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}},
  "error": null
}
"#;

pub const MESSAGES_WHOLE: &str = r#"{"model":"up-model-20260101","id":"msg_3","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"Eq"},{"type":"text","text":"ok"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":[1,2]}}],"stop_reason":"tool_use","usage":{"input_tokens":7,"cache_creation_input_tokens":30,"cache_read_input_tokens":5,"output_tokens":12}}"#;

pub const CHAT_REQUEST: &str = r#"{
  "model": "alpha/opus", "stream": true, "max_tokens": 4096, "max_completion_tokens": null,
  "stream_options": {"include_obfuscation": false},
  "messages": [{"role": "system", "content": "Say \"type\":\"image\" and {\\"},
    {"role": "user", "content": [{"type": "text", "text": "model \ud83d\ude00"}]}],
  "tools": [{"type": "function", "function": {"name": "draw", "parameters":
    {"type": "object", "properties": {"image_url": {"type": "string"}, "file": {"type": "object"}, "cache_control": {}}}}}],
  "temperature": 1e0, "x_unknown": [1, -2.50, {"model": "inner"}]
}"#;

pub const MESSAGES_REQUEST: &str = r#"{"model":"alpha/opus","max_tokens":32000,"stream":true,"thinking":{"type":"enabled","budget_tokens":16000},"system":[{"type":"text","text":"You are","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"f","input":{"type":"image","source":{"type":"url"},"cache_control":{}}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"x"}]}],"tools":[{"name":"f","input_schema":{"type":"object","properties":{"type":{"const":"document"}}}}],"metadata":{"user_id":"u"}}"#;
