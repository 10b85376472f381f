//! stub, replaced soon: quote, hold, settle, balance, receipts
use crate::catalog::Price;
use crate::money::Micro;
use crate::protocol::Protocol;
use crate::store::StoreError;
use crate::usage::Usage;

#[derive(Clone, Default)]
pub struct Billing;

/// What an account has, at one moment.
#[derive(Debug, Clone)]
pub struct Balance {
    pub balance: Micro,
    pub held: Micro,
    pub available: Micro,
    pub trial: Option<TrialState>,
}

#[derive(Debug, Clone)]
pub struct TrialState {
    pub ends_at_ms: i64,
    pub credits_left: Micro,
    pub active: bool,
}

/// A sign-up grant.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub credits: Micro,
    pub ends_at_ms: i64,
}

/// How one response was billed: an entry explained.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Position in the ledger; pages go by it.
    pub seq: i64,
    pub request_id: String,
    pub at_ms: i64,
    pub model: String,
    pub surface: Protocol,
    pub key_id: String,
    pub outcome: String,
    pub usage: Usage,
    pub price: Price,
    pub credits: Micro,
    pub estimated: bool,
    pub balance_after: Micro,
}

impl Billing {
    /// Opens the ledger account. The grant goes by the reference `trial:<account>`: doing it again changes nothing.
    pub fn open_account(&self, _account: &str, _trial: Option<Trial>, _now_ms: i64) -> Result<(), StoreError> {
        Ok(())
    }
    pub fn balance(&self, _account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        Ok(Balance {
            balance: Micro::new(299_999_128),
            held: Micro::ZERO,
            available: Micro::new(299_999_128),
            trial: Some(TrialState {
                ends_at_ms: now_ms + 600_000_000,
                credits_left: Micro::new(299_999_128),
                active: true,
            }),
        })
    }
    pub fn receipt(&self, _account: &str, _request_id: &str) -> Result<Option<Receipt>, StoreError> {
        Ok(None)
    }
    /// The newest first; `before` is the `seq` of the last one of the page before.
    pub fn receipts(&self, _account: &str, _before: Option<i64>, _limit: u32) -> Result<Vec<Receipt>, StoreError> {
        Ok(Vec::new())
    }
}
