//! A client of each surface that keeps a conversation: builds requests, and reads answers whole and
//! streamed into the same form.
//!
//! It sends back what it got, as SDKs and agents do; it must not look into it.

use crate::client::{Answer, Connection, Request};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Surface {
    Chat,
    Messages,
    Responses,
}

pub const SURFACES: [Surface; 3] = [Surface::Chat, Surface::Messages, Surface::Responses];

/// One turn of a conversation, as the client wrote or got it.
pub enum Turn {
    System(String),
    User(String),
    /// An image or a PDF, before the text of the same turn.
    UserWith(Media, String),
    /// The vendor's turn, as it came.
    Assistant(Vec<Value>),
    /// Results of calls, by id.
    Results(Vec<(String, String)>),
}

#[derive(Clone, Copy)]
pub enum Media {
    Image,
    Pdf,
}

/// A complete answer, however it came.
#[derive(Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub text: String,
    pub thinking: String,
    /// Id and name of each call.
    pub calls: Vec<(String, String)>,
    /// Why it ended, in the surface's words.
    pub finish: String,
    /// Input without cached tokens, cached tokens, output.
    pub usage: [i64; 3],
    /// What must be sent back as the vendor's turn.
    pub turn: Vec<Value>,
    pub error: Value,
    pub warnings: String,
    pub request_id: String,
    /// Whether a vendor was asked.
    pub was_sent: bool,
    /// Whether a chat answer is an array of parts, which this protocol has no answers of.
    pub has_parts: bool,
}

impl Reply {
    /// Why the request was refused.
    pub fn refusal(&self) -> String {
        let who = if self.was_sent {
            "the vendor"
        } else {
            "the gateway"
        };
        let message = self.error["message"].as_str().unwrap_or_default();
        format!("refused by {who}: {message}")
    }
}

/// A PNG of one pixel.
const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const PDF: &str =
    "JVBERi0xLjQKMSAwIG9iago8PC9UeXBlL0NhdGFsb2c+PgplbmRvYmoKdHJhaWxlcjw8L1Jvb3QgMSAwIFI+Pgo=";

impl Surface {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    pub fn body(self, model: &str, turns: &[Turn], stream: bool) -> Value {
        let name = match self {
            Self::Responses => "input",
            Self::Chat | Self::Messages => "messages",
        };
        let mut items: Vec<Value> = Vec::new();
        let mut body = json!({"model": model, "stream": stream});
        for (index, turn) in turns.iter().enumerate() {
            match (turn, self) {
                (Turn::System(text), Self::Messages) if index == 0 => body["system"] = json!(text),
                (Turn::System(text), Self::Responses) if index == 0 => {
                    body["instructions"] = json!(text);
                }
                _ => items.extend(self.items(turn)),
            }
        }
        body[name] = items.into();
        match self {
            Self::Chat if stream => body["stream_options"] = json!({"include_usage": true}),
            Self::Chat => {}
            Self::Messages => body["max_tokens"] = json!(4096),
            Self::Responses => {
                body["store"] = json!(false);
                body["include"] = json!(["reasoning.encrypted_content"]);
            }
        }
        body
    }

    fn items(self, turn: &Turn) -> Vec<Value> {
        match (turn, self) {
            (Turn::System(text), Self::Responses) => {
                vec![json!({"role": "developer", "content": text})]
            }
            (Turn::System(text), _) => vec![json!({"role": "system", "content": text})],
            (Turn::User(text), _) => vec![json!({"role": "user", "content": text})],
            (Turn::UserWith(media, text), _) => {
                let kind = match self {
                    Self::Responses => "input_text",
                    Self::Chat | Self::Messages => "text",
                };
                let parts = [self.media(*media), json!({"type": kind, "text": text})];
                vec![json!({"role": "user", "content": parts})]
            }
            (Turn::Assistant(items), _) => items.clone(),
            (Turn::Results(results), Self::Chat) => {
                let result = |(id, text): &(String, String)| json!({"role": "tool", "tool_call_id": id, "content": text});
                results.iter().map(result).collect()
            }
            (Turn::Results(results), Self::Messages) => {
                let result = |(id, text): &(String, String)| json!({"type": "tool_result", "tool_use_id": id, "content": text});
                let results: Vec<Value> = results.iter().map(result).collect();
                vec![json!({"role": "user", "content": results})]
            }
            (Turn::Results(results), Self::Responses) => {
                let result = |(id, text): &(String, String)| json!({"type": "function_call_output", "call_id": id, "output": text});
                results.iter().map(result).collect()
            }
        }
    }

