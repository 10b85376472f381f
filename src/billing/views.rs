//! Groups the methods of billing for pages, operators and upkeep into one view for each subject.
//! Free functions take the whole [`Billing`].
//!
//! This file must not contain behaviour: each view is implemented in a separate file.

use super::data_dir::Billing;

/// The data of pages: activity, conversations, balances of many accounts.
#[derive(Clone, Copy)]
pub struct BillingPages<'a>(pub(crate) &'a Billing);

/// Receipts of requests, and statements of accounts.
#[derive(Clone, Copy)]
pub struct Receipts<'a>(pub(crate) &'a Billing);

/// Usage by time, model and key.
#[derive(Clone, Copy)]
pub struct UsageReports<'a>(pub(crate) &'a Billing);

/// Grants, top-ups, adjustments and refunds.
#[derive(Clone, Copy)]
pub struct Corrections<'a>(pub(crate) &'a Billing);

/// Sealing, archiving and backups.
#[derive(Clone, Copy)]
pub struct BillingUpkeep<'a>(pub(crate) &'a Billing);

impl Billing {
    pub fn pages(&self) -> BillingPages<'_> {
        BillingPages(self)
    }

    pub fn receipts(&self) -> Receipts<'_> {
        Receipts(self)
    }

    pub fn reports(&self) -> UsageReports<'_> {
        UsageReports(self)
    }

    pub fn corrections(&self) -> Corrections<'_> {
        Corrections(self)
    }

    pub fn upkeep(&self) -> BillingUpkeep<'_> {
        BillingUpkeep(self)
    }
}
