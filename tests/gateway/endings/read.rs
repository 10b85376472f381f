//! What a client reads of an answer: its content, and how it ended. The readers assert the rules of
//! each surface.

use crate::client::{Answer, End, Request};
use serde_json::Value;

/// An answer as its client parses it.
#[derive(Debug, Default)]
pub struct Read {
    pub text: String,
    pub arguments: String,
    /// Completed tool calls of the responses surface, which an agent would run.
    pub finished_calls: usize,
    /// The stop reason, in the surface's own term.
    pub stop: Option<String>,
    error: Option<Value>,
}

pub fn post(surface: &str, key: &str, body: &Value) -> Request {
    let path = match surface {
        "chat" => "/v1/chat/completions",
        "messages" => "/v1/messages",
        _ => "/v1/responses",
    };
    Request::post(path, body.to_string()).bearer(key)
}

impl Read {
    /// Reads an answer. Asserts that the connection ended cleanly, whether the answer succeeded or
    /// failed.
    #[track_caller]
    pub fn new(surface: &str, streams: bool, answer: &Answer, what: &str) -> Self {
        assert_eq!(answer.end(), Some(End::Whole), "{what}: {}", answer.text());
        if answer.status != 200 {
            let error = answer.json()["error"].clone();
            assert!(
                answer.status >= 500,
                "{what}: {} {}",
                answer.status,
                answer.text()
            );
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|message| !message.is_empty()),
                "{what}: {}",
                answer.text()
            );
            return Self::failed(error);
        }
        match (surface, streams) {
            ("chat", true) => chat(&answer.text(), what),
            ("messages", true) => messages(&answer.text(), what),
            (_, true) => responses(&answer.text(), what),
            (_, false) => whole(surface, &answer.json()),
        }
    }

    fn failed(error: Value) -> Self {
        Self {
            text: String::new(),
            arguments: String::new(),
            finished_calls: 0,
            stop: None,
            error: Some(error),
        }
    }

    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// The content of a complete answer: text, tool arguments and stop reason.
    pub fn said(&self) -> (&str, &str, Option<&str>) {
        assert!(self.error.is_none(), "{self:?}");
        (&self.text, &self.arguments, self.stop.as_deref())
    }
}

fn push(to: &mut String, value: &Value) {
    to.push_str(value.as_str().unwrap_or_default());
}

/// The data of each event. Asserts that all of it is JSON.
fn events(text: &str, what: &str) -> Vec<Value> {
    let data = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]");
    data.map(|data| {
        serde_json::from_str(data).unwrap_or_else(|error| panic!("{what}: {error}: {data}"))
    })
    .collect()
}

#[track_caller]
fn chat(text: &str, what: &str) -> Read {
    assert!(text.ends_with("data: [DONE]\n\n"), "{what}: {text}");
    assert_eq!(text.matches("[DONE]").count(), 1, "{what}: {text}");
    let mut read = Read::default();
    let mut usages = 0;
    for event in events(text, what) {
        assert!(
            read.error.is_none(),
            "{what}: an event behind the error: {text}"
        );
        read.error = event.get("error").cloned();
        usages += usize::from(event["usage"].is_object());
        for choice in event["choices"].as_array().into_iter().flatten() {
            push(&mut read.text, &choice["delta"]["content"]);
            for call in choice["delta"]["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
            {
                push(&mut read.arguments, &call["function"]["arguments"]);
            }
            read.stop = choice["finish_reason"]
                .as_str()
                .map(str::to_owned)
                .or(read.stop);
        }
    }
    assert!(
        read.error.is_some() || read.stop.is_some(),
        "{what}: {text}"
    );
    assert!(
        read.error.is_some() || usages == 1,
        "{what}: the usage was asked for: {text}"
    );
    read
}

#[track_caller]
fn messages(text: &str, what: &str) -> Read {
    let mut read = Read::default();
    let (mut open, mut is_over) = (None, false);
    for event in events(text, what) {
        assert!(!is_over, "{what}: an event behind the last: {text}");
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(open.replace(event["index"].clone()), None, "{what}: {text}")
            }
            "content_block_stop" => {
                assert_eq!(open.take(), Some(event["index"].clone()), "{what}: {text}")
            }
            "content_block_delta" => {
                push(&mut read.text, &event["delta"]["text"]);
                push(&mut read.arguments, &event["delta"]["partial_json"]);
            }
            "message_delta" => {
                read.stop = event["delta"]["stop_reason"].as_str().map(str::to_owned)
            }
            "message_stop" => is_over = true,
            "error" => (read.error, is_over) = (Some(event["error"].clone()), true),
            _ => {}
        }
    }
    assert!(is_over, "{what}: {text}");
    assert!(
        read.error.is_some() || read.stop.is_some() && open.is_none(),
        "{what}: {text}"
    );
    read
}

#[track_caller]
fn responses(text: &str, what: &str) -> Read {
    let mut read = Read::default();
    let events = events(text, what);
    for event in &events {
        let kind = event["type"].as_str().unwrap();
        match kind {
            "response.output_text.delta" => push(&mut read.text, &event["delta"]),
            "response.function_call_arguments.delta" => push(&mut read.arguments, &event["delta"]),
            "response.output_item.done" if event["item"]["type"] == "function_call" => {
                read.finished_calls += 1
            }
            "response.completed" | "response.incomplete" => read.stop = Some(kind.to_owned()),
            "response.failed" => read.error = Some(event["response"]["error"].clone()),
            _ => {}
        }
    }
    let last = events
        .last()
        .unwrap_or_else(|| panic!("{what}: no event: {text}"));
    let is_last = |kind: &str| {
        matches!(
            kind,
            "response.completed" | "response.incomplete" | "response.failed"
        )
    };
    assert!(last["type"].as_str().is_some_and(is_last), "{what}: {text}");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(
            event["sequence_number"].as_u64(),
            Some(at as u64),
            "{what}: {text}"
        );
    }
    read
}

fn whole(surface: &str, body: &Value) -> Read {
    let mut read = Read::default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    match surface {
        "chat" => {
            let choice = &body["choices"][0];
            push(&mut read.text, &choice["message"]["content"]);
            for call in list(&choice["message"]["tool_calls"]) {
                push(&mut read.arguments, &call["function"]["arguments"]);
            }
            read.stop = choice["finish_reason"].as_str().map(str::to_owned);
        }
        "messages" => {
            for block in list(&body["content"]) {
                push(&mut read.text, &block["text"]);
                if block["type"] == "tool_use" {
                    read.arguments.push_str(&block["input"].to_string());
                }
            }
            read.stop = body["stop_reason"].as_str().map(str::to_owned);
        }
        _ => {
            for item in list(&body["output"]) {
                push(&mut read.arguments, &item["arguments"]);
                read.finished_calls +=
                    usize::from(item["type"] == "function_call" && item["status"] == "completed");
                list(&item["content"])
                    .iter()
                    .for_each(|part| push(&mut read.text, &part["text"]));
            }
            read.stop = body["status"].as_str().map(str::to_owned);
        }
    }
    assert!(read.stop.is_some() && !read.text.is_empty(), "{body}");
    read
}
