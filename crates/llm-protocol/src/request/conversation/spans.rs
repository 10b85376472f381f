//! Spans of the members that identify the conversation of a request.
//!
//! This file must not read their values: `request/conversation.rs` does.

use crate::json::Span;

/// Number of messages at the beginning that the key covers.
const MAX_HEAD_MESSAGES: usize = 8;

/// Spans of the members that identify the conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::request) struct ConversationSpans {
    pub(super) system: Option<Span>,
    pub(super) head: [MessageSpans; MAX_HEAD_MESSAGES],
    pub(super) messages: usize,
    pub(super) session: Option<Span>,
    pub(super) cache_key: Option<Span>,
    pub(super) metadata: Option<Span>,
}

/// Spans of two members of one of the first messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::request) struct MessageSpans {
    pub(super) role: Option<Span>,
    pub(super) content: Option<Span>,
}

impl MessageSpans {
    /// Records a member of the message. The first of its name counts.
    pub fn record_member(&mut self, name: &str, span: Span) {
        let slot = match name {
            "role" => &mut self.role,
            "content" => &mut self.content,
            _ => return,
        };
        slot.get_or_insert(span);
    }
}

impl ConversationSpans {
    /// Records a top-level member at `span`. The first of its name counts.
    pub fn record_member(&mut self, name: &str, span: Span) {
        let sign = match name {
            "system" | "instructions" => &mut self.system,
            "session_id" => &mut self.session,
            "prompt_cache_key" => &mut self.cache_key,
            "metadata" => &mut self.metadata,
            _ => return,
        };
        sign.get_or_insert(span);
    }

    pub fn record_message(&mut self, head: MessageSpans) {
        if let Some(slot) = self.head.get_mut(self.messages) {
            *slot = head;
            self.messages = self.messages.saturating_add(1);
        }
    }
}
