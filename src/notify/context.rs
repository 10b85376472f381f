//! What the parts of `notify` share.
//!
//! Must not start anything.

use crate::account::Accounts;
use crate::billing::Billing;
use crate::config::Settings;
use arc_swap::ArcSwap;
use std::sync::Arc;

#[derive(Clone)]
pub struct NotifyContext {
    pub accounts: Accounts,
    pub billing: Billing,
    pub settings: Arc<ArcSwap<Settings>>,
}
