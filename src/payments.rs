//! Credits that account holders buy: orders, the checkout at the payment provider, its webhook, and
//! how refunds and disputes take credits back.
//!
//! The ledger decides whether a payment counts, by the reference of its entry; orders and events in
//! `app.db` follow it. So an event can come twice, late, out of order or not at all. Off without
//! the section `payments` of the config. This module must not know a page. Next:
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
