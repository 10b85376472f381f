//! Holds the state that the parts of `notify` share.
//!
//! This file must not start a task.

use crate::billing::Billing;
use accounts::Accounts;
use arc_swap::ArcSwap;
use config::Settings;
use std::sync::Arc;

#[derive(Clone)]
pub struct NotifyContext {
    pub accounts: Accounts,
    pub billing: Billing,
    pub settings: Arc<ArcSwap<Settings>>,
}
