//! A stream of either vendor, event by event, in the SSE framing of that vendor.
//!
//! It must not send anything (`play.rs` does).

use super::behaviour::KeepAlive;
use super::{chat, messages};

/// The events of one stream, in order, worded one by one.
pub struct Events {
    pub reply: Reply,
    /// Data of the error event.
    pub error: String,
}

pub enum Reply {
    Chat(chat::Reply),
    Messages(messages::Reply),
}

impl Events {
    pub fn len(&self) -> usize {
        match &self.reply {
            Reply::Chat(reply) => reply.len(),
            Reply::Messages(reply) => reply.len(),
        }
    }

    /// The event at `index` as it stands in the stream.
    pub fn event(&self, index: usize, line_end: &str) -> String {
        match &self.reply {
            Reply::Chat(reply) => frame(None, &reply.event(index).unwrap_or_default(), line_end),
            Reply::Messages(reply) => {
                let (name, data) = reply.event(index).unwrap_or_default();
                frame(Some(name), &data, line_end)
            }
        }
    }

    /// The bytes of output that the event at `index` shows.
    pub fn shown_bytes(&self, index: usize) -> usize {
        match &self.reply {
            Reply::Chat(reply) => reply.shown_bytes(index),
            Reply::Messages(reply) => reply.shown_bytes(index),
        }
    }

    /// The vendor's error event.
    pub fn error(&self, line_end: &str) -> String {
        frame(self.named("error"), &self.error, line_end)
    }

    /// An event whose data is not JSON.
    pub fn garbage(&self, line_end: &str) -> String {
        frame(self.named("content_block_delta"), "{\"type\":\"content_block_delta\",oops", line_end)
    }

    /// What keeps a silent connection open; no event of the answer.
    pub fn keep_alive(&self, kind: KeepAlive, line_end: &str) -> String {
        match (kind, &self.reply) {
            (KeepAlive::Comment, _) => format!(": keep-alive{line_end}{line_end}"),
            (KeepAlive::Data, _) => frame(None, ": keepalive", line_end),
            (KeepAlive::Ping, Reply::Messages(_)) => frame(Some("ping"), r#"{"type": "ping"}"#, line_end),
            (KeepAlive::Ping, Reply::Chat(_)) => format!(": ping{line_end}{line_end}"),
            (KeepAlive::Blank, _) => frame(self.named("ping"), "", line_end),
        }
    }

    fn named(&self, name: &'static str) -> Option<&'static str> {
        matches!(self.reply, Reply::Messages(_)).then_some(name)
    }
}

fn frame(name: Option<&str>, data: &str, line_end: &str) -> String {
    match name {
        Some(name) => format!("event: {name}{line_end}data: {data}{line_end}{line_end}"),
        None => format!("data: {data}{line_end}{line_end}"),
    }
}
