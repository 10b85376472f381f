//! Alerts: an account holder learns of a low balance, or of high spend, before requests are
//! refused: by mail, by webhook, and as a banner on the pages.
//!
//! A task reads the accounts that have rules every few seconds, and fires a rule by writing what it
//! sends to `app.db`; others send it. Nothing of this is on the path of a request. Next:
//! `alerts/rules.rs` (what a rule says), `alerts/engine.rs` (when it fires).

mod engine;
mod rules;
#[cfg(test)]
mod tests;

pub use engine::{AlertEngine, AlertTickReport, run};
pub use rules::{AlertRules, FiredAlert, FiredRule, SpendAlert, save_rules};
