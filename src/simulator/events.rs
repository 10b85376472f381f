//! The event stream of any vendor, in its SSE framing.
//!
//! It must not send anything (`sender.rs` does).

use super::behaviour::KeepAlive;
use super::{chat, messages, responses};

/// The events of one stream, in order, encoded one by one.
pub struct Events {
    pub reply: Reply,
    /// Data of the error event.
    pub error: String,
}

pub enum Reply {
    Chat(chat::Reply),
    Messages(messages::Reply),
    Responses(responses::Reply),
}

impl Events {
    pub fn len(&self) -> usize {
        match &self.reply {
            Reply::Chat(reply) => reply.len(),
            Reply::Messages(reply) => reply.len(),
            Reply::Responses(reply) => reply.len(),
        }
    }

    /// The event at `index`, with its framing.
    pub fn event(&self, index: usize, line_end: &str) -> String {
        match &self.reply {
            Reply::Chat(reply) => frame(None, &reply.event(index).unwrap_or_default(), line_end),
            Reply::Messages(reply) => {
                let (name, data) = reply.event(index).unwrap_or_default();
                frame(Some(name), &data, line_end)
            }
            Reply::Responses(reply) => {
                let (name, data) = reply.event(index).unwrap_or_default();
                frame(Some(&name), &data, line_end)
            }
        }
    }

    /// Bytes of output in the event at `index`.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match &self.reply {
            Reply::Chat(reply) => reply.shown_bytes(index),
            Reply::Messages(reply) => reply.shown_bytes(index),
            Reply::Responses(reply) => reply.shown_bytes(index),
        }
    }

    /// The vendor's error event.
    pub fn error(&self, line_end: &str) -> String {
        if let Reply::Responses(reply) = &self.reply {
            let frames = reply
                .error(&self.error)
                .into_iter()
                .map(|(name, data)| frame(Some(name), &data, line_end));
            return frames.collect();
        }
        frame(self.named("error"), &self.error, line_end)
    }

    /// An event whose data is not JSON.
    pub fn garbage(&self, line_end: &str) -> String {
        let name = match self.reply {
            Reply::Responses(_) => "response.output_text.delta",
            _ => "content_block_delta",
        };
        frame(
            self.named(name),
            &format!("{{\"type\":\"{name}\",oops"),
            line_end,
        )
    }

    /// A keep-alive for a silent connection; it is not an event of the answer.
    pub fn keep_alive(&self, kind: KeepAlive, index: usize, line_end: &str) -> String {
        match (kind, &self.reply) {
            (KeepAlive::Comment, _) => format!(": keep-alive{line_end}{line_end}"),
            (KeepAlive::Data, _) => frame(None, ": keepalive", line_end),
            (KeepAlive::Ping, Reply::Messages(_)) => {
                frame(Some("ping"), r#"{"type": "ping"}"#, line_end)
            }
            (KeepAlive::Ping, Reply::Responses(_)) => {
                frame(Some("keepalive"), &responses::keep_alive(index), line_end)
            }
            (KeepAlive::Ping, Reply::Chat(_)) => format!(": ping{line_end}{line_end}"),
            (KeepAlive::Blank, _) => frame(self.named("ping"), "", line_end),
        }
    }

    fn named(&self, name: &'static str) -> Option<&'static str> {
        (!matches!(self.reply, Reply::Chat(_))).then_some(name)
    }
}

fn frame(name: Option<&str>, data: &str, line_end: &str) -> String {
    match name {
        Some(name) => format!("event: {name}{line_end}data: {data}{line_end}{line_end}"),
        None => format!("data: {data}{line_end}{line_end}"),
    }
}
