//! Simulates the part of Stripe that a shop uses: Checkout sessions, saved cards, payment intents,
//! refunds, disputes, events, and signed webhooks.
//!
//! The simulator refuses the same calls as Stripe: unknown parameters, wrong types, amounts that a
//! currency does not have, an idempotency key with other parameters, objects of the other mode. The
//! tests of the SDKs compare it with Stripe's own libraries. The functions of `stripe/people.rs`
//! are the actions of people at Stripe, such as payments and disputes. Other processes call them at
//! `/_sim/stripe/`. This module must not depend on the gateway. Read next: `stripe/api.rs` (the
//! table of the API), `stripe/account.rs` (the effects of calls).

mod account;
mod api;
mod currency;
mod errors;
mod fault;
mod form;
mod objects;
mod pages;
mod people;
#[cfg(test)]
mod tests;
mod webhook;

pub use account::SimStripe;
pub use fault::SimStripeFault;
pub use people::{PaymentWay, SimMoney};
pub use webhook::{DeliveryPlan, SignedEvent, sign};

pub(crate) use account::StripeAnswer;
pub(crate) use pages::PREFIX;
