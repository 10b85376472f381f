//! Hidden thinking that the vendor wants back with the results of its calls. The client gets it in
//! a token before the calls, as a block that it stores and sends back unread.
//!
//! This file must not show any of the text.

use crate::capabilities::ReasoningReplay;
use crate::json::{JsonStr, JsonStrBuf};
use crate::reasoning_token::{self, MAX_TOKEN_BYTES};

/// The thinking since the last call.
#[derive(Debug, Default)]
pub(super) struct UnseenThinking {
    slot: Option<u32>,
    text: JsonStrBuf,
    /// A token of the gateway that contains the vendor's own form of the thinking.
    signature: String,
}

impl UnseenThinking {
    /// Begins or continues thinking, if the vendor wants it back.
    pub fn open(&mut self, slot: u32, replay: ReasoningReplay) {
        if replay != ReasoningReplay::None {
            self.slot = Some(slot);
        }
    }

    /// Returns whether more thinking would not fit into the same token.
    pub fn is_sealed(&self) -> bool {
        !self.signature.is_empty()
    }

    /// Keeps a piece of the text. A piece that is too long for a token is dropped.
    pub fn delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        if self.slot == Some(slot) && self.text.len() <= MAX_TOKEN_BYTES {
            self.text.push(text);
        }
    }

    pub fn set_signature(&mut self, slot: u32, signature: &JsonStr<'_>) {
        if self.slot == Some(slot) {
            self.signature = signature.value().into_owned();
        }
    }

    /// Returns the token, or `None` if there is no thinking to send back.
    pub fn take_token(&mut self) -> Option<String> {
        let UnseenThinking {
            slot,
            text,
            signature,
        } = std::mem::take(self);
        slot?;
        if !signature.is_empty() {
            return Some(signature);
        }
        (!text.is_empty())
            .then(|| reasoning_token::pack_chat_text(&text.text()))
            .flatten()
    }
}
