//! What a payment provider does for the gateway: a page for a payment, events about it, refunds.
//!
//! Amounts are in minor units of the currency. This file must not name a provider.

use async_trait::async_trait;
use http::HeaderMap;

/// What a checkout page is to take.
#[derive(Debug, Clone)]
pub struct CheckoutRequest<'a> {
    /// The order. A repeated request for the same order gets the same checkout.
    pub order: &'a str,
    pub account: &'a str,
    pub amount: i64,
    /// Three-letter code in lower case.
    pub currency: &'a str,
    /// What the holder buys, as the page names it.
    pub title: &'a str,
    /// Where the page leads after the payment, and if the holder gives up.
    pub return_url: String,
    pub cancel_url: String,
    /// When the page stops taking a payment, in seconds since 1970.
    pub expires_at: i64,
}

/// How far a checkout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckoutState {
    Open,
    /// The holder has paid, and the bank has not confirmed it.
    Processing,
    Paid,
    Expired,
    /// The bank has refused the payment.
    Failed,
}

/// A checkout as the provider knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout {
    pub id: String,
    /// Address of its page, while it takes a payment.
    pub url: Option<String>,
    pub state: CheckoutState,
    /// Order and account that it was made for.
    pub order: Option<String>,
    pub account: Option<String>,
    pub amount: Option<i64>,
    pub currency: Option<String>,
    /// Tax in `amount`.
    pub tax: Option<i64>,
    /// The provider's id of the payment.
    pub payment: Option<String>,
    /// Whether it moves money.
    pub is_live: bool,
    /// How much of the payment was paid back in all, if the provider reports it.
    pub refunded: Option<i64>,
}

/// An event that the provider signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    pub id: String,
    pub is_live: bool,
    pub subject: EventSubject,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSubject {
    Checkout(Checkout),
    /// So much of a payment was paid back, in all.
    Refund {
        payment: String,
        refunded: i64,
    },
    /// The holder's bank disputes a payment.
    Dispute {
        payment: String,
        id: String,
        amount: i64,
        outcome: DisputeOutcome,
    },
    /// Nothing that the gateway needs.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisputeOutcome {
    /// Only a question: no money has moved.
    Inquiry,
    /// The money is gone, for now or for good.
    Taken,
    /// The money has come back.
    Won,
}

/// Why the provider did not do what it was asked for. No text has a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// It may have done it, or may do it later.
    #[error("the payment provider cannot be reached: {0}")]
    Unavailable(String),
    /// It will not do it.
    #[error("the payment provider refused {operation}: {message}")]
    Refused {
        operation: &'static str,
        message: String,
    },
}

/// Why an event is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("the signature is missing or is none of this endpoint's secrets")]
    Signature,
    #[error("the signature is older or newer than {0} seconds")]
    Time(i64),
    #[error("the body is not an event")]
    Body,
}

/// A payment provider.
#[async_trait]
pub trait PaymentProvider: Send + Sync {
    /// Creates a checkout, or returns the one that the order has.
    async fn create_checkout(
        &self,
        request: &CheckoutRequest<'_>,
    ) -> Result<Checkout, ProviderError>;

    /// Returns a checkout, with what was paid back of its payment.
    async fn checkout(&self, id: &str) -> Result<Checkout, ProviderError>;

    /// Makes a checkout take no payment any more.
    async fn expire_checkout(&self, id: &str) -> Result<(), ProviderError>;

    /// Pays a payment back, or a part of it, once per `key`. Returns what was paid back in all.
    async fn refund(&self, payment: &str, amount: i64, key: &str) -> Result<(), ProviderError>;

    /// Checks the signature of a request to the webhook, and reads its event.
    fn read_event(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_ms: i64,
    ) -> Result<ProviderEvent, EventError>;

    /// The reference of a payment's purchase in the ledger.
    fn reference(&self, payment: &str) -> String;
}
