//! Alerts inform an account holder of a low balance or of high spend before requests are refused,
//! by mail, by webhook, and by a banner on the pages.
//!
//! Every few seconds, a task reads the accounts that have rules. It fires a rule by writing
//! messages to `app.db`, which other tasks send. Requests do not use this module. Next:
//! `alerts/rules.rs` (the rules), `alerts/engine.rs` (when a rule fires),
//! `alerts/payments.rs` (notices of payments).

mod engine;
mod payments;
mod rules;
#[cfg(test)]
mod tests;

pub use engine::{AlertEngine, AlertTickReport, run};
pub use payments::PaymentNotice;
pub use rules::{AlertRules, FiredAlert, FiredRule, SpendAlert, save_rules};
