//! Provides access to orders and to the configured provider.
//!
//! This file must not change an order.

use super::error::PaymentError;
use super::provider::{EventError, PaymentProvider, ProviderEvent};
use super::stripe::Stripe;
use crate::billing::Billing;
use accounts::Accounts;
use accounts::db::payments::{AccountClawback, OrderRow};
use arc_swap::ArcSwap;
use config::raw::PaymentProviderName;
use config::{PaymentSettings, Settings};
use http::HeaderMap;
use ledger::StoreError;
use std::sync::Arc;

/// Path of the pages about credits.
pub const CREDITS_PATH: &str = "/dashboard/credits";

/// Access to orders and the payment provider. Clones share one state.
#[derive(Clone)]
pub struct Payments {
    pub(super) accounts: Accounts,
    pub(super) billing: Billing,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    /// Provider of a test in place of the configured one.
    pub(super) provider: Option<Arc<dyn PaymentProvider>>,
}

impl Payments {
    pub fn new(accounts: Accounts, billing: Billing, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self {
            accounts,
            billing,
            settings,
            provider: None,
        }
    }

    /// Returns the settings for selling credits; `None` if no credits are sold.
    pub fn settings(&self) -> Option<Arc<PaymentSettings>> {
        self.settings.load().payments.clone()
    }

    pub(super) fn provider(&self, settings: &Arc<PaymentSettings>) -> Arc<dyn PaymentProvider> {
        if let Some(provider) = &self.provider {
            return Arc::clone(provider);
        }
        match settings.provider {
            PaymentProviderName::Stripe => Arc::new(Stripe::new(Arc::clone(settings))),
        }
    }

    /// Checks the signature of a request to the provider's webhook, and reads its event.
    ///
    /// # Errors
    /// Returns an error if the request is not from the provider, or is too old.
    pub fn read_event(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now_ms: i64,
    ) -> Result<ProviderEvent, EventError> {
        let settings = self.settings().ok_or(EventError::Signature)?;
        self.provider(&settings).read_event(headers, body, now_ms)
    }

    /// Returns an order of the account; `None` if it has no such order.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn order_of(&self, account: &str, id: &str) -> Result<Option<OrderRow>, PaymentError> {
        let order = self.accounts.database().payments().order(id)?;
        Ok(order.filter(|order| order.account == account))
    }

    /// Returns what the payments of an account that were taken back do to it.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn account_clawback(&self, account: &str) -> Result<AccountClawback, StoreError> {
        self.accounts
            .database()
            .payments()
            .clawbacks()
            .of_account(account)
    }

    /// Returns at most `limit` orders of an account, newest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn orders_of(&self, account: &str, limit: u32) -> Result<Vec<OrderRow>, PaymentError> {
        let rows = self.accounts.database().payments();
        Ok(rows.orders_of(account, limit)?)
    }
}
