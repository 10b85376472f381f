//! The event stream of any vendor, in its SSE framing.
//!
//! It must not send anything (`sender.rs` does).

use super::behaviour::KeepAliveMode;
use super::{chat, messages, responses};

/// The events of one stream, in order, encoded one by one.
pub struct SimEventStream {
    pub reply: SimReply,
    /// Data of the error event.
    pub error: String,
}

pub enum SimReply {
    Chat(chat::SimChatReply),
    Messages(messages::SimMessagesReply),
    Responses(responses::SimResponsesReply),
}

impl SimEventStream {
    pub fn len(&self) -> usize {
        match &self.reply {
            SimReply::Chat(reply) => reply.len(),
            SimReply::Messages(reply) => reply.len(),
            SimReply::Responses(reply) => reply.len(),
        }
    }

    /// The event at `index`, with its framing.
    pub fn event(&self, index: usize, line_end: &str) -> String {
        match &self.reply {
            SimReply::Chat(reply) => frame(None, &reply.event(index).unwrap_or_default(), line_end),
            SimReply::Messages(reply) => {
                let (name, data) = reply.event(index).unwrap_or_default();
                frame(Some(name), &data, line_end)
            }
            SimReply::Responses(reply) => {
                let (name, data) = reply.event(index).unwrap_or_default();
                frame(Some(&name), &data, line_end)
            }
        }
    }

    /// Bytes of output in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match &self.reply {
            SimReply::Chat(reply) => reply.shown_bytes(index),
            SimReply::Messages(reply) => reply.shown_bytes(index),
            SimReply::Responses(reply) => reply.shown_bytes(index),
        }
    }

    /// The vendor's error event.
    pub fn error(&self, line_end: &str) -> String {
        if let SimReply::Responses(reply) = &self.reply {
            let frames = reply
                .error(&self.error)
                .into_iter()
                .map(|(name, data)| frame(Some(name), &data, line_end));
            return frames.collect();
        }
        frame(self.event_name("error"), &self.error, line_end)
    }

    /// An event whose data is not JSON.
    pub fn garbage(&self, line_end: &str) -> String {
        let name = match self.reply {
            SimReply::Responses(_) => "response.output_text.delta",
            _ => "content_block_delta",
        };
        frame(
            self.event_name(name),
            &format!("{{\"type\":\"{name}\",oops"),
            line_end,
        )
    }

    /// A keep-alive for a silent connection; it is not an event of the answer.
    pub fn keep_alive(&self, kind: KeepAliveMode, index: usize, line_end: &str) -> String {
        match (kind, &self.reply) {
            (KeepAliveMode::Comment, _) => format!(": keep-alive{line_end}{line_end}"),
            (KeepAliveMode::Data, _) => frame(None, ": keepalive", line_end),
            (KeepAliveMode::Ping, SimReply::Messages(_)) => {
                frame(Some("ping"), r#"{"type": "ping"}"#, line_end)
            }
            (KeepAliveMode::Ping, SimReply::Responses(_)) => {
                frame(Some("keepalive"), &responses::keep_alive(index), line_end)
            }
            (KeepAliveMode::Ping, SimReply::Chat(_)) => format!(": ping{line_end}{line_end}"),
            (KeepAliveMode::Blank, _) => frame(self.event_name("ping"), "", line_end),
        }
    }

    fn event_name(&self, name: &'static str) -> Option<&'static str> {
        (!matches!(self.reply, SimReply::Chat(_))).then_some(name)
    }
}

fn frame(name: Option<&str>, data: &str, line_end: &str) -> String {
    match name {
        Some(name) => format!("event: {name}{line_end}data: {data}{line_end}{line_end}"),
        None => format!("data: {data}{line_end}{line_end}"),
    }
}
