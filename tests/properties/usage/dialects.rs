//! The table of dialects: the counters of each, what they mean, and what they cost.
//!
//! The figures are computed by hand from the vendors' documentation and recordings, never by the
//! program.

use super::ESTIMATED_INPUT;
use llm_protocol::Protocol;
use serde_json::{Value, json};

/// The usage objects of one answer, in the order of its stream.
pub struct Dialect {
    pub name: &'static str,
    pub vendor: Protocol,
    pub usages: Vec<Value>,
    /// Tokens: input, cache read, cache written, output, reasoning.
    pub billed: [u64; 5],
    /// In µc, at 5 credits per million tokens of input, 0.5 cached, 6.25 written, 25 output.
    pub cost: i64,
    pub is_estimated: bool,
}

fn dialect(
    name: &'static str,
    vendor: Protocol,
    usages: Vec<Value>,
    billed: [u64; 5],
    cost: i64,
) -> Dialect {
    Dialect {
        name,
        vendor,
        usages,
        billed,
        cost,
        is_estimated: false,
    }
}

fn chat(name: &'static str, usage: Value, billed: [u64; 5], cost: i64) -> Dialect {
    dialect(name, Protocol::Chat, vec![usage], billed, cost)
}

fn official() -> Vec<Dialect> {
    vec![
        chat(
            "official chat",
            json!({"prompt_tokens": 1_200, "completion_tokens": 340, "total_tokens": 1_540,
                "prompt_tokens_details": {"cached_tokens": 1_000, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 300, "audio_tokens": 0,
                    "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}}),
            [200, 1_000, 0, 340, 300],
            10_000,
        ),
        dialect(
            "official messages",
            Protocol::Messages,
            vec![
                json!({"input_tokens": 26, "cache_creation_input_tokens": 120, "cache_read_input_tokens": 2_000,
                    "cache_creation": {"ephemeral_5m_input_tokens": 120, "ephemeral_1h_input_tokens": 0},
                    "output_tokens": 1, "service_tier": "standard"}),
                json!({"input_tokens": 26, "cache_creation_input_tokens": 120, "cache_read_input_tokens": 2_000,
                    "output_tokens": 89}),
            ],
            [26, 2_000, 120, 89, 0],
            4_105,
        ),
        dialect(
            "messages, with the input in its end",
            Protocol::Messages,
            vec![
                json!({"input_tokens": 0, "output_tokens": 0}),
                json!({"input_tokens": 31, "cache_read_input_tokens": 5, "output_tokens": 9}),
            ],
            [31, 5, 0, 9, 0],
            383,
        ),
        dialect(
            "official responses",
            Protocol::Responses,
            vec![
                json!({"input_tokens": 75, "input_tokens_details": {"cached_tokens": 64},
                "output_tokens": 1_186, "output_tokens_details": {"reasoning_tokens": 1_024}, "total_tokens": 1_261}),
            ],
            [11, 64, 0, 1_186, 1_024],
            29_737,
        ),
    ]
}

fn reasoning() -> Vec<Dialect> {
    vec![
        chat(
            "xAI: reasoning beside the completion",
            json!({"prompt_tokens": 36, "completion_tokens": 10, "total_tokens": 736, "num_sources_used": 0,
                "prompt_tokens_details": {"text_tokens": 36, "audio_tokens": 0, "image_tokens": 0, "cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 690, "audio_tokens": 0}}),
            [36, 0, 0, 700, 690],
            17_680,
        ),
        chat(
            "Gemini: the total alone shows the reasoning",
            json!({"prompt_tokens": 38, "completion_tokens": 11, "total_tokens": 266}),
            [38, 0, 0, 228, 0],
            5_890,
        ),
        chat(
            "the common form: reasoning inside the completion",
            json!({"prompt_tokens": 51, "completion_tokens": 136, "total_tokens": 187,
                "completion_tokens_details": {"reasoning_tokens": 31}}),
            [51, 0, 0, 136, 31],
            3_655,
        ),
        chat(
            "reasoning beside the completion, without a total",
            json!({"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 20}}),
            [10, 0, 0, 25, 20],
            675,
        ),
    ]
}

fn caching() -> Vec<Dialect> {
    vec![
        chat(
            "DeepSeek: hits and misses",
            json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
                "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36,
                "completion_tokens_details": {"reasoning_tokens": 12}}),
            [36, 64, 0, 20, 12],
            712,
        ),
        chat(
            "cached tokens beside the prompt",
            json!({"prompt_tokens": 50, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5_450}}),
            [50, 5_450, 0, 10, 0],
            3_225,
        ),
        chat(
            "cached tokens beside the prompt, by the total",
            json!({"prompt_tokens": 5_000, "completion_tokens": 10, "total_tokens": 9_010,
                "prompt_tokens_details": {"cached_tokens": 4_000}}),
            [5_000, 4_000, 0, 10, 0],
            27_250,
        ),
        chat(
            "OpenRouter: with cache writes and its own cost",
            json!({"prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196, "cost": 0.95,
                "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 50},
                "completion_tokens_details": {"reasoning_tokens": 0}, "cost_details": {"upstream_inference_cost": null}}),
            [44, 100, 50, 2, 0],
            633,
        ),
    ]
}

fn servers() -> Vec<Dialect> {
    vec![
        chat(
            "Azure",
            json!({"completion_tokens": 9, "prompt_tokens": 19, "total_tokens": 28,
                "completion_tokens_details": {"accepted_prediction_tokens": 0, "audio_tokens": 0, "reasoning_tokens": 0},
                "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0}}),
            [19, 0, 0, 9, 0],
            320,
        ),
        dialect(
            "vLLM: a growing usage with every chunk",
            Protocol::Chat,
            vec![
                json!({"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0}),
                json!({"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}),
                json!({"prompt_tokens": 7, "total_tokens": 13, "completion_tokens": 6, "prompt_tokens_details": null}),
            ],
            [7, 0, 0, 6, 0],
            185,
        ),
        dialect(
            "an empty usage after the true one",
            Protocol::Chat,
            vec![
                json!({"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}),
                json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
                Value::Null,
            ],
            [7, 0, 0, 6, 0],
            185,
        ),
        chat(
            "Ollama",
            json!({"prompt_tokens": 26, "completion_tokens": 298, "total_tokens": 324}),
            [26, 0, 0, 298, 0],
            7_580,
        ),
        chat(
            "llama.cpp",
            json!({"completion_tokens": 12, "prompt_tokens": 31, "total_tokens": 43,
                "prompt_tokens_details": {"cached_tokens": 30}}),
            [1, 30, 0, 12, 0],
            320,
        ),
    ]
}

fn odd() -> Vec<Dialect> {
    let estimated = |mut dialect: Dialect| {
        dialect.is_estimated = true;
        dialect
    };
    // The estimate: the answer's 25 bytes at 0.3 tokens each, rounded up.
    let (input, output) = (ESTIMATED_INPUT, 8);
    vec![
        chat(
            "integral floats",
            json!({"prompt_tokens": 1234.0, "completion_tokens": 1.2e1, "total_tokens": 1246.0}),
            [1_234, 0, 0, 12, 0],
            6_470,
        ),
        estimated(chat(
            "a negative completion",
            json!({"prompt_tokens": 20, "completion_tokens": -3}),
            [20, 0, 0, output, 0],
            300,
        )),
        estimated(chat(
            "a prompt in words",
            json!({"prompt_tokens": "20", "completion_tokens": 4}),
            [input, 0, 0, 4, 0],
            325,
        )),
        estimated(chat(
            "zeros",
            json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
            [input, 0, 0, output, 0],
            425,
        )),
        estimated(dialect(
            "messages that count the output in words",
            Protocol::Messages,
            vec![
                json!({"input_tokens": 20, "output_tokens": 1}),
                json!({"output_tokens": "9"}),
            ],
            [20, 0, 0, output, 0],
            300,
        )),
        estimated(dialect(
            "responses that count half a token",
            Protocol::Responses,
            vec![json!({"input_tokens": 20, "output_tokens": 8.5, "total_tokens": 28.5})],
            [20, 0, 0, output, 0],
            300,
        )),
    ]
}

fn messages() -> Vec<Dialect> {
    vec![
        dialect(
            "messages whose sum is not that of the split",
            Protocol::Messages,
            vec![
                json!({"input_tokens": 3, "output_tokens": 1, "cache_creation_input_tokens": 200,
                    "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 0}}),
                json!({"output_tokens": 2}),
            ],
            [3, 0, 150, 2, 0],
            1_003,
        ),
        dialect(
            "messages after a compaction",
            Protocol::Messages,
            vec![
                json!({"input_tokens": 682, "output_tokens": 1}),
                json!({"input_tokens": 682, "output_tokens": 1_320, "iterations": [
                    {"type": "compaction", "input_tokens": 60_385, "output_tokens": 592},
                    {"type": "message", "input_tokens": 682, "output_tokens": 1_320}]}),
            ],
            [61_067, 0, 0, 1_912, 0],
            353_135,
        ),
    ]
}

pub fn dialects() -> Vec<Dialect> {
    [
        official(),
        reasoning(),
        caching(),
        servers(),
        odd(),
        messages(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
