//! Reads the `signup` section, which controls sign-ups and the trial credits of new accounts.

use super::raw::{self, SignupMode};
use super::validator::ConfigValidator;
use credits::money::Micro;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignupSettings {
    pub mode: SignupMode,
    pub trial_credits: Micro,
    /// Length of a trial in ms. 0 means no trial.
    pub trial_ms: i64,
    /// Maximum amount of trial credits per day. 0 means no limit.
    pub trial_budget_per_day: Micro,
    pub one_account_per_mailbox: bool,
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
        Some(SignupSettings {
            mode: signup.mode,
            trial_credits,
            trial_ms,
            trial_budget_per_day,
            one_account_per_mailbox,
        })
    }
}
