//! Converts the form of the alert rules: from rules to texts, and from texts to rules.
//!
//! This file must not save anything.

use crate::notify::alerts::{AlertRules, SpendAlert};
use crate::sidecar::form::FormFault;
use crate::sidecar::session::SignedForm;
use credits::limits::Period;
use credits::money::Micro;

pub const PERIODS: [Period; 3] = [Period::Day, Period::Week, Period::Month];

/// Fields of the form, as typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertRulesForm {
    pub low_balance: String,
    pub spend: String,
    pub period: String,
    pub mail: bool,
}

impl AlertRulesForm {
    pub fn from_rules(rules: &AlertRules) -> Self {
        let text = |amount: Option<Micro>| amount.map_or_else(String::new, |it| it.to_string());
        let period = rules.spend.map_or(Period::Month, |spend| spend.period);
        Self {
            low_balance: text(rules.low_balance),
            spend: text(rules.spend.map(|spend| spend.credits)),
            period: period.name().to_owned(),
            mail: rules.mail,
        }
    }

    pub fn from_form(form: &SignedForm) -> Self {
        Self {
            low_balance: form.field("low_balance").trim().to_owned(),
            spend: form.field("spend").trim().to_owned(),
            period: form.field("period").to_owned(),
            mail: form.field("mail") == "yes",
        }
    }

    /// # Errors
    /// Returns a text for the account holder if a field cannot be read.
    pub fn parse(&self) -> Result<AlertRules, FormFault> {
        let spend = match amount(("spend", "Spend"), &self.spend)? {
            None => None,
            Some(credits) => {
                let period = PERIODS
                    .into_iter()
                    .find(|period| period.name() == self.period)
                    .ok_or_else(|| FormFault::at("period", "Choose a day, a week or a month."))?;
                Some(SpendAlert { credits, period })
            }
        };
        Ok(AlertRules {
            low_balance: amount(("low_balance", "Low balance"), &self.low_balance)?,
            spend,
            mail: self.mail,
        })
    }
}

/// Parses an amount above zero, of a field with this name and label. An empty field is `None`.
fn amount((field, label): (&'static str, &str), text: &str) -> Result<Option<Micro>, FormFault> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<Micro>() {
        Ok(amount) if amount.is_positive() => Ok(Some(amount)),
        Ok(_) => Err(FormFault::at(
            field,
            format!("{label}: the amount must be more than 0."),
        )),
        Err(error) => Err(FormFault::at(field, format!("{label}: {error}."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(low_balance: &str, spend: &str, period: &str) -> AlertRulesForm {
        AlertRulesForm {
            low_balance: low_balance.into(),
            spend: spend.into(),
            period: period.into(),
            mail: true,
        }
    }

    #[test]
    fn a_form_says_the_rules_and_rules_fill_the_form() {
        let typed = form("10", "50.5", "week");
        let rules = typed.parse().unwrap();
        assert_eq!(AlertRulesForm::from_rules(&rules), typed);
        let none = form("", "", "anything").parse().unwrap();
        assert_eq!((none.low_balance, none.spend), (None, None));
        assert_eq!(
            AlertRulesForm::from_rules(&AlertRules::default()).period,
            "month"
        );
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (low_balance, spend, period, fault) in [
            ("x", "", "", "Low balance: not an amount"),
            ("0", "", "", "Low balance: the amount must be more than 0."),
            ("-1", "", "", "Low balance: the amount must be more than 0."),
            ("1.0000001", "", "", "Low balance: not an amount"),
            ("", "1e9", "day", "Spend: not an amount"),
            ("", "0", "day", "Spend: the amount must be more than 0."),
            ("", "1", "", "Choose a day"),
            ("", "1", "total", "Choose a day"),
        ] {
            let error = form(low_balance, spend, period).parse().unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with(fault), "{error}");
        }
    }
}
