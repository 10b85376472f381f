//! Parses the body of a call.
//!
//! This file must check only the members that an answer needs; `checks.rs` checks the others. Read
//! next: `errors.rs` for the encoding of errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::checks::generations;
use super::count;
use super::errors::{FixedError, SimVendor, SimulatedError};
use super::marker;
use super::turn::{SimResponsesOptions, SimTurn};

const MAX_CHOICES: u64 = 128;

/// The body of a call, parsed as far as every answer needs.
pub struct SimParsedBody {
    pub turn: SimTurn,
    /// The whole body, for the checks.
    pub body: Value,
}

pub fn read_chat(body: &[u8]) -> Result<SimParsedBody, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    let model = value["model"]
        .as_str()
        .ok_or(FixedError::ChatWithoutModel)?;
    let messages = match value.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => return Err(FixedError::ChatEmptyMessages.into()),
        _ => return Err(SimulatedError::chat_missing("messages")),
    };
    if model.starts_with("missing-") {
        return Err(SimulatedError::chat_no_such_model(model));
    }
    let options = &value["stream_options"];
    let stream = value["stream"] == true;
    if options.is_object() && !stream {
        return Err(FixedError::ChatStreamOptions.into());
    }
    let choices = match &value["n"] {
        Value::Null => 1,
        n => n
            .as_u64()
            .filter(|n| (1..=MAX_CHOICES).contains(n))
            .ok_or(FixedError::ChatBadN)?,
    };
    let tier = value["service_tier"]
        .as_str()
        .filter(|tier| matches!(*tier, "flex" | "priority"));
    let last = messages.last().unwrap_or(&Value::Null);
    let is_result = matches!(last["role"].as_str(), Some("tool" | "function"));
    let turn = SimTurn {
        vendor: SimVendor::Chat,
        model: model.to_owned(),
        stream,
        include_usage: options["include_usage"] == true,
        obfuscation: options["include_obfuscation"] != false,
        is_completion: false,
        is_prompt: false,
        unshown: 0,
        echo: Vec::new(),
        legacy_functions: value["functions"].is_array() && !value["tools"].is_array(),
        omits_thinking: false,
        choices: usize::try_from(choices).unwrap_or(1),
        max_tokens: value["max_completion_tokens"]
            .as_u64()
            .or(value["max_tokens"].as_u64()),
        service_tier: tier.unwrap_or("default").to_owned(),
        user_text: last_user_text(messages).to_owned(),
        tool_result: is_result.then(|| joined_text(&last["content"])),
        steps_done: steps_done(messages),
        input_tokens: count::input_tokens(SimVendor::Chat, model, &value, body.len()),
        responses: SimResponsesOptions::default(),
    };
    Ok(SimParsedBody { turn, body: value })
}

