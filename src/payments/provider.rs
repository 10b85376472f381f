//! Defines the interface of a payment provider: checkout pages, charges of saved payment methods,
//! events about payments, and refunds.
//!
//! Amounts are in minor units of the currency. This file must not name a provider.

use async_trait::async_trait;
use http::HeaderMap;

#[derive(Debug, Clone)]
pub struct CheckoutRequest<'a> {
    /// Id of the order. A repeated request for the same order gets the same checkout.
    pub order: &'a str,
    pub account: &'a str,
    pub amount: i64,
    /// Currency as a three-letter code in lower case.
    pub currency: &'a str,
    /// Title of the purchase on the page.
    pub title: &'a str,
    /// Address to which the page leads after the payment, and if the holder gives up.
    pub return_url: String,
    pub cancel_url: String,
    /// Time at which the page stops accepting a payment, in seconds since 1970.
    pub expires_at: i64,
}

/// A page on which the holder enters a payment method that is charged later.
#[derive(Debug, Clone)]
pub struct SetupRequest<'a> {
    /// A repeated request with the same key gets the same page.
    pub key: &'a str,
    pub account: &'a str,
    /// The method that the new one replaces, if there is one.
    pub replaces: Option<&'a str>,
    /// Address to which the page leads afterwards, and if the holder gives up.
    pub return_url: String,
    pub cancel_url: String,
    /// Time at which the page closes, in seconds since 1970.
    pub expires_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodPage {
    /// The provider's id of the page.
    pub id: String,
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupState {
    Open,
    Expired,
    Saved {
        /// The method as only the provider reads it.
        method: String,
        /// Name for people, such as `Visa ending in 4242`.
        label: String,
    },
}

/// A charge of a saved method, without its holder. A repeated request for the same order charges
/// once.
#[derive(Debug, Clone)]
pub struct ChargeRequest<'a> {
    pub order: &'a str,
    pub account: &'a str,
    pub amount: i64,
    /// Currency as a three-letter code in lower case.
    pub currency: &'a str,
    pub title: &'a str,
    pub method: &'a str,
    /// Time of the order, in seconds since 1970.
    pub created_at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The charge was made. Its id is that of the checkout.
    Made(Box<Checkout>),
    /// Nothing was charged.
    Declined(Decline),
}

/// Reason for which a saved method was not charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decline {
    pub kind: DeclineKind,
    /// The bank's or the provider's words: a sentence.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclineKind {
    /// The bank has declined the charge, and may accept a later one.
    Bank,
    /// The bank requires the holder to authenticate.
    Authentication,
    /// The provider no longer has the method.
    MethodGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckoutState {
    Open,
    /// The holder has paid, but the bank has not confirmed the payment.
    Processing,
    Paid,
    Expired,
    /// The bank has refused the payment.
    Failed,
}

/// A checkout in the state that the provider reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkout {
    pub id: String,
    /// Address of the checkout page while it accepts a payment.
    pub url: Option<String>,
    pub state: CheckoutState,
    /// Id of the order. The account's id follows.
    pub order: Option<String>,
    pub account: Option<String>,
    pub amount: Option<i64>,
    pub currency: Option<String>,
    /// Tax that `amount` includes.
    pub tax: Option<i64>,
    /// The provider's id of the payment.
    pub payment: Option<String>,
    /// True if the payment moves real money.
    pub is_live: bool,
    /// Total amount of the payment that was refunded, if the provider reports it.
    pub refunded: Option<i64>,
    /// Disputes of the payment; empty if the provider reports none.
    pub disputes: Vec<Dispute>,
    /// Address of the provider's receipt, if the provider reports it.
    pub receipt_url: Option<String>,
}

/// How much of a payment was refunded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refunded {
    /// The sum of all refunds so far.
    pub total: i64,
    /// The amount of the payment, and its currency as a three-letter code in lower case.
    pub amount: i64,
    pub currency: String,
}

