//! Simulates Stripe as far as a shop uses it: Checkout sessions, payment intents, refunds,
//! disputes, events, and the webhooks that it signs.
//!
//! It refuses what Stripe refuses: unknown parameters, wrong types, amounts that a currency does not
//! have, an idempotency key with other parameters, objects of the other mode. The tests of the SDKs
//! compare it with Stripe's own libraries. What people do at Stripe (pay, dispute, …) are the
//! functions of `stripe/people.rs`; other processes call them at `/_sim/stripe/`. Must not know the
//! gateway. Read next: `stripe/api.rs` (the table of the API), `stripe/account.rs` (what a call
//! changes).

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
