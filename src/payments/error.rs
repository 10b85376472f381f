//! Why an order or an event of the provider could not be handled.

use super::provider::ProviderError;
use accounts::db::payments::InsertOrderOutcome;
use ledger::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum PaymentError {
    #[error("no credits are sold: the config has no section payments")]
    Off,
    /// For the account holder.
    #[error("{0}")]
    Amount(String),
    /// The account may not order that much, or that often.
    #[error("the account has ordered too much or too often")]
    Limit(InsertOrderOutcome),
    #[error("{0}")]
    Provider(#[from] ProviderError),
    /// The order of an event is not there, or is not ready: the event must come again.
    #[error("{0}")]
    NotYet(String),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Internal(String),
}