/// The parameters of a completions request. Source: `CompletionCreateParams` of openai 3.57 for
/// Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompletionParams {
    model: String,
    prompt: Option<CompletionPrompt>,
    #[serde(default)]
    best_of: Option<u64>,
    #[serde(default)]
    echo: Option<bool>,
    #[serde(default, rename = "frequency_penalty")]
    _frequency_penalty: Option<f64>,
    #[serde(default, rename = "logit_bias")]
    _logit_bias: Option<BTreeMap<String, i64>>,
    #[serde(default)]
    logprobs: Option<u64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default, rename = "presence_penalty")]
    _presence_penalty: Option<f64>,
    #[serde(default, rename = "seed")]
    _seed: Option<i64>,
    #[serde(default)]
    stop: Value,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<CompletionStreamOptions>,
    #[serde(default, rename = "suffix")]
    _suffix: Option<String>,
    #[serde(default, rename = "temperature")]
    _temperature: Option<f64>,
    #[serde(default, rename = "top_p")]
    _top_p: Option<f64>,
    #[serde(default, rename = "user")]
    _user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompletionStreamOptions {
    #[serde(default)]
    include_usage: bool,
    #[serde(default)]
    include_obfuscation: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CompletionPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl CompletionPrompt {
    /// Each prompt as text, and the number of tokens of all.
    fn prompts(self) -> (Vec<String>, u64) {
        let of_text = |text: &String| count::tokens(text.len());
        let as_text = |ids: Vec<u32>| format!("{ids:?}");
        match self {
            Self::Text(text) => (vec![text.clone()], of_text(&text)),
            Self::Tokens(ids) => {
                let tokens = ids.len() as u64;
                (vec![as_text(ids)], tokens)
            }
            Self::Texts(texts) => {
                let tokens = texts.iter().map(of_text).sum();
                (texts, tokens)
            }
            Self::TokenLists(lists) => {
                let tokens = lists.iter().map(|ids| ids.len() as u64).sum();
                (lists.into_iter().map(as_text).collect(), tokens)
            }
        }
    }
}

fn is_stop(stop: &Value) -> bool {
    let are_texts = |all: &Vec<Value>| all.len() <= 4 && all.iter().all(Value::is_string);
    stop.is_null() || stop.is_string() || stop.as_array().is_some_and(are_texts)
}

/// Output tokens of a completion, if the request has no limit.
const DEFAULT_COMPLETION_TOKENS: u64 = 16;

/// Parses a completions body. The first prompt may have a marker.
pub fn read_completion(body: &[u8]) -> Result<SimParsedBody, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    if value["model"].as_str().is_none() {
        return Err(FixedError::ChatWithoutModel.into());
    }
    let params: CompletionParams = serde_json::from_slice(body)
        .map_err(|error| SimulatedError::new(400, format!("Invalid request: {error}")))?;
    let stream = params.stream.unwrap_or(false);
    if params.stream_options.is_some() && !stream {
        return Err(FixedError::ChatStreamOptions.into());
    }
    let (n, best_of) = (params.n.unwrap_or(1), params.best_of);
    if !(1..=MAX_CHOICES).contains(&n) || best_of.is_some_and(|best_of| best_of < n) {
        return Err(FixedError::ChatBadN.into());
    }
    if stream && best_of.is_some_and(|best_of| best_of > 1) {
        let message = "Results can only be streamed when best_of is 1.";
        return Err(SimulatedError::from_param(message, "best_of", None));
    }
    if !is_stop(&params.stop) {
        let message = "Invalid 'stop': expected a string or up to 4.";
        return Err(SimulatedError::from_param(message, "stop", None));
    }
    if params.logprobs > Some(5) {
        let message = "Invalid 'logprobs': at most 5.";
        return Err(SimulatedError::from_param(message, "logprobs", None));
    }
    let (prompts, input_tokens) = params
        .prompt
        .map_or_else(|| (vec![String::new()], 1), CompletionPrompt::prompts);
    let options = params.stream_options.as_ref();
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let drafts = best_of.unwrap_or(n).saturating_mul(count(prompts.len()));
    let shown = n.saturating_mul(count(prompts.len()));
    let turn = SimTurn {
        vendor: SimVendor::Chat,
        model: params.model,
        stream,
        include_usage: options.is_some_and(|options| options.include_usage),
        obfuscation: options.is_some_and(|options| options.include_obfuscation != Some(false)),
        is_completion: true,
        is_prompt: true,
        unshown: usize::try_from(drafts.saturating_sub(shown)).unwrap_or(0),
        user_text: prompts.first().cloned().unwrap_or_default(),
        echo: match params.echo {
            Some(true) => prompts,
            _ => vec![String::new(); prompts.len()],
        },
        legacy_functions: false,
        omits_thinking: false,
        choices: usize::try_from(shown).unwrap_or(1),
        max_tokens: Some(params.max_tokens.unwrap_or(DEFAULT_COMPLETION_TOKENS)),
        service_tier: "default".to_owned(),
        tool_result: None,
        steps_done: 0,
        input_tokens,
        responses: SimResponsesOptions::default(),
    };
    Ok(SimParsedBody { turn, body: value })
}

/// The parameters of Mistral's requests to fill a gap. Source: `FIMCompletionRequest` of
/// mistralai 3.7 for Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FimParams {
    model: String,
    prompt: String,
    #[serde(default, rename = "suffix")]
    _suffix: Option<String>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default, rename = "min_tokens")]
    _min_tokens: Option<u64>,
    #[serde(default, rename = "metadata")]
    _metadata: Option<BTreeMap<String, Value>>,
    #[serde(default, rename = "random_seed")]
    _random_seed: Option<u64>,
    #[serde(default, rename = "stop")]
    _stop: Value,
    #[serde(default)]
    stream: bool,
    #[serde(default, rename = "temperature")]
    _temperature: Option<f64>,
    #[serde(default, rename = "top_p")]
    _top_p: Option<f64>,
}

/// Parses the body of a request to fill a gap, which gets a chat answer.
pub fn read_fim(body: &[u8]) -> Result<SimParsedBody, SimulatedError> {
    let params: FimParams = serde_json::from_slice(body)
        .map_err(|error| SimulatedError::new(400, format!("Invalid request: {error}")))?;
    // The usage comes unasked.
    let completion = json!({
        "model": params.model, "prompt": params.prompt, "stream": params.stream,
        "max_tokens": params.max_tokens.unwrap_or(1_024),
        "stream_options": params.stream.then(|| json!({"include_usage": true})),
    });
    let mut parsed = read_completion(completion.to_string().as_bytes())?;
    parsed.turn.is_completion = false;
    parsed.turn.obfuscation = false;
    Ok(parsed)
}

