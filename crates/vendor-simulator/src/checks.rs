//! Rejects requests that the real vendors reject, even if the simulator could answer, so that tests
//! detect wrong translations.
//!
//! This module must not be stricter than the vendors, and it uses their error messages. Read next:
//! `checks/messages.rs` and `checks/chat.rs`.

mod blocks;
mod cache;
mod chat;
mod chat_errors;
mod chat_schema;
mod chat_tools;
mod chat_turns;
pub mod generations;
mod members;
mod messages;
mod messages_errors;
mod messages_tools;
mod pairing;
mod request_check;
mod responses;
mod responses_items;
mod responses_pairing;
mod responses_tools;
mod structured;
#[cfg(test)]
mod tests;
mod thinking;
mod turns;

pub use self::request_check::SimRequestCheck;

use super::errors::{SimVendor, SimulatedError};

impl SimRequestCheck<'_> {
    pub fn check(&self, vendor: SimVendor) -> Result<(), SimulatedError> {
        match vendor {
            SimVendor::Chat => chat::check(self),
            SimVendor::Messages => messages::check(self),
            SimVendor::Responses => responses::check(self),
        }
    }
}
