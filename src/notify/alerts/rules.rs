//! Defines the alert rules of an account, as JSON in `app.db`.
//!
//! This file must not decide whether a rule fires.

use accounts::Accounts;
use credits::limits::Period;
use credits::money::Micro;
use ledger::StoreError;
use serde::{Deserialize, Serialize};

/// Names under which rules that have fired are stored.
pub const LOW_BALANCE_RULE: &str = "low_balance";
pub const SPEND_RULE: &str = "spend";

/// A day, in ms.
pub const DAY_MS: i64 = 86_400_000;

/// The rules of one account. The default has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertRules {
    /// Fires when the balance falls below this amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_balance: Option<Micro>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend: Option<SpendAlert>,
    /// True if alerts are also sent as mail, to a verified e-mail only.
    pub mail: bool,
}

/// A rule that fires once in each period in which more than these credits are spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendAlert {
    pub credits: Micro,
    pub period: Period,
}

impl AlertRules {
    pub fn is_empty(&self) -> bool {
        self.low_balance.is_none() && self.spend.is_none()
    }

    /// Parses the stored text. An empty text has no rules.
    ///
    /// # Errors
    /// Returns an error if this version cannot parse the text.
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
    /// Returns an error if the database fails, or if this version cannot parse the rules.
    pub fn load(accounts: &Accounts, account: &str) -> Result<Self, StoreError> {
        Self::decode(&accounts.database().alerts().alerts(account)?)
    }
}

/// A rule that has fired and cannot fire again yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiredAlert {
    pub rule: FiredRule,
    pub at_ms: i64,
    /// Start of the period in which more than the amount was spent.
    pub period_ms: i64,
    /// True if the account holder has dismissed the banner.
    pub is_seen: bool,
    /// State of the alert's mail. `None` if there is no mail.
    pub mail: Option<String>,
    /// State of the alert's webhook message. `None` if there is no message.
    pub delivery: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FiredRule {
    LowBalance,
    Spend,
    /// The account holder ordered credits, and the payment failed.
    PaymentFailed,
    /// A charge failed, and the gateway turned the automatic top-up off.
    AutoTopUpStopped,
    /// The next charge of an automatic top-up would exceed the holder's cap for the month, or the
    /// operator's limits on orders.
    AutoTopUpCapped,
    /// A payment differs from its order and was not credited.
    PaymentRefused,
    /// The bank of an account holder has taken a payment back.
    PaymentDisputed,
    /// The payment provider and the ledger do not agree.
    PaymentsDiffer,
}

/// The texts of a rule.
struct RuleRow {
    name: &'static str,
    event: &'static str,
    label: &'static str,
    subject: &'static str,
    page: &'static str,
}

const ALERTS_PAGE: &str = "/dashboard/alerts";
const CREDITS_PAGE: &str = "/dashboard/credits";
const OPERATORS_PAYMENTS_PAGE: &str = "/dashboard/operator/payments";

impl FiredRule {
    pub const ALL: [Self; 8] = [
        Self::LowBalance,
        Self::Spend,
        Self::PaymentFailed,
        Self::AutoTopUpStopped,
        Self::AutoTopUpCapped,
        Self::PaymentRefused,
        Self::PaymentDisputed,
        Self::PaymentsDiffer,
    ];

