//! Hidden thinking that the vendor wants back with the results of its calls: that of chat vendors
//! which say so, and the items of responses vendors. The client gets it in a token before the
//! calls, as a block that it stores and sends back unread.
//!
//! This file must not show any of the text.

use crate::capabilities::ReasoningReplay;
use crate::json::{JsonStr, JsonStrBuf};
use crate::reasoning_token::{self, MAX_TOKEN_BYTES, ReasoningPayload};

/// The thinking since the last call.
#[derive(Debug, Default)]
pub(super) struct UnseenThinking {
    slot: Option<u32>,
    /// True if a chat vendor wants its thinking back.
    is_wanted: bool,
    text: JsonStrBuf,
    /// A token of the gateway that contains the vendor's own form of the thinking.
    signature: String,
    has_calls: bool,
}

impl UnseenThinking {
    /// Begins or continues thinking.
    pub fn open(&mut self, slot: u32, replay: ReasoningReplay) {
        self.slot = Some(slot);
        self.is_wanted = replay != ReasoningReplay::None;
    }

    /// Returns whether more thinking would not fit into the same token.
    pub fn is_sealed(&self) -> bool {
        !self.signature.is_empty()
    }

    /// Keeps a piece of the text. A piece that is too long for a token is dropped.
    pub fn delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        if self.slot == Some(slot) && self.is_wanted && self.text.len() <= MAX_TOKEN_BYTES {
            self.text.push(text);
        }
    }

    pub fn set_signature(&mut self, slot: u32, signature: &JsonStr<'_>) {
        let token = signature.value();
        let is_item = || {
            matches!(
                reasoning_token::unpack(&token),
                Some(ReasoningPayload::Item(_))
            )
        };
        if self.slot == Some(slot) && (self.is_wanted || is_item()) {
            self.signature = token.into_owned();
        }
    }

    /// Begins a call. Returns the token of the thinking before it.
    pub fn begin_call(&mut self) -> Option<String> {
        self.has_calls = true;
        self.take_token()
    }

    /// Returns the token at the end of the answer: that of sealed thinking behind the calls, which
    /// OpenRouter sends last.
    pub fn finish(&mut self) -> Option<String> {
        let is_late = self.has_calls && self.is_wanted && self.is_sealed();
        is_late.then(|| self.take_token()).flatten()
    }

    /// Returns the token, or `None` if there is no thinking to send back.
    pub fn take_token(&mut self) -> Option<String> {
        let has_calls = self.has_calls;
        let UnseenThinking {
            text, signature, ..
        } = std::mem::take(self);
        self.has_calls = has_calls;
        if !signature.is_empty() {
            return Some(signature);
        }
        (!text.is_empty())
            .then(|| reasoning_token::pack_chat_text(&text.text()))
            .flatten()
    }
}