/// A dispute in which the holder's bank contests a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispute {
    /// The provider's id of the dispute.
    pub id: String,
    /// In the currency, which can be another one than that of the payment.
    pub amount: i64,
    pub currency: String,
    pub outcome: DisputeOutcome,
}

/// A payment in the provider's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPayment {
    /// The provider's id of the payment.
    pub id: String,
    /// The order that it was made for, if it was made for one.
    pub order: Option<String>,
    pub amount: i64,
    pub currency: String,
    /// How much was paid back, in all.
    pub refunded: i64,
    /// Whether a bank has asked about the payment or taken it back.
    pub is_disputed: bool,
    /// Whether the money has arrived.
    pub is_paid: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    pub id: String,
    pub is_live: bool,
    pub subject: EventSubject,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSubject {
    Checkout(Checkout),
    /// There is news of the page with this id, on which a holder enters a payment method.
    Setup(String),
    Refund {
        payment: String,
        refunded: Refunded,
    },
    Dispute {
        payment: String,
        dispute: Dispute,
    },
    /// The event does not concern the gateway.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisputeOutcome {
    /// The bank has asked a question, and no money has moved.
    Inquiry,
    /// The money was taken back, perhaps only for the time being.
    Taken,
    /// The money has been returned to the operator.
    Won,
}

/// Errors of the provider. No text contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The provider may have carried out the request, or may do so later.
    #[error("the payment provider cannot be reached: {0}")]
    Unavailable(String),
    /// The provider will not carry out the request.
    #[error("the payment provider refused {operation}: {message}")]
    Refused {
        operation: &'static str,
        message: String,
    },
}

impl ProviderError {
    /// The error of an answer that has no page to which a holder can be led.
    pub fn no_page() -> Self {
        Self::Unavailable("its answer has no https address of a page".into())
    }
}

/// Reason for which an event is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("the signature is missing or is none of this endpoint's secrets")]
    Signature,
    #[error("the signature is older or newer than {0} seconds")]
    Time(i64),
    #[error("the body is not an event")]
    Body,
}

#[async_trait]
pub trait PaymentProvider: Send + Sync {
    /// Creates a checkout, or returns the existing one of the order.
    async fn create_checkout(
        &self,
        request: &CheckoutRequest<'_>,
    ) -> Result<Checkout, ProviderError>;

    /// Returns a checkout or a charge, including the refunded amount, the disputes and the receipt
    /// of its payment.
    async fn checkout(&self, id: &str) -> Result<Checkout, ProviderError>;

    /// Makes a checkout accept no further payment.
    async fn expire_checkout(&self, id: &str) -> Result<(), ProviderError>;

    /// Creates a page on which a holder enters a payment method.
    async fn create_setup(&self, request: &SetupRequest<'_>) -> Result<MethodPage, ProviderError>;

    async fn setup(&self, id: &str) -> Result<SetupState, ProviderError>;

    /// Charges a saved method, or returns what became of the order's charge.
    async fn charge(&self, request: &ChargeRequest<'_>) -> Result<ChargeOutcome, ProviderError>;

    /// Returns the charge of an order; `None` if the provider has none.
    async fn find_charge(
        &self,
        request: &ChargeRequest<'_>,
    ) -> Result<Option<Checkout>, ProviderError>;

    /// Makes the provider forget a saved method, if it has it.
    async fn forget_method(&self, method: &str) -> Result<(), ProviderError>;

    /// Returns a page of the payments that were begun in a span of time, in seconds since 1970:
    /// those that follow the payment `after`. The last page is empty.
    async fn payments_between(
        &self,
        from: i64,
        to: i64,
        after: Option<&str>,
    ) -> Result<Vec<ListedPayment>, ProviderError>;

    /// Refunds a payment in full or in part, once per `key`.
    async fn refund(&self, payment: &str, amount: i64, key: &str) -> Result<(), ProviderError>;

    /// Checks the signature of a request to the webhook, and reads its event.
    fn read_event(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_ms: i64,
    ) -> Result<ProviderEvent, EventError>;

    /// Returns the reference of a payment's purchase in the ledger.
    fn reference(&self, payment: &str) -> String;
}
