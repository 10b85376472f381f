//! Sells credits to account holders: orders, the checkout at the payment provider, and its webhook.
//! Refunds and disputes take credits back.
//!
//! The ledger decides whether a payment counts, by the reference of its entry; orders and events in
//! `app.db` follow it. So an event may arrive twice, late, out of order or not at all. Without the
//! section `payments` in the config, nothing is sold. This module must not depend on a page. Next:
//! `payments/service.rs` (orders), `payments/provider.rs` (the interface of a provider),
//! `payments/stripe.rs` (the only provider), `payments/checkout.rs` (the checkout of an order),
//! `payments/auto_topup.rs` (charges of saved methods), `payments/settle.rs` (the effects of
//! events), `payments/clawback.rs` (refunds and disputes take credits back), `payments/poller.rs`
//! (lost events), `payments/refund.rs` (refunds by operators), `payments/reconcile.rs` (the
//! provider's payments against the ledger), `payments/codes.rs` (codes in place of a payment).

mod auto_topup;
mod checkout;
mod clawback;
mod codes;
mod error;
mod poller;
pub mod provider;
mod reconcile;
mod refund;
mod service;
mod settle;
mod stripe;
#[cfg(test)]
mod tests;

pub use accounts::db::payments::{AccountClawback, OrderRow, OrderState};
pub use auto_topup::{AutoTopUp, MAX_TRIES};
pub use error::PaymentError;
pub use poller::start;
pub use reconcile::{Difference, Reconciliation};
pub use refund::{FULL_REFUND, PaymentRefund};
pub use service::{CREDITS_PATH, Payments};
pub use settle::EventOutcome;