    fn media(self, media: Media) -> Value {
        let (image, pdf) = (
            format!("data:image/png;base64,{IMAGE}"),
            format!("data:application/pdf;base64,{PDF}"),
        );
        match (self, media) {
            (Self::Chat, Media::Image) => json!({"type": "image_url", "image_url": {"url": image}}),
            (Self::Chat, Media::Pdf) => {
                json!({"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}})
            }
            (Self::Messages, Media::Image) => {
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}})
            }
            (Self::Messages, Media::Pdf) => {
                json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}})
            }
            (Self::Responses, Media::Image) => json!({"type": "input_image", "image_url": image}),
            (Self::Responses, Media::Pdf) => {
                json!({"type": "input_file", "filename": "a.pdf", "file_data": pdf})
            }
        }
    }

    /// Adds a tool of this name, and the choice that agents send with it.
    pub fn add_tool(self, body: &mut Value, name: &str) {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
        body["tools"] = match self {
            Self::Chat => {
                json!([{"type": "function", "function": {"name": name, "description": "Reads.", "parameters": schema}}])
            }
            Self::Messages => {
                json!([{"name": name, "description": "Reads.", "input_schema": schema}])
            }
            Self::Responses => {
                json!([{"type": "function", "name": name, "description": "Reads.", "parameters": schema, "strict": false}])
            }
        };
        body["tool_choice"] = match self {
            Self::Messages => json!({"type": "auto"}),
            Self::Chat | Self::Responses => json!("auto"),
        };
    }

    /// Turns thinking on or off, as clients of this surface do.
    pub fn set_thinking(self, body: &mut Value, is_on: bool) {
        match (self, is_on) {
            (Self::Chat, true) => body["reasoning_effort"] = json!("high"),
            (Self::Chat, false) => body["reasoning_effort"] = json!("none"),
            (Self::Messages, true) => {
                body["thinking"] = json!({"type": "enabled", "budget_tokens": 2048});
            }
            (Self::Messages, false) => body["thinking"] = json!({"type": "disabled"}),
            (Self::Responses, true) => {
                body["reasoning"] = json!({"effort": "high", "summary": "auto"})
            }
            (Self::Responses, false) => body["reasoning"] = json!({"effort": "none"}),
        }
    }

    pub fn ask(self, connection: &mut Connection, key: &str, body: &Value) -> Reply {
        let answer = connection.ask(&Request::post(self.path(), body.to_string()).bearer(key));
        let mut reply = match answer.status {
            200 if body["stream"] == true => self.read_stream(&answer),
            200 => self.read_whole(&answer.json()),
            _ => Reply {
                error: answer.json()["error"].clone(),
                ..Reply::default()
            },
        };
        reply.status = answer.status;
        reply.warnings = answer
            .header("x-gateway-warnings")
            .unwrap_or_default()
            .to_owned();
        reply.request_id = answer.request_id();
        reply.was_sent = answer.header("x-upstream-request-id").is_some();
        reply
    }

    fn read_stream(self, answer: &Answer) -> Reply {
        let text = answer.text();
        let events: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| {
                serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
            })
            .collect();
        if let Some(event) = events.iter().find(|event| event["error"].is_object()) {
            return Reply {
                error: event["error"].clone(),
                ..Reply::default()
            };
        }
        match self {
            Self::Chat => self.read_whole(&join_chunks(&events)),
            Self::Messages => self.read_whole(&join_blocks(&events)),
            Self::Responses => {
                let end = events
                    .iter()
                    .rev()
                    .find(|event| event["response"].is_object());
                let mut reply =
                    self.read_whole(&end.map(|end| end["response"].clone()).unwrap_or_default());
                let deltas: String = events
                    .iter()
                    .filter(|event| event["type"] == "response.output_text.delta")
                    .filter_map(|event| event["delta"].as_str())
                    .collect();
                if deltas != reply.text {
                    reply.error = json!(format!(
                        "the deltas say {deltas:?}, the end {:?}",
                        reply.text
                    ));
                }
                reply
            }
        }
    }

    fn read_whole(self, body: &Value) -> Reply {
        match self {
            Self::Chat => read_chat(body),
            Self::Messages => read_messages(body),
            Self::Responses => read_responses(body),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn read_chat(body: &Value) -> Reply {
    let choice = &body["choices"][0];
    let message = &choice["message"];
    let usage = &body["usage"];
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    let calls = items(&message["tool_calls"]).iter();
    let parts = items(&message["content"]);
    let texts = |parts: &[Value], name: &str| {
        parts
            .iter()
            .map(|part| text(&part[name]))
            .collect::<String>()
    };
    let thoughts: String = parts
        .iter()
        .map(|part| texts(items(&part["thinking"]), "text"))
        .collect();
    Reply {
        text: text(&message["content"]) + &texts(parts, "text"),
        has_parts: !parts.is_empty(),
        thinking: ["reasoning_content", "reasoning"]
            .into_iter()
            .map(|name| text(&message[name]))
            .find(|text| !text.is_empty())
            .or_else(|| {
                message["reasoning_details"][0]["text"]
                    .as_str()
                    .map(str::to_owned)
            })
            .unwrap_or(thoughts),
        calls: calls
            .map(|call| (text(&call["id"]), text(&call["function"]["name"])))
            .collect(),
        finish: text(&choice["finish_reason"]),
        usage: [
            count(&usage["prompt_tokens"]) - cached,
            cached,
            count(&usage["completion_tokens"]),
        ],
        turn: vec![message.clone()],
        ..Reply::default()
    }
}

fn read_messages(body: &Value) -> Reply {
    let blocks = items(&body["content"]);
    let of = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
    let usage = &body["usage"];
    Reply {
        text: of("text").map(|block| text(&block["text"])).collect(),
        thinking: of("thinking")
            .map(|block| text(&block["thinking"]))
            .collect(),
        calls: of("tool_use")
            .map(|block| (text(&block["id"]), text(&block["name"])))
            .collect(),
        finish: text(&body["stop_reason"]),
        usage: ["input_tokens", "cache_read_input_tokens", "output_tokens"]
            .map(|name| count(&usage[name])),
        turn: vec![json!({"role": "assistant", "content": blocks})],
        ..Reply::default()
    }
}

fn read_responses(body: &Value) -> Reply {
    let output = items(&body["output"]);
    let of = |kind: &'static str| output.iter().filter(move |item| item["type"] == kind);
    let usage = &body["usage"];
    let cached = count(&usage["input_tokens_details"]["cached_tokens"]);
    let inner = |item: &Value, name: &str| -> String {
        items(&item[name])
            .iter()
            .map(|part| text(&part["text"]))
            .collect()
    };
    Reply {
        text: of("message").map(|item| inner(item, "content")).collect(),
        thinking: of("reasoning")
            .map(|item| inner(item, "summary") + &inner(item, "content"))
            .collect(),
        calls: of("function_call")
            .map(|item| (text(&item["call_id"]), text(&item["name"])))
            .collect(),
        finish: text(&body["status"]),
        usage: [
            count(&usage["input_tokens"]) - cached,
            cached,
            count(&usage["output_tokens"]),
        ],
        turn: output.to_vec(),
        ..Reply::default()
    }
}

/// The whole answer that the chunks add up to.
fn join_chunks(chunks: &[Value]) -> Value {
    let (mut message, mut calls, mut finish) = (Map::new(), Vec::<Value>::new(), Value::Null);
    let mut usage = Value::Null;
    for chunk in chunks {
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        if choice["finish_reason"].is_string() {
            finish = choice["finish_reason"].clone();
        }
        for (name, value) in choice["delta"].as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                ("tool_calls", Value::Array(pieces)) => {
                    pieces.iter().for_each(|piece| join_call(&mut calls, piece))
                }
                ("role", _) => drop(message.insert(name.clone(), value.clone())),
                // Pieces of text may follow parts.
                (_, Value::String(piece)) if message.get(name).is_some_and(Value::is_array) => {
                    let so_far = items(&message[name]).to_vec();
                    let part = json!({"type": "text", "text": piece});
                    message.insert(name.clone(), [so_far, vec![part]].concat().into());
                }
                (_, Value::String(piece)) => {
                    let so_far = message.get(name).map(text).unwrap_or_default();
                    message.insert(name.clone(), json!(so_far + piece));
                }
                (_, Value::Array(piece)) => {
                    let so_far = message
                        .get(name)
                        .map(|value| items(value).to_vec())
                        .unwrap_or_default();
                    message.insert(name.clone(), [so_far, piece.clone()].concat().into());
                }
                _ => {}
            }
        }
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    message.entry("content").or_insert(Value::Null);
    json!({"choices": [{"message": message, "finish_reason": finish}], "usage": usage})
}

fn join_call(calls: &mut Vec<Value>, piece: &Value) {
    let index = usize::try_from(count(&piece["index"])).unwrap();
    if calls.len() <= index {
        calls.resize(
            index + 1,
            json!({"type": "function", "function": {"name": "", "arguments": ""}}),
        );
    }
    for (name, value) in piece.as_object().into_iter().flatten() {
        match name.as_str() {
            "function" => {
                for part in ["name", "arguments"] {
                    let joined = text(&calls[index]["function"][part]) + &text(&value[part]);
                    calls[index]["function"][part] = joined.into();
                }
            }
            "index" => {}
            _ => calls[index][name] = value.clone(),
        }
    }
}

/// The whole message that the events add up to.
fn join_blocks(events: &[Value]) -> Value {
    let mut message = json!({"content": []});
    let mut blocks: Vec<Value> = Vec::new();
    let mut arguments: Vec<String> = Vec::new();
    for event in events {
        let index = usize::try_from(count(&event["index"])).unwrap();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                arguments.push(String::new());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                for name in ["text", "thinking", "signature"] {
                    if delta[name].is_string() {
                        blocks[index][name] =
                            json!(text(&blocks[index][name]) + &text(&delta[name]));
                    }
                }
                arguments[index] += &text(&delta["partial_json"]);
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                for (name, value) in event["usage"].as_object().into_iter().flatten() {
                    message["usage"][name] = value.clone();
                }
            }
            _ => {}
        }
    }
    for (block, arguments) in blocks.iter_mut().zip(arguments) {
        if !arguments.is_empty() {
            block["input"] = serde_json::from_str(&arguments).unwrap();
        }
    }
    message["content"] = blocks.into();
    message
}
