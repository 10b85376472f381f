//! Webhooks: messages that the gateway posts to addresses which account holders set, signed as
//! Standard Webhooks describes (`webhook-id`, `webhook-timestamp`, `webhook-signature`).
//!
//! A message waits in `app.db` until its receiver answers with a 2xx status, so neither a restart
//! nor a receiver that is away loses it. A receiver may get a message twice: its id is the same.
//! Next: `webhooks/sender.rs` (when), `webhooks/attempt.rs` (one request), `webhooks/address.rs`
//! (which addresses are allowed), `webhooks/service.rs` (what pages do).

mod address;
mod attempt;
mod message;
mod sender;
mod service;
mod signature;
#[cfg(test)]
mod tests;

pub use accounts::db::webhooks::DeliveryLogRow;
pub use address::{AddressPolicy, MAX_URL_CHARS, WebhookUrl, WebhookUrlError};
pub use attempt::machine_tls_config;
pub use message::WebhookEvent;
pub use sender::run;
pub use service::{
    LOG_MS, MAX_LOG_ROWS, MAX_PENDING, OLD_SECRET_MS, ResendOutcome, WebhookState, Webhooks,
};
