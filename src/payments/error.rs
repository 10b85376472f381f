//! Defines the errors that occur while an order or a provider event is handled.

use super::provider::ProviderError;
use accounts::db::payments::InsertOrderOutcome;
use ledger::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum PaymentError {
    #[error("no credits are sold: the config has no section payments")]
    Off,
    /// The amount is not allowed; the text is for the account holder.
    #[error("{0}")]
    Amount(String),
    /// There is no such payment or code.
    #[error("{0}")]
    Unknown(String),
    /// The state of the payment forbids it.
    #[error("{0}")]
    Conflict(String),
    /// The reference is that of another refund of the payment.
    #[error("{0}")]
    ReferenceUsed(String),
    /// The order would exceed the account's limit on amount or number.
    #[error("the account has ordered too much or too often")]
    Limit(InsertOrderOutcome),
    #[error("{0}")]
    Provider(#[from] ProviderError),
    /// The order of an event is missing or is not ready, so the provider must send the event again.
    #[error("{0}")]
    NotYet(String),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Internal(String),
}

impl PaymentError {
    /// Whether nothing has changed, and nothing will.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Off
                | Self::Amount(_)
                | Self::Unknown(_)
                | Self::Conflict(_)
                | Self::ReferenceUsed(_)
                | Self::Limit(_)
                | Self::Provider(ProviderError::Refused { .. })
        )
    }
}
