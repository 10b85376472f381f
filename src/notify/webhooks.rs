//! Posts messages to addresses of account holders, signed according to Standard Webhooks
//! (`webhook-id`, `webhook-timestamp`, `webhook-signature`).
//!
//! A message waits in `app.db` until its receiver answers with a 2xx status, so neither a restart
//! nor an unreachable receiver loses it. A receiver may get a message twice, with the same id.
//! Next: `webhooks/sender.rs` (the schedule), `webhooks/attempt.rs` (one request),
//! `webhooks/address.rs` (the allowed addresses), `webhooks/service.rs` (the calls of pages).

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
