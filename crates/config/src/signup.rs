//! Reads the `signup` section, which controls sign-ups and the trial credits of new accounts.

use super::domain::{canonical_domain, domain_of};
use super::raw::{self, SignupMode};
use super::validator::ConfigValidator;
use credits::money::Micro;
use std::sync::Arc;

/// Maximum number of domains that may sign up.
const MAX_DOMAINS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignupSettings {
    pub mode: SignupMode,
    pub trial_credits: Micro,
    /// Length of a trial in ms. 0 means no trial.
    pub trial_ms: i64,
    /// Maximum amount of trial credits per day. 0 means no limit.
    pub trial_budget_per_day: Micro,
    pub one_account_per_mailbox: bool,
    /// Domains whose addresses may sign up, in canonical form; empty: all.
    pub domains: Arc<[String]>,
}

impl SignupSettings {
    /// Returns whether a canonical address may sign up.
    pub fn admits(&self, email: &str) -> bool {
        let domain = domain_of(email);
        self.domains.is_empty() || self.domains.iter().any(|one| one == domain)
    }
}

impl ConfigValidator {
    pub(super) fn signup(&mut self, signup: &raw::Signup) -> Option<SignupSettings> {
        let trial_credits = self.parse_amount("signup.trial_credits", &signup.trial_credits);
        // Amounts have six decimals. Six decimals of a day are finer than a tenth of a second, so
        // the parser of amounts reads days too.
        let days = self.parse_amount("signup.trial_days", &signup.trial_days)?;
        let trial_ms = days.get().saturating_mul(864) / 10;
        let trial_budget_per_day =
            self.parse_amount("signup.trial_budget_per_day", &signup.trial_budget_per_day)?;
        let trial_credits = trial_credits?;
        if trial_budget_per_day.is_positive()
            && trial_ms > 0
            && trial_budget_per_day < trial_credits
        {
            self.add_fault(
                "signup.trial_budget_per_day",
                "is less than signup.trial_credits, so nobody could sign up",
            );
        }
        let one_account_per_mailbox = signup.one_account_per_mailbox;
        let mut domains = Vec::new();
        for (index, text) in signup.domains.iter().enumerate() {
            match canonical_domain(text) {
                Some(domain) => domains.push(domain),
                None => self.add_fault(
                    format!("signup.domains[{index}]"),
                    "is not a domain: write what follows the @ of an address, such as example.com",
                ),
            }
        }
        if domains.len() > MAX_DOMAINS {
            let fault = format!(
                "has {} domains, at most {MAX_DOMAINS} are possible",
                domains.len()
            );
            self.add_fault("signup.domains", &fault);
        }
        Some(SignupSettings {
            mode: signup.mode,
            trial_credits,
            trial_ms,
            trial_budget_per_day,
            one_account_per_mailbox,
            domains: domains.into(),
        })
    }
}
