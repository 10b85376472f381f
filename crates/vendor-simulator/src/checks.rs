//! Checks that reject what the real vendors reject, even if the simulator could answer: a wrong
//! translation must not pass.
//!
//! It must not be stricter than the vendors, and it uses their error messages. Read next:
//! `checks/messages.rs` and `checks/chat.rs`.

mod blocks;
mod cache;
mod chat;
mod chat_schema;
mod chat_tools;
mod chat_turns;
mod messages;
mod messages_tools;
pub mod models;
mod pairing;
mod responses;
mod responses_items;
mod responses_pairing;
mod responses_tools;
mod structured;
#[cfg(test)]
mod tests;
mod thinking;
mod turns;

use serde_json::Value;

use super::behaviour::Behaviour;
use super::errors::{SimVendor, SimulatedError};

/// A call with a parsed body.
pub struct SimRequestCheck<'a> {
    pub model: &'a str,
    pub body: &'a Value,
    pub behaviour: &'a Behaviour,
    /// The previews that the caller enabled by header.
    pub previews: &'a str,
}

impl SimRequestCheck<'_> {
    pub fn check(&self, vendor: SimVendor) -> Result<(), SimulatedError> {
        match vendor {
            SimVendor::Chat => chat::check(self),
            SimVendor::Messages => messages::check(self),
            SimVendor::Responses => responses::check(self),
        }
    }

    /// A member of the body; null counts as absent.
    fn non_null(&self, name: &str) -> Option<&Value> {
        non_null(self.body, name)
    }

    /// Output limit of the model.
    fn output_max(&self) -> Option<u64> {
        models::max_output_tokens(self.model)
    }

    /// Whether the model is a real vendor's. All others belong to compatible servers, which accept
    /// more.
    fn is_real(&self) -> bool {
        models::generation(self.model).is_some()
    }

    fn has_preview(&self, name: &str) -> bool {
        self.previews.contains(name)
    }

    /// Whether an unknown field is accepted: it is an extension, and the model is not a real
    /// vendor's.
    fn allows_extension(&self, name: &str) -> bool {
        !self.is_real() && name.starts_with("x_")
    }
}

fn non_null<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).filter(|value| !value.is_null())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The first member of an object that is not in the list of known ones.
fn unknown_member<'a>(value: &'a Value, known: &[&str]) -> Option<&'a str> {
    let names = value.as_object()?.keys().map(String::as_str);
    names.into_iter().find(|name| !known.contains(name))
}

/// Whether the text consists of letters, digits, `_` and `-`, and is not too long.
fn is_word(text: &str, max: usize) -> bool {
    let is_word_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=max).contains(&text.len()) && text.bytes().all(is_word_byte)
}