    /// Returns the texts of the rule.
    const fn row(self) -> RuleRow {
        match self {
            Self::LowBalance => RuleRow {
                name: LOW_BALANCE_RULE,
                event: "credits.low_balance",
                label: "Low balance",
                subject: "Your balance is low",
                page: ALERTS_PAGE,
            },
            Self::Spend => RuleRow {
                name: SPEND_RULE,
                event: "credits.spend_limit",
                label: "Spend",
                subject: "You have spent more than you planned",
                page: ALERTS_PAGE,
            },
            Self::PaymentFailed => RuleRow {
                name: "payment_failed",
                event: "payment.failed",
                label: "Payment failed",
                subject: "A payment of yours failed: no credits were added",
                page: CREDITS_PAGE,
            },
            Self::AutoTopUpStopped => RuleRow {
                name: "auto_topup_stopped",
                event: "payment.auto_topup_stopped",
                label: "Automatic top-up stopped",
                subject: "A charge failed, and automatic top-up is off",
                page: CREDITS_PAGE,
            },
            Self::AutoTopUpCapped => RuleRow {
                name: "auto_topup_capped",
                event: "payment.auto_topup_capped",
                label: "Automatic top-up at its limit",
                subject: "Your balance is low, and automatic top-up has reached a limit",
                page: CREDITS_PAGE,
            },
            Self::PaymentRefused => RuleRow {
                name: "payment_refused",
                event: "payment.refused",
                label: "Payment not credited",
                subject: "A payment differs from its order and was not credited",
                page: OPERATORS_PAYMENTS_PAGE,
            },
            Self::PaymentDisputed => RuleRow {
                name: "payment_disputed",
                event: "payment.disputed",
                label: "Payment disputed",
                subject: "A payment was disputed: its credits were taken back",
                page: OPERATORS_PAYMENTS_PAGE,
            },
            Self::PaymentsDiffer => RuleRow {
                name: "payments_differ",
                event: "payment.reconciliation_differs",
                label: "Payments differ",
                subject: "The payment provider and the ledger differ",
                page: OPERATORS_PAYMENTS_PAGE,
            },
        }
    }

    /// Returns the name under which the rule is stored.
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Returns the `type` of the webhook's message about the rule.
    pub const fn event(self) -> &'static str {
        self.row().event
    }

    /// Returns the name of the rule in the list of webhook messages.
    pub const fn label(self) -> &'static str {
        self.row().label
    }

    /// Returns the subject of the mail, which is also the text of the banner.
    pub const fn subject(self) -> &'static str {
        self.row().subject
    }

    /// Returns the page that the mail and the banner link to.
    pub const fn page(self) -> &'static str {
        self.row().page
    }

    /// Returns true if the rule concerns operators.
    pub fn is_of_operators(self) -> bool {
        self.page() == OPERATORS_PAYMENTS_PAGE
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text)
    }
}

impl FiredAlert {
    /// Returns the rules of an account that have fired.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn load_all(accounts: &Accounts, account: &str) -> Result<Vec<Self>, StoreError> {
        let rows = accounts.database().alerts().fired_alerts(account)?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let notices = accounts.database().alerts().alert_notices(account)?;
        let fired = rows.into_iter().filter_map(|row| {
            let notice = notices.iter().find(|notice| notice.rule == row.rule);
            Some(Self {
                rule: FiredRule::parse(&row.rule)?,
                at_ms: row.fired_at_ms,
                period_ms: row.period_ms,
                is_seen: row.is_seen,
                mail: notice.and_then(|notice| notice.mail.clone()),
                delivery: notice.and_then(|notice| notice.delivery.clone()),
            })
        });
        Ok(fired.collect())
    }

    /// Returns whether a spend alert fired in the period that contains `now_ms`.
    pub fn is_of_period(&self, period: Period, now_ms: i64) -> bool {
        self.period_ms == period.first_day(now_ms).saturating_mul(DAY_MS)
    }

    /// Describes the destinations of the alert, apart from the pages, and the results.
    pub fn describe_notices(&self) -> String {
        let notices = [
            ("mail", &self.mail, ["queued", "failed"]),
            ("webhook", &self.delivery, ["pending", "failed"]),
        ];
        let words = notices
            .into_iter()
            .filter_map(|(by, state, [waits, failed])| {
                let word = match state.as_deref()? {
                    state if state == waits => "waits",
                    state if state == failed => "failed",
                    // The message was sent, or it is so old that its row was deleted.
                    _ => "sent",
                };
                Some(format!("by {by}: {word}"))
            });
        let words: Vec<_> = words.collect();
        if words.is_empty() {
            "on these pages only, because it had no destination".to_owned()
        } else {
            words.join("; ")
        }
    }
}

/// Saves the rules of an account. A changed rule can fire again. Returns false if the account does
/// not exist.
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
