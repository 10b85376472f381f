//! Groups the methods of the shared store into one view for each subject. Free functions take the
//! whole [`SharedStore`].
//!
//! This file must not contain behaviour: a method is implemented beside its script.

use super::client::SharedStore;

/// API keys, and their revocations as they happen.
#[derive(Clone, Copy)]
pub struct StoreKeys<'a>(pub(crate) &'a SharedStore);

/// Balances, and changes of them that no request caused.
#[derive(Clone, Copy)]
pub struct StoreBalances<'a>(pub(crate) &'a SharedStore);

/// Events of the store for the ledger.
#[derive(Clone, Copy)]
pub struct StoreEventLog<'a>(pub(crate) &'a SharedStore);

/// Checks that the server keeps its data.
#[derive(Clone, Copy)]
pub struct StoreFitnessChecks<'a>(pub(crate) &'a SharedStore);

/// Idempotency keys and stored responses.
#[derive(Clone, Copy)]
pub struct StoreIdempotency<'a>(pub(crate) &'a SharedStore);

/// Calls that only the sidecar makes.
#[derive(Clone, Copy)]
pub struct StoreIngest<'a>(pub(crate) &'a SharedStore);

/// Refused requests that edges send to the sidecar.
#[derive(Clone, Copy)]
pub struct StoreRefusals<'a>(pub(crate) &'a SharedStore);

/// Holds of requests, and their ends.
#[derive(Clone, Copy)]
pub struct StoreHolds<'a>(pub(crate) &'a SharedStore);

impl SharedStore {
    pub fn keys(&self) -> StoreKeys<'_> {
        StoreKeys(self)
    }

    pub fn balances(&self) -> StoreBalances<'_> {
        StoreBalances(self)
    }

    pub fn events(&self) -> StoreEventLog<'_> {
        StoreEventLog(self)
    }

    pub fn fitness(&self) -> StoreFitnessChecks<'_> {
        StoreFitnessChecks(self)
    }

    pub fn idempotency(&self) -> StoreIdempotency<'_> {
        StoreIdempotency(self)
    }

    pub fn ingest(&self) -> StoreIngest<'_> {
        StoreIngest(self)
    }

    pub fn refusals(&self) -> StoreRefusals<'_> {
        StoreRefusals(self)
    }

    pub fn holds(&self) -> StoreHolds<'_> {
        StoreHolds(self)
    }
}
