//! Sells credits to account holders: orders, the checkout at the payment provider, and its webhook.
//! Refunds and disputes take credits back.
//!
//! The ledger decides whether a payment counts, by the reference of its entry; orders and events in
//! `app.db` follow it. So an event may arrive twice, late, out of order or not at all. Without the
//! section `payments` in the config, nothing is sold. This module must not depend on a page. Next:
//! `payments/service.rs` (orders), `payments/provider.rs` (what a provider does),
//! `payments/stripe.rs` (the one there is), `payments/checkout.rs` (an order gets its checkout),
//! `payments/settle.rs` (what an event changes), `payments/poller.rs` (orders whose events are
//! lost).

mod checkout;
mod client;
mod error;
mod poller;
pub mod provider;
mod service;
mod settle;
mod stripe;
#[cfg(test)]
mod tests;

pub use accounts::db::payments::{OrderRow, OrderState};
pub use error::PaymentError;
pub use poller::start;
pub use service::{CREDITS_PATH, Payments};
pub use settle::EventOutcome;