pub fn read_responses(body: &[u8]) -> Result<SimParsedBody, SimulatedError> {
    let value: Value = serde_json::from_slice(body).map_err(|_| FixedError::ChatNotJson)?;
    let model = value["model"]
        .as_str()
        .ok_or(FixedError::ChatWithoutModel)?;
    if model.starts_with("missing-") {
        return Err(SimulatedError::chat_no_such_model(model));
    }
    let empty = Vec::new();
    let items = value["input"].as_array().unwrap_or(&empty);
    let last = items.last().unwrap_or(&Value::Null);
    let is_result = last["type"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("_output"));
    let turn = SimTurn {
        vendor: SimVendor::Responses,
        model: model.to_owned(),
        stream: value["stream"] == true,
        include_usage: true,
        obfuscation: value["stream_options"]["include_obfuscation"] != false,
        is_completion: false,
        is_prompt: false,
        unshown: 0,
        echo: Vec::new(),
        legacy_functions: false,
        omits_thinking: value["reasoning"]["summary"].is_null(),
        choices: 1,
        max_tokens: value["max_output_tokens"].as_u64(),
        service_tier: value["service_tier"]
            .as_str()
            .filter(|tier| *tier != "auto")
            .unwrap_or("default")
            .to_owned(),
        user_text: value["input"]
            .as_str()
            .unwrap_or_else(|| last_user_text(items))
            .to_owned(),
        tool_result: is_result.then(|| joined_text(&last["output"])),
        steps_done: steps_done(items),
        input_tokens: count::input_tokens(SimVendor::Responses, model, &value, body.len()),
        responses: SimResponsesOptions::parse(&value),
    };
    Ok(SimParsedBody { turn, body: value })
}

/// Parses a messages body. If `counts` is true, the call is for the token counter, which needs no
/// `max_tokens`.
pub fn read_messages(body: &[u8], counts: bool) -> Result<SimParsedBody, SimulatedError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| SimulatedError::messages_not_json(&error))?;
    let model = value["model"]
        .as_str()
        .ok_or_else(|| SimulatedError::messages_missing("model"))?;
    let max_tokens = value["max_tokens"].as_u64();
    if max_tokens.is_none() && !counts {
        return Err(SimulatedError::messages_missing("max_tokens"));
    }
    let messages = match value.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => return Err(FixedError::MessagesEmpty.into()),
        _ => return Err(SimulatedError::messages_missing("messages")),
    };
    if model.starts_with("missing-") {
        return Err(SimulatedError::messages_no_such_model(model));
    }
    let last = &messages.last().unwrap_or(&Value::Null)["content"];
    let result = last.as_array().and_then(|blocks| {
        blocks
            .iter()
            .rev()
            .find(|block| block["type"] == "tool_result")
    });
    let turn = SimTurn {
        vendor: SimVendor::Messages,
        model: model.to_owned(),
        stream: value["stream"] == true,
        include_usage: true,
        obfuscation: false,
        is_completion: false,
        is_prompt: false,
        unshown: 0,
        echo: Vec::new(),
        legacy_functions: false,
        omits_thinking: omits_thinking(model, &value["thinking"]["display"]),
        choices: 1,
        max_tokens,
        service_tier: "standard".to_owned(),
        user_text: last_user_text(messages).to_owned(),
        tool_result: result.map(|block| joined_text(&block["content"])),
        steps_done: steps_done(messages),
        input_tokens: count::input_tokens(SimVendor::Messages, model, &value, body.len()),
        responses: SimResponsesOptions::default(),
    };
    Ok(SimParsedBody { turn, body: value })
}

/// Returns whether thinking is omitted from the answer. Newer models show it only on request.
fn omits_thinking(model: &str, display: &Value) -> bool {
    match display.as_str() {
        Some(display) => display == "omitted",
        None => generations::generation(model).is_some_and(|generation| generation >= (4, 7)),
    }
}

/// Start of a text that an agent or the gateway adds to a user's turn for the model only.
const REMINDER: &str = "<system-reminder>";

/// Returns the last user text that is not a reminder.
fn last_user_text(messages: &[Value]) -> &str {
    messages
        .iter()
        .rev()
        .filter(|message| message["role"] == "user")
        .find_map(|message| {
            let mut texts = texts(&message["content"]);
            texts.retain(|text| !text.starts_with(REMINDER) || marker::is_in(text));
            texts
                .iter()
                .rev()
                .find(|text| marker::is_in(text))
                .or(texts.last())
                .copied()
        })
        .unwrap_or_default()
}

/// Returns the number of turns with calls after the last marker. The responses vendor's calls are
/// separate items, and adjacent ones belong to one turn.
fn steps_done(items: &[Value]) -> usize {
    let start = items
        .iter()
        .rposition(|item| {
            texts(&item["content"])
                .iter()
                .any(|text| marker::is_in(text))
        })
        .unwrap_or_default();
    let makes_calls = |item: &Value| {
        let blocks = item["content"].as_array().into_iter().flatten();
        item["type"] == "function_call"
            || item["tool_calls"].is_array()
            || blocks.into_iter().any(|block| block["type"] == "tool_use")
    };
    let mut was_call = false;
    let starts = items[start..].iter().filter(|item| {
        let is_start = makes_calls(item) && !(was_call && item["type"] == "function_call");
        was_call = makes_calls(item);
        is_start
    });
    starts.count()
}

/// Returns the texts of a content that is a string or an array of parts.
fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => {
            let is_text = |part: &&Value| {
                matches!(
                    part["type"].as_str(),
                    Some("text" | "input_text" | "output_text")
                )
            };
            parts
                .iter()
                .filter(is_text)
                .filter_map(|part| part["text"].as_str())
                .collect()
        }
        _ => Vec::new(),
    }
}

fn joined_text(content: &Value) -> String {
    texts(content).concat()
}
