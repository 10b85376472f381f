//! Encodes the event stream of any vendor in SSE framing.
//!
//! This file must not send anything (`sender.rs` does).

use super::behaviour::KeepAliveMode;
use super::dialect::Dialect;
use super::{chat, messages, responses};

/// The events of one stream, in order and encoded one by one.
pub struct SimEventStream {
    pub response: SimResponse,
    /// Data of the error event.
    pub error: String,
    /// Dialect that rewrites the data of events.
    pub dialect: Option<&'static Dialect>,
}

pub enum SimResponse {
    Chat(chat::SimChatResponse),
    Messages(messages::SimMessagesResponse),
    Responses(responses::SimResponsesResponse),
}

impl SimEventStream {
    pub fn len(&self) -> usize {
        match &self.response {
            SimResponse::Chat(response) => response.len(),
            SimResponse::Messages(response) => response.len(),
            SimResponse::Responses(response) => response.len(),
        }
    }

    /// Returns the event at `index` with its framing.
    pub fn event(&self, index: usize, line_end: &str) -> String {
        match &self.response {
            SimResponse::Chat(response) => {
                let data = response.event(index).unwrap_or_default();
                frame(None, &self.rewrite(data), line_end)
            }
            SimResponse::Messages(response) => {
                let (name, data) = response.event(index).unwrap_or_default();
                frame(Some(name), &self.rewrite(data), line_end)
            }
            SimResponse::Responses(response) => {
                let (name, data) = response.event(index).unwrap_or_default();
                frame(Some(&name), &self.rewrite(data), line_end)
            }
        }
    }

    fn rewrite(&self, data: String) -> String {
        match self.dialect {
            Some(dialect) => dialect.rewrite(&data),
            None => data,
        }
    }

    /// Returns the number of output bytes in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match &self.response {
            SimResponse::Chat(response) => response.shown_bytes(index),
            SimResponse::Messages(response) => response.shown_bytes(index),
            SimResponse::Responses(response) => response.shown_bytes(index),
        }
    }

    pub fn error(&self, line_end: &str) -> String {
        if let SimResponse::Responses(response) = &self.response {
            let frames = response
                .error(&self.error)
                .into_iter()
                .map(|(name, data)| frame(Some(name), &data, line_end));
            return frames.collect();
        }
        frame(self.event_name("error"), &self.error, line_end)
    }

    /// Returns an event whose data is not JSON.
    pub fn garbage(&self, line_end: &str) -> String {
        let name = match self.response {
            SimResponse::Responses(_) => "response.output_text.delta",
            _ => "content_block_delta",
        };
        frame(
            self.event_name(name),
            &format!("{{\"type\":\"{name}\",oops"),
            line_end,
        )
    }

    /// Returns a keep-alive for a silent connection, which is not an event of the answer.
    pub fn keep_alive(&self, kind: KeepAliveMode, index: usize, line_end: &str) -> String {
        match (kind, &self.response) {
            (KeepAliveMode::Comment, _) => format!(": keep-alive{line_end}{line_end}"),
            (KeepAliveMode::Data, _) => frame(None, ": keepalive", line_end),
            (KeepAliveMode::Ping, SimResponse::Messages(_)) => {
                frame(Some("ping"), r#"{"type": "ping"}"#, line_end)
            }
            (KeepAliveMode::Ping, SimResponse::Responses(_)) => {
                frame(Some("keepalive"), &responses::keep_alive(index), line_end)
            }
            (KeepAliveMode::Ping, SimResponse::Chat(_)) => format!(": ping{line_end}{line_end}"),
            (KeepAliveMode::Blank, _) => frame(self.event_name("ping"), "", line_end),
        }
    }

    fn event_name(&self, name: &'static str) -> Option<&'static str> {
        (!matches!(self.response, SimResponse::Chat(_))).then_some(name)
    }
}

fn frame(name: Option<&str>, data: &str, line_end: &str) -> String {
    match name {
        Some(name) => format!("event: {name}{line_end}data: {data}{line_end}{line_end}"),
        None => format!("data: {data}{line_end}{line_end}"),
    }
}
