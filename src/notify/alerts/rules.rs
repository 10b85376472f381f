//! The alert rules of an account, as JSON in `app.db`.
//!
//! Must not decide whether a rule fires.

use accounts::Accounts;
use credits::limits::Period;
use credits::money::Micro;
use ledger::StoreError;
use serde::{Deserialize, Serialize};

/// Names under which rules that have fired are stored.
pub const LOW_BALANCE_RULE: &str = "low_balance";
pub const SPEND_RULE: &str = "spend";

/// The rules of one account. The default has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertRules {
    /// Fires when the balance falls below this amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_balance: Option<Micro>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend: Option<SpendAlert>,
    /// Whether alerts are also sent as mail, to a verified e-mail only.
    pub mail: bool,
}

/// Fires once in each period in which more than these credits are spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendAlert {
    pub credits: Micro,
    pub period: Period,
}

impl AlertRules {
    fn is_empty(&self) -> bool {
        self.low_balance.is_none() && self.spend.is_none()
    }

    /// Reads the stored text; an empty one has no rules.
    ///
    /// # Errors
    /// Returns an error if this version does not know the text.
    pub fn decode(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| {
            StoreError::Unusable(format!("cannot read an account's alert rules: {error}"))
        })
    }

    fn encode(&self) -> String {
        if self.is_empty() && !self.mail {
            return String::new();
        }
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the rules of an account.
    ///
    /// # Errors
    /// Returns an error if the database fails, or if this version does not know the rules.
    pub fn load(accounts: &Accounts, account: &str) -> Result<Self, StoreError> {
        Self::decode(&accounts.database().alerts().alerts(account)?)
    }
}

/// When each rule fired last; `None` if it can fire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FiredTimes {
    pub low_balance_ms: Option<i64>,
    pub spend_ms: Option<i64>,
}

impl FiredTimes {
    /// # Errors
    /// Returns an error if the database fails.
    pub fn load(accounts: &Accounts, account: &str) -> Result<Self, StoreError> {
        let fired = accounts.database().alerts().fired_alerts(account)?;
        let find = |rule: &str| {
            let found = fired.iter().find(|fired| fired.rule == rule);
            found.map(|fired| fired.fired_at_ms)
        };
        Ok(Self {
            low_balance_ms: find(LOW_BALANCE_RULE),
            spend_ms: find(SPEND_RULE),
        })
    }
}

/// Saves the rules of an account. A rule that changes can fire again. Returns false if there is no
/// such account.
///
/// # Errors
/// Returns an error if the database fails.
pub fn save_rules(
    accounts: &Accounts,
    account: &str,
    rules: &AlertRules,
) -> Result<bool, StoreError> {
    let db = accounts.database();
    let before = AlertRules::decode(&db.alerts().alerts(account)?).unwrap_or_default();
    if !db.alerts().set_alerts(account, &rules.encode())? {
        return Ok(false);
    }
    if before.low_balance != rules.low_balance {
        db.alerts().rearm_alert(account, LOW_BALANCE_RULE)?;
    }
    if before.spend != rules.spend {
        db.alerts().rearm_alert(account, SPEND_RULE)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_stored_as_json_and_none_as_nothing() {
        let rules = AlertRules {
            low_balance: Some("10".parse().unwrap()),
            spend: Some(SpendAlert {
                credits: "50.5".parse().unwrap(),
                period: Period::Week,
            }),
            mail: true,
        };
        let text = rules.encode();
        assert_eq!(
            text,
            r#"{"low_balance":"10","spend":{"credits":"50.5","period":"week"},"mail":true}"#
        );
        assert_eq!(AlertRules::decode(&text).unwrap(), rules);
        assert_eq!(AlertRules::default().encode(), "");
        assert_eq!(AlertRules::decode("").unwrap(), AlertRules::default());
        for bad in ["{", "1", r#"{"balance":"1"}"#, r#"{"low_balance":"x"}"#] {
            assert!(AlertRules::decode(bad).is_err(), "{bad}");
        }
    }
}
